//! The partition actor: owner of one Kafka partition.
//!
//! It asks every shard where it stands, reads from the lowest answer, and sends each batch's range down every lane, cut to
//! what that shard still needs. Ranges of a lane are contiguous, so that a shard can tell a replay and a gap from what
//! comes next. One batch of a lane is unanswered at a time: while the shards work on it, the next one is prepared. Before a
//! record that must not be passed the batch is cut: what precedes it is processed, and the partition halts at its offset.
//!
//! While a partition is idle it holds back no watermark, so shards may close windows of which it has rows to come. Before it
//! goes on, or stands still for longer, it asks each of them how far it has: from then on it holds back again, and its rows
//! are judged by the answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::dev::Request;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use futures::future::join_all;
use tokio::time::{Duration, Instant};
use tracing::{Instrument, Span};

use crate::aggregation::AggregationActor;
use crate::board::{Activity, ActorId, Life, PartitionStatus};
use crate::child::{Cause, Exit, Origin, panic_text};
use crate::credit::Credit;
use crate::env::Env;
use crate::lane;
use crate::mailbox::{Counted, Mailbox, counted};
use crate::message::{Crash, Incarnation, LaneBatch, LaneReply, Register};
use crate::pause::Brake;
use crate::points::{self, Point};
use crate::ports::{
    LaneRows, PartitionReader, SourceBatch, SourceError, SourceStage, StageError, StageInput, StageOutput, Suspects,
};
use crate::position::{Offset, Position, Range, SourcePartition, Watermark};
use crate::spans::{self, Sampling, part_of};
use crate::suspicion::{self, Suspicion};

/// How often an idle lane asks whether the other side still agrees.
const PROBE: Duration = Duration::from_secs(1);

pub(crate) struct PartitionActor {
    life: Option<PartitionLife>,
    exit: Exit,
}

/// What one life of the actor works with.
pub(crate) struct PartitionLife {
    pub(crate) env: Arc<Env>,
    pub(crate) partition: SourcePartition,
    pub(crate) incarnation: Incarnation,
    /// The partition's stored start.
    pub(crate) start: Offset,
    /// Where the actor last panicked, and how often in a row there.
    pub(crate) panics: (Offset, u32),
    /// A life did not come back from a batch, and that is not written down yet.
    pub(crate) hung: Arc<AtomicBool>,
    /// One for each shard; none where the lane is switched off.
    pub(crate) lanes: Vec<Option<Mailbox<AggregationActor>>>,
    /// The restart that this life begins with, if it is one.
    pub(crate) restart: Span,
    /// Pulled when the partition is to stand still.
    pub(crate) brake: Brake,
}

impl PartitionActor {
    pub(crate) fn new(life: PartitionLife, exit: Exit) -> Self {
        Self { life: Some(life), exit }
    }
}

impl Actor for PartitionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let Some(life) = self.life.take() else { return };
        ctx.spawn(life.run().into_actor(self).map(|cause, actor, ctx| {
            actor.exit.leave(cause);
            ctx.terminate();
        }));
    }
}

counted!(PartitionActor: Crash);

impl Handler<Crash> for PartitionActor {
    type Result = ();

    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("the partition actor was told to panic");
    }
}

impl From<SourceError> for Cause {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Failed(what) => Self::Failed(Origin::Source, what),
            SourceError::Halt(what) => Self::Halt(what),
        }
    }
}

/// What was sent to shards, by their numbers, and not answered yet.
type Unanswered = Vec<(usize, Sent)>;
type Sent = Request<AggregationActor, Counted<LaneBatch>>;

/// What the stage is given for one batch.
struct Given<'a> {
    batch: &'a SourceBatch,
    watermark: Watermark,
    quiet: Option<Duration>,
    cuts: &'a [Option<Offset>],
    closed: &'a [Watermark],
    noted: &'a [(Offset, Watermark)],
}

/// The way to one shard.
struct Lane {
    /// The number of the shard.
    number: usize,
    shard: Mailbox<AggregationActor>,
    incarnation: Incarnation,
    /// The next offset that goes down this lane.
    next: Offset,
    /// From where on the shard counts offsets, and how many it has counted up to there.
    counted: (Offset, u64),
    /// Up to where the shard had closed its windows when it last answered.
    closed: Watermark,
    /// The shard has passed over what was lost, or is about to, and how much that is nobody has counted yet.
    unsettled: bool,
}

impl Lane {
    /// What the shard has counted, these included.
    fn counted(&self, rows: &LaneRows) -> lane::Counted {
        let (from, total) = self.counted;
        let total = total + rows.counts.total();
        lane::Counted { next: self.next, from, total, unsettled: self.unsettled }
    }
}

/// Where the shards stand when a life begins.
struct Registration {
    lanes: Vec<Option<Lane>>,
    /// The lowest position, and the watermark there.
    from: Offset,
    watermark: Watermark,
    /// The positions of shards that are ahead, with their watermarks.
    noted: Vec<(Offset, Watermark)>,
}

/// What a batch says beside its rows.
#[derive(Clone, Copy, Default)]
struct Said {
    watermark: Watermark,
    idle: bool,
    raised: Watermark,
}

impl PartitionLife {
    async fn run(mut self) -> Cause {
        let mut unanswered = Unanswered::new();
        let restart = std::mem::replace(&mut self.restart, Span::none());
        match self.work(&mut unanswered, restart).await {
            Ok(never) => match never {},
            // A shard passes over what nobody waits for any more. No next life would send it again, so it would be missing
            // for as long as the partition is halted or paused.
            Err(cause @ (Cause::Halt(_) | Cause::Paused)) => {
                self.answered(&mut unanswered, &mut []).await.err().unwrap_or(cause)
            }
            Err(cause) => cause,
        }
    }

    fn shows(&self, change: impl FnOnce(&mut PartitionStatus)) {
        self.env.board.life(self.partition.key, self.incarnation, change);
    }

    fn activity(&self, activity: Activity) {
        self.shows(|status| status.turn(activity));
    }

    /// Asks every shard for its position; a shard answers when it is loaded.
    async fn register(&self) -> Registration {
        self.activity(Activity::Registering);
        let answers = join_all(self.lanes.iter().map(|shard| async move {
            let shard = shard.as_ref()?;
            let (partition, incarnation, start) = (self.partition.key, self.incarnation, self.start);
            match shard.send(Register { partition, incarnation, start }).await {
                Ok(Some(answer)) => Some((shard.clone(), answer)),
                _ => superseded().await,
            }
        }))
        .await;
        let positions = || answers.iter().flatten().map(|(_, answer)| answer.position);
        let lowest = if flaw!(ReadFromHighest) {
            positions().max_by_key(|position| position.next)
        } else {
            positions().min_by_key(|position| (position.next, std::cmp::Reverse(position.watermark)))
        };
        let (from, watermark) = lowest.map_or((self.start, None), |position| (position.next, position.watermark));
        let ahead = positions().filter(|position| position.next > from);
        let mut noted: Vec<_> = ahead.map(|position| (position.next, position.watermark)).collect();
        noted.sort_unstable();
        let lanes = answers.into_iter().enumerate().map(|(number, answer)| {
            let (shard, answer) = answer?;
            let Position { next, counts, counted_from, unsettled, .. } = answer.position;
            let unsettled = unsettled && !flaw!(LostForgotten);
            let (incarnation, counted) = (answer.shard, (counted_from.unwrap_or(self.start), counts.total()));
            // While this one reads again what others lack, the shard may close what its watermark of this partition allows.
            let closed = answer.closed.max(answer.position.watermark);
            Some(Lane { number, shard, incarnation, next, counted, closed, unsettled })
        });
        Registration { lanes: lanes.collect(), from, watermark, noted }
    }

    /// The span of a batch that was fetched within a time.
    fn batch_span(&self, batch: &SourceBatch, fetched_in: Duration) -> Span {
        let began = i64::try_from(fetched_in.as_micros()).unwrap_or(i64::MAX);
        let (rows, bytes) = (batch.records.num_rows() as i64, batch.bytes as i64);
        let span = tracing::info_span!(
            parent: None,
            "batch",
            otel.kind = "consumer",
            messaging.system = "kafka",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = %self.partition.topic,
            messaging.destination.partition.id = %self.partition.key.partition,
            messaging.batch.message_count = rows,
            strandline.offset.from = batch.range.from.0,
            strandline.offset.until = batch.range.until.0,
            strandline.bytes = bytes,
            began_before_us = began,
        );
        drop(part_of!(
            span,
            "fetch",
            otel.kind = "client",
            messaging.system = "kafka",
            messaging.operation.name = "poll",
            messaging.operation.type = "receive",
            messaging.batch.message_count = rows,
            strandline.bytes = bytes,
            began_before_us = began,
        ));
        if !span.is_disabled() {
            self.env.pipeline.source.link(&span, &batch.producers);
        }
        span
    }

    async fn work(&self, unanswered: &mut Unanswered, restart: Span) -> Result<std::convert::Infallible, Cause> {
        let (env, key) = (&self.env, self.partition.key);
        let registering = self.register().instrument(part_of!(restart, "register"));
        let Registration { mut lanes, from: mut position, mut watermark, mut noted } = registering.await;
        let begun_at = position;
        let passed = lanes.iter().flatten().map(|lane| lane.next).max().unwrap_or(begun_at);
        let mut suspicion = self.suspicion(begun_at, passed).await?;
        let mut reader = env.pipeline.source.open(&self.partition, position).await?;
        let mut stage = env.pipeline.query.source_stage(&self.partition);
        // What was read and is not looked at yet.
        let mut rest: Option<SourceBatch> = None;
        spans::lasted(&restart);
        drop(restart);
        let mut sampling = Sampling::new(env.pipeline.tuning.trace_interval);
        let mut last_probe = Instant::now();
        // Since when the shards have everything up to the end of the log.
        let mut quiet: Option<Instant> = None;
        // Whether the shards were told that nothing follows for now, and not been asked since.
        let mut unasked = false;
        let mut reading = Instant::now();
        self.shows(|status| {
            status.actor.life = Life::Running;
            status.stands(position);
            status.watermark = watermark;
            status.progress = Instant::now();
        });

        loop {
            let read = if self.brake.pulled() {
                Err(Cause::Paused)
            } else {
                self.activity(Activity::Reading);
                reading = Instant::now();
                self.read(reader.as_mut(), &mut rest, position, &suspicion).await
            };
            if matches!(read, Err(Cause::Halt(_) | Cause::Paused)) && unasked {
                // What comes while it stands still is to find its windows open.
                self.wake(unanswered, &mut lanes, position, watermark).await?;
            }
            let batch = read?;
            let traced = !batch.range.is_empty() && sampling.due();
            let span = if traced { self.batch_span(&batch, reading.elapsed()) } else { Span::none() };
            if batch.lost {
                let what = format!("the records of {} were deleted before they were read: they are lost", batch.range);
                env.board.event(ActorId::Partition(key), what);
            }
            if batch.range.is_empty() {
                self.answered(unanswered, &mut lanes).await?;
                // Where the end is not known no broker answers: then it is no fault of ours that nothing comes.
                if batch.waits || batch.end.is_none_or(|end| end <= position) {
                    self.shows(|status| status.progress = Instant::now());
                }
                let at_end = batch.end.filter(|end| *end <= position && !batch.open_transaction);
                suspicion.settle(self, at_end.map(|_| position)).await?;
                if at_end.is_some() {
                    quiet.get_or_insert_with(Instant::now);
                } else {
                    quiet = None;
                }
                if last_probe.elapsed() < PROBE {
                    continue;
                }
            } else {
                quiet = None;
                suspicion.settle(self, None).await?;
                if std::mem::take(&mut unasked) && !flaw!(WokenUnasked) {
                    self.wake(unanswered, &mut lanes, position, watermark).await?;
                }
            }
            #[cfg(feature = "simulation")]
            if flaw!(IdleBesideTheLane) && batch.end == Some(batch.range.until) {
                for lane in lanes.iter().flatten() {
                    lane.shard.do_send(crate::message::IdleBeside(key));
                }
            }
            last_probe = Instant::now();

            let mut credit = if batch.range.is_empty() {
                None
            } else {
                self.activity(Activity::WaitingForCredit);
                let acquiring = env.credits.acquire(batch.records.num_rows(), batch.bytes);
                Some(acquiring.instrument(part_of!(span, "credit")).await)
            };

            // Offsets without records are no suspects: with them a single record would never be left.
            let accused = match batch.records.num_rows() {
                0 => None,
                rows => suspicion.trying(self, Suspects::new(part(&batch, 0, rows)?.range, rows)).await?,
            };
            self.activity(Activity::Processing);
            let needed = |lane: &Lane| if flaw!(ReplayNotTrimmed) { batch.range.from } else { lane.next };
            let cuts: Vec<Option<Offset>> =
                lanes.iter().map(|lane| lane.as_ref().map(|lane| needed(lane).max(batch.range.from))).collect();
            let closed: Vec<Watermark> = lanes.iter().map(|lane| lane.as_ref().and_then(|lane| lane.closed)).collect();
            let quiet = quiet.map(|since| since.elapsed());
            let process = |stage: &mut Box<dyn SourceStage>, batch: &SourceBatch| {
                let given = Given { batch, watermark, quiet, cuts: &cuts, closed: &closed, noted: &noted };
                let span = part_of!(span, "source stage");
                span.in_scope(|| self.process(stage, given, &suspicion))
                    .inspect_err(|unprocessed| unprocessed.note(&span))
            };
            let (batch, output, refused) = match process(&mut stage, &batch) {
                Ok(output) => (batch, output, None),
                // The records before the one that is refused are no worse for it.
                Err(Unprocessed::Refused { at, why }) => {
                    let before = before(&batch, at)?;
                    let output = process(&mut stage, &before).map_err(Cause::from)?;
                    (before, output, Some(Cause::Halt(why)))
                }
                Err(Unprocessed::Ended(cause)) => return Err(cause),
            };
            let mut output = output;
            if batch.lost {
                let passes = lanes.iter_mut().flatten().filter(|lane| lane.next < batch.range.until);
                passes.for_each(|lane| lane.unsettled = true);
            }
            if lanes.iter().flatten().any(|lane| lane.unsettled) {
                let counted = |(lane, rows): (&Option<Lane>, &LaneRows)| Some(lane.as_ref()?.counted(rows));
                let counted: Vec<_> = lanes.iter().zip(&output.lanes).map(counted).collect();
                if let Some((lane, offsets)) = lane::lost(batch.range, &counted) {
                    output.lanes[lane].counts.lost += offsets;
                    lanes.iter_mut().flatten().for_each(|lane| lane.unsettled = false);
                }
            }
            let idle = output.idle && batch.range.is_empty();
            unasked |= idle;
            let raised = output.raised.filter(|_| idle);
            let said = Said { watermark: output.watermark, idle, raised };

            self.activity(Activity::WaitingForLanes);
            self.answered(unanswered, &mut lanes).await?;

            if let Some(credit) = &mut credit {
                let carried = |size: fn(&LaneRows) -> usize| output.lanes.iter().map(size).sum();
                credit.shrink(carried(LaneRows::num_rows), carried(LaneRows::bytes));
            }
            let credit = credit.map(Arc::new);
            for (number, (lane, rows)) in lanes.iter_mut().zip(output.lanes).enumerate() {
                let Some(lane) = lane else { continue };
                let sent = self.send(lane, batch.range, said, rows, credit.clone(), &span);
                unanswered.extend(sent.map(|sent| (number, sent)));
            }
            (position, watermark) = (batch.range.until, output.watermark);
            noted.retain(|(next, _)| *next > position);
            if suspicion.narrow {
                self.answered(unanswered, &mut lanes).await?;
                suspicion.survived(self).await?;
            }
            drop(accused);
            suspicion.passed(batch.range);
            self.shows(|status| {
                status.stands(position);
                status.timestamp = timestamps(&batch.records).next_back().or(status.timestamp);
                status.watermark = watermark;
                status.rows += batch.records.num_rows() as u64;
                status.bytes += batch.bytes as u64;
                status.batches += u64::from(!batch.range.is_empty());
                if !batch.range.is_empty() {
                    status.progress = Instant::now();
                }
            });
            if let Some(halt) = refused {
                return Err(halt);
            }
        }
    }

    /// Tells the shards that it is idle no more, and asks how far each has closed its windows.
    async fn wake(
        &self,
        unanswered: &mut Unanswered,
        lanes: &mut [Option<Lane>],
        position: Offset,
        watermark: Watermark,
    ) -> Result<(), Cause> {
        self.answered(unanswered, lanes).await?;
        for (number, lane) in lanes.iter_mut().enumerate() {
            let (woken, rows) = (Said { watermark, ..Said::default() }, LaneRows::default());
            let sent = lane
                .as_mut()
                .and_then(|lane| self.send(lane, Range::probe(position), woken, rows, None, &Span::none()));
            unanswered.extend(sent.map(|sent| (number, sent)));
        }
        self.answered(unanswered, lanes).await
    }

    /// Sends what a lane still needs of a range.
    fn send(
        &self,
        lane: &mut Lane,
        batch: Range,
        said: Said,
        rows: LaneRows,
        credit: Option<Arc<Credit>>,
        span: &Span,
    ) -> Option<Sent> {
        invariant!(batch.from <= lane.next, "{} leaves a gap in a lane at {}", batch, lane.next);
        let range = lane::cut(batch, lane.next)?;
        lane.next = range.until;
        lane.counted.1 += rows.counts.total();
        let of_lane = part_of!(
            *span,
            "lane",
            strandline.shard = lane.number as i64,
            strandline.offset.from = range.from.0,
            strandline.offset.until = range.until.0,
            strandline.rows = rows.rows.iter().map(RecordBatch::num_rows).sum::<usize>() as i64,
        );
        let Said { watermark, idle, raised } = said;
        Some(lane.shard.send(LaneBatch {
            partition: self.partition.key,
            incarnation: self.incarnation,
            shard_incarnation: lane.incarnation,
            range,
            watermark,
            idle,
            raised,
            unsettled: lane.unsettled,
            rows,
            credit,
            batch: span.clone(),
            span: of_lane,
        }))
    }

    async fn read(
        &self,
        reader: &mut dyn PartitionReader,
        rest: &mut Option<SourceBatch>,
        position: Offset,
        suspicion: &Suspicion,
    ) -> Result<SourceBatch, Cause> {
        let (mut limit, suspects) = (self.env.batch_limit(), suspicion.limit(position));
        if let Some((rows, _)) = suspects {
            limit.rows = limit.rows.min(rows);
        }
        let mut batch = match rest.take() {
            Some(rest) => rest,
            None => reader.next(limit).await?,
        };
        if !batch.range.is_empty() {
            points::reach(Point::Fetched);
        }
        if flaw!(WrongRangeSentOn) {
            let range = Range::new(position, batch.range.until.max(position));
            return Ok(SourceBatch { range, ..batch });
        }
        if batch.range.from != position || batch.range.until < position {
            return Err(Cause::Failed(
                Origin::Source,
                format!("asked for records from {position}, but got {}", batch.range),
            ));
        }
        if let Some((rows, until)) = suspects {
            (batch, *rest) = cut(batch, rows, until)?;
        }
        self.shows(|status| {
            if batch.end.is_some() || batch.range.is_empty() {
                status.learned(batch.end);
            }
            status.timestamp = timestamps(&batch.records).next().or(status.timestamp);
        });
        Ok(batch)
    }

    /// Waits until the shards have taken what was sent, and notes up to where they have closed their windows.
    async fn answered(&self, unanswered: &mut Unanswered, lanes: &mut [Option<Lane>]) -> Result<(), Cause> {
        for (shard, request) in unanswered.drain(..) {
            match request.await {
                Ok(LaneReply::Done { closed }) => {
                    lanes.get_mut(shard).into_iter().flatten().for_each(|lane| lane.closed = closed);
                }
                Ok(LaneReply::Gap { expected }) => {
                    return Err(Cause::Failed(
                        Origin::Lane,
                        format!("shard {shard} expects offset {expected}: there is a gap"),
                    ));
                }
                Ok(LaneReply::Ignored) | Err(_) => superseded().await,
            }
        }
        Ok(())
    }

    fn process(
        &self,
        stage: &mut Box<dyn SourceStage>,
        Given { batch, watermark, quiet, cuts, closed, noted }: Given<'_>,
        suspicion: &Suspicion,
    ) -> Result<StageOutput, Unprocessed> {
        let now = self.env.pipeline.clock.wall();
        let run = |stage: &mut dyn SourceStage, batch: &SourceBatch, poison: &[Offset]| {
            let partition = &self.partition;
            stage.run(StageInput { partition, batch, watermark, quiet, cuts, closed, noted, now, poison })
        };
        if !suspicion.isolate() {
            return Ok(run(stage.as_mut(), batch, suspicion.poison())?);
        }
        // It crashed here again and again: find the records that do it, and go on without them.
        let fresh = || self.env.pipeline.query.source_stage(&self.partition);
        let mut poison = suspicion.poison().to_vec();
        let survives = |batch: &SourceBatch, poison: &[Offset]| {
            catch_unwind(AssertUnwindSafe(|| run(fresh().as_mut(), batch, poison).map(|_| ()))).is_ok()
        };
        if !survives(batch, &poison) {
            let mut suspects = vec![(0, batch.records.num_rows())];
            while let Some((start, length)) = suspects.pop() {
                let part = part(batch, start, length)?;
                if length == 0 || survives(&part, &poison) {
                    continue;
                }
                if length == 1 {
                    // Only what panics alone, and every time, is poison.
                    if (1..self.env.pipeline.tuning.poison_crashes).any(|_| survives(&part, &poison)) {
                        continue;
                    }
                    tracing::error!(partition = %self.partition, offset = %part.range.from, "this record panics");
                    poison.push(part.range.from);
                } else {
                    suspects.push((start, length / 2));
                    suspects.push((start + length / 2, length - length / 2));
                }
            }
        }
        match catch_unwind(AssertUnwindSafe(|| run(stage.as_mut(), batch, &poison))) {
            Ok(output) => Ok(output?),
            Err(panic) => Err(Cause::Panic(panic_text(panic.as_ref())).into()),
        }
    }

    /// Up to where all that this life sends to has committed.
    pub(crate) fn committed(&self) -> Option<Offset> {
        let numbers = self.lanes.iter().zip(0..).filter_map(|(lane, shard)| lane.as_ref().map(|_| shard));
        self.env.board.committed(&self.partition.key, self.start, numbers)
    }

    async fn suspicion(&self, position: Offset, passed: Offset) -> Result<Suspicion, Cause> {
        let (env, key) = (&self.env, self.partition.key);
        let store = &env.pipeline.store;
        let (hung, lived) = (self.hung.load(Ordering::SeqCst), env.trial.is_of(&key));
        let before = env.patiently("reading a crash note", || store.crash_note(&key)).await?;
        let note = suspicion::note(before, position, passed, env.generation, lived, hung);
        env.patiently("writing a crash note", || store.write_crash_note(&key, Some(&note))).await?;
        self.hung.store(false, Ordering::SeqCst);
        // Not before: whoever has the turn next takes the note back.
        if lived {
            env.trial.give_up();
        }
        env.trial.over(&key);
        Ok(Suspicion::new(note, self.panics, env.pipeline.tuning.poison_crashes))
    }
}

/// A life that was replaced, or whose shard died, waits here for its end: the supervisor starts it anew.
async fn superseded<T>() -> T {
    std::future::pending().await
}

/// Why a batch was not processed.
enum Unprocessed {
    /// This record is refused, and no other before it.
    Refused { at: Offset, why: String },
    /// The actor ends.
    Ended(Cause),
}

impl Unprocessed {
    /// Notes it in the span of the stage.
    fn note(&self, span: &Span) {
        match self {
            Self::Refused { why, .. } => spans::died(span, &Cause::Halt(why.clone())),
            Self::Ended(cause) => spans::died(span, cause),
        }
    }
}

impl From<StageError> for Unprocessed {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Refused { at, why } => Self::Refused { at, why },
            other => Self::Ended(other.into()),
        }
    }
}

impl From<Cause> for Unprocessed {
    fn from(cause: Cause) -> Self {
        Self::Ended(cause)
    }
}

impl From<Unprocessed> for Cause {
    fn from(unprocessed: Unprocessed) -> Self {
        match unprocessed {
            Unprocessed::Refused { why, .. } => Self::Halt(why),
            Unprocessed::Ended(cause) => cause,
        }
    }
}

/// The offsets of a batch's records.
fn offsets(records: &RecordBatch) -> Result<&[i64], Cause> {
    records
        .column_by_name(crate::ports::raw::OFFSET)
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .map(|column| column.values().as_ref())
        .ok_or_else(|| Cause::Failed(Origin::Source, "a source batch has no `_offset BIGINT` column".into()))
}

/// The Kafka timestamps of a batch's records, in milliseconds; none where they have none.
fn timestamps(records: &RecordBatch) -> impl DoubleEndedIterator<Item = i64> {
    let column = records.column_by_name(crate::ports::raw::TIMESTAMP);
    let column = column.and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>());
    column.into_iter().flatten().flatten()
}

/// What a batch holds before an offset.
fn before(batch: &SourceBatch, at: Offset) -> Result<SourceBatch, Cause> {
    let length = offsets(&batch.records)?.partition_point(|offset| *offset < at.0);
    let range = Range::new(batch.range.from, at.min(batch.range.until).max(batch.range.from));
    Ok(SourceBatch { range, records: batch.records.slice(0, length), ..*batch })
}

/// The first records of a batch, so many at most and none from an offset on, and what follows them.
fn cut(batch: SourceBatch, rows: usize, until: Option<Offset>) -> Result<(SourceBatch, Option<SourceBatch>), Cause> {
    let next = offsets(&batch.records)?.get(rows).copied().map(Offset);
    let at = next.into_iter().chain(until).min().filter(|at| batch.range.from < *at && *at < batch.range.until);
    let Some(at) = at else { return Ok((batch, None)) };
    let mut first = before(&batch, at)?;
    let length = first.records.num_rows();
    first.bytes = batch.bytes * length / batch.records.num_rows().max(1);
    let rest = SourceBatch {
        range: Range::new(at, batch.range.until),
        records: batch.records.slice(length, batch.records.num_rows() - length),
        bytes: batch.bytes - first.bytes,
        ..batch
    };
    Ok((first, Some(rest)))
}

/// Some records of a batch as a batch of their own.
fn part(batch: &SourceBatch, start: usize, length: usize) -> Result<SourceBatch, Cause> {
    let records = batch.records.slice(start, length);
    let offsets = offsets(&records)?;
    let range = match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => Range::new(Offset(*first), Offset(*last + 1)),
        _ => Range::probe(batch.range.from),
    };
    Ok(SourceBatch { range, records: records.clone(), ..*batch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_a_record_is_a_batch_of_its_own() {
        let offsets: arrow::array::ArrayRef = std::sync::Arc::new(arrow::array::Int64Array::from(vec![3, 4, 8]));
        let records = RecordBatch::try_from_iter([(crate::ports::raw::OFFSET, offsets)]).expect("a batch");
        let range = Range::new(Offset(1), Offset(12));
        let batch = SourceBatch {
            range,
            records,
            bytes: 30,
            end: None,
            open_transaction: false,
            waits: false,
            lost: false,
            producers: Default::default(),
        };
        for (at, rows) in [(3, 0), (4, 1), (8, 2)] {
            let before = before(&batch, Offset(at)).expect("a part");
            assert_eq!((before.range, before.records.num_rows()), (Range::new(Offset(1), Offset(at)), rows));
        }
        let none = before(&batch, Offset(1)).expect("a part");
        assert_eq!((none.range.is_empty(), none.records.num_rows()), (true, 0));
        for (rows, until, at) in [(2, None, 8), (1, None, 4), (2, Some(8), 8), (3, Some(6), 6), (1, Some(3), 3)] {
            let (first, rest) = cut(batch.clone(), rows, until.map(Offset)).expect("two parts");
            let rest = rest.expect("something follows");
            assert_eq!(
                (first.range, rest.range),
                (Range::new(Offset(1), Offset(at)), Range::new(Offset(at), Offset(12)))
            );
            assert_eq!(first.records.num_rows() + rest.records.num_rows(), 3);
            assert_eq!(first.bytes + rest.bytes, 30);
        }
        // What is lost is so on both sides.
        let (first, rest) = cut(SourceBatch { lost: true, ..batch.clone() }, 2, None).expect("two parts");
        assert!(first.lost && rest.expect("something follows").lost);
        for until in [None, Some(1), Some(12), Some(13)] {
            assert!(cut(batch.clone(), 3, until.map(Offset)).expect("all of it").1.is_none());
        }
    }
}
