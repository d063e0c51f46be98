//! Seeded chance: what goes wrong, and when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Every kind of fault that a hostile run may meet.
pub const KINDS: [&str; 50] = [
    "store refuses",
    "store applies and loses the answer",
    "store applies late",
    "segment corrupt",
    "segment read damaged",
    "sink fails",
    "sink fails half-way",
    "sink is slow",
    "source fails",
    "source cannot be opened",
    "source hangs",
    "source rewinds",
    "source jumps ahead",
    "source leaves a gap",
    "records deleted",
    "end of the log unknown",
    "partition panics",
    "aggregation panics",
    "committer panics",
    "supervisor panics",
    "stage panics",
    "stage fails",
    "operator panics",
    "operator fails half-way",
    "checkpoint panics",
    "restore panics",
    "port panics",
    "an actor panics at an await of another",
    "process killed",
    "process killed at an await",
    "process killed in the supervisor's pause",
    "process stopped",
    "process frozen at an await",
    "second process",
    "frozen process wakes beside a second one",
    "frozen process wakes at the very end",
    "another instance takes over",
    "new partition",
    "started at the end",
    "paused",
    "resumed",
    "rewound with its state",
    "rewound with an empty state",
    "two rewinds at once",
    "rewind broken off",
    "rewind finished by another",
    "started while a rewind is not finished",
    "rewound beside a process",
    "clock jumps",
    "thread busy",
];

/// A seeded generator (splitmix64) that counts the faults it deals.
#[derive(Debug)]
pub struct Chance {
    state: Mutex<u64>,
    pub dealt: Mutex<BTreeMap<&'static str, u64>>,
    pub hostile: AtomicBool,
}

impl Chance {
    pub fn new(seed: u64, hostile: bool) -> Self {
        let state = Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03);
        Self { state, dealt: Mutex::default(), hostile: hostile.into() }
    }

    pub fn number(&self, below: u64) -> u64 {
        let mut state = self.state.lock().unwrap();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// Whether a fault happens, once in `every` times.
    pub fn strikes(&self, fault: &'static str, every: u64) -> bool {
        let strikes = self.hostile.load(Ordering::SeqCst) && self.number(every) == 0;
        if strikes {
            self.dealt(fault);
        }
        strikes
    }

    pub fn dealt(&self, fault: &'static str) {
        assert!(KINDS.contains(&fault), "{fault}");
        *self.dealt.lock().unwrap().entry(fault).or_default() += 1;
    }

    pub async fn pause(&self, up_to_millis: u64) {
        tokio::time::sleep(Duration::from_millis(self.number(up_to_millis + 1))).await;
    }
}
