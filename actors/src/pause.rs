//! Partitions that somebody told to stand still.
//!
//! A paused partition is not read: its actor has ended, after the shards took what was in flight. It is started again by
//! nothing but the wish to go on, whatever crashes meanwhile, the process included: the wishes are stored. They hold at once,
//! and are stored as soon as the store answers; a process that takes the pipeline over begins with those that are stored, also
//! when it had owned it before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::board::Board;
use crate::env::{Pipeline, patiently};
use crate::pointer::Generation;
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
    /// It is so from now on, but not stored yet, since the store does not answer; that is tried on.
    Unstored,
    /// It was so already.
    Already,
    /// There is no such partition, or nothing runs yet.
    Unknown,
}

/// All wishes, as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// Everything is to stand still.
    pub pipeline: bool,
    /// These partitions are.
    pub partitions: BTreeSet<PartitionKey>,
}

/// How long whoever wishes something waits until that is stored.
const PATIENCE: Duration = Duration::from_secs(3);

/// The wishes of a process.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    wishes: Wishes,
    /// The latest generation of this process. In it they are those that are stored, or newer.
    generation: Option<Generation>,
    /// They were changed so often.
    changes: u64,
    /// So many of the changes are stored.
    stored: u64,
    /// Whoever stores them, and tells how many are stored.
    storing: Option<watch::Receiver<u64>>,
}

impl Pauses {
    fn known<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Wishes) -> T) -> T {
        self.known(|known| change(&mut known.wishes))
    }

    /// Whether those that are known hold in the generation that this process has taken: nobody else owned the pipeline since,
    /// or what was wished here is still to be stored.
    pub(crate) fn hold_in(&self, generation: Generation) -> bool {
        self.known(|known| {
            let alone = known.generation.is_some_and(|last| last.0 + 1 == generation.0);
            let hold = alone || known.stored != known.changes;
            if hold {
                known.generation = Some(generation);
            }
            hold
        })
    }

    /// Takes over those that are stored. Answers whether there are any.
    pub(crate) fn load(&self, stored: Wishes, generation: Generation) -> bool {
        self.known(|known| {
            let any = stored != Wishes::default();
            (known.wishes, known.generation) = (stored, Some(generation));
            any
        })
    }

    /// Whether a change is not stored yet, since the supervisor died that was about to.
    pub(crate) fn unstored(&self) -> bool {
        self.known(|known| known.stored != known.changes)
    }

    /// Notes that they have changed. Answers what stores them, if nobody does so yet, and what tells when this change is stored.
    pub(crate) fn changed(
        self: &Arc<Self>,
        pipeline: &Arc<Pipeline>,
        board: &Arc<Board>,
    ) -> (Option<impl Future<Output = ()> + use<>>, impl Future<Output = bool> + use<>) {
        let (change, storing, told) = self.known(|known| {
            known.changes += 1;
            let running = known.storing.clone().filter(|storing| storing.has_changed().is_ok());
            let (tell, told) = match running {
                Some(told) => (None, told),
                None => {
                    let (tell, told) = watch::channel(0);
                    known.storing = Some(told.clone());
                    (Some(tell), told)
                }
            };
            (known.changes, tell, told)
        });
        let (pauses, pipeline, board) = (Arc::clone(self), Arc::clone(pipeline), Arc::clone(board));
        let storing = storing.map(|tell| async move { pauses.store(&pipeline, &board, &tell).await });
        let stored = async move {
            let mut told = told;
            let stored = tokio::time::timeout(PATIENCE, told.wait_for(|stored| *stored >= change)).await;
            matches!(stored, Ok(Ok(_)))
        };
        (storing, stored)
    }

    /// Stores the wishes until the latest are stored.
    async fn store(&self, pipeline: &Pipeline, board: &Board, tell: &watch::Sender<u64>) {
        loop {
            let (wishes, change) = self.known(|known| (known.wishes.clone(), known.changes));
            let store = &pipeline.store;
            if let Err(error) = patiently(board, "storing what is paused", || store.write_paused(&wishes)).await {
                tracing::error!(
                    "what is paused cannot be stored, so a process that is started anew does not know it: {error}"
                );
                return;
            }
            tell.send_replace(change);
            let done = self.known(|known| {
                known.stored = change;
                let done = known.changes == change;
                if done {
                    known.storing = None;
                }
                done
            });
            if done {
                return;
            }
        }
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
    fn wishes_are_read_again_after_another_owned_the_pipeline() {
        let pauses = Pauses::default();
        assert!(!pauses.hold_in(Generation(4)), "none was read yet");
        assert!(pauses.load(Wishes { pipeline: true, ..Wishes::default() }, Generation(4)));
        assert!(pauses.hold_in(Generation(5)) && pauses.pipeline(), "its own supervisor crashed");
        assert!(!pauses.hold_in(Generation(7)), "another was there");
        assert!(!pauses.load(Wishes::default(), Generation(7)) && !pauses.pipeline());
        pauses.pause(Scope::Pipeline);
        pauses.known(|known| known.changes += 1);
        assert!(pauses.hold_in(Generation(9)) && pauses.pipeline(), "what is not stored yet is not lost");
        assert!(pauses.hold_in(Generation(10)));
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
