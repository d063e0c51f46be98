//! What was told to stand still does so whatever crashes, has nothing half done, and goes on where it stood.

use std::collections::BTreeMap;
use std::time::Duration;

use strandline_actors::board::{ActorId, Life};
use strandline_actors::message::Target;
use strandline_actors::pause::{Scope, Wished};
use strandline_actors::position::{Offset, Vector};
use strandline_actors::run::{Handle, Outcome};

use crate::halt::until;
use crate::life::on_one_thread;
use crate::query::WINDOW;
use crate::world::{Living, Plan, World};

fn all_paused(handle: &Handle) -> bool {
    let board = handle.board().snapshot();
    !board.partitions.is_empty() && board.partitions.values().all(|status| status.actor.life == Life::Paused)
}

/// Where each shard stands in each partition, once all that it has is committed.
fn committed(handle: &Handle) -> Vec<BTreeMap<i32, Offset>> {
    let board = handle.board().snapshot();
    let of = |positions: &Vector| positions.0.iter().map(|(key, at)| (key.partition, at.next)).collect();
    board.shards.values().map(|shard| shard.positions.as_deref().map(of).unwrap_or_default()).collect()
}

/// Produces for every partition, in the order of time.
fn produce(world: &World, from: i64, until: i64) {
    for time in (from..until).step_by(5) {
        (0..3).for_each(|partition| world.kafka.produce(partition, time % 7, 1, time));
    }
}

/// Rows that met a closed window, by what is committed.
fn late_closed(world: &World) -> u64 {
    let contents = world.contents.lock().unwrap();
    let vectors = contents.pointers.values().map(|pointer| &pointer.content.vector);
    vectors.flat_map(|vector| vector.0.values()).map(|position| position.counts.late_closed).sum()
}

/// Whether every shard has committed all there is of the partitions beside the one that stands still.
fn others_are_read(world: &World, handle: &Handle) -> bool {
    let (logs, positions) = (world.kafka.logs.lock().unwrap(), committed(handle));
    positions.iter().all(|of| [0, 2].iter().all(|partition| of[partition].0 == logs[partition].end))
}

#[test]
fn what_is_paused_stands_still_whatever_crashes_and_goes_on_when_it_is_told_to() {
    for seed in 0..8 {
        on_one_thread(Plan::quiet(1_000 + seed), async |world| {
            world.produce(400);
            let Living { handle, running, .. } = world.start();
            assert_eq!(handle.pause(Scope::Pipeline).await, Wished::Unknown, "nobody owns the pipeline yet");
            until("something is read", || handle.board().snapshot().partitions.values().any(|p| p.batches > 0)).await;
            assert_eq!(handle.pause(Scope::Pipeline).await, Wished::Done);
            assert_eq!(handle.pause(Scope::Pipeline).await, Wished::Already);
            until("all partitions are paused", || all_paused(&handle)).await;
            // What was in flight is with every shard, so all shards come to stand where the partitions stand.
            let together = || {
                let board = handle.board().snapshot();
                let read: BTreeMap<i32, Offset> =
                    board.partitions.values().map(|status| (status.partition, status.position)).collect();
                let positions = committed(&handle);
                positions.len() == 2 && positions.iter().all(|of| *of == read)
            };
            until("all shards stand together", together).await;
            let before = committed(&handle);

            world.produce(200);
            for target in [Target::Shard(0), Target::Committer, Target::Partition(0), Target::Supervisor] {
                handle.crash(target);
                tokio::time::sleep(Duration::from_secs(30)).await;
                until("all is up again", || {
                    let board = handle.board().snapshot();
                    board.shards.values().all(|shard| shard.actor.life == Life::Running)
                })
                .await;
                until("they are still paused", || all_paused(&handle)).await;
                assert_eq!(committed(&handle), before, "after {target:?}");
            }

            // A process that is started anew knows it, too.
            let (handle, running) = {
                handle.kill();
                assert_eq!(running.await.unwrap(), Outcome::Failed("killed".into()));
                let Living { handle, running, .. } = world.start();
                until("the next process stands still", || all_paused(&handle)).await;
                tokio::time::sleep(Duration::from_secs(30)).await;
                until("its shards are loaded", || {
                    let board = handle.board().snapshot();
                    board.shards.len() == 2 && board.shards.values().all(|shard| shard.actor.life == Life::Running)
                })
                .await;
                assert!(all_paused(&handle) && handle.board().snapshot().paused);
                assert_eq!(committed(&handle), before, "after the next process began");
                (handle, running)
            };

            // One goes on while the others stand.
            let keys: Vec<_> = handle.board().snapshot().partitions.keys().copied().collect();
            assert_eq!(handle.go_on(Scope::Partition(keys[0])).await, Wished::Done);
            until("the first is read", || handle.board().snapshot().partitions[&keys[0]].actor.life == Life::Running)
                .await;
            for key in &keys[1..] {
                assert_eq!(handle.board().snapshot().partitions[key].actor.life, Life::Paused);
            }
            assert_eq!(handle.go_on(Scope::Pipeline).await, Wished::Done);
            assert_eq!(handle.go_on(Scope::Pipeline).await, Wished::Already);
            until("everything is counted once", || world.differences(None).is_empty()).await;
            handle.stop();
            assert_eq!(running.await.unwrap(), Outcome::Stopped);
            assert_eq!(world.differences(None), Vec::<String>::new());
        });
    }
}

/// A partition that is idle holds no windows open. Paused it does, so that what comes for it meanwhile is in its windows.
#[test]
fn a_partition_that_is_paused_while_it_is_idle_keeps_windows_open() {
    for seed in 0..4 {
        on_one_thread(Plan { idle: true, ..Plan::quiet(30 + seed) }, async |world| {
            produce(world, 0, 2 * WINDOW);
            let Living { handle, running, .. } = world.start();
            until("the first records are counted", || world.differences(None).is_empty()).await;
            until("partition 1 is idle", || world.ledger.idle_at.lock().unwrap().contains_key(&1)).await;
            let key = world.kafka.partition(1).key;
            assert_eq!(handle.pause(Scope::Partition(key)).await, Wished::Done);
            let paused = || handle.board().snapshot().partitions[&key].actor.life == Life::Paused;
            until("partition 1 is paused", paused).await;
            assert_eq!(late_closed(world), 0, "nothing came for it while it was idle");

            produce(world, 2 * WINDOW, 20 * WINDOW);
            until("the others are read", || others_are_read(world, &handle)).await;
            assert_eq!(handle.go_on(Scope::Partition(key)).await, Wished::Done);
            until("everything is counted once", || world.differences(None).is_empty()).await;
            assert_eq!(late_closed(world), 0);
            handle.stop();
            assert_eq!(running.await.unwrap(), Outcome::Stopped);
        });
    }
}

/// How it came to stand still after it was idle: by a wish after its own actor or a shard has died, or by a spent budget.
#[test]
fn a_partition_that_stands_still_after_it_died_while_idle_keeps_windows_open() {
    for (seed, dies) in [Target::Partition(1), Target::Shard(0), Target::Partition(1)].into_iter().enumerate() {
        on_one_thread(Plan { idle: true, ..Plan::quiet(90 + seed as u64) }, async move |world| {
            let halts = seed == 2;
            produce(world, 0, 2 * WINDOW);
            let Living { handle, running, .. } = world.with_budget(if halts { 0 } else { 20 }).start();
            until("the first records are counted", || world.differences(None).is_empty()).await;
            until("partition 1 is idle", || world.ledger.idle_at.lock().unwrap().contains_key(&1)).await;
            let key = world.kafka.partition(1).key;
            handle.crash(dies);
            if !halts {
                assert_eq!(handle.pause(Scope::Partition(key)).await, Wished::Done);
            }
            let life = || handle.board().snapshot().partitions[&key].actor.life;
            until("it stands still", || life() == if halts { Life::Halted } else { Life::Paused }).await;
            until("all shards are loaded", || {
                handle.board().snapshot().shards.values().all(|shard| shard.actor.life == Life::Running)
            })
            .await;
            assert_eq!(late_closed(world), 0, "nothing came for it while it was idle");

            produce(world, 2 * WINDOW, 20 * WINDOW);
            until("the others are read", || others_are_read(world, &handle)).await;
            if halts {
                assert!(handle.resume(ActorId::Partition(key)).await);
            } else {
                assert_eq!(handle.go_on(Scope::Partition(key)).await, Wished::Done);
            }
            until("everything is counted once", || world.differences(None).is_empty()).await;
            assert_eq!(late_closed(world), 0, "after {dies:?}");
            handle.stop();
            assert_eq!(running.await.unwrap(), Outcome::Stopped);
        });
    }
}

/// Records of an open transaction lie beyond the end, and are about to come.
#[test]
fn a_partition_with_an_open_transaction_is_not_idle() {
    on_one_thread(Plan { idle: true, ..Plan::quiet(50) }, async |world| {
        world.kafka.open_transactions.lock().unwrap().insert(1);
        world.produce(100);
        let Living { handle, running, .. } = world.start();
        let idle = |partition| world.ledger.idle_at.lock().unwrap().contains_key(&partition);
        until("the others are idle", || idle(0) && idle(2)).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(!idle(1));
        world.kafka.open_transactions.lock().unwrap().remove(&1);
        until("it is idle", || idle(1)).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// Its supervisor dies while another process takes over: it is a standby then, and begins with what is stored by the time it owns
/// the pipeline again.
#[test]
fn a_process_that_was_a_standby_meanwhile_knows_what_was_resumed() {
    for seed in 0..4 {
        on_one_thread(Plan::quiet(70 + seed), async |world| {
            world.produce(100);
            let Living { process, handle: first, running, .. } = world.start();
            until("the first records are counted", || world.differences(None).is_empty()).await;
            assert_eq!(first.pause(Scope::Pipeline).await, Wished::Done);
            until("all is paused", || all_paused(&first)).await;
            process.freeze();
            let second = world.start_as("another");
            let runs = |handle: &Handle| {
                let board = handle.board().snapshot();
                board.shards.len() == 2 && board.shards.values().all(|shard| shard.actor.life == Life::Running)
            };
            until("another takes over", || runs(&second.handle)).await;
            assert!(all_paused(&second.handle));
            // Before it learns that it is fenced.
            first.crash(Target::Supervisor);
            tokio::time::sleep(Duration::from_millis(1)).await;
            process.wake();
            until("the first is a standby", || first.board().snapshot().owner.is_some()).await;
            assert_eq!(second.handle.go_on(Scope::Pipeline).await, Wished::Done);
            world.produce(100);
            until("everything is counted once", || world.differences(None).is_empty()).await;
            second.handle.kill();
            second.running.await.unwrap();
            world.produce(100);
            until("the first goes on with all of it", || world.differences(None).is_empty()).await;
            assert!(!first.board().snapshot().paused);
            first.stop();
            assert_eq!(running.await.unwrap(), Outcome::Stopped);
        });
    }
}
