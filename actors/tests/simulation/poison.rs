//! Records on which the stage panics every time: they are set aside, and nothing else is.

use std::time::Duration;

use strandline_actors::board::Life;
use strandline_actors::run::Outcome;

use crate::life::on_one_thread;
use crate::query::POISON;
use crate::world::{Living, Plan, World};

async fn until_right(world: &World) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(300);
    while !world.differences(None).is_empty() {
        assert!(tokio::time::Instant::now() < patience, "{:?}", world.differences(None));
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
