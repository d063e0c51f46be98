//! The state store for one machine: an embedded database, one file for each pipeline.
//!
//! A call that returns has put its data on the disk. The file is locked; one process works with it at a time.

mod file;
pub(super) mod letters;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strandline_actors::pause::Wishes;
use strandline_actors::pointer::{Attempt, Base, Epoch, Generation, Pointer, SegmentKey, ShardId};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError, Taken,
};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use uuid::Uuid;

use crate::stores::format::{self, Unreadable};
use crate::stores::local::file::{File, Trouble};

/// `name`, `definition` (JSON) and `generation` (in decimal) of the pipeline.
const PIPELINE: TableDefinition<'_, &str, &str> = TableDefinition::new("pipeline");
/// The pointer of each shard, as JSON.
const POINTERS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("pointers");
/// The number of chunks of each segment.
const SEGMENTS: TableDefinition<'_, SegmentId, u32> = TableDefinition::new("segments");
/// The chunks of the segments.
const CHUNKS: TableDefinition<'_, (SegmentId, u32), &[u8]> = TableDefinition::new("chunks");
/// The topic and the start of each partition.
const STARTS: TableDefinition<'_, PartitionId, (&str, i64)> = TableDefinition::new("start_offsets");
/// The crash note of each partition, as JSON.
const CRASH_NOTES: TableDefinition<'_, PartitionId, &[u8]> = TableDefinition::new("crash_notes");
/// The next offset of each partition, and its write timestamp.
const KAFKA_OFFSETS: TableDefinition<'_, (&str, i32), (i64, i64)> = TableDefinition::new("kafka_offsets");
/// The dead letters: the write timestamp, and what the key does not say as JSON.
const DEAD_LETTERS: TableDefinition<'_, LetterId<'_>, (i64, &[u8])> = TableDefinition::new("dead_letters");

/// When dead letters were sent again, in microseconds since the epoch.
const REPLAYS: TableDefinition<'_, LetterId<'_>, i64> = TableDefinition::new("dead_letter_replays");

/// Shard, epoch, attempt, number.
type SegmentId = (u32, i64, u128, u32);
/// Topic, partition, offset, topic id.
type LetterId<'a> = (&'a str, i32, i64, u128);
/// Topic id, partition.
type PartitionId = (u128, i32);

/// The size of a chunk: with its key just below a power of two, which is what the database allots.
const CHUNK: usize = (256 << 10) - 1024;

/// The state store of one pipeline in a file of its own.
#[derive(Debug)]
pub struct LocalStore {
    file: Arc<File>,
}

impl LocalStore {
    /// Opens the store of a pipeline in a folder; both are created when they are missing.
    pub async fn open(folder: &Path, pipeline: &str) -> Result<Self, StoreError> {
        let path = folder.join(file_name(pipeline));
        let pipeline = pipeline.to_owned();
        let file = blocking(move || File::open(&path, |database| create_tables(database, &pipeline))).await?;
        Ok(Self { file })
    }

    /// Opens the store of a pipeline that has been started before; nothing is created.
    pub async fn existing(folder: &Path, pipeline: &str) -> Result<Option<(Self, PipelineRow)>, StoreError> {
        if !folder.join(file_name(pipeline)).exists() {
            return Ok(None);
        }
        let store = Self::open(folder, pipeline).await?;
        let row = store.read(|transaction| {
            let table = transaction.open_table(PIPELINE)?;
            let text = table.get("definition")?.map(|text| text.value().to_owned());
            text.map(|text| parse("the definition of the pipeline", text.as_bytes())).transpose()
        });
        Ok(row.await?.map(|row| (store, row)))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The lines of `kafka_offsets`.
    pub async fn kafka_offsets(&self) -> Result<Vec<KafkaOffset>, StoreError> {
        self.read(|transaction| {
            let table = transaction.open_table(KAFKA_OFFSETS)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    let (topic, partition) = key.value();
                    Ok(KafkaOffset { topic: topic.to_owned(), partition, offset: Offset(value.value().0) })
                })
                .collect()
        })
        .await
    }

    /// All dead letters, by topic, partition and offset.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(|transaction| {
            let table = transaction.open_table(DEAD_LETTERS)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    let (topic, partition, offset, topic_id) = key.value();
                    let (timestamp, reason, record_key, record_value) =
                        parse::<(i64, String, Option<Vec<u8>>, Option<Vec<u8>>)>("a dead letter", value.value().1)?;
                    Ok(DeadLetter {
                        topic: topic.to_owned(),
                        partition: PartitionKey { topic_id: Uuid::from_u128(topic_id), partition },
                        offset,
                        timestamp,
                        reason,
                        key: record_key,
                        value: record_value,
                    })
                })
                .collect()
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&redb::ReadTransaction) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        blocking(move || file.with(|database| job(&database.begin_read()?))).await
    }

    async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&redb::WriteTransaction) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        blocking(move || file.write(job)).await
    }
}

/// Runs what may wait for the disk where nobody else has to wait for it.
async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(job).await.map_err(|error| match error.is_panic() {
        // Trying again would meet the same bytes.
        true => {
            StoreError::Corrupt(format!("the local store cannot use what its file says, so it is damaged: {error}"))
        }
        false => StoreError::Unavailable(format!("the local store did not finish: {error}")),
    })?
}

/// The name of a pipeline's file: itself as far as every file system takes it.
fn file_name(pipeline: &str) -> PathBuf {
    let mut name = String::new();
    for byte in pipeline.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > 200 {
        let hash = twox_hash::XxHash3_64::oneshot(pipeline.as_bytes());
        name.truncate(180);
        name.push_str(&format!("-{hash:016x}"));
    }
    PathBuf::from(name + ".redb")
}

/// Makes sure that the tables exist, and that the file is of this pipeline.
fn create_tables(database: &redb::Database, pipeline: &str) -> Result<(), Trouble> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(PIPELINE)?;
        let other = table.get("name")?.map(|name| name.value().to_owned()).filter(|name| name != pipeline);
        if let Some(other) = other {
            return Err(Trouble::Final(format!(
                "the file belongs to pipeline '{other}', not to '{pipeline}'. Give one of them a folder of its own with \
                 STRANDLINE_STORE__PATH"
            )));
        }
        table.insert("name", pipeline)?;
        transaction.open_table(POINTERS)?;
        transaction.open_table(SEGMENTS)?;
        transaction.open_table(CHUNKS)?;
        transaction.open_table(STARTS)?;
        transaction.open_table(CRASH_NOTES)?;
        transaction.open_table(KAFKA_OFFSETS)?;
        transaction.open_table(DEAD_LETTERS)?;
        transaction.open_table(REPLAYS)?;
    }
    transaction.commit()?;
    Ok(())
}

fn segment_id(key: &SegmentKey) -> SegmentId {
    (key.shard, key.epoch.0, key.attempt.0.as_u128(), key.number)
}

fn partition_id(key: &PartitionKey) -> PartitionId {
    (key.topic_id.as_u128(), key.partition)
}

fn json<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Fatal(format!("{what} cannot be written as JSON: {error}")))
}

fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Trouble> {
    serde_json::from_slice(bytes).map_err(|error| Trouble::Corrupt(format!("{what} cannot be read: {error}")))
}

fn parse_pointer(shard: ShardId, bytes: &[u8]) -> Result<Pointer, Trouble> {
    format::read(shard, bytes).map_err(|error| match error {
        Unreadable::Newer(why) => Trouble::Newer(why),
        Unreadable::Wrong(why) => Trouble::Corrupt(format!(
            "the pointer of shard {shard} cannot be read: {why}. Restore the file from a backup, or compute everything anew \
             under another STRANDLINE_PIPELINE__NAME"
        )),
    })
}

/// The latest generation that was taken; 0 if there is none.
fn last_generation(table: &impl ReadableTable<&'static str, &'static str>) -> Result<Generation, Trouble> {
    let last = table.get("generation")?.map(|text| text.value().to_owned());
    last.map_or(Ok(Generation(0)), |text| parse("the generation", text.as_bytes()))
}

#[async_trait]
impl StateStore for LocalStore {
    async fn define_pipeline(&self, row: &PipelineRow) -> Result<PipelineRow, StoreError> {
        let row = row.clone();
        let text = serde_json::to_string(&row)
            .map_err(|error| StoreError::Fatal(format!("the pipeline cannot be written as JSON: {error}")))?;
        self.write(move |transaction| {
            let mut table = transaction.open_table(PIPELINE)?;
            let stored = table.get("definition")?.map(|text| text.value().to_owned());
            match stored {
                Some(text) => parse("the definition of the pipeline", text.as_bytes()),
                None => {
                    table.insert("definition", text.as_str())?;
                    Ok(row)
                }
            }
        })
        .await
    }

    async fn next_generation(&self) -> Result<Generation, StoreError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PIPELINE)?;
            let next = Generation(last_generation(&table)?.0 + 1);
            table.insert("generation", next.to_string().as_str())?;
            Ok(next)
        })
        .await
    }

    async fn take_generation(&self, known: Generation) -> Result<Taken, StoreError> {
        self.write(move |transaction| {
            let mut table = transaction.open_table(PIPELINE)?;
            let last = last_generation(&table)?;
            if last > known {
                return Ok(Taken::Another(last));
            }
            let next = Generation(last.0 + 1);
            table.insert("generation", next.to_string().as_str())?;
            Ok(Taken::Mine(next))
        })
        .await
    }

    async fn start_offset(&self, key: &PartitionKey) -> Result<Option<Offset>, StoreError> {
        let id = partition_id(key);
        self.read(move |transaction| Ok(transaction.open_table(STARTS)?.get(id)?.map(|start| Offset(start.value().1))))
            .await
    }

    async fn define_start(&self, partition: &SourcePartition, start: Offset) -> Result<Offset, StoreError> {
        let id = partition_id(&partition.key);
        let topic = Arc::clone(&partition.topic);
        self.write(move |transaction| {
            let mut table = transaction.open_table(STARTS)?;
            let stored = table.get(id)?.map(|start| start.value().1);
            match stored {
                Some(start) => Ok(Offset(start)),
                None => {
                    table.insert(id, (&*topic, start.0))?;
                    Ok(start)
                }
            }
        })
        .await
    }

    async fn known_partitions(&self) -> Result<Vec<(String, PartitionKey)>, StoreError> {
        self.read(|transaction| {
            let table = transaction.open_table(STARTS)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    let (topic_id, partition) = key.value();
                    let key = PartitionKey { topic_id: Uuid::from_u128(topic_id), partition };
                    Ok((value.value().0.to_owned(), key))
                })
                .collect()
        })
        .await
    }

    async fn read_pointer(&self, shard: ShardId) -> Result<Option<Pointer>, StoreError> {
        self.read(move |transaction| {
            let table = transaction.open_table(POINTERS)?;
            table.get(shard)?.map(|bytes| parse_pointer(shard, bytes.value())).transpose()
        })
        .await
    }

    async fn move_pointer(&self, base: Option<Base>, next: &Pointer) -> Result<Moved, StoreError> {
        let shard = next.shard;
        let text = format::write(next)
            .map_err(|error| StoreError::Fatal(format!("the pointer of shard {shard} cannot be written: {error}")))?;
        self.write(move |transaction| {
            let mut table = transaction.open_table(POINTERS)?;
            let current = table.get(shard)?.map(|bytes| parse_pointer(shard, bytes.value())).transpose()?;
            if current.as_ref().map(Pointer::base) != base {
                return Ok(Moved::Refused(current.map(Box::new)));
            }
            table.insert(shard, text.as_bytes())?;
            Ok(Moved::Applied)
        })
        .await
    }

    async fn write_segment(&self, key: &SegmentKey, bytes: &[u8]) -> Result<(), StoreError> {
        let id = segment_id(key);
        let bytes = bytes.to_vec();
        self.write(move |transaction| {
            // An empty segment has one empty chunk, which tells it from one that is missing.
            let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![&bytes] } else { bytes.chunks(CHUNK).collect() };
            let mut chunks = transaction.open_table(CHUNKS)?;
            let mut count = 0;
            for piece in pieces {
                chunks.insert((id, count), piece)?;
                count += 1;
            }
            transaction.open_table(SEGMENTS)?.insert(id, count)?;
            Ok(())
        })
        .await
    }

    async fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, StoreError> {
        let (key, id) = (*key, segment_id(key));
        self.read(move |transaction| {
            let missing = |what: &str| Trouble::Corrupt(format!("{what} of segment {key:?} is missing"));
            let count = transaction.open_table(SEGMENTS)?.get(id)?.ok_or_else(|| missing("the entry"))?.value();
            let chunks = transaction.open_table(CHUNKS)?;
            let mut bytes = Vec::new();
            for chunk in 0..count {
                let piece = chunks.get((id, chunk))?.ok_or_else(|| missing(&format!("chunk {chunk}")))?;
                bytes.extend_from_slice(piece.value());
            }
            Ok(bytes)
        })
        .await
    }

    async fn delete_segments(&self, keys: &[SegmentKey]) -> Result<(), StoreError> {
        let ids: Vec<SegmentId> = keys.iter().map(segment_id).collect();
        self.write(move |transaction| {
            let mut segments = transaction.open_table(SEGMENTS)?;
            let mut chunks = transaction.open_table(CHUNKS)?;
            for id in &ids {
                let count = segments.remove(id)?.map_or(0, |count| count.value());
                for chunk in 0..count {
                    chunks.remove((*id, chunk))?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn segments_of_epoch(&self, shard: ShardId, epoch: Epoch) -> Result<Vec<SegmentKey>, StoreError> {
        self.read(move |transaction| {
            let table = transaction.open_table(SEGMENTS)?;
            table
                .range((shard, epoch.0, u128::MIN, u32::MIN)..=(shard, epoch.0, u128::MAX, u32::MAX))?
                .map(|row| {
                    let (_, _, attempt, number) = row?.0.value();
                    Ok(SegmentKey { shard, epoch, attempt: Attempt(Uuid::from_u128(attempt)), number })
                })
                .collect()
        })
        .await
    }

    async fn write_kafka_offsets(&self, offsets: &[KafkaOffset], timestamp: i64) -> Result<(), StoreError> {
        let offsets = offsets.to_vec();
        self.write(move |transaction| {
            let mut table = transaction.open_table(KAFKA_OFFSETS)?;
            for KafkaOffset { topic, partition, offset } in &offsets {
                let key = (topic.as_str(), *partition);
                let newer = table.get(key)?.is_some_and(|stored| stored.value().1 > timestamp);
                if !newer {
                    table.insert(key, (offset.0, timestamp))?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn write_dead_letters(&self, letters: &[DeadLetter], timestamp: i64) -> Result<(), StoreError> {
        let letters = letters.to_vec();
        self.write(move |transaction| {
            let mut table = transaction.open_table(DEAD_LETTERS)?;
            for letter in &letters {
                let PartitionKey { topic_id, partition } = letter.partition;
                let key = (letter.topic.as_str(), partition, letter.offset, topic_id.as_u128());
                let newer = table.get(key)?.is_some_and(|stored| stored.value().0 > timestamp);
                if !newer {
                    let rest = (letter.timestamp, &letter.reason, &letter.key, &letter.value);
                    let rest = serde_json::to_vec(&rest)
                        .map_err(|error| Trouble::Final(format!("a dead letter cannot be written: {error}")))?;
                    table.insert(key, (timestamp, rest.as_slice()))?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn paused(&self) -> Result<Wishes, StoreError> {
        self.read(|transaction| {
            let table = transaction.open_table(PIPELINE)?;
            let text = table.get("paused")?.map(|text| text.value().to_owned());
            text.map_or_else(|| Ok(Wishes::default()), |text| parse("what is paused", text.as_bytes()))
        })
        .await
    }

    async fn write_paused(&self, wishes: &Wishes) -> Result<(), StoreError> {
        let text = serde_json::to_string(wishes)
            .map_err(|error| StoreError::Fatal(format!("what is paused cannot be written as JSON: {error}")))?;
        self.write(move |transaction| {
            transaction.open_table(PIPELINE)?.insert("paused", text.as_str())?;
            Ok(())
        })
        .await
    }

    async fn crash_note(&self, key: &PartitionKey) -> Result<Option<CrashNote>, StoreError> {
        let id = partition_id(key);
        self.read(move |transaction| {
            let table = transaction.open_table(CRASH_NOTES)?;
            table.get(id)?.map(|bytes| parse("a crash note", bytes.value())).transpose()
        })
        .await
    }

    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError> {
        let id = partition_id(key);
        let bytes = note.map(|note| json("a crash note", note)).transpose()?;
        self.write(move |transaction| {
            let mut table = transaction.open_table(CRASH_NOTES)?;
            match &bytes {
                Some(bytes) => table.insert(id, bytes.as_slice())?,
                None => table.remove(id)?,
            };
            Ok(())
        })
        .await
    }

    async fn read_heartbeat(&self) -> Result<Option<Heartbeat>, StoreError> {
        if let Some(heartbeat) = self.file.heartbeat() {
            return Ok(Some(heartbeat));
        }
        // Whoever had the file before this process has let go of it.
        let last = self.read(|transaction| last_generation(&transaction.open_table(PIPELINE)?)).await?;
        let released = Heartbeat { generation: last, instance: String::new(), beat: 0, released: true };
        Ok((last > Generation(0)).then_some(released))
    }

    async fn write_heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        self.file.beat(heartbeat);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_has_a_file_name_of_its_own() {
        assert_eq!(file_name("orders"), Path::new("orders.redb"));
        assert_eq!(file_name("../etc/x"), Path::new("%2E%2E%2Fetc%2Fx.redb"));
        assert_eq!(file_name("é"), Path::new("%C3%A9.redb"));
        let (long, longer) = (file_name(&"x".repeat(300)), file_name(&"x".repeat(301)));
        assert_ne!(long, longer);
        assert!(long.as_os_str().len() < 255);
    }
}
