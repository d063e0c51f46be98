//! Going back: the positions of a stopped pipeline move to earlier offsets, on all shards or on none.
//!
//! The pointers alone decide, here too. First every pointer takes a mark that says what is to become of the whole pipeline,
//! and nothing else of it changes. Only when all have the mark, each moves to its new positions; only when all have moved,
//! the marks come off. Nobody loads a shard that has one, so a rewind that broke off leaves a pipeline that stands still until
//! it is finished, by the same steps from what the marks say. Shards are marked in order, so of two rewinds at the same time
//! one finds the other's mark on the first shard. Every step is a claim: one conditional write under a generation of its own.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::HybridClock;
use crate::committer::garbage;
use crate::pointer::{Attempt, Content, Epoch, Generation, Pointer, SegmentKind, ShardId};
use crate::points::{self, Point};
use crate::ports::{Moved, StateStore, StoreError};
use crate::position::{Counts, Offset, PartitionKey, Position};
use crate::recovery::{self, ClaimVerdict, Verdict};

/// How long a store may leave it open whether a pointer moved.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// A rewind, as every pointer carries it until all shards are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    /// Tells it from every other.
    pub id: Uuid,
    /// What was asked for, in words. Who asks for the same again finishes it.
    pub wish: String,
    /// Where the partitions go.
    pub to: Vec<Target>,
    /// Whether the state is dropped: then every shard stands exactly there, with nothing counted. Otherwise a shard that
    /// already stands lower stays, and what is read again counts again.
    pub reset: bool,
    /// Whether this shard is there.
    #[serde(default)]
    pub done: bool,
}

/// Where a partition goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The partition.
    #[serde(flatten)]
    pub key: PartitionKey,
    /// The next offset to read.
    pub next: Offset,
}

impl fmt::Display for Rewind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rewind `{}` was begun and is not finished; run it again", self.wish)
    }
}

/// Why a rewind did not get through. Whatever it did is kept: it goes on from there.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RewindError {
    /// Somebody started the pipeline meanwhile.
    #[error("shard {0} belongs to a process of a later generation: stop the pipeline, and run the rewind again")]
    Fenced(ShardId),
    /// Another rewind was begun.
    #[error("{0}")]
    Other(Box<Rewind>),
    /// The marks say what no rewind leaves behind.
    #[error("the shards carry marks of rewinds that do not fit together: {0}")]
    Torn(String),
    /// The store did not answer in the end.
    #[error(
        "whether shard {shard} was moved is not known, since the store does not answer ({why}): run the rewind again"
    )]
    Unknown {
        /// The shard.
        shard: ShardId,
        /// What the store said last.
        why: String,
    },
    /// The store refused something.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far a rewind is, from the marks of all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Free,
    /// Some shards are marked, and none has moved.
    Marking(Rewind),
    /// All are marked, and some have moved.
    Moving(Rewind),
    /// All have moved, and some are free again.
    Unmarking(Rewind),
}

impl Phase {
    /// The rewind that is under way.
    pub fn rewind(&self) -> Option<&Rewind> {
        match self {
            Self::Free => None,
            Self::Marking(rewind) | Self::Moving(rewind) | Self::Unmarking(rewind) => Some(rewind),
        }
    }
}

/// Finds out how far a rewind is.
pub fn phase(pointers: &[Option<Pointer>]) -> Result<Phase, RewindError> {
    let marks: Vec<Option<&Rewind>> =
        pointers.iter().map(|pointer| pointer.as_ref().and_then(|pointer| pointer.content.rewind.as_deref())).collect();
    let Some(first) = marks.iter().flatten().next() else { return Ok(Phase::Free) };
    if let Some(other) = marks.iter().flatten().find(|mark| mark.id != first.id) {
        return Err(RewindError::Torn(format!("`{}` and `{}`", first.wish, other.wish)));
    }
    let rewind = Rewind { done: false, ..(*first).clone() };
    let (free, done) = (marks.iter().any(Option::is_none), marks.iter().flatten().any(|mark| mark.done));
    match (free, done, marks.iter().flatten().all(|mark| mark.done)) {
        (_, _, true) => Ok(Phase::Unmarking(rewind)),
        (true, true, false) => Err(RewindError::Torn(format!("`{}` is done and not begun at once", rewind.wish))),
        (true, false, _) => Ok(Phase::Marking(rewind)),
        (false, _, _) => Ok(Phase::Moving(rewind)),
    }
}

/// The lowest position of each partition over all shards; `starts` holds for what a shard has not read of yet.
pub fn lowest(pointers: &[Option<Pointer>], starts: &BTreeMap<PartitionKey, Offset>) -> BTreeMap<PartitionKey, Offset> {
    let known = starts.keys().chain(pointers.iter().flatten().flat_map(|pointer| pointer.content.vector.0.keys()));
    let mut lowest = BTreeMap::new();
    for key in known {
        let start = starts.get(key).copied();
        let positions = pointers.iter().filter_map(|pointer| {
            let read = pointer.as_ref().and_then(|pointer| pointer.content.vector.get(key));
            read.map(|position| position.next).or(start)
        });
        if let Some(low) = positions.min() {
            lowest.insert(*key, low);
        }
    }
    lowest
}

/// What is the case for a whole pipeline that is to be rewound.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The number of shards.
    pub shards: u32,
    /// The fingerprint of the plan.
    pub fingerprint: String,
    /// The stored start of each partition.
    pub starts: BTreeMap<PartitionKey, Offset>,
    /// The generation under which the shards are claimed.
    pub generation: Generation,
}

impl Stopped {
    /// Reads all pointers.
    pub async fn pointers(&self, store: &dyn StateStore) -> Result<Vec<Option<Pointer>>, RewindError> {
        let mut pointers = Vec::new();
        for shard in 0..self.shards {
            pointers.push(read(store, shard).await?);
        }
        Ok(pointers)
    }

    /// Begins a rewind, or finishes one that was begun. Answers the pointers as they are in the end.
    pub async fn rewind(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        rewind: &Rewind,
    ) -> Result<Vec<Option<Pointer>>, RewindError> {
        let mut begun = false;
        loop {
            let pointers = self.pointers(store).await?;
            let phase = phase(&pointers)?;
            if let Some(other) = phase.rewind().filter(|found| found.id != rewind.id) {
                return Err(RewindError::Other(Box::new(other.clone())));
            }
            if phase == Phase::Free && begun {
                return Ok(pointers);
            }
            begun = true;
            for (shard, pointer) in (0..self.shards).zip(&pointers) {
                let mark = pointer.as_ref().and_then(|pointer| pointer.content.rewind.as_deref());
                let content = match (&phase, mark) {
                    (Phase::Free | Phase::Marking(_), None) => self.marked(pointer.as_ref(), rewind, false),
                    (Phase::Moving(_), Some(mark)) if !mark.done => self.moved(pointer.as_ref(), rewind),
                    (Phase::Unmarking(_), Some(_)) => Content { rewind: None, ..self.content(pointer.as_ref()) },
                    _ => continue,
                };
                self.claim(store, clock, shard, pointer.as_ref(), content).await?;
                points::reach(Point::Rewound);
            }
        }
    }

    fn content(&self, pointer: Option<&Pointer>) -> Content {
        let fresh = || Content { fingerprint: self.fingerprint.clone(), ..Content::default() };
        pointer.map_or_else(fresh, |pointer| pointer.content.clone())
    }

    fn marked(&self, pointer: Option<&Pointer>, rewind: &Rewind, done: bool) -> Content {
        Content { rewind: Some(Box::new(Rewind { done, ..rewind.clone() })), ..self.content(pointer) }
    }

    /// The content of a shard that stands where the rewind says. Dead letters that may not be written yet stay, and so does
    /// output of a state that stays: they are delivered before anything that is counted later.
    fn moved(&self, pointer: Option<&Pointer>, rewind: &Rewind) -> Content {
        let mut content = self.marked(pointer, rewind, true);
        if rewind.reset {
            content.state = Vec::new();
            content.outbox.segments.retain(|segment| segment.kind == SegmentKind::DeadLetters);
            content.vector.0.values_mut().for_each(|position| position.counts = Counts::default());
        }
        for Target { key, next } in &rewind.to {
            let start = self.starts.get(key).copied().unwrap_or(*next);
            let position = content.vector.0.entry(*key).or_insert_with(|| Position::start(start));
            position.idle = false;
            if position.next > *next || (rewind.reset && position.next < *next) {
                // What the watermark was there is not known: the partition holds back the shard's until it has one.
                *position = Position { counts: position.counts, ..Position::start(*next) };
            }
        }
        content
    }

    /// Moves a pointer on top of what was read, by identical writes until it is known what became of them.
    async fn claim(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        shard: ShardId,
        current: Option<&Pointer>,
        content: Content,
    ) -> Result<(), RewindError> {
        let ClaimVerdict::Claim(base) = recovery::claim(current, self.generation) else {
            return Err(RewindError::Fenced(shard));
        };
        if let Some(pointer) = current {
            clock.observe(pointer.timestamp);
        }
        let mut next = Pointer {
            shard,
            epoch: base.map_or(Epoch(1), |base| base.epoch.next()),
            attempt: Attempt::fresh(),
            generation: self.generation,
            timestamp: clock.next(),
            content,
            kept: current.map_or_else(Vec::new, |pointer| pointer.kept.clone()),
        };
        if let Some(pointer) = current
            && next.content.rewind.as_ref().is_some_and(|mark| mark.done)
        {
            // Going back to an earlier state would undo the rewind.
            next.kept = Vec::new();
            next.content.garbage = garbage(pointer, &next, &HashSet::new());
        }
        invariant!(next.misfit(current).is_none(), "{:?}", next.misfit(current));
        let until = Instant::now() + PATIENCE;
        loop {
            let (found, why) = match store.move_pointer(base, &next).await {
                Ok(Moved::Applied) => return Ok(()),
                Ok(Moved::Refused(found)) => (found.map(|found| *found), "it is unchanged".to_owned()),
                Err(StoreError::Unavailable(why)) => (read(store, shard).await?, why),
                Err(error) => return Err(error.into()),
            };
            match recovery::after_write(found.as_ref(), next.attempt, base, self.generation) {
                Verdict::Done => return Ok(()),
                Verdict::StepDown => return Err(RewindError::Fenced(shard)),
                // An earlier write of somebody else landed; the next look at all shards says what is to be done.
                Verdict::Reload => return Ok(()),
                Verdict::Repeat if Instant::now() > until => return Err(RewindError::Unknown { shard, why }),
                Verdict::Repeat => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

async fn read(store: &dyn StateStore, shard: ShardId) -> Result<Option<Pointer>, RewindError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match store.read_pointer(shard).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            Err(StoreError::Unavailable(why)) => return Err(RewindError::Unknown { shard, why }),
            answer => return Ok(answer?),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pointer::{Kept, Outbox, SegmentKey, SegmentRef};
    use crate::position::Vector;

    fn key(partition: i32) -> PartitionKey {
        PartitionKey { topic_id: Uuid::nil(), partition }
    }

    fn rewind(to: &[(i32, i64)], reset: bool) -> Rewind {
        let to = to.iter().map(|(partition, next)| Target { key: key(*partition), next: Offset(*next) }).collect();
        Rewind { id: Uuid::from_u128(1), wish: "back".into(), to, reset, done: false }
    }

    fn of_kind(kind: SegmentKind, number: u32) -> SegmentRef {
        let key = SegmentKey { shard: 0, epoch: Epoch(7), attempt: Attempt(Uuid::nil()), number };
        SegmentRef { key, kind, rows: 1, bytes: 1, checksum: 0 }
    }

    fn segment() -> SegmentRef {
        of_kind(SegmentKind::State { table: 0 }, 0)
    }

    /// A shard that stands at 90 in partition 0 and has something to lose.
    fn pointer() -> Pointer {
        let counts = Counts { processed: 80, ..Counts::default() };
        let position = Position { next: Offset(90), watermark: Some(5), idle: true, counts };
        let vector = Vector([(key(0), position)].into());
        let segments = vec![of_kind(SegmentKind::Upserts { sink: 0 }, 1), of_kind(SegmentKind::DeadLetters, 2)];
        let outbox = Outbox { epoch: Epoch(7), timestamp: 0, segments };
        let content = Content { vector: vector.clone(), state: vec![segment()], outbox, ..Content::default() };
        let kept = vec![Kept { epoch: Epoch(7), vector, state: vec![segment()] }];
        let attempt = Attempt::fresh();
        Pointer { shard: 0, epoch: Epoch(8), attempt, generation: Generation(1), timestamp: 0, content, kept }
    }

    fn stopped() -> Stopped {
        let starts = [(key(0), Offset(10)), (key(1), Offset(20))].into();
        Stopped { shards: 2, fingerprint: "1".into(), starts, generation: Generation(2) }
    }

    #[test]
    fn how_far_a_rewind_is_follows_from_the_marks() {
        let mark = |done: Option<bool>| {
            let mut pointer = pointer();
            pointer.content.rewind = done.map(|done| Box::new(Rewind { done, ..rewind(&[], true) }));
            Some(pointer)
        };
        let of = |marks: &[Option<bool>]| phase(&marks.iter().map(|done| mark(*done)).collect::<Vec<_>>());
        let rewind = || rewind(&[], true);
        assert_eq!(phase(&[None, None]).unwrap(), Phase::Free);
        assert_eq!(of(&[None, None]).unwrap(), Phase::Free);
        assert_eq!(of(&[Some(false), None]).unwrap(), Phase::Marking(rewind()));
        assert_eq!(of(&[Some(false), Some(false)]).unwrap(), Phase::Moving(rewind()));
        assert_eq!(of(&[Some(true), Some(false)]).unwrap(), Phase::Moving(rewind()));
        assert_eq!(of(&[Some(true), Some(true)]).unwrap(), Phase::Unmarking(rewind()));
        assert_eq!(of(&[None, Some(true)]).unwrap(), Phase::Unmarking(rewind()));
        assert!(matches!(of(&[None, Some(true), Some(false)]), Err(RewindError::Torn(_))));
        let mut other = mark(Some(false));
        other.as_mut().unwrap().content.rewind.as_mut().unwrap().id = Uuid::from_u128(2);
        assert!(matches!(phase(&[mark(Some(false)), other]), Err(RewindError::Torn(_))));
    }

    #[test]
    fn a_reset_stands_exactly_there_with_nothing_counted() {
        for (current, wish) in [(Some(pointer()), [(0, 40), (1, 25)]), (None, [(0, 40), (1, 25)])] {
            let content = stopped().moved(current.as_ref(), &rewind(&wish, true));
            assert!(content.state.is_empty());
            let kinds: Vec<_> = content.outbox.segments.iter().map(|segment| segment.kind).collect();
            assert_eq!(kinds, vec![SegmentKind::DeadLetters; usize::from(current.is_some())]);
            assert_eq!(content.vector.get(&key(0)), Some(&Position::start(Offset(40))));
            assert_eq!(content.vector.get(&key(1)), Some(&Position::start(Offset(25))));
            assert!(content.rewind.unwrap().done);
        }
        // Where nothing moves the watermark is still that of the place.
        let content = stopped().moved(Some(&pointer()), &rewind(&[(0, 90)], true));
        let position = content.vector.get(&key(0)).unwrap();
        assert_eq!((position.watermark, position.idle, position.counts), (Some(5), false, Counts::default()));
    }

    #[test]
    fn a_state_that_is_kept_keeps_its_counts_and_no_position_goes_forward() {
        let content = stopped().moved(Some(&pointer()), &rewind(&[(0, 40), (1, 25)], false));
        assert_eq!((content.state.as_slice(), content.outbox.segments.len()), (&[segment()][..], 2));
        let position = content.vector.get(&key(0)).unwrap();
        assert_eq!((position.next, position.watermark, position.idle), (Offset(40), None, false));
        assert_eq!(position.counts.processed, 80);
        // Not read yet: its start, which is lower.
        assert_eq!(content.vector.get(&key(1)).unwrap().next, Offset(20));
        let content = stopped().moved(Some(&pointer()), &rewind(&[(0, 95)], false));
        let position = content.vector.get(&key(0)).unwrap();
        assert_eq!((position.next, position.watermark), (Offset(90), Some(5)));
    }

    #[test]
    fn the_lowest_position_is_over_all_shards_and_starts_count_where_nothing_was_read() {
        let mut other = pointer();
        other.content.vector.0.get_mut(&key(0)).unwrap().next = Offset(70);
        let found = lowest(&[Some(pointer()), Some(other)], &stopped().starts);
        assert_eq!(found, [(key(0), Offset(70)), (key(1), Offset(20))].into());
        assert_eq!(lowest(&[Some(pointer()), None], &stopped().starts)[&key(0)], Offset(10));
    }

    #[test]
    fn pointers_without_a_mark_are_stored_as_before() {
        let text = serde_json::to_string(&pointer().content).unwrap();
        assert!(!text.contains("rewind"), "{text}");
        let mut marked = pointer();
        marked.content.rewind = Some(Box::new(rewind(&[(3, 4)], false)));
        let text = serde_json::to_string(&marked.content).unwrap();
        assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), marked.content);
    }
}
