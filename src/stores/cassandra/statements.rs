//! Everything that the store ever sends to Cassandra, prepared once.

use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;

use crate::cassandra::{Failure, prepare, prepare_conditional, prepare_serial_read, quote};

pub(super) struct Statements {
    pub(super) insert_pipeline: PreparedStatement,
    pub(super) read_pipeline: PreparedStatement,
    pub(super) insert_generation: PreparedStatement,
    pub(super) raise_generation: PreparedStatement,
    pub(super) read_generation: PreparedStatement,
    pub(super) insert_start: PreparedStatement,
    pub(super) read_start: PreparedStatement,
    pub(super) read_starts: PreparedStatement,
    pub(super) insert_pointer: PreparedStatement,
    pub(super) move_pointer: PreparedStatement,
    pub(super) read_pointer: PreparedStatement,
    pub(super) index_segment: PreparedStatement,
    pub(super) unindex_segment: PreparedStatement,
    pub(super) read_index: PreparedStatement,
    pub(super) write_chunk: PreparedStatement,
    pub(super) read_chunk: PreparedStatement,
    pub(super) delete_chunks: PreparedStatement,
    pub(super) write_offset: PreparedStatement,
    pub(super) read_offsets: PreparedStatement,
    pub(super) write_letter: PreparedStatement,
    pub(super) read_note: PreparedStatement,
    pub(super) write_note: PreparedStatement,
    pub(super) insert_paused: PreparedStatement,
    pub(super) change_paused: PreparedStatement,
    pub(super) read_paused: PreparedStatement,
    pub(super) read_heartbeat: PreparedStatement,
    pub(super) write_heartbeat: PreparedStatement,
}

impl Statements {
    pub(super) async fn prepare(session: &Session, keyspace: &str) -> Result<Self, Failure> {
        let keyspace = quote(keyspace);
        let plain = async |cql: &str| prepare(session, &cql.replace("{k}", &keyspace)).await;
        let conditional = async |cql: &str| prepare_conditional(session, &cql.replace("{k}", &keyspace)).await;
        let serial = async |cql: &str| prepare_serial_read(session, &cql.replace("{k}", &keyspace)).await;
        Ok(Self {
            insert_pipeline: conditional(
                "INSERT INTO {k}.pipelines (pipeline, shards, fingerprint, plan) VALUES (?, ?, ?, ?) IF NOT EXISTS",
            )
            .await?,
            read_pipeline: serial("SELECT shards, fingerprint, plan FROM {k}.pipelines WHERE pipeline = ?").await?,
            insert_generation: conditional(
                "INSERT INTO {k}.generations (pipeline, generation) VALUES (?, ?) IF NOT EXISTS",
            )
            .await?,
            raise_generation: conditional(
                "UPDATE {k}.generations SET generation = ? WHERE pipeline = ? IF generation = ?",
            )
            .await?,
            read_generation: serial("SELECT generation FROM {k}.generations WHERE pipeline = ?").await?,
            insert_start: conditional(
                "INSERT INTO {k}.start_offsets (pipeline, topic_id, partition, topic, start_offset) \
                 VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
            )
            .await?,
            read_start: serial(
                "SELECT start_offset FROM {k}.start_offsets WHERE pipeline = ? AND topic_id = ? AND partition = ?",
            )
            .await?,
            read_starts: serial("SELECT topic, topic_id, partition FROM {k}.start_offsets WHERE pipeline = ?").await?,
            insert_pointer: conditional(
                "INSERT INTO {k}.pointers \
                 (pipeline, shard, epoch, attempt, generation, write_timestamp, content, packed_content) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
            )
            .await?,
            move_pointer: conditional(
                "UPDATE {k}.pointers SET epoch = ?, attempt = ?, generation = ?, write_timestamp = ?, content = ?, \
                 packed_content = ? WHERE pipeline = ? AND shard = ? IF epoch = ? AND attempt = ?",
            )
            .await?,
            read_pointer: serial(
                "SELECT epoch, attempt, generation, write_timestamp, content, packed_content FROM {k}.pointers \
                 WHERE pipeline = ? AND shard = ?",
            )
            .await?,
            index_segment: plain(
                "INSERT INTO {k}.segment_index (pipeline, shard, epoch, attempt, number, chunks, bytes) \
                 VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            unindex_segment: plain(
                "DELETE FROM {k}.segment_index USING TIMESTAMP ? \
                 WHERE pipeline = ? AND shard = ? AND epoch = ? AND attempt = ? AND number = ?",
            )
            .await?,
            read_index: plain(
                "SELECT attempt, number FROM {k}.segment_index WHERE pipeline = ? AND shard = ? AND epoch = ?",
            )
            .await?,
            write_chunk: plain(
                "INSERT INTO {k}.segments (pipeline, shard, epoch, attempt, number, chunk, chunks, content) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            read_chunk: plain(
                "SELECT chunks, content FROM {k}.segments \
                 WHERE pipeline = ? AND shard = ? AND epoch = ? AND attempt = ? AND number = ? AND chunk = ?",
            )
            .await?,
            delete_chunks: plain(
                "DELETE FROM {k}.segments USING TIMESTAMP ? \
                 WHERE pipeline = ? AND shard = ? AND epoch = ? AND attempt = ? AND number = ?",
            )
            .await?,
            write_offset: plain(
                "INSERT INTO {k}.kafka_offsets (pipeline, topic, partition, offset) VALUES (?, ?, ?, ?) \
                 USING TIMESTAMP ?",
            )
            .await?,
            read_offsets: plain("SELECT partition, offset FROM {k}.kafka_offsets WHERE pipeline = ? AND topic = ?")
                .await?,
            write_letter: plain(
                "INSERT INTO {k}.dead_letters (pipeline, topic, partition, offset, topic_id, record_timestamp, reason, \
                 key, key_bytes, value, value_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            read_note: plain(
                "SELECT note, WRITETIME(note) FROM {k}.crash_notes \
                 WHERE pipeline = ? AND topic_id = ? AND partition = ?",
            )
            .await?,
            write_note: plain(
                "INSERT INTO {k}.crash_notes (pipeline, topic_id, partition, note) VALUES (?, ?, ?, ?) \
                 USING TIMESTAMP ?",
            )
            .await?,
            insert_paused: conditional("INSERT INTO {k}.pauses (pipeline, paused) VALUES (?, ?) IF NOT EXISTS").await?,
            change_paused: conditional("UPDATE {k}.pauses SET paused = ? WHERE pipeline = ? IF paused = ?").await?,
            read_paused: serial("SELECT paused FROM {k}.pauses WHERE pipeline = ?").await?,
            read_heartbeat: plain(
                "SELECT generation, instance, beat, released FROM {k}.heartbeats WHERE pipeline = ? LIMIT 1",
            )
            .await?,
            write_heartbeat: plain(
                "INSERT INTO {k}.heartbeats (pipeline, generation, instance, beat, released) VALUES (?, ?, ?, ?, ?) \
                 USING TIMESTAMP ?",
            )
            .await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    /// Case: lost write by clock (scalar-labs/scalardb PR#3890). A plain write takes its timestamp from elsewhere than a
    /// conditional one, so in a row that both write a later write may lose. And every plain write says its own time, so that
    /// none takes that of whichever server it reaches.
    #[test]
    fn no_table_is_written_by_plain_and_by_conditional_writes() {
        let source = include_str!("statements.rs").split("mod tests").next().unwrap_or_default();
        let source = source.replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" ");
        let mut kinds: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
        let mut writes = 0;
        for text in source.split('"').skip(1).step_by(2) {
            let rest =
                ["INSERT INTO {k}.", "UPDATE {k}.", "DELETE FROM {k}."].iter().find_map(|p| text.strip_prefix(p));
            let Some(table) = rest.and_then(|rest| rest.split(' ').next()) else { continue };
            let conditional = text.contains(" IF ");
            assert_ne!(conditional, text.contains(" USING TIMESTAMP ?"), "{text}");
            kinds.entry(table).or_default().insert(conditional);
            writes += 1;
        }
        assert!(writes > 10 && kinds.len() > 7, "{kinds:?}");
        for (table, kinds) in kinds {
            assert_eq!(kinds.len(), 1, "{table} is written both ways");
        }
    }
}
