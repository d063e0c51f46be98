//! Rewinds between the lives of processes, and beside them: some break off and are finished by the next, some are two at
//! once. What they mean is said by [`crate::history`]; here it is seen to that one which says it succeeded did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use strandline_actors::pointer::Pointer;
use strandline_actors::ports::{Heartbeat, KafkaOffset, StateStore, StoreError};
use strandline_actors::position::{Offset, PartitionKey};
use strandline_actors::rewind::{self, Rewind, RewindError, Stopped, Target};
use strandline_actors::run::Outcome;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::halt::until;
use crate::life::on_one_thread;
use crate::process::Process;
use crate::world::{FINGERPRINT, Living, Plan, World};

/// How long it may take until a process ends that has nothing to work on.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a rewind answers: the pointers in the end.
type Answer = Result<Vec<Option<Pointer>>, RewindError>;

/// A process that rewinds.
struct Rewinder {
    process: Arc<Process>,
    wish: Rewind,
    running: JoinHandle<Answer>,
}

impl Rewinder {
    /// Waits until it ends; no answer if it died on the way.
    async fn answer(&mut self) -> Option<Answer> {
        let answer = tokio::select! {
            answer = &mut self.running => answer.ok(),
            () = self.process.dies() => None,
        };
        self.running.abort();
        self.process.note(|| match &answer {
            Some(Ok(_)) => format!("has rewound `{}`", self.wish.wish),
            Some(Err(error)) => format!("has not rewound `{}`: {error}", self.wish.wish),
            None => format!("died while it rewound `{}`", self.wish.wish),
        });
        answer
    }
}

impl World {
    fn pointers(&self) -> Vec<Option<Pointer>> {
        let contents = self.contents.lock().unwrap();
        (0..self.plan.shards).map(|shard| contents.pointers.get(&shard).cloned()).collect()
    }

    /// The rewind whose marks the shards carry.
    pub fn marked(&self) -> Option<Rewind> {
        let marks = self.pointers().into_iter().flatten().find_map(|pointer| pointer.content.rewind);
        marks.map(|mark| Rewind { done: false, ..*mark })
    }

    fn starts(&self) -> BTreeMap<PartitionKey, Offset> {
        let contents = self.contents.lock().unwrap();
        let starts = contents.starts.iter().filter(|(key, _)| key.partition >= 0);
        starts.map(|(key, (_, start))| (*key, *start)).collect()
    }

    /// A rewind to somewhere, if there is anything to go back to.
    fn wish(&self) -> Option<Rewind> {
        let lowest = rewind::lowest(&self.pointers(), &self.starts());
        let reset = self.chance.number(2) == 0;
        let mut to = Vec::new();
        let mut back = false;
        for (key, low) in lowest {
            let start = self.history.start(key.partition);
            let goes = low.0 > start && self.chance.number(3) > 0;
            let next = if goes { Offset(start + self.chance.number((low.0 - start) as u64) as i64) } else { low };
            back |= goes;
            // With the state of one partition goes that of all.
            if goes || reset {
                to.push(Target { key, next });
            }
        }
        let places: Vec<String> = to.iter().map(|to| format!("{}@{}", to.key.partition, to.next)).collect();
        let number = self.numbered();
        let wish = format!("{number}: {}{}", places.join(" "), if reset { " with an empty state" } else { "" });
        back.then(|| Rewind {
            id: Uuid::from_u128(u128::from(number)),
            wish,
            to,
            reset,
            stateless: Vec::new(),
            done: false,
        })
    }

    /// Starts a process that begins a rewind, or finishes one.
    fn rewinder(&self, wish: Rewind, begun: bool) -> Rewinder {
        let process = self.process();
        process.note(|| format!("{} rewind `{}`", if begun { "finishes" } else { "begins" }, wish.wish));
        let (store, clock, starts) = (self.store(&process), self.clock(), self.starts());
        let (shards, chance, rewind) = (self.plan.shards, Arc::clone(&self.chance), wish.clone());
        let running = tokio::task::spawn_local(async move {
            let generation = loop {
                match store.next_generation().await {
                    Ok(generation) => break generation,
                    Err(_) => chance.pause(50).await,
                }
            };
            chance.pause(40).await;
            let stopped = Stopped { shards, fingerprint: FINGERPRINT.into(), starts, generation };
            let pointers = match begun {
                true => stopped.finish(&store, &clock, &rewind).await?,
                false => stopped.begin(&store, &clock, &rewind).await?,
            };
            // What is shown to people may be late.
            let timestamp = pointers.iter().flatten().map(|pointer| pointer.timestamp).max().unwrap_or_default();
            let lowest = rewind::lowest(&pointers, &stopped.starts).into_iter();
            let known = lowest.filter(|(key, _)| stopped.starts.contains_key(key));
            let offsets = known.map(|(key, offset)| {
                let (topic, partition) = ("orders".to_owned(), key.partition);
                KafkaOffset { topic, partition, offset }
            });
            let offsets: Vec<KafkaOffset> = offsets.collect();
            let _: Result<(), StoreError> = store.write_kafka_offsets(&offsets, timestamp).await;
            let (instance, beat, released) = ("rewind".into(), 0, true);
            let _: Result<(), StoreError> =
                store.write_heartbeat(&Heartbeat { generation, instance, beat, released }).await;
            Ok(pointers)
        });
        Rewinder { process, wish, running }
    }

    /// What is wrong with an answer.
    fn judge(&self, wish: &Rewind, answer: Option<&Answer>) -> Option<String> {
        let contents = self.contents.lock().unwrap();
        let moved = contents.rewound.get(&wish.id).map_or(0, BTreeSet::len);
        match answer {
            Some(Ok(_)) if moved < self.plan.shards as usize => {
                Some(format!("`{}` is said to be done, but {moved} shards were moved", wish.wish))
            }
            Some(Err(error @ (RewindError::Torn(_) | RewindError::Store(_)))) => Some(error.to_string()),
            Some(Err(RewindError::Other(other))) if other.id != wish.id && moved > 0 => {
                Some(format!("`{}` was moving, but `{}` is said to be the one", wish.wish, other.wish))
            }
            _ => None,
        }
    }

    /// Rewinds the pipeline, whoever may still work on it.
    pub async fn rewinds(&self, wrong: &mut Vec<String>) {
        let Some(wish) = self.wish() else { return };
        self.chance.dealt(if wish.reset { "rewound with an empty state" } else { "rewound with its state" });
        let mut rewinders = vec![self.rewinder(wish, false)];
        if self.chance.strikes("two rewinds at once", 2) {
            // It makes its plan before the first is seen, or finishes what it sees.
            let other = self.wish();
            self.chance.pause(400).await;
            match (self.marked(), other) {
                (Some(mark), _) if self.chance.number(2) == 0 => rewinders.push(self.rewinder(mark, true)),
                (_, Some(other)) => rewinders.push(self.rewinder(other, false)),
                _ => {}
            }
        }
        if self.chance.strikes("rewind broken off", 3) {
            self.chance.pause(400).await;
            rewinders[0].process.note(|| "is killed".into());
            rewinders[0].process.kill();
        }
        for rewinder in &mut rewinders {
            let answer = rewinder.answer().await;
            wrong.extend(self.judge(&rewinder.wish, answer.as_ref()));
        }
        self.finish_rewinds(wrong).await;
    }

    /// Finishes what is begun, if anything is. The mark of one that is dead may land late, so whoever finds that nothing
    /// starts does it again.
    pub async fn finish_rewinds(&self, wrong: &mut Vec<String>) {
        while let Some(mark) = self.marked().filter(|_| wrong.is_empty()) {
            if self.chance.strikes("started while a rewind is not finished", 2) {
                self.steps_down(wrong).await;
            }
            self.chance.dealt("rewind finished by another");
            let mut finisher = self.rewinder(mark, true);
            let answer = finisher.answer().await;
            wrong.extend(self.judge(&finisher.wish, answer.as_ref()));
        }
    }

    /// Starts a process on shards of which some are marked: it ends without having read anything.
    async fn steps_down(&self, wrong: &mut Vec<String>) {
        let mut living = self.start();
        let outcome = tokio::time::timeout(PATIENCE, &mut living.running).await;
        living.ended = outcome.is_ok();
        living.process.note(|| format!("ended: {outcome:?}"));
        match outcome {
            Ok(Ok(Outcome::SteppedDown(_))) => {}
            Ok(Ok(Outcome::Failed(why))) if why == "killed" => {}
            outcome => wrong.push(format!("a process that was started during a rewind ended with {outcome:?}")),
        }
        self.bury(&mut living, wrong).await;
    }

    /// Runs a process until all is counted.
    async fn catch_up(&self) {
        let Living { handle, running, .. } = self.start();
        until("everything is counted", || self.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    }
}

/// Nothing fails but the order in which the steps of several come: at most one is under way, each that says it is done is,
/// and whoever finishes what is left leaves a pipeline that goes on.
#[test]
fn of_several_rewinds_at_once_one_wins_and_none_tears_the_pipeline() {
    let mut overtaken = 0;
    for seed in 0..100 {
        let (_, refused) =
            on_one_thread(Plan { shards: 2 + (seed % 2) as u32, ..Plan::quiet(seed) }, async move |world| {
                world.produce(60);
                world.catch_up().await;
                // All have made their plan before one begins; and some see marks, and finish what is begun.
                let mut wishes: Vec<Rewind> = (0..8).filter_map(|_| world.wish()).take(3).collect();
                let mut rewinders: Vec<_> = wishes.pop().into_iter().map(|wish| world.rewinder(wish, false)).collect();
                for _ in 0..8 {
                    world.chance.pause(40).await;
                    match (world.chance.number(3), world.marked()) {
                        (0, _) => rewinders.extend(wishes.pop().map(|wish| world.rewinder(wish, false))),
                        (1, Some(mark)) => rewinders.push(world.rewinder(mark, true)),
                        _ => {
                            // One stands still between two of its steps while the others go on.
                            let late = &rewinders[world.chance.number(rewinders.len() as u64) as usize].process;
                            late.freeze();
                            world.chance.pause(150).await;
                            late.wake();
                        }
                    }
                }
                let (mut refused, mut done) = (0, 0);
                for rewinder in &mut rewinders {
                    let answer = rewinder.answer().await.unwrap();
                    assert_eq!(world.judge(&rewinder.wish, Some(&answer)), None, "seed {seed}");
                    (refused, done) = if answer.is_err() { (refused + 1, done) } else { (refused, done + 1) };
                }
                assert!(done > 0 || world.marked().is_some(), "seed {seed}: nobody won");
                if let Some(mark) = world.marked() {
                    let answer = world.rewinder(mark, true).answer().await.unwrap();
                    assert!(answer.is_ok(), "seed {seed}: {answer:?}");
                }
                assert_eq!(world.contents.lock().unwrap().broken, Vec::<String>::new(), "seed {seed}");
                world.produce(20);
                world.catch_up().await;
                refused
            });
        overtaken += refused;
    }
    assert!(overtaken > 50, "{overtaken} were overtaken");
}
