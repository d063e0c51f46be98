//! Input that is meant to harm, or might as well be: records that are no records, that are too large, that make much state of
//! one key, and that change very many keys at once. Each has a clear outcome, and none costs a good record.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::producer::Producer;
use scylla::client::session::Session;

use crate::stand::{Stand, until};
use crate::test_topic::{Sent, TestTopic, producer, send};

/// More payload than one batch may hold by default.
const LARGE: usize = 5 << 20;

/// Offset, reason, length of the value, and what is kept of it.
async fn letters(session: &Session, stand: &Stand) -> Vec<(i64, String, Option<i64>, Option<Vec<u8>>)> {
    let read = format!(
        "SELECT offset, reason, value_bytes, value FROM {}.dead_letters
         WHERE pipeline = '{}' AND topic = '{}' AND partition = 0",
        stand.keyspace, stand.pipeline, stand.topic.name
    );
    let rows = session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows().unwrap().map(|row| row.unwrap()).collect()
}

/// The sizes of the pipeline's segments, and in how many chunks they are.
async fn segments(stand: &Stand) -> Vec<(i64, i32)> {
    let read = format!(
        "SELECT bytes, chunks FROM {}.segment_index WHERE pipeline = '{}' ALLOW FILTERING",
        stand.keyspace, stand.pipeline
    );
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows().unwrap().map(|row| row.unwrap()).collect()
}

/// A stand whose topic takes records of 8 MB.
async fn large_stand() -> Stand {
    let mut stand = Stand::new(1).await;
    stand.topic = TestTopic::create("large", 1, &[("max.message.bytes", "8388608")]).await;
    stand
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_meant_to_harm_are_set_aside_one_by_one() {
    let stand = Stand::new(1).await;
    let deep = "[".repeat(10_000);
    let closed = format!("{{\"a\":{deep}{}}}", "]".repeat(10_000));
    let objects = "{\"a\":".repeat(10_000);
    let hostile: Vec<(&[u8], &str)> = vec![
        (deep.as_bytes(), "nested more than 128 levels deep"),
        (closed.as_bytes(), "nested more than 128 levels deep"),
        (objects.as_bytes(), "nested more than 128 levels deep"),
        (b"{\"a\":\"\xff\xfe\"}", "not valid UTF-8 from byte 6 on"),
        (b"{\"a\":\"\xed\xa0\x80\"}", "not valid UTF-8"),
        (br#"{"a":"\ud800","n":1}"#, "lone surrogate"),
        (br#"{"n":9223372036854775808}"#, "out of range for BIGINT"),
        (br#"{"n":1e99999999999999999999}"#, "out of range for BIGINT"),
        (br#"{"d":1e400}"#, "out of range for DOUBLE"),
        (br#"{"m":123456789.12}"#, "more digits than DECIMAL(5, 2) holds"),
        (br#"{"m":1e-99999999999999999999}"#, "more than 2 digits after the point"),
        (br#"{"d":NaN}"#, "not valid JSON"),
        (br#"{"d":Infinity}"#, "not valid JSON"),
        ("\u{feff}{\"a\":\"x\"}".as_bytes(), "byte order mark"),
        (b" \t\r\n", "the value is blank"),
        (b"", "the value is empty"),
        (br#"{"a":"x"} trailing"#, "trailing characters"),
        (br#"{"a":"x"}{"a":"y"}"#, "trailing characters"),
        (b"{\"a\":\"x\"}\n{\"a\":\"y\"}", "trailing characters"),
        (br#"[{"a":"x"}]"#, "a record is a JSON object, found the array"),
        (br#"{"t":63072000000000000}"#, "is 'json.timestamp.unit' right?"),
        (b"\0\0\0\0\x01{}", "serializers of a schema registry"),
        (br#"{"a":"x","n":"#, "EOF while parsing"),
    ];
    let good: [&[u8]; 4] = [
        br#"{"a":"x","n":1}"#,
        // Of a field that comes twice the last one counts, and names differ by their case.
        br#"{"a":"y","a":"x","A":"z","n":5,"n":1}"#,
        br#"{"a":"x","n":1.0,"d":"NaN"}"#,
        "{\"a\":\"x\",\"n\":1e0,\"z\":\"\\ud83d\\ude00 \u{1f600}\"}".as_bytes(),
    ];
    let (kafka, sending) =
        (stand.topic.name.clone(), hostile.iter().map(|(value, _)| value.to_vec()).collect::<Vec<_>>());
    tokio::task::spawn_blocking(move || {
        let producer = producer(&[]);
        for (number, value) in sending.iter().enumerate() {
            for value in [value.as_slice(), good[number % good.len()]] {
                send(&producer, &kafka, 0, Sent { key: None, value: Some(value), headers: None });
            }
        }
        producer.flush(Duration::from_secs(60)).unwrap();
    })
    .await
    .unwrap();
    let sql = format!(
        "CREATE EXTERNAL TABLE hostile (a VARCHAR, n BIGINT, d DOUBLE, m DECIMAL(5, 2), t TIMESTAMP(3)) STORED AS JSON
           LOCATION 'kafka://{}' OPTIONS ('json.timestamp.unit' 'millis');
         CREATE EXTERNAL TABLE result (a VARCHAR, n BIGINT, m DECIMAL(15, 2), d DOUBLE, t TIMESTAMP(3), PRIMARY KEY (a))
           STORED AS CQL LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true', 'sink.null.key' '-');
         INSERT INTO result SELECT a, sum(n), sum(m), max(d), max(t) FROM hostile GROUP BY a",
        stand.topic.name, stand.keyspace, stand.table
    );
    let count = hostile.len() as i64;
    for _ in 0..2 {
        let service = stand.start(&sql);
        service.until_each_shard_committed().await;
        stand.until_committed(&[(0, 2 * count)].into()).await;
        let read = format!("SELECT a, n FROM {}.{}", stand.keyspace, stand.table);
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        let rows: Vec<(String, i64)> = rows.rows().unwrap().map(|row| row.unwrap()).collect();
        assert_eq!(rows, [("x".to_owned(), count)]);
        let letters = letters(&stand.session, &stand).await;
        assert_eq!(letters.len(), hostile.len());
        for ((offset, reason, _, value), (number, (sent, part))) in letters.iter().zip((0..).zip(&hostile)) {
            assert_eq!((*offset, value.as_deref()), (2 * number, Some(*sent)), "{reason}");
            assert!(reason.contains(part) && reason.len() < 400, "{part:?} in {reason}");
        }
        assert!(!service.said().contains("panic"), "{}", service.said());
        service.kill();
    }
}

/// A record larger than a batch may be is a batch of its own, whether it is good or bad.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_larger_than_a_batch_is_processed_and_one_that_is_bad_is_cut() {
    let stand = large_stand().await;
    let text = "x".repeat(LARGE);
    let small = || r#"{"k":"small","v":"s"}"#.to_owned();
    let values =
        vec![small(), format!(r#"{{"k":"large","v":"{text}"}}"#), small(), format!(r#"{{"k":"{text}"#), small()];
    let bad = values[3].clone();
    let settings = [("message.max.bytes", "8388608"), ("compression.type", "none")];
    stand.topic.fill_with(&settings, 0, values).await;
    let sql = format!(
        "CREATE EXTERNAL TABLE large (k VARCHAR, v VARCHAR) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, v VARCHAR, length BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT k, count(*), min(v), max(char_length(v)) FROM large GROUP BY k",
        stand.topic.name, stand.keyspace, stand.table
    );
    for _ in 0..2 {
        // No more than one such record at a time may be under way.
        let service = stand.start_with(&sql, &[("IN_FLIGHT__BYTES", "1MB"), ("CHECKPOINT__PENDING_BYTES", "1MB")]);
        service.until_each_shard_committed().await;
        stand.until_committed(&[(0, 5)].into()).await;
        let read = format!("SELECT k, n, v, length FROM {}.{}", stand.keyspace, stand.table);
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        let rows = rows.rows::<(String, i64, String, i64)>().unwrap().map(|row| row.unwrap());
        let rows: BTreeMap<String, (i64, String, i64)> = rows.map(|(k, n, v, length)| (k, (n, v, length))).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows["small"], (3, "s".to_owned(), 1));
        let (n, v, length) = &rows["large"];
        assert!(*n == 1 && *v == text && *length == LARGE as i64, "{n} of {length}");
        let letters = letters(&stand.session, &stand).await;
        let [(3, reason, length, Some(value))] = letters.as_slice() else { panic!("{}", letters.len()) };
        assert!(reason.contains("EOF while parsing a string") && reason.len() < 400, "{reason}");
        // The beginning is kept: Cassandra would not take the whole.
        assert_eq!(*length, Some(bad.len() as i64));
        assert!(value.len() == 4 << 20 && bad.as_bytes().starts_with(value), "{} bytes are kept", value.len());
        service.kill();
    }
}

/// Letters and digits that hardly compress, the same for the same seed.
fn random_text(seed: i64, length: usize) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ seed.cast_unsigned().wrapping_mul(0xD134_2543_DE82_EF95);
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(LETTERS[(state >> 58) as usize])
    };
    (0..length).map(|_| letter()).collect()
}

/// All that one key keeps is one row of state, larger than a segment is meant to be: it is stored and read back all the same.
#[tokio::test(flavor = "multi_thread")]
async fn tens_of_megabytes_of_state_of_one_key_survive_a_crash() {
    const VALUES: i64 = 3_000;
    let stand = Stand::new(1).await;
    let value = |number: i64| format!(r#"{{"k":"one","v":"{number:010}-{}"}}"#, random_text(number, 10_000));
    let sql = format!(
        "CREATE EXTERNAL TABLE values_ (k VARCHAR, v VARCHAR) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, different BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT k, count(*), count(DISTINCT v) FROM values_ GROUP BY k",
        stand.topic.name, stand.keyspace, stand.table
    );
    let row = async || {
        let read = format!("SELECT n, different FROM {}.{} WHERE k = 'one'", stand.keyspace, stand.table);
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        rows.single_row::<(i64, i64)>().unwrap()
    };
    stand.topic.fill(0, (0..VALUES).map(value)).await;
    // Each checkpoint writes the key's whole state: few of them.
    let seldom = [("CHECKPOINT__INTERVAL", "3s")];
    let service = stand.start_with(&sql, &seldom);
    stand.until_committed(&[(0, VALUES)].into()).await;
    assert_eq!(row().await, (VALUES, VALUES));
    let bytes = segments(&stand).await.into_iter().map(|(bytes, _)| bytes).max().unwrap();
    assert!(bytes > VALUES * 10_000 / 2, "the state is one segment of {bytes} bytes");
    service.kill();
    // The same values again, and one that is new.
    stand.topic.fill(0, (0..=VALUES).map(value)).await;
    let service = stand.start_with(&sql, &seldom);
    stand.until_committed(&[(0, 2 * VALUES + 1)].into()).await;
    assert_eq!(row().await, (2 * VALUES + 1, VALUES + 1));
    service.stop().await;
}

/// Case: big state (hmda-platform#2194).
#[tokio::test(flavor = "multi_thread")]
async fn half_a_million_keys_changed_in_one_checkpoint_are_stored_in_pieces() {
    const KEYS: i64 = 500_000;
    let mut stand = Stand::new(1).await;
    stand.topic = TestTopic::create("keys", 2, &[]).await;
    // Long keys, so that the state is many segments, which are small when compressed. All of them are kept, and few shown.
    let sql = format!(
        "CREATE EXTERNAL TABLE keys (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT k, count(*), sum(v) FROM keys GROUP BY k HAVING max(v) % 1000 = 0",
        stand.topic.name, stand.keyspace, stand.table
    );
    let key = |number: i64| format!("a key that takes some room in its segment, number {number:08}");
    let at_once = [
        ("PIPELINE__SHARDS", "1"),
        // The only checkpoint is the one at the end.
        ("CHECKPOINT__INTERVAL", "1h"),
        ("CHECKPOINT__QUIET_INTERVAL", "1h"),
        ("CHECKPOINT__PENDING_BYTES", "1GB"),
        ("SHUTDOWN__DEADLINE", "170s"),
    ];
    for life in 1..=2 {
        for partition in 0..2 {
            let numbers = (0..KEYS).filter(move |number| number % 2 == i64::from(partition));
            let values = numbers.map(move |number| format!(r#"{{"k":"{}","v":{number}}}"#, key(number)));
            stand.topic.fill_with(&[("compression.type", "lz4")], partition, values).await;
        }
        let service = stand.start_with(&sql, &at_once);
        let all_read = |status: &serde_json::Value| {
            let partitions = status["board"]["partitions"].as_array();
            partitions.is_some_and(|all| all.iter().all(|p| p["position"] == life * KEYS / 2) && all.len() == 2)
        };
        until("all is read", Duration::from_secs(600), async || all_read(&service.status())).await;
        let checkpoints = service.status()["board"]["shards"]["0"]["checkpoints"].clone();
        let begun = std::time::Instant::now();
        service.stop().await;
        println!("life {life}: the last checkpoint took {:?}", begun.elapsed());
        assert_eq!(checkpoints, 0, "everything is in the last one");
        assert_eq!(stand.offsets().await, [(0, life * KEYS / 2), (1, life * KEYS / 2)].into());
        let read = format!("SELECT k, n, total FROM {}.{}", stand.keyspace, stand.table);
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        let rows: BTreeMap<String, (i64, i64)> = rows
            .rows::<(String, i64, i64)>()
            .unwrap()
            .map(|row| row.unwrap())
            .map(|row| (row.0, (row.1, row.2)))
            .collect();
        let wanted = (0..KEYS).step_by(1000).map(|number| (key(number), (life, life * number))).collect();
        assert_eq!(rows, wanted);
    }
    let segments = segments(&stand).await;
    assert!(segments.iter().filter(|(bytes, _)| *bytes > 256 << 10).count() > 1, "{segments:?}");
    for (bytes, chunks) in segments {
        assert!(bytes < 32 << 20 && bytes <= i64::from(chunks) * (256 << 10), "{bytes} bytes in {chunks} chunks");
    }
}
