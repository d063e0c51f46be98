//! Brokers that do not answer, refuse the client or fail, and topics that they do not have.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::producer::Producer;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use strandline::catalog::KafkaTopic;
use strandline::kafka::{EmbeddedKafka, KafkaSource};
use strandline::settings::KafkaSettings;
use strandline_actors::ports::Source;
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use tokio::time::timeout;
use uuid::Uuid;

use super::{LARGE, PATIENCE, Reading, failed, halted, numbered, settings, source, table, values};
use crate::own_server::OwnServer;
use crate::test_topic::{Sent, TestTopic, producer, send, servers};

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

/// Case: unpolled main queue (rust-rdkafka#738). The fault is told there, and is heard although no partition is open.
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

/// It exists, and whoever leads it next can tell where it could start.
#[tokio::test(flavor = "multi_thread")]
async fn the_start_of_a_partition_that_nobody_leads_is_waited_for() {
    let kafka = EmbeddedKafka::start(1).unwrap();
    kafka.create_topic("orders", 2).unwrap();
    let source = KafkaSource::connect(&settings(kafka.bootstrap_servers()), &[table("orders")]).await.unwrap();
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    kafka.call(|mock| mock.partition_leader("orders", 1, None)).unwrap().unwrap();
    assert_eq!(timeout(PATIENCE, source.start_offset(&partitions[0], true)).await.unwrap().unwrap(), Offset(0));
    let start = source.start_offset(&partitions[1], true);
    tokio::pin!(start);
    let answer = timeout(Duration::from_secs(3), &mut start).await;
    assert!(answer.is_err(), "{answer:?}");
    kafka.call(|mock| mock.partition_leader("orders", 1, Some(1))).unwrap().unwrap();
    assert_eq!(timeout(PATIENCE, start).await.unwrap().unwrap(), Offset(0));
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

/// Case: sleeping queue (rust-rdkafka PR#840). The end is asked for beside the fetches, so a position that stands still below
/// it shows.
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
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR;
    kafka.call(move |mock| mock.request_errors(RDKafkaApiKey::Fetch, &[error; 1_000])).unwrap();
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
    kafka.call(|mock| mock.clear_request_errors(RDKafkaApiKey::Fetch)).unwrap();
    reading.until(3, LARGE).await;
    assert_eq!(reading.records, numbered("v", 0..3));
}

/// No connection breaks and no answer comes: what was the end may be so no longer, also for a client that knew it before.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_not_known_while_its_broker_stands_still() {
    let kafka = OwnServer::start("kafka").await;
    let topic = TestTopic::create_at(&kafka.address(), "still", 1, &[]).await;
    topic.fill_with(&[("bootstrap.servers", &kafka.address())], 0, values("v", 0..10)).await;
    let source = KafkaSource::connect(&settings(&kafka.address()), &[table(&topic.name)]).await.unwrap();
    let partitions = source.partitions().await.unwrap();
    let mut reading = Reading::open(&source, &partitions[0], 0).await;
    let until = async |reading: &mut Reading, end| {
        let started = Instant::now();
        while (reading.position, reading.end) != (10, end) {
            reading.next(LARGE).await.unwrap();
            assert!(started.elapsed() < PATIENCE, "the end is told as {:?}", reading.end);
        }
    };
    until(&mut reading, Some(10)).await;

    kafka.does("pause").await;
    until(&mut reading, None).await;
    // The next life on the same client, which has fetched nothing.
    let mut again = Reading::open(&source, &partitions[0], 10).await;
    for _ in 0..20 {
        again.next(LARGE).await.unwrap();
        assert_eq!((again.position, again.end), (10, None));
    }
    kafka.does("cont").await;
    until(&mut again, Some(10)).await;
}

/// Each looks around when nothing came for a while, and none waits until all others have asked in vain.
#[tokio::test(flavor = "multi_thread")]
async fn many_readers_of_brokers_that_are_away_are_answered_in_time() {
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let often = KafkaSettings { discovery_interval: Duration::from_secs(1), ..settings(&address) };
    let source = KafkaSource::connect(&often, &[table("orders")]).await.unwrap();
    let readers = (0..40).map(|partition| {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let key = PartitionKey { topic_id: Uuid::from_u128(7), partition };
            let partition = SourcePartition { source: 0, topic: "orders".into(), key };
            let mut reader = source.open(&partition, Offset(0)).await.unwrap();
            let started = Instant::now();
            let mut longest = Duration::ZERO;
            while started.elapsed() < Duration::from_secs(20) {
                let asked = Instant::now();
                assert!(timeout(PATIENCE, reader.next(LARGE)).await.unwrap().unwrap().range.is_empty());
                longest = longest.max(asked.elapsed());
            }
            longest
        })
    });
    for reader in futures::future::join_all(readers).await {
        let longest = reader.unwrap();
        assert!(longest < Duration::from_secs(10), "one waited for {longest:?}");
    }
}
