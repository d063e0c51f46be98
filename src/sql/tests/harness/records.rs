//! Records and partitions, and the batches that the Kafka adapter makes of them.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, BinaryBuilder, Int64Array, RecordBatch, StringBuilder, StructArray};
use arrow::array::{ListArray, TimestampMillisecondArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use strandline_actors::ports::{SourceBatch, raw};
use strandline_actors::position::{Offset, PartitionKey, Range, SourcePartition};
use uuid::Uuid;

/// One record of a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    pub(crate) fn new(offset: i64, value: impl Into<Vec<u8>>) -> Self {
        Self { offset, timestamp: 1_700_000_000_000 + offset, value: Some(value.into()), ..Self::default() }
    }

    pub(crate) fn null(offset: i64) -> Self {
        Self { offset, ..Self::default() }
    }
}

/// Records with these values at the offsets 0, 1, 2 ...
pub(crate) fn log<V: Into<Vec<u8>>>(values: impl IntoIterator<Item = V>) -> Vec<Record> {
    values.into_iter().enumerate().map(|(offset, value)| Record::new(offset as i64, value)).collect()
}

pub(crate) fn partition(number: i32) -> SourcePartition {
    of_source(0, "orders", number)
}

/// A partition of one of several topics.
pub(crate) fn of_source(source: usize, topic: &str, number: i32) -> SourcePartition {
    let topic_id = Uuid::from_u128(0x5eed + source as u128);
    SourcePartition { source, topic: topic.into(), key: PartitionKey { topic_id, partition: number } }
}

/// The batch of a range of a log, as the Kafka adapter makes it.
pub(crate) fn batch(log: &[Record], from: i64, until: i64) -> SourceBatch {
    let records: Vec<_> = log.iter().filter(|r| (from..until).contains(&r.offset)).collect();
    let bytes = |get: fn(&Record) -> Option<&[u8]>| -> ArrayRef {
        Arc::new(records.iter().map(|record| get(record)).collect::<BinaryArray>())
    };
    let timestamps = records.iter().map(|r| r.timestamp).collect::<Vec<_>>();
    let columns: Vec<(&str, ArrayRef)> = vec![
        (raw::OFFSET, Arc::new(Int64Array::from_iter_values(records.iter().map(|r| r.offset)))),
        (raw::TIMESTAMP, Arc::new(TimestampMillisecondArray::from(timestamps).with_timezone("UTC"))),
        (raw::KEY, bytes(|r| r.key.as_deref())),
        (raw::VALUE, bytes(|r| r.value.as_deref())),
        (raw::HEADERS, headers(&records)),
    ];
    SourceBatch {
        range: Range::new(Offset(from), Offset(until)),
        records: RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap(),
        bytes: 0,
        end: None,
        open_transaction: false,
        waits: false,
        lost: false,
        producers: Default::default(),
    }
}

fn headers(records: &[&Record]) -> ArrayRef {
    let mut keys = StringBuilder::new();
    let mut values = BinaryBuilder::new();
    for (key, value) in records.iter().flat_map(|record| &record.headers) {
        keys.append_value(key);
        values.append_option(value.as_deref());
    }
    let fields =
        Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)]);
    let entries = StructArray::new(fields.clone(), vec![Arc::new(keys.finish()), Arc::new(values.finish())], None);
    let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
    let offsets = OffsetBuffer::from_lengths(records.iter().map(|record| record.headers.len()));
    Arc::new(ListArray::new(item, offsets, Arc::new(entries), None))
}
