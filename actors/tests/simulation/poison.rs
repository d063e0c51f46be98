//! Records on which the stage panics every time, or the process dies: they are set aside, and nothing else is.

use std::time::Duration;

use strandline_actors::board::Life;
use strandline_actors::message::Target;
use strandline_actors::pointer::Generation;
use strandline_actors::ports::CrashNote;
use strandline_actors::position::{Offset, Range};
use strandline_actors::run::Outcome;
use tokio::time::Instant;

use crate::life::{in_real_time, on_one_thread};
use crate::query::{DEADLY, HANGS, POISON};
use crate::world::{Living, Plan, World};

async fn until_right(world: &World) {
    let patience = Instant::now() + Duration::from_secs(300);
    while !world.differences(None).is_empty() {
        assert!(Instant::now() < patience, "{:?}", world.differences(None));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Case: poison (actix#158). After three panics at one place the batch is cut down to the record, which goes to the dead
/// letters, and the partition goes on; what stood with it in one batch is counted once.
#[test]
fn a_record_that_panics_every_time_is_set_aside_and_its_partition_goes_on() {
    on_one_thread(Plan::quiet(3), async |world| {
        world.produce(100);
        // Two neighbours, one alone, and one at the very end of its partition.
        for (partition, values) in [(0, vec![POISON, POISON, 5, 6, 7, POISON, 8]), (1, vec![1, 2, POISON])] {
            values.into_iter().for_each(|value| world.kafka.produce(partition, 3, value, 0));
        }
        let Living { handle, running, .. } = world.start();
        until_right(world).await;
        let panics = |partition: i32| -> u64 {
            let board = handle.board().snapshot();
            board.partitions.iter().filter(|(key, _)| key.partition == partition).map(|(_, p)| p.actor.restarts).sum()
        };
        // A place for each batch that holds poison, three panics for each place.
        assert!(panics(0) >= 3 && panics(1) >= 3, "{} and {}", panics(0), panics(1));
        assert_eq!(panics(2), 0, "a partition without poison is left alone");
        assert!(handle.board().snapshot().partitions.values().all(|status| status.actor.life == Life::Running));
        world.produce(100);
        until_right(world).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

impl World {
    fn crash_note(&self, partition: i32) -> Option<CrashNote> {
        let key = self.kafka.partition(partition).key;
        self.contents.lock().unwrap().notes.get(&key).and_then(|note| note.1)
    }

    /// Waits until a single record is tried that was not tried before.
    async fn until_one_is_tried(&self, after: &mut i64) {
        for _ in 0..300_000 {
            let tried =
                self.crash_note(0).and_then(|note| note.trying).filter(|range| range.until.0 - range.from.0 == 1);
            if let Some(tried) = tried.filter(|range| range.from.0 > *after) {
                *after = tried.from.0;
                return;
            }
            assert!(Instant::now().elapsed() < Duration::from_secs(300));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("no single record after {after} is tried: {:?}", self.crash_note(0));
    }
}

/// A record that kills the process, far behind the beginning: what is before it is committed between the deaths.
#[test]
fn a_record_that_kills_the_process_is_found_after_a_few_deaths_although_others_are_committed() {
    for seed in 0..10 {
        on_one_thread(Plan::quiet(40 + seed), async |world| {
            for number in 0..900 {
                world.kafka.produce(0, number % 7, if number == 700 { DEADLY } else { number }, number);
            }
            world.produce(100);
            let mut deaths = 0;
            let living = loop {
                let mut living = world.start();
                let until_right = until_right(world);
                tokio::select! {
                    () = until_right => break living,
                    outcome = &mut living.running => assert_eq!(outcome.unwrap(), Outcome::Failed("killed".into())),
                }
                living.process.ended(&mut Vec::new());
                deaths += 1;
                assert!(deaths <= 16, "it was not found: {:?}", world.crash_note(0));
            };
            assert!(deaths >= 7, "{deaths} deaths are not enough to accuse somebody");
            living.handle.stop();
            assert_eq!(living.running.await.unwrap(), Outcome::Stopped);
        });
    }
}

/// While suspects are tried one by one, shards and the supervisor crash and the process is stopped: nobody died of what was
/// being tried, and nothing is set aside.
#[test]
fn suspects_that_are_tried_while_something_else_ends_are_not_accused() {
    for seed in 0..10 {
        on_one_thread(Plan::quiet(60 + seed), async |world| {
            for number in 0..300 {
                world.kafka.produce(0, number % 7, number, number);
            }
            world.produce(100);
            let suspect = Some(Range::new(Offset(0), Offset(16)));
            let note = CrashNote { position: Offset(0), generation: Generation(0), deaths: 7, suspect, trying: None };
            world.contents.lock().unwrap().notes.insert(world.kafka.partition(0).key, (0, Some(note)));
            let mut tried = -1;
            let mut living = world.start();
            for end in 0..8 {
                world.until_one_is_tried(&mut tried).await;
                match end % 3 {
                    0 => {
                        living.handle.stop();
                        assert_eq!(living.running.await.unwrap(), Outcome::Stopped);
                        living = world.start();
                    }
                    1 => living.handle.crash(Target::Shard(0)),
                    _ => living.handle.crash(Target::Supervisor),
                }
            }
            until_right(world).await;
            living.handle.stop();
            assert_eq!(living.running.await.unwrap(), Outcome::Stopped);
            assert_eq!(world.differences(None), Vec::<String>::new());
        });
    }
}

/// The thread on which it is processed is lost each time, with all actors that live there; it is found all the same, and the
/// shards are not charged for it. Each partition has one, so that together they cost more threads than the budget has restarts.
#[test]
fn a_record_that_hangs_the_stage_is_set_aside_and_nobody_else_halts() {
    in_real_time(Plan::quiet(80), async |world| {
        let world = &world.with_budget(14).on_threads(1, Duration::from_millis(500));
        for number in 0..60 {
            for partition in 0..3 {
                world.kafka.produce(partition, number % 7, if number == 40 { HANGS } else { number }, number);
            }
        }
        let Living { handle, running, .. } = world.start();
        let patience = Instant::now() + Duration::from_secs(120);
        while !world.differences(None).is_empty() {
            assert!(Instant::now() < patience, "{:?}", handle.board().snapshot().events);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let board = handle.board().snapshot();
        let shards = board.shards.values().map(|shard| (&shard.actor, shard.actor.restarts));
        assert!(
            shards.clone().any(|(_, restarts)| restarts > 14),
            "more than the budget: {:?}",
            shards.collect::<Vec<_>>()
        );
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}
