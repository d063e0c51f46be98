//! Logs that are not just a row of records: transactions, compaction, deleted records, topics that are deleted, made anew
//! or grown.

use std::time::{Duration, Instant};

use rdkafka::producer::Producer;
use strandline::catalog::{KafkaTopic, OnDataLoss, StartingOffsets};
use strandline::kafka::KafkaSource;
use strandline::settings::KafkaSettings;
use strandline_actors::ports::{BatchLimit, Source};
use strandline_actors::position::Offset;
use tokio::time::timeout;

use super::{LARGE, PATIENCE, Reading, halted, numbered, open_topic, settings, table, values};
use crate::own_server::OwnServer;
use crate::test_topic::{Sent, TestTopic, producer, send, servers};

/// Case: gap that is no loss (druid#5404).
#[tokio::test(flavor = "multi_thread")]
async fn only_committed_transactions_are_read_and_the_end_is_reached() {
    let topic = TestTopic::create("transactions", 1, &[]).await;
    let name = topic.name.clone();
    let (open, committed) = tokio::task::spawn_blocking(move || {
        let producer = producer(&[("transactional.id", &name)]);
        producer.init_transactions(PATIENCE).unwrap();
        let mut committed = Vec::new();
        for transaction in 0..20 {
            producer.begin_transaction().unwrap();
            for i in 0..25 {
                let value = format!("t{transaction}-{i}");
                send(&producer, &name, 0, Sent { key: None, value: Some(value.as_bytes()), headers: None });
                if transaction % 3 != 1 {
                    committed.push(value);
                }
            }
            // A transaction that is aborted before anything was sent would leave no trace.
            producer.flush(PATIENCE).unwrap();
            match transaction % 3 {
                1 => producer.abort_transaction(PATIENCE).unwrap(),
                _ => producer.commit_transaction(PATIENCE).unwrap(),
            }
        }
        (producer, committed)
    })
    .await
    .unwrap();

    // 25 records and one marker each.
    let end = 20 * 26;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(end, BatchLimit { rows: 10, bytes: 1 << 20 }).await;
    assert_eq!(reading.position, end);
    assert_eq!(reading.end, Some(end));
    assert_eq!(reading.records.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(), committed);

    // Opened inside a transaction that was aborted: nothing of it comes.
    let mut inside = Reading::open(&source, &partitions[0], 26 + 5).await;
    inside.until(end, LARGE).await;
    assert_eq!(inside.records.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), committed[25..]);

    // (Nothing is taken from the middle of a topic of the usual kind.)
    assert!(!timeout(PATIENCE, source.thins(&partitions[0])).await.unwrap().unwrap());

    // A transaction that stays open hides its records, and the reader does not seem to lag behind them.
    let name = topic.name.clone();
    let open = tokio::task::spawn_blocking(move || {
        open.begin_transaction().unwrap();
        send(&open, &name, 0, Sent { key: None, value: Some(b"open"), headers: None });
        open.flush(PATIENCE).unwrap();
        open
    })
    .await
    .unwrap();
    let mut inside = Reading::open(&source, &partitions[0], end - 10).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        inside.next(LARGE).await.unwrap();
        assert!(inside.position <= end);
        // Behind the last marker stands only what cannot be read yet.
        if inside.position == end {
            assert_eq!(inside.end, Some(end), "the end of what can be read");
        }
    }
    assert_eq!(inside.position, end);
    assert!(inside.open_transaction, "it is not quiet either");
    tokio::task::spawn_blocking(move || open.commit_transaction(PATIENCE).unwrap()).await.unwrap();
    inside.until(end + 2, LARGE).await;
    inside.next(LARGE).await.unwrap();
    assert_eq!((inside.end, inside.open_transaction), (Some(end + 2), false));
    assert_eq!(inside.records.last().unwrap(), &(end, "open".to_owned()));
}

/// Case: gap that is no loss (druid#5404).
#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_compacted_holes_is_read_without_a_word() {
    let config = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "50"),
        ("min.cleanable.dirty.ratio", "0.0"),
        ("max.compaction.lag.ms", "1"),
    ];
    let topic = TestTopic::create("compacted", 1, &config).await;
    let name = topic.name.clone();
    let fill = move |from: i64| {
        let name = name.clone();
        tokio::task::spawn_blocking(move || {
            let producer = producer(&[]);
            for i in from..from + 300 {
                // Few keys that are written again and again, so that most records are compacted away.
                let (key, value) = (format!("k{}", i % 7), format!("v-{i}"));
                let sent = Sent { key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers: None };
                send(&producer, &name, 0, sent);
            }
            producer.flush(PATIENCE).unwrap();
        })
    };
    let (source, partitions) = open_topic(table(&topic.name)).await;
    assert!(timeout(PATIENCE, source.thins(&partitions[0])).await.unwrap().unwrap(), "it says that it has holes");
    let started = Instant::now();
    let mut end = 0;
    // The cleaner works when it likes, on segments that are no longer written: feed it until holes show.
    let reading = loop {
        fill(end).await.unwrap();
        end += 300;
        let mut reading = Reading::open(&source, &partitions[0], 0).await;
        reading.until(end, BatchLimit { rows: 50, bytes: 1 << 20 }).await;
        if (reading.records.len() as i64) < end - 200 {
            break reading;
        }
        assert!(started.elapsed() < PATIENCE * 2, "nothing is compacted away");
    };
    assert_eq!(reading.position, end);
    for (offset, value) in &reading.records {
        assert_eq!(*value, format!("v-{offset}"));
    }
    // Opened inside a hole.
    let missing = (0..end).find(|offset| reading.records.iter().all(|(there, _)| there != offset)).unwrap();
    let mut inside = Reading::open(&source, &partitions[0], missing).await;
    inside.until(end, LARGE).await;
    assert!(inside.records[0].0 > missing);
}

/// Case: offset out of range (librdkafka#4224).
#[tokio::test(flavor = "multi_thread")]
async fn records_that_were_deleted_before_they_were_read_halt_the_partition() {
    let topic = TestTopic::create("lost", 1, &[]).await;
    topic.fill(0, values("v", 0..100)).await;
    topic.delete_records(0, 50).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reading = Reading::open(&source, &partitions[0], 10).await;
    let reason = halted(reading.error().await);
    for part in [topic.name.as_str(), "offset 10", "offset 50", "40 offsets", "'on.data.loss' 'skip'", "`orders`"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(reading.records.is_empty());
    // At the log's start nothing is lost.
    let mut reading = Reading::open(&source, &partitions[0], 50).await;
    reading.until(100, LARGE).await;
    assert_eq!(reading.records, numbered("v", 50..100));
}

/// Case: offset out of range (librdkafka#4224).
#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_can_be_skipped_and_the_range_covers_them() {
    let topic = TestTopic::create("skipped", 2, &[]).await;
    for partition in 0..2 {
        topic.fill(partition, values("v", 0..100)).await;
    }
    topic.delete_records(0, 50).await;
    topic.delete_records(1, 100).await;
    let (source, partitions) = open_topic(KafkaTopic { on_data_loss: OnDataLoss::Skip, ..table(&topic.name) }).await;
    let mut reading = Reading::open(&source, &partitions[0], 10).await;
    reading.until(100, LARGE).await;
    assert_eq!(reading.records, numbered("v", 50..100));
    // Where nothing is left at all.
    let mut reading = Reading::open(&source, &partitions[1], 10).await;
    reading.until(100, LARGE).await;
    assert!(reading.records.is_empty());
    topic.fill(1, values("v", 100..110)).await;
    reading.until(110, LARGE).await;
    assert_eq!(reading.records, numbered("v", 100..110));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_deleted_in_front_of_a_slow_reader_are_noticed() {
    let topic = TestTopic::create("overtaken", 1, &[]).await;
    let long = "x".repeat(10_000);
    topic.fill(0, (0..5_000).map(move |i| format!("v-{i}-{long}")).collect::<Vec<_>>()).await;
    // Little is fetched ahead, so the reader is overtaken.
    let settings = KafkaSettings { fetch_memory: 1 << 20, ..settings(&servers()) };
    let source = KafkaSource::connect(&settings, &[table(&topic.name)]).await.unwrap();
    let partitions = source.partitions().await.unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(10, BatchLimit { rows: 10, bytes: 1 << 20 }).await;
    topic.delete_records(0, 4_000).await;
    let reason = halted(reading.error().await);
    assert!(reason.contains("starts at offset 4000"), "{reason}");
    // What was read until then is whole.
    let position = reading.position;
    assert!(reason.contains(&format!("halts at offset {position}")), "{reason}");
    assert_eq!(
        reading.records.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(),
        (0..position).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_beyond_the_log_halts_the_partition() {
    let topic = TestTopic::create("beyond", 1, &[]).await;
    topic.fill(0, values("v", 0..10)).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reading = Reading::open(&source, &partitions[0], 11).await;
    let reason = halted(reading.error().await);
    assert!(reason.contains("ends at offset 10") && reason.contains("offset 11"), "{reason}");
}

/// A replica that has not got the last records comes to lead, and its log grows beyond the position: only the epochs of the
/// leaders tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_cut_and_has_grown_beyond_the_position_halts_the_partition() {
    let first = OwnServer::start("kafka").await;
    let folder = first.folder().display().to_string();
    let joined = ["--join", &folder];
    let (second, third) =
        tokio::join!(OwnServer::start_with("kafka", "", &joined), OwnServer::start_with("kafka", "", &joined));
    let servers = [first.address(), second.address(), third.address()].join(",");
    let (leader, follower) = (i32::from(second.port()), i32::from(third.port()));
    let unclean = [("unclean.leader.election.enable", "true"), ("min.insync.replicas", "1")];
    let topic = TestTopic::create_on(&servers, "cut", &[leader, follower], &unclean).await;
    topic.led_by(leader).await;
    let fill = async |acks: &str, prefix: &str, range| {
        topic.fill_with(&[("bootstrap.servers", &servers), ("acks", acks)], 0, values(prefix, range)).await;
    };
    fill("all", "old", 0..100).await;
    third.does("kill").await;
    fill("1", "old", 100..150).await;
    let source = KafkaSource::connect(&settings(&servers), &[table(&topic.name)]).await.unwrap();
    let partitions = source.partitions().await.unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(150, LARGE).await;

    second.does("kill").await;
    third.does("start").await;
    topic.led_by(follower).await;
    fill("1", "new", 100..200).await;
    let reason = halted(reading.error().await);
    assert!(reason.contains("was cut below the position") && reason.contains("halts at offset 150"), "{reason}");
    assert_eq!(reading.records, numbered("old", 0..150));
}

/// Case: topic recreated (quickwit#1602, materialize#20141).
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_anew_is_never_taken_for_the_old_one() {
    // Fewer records than the position, and more: then the position is there, and only the id tells.
    for refilled in [3, 5_000] {
        let topic = TestTopic::create("recreated", 1, &[]).await;
        topic.fill(0, values("old", 0..1_000)).await;
        let (source, partitions) = open_topic(table(&topic.name)).await;
        let mut reading = Reading::open(&source, &partitions[0], 0).await;
        reading.until(1_000, LARGE).await;

        topic.delete().await;
        topic.create_again(1, &[]).await;
        topic.fill(0, values("new", 0..refilled)).await;

        // The reader that was reading.
        let reason = halted(reading.error().await);
        assert_eq!(reading.records, numbered("old", 0..1_000));
        let now = source.partitions().await.unwrap();
        assert_ne!(now[0].key, partitions[0].key);
        let ids = [partitions[0].key.topic_id, now[0].key.topic_id].map(strandline::kafka::kafka_form);
        for part in [topic.name.as_str(), "deleted and created again", &ids[0], &ids[1], "new name"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }

        // A reader that is opened with the old id, by this process and by the next one.
        let next = super::source(table(&topic.name)).await;
        for source in [&source, &next] {
            let error = source.open(&partitions[0], Offset(1_000)).await.err().unwrap();
            assert!(halted(error).contains(&ids[1]));
        }

        // With the new id it is read as what it is.
        let mut reading = Reading::open(&next, &now[0], 0).await;
        reading.until(refilled, LARGE).await;
        assert_eq!(reading.records, numbered("new", 0..refilled));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_anew_behind_a_fetch_that_rests_is_not_read_on() {
    let topic = TestTopic::create("swapped", 1, &[]).await;
    let long = |prefix: &'static str| (0..2_000).map(move |i| format!("{prefix}-{i}-{}", "x".repeat(10_000)));
    topic.fill(0, long("old")).await;
    // Little is fetched ahead, so while nobody reads nothing is fetched, and the brokers say nothing.
    let settings = KafkaSettings { fetch_memory: 1 << 20, ..settings(&servers()) };
    let source = KafkaSource::connect(&settings, &[table(&topic.name)]).await.unwrap();
    let partitions = source.partitions().await.unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(10, BatchLimit { rows: 10, bytes: 1 << 20 }).await;

    topic.delete().await;
    topic.create_again(1, &[]).await;
    topic.fill(0, long("new")).await;

    let reason = halted(reading.error().await);
    assert!(reason.contains("deleted and created again"), "{reason}");
    assert!(reading.records.len() < 1_000, "{} records had been fetched", reading.records.len());
    for (offset, value) in &reading.records {
        assert!(value.starts_with(&format!("old-{offset}-")), "{offset}: {}", &value[..20]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_deleted_halts_its_partitions() {
    let topic = TestTopic::create("deleted", 1, &[]).await;
    topic.fill(0, values("v", 0..10)).await;
    let settings = KafkaSettings { discovery_interval: Duration::from_secs(1), ..settings(&servers()) };
    let source = KafkaSource::connect(&settings, &[table(&topic.name)]).await.unwrap();
    let partitions = source.partitions().await.unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(10, LARGE).await;
    topic.delete().await;
    let reason = halted(reading.error().await);
    assert!(reason.contains("does not exist any more") && reason.contains(&topic.name), "{reason}");
}

/// Case: new partition (flink-connector-kafka PR#28).
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_added_is_found_and_read() {
    let topic = TestTopic::create("added", 2, &[]).await;
    let (source, partitions) =
        open_topic(KafkaTopic { starting_offsets: StartingOffsets::Latest, ..table(&topic.name) }).await;
    assert_eq!(partitions.len(), 2);
    let mut first = Reading::open(&source, &partitions[0], 0).await;
    first.next(LARGE).await.unwrap();

    topic.add_partitions(3).await;
    topic.fill(2, values("v", 0..100)).await;
    let partitions = source.partitions().await.unwrap();
    assert_eq!(partitions.len(), 3);
    let start = source.start_offset(&partitions[2], true).await.unwrap();
    assert_eq!(start, Offset(0), "a discovered partition starts at its beginning");
    let mut reading = Reading::open(&source, &partitions[2], start.0).await;
    reading.until(100, LARGE).await;
    assert_eq!(reading.records, numbered("v", 0..100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_is_where_the_table_says() {
    let topic = TestTopic::create("starts", 4, &[]).await;
    for partition in 0..4 {
        topic.fill(partition, values("v", 0..20)).await;
        topic.delete_records(partition, 5).await;
    }
    let each = StartingOffsets::Each([(0, 7), (1, -1), (2, -2)].into());
    for (starting, expected) in
        [(StartingOffsets::Earliest, [5, 5, 5, 5]), (StartingOffsets::Latest, [20, 20, 20, 20]), (each, [7, 20, 5, 5])]
    {
        let (source, partitions) =
            open_topic(KafkaTopic { starting_offsets: starting.clone(), ..table(&topic.name) }).await;
        for (partition, expected) in partitions.iter().zip(expected) {
            let start = source.start_offset(partition, false).await.unwrap();
            assert_eq!(start, Offset(expected), "{starting:?} {partition}");
            assert_eq!(source.start_offset(partition, true).await.unwrap(), Offset(5), "{starting:?} {partition}");
        }
    }
}
