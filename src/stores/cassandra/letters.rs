//! The dead letters of a pipeline in Cassandra, page by page.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures::stream::TryStreamExt;
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use strandline_actors::ports::StoreError;
use uuid::Uuid;

use super::schema;
use super::{read_pipeline, unreadable};
use crate::cassandra::{Failure, prepare, prepare_serial_read, quote};
use crate::settings::CassandraSettings;
use crate::stores::letters::{Each, Letter, Payload, Replay, Replays, Wanted};

/// Letters of one page when their keys and values are read, too: each may have 4 MB.
const WITH_PAYLOAD: i32 = 8;
/// Letters of one page otherwise.
const WITHOUT_PAYLOAD: i32 = 1_000;

/// The dead letters of one pipeline in Cassandra.
pub(in crate::stores) struct CassandraLetters {
    session: Arc<Session>,
    pipeline: String,
    read_partitions: PreparedStatement,
    /// Without keys and values.
    read: PreparedStatement,
    /// With them.
    read_whole: PreparedStatement,
    /// None in a keyspace of an earlier version.
    marks: Option<Marks>,
}

/// What is sent about letters that were sent again.
struct Marks {
    read: PreparedStatement,
    write: PreparedStatement,
}

impl Marks {
    async fn prepare(session: &Session, keyspace: &str) -> Result<Self, StoreError> {
        let read = format!(
            "SELECT offset, topic_id, replayed_at FROM {keyspace}.dead_letter_replays \
             WHERE pipeline = ? AND topic = ? AND partition = ?"
        );
        let write = format!(
            "INSERT INTO {keyspace}.dead_letter_replays \
             (pipeline, topic, partition, offset, topic_id, replayed_at, sent_to) VALUES (?, ?, ?, ?, ?, ?, ?) \
             USING TIMESTAMP ?"
        );
        Ok(Self { read: prepare(session, &read).await?, write: prepare(session, &write).await? })
    }
}

impl std::fmt::Debug for CassandraLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CassandraLetters").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

/// Offset, topic id, timestamp, reason, when that was written, length of key and value.
type LetterRow = (i64, Uuid, CqlTimestamp, String, Option<i64>, Option<i64>, Option<i64>);
/// The same with key and value.
type WholeRow =
    (i64, Uuid, CqlTimestamp, String, Option<i64>, Option<i64>, Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>);

impl CassandraLetters {
    /// Opens the letters of a pipeline; `None` if there is no such pipeline.
    pub(in crate::stores) async fn open(
        session: Arc<Session>,
        settings: &CassandraSettings,
        pipeline: &str,
        mark: bool,
    ) -> Result<Option<Self>, StoreError> {
        let keyspace = settings.keyspace.as_str();
        let mut tables = schema::existing_tables(&session, keyspace).await?;
        if !["pipelines", "start_offsets", "dead_letters"].into_iter().all(|table| tables.contains(table)) {
            return Ok(None);
        }
        if read_pipeline(&session, keyspace, pipeline).await?.is_none() {
            return Ok(None);
        }
        if mark && !tables.contains("dead_letter_replays") {
            schema::ensure(&session, keyspace, &settings.replication).await?;
            tables = schema::existing_tables(&session, keyspace).await?;
        }
        let keyspace = quote(keyspace);
        let marks = match tables.contains("dead_letter_replays") {
            true => Some(Marks::prepare(&session, &keyspace).await?),
            false => None,
        };
        let read = async |payload: &str, page| {
            let cql = format!(
                "SELECT offset, topic_id, record_timestamp, reason, WRITETIME(reason), key_bytes, value_bytes{payload} \
                 FROM {keyspace}.dead_letters WHERE pipeline = ? AND topic = ? AND partition = ? AND offset >= ? \
                 AND offset <= ?"
            );
            let mut statement = prepare(&session, &cql).await?;
            statement.set_page_size(page);
            Ok::<_, Failure>(statement)
        };
        let (read, read_whole) = (read("", WITHOUT_PAYLOAD).await?, read(", key, value", WITH_PAYLOAD).await?);
        let partitions = format!("SELECT topic, partition FROM {keyspace}.start_offsets WHERE pipeline = ?");
        let read_partitions = prepare_serial_read(&session, &partitions).await?;
        Ok(Some(Self { session, pipeline: pipeline.to_owned(), read_partitions, read, read_whole, marks }))
    }

    /// The partitions that the pipeline has ever read.
    pub(in crate::stores) async fn partitions(&self) -> Result<BTreeSet<(String, i32)>, StoreError> {
        let what = "reading the known partitions";
        let pager = self
            .session
            .execute_iter(self.read_partitions.clone(), (&self.pipeline,))
            .await
            .map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
        let rows = pager.rows_stream::<(String, i32)>().map_err(|error| unreadable(what, &error))?;
        rows.map_err(|error| StoreError::from(Failure::from(error).during(what))).try_collect().await
    }

    /// Which letters of a partition were sent again.
    pub(in crate::stores) async fn replays(&self, topic: &str, partition: i32) -> Result<Replays, StoreError> {
        let what = "reading which dead letters were sent again";
        let failed = |failure: Failure| StoreError::from(failure.during(what));
        let Some(marks) = &self.marks else { return Ok(Replays::new()) };
        let values = (&self.pipeline, topic, partition);
        let pager =
            self.session.execute_iter(marks.read.clone(), values).await.map_err(|error| failed(error.into()))?;
        let mut rows = pager.rows_stream::<(i64, Uuid, CqlTimestamp)>().map_err(|error| unreadable(what, &error))?;
        let mut replays = Replays::new();
        while let Some((offset, topic_id, at)) = rows.try_next().await.map_err(|error| failed(error.into()))? {
            replays.insert((offset, topic_id), at.0.saturating_mul(1000));
        }
        Ok(replays)
    }

    /// Marks letters as sent again. The later mark holds: which of two is written last decides nothing.
    pub(in crate::stores) async fn mark(&self, replays: &[Replay]) -> Result<(), StoreError> {
        let what = "marking dead letters as sent again";
        let Some(marks) = &self.marks else {
            return Err(StoreError::Fatal(format!("{what}: the table dead_letter_replays is missing")));
        };
        for Replay { topic, topic_id, partition, offset, at, sent_to } in replays {
            let time = CqlTimestamp(at / 1000);
            let values = (&self.pipeline, topic, partition, offset, topic_id, time, sent_to, at);
            let written = self.session.execute_unpaged(&marks.write, values).await;
            written.map_err(|error| StoreError::from(Failure::from(error).during(what)))?;
        }
        Ok(())
    }

    /// Reads the letters of one partition by their offsets.
    pub(in crate::stores) async fn read(
        &self,
        topic: &str,
        partition: i32,
        wanted: &Wanted,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let what = "reading dead letters";
        let failed = |failure: Failure| StoreError::from(failure.during(what));
        let (from, until) = wanted.offsets();
        let values = (&self.pipeline, topic, partition, from, until);
        let statement = if wanted.payload { &self.read_whole } else { &self.read };
        let pager = self.session.execute_iter(statement.clone(), values).await.map_err(|error| failed(error.into()))?;
        let letter = |row: LetterRow, key: Option<Vec<u8>>, value: Option<Vec<u8>>| {
            let (offset, topic_id, timestamp, reason, written, key_bytes, value_bytes) = row;
            let payload = |length: Option<i64>, bytes: Option<Vec<u8>>| {
                length.map(|length| Payload { length: length.cast_unsigned(), bytes: bytes.unwrap_or_default() })
            };
            Letter {
                topic: topic.to_owned(),
                topic_id,
                partition,
                offset,
                timestamp: timestamp.0,
                set_aside: written.unwrap_or_default(),
                reason,
                key: payload(key_bytes, key),
                value: payload(value_bytes, value),
            }
        };
        if wanted.payload {
            let mut rows = pager.rows_stream::<WholeRow>().map_err(|error| unreadable(what, &error))?;
            while let Some(row) = rows.try_next().await.map_err(|error| failed(error.into()))? {
                let (offset, topic_id, timestamp, reason, written, key_bytes, value_bytes, key, value) = row;
                let row = (offset, topic_id, timestamp, reason, written, key_bytes, value_bytes);
                if each(letter(row, key, value)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        } else {
            let mut rows = pager.rows_stream::<LetterRow>().map_err(|error| unreadable(what, &error))?;
            while let Some(row) = rows.try_next().await.map_err(|error| failed(error.into()))? {
                if each(letter(row, None, None)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
