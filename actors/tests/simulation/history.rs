//! What each shard has read since its state began. A rewind that drops the state begins a new history; one that keeps it adds
//! a pass over offsets that were read before, which count again.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Offsets that were read in order, with a watermark of their own.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub from: i64,
    /// Where the next pass began; the last one goes on.
    pub until: i64,
}

impl Pass {
    fn on(from: i64) -> Self {
        Self { from, until: i64::MAX }
    }
}

#[derive(Clone, Debug, Default)]
struct Shard {
    /// By partition; one that is missing was read once, from its start.
    passes: BTreeMap<i32, Vec<Pass>>,
    /// The write timestamp of the pointer that dropped the state last.
    reset_at: i64,
}

#[derive(Debug, Default)]
pub struct History {
    shards: Mutex<BTreeMap<u32, Shard>>,
    /// Where each partition begins to count, as it was stored.
    starts: Mutex<BTreeMap<i32, i64>>,
}

impl History {
    /// The start of a partition is stored.
    pub fn starts(&self, partition: i32, at: i64) {
        self.starts.lock().unwrap().insert(partition, at);
    }

    /// Where a partition begins to count.
    pub fn start(&self, partition: i32) -> i64 {
        self.starts.lock().unwrap().get(&partition).copied().unwrap_or(0)
    }

    /// A shard has dropped its state, and stands at these offsets.
    pub fn reset(&self, shard: u32, timestamp: i64, to: impl Iterator<Item = (i32, i64)>) {
        let passes = to.map(|(partition, to)| (partition, vec![Pass::on(to)])).collect();
        self.shards.lock().unwrap().insert(shard, Shard { passes, reset_at: timestamp });
    }

    /// A shard has kept its state, and goes back in one partition.
    pub fn again(&self, shard: u32, partition: i32, from: i64, to: i64) {
        let start = self.start(partition);
        let mut shards = self.shards.lock().unwrap();
        let passes = &mut shards.entry(shard).or_default().passes;
        let passes = passes.entry(partition).or_insert_with(|| vec![Pass::on(start)]);
        passes.last_mut().unwrap().until = from;
        passes.push(Pass::on(to));
    }

    /// How a shard has read a partition, the latest pass last.
    pub fn passes(&self, shard: u32, partition: i32) -> Vec<Pass> {
        let shards = self.shards.lock().unwrap();
        let passes = shards.get(&shard).and_then(|shard| shard.passes.get(&partition));
        passes.cloned().unwrap_or_else(|| vec![Pass::on(self.start(partition))])
    }

    /// What was written up to this timestamp belongs to a state that is dropped.
    pub fn reset_at(&self, shard: u32) -> i64 {
        self.shards.lock().unwrap().get(&shard).map_or(0, |shard| shard.reset_at)
    }

    /// From where on a partition is read again with a state that was kept, if it is: windows of its rows may be closed.
    pub fn again_from(&self, shard: u32, partition: i32) -> Option<i64> {
        let passes = self.passes(shard, partition);
        passes.last().filter(|_| passes.len() > 1).map(|pass| pass.from)
    }
}
