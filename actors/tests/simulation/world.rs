//! One run: processes that live and die over one log, one store and one table, until everything is read.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strandline_actors::clock::HybridClock;
use strandline_actors::env::{Pipeline, Tuning};
use strandline_actors::ports::{BatchLimit, Sink, WallClock};
use strandline_actors::position::{Counts, Offset};
use strandline_actors::restart::RestartPolicy;
use strandline_actors::run::{Handle, Outcome, run};
use strandline_actors::several::Several;
use strandline_actors::supervisor::Placement;

use crate::faults::Chance;
use crate::history::History;
use crate::process::Process;
use crate::query::{BAD, DELAY, Held, Ledger, POISON, SILENCE, SumsAndWindows, WINDOW};
use crate::sink::{FakeSink, Table};
use crate::source::{FakeKafka, ProcessKafka};
use crate::store::{Contents, FakeStore};
use crate::trace::Trace;
use crate::truth::{Found, Sum, Truth, compare};

/// The plan of the query.
pub const FINGERPRINT: &str = "sums and windows";

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub hostile: bool,
    pub records: usize,
    pub partitions: i32,
    pub shards: u32,
    /// The rows of the sink replace each other. Where they do not, a damaged segment would halt its shard, so none is.
    pub replaces: bool,
    /// The sums and the windows go to a sink each.
    pub two_sinks: bool,
    /// Partitions may be called idle.
    pub idle: bool,
    /// The windows of silent partitions may close.
    pub silence: bool,
    /// Where the whole state is written, the changes come first and then the rest.
    pub in_parts: bool,
    /// Records were deleted before they were read.
    pub loses: bool,
    /// What is there before the first start is not read.
    pub latest: bool,
    /// Partitions are paused and resumed.
    pub pauses: bool,
    /// Write down what happens.
    pub traced: bool,
}

impl Plan {
    pub fn quiet(seed: u64) -> Self {
        Self {
            seed,
            hostile: false,
            records: 600,
            partitions: 3,
            shards: 2,
            replaces: true,
            two_sinks: false,
            idle: false,
            silence: false,
            in_parts: false,
            loses: false,
            latest: false,
            pauses: false,
            traced: false,
        }
    }

    pub fn hostile(seed: u64) -> Self {
        let (shards, partitions) = (2 + (seed % 2) as u32, 3 + (seed % 3) as i32);
        let (idle, silence) = (seed % 4 == 3, seed % 3 == 2);
        let (replaces, two_sinks) = (seed % 5 != 4, seed % 7 < 4);
        let (latest, pauses) = (seed % 11 == 7, seed % 9 == 4);
        let (in_parts, loses) = (seed % 6 == 1, seed % 7 == 5);
        let plain = Self::quiet(seed);
        // Those that are there before the first start do not count.
        let records = if latest { plain.records * 4 / 3 } else { plain.records };
        let hostile = true;
        Self {
            hostile,
            records,
            shards,
            partitions,
            replaces,
            two_sinks,
            idle,
            silence,
            in_parts,
            loses,
            latest,
            pauses,
            ..plain
        }
    }
}

/// A wall clock that jumps by chance.
#[derive(Debug)]
struct JumpingClock(Arc<Chance>, tokio::time::Instant);

impl WallClock for JumpingClock {
    fn now_micros(&self) -> i64 {
        let jumps = self.0.strikes("clock jumps", 20);
        let jump = if jumps { self.0.number(10_000_000) as i64 - 5_000_000 } else { 0 };
        1_000_000_000 + self.1.elapsed().as_micros() as i64 + jump
    }
}

/// A process that runs.
pub struct Living {
    pub process: Arc<Process>,
    pub handle: Handle,
    pub running: Pin<Box<dyn Future<Output = Result<Outcome, tokio::task::JoinError>>>>,
    /// It ended by itself.
    pub ended: bool,
}

impl Living {
    /// It waits until another process, which owns the pipeline, is gone.
    pub fn stands_by(&self) -> bool {
        self.handle.board().snapshot().owner.is_some()
    }
}

pub struct World {
    pub plan: Plan,
    pub chance: Arc<Chance>,
    pub trace: Arc<Trace>,
    pub kafka: Arc<FakeKafka>,
    pub contents: Arc<Mutex<Contents>>,
    pub table: Arc<Table>,
    pub ledger: Arc<Ledger>,
    pub history: Arc<History>,
    /// The shard whose operator refuses every row.
    pub refusing: Arc<AtomicI64>,
    /// Restarts until an actor halts.
    budget: u32,
    /// Why the query cannot be computed again from an earlier state, if it cannot.
    unrepeatable: Option<&'static str>,
    /// The query is said to close windows.
    closes: bool,
    /// Threads of their own for the actors, in real time, and how long one may take; none: all on one, in virtual time.
    threads: Option<(usize, Duration)>,
    begun: tokio::time::Instant,
    processes: Arc<AtomicU32>,
    /// Event time goes on as records are produced.
    now: AtomicI64,
    tuning: [u64; 3],
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let chance = Arc::new(Chance::new(plan.seed, plan.hostile));
        let kafka = FakeKafka::new(Arc::clone(&chance), &plan);
        let history = Arc::<History>::default();
        let ledger = Ledger {
            idle: plan.idle,
            silence: plan.silence,
            in_parts: plan.in_parts,
            grown_from: plan.partitions,
            history: Arc::clone(&history),
            ..Ledger::default()
        };
        Self {
            tuning: [100 + chance.number(200), 16 + chance.number(64), 120 + chance.number(200)],
            plan,
            kafka: Arc::new(kafka),
            trace: Arc::new(Trace::new(plan.traced)),
            chance,
            contents: Arc::default(),
            table: Arc::default(),
            ledger: Arc::new(ledger),
            history,
            refusing: Arc::new(AtomicI64::new(-1)),
            budget: 1_000_000,
            unrepeatable: None,
            closes: false,
            threads: None,
            begun: tokio::time::Instant::now(),
            processes: Arc::default(),
            now: AtomicI64::new(0),
        }
    }

    fn copy(&self) -> Self {
        Self {
            plan: self.plan,
            chance: Arc::clone(&self.chance),
            trace: Arc::clone(&self.trace),
            kafka: Arc::clone(&self.kafka),
            contents: Arc::clone(&self.contents),
            table: Arc::clone(&self.table),
            ledger: Arc::clone(&self.ledger),
            history: Arc::clone(&self.history),
            refusing: Arc::clone(&self.refusing),
            budget: self.budget,
            unrepeatable: self.unrepeatable,
            closes: self.closes,
            threads: self.threads,
            begun: self.begun,
            processes: Arc::clone(&self.processes),
            now: AtomicI64::new(self.now.load(Ordering::SeqCst)),
            tuning: self.tuning,
        }
    }

    /// The same world with fewer restarts until an actor halts.
    pub fn with_budget(&self, budget: u32) -> Self {
        Self { budget, ..self.copy() }
    }

    /// The same world with a query that cannot be computed again.
    pub fn unrepeatable(&self, why: &'static str) -> Self {
        Self { unrepeatable: Some(why), ..self.copy() }
    }

    /// The same world with a query of which is said that it closes windows.
    pub fn closing(&self) -> Self {
        Self { closes: true, ..self.copy() }
    }

    /// The same world with so many rows in a batch at most.
    pub fn with_batches_of(&self, rows: u64) -> Self {
        let [interval, _, in_flight] = self.tuning;
        Self { tuning: [interval, rows, in_flight], ..self.copy() }
    }

    /// The same world on threads that are given up after this time.
    pub fn on_threads(&self, threads: usize, stall: Duration) -> Self {
        Self { threads: Some((threads, stall)), ..self.copy() }
    }

    /// The same world after its topic was deleted and made again with the same records.
    pub fn with_new_topic(&self, id: u128) -> Self {
        let logs = std::mem::take(&mut *self.kafka.logs.lock().unwrap());
        let kafka = FakeKafka {
            topic_id: uuid::Uuid::from_u128(id),
            logs: Mutex::new(logs),
            ..FakeKafka::new(self.chance.clone(), &Plan { partitions: 0, ..self.plan })
        };
        Self { kafka: Arc::new(kafka), ..self.copy() }
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        self.trace.note(what);
    }

    fn truth(&self) -> Truth {
        let (kafka, history) = (Arc::clone(&self.kafka), Arc::clone(&self.history));
        Truth { kafka, history, shards: self.plan.shards, seed: self.plan.seed }
    }

    /// What a plain loop over the whole log finds.
    pub fn found(&self) -> Found {
        self.truth().of_all()
    }

    /// A number that nothing else has.
    pub fn numbered(&self) -> u32 {
        self.processes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A process that has not done anything yet.
    pub fn process(&self) -> Arc<Process> {
        let number = self.numbered();
        Arc::new(Process::new(number, Arc::clone(&self.chance), Arc::clone(&self.trace)))
    }

    /// The store as a process sees it.
    pub fn store(&self, process: &Arc<Process>) -> FakeStore {
        let (contents, process) = (Arc::clone(&self.contents), Arc::clone(process));
        FakeStore { contents, process, replaces: self.plan.replaces, truth: Arc::new(self.truth()) }
    }

    pub fn clock(&self) -> HybridClock {
        HybridClock::new(Arc::new(JumpingClock(Arc::clone(&self.chance), self.begun)))
    }

    /// Starts a process that takes over at once.
    pub fn start(&self) -> Living {
        self.start_as("simulated")
    }

    /// Starts a process under the name of an instance: it waits for the end of an owner of another name.
    pub fn start_as(&self, instance: &str) -> Living {
        let process = self.process();
        process.note(|| "starts".into());
        let ported = || Arc::clone(&process);
        let (table, contents) = (Arc::clone(&self.table), Arc::clone(&self.contents));
        let history = Arc::clone(&self.history);
        let replaces = self.plan.replaces;
        let sink = FakeSink { part: None, table, contents, process: ported(), history, replaces };
        let sink: Arc<dyn Sink> = if self.plan.two_sinks {
            let part = |part| -> Arc<dyn Sink> { Arc::new(FakeSink { part: Some(part), ..sink.clone() }) };
            Arc::new(Several::new(vec![part(0), part(1)]))
        } else {
            Arc::new(sink)
        };
        let query = SumsAndWindows {
            shards: self.plan.shards,
            refusing: Arc::clone(&self.refusing),
            process: ported(),
            chance: Arc::clone(&self.chance),
            ledger: Arc::clone(&self.ledger),
            unrepeatable: self.unrepeatable,
            closes: self.closes,
        };
        let pipeline = Pipeline {
            name: "simulated".into(),
            instance: instance.into(),
            shards: self.plan.shards,
            fingerprint: FINGERPRINT.into(),
            source: Arc::new(ProcessKafka { kafka: Arc::clone(&self.kafka), process: ported() }),
            store: Arc::new(self.store(&process)),
            sink,
            query: Arc::new(query),
            clock: self.clock(),
            tuning: Tuning {
                checkpoint_interval: Duration::from_millis(self.tuning[0]),
                quiet_interval: Duration::from_millis(600),
                batch: BatchLimit { rows: self.tuning[1] as usize, bytes: 4096 },
                rows_in_flight: self.tuning[2] as usize,
                bytes_in_flight: 16 << 10,
                pending_bytes: 4 << 10,
                discovery_interval: Duration::from_millis(700),
                restart: RestartPolicy {
                    initial: Duration::from_millis(20),
                    max: Duration::from_millis(500),
                    budget: self.budget,
                    refill: Duration::from_secs(60),
                },
                stall: self.threads.map_or(Duration::from_secs(30), |(_, stall)| stall),
                poison_crashes: 3,
                takeover_after: Duration::from_secs(2),
                trace_interval: Duration::from_secs(1),
            },
        };
        let placement = self.threads.map_or(Placement::Current, |(threads, _)| Placement::Threads(threads));
        let (handle, running) = run(Arc::new(pipeline), placement);
        process.begins(&handle);
        Living { process, handle, ended: false, running: Box::pin(tokio::task::spawn_local(running)) }
    }

    /// Produces records into any partition that exists. Their times run ahead, with some disorder.
    pub fn produce(&self, count: usize) {
        let partitions = self.kafka.logs.lock().unwrap().len() as u64;
        for _ in 0..count {
            let partition = self.chance.number(partitions) as i32;
            let late = if self.chance.number(20) == 0 { 300 } else { 30 };
            self.produce_one(partition, late);
        }
    }

    fn produce_one(&self, partition: i32, late: u64) {
        let value = match self.chance.number(150) {
            0 => BAD,
            1 if self.plan.hostile && self.chance.number(3) == 0 => POISON,
            value => value as i64,
        };
        let now = self.now.fetch_add(self.chance.number(7) as i64, Ordering::SeqCst);
        let time = now - self.chance.number(late) as i64;
        self.kafka.produce(partition, self.chance.number(23) as i64, value, time);
    }

    /// One partition is quiet until it holds back nothing, and then has rows for windows that the others have just closed.
    pub async fn produce_apart(&self) {
        let partitions = self.kafka.logs.lock().unwrap().len() as u64;
        let quiet = self.chance.number(partitions);
        tokio::time::sleep(2 * SILENCE).await;
        for _ in 0..40 {
            let other = (quiet + 1 + self.chance.number(partitions - 1)) % partitions;
            self.produce_one(other as i32, 30);
        }
        self.chance.pause(300).await;
        for _ in 0..6 {
            self.produce_one(quiet as i32, 300);
        }
    }

    /// One record for every partition, so far ahead that all windows before it close. Answers the watermark after it.
    pub fn produce_last(&self) -> i64 {
        let far = self.now.load(Ordering::SeqCst) + 10 * WINDOW;
        let partitions = self.kafka.logs.lock().unwrap().len() as i32;
        for partition in 0..partitions {
            self.kafka.produce(partition, self.chance.number(23) as i64, 1, far);
        }
        far - DELAY
    }

    /// Where the table, the dead letters, the counts, the offsets and the stored state differ from the plain loop. `closed`
    /// is the watermark that all shards must have passed.
    pub fn differences(&self, closed: Option<i64>) -> Vec<String> {
        let mut wrong = Vec::new();
        let contents = self.contents.lock().unwrap();
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            let offset = contents.offsets.get(&("orders".to_owned(), *partition)).map(|held| held.0);
            if offset != Some(Offset(log.end)) {
                wrong.push(format!("kafka_offsets of {partition}: {offset:?} instead of {}", log.end));
            }
        }
        if !wrong.is_empty() {
            return wrong;
        }
        let found = self.found();
        // What was told of a state that is dropped stays until it is told again.
        let counts_still = |number: i64, row: &(i64, i64, i64)| {
            let shard = number % i64::from(self.plan.shards);
            row.2 > self.history.reset_at(shard as u32)
        };
        let rows = self.table.rows.lock().unwrap();
        let rows = rows.iter().filter(|(key, row)| counts_still(**key, row));
        let sums = rows.map(|(key, row)| (*key, (row.0, row.1))).collect();
        compare(&mut wrong, "the table", "key", &sums, &found.sums);
        let letters: BTreeSet<(i32, i64)> =
            contents.dead_letters.keys().map(|(key, offset)| (key.partition, *offset)).collect();
        let should = self.truth().letters();
        if letters != should {
            wrong.push(format!("dead letters {letters:?} instead of {should:?}"));
        }
        let mut counts = BTreeMap::<i32, Counts>::new();
        for pointer in contents.pointers.values() {
            for (key, position) in &pointer.content.vector.0 {
                counts.entry(key.partition).or_default().add(&position.counts);
            }
        }
        let balances = contents.balances(self.plan.shards);
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            let counts = counts.get(partition).copied().unwrap_or_default();
            let late = found.late.get(partition).copied().unwrap_or_default();
            let off = balances.get(partition).map_or(log.end, |balance| balance.off);
            let all = found.counted.get(partition).copied().unwrap_or_default();
            if counts.total() != all as u64 || counts.late != late || off != 0 {
                wrong.push(format!("partition {partition}: {counts:?} of {all} offsets, {late} of them late"));
            }
        }
        for (shard, pointer) in &contents.pointers {
            let gone = |until: i64| pointer.content.closed >= Some(until);
            let kept = pointer.content.state.iter().filter(|segment| segment.until.is_some_and(gone)).count();
            if kept > 0 {
                wrong.push(format!("shard {shard} lists {kept} segments of windows that are closed"));
            }
        }
        let (states, unreadable) = self.states(&contents);
        wrong.extend(unreadable);
        let late_closed: u64 = counts.values().map(|counts| counts.late_closed).sum();
        let early: i64 = states.iter().flat_map(|held| held.early.values()).map(|(_, count)| count).sum();
        if i64::try_from(late_closed) != Ok(early) {
            wrong.push(format!("{late_closed} rows are counted that met a closed window, but there were {early}"));
        }
        // Every row that is not late is in its window once: told, still open, or counted apart.
        let told = self.table.windows.lock().unwrap();
        let told = told.iter().filter(|((_, group), row)| counts_still(*group, row));
        let told = told.map(|(key, row)| (*key, (row.0, row.1)));
        let held = states.iter().flat_map(|held| held.windows.iter().chain(&held.early)).map(|(key, sum)| (*key, *sum));
        let mut windows = BTreeMap::<(i64, i64), Sum>::new();
        for (key, sum) in told.chain(held) {
            let all = windows.entry(key).or_default();
            (all.0, all.1) = (all.0 + sum.0, all.1 + sum.1);
        }
        compare(&mut wrong, "the windows", "window", &windows, &found.windows);
        // Silence closes more.
        let is_closed = |held: &Held| held.closed == closed || self.plan.silence && held.closed > closed;
        if closed.is_some() && !states.iter().all(is_closed) {
            let is: Vec<_> = states.iter().map(|held| held.closed).collect();
            wrong.push(format!("windows are closed up to {is:?} instead of {closed:?}"));
        }
        wrong
    }

    /// The stored states, and what is wrong with them.
    fn states(&self, contents: &Contents) -> (Vec<Held>, Vec<String>) {
        let truth = self.truth();
        let (mut states, mut wrong) = (Vec::new(), Vec::new());
        for pointer in contents.pointers.values() {
            wrong.extend(truth.state_differences(pointer, &contents.segments, &contents.damaged));
            states.push(truth.held(pointer, &contents.segments).unwrap_or_default());
            for segment in pointer.kept.iter().flat_map(|kept| &kept.state) {
                if !contents.segments.contains_key(&segment.key) {
                    wrong.push(format!("a kept pointer lists segment {:?}, which is gone", segment.key));
                }
            }
        }
        (states, wrong)
    }
}
