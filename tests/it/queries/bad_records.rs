//! Records that cannot be processed: what becomes of them under each policy, and that they cost no other record.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::Producer;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use scylla::client::session::Session;
use serde_json::Value;

use crate::stand::{PATIENCE, Service, Stand, count_of, until};
use crate::test_topic::{Sent, producer, send, servers};

/// Ten records; the fifth is cut off, and three more hold nothing, each in its own way.
const RECORDS: [Option<&str>; 10] = [
    Some(r#"{"a":"x"}"#),
    Some(r#"{"a":"x"}"#),
    Some(r#"{"a":"y"}"#),
    Some(r#"{"a":"x"}"#),
    Some(r#"{"a":"x"#),
    Some(r#"{"a":"x"}"#),
    None,
    Some(""),
    Some("null"),
    Some(r#"{"a":"y"}"#),
];

fn sql(stand: &Stand, options: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE letters (a VARCHAR) STORED AS JSON LOCATION 'kafka://{}' OPTIONS ({options});
         CREATE EXTERNAL TABLE result (a VARCHAR, n BIGINT, PRIMARY KEY (a)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT a, count(*) FROM letters GROUP BY a",
        stand.topic.name, stand.keyspace, stand.table
    )
}

fn fill(stand: &Stand, partition: i32) {
    let producer = producer(&[]);
    for (offset, value) in RECORDS.iter().enumerate() {
        let key = format!("key {offset}");
        let value = value.map(str::as_bytes);
        send(&producer, &stand.topic.name, partition, Sent { key: Some(key.as_bytes()), value, headers: None });
    }
    producer.flush(Duration::from_secs(60)).unwrap();
}

async fn table(stand: &Stand) -> BTreeMap<String, i64> {
    let read = format!("SELECT a, n FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String, i64)>().unwrap().map(|row| row.unwrap()).collect()
}

fn counted(x: i64, y: i64) -> BTreeMap<String, i64> {
    [("x".to_owned(), x), ("y".to_owned(), y)].into()
}

/// Partition, offset, reason, key and value of each dead letter of the topic.
type Letters = Vec<(i32, i64, String, Option<Vec<u8>>, Option<Vec<u8>>)>;

async fn dead_letters(session: &Session, stand: &Stand, partition: i32) -> Letters {
    let read = format!(
        "SELECT partition, offset, reason, key, value FROM {}.dead_letters
         WHERE pipeline = '{}' AND topic = '{}' AND partition = {partition}",
        stand.keyspace, stand.pipeline, stand.topic.name
    );
    let rows = session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows().unwrap().map(|row| row.unwrap()).collect()
}

/// Offset and time of each dead letter, in milliseconds.
async fn times_of_letters(stand: &Stand, partition: i32) -> Vec<(i64, i64)> {
    let read = format!(
        "SELECT offset, toUnixTimestamp(record_timestamp) FROM {}.dead_letters
         WHERE pipeline = '{}' AND topic = '{}' AND partition = {partition}",
        stand.keyspace, stand.pipeline, stand.topic.name
    );
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows().unwrap().map(|row| row.unwrap()).collect()
}

/// Offset and time of each record, as a client of its own reads them.
fn times_of_records(stand: &Stand, partition: i32) -> Vec<(i64, i64)> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers()).set("group.id", "none").set("enable.auto.commit", "false");
    let client: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&stand.topic.name, partition, Offset::Beginning).unwrap();
    client.assign(&list).unwrap();
    let begun = Instant::now();
    let record = || loop {
        // A client that has just been made may have to ask again.
        if let Some(Ok(record)) = client.poll(Duration::from_secs(1)) {
            return record;
        }
        assert!(begun.elapsed() < PATIENCE, "no record comes");
    };
    (0..RECORDS.len()).map(|_| record()).map(|r| (r.offset(), r.timestamp().to_millis().unwrap())).collect()
}

#[track_caller]
fn assert_counts(service: &Service, wanted: [(&str, u64); 4]) {
    let status = service.status();
    for (of, wanted) in wanted {
        assert_eq!(count_of(&status, of), Some(wanted), "{of} in {}", status["board"]["shards"]);
    }
}

/// Case: one bad record (starrocks#68294, ksql#6563), and null value (feldera PR#6707): null, empty and the text `null` are
/// three different things.
#[tokio::test(flavor = "multi_thread")]
async fn bad_records_become_dead_letters_with_their_place_reason_and_payload() {
    let stand = Stand::new(2).await;
    fill(&stand, 1);
    let sql = sql(&stand, "'null.value' 'dead-letter'");
    let letter = |offset: i64, reason: &str| {
        let value = RECORDS[offset as usize].map(|value| value.as_bytes().to_vec());
        (1, offset, reason.to_owned(), Some(format!("key {offset}").into_bytes()), value)
    };
    let wanted: Letters = vec![
        letter(4, "not valid JSON: EOF while parsing a string at line 1 column 7"),
        letter(6, "the value is null"),
        letter(7, "the value is empty"),
        letter(8, "a record is a JSON object, found null"),
    ];
    let ends = [(0, 0), (1, 10)].into();
    // The second life finds everything done and does nothing again.
    for life in 0..2 {
        let service = stand.start(&sql);
        service.until_each_shard_committed().await;
        stand.until_committed(&ends).await;
        assert_eq!(table(&stand).await, counted(4, 2), "life {life}");
        assert_eq!(dead_letters(&stand.session, &stand, 1).await, wanted, "life {life}");
        assert_counts(&service, [("processed", 6), ("dead_lettered", 4), ("skipped", 0), ("tombstones", 0)]);
        service.kill();
    }
    let mut times = times_of_records(&stand, 1);
    times.retain(|(offset, _)| wanted.iter().any(|letter| letter.1 == *offset));
    assert_eq!(times_of_letters(&stand, 1).await, times);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_passed_over_and_counted_under_skip() {
    let stand = Stand::new(1).await;
    fill(&stand, 0);
    let service = stand.start(&sql(&stand, "'bad.records' 'skip'"));
    stand.until_committed(&[(0, 10)].into()).await;
    assert_eq!(table(&stand).await, counted(4, 2));
    assert_eq!(dead_letters(&stand.session, &stand, 0).await, []);
    // A record without a value is not bad unless the table's options say so.
    assert_counts(&service, [("processed", 6), ("dead_lettered", 0), ("skipped", 3), ("tombstones", 1)]);
    service.stop().await;
}

/// Case: one bad record (starrocks#68294, ksql#6563). Policy `fail` is exact: what stands before the bad record is counted
/// and committed, although it was read with it in one batch, and the partition stands at the record's offset.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_halts_its_partition_under_fail_until_the_policy_changes() {
    let stand = Stand::new(2).await;
    fill(&stand, 0);
    let good = || (0..10).map(|_| r#"{"a":"y"}"#.to_owned());
    stand.topic.fill(1, good()).await;
    let service = stand.start(&sql(&stand, "'bad.records' 'fail'"));
    let halted = |status: &Value| {
        let partitions = status["board"]["partitions"].as_array();
        partitions.and_then(|partitions| partitions.iter().find(|p| p["actor"]["life"] == "halted")).cloned()
    };
    service.until("a partition halts", |status| halted(status).is_some()).await;
    let partition = halted(&service.status()).unwrap();
    assert_eq!((&partition["topic"], &partition["partition"]), (&stand.topic.name.as_str().into(), &0.into()));
    assert_eq!(partition["position"], 4);
    let said = partition["actor"]["last_error"].as_str().unwrap();
    for part in ["stops at offset 4: not valid JSON: EOF", "'bad.records'", "'dead-letter'", "'skip'"] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    let (code, health) = service.get("/healthz").unwrap();
    assert_eq!(code, 503);
    let name = format!("partition {}-0 is halted", stand.topic.name);
    assert!(health.contains(&name) && health.contains("stops at offset 4") && health.contains("resume"), "{health}");
    // The other partition goes on, and what came before the bad record is counted.
    stand.topic.fill(1, good()).await;
    stand.until_committed(&[(0, 4), (1, 20)].into()).await;
    assert_eq!(table(&stand).await, counted(3, 21));
    assert_eq!(dead_letters(&stand.session, &stand, 0).await, []);

    // Resumed, it stops at the same record again, and nothing is counted twice.
    let (code, _) = service.ask("POST", &format!("/api/resume/partition/{}/0", stand.topic.name)).unwrap();
    assert_eq!(code, 200);
    service.until("it halts again", |status| halted(status).is_some()).await;
    stand.topic.fill(1, good()).await;
    stand.until_committed(&[(0, 4), (1, 30)].into()).await;
    assert_eq!(table(&stand).await, counted(3, 31));
    service.kill();
    // So it does in the next process.
    let service = stand.start(&sql(&stand, "'bad.records' 'fail'"));
    service.until("it halts again", |status| halted(status).is_some()).await;
    assert_eq!(table(&stand).await, counted(3, 31));
    service.kill();

    // The policy is about reading: the stored state stays.
    let service = stand.start(&sql(&stand, "'bad.records' 'skip'"));
    stand.until_committed(&[(0, 10), (1, 30)].into()).await;
    assert_eq!(table(&stand).await, counted(4, 32));
    until("it is well", PATIENCE, async || service.get("/healthz").is_some_and(|(code, _)| code == 200)).await;
    service.stop().await;
}

/// Dead letters are stored with the progress: whenever the process is killed, each is there once, and so is each row.
#[tokio::test(flavor = "multi_thread")]
async fn crashes_neither_lose_nor_double_a_dead_letter() {
    const PORTION: i64 = 1_000;
    let stand = Stand::new(2).await;
    let sql = sql(&stand, "'max.offsets.per.batch' '100'");
    let bad = |offset: i64| offset % 3 == 1;
    let record = move |offset: i64| if bad(offset) { format!("{{\"a\":{offset}") } else { r#"{"a":"x"}"#.to_owned() };
    let mut end = 0;
    for _ in 0..5 {
        let service = stand.start_with(&sql, &[("CHECKPOINT__INTERVAL", "50ms")]);
        for partition in 0..2 {
            stand.topic.fill(partition, (end..end + PORTION).map(record)).await;
        }
        let some = async || stand.offsets().await.values().any(|offset| *offset > end);
        until("something of the portion is committed", PATIENCE, some).await;
        for partition in 0..2 {
            stand.topic.fill(partition, (end + PORTION..end + 2 * PORTION).map(record)).await;
        }
        service.kill();
        end += 2 * PORTION;
    }
    let service = stand.start(&sql);
    service.until_each_shard_committed().await;
    stand.until_committed(&[(0, end), (1, end)].into()).await;
    let wanted: Vec<i64> = (0..end).filter(|offset| bad(*offset)).collect();
    for partition in 0..2 {
        let letters = dead_letters(&stand.session, &stand, partition).await;
        assert_eq!(letters.iter().map(|letter| letter.1).collect::<Vec<_>>(), wanted, "partition {partition}");
        for (_, offset, reason, _, value) in letters {
            assert!(reason.starts_with("not valid JSON: EOF"), "{reason}");
            assert_eq!(value, Some(record(offset).into_bytes()));
        }
    }
    let (good, bad) = ((0..end).filter(|offset| !bad(*offset)).count() as i64 * 2, wanted.len() as u64 * 2);
    assert_eq!(table(&stand).await, [("x".to_owned(), good)].into());
    assert_counts(&service, [("processed", good as u64), ("dead_lettered", bad), ("skipped", 0), ("gaps", 0)]);

    // What anybody can read of them with one command, while the service runs.
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
    command.args(["dead-letters", "list", "--limit", "0"]).envs(stand.environment(&sql));
    let listed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(listed.lines().count() as u64, bad + 1, "{listed}");
    service.stop().await;
}
