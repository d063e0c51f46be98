//! What the last minutes were like: a sample a second, for the plots of the page.
//!
//! It is kept here, so that whoever opens the page sees what was before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use strandline_actors::board::Snapshot;
use strandline_actors::clock;

use super::Shown;

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Samples that are kept: those of ten minutes.
const KEPT: usize = 600;

/// How things stood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    /// In milliseconds since the epoch.
    at: u64,
    /// Records read since the process began.
    records: u64,
    /// Their bytes.
    bytes: u64,
    /// Rows written to the sink since the process began; none where that is not counted.
    written: Option<u64>,
    /// Offsets between positions and ends, where these are known.
    lag: Option<i64>,
    /// Restarts since the process began.
    restarts: u64,
}

impl Sample {
    fn of(board: &Snapshot, written: Option<u64>, at: u64) -> Self {
        let partitions = || board.partitions.values();
        let known: Vec<i64> = partitions().filter_map(|partition| partition.lag()).collect();
        Self {
            at,
            records: partitions().map(|partition| partition.rows).sum(),
            bytes: partitions().map(|partition| partition.bytes).sum(),
            written,
            lag: (!known.is_empty()).then(|| known.iter().sum()),
            restarts: board.actors().map(|(_, actor)| actor.restarts).sum(),
        }
    }
}

/// The samples, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<Sample>>);

impl History {
    fn add(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Those that are later than a time, in milliseconds since the epoch.
    pub(super) fn after(&self, at: u64) -> Vec<Sample> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().filter(|sample| sample.at > at).copied().collect()
    }
}

/// Takes samples for as long as the server runs.
pub(super) async fn watch(shown: Arc<Shown>) {
    let mut next = tokio::time::interval(EVERY);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        next.tick().await;
        if shown.begun.get().is_some() {
            let sinks = shown.sinks();
            let written = sinks.iter().map(|sink| sink.counts.upserts + sink.counts.deletes).sum();
            let written = (!sinks.is_empty()).then_some(written);
            shown.history.add(Sample::of(&shown.board(), written, clock::millis()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minutes_are_kept_and_no_more() {
        let history = History::default();
        for at in 1..=1_000 {
            history.add(Sample::of(&Snapshot::default(), None, at));
        }
        let all = history.after(0);
        assert_eq!((all.len(), all[0].at, all[KEPT - 1].at), (KEPT, 401, 1_000));
        assert_eq!(history.after(998).iter().map(|sample| sample.at).collect::<Vec<_>>(), [999, 1_000]);
        assert_eq!(all[0].lag, None, "nothing is known of any partition");
    }
}
