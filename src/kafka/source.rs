//! The port `Source`, for Kafka.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use strandline_actors::ports::{PartitionReader, Producers, Source, SourceError};
use strandline_actors::position::{Offset, SourcePartition};

use crate::catalog::{KafkaTopic, StartingOffsets};
use crate::settings::KafkaSettings;

use super::client::KafkaError;
use super::cluster::{self, Cluster, Existence, Reach};
use super::producers;
use super::reader::Reader;

/// What was asked within this time is not asked again when a partition is opened.
const FRESH: Duration = Duration::from_secs(1);

/// All topics of a pipeline.
pub struct KafkaSource {
    cluster: Arc<Cluster>,
}

impl KafkaSource {
    /// Makes the clients that the tables need. Refuses properties that librdkafka does not know or that would break the
    /// promises, but waits for no broker: whether one answers shows when the partitions are asked for.
    pub async fn connect(settings: &KafkaSettings, topics: &[KafkaTopic]) -> Result<Arc<Self>, KafkaError> {
        Ok(Arc::new(Self { cluster: Arc::new(Cluster::connect(settings, topics)?) }))
    }

    /// The first offset of a partition's log, and its end. Waits for as long as nobody answers.
    pub async fn log(&self, partition: &SourcePartition) -> Result<(Offset, Offset), SourceError> {
        let (low, high) = self.cluster.log_range(self.table_of(partition)?, partition).await?;
        Ok((Offset(low), Offset(high)))
    }

    /// The first offset of a record that is not older than a time, in milliseconds since the epoch. Waits for as long as
    /// nobody answers.
    pub async fn offset_at(&self, partition: &SourcePartition, millis: i64) -> Result<Option<Offset>, SourceError> {
        let found = self.cluster.offset_at(self.table_of(partition)?, partition, millis).await?;
        Ok(found.map(Offset))
    }

    /// How the brokers of each topic answer, in the order of the tables.
    pub fn reach(&self) -> Vec<Reach> {
        (0..self.cluster.tables().len()).map(|table| self.cluster.reach(table)).collect()
    }

    fn table_of(&self, partition: &SourcePartition) -> Result<usize, SourceError> {
        self.cluster
            .table_of(partition)
            .ok_or_else(|| SourceError::Halt(format!("no table of this pipeline reads topic `{}`", partition.topic)))
    }
}

/// What `starting.offsets` says of one partition.
#[derive(Debug, PartialEq, Eq)]
enum StartAt {
    Beginning,
    End,
    Offset(i64),
}

fn start_at(starting: &StartingOffsets, partition: i32, discovered: bool) -> Result<StartAt, i64> {
    match starting {
        _ if discovered => Ok(StartAt::Beginning),
        StartingOffsets::Earliest => Ok(StartAt::Beginning),
        StartingOffsets::Latest => Ok(StartAt::End),
        StartingOffsets::Each(offsets) => match offsets.get(&partition).copied() {
            None | Some(-2) => Ok(StartAt::Beginning),
            Some(-1) => Ok(StartAt::End),
            Some(offset) if offset >= 0 => Ok(StartAt::Offset(offset)),
            Some(offset) => Err(offset),
        },
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn partitions(&self) -> Result<Vec<SourcePartition>, SourceError> {
        let mut partitions = Vec::new();
        for (source, table) in self.cluster.tables().iter().enumerate() {
            let description = self.cluster.describe(source).await?;
            let topic: Arc<str> = table.topic.as_str().into();
            partitions.extend(description.partitions.iter().map(|partition| SourcePartition {
                source,
                topic: Arc::clone(&topic),
                key: cluster::key(&description, *partition),
            }));
        }
        partitions.sort();
        Ok(partitions)
    }

    async fn start_offset(&self, partition: &SourcePartition, discovered: bool) -> Result<Offset, SourceError> {
        let table = self.table_of(partition)?;
        let starting = &self.cluster.table(table).starting_offsets;
        let start = start_at(starting, partition.key.partition, discovered).map_err(|offset| {
            SourceError::Halt(format!(
                "{partition} cannot start at offset {offset}: in 'starting.offsets', -2 means earliest, -1 latest, and \
                 offsets are not negative"
            ))
        })?;
        if let StartAt::Offset(offset) = start {
            return Ok(Offset(offset));
        }
        let (low, high) = self.cluster.log_range(table, partition).await?;
        Ok(Offset(if start == StartAt::End { high } else { low }))
    }

    async fn thins(&self, partition: &SourcePartition) -> Result<bool, SourceError> {
        let policy = self.cluster.cleanup_policy(self.table_of(partition)?).await?;
        Ok(policy.split(',').any(|part| part.trim() == "compact"))
    }

    async fn end(&self, partition: &SourcePartition) -> Option<Offset> {
        let table = self.cluster.table_of(partition)?;
        // That of another topic of the same name says nothing.
        if self.cluster.other_id(partition).is_some() {
            return None;
        }
        self.cluster.watermarks(table, partition).await.map(|(_, end)| Offset(end))
    }

    async fn open(&self, partition: &SourcePartition, from: Offset) -> Result<Box<dyn PartitionReader>, SourceError> {
        let table = self.table_of(partition)?;
        if let Existence::OtherTopic(id) = self.cluster.refresh(table, partition, FRESH).await {
            return Err(SourceError::Halt(format!(
                "{partition} halts at offset {from}: {}",
                cluster::recreated(partition, id)
            )));
        }
        Ok(Box::new(Reader::open(Arc::clone(&self.cluster), table, partition.clone(), from)?))
    }

    fn link(&self, batch: &tracing::Span, producers: &Producers) {
        producers::link(batch, producers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_start_is_where_the_table_says() {
        let each = StartingOffsets::Each([(0, 5), (1, -1), (2, -2), (3, -3)].into());
        assert_eq!(start_at(&StartingOffsets::Earliest, 0, false), Ok(StartAt::Beginning));
        assert_eq!(start_at(&StartingOffsets::Latest, 0, false), Ok(StartAt::End));
        assert_eq!(start_at(&each, 0, false), Ok(StartAt::Offset(5)));
        assert_eq!(start_at(&each, 1, false), Ok(StartAt::End));
        assert_eq!(start_at(&each, 2, false), Ok(StartAt::Beginning));
        assert_eq!(start_at(&each, 3, false), Err(-3));
        assert_eq!(start_at(&each, 4, false), Ok(StartAt::Beginning));
    }

    #[test]
    fn a_partition_that_is_found_later_starts_at_its_beginning() {
        let each = StartingOffsets::Each([(0, 5)].into());
        for starting in [StartingOffsets::Latest, StartingOffsets::Earliest, each] {
            assert_eq!(start_at(&starting, 0, true), Ok(StartAt::Beginning));
        }
    }
}
