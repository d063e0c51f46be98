//! What is stored of a pipeline, for the commands: opened only if it is there, and without making anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use strandline_actors::ports::{KafkaOffset, PipelineRow, StateStore, StoreError};
use strandline_actors::position::{Offset, PartitionKey};

use super::cassandra::CassandraStore;
use super::local::LocalStore;
use super::{OpenError, folder};
use crate::cassandra::connect;
use crate::settings::{Settings, StoreKind};

/// Starts that are read at the same time.
const IN_FLIGHT: usize = 16;

/// Why there is nothing to look at.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExistingError {
    /// There is no connection, or the store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store does not know the pipeline.
    #[error(
        "there is no pipeline `{pipeline}` in {place}: check STRANDLINE_PIPELINE__NAME and the STRANDLINE_STORE__... and \
         STRANDLINE_CASSANDRA__... settings, which have to be those of the service"
    )]
    NoPipeline {
        /// The name that was asked for.
        pipeline: String,
        /// The store that was asked.
        place: String,
    },
}

impl From<StoreError> for ExistingError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// The store that the settings name, in words.
pub fn place(settings: &Settings) -> String {
    match settings.store.kind {
        StoreKind::Local => format!("the folder {}", folder(settings).display()),
        StoreKind::Cassandra => {
            format!("keyspace {} of Cassandra at {}", settings.cassandra.keyspace, settings.cassandra.nodes)
        }
    }
}

/// The store of a pipeline that has been started before.
pub struct Existing {
    /// What was fixed when it first started.
    pub row: PipelineRow,
    kept: Kept,
}

#[derive(Clone)]
enum Kept {
    Local(Arc<LocalStore>),
    Cassandra(Arc<CassandraStore>),
}

/// The stored start of each partition, with the topic's name.
pub type Starts = BTreeMap<PartitionKey, (String, Offset)>;

impl Existing {
    /// Opens what is stored of the pipeline that the settings name. The runtime that calls this has to outlive it.
    pub async fn open(settings: &Settings) -> Result<Self, ExistingError> {
        let pipeline = &settings.pipeline.name;
        let opened = match settings.store.kind {
            StoreKind::Local => {
                let opened = LocalStore::existing(folder(settings), pipeline).await?;
                opened.map(|(store, row)| Self { row, kept: Kept::Local(Arc::new(store)) })
            }
            StoreKind::Cassandra => {
                let session = connect(&settings.cassandra).await.map_err(OpenError::from)?;
                let opened = CassandraStore::existing(session, &settings.cassandra, pipeline).await?;
                opened.map(|(store, row)| Self { row, kept: Kept::Cassandra(Arc::new(store)) })
            }
        };
        opened.ok_or_else(|| ExistingError::NoPipeline { pipeline: pipeline.clone(), place: place(settings) })
    }

    /// The store.
    pub fn store(&self) -> Arc<dyn StateStore> {
        match &self.kept {
            Kept::Local(store) => Arc::clone(store) as _,
            Kept::Cassandra(store) => Arc::clone(store) as _,
        }
    }

    /// Where each partition starts that was ever found.
    pub async fn starts(&self) -> Result<Starts, StoreError> {
        let store = self.store();
        let known = store.known_partitions().await?;
        // What is no partition is a note on the topic.
        let known = known.into_iter().filter(|(_, key)| key.partition >= 0);
        stream::iter(known)
            .map(|(topic, key)| {
                let store = &store;
                async move { Ok((key, (topic, store.start_offset(&key).await?.unwrap_or_default()))) }
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await
    }

    /// The lines of `kafka_offsets` for these topics.
    pub async fn kafka_offsets(&self, topics: &[&str]) -> Result<Vec<KafkaOffset>, StoreError> {
        match &self.kept {
            Kept::Local(store) => store.kafka_offsets().await,
            Kept::Cassandra(store) => store.kafka_offsets(topics).await,
        }
    }
}
