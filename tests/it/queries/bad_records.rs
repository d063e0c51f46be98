//! Records that cannot be processed: what becomes of them under each policy, and that they cost no other record.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::producer::Producer;
use scylla::client::session::Session;
use serde_json::Value;

use crate::stand::{Service, Stand, until};
use crate::test_topic::{Sent, producer, send};

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

/// A count over all shards, as the service shows it.
fn count(status: &Value, of: &str) -> u64 {
    let shards = status["board"]["shards"].as_object().unwrap();
    shards.values().map(|shard| shard["counts"][of].as_u64().unwrap()).sum()
}

#[track_caller]
fn assert_counts(service: &Service, wanted: [(&str, u64); 4]) {
    let status = service.status();
    for (of, wanted) in wanted {
        assert_eq!(count(&status, of), wanted, "{of} in {}", status["board"]["shards"]);
    }
}

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

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_halts_its_partition_under_fail_until_the_policy_changes() {
    let stand = Stand::new(2).await;
    fill(&stand, 0);
    let good = || (0..10).map(|_| r#"{"a":"y"}"#.to_owned());
    stand.topic.fill(1, good()).await;
    let limited = "'max.offsets.per.batch' '2', 'bad.records'";
    let service = stand.start(&sql(&stand, &format!("{limited} 'fail'")));
    let halted = |status: &Value| {
        let partitions = status["board"]["partitions"].as_array();
        partitions.and_then(|partitions| partitions.iter().find(|p| p["actor"]["life"] == "halted")).cloned()
    };
    service.until("a partition halts", |status| halted(status).is_some()).await;
    let partition = halted(&service.status()).unwrap();
    assert_eq!((&partition["topic"], &partition["partition"]), (&stand.topic.name.as_str().into(), &0.into()));
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
    service.kill();

    // The policy is about reading: the stored state stays.
    let service = stand.start(&sql(&stand, &format!("{limited} 'skip'")));
    stand.until_committed(&[(0, 10), (1, 20)].into()).await;
    assert_eq!(table(&stand).await, counted(4, 22));
    until("it is well", Duration::from_secs(60), async || service.get("/healthz").is_some_and(|(code, _)| code == 200))
        .await;
    service.stop().await;
}
