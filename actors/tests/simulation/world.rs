//! One run: processes that live and die over one log, one store and one table, until everything is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strandline_actors::clock::HybridClock;
use strandline_actors::env::{Pipeline, Tuning};
use strandline_actors::message::Target;
use strandline_actors::ports::{BatchLimit, WallClock};
use strandline_actors::position::{Counts, Offset};
use strandline_actors::restart::RestartPolicy;
use strandline_actors::run::{Handle, Outcome, run};
use strandline_actors::supervisor::Placement;

use crate::faults::Chance;
use crate::query::{self, BAD, POISON};
use crate::sink::{FakeSink, Table};
use crate::source::{FakeKafka, SharedKafka};
use crate::store::{Contents, FakeStore};

/// By key: sum and count.
type Sums = BTreeMap<i64, (i64, i64)>;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub hostile: bool,
    pub records: usize,
    pub partitions: i32,
    pub shards: u32,
}

impl Plan {
    pub fn quiet(seed: u64) -> Self {
        Self { seed, hostile: false, records: 600, partitions: 3, shards: 2 }
    }

    pub fn hostile(seed: u64) -> Self {
        Self { hostile: true, shards: 2 + (seed % 2) as u32, partitions: 3 + (seed % 3) as i32, ..Self::quiet(seed) }
    }
}

/// What came out.
#[derive(Debug)]
pub struct Report {
    pub faults: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
    pub trace: Vec<String>,
}

impl Report {
    pub fn wrong(&self) -> Option<String> {
        (!self.wrong.is_empty()).then(|| self.wrong.join("\n"))
    }
}

/// A wall clock that jumps by chance.
#[derive(Debug)]
struct JumpingClock(Arc<Chance>, tokio::time::Instant);

impl WallClock for JumpingClock {
    fn now_micros(&self) -> i64 {
        let jump = if self.0.number(20) == 0 { self.0.number(10_000_000) as i64 - 5_000_000 } else { 0 };
        1_000_000_000 + self.1.elapsed().as_micros() as i64 + jump
    }
}

pub struct World {
    plan: Plan,
    chance: Arc<Chance>,
    pub kafka: Arc<FakeKafka>,
    pub contents: Arc<Mutex<Contents>>,
    pub table: Arc<Table>,
    /// The shard whose operator refuses every row.
    pub refusing: Arc<AtomicI64>,
    /// Restarts until an actor halts.
    budget: u32,
    begun: tokio::time::Instant,
    trace: Mutex<Vec<String>>,
}

impl World {
    /// The same world with fewer restarts until an actor halts.
    pub fn with_budget(&self, budget: u32) -> Self {
        Self {
            plan: self.plan,
            chance: Arc::clone(&self.chance),
            kafka: Arc::clone(&self.kafka),
            contents: Arc::clone(&self.contents),
            table: Arc::clone(&self.table),
            refusing: Arc::clone(&self.refusing),
            budget,
            begun: self.begun,
            trace: Mutex::default(),
        }
    }

    /// The same world after its topic was deleted and made again with the same records.
    pub fn with_new_topic(&self, id: u128) -> Self {
        let logs = std::mem::take(&mut *self.kafka.logs.lock().unwrap());
        let kafka =
            FakeKafka { topic_id: uuid::Uuid::from_u128(id), logs: Mutex::new(logs), chance: self.chance.clone() };
        Self { kafka: Arc::new(kafka), ..self.with_budget(self.budget) }
    }

    fn note(&self, what: impl std::fmt::Display) {
        let mut trace = self.trace.lock().unwrap();
        trace.push(format!("{:8.3} {what}", self.begun.elapsed().as_secs_f64()));
    }

    pub fn process(&self) -> (Handle, std::pin::Pin<Box<dyn Future<Output = Outcome>>>) {
        let store = FakeStore { contents: Arc::clone(&self.contents), chance: Arc::clone(&self.chance) };
        let sink = FakeSink { table: Arc::clone(&self.table), chance: Arc::clone(&self.chance) };
        let pipeline = Pipeline {
            name: "simulated".into(),
            instance: "simulated".into(),
            shards: self.plan.shards,
            fingerprint: "sums".into(),
            source: Arc::new(SharedKafka(Arc::clone(&self.kafka))),
            store: Arc::new(store),
            sink: Arc::new(sink),
            query: Arc::new(query::Sums {
                shards: self.plan.shards,
                refusing: Arc::clone(&self.refusing),
                chance: Arc::clone(&self.chance),
            }),
            clock: HybridClock::new(Arc::new(JumpingClock(Arc::clone(&self.chance), self.begun))),
            tuning: Tuning {
                checkpoint_interval: Duration::from_millis(200),
                quiet_interval: Duration::from_millis(600),
                batch: BatchLimit { rows: 64, bytes: 4096 },
                rows_in_flight: 200,
                bytes_in_flight: 16 << 10,
                pending_bytes: 4 << 10,
                discovery_interval: Duration::from_millis(700),
                restart: RestartPolicy {
                    initial: Duration::from_millis(20),
                    max: Duration::from_millis(500),
                    budget: self.budget,
                    refill: Duration::from_secs(60),
                },
                stall: Duration::from_secs(30),
                poison_crashes: 3,
                takeover_after: Duration::from_secs(2),
            },
        };
        let (handle, running) = run(Arc::new(pipeline), Placement::Current);
        (handle, Box::pin(running))
    }

    /// What a plain loop over the log computes.
    pub fn truth(&self) -> (Sums, BTreeSet<(i32, i64)>) {
        let mut sums = Sums::new();
        let mut letters = BTreeSet::new();
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            for record in &log.records {
                if record.value == BAD || record.value == POISON {
                    letters.insert((*partition, record.offset));
                } else {
                    let sum = sums.entry(record.key).or_default();
                    (sum.0, sum.1) = (sum.0 + record.value, sum.1 + 1);
                }
            }
        }
        (sums, letters)
    }

    pub fn differences(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let (sums, letters) = self.truth();
        let rows: Sums = self.table.rows.lock().unwrap().iter().map(|(key, row)| (*key, (row.0, row.1))).collect();
        for key in sums.keys().chain(rows.keys()).collect::<BTreeSet<_>>() {
            if sums.get(key) != rows.get(key) {
                wrong.push(format!("key {key}: {:?} in the table, {:?} in truth", rows.get(key), sums.get(key)));
            }
        }
        let contents = self.contents.lock().unwrap();
        let found: BTreeSet<(i32, i64)> =
            contents.dead_letters.keys().map(|(key, offset)| (key.partition, *offset)).collect();
        if found != letters {
            wrong.push(format!("dead letters {found:?} instead of {letters:?}"));
        }
        let mut counts = BTreeMap::<i32, Counts>::new();
        for pointer in contents.pointers.values() {
            for (key, position) in &pointer.content.vector.0 {
                counts.entry(key.partition).or_default().add(&position.counts);
            }
        }
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            let offset = contents.offsets.get(&("orders".to_owned(), *partition)).map(|held| held.0);
            if offset != Some(Offset(log.end)) {
                wrong.push(format!("kafka_offsets of {partition}: {offset:?} instead of {}", log.end));
            }
            let total = counts.get(partition).map(Counts::total);
            if total != Some(log.end as u64) {
                wrong.push(format!("partition {partition}: {total:?} offsets counted of {}", log.end));
            }
        }
        wrong
    }

    pub fn produce(&self, first: usize, count: usize) {
        for number in first..first + count {
            let partition = self.chance.number(self.plan.partitions as u64) as i32;
            let value = match self.chance.number(100) {
                0 => BAD,
                1 if self.plan.hostile && number % 3 == 0 => POISON,
                value => value as i64,
            };
            self.kafka.produce(partition, self.chance.number(23) as i64, value);
        }
    }

    /// Damages a segment that a pointer lists and the state before it does not need, between two processes.
    fn corrupt(&self) {
        let mut contents = self.contents.lock().unwrap();
        let pointers: Vec<_> = contents.pointers.values().cloned().collect();
        for pointer in pointers {
            let Some(kept) = pointer.kept.first() else { continue };
            let listed = pointer.content.state.iter().chain(&pointer.content.outbox.segments);
            let newer: Vec<_> = listed.filter(|segment| !kept.state.contains(segment)).collect();
            if newer.is_empty() || !self.chance.strikes("segment corrupt", 4) {
                continue;
            }
            let segment = newer[self.chance.number(newer.len() as u64) as usize];
            contents.damaged.insert(segment.key);
        }
    }

    /// Harms the running process for a while.
    async fn harm(&self, handle: &Handle) {
        for _ in 0..2 + self.chance.number(4) {
            self.chance.pause(1_500).await;
            let number = self.chance.number(8) as u32;
            let (fault, target) = match self.chance.number(8) {
                0..=2 => ("partition panics", Target::Partition(number)),
                3..=5 => ("aggregation panics", Target::Shard(number)),
                6 => ("committer panics", Target::Committer),
                _ => ("supervisor panics", Target::Supervisor),
            };
            self.note(format!("{fault}: {target:?}"));
            self.chance.dealt(fault);
            handle.crash(target);
        }
    }

    async fn live(&self) -> Vec<String> {
        let mut produced = self.plan.records / 5;
        self.produce(0, produced);
        if self.plan.hostile {
            for _ in 0..2 + self.chance.number(3) {
                self.corrupt();
                let (handle, running) = self.process();
                self.note("a process starts");
                let running = tokio::task::spawn_local(running);
                self.harm(&handle).await;
                let more = self.plan.records / 8;
                self.produce(produced, more);
                produced += more;
                self.chance.pause(1_000).await;
                match self.chance.number(3) {
                    0 => {
                        self.note("it is told to stop");
                        self.chance.dealt("process stopped");
                        handle.stop();
                        let outcome = tokio::time::timeout(Duration::from_secs(600), running).await;
                        self.note(format!("it ended: {outcome:?}"));
                        if !matches!(outcome, Ok(Ok(Outcome::Stopped | Outcome::Failed(_)))) {
                            return vec![format!("a process that was told to stop ended with {outcome:?}")];
                        }
                    }
                    1 => {
                        self.note("it is killed");
                        self.chance.dealt("process killed");
                        handle.kill();
                    }
                    _ => {
                        // Two processes at once: the later generation takes over, the earlier one steps down.
                        self.note("a second process starts beside it");
                        self.chance.dealt("second process");
                        let (second, taking_over) = self.process();
                        let taking_over = tokio::task::spawn_local(taking_over);
                        // A supervisor that just crashed may have taken the later generation for the first process.
                        let either = futures::future::select(running, taking_over);
                        let outcome = tokio::time::timeout(Duration::from_secs(600), either).await;
                        let outcome = outcome.map(|either| either.factor_first().0);
                        self.note(format!("one ended: {outcome:?}"));
                        if !matches!(outcome, Ok(Ok(Outcome::SteppedDown(_)))) {
                            for process in [&handle, &second] {
                                self.note(format!("{:#?}", process.board().snapshot()));
                            }
                            return vec![format!("no process stepped down: {outcome:?}")];
                        }
                        self.chance.pause(500).await;
                        handle.kill();
                        second.kill();
                    }
                }
            }
            self.chance.hostile.store(false, Ordering::SeqCst);
        }
        self.produce(produced, self.plan.records.saturating_sub(produced));
        let (handle, running) = self.process();
        self.note("the last process starts");
        let running = tokio::task::spawn_local(running);
        let patience = tokio::time::Instant::now() + Duration::from_secs(300);
        while !self.differences().is_empty() && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        handle.stop();
        let mut wrong = self.differences();
        match tokio::time::timeout(Duration::from_secs(60), running).await {
            Ok(Ok(Outcome::Stopped)) => {}
            other => wrong.push(format!("the last process ended with {other:?}")),
        }
        wrong.extend(self.differences());
        for event in handle.board().snapshot().events {
            self.note(format!("{}: {}", event.actor, event.what));
        }
        let contents = self.contents.lock().unwrap();
        wrong.extend(contents.broken.iter().cloned());
        wrong.extend(self.table.conflicts.lock().unwrap().iter().cloned());
        for pointer in contents.pointers.values() {
            for kept in &pointer.kept {
                for segment in &kept.state {
                    if !contents.segments.contains_key(&segment.key) {
                        wrong.push(format!("a kept pointer lists segment {:?}, which is gone", segment.key));
                    }
                }
            }
        }
        wrong
    }
}

thread_local! {
    static SIMULATING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Panics inside a simulation are part of the plan: they need no text.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !SIMULATING.get() {
                loud(panic);
            }
        }));
    });
}

/// Runs a world on one thread in virtual time.
pub fn on_one_thread<T: 'static>(plan: Plan, live: impl AsyncFnOnce(&World) -> T + 'static) -> (World, T) {
    quiet_panics();
    let system = actix_rt::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    });
    system.block_on(async move {
        let chance = Arc::new(Chance::new(plan.seed, plan.hostile));
        let world = World {
            plan,
            kafka: Arc::new(FakeKafka::new(Arc::clone(&chance))),
            chance,
            contents: Arc::default(),
            table: Arc::default(),
            refusing: Arc::new(AtomicI64::new(-1)),
            budget: 1_000_000,
            begun: tokio::time::Instant::now(),
            trace: Mutex::default(),
        };
        SIMULATING.set(true);
        let out = live(&world).await;
        SIMULATING.set(false);
        (world, out)
    })
}

/// Lives through a plan.
pub fn simulate(plan: Plan) -> Report {
    let (world, wrong) = on_one_thread(plan, async |world| world.live().await);
    let faults = world.chance.dealt.lock().unwrap().clone();
    Report { faults, wrong, trace: world.trace.into_inner().unwrap() }
}
