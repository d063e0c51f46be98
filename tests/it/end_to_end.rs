//! The service as its users run it: real processes, real Kafka, real Cassandra, records still arriving, killed at random.
//! In the end the table and `kafka_offsets` must be what an independent count of the produced records says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strandline_actors::board::{Life, PartitionStatus};
use strandline_actors::env::Pipeline;
use strandline_actors::message::Target;
use strandline_actors::run::Outcome;

use crate::shop::{PARTITIONS, Shop, committed, settle, sql};
use crate::stand::{PATIENCE, Stand, until};

/// Kills the service again and again, with records unread each time. Two lives of three commit something first; the third
/// ends while it starts.
async fn killed_again_and_again(kills: u32, by: &str) {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 100_000, 4_000);
    let mut with_unread = 0;
    for kill in 0..kills {
        let before = stand.offsets().await;
        let service = stand.start(&sql(&stand));
        let mut moment = u64::from(kill) * 7_919 % 400;
        if kill % 3 == 2 && by == "KILL" {
            moment *= 3;
        } else {
            // In each partition: who dies at one place again and again is taken for one that a record there kills.
            let what = format!("a commit of each partition before kill {kill}");
            until(&what, PATIENCE, async || gets_on(&before, &stand.offsets().await)).await;
        }
        // At any moment between two checkpoints.
        tokio::time::sleep(Duration::from_millis(moment)).await;
        // What is committed while the answer is on its way is newer than what had been produced before the question.
        let produced = shop.produced();
        match by {
            "TERM" => {
                with_unread += u32::from(committed(&stand).await < shop.produced());
                service.stop().await;
            }
            _ => {
                service.kill();
                with_unread += u32::from(committed(&stand).await < produced);
            }
        }
    }
    assert!(with_unread * 3 > kills * 2, "in {with_unread} of {kills} lives only, something was unread");
    let service = stand.start(&sql(&stand));
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    service.stop().await;
    // The last checkpoint changes nothing.
    settle(&stand, &truth, &ends).await;
}

/// Whether every partition is further than before.
fn gets_on(before: &BTreeMap<i32, i64>, now: &BTreeMap<i32, i64>) -> bool {
    let further = |(partition, offset): (&i32, &i64)| before.get(partition).is_none_or(|before| before < offset);
    now.len() == PARTITIONS as usize && now.iter().all(further)
}

/// How often it is killed: 30 times, or `RANDOM_KILLS`.
fn kills() -> u32 {
    std::env::var("RANDOM_KILLS").map_or(30, |kills| kills.parse().expect("RANDOM_KILLS is a number"))
}

/// Case: state and offsets apart (turbolytics/sql-flow#171).
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_no_row_is_lost_or_counted_twice() {
    killed_again_and_again(kills(), "KILL").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_ten_times_no_row_is_lost_or_counted_twice() {
    killed_again_and_again(10, "TERM").await;
}

/// More partitions than are fetched at a time, killed while they take turns.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_many_partitions_take_turns_no_row_is_lost_or_counted_twice() {
    const MANY: i32 = 40;
    const EACH: i64 = 10_000;
    const KEYS: i64 = 997;
    let stand = Stand::new(MANY).await;
    let sql = format!(
        "CREATE EXTERNAL TABLE numbers (k BIGINT, v BIGINT) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE result (k BIGINT, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT k, count(*), sum(v) FROM numbers GROUP BY k",
        stand.topic.name, stand.keyspace, stand.table
    );
    let value = |partition: i32, number: i64| (number * 31 + i64::from(partition) * 7, number * i64::from(partition));
    let mut truth: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for partition in 0..MANY {
        let values: Vec<(i64, i64)> = (0..EACH).map(|number| value(partition, number)).collect();
        for (k, v) in &values {
            let (count, total) = truth.entry(k % KEYS).or_default();
            (*count, *total) = (*count + 1, *total + v);
        }
        let records = values.into_iter().map(|(k, v)| format!(r#"{{"k":{},"v":{v}}}"#, k % KEYS));
        stand.topic.fill_with(&[("compression.type", "lz4")], partition, records).await;
    }
    let ends = (0..MANY).map(|partition| (partition, EACH)).collect();
    // Little memory, small batches and commits of all that there is, so that it takes long.
    let slowly = [("KAFKA__FETCH_MEMORY", "1MiB"), ("BATCH__ROWS", "100"), ("CHECKPOINT__INTERVAL", "50ms")];
    let mut unread = 0;
    for kill in 0..10 {
        let service = stand.start_with(&sql, &slowly);
        let before = committed(&stand).await;
        if before < i64::from(MANY) * EACH {
            stand.until_more_is_committed(before, &format!("a commit before kill {kill}")).await;
        }
        tokio::time::sleep(Duration::from_millis(kill * 37 % 200)).await;
        service.kill();
        unread += u32::from(committed(&stand).await < i64::from(MANY) * EACH);
    }
    assert!(unread > 5, "in {unread} lives only, something was unread");
    let service = stand.start_with(&sql, &slowly);
    stand.until_committed(&ends).await;
    service.stop().await;
    assert_eq!(stand.offsets().await, ends);
    let read = format!("SELECT k, n, total FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    let rows = rows.rows::<(i64, i64, i64)>().unwrap().map(|row| row.unwrap());
    assert_eq!(rows.map(|(k, n, total)| (k, (n, total))).collect::<BTreeMap<_, _>>(), truth);
}

/// A panic in each of the four actors, twice, while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn panics_in_every_actor_change_nothing() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 50_000, 4_000);
    let given = stand.environment(&sql(&stand)).into_iter().map(|(name, value)| (name.into(), value.into()));
    let settings = strandline::settings::load(&[], given).unwrap().settings;
    let opened = strandline::service::open(&settings).await.unwrap();
    let pipeline: Arc<Pipeline> = opened.pipeline;
    let (begun, handle) = std::sync::mpsc::channel();
    let running =
        std::thread::spawn(move || strandline::service::run_to_end(pipeline, 2, |handle| begun.send(handle).unwrap()));
    let handle = handle.recv().unwrap();
    let restarts = |of: &str| {
        let board = handle.board().snapshot();
        match of {
            "supervisor" => board.supervisor.restarts,
            "committer" => board.committer.actor.restarts,
            "aggregation" => board.shards.values().map(|shard| shard.actor.restarts).sum(),
            _ => board.partitions.values().map(|partition| partition.actor.restarts).sum(),
        }
    };
    until("something is committed", PATIENCE, async || committed(&stand).await > 0).await;
    for round in 0..2 {
        for (kind, target) in [
            ("partition", Target::Partition(round)),
            ("aggregation", Target::Shard(round)),
            ("committer", Target::Committer),
            ("supervisor", Target::Supervisor),
        ] {
            let (before, already) = (restarts(kind), committed(&stand).await);
            let others: BTreeMap<i32, u64> =
                handle.board().snapshot().partitions.values().map(|p| (p.partition, p.actor.incarnation)).collect();
            handle.crash(target);
            let what = format!("{kind} restarts");
            until(&what, PATIENCE, async || restarts(kind) > before).await;
            if kind == "partition" {
                let board = handle.board().snapshot();
                let changed = board
                    .partitions
                    .values()
                    .filter(|p| others.get(&p.partition) != Some(&p.actor.incarnation))
                    .count();
                assert!(changed <= 1, "the panic of one partition started {changed} again");
            }
            // Whoever is told to panic while it starts does not hear it.
            let anew = |p: &PartitionStatus| others.get(&p.partition) != Some(&p.actor.incarnation);
            until(&format!("all run after the panic of {kind}"), PATIENCE, async || {
                let board = handle.board().snapshot();
                let runs = |p: &PartitionStatus| p.actor.life == Life::Running && (kind == "partition" || anew(p));
                board.partitions.len() == others.len() && board.partitions.values().all(runs)
            })
            .await;
            let what = format!("something is committed after the panic of {kind}");
            until(&what, PATIENCE, async || committed(&stand).await > already).await;
        }
    }
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    handle.stop();
    let outcome = tokio::task::spawn_blocking(move || running.join().unwrap()).await.unwrap();
    assert_eq!(outcome, Outcome::Stopped);
    settle(&stand, &truth, &ends).await;
}
