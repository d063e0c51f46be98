//! The aggregation actor: owner of one shard of the key space.
//!
//! Its state, its positions, its watermark and its output move together or not at all. It takes a range only where it
//! stands ([`crate::lane`]), and takes a checkpoint between two ranges, with no barrier and no waiting for other shards:
//! it works on while the committer writes. It answers no partition before it is loaded, and is loaded only by a claim.

use std::collections::HashMap;
use std::sync::Arc;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, ResponseFuture, WrapFuture};
use arrow::array::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::child::{Cause, Exit, Origin};
use crate::committer::{OffsetCommitter, Unreadable, read_segment};
use crate::compaction;
use crate::credit::Credit;
use crate::env::Env;
use crate::lane::{self, Decision};
use crate::mailbox::{Mailbox, counted};
#[cfg(feature = "simulation")]
use crate::message::IdleBeside;
use crate::message::{
    Awake, Checkpoint, Claim, Crash, Expect, FallBack, Flush, Incarnation, LaneBatch, LaneReply, Register, Registered,
};
use crate::pointer::{Attempt, Base, Pointer, SegmentKind, ShardId};
use crate::points::{self, Point};
use crate::ports::{DeadLetter, KeyedOperator, StageError, StateDelta, StateTable};
use crate::position::{Counts, Offset, PartitionKey, Position, Vector, Watermark};
use crate::spans::{self, LINKED, part_of};

/// How many times the bound of pending rows changes of the state may take before they hold back the sources, unless that is
/// less than half as much again as the state itself has: a large one would be written over and over.
const CHANGES: usize = 4;
/// The share of the budget in flight that may wait for a checkpoint before one is taken early. The other half lets the
/// sources go on while it commits.
const EARLY: f64 = 0.5;
/// Segments that are read at the same time while a shard loads.
const LOADING: usize = 4;

pub(crate) struct AggregationActor {
    env: Arc<Env>,
    shard: ShardId,
    incarnation: Incarnation,
    exit: Exit,
    committer: Mailbox<OffsetCommitter>,
    operator: Box<dyn KeyedOperator>,
    /// What the next checkpoint builds on; none until the shard is loaded.
    base: Option<Base>,
    vector: Vector,
    /// The valid incarnation of each partition.
    registered: HashMap<PartitionKey, Incarnation>,
    /// The partitions that exist, with their stored starts.
    expected: Vec<(PartitionKey, Offset)>,
    /// The highest watermark that the operator was told, in this life or an earlier one: windows up to it are closed.
    closed: Watermark,
    /// Partitions that asked before the shard was loaded.
    asking: Vec<(Register, oneshot::Sender<Registered>)>,
    dead_letters: Vec<DeadLetter>,
    dead_letter_bytes: usize,
    /// The credit of batches whose rows or dead letters wait for a checkpoint.
    held: Vec<Arc<Credit>>,
    /// Rows came since the last checkpoint.
    rows_changed: bool,
    /// Positions moved since the last checkpoint.
    moved: bool,
    checkpointing: bool,
    /// The interval has passed since the last checkpoint.
    interval_over: bool,
    last_checkpoint: Instant,
    flushing: Vec<oneshot::Sender<bool>>,
    /// Of some of the batches that the next checkpoint holds, the spans.
    traced: Vec<Span>,
    /// The restart that this life begins with, if it is one.
    restart: Span,
}

impl AggregationActor {
    pub(crate) fn new(
        env: Arc<Env>,
        shard: ShardId,
        incarnation: Incarnation,
        committer: Mailbox<OffsetCommitter>,
        expected: Vec<(PartitionKey, Offset)>,
        restart: Span,
        exit: Exit,
    ) -> Self {
        let operator = env.pipeline.query.operator(shard);
        Self {
            env,
            shard,
            incarnation,
            exit,
            committer,
            operator,
            base: None,
            vector: Vector::default(),
            registered: HashMap::new(),
            expected,
            closed: None,
            asking: Vec::new(),
            dead_letters: Vec::new(),
            dead_letter_bytes: 0,
            held: Vec::new(),
            rows_changed: false,
            moved: false,
            checkpointing: false,
            interval_over: false,
            last_checkpoint: Instant::now(),
            flushing: Vec::new(),
            traced: Vec::new(),
            restart,
        }
    }

    fn fail(&self, ctx: &mut Context<Self>, cause: Cause) {
        self.exit.leave(cause);
        ctx.terminate();
    }

    /// Takes over what a claim and the segments say.
    fn loaded(&mut self, pointer: &Pointer, state: Vec<StateDelta>) -> Result<(), StageError> {
        self.operator.restore(state)?;
        self.base = Some(pointer.base());
        self.vector = pointer.content.vector.clone();
        if flaw!(WatermarkNotRestored) {
            self.vector.0.values_mut().for_each(|position| position.watermark = None);
        }
        // Whether a partition is still quiet shows only when its actor has looked: until then it holds back.
        self.vector.0.values_mut().for_each(Position::wake);
        self.expect();
        let closed = if flaw!(ClosedForgotten) { None } else { pointer.content.closed };
        self.closed = closed.max(self.vector.watermark());
        self.show();
        for (register, answer) in std::mem::take(&mut self.asking) {
            let registered = self.register(&register);
            // A partition actor that died meanwhile asks again in its next life.
            let _ = answer.send(registered);
        }
        Ok(())
    }

    fn register(&mut self, register: &Register) -> Registered {
        let valid = self.registered.entry(register.partition).or_default();
        *valid = (*valid).max(register.incarnation);
        let start = || Position::start(register.start);
        let position = self.vector.0.entry(register.partition).or_insert_with(start);
        position.wake();
        Registered { shard: self.incarnation, position: *position, closed: self.closed }
    }

    /// Gives every partition that exists a position. One of which nothing was read yet holds back the shard's watermark.
    fn expect(&mut self) {
        if flaw!(PartitionsNotExpected) {
            return;
        }
        for (partition, start) in &self.expected {
            self.vector.0.entry(*partition).or_insert_with(|| Position::start(*start));
        }
    }

    fn take(&mut self, batch: LaneBatch, ctx: &mut Context<Self>) -> Result<LaneReply, StageError> {
        let current = self.registered.get(&batch.partition) == Some(&batch.incarnation);
        let current = current && batch.shard_incarnation == self.incarnation;
        if !current && !flaw!(NoVectorCheck) {
            return Ok(LaneReply::Ignored);
        }
        let Some(position) = self.vector.0.get_mut(&batch.partition) else { return Ok(LaneReply::Ignored) };
        match lane::decide(position.next, batch.range) {
            Decision::Accept => {}
            Decision::Replay => {
                if !batch.range.is_empty() {
                    self.env.board.shard(self.shard, |status| status.replays += 1);
                }
                return Ok(LaneReply::Done { closed: self.closed });
            }
            Decision::Gap => return Ok(LaneReply::Gap { expected: position.next }),
        }
        if !batch.span.is_disabled() && self.traced.len() < LINKED {
            self.traced.push(Span::current());
        }
        let stood = |at: &Position| (at.next, at.watermark, at.idle, at.raised, at.unsettled);
        let before = stood(position);
        invariant!(batch.range.until >= position.next, "a vector never goes back");
        position.next = batch.range.until;
        position.watermark = batch.watermark.max(position.watermark);
        (position.idle, position.raised) = (batch.idle, batch.raised);
        position.unsettled = batch.unsettled;
        self.moved |= before != stood(position);
        position.counts.add(&batch.rows.counts);
        self.rows_changed |= !batch.rows.rows.is_empty() || !batch.rows.dead_letters.is_empty();
        let letters = !batch.rows.dead_letters.is_empty();
        self.dead_letter_bytes += batch.rows.dead_letters.iter().map(DeadLetter::bytes).sum::<usize>();
        self.dead_letters.extend(batch.rows.dead_letters);
        let watermark = self.vector.watermark().max(self.closed);
        let risen = watermark > std::mem::replace(&mut self.closed, watermark);
        self.rows_changed |= risen;
        if risen || !batch.rows.rows.is_empty() {
            let mut rows = batch.rows.rows;
            let count: usize = rows.iter().map(|rows| rows.num_rows()).sum();
            if flaw!(CheckpointInBatch) && count > 1 && self.due() {
                let half = rows[0].num_rows() / 2;
                self.operator.apply(vec![rows[0].slice(0, half)], watermark)?;
                rows[0] = rows[0].slice(half, rows[0].num_rows() - half);
                self.checkpoint(ctx);
            }
            self.operator.apply(rows, watermark)?;
            if count > 0 {
                points::reach(Point::Aggregated);
            }
            self.env.board.shard(self.shard, |status| status.rows += count as u64);
        }
        if letters || self.operator.pending_bytes() > 0 || self.many_changes() {
            self.held.extend(batch.credit);
        }
        Ok(LaneReply::Done { closed: self.closed })
    }

    /// Whether the changes of the state take so much memory that the sources have to wait for a checkpoint.
    fn many_changes(&self) -> bool {
        let changed = self.operator.changed_bytes();
        let bound = self.env.pipeline.tuning.pending_bytes.saturating_mul(CHANGES);
        let state = self.operator.bytes().saturating_sub(changed);
        changed > bound && changed > state + state / 2
    }

    /// Whether a checkpoint is due now.
    fn due(&self) -> bool {
        if self.base.is_none() || self.checkpointing {
            return false;
        }
        let since = self.last_checkpoint.elapsed();
        let tuning = &self.env.pipeline.tuning;
        (self.rows_changed && self.interval_over)
            // Also when nothing has changed: so a process that lost its shards learns of it.
            || (since >= tuning.quiet_interval && (self.moved || !flaw!(QuietShardsSilent)))
            || self.operator.pending_bytes() + self.dead_letter_bytes >= tuning.pending_bytes
            // The sources would soon stand still until the interval is over.
            || (!self.held.is_empty() && self.env.credits.share_in_flight() >= EARLY)
            || (!self.flushing.is_empty() && (self.rows_changed || self.moved))
    }

    /// Gathers what has changed and hands it to the committer; goes on at once.
    fn checkpoint(&mut self, ctx: &mut Context<Self>) {
        if !self.checkpointing && self.base.is_some() && !self.rows_changed && !self.moved {
            self.flushed(true);
        }
        if !self.due() {
            return;
        }
        let Some(base) = self.base else { return };
        let span = tracing::info_span!(
            parent: None,
            "checkpoint",
            strandline.shard = i64::from(self.shard),
            strandline.epoch = base.epoch.next().0,
            strandline.batches = self.traced.len() as i64,
        );
        self.traced.drain(..).for_each(|batch| spans::link(&span, &batch));
        self.env.board.shard(self.shard, |status| status.busy = Some(Instant::now()));
        let changed = part_of!(span, "snapshot").in_scope(|| self.operator.checkpoint());
        self.env.board.shard(self.shard, |status| status.busy = None);
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => return self.fail(ctx, error.into()),
        };
        let attempt = Attempt::fresh();
        let next = Base { epoch: base.epoch.next(), attempt };
        let mut vector = self.vector.clone();
        let error = i64::from(flaw!(OffsetTooHigh)) - i64::from(flaw!(OffsetTooLow));
        if error != 0 {
            vector.0.values_mut().filter(|position| position.next.0 > 0).for_each(|position| position.next.0 += error);
        }
        let checkpoint = Checkpoint {
            shard: self.shard,
            incarnation: self.incarnation,
            base,
            attempt,
            vector,
            closed: self.closed,
            state: changed.state,
            output: changed.output,
            dead_letters: std::mem::take(&mut self.dead_letters),
            tables: self.operator.tables(),
            span,
        };
        self.dead_letter_bytes = 0;
        let held = std::mem::take(&mut self.held);
        (self.rows_changed, self.moved, self.interval_over, self.checkpointing) = (false, false, false, true);
        self.last_checkpoint = Instant::now();
        self.show();
        let committed = self.committer.send(checkpoint).into_actor(self).map(move |answer, actor, ctx| {
            drop(held);
            actor.checkpointing = false;
            match answer {
                Ok(Ok(())) => {
                    actor.base = Some(next);
                    actor.checkpoint(ctx);
                }
                Ok(Err(Cause::Failed(..))) if flaw!(LaterCheckpointKept) => actor.checkpoint(ctx),
                Ok(Err(cause)) => actor.fail(ctx, cause),
                // The committer died. The supervisor starts every shard again, this one too.
                Err(_) => {
                    actor.base = None;
                    actor.flushed(false);
                }
            }
        });
        ctx.spawn(committed);
    }

    fn flushed(&mut self, done: bool) {
        for flush in std::mem::take(&mut self.flushing) {
            let _ = flush.send(done);
        }
    }

    fn show(&self) {
        let mut counts = Counts::default();
        for position in self.vector.0.values() {
            counts.add(&position.counts);
        }
        let (keys, bytes, watermark) = (self.operator.keys(), self.operator.bytes(), self.vector.watermark());
        self.env.board.shard(self.shard, |status| {
            status.keys = keys;
            status.bytes = bytes;
            status.watermark = watermark;
            status.counts = counts;
        });
    }
}

impl Actor for AggregationActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let restart = std::mem::replace(&mut self.restart, Span::none());
        let span = tracing::info_span!(parent: restart.id(), "load", strandline.shard = i64::from(self.shard));
        let (env, committer) = (Arc::clone(&self.env), self.committer.clone());
        let loading = load(env, committer, self.operator.tables(), self.shard, self.incarnation);
        ctx.spawn(loading.instrument(span).into_actor(self).map(move |loaded, actor, ctx| {
            spans::lasted(&restart);
            let done = loaded.and_then(|(pointer, state)| Ok(actor.loaded(&pointer, state)?));
            match done {
                Ok(()) => {
                    let life = crate::board::Life::Running;
                    actor.env.board.actor(crate::board::ActorId::Shard(actor.shard), |status| status.life = life);
                }
                Err(cause) => actor.fail(ctx, cause),
            }
        }));
        let tuning = &self.env.pipeline.tuning;
        ctx.run_interval(tuning.checkpoint_interval, |actor, ctx| {
            actor.interval_over = true;
            actor.checkpoint(ctx);
        });
    }
}

impl From<StageError> for Cause {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Failed(what) => Self::Failed(Origin::Query, what),
            StageError::Halt(what) | StageError::Refused { why: what, .. } => Self::Halt(what),
        }
    }
}

counted!(AggregationActor: Register, Expect, Awake, LaneBatch, Flush, Crash, #[cfg(feature = "simulation")] IdleBeside);

impl Handler<Register> for AggregationActor {
    type Result = ResponseFuture<Option<Registered>>;

    fn handle(&mut self, message: Register, _: &mut Self::Context) -> Self::Result {
        if self.base.is_some() {
            let registered = self.register(&message);
            return Box::pin(async move { Some(registered) });
        }
        let (answer, answered) = oneshot::channel();
        self.asking.push((message, answer));
        Box::pin(async move { answered.await.ok() })
    }
}

impl Handler<Expect> for AggregationActor {
    type Result = ();

    fn handle(&mut self, Expect(partitions): Expect, _: &mut Self::Context) {
        self.expected = partitions;
        if self.base.is_some() {
            self.expect();
        }
    }
}

impl Handler<Awake> for AggregationActor {
    type Result = ();

    fn handle(&mut self, Awake { partition, incarnation }: Awake, _: &mut Self::Context) {
        let valid = self.registered.entry(partition).or_default();
        *valid = (*valid).max(incarnation + 1);
        if let Some(position) = self.vector.0.get_mut(&partition) {
            position.wake();
        }
    }
}

#[cfg(feature = "simulation")]
impl Handler<IdleBeside> for AggregationActor {
    type Result = ();

    fn handle(&mut self, IdleBeside(partition): IdleBeside, _: &mut Self::Context) {
        if let Some(position) = self.vector.0.get_mut(&partition) {
            position.idle = true;
        }
    }
}

impl Handler<LaneBatch> for AggregationActor {
    type Result = LaneReply;

    fn handle(&mut self, message: LaneBatch, ctx: &mut Self::Context) -> Self::Result {
        let (batch, lane) = (message.batch.clone(), message.span.clone());
        self.env.board.shard(self.shard, |status| status.busy = Some(Instant::now()));
        let taken = lane.in_scope(|| part_of!(lane, "merge").in_scope(|| self.take(message, ctx)));
        spans::lasted(&batch);
        self.env.board.shard(self.shard, |status| status.busy = None);
        match taken {
            Ok(reply) => {
                if self.due() {
                    self.checkpoint(ctx);
                }
                reply
            }
            Err(StageError::Failed(_)) if flaw!(HalfRangeKept) => LaneReply::Done { closed: self.closed },
            Err(error) => {
                // The operator may have taken half of the range: only a reload is safe.
                self.fail(ctx, error.into());
                LaneReply::Ignored
            }
        }
    }
}

impl Handler<Flush> for AggregationActor {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, _: Flush, ctx: &mut Self::Context) -> Self::Result {
        let (done, waiting) = oneshot::channel();
        if self.base.is_none() {
            return Box::pin(async { false });
        }
        self.flushing.push(done);
        self.checkpoint(ctx);
        Box::pin(async move { waiting.await.unwrap_or(false) })
    }
}

impl Handler<Crash> for AggregationActor {
    type Result = ();

    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("aggregation actor {} was told to panic", self.shard);
    }
}

/// Claims the shard and reads its state.
async fn load(
    env: Arc<Env>,
    committer: Mailbox<OffsetCommitter>,
    tables: Vec<StateTable>,
    shard: ShardId,
    incarnation: Incarnation,
) -> Result<(Pointer, Vec<StateDelta>), Cause> {
    let claim = Claim { shard, incarnation, span: spans::part(|| tracing::info_span!("claim")) };
    let Ok(claimed) = committer.send(claim).await else {
        // The committer died: every shard is started again.
        return std::future::pending().await;
    };
    let mut pointer = *claimed?;
    loop {
        let why = match read_state(&env, &tables, &pointer).await {
            #[cfg(feature = "simulation")]
            Ok(mut state) if flaw!(DroppedAttemptsRead) => {
                let dropped = crate::flaws::dropped_attempts(&env, &pointer, &state).await;
                state.extend(dropped);
                return Ok((pointer, state));
            }
            Ok(state) => return Ok((pointer, state)),
            Err(Unreadable::Other(cause)) => return Err(cause),
            Err(Unreadable::Corrupt(why)) => why,
        };
        let Ok(earlier) = committer.send(FallBack { shard, incarnation, base: pointer.base(), why }).await else {
            return std::future::pending().await;
        };
        pointer = *earlier?;
    }
}

/// The state that a pointer lists, oldest first, without what is gone by itself.
async fn read_state(env: &Env, tables: &[StateTable], pointer: &Pointer) -> Result<Vec<StateDelta>, Unreadable> {
    let (base, closed) = (pointer.base(), pointer.content.closed);
    let reads = pointer.content.state.iter().map(|reference| async move {
        let SegmentKind::State { table } = reference.kind else {
            return Err(Unreadable::Corrupt(format!("the pointer of shard {} lists output as state", pointer.shard)));
        };
        let batches = read_segment(env, base, reference).await?;
        points::reach(Point::Restore);
        let expires = tables.get(table).is_some_and(|table| table.expires);
        let living = |rows: RecordBatch| if expires { compaction::living(&rows, closed) } else { Ok(rows) };
        let batches = batches.into_iter().map(|rows| living(rows).map(|rows| StateDelta { table, rows, whole: false }));
        batches.collect::<Result<Vec<_>, _>>().map_err(|error| {
            Unreadable::Other(Cause::Halt(format!(
                "the state of shard {} does not say how long its rows last, so it belongs to another query: {error}",
                pointer.shard
            )))
        })
    });
    let state: Vec<Vec<StateDelta>> = stream::iter(reads).buffered(LOADING).try_collect().await?;
    Ok(state.into_iter().flatten().collect())
}
