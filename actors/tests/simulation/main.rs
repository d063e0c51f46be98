//! The whole of the actors in one thread, on fake ports with virtual time and seeded faults: whatever crashes, stalls,
//! answers late or not at all, the sink holds in the end what a plain loop over the input computes.
//!
//! Nothing random enters but the seed, so a run that went wrong goes wrong again. [`flaws`] shows that the simulation finds
//! what it is meant to find.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod damage;
mod faults;
mod flaws;
mod halt;
mod history;
mod life;
mod panics;
mod pause;
mod poison;
mod process;
mod query;
mod rewinds;
mod sink;
mod source;
mod store;
mod trace;
mod truth;
mod world;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use life::{Report, simulate};
use world::Plan;

/// Seeds of a normal run, beside those that once found a fault.
pub const SEEDS: u64 = 1_000;

/// Seeds that once found a fault, beside those of every run. What each found is a deliberate fault by now too, since other
/// chances have moved its seed.
const FOUND: [u64; 4] = [
    1,       // A start offset that was not stored at once ended the process.
    120,     // Segments that a later process had cleaned up were called corrupt.
    881_186, // A process that was killed in the supervisor's pause came back.
    1_271,   // Of two rewinds one read the pointers while the other took its marks off, and began anew.
];

/// Seeds of a normal run; `SIMULATION_SEEDS=from..until` chooses others.
pub fn seeds() -> Vec<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else { return FOUND.into_iter().chain(0..SEEDS).collect() };
    let parts: Vec<u64> = text.split("..").map(|part| part.parse().expect("SIMULATION_SEEDS=from..until")).collect();
    (parts[0]..parts[1]).collect()
}

/// Works off tasks on all processors, each simulation on one thread, until one of them says stop.
pub fn on_all_processors<T: Sync>(tasks: &[T], work: impl Fn(&T) -> bool + Sync) {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if stop.load(Ordering::SeqCst) || !work(task) {
                        stop.store(true, Ordering::SeqCst);
                        break;
                    }
                }
            });
        }
    });
}

/// What is to be read when a seed failed: it is run again, and written down.
fn story(seed: u64, report: &Report) -> String {
    let again = simulate(Plan { traced: true, ..Plan::hostile(seed) });
    let replayed = if again.wrong == report.wrong { "" } else { "\nwhen it was run again, something else went wrong" };
    format!(
        "{}\n\nseed {seed}: {}{replayed}\nrun again with SIMULATION_SEEDS={seed}..{}",
        again.trace.join("\n"),
        report.wrong.join("\n"),
        seed + 1
    )
}

#[test]
fn without_faults_the_result_is_that_of_a_plain_loop() {
    for (idle, silence, two_sinks) in
        [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
    {
        let report = simulate(Plan { idle, silence, two_sinks, ..Plan::quiet(1) });
        assert_eq!(report.wrong, Vec::<String>::new());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 4, 5, 6] {
        let run = || simulate(Plan { traced: true, ..Plan::hostile(seed) }).trace;
        let (first, second) = (run(), run());
        assert!(first.len() > 150, "{} lines are no story", first.len());
        for (line, (one, other)) in first.iter().zip(&second).enumerate() {
            assert_eq!(one, other, "line {line} of seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

#[test]
fn whatever_happens_the_result_is_that_of_a_plain_loop() {
    let coverage = Mutex::new(BTreeMap::<&str, (u64, u64)>::new());
    let failure = Mutex::new(None);
    let fewest = Mutex::new((usize::MAX, u64::MAX, u64::MAX));
    let seeds = seeds();
    on_all_processors(&seeds, |seed| {
        let report = simulate(Plan::hostile(*seed));
        if !report.wrong.is_empty() {
            let text = story(*seed, &report);
            failure.lock().unwrap().get_or_insert(text);
            return false;
        }
        let mut coverage = coverage.lock().unwrap();
        for (fault, count) in &report.faults {
            let all = coverage.entry(fault).or_default();
            *all = (all.0 + count, all.1 + 1);
        }
        // Gaps are no harm, and a log whose end is not known hardly is.
        let harms = |fault: &str| !["source leaves a gap", "end of the log unknown"].contains(&fault);
        let faults = report.faults.iter().filter(|(fault, _)| harms(fault)).map(|(_, count)| count).sum();
        let mut fewest = fewest.lock().unwrap();
        *fewest = (fewest.0.min(report.records), fewest.1.min(report.checkpoints), fewest.2.min(faults));
        true
    });
    if let Some(failure) = failure.into_inner().unwrap() {
        panic!("{failure}");
    }
    let (coverage, fewest) = (coverage.into_inner().unwrap(), fewest.into_inner().unwrap());
    let (records, checkpoints, faults) = fewest;
    let mut text = format!(
        "\n{} seeds, each with at least {records} records, {checkpoints} checkpoints, {faults} faults\n",
        seeds.len()
    );
    for (fault, (times, seeds)) in &coverage {
        text += &format!("{times:8} times in {seeds:6} seeds: {fault}\n");
    }
    // What a test prints is shown only when it fails; this is shown always.
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    if std::env::var_os("SIMULATION_SEEDS").is_none() {
        assert!(fewest.0 >= 500 && fewest.1 >= 5 && fewest.2 >= 3, "too quiet a life: {fewest:?}");
    }
    if seeds.len() >= 100 {
        for fault in faults::KINDS {
            assert!(coverage.contains_key(fault), "no {fault} in {} seeds", seeds.len());
        }
    }
}
