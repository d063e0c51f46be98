//! What was told to stand still does so whatever crashes, has nothing half done, and goes on where it stood.

use std::collections::BTreeMap;
use std::time::Duration;

use strandline_actors::board::Life;
use strandline_actors::message::Target;
use strandline_actors::pause::{Scope, Wished};
use strandline_actors::position::Offset;
use strandline_actors::run::{Handle, Outcome};

use crate::halt::until;
use crate::life::on_one_thread;
use crate::world::{Living, Plan};

fn all_paused(handle: &Handle) -> bool {
    let board = handle.board().snapshot();
    !board.partitions.is_empty() && board.partitions.values().all(|status| status.actor.life == Life::Paused)
}

/// Where each shard stands in each partition, once all that it has is committed.
fn committed(handle: &Handle) -> Vec<BTreeMap<i32, Offset>> {
    let board = handle.board().snapshot();
    let of = |positions: &BTreeMap<_, Offset>| {
        positions
            .iter()
            .map(|(key, at): (&strandline_actors::position::PartitionKey, _)| (key.partition, *at))
            .collect()
    };
    board.shards.values().map(|shard| of(&shard.positions)).collect()
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
