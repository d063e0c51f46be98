//! Partitions that somebody told to stand still.
//!
//! A paused partition is not read: its actor has ended, after the shards took what was in flight. It is started again by
//! nothing but the wish to go on, whatever crashes meanwhile, the supervisor included; a process that is started anew reads
//! everything.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::position::PartitionKey;

/// What is to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All partitions, also those that are found later.
    Pipeline,
    /// One of them.
    Partition(PartitionKey),
}

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, actix::MessageResponse)]
pub enum Wished {
    /// It is so from now on.
    Done,
    /// It was so already.
    Already,
    /// There is no such partition, or nothing runs yet.
    Unknown,
}

/// The wishes of a process.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Mutex<Wishes>);

#[derive(Debug, Default)]
struct Wishes {
    pipeline: bool,
    partitions: BTreeSet<PartitionKey>,
}

impl Pauses {
    fn with<T>(&self, change: impl FnOnce(&mut Wishes) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a partition is to stand still.
    pub(crate) fn hold(&self, key: &PartitionKey) -> bool {
        self.with(|wishes| wishes.pipeline || wishes.partitions.contains(key))
    }

    /// Whether all are to stand still.
    pub(crate) fn pipeline(&self) -> bool {
        self.with(|wishes| wishes.pipeline)
    }

    /// Notes that something is to stand still. Answers whether that is news.
    pub(crate) fn pause(&self, scope: Scope) -> bool {
        self.with(|wishes| match scope {
            Scope::Pipeline => !std::mem::replace(&mut wishes.pipeline, true),
            Scope::Partition(key) => wishes.partitions.insert(key),
        })
    }

    /// Notes that something is to go on: with the pipeline every partition, and one partition also when all were to stand
    /// still, so that `all` of the others are noted one by one. Answers whether that is news.
    pub(crate) fn resume(&self, scope: Scope, all: impl Iterator<Item = PartitionKey>) -> bool {
        self.with(|wishes| match scope {
            Scope::Pipeline => {
                let paused = wishes.pipeline || !wishes.partitions.is_empty();
                *wishes = Wishes::default();
                paused
            }
            Scope::Partition(key) => {
                if std::mem::take(&mut wishes.pipeline) {
                    wishes.partitions.extend(all);
                }
                wishes.partitions.remove(&key)
            }
        })
    }
}

/// Tells one life of a partition actor to end when it has nothing in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brake(Arc<AtomicBool>);

impl Brake {
    pub(crate) fn pull(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn pulled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic_id: Uuid::nil(), partition }
    }

    #[test]
    fn one_partition_can_go_on_while_the_others_stand_still() {
        let pauses = Pauses::default();
        assert!(pauses.pause(Scope::Pipeline) && !pauses.pause(Scope::Pipeline));
        assert!(pauses.hold(&key(0)) && pauses.hold(&key(7)), "also those that are found later");
        assert!(pauses.resume(Scope::Partition(key(1)), (0..3).map(key)));
        assert!(pauses.hold(&key(0)) && !pauses.hold(&key(1)) && pauses.hold(&key(2)) && !pauses.pipeline());
        assert!(!pauses.resume(Scope::Partition(key(1)), (0..3).map(key)), "it goes on already");
        assert!(pauses.resume(Scope::Pipeline, (0..3).map(key)) && !pauses.hold(&key(0)));
        assert!(!pauses.resume(Scope::Pipeline, (0..3).map(key)));
    }
}
