//! A shard that crashes whatever is done halts, and the rest goes on; resumed, it catches up from where it stood.

use std::sync::atomic::Ordering;
use std::time::Duration;

use strandline_actors::board::{ActorId, Life};
use strandline_actors::position::Offset;
use strandline_actors::run::Outcome;

use crate::life::on_one_thread;
use crate::query::PANICS;
use crate::world::{Living, Plan, World};

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(tokio::time::Instant::now() < patience, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether the table holds the truth of all keys of a shard (in this query, key modulo shards).
fn complete(world: &World, shard: i64) -> bool {
    let truth = world.found().sums;
    let rows = world.table.rows.lock().unwrap();
    truth
        .iter()
        .filter(|(key, _)| *key % 2 == shard)
        .all(|(key, sum)| rows.get(key).is_some_and(|row| (row.0, row.1) == *sum))
}

#[test]
fn a_shard_that_keeps_crashing_halts_and_the_rest_goes_on() {
    on_one_thread(Plan::quiet(7), async |world| {
        world.produce(200);
        let Living { handle, running, .. } = world.with_budget(4).start();
        until("the first records are counted", || world.differences(None).is_empty()).await;
        let offsets = || -> Vec<Offset> { world.contents.lock().unwrap().offsets.values().map(|row| row.0).collect() };
        let before = offsets();

        world.refusing.store(1, Ordering::SeqCst);
        world.produce(200);
        until("shard 1 halts", || handle.board().snapshot().shards[&1].actor.life == Life::Halted).await;
        until("shard 0 goes on", || complete(world, 0)).await;
        assert!(!complete(world, 1));
        assert_eq!(offsets(), before, "kafka_offsets moves only with all shards");
        assert_eq!(handle.board().snapshot().shards[&0].actor.restarts, 0, "shard 0 was never loaded again");

        world.refusing.store(-1, Ordering::SeqCst);
        world.produce(100);
        assert!(!handle.resume(ActorId::Shard(0)).await, "shard 0 is not halted");
        assert!(handle.resume(ActorId::Shard(1)).await);
        until("everything is counted once", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
        assert_eq!(world.differences(None), Vec::<String>::new());
    });
}

#[test]
fn a_committer_that_keeps_crashing_ends_the_process() {
    on_one_thread(Plan::quiet(8), async |world| {
        world.produce(50);
        let Living { handle, running, .. } = world.with_budget(3).start();
        for _ in 0..4 {
            let restarts = handle.board().snapshot().committer.actor.restarts;
            until("the committer runs", || handle.board().snapshot().committer.actor.life == Life::Running).await;
            handle.crash(strandline_actors::message::Target::Committer);
            until("it crashes", || handle.board().snapshot().committer.actor.restarts > restarts).await;
        }
        match running.await.unwrap() {
            Outcome::Failed(why) => assert!(why.contains("the offset committer crashed too often"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}

/// Case: topic recreated (quickwit#1602, materialize#20141).
#[test]
fn a_topic_that_was_made_anew_is_not_read_into_the_old_state_even_when_resumed() {
    on_one_thread(Plan::quiet(9), async |world| {
        world.produce(50);
        let Living { handle, running, .. } = world.start();
        until("the first records are counted", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
        let before = world.table.rows.lock().unwrap().clone();

        let again = world.with_new_topic(78);
        let Living { handle, running, .. } = again.start();
        let halted = || {
            let board = handle.board().snapshot();
            !board.partitions.is_empty() && board.partitions.values().all(|status| status.actor.life == Life::Halted)
        };
        until("its partitions halt", halted).await;
        for key in handle.board().snapshot().partitions.keys() {
            assert!(!handle.resume(ActorId::Partition(*key)).await, "it has no start, and cannot be resumed");
        }
        assert!(halted());
        handle.stop();
        running.await.unwrap();
        assert_eq!(*world.table.rows.lock().unwrap(), before, "nothing was counted twice");
    });
}

/// The broker that leads a partition is away for long, while another knows the partition's end: it is read again and again, and
/// goes on by itself when the broker is back.
#[test]
fn a_partition_that_gets_nothing_for_long_goes_on_by_itself() {
    on_one_thread(Plan::quiet(10), async |world| {
        world.produce(100);
        world.kafka.withheld.lock().unwrap().insert(1);
        let Living { handle, running, .. } = world.with_budget(4).start();
        let key = world.kafka.partition(1).key;
        let status = || handle.board().snapshot().partitions.get(&key).cloned();
        until("it is looked for", || status().is_some_and(|status| status.actor.restarts > 0)).await;
        tokio::time::sleep(Duration::from_secs(1_200)).await;
        let status = status().unwrap();
        assert!(status.actor.restarts > 4 && status.actor.life != Life::Halted, "{:?}", status.actor);
        world.kafka.withheld.lock().unwrap().clear();
        until("everything is counted once", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// Nobody leads it, so nobody can say where its log begins.
#[test]
fn a_new_partition_whose_start_nobody_tells_holds_no_other_up() {
    on_one_thread(Plan::quiet(17), async |world| {
        let Living { handle, running, .. } = world.start();
        until("the first are found", || handle.board().snapshot().partitions.len() == 3).await;
        let untold = world.kafka.grow();
        world.kafka.untold.lock().unwrap().insert(untold);
        let other = world.kafka.grow();
        until("the other is found", || handle.board().snapshot().partitions.len() == 4).await;
        (0..50).for_each(|time| world.kafka.produce(other, time % 7, 1, time));
        let counted = || world.table.rows.lock().unwrap().values().map(|row| row.1).sum::<i64>();
        until("it is read", || counted() == 50).await;
        world.kafka.untold.lock().unwrap().clear();
        (0..50).for_each(|time| world.kafka.produce(untold, time % 7, 1, time));
        until("everything is counted", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// With all that is at first, reading begins: what is read before it could close its windows.
#[test]
fn partitions_that_are_there_at_first_are_waited_for() {
    on_one_thread(Plan { latest: true, ..Plan::quiet(18) }, async |world| {
        world.kafka.untold.lock().unwrap().insert(1);
        let Living { handle, running, .. } = world.start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(handle.board().snapshot().partitions.is_empty());
        world.kafka.untold.lock().unwrap().clear();
        until("all are found", || handle.board().snapshot().partitions.len() == 3).await;
        world.produce(100);
        until("everything is counted", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// What does not get on has one budget, whatever else goes on.
#[test]
fn a_partition_that_does_not_get_on_halts_alone() {
    on_one_thread(Plan::quiet(12), async |world| {
        world.produce(100);
        let Living { handle, running, .. } = world.with_budget(4).start();
        until("the first records are counted", || world.differences(None).is_empty()).await;
        world.kafka.broken.lock().unwrap().insert(1);
        handle.crash(strandline_actors::message::Target::Partition(1));
        let life = |partition| handle.board().snapshot().partitions[&world.kafka.partition(partition).key].actor.life;
        until("it halts", || life(1) == Life::Halted).await;
        assert_eq!((life(0), life(2)), (Life::Running, Life::Running));
        world.kafka.broken.lock().unwrap().clear();
        assert!(handle.resume(ActorId::Partition(world.kafka.partition(1).key)).await);
        world.produce(100);
        until("everything is counted once", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// Passing over it takes longer than a partition may get nothing at first.
#[test]
fn a_partition_passes_a_very_large_aborted_transaction_in_the_end() {
    on_one_thread(Plan::quiet(13), async |world| {
        world.produce(100);
        world.kafka.aborted.lock().unwrap().insert(1, Duration::from_secs(200));
        let Living { handle, running, .. } = world.start();
        let read = |handle: &strandline_actors::run::Handle| {
            let status = handle.board().snapshot().partitions.get(&world.kafka.partition(1).key).cloned();
            status.is_some_and(|status| status.rows > 0)
        };
        for _ in 0..100 {
            if read(&handle) {
                break;
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        until("everything is counted once", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}

/// A shard that died in the middle of a message is not given up in its next life for what the former one was at.
#[test]
fn a_shard_that_panicked_in_a_message_is_not_called_stalled_in_its_next_life() {
    on_one_thread(Plan::quiet(11), async |world| {
        world.produce(50);
        let Living { handle, running, .. } = world.start();
        until("the first records are counted", || world.differences(None).is_empty()).await;
        world.refusing.store(PANICS, Ordering::SeqCst);
        world.produce(50);
        let shard = || handle.board().snapshot().shards[&0].actor.clone();
        let before = shard().incarnation;
        world.contents.lock().unwrap().reading_takes = Duration::from_secs(40);
        until("shard 0 panics", || shard().restarts > 0).await;
        world.refusing.store(-1, Ordering::SeqCst);
        let restarts = shard().restarts;
        until("shard 0 is loaded", || {
            let board = handle.board().snapshot();
            let status = &board.shards[&0];
            assert!(status.actor.life != Life::Starting || status.busy.is_none(), "it has handled nothing yet");
            status.actor.life == Life::Running && status.actor.incarnation > before
        })
        .await;
        assert_eq!(shard().restarts, restarts, "{:?}", shard());
        until("everything is counted once", || world.differences(None).is_empty()).await;
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
    });
}
