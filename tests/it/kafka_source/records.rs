//! Every record once and in order, whatever the codec, the limits, the neighbours and the interruptions.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray};
use arrow::datatypes::TimestampMillisecondType;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};
use strandline::catalog::KafkaTopic;
use strandline::kafka::KafkaSource;
use strandline::settings::KafkaSettings;
use strandline_actors::ports::{BatchLimit, Source, SourceBatch, raw};
use strandline_actors::position::Offset;
use tokio::time::timeout;

use super::{LARGE, PATIENCE, Reading, failed, numbered, open_topic, settings, table, values};
use crate::test_topic::{Sent, TestTopic, producer, send, servers};

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

/// Where there are more partitions than the memory is for, those that are behind are fetched in turn.
#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_take_turns_and_lose_nothing() {
    const PARTITIONS: i32 = 60;
    const EACH: i64 = 50;
    let topic = TestTopic::create("turns", PARTITIONS, &[]).await;
    // So many records of a transaction in each partition, and a marker; every fourth transaction is aborted.
    let send_transactions = |numbers: Range<i64>| {
        let name = topic.name.clone();
        tokio::task::spawn_blocking(move || {
            let settings = [("transactional.id", name.as_str()), ("compression.type", "lz4"), ("linger.ms", "100")];
            let producer = producer(&settings);
            producer.init_transactions(PATIENCE).unwrap();
            for number in numbers {
                producer.begin_transaction().unwrap();
                for partition in 0..PARTITIONS {
                    for i in 0..EACH {
                        let value = format!("p{partition}-{}", number * (EACH + 1) + i);
                        send(
                            &producer,
                            &name,
                            partition,
                            Sent { key: None, value: Some(value.as_bytes()), headers: None },
                        );
                    }
                }
                producer.flush(PATIENCE).unwrap();
                match number % 4 {
                    3 => producer.abort_transaction(PATIENCE).unwrap(),
                    _ => producer.commit_transaction(PATIENCE).unwrap(),
                }
            }
        })
    };
    let expected = |partition: i32, offsets: Range<i64>| -> Vec<(i64, String)> {
        let of_record = |offset: &i64| offset % (EACH + 1) < EACH && offset / (EACH + 1) % 4 != 3;
        offsets.filter(of_record).map(|offset| (offset, format!("p{partition}-{offset}"))).collect()
    };
    const FIRST: i64 = 40;
    send_transactions(0..FIRST).await.unwrap();
    let settings = KafkaSettings { fetch_memory: 1 << 20, ..settings(&servers()) };
    let source = KafkaSource::connect(&settings, &[table(&topic.name)]).await.unwrap();
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    let readings = partitions.into_iter().map(|partition| {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let number = partition.key.partition;
            let mut reading = Reading::open(&source, &partition, 0).await;
            let (end, later) = (FIRST * (EACH + 1), (FIRST + 1) * (EACH + 1));
            let mut from = 0;
            for step in 0.. {
                if reading.position >= end {
                    break;
                }
                let rows = [1, 7, 400, 3_000][(step + number as usize) % 4];
                reading.next(BatchLimit { rows, bytes: 1 << 20 }).await.unwrap();
                match (step * 31 + number as usize) % 17 {
                    // Slower than the others.
                    0 => tokio::time::sleep(Duration::from_millis(20)).await,
                    // Opened again, a little before where it was.
                    1 => {
                        assert_eq!(reading.records, expected(number, from..reading.position));
                        from = (reading.position - 20).max(0);
                        reading = Reading::open(&source, &partition, from).await;
                    }
                    _ => {}
                }
            }
            // What is sent meanwhile comes as well.
            reading.until(later, LARGE).await;
            assert_eq!(reading.records, expected(number, from..later));
        })
    });
    let readings: Vec<_> = readings.collect();
    send_transactions(FIRST..FIRST + 1).await.unwrap();
    for reading in readings {
        reading.await.unwrap();
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

/// Case: sleeping queue (rust-rdkafka PR#840).
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
    let mut delays = Vec::new();
    for i in 0..10 {
        topic.fill(1, values("v", i..i + 1)).await;
        let produced = Instant::now();
        readings[1].until(i + 1, LARGE).await;
        delays.push(produced.elapsed());
    }
    // The same after the partition's reader died and another one came.
    readings[1] = Reading::open(&source, &partitions[1], 10).await;
    topic.fill(1, values("v", 10..11)).await;
    let produced = Instant::now();
    readings[1].until(11, LARGE).await;
    delays.push(produced.elapsed());
    // The machine may have something else to do once; a queue that sleeps is late each time, or for ever.
    delays.sort_unstable();
    assert!(delays[5] < Duration::from_secs(1) && delays[10] < Duration::from_secs(20), "{delays:?}");
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

/// Kafka has -1 for it, which is no time.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_a_time_has_none() {
    let topic = TestTopic::create("timeless", 1, &[("retention.ms", "-1")]).await;
    let name = topic.name.clone();
    tokio::task::spawn_blocking(move || {
        let producer = producer(&[]);
        for time in [-1, 1_700_000_000_000] {
            let record = BaseRecord::<[u8], [u8]>::to(&name).partition(0).payload(b"{}").timestamp(time);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    })
    .await
    .unwrap();
    let (source, partitions) = open_topic(table(&topic.name)).await;
    let mut reader = source.open(&partitions[0], Offset(0)).await.unwrap();
    let mut times = Vec::new();
    while times.len() < 2 {
        let batch = timeout(PATIENCE, reader.next(LARGE)).await.unwrap().unwrap();
        times.extend(batch.records.column_by_name(raw::TIMESTAMP).unwrap().as_primitive::<TimestampMillisecondType>());
    }
    assert_eq!(times, [None, Some(1_700_000_000_000)]);
}
