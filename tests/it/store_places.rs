//! Where the tests of the stores open them, and read what is meant for people.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use futures::TryStreamExt;
use scylla::value::CqlTimestamp;
use strandline::cassandra::connect;
use strandline::settings::{CassandraSettings, Settings, StoreKind, StoreSettings};
use strandline::stores::local::LocalStore;
use strandline_actors::ports::{DeadLetter, KafkaOffset, StateStore};
use strandline_actors::position::{Offset, PartitionKey};
use uuid::Uuid;

/// Somewhere that stores can be opened, again and again.
#[async_trait]
pub(crate) trait Place: Send + Sync {
    /// Opens the store of a pipeline, as a new process would.
    async fn open(&self, pipeline: &str) -> Arc<dyn StateStore>;

    /// What `kafka_offsets` says, in order.
    async fn kafka_offsets(&self, pipeline: &str) -> Vec<KafkaOffset>;

    /// The dead letters of a topic's partition, in order.
    async fn dead_letters(&self, pipeline: &str, topic: &str, partition: i32) -> Vec<DeadLetter>;
}

/// A folder that goes away at the end.
pub(crate) struct LocalPlace(pub(crate) PathBuf);

impl LocalPlace {
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("strandline-{}", Uuid::new_v4())))
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[async_trait]
impl Place for LocalPlace {
    async fn open(&self, pipeline: &str) -> Arc<dyn StateStore> {
        let settings = Settings {
            store: StoreSettings { kind: StoreKind::Local, path: Some(self.0.clone()), ..StoreSettings::default() },
            ..Settings::default()
        };
        strandline::stores::open(&settings, pipeline).await.unwrap()
    }

    async fn kafka_offsets(&self, pipeline: &str) -> Vec<KafkaOffset> {
        LocalStore::open(&self.0, pipeline).await.unwrap().kafka_offsets().await.unwrap()
    }

    async fn dead_letters(&self, pipeline: &str, topic: &str, partition: i32) -> Vec<DeadLetter> {
        let mut letters = LocalStore::open(&self.0, pipeline).await.unwrap().dead_letters().await.unwrap();
        letters.retain(|letter| letter.topic == topic && letter.partition.partition == partition);
        letters
    }
}

/// One keyspace for all tests of a run; the first that comes creates it, while others do the same.
static KEYSPACE: LazyLock<String> = LazyLock::new(|| format!("stores_{}", Uuid::new_v4().simple()));

pub(crate) struct CassandraPlace(pub(crate) CassandraSettings);

impl CassandraPlace {
    pub(crate) fn new() -> Self {
        Self(CassandraSettings {
            nodes: crate::cassandra_connection::server(),
            keyspace: KEYSPACE.clone(),
            timeout: std::time::Duration::from_secs(20),
            ..CassandraSettings::default()
        })
    }
}

#[async_trait]
impl Place for CassandraPlace {
    async fn open(&self, pipeline: &str) -> Arc<dyn StateStore> {
        let settings = Settings {
            store: StoreSettings { kind: StoreKind::Cassandra, path: None, ..StoreSettings::default() },
            cassandra: self.0.clone(),
            ..Settings::default()
        };
        strandline::stores::open(&settings, pipeline).await.unwrap()
    }

    /// Read as anybody would.
    async fn kafka_offsets(&self, pipeline: &str) -> Vec<KafkaOffset> {
        let session = connect(&self.0).await.unwrap();
        let query = format!("SELECT pipeline, topic, partition, offset FROM {}.kafka_offsets", self.0.keyspace);
        let rows = session.query_iter(query, ()).await.unwrap().rows_stream::<(String, String, i32, i64)>().unwrap();
        let mut rows: Vec<_> = rows.try_collect().await.unwrap();
        rows.retain(|row| row.0 == pipeline);
        rows.sort();
        rows.into_iter()
            .map(|(_, topic, partition, offset)| KafkaOffset { topic, partition, offset: Offset(offset) })
            .collect()
    }

    async fn dead_letters(&self, pipeline: &str, topic: &str, partition: i32) -> Vec<DeadLetter> {
        type LetterRow = (i64, Uuid, CqlTimestamp, String, Option<Vec<u8>>, Option<Vec<u8>>);
        let session = connect(&self.0).await.unwrap();
        let query = format!(
            "SELECT offset, topic_id, record_timestamp, reason, key, value FROM {}.dead_letters \
             WHERE pipeline = ? AND topic = ? AND partition = ?",
            self.0.keyspace
        );
        let answer = session.query_unpaged(query, (pipeline, topic, partition)).await.unwrap();
        let rows = answer.into_rows_result().unwrap();
        rows.rows::<LetterRow>()
            .unwrap()
            .map(|row| {
                let (offset, topic_id, timestamp, reason, key, value) = row.unwrap();
                let partition = PartitionKey { topic_id, partition };
                DeadLetter { topic: topic.into(), partition, offset, timestamp: timestamp.0, reason, key, value }
            })
            .collect()
    }
}
