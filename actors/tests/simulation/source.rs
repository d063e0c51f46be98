//! A fake log: partitions with holes in their offsets, read in ragged batches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use async_trait::async_trait;
use strandline_actors::ports::{BatchLimit, PartitionReader, Source, SourceBatch, SourceError};
use strandline_actors::position::{Offset, PartitionKey, Range, SourcePartition};
use uuid::Uuid;

use crate::faults::Chance;

#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub offset: i64,
    pub key: i64,
    pub value: i64,
}

/// A log as its producer fills it.
#[derive(Debug, Default)]
pub struct Log {
    pub records: Vec<Record>,
    pub end: i64,
}

pub struct FakeKafka {
    pub topic_id: Uuid,
    pub logs: Mutex<BTreeMap<i32, Log>>,
    pub chance: Arc<Chance>,
}

impl FakeKafka {
    pub fn new(chance: Arc<Chance>) -> Self {
        Self { topic_id: Uuid::from_u128(77), logs: Mutex::default(), chance }
    }

    pub fn partition(&self, partition: i32) -> SourcePartition {
        SourcePartition { source: 0, topic: "orders".into(), key: PartitionKey { topic_id: self.topic_id, partition } }
    }

    /// Appends a record, sometimes after a hole.
    pub fn produce(&self, partition: i32, key: i64, value: i64) {
        let hole = if self.chance.number(10) == 0 { 1 + self.chance.number(3) as i64 } else { 0 };
        let mut logs = self.logs.lock().unwrap();
        let log = logs.entry(partition).or_default();
        let offset = log.end + hole;
        log.records.push(Record { offset, key, value });
        log.end = offset + 1;
        // A transaction marker, which no record follows at first.
        if self.chance.number(20) == 0 {
            log.end += 1;
        }
    }
}

pub struct SharedKafka(pub Arc<FakeKafka>);

#[async_trait]
impl Source for SharedKafka {
    async fn partitions(&self) -> Result<Vec<SourcePartition>, SourceError> {
        self.0.chance.pause(20).await;
        let partitions: Vec<i32> = self.0.logs.lock().unwrap().keys().copied().collect();
        Ok(partitions.into_iter().map(|partition| self.0.partition(partition)).collect())
    }

    async fn start_offset(&self, _: &SourcePartition, _: bool) -> Result<Offset, SourceError> {
        Ok(Offset(0))
    }

    async fn open(&self, partition: &SourcePartition, from: Offset) -> Result<Box<dyn PartitionReader>, SourceError> {
        self.0.chance.pause(10).await;
        Ok(Box::new(Reader { kafka: Arc::clone(&self.0), partition: partition.key.partition, position: from.0 }))
    }
}

struct Reader {
    kafka: Arc<FakeKafka>,
    partition: i32,
    position: i64,
}

#[async_trait]
impl PartitionReader for Reader {
    async fn next(&mut self, limit: BatchLimit) -> Result<SourceBatch, SourceError> {
        self.kafka.chance.pause(30).await;
        if self.kafka.chance.strikes("source fails", 200) {
            return Err(SourceError::Failed("the fake broker is gone".into()));
        }
        if self.kafka.chance.strikes("source hangs", 2_000) {
            std::future::pending::<()>().await;
        }
        let most = (1 + self.kafka.chance.number(40) as usize).min(limit.rows);
        let (records, end) = {
            let logs = self.kafka.logs.lock().unwrap();
            let log = &logs[&self.partition];
            let records: Vec<Record> =
                log.records.iter().filter(|record| record.offset >= self.position).take(most).copied().collect();
            (records, log.end)
        };
        let until = if records.len() < most { end } else { records.last().map_or(end, |last| last.offset + 1) };
        let from = self.position;
        self.position = until.max(from);
        let empty = records.is_empty() && self.position == from;
        let column =
            |of: fn(&Record) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(records.iter().map(of))) };
        let rows = RecordBatch::try_from_iter([
            ("_offset", column(|record| record.offset)),
            ("key", column(|record| record.key)),
            ("value", column(|record| record.value)),
        ])
        .unwrap();
        Ok(SourceBatch {
            range: Range::new(Offset(from), Offset(self.position)),
            bytes: rows.num_rows() * 24,
            records: rows,
            // Now and then no broker answers, and the end is not known.
            end: (!empty || self.kafka.chance.number(20) > 0).then_some(Offset(end)),
            lost: false,
        })
    }
}
