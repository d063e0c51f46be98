//! The ways in which one test is run. Whichever it is, the final results are the same, row for row.

use std::cell::Cell;

/// A way to run a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Each range is one batch, and nothing dies.
    Uninterrupted,
    /// What is read at a time is cut into batches at random.
    OtherCuts,
    /// The same, and after any step, also between the checkpoints of two shards, one shard dies, or all of them do.
    Crashes,
}

thread_local! {
    /// The way, and how many pipelines were run so far.
    static WAY: Cell<(Way, u64)> = const { Cell::new((Way::Uninterrupted, 0)) };
}

/// Runs a test in each way.
pub(crate) fn each_way(mut test: impl FnMut()) {
    for way in [Way::Uninterrupted, Way::OtherCuts, Way::Crashes] {
        WAY.set((way, WAY.get().1));
        let _blamed = Blamed(way);
        test();
    }
}

/// The way of the next pipeline, and its number, from which its dice are made.
pub(super) fn next() -> (Way, u64) {
    let (way, number) = WAY.get();
    WAY.set((way, number + 1));
    (way, number)
}

/// Says in which way a test failed.
struct Blamed(Way);

impl Drop for Blamed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was run in the way {:?}", self.0);
        }
        WAY.set((Way::Uninterrupted, WAY.get().1));
    }
}
