//! Going back: the positions of a stopped pipeline move to earlier offsets, on all shards or on none.
//!
//! The pointers alone decide, here too. First every pointer takes a mark that says what is to become of the whole pipeline,
//! and nothing else of it changes. Only when all have the mark, each moves to its new positions; only when all have moved,
//! the marks come off. Nobody loads a shard that has one, so a rewind that broke off leaves a pipeline that stands still until
//! it is finished, by the same steps from what the marks say. Every step is a claim: one conditional write under a generation
//! of its own.
//!
//! Of several rewinds at the same time one wins. What is to be done is decided from all pointers as they were at one moment
//! ([`snapshot`]), and a pointer that has changed since refuses the write; then nothing more is written before the next look.
//! Shards are marked in order, so whoever has marked the first is alone. And a rewind has succeeded only when its own marks
//! were there and came off.

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
use crate::position::{Counts, Offset, PartitionKey, Position, Vector};
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
    /// Whether the state is dropped: then nothing is left of what was read before, and partitions that are not among these
    /// begin at their stored start. Otherwise what is read again counts again.
    pub reset: bool,
    /// The sinks of queries that keep no state: output for them that is committed and may not be delivered yet is owed, also
    /// by partitions that stay, so a reset does not drop it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stateless: Vec<usize>,
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
    /// The next offset to read. No shard goes forward: where one stands lower when all are marked, all go there.
    pub next: Offset,
}

impl Target {
    /// What a shard knows of a partition that goes there: nothing of what lies below, neither its watermark nor whether it is
    /// quiet. So all shards judge what comes from there on alike, as a pipeline does that starts there.
    fn at(&self, counts: Counts, counted_from: Offset) -> Position {
        Position { counts, counted_from: Some(counted_from), ..Position::start(self.next) }
    }
}

impl fmt::Display for Rewind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rewind `{}` was begun and is not finished; run it again", self.wish)
    }
}

/// Why a rewind did not get through. Whatever it did is kept: it goes on from there.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RewindError {
    /// Somebody started the pipeline meanwhile, or rewound it.
    #[error("shard {0} was moved by another process meanwhile: stop the pipeline, and run the rewind again")]
    Fenced(ShardId),
    /// No two looks at the pointers were the same.
    #[error("the shards moved at every look for a minute: stop the pipeline, and run the rewind again")]
    Moving,
    /// Another rewind was begun.
    #[error("{0}")]
    Other(Box<Rewind>),
    /// The marks say what no rewind leaves behind.
    #[error("the shards carry marks of rewinds that do not fit together: {0}")]
    Torn(String),
    /// The store did not answer, and what it did with a write cannot be seen any more.
    #[error(
        "whether shard {shard} was moved is not known ({why}): see where the pipeline stands (`strandline offsets show`), and \
         run the rewind again if it is not there"
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

/// How many offsets of a partition all shards together have counted.
fn counted(pointers: &[Option<Pointer>], key: &PartitionKey) -> i64 {
    let positions = pointers.iter().flatten().filter_map(|pointer| pointer.content.vector.get(key));
    positions.map(|position| i64::try_from(position.counts.total()).unwrap_or(i64::MAX)).fold(0, i64::saturating_add)
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

/// All pointers as they were at one moment: they are read until two looks are the same, since a pointer that has moved never
/// comes back to what it was.
pub async fn snapshot(store: &dyn StateStore, shards: u32) -> Result<Vec<Option<Pointer>>, RewindError> {
    let until = Instant::now() + PATIENCE;
    let mut before = None;
    loop {
        let mut pointers = Vec::new();
        for shard in 0..shards {
            pointers.push(read(store, shard).await?);
        }
        if before.as_ref() == Some(&pointers) || flaw!(RewindLooksOnce) {
            return Ok(pointers);
        }
        if Instant::now() > until {
            return Err(RewindError::Moving);
        }
        before = Some(pointers);
    }
}

/// What became of one write.
enum Written {
    /// The pointer is what it was to become.
    Done,
    /// Somebody else moved it. This is what it means if nothing of the rewind is there.
    Refused(RewindError),
}

impl Stopped {
    /// Begins a rewind, and goes all the way. Answers the pointers as they are in the end.
    pub async fn begin(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        rewind: &Rewind,
    ) -> Result<Vec<Option<Pointer>>, RewindError> {
        self.rewind(store, clock, rewind, false).await
    }

    /// Finishes a rewind whose marks were seen. Where there are none any more, somebody else was faster.
    pub async fn finish(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        rewind: &Rewind,
    ) -> Result<Vec<Option<Pointer>>, RewindError> {
        self.rewind(store, clock, rewind, true).await
    }

    /// `begun` says that marks of this rewind are known to have been there.
    async fn rewind(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        rewind: &Rewind,
        mut begun: bool,
    ) -> Result<Vec<Option<Pointer>>, RewindError> {
        let mut refused = None;
        loop {
            let pointers = snapshot(store, self.shards).await?;
            pointers.iter().flatten().for_each(|pointer| clock.observe(pointer.timestamp));
            let phase = phase(&pointers)?;
            match (phase.rewind(), refused) {
                (Some(found), _) if found.id == rewind.id => begun = true,
                // Marks come off only when all shards are there.
                _ if begun => return Ok(pointers),
                (Some(other), None | Some(RewindError::Fenced(_))) => {
                    return Err(RewindError::Other(Box::new(other.clone())));
                }
                (_, Some(refused)) => return Err(refused),
                (None, None) => {}
            }
            refused = self.step(store, clock, rewind, &pointers, &phase, &mut begun).await?;
            begun |= flaw!(RewindBelieved);
        }
    }

    /// Does what is to be done in a phase, up to the first write that is refused: then what was read is not so any more.
    async fn step(
        &self,
        store: &dyn StateStore,
        clock: &HybridClock,
        rewind: &Rewind,
        pointers: &[Option<Pointer>],
        phase: &Phase,
        begun: &mut bool,
    ) -> Result<Option<RewindError>, RewindError> {
        for (shard, pointer) in (0..self.shards).zip(pointers) {
            let pointer = pointer.as_ref();
            let mark = pointer.and_then(|pointer| pointer.content.rewind.as_deref());
            let content = match (phase, mark) {
                (Phase::Free | Phase::Marking(_), None) => self.marked(pointer, rewind, false),
                (Phase::Marking(_), Some(_)) if flaw!(RewindMovesEarly) => self.moved(pointer, rewind, pointers),
                (Phase::Moving(_), Some(mark)) if !mark.done => self.moved(pointer, rewind, pointers),
                (Phase::Unmarking(_), Some(_)) => Content { rewind: None, ..self.content(pointer) },
                _ => continue,
            };
            match self.claim(store, clock, shard, pointer, content).await? {
                Written::Done => *begun = true,
                Written::Refused(_) if flaw!(RewindGoesOn) => {}
                Written::Refused(error) => return Ok(Some(error)),
            }
            points::reach(Point::Rewound);
            if flaw!(RewindMovesEarly) {
                break;
            }
        }
        Ok(None)
    }

    fn content(&self, pointer: Option<&Pointer>) -> Content {
        let fresh = || Content { fingerprint: self.fingerprint.clone(), ..Content::default() };
        pointer.map_or_else(fresh, |pointer| pointer.content.clone())
    }

    fn marked(&self, pointer: Option<&Pointer>, rewind: &Rewind, done: bool) -> Content {
        Content { rewind: Some(Box::new(Rewind { done, ..rewind.clone() })), ..self.content(pointer) }
    }

    /// The content of a shard that stands where the rewind says, or at the lowest position over all shards where that is
    /// lower. Shards that were moved before this one do not change it. Dead letters that may not be written yet stay, and so
    /// does output that no dropped state has counted: they are delivered before anything that is counted later. Windows that are
    /// closed stay closed with a state that stays, since it has no groups of them any more.
    fn moved(&self, pointer: Option<&Pointer>, rewind: &Rewind, pointers: &[Option<Pointer>]) -> Content {
        let lowest = lowest(pointers, &self.starts);
        let mut content = self.marked(pointer, rewind, true);
        let targets = rewind.to.iter().map(|target| {
            let next = lowest.get(&target.key).map_or(target.next, |low| target.next.min(*low));
            Target { next, ..*target }
        });
        if rewind.reset {
            content.state = Vec::new();
            content.closed = None;
            content.outbox.segments.retain(|segment| match segment.kind {
                SegmentKind::DeadLetters => true,
                SegmentKind::Upserts { sink } | SegmentKind::Deletes { sink } => rewind.stateless.contains(&sink),
                SegmentKind::State { .. } => false,
            });
            let stood = |to: &Target| content.vector.get(&to.key).filter(|position| position.next == to.next);
            let watermark = |to: &Target| stood(to).filter(|_| flaw!(ResetKeepsWatermark))?.watermark;
            let at = |to: Target| (to.key, Position { watermark: watermark(&to), ..to.at(Counts::default(), to.next) });
            content.vector = Vector(targets.map(at).collect());
            return content;
        }
        if flaw!(RewindForgetsClosed) {
            content.closed = None;
        }
        for to in targets {
            // What is read again counts again, as if the counts had begun so much earlier. All shards stand at one place now,
            // so it is said by what all of them have counted, although they stood apart.
            let counted_from = Offset(to.next.0.saturating_sub(counted(pointers, &to.key)));
            let counts = content.vector.get(&to.key).map(|position| position.counts).unwrap_or_default();
            content.vector.0.insert(to.key, to.at(counts, counted_from));
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
    ) -> Result<Written, RewindError> {
        let ClaimVerdict::Claim(base) = recovery::claim(current, self.generation) else {
            return Err(RewindError::Fenced(shard));
        };
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
            if !flaw!(RewindKeepsEarlier) {
                next.kept = Vec::new();
            }
            next.content.garbage = garbage(pointer, &next, &HashSet::new());
        }
        invariant!(next.misfit(current).is_none(), "{:?}", next.misfit(current));
        let until = Instant::now() + PATIENCE;
        // Whether one of the writes may have landed although the pointer does not show it.
        let mut unanswered = None;
        loop {
            let (found, why) = match store.move_pointer(base, &next).await {
                Ok(Moved::Applied) => return Ok(Written::Done),
                Ok(Moved::Refused(found)) => (found.map(|found| *found), "it is unchanged".to_owned()),
                Err(StoreError::Unavailable(why)) => {
                    unanswered = Some(why.clone());
                    (read(store, shard).await?, why)
                }
                Err(error) => return Err(error.into()),
            };
            match recovery::after_write(found.as_ref(), next.attempt, base, self.generation) {
                Verdict::Done => return Ok(Written::Done),
                Verdict::Reload | Verdict::StepDown => {
                    let unknown = |why| RewindError::Unknown { shard, why };
                    return Ok(Written::Refused(unanswered.map_or(RewindError::Fenced(shard), unknown)));
                }
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
mod tests;
