//! What the store and Kafka say together of a pipeline, whether it runs or not: where every shard stands in every partition,
//! and where the logs begin and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use strandline_actors::ownership::{Turn, Watch};
use strandline_actors::pointer::{Generation, Pointer, ShardId};
use strandline_actors::ports::{Heartbeat, Source, SourceError, StateStore, StoreError};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use strandline_actors::rewind;
use tokio::time::Instant;

use super::Failure;
use crate::catalog::KafkaTopic;
use crate::kafka::{KafkaSource, kafka_form};
use crate::service::{self, ServiceError};
use crate::settings::Settings;
use crate::stores::existing::{Existing, Starts};

/// How long Kafka may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a heartbeat is watched to see whether it moves. An owner bumps it four times a second or more.
const LOOK: Duration = Duration::from_millis(1_200);

/// A pipeline needs a name for anything to be found.
pub(super) fn named(settings: &Settings) -> Result<&str, Failure> {
    match settings.pipeline.name.trim() {
        "" => Err(ServiceError::NoName.into()),
        _ => Ok(&settings.pipeline.name),
    }
}

/// One partition that the pipeline has ever read.
pub(super) struct Partition {
    pub(super) key: PartitionKey,
    pub(super) topic: String,
    /// The position of each shard.
    pub(super) shards: Vec<Offset>,
    /// What `kafka_offsets` says.
    pub(super) written: Option<Offset>,
    /// Where its log begins and ends, if Kafka answered and has it.
    pub(super) log: Option<(Offset, Offset)>,
    /// Kafka has a topic of that name with another id.
    pub(super) recreated: bool,
}

impl Partition {
    /// What every shard has.
    pub(super) fn position(&self) -> Offset {
        self.shards.iter().copied().min().unwrap_or_default()
    }

    /// What some shard has.
    pub(super) fn highest(&self) -> Offset {
        self.shards.iter().copied().max().unwrap_or_default()
    }

    pub(super) fn lag(&self) -> Option<i64> {
        self.log.map(|(_, end)| (end.0 - self.position().0).max(0))
    }

    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.topic, self.key.partition)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "topic": self.topic,
            "topic_id": kafka_form(self.key.topic_id),
            "partition": self.key.partition,
            "position": self.position().0,
            "shards": self.shards.iter().map(|at| at.0).collect::<Vec<_>>(),
            "kafka_offset": self.written.map(|at| at.0),
            "begin": self.log.map(|(begin, _)| begin.0),
            "end": self.log.map(|(_, end)| end.0),
            "lag": self.lag(),
            "recreated": self.recreated,
        })
    }
}

/// All that is stored of where a pipeline stands.
pub(super) struct Standing {
    pub(super) pointers: Vec<Option<Pointer>>,
    pub(super) starts: Starts,
    pub(super) partitions: Vec<Partition>,
    /// Why the logs are not known.
    pub(super) unknown: Option<String>,
}

impl Standing {
    /// Reads it.
    pub(super) async fn read(settings: &Settings, existing: &Existing) -> Result<Self, Failure> {
        let (pointers, starts) = pointers(existing).await?;
        let topics: BTreeSet<&str> = starts.values().map(|(topic, _)| topic.as_str()).collect();
        let topics: Vec<&str> = topics.into_iter().collect();
        let written = existing.kafka_offsets(&topics).await.map_err(Failure::failed)?;
        let (logs, unknown) = match logs(settings, &topics).await {
            Ok(logs) => (logs, None),
            Err(failure) => (BTreeMap::new(), Some(failure.message)),
        };
        let ids: BTreeMap<(&str, i32), PartitionKey> =
            logs.iter().map(|(key, log)| ((&*log.partition.topic, key.partition), *key)).collect();
        let partitions = starts.iter().map(|(key, (topic, start))| {
            let position = |pointer: &Option<Pointer>| {
                pointer.as_ref().and_then(|pointer| pointer.content.vector.get(key)).map_or(*start, |at| at.next)
            };
            let line = written.iter().find(|line| line.topic == *topic && line.partition == key.partition);
            Partition {
                key: *key,
                topic: topic.clone(),
                shards: pointers.iter().map(position).collect(),
                written: line.map(|line| line.offset),
                log: logs.get(key).map(|log| (log.begin, log.end)),
                recreated: ids.get(&(topic.as_str(), key.partition)).is_some_and(|now| now != key),
            }
        });
        let mut partitions: Vec<Partition> = partitions.collect();
        partitions.sort_by(|a, b| (&a.topic, a.key).cmp(&(&b.topic, b.key)));
        Ok(Self { partitions, pointers, starts, unknown })
    }

    /// The lowest position of each partition over all shards.
    pub(super) fn lowest(&self) -> BTreeMap<PartitionKey, Offset> {
        let starts = self.starts.iter().map(|(key, (_, start))| (*key, *start)).collect();
        rewind::lowest(&self.pointers, &starts)
    }
}

/// The pointers of all shards, and the starts of all partitions.
pub(super) async fn pointers(existing: &Existing) -> Result<(Vec<Option<Pointer>>, Starts), Failure> {
    let store = existing.store();
    let mut pointers = Vec::new();
    for shard in 0..existing.row.shards {
        pointers.push(store.read_pointer(shard as ShardId).await.map_err(Failure::failed)?);
    }
    Ok((pointers, existing.starts().await.map_err(Failure::failed)?))
}

/// The log of one partition as it is now.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) partition: SourcePartition,
    pub(super) begin: Offset,
    pub(super) end: Offset,
}

/// How the topics are reached: as the statements say if they are given, else by the settings alone.
pub(super) fn tables(settings: &Settings, topics: &[&str]) -> Result<Vec<KafkaTopic>, Failure> {
    let planned = match (&settings.pipeline.sql, &settings.pipeline.sql_file) {
        (None, None) => Vec::new(),
        _ => service::planned(settings)?.sources,
    };
    let table = |topic: &&str| match planned.iter().find(|table| table.topic == **topic) {
        Some(table) => table.clone(),
        None => KafkaTopic::plain(*topic, *topic),
    };
    Ok(topics.iter().map(table).collect())
}

/// A connection to the topics.
pub(super) async fn source(settings: &Settings, topics: &[&str]) -> Result<Arc<KafkaSource>, Failure> {
    Ok(KafkaSource::connect(&settings.kafka, &tables(settings, topics)?).await?)
}

/// An answer of Kafka in time.
pub(super) async fn in_time<T>(
    settings: &Settings,
    question: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(SourceError::Failed(why) | SourceError::Halt(why))) => Err(Failure::failed(why)),
        Err(_) => Err(Failure::failed(format!(
            "no Kafka broker answered at {} within {PATIENCE:?}: check STRANDLINE_KAFKA__BOOTSTRAP_SERVERS, and that the \
             brokers are up and reachable from here",
            settings.kafka.bootstrap_servers
        ))),
    }
}

/// The logs of all partitions of these topics that there are now.
async fn logs(settings: &Settings, topics: &[&str]) -> Result<BTreeMap<PartitionKey, Log>, Failure> {
    if topics.is_empty() {
        return Ok(BTreeMap::new());
    }
    let source = source(settings, topics).await?;
    in_time(settings, async {
        let mut logs = BTreeMap::new();
        for partition in source.partitions().await? {
            let (begin, end) = source.log(&partition).await?;
            logs.insert(partition.key, Log { partition, begin, end });
        }
        Ok(logs)
    })
    .await
}

/// Who owns a pipeline.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// Nobody ever did.
    Nobody,
    /// It let go of the pipeline.
    Released(Heartbeat),
    /// Its heartbeat stands still.
    Silent(Heartbeat),
    /// It is alive.
    Alive(Heartbeat),
}

impl Owner {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Released(_) => "stopped",
            Self::Silent(_) => "silent",
            Self::Alive(_) => "alive",
        }
    }

    pub(super) fn heartbeat(&self) -> Option<&Heartbeat> {
        match self {
            Self::Nobody => None,
            Self::Released(beat) | Self::Silent(beat) | Self::Alive(beat) => Some(beat),
        }
    }
}

/// Watches the owner's heartbeat for long enough to see it move.
pub(super) async fn owner(store: &dyn StateStore) -> Result<Owner, Failure> {
    watch(store, LOOK).await
}

/// Makes sure that no process works on the pipeline: the owner let go of it, or its heartbeat stands still for as long as
/// another instance would wait before it takes over.
pub(super) async fn stopped(settings: &Settings, store: &dyn StateStore) -> Result<(), Failure> {
    match watch(store, settings.store.takeover_after).await? {
        Owner::Alive(Heartbeat { instance, generation, .. }) => Err(Failure::failed(format!(
            "pipeline {} is running: instance {instance} owns it (generation {generation}). Stop it first",
            settings.pipeline.name
        ))),
        Owner::Nobody | Owner::Released(_) | Owner::Silent(_) => Ok(()),
    }
}

async fn watch(store: &dyn StateStore, time: Duration) -> Result<Owner, Failure> {
    let mut watch = Watch::new("", time);
    let patience = Instant::now() + PATIENCE + time;
    let mut first: Option<(Generation, i64)> = None;
    loop {
        let asked = Instant::now();
        match store.read_heartbeat().await {
            Ok(found) => match (watch.look(asked, Instant::now(), found.as_ref()), found) {
                (Turn::Free, _) | (_, None) => return Ok(Owner::Nobody),
                (Turn::Released, Some(beat)) => return Ok(Owner::Released(beat)),
                (Turn::StoodStill | Turn::Mine, Some(beat)) => return Ok(Owner::Silent(beat)),
                (Turn::Wait, Some(beat)) => {
                    let counter = (beat.generation, beat.beat);
                    if *first.get_or_insert(counter) != counter {
                        return Ok(Owner::Alive(beat));
                    }
                }
            },
            Err(StoreError::Unavailable(_)) if Instant::now() < patience => watch.unanswered(),
            Err(error) => return Err(Failure::failed(error)),
        }
        tokio::time::sleep(watch.pause()).await;
    }
}
