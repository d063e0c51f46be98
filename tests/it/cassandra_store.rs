//! What the state store in Cassandra does when answers, rights, rows or clocks are not as they should be.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use scylla::client::session::Session;
use scylla::statement::{Consistency, SerialConsistency};
use strandline::cassandra::{connect, prepare_conditional, prepare_serial_read};
use strandline::settings::{CassandraSettings, Settings, StoreKind, StoreSettings};
use strandline::stores::cassandra::CassandraStore;
use strandline_actors::pointer::{Attempt, Content, Epoch, Generation, Pointer, SegmentKey};
use strandline_actors::ports::{CrashNote, DeadLetter, Moved, StateStore, StoreError};
use strandline_actors::position::{Offset, PartitionKey};
use uuid::Uuid;

use crate::cassandra_connection::server;
use crate::proxy::Proxy;
use crate::store_places::CassandraPlace;

/// The keyspace that most tests share.
fn settings() -> CassandraSettings {
    CassandraPlace::new().0
}

/// A keyspace that does not exist yet.
fn new_keyspace() -> CassandraSettings {
    CassandraSettings { keyspace: format!("store_{}", Uuid::new_v4().simple()), ..settings() }
}

async fn open(settings: &CassandraSettings, pipeline: &str) -> (Arc<Session>, CassandraStore) {
    let session = connect(settings).await.unwrap();
    let store = CassandraStore::open(Arc::clone(&session), settings, pipeline).await.unwrap();
    (session, store)
}

fn unique() -> String {
    Uuid::new_v4().to_string()
}

async fn refusal(settings: &CassandraSettings) -> StoreError {
    let session = connect(settings).await.unwrap();
    CassandraStore::open(session, settings, "p").await.expect_err("the store should not have been opened")
}

fn pointer(epoch: i64) -> Pointer {
    Pointer {
        shard: 0,
        epoch: Epoch(epoch),
        attempt: Attempt::fresh(),
        generation: Generation(1),
        timestamp: epoch,
        content: Content::default(),
        kept: Vec::new(),
    }
}

/// What the store says once it can be reached again.
async fn read_again(store: &dyn StateStore) -> Option<Pointer> {
    loop {
        match store.read_pointer(0).await {
            Ok(pointer) => return pointer,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditional_writes_are_never_repeated_and_serial_reads_see_them() {
    let settings = settings();
    let (session, _) = open(&settings, &unique()).await;
    let table = format!("{}.generations", settings.keyspace);
    let cql = format!("UPDATE {table} SET generation = ? WHERE pipeline = ? IF generation = ?");
    let write = prepare_conditional(&session, &cql).await.unwrap();
    assert_eq!(write.get_serial_consistency(), Some(SerialConsistency::Serial));
    assert_eq!(write.get_consistency(), None);
    let profile = session.get_default_execution_profile_handle().to_profile();
    assert_eq!(profile.get_consistency(), Consistency::Quorum);
    assert!(profile.get_speculative_execution_policy().is_none());
    // The driver's usual policy would repeat even this after some faults.
    assert!(!write.get_is_idempotent());
    assert_eq!(format!("{:?}", write.get_retry_policy().unwrap()), "FallthroughRetryPolicy");
    let cql = format!("SELECT generation FROM {table} WHERE pipeline = ?");
    let read = prepare_serial_read(&session, &cql).await.unwrap();
    assert_eq!(read.get_consistency(), Some(Consistency::Serial));
}

/// Case: unknown write (palantir/atlasdb#2988).
#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_answer_is_lost_is_unknown_and_sent_once() {
    let pipeline = unique();
    let direct = settings();
    let proxy = Proxy::start(&server()).await;
    let through = CassandraSettings { nodes: proxy.address.clone(), timeout: Duration::from_secs(5), ..direct.clone() };
    // The tables are made without a hurry.
    let (_, witness) = open(&direct, &pipeline).await;
    let (_, store) = open(&through, &pipeline).await;
    let (first, second) = (pointer(1), pointer(2));
    assert_eq!(store.move_pointer(None, &first).await.unwrap(), Moved::Applied);

    proxy.lose_answers(true);
    match store.move_pointer(Some(first.base()), &second).await {
        Err(StoreError::Unavailable(message)) => assert!(message.contains("moving a pointer"), "{message}"),
        other => panic!("{other:?}"),
    }
    // It did take place, and was not sent a second time behind the back of who sent it.
    assert_eq!(witness.read_pointer(0).await.unwrap(), Some(second.clone()));
    assert_eq!(proxy.times_sent(second.attempt.0.as_bytes()), 1);

    proxy.lose_answers(false);
    assert_eq!(read_again(&store).await, Some(second.clone()));
    let again = store.move_pointer(Some(first.base()), &second).await.unwrap();
    assert_eq!(again, Moved::Refused(Some(Box::new(second))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_whose_answer_is_lost_is_given_to_nobody() {
    let pipeline = unique();
    let direct = settings();
    let proxy = Proxy::start(&server()).await;
    let through = CassandraSettings { nodes: proxy.address.clone(), timeout: Duration::from_secs(5), ..direct.clone() };
    let (_, witness) = open(&direct, &pipeline).await;
    let (_, store) = open(&through, &pipeline).await;
    let mut taken = BTreeSet::from([store.next_generation().await.unwrap()]);
    proxy.lose_answers(true);
    assert!(matches!(store.next_generation().await, Err(StoreError::Unavailable(_))));
    assert!(taken.insert(witness.next_generation().await.unwrap()));
    proxy.lose_answers(false);
    let last = loop {
        match store.next_generation().await {
            Ok(generation) => break generation,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(last > *taken.last().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_without_one_of_its_chunks_is_corrupt() {
    let pipeline = unique();
    let settings = settings();
    let (session, store) = open(&settings, &pipeline).await;
    let key = SegmentKey { shard: 0, epoch: Epoch(3), attempt: Attempt::fresh(), number: 1 };
    store.write_segment(&key, &[7; 700_000]).await.unwrap();
    let delete = format!(
        "DELETE FROM {}.segments WHERE pipeline = '{pipeline}' AND shard = 0 AND epoch = 3 AND attempt = {} AND number = 1 \
         AND chunk = 1",
        settings.keyspace, key.attempt.0
    );
    session.query_unpaged(delete, ()).await.unwrap();
    match store.read_segment(&key).await {
        Err(StoreError::Corrupt(message)) => {
            assert!(message.contains("chunk 1 of segment"), "{message}");
            assert!(message.contains(&key.attempt.0.to_string()), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// Case: lost write by clock (scalar-labs/scalardb PR#3890). The timestamp of a segment comes from its epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_after_its_deletion_changes_nothing() {
    let pipeline = unique();
    let (_, store) = open(&settings(), &pipeline).await;
    let key = SegmentKey { shard: 0, epoch: Epoch(1), attempt: Attempt::fresh(), number: 0 };
    store.write_segment(&key, b"late").await.unwrap();
    store.delete_segments(&[key]).await.unwrap();
    store.write_segment(&key, b"late").await.unwrap();
    assert!(matches!(store.read_segment(&key).await, Err(StoreError::Corrupt(_))));
    assert_eq!(store.segments_of_epoch(0, Epoch(1)).await.unwrap(), []);
}

/// Case: lost write by clock (scalar-labs/scalardb PR#3890).
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_note_from_a_clock_that_ran_ahead_is_replaced() {
    let pipeline = unique();
    let settings = settings();
    let (session, store) = open(&settings, &pipeline).await;
    let key = PartitionKey { topic_id: Uuid::new_v4(), partition: 0 };
    let ahead = CrashNote::new(Offset(1), Generation(1), 9);
    let mine = CrashNote::new(Offset(2), Generation(1), 1);
    store.write_crash_note(&key, Some(&ahead)).await.unwrap();
    // The same note, an hour from now.
    let later = format!(
        "INSERT INTO {}.crash_notes (pipeline, topic_id, partition, note) VALUES ('{pipeline}', ?, 0, ?) USING TIMESTAMP ?",
        settings.keyspace
    );
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64;
    let text = serde_json::to_string(&Some(&ahead)).unwrap();
    session.query_unpaged(later, (key.topic_id, text, now + 3_600_000_000)).await.unwrap();
    assert_eq!(store.crash_note(&key).await.unwrap(), Some(ahead));
    store.write_crash_note(&key, Some(&mine)).await.unwrap();
    assert_eq!(store.crash_note(&key).await.unwrap(), Some(mine));
    store.write_crash_note(&key, None).await.unwrap();
    assert_eq!(store.crash_note(&key).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_is_readable_until_it_is_long() {
    let pipeline = unique();
    let settings = settings();
    let (session, store) = open(&settings, &pipeline).await;
    let columns = async || {
        let query = format!(
            "SELECT content, packed_content FROM {}.pointers WHERE pipeline = ? AND shard = 0",
            settings.keyspace
        );
        let rows = session.query_unpaged(query, (&pipeline,)).await.unwrap().into_rows_result().unwrap();
        rows.single_row::<(Option<String>, Option<Vec<u8>>)>().unwrap()
    };
    let short = pointer(1);
    store.move_pointer(None, &short).await.unwrap();
    let (content, packed) = columns().await;
    let content: serde_json::Value = serde_json::from_str(&content.unwrap()).unwrap();
    assert_eq!(content["content"]["vector"], serde_json::json!([]));
    assert_eq!(packed, None);

    let mut long = pointer(2);
    long.content.fingerprint = "words ".repeat(100_000);
    store.move_pointer(Some(short.base()), &long).await.unwrap();
    let (content, packed) = columns().await;
    assert_eq!(content, None);
    assert!(packed.unwrap().len() < 10_000);
    assert_eq!(store.read_pointer(0).await.unwrap(), Some(long));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_that_cassandra_would_not_take_is_refused() {
    let pipeline = unique();
    let (_, store) = open(&settings(), &pipeline).await;
    let (mut first, mut second) = (pointer(1), pointer(2));
    // Nothing in them repeats, so compression does not help.
    let noise = |bytes: usize| (0..bytes / 32).map(|_| Uuid::new_v4().simple().to_string()).collect::<String>();
    first.content.fingerprint = noise(8_000_000);
    assert_eq!(store.move_pointer(None, &first).await.unwrap(), Moved::Applied);
    second.content.fingerprint = noise(12_800_000);
    match store.move_pointer(Some(first.base()), &second).await {
        Err(StoreError::Fatal(message)) => {
            assert!(message.contains("the pointer of shard 0 has grown to 12800"), "{message}");
            assert!(message.contains("Read fewer partitions in one pipeline"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.read_pointer(0).await.unwrap(), Some(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_that_nobody_can_read_is_corrupt() {
    let pipeline = unique();
    let settings = settings();
    let (session, store) = open(&settings, &pipeline).await;
    store.move_pointer(None, &pointer(1)).await.unwrap();
    for (change, complaint) in [
        ("content = '{\"content\":'", "EOF while parsing"),
        ("content = null", "it has no content"),
        ("content = null, packed_content = 0x0000ff", ""),
    ] {
        let update =
            format!("UPDATE {}.pointers SET {change} WHERE pipeline = '{pipeline}' AND shard = 0", settings.keyspace);
        session.query_unpaged(update, ()).await.unwrap();
        match store.read_pointer(0).await {
            Err(StoreError::Corrupt(message)) => {
                assert!(message.starts_with("the pointer of shard 0 at epoch 1: "), "{message}");
                assert!(message.contains(complaint), "{message}");
            }
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_cassandra_would_not_take_is_cut() {
    let pipeline = unique();
    let settings = settings();
    let (session, store) = open(&settings, &pipeline).await;
    let letter = DeadLetter {
        topic: "t".into(),
        partition: PartitionKey { topic_id: Uuid::new_v4(), partition: 0 },
        offset: 1,
        timestamp: 0,
        reason: "too long".into(),
        key: Some(b"key".to_vec()),
        value: Some(vec![b'x'; 20 << 20]),
    };
    store.write_dead_letters(&[letter], 1).await.unwrap();
    let query = format!(
        "SELECT key_bytes, value, value_bytes FROM {}.dead_letters WHERE pipeline = ? AND topic = 't' AND partition = 0",
        settings.keyspace
    );
    let rows = session.query_unpaged(query, (&pipeline,)).await.unwrap().into_rows_result().unwrap();
    let (key_bytes, value, value_bytes) = rows.single_row::<(i64, Vec<u8>, i64)>().unwrap();
    assert_eq!((key_bytes, value.len(), value_bytes), (3, 4 << 20, 20 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_create_the_tables_at_once() {
    let settings = new_keyspace();
    let stores = join_all((0..4).map(|_| open(&settings, "p"))).await;
    let next = pointer(1);
    assert_eq!(stores[0].1.move_pointer(None, &next).await.unwrap(), Moved::Applied);
    for (_, store) in &stores {
        assert_eq!(store.read_pointer(0).await.unwrap(), Some(next.clone()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replication_is_that_of_the_settings() {
    let settings = CassandraSettings {
        replication: "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}".into(),
        ..new_keyspace()
    };
    let (session, _) = open(&settings, "p").await;
    let query = "SELECT replication['datacenter1'] FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows = session.query_unpaged(query, (&settings.keyspace,)).await.unwrap().into_rows_result().unwrap();
    assert_eq!(rows.single_row::<(String,)>().unwrap().0, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_that_is_none_is_named() {
    let settings = CassandraSettings { replication: "{'class': 'Everywhere'}".into(), ..new_keyspace() };
    match refusal(&settings).await {
        StoreError::Fatal(message) => {
            assert!(
                message.starts_with(&format!("keyspace {} does not exist and cannot be created: ", settings.keyspace)),
                "{message}"
            );
            assert!(message.contains("Everywhere"), "{message}");
            assert!(message.contains("STRANDLINE_CASSANDRA__REPLICATION"), "{message}");
            assert!(message.contains("deploy/cassandra/schema.cql"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyspace_that_has_no_valid_name_is_named() {
    for keyspace in ["", "a-b", "ä", &"x".repeat(49)] {
        let settings = CassandraSettings { keyspace: keyspace.into(), ..new_keyspace() };
        match refusal(&settings).await {
            StoreError::Fatal(message) => {
                assert!(message.starts_with("STRANDLINE_CASSANDRA__KEYSPACE: "), "{message}");
                assert!(message.contains(&format!("'{keyspace}' is not the name of a keyspace")), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_kind_are_named() {
    let settings = new_keyspace();
    let (session, _) = open(&settings, "p").await;
    let alter = format!("ALTER TABLE {}.pointers DROP packed_content", settings.keyspace);
    session.query_unpaged(alter, ()).await.unwrap();
    match refusal(&settings).await {
        StoreError::Fatal(message) => {
            assert!(
                message.starts_with(&format!(
                    "the tables in keyspace {} cannot be used by this version: ",
                    settings.keyspace
                )),
                "{message}"
            );
            assert!(message.contains("packed_content"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_dropped_meanwhile_is_no_passing_fault() {
    let settings = new_keyspace();
    let (session, store) = open(&settings, "p").await;
    session.query_unpaged(format!("DROP TABLE {}.pointers", settings.keyspace), ()).await.unwrap();
    match store.move_pointer(None, &pointer(1)).await {
        Err(StoreError::Fatal(message)) => assert!(message.contains("pointers"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_named_when_the_store_is_opened() {
    let settings = Settings {
        store: StoreSettings { kind: StoreKind::Cassandra, path: None, ..StoreSettings::default() },
        cassandra: CassandraSettings { nodes: "127.0.0.1:1".into(), ..CassandraSettings::default() },
        ..Settings::default()
    };
    let error = strandline::stores::open(&settings, "p").await.err().unwrap();
    assert!(error.to_string().starts_with("no Cassandra node answered at 127.0.0.1:1: "), "{error}");
}
