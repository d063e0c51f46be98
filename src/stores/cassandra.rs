//! The state store in Cassandra.
//!
//! What decides anything (pointers, generations, starts) is written by lightweight transactions and read at SERIAL, so
//! that a write whose answer was lost is seen by the next read or has no effect at all. Everything else is plain, and
//! carries a write timestamp that does not come from this machine's clock: segments and their deletion take it from the
//! epoch, offsets and dead letters from the pointer they belong to.

pub(super) mod letters;
pub mod schema;
mod statements;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use scylla::client::session::Session;
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, CqlValue, Row};
use serde::{Deserialize, Serialize};
use strandline_actors::clock::{HybridClock, SystemClock};
use strandline_actors::pause::Wishes;
use strandline_actors::pointer::{Attempt, Base, Content, Epoch, Generation, Kept, Pointer, SegmentKey, ShardId};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError, Taken, WallClock,
};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use tokio::sync::{Mutex, Semaphore};
use uuid::Uuid;

use crate::cassandra::{Failure, prepare_serial_read, quote};
use crate::settings::CassandraSettings;
use crate::stores::cassandra::statements::Statements;
use crate::stores::format::{self, Unreadable};

/// The size of a chunk: large enough to be fast, small enough for Cassandra to handle many at once.
const CHUNK: usize = 256 << 10;
/// Requests that are under way at the same time, over all shards.
const IN_FLIGHT: usize = 32;
/// How often a plain request is sent before the whole call fails.
const TRIES: usize = 3;
/// Offsets that are written in one batch: far below what Cassandra takes in one write.
const BATCH: usize = 5_000;
/// The longest content of a pointer that is kept as readable text.
const READABLE: usize = 64 << 10;
/// The longest content of a pointer at all: Cassandra takes 16 MB in one write, and writes it several times over.
const CONTENT_LIMIT: usize = 8 << 20;
/// The longest key or value that a dead letter keeps.
const LETTER_LIMIT: usize = 4 << 20;

/// The state store of one pipeline in Cassandra.
pub struct CassandraStore {
    session: Arc<Session>,
    keyspace: String,
    pipeline: String,
    statements: Statements,
    in_flight: Semaphore,
    /// For heartbeats: a later one is written later, whatever becomes of this machine's clock.
    clock: HybridClock,
    /// Starts of one pipeline share a row of Paxos state: one after the other is faster than all at once.
    defining_start: Mutex<()>,
}

impl std::fmt::Debug for CassandraStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CassandraStore")
            .field("keyspace", &self.keyspace)
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}

/// The part of a pointer that is kept as JSON.
#[derive(Serialize, Deserialize)]
struct Body {
    content: Content,
    kept: Vec<Kept>,
}

#[derive(Serialize)]
struct BodyRef<'a> {
    content: &'a Content,
    kept: &'a [Kept],
}

/// What is paused. Each write has a number of its own, so that one that arrives late finds the text changed whatever was wished
/// meanwhile.
#[derive(Serialize, Deserialize)]
struct PausedRow {
    #[serde(flatten)]
    wishes: Wishes,
    write: Uuid,
}

/// The row of a pipeline, read outside of a store that is open.
async fn read_pipeline(session: &Session, keyspace: &str, pipeline: &str) -> Result<Option<PipelineRow>, StoreError> {
    let what = "looking for the pipeline";
    let read = format!("SELECT shards, fingerprint, plan FROM {}.pipelines WHERE pipeline = ?", quote(keyspace));
    let read = prepare_serial_read(session, &read).await?;
    let answer = session.execute_unpaged(&read, (pipeline,)).await;
    let answer = answer.map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
    let row = rows(what, answer)?.maybe_first_row().map_err(|error| unreadable(what, &error))?;
    Ok(row.map(pipeline_row))
}

fn pipeline_row((shards, fingerprint, plan): (i32, String, String)) -> PipelineRow {
    PipelineRow { shards: shards.cast_unsigned(), fingerprint, plan }
}

type PointerRow = (i64, Uuid, i64, i64, Option<String>, Option<Vec<u8>>);

impl CassandraStore {
    /// Opens the store of a pipeline; keyspace and tables that are missing are created.
    pub async fn open(session: Arc<Session>, settings: &CassandraSettings, pipeline: &str) -> Result<Self, StoreError> {
        let keyspace = settings.keyspace.clone();
        if keyspace.is_empty()
            || keyspace.len() > 48
            || !keyspace.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return Err(StoreError::Fatal(format!(
                "STRANDLINE_CASSANDRA__KEYSPACE: '{keyspace}' is not the name of a keyspace; it takes letters, digits \
                 and underscores, at most 48"
            )));
        }
        schema::ensure(&session, &keyspace, &settings.replication).await?;
        // A start does not fail for what is only good to know.
        if let Ok(Some(warning)) = Self::one_copy(&session, &keyspace).await {
            tracing::warn!("{warning}");
        }
        Self::over(session, keyspace, pipeline).await
    }

    /// What there is to say of a keyspace that has one copy of each row although there are nodes for more.
    pub async fn one_copy(session: &Session, keyspace: &str) -> Result<Option<String>, StoreError> {
        let copies = schema::copies(session, keyspace).await?;
        let nodes = session.get_cluster_state().get_nodes_info().len();
        if copies != Some(1) || nodes < 2 {
            return Ok(None);
        }
        let replication = format!("{{'class': 'NetworkTopologyStrategy', 'replication_factor': {}}}", nodes.min(3));
        Ok(Some(format!(
            "the keyspace {keyspace} keeps one copy of each row on {nodes} nodes, so the loss of a node is the loss of state: ALTER \
             KEYSPACE {keyspace} WITH replication = {replication}, and then `nodetool repair --full {keyspace}` on each node"
        )))
    }

    /// Opens the store of a pipeline that has been started before; nothing is created.
    pub async fn existing(
        session: Arc<Session>,
        settings: &CassandraSettings,
        pipeline: &str,
    ) -> Result<Option<(Self, PipelineRow)>, StoreError> {
        match Self::stored(&session, &settings.keyspace, pipeline).await? {
            Some(row) => Ok(Some((Self::over(session, settings.keyspace.clone(), pipeline).await?, row))),
            None => Ok(None),
        }
    }

    async fn over(session: Arc<Session>, keyspace: String, pipeline: &str) -> Result<Self, StoreError> {
        let statements = Statements::prepare(&session, &keyspace).await.map_err(|failure| match failure {
            Failure::Refused(reason) => StoreError::Fatal(format!(
                "the tables in keyspace {keyspace} cannot be used by this version: {reason}. Compare them with \
                 deploy/cassandra/schema.cql"
            )),
            other => other.into(),
        })?;
        Ok(Self {
            session,
            keyspace,
            pipeline: pipeline.to_owned(),
            statements,
            in_flight: Semaphore::new(IN_FLIGHT),
            clock: HybridClock::new(Arc::new(SystemClock)),
            defining_start: Mutex::new(()),
        })
    }

    /// What is stored of a pipeline, without making anything that is missing. `None` if nothing is.
    pub async fn stored(session: &Session, keyspace: &str, pipeline: &str) -> Result<Option<PipelineRow>, StoreError> {
        match schema::existing_tables(session, keyspace).await?.contains("pipelines") {
            true => read_pipeline(session, keyspace, pipeline).await,
            false => Ok(None),
        }
    }

    /// The lines of `kafka_offsets` for these topics.
    pub async fn kafka_offsets(&self, topics: &[&str]) -> Result<Vec<KafkaOffset>, StoreError> {
        let what = "reading kafka_offsets";
        let mut offsets = Vec::new();
        for topic in topics {
            let pager = self
                .session
                .execute_iter(self.statements.read_offsets.clone(), (&self.pipeline, topic))
                .await
                .map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
            let mut rows = pager.rows_stream::<(i32, i64)>().map_err(|error| unreadable(what, &error))?;
            while let Some((partition, offset)) =
                rows.try_next().await.map_err(|error| StoreError::from(Failure::from(error).during(what)))?
            {
                offsets.push(KafkaOffset { topic: (*topic).to_owned(), partition, offset: Offset(offset) });
            }
        }
        Ok(offsets)
    }

    /// Sends a plain request, and again when its answer is lost: it changes nothing the second time.
    async fn plain(
        &self,
        what: &str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<QueryResult, StoreError> {
        let _permit = self.in_flight.acquire().await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let mut tries = 1;
        loop {
            match self.session.execute_unpaged(statement, &values).await.map_err(Failure::from) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Unknown(reason)) if tries < TRIES => {
                    tracing::debug!("{what}: {reason}; sending it again");
                    tries += 1;
                }
                Err(failure) => return Err(failure.during(what).into()),
            }
        }
    }

    /// Sends a plain request once, and not behind the segments that wait: its answer is worth something only in time.
    async fn at_once(
        &self,
        what: &str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<QueryResult, StoreError> {
        let answer = self.session.execute_unpaged(statement, values).await;
        answer.map_err(|error| Failure::from(error).during(what).into())
    }

    /// Sends a conditional write, once, and says whether its condition held.
    async fn conditional(
        &self,
        what: &str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<bool, StoreError> {
        let answer = self
            .session
            .execute_unpaged(statement, values)
            .await
            .map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
        // How many columns follow depends on the outcome, and on the server.
        let rows = rows(what, answer)?;
        let row: Row = rows.single_row().map_err(|error| unreadable(what, &error))?;
        match row.columns.first() {
            Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
            _ => Err(StoreError::Corrupt(format!("{what}: the answer does not say whether it was applied"))),
        }
    }

    async fn generation(&self) -> Result<Option<i64>, StoreError> {
        let what = "reading the generation";
        let answer = self.plain(what, &self.statements.read_generation, (&self.pipeline,)).await?;
        let row = rows(what, answer)?.maybe_first_row::<(i64,)>().map_err(|error| unreadable(what, &error))?;
        Ok(row.map(|(generation,)| generation))
    }

    /// Raises the counter by one, unless another process does so at the same time.
    async fn raise_generation(&self, last: Option<i64>) -> Result<Option<Generation>, StoreError> {
        let what = "raising the generation";
        let (applied, next) = match last {
            None => {
                let values = (&self.pipeline, 1_i64);
                (self.conditional(what, &self.statements.insert_generation, values).await?, 1)
            }
            Some(last) => {
                let values = (last + 1, &self.pipeline, last);
                (self.conditional(what, &self.statements.raise_generation, values).await?, last + 1)
            }
        };
        Ok(applied.then_some(Generation(next)))
    }

    async fn read_chunk(&self, key: &SegmentKey, chunk: i32) -> Result<(i32, Vec<u8>), StoreError> {
        let what = "reading a segment";
        let values =
            (&self.pipeline, key.shard.cast_signed(), key.epoch.0, key.attempt.0, key.number.cast_signed(), chunk);
        let answer = self.plain(what, &self.statements.read_chunk, values).await?;
        let row = rows(what, answer)?.maybe_first_row::<(i32, Vec<u8>)>().map_err(|error| unreadable(what, &error))?;
        row.ok_or_else(|| StoreError::Corrupt(format!("chunk {chunk} of segment {} is missing", self.name(key))))
    }

    fn name(&self, key: &SegmentKey) -> String {
        format!(
            "{}.segments ({}, {}, {}, {}, {})",
            self.keyspace, self.pipeline, key.shard, key.epoch, key.attempt.0, key.number
        )
    }

    async fn delete_segment(&self, key: &SegmentKey) -> Result<(), StoreError> {
        let what = "deleting a segment";
        let values = (
            deletion_timestamp(key.epoch),
            &self.pipeline,
            key.shard.cast_signed(),
            key.epoch.0,
            key.attempt.0,
            key.number.cast_signed(),
        );
        self.plain(what, &self.statements.delete_chunks, values).await?;
        // Last, so that what is left of a deletion that was cut short is still found.
        self.plain(what, &self.statements.unindex_segment, values).await?;
        Ok(())
    }

    async fn write_letter(&self, letter: &DeadLetter, timestamp: i64) -> Result<(), StoreError> {
        let key = letter.key.as_deref().map(cut);
        let value = letter.value.as_deref().map(cut);
        let values = (
            &self.pipeline,
            &letter.topic,
            letter.partition.partition,
            letter.offset,
            letter.partition.topic_id,
            CqlTimestamp(letter.timestamp),
            &letter.reason,
            key,
            letter.key.as_ref().map(|key| key.len() as i64),
            value,
            letter.value.as_ref().map(|value| value.len() as i64),
            timestamp,
        );
        self.plain("writing a dead letter", &self.statements.write_letter, values).await?;
        Ok(())
    }

    /// The offsets of one topic: one partition of the table, so they change together.
    async fn write_topic(&self, topic: &str, offsets: &[&KafkaOffset], timestamp: i64) -> Result<(), StoreError> {
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_is_idempotent(true);
        let mut values = Vec::with_capacity(offsets.len());
        for offset in offsets {
            batch.append_statement(self.statements.write_offset.clone());
            values.push((&self.pipeline, topic, offset.partition, offset.offset.0, timestamp));
        }
        self.session
            .batch(&batch, values)
            .await
            .map_err(|error| StoreError::from(Failure::from(error).during("writing kafka_offsets")))?;
        Ok(())
    }
}

#[async_trait]
impl StateStore for CassandraStore {
    async fn define_pipeline(&self, row: &PipelineRow) -> Result<PipelineRow, StoreError> {
        let what = "defining the pipeline";
        let values = (&self.pipeline, row.shards.cast_signed(), &row.fingerprint, &row.plan);
        if self.conditional(what, &self.statements.insert_pipeline, values).await? {
            return Ok(row.clone());
        }
        let answer = self.plain(what, &self.statements.read_pipeline, (&self.pipeline,)).await?;
        let row = rows(what, answer)?.first_row().map_err(|error| unreadable(what, &error))?;
        Ok(pipeline_row(row))
    }

    async fn next_generation(&self) -> Result<Generation, StoreError> {
        let mut tries = 1;
        loop {
            let raised = match self.generation().await {
                Ok(last) => self.raise_generation(last).await,
                Err(error) => Err(error),
            };
            match raised {
                Ok(Some(generation)) => return Ok(generation),
                // Another process was faster.
                Ok(None) => {}
                // Whether the number is taken is unknown, so it is left to nobody, and the next one tried.
                Err(StoreError::Unavailable(reason)) if tries < TRIES => {
                    tracing::debug!("{reason}; trying the next number");
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn take_generation(&self, known: Generation) -> Result<Taken, StoreError> {
        let last = self.generation().await?;
        if last.unwrap_or_default() <= known.0
            && let Some(generation) = self.raise_generation(last).await?
        {
            return Ok(Taken::Mine(generation));
        }
        Ok(Taken::Another(Generation(self.generation().await?.unwrap_or_default())))
    }

    async fn start_offset(&self, key: &PartitionKey) -> Result<Option<Offset>, StoreError> {
        let what = "reading the start of a partition";
        let values = (&self.pipeline, key.topic_id, key.partition);
        let answer = self.plain(what, &self.statements.read_start, values).await?;
        let row = rows(what, answer)?.maybe_first_row::<(i64,)>().map_err(|error| unreadable(what, &error))?;
        Ok(row.map(|(start,)| Offset(start)))
    }

    async fn define_start(&self, partition: &SourcePartition, start: Offset) -> Result<Offset, StoreError> {
        let what = "storing the start of a partition";
        let _turn = self.defining_start.lock().await;
        let key = &partition.key;
        let values = (&self.pipeline, key.topic_id, key.partition, &*partition.topic, start.0);
        if self.conditional(what, &self.statements.insert_start, values).await? {
            return Ok(start);
        }
        self.start_offset(key)
            .await?
            .ok_or_else(|| StoreError::Corrupt(format!("{what}: {partition} has a start and has none")))
    }

    async fn known_partitions(&self) -> Result<Vec<(String, PartitionKey)>, StoreError> {
        let what = "reading the known partitions";
        let pager = self
            .session
            .execute_iter(self.statements.read_starts.clone(), (&self.pipeline,))
            .await
            .map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
        let rows = pager.rows_stream::<(String, Uuid, i32)>().map_err(|error| unreadable(what, &error))?;
        rows.map_ok(|(topic, topic_id, partition)| (topic, PartitionKey { topic_id, partition }))
            .map_err(|error| StoreError::from(Failure::from(error).during(what)))
            .try_collect()
            .await
    }

    async fn read_pointer(&self, shard: ShardId) -> Result<Option<Pointer>, StoreError> {
        let what = "reading a pointer";
        let values = (&self.pipeline, shard.cast_signed());
        let answer = self.plain(what, &self.statements.read_pointer, values).await?;
        let row = rows(what, answer)?.maybe_first_row::<PointerRow>().map_err(|error| unreadable(what, &error))?;
        let Some((epoch, attempt, generation, timestamp, content, packed)) = row else {
            return Ok(None);
        };
        let body = unpack(shard, content, packed).map_err(|error| match error {
            Unreadable::Newer(why) => StoreError::Newer(why),
            Unreadable::Wrong(why) => StoreError::Corrupt(format!(
                "the pointer of shard {shard} at epoch {epoch}: {why}. Restore its row in {}.pointers from a backup, or \
                 compute everything anew under another STRANDLINE_PIPELINE__NAME",
                self.keyspace
            )),
        })?;
        Ok(Some(Pointer {
            shard,
            epoch: Epoch(epoch),
            attempt: Attempt(attempt),
            generation: Generation(generation),
            timestamp,
            content: body.content,
            kept: body.kept,
        }))
    }

    async fn move_pointer(&self, base: Option<Base>, next: &Pointer) -> Result<Moved, StoreError> {
        let what = "moving a pointer";
        let (content, packed) = pack(next)?;
        let shard = next.shard.cast_signed();
        let (epoch, attempt, generation) = (next.epoch.0, next.attempt.0, next.generation.0);
        let applied = match base {
            None => {
                let values = (&self.pipeline, shard, epoch, attempt, generation, next.timestamp, content, packed);
                self.conditional(what, &self.statements.insert_pointer, values).await?
            }
            Some(base) => {
                let values = (
                    epoch,
                    attempt,
                    generation,
                    next.timestamp,
                    content,
                    packed,
                    &self.pipeline,
                    shard,
                    base.epoch.0,
                    base.attempt.0,
                );
                self.conditional(what, &self.statements.move_pointer, values).await?
            }
        };
        if applied {
            return Ok(Moved::Applied);
        }
        // A refusal names only the columns of the condition. If the row moves again before it is read, all the better.
        Ok(Moved::Refused(self.read_pointer(next.shard).await?.map(Box::new)))
    }

    async fn write_segment(&self, key: &SegmentKey, bytes: &[u8]) -> Result<(), StoreError> {
        let what = "writing a segment";
        // An empty segment has one empty chunk, which tells it from one that is missing.
        let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(CHUNK).collect() };
        let chunks = i32::try_from(pieces.len())
            .map_err(|_| StoreError::Fatal(format!("a segment of {} bytes is too large", bytes.len())))?;
        let (shard, number) = (key.shard.cast_signed(), key.number.cast_signed());
        let timestamp = write_timestamp(key.epoch);
        let entry = (&self.pipeline, shard, key.epoch.0, key.attempt.0, number, chunks, bytes.len() as i64, timestamp);
        self.plain(what, &self.statements.index_segment, entry).await?;
        let mut writes = Vec::with_capacity(pieces.len());
        for (chunk, piece) in (0_i32..).zip(pieces) {
            let values = (&self.pipeline, shard, key.epoch.0, key.attempt.0, number, chunk, chunks, piece, timestamp);
            writes.push(self.plain(what, &self.statements.write_chunk, values));
        }
        stream::iter(writes).buffer_unordered(IN_FLIGHT).try_for_each(|_| async { Ok(()) }).await
    }

    async fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, StoreError> {
        let (chunks, first) = self.read_chunk(key, 0).await?;
        if chunks == 1 {
            return Ok(first);
        }
        let mut bytes = Vec::with_capacity(first.len() * usize::try_from(chunks).unwrap_or_default());
        bytes.extend_from_slice(&first);
        let reads: Vec<_> = (1..chunks).map(|chunk| self.read_chunk(key, chunk)).collect();
        let mut reads = stream::iter(reads).buffered(IN_FLIGHT);
        while let Some((_, chunk)) = reads.try_next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    async fn delete_segments(&self, keys: &[SegmentKey]) -> Result<(), StoreError> {
        let deletions: Vec<_> = keys.iter().map(|key| self.delete_segment(key)).collect();
        stream::iter(deletions).buffer_unordered(IN_FLIGHT).try_collect().await
    }

    async fn segments_of_epoch(&self, shard: ShardId, epoch: Epoch) -> Result<Vec<SegmentKey>, StoreError> {
        let what = "looking for segments";
        let values = (&self.pipeline, shard.cast_signed(), epoch.0);
        let answer = self.plain(what, &self.statements.read_index, values).await?;
        let rows = rows(what, answer)?;
        rows.rows::<(Uuid, i32)>()
            .map_err(|error| unreadable(what, &error))?
            .map(|row| {
                let (attempt, number) = row.map_err(|error| unreadable(what, &error))?;
                Ok(SegmentKey { shard, epoch, attempt: Attempt(attempt), number: number.cast_unsigned() })
            })
            .collect()
    }

    async fn write_kafka_offsets(&self, offsets: &[KafkaOffset], timestamp: i64) -> Result<(), StoreError> {
        let mut topics: BTreeMap<&str, Vec<&KafkaOffset>> = BTreeMap::new();
        for offset in offsets {
            topics.entry(&offset.topic).or_default().push(offset);
        }
        for (topic, offsets) in topics {
            for offsets in offsets.chunks(BATCH) {
                self.write_topic(topic, offsets, timestamp).await?;
            }
        }
        Ok(())
    }

    async fn write_dead_letters(&self, letters: &[DeadLetter], timestamp: i64) -> Result<(), StoreError> {
        let writes: Vec<_> = letters.iter().map(|letter| self.write_letter(letter, timestamp)).collect();
        stream::iter(writes).buffer_unordered(IN_FLIGHT).try_collect().await
    }

    async fn paused(&self) -> Result<Wishes, StoreError> {
        Ok(self.paused_row().await?.map(|(_, row)| row.wishes).unwrap_or_default())
    }

    async fn write_paused(&self, wishes: &Wishes) -> Result<(), StoreError> {
        let what = "storing what is paused";
        let row = PausedRow { wishes: wishes.clone(), write: Uuid::new_v4() };
        let text = serde_json::to_string(&row).map_err(|error| StoreError::Fatal(format!("{what}: {error}")))?;
        // Whoever is told last wins, also against a write of somebody else that arrives meanwhile.
        loop {
            let applied = match self.paused_row().await? {
                None => self.conditional(what, &self.statements.insert_paused, (&self.pipeline, &text)).await?,
                Some((_, known)) if known.wishes == *wishes => true,
                Some((known, _)) => {
                    let values = (&text, &self.pipeline, known);
                    self.conditional(what, &self.statements.change_paused, values).await?
                }
            };
            if applied {
                return Ok(());
            }
        }
    }

    async fn crash_note(&self, key: &PartitionKey) -> Result<Option<CrashNote>, StoreError> {
        Ok(self.dated_note(key).await?.0)
    }

    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError> {
        let what = "writing a crash note";
        // The process before may have had a clock that runs ahead. An absent note is written, too: a deletion would not
        // tell when it took place.
        let (_, last) = self.dated_note(key).await?;
        let timestamp = SystemClock.now_micros().max(last.map_or(0, |last| last + 1));
        let text = serde_json::to_string(&note).map_err(|error| StoreError::Fatal(format!("{what}: {error}")))?;
        let values = (&self.pipeline, key.topic_id, key.partition, text, timestamp);
        self.plain(what, &self.statements.write_note, values).await?;
        Ok(())
    }

    async fn read_heartbeat(&self) -> Result<Option<Heartbeat>, StoreError> {
        let what = "reading a heartbeat";
        let answer = self.at_once(what, &self.statements.read_heartbeat, (&self.pipeline,)).await?;
        let row = rows(what, answer)?
            .maybe_first_row::<(i64, String, i64, bool)>()
            .map_err(|error| unreadable(what, &error))?;
        Ok(row.map(|(generation, instance, beat, released)| Heartbeat {
            generation: Generation(generation),
            instance,
            beat,
            released,
        }))
    }

    async fn write_heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        let Heartbeat { generation, instance, beat, released } = heartbeat;
        let values = (&self.pipeline, generation.0, instance, beat, released, self.clock.next());
        self.at_once("writing a heartbeat", &self.statements.write_heartbeat, values).await?;
        Ok(())
    }
}

impl CassandraStore {
    /// What is paused, with the text that says so.
    async fn paused_row(&self) -> Result<Option<(String, PausedRow)>, StoreError> {
        let what = "reading what is paused";
        let answer = self.plain(what, &self.statements.read_paused, (&self.pipeline,)).await?;
        let row = rows(what, answer)?.maybe_first_row::<(String,)>().map_err(|error| unreadable(what, &error))?;
        let Some((text,)) = row else { return Ok(None) };
        let row = serde_json::from_str(&text);
        let row = row.map_err(|error| StoreError::Corrupt(format!("what is paused cannot be read: {error}")))?;
        Ok(Some((text, row)))
    }

    /// The crash note of a partition, and when it was written.
    async fn dated_note(&self, key: &PartitionKey) -> Result<(Option<CrashNote>, Option<i64>), StoreError> {
        let what = "reading a crash note";
        let values = (&self.pipeline, key.topic_id, key.partition);
        let answer = self.plain(what, &self.statements.read_note, values).await?;
        let row = rows(what, answer)?
            .maybe_first_row::<(Option<String>, Option<i64>)>()
            .map_err(|error| unreadable(what, &error))?;
        let Some((text, written)) = row else {
            return Ok((None, None));
        };
        let note = text.map(|text| serde_json::from_str(&text)).transpose();
        let note = note.map_err(|error| StoreError::Corrupt(format!("the crash note of {key}: {error}")))?;
        Ok((note.flatten(), written))
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let text = format!("Cassandra: {failure}");
        match failure {
            Failure::Unknown(_) => Self::Unavailable(text),
            Failure::Refused(_) => Self::Fatal(text),
            Failure::Unreadable(_) => Self::Corrupt(text),
        }
    }
}

fn rows(what: &str, answer: QueryResult) -> Result<QueryRowsResult, StoreError> {
    answer.into_rows_result().map_err(|error| unreadable(what, &error))
}

fn unreadable(what: &str, error: &dyn std::error::Error) -> StoreError {
    StoreError::Corrupt(format!("{what}: the answer of Cassandra cannot be understood: {error}"))
}

/// The write timestamp of a segment. It has one content for ever, so all that matters is that deleting it comes later.
fn write_timestamp(epoch: Epoch) -> i64 {
    epoch.0.saturating_mul(2)
}

/// The write timestamp under which a segment is deleted.
fn deletion_timestamp(epoch: Epoch) -> i64 {
    write_timestamp(epoch).saturating_add(1)
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(LETTER_LIMIT)]
}

/// The content of a pointer as its row keeps it: readable, or compressed when it is long.
fn pack(pointer: &Pointer) -> Result<(Option<String>, Option<Vec<u8>>), StoreError> {
    let body = BodyRef { content: &pointer.content, kept: &pointer.kept };
    let text = format::write(&body)
        .map_err(|error| StoreError::Fatal(format!("the pointer of shard {}: {error}", pointer.shard)))?;
    if text.len() <= READABLE {
        return Ok((Some(text), None));
    }
    let packed = lz4_flex::compress_prepend_size(text.as_bytes());
    if packed.len() > CONTENT_LIMIT {
        return Err(StoreError::Fatal(format!(
            "the pointer of shard {} has grown to {} bytes ({} compressed), more than Cassandra takes in one write: it \
             lists {} partitions and {} segments. Read fewer partitions in one pipeline",
            pointer.shard,
            text.len(),
            packed.len(),
            pointer.content.vector.0.len(),
            pointer.content.state.len() + pointer.content.outbox.segments.len(),
        )));
    }
    Ok((None, Some(packed)))
}

fn unpack(shard: ShardId, content: Option<String>, packed: Option<Vec<u8>>) -> Result<Body, Unreadable> {
    let wrong = |why: String| Unreadable::Wrong(why);
    let text = match (content, packed) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(packed)) => {
            lz4_flex::decompress_size_prepended(&packed).map_err(|error| wrong(error.to_string()))?
        }
        (None, None) => return Err(wrong("it has no content".into())),
        (Some(_), Some(_)) => return Err(wrong("it has two contents".into())),
    };
    format::read(shard, &text)
}
