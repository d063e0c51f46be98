//! Where reading begins and goes on: after a crash, with partitions that are added, and with a topic that is another one.

use std::collections::BTreeMap;

use rdkafka::producer::Producer;
use uuid::Uuid;

use crate::balance;
use crate::stand::{PATIENCE, Service, Stand, count_of};
use crate::test_topic::{Sent, producer, send};

fn sql(stand: &Stand, options: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (qty BIGINT) STORED AS JSON LOCATION 'kafka://{}' {options};
         CREATE EXTERNAL TABLE result (part INT, n BIGINT, total BIGINT, PRIMARY KEY (part)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT _partition, count(*), sum(qty) FROM orders GROUP BY _partition",
        stand.topic.name, stand.keyspace, stand.table
    )
}

/// Records with these quantities.
fn orders(quantities: impl IntoIterator<Item = i64>) -> Vec<String> {
    quantities.into_iter().map(|qty| format!("{{\"qty\":{qty}}}")).collect()
}

/// How many orders, and how many pieces, by partition.
async fn table(stand: &Stand) -> BTreeMap<i32, (i64, i64)> {
    let read = format!("SELECT part, n, total FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(i32, i64, i64)>().unwrap().map(|row| row.unwrap()).map(|row| (row.0, (row.1, row.2))).collect()
}

/// What became of the offsets, as the service shows it: processed, gaps, lost.
fn counts(service: &Service) -> [u64; 3] {
    let status = service.status();
    ["processed", "gaps", "lost"].map(|of| count_of(&status, of).unwrap())
}

/// Case: off by one (arroyo#910, risingwave#5192). Few records, where being off by one shows.
#[tokio::test(flavor = "multi_thread")]
async fn one_record_is_one_and_three_are_three_after_a_crash() {
    let (stand, patient) = (Stand::new(1).await, [("CHECKPOINT__QUIET_INTERVAL", "300ms")]);
    let sql = sql(&stand, "");
    let mut sent = 0;
    for more in [vec![1], vec![10, 100], vec![1000]] {
        sent += more.len() as i64;
        stand.topic.fill(0, orders(more)).await;
        let wanted = BTreeMap::from([(0, (sent, [0, 1, 0, 111, 1111][sent as usize]))]);
        // Read by one life, found by the next, which has no more to read and commits nothing else.
        for life in 0..2 {
            let service = stand.start_with(&sql, &patient);
            service.until_ready().await;
            service.until_each_shard_committed().await;
            stand.until_committed(&[(0, sent)].into()).await;
            assert_eq!(table(&stand).await, wanted, "life {life} after {sent} records");
            service.kill();
        }
    }
}

/// Case: new partition (flink-connector-kafka PR#28).
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_added_is_read_from_its_beginning_also_at_latest() {
    let stand = Stand::new(1).await;
    stand.topic.fill(0, orders(0..10)).await;
    let sql = sql(&stand, "OPTIONS ('starting.offsets' 'latest')");
    let more = [("KAFKA__DISCOVERY_INTERVAL", "500ms")];
    let service = stand.start_with(&sql, &more);
    service.until_ready().await;
    stand.topic.fill(0, orders([7; 5])).await;
    // One is added and filled while the service runs, before it is found.
    stand.topic.add_partitions(2).await;
    stand.topic.fill(1, orders(0..100)).await;
    stand.until_committed(&[(0, 15), (1, 100)].into()).await;
    let mut wanted = BTreeMap::from([(0, (5, 35)), (1, (100, 4950))]);
    assert_eq!(table(&stand).await, wanted);
    service.kill();
    // And one while it does not.
    stand.topic.add_partitions(3).await;
    stand.topic.fill(2, orders(0..100)).await;
    let service = stand.start_with(&sql, &more);
    stand.until_committed(&[(0, 15), (1, 100), (2, 100)].into()).await;
    wanted.insert(2, (100, 4950));
    assert_eq!(table(&stand).await, wanted);
    service.stop().await;
}

/// The id of the topic that a pipeline has read.
async fn topic_id(stand: &Stand, pipeline: &str) -> Uuid {
    let read = format!("SELECT topic_id FROM {}.start_offsets WHERE pipeline = '{pipeline}'", stand.keyspace);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    let mut ids: Vec<Uuid> = rows.rows::<(Uuid,)>().unwrap().map(|row| row.unwrap().0).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0]
}

/// Case: topic recreated (quickwit#1602, materialize#20141). With fewer records than before, and with more.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_made_anew_while_it_was_stopped_is_refused() {
    for (anew, name) in [(3, "fewer"), (30, "more")] {
        let stand = Stand::new(1).await;
        let sql = sql(&stand, "");
        stand.topic.fill(0, orders(0..10)).await;
        let service = stand.start(&sql);
        stand.until_committed(&[(0, 10)].into()).await;
        service.kill();
        let old = topic_id(&stand, &stand.pipeline).await;

        stand.topic.delete().await;
        stand.topic.create_again(1, &[]).await;
        stand.topic.fill(0, orders(0..anew)).await;
        let service = stand.start_with(&sql, &[("CHECKPOINT__QUIET_INTERVAL", "300ms")]);
        service
            .until("the partition halts", |status| status.to_string().contains("was deleted and created again"))
            .await;
        service.until_each_shard_committed().await;

        // Another pipeline takes the new topic for what it is.
        let other = sql.replace(&format!("/{}'", stand.table), &format!("/{}_other'", stand.table));
        let pipeline = format!("{}-other", stand.pipeline);
        let second = stand.start_with(&other, &[("PIPELINE__NAME", &pipeline)]);
        second.until_ready().await;
        let new = topic_id(&stand, &pipeline).await;
        second.kill();
        assert_ne!(old, new);

        let (code, health) = service.get("/healthz").unwrap();
        assert_eq!(code, 503, "{name}: {health}");
        for part in [&old.to_string(), &new.to_string(), &stand.topic.name, "another pipeline name"] {
            assert!(health.contains(part), "{name}: {part:?} in {health}");
        }
        assert_eq!(table(&stand).await, [(0, (10, 45))].into(), "{name}");
        assert_eq!(stand.offsets().await, [(0, 10)].into(), "{name}");
        service.stop().await;
    }
}

/// Case: offset out of range (librdkafka#4224). Records were deleted while the service was stopped in front of them: the
/// partition halts and says so; under `skip` it goes on at the log's start, and the loss is counted for ever.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_were_deleted_while_it_was_stopped_halt_the_partition_or_are_counted_as_lost() {
    let stand = Stand::new(2).await;
    let quiet = [("CHECKPOINT__QUIET_INTERVAL", "300ms")];
    stand.topic.fill(0, orders([1; 10])).await;
    stand.topic.fill(1, orders([5; 10])).await;
    let service = stand.start_with(&sql(&stand, ""), &quiet);
    stand.until_committed(&[(0, 10), (1, 10)].into()).await;
    service.kill();
    stand.topic.fill(0, orders([1; 90])).await;
    stand.topic.delete_records(0, 50).await;

    let service = stand.start_with(&sql(&stand, ""), &quiet);
    service.until("the partition halts", |status| status.to_string().contains("starts at offset 50 by now")).await;
    let (code, health) = service.get("/healthz").unwrap();
    let name = format!("{}-0 halts at offset 10", stand.topic.name);
    for part in [name.as_str(), "40 offsets were deleted", "'on.data.loss' 'skip'", "table `orders`"] {
        assert!(code == 503 && health.contains(part), "{part:?} in {health}");
    }
    // The other partition is none the worse.
    stand.topic.fill(1, orders([5; 10])).await;
    stand.until_committed(&[(0, 10), (1, 20)].into()).await;
    assert_eq!(table(&stand).await, [(0, (10, 10)), (1, (20, 100))].into());
    service.kill();

    let skip = sql(&stand, "OPTIONS ('on.data.loss' 'skip')");
    for life in 0..2 {
        let service = stand.start_with(&skip, &quiet);
        service.until_each_shard_committed().await;
        stand.until_committed(&[(0, 100), (1, 20)].into()).await;
        assert_eq!(table(&stand).await, [(0, (60, 60)), (1, (20, 100))].into(), "life {life}");
        assert_eq!(counts(&service), [80, 0, 40], "life {life}");
        if life == 0 {
            let said = service.said();
            let loud = said.lines().any(|line| line.contains("ERROR") && line.contains("40 offsets were deleted"));
            assert!(loud, "{said}");
            assert!(service.status().to_string().contains("they are lost"), "it is among the events");
        }
        service.kill();
    }
}

/// The same after a crash between the commits of two shards, so that one of them has counted some of what is deleted then: what
/// is lost is what none has counted, and the balance is even.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_below_shards_that_stand_apart_is_what_none_has_counted() {
    let stand = Stand::new(1).await;
    let sql = |options: &str| {
        sql(&stand, options).replace("_partition", "qty").replace("SELECT qty", "SELECT CAST(qty AS INT)")
    };
    let mut end = 0;
    // Two pointers are moved by claims, the third by the first checkpoint.
    loop {
        assert!(end < 400, "never did one shard commit without the other");
        stand.topic.fill(0, orders((end..end + 10).map(|n| n % 10))).await;
        end += 10;
        stand.start_to_die(&sql(""), "pointer-sent", 3).killed_itself().await;
        let found = balance::of(stand.stored().await).await;
        if found.values().any(|balance| balance.position < balance.highest) {
            break;
        }
    }
    stand.topic.fill(0, orders((end..end + 40).map(|n| n % 10))).await;
    stand.topic.delete_records(0, end + 10).await;
    let all = (end + 40) as u64;

    let service = stand.start_with(&sql("OPTIONS ('on.data.loss' 'skip')"), &[("CHECKPOINT__QUIET_INTERVAL", "300ms")]);
    stand.until_committed(&[(0, end + 40)].into()).await;
    service.until_each_shard_committed().await;
    let [processed, gaps, lost] = counts(&service);
    assert_eq!((processed + lost, gaps), (all, 0));
    // At least what came after the highest, and less than what came after the lowest: the highest has counted some of that.
    assert!((11..20).contains(&lost), "{lost}");
    service.stop().await;
    balance::holds(stand.stored().await).await;
    let counted: i64 = table(&stand).await.values().map(|row| row.0).sum();
    assert_eq!(counted as u64, processed);
}

/// Case: gap that is no loss (druid#5404). Markers of transactions and what was aborted are no records, and nobody halts for
/// them, also when the service stopped inside a hole.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_without_records_are_gaps_and_no_loss() {
    let stand = Stand::new(1).await;
    let sql = sql(&stand, "");
    let mut sent = 0;
    for life in 0..3_i64 {
        let name = stand.topic.name.clone();
        tokio::task::spawn_blocking(move || {
            let patience = PATIENCE;
            let producer = producer(&[("transactional.id", &name)]);
            producer.init_transactions(patience).unwrap();
            for transaction in 0..6 {
                producer.begin_transaction().unwrap();
                for _ in 0..5 {
                    let value = orders([1]).remove(0);
                    send(&producer, &name, 0, Sent { key: None, value: Some(value.as_bytes()), headers: None });
                }
                producer.flush(patience).unwrap();
                // The last one of each life is aborted, so the position ends behind a hole.
                match transaction % 3 {
                    2 => producer.abort_transaction(patience).unwrap(),
                    _ => producer.commit_transaction(patience).unwrap(),
                }
            }
        })
        .await
        .unwrap();
        sent += 20;
        let end = (life + 1) * 6 * 6;
        let service = stand.start_with(&sql, &[("CHECKPOINT__QUIET_INTERVAL", "300ms")]);
        service.until_each_shard_committed().await;
        stand.until_committed(&[(0, end)].into()).await;
        assert_eq!(table(&stand).await, [(0, (sent, sent))].into());
        assert_eq!(counts(&service), [sent as u64, (end - sent) as u64, 0]);
        service.kill();
    }
}

/// Case: idle partition (flink PR#14679, numaflow#3399), as far as there is event time. A partition in which nothing comes
/// holds nothing back, and what comes into it later, as a backlog behind a crash, is counted whole.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_partition_holds_nothing_back_and_loses_nothing() {
    let stand = Stand::new(3).await;
    let sql = sql(&stand, "OPTIONS ('max.offsets.per.batch' '50')");
    let service = stand.start(&sql);
    stand.topic.fill(0, orders([1; 500])).await;
    stand.until_committed(&[(0, 500), (1, 0), (2, 0)].into()).await;
    assert_eq!(table(&stand).await, [(0, (500, 500))].into());
    stand.topic.fill(1, orders([2; 2_000])).await;
    service.kill();
    stand.topic.fill(0, orders([1; 10])).await;
    let service = stand.start(&sql);
    stand.until_committed(&[(0, 510), (1, 2_000), (2, 0)].into()).await;
    assert_eq!(table(&stand).await, [(0, (510, 510)), (1, (2_000, 4_000))].into());
    service.stop().await;
}
