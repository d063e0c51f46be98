//! The supervisor: starts the other actors, notices every death, and starts again what crashed, from its stored offsets.
//!
//! A partition that crashed is started again alone. When a shard crashed it is claimed and loaded anew, and all partition
//! actors start again, since only then the lanes agree with it; the other shards drop what they have already. When the
//! committer crashed every shard is loaded again. When a budget is spent, that partition or shard halts and the rest goes
//! on. A process whose generation is no longer the highest steps down as a whole.

mod discovery;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, ResponseFuture, WrapFuture};
use actix_rt::{Arbiter, ArbiterHandle};
use tokio::time::Instant;
use tracing::Span;

use crate::aggregation::AggregationActor;
use crate::board::{ActorId, Board, EventKind, Life};
use crate::child::{self, Cause, Child, Exit};
use crate::committer::OffsetCommitter;
use crate::credit::Credits;
use crate::ends;
use crate::env::{Env, Pipeline, patiently};
use crate::lives::Lives;
use crate::mailbox::{Depth, Mailbox, counted};
use crate::message::{
    Awake, Crash, CrashActor, Died, Discovered, Expect, Flush, FlushOffsets, GoOn, Incarnation, Pause, Resume,
    StartAgain, Stop, Target,
};
use crate::ownership::{self, Owner};
use crate::partition::{PartitionActor, PartitionLife};
use crate::pause::{Brake, Pauses, Scope, Wished};
use crate::pointer::{Generation, ShardId};
use crate::ports::StoreError;
use crate::position::{Offset, PartitionKey, SourcePartition};
use crate::restart::{Crashes, Restart};
use crate::spans;
use crate::suspicion::Trial;

/// Where actors run.
#[derive(Clone, Debug)]
pub enum Placement {
    /// On this many arbiters, each with a thread of its own.
    Threads(usize),
    /// All on the arbiter that starts the pipeline, as a simulation with virtual time needs it.
    Current,
}

/// The arbiters of a pipeline.
pub(crate) struct Arbiters {
    handles: Vec<ArbiterHandle>,
    own: bool,
}

impl Arbiters {
    pub(crate) fn new(placement: &Placement) -> Self {
        match placement {
            // One more for the committer.
            Placement::Threads(count) => {
                Self { handles: (0..count.max(&1) + 1).map(|_| Arbiter::new().handle()).collect(), own: true }
            }
            Placement::Current => Self { handles: vec![Arbiter::current()], own: false },
        }
    }

    fn place(&self, id: ActorId) -> usize {
        let workers = (self.handles.len() - 1).max(1);
        match id {
            ActorId::Supervisor | ActorId::Committer => self.handles.len() - 1,
            ActorId::Shard(shard) => shard as usize % workers,
            ActorId::Partition(key) => (key.topic_id.as_u128() as usize).wrapping_add(key.partition as usize) % workers,
        }
    }

    fn of(&self, id: ActorId) -> &ArbiterHandle {
        &self.handles[self.place(id)]
    }

    /// Gives up on an arbiter whose thread does not come back, and takes a new one in its place.
    fn replace(&mut self, place: usize) {
        if self.own {
            self.handles[place] = Arbiter::new().handle();
        }
    }
}

impl Drop for Arbiters {
    fn drop(&mut self) {
        if self.own {
            for handle in &self.handles {
                handle.stop();
            }
        }
    }
}

/// What outlives a supervisor: it is given to the next one.
pub(crate) struct Shared {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) board: Arc<Board>,
    pub(crate) arbiters: Mutex<Arbiters>,
    pub(crate) incarnations: AtomicU64,
    /// What was told to stand still.
    pub(crate) pauses: Arc<Pauses>,
    /// The suspects that the process is working on.
    pub(crate) trial: Arc<Trial>,
    /// Every actor that was started, so that all can be ended when the supervisor died.
    pub(crate) lives: Lives,
}

impl Shared {
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnations.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn with_arbiters<T>(&self, with: impl FnOnce(&mut Arbiters) -> T) -> T {
        with(&mut self.arbiters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a life of an actor.
    fn start<A: Actor<Context = Context<A>>>(
        &self,
        id: ActorId,
        incarnation: Incarnation,
        mailbox: Depth,
        make: impl FnOnce(Exit) -> A + Send + 'static,
        died: impl FnOnce(Cause) + Send + 'static,
    ) -> Child<A> {
        let (place, arbiter) = self.with_arbiters(|arbiters| (arbiters.place(id), arbiters.of(id).clone()));
        self.lives.begins(incarnation, id, Some(place));
        let child = child::spawn(&arbiter, mailbox, make, died);
        self.lives.ends_by(incarnation, child.abort_handle());
        child
    }

    fn show_started(&self, id: ActorId, incarnation: Incarnation, life: Life, mailbox: &Depth) {
        self.board.actor(id, |status| {
            (status.incarnation, status.life, status.mailbox) = (incarnation, life, mailbox.clone());
        });
    }

    pub(crate) fn end_all(&self) {
        self.lives.end_all(|id| self.board.busy(id));
    }
}

/// An actor as its supervisor sees it.
struct Supervised<A: Actor> {
    incarnation: Incarnation,
    child: Option<Child<A>>,
    crashes: Crashes,
    since: Instant,
    halted: bool,
}

impl<A: Actor> Supervised<A> {
    fn new(shared: &Shared) -> Self {
        Self {
            incarnation: 0,
            child: None,
            crashes: Crashes::new(shared.pipeline.tuning.restart),
            since: Instant::now(),
            halted: false,
        }
    }

    /// Ends its life, if it has one. Answers which that was.
    fn end(&mut self, shared: &Shared, id: ActorId) -> Option<Incarnation> {
        let child = self.child.take()?;
        shared.lives.ending(self.incarnation, shared.board.busy(id));
        child.abort();
        shared.board.over(id);
        Some(self.incarnation)
    }
}

struct Partition {
    partition: SourcePartition,
    /// The stored start, or why it has none and is not read.
    start: Result<Offset, String>,
    /// Where it last panicked, and how often in a row there.
    panics: (Offset, u32),
    /// A life did not come back from a batch, and that is not written down yet.
    hung: Arc<AtomicBool>,
    /// That of its present life.
    brake: Brake,
    /// Where it last got no record for long, and how often in a row there.
    starved: (Offset, u32),
    /// The furthest place where it crashed at its own charge.
    furthest: Option<Offset>,
    actor: Supervised<PartitionActor>,
}

pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    incarnation: Incarnation,
    exit: Exit,
    mailbox: Depth,
    env: Option<Arc<Env>>,
    owner: Option<Owner>,
    committer: Supervised<OffsetCommitter>,
    shards: Vec<Supervised<AggregationActor>>,
    partitions: BTreeMap<PartitionKey, Partition>,
    stopping: bool,
    random: u64,
}

impl Supervisor {
    pub(crate) fn new(shared: Arc<Shared>, incarnation: Incarnation, exit: Exit, mailbox: Depth) -> Self {
        let shards = (0..shared.pipeline.shards).map(|_| Supervised::new(&shared)).collect();
        let random = incarnation.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self {
            committer: Supervised::new(&shared),
            shards,
            partitions: BTreeMap::new(),
            env: None,
            owner: None,
            stopping: false,
            random,
            shared,
            incarnation,
            exit,
            mailbox,
        }
    }

    fn end(&mut self, ctx: &mut Context<Self>, cause: Cause) {
        self.exit.leave(cause);
        self.shared.end_all();
        ctx.terminate();
    }

    /// A number in `[0, 1)`, for jitter (xorshift).
    fn jitter(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn mailbox(&self, ctx: &Context<Self>) -> Mailbox<Self> {
        Mailbox::new(ctx.address(), self.mailbox.clone())
    }

    fn monitor(
        &self,
        ctx: &Context<Self>,
        id: ActorId,
        incarnation: Incarnation,
    ) -> impl FnOnce(Cause) + Send + 'static {
        let (shared, supervisor) = (Arc::clone(&self.shared), self.mailbox(ctx));
        move |cause| {
            shared.lives.over(incarnation);
            supervisor.do_send(Died { id, incarnation, cause });
        }
    }

    /// Ends the present life of an actor, if it has one. Answers which that was.
    fn end_life(&mut self, id: ActorId) -> Option<Incarnation> {
        match id {
            ActorId::Committer => self.committer.end(&self.shared, id),
            ActorId::Shard(shard) => self.shards.get_mut(shard as usize)?.end(&self.shared, id),
            ActorId::Partition(key) => self.partitions.get_mut(&key)?.actor.end(&self.shared, id),
            ActorId::Supervisor => None,
        }
    }

    fn begin(&mut self, ctx: &mut Context<Self>, generation: Generation) {
        let tuning = self.shared.pipeline.tuning;
        self.shared.board.generation(generation);
        self.shared.board.actor(ActorId::Supervisor, |status| status.life = Life::Running);
        self.env = Some(Arc::new(Env {
            pipeline: Arc::clone(&self.shared.pipeline),
            board: Arc::clone(&self.shared.board),
            credits: Credits::new(tuning.rows_in_flight, tuning.bytes_in_flight),
            generation,
            topics: Mutex::default(),
            trial: Arc::clone(&self.shared.trial),
            partitions: AtomicU64::new(0),
        }));
        let owner = Owner::new(Arc::clone(&self.shared.pipeline), generation);
        ctx.spawn(owner.clone().beat().into_actor(self));
        self.owner = Some(owner);
        let (pipeline, board) = (Arc::clone(&self.shared.pipeline), Arc::clone(&self.shared.board));
        ctx.spawn(ends::follow(pipeline, board).into_actor(self));
        tracing::info!(pipeline = %self.shared.pipeline.name, %generation, shards = self.shards.len(), "starting");
        if self.shared.pauses.unstored() {
            drop(self.stored(ctx));
        }
        self.start_committer(ctx);
        for shard in 0..self.shared.pipeline.shards {
            self.start_shard(ctx, shard, &Span::none());
        }
        ctx.run_interval((tuning.stall / 8).max(Duration::from_millis(10)), Self::watch);
    }

    fn start_committer(&mut self, ctx: &mut Context<Self>) {
        let Some(env) = self.env.clone() else { return };
        let (id, incarnation) = (ActorId::Committer, self.shared.incarnation());
        let died = self.monitor(ctx, id, incarnation);
        let depth = Depth::default();
        self.shared.show_started(id, incarnation, Life::Running, &depth);
        let child = self.shared.start(id, incarnation, depth, move |_| OffsetCommitter::new(env), died);
        let committer = &mut self.committer;
        (committer.incarnation, committer.since, committer.child) = (incarnation, Instant::now(), Some(child));
    }

    fn start_shard(&mut self, ctx: &mut Context<Self>, shard: ShardId, restart: &Span) {
        let (Some(env), Some(committer)) = (self.env.clone(), &self.committer.child) else { return };
        let committer = committer.mailbox.clone();
        let (id, incarnation) = (ActorId::Shard(shard), self.shared.incarnation());
        let died = self.monitor(ctx, id, incarnation);
        let starts = self.starts();
        let restart = restart.clone();
        let make = move |exit| AggregationActor::new(env, shard, incarnation, committer, starts, restart, exit);
        self.end_life(id);
        // A former life may have ended in the middle of a message.
        self.shared.board.over(id);
        let depth = Depth::default();
        self.shared.show_started(id, incarnation, Life::Starting, &depth);
        let child = self.shared.start(id, incarnation, depth, make, died);
        let actor = &mut self.shards[shard as usize];
        (actor.incarnation, actor.since, actor.child, actor.halted) = (incarnation, Instant::now(), Some(child), false);
    }

    /// The partitions that are read, with their stored starts.
    fn starts(&self) -> Vec<(PartitionKey, Offset)> {
        self.partitions.iter().filter_map(|(key, known)| Some((*key, *known.start.as_ref().ok()?))).collect()
    }

    fn start_partition(&mut self, ctx: &mut Context<Self>, key: PartitionKey, restart: &Span) {
        let Some(env) = self.env.clone() else { return };
        // A shard that is backing off has no address: the partitions start again when it does.
        if self.shards.iter().any(|shard| shard.child.is_none() && !shard.halted) {
            return;
        }
        let lanes: Vec<Option<Mailbox<AggregationActor>>> = self
            .shards
            .iter()
            .map(|shard| shard.child.as_ref().filter(|_| !shard.halted).map(|child| child.mailbox.clone()))
            .collect();
        let (id, incarnation) = (ActorId::Partition(key), self.shared.incarnation());
        let died = self.monitor(ctx, id, incarnation);
        let Some(known) = self.partitions.get_mut(&key).filter(|known| !known.actor.halted) else { return };
        known.actor.end(&self.shared, id);
        let Ok(start) = known.start else { return };
        if self.shared.pauses.hold(&key) {
            self.shared.board.actor(id, |status| status.life = Life::Paused);
            return self.wake(key);
        }
        if lanes.iter().all(Option::is_none) {
            return;
        }
        let (partition, panics, hung) = (known.partition.clone(), known.panics, Arc::clone(&known.hung));
        known.brake = Brake::default();
        let (restart, brake) = (restart.clone(), known.brake.clone());
        let life = PartitionLife { env, partition, incarnation, start, panics, hung, lanes, restart, brake };
        let make = move |exit| PartitionActor::new(life, exit);
        let depth = Depth::default();
        // Before it begins: what it shows is of this life.
        self.shared.show_started(id, incarnation, Life::Starting, &depth);
        let child = self.shared.start(id, incarnation, depth, make, died);
        let actor = &mut known.actor;
        (actor.incarnation, actor.since, actor.child) = (incarnation, Instant::now(), Some(child));
    }

    /// Starts every partition actor again, so that all ask the shards where they stand.
    fn start_partitions(&mut self, ctx: &mut Context<Self>, restart: &Span) {
        for key in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.start_partition(ctx, key, restart);
        }
    }

    fn end_partitions(&mut self) {
        for (key, known) in &mut self.partitions {
            known.actor.end(&self.shared, ActorId::Partition(*key));
            if !known.actor.halted && !self.shared.pauses.hold(key) {
                self.shared.board.actor(ActorId::Partition(*key), |status| status.life = Life::Starting);
            }
        }
    }

    fn halt(&mut self, ctx: &mut Context<Self>, id: ActorId, why: &str) {
        let refused = matches!(id, ActorId::Partition(key)
            if self.partitions.get(&key).is_some_and(|known| known.start.is_err()));
        let advice = match id {
            _ if refused => "it is not read, and cannot be resumed",
            ActorId::Shard(_) => {
                "its lanes are off and its positions stand still; mend the cause, then resume it or restart the process \
                 before Kafka deletes what it has not read"
            }
            _ => {
                "it is no longer read; mend the cause, then resume it or restart the process before Kafka deletes what it \
                 has not read"
            }
        };
        let name = self.shared.board.name(id);
        let span = tracing::info_span!(parent: None, "halt", strandline.actor = %name);
        spans::died(&span, &Cause::Halt(why.to_owned()));
        span.in_scope(|| tracing::error!(actor = %name, "halted: {why}; {advice}"));
        self.shared.board.happened(id, EventKind::Halt, format!("halted: {why}"));
        self.shared.board.actor(id, |status| {
            (status.life, status.refused) = (Life::Halted, refused);
            status.last_error = Some(why.to_owned());
        });
        match id {
            ActorId::Shard(shard) => {
                self.end_life(id);
                self.shards[shard as usize].halted = true;
                self.start_partitions(ctx, &span);
            }
            ActorId::Partition(key) => {
                self.end_life(id);
                if let Some(known) = self.partitions.get_mut(&key) {
                    known.actor.halted = true;
                }
                self.wake(key);
            }
            ActorId::Committer | ActorId::Supervisor => {}
        }
    }

    /// The shards may take a partition for idle whose actor has died: until it has looked again it holds windows open.
    fn wake(&self, key: PartitionKey) {
        let Some(incarnation) = self.partitions.get(&key).map(|known| known.actor.incarnation) else { return };
        for child in self.shards.iter().filter_map(|shard| shard.child.as_ref()) {
            child.mailbox.do_send(Awake { partition: key, incarnation });
        }
    }

    /// The actor of a partition has ended since it was told to stand still, or to go on in the next moment.
    fn stands(&mut self, ctx: &mut Context<Self>, id: ActorId) {
        let ActorId::Partition(key) = id else { return };
        if let Some(known) = self.partitions.get_mut(&key) {
            known.actor.child = None;
        }
        self.start_partition(ctx, key, &Span::none());
    }

    /// The partitions that a wish is about.
    fn scope(&self, scope: Scope) -> Vec<PartitionKey> {
        match scope {
            Scope::Pipeline => self.partitions.keys().copied().collect(),
            Scope::Partition(key) => self.partitions.contains_key(&key).then_some(key).into_iter().collect(),
        }
    }

    /// How the log and the events call what a wish is about.
    fn wished(&self, scope: Scope, what: &str) {
        let id = match scope {
            Scope::Pipeline => ActorId::Supervisor,
            Scope::Partition(key) => ActorId::Partition(key),
        };
        let about = if scope == Scope::Pipeline { "the pipeline".to_owned() } else { self.shared.board.name(id) };
        tracing::warn!("{about} {what}");
        self.shared.board.event(id, what);
        self.shared.board.paused(self.shared.pauses.pipeline());
    }

    /// Stores what is paused by now. The answer says whether it is stored.
    fn stored(&self, ctx: &mut Context<Self>) -> ResponseFuture<Wished> {
        let (storing, stored) = self.shared.pauses.changed(&self.shared.pipeline, &self.shared.board);
        if let Some(storing) = storing {
            ctx.spawn(storing.into_actor(self));
        }
        Box::pin(async move { if stored.await { Wished::Done } else { Wished::Unstored } })
    }

    fn crashed(&mut self, ctx: &mut Context<Self>, id: ActorId, incarnation: Incarnation, cause: &Cause) {
        let jitter = self.jitter();
        let charge = |crashes: &mut Crashes, since: Instant| match cause {
            Cause::Starved(_) => Restart::After(Duration::ZERO),
            _ => crashes.crashed(since.elapsed(), jitter),
        };
        let (decision, restarts_all) = match id {
            ActorId::Committer => {
                let actor = &mut self.committer;
                actor.child = None;
                (charge(&mut actor.crashes, actor.since), true)
            }
            ActorId::Shard(shard) => {
                let actor = &mut self.shards[shard as usize];
                actor.child = None;
                (charge(&mut actor.crashes, actor.since), !flaw!(PartitionsNotRestarted))
            }
            ActorId::Partition(key) => {
                let Some(known) = self.partitions.get_mut(&key) else { return };
                known.actor.child = None;
                let here = self.shared.board.position(key).unwrap_or_default();
                // Whoever gets on, from one bad place to the next, has a new budget for each.
                if !matches!(cause, Cause::Starved(_)) && known.furthest < Some(here) {
                    known.furthest = Some(here);
                    known.actor.crashes.reset();
                }
                if matches!(cause, Cause::Panic(_)) {
                    let before = if known.panics.0 == here { known.panics.1 } else { 0 };
                    known.panics = (here, before + 1);
                }
                // Of a batch: a source that hangs starves it.
                if matches!(cause, Cause::Starved(_)) {
                    let before = if known.starved.0 == here { known.starved.1 } else { 0 };
                    known.starved = (here, before + 1);
                }
                if matches!(cause, Cause::Stalled(_)) {
                    known.hung.store(true, Ordering::SeqCst);
                }
                (charge(&mut known.actor.crashes, known.actor.since), false)
            }
            ActorId::Supervisor => return,
        };
        if let ActorId::Partition(key) = id {
            self.wake(key);
        }
        self.shared.board.actor(id, |status| status.died(cause));
        self.shared.board.happened(id, EventKind::Restart, cause.to_string());
        match decision {
            Restart::After(pause) => {
                let span = restart(&self.shared.board, id, cause, pause);
                if restarts_all {
                    self.end_partitions();
                }
                if id == ActorId::Committer {
                    for shard in 0..self.shared.pipeline.shards {
                        self.end_life(ActorId::Shard(shard));
                    }
                }
                let again = StartAgain { id, incarnation, span };
                if pause.is_zero() {
                    ctx.notify(again);
                } else {
                    ctx.notify_later(again, pause);
                }
            }
            // Without a committer nothing can go on: the process ends, and whoever runs it decides.
            Restart::Halt if id == ActorId::Committer => {
                self.end(ctx, Cause::Halt(format!("the offset committer crashed too often, last by {cause}")));
            }
            Restart::Halt => self.halt(ctx, id, &format!("it crashed too often, last by {cause}")),
        }
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.shared.show_started(ActorId::Supervisor, self.incarnation, Life::Starting, &self.mailbox);
        let shared = Arc::clone(&self.shared);
        let generation = async move {
            let generation = ownership::generation(&shared.pipeline, &shared.board).await?;
            // What a former life of this supervisor was told holds all the same, unless another process was told otherwise.
            if !shared.pauses.hold_in(generation) {
                let store = &shared.pipeline.store;
                let stored = patiently(&shared.board, "reading what is paused", || store.paused()).await?;
                if shared.pauses.load(stored, generation) {
                    let what = "an earlier process was told to pause: what it paused stands still until it is resumed";
                    tracing::warn!("{what}");
                    shared.board.event(ActorId::Supervisor, what);
                }
                shared.board.paused(shared.pauses.pipeline());
            }
            Ok::<_, StoreError>(generation)
        };
        ctx.spawn(generation.into_actor(self).map(|generation, actor, ctx| match generation {
            Ok(generation) => {
                actor.begin(ctx, generation);
                let discovering = discovery::discover(Arc::clone(&actor.shared), actor.mailbox(ctx));
                ctx.spawn(discovering.into_actor(actor).map(|cause, actor, ctx| actor.end(ctx, cause)));
            }
            Err(error) => actor.end(ctx, Cause::Halt(format!("the store does not let it begin: {error}"))),
        }));
    }
}

/// The span of a restart, with its cause.
pub(crate) fn restart(board: &Board, id: ActorId, cause: &Cause, pause: Duration) -> Span {
    let (name, kind) = (board.name(id), id.kind());
    let span = tracing::info_span!(parent: None, "restart", strandline.actor = %name, strandline.actor.kind = kind);
    spans::died(&span, cause);
    span.in_scope(|| tracing::warn!(actor = %name, "{cause}; starting again in {pause:?}"));
    span
}

counted!(Supervisor: Discovered, Died, Pause, GoOn, Resume, Stop, CrashActor);

impl Handler<Discovered> for Supervisor {
    type Result = ();

    fn handle(&mut self, Discovered(partitions): Discovered, ctx: &mut Self::Context) {
        let Some(env) = self.env.clone() else { return };
        let mut found = Vec::new();
        for (partition, start) in partitions {
            let key = partition.key;
            if self.stopping || self.partitions.contains_key(&key) {
                continue;
            }
            self.shared.board.add_partition(&partition);
            self.shared.board.partition(key, |status| status.start = start.as_ref().ok().copied());
            env.topics.lock().unwrap_or_else(PoisonError::into_inner).insert(key.topic_id, partition.topic.clone());
            env.partitions.fetch_add(1, Ordering::Relaxed);
            let actor = Supervised::new(&self.shared);
            let (panics, starved, hung, brake) = Default::default();
            let begins = start.clone();
            let known = Partition { partition, start: begins, panics, hung, brake, starved, furthest: None, actor };
            self.partitions.insert(key, known);
            found.push((key, start));
        }
        if found.is_empty() {
            return;
        }
        // Before the first of them is read, so that no shard's watermark runs ahead of the others.
        let starts = self.starts();
        for child in self.shards.iter().filter_map(|shard| shard.child.as_ref()) {
            child.mailbox.do_send(Expect(starts.clone()));
        }
        for (key, start) in found {
            match start {
                Ok(_) => self.start_partition(ctx, key, &Span::none()),
                Err(why) => self.halt(ctx, ActorId::Partition(key), &why),
            }
        }
    }
}

impl Handler<Died> for Supervisor {
    type Result = ();

    fn handle(&mut self, Died { id, incarnation, cause }: Died, ctx: &mut Self::Context) {
        let current = match id {
            ActorId::Committer => self.committer.incarnation == incarnation,
            ActorId::Shard(shard) => self.shards[shard as usize].incarnation == incarnation,
            ActorId::Partition(key) => {
                self.partitions.get(&key).is_some_and(|known| known.actor.incarnation == incarnation)
            }
            ActorId::Supervisor => false,
        };
        // The end of a life that was replaced, or that was meant to end, is no news.
        if !current || self.stopping && !matches!(cause, Cause::Fenced(_)) || cause == Cause::Stopped {
            return;
        }
        self.shared.board.over(id);
        match cause {
            Cause::Fenced(why) => {
                tracing::error!("stepping down: {why}");
                self.shared.board.event(ActorId::Supervisor, format!("stepping down: {why}"));
                self.end(ctx, Cause::Fenced(why));
            }
            Cause::Halt(why) => {
                self.halt(ctx, id, &why);
            }
            Cause::Paused => self.stands(ctx, id),
            cause => self.crashed(ctx, id, incarnation, &cause),
        }
    }
}

impl Handler<StartAgain> for Supervisor {
    type Result = ();

    fn handle(&mut self, StartAgain { id, incarnation, span }: StartAgain, ctx: &mut Self::Context) {
        if self.stopping {
            return;
        }
        match id {
            ActorId::Committer if self.committer.incarnation == incarnation => {
                self.start_committer(ctx);
                for shard in 0..self.shared.pipeline.shards {
                    if !self.shards[shard as usize].halted {
                        self.start_shard(ctx, shard, &span);
                    }
                }
                self.start_partitions(ctx, &span);
            }
            ActorId::Shard(shard) => {
                let actor = &self.shards[shard as usize];
                if actor.incarnation == incarnation && actor.child.is_none() {
                    self.start_shard(ctx, shard, &span);
                    if !flaw!(PartitionsNotRestarted) {
                        self.start_partitions(ctx, &span);
                    }
                }
            }
            ActorId::Partition(key) => {
                let again = self.partitions.get(&key);
                if again.is_some_and(|known| known.actor.incarnation == incarnation && known.actor.child.is_none()) {
                    self.start_partition(ctx, key, &span);
                }
            }
            _ => {}
        }
    }
}

impl Handler<Pause> for Supervisor {
    type Result = ResponseFuture<Wished>;

    fn handle(&mut self, Pause(scope): Pause, ctx: &mut Self::Context) -> Self::Result {
        let keys = self.scope(scope);
        if self.env.is_none() || self.stopping || (keys.is_empty() && scope != Scope::Pipeline) {
            return Box::pin(async { Wished::Unknown });
        }
        if !self.shared.pauses.pause(scope) {
            return Box::pin(async { Wished::Already });
        }
        self.wished(scope, "is paused on request, also for processes that are started anew");
        for key in keys {
            let Some(known) = self.partitions.get(&key) else { continue };
            match known.actor.child {
                // It ends by itself when the shards have what is in flight.
                Some(_) => known.brake.pull(),
                None if known.actor.halted => {}
                None => self.shared.board.actor(ActorId::Partition(key), |status| status.life = Life::Paused),
            }
        }
        self.stored(ctx)
    }
}

impl Handler<GoOn> for Supervisor {
    type Result = ResponseFuture<Wished>;

    fn handle(&mut self, GoOn(scope): GoOn, ctx: &mut Self::Context) -> Self::Result {
        let keys = self.scope(scope);
        if self.env.is_none() || (keys.is_empty() && scope != Scope::Pipeline) {
            return Box::pin(async { Wished::Unknown });
        }
        if !self.shared.pauses.resume(scope, self.partitions.keys().copied()) {
            return Box::pin(async { Wished::Already });
        }
        self.wished(scope, "goes on on request");
        for key in keys {
            // One that is still about to stand still starts again when it has.
            if self.partitions.get(&key).is_some_and(|known| known.actor.child.is_none()) {
                self.start_partition(ctx, key, &Span::none());
            }
        }
        self.stored(ctx)
    }
}

impl Handler<Resume> for Supervisor {
    type Result = bool;

    fn handle(&mut self, Resume(id): Resume, ctx: &mut Self::Context) -> bool {
        match id {
            ActorId::Shard(shard) => match self.shards.get_mut(shard as usize) {
                Some(actor) if actor.halted => {
                    actor.crashes.reset();
                    // While the committer pauses, its next start starts this shard too.
                    actor.halted = false;
                    self.start_shard(ctx, shard, &Span::none());
                    self.start_partitions(ctx, &Span::none());
                    true
                }
                _ => false,
            },
            ActorId::Partition(key) => match self.partitions.get_mut(&key) {
                // What has no start cannot be read, whatever is wished.
                Some(known) if known.actor.halted && known.start.is_ok() => {
                    known.actor.crashes.reset();
                    known.actor.halted = false;
                    self.start_partition(ctx, key, &Span::none());
                    true
                }
                _ => false,
            },
            ActorId::Committer | ActorId::Supervisor => false,
        }
    }
}

impl Handler<Stop> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        if self.env.is_none() {
            tracing::info!("stopped before this process owned the pipeline");
            return self.end(ctx, Cause::Stopped);
        }
        tracing::info!("stopping: taking a last checkpoint");
        self.end_partitions();
        let shards = self.shards.iter().filter_map(|shard| shard.child.as_ref()).map(|child| child.mailbox.clone());
        let flushes: Vec<_> = shards.map(|shard| async move { shard.send(Flush).await.unwrap_or(false) }).collect();
        let all = flushes.len() == self.shards.len();
        let committer = self.committer.child.as_ref().map(|child| child.mailbox.clone());
        let (owner, shared) = (self.owner.clone(), Arc::clone(&self.shared));
        let last = async move {
            // Before anybody else may begin.
            shared.trial.end(&shared.pipeline, &shared.board).await;
            let flushed = futures::future::join_all(flushes).await;
            if let Some(committer) = committer {
                // A committer that died meanwhile leaves the offsets to the next start.
                let _ = committer.send(FlushOffsets).await;
            }
            if let Some(owner) = owner {
                owner.release().await;
            }
            all && flushed.into_iter().all(|flushed| flushed)
        };
        ctx.spawn(last.into_actor(self).map(|flushed, actor, ctx| {
            if flushed {
                tracing::info!("stopped: everything that was read is committed");
            } else {
                tracing::warn!(
                    "stopped without a last checkpoint of every shard; the next start reads from the one before"
                );
            }
            actor.end(ctx, Cause::Stopped);
        }));
    }
}

impl Handler<CrashActor> for Supervisor {
    type Result = ();

    fn handle(&mut self, CrashActor(target): CrashActor, _: &mut Self::Context) {
        match target {
            Target::Supervisor => panic!("the supervisor was told to panic"),
            Target::Committer => {
                if let Some(child) = &self.committer.child {
                    child.mailbox.do_send(Crash);
                }
            }
            Target::Shard(number) => {
                let number = number as usize % self.shards.len();
                if let Some(child) = &self.shards[number].child {
                    child.mailbox.do_send(Crash);
                }
            }
            Target::Partition(number) => {
                let place = number as usize % self.partitions.len().max(1);
                if let Some(child) = self.partitions.values().nth(place).and_then(|known| known.actor.child.as_ref()) {
                    child.mailbox.do_send(Crash);
                }
            }
        }
    }
}
