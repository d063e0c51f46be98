//! The offset committer: the only writer of offsets, state and pointers.
//!
//! Checkpoints of a shard commit in order, each on top of the one before: segments first, then the pointer by one
//! conditional write, then the output. A write whose answer is lost is unknown until the pointer has been read
//! ([`crate::recovery`]); nothing is built on it before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, ResponseActFuture, WrapFuture};
use arrow::array::RecordBatch;
use futures::future::{AbortHandle, Abortable};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::child::{Cause, Origin};
use crate::compaction;
use crate::env::{Env, Patience};
use crate::mailbox::counted;
use crate::message::{Checkpoint, Claim, Crash, FallBack, FlushOffsets, Incarnation};
use crate::pointer::{
    Attempt, Base, Content, Epoch, Kept, Outbox, Pointer, SegmentKey, SegmentKind, SegmentRef, ShardId,
};
use crate::points::{self, Point};
use crate::ports::{Change, DeadLetter, Delivery, KafkaOffset, Moved, OutputBatch, SinkError, StoreError};
use crate::position::{Offset, PartitionKey, Vector};
use crate::recovery::{self, ClaimVerdict, Verdict};
use crate::segment::{self, Encoded};
use crate::spans::{self, part_of};

/// How many earlier states of a shard can be gone back to.
const KEPT: usize = 2;
/// Segments that are written or read at the same time.
const IN_FLIGHT: usize = 4;
/// How far behind the pointer orphans are looked for: a process that was fenced may still be writing some.
const SWEEP_DELAY: i64 = 16;
/// Epochs that one sweep looks at.
const SWEEP_STEP: i64 = 64;

/// What the committer knows of a shard.
#[derive(Default)]
struct Slot {
    /// The life of the shard that claimed it last.
    incarnation: Incarnation,
    /// The pointer as it stands; none while a claim is under way or after a commit failed.
    pointer: Option<Pointer>,
    /// What is being done for it.
    running: Option<AbortHandle>,
    /// What the pointer last said, also while the shard is halted.
    committed: Option<Pointer>,
    /// Garbage that is deleted by now, and up to where orphans are.
    cleaned: Cleaned,
    cleaning: bool,
}

#[derive(Default)]
struct Cleaned {
    deleted: HashSet<SegmentKey>,
    swept: Epoch,
}

pub(crate) struct OffsetCommitter {
    env: Arc<Env>,
    slots: HashMap<ShardId, Slot>,
    offsets_stale: bool,
    writing_offsets: bool,
    written: Offsets,
}

/// Offsets by topic and partition.
type Offsets = BTreeMap<(Arc<str>, i32), Offset>;

impl OffsetCommitter {
    pub(crate) fn new(env: Arc<Env>) -> Self {
        Self { env, slots: HashMap::new(), offsets_stale: false, writing_offsets: false, written: Offsets::new() }
    }

    /// Does one thing for a shard, which a later claim ends, and takes note of where its pointer stands then; after a failure
    /// it stands at `otherwise`.
    fn occupy(
        &mut self,
        shard: ShardId,
        work: impl Future<Output = Result<Pointer, Cause>> + 'static,
        otherwise: Option<Pointer>,
    ) -> ResponseActFuture<Self, Result<Box<Pointer>, Cause>> {
        let (abort, registration) = AbortHandle::new_pair();
        self.slots.entry(shard).or_default().running = Some(abort);
        Box::pin(Abortable::new(work, registration).into_actor(self).map(move |done, actor, ctx| match done {
            Ok(Ok(pointer)) => {
                actor.committed(shard, &pointer, ctx);
                Ok(Box::new(pointer))
            }
            Ok(Err(cause)) => {
                if let Some(slot) = actor.slots.get_mut(&shard) {
                    (slot.running, slot.pointer) = (None, otherwise);
                }
                Err(cause)
            }
            Err(_) => Err(Cause::Stopped),
        }))
    }

    fn committed(&mut self, shard: ShardId, pointer: &Pointer, ctx: &mut Context<Self>) {
        let positions = Arc::new(pointer.content.vector.clone());
        self.env.board.shard(shard, |status| status.positions = Some(positions));
        if let Some(slot) = self.slots.get_mut(&shard) {
            slot.pointer = Some(pointer.clone());
            slot.committed = Some(pointer.clone());
            slot.running = None;
        }
        self.clean(shard, ctx);
        self.offsets_stale = true;
        self.write_offsets(ctx);
    }

    /// Deletes what the pointer calls garbage, and what crashed attempts left behind, beside the next checkpoint.
    fn clean(&mut self, shard: ShardId, ctx: &mut Context<Self>) {
        let Some(slot) = self.slots.get_mut(&shard) else { return };
        let Some(pointer) = slot.pointer.clone().filter(|_| !slot.cleaning) else { return };
        slot.cleaning = true;
        let cleaning = clean(Arc::clone(&self.env), pointer);
        ctx.spawn(cleaning.into_actor(self).map(move |cleaned, actor, _| {
            let Some(slot) = actor.slots.get_mut(&shard) else { return };
            slot.cleaning = false;
            match cleaned {
                Ok(cleaned) => {
                    slot.cleaned.deleted.extend(cleaned.deleted);
                    slot.cleaned.swept = slot.cleaned.swept.max(cleaned.swept);
                }
                // Nothing is lost, but what is not needed stays; the next checkpoint tries again.
                Err(error) => {
                    tracing::warn!(shard, "old segments cannot be deleted: {error}");
                    actor.env.board.fault(true, format!("deleting old segments: {error}"));
                }
            }
        }));
    }

    /// The lowest committed position of each partition over all shards, under the highest timestamp of their pointers.
    fn lowest(&self) -> Option<(Offsets, i64)> {
        let mut lowest: BTreeMap<PartitionKey, (Offset, u32)> = BTreeMap::new();
        let mut timestamp = 0;
        for shard in 0..self.env.pipeline.shards {
            let pointer = self.slots.get(&shard)?.committed.as_ref()?;
            timestamp = timestamp.max(pointer.timestamp);
            for (key, position) in &pointer.content.vector.0 {
                let (offset, shards) = lowest.entry(*key).or_insert((position.next, 0));
                let (low, high) = ((*offset).min(position.next), (*offset).max(position.next));
                *offset = if flaw!(HighestOffsets) { high } else { low };
                *shards += 1;
            }
        }
        let complete = lowest.into_iter().filter(|(_, (_, shards))| *shards == self.env.pipeline.shards);
        let named =
            complete.filter_map(|(key, (offset, _))| Some(((self.env.topic(&key.topic_id)?, key.partition), offset)));
        Some((named.collect(), timestamp))
    }

    fn write_offsets(&mut self, ctx: &mut Context<Self>) {
        if self.writing_offsets || !self.offsets_stale {
            return;
        }
        self.offsets_stale = false;
        let Some((offsets, timestamp)) = self.lowest() else { return };
        if offsets == self.written || offsets.is_empty() {
            return;
        }
        self.writing_offsets = true;
        let writing = write_offsets(Arc::clone(&self.env), offsets.clone(), timestamp);
        ctx.spawn(writing.into_actor(self).map(move |done, actor, ctx| {
            actor.writing_offsets = false;
            match done {
                Ok(()) => actor.written = offsets,
                Err(error) => tracing::error!("kafka_offsets cannot be written: {error}"),
            }
            actor.write_offsets(ctx);
        }));
    }
}

impl Actor for OffsetCommitter {
    type Context = Context<Self>;
}

counted!(OffsetCommitter: Claim, FallBack, Checkpoint, FlushOffsets, Crash);

impl Handler<Claim> for OffsetCommitter {
    type Result = ResponseActFuture<Self, Result<Box<Pointer>, Cause>>;

    fn handle(&mut self, message: Claim, _: &mut Self::Context) -> Self::Result {
        let Claim { shard, incarnation, span } = message;
        let slot = self.slots.entry(shard).or_default();
        let emptied = !flaw!(NoClaim | Renumbered);
        if let Some(running) = slot.running.take().filter(|_| emptied) {
            running.abort();
        }
        slot.incarnation = incarnation;
        slot.pointer = None;
        slot.cleaned = Cleaned::default();
        let known = slot.committed.is_some();
        let claiming = claim(Arc::clone(&self.env), shard, known).instrument(span);
        self.occupy(shard, claiming, None)
    }
}

impl Handler<FallBack> for OffsetCommitter {
    type Result = ResponseActFuture<Self, Result<Box<Pointer>, Cause>>;

    fn handle(&mut self, message: FallBack, _: &mut Self::Context) -> Self::Result {
        let FallBack { shard, incarnation, base, why } = message;
        let slot = self.slots.entry(shard).or_default();
        let fits = slot.incarnation == incarnation && slot.running.is_none();
        let Some(pointer) = slot.pointer.take_if(|pointer| fits && pointer.base() == base) else {
            return Box::pin(async move { Err(Cause::Failed(Origin::Store, why)) }.into_actor(self));
        };
        let env = Arc::clone(&self.env);
        self.occupy(shard, async move { fall_back(&env, &pointer, &why).await }, None)
    }
}

impl Handler<Checkpoint> for OffsetCommitter {
    type Result = ResponseActFuture<Self, Result<(), Cause>>;

    fn handle(&mut self, message: Checkpoint, _: &mut Self::Context) -> Self::Result {
        let shard = message.shard;
        let slot = self.slots.entry(shard).or_default();
        let fits = slot.incarnation == message.incarnation && slot.running.is_none();
        // Taken out: if this commit fails, there is nothing that a later one could build on.
        let based = |pointer: &Pointer| pointer.base() == message.base || flaw!(NoClaim | Renumbered);
        let pointer = slot.pointer.take_if(|pointer| fits && based(pointer));
        let Some(pointer) = pointer else {
            let why = format!("a checkpoint of shard {shard} does not continue what is committed; it is discarded");
            return Box::pin(async move { Err(Cause::Failed(Origin::Store, why)) }.into_actor(self));
        };
        let before = flaw!(LaterCheckpointKept).then(|| pointer.clone());
        let cleaned = std::mem::take(&mut slot.cleaned);
        let span = message.span.clone();
        let committing = commit(Arc::clone(&self.env), pointer, message, cleaned);
        let committing = async move {
            let committed = committing.await;
            committed.inspect_err(|cause| spans::died(&Span::current(), cause))
        };
        let committing = committing.instrument(span);
        Box::pin(self.occupy(shard, committing, before).map(|committed, _, _| committed.map(drop)))
    }
}

impl Handler<FlushOffsets> for OffsetCommitter {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: FlushOffsets, _: &mut Self::Context) -> Self::Result {
        let lowest = self.lowest().filter(|(offsets, _)| !offsets.is_empty());
        let env = Arc::clone(&self.env);
        Box::pin(
            async move {
                if let Some((offsets, timestamp)) = lowest
                    && let Err(error) = write_offsets(env, offsets, timestamp).await
                {
                    tracing::error!("kafka_offsets cannot be written: {error}");
                }
            }
            .into_actor(self),
        )
    }
}

impl Handler<Crash> for OffsetCommitter {
    type Result = ();

    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("the offset committer was told to panic");
    }
}

async fn write_offsets(env: Arc<Env>, offsets: Offsets, timestamp: i64) -> Result<(), StoreError> {
    let rows: Vec<KafkaOffset> = offsets
        .into_iter()
        .map(|((topic, partition), offset)| KafkaOffset { topic: topic.to_string(), partition, offset })
        .collect();
    points::reach(Point::BeforeOffsets);
    env.patiently("writing kafka_offsets", || env.pipeline.store.write_kafka_offsets(&rows, timestamp)).await?;
    points::reach(Point::AfterOffsets);
    Ok(())
}

/// Moves a pointer by identical writes until it is known what became of it.
async fn move_pointer(env: &Env, before: Option<&Pointer>, next: &Pointer) -> Result<Verdict, StoreError> {
    let store = &env.pipeline.store;
    let base = before.map(Pointer::base);
    invariant!(next.misfit(before).is_none(), "{:?}", next.misfit(before));
    let mut patience = Patience::default();
    loop {
        let current = match points::sent(Point::PointerSent, store.move_pointer(base, next)).await {
            Ok(Moved::Applied) => return Ok(Verdict::Done),
            Ok(Moved::Refused(current)) => current.map(|current| *current),
            Err(StoreError::Unavailable(_)) if flaw!(BlindRetry) => {
                let timestamp = env.pipeline.clock.next();
                let mut another = Pointer { timestamp, ..next.clone() };
                if another.content.outbox.epoch == another.epoch {
                    another.content.outbox.timestamp = timestamp;
                }
                return store.move_pointer(base, &another).await.map(|_| Verdict::Done).or(Ok(Verdict::Done));
            }
            Err(StoreError::Unavailable(error)) => {
                env.fault(&mut patience, "moving a pointer, its answer is unknown", &error).await;
                env.patiently("reading a pointer", || store.read_pointer(next.shard)).await?
            }
            Err(error) => return Err(error),
        };
        if let Some(current) = &current {
            env.pipeline.clock.observe(current.timestamp);
        }
        match recovery::after_write(current.as_ref(), next.attempt, base, env.generation) {
            Verdict::Repeat => env.fault(&mut patience, "moving a pointer", "it is unchanged").await,
            verdict => return Ok(verdict),
        }
    }
}

fn fenced(env: &Env, shard: ShardId) -> Cause {
    Cause::Fenced(format!("shard {shard} belongs to a process of a later generation than {}", env.generation))
}

impl From<StoreError> for Cause {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(what) => Self::Failed(Origin::Store, what),
            // Only a later process can have written it.
            StoreError::Newer(what) => Self::Fenced(what),
            StoreError::Corrupt(what) | StoreError::Fatal(what) => Self::Halt(what),
        }
    }
}

/// Takes a shard over: one conditional write with the content unchanged. Only then is anything else of it read, and its
/// last output delivered again.
async fn claim(env: Arc<Env>, shard: ShardId, known: bool) -> Result<Pointer, Cause> {
    let read = || env.pipeline.store.read_pointer(shard);
    let mut current = env.patiently("reading a pointer", read).await?;
    if known && current.is_none() {
        return Err(Cause::Halt(format!("the pointer of shard {shard} is gone from the store, and with it its state")));
    }
    let claimed = loop {
        if let Some(pointer) = &current {
            env.pipeline.clock.observe(pointer.timestamp);
            if pointer.content.fingerprint != env.pipeline.fingerprint {
                let (theirs, ours) = (&pointer.content.fingerprint, &env.pipeline.fingerprint);
                return Err(Cause::Halt(format!("shard {shard} holds the state of plan {theirs}, not of {ours}")));
            }
            if let Some(rewind) = pointer.content.rewind.as_ref().filter(|_| !flaw!(MarkedShardLoaded)) {
                // Some shards are rewound and some are not: none may go on.
                return Err(Cause::Fenced(format!("shard {shard} is being rewound: {rewind}")));
            }
        }
        let base = match recovery::claim(current.as_ref(), env.generation) {
            ClaimVerdict::Claim(base) => base,
            ClaimVerdict::StepDown => return Err(fenced(&env, shard)),
        };
        let fresh = || Content { fingerprint: env.pipeline.fingerprint.clone(), ..Content::default() };
        let mut next = Pointer {
            shard,
            epoch: base.map_or(Epoch(1), |base| base.epoch.next()),
            attempt: Attempt::fresh(),
            generation: env.generation,
            timestamp: env.pipeline.clock.next(),
            content: current.as_ref().map_or_else(fresh, |pointer| pointer.content.clone()),
            kept: current.as_ref().map_or_else(Vec::new, |pointer| pointer.kept.clone()),
        };
        if flaw!(NoClaim | KeyedByEpoch)
            && let Some(pointer) = &current
        {
            break pointer.clone();
        }
        if flaw!(OutputRestamped) {
            (next.content.outbox.epoch, next.content.outbox.timestamp) = (next.epoch, next.timestamp);
        }
        match move_pointer(&env, current.as_ref(), &next).await? {
            Verdict::Done => break next,
            Verdict::StepDown => return Err(fenced(&env, shard)),
            // An earlier write of this process landed in between: claim on top of it.
            Verdict::Reload | Verdict::Repeat => current = env.patiently("reading a pointer", read).await?,
        }
    };
    points::reach(Point::Claim);
    if flaw!(OutputNotDeliveredAgain) {
        return Ok(claimed);
    }
    match outbox(&env, &claimed).await {
        Ok((output, letters)) => {
            deliver(&env, &claimed, &output, &letters, true).await?;
            Ok(claimed)
        }
        Err(Unreadable::Corrupt(why)) => fall_back(&env, &claimed, &why).await,
        Err(Unreadable::Other(cause)) => Err(cause),
    }
}

/// The output of a pointer, as it was stored.
async fn outbox(env: &Env, pointer: &Pointer) -> Result<(Vec<OutputBatch>, Vec<DeadLetter>), Unreadable> {
    let (mut output, mut letters) = (Vec::new(), Vec::new());
    for reference in &pointer.content.outbox.segments {
        let batches = read_segment(env, pointer.base(), reference).await?;
        match reference.kind {
            SegmentKind::Upserts { sink } => {
                output.extend(batches.into_iter().map(|rows| OutputBatch { sink, change: Change::Upsert, rows }));
            }
            SegmentKind::Deletes { sink } => {
                output.extend(batches.into_iter().map(|rows| OutputBatch { sink, change: Change::Delete, rows }));
            }
            SegmentKind::DeadLetters => {
                for rows in batches {
                    letters.extend(segment::dead_letters(&rows).ok_or_else(|| {
                        Unreadable::Corrupt(format!("segment {:?} does not hold dead letters", reference.key))
                    })?);
                }
            }
            SegmentKind::State { .. } => {
                return Err(Unreadable::Corrupt(format!("the outbox of shard {} lists state", pointer.shard)));
            }
        }
    }
    Ok((output, letters))
}

/// Why a segment cannot be used.
pub(crate) enum Unreadable {
    /// It is lost or damaged, although it should be there.
    Corrupt(String),
    /// Something else is the matter.
    Other(Cause),
}

impl From<Unreadable> for Cause {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Corrupt(why) => Self::Halt(why),
            Unreadable::Other(cause) => cause,
        }
    }
}

/// Reads and checks a segment that the pointer `base` lists. When it cannot be read, the pointer says why: whoever took the
/// shard over may have cleaned up behind us.
pub(crate) async fn read_segment(
    env: &Env,
    base: Base,
    reference: &SegmentRef,
) -> Result<Vec<RecordBatch>, Unreadable> {
    let (store, shard) = (&env.pipeline.store, reference.key.shard);
    let read = env.patiently("reading a segment", || store.read_segment(&reference.key)).await;
    let error = match read {
        Ok(bytes) => match segment::decode(reference, &bytes) {
            Ok(batches) => return Ok(batches),
            Err(error) => StoreError::Corrupt(error.to_string()),
        },
        Err(error) => error,
    };
    let current = env.patiently("reading a pointer", || store.read_pointer(shard)).await;
    Err(match current {
        Ok(_) if flaw!(ForeignCleanupIsCorruption) => Unreadable::Corrupt(error.to_string()),
        Err(error) => Unreadable::Other(error.into()),
        Ok(Some(current)) if current.generation > env.generation => Unreadable::Other(fenced(env, shard)),
        Ok(Some(current)) if current.base() != base => {
            Unreadable::Other(Cause::Failed(Origin::Store, format!("shard {shard} was moved meanwhile: {error}")))
        }
        _ => match error {
            StoreError::Corrupt(why) => {
                Unreadable::Corrupt(format!("the state of shard {shard} cannot be read: {why}"))
            }
            other => Unreadable::Other(other.into()),
        },
    })
}

/// Goes back to the newest kept state that can be read, at a higher epoch: only if the sink's rows replace each other, the
/// query gives the same rows again, and Kafka still has every record from there on. Otherwise the shard halts, and its
/// pointer stays as it is, so that a segment that is restored mends it: nothing is lost silently.
async fn fall_back(env: &Env, current: &Pointer, why: &str) -> Result<Pointer, Cause> {
    let shard = current.shard;
    let refuse = |what: &str| {
        Cause::Halt(format!(
            "{why}; going back to an earlier state is not possible: {what}. Restore what is damaged from a backup of the \
             store, or compute everything anew under another STRANDLINE_PIPELINE__NAME"
        ))
    };
    if current.kept.is_empty() {
        return Err(refuse("none is kept"));
    }
    if !env.pipeline.sink.replaces() {
        return Err(refuse("the sink would show rows twice"));
    }
    if let Some(reason) = env.pipeline.query.unrepeatable() {
        return Err(refuse(reason));
    }
    let mut readable = None;
    for (number, kept) in current.kept.iter().enumerate() {
        match check(env, current.base(), &kept.state).await {
            Ok(()) => {
                readable = Some((kept.clone(), current.kept[number + 1..].to_vec()));
                break;
            }
            Err(Unreadable::Corrupt(why)) => {
                tracing::error!(shard, epoch = %kept.epoch, "this earlier state is damaged as well: {why}");
            }
            Err(Unreadable::Other(cause)) => return Err(cause),
        }
    }
    let Some((earlier, kept)) = readable else {
        return Err(refuse("those that are kept need what is damaged, too"));
    };
    if let Some(what) = missing(env, current, &earlier.vector).await? {
        return Err(refuse(&what));
    }
    tracing::error!(shard, from = %current.epoch, to = %earlier.epoch, "{why}; going back to an earlier state");
    let epoch = current.epoch.next();
    let timestamp = env.pipeline.clock.next();
    let content = Content {
        vector: earlier.vector,
        closed: earlier.closed,
        state: earlier.state,
        outbox: Outbox { epoch, timestamp, segments: Vec::new() },
        garbage: Vec::new(),
        ..current.content.clone()
    };
    let attempt = Attempt::fresh();
    let mut next = Pointer { shard, epoch, attempt, generation: env.generation, timestamp, content, kept };
    next.content.garbage = garbage(current, &next, &HashSet::new());
    match move_pointer(env, Some(current), &next).await? {
        Verdict::Done => Ok(next),
        Verdict::StepDown => Err(fenced(env, shard)),
        Verdict::Reload | Verdict::Repeat => {
            Err(Cause::Failed(Origin::Store, format!("shard {shard} was moved meanwhile")))
        }
    }
}

/// What Kafka cannot give again as it was, of all that came between an earlier state and this pointer.
async fn missing(env: &Env, current: &Pointer, earlier: &Vector) -> Result<Option<String>, Cause> {
    let source = &env.pipeline.source;
    let partitions = source.partitions().await.map_err(Cause::from)?;
    let mut asked = HashSet::new();
    for (key, now) in &current.content.vector.0 {
        // A partition that was met only after the earlier state goes back to its start.
        let needed = match earlier.get(key) {
            Some(position) => position.next,
            None if env.pipeline.query.closes() && !earlier.0.is_empty() => {
                return Ok(Some(format!(
                    "partition {key} was found after the earlier state, and what was closed by then may come out otherwise"
                )));
            }
            None => {
                let read = || env.pipeline.store.start_offset(key);
                match env.patiently("reading a start offset", read).await? {
                    Some(start) => start,
                    None => return Ok(Some(format!("the start of partition {key} is not stored"))),
                }
            }
        };
        let Some(partition) = partitions.iter().find(|partition| partition.key == *key) else {
            return Ok(Some(format!("partition {key} is gone")));
        };
        let first = source.start_offset(partition, true).await.map_err(Cause::from)?;
        if first > needed {
            let what = format!("{partition} begins at {first} by now, the records from {needed} on are needed");
            return Ok(Some(what));
        }
        let topic = &partition.topic;
        let again = earlier.get(key).is_none_or(|earlier| earlier.next < now.next);
        if !again || !asked.insert(topic) {
            continue;
        }
        match source.thins(partition).await {
            Ok(false) => {}
            Ok(true) => {
                return Ok(Some(format!("topic `{topic}` is compacted, so records that were counted may be gone")));
            }
            Err(error) => {
                return Ok(Some(format!(
                    "it is not known whether topic `{topic}` is compacted, and so whether all records are still there (the \
                     client needs the permission DESCRIBE_CONFIGS on it): {error}"
                )));
            }
        }
    }
    Ok(None)
}

/// Whether segments that the pointer `base` lists can all be read.
async fn check(env: &Env, base: Base, segments: &[SegmentRef]) -> Result<(), Unreadable> {
    let reads = segments.iter().map(|reference| async move { read_segment(env, base, reference).await.map(drop) });
    stream::iter(reads).buffer_unordered(IN_FLIGHT).try_collect().await
}

/// Delivers the output of a pointer until the sink has it.
async fn deliver(
    env: &Env,
    pointer: &Pointer,
    output: &[OutputBatch],
    letters: &[DeadLetter],
    again: bool,
) -> Result<(), Cause> {
    let outbox = &pointer.content.outbox;
    invariant!(outbox.epoch <= pointer.epoch, "output of epoch {} at epoch {}", outbox.epoch, pointer.epoch);
    if !letters.is_empty() {
        let write = || env.pipeline.store.write_dead_letters(letters, outbox.timestamp);
        env.patiently("writing dead letters", write).await?;
        env.board.dead_letters(letters);
    }
    if output.is_empty() {
        return Ok(());
    }
    let (shard, attempt) = (pointer.shard, pointer.attempt);
    let (epoch, timestamp) = (outbox.epoch, outbox.timestamp);
    let mut delivery = Delivery { shard, epoch, attempt, timestamp, again, output };
    let mut patience = Patience::of_sink();
    points::reach(Point::BeforeOutput);
    loop {
        match env.pipeline.sink.deliver(&delivery).await {
            Ok(()) => {
                points::reach(Point::AfterOutput);
                return Ok(());
            }
            Err(SinkError::Unavailable(error)) => env.fault(&mut patience, "delivering output", &error).await,
            Err(SinkError::Fatal(error)) => return Err(Cause::Halt(format!("the sink refuses the output: {error}"))),
        }
        delivery.again = true;
    }
}

/// The segments of a checkpoint.
struct Segments {
    /// Those that have to be written.
    written: Vec<Encoded>,
    /// Those that hold the output.
    outbox: Vec<SegmentRef>,
    /// Those that hold the whole state.
    state: Vec<SegmentRef>,
}

/// Encodes a checkpoint, and merges what it changed with what is stored.
async fn encode(env: &Env, current: &Pointer, checkpoint: &Checkpoint) -> Result<Segments, Cause> {
    let (base, epoch) = (current.base(), current.epoch.next());
    let shard = checkpoint.shard;
    let mut number = 0;
    let mut key = || {
        number += 1;
        let attempt = if flaw!(KeyedByEpoch) { Attempt(uuid::Uuid::nil()) } else { checkpoint.attempt };
        SegmentKey { shard, epoch, attempt, number: number - 1 }
    };
    let mut encode = |rows: &RecordBatch, kind| {
        segment::encode(rows, kind, &mut key).map_err(|error| {
            Cause::Failed(Origin::Store, format!("a checkpoint of shard {shard} cannot be written: {error}"))
        })
    };

    let unmerged =
        |error| Cause::Failed(Origin::Store, format!("the state of shard {shard} cannot be merged: {error}"));
    let mut written: Vec<Encoded> = Vec::new();
    let mut outbox = Vec::new();
    let kept = |batch: &&OutputBatch| batch.rows.num_rows() > 0 && !env.pipeline.sink.discards(batch.sink);
    for batch in checkpoint.output.iter().filter(kept) {
        let kind = match batch.change {
            Change::Upsert => SegmentKind::Upserts { sink: batch.sink },
            Change::Delete => SegmentKind::Deletes { sink: batch.sink },
        };
        let encoded = encode(&batch.rows, kind)?;
        outbox.extend(encoded.iter().map(|segment| segment.reference.clone()));
        written.extend(encoded);
    }
    if !checkpoint.dead_letters.is_empty() {
        let rows = segment::dead_letter_rows(&checkpoint.dead_letters).map_err(|error| {
            Cause::Failed(Origin::Store, format!("dead letters of shard {shard} cannot be written: {error}"))
        })?;
        let encoded = encode(&rows, SegmentKind::DeadLetters)?;
        outbox.extend(encoded.iter().map(|segment| segment.reference.clone()));
        written.extend(encoded);
    }

    // What is gone by itself takes its segments with it.
    let lasts = |segment: &SegmentRef| {
        segment.until.is_none_or(|until| checkpoint.closed < Some(until)) || flaw!(ClosedSegmentsKept)
    };
    let mut state: Vec<_> = current.content.state.iter().filter(|segment| lasts(segment)).cloned().collect();
    for (table, shape) in checkpoint.tables.iter().enumerate() {
        let deltas = checkpoint.state.iter().filter(|delta| delta.table == table && delta.rows.num_rows() > 0);
        let mut deltas: Vec<_> = deltas.collect();
        if deltas.is_empty() {
            continue;
        }
        let kind = SegmentKind::State { table };
        // Before a delta that is the whole table, with those that follow it, nothing counts.
        let whole = deltas.iter().rposition(|delta| delta.whole || flaw!(ChangesAreWhole));
        if let Some(whole) = whole {
            deltas.drain(..whole);
            state.retain(|segment| segment.kind != kind);
        }
        let deltas: Vec<_> = deltas.iter().map(|delta| delta.rows.clone()).collect();
        let stored: Vec<SegmentRef> = state.iter().filter(|segment| segment.kind == kind).cloned().collect();
        // What one attempt wrote belongs together, in however many segments it is.
        let runs: Vec<&[SegmentRef]> =
            stored.chunk_by(|a, b| (a.key.epoch, a.key.attempt) == (b.key.epoch, b.key.attempt)).collect();
        let mut rows: Vec<u64> = runs.iter().map(|run| run.iter().map(|segment| segment.rows).sum()).collect();
        rows.push(deltas.iter().map(|rows| rows.num_rows() as u64).sum());
        let first = compaction::plan(&rows).unwrap_or(runs.len()).min(runs.len());
        let start: usize = runs[..first].iter().map(|run| run.len()).sum();
        let mut batches = Vec::new();
        for reference in &stored[start..] {
            // A damaged segment is for the load after the claim to deal with: it can go back to an earlier state.
            batches.extend(read_segment(env, base, reference).await.map_err(|unreadable| match unreadable {
                Unreadable::Corrupt(why) => Cause::Failed(Origin::Store, why),
                Unreadable::Other(cause) => cause,
            })?);
            points::reach(Point::Compaction);
        }
        batches.extend(deltas);
        state.retain(|segment| !stored[start..].contains(segment));
        let merged = if whole.is_some() || start == stored.len() && batches.len() == 1 {
            batches
        } else {
            compaction::merge(&batches, *shape, start == 0, checkpoint.closed).map_err(unmerged)?
        };
        for rows in merged {
            let until = if shape.expires { compaction::last_until(&rows).map_err(unmerged)? } else { None };
            let mut encoded = encode(&rows, kind)?;
            encoded.iter_mut().for_each(|segment| segment.reference.until = until);
            state.extend(encoded.iter().map(|segment| segment.reference.clone()));
            written.extend(encoded);
        }
    }

    let own = |key: SegmentKey| (key.epoch, key.attempt) == (epoch, checkpoint.attempt);
    invariant!(written.iter().all(|segment| own(segment.reference.key)), "segments belong to their epoch and attempt");
    Ok(Segments { written, outbox, state })
}

/// Commits a checkpoint on top of the pointer that it names.
async fn commit(env: Arc<Env>, current: Pointer, checkpoint: Checkpoint, cleaned: Cleaned) -> Result<Pointer, Cause> {
    let begun = Instant::now();
    let (shard, epoch) = (checkpoint.shard, current.epoch.next());
    let span = checkpoint.span.clone();
    let part = part_of!(span, "segments", strandline.segments = Empty, strandline.bytes = Empty);
    let (Segments { mut written, outbox, state }, bytes) = async {
        let mut segments = encode(&env, &current, &checkpoint).await?;
        let bytes: usize = segments.written.iter().map(|segment| segment.bytes.len()).sum();
        Span::current().record("strandline.segments", segments.written.len() as i64);
        Span::current().record("strandline.bytes", bytes as i64);
        if !flaw!(PointerBeforeSegments) {
            write_segments(&env, std::mem::take(&mut segments.written)).await?;
        }
        Ok::<_, Cause>((segments, bytes))
    }
    .instrument(part)
    .await?;
    points::reach(Point::Segments);

    let timestamp = env.pipeline.clock.next();
    let mut kept = vec![Kept {
        epoch: current.epoch,
        vector: current.content.vector.clone(),
        closed: current.content.closed,
        state: current.content.state.clone(),
    }];
    kept.extend(current.kept.iter().cloned());
    kept.truncate(KEPT);
    let content = Content {
        vector: checkpoint.vector,
        closed: checkpoint.closed,
        state,
        outbox: Outbox { epoch, timestamp, segments: outbox },
        fingerprint: current.content.fingerprint.clone(),
        // Output n is delivered before the pointer moves to n+1, so what the pointer carries now is with the sink.
        delivered: current.content.outbox.epoch,
        garbage: Vec::new(),
        swept: current.content.swept.max(cleaned.swept),
        rewind: None,
    };
    let mut next =
        Pointer { shard, epoch, attempt: checkpoint.attempt, generation: env.generation, timestamp, content, kept };
    next.content.garbage = garbage(&current, &next, &cleaned.deleted);
    invariant!(next.content.vector.continues(&current.content.vector), "a vector never goes back");
    invariant!(next.content.closed >= current.content.closed, "closed windows stay closed");

    if flaw!(DeliveredBeforeCommit) {
        deliver(&env, &next, &checkpoint.output, &checkpoint.dead_letters, false).await?;
    }
    let moving = move_pointer(&env, Some(&current), &next).instrument(part_of!(span, "pointer"));
    match moving.await? {
        Verdict::Done => points::reach(Point::PointerApplied),
        Verdict::Reload if flaw!(Renumbered) => {
            let read = || env.pipeline.store.read_pointer(shard);
            let Some(found) = env.patiently("reading a pointer", read).await? else {
                return Err(Cause::Failed(Origin::Store, "the pointer is gone".into()));
            };
            let checkpoint = Checkpoint { vector: next.content.vector, ..checkpoint };
            return Box::pin(commit(Arc::clone(&env), found, checkpoint, cleaned)).await;
        }
        Verdict::StepDown => return Err(fenced(&env, shard)),
        Verdict::Reload | Verdict::Repeat => {
            return Err(Cause::Failed(
                Origin::Store,
                format!("shard {shard} was moved by an earlier write; it is loaded again"),
            ));
        }
    }
    if flaw!(PointerBeforeSegments) {
        write_segments(&env, std::mem::take(&mut written)).await?;
    }
    let rows: usize = checkpoint.output.iter().map(|batch| batch.rows.num_rows()).sum();
    let letters = checkpoint.dead_letters.len() as i64;
    let part = part_of!(span, "publish", strandline.rows = rows as i64, strandline.dead_letters = letters);
    deliver(&env, &next, &checkpoint.output, &checkpoint.dead_letters, false).instrument(part).await?;

    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    env.board.committer(|status| {
        status.commits += 1;
        status.store.failing = false;
    });
    env.board.shard(shard, |status| {
        status.epoch = epoch;
        status.checkpoints += 1;
        status.checkpoint_micros = micros;
        status.checkpoint_bytes = bytes as u64;
        status.committed = Some(Instant::now());
    });
    Ok(next)
}

/// Writes segments, some at the same time; each is freed when all are written.
async fn write_segments(env: &Env, segments: Vec<Encoded>) -> Result<(), StoreError> {
    let store = &env.pipeline.store;
    stream::iter(segments.iter().map(|segment| {
        let (reference, bytes) = (&segment.reference, &segment.bytes);
        env.patiently("writing a segment", move || store.write_segment(&reference.key, bytes))
    }))
    .buffer_unordered(IN_FLIGHT)
    .try_collect()
    .await
}

fn listed(pointer: &Pointer) -> impl Iterator<Item = SegmentKey> {
    let state = pointer.content.state.iter().chain(&pointer.content.outbox.segments);
    let kept = pointer.kept.iter().filter(|_| !flaw!(KeptStateDeleted));
    state.chain(kept.flat_map(|kept| &kept.state)).map(|segment| segment.key)
}

/// What the old pointer listed or called garbage, the new one does not list, and is not deleted yet.
pub(crate) fn garbage(old: &Pointer, new: &Pointer, deleted: &HashSet<SegmentKey>) -> Vec<SegmentKey> {
    let alive: HashSet<SegmentKey> = listed(new).collect();
    let mut seen = HashSet::new();
    let before = listed(old).chain(old.content.garbage.iter().copied());
    before.filter(|key| !alive.contains(key) && !deleted.contains(key) && seen.insert(*key)).collect()
}

/// Deletes garbage, and the orphans of epochs that lie well behind the pointer. Nothing is touched that a kept pointer
/// lists, or whose epoch is above the pointer's: that may be an attempt in flight.
async fn clean(env: Arc<Env>, pointer: Pointer) -> Result<Cleaned, StoreError> {
    let store = &env.pipeline.store;
    let alive: HashSet<SegmentKey> = listed(&pointer).collect();
    let mut doomed = pointer.content.garbage.clone();
    let from = pointer.content.swept;
    let delay = if flaw!(UnboundedSweep) { -SWEEP_DELAY } else { SWEEP_DELAY };
    let until = Epoch((pointer.epoch.0 - delay).min(from.0 + SWEEP_STEP));
    for epoch in from.0..until.0 {
        let found = store.segments_of_epoch(pointer.shard, Epoch(epoch)).await?;
        doomed.extend(found.into_iter().filter(|key| !alive.contains(key)));
    }
    let dead = |key: &SegmentKey| key.epoch <= pointer.epoch && !alive.contains(key);
    invariant!(doomed.iter().all(dead), "only what is dead is deleted");
    if !doomed.is_empty() {
        store.delete_segments(&doomed).await?;
    }
    Ok(Cleaned { deleted: doomed.into_iter().collect(), swept: from.max(until) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::Generation;

    fn segment(epoch: i64, number: u32) -> SegmentRef {
        let attempt = Attempt(uuid::Uuid::from_u128(epoch as u128));
        let key = SegmentKey { shard: 0, epoch: Epoch(epoch), attempt, number };
        SegmentRef { key, kind: SegmentKind::State { table: 0 }, rows: 1, bytes: 1, checksum: 0, until: None }
    }

    fn pointer(
        state: Vec<SegmentRef>,
        outbox: Vec<SegmentRef>,
        kept: Vec<SegmentRef>,
        garbage: Vec<SegmentKey>,
    ) -> Pointer {
        Pointer {
            shard: 0,
            epoch: Epoch(9),
            attempt: Attempt::fresh(),
            generation: Generation(1),
            timestamp: 0,
            content: Content {
                state,
                outbox: Outbox { segments: outbox, ..Outbox::default() },
                garbage,
                ..Content::default()
            },
            kept: vec![Kept { epoch: Epoch(8), vector: Default::default(), closed: None, state: kept }],
        }
    }

    #[test]
    fn garbage_is_what_nobody_lists_any_more_and_is_not_deleted_yet() {
        let old = pointer(
            vec![segment(1, 0), segment(2, 0)],
            vec![segment(2, 1)],
            vec![segment(1, 0)],
            vec![segment(0, 0).key, segment(0, 1).key],
        );
        let new = pointer(vec![segment(3, 0)], vec![segment(3, 1)], vec![segment(1, 0), segment(2, 0)], vec![]);
        let deleted = HashSet::from([segment(0, 0).key]);
        assert_eq!(garbage(&old, &new, &deleted), [segment(2, 1).key, segment(0, 1).key]);
    }
}
