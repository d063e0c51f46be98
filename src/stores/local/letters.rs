//! The dead letters of a pipeline in its local store. One process at a time uses a store, so the service must not run.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable};
use strandline_actors::ports::StoreError;
use uuid::Uuid;

use super::file::{File, Trouble};
use super::{DEAD_LETTERS, STARTS, create_tables, file_name, parse};
use crate::stores::letters::{Each, Letter, Payload, Wanted};

/// The dead letters of one pipeline in a file.
#[derive(Debug)]
pub(in crate::stores) struct LocalLetters {
    file: Arc<File>,
}

impl LocalLetters {
    /// Opens the letters of a pipeline; `None` if there is no such pipeline.
    pub(in crate::stores) fn open(folder: &Path, pipeline: &str) -> Result<Option<Self>, StoreError> {
        let path = folder.join(file_name(pipeline));
        if !path.exists() {
            return Ok(None);
        }
        let file = File::open(&path, |database| create_tables(database, pipeline))?;
        Ok(Some(Self { file }))
    }

    /// The partitions that the pipeline has ever read.
    pub(in crate::stores) fn partitions(&self) -> Result<BTreeSet<(String, i32)>, StoreError> {
        self.file.with(|database| {
            let table = database.begin_read()?.open_table(STARTS)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    Ok((value.value().0.to_owned(), key.value().1))
                })
                .collect()
        })
    }

    /// Reads the letters of one partition by their offsets.
    pub(in crate::stores) fn read(
        &self,
        topic: &str,
        partition: i32,
        wanted: &Wanted,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let (from, until) = wanted.offset.map_or((i64::MIN, i64::MAX), |offset| (offset, offset));
        self.file.with(|database| {
            let table = database.begin_read()?.open_table(DEAD_LETTERS)?;
            for row in table.range((topic, partition, from, u128::MIN)..=(topic, partition, until, u128::MAX))? {
                let (key, value) = row?;
                let (_, _, offset, topic_id) = key.value();
                let (written, rest) = value.value();
                let (timestamp, reason, record_key, record_value) =
                    parse::<(i64, String, Option<Vec<u8>>, Option<Vec<u8>>)>("a dead letter", rest)?;
                let letter = Letter {
                    topic: topic.to_owned(),
                    topic_id: Uuid::from_u128(topic_id),
                    partition,
                    offset,
                    timestamp,
                    set_aside: written,
                    reason,
                    key: record_key.map(Payload::whole),
                    value: record_value.map(Payload::whole),
                };
                if each(letter).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok::<_, Trouble>(ControlFlow::Continue(()))
        })
    }
}
