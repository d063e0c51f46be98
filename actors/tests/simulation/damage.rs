//! A segment of a shard goes bad while nobody runs: the shard goes back to an earlier state where everything that it read since
//! can be read and written again, and otherwise it halts and changes nothing.

use std::sync::atomic::Ordering;

use strandline_actors::board::{ActorId, Life};
use strandline_actors::pointer::Pointer;
use strandline_actors::run::Outcome;

use crate::halt::until;
use crate::life::on_one_thread;
use crate::world::{Living, Plan, World};

fn pointer(world: &World) -> Pointer {
    world.contents.lock().unwrap().pointers[&0].clone()
}

/// A process commits several checkpoints and ends; then a segment of the newest state of shard 0 goes bad.
async fn lives_and_is_harmed(world: &World) {
    let Living { handle, running, .. } = world.start();
    for _ in 0..5 {
        world.produce(40);
        until("everything is counted", || world.differences(None).is_empty()).await;
    }
    handle.stop();
    assert_eq!(running.await.unwrap(), Outcome::Stopped);
    let pointer = pointer(world);
    let kept = &pointer.kept[0];
    let newest = pointer.content.state.iter().find(|segment| !kept.state.contains(segment));
    let newest = newest.expect("the last checkpoint wrote state");
    world.contents.lock().unwrap().damaged.insert(newest.key);
}

/// Halts for this reason, with its pointer as it was, and goes on when what was damaged is mended.
async fn halts(world: &World, reason: &str) {
    let before = pointer(world);
    let Living { handle, running, .. } = world.start();
    let shard = || handle.board().snapshot().shards.get(&0).map(|shard| shard.actor.clone());
    until("the shard halts", || shard().is_some_and(|actor| actor.life == Life::Halted)).await;
    let why = shard().unwrap().last_error.unwrap_or_default();
    assert!(why.contains("going back to an earlier state is not possible") && why.contains(reason), "{why}");
    let after = pointer(world);
    assert_eq!((&after.content, &after.kept), (&before.content, &before.kept), "nothing is changed");
    world.contents.lock().unwrap().damaged.clear();
    assert!(handle.resume(ActorId::Shard(0)).await);
    world.produce(40);
    until("everything is counted once", || world.differences(None).is_empty()).await;
    handle.stop();
    assert_eq!(running.await.unwrap(), Outcome::Stopped);
}

#[test]
fn a_shard_goes_back_where_everything_can_be_computed_again() {
    on_one_thread(Plan::quiet(20), async |world| {
        lives_and_is_harmed(world).await;
        let before = pointer(world);
        let Living { handle, running, .. } = world.start();
        world.produce(40);
        until("everything is counted once", || world.differences(None).is_empty()).await;
        assert!(pointer(world).epoch > before.epoch);
        handle.stop();
        assert_eq!(running.await.unwrap(), Outcome::Stopped);
        assert_eq!(world.differences(None), Vec::<String>::new());
    });
}

#[test]
fn a_shard_halts_where_its_sink_would_show_rows_twice() {
    on_one_thread(Plan { replaces: false, ..Plan::quiet(21) }, async |world| {
        lives_and_is_harmed(world).await;
        halts(world, "the sink would show rows twice").await;
    });
}

#[test]
fn a_shard_halts_where_its_query_gives_other_rows_the_second_time() {
    on_one_thread(Plan::quiet(22), async |world| {
        lives_and_is_harmed(world).await;
        halts(&world.unrepeatable("it is not the same twice"), "it is not the same twice").await;
    });
}

#[test]
fn a_shard_halts_where_its_topic_is_compacted() {
    on_one_thread(Plan::quiet(23), async |world| {
        lives_and_is_harmed(world).await;
        world.kafka.thins.store(true, Ordering::SeqCst);
        halts(world, "topic `orders` is compacted, so records that were counted may be gone").await;
    });
}

#[test]
fn a_shard_halts_where_a_partition_was_found_since_and_windows_close() {
    on_one_thread(Plan::quiet(24), async |world| {
        let Living { handle, running, .. } = world.start();
        world.produce(100);
        until("everything is counted", || world.differences(None).is_empty()).await;
        let found = world.kafka.partition(world.kafka.grow()).key;
        world.produce(40);
        until("the partition is committed", || pointer(world).content.vector.get(&found).is_some()).await;
        handle.kill();
        assert_eq!(running.await.unwrap(), Outcome::Failed("killed".into()));
        let pointer = pointer(world);
        let before = pointer.kept.iter().find(|kept| kept.vector.get(&found).is_none());
        let before = before.expect("an earlier state is kept that does not know it").state.clone();
        {
            let mut contents = world.contents.lock().unwrap();
            let stored: Vec<_> = contents.segments.keys().copied().collect();
            let needed = |key| before.iter().any(|segment| segment.key == key);
            contents.damaged.extend(stored.into_iter().filter(|key| key.shard == 0 && !needed(*key)));
        }
        halts(&world.closing(), "was found after the earlier state").await;
    });
}
