//! Write timestamps: one hybrid clock per process.
//!
//! Each timestamp is `max(wall clock in µs, last + 1)` and never below any pointer that the process has read, so whoever
//! took over a shard always writes above the one before, whatever the clocks of the machines say.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ports::WallClock;

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now_micros(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// What the machine's own clock says, in milliseconds since the epoch.
pub fn millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The hybrid clock of the process.
#[derive(Debug)]
pub struct HybridClock {
    wall: Arc<dyn WallClock>,
    last: AtomicI64,
}

impl HybridClock {
    /// A clock over a wall clock.
    pub fn new(wall: Arc<dyn WallClock>) -> Self {
        Self { wall, last: AtomicI64::new(0) }
    }

    /// What the wall clock says, in microseconds since the epoch.
    pub fn wall(&self) -> i64 {
        self.wall.now_micros()
    }

    /// A timestamp above all that were given out or seen before.
    pub fn next(&self) -> i64 {
        let wall = self.wall.now_micros();
        let step = |last: i64| Some(wall.max(last.saturating_add(1)));
        match self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step) {
            Ok(last) | Err(last) => wall.max(last.saturating_add(1)),
        }
    }

    /// Takes note of a timestamp that somebody else gave out.
    pub fn observe(&self, timestamp: i64) {
        if flaw!(ClockNotRaised) {
            return;
        }
        self.last.fetch_max(timestamp, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct SetClock(AtomicI64);

    impl WallClock for SetClock {
        fn now_micros(&self) -> i64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn it_never_runs_back_and_never_repeats() {
        let wall = Arc::new(SetClock::default());
        let clock = HybridClock::new(wall.clone());
        wall.0.store(100, Ordering::SeqCst);
        assert_eq!((clock.next(), clock.next()), (100, 101));
        wall.0.store(50, Ordering::SeqCst);
        assert_eq!(clock.next(), 102);
        clock.observe(5_000_000);
        assert_eq!(clock.next(), 5_000_001);
        clock.observe(7);
        wall.0.store(6_000_000, Ordering::SeqCst);
        assert_eq!(clock.next(), 6_000_000);
    }
}
