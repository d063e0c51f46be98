//! The pointer of a shard: the one row that decides where the shard stands.
//!
//! Segments are written first, under keys that nobody else uses; only then does one conditional write move the pointer.
//! Whatever crashed in between left segments that no pointer lists.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::position::{Vector, Watermark};
use crate::rewind::Rewind;

/// A part of the key space, `0..S`: the unit of atomicity.
pub type ShardId = u32;

/// The number of a pointer write of a shard; each moves it by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a process, from one counter per pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub i64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A fresh identity for each write of a pointer, by which a write whose answer was lost is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub Uuid);

impl Attempt {
    /// A new attempt.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

/// What a pointer was when something was built on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The pointer's epoch.
    pub epoch: Epoch,
    /// The pointer's attempt.
    pub attempt: Attempt,
}

/// The key of a segment. Never written again with other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentKey {
    /// The shard that it belongs to.
    pub shard: ShardId,
    /// The epoch that it was written for.
    pub epoch: Epoch,
    /// The attempt that wrote it.
    pub attempt: Attempt,
    /// Its number within that attempt.
    pub number: u32,
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Changed keys of one of the operator's state tables.
    State {
        /// The number of the table.
        table: usize,
    },
    /// Rows that a sink is to write.
    Upserts {
        /// The number of the sink.
        sink: usize,
    },
    /// Rows that a sink is to remove.
    Deletes {
        /// The number of the sink.
        sink: usize,
    },
    /// Records that could not be processed.
    DeadLetters,
}

/// A segment as a pointer lists it: what is needed to find, check and read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// Its key in the store.
    pub key: SegmentKey,
    /// What it holds.
    pub kind: SegmentKind,
    /// The number of its rows.
    pub rows: u64,
    /// Its encoded size.
    pub bytes: u64,
    /// XXH3-64 of the encoded bytes.
    pub checksum: u64,
    /// All of its rows are gone by themselves once a checkpoint has this watermark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Watermark,
}

/// The output of one checkpoint, which may have to be delivered again. It keeps the epoch and the timestamp of its own
/// checkpoint when later claims copy it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outbox {
    /// The epoch of the checkpoint that made it.
    pub epoch: Epoch,
    /// The write timestamp of that checkpoint, in microseconds.
    pub timestamp: i64,
    /// The rows, in the order in which they are to be delivered.
    pub segments: Vec<SegmentRef>,
}

/// What a pointer says apart from its own identity; a claim copies it unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// How far the shard is in each partition.
    pub vector: Vector,
    /// The highest watermark that the shard has had: windows up to it are closed, and rows of state that last no longer are
    /// gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Watermark,
    /// The segments of its state, oldest first: later rows replace earlier ones.
    pub state: Vec<SegmentRef>,
    /// The output that goes with it.
    pub outbox: Outbox,
    /// The fingerprint of the plan that the state belongs to.
    pub fingerprint: String,
    /// The last epoch whose output the sink is known to have.
    pub delivered: Epoch,
    /// Segments that nothing lists any more and that may be deleted.
    pub garbage: Vec<SegmentKey>,
    /// Epochs below this one hold no orphans any more.
    pub swept: Epoch,
    /// A rewind that is under way: until it is finished, nobody loads the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewind: Option<Box<Rewind>>,
}

/// An earlier state of the shard that can still be gone back to when a later segment turns out to be corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its epoch.
    pub epoch: Epoch,
    /// How far the shard was.
    pub vector: Vector,
    /// Up to where it had closed windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Watermark,
    /// The segments of its state.
    pub state: Vec<SegmentRef>,
}

/// The pointer row of a shard. It alone decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The shard.
    pub shard: ShardId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The write that made it.
    pub attempt: Attempt,
    /// The process that wrote it.
    pub generation: Generation,
    /// The write timestamp, in microseconds.
    pub timestamp: i64,
    /// What it points to.
    pub content: Content,
    /// Earlier states that can be gone back to, newest first.
    pub kept: Vec<Kept>,
}

impl Pointer {
    /// What is wrong with a pointer that is to be written on top of another, if anything is.
    pub fn misfit(&self, before: Option<&Self>) -> Option<String> {
        let wrong = |what: &str| Some(format!("the pointer of shard {} at epoch {} {what}", self.shard, self.epoch));
        let expected = before.map_or(Epoch(1), |before| before.epoch.next());
        if self.epoch != expected || before.is_some_and(|before| before.shard != self.shard) {
            return wrong(&format!("does not follow one at {}", expected.0 - 1));
        }
        if before.is_some_and(|before| before.attempt == self.attempt) {
            return wrong("has the attempt of the one before");
        }
        if before.is_some_and(|before| before.generation > self.generation) {
            return wrong("is of a lower generation than the one before");
        }
        if before.is_some_and(|before| before.timestamp >= self.timestamp) {
            return wrong("has no higher timestamp than the one before");
        }
        let Content { state, outbox, delivered, .. } = &self.content;
        if outbox.epoch > self.epoch || *delivered > outbox.epoch || outbox.timestamp > self.timestamp {
            return wrong("has an output of later than itself");
        }
        let mut listed = state.iter().chain(&outbox.segments).map(|segment| segment.key);
        let foreign = listed.find(|key| key.shard != self.shard || key.epoch > self.epoch)?;
        wrong(&format!("lists {foreign:?}, which is not its own"))
    }

    /// What a checkpoint on top of this pointer names.
    pub fn base(&self) -> Base {
        Base { epoch: self.epoch, attempt: self.attempt }
    }
}
