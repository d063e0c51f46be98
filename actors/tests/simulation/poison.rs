//! Records on which the stage panics every time, or the process dies: they are set aside, and nothing else is.

use std::sync::atomic::Ordering;
use std::time::Duration;

use strandline_actors::board::Life;
use strandline_actors::message::Target;
use strandline_actors::pointer::Generation;
use strandline_actors::ports::{CrashNote, Suspects};
use strandline_actors::position::{Offset, Range};
use strandline_actors::run::{Handle, Outcome};
use tokio::time::Instant;

use crate::halt::until;
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
        self.contents.lock().unwrap().notes.get(&key).and_then(|note| note.1.clone())
    }

    /// Waits until a single record is tried that was not tried before.
    async fn until_one_is_tried(&self, after: &mut i64) {
        let patience = Instant::now() + Duration::from_secs(300);
        loop {
            let tried = self.crash_note(0).and_then(|note| note.trying).filter(|trying| trying.records() == 1);
            if let Some(tried) = tried.map(|trying| trying.range.from.0).filter(|tried| tried > after) {
                *after = tried;
                return;
            }
            assert!(Instant::now() < patience, "no single record after {after} is tried: {:?}", self.crash_note(0));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A note of so many deaths at the beginning.
fn noted(deaths: u32) -> CrashNote {
    CrashNote::new(Offset(0), Generation(0), deaths)
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

impl World {
    /// Starts processes until all that kills them is found. Answers how many died.
    async fn dies_until_right(&self, at_most: u32) -> u32 {
        let mut deaths = 0;
        let living = loop {
            let mut living = self.start();
            tokio::select! {
                () = until_right(self) => break living,
                outcome = &mut living.running => assert_eq!(outcome.unwrap(), Outcome::Failed("killed".into())),
            }
            living.process.ended(&mut Vec::new());
            deaths += 1;
            assert!(deaths <= at_most, "not all was found: {:?}", self.crash_note(0));
        };
        living.handle.stop();
        assert_eq!(living.running.await.unwrap(), Outcome::Stopped);
        deaths
    }
}

/// Case: poison (actix#158).
#[test]
fn several_records_that_kill_the_process_in_one_batch_are_all_found() {
    for seed in 0..10 {
        on_one_thread(Plan::quiet(120 + seed), async |world| {
            for number in 0..60 {
                let value = if [20, 21, 30].contains(&number) { DEADLY } else { number };
                world.kafka.produce(0, number % 7, value, number);
            }
            world.produce(60);
            world.dies_until_right(6 + 3 * 3).await;
        });
    }
}

/// It is read before anything is committed, and after more batches than a second's worth of patience.
#[test]
fn a_record_that_kills_the_process_far_beyond_the_last_commit_is_found() {
    for seed in 0..4 {
        on_one_thread(Plan::quiet(130 + seed), async |world| {
            let world = &world.with_batches_of(1);
            world.contents.lock().unwrap().moving_takes = Duration::from_secs(20);
            for number in 0..120 {
                world.kafka.produce(0, number % 7, if number == 90 { DEADLY } else { number }, number);
            }
            world.dies_until_right(8).await;
        });
    }
}

/// After a compaction a few records may span very many offsets.
#[test]
fn a_record_that_kills_the_process_is_found_in_a_log_with_large_holes() {
    for seed in 0..4 {
        on_one_thread(Plan::quiet(140 + seed), async |world| {
            for number in 0..300 {
                world.kafka.produce(0, number % 7, if number == 200 { DEADLY } else { number }, number);
                world.kafka.logs.lock().unwrap().get_mut(&0).unwrap().end += 10_000;
            }
            world.dies_until_right(16).await;
        });
    }
}

/// A process that ends by itself, other than on request, has not died of what it was trying.
#[test]
fn a_process_that_ends_since_its_committer_crashed_too_often_accuses_nobody() {
    for seed in 0..4 {
        on_one_thread(Plan::quiet(150 + seed), async |world| {
            (0..300).for_each(|number| world.kafka.produce(0, number % 7, number, number));
            let suspect = Some(Suspects::new(Range::new(Offset(0), Offset(16)), 16));
            let note = CrashNote { suspect, ..noted(7) };
            world.contents.lock().unwrap().notes.insert(world.kafka.partition(0).key, (0, Some(note)));
            let Living { handle, running, .. } = world.with_budget(0).start();
            world.until_one_is_tried(&mut -1).await;
            handle.crash(Target::Committer);
            assert!(matches!(running.await.unwrap(), Outcome::Failed(_)));
            assert_eq!(world.crash_note(0).unwrap().trying, None);
        });
    }
}

/// A process that is told to stop while the note of what it tries is on its way has not died of it.
#[test]
fn a_process_that_is_stopped_while_it_notes_what_it_tries_accuses_nobody() {
    on_one_thread(Plan::quiet(158), async |world| {
        (0..300).for_each(|number| world.kafka.produce(0, number % 7, number, number));
        let suspect = Some(Suspects::new(Range::new(Offset(0), Offset(16)), 16));
        let note = CrashNote { suspect, ..noted(7) };
        {
            let mut contents = world.contents.lock().unwrap();
            contents.notes.insert(world.kafka.partition(0).key, (0, Some(note)));
            contents.noting_takes = Duration::from_millis(900);
        }
        let Living { handle, running, .. } = world.start();
        until("a note is on its way", || world.contents.lock().unwrap().tries_noted > 0).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.crash_note(0).unwrap().trying, None);
    });
}

/// Case: poison (actix#158). Each place costs three panics, and there are more places than a budget has restarts for.
#[test]
fn many_places_with_poison_halt_nobody_who_gets_on() {
    on_one_thread(Plan::quiet(160), async |world| {
        for number in 0..900 {
            world.kafka.produce(0, number % 7, if number % 60 == 30 { POISON } else { number }, number);
        }
        let Living { handle, running, .. } = world.with_budget(5).start();
        until_right(world).await;
        let restarts = handle.board().snapshot().partitions.values().map(|status| status.actor.restarts).max();
        assert!(restarts.is_some_and(|restarts| restarts > 20), "{restarts:?}");
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
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
            let suspect = Some(Suspects::new(Range::new(Offset(0), Offset(16)), 16));
            let note = CrashNote { suspect, ..noted(7) };
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

/// Waits in real time, as long as it takes on a machine that is busy with something else.
async fn until_in_real_time(handle: &Handle, condition: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(600);
    while !condition() {
        assert!(Instant::now() < patience, "{:?}", handle.board().snapshot().events);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// After this time without an await a thread is given up. Where the tests run it may well stand still for a second.
const STALL: Duration = Duration::from_secs(2);

/// The thread on which it is processed is lost each time, with all actors that live there; it is found all the same, and the
/// shards are not charged for it. Each partition has one, so that together they cost more threads than the budget has restarts.
#[test]
fn a_record_that_hangs_the_stage_is_set_aside_and_nobody_else_halts() {
    in_real_time(Plan::quiet(80), async |world| {
        let world = &world.with_budget(8).on_threads(1, STALL);
        for number in 0..60 {
            for partition in 0..3 {
                world.kafka.produce(partition, number % 7, if number == 40 { HANGS } else { number }, number);
            }
        }
        let Living { handle, running, .. } = world.start();
        until_in_real_time(&handle, || world.differences(None).is_empty()).await;
        let board = handle.board().snapshot();
        let shards = board.shards.values().map(|shard| (&shard.actor, shard.actor.restarts));
        assert!(
            shards.clone().any(|(_, restarts)| restarts > 8),
            "more than the budget: {:?}",
            shards.collect::<Vec<_>>()
        );
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// Partition 1 and shard 0 live on one of two threads. Each time that thread is lost, all partitions are started again before
/// it is given up, since a shard on the other one panics: the hang is known all the same, and charged to whoever hung.
#[test]
fn a_thread_that_hangs_is_given_up_although_its_actors_are_started_again_meanwhile() {
    in_real_time(Plan::quiet(81), async |world| {
        let world = &world.on_threads(2, STALL);
        for number in 0..60 {
            for partition in 0..3 {
                let hangs = partition == 1 && number == 40;
                world.kafka.produce(partition, number % 7, if hangs { HANGS } else { number }, number);
            }
        }
        let Living { handle, running, .. } = world.start();
        let hanging = || world.ledger.hanging.load(Ordering::SeqCst);
        let mut hung = 0;
        loop {
            until_in_real_time(&handle, || hanging() > hung || world.differences(None).is_empty()).await;
            if hanging() == hung {
                break;
            }
            hung = hanging();
            let restarts = || handle.board().snapshot().shards[&1].actor.restarts;
            let before = restarts();
            handle.crash(if hung == 2 { Target::Supervisor } else { Target::Shard(1) });
            if hung != 2 {
                until_in_real_time(&handle, || restarts() > before).await;
            }
        }
        assert!((4..=8).contains(&hung), "{hung} hung until the record was found");
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// A shard that is halted has no life to be lost with its thread.
#[test]
fn a_lost_thread_does_not_start_halted_shards_again() {
    in_real_time(Plan::quiet(82), async |world| {
        let world = &world.with_budget(4).on_threads(2, STALL);
        world.refusing.store(0, Ordering::SeqCst);
        world.produce(60);
        let Living { handle, running, .. } = world.start();
        let shard = || handle.board().snapshot().shards.get(&0).map(|shard| shard.actor.clone()).unwrap_or_default();
        until_in_real_time(&handle, || shard().life == Life::Halted).await;
        let halted = shard();
        world.kafka.produce(1, 1, HANGS, 0);
        let key = world.kafka.partition(1).key;
        until_in_real_time(&handle, || handle.board().snapshot().partitions[&key].actor.restarts > 1).await;
        assert_eq!((shard().life, shard().restarts), (Life::Halted, halted.restarts));
        handle.kill();
        assert_eq!(running.await.unwrap(), Outcome::Failed("killed".into()));
    });
}
