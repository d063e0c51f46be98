//! The Kafka source against a real Kafka. Here is what its tests share: a reader that holds each batch against the one
//! before, so that a hole or an overlap of ranges, a record outside its range or a batch beyond its limits fails any test.

mod brokers;
mod log;
mod records;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use strandline::catalog::KafkaTopic;
use strandline::kafka::KafkaSource;
use strandline::settings::KafkaSettings;
use strandline_actors::ports::{BatchLimit, PartitionReader, Source, SourceBatch, SourceError, raw};
use strandline_actors::position::{Offset, SourcePartition};
use tokio::time::timeout;

use crate::test_topic::servers;

const LARGE: BatchLimit = BatchLimit { rows: 10_000, bytes: 1 << 20 };
const PATIENCE: Duration = Duration::from_secs(120);

fn table(topic: &str) -> KafkaTopic {
    KafkaTopic::plain("orders", topic)
}

fn settings(servers: &str) -> KafkaSettings {
    KafkaSettings { bootstrap_servers: servers.into(), ..KafkaSettings::default() }
}

async fn source(table: KafkaTopic) -> Arc<KafkaSource> {
    KafkaSource::connect(&settings(&servers()), &[table]).await.unwrap()
}

/// The source of one topic, with its partitions.
async fn open_topic(table: KafkaTopic) -> (Arc<KafkaSource>, Vec<SourcePartition>) {
    let source = source(table).await;
    let partitions = timeout(PATIENCE, source.partitions()).await.unwrap().unwrap();
    (source, partitions)
}

/// What a reader said, with each batch held against the one before.
struct Reading {
    reader: Box<dyn PartitionReader>,
    position: i64,
    records: Vec<(i64, String)>,
    end: Option<i64>,
    open_transaction: bool,
}

impl Reading {
    async fn open(source: &KafkaSource, partition: &SourcePartition, from: i64) -> Self {
        let reader = source.open(partition, Offset(from)).await.unwrap();
        Self { reader, position: from, records: Vec::new(), end: None, open_transaction: false }
    }

    fn take(&mut self, batch: SourceBatch, limit: BatchLimit) {
        assert_eq!(batch.range.from.0, self.position, "ranges are contiguous");
        let offsets = batch.records.column_by_name(raw::OFFSET).unwrap().as_primitive::<Int64Type>();
        let values = batch.records.column_by_name(raw::VALUE).unwrap().as_binary::<i32>();
        assert!(offsets.len() <= limit.rows, "{} rows", offsets.len());
        assert!(batch.bytes <= limit.bytes || offsets.len() == 1, "{} bytes in {} rows", batch.bytes, offsets.len());
        assert_eq!(batch.bytes, values.iter().flatten().map(<[u8]>::len).sum::<usize>());
        for (offset, value) in offsets.values().iter().zip(values.iter()) {
            assert!((self.position..batch.range.until.0).contains(offset), "{offset} in {}", batch.range);
            self.position = offset + 1;
            self.records.push((*offset, String::from_utf8(value.unwrap_or_default().to_vec()).unwrap()));
        }
        assert!(batch.end.is_none_or(|end| end >= batch.range.until));
        self.end = batch.end.map(|end| end.0);
        self.open_transaction = batch.open_transaction;
        self.position = batch.range.until.0;
    }

    async fn next(&mut self, limit: BatchLimit) -> Result<(), SourceError> {
        let batch = timeout(PATIENCE, self.reader.next(limit)).await.expect("an answer in time")?;
        self.take(batch, limit);
        Ok(())
    }

    /// Reads until a position.
    async fn until(&mut self, until: i64, limit: BatchLimit) {
        let started = Instant::now();
        while self.position < until {
            self.next(limit).await.unwrap();
            assert!(started.elapsed() < PATIENCE, "stands at {} instead of {until}", self.position);
        }
    }

    /// Reads until the reader says why it cannot.
    async fn error(&mut self) -> SourceError {
        let started = Instant::now();
        loop {
            match self.next(LARGE).await {
                Ok(()) => assert!(started.elapsed() < PATIENCE, "stands at {} without a word", self.position),
                Err(error) => return error,
            }
        }
    }
}

fn values(prefix: &str, range: Range<i64>) -> Vec<String> {
    range.map(|i| format!("{prefix}-{i}")).collect()
}

/// Records whose values carry their offsets.
fn numbered(prefix: &str, range: Range<i64>) -> Vec<(i64, String)> {
    range.map(|i| (i, format!("{prefix}-{i}"))).collect()
}

fn halted(error: SourceError) -> String {
    match error {
        SourceError::Halt(reason) => reason,
        SourceError::Failed(reason) => panic!("failed instead of halting: {reason}"),
    }
}

fn failed(error: SourceError) -> String {
    match error {
        SourceError::Failed(reason) => reason,
        SourceError::Halt(reason) => panic!("halted instead of failing: {reason}"),
    }
}
