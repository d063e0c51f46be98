//! The dead letters that a store holds, for people: read one after the other, beside or after the service that wrote them.
//!
//! Nothing is created and nothing is changed, so asking for a pipeline that never was is an error. However many letters
//! there are, a few at a time are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use strandline_actors::ports::StoreError;
use uuid::Uuid;

use super::cassandra::letters::CassandraLetters;
use super::existing::{ExistingError, place};
use super::local::letters::LocalLetters;
use super::{OpenError, folder};
use crate::cassandra::connect;
use crate::settings::{Settings, StoreKind};

/// A record that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The topic's name.
    pub topic: String,
    /// The topic's id.
    pub topic_id: Uuid,
    /// The partition.
    pub partition: i32,
    /// The record's offset.
    pub offset: i64,
    /// The record's Kafka timestamp, in milliseconds; below 0 if it has none.
    pub timestamp: i64,
    /// When the checkpoint was committed that carried the letter, in microseconds since the epoch.
    pub set_aside: i64,
    /// Why it could not be processed.
    pub reason: String,
    /// The record's key, unless it is null.
    pub key: Option<Payload>,
    /// The record's value, unless it is null.
    pub value: Option<Payload>,
}

/// The bytes of a key or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// How many the record has.
    pub length: u64,
    /// Those that are kept, or none if they were not asked for.
    pub bytes: Vec<u8>,
}

impl Payload {
    /// Bytes that are all there.
    pub(super) fn whole(bytes: Vec<u8>) -> Self {
        Self { length: bytes.len() as u64, bytes }
    }
}

/// Which letters are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of this topic alone.
    pub topic: Option<String>,
    /// Of this partition alone.
    pub partition: Option<i32>,
    /// At this offset alone.
    pub offset: Option<i64>,
    /// From this offset on.
    pub from: Option<i64>,
    /// Up to this offset.
    pub until: Option<i64>,
    /// Whether keys and values are wanted, too.
    pub payload: bool,
}

impl Wanted {
    pub(super) fn of(&self, topic: &str, partition: i32) -> bool {
        self.topic.as_ref().is_none_or(|wanted| wanted == topic)
            && self.partition.is_none_or(|wanted| wanted == partition)
    }

    /// The first and the last offset.
    pub(super) fn offsets(&self) -> (i64, i64) {
        let range = (self.from.unwrap_or(i64::MIN), self.until.unwrap_or(i64::MAX));
        self.offset.map_or(range, |offset| (offset, offset))
    }
}

/// That a letter was sent to Kafka again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The letter's topic.
    pub topic: String,
    /// The topic's id.
    pub topic_id: Uuid,
    /// The letter's partition.
    pub partition: i32,
    /// The letter's offset.
    pub offset: i64,
    /// When it was sent, in microseconds since the epoch.
    pub at: i64,
    /// Where it is now, for people.
    pub sent_to: String,
}

/// When the letters of a partition were sent again, in microseconds since the epoch, by their offset and topic id.
pub type Replays = BTreeMap<(i64, Uuid), i64>;

/// What is done with each letter; it may end the reading.
pub type Each<'a> = &'a mut (dyn FnMut(Letter) -> ControlFlow<()> + Send);

/// The dead letters of one pipeline.
#[derive(Debug)]
pub struct Letters {
    kept: Kept,
    /// The partitions that the pipeline has ever read.
    partitions: BTreeSet<(String, i32)>,
}

#[derive(Debug)]
enum Kept {
    Local(LocalLetters),
    Cassandra(Box<CassandraLetters>),
}

impl Letters {
    /// Opens the dead letters of the pipeline that the settings name. The runtime that calls this has to outlive them.
    pub async fn open(settings: &Settings) -> Result<Self, ExistingError> {
        Self::opened(settings, false).await
    }

    /// The same, so that letters can be marked; of a store of an earlier version what is missing for that is made.
    pub async fn open_to_mark(settings: &Settings) -> Result<Self, ExistingError> {
        Self::opened(settings, true).await
    }

    async fn opened(settings: &Settings, mark: bool) -> Result<Self, ExistingError> {
        let pipeline = &settings.pipeline.name;
        let opened = match settings.store.kind {
            StoreKind::Local => LocalLetters::open(folder(settings), pipeline)?.map(Kept::Local),
            StoreKind::Cassandra => {
                let session = connect(&settings.cassandra).await.map_err(OpenError::from)?;
                let opened = CassandraLetters::open(session, &settings.cassandra, pipeline, mark).await?;
                opened.map(|letters| Kept::Cassandra(Box::new(letters)))
            }
        };
        let Some(kept) = opened else {
            return Err(ExistingError::NoPipeline { pipeline: pipeline.clone(), place: place(settings) });
        };
        let partitions = match &kept {
            Kept::Local(letters) => letters.partitions()?,
            Kept::Cassandra(letters) => letters.partitions().await?,
        };
        // What is no partition is a note on the topic.
        let partitions = partitions.into_iter().filter(|(_, partition)| *partition >= 0).collect();
        Ok(Self { kept, partitions })
    }

    /// The topics that the pipeline has ever read.
    pub fn topics(&self) -> BTreeSet<&str> {
        self.partitions.iter().map(|(topic, _)| topic.as_str()).collect()
    }

    /// The partitions that the pipeline has ever read, of those that are wanted.
    pub fn partitions(&self, wanted: &Wanted) -> impl Iterator<Item = &(String, i32)> {
        self.partitions.iter().filter(|(topic, partition)| wanted.of(topic, *partition))
    }

    /// Which letters of a partition were sent again.
    pub async fn replays(&self, topic: &str, partition: i32) -> Result<Replays, StoreError> {
        match &self.kept {
            Kept::Local(letters) => letters.replays(topic, partition),
            Kept::Cassandra(letters) => letters.replays(topic, partition).await,
        }
    }

    /// Marks letters as sent again.
    pub async fn mark(&self, replays: &[Replay]) -> Result<(), StoreError> {
        match &self.kept {
            Kept::Local(letters) => letters.mark(replays),
            Kept::Cassandra(letters) => letters.mark(replays).await,
        }
    }

    /// Reads the letters in the order of topic, partition and offset, until `each` has enough.
    pub async fn read(&self, wanted: &Wanted, each: Each<'_>) -> Result<(), StoreError> {
        for (topic, partition) in self.partitions.iter().filter(|(topic, partition)| wanted.of(topic, *partition)) {
            let read = match &self.kept {
                Kept::Local(letters) => letters.read(topic, *partition, wanted, each)?,
                Kept::Cassandra(letters) => letters.read(topic, *partition, wanted, each).await?,
            };
            if read.is_break() {
                break;
            }
        }
        Ok(())
    }
}
