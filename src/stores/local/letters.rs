//! The dead letters of a pipeline in its local store. One process at a time uses a store, so the service must not run.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable};
use strandline_actors::ports::StoreError;
use uuid::Uuid;

use super::file::{File, Trouble};
use super::{DEAD_LETTERS, REPLAYS, STARTS, create_tables, file_name, parse};
use crate::stores::letters::{Each, Letter, Payload, Replay, Replays, Wanted};

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

    /// Which letters of a partition were sent again.
    pub(in crate::stores) fn replays(&self, topic: &str, partition: i32) -> Result<Replays, StoreError> {
        self.file.with(|database| {
            let table = database.begin_read()?.open_table(REPLAYS)?;
            let (first, last) = ((topic, partition, i64::MIN, u128::MIN), (topic, partition, i64::MAX, u128::MAX));
            table
                .range(first..=last)?
                .map(|row| {
                    let (key, at) = row?;
                    let (_, _, offset, topic_id) = key.value();
                    Ok(((offset, Uuid::from_u128(topic_id)), at.value()))
                })
                .collect()
        })
    }

    /// Marks letters as sent again.
    pub(in crate::stores) fn mark(&self, replays: &[Replay]) -> Result<(), StoreError> {
        let replays = replays.to_vec();
        self.file.write(move |transaction| {
            let mut table = transaction.open_table(REPLAYS)?;
            for Replay { topic, topic_id, partition, offset, at, .. } in &replays {
                table.insert((topic.as_str(), *partition, *offset, topic_id.as_u128()), at)?;
            }
            Ok(())
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
        let (from, until) = wanted.offsets();
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
