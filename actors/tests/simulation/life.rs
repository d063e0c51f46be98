//! What happens in a run: which processes live when, what harms them, and how each of them ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::Either;
use strandline_actors::board::Life;
use strandline_actors::busy;
use strandline_actors::message::Target;
use strandline_actors::pause::Scope;
use strandline_actors::run::Outcome;
use tokio::time::Instant;

use crate::panics;
use crate::world::{Living, Plan, World};

/// What came out.
#[derive(Debug)]
pub struct Report {
    pub faults: BTreeMap<&'static str, u64>,
    pub records: usize,
    pub checkpoints: u64,
    pub wrong: Vec<String>,
    pub trace: Vec<String>,
}

/// A process that must end has ten minutes; virtual time makes them short.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a killed process may take to end: threads may be busy.
const DYING: Duration = Duration::from_secs(5);
/// How long it may take until everything is read, once nothing harms any more.
const CATCHING_UP: Duration = Duration::from_secs(200);

impl World {
    /// Damages a segment that a pointer lists and the state before it does not need, between two processes.
    fn corrupt(&self) {
        let mut contents = self.contents.lock().unwrap();
        let pointers: Vec<_> = contents.pointers.values().cloned().collect();
        for pointer in pointers {
            let Some(kept) = pointer.kept.first().filter(|_| self.plan.replaces) else { continue };
            let listed = pointer.content.state.iter().chain(&pointer.content.outbox.segments);
            let newer: Vec<_> = listed.filter(|segment| !kept.state.contains(segment)).collect();
            if newer.is_empty() || !self.chance.strikes("segment corrupt", 12) {
                continue;
            }
            let segment = newer[self.chance.number(newer.len() as u64) as usize];
            self.note(|| format!("damages {}", self.trace.segment(&segment.key)));
            contents.damaged.insert(segment.key);
        }
    }

    /// Makes actors panic for a while.
    async fn harm(&self, living: &Living, times: u64) {
        for _ in 0..times {
            self.chance.pause(1_200).await;
            if self.plan.pauses {
                self.interrupt(living).await;
            }
            let number = self.chance.number(8) as u32;
            let (fault, target) = match self.chance.number(8) {
                0..=2 => ("partition panics", Target::Partition(number)),
                3..=5 => ("aggregation panics", Target::Shard(number)),
                6 => ("committer panics", Target::Committer),
                _ => ("supervisor panics", Target::Supervisor),
            };
            living.process.note(|| format!("{fault}: {target:?}"));
            self.chance.dealt(fault);
            living.handle.crash(target);
        }
    }

    /// Pauses or resumes something for a while.
    async fn interrupt(&self, living: &Living) {
        let keys: Vec<_> = living.handle.board().snapshot().partitions.keys().copied().collect();
        let scope = match self.chance.number(keys.len() as u64 + 1) as usize {
            0 => Scope::Pipeline,
            number => Scope::Partition(keys[number - 1]),
        };
        let pause = self.chance.number(3) > 0;
        self.chance.dealt(if pause { "paused" } else { "resumed" });
        living.process.note(|| format!("is told to {}: {scope:?}", if pause { "pause" } else { "go on" }));
        // Whoever is frozen, or dies meanwhile, does not answer.
        let done = async { if pause { living.handle.pause(scope).await } else { living.handle.go_on(scope).await } };
        let _ = tokio::time::timeout(Duration::from_secs(2), done).await;
    }

    /// Resumes whatever is paused.
    async fn resume(&self, living: &Living) {
        let board = living.handle.board().snapshot();
        let paused = board.partitions.iter().filter(|(_, status)| status.actor.life == Life::Paused);
        let paused =
            board.paused.then_some(Scope::Pipeline).into_iter().chain(paused.map(|(key, _)| Scope::Partition(*key)));
        for scope in paused {
            let _ = tokio::time::timeout(Duration::from_secs(2), living.handle.go_on(scope)).await;
        }
    }

    /// Kills a process, sees that it ends, and looks at what it has to say.
    pub async fn bury(&self, living: &mut Living, wrong: &mut Vec<String>) {
        living.handle.kill();
        living.process.wake();
        if !living.ended && tokio::time::timeout(DYING, &mut living.running).await.is_err() {
            wrong.push(format!("process {} was killed, but lives on", living.process.number));
        }
        living.ended = true;
        living.process.ended(wrong);
    }

    async fn stop(&self, mut living: Living) -> Vec<String> {
        let mut wrong = Vec::new();
        living.process.note(|| "is told to stop".into());
        self.chance.dealt("process stopped");
        living.handle.stop();
        let outcome = tokio::time::timeout(PATIENCE, &mut living.running).await;
        living.ended = outcome.is_ok();
        living.process.note(|| format!("ended: {outcome:?}"));
        let ended = match &outcome {
            Ok(Ok(Outcome::Stopped | Outcome::Failed(_))) => true,
            // The mark of one that died while it rewound landed late.
            Ok(Ok(Outcome::SteppedDown(_))) => self.marked().is_some(),
            _ => false,
        };
        if !ended {
            wrong.push(format!("process {}, told to stop, ended with {outcome:?}", living.process.number));
        }
        self.bury(&mut living, &mut wrong).await;
        wrong
    }

    /// A second process starts beside the first: the later generation takes over, the earlier one steps down. When the
    /// first is frozen it wakes up after the second has worked for a while.
    async fn succeed(&self, first: &mut Living, frozen: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        if frozen {
            if self.chance.number(2) == 0 {
                // In the middle of loading a shard.
                self.chance.dealt("aggregation panics");
                first.handle.crash(Target::Shard(self.chance.number(8) as u32));
                self.chance.pause(120).await;
            }
            first.process.note(|| "freezes".into());
            self.chance.dealt("frozen process wakes beside a second one");
            first.process.freeze();
        } else {
            self.chance.dealt("second process");
        }
        // One of another name waits until the first is silent: it is, for as long as it is frozen.
        let another = frozen && self.chance.strikes("another instance takes over", 3);
        let mut second = if another { self.start_as("another") } else { self.start() };
        if frozen {
            self.chance.pause(3_000).await;
            self.produce(self.plan.records / 20);
            self.chance.pause(3_000).await;
            first.process.wake();
        }
        let patience = Instant::now() + PATIENCE;
        let outcome = loop {
            // A supervisor that just crashed may have taken the later generation for the first process.
            let either = futures::future::select(&mut first.running, &mut second.running);
            let outcome = tokio::time::timeout(Duration::from_secs(2), either).await.map(|either| match either {
                Either::Left((outcome, _)) => (true, outcome),
                Either::Right((outcome, _)) => (false, outcome),
            });
            match outcome {
                Ok((of_first, outcome)) => {
                    let ended = if of_first { &mut first.ended } else { &mut second.ended };
                    *ended = true;
                    break Ok(outcome);
                }
                Err(_) if another && (first.stands_by() || second.stands_by()) => {
                    break Ok(Ok(Outcome::SteppedDown("it waits until the other one is gone".into())));
                }
                Err(late) if Instant::now() > patience => break Err(late),
                Err(_) => {}
            }
        };
        self.note(|| format!("one ended: {outcome:?}"));
        match outcome {
            Ok(Ok(Outcome::SteppedDown(_))) => {}
            Ok(Ok(Outcome::Failed(why))) if why == "killed" => {}
            outcome => wrong.push(format!("no process stepped down: {outcome:?}")),
        }
        self.chance.pause(500).await;
        self.bury(&mut second, &mut wrong).await;
        wrong
    }

    /// Whether it is decided where each partition begins to count: what is produced after that counts.
    fn all_begun(&self) -> bool {
        let contents = self.contents.lock().unwrap();
        let begun = |partition: &i32| contents.starts.contains_key(&self.kafka.partition(*partition).key);
        self.kafka.logs.lock().unwrap().keys().all(begun)
    }

    /// Sees to it for a moment that a process works on.
    async fn attend(&self, last: &mut Living, wrong: &mut Vec<String>) {
        match tokio::time::timeout(Duration::from_millis(400), &mut last.running).await {
            // Killed at an await, or fenced by one that came back: another one takes over.
            Ok(outcome) => {
                last.ended = true;
                last.process.note(|| format!("ended: {outcome:?}"));
                self.bury(last, wrong).await;
                self.finish_rewinds(wrong).await;
                *last = self.start();
            }
            Err(_) => last.process.wake(),
        }
        if self.plan.pauses {
            self.resume(last).await;
        }
    }

    async fn live(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut asleep = Vec::new();
        self.produce(self.plan.records / 4);
        for _ in 0..if self.plan.hostile { 1 + self.chance.number(3) } else { 0 } {
            if self.chance.number(3) == 0 {
                self.rewinds(&mut wrong).await;
            }
            self.finish_rewinds(&mut wrong).await;
            self.corrupt();
            let mut living = self.start();
            self.harm(&living, 1 + self.chance.number(3)).await;
            if self.chance.strikes("new partition", 4) {
                let partition = self.kafka.grow();
                self.note(|| format!("partition {partition} is new"));
            }
            self.produce(self.plan.records / 6);
            self.chance.pause(1_200).await;
            if (self.plan.idle || self.plan.silence) && self.chance.number(2) == 0 {
                self.produce_apart().await;
            }
            match self.chance.number(7) {
                0 => wrong.extend(self.stop(living).await),
                1 => {
                    if self.chance.strikes("process killed in the supervisor's pause", 3) {
                        for pause in [60, 12] {
                            living.handle.crash(Target::Supervisor);
                            self.chance.pause(pause).await;
                        }
                    }
                    living.process.note(|| "is killed".into());
                    self.chance.dealt("process killed");
                    self.bury(&mut living, &mut wrong).await;
                }
                2 => {
                    living.process.note(|| "freezes until the very end".into());
                    self.chance.dealt("frozen process wakes at the very end");
                    living.process.freeze();
                    asleep.push(living);
                }
                3 => {
                    // It was taken for dead.
                    self.chance.dealt("rewound beside a process");
                    if self.chance.number(2) == 0 {
                        living.process.freeze();
                    }
                    self.rewinds(&mut wrong).await;
                    self.bury(&mut living, &mut wrong).await;
                }
                choice => {
                    wrong.extend(self.succeed(&mut living, choice > 4).await);
                    self.bury(&mut living, &mut wrong).await;
                }
            }
            if !wrong.is_empty() {
                return wrong;
            }
        }
        // The last process is harmed too, and must get over it.
        self.finish_rewinds(&mut wrong).await;
        let mut last = self.start();
        if self.plan.hostile {
            self.harm(&last, 1).await;
            self.produce(self.plan.records / 10);
            asleep.iter().for_each(|living| living.process.wake());
            self.harm(&last, 2).await;
            self.chance.hostile.store(false, Ordering::SeqCst);
        }
        if let Ok(outcome) = tokio::time::timeout(Duration::from_millis(1), &mut last.running).await {
            last.process.note(|| format!("ended: {outcome:?}"));
            last.ended = true;
            self.bury(&mut last, &mut wrong).await;
            self.finish_rewinds(&mut wrong).await;
            last = self.start();
        }
        for living in &mut asleep {
            // One that dies in the supervisor comes back with a generation of its own, and may win.
            let woken = tokio::time::timeout(Duration::from_secs(20), &mut living.running).await;
            living.ended = woken.is_ok();
            living.process.note(|| format!("ended: {woken:?}"));
            if woken.is_err()
                && !living.stands_by()
                && living.handle.board().snapshot().generation < last.handle.board().snapshot().generation
            {
                wrong.push(format!("process {} woke up and did not step down", living.process.number));
            }
            self.bury(living, &mut wrong).await;
        }
        let patience = Instant::now() + CATCHING_UP;
        while !self.all_begun() && Instant::now() < patience {
            self.attend(&mut last, &mut wrong).await;
        }
        let produced: usize = self.kafka.logs.lock().unwrap().values().map(|log| log.records.len()).sum();
        self.produce(self.plan.records.saturating_sub(produced));
        let closed = Some(self.produce_last());
        let patience = Instant::now() + CATCHING_UP;
        let mut differences = self.differences(closed);
        while !differences.is_empty() && Instant::now() < patience {
            self.attend(&mut last, &mut wrong).await;
            differences = self.differences(closed);
        }
        last.handle.stop();
        match tokio::time::timeout(Duration::from_secs(60), &mut last.running).await {
            Ok(Ok(Outcome::Stopped)) => last.ended = true,
            other => wrong.push(format!("the last process ended with {other:?}")),
        }
        self.bury(&mut last, &mut wrong).await;
        wrong.extend(self.differences(closed));
        wrong
    }

    /// What was noticed on the way.
    fn noticed(&self) -> Vec<String> {
        let mut wrong = std::mem::take(&mut self.contents.lock().unwrap().broken);
        wrong.extend(self.table.conflicts.lock().unwrap().iter().cloned());
        wrong.extend(self.ledger.broken.lock().unwrap().iter().cloned());
        wrong
    }
}

/// Runs a world on one thread in virtual time.
pub fn on_one_thread<T: 'static>(plan: Plan, live: impl AsyncFnOnce(&World) -> T + 'static) -> (World, T) {
    run(plan, true, live)
}

/// Runs a world in real time.
pub fn in_real_time<T: 'static>(plan: Plan, live: impl AsyncFnOnce(&World) -> T + 'static) -> (World, T) {
    run(plan, false, live)
}

fn run<T: 'static>(plan: Plan, paused: bool, live: impl AsyncFnOnce(&World) -> T + 'static) -> (World, T) {
    panics::listen();
    let system = actix_rt::System::with_tokio_rt(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap()
    });
    let ((world, out), panics) = panics::during(|| {
        system.block_on(async move {
            let world = World::new(plan);
            let chance = Arc::clone(&world.chance);
            let busy = move || chance.strikes("thread busy", 6).then(|| Duration::from_millis(chance.number(300)));
            busy::ask(Some(Box::new(busy)));
            let out = live(&world).await;
            busy::ask(None);
            (world, out)
        })
    });
    world.ledger.broken.lock().unwrap().extend(panics);
    (world, out)
}

/// Lives through a plan.
pub fn simulate(plan: Plan) -> Report {
    let (world, mut wrong) = on_one_thread(plan, async |world| world.live().await);
    wrong.extend(world.noticed());
    let faults = world.chance.dealt.lock().unwrap().clone();
    let records = world.kafka.logs.lock().unwrap().values().map(|log| log.records.len()).sum();
    let checkpoints = world.contents.lock().unwrap().checkpoints;
    Report { faults, records, checkpoints, wrong, trace: world.trace.lines() }
}
