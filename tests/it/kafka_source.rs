//! The Kafka source against a real Kafka: every record once and in order, contiguous ranges, and what it says when the
//! log is not as expected.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::Producer;
use strandline::catalog::{KafkaTopic, OnDataLoss, StartingOffsets};
use strandline::kafka::{EmbeddedKafka, KafkaSource};
use strandline::settings::KafkaSettings;
use strandline_actors::ports::{BatchLimit, PartitionReader, Source, SourceBatch, SourceError, raw};
use strandline_actors::position::{Offset, SourcePartition};
use tokio::time::timeout;

use crate::test_topic::{Sent, TestTopic, producer, send, servers};

const LARGE: BatchLimit = BatchLimit { rows: 10_000, bytes: 1 << 20 };
const PATIENCE: Duration = Duration::from_secs(60);

fn table(topic: &str) -> KafkaTopic {
    KafkaTopic {
        table: "orders".into(),
        topic: topic.into(),
        starting_offsets: StartingOffsets::Earliest,
        max_offsets_per_batch: None,
        on_data_loss: OnDataLoss::Fail,
        properties: BTreeMap::new(),
        keys: false,
        headers: false,
    }
}

fn settings(servers: &str) -> KafkaSettings {
    KafkaSettings { bootstrap_servers: servers.into(), ..KafkaSettings::default() }
}

async fn source(table: KafkaTopic) -> Arc<KafkaSource> {
    KafkaSource::connect(&settings(&servers()), &[table]).await.unwrap()
}

/// The source of one topic, with its partitions.
async fn open_topic(table: KafkaTopic) -> (Arc<KafkaSource>, Vec<SourcePartition>) {
    let source = source(table).await;
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    (source, partitions)
}

/// What a reader said, with each batch held against the one before.
struct Reading {
    reader: Box<dyn PartitionReader>,
    position: i64,
    records: Vec<(i64, String)>,
    end: Option<i64>,
}

impl Reading {
    async fn open(source: &KafkaSource, partition: &SourcePartition, from: i64) -> Self {
        let reader = source.open(partition, Offset(from)).await.unwrap();
        Self { reader, position: from, records: Vec::new(), end: None }
    }

    fn take(&mut self, batch: SourceBatch, limit: BatchLimit) {
        assert_eq!(batch.range.from.0, self.position, "ranges are contiguous");
        let offsets = batch.records.column_by_name(raw::OFFSET).unwrap().as_primitive::<Int64Type>();
        let values = batch.records.column_by_name(raw::VALUE).unwrap().as_binary::<i32>();
        assert!(offsets.len() <= limit.rows, "{} rows", offsets.len());
        assert!(batch.bytes <= limit.bytes || offsets.len() == 1, "{} bytes in {} rows", batch.bytes, offsets.len());
        assert_eq!(batch.bytes, values.iter().flatten().map(<[u8]>::len).sum::<usize>());
        for (offset, value) in offsets.values().iter().zip(values.iter()) {
            assert!((self.position..batch.range.until.0).contains(offset), "{offset} in {}", batch.range);
            self.position = offset + 1;
            self.records.push((*offset, String::from_utf8(value.unwrap_or_default().to_vec()).unwrap()));
        }
        assert!(batch.end.is_none_or(|end| end >= batch.range.until));
        self.end = batch.end.map(|end| end.0);
        self.position = batch.range.until.0;
    }

    async fn next(&mut self, limit: BatchLimit) -> Result<(), SourceError> {
        let batch = timeout(PATIENCE, self.reader.next(limit)).await.expect("an answer in time")?;
        self.take(batch, limit);
        Ok(())
    }

    /// Reads until a position.
    async fn until(&mut self, until: i64, limit: BatchLimit) {
        let started = Instant::now();
        while self.position < until {
            self.next(limit).await.unwrap();
            assert!(started.elapsed() < PATIENCE, "stands at {} instead of {until}", self.position);
        }
    }

    /// Reads until the reader says why it cannot.
    async fn error(&mut self) -> SourceError {
        let started = Instant::now();
        loop {
            match self.next(LARGE).await {
                Ok(()) => assert!(started.elapsed() < PATIENCE, "stands at {} without a word", self.position),
                Err(error) => return error,
            }
        }
    }
}

fn values(prefix: &str, range: Range<i64>) -> Vec<String> {
    range.map(|i| format!("{prefix}-{i}")).collect()
}

/// Records whose values carry their offsets.
fn numbered(prefix: &str, range: Range<i64>) -> Vec<(i64, String)> {
    range.map(|i| (i, format!("{prefix}-{i}"))).collect()
}

fn halted(error: SourceError) -> String {
    match error {
        SourceError::Halt(reason) => reason,
        SourceError::Failed(reason) => panic!("failed instead of halting: {reason}"),
    }
}

fn failed(error: SourceError) -> String {
    match error {
        SourceError::Failed(reason) => reason,
        SourceError::Halt(reason) => panic!("halted instead of failing: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_record_of_every_partition_comes_once_and_in_order_under_every_codec() {
    let topic = TestTopic::create("codecs", 6, &[]).await;
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    let each = 2_000;
    for partition in 0..6 {
        for (i, codec) in (0..).zip(codecs) {
            let values = values(&format!("p{partition}"), i * each..(i + 1) * each);
            topic.fill_with(&[("compression.type", codec)], partition, values).await;
        }
    }
    let total = each * codecs.len() as i64;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    assert_eq!(partitions.iter().map(|partition| partition.key.partition).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let readings = partitions.into_iter().map(|partition| {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let mut reading = Reading::open(&source, &partition, 0).await;
            reading.until(total, LARGE).await;
            assert_eq!(reading.records, numbered(&format!("p{}", partition.key.partition), 0..total));
            assert_eq!(reading.end, Some(total));
        })
    });
    for reading in readings.collect::<Vec<_>>() {
        reading.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ragged_limits_lose_nothing() {
    let topic = TestTopic::create("limits", 1, &[]).await;
    let long = |i: i64| if i % 97 == 0 { "x".repeat(5_000) } else { String::new() };
    let sent: Vec<String> = (0..3_000).map(|i| format!("v-{i}{}", long(i))).collect();
    topic.fill(0, sent.clone()).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    let limits =
        [(1, 1 << 20), (7, 1 << 20), (1_000, 50), (1_000, 1), (3, 300), (10_000, 4_999), (500, 1 << 20), (0, 0)];
    let mut i = 0;
    while reading.position < 3_000 {
        let (rows, bytes) = limits[i % limits.len()];
        i += 1;
        let limit = BatchLimit { rows, bytes };
        let batch = timeout(PATIENCE, reading.reader.next(limit)).await.unwrap().unwrap();
        reading.take(batch, BatchLimit { rows: rows.max(1), bytes });
    }
    assert_eq!(reading.records.into_iter().map(|(_, value)| value).collect::<Vec<_>>(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_limits_its_batches() {
    let topic = TestTopic::create("table-limit", 1, &[]).await;
    topic.fill(0, values("v", 0..100)).await;
    let (source, partitions) = open_topic(KafkaTopic { max_offsets_per_batch: Some(9), ..table(&topic.name) }).await;
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    while reading.position < 100 {
        let before = reading.records.len();
        reading.next(LARGE).await.unwrap();
        assert!(reading.records.len() - before <= 9);
    }
    assert_eq!(reading.records, numbered("v", 0..100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_while_it_waits_loses_nothing() {
    let topic = TestTopic::create("dropped", 1, &[]).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    let filling = tokio::spawn(async move {
        for i in 0..20 {
            topic.fill(0, values("v", i * 500..(i + 1) * 500)).await;
        }
    });
    let started = Instant::now();
    let mut dropped = 0;
    while reading.position < 10_000 {
        assert!(started.elapsed() < PATIENCE, "stands at {}", reading.position);
        let limit = BatchLimit { rows: 1 + dropped % 300, bytes: 1 << 20 };
        match timeout(Duration::from_micros(dropped as u64 % 3_000), reading.reader.next(limit)).await {
            Ok(batch) => reading.take(batch.unwrap(), limit),
            Err(_) => dropped += 1,
        }
    }
    filling.await.unwrap();
    assert!(dropped > 10, "only {dropped} calls were dropped");
    assert_eq!(reading.records, numbered("v", 0..10_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_opened_again_starts_where_it_is_told() {
    let topic = TestTopic::create("reopened", 1, &[]).await;
    topic.fill(0, values("v", 0..5_000)).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    // Multiples of a prime give every corner of the log, forwards and backwards, in an order that can be repeated.
    for i in 0..60 {
        let from = i * 1_327 % 5_001;
        let mut reading = Reading::open(&source, &partitions[0], from).await;
        let until = (from + i * 37 % 700).min(5_000);
        reading.until(until, BatchLimit { rows: 100, bytes: 1 << 20 }).await;
        let read = reading.position;
        assert_eq!(reading.records, numbered("v", from..read), "opened at {from}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_and_closing_one_partition_leaves_the_others_alone() {
    let topic = TestTopic::create("neighbours", 4, &[]).await;
    for partition in 0..4 {
        topic.fill(partition, values("v", 0..20_000)).await;
    }
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let neighbours = partitions[1..].iter().cloned().map(|partition| {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let mut reading = Reading::open(&source, &partition, 0).await;
            reading.until(20_000, BatchLimit { rows: 50, bytes: 1 << 20 }).await;
            assert_eq!(reading.records, numbered("v", 0..20_000));
        })
    });
    let neighbours: Vec<_> = neighbours.collect();
    for i in 0..100 {
        let from = i * 199 % 20_000;
        let mut reading = Reading::open(&source, &partitions[0], from).await;
        if i % 3 > 0 {
            reading.until(from + 1, LARGE).await;
        }
        let position = reading.position;
        assert_eq!(reading.records, numbered("v", from..position), "opened at {from}");
    }
    for neighbour in neighbours {
        neighbour.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_reader_of_a_partition_ends_when_it_is_opened_again() {
    let topic = TestTopic::create("superseded", 1, &[]).await;
    topic.fill(0, values("v", 0..10)).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut earlier = Reading::open(&source, &partitions[0], 0).await;
    earlier.until(10, LARGE).await;
    let mut later = Reading::open(&source, &partitions[0], 5).await;
    assert!(failed(earlier.error().await).contains("opened by another reader"));
    drop(earlier);
    later.until(10, LARGE).await;
    topic.fill(0, values("v", 10..20)).await;
    later.until(20, LARGE).await;
    assert_eq!(later.records, numbered("v", 5..20));
}

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
    tokio::task::spawn_blocking(move || open.commit_transaction(PATIENCE).unwrap()).await.unwrap();
    inside.until(end + 2, LARGE).await;
    assert_eq!(inside.records.last().unwrap(), &(end, "open".to_owned()));
}

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
        assert!(started.elapsed() < PATIENCE, "nothing is compacted away");
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
        let next = self::source(table(&topic.name)).await;
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
async fn one_record_in_a_silent_partition_comes_within_a_second() {
    let topic = TestTopic::create("silent", 3, &[]).await;
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut readings = Vec::new();
    for partition in &partitions {
        let mut reading = Reading::open(&source, partition, 0).await;
        // Reading, and at the end.
        while reading.end != Some(0) {
            reading.next(LARGE).await.unwrap();
        }
        readings.push(reading);
    }
    for i in 0..10 {
        topic.fill(1, values("v", i..i + 1)).await;
        let produced = Instant::now();
        readings[1].until(i + 1, LARGE).await;
        assert!(produced.elapsed() < Duration::from_secs(1), "it took {:?}", produced.elapsed());
    }
    // The same after the partition's reader died and another one came.
    readings[1] = Reading::open(&source, &partitions[1], 10).await;
    topic.fill(1, values("v", 10..11)).await;
    let produced = Instant::now();
    readings[1].until(11, LARGE).await;
    assert!(produced.elapsed() < Duration::from_secs(1), "it took {:?}", produced.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_headers_nulls_and_empty_values_come_as_they_are() {
    let topic = TestTopic::create("parts", 1, &[]).await;
    let name = topic.name.clone();
    tokio::task::spawn_blocking(move || {
        let producer = producer(&[]);
        let headers = OwnedHeaders::new()
            .insert(Header { key: "trace", value: Some("1") })
            .insert(Header::<&str> { key: "none", value: None })
            .insert(Header { key: "trace", value: Some("") });
        for sent in [
            Sent { key: Some(b"k"), value: Some(b"v"), headers: Some(headers) },
            Sent { key: None, value: None, headers: None },
            Sent { key: Some(b""), value: Some(b""), headers: None },
            Sent { key: Some(b"null"), value: Some(b"null"), headers: None },
        ] {
            send(&producer, &name, 0, sent);
        }
        producer.flush(PATIENCE).unwrap();
    })
    .await
    .unwrap();
    let (source, partitions) = open_topic(KafkaTopic { keys: true, headers: true, ..table(&topic.name) }).await;
    let mut reader = source.open(&partitions[0], Offset(0)).await.unwrap();
    let mut batches = Vec::new();
    while batches.iter().map(|batch: &SourceBatch| batch.records.num_rows()).sum::<usize>() < 4 {
        batches.push(timeout(PATIENCE, reader.next(LARGE)).await.unwrap().unwrap());
    }
    let schema = batches[0].records.schema();
    let records = arrow::compute::concat_batches(&schema, batches.iter().map(|batch| &batch.records)).unwrap();
    let texts = [Some(&b"v"[..]), None, Some(b""), Some(b"null")];
    assert_eq!(records.column_by_name(raw::VALUE).unwrap().as_binary::<i32>().iter().collect::<Vec<_>>(), texts);
    let texts = [Some(&b"k"[..]), None, Some(b""), Some(b"null")];
    assert_eq!(records.column_by_name(raw::KEY).unwrap().as_binary::<i32>().iter().collect::<Vec<_>>(), texts);
    let headers = records.column_by_name(raw::HEADERS).unwrap().as_list::<i32>();
    assert_eq!((0..4).map(|row| headers.is_null(row)).collect::<Vec<_>>(), [false, true, true, true]);
    let first = headers.value(0);
    let first = first.as_struct();
    let keys: Vec<_> = first.column(0).as_string::<i32>().iter().flatten().collect();
    assert_eq!(keys, ["trace", "none", "trace"]);
    let values: Vec<_> = first.column(1).as_binary::<i32>().iter().collect();
    assert_eq!(values, [Some(&b"1"[..]), None, Some(b"")]);
    let times = records.column_by_name(raw::TIMESTAMP).unwrap().as_primitive::<TimestampMillisecondType>();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    assert!(times.iter().all(|time| (now - 60_000..=now + 60_000).contains(&time.unwrap())));
    let sizes: usize = batches.iter().map(|batch| batch.bytes).sum();
    assert_eq!(sizes, "kv".len() + "nullnull".len() + "trace1nonetrace".len());
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

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_named_with_what_to_do() {
    let source = source(table("no-such-topic")).await;
    let reason = halted(timeout(PATIENCE, source.partitions()).await.unwrap().unwrap_err());
    for part in ["`no-such-topic`", "`orders`", &servers(), "create it", "LOCATION"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_do_not_answer_are_waited_for() {
    // A port that is bound but not listened on refuses connections, and nobody else takes it meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let source = KafkaSource::connect(&settings(&address), &[table("orders")]).await.unwrap();
    let answer = timeout(Duration::from_secs(7), source.partitions()).await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_refuse_the_client_are_a_fault() {
    // A broker that knows no passwords, to a client that brings one.
    let sasl = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "user"),
        ("sasl.password", "secret"),
    ];
    let sasl = sasl.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let source = source(KafkaTopic { properties: sasl.into(), ..table("orders") }).await;
    let reason = failed(timeout(PATIENCE, source.partitions()).await.unwrap().unwrap_err());
    assert!(reason.contains("refuses this client") && reason.contains("SASL"), "{reason}");
    assert!(!reason.contains("secret"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_waits_for_brokers_that_are_away_and_goes_on_by_itself() {
    let kafka = EmbeddedKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let fill = |range: Range<i64>| {
        let producer = producer(&[("bootstrap.servers", kafka.bootstrap_servers())]);
        tokio::task::spawn_blocking(move || {
            for value in values("v", range) {
                send(&producer, "orders", 0, Sent { key: None, value: Some(value.as_bytes()), headers: None });
            }
            producer.flush(PATIENCE).unwrap();
        })
    };
    fill(0..100).await.unwrap();
    let source = KafkaSource::connect(&settings(kafka.bootstrap_servers()), &[table("orders")]).await.unwrap();
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    reading.until(100, LARGE).await;

    kafka.call(|mock| mock.broker_down(1)).unwrap().unwrap();
    for _ in 0..20 {
        reading.next(LARGE).await.unwrap();
    }
    // Asked while nobody answers, it waits.
    let asked = tokio::spawn({
        let source = Arc::clone(&source);
        async move { source.partitions().await }
    });
    kafka.call(|mock| mock.broker_up(1)).unwrap().unwrap();
    fill(100..200).await.unwrap();
    reading.until(200, LARGE).await;
    assert_eq!(reading.records, numbered("v", 0..200));
    assert_eq!(timeout(PATIENCE, asked).await.unwrap().unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_fetches_nothing_although_there_is_something_shows_it() {
    let kafka = EmbeddedKafka::start(1).unwrap();
    kafka.create_topic("orders", 1).unwrap();
    let source = KafkaSource::connect(&settings(kafka.bootstrap_servers()), &[table("orders")]).await.unwrap();
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    while reading.end != Some(0) {
        reading.next(LARGE).await.unwrap();
    }
    // Every fetch fails from now on; everything else works.
    let error = rdkafka::types::RDKafkaRespErr::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR;
    kafka.call(move |mock| mock.request_errors(rdkafka::types::RDKafkaApiKey::Fetch, &[error; 1_000])).unwrap();
    let producer = producer(&[("bootstrap.servers", kafka.bootstrap_servers())]);
    for value in values("v", 0..3) {
        send(&producer, "orders", 0, Sent { key: None, value: Some(value.as_bytes()), headers: None });
    }
    tokio::task::spawn_blocking(move || producer.flush(PATIENCE).unwrap()).await.unwrap();
    let started = Instant::now();
    while reading.end != Some(3) {
        reading.next(LARGE).await.unwrap();
        assert!(started.elapsed() < PATIENCE, "the end is told as {:?}", reading.end);
    }
    assert_eq!(reading.position, 0);
    kafka.call(|mock| mock.clear_request_errors(rdkafka::types::RDKafkaApiKey::Fetch)).unwrap();
    reading.until(3, LARGE).await;
    assert_eq!(reading.records, numbered("v", 0..3));
}
