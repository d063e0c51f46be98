//! `strandline dead-letters replay`: what was set aside comes to a topic again, once as far as nothing crashes, and never less
//! than once.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::Producer;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::Value;

use super::{Counting, Said};
use crate::stand::{PATIENCE, Stand};
use crate::test_topic::{Sent, TestTopic, producer, send, servers};

/// A record as it is found in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    partition: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    timestamp: Option<i64>,
    /// Where it came from.
    from: Option<String>,
}

/// All records of a topic, as anyone reads them.
fn records(topic: &TestTopic, partitions: i32) -> Vec<Found> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &topic.servers)
        .set("group.id", uuid::Uuid::new_v4().to_string())
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    let mut left: BTreeMap<i32, i64> = BTreeMap::new();
    for partition in 0..partitions {
        list.add_partition_offset(&topic.name, partition, Offset::Beginning).unwrap();
        let (_, end) = consumer.fetch_watermarks(&topic.name, partition, Duration::from_secs(30)).unwrap();
        left.insert(partition, end);
    }
    consumer.assign(&list).unwrap();
    left.retain(|_, end| *end > 0);
    let (mut found, begun) = (Vec::new(), Instant::now());
    while !left.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{left:?}");
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message.unwrap();
        if left.get(&message.partition()).is_some_and(|end| message.offset() + 1 >= *end) {
            left.remove(&message.partition());
        }
        let header = message.headers().and_then(|headers| {
            let header = headers.iter().find(|header| header.key == "strandline.dead-letter")?;
            Some(String::from_utf8(header.value?.to_vec()).unwrap())
        });
        found.push(Found {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            timestamp: message.timestamp().to_millis(),
            from: header,
        });
    }
    found
}

/// Every third record cannot be decoded.
fn fill_with_bad(counting: &Counting, partition: i32, records: usize) {
    let producer = producer(&[]);
    for n in 0..records {
        let key = format!("key {n}");
        let value = if n % 3 == 2 { format!("broken {n}") } else { "{\"item\":\"good\"}".to_owned() };
        let sent = Sent { key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers: None };
        send(&producer, &counting.stand.topic.name, partition, sent);
    }
    producer.flush(Duration::from_secs(60)).unwrap();
}

fn letters(counting: &Counting) -> Vec<Value> {
    let said = counting.call(&["dead-letters", "list", "--json", "--limit", "0"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(said: &Said) -> [u64; 3] {
    let value = said.json();
    ["sent", "sent_before", "failed"].map(|name| value[name].as_u64().unwrap())
}

async fn run(counting: &Counting, ends: &BTreeMap<i32, i64>) {
    let service = counting.start();
    if counting.more.is_empty() {
        counting.stand.until_committed(ends).await;
    } else {
        service
            .until("everything is read", |status| {
                let lines = status["board"]["partitions"].as_array().into_iter().flatten();
                let found: BTreeMap<i32, i64> = lines
                    .map(|line| (line["partition"].as_i64().unwrap() as i32, line["position"].as_i64().unwrap()))
                    .collect();
                found == *ends
            })
            .await;
    }
    service.stop().await;
}

async fn replayed(counting: Counting) {
    let topic = &counting.stand.topic;
    fill_with_bad(&counting, 0, 30);
    fill_with_bad(&counting, 1, 9);
    run(&counting, &[(0, 30), (1, 9)].into()).await;
    assert_eq!(letters(&counting).len(), 13);

    // Somebody has to agree, and a topic that does not exist is not made.
    counting.call(&["dead-letters", "replay"]).failed(2, &["13 dead letters", &topic.name, "--yes"]);
    counting
        .call(&["dead-letters", "replay", "--to", "no-such-topic", "--yes"])
        .failed(1, &["`no-such-topic`", "does not exist"]);
    counting.call(&["dead-letters", "replay", "--topic", "nothing", "--yes"]).failed(2, &["has never read a topic"]);
    assert_eq!(records(topic, 2).len(), 39);

    // To another topic: key, value and time as they were, and where they came from.
    let repaired = TestTopic::create("repaired", 1, &[]).await;
    let originals = records(topic, 2);
    let to = ["dead-letters", "replay", "--partition", "1", "--to", &repaired.name, "--yes", "--json"];
    assert_eq!(numbers(&counting.call(&to)), [3, 0, 0]);
    let found = records(&repaired, 1);
    let wanted: Vec<Found> = originals
        .iter()
        .filter(|record| record.partition == 1)
        .enumerate()
        .filter(|(offset, _)| offset % 3 == 2)
        .map(|(offset, record)| Found {
            partition: 0,
            from: Some(format!("{}/1/{offset}", topic.name)),
            ..record.clone()
        })
        .collect();
    assert_eq!(found, wanted);

    // What is marked is passed over, unless it is wished otherwise.
    assert_eq!(numbers(&counting.call(&to)), [0, 3, 0]);
    assert_eq!(records(&repaired, 1).len(), 3);
    assert_eq!(numbers(&counting.call(&[&to[..], &["--again"]].concat())), [3, 0, 0]);
    assert_eq!(records(&repaired, 1).len(), 6);
    let marked = letters(&counting).into_iter().filter(|letter| !letter["replayed"].is_null());
    assert_eq!(marked.map(|letter| letter["partition"].as_i64().unwrap()).collect::<BTreeSet<_>>(), [1].into());
    let shown = counting.call(&["dead-letters", "show", &topic.name, "1", "2"]);
    assert!(shown.out.contains("sent again "), "{shown:?}");

    // To where it was read: one, chosen by its offset; it is read there as a new record, and set aside again.
    let one =
        ["dead-letters", "replay", "--topic", &topic.name, "--partition", "0", "--offset", "5", "--yes", "--json"];
    assert_eq!(numbers(&counting.call(&one)), [1, 0, 0]);
    let back = records(topic, 2).into_iter().find(|record| record.from.is_some()).unwrap();
    assert_eq!((back.partition, back.value.as_deref()), (0, Some(&b"broken 5"[..])));
    run(&counting, &[(0, 31), (1, 9)].into()).await;
    assert_eq!(letters(&counting).len(), 14);
    let by_reason = ["dead-letters", "replay", "--reason", "no such reason", "--yes", "--json"];
    assert_eq!(numbers(&counting.call(&by_reason)), [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_sent_again_once_and_marked_over_cassandra() {
    replayed(Counting::over_cassandra(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_sent_again_once_and_marked_over_a_local_store() {
    replayed(Counting::over_local(2).await).await;
}

/// Another topic is looked for where the records are sent: at the servers of the table, which need not be those of the settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_to_another_topic_looks_for_it_where_it_sends() {
    let counting = Counting::over_local(1).await;
    let topic = &counting.stand.topic;
    fill_with_bad(&counting, 0, 3);
    run(&counting, &[(0, 3)].into()).await;
    let at = format!("LOCATION 'kafka://{}'", topic.name);
    let sql = counting.sql().replace(&at, &format!("{at} OPTIONS ('kafka.bootstrap.servers' '{}')", servers()));
    let elsewhere = [("PIPELINE__SQL", sql.as_str()), ("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")];
    let repaired = TestTopic::create("repaired", 1, &[]).await;
    let replay = |to| counting.call_with(&["dead-letters", "replay", "--to", to, "--yes", "--json"], &elsewhere);
    replay("no-such-topic").failed(1, &["`no-such-topic`", "does not exist"]);
    assert_eq!(numbers(&replay(&repaired.name)), [1, 0, 0]);
    assert_eq!(records(&repaired, 1).len(), 1);
}

/// Killed when the brokers have the records and no mark is written, and then called again: none is missing, and those of the
/// batch that was under way are there twice, with the same header.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_breaks_off_sends_nothing_less_than_once() {
    let counting = Counting::over_cassandra(2).await;
    fill_with_bad(&counting, 0, 300);
    run(&counting, &[(0, 300), (1, 0)].into()).await;
    let repaired = TestTopic::create("repaired", 1, &[]).await;
    let replay = ["dead-letters", "replay", "--to", &repaired.name, "--yes", "--json"];
    // After the second batch.
    let output = counting.command(&replay, &[]).env("KILL_AT", "replayed:2").output().unwrap();
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    let before = records(&repaired, 1).len();
    let [sent, passed, failed] = numbers(&counting.call(&replay));
    assert_eq!((sent + passed, failed), (100, 0));
    assert!(
        passed > 0 && before as u64 > passed,
        "some were marked, and some sent and not marked: {passed} of {before}"
    );
    let found = records(&repaired, 1);
    let distinct: BTreeSet<_> = found.iter().map(|record| record.from.clone().unwrap()).collect();
    assert_eq!((distinct.len(), found.len()), (100, before + sent as usize));
}

/// The service sets aside again what is sent: that is for another call, and this one ends. One of the records is larger than
/// producers send by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_beside_a_service_that_sets_the_records_aside_again_ends() {
    let large = [("max.message.bytes", "8388608")];
    let more = vec![("STORE__TAKEOVER_AFTER", "6s".to_owned())];
    let stand = Stand::with(1, &large).await;
    let counting = Counting { stand, more, logs: Counting::empty(1), copies: None, _folder: None };
    fill_with_bad(&counting, 0, 1_500);
    let bad = vec![b'x'; 2_000_000];
    let sending = producer(&[("message.max.bytes", "8388608")]);
    send(&sending, &counting.stand.topic.name, 0, Sent { key: None, value: Some(&bad), headers: None });
    sending.flush(Duration::from_secs(60)).unwrap();
    let service = counting.start();
    counting.stand.until_committed(&[(0, 1_501)].into()).await;
    let said = counting.call(&["dead-letters", "replay", "--yes", "--json"]);
    assert_eq!(numbers(&said), [501, 0, 0]);
    counting.stand.until_committed(&[(0, 2_002)].into()).await;
    service.stop().await;
    assert_eq!(letters(&counting).len(), 1_002);
    assert_eq!(records(&counting.stand.topic, 1).len(), 2_002);
}
