//! Where a partition stands: offsets, ranges, watermarks and vectors.
//!
//! An offset is always the *next* one to read, and has a type of its own so that it is never mixed up with the offset of
//! a record that was read last, or with a count of rows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The next offset to read from a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub i64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The offsets `[from, until)` of one partition. Offsets inside it need not all carry a record: compaction and
/// transaction markers leave holes that the range covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The first offset inside the range.
    pub from: Offset,
    /// The first offset after the range.
    pub until: Offset,
}

impl Range {
    /// The range `[from, until)`; `from` must not be above `until`.
    pub fn new(from: Offset, until: Offset) -> Self {
        debug_assert!(from <= until, "a range runs forward: [{from}, {until})");
        Self { from, until }
    }

    /// The empty range `[at, at)`, by which an idle lane asks whether the other side still agrees.
    pub fn probe(at: Offset) -> Self {
        Self { from: at, until: at }
    }

    /// Whether the range covers no offset.
    pub fn is_empty(&self) -> bool {
        self.from == self.until
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.from, self.until)
    }
}

/// A partition by the identity of its topic, which changes when a topic is deleted and created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionKey {
    /// The topic's id (KIP-516).
    pub topic_id: Uuid,
    /// The number of the partition in the topic.
    pub partition: i32,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic_id, self.partition)
    }
}

/// A partition that the pipeline reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePartition {
    /// Which of the pipeline's sources it belongs to.
    pub source: usize,
    /// The name of the topic.
    pub topic: Arc<str>,
    /// Its identity.
    pub key: PartitionKey,
}

impl fmt::Display for SourcePartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.key.partition)
    }
}

/// Event time up to which a partition is complete, in nanoseconds since the epoch; `None` while it is not known.
pub type Watermark = Option<i64>;

/// How many offsets of a partition ended in which way. Every offset that is passed lands in exactly one counter, so the
/// sum over all shards equals the distance that the position moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows that reached the operator.
    pub processed: u64,
    /// Rows that the query's WHERE left out.
    pub filtered: u64,
    /// Rows that came after the watermark of their own partition had passed their window.
    pub late: u64,
    /// Rows that were not late by that, but met a window that was closed while their partition was quiet or not yet found.
    #[serde(default)]
    pub late_closed: u64,
    /// Records that went to the dead letters.
    pub dead_lettered: u64,
    /// Bad records that the policy `skip` passed over.
    pub skipped: u64,
    /// Records without a value.
    pub tombstones: u64,
    /// Offsets that carry no record: compacted away, transaction markers, or aborted.
    pub gaps: u64,
    /// Offsets whose records were deleted before they were read, where the policy says to go on without them.
    #[serde(default)]
    pub lost: u64,
    /// Records whose event time was too far ahead to move the watermark. A mark beside the others, not one of them: what
    /// became of such a record is counted there.
    #[serde(default)]
    pub ahead: u64,
}

impl Counts {
    /// All offsets that were counted, each once.
    pub fn total(&self) -> u64 {
        self.processed
            + self.filtered
            + self.late
            + self.late_closed
            + self.dead_lettered
            + self.skipped
            + self.tombstones
            + self.gaps
            + self.lost
    }

    /// Adds what another part of the same partition counted.
    pub fn add(&mut self, other: &Counts) {
        self.processed += other.processed;
        self.filtered += other.filtered;
        self.late += other.late;
        self.late_closed += other.late_closed;
        self.dead_lettered += other.dead_lettered;
        self.skipped += other.skipped;
        self.tombstones += other.tombstones;
        self.gaps += other.gaps;
        self.lost += other.lost;
        self.ahead += other.ahead;
    }
}

/// How far a shard is in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The next offset that the shard expects.
    pub next: Offset,
    /// The partition's watermark below that offset.
    pub watermark: Watermark,
    /// Nothing has come for a while, and the shard has all that there was: the partition holds back no watermark until the
    /// next range.
    #[serde(default)]
    pub idle: bool,
    /// While it is idle: how far its silence alone lets windows close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised: Watermark,
    /// What became of the offsets that this shard owns.
    pub counts: Counts,
    /// Where the counts begin, if not at the partition's stored start: a rewind sets it, so that counts and distance stay equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_from: Option<Offset>,
    /// Records were deleted before this shard read them, and how many of them nobody has counted is known only when all shards
    /// stand together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
}

impl Position {
    /// The position of a partition of which nothing was read yet.
    pub fn start(next: Offset) -> Self {
        let counts = Counts::default();
        Self { next, watermark: None, idle: false, raised: None, counts, counted_from: None, unsettled: false }
    }

    /// The partition is quiet no more, or not known to be: it holds back the shard's watermark.
    pub fn wake(&mut self) {
        (self.idle, self.raised) = (false, None);
    }
}

/// For each partition the next offset that a shard expects, with the watermark below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<VectorEntry>", into = "Vec<VectorEntry>")]
pub struct Vector(pub BTreeMap<PartitionKey, Position>);

impl Vector {
    /// The shard's position in a partition, if it has one.
    pub fn get(&self, key: &PartitionKey) -> Option<&Position> {
        self.0.get(key)
    }

    /// The lowest watermark over the partitions that are not idle; `None` while one of them is not known. If all are idle it
    /// is the highest, as when the one that has it had fallen idle last: in which order they did must not matter. Then silence
    /// counts too, by which the windows of the last rows close.
    pub fn watermark(&self) -> Watermark {
        let mut lowest = None;
        for position in self.0.values().filter(|position| !position.idle) {
            let watermark = match position.watermark {
                None if flaw!(UnknownWatermarkPassedOver) => continue,
                watermark => watermark?,
            };
            lowest = Some(lowest.map_or(watermark, |low: i64| low.min(watermark)));
        }
        lowest.or_else(|| self.0.values().filter_map(|position| position.watermark.max(position.raised)).max())
    }

    /// Whether no partition stands lower than it did before.
    pub fn continues(&self, before: &Self) -> bool {
        let on = |key, old: &Position| self.get(key).is_some_and(|new: &Position| new.next >= old.next);
        before.0.iter().all(|(key, old)| on(key, old))
    }
}

#[derive(Serialize, Deserialize)]
struct VectorEntry {
    #[serde(flatten)]
    key: PartitionKey,
    #[serde(flatten)]
    position: Position,
}

impl From<Vec<VectorEntry>> for Vector {
    fn from(entries: Vec<VectorEntry>) -> Self {
        Self(entries.into_iter().map(|entry| (entry.key, entry.position)).collect())
    }
}

impl From<Vector> for Vec<VectorEntry> {
    fn from(vector: Vector) -> Self {
        vector.0.into_iter().map(|(key, position)| VectorEntry { key, position }).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vector(positions: &[(Watermark, bool)]) -> Vector {
        let entry = |(number, (watermark, idle)): (usize, &(Watermark, bool))| {
            let key = PartitionKey { topic_id: Uuid::nil(), partition: number as i32 };
            (key, Position { watermark: *watermark, idle: *idle, ..Position::start(Offset(7)) })
        };
        Vector(positions.iter().enumerate().map(entry).collect())
    }

    #[test]
    fn the_watermark_is_the_lowest_of_those_that_are_not_idle_and_unknown_while_one_of_them_is() {
        let cases: [(&[(Watermark, bool)], Watermark); 9] = [
            (&[], None),
            (&[(Some(5), false), (Some(3), false)], Some(3)),
            (&[(Some(5), false), (Some(3), true)], Some(5)),
            (&[(Some(5), false), (None, false)], None),
            (&[(Some(5), false), (None, true)], Some(5)),
            (&[(Some(5), true), (Some(3), true)], Some(5)),
            (&[(None, true), (Some(3), true)], Some(3)),
            (&[(None, true)], None),
            (&[(Some(i64::MIN), false), (Some(i64::MAX), false)], Some(i64::MIN)),
        ];
        for (positions, watermark) in cases {
            assert_eq!(vector(positions).watermark(), watermark, "{positions:?}");
        }
    }

    #[test]
    fn silence_raises_the_watermark_only_while_every_partition_is_idle() {
        let mut vector = vector(&[(Some(5), true), (Some(3), true), (None, true)]);
        vector.0.values_mut().next().unwrap().raised = Some(9);
        assert_eq!(vector.watermark(), Some(9));
        vector.0.values_mut().nth(1).unwrap().wake();
        assert_eq!(vector.watermark(), Some(3));
        vector.0.values_mut().next().unwrap().wake();
        assert_eq!(vector.0.values().next().unwrap().raised, None);
    }

    #[test]
    fn a_vector_that_was_stored_before_partitions_could_be_idle_is_read_as_not_idle() {
        let stored = serde_json::to_string(&vector(&[(Some(5), false)])).unwrap();
        let before = stored.replace("\"idle\":false,", "");
        assert_ne!(stored, before);
        assert_eq!(serde_json::from_str::<Vector>(&before).unwrap(), vector(&[(Some(5), false)]));
        let idle = vector(&[(None, true)]);
        assert_eq!(serde_json::from_str::<Vector>(&serde_json::to_string(&idle).unwrap()).unwrap(), idle);
    }
}
