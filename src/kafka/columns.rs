//! The undecoded columns of a batch: each payload is copied once, from librdkafka's buffer into Arrow's.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BinaryBuilder, Int64Array, ListBuilder, NullBufferBuilder, RecordBatch,
    StringBuilder, StructBuilder, TimestampMillisecondArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use strandline_actors::ports::raw;

use super::raw::Headers;

/// Which of a record's parts the query uses; the others are never copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Its key.
    pub keys: bool,
    /// Its headers.
    pub headers: bool,
}

fn header_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)])
}

/// The columns of an undecoded batch.
pub fn schema(parts: Parts) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let mut fields = vec![
        Field::new(raw::OFFSET, DataType::Int64, false),
        Field::new(raw::TIMESTAMP, time, true),
        Field::new(raw::VALUE, DataType::Binary, true),
    ];
    if parts.keys {
        fields.push(Field::new(raw::KEY, DataType::Binary, true));
    }
    if parts.headers {
        let header = Field::new("item", DataType::Struct(header_fields()), false);
        fields.push(Field::new(raw::HEADERS, DataType::List(Arc::new(header)), true));
    }
    Arc::new(Schema::new(fields))
}

/// One record, borrowed.
#[derive(Clone, Debug, Default)]
pub(super) struct Record<'a> {
    pub(super) offset: i64,
    pub(super) timestamp: Option<i64>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: Option<Headers<'a>>,
}

impl Record<'_> {
    /// The size of key, value and headers.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter().flatten().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len));
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers.sum::<usize>()
    }
}

struct Binary {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Binary {
    fn with_capacity(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, bytes: Vec::with_capacity(bytes), nulls: NullBufferBuilder::new(rows) }
    }

    fn push(&mut self, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.bytes.extend_from_slice(value);
        }
        self.nulls.append(value.is_some());
        // The caller keeps a batch below two gigabytes (`LARGEST_BATCH`).
        self.offsets.push(self.bytes.len() as i32);
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        Ok(Arc::new(BinaryArray::try_new(offsets, Buffer::from_vec(self.bytes), self.nulls.finish())?))
    }
}

/// The size of keys, values and headers of undecoded records.
pub(super) fn bytes(records: &RecordBatch) -> usize {
    let spread = |offsets: &[i32]| match offsets {
        [first, .., last] => usize::try_from(last - first).unwrap_or(0),
        _ => 0,
    };
    let mut bytes = 0;
    for name in [raw::KEY, raw::VALUE] {
        if let Some(column) = records.column_by_name(name).and_then(|column| column.as_binary_opt::<i32>()) {
            bytes += spread(column.value_offsets());
        }
    }
    if let Some(lists) = records.column_by_name(raw::HEADERS).and_then(|column| column.as_list_opt::<i32>()) {
        let offsets = lists.value_offsets();
        if let ([first, .., _], Some(headers)) = (offsets, lists.values().as_struct_opt()) {
            let headers = headers.slice(usize::try_from(*first).unwrap_or(0), spread(offsets));
            bytes += headers.column(0).as_string_opt::<i32>().map_or(0, |keys| spread(keys.value_offsets()));
            bytes += headers.column(1).as_binary_opt::<i32>().map_or(0, |values| spread(values.value_offsets()));
        }
    }
    bytes
}

/// No batch is filled beyond this, whatever limit is asked for: the offsets inside a column have 32 bits. Room is left
/// for one record of Kafka's largest size on top.
pub(super) const LARGEST_BATCH: usize = 1 << 29;

/// The columns while they are filled.
pub(super) struct Columns {
    schema: SchemaRef,
    offsets: Vec<i64>,
    timestamps: Vec<Option<i64>>,
    values: Binary,
    keys: Option<Binary>,
    headers: Option<ListBuilder<StructBuilder>>,
    bytes: usize,
}

impl Columns {
    /// Empty columns, with room for about so much.
    pub(super) fn with_capacity(schema: &SchemaRef, parts: Parts, rows: usize, bytes: usize) -> Self {
        let header = || {
            StructBuilder::new(header_fields(), vec![Box::new(StringBuilder::new()), Box::new(BinaryBuilder::new())])
        };
        Self {
            schema: Arc::clone(schema),
            offsets: Vec::with_capacity(rows),
            timestamps: Vec::with_capacity(rows),
            values: Binary::with_capacity(rows, bytes),
            keys: parts.keys.then(|| Binary::with_capacity(rows, 0)),
            headers: parts.headers.then(|| {
                ListBuilder::new(header()).with_field(Field::new("item", DataType::Struct(header_fields()), false))
            }),
            bytes: 0,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.offsets.len()
    }

    /// The size of keys, values and headers so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, record: &Record<'_>) {
        self.offsets.push(record.offset);
        self.timestamps.push(record.timestamp);
        self.values.push(record.value);
        if let Some(keys) = &mut self.keys {
            keys.push(record.key);
        }
        if let Some(list) = &mut self.headers {
            for (key, value) in record.headers.iter().flatten() {
                let header = list.values();
                if let Some(keys) = header.field_builder::<StringBuilder>(0) {
                    keys.append_value(key);
                }
                if let Some(values) = header.field_builder::<BinaryBuilder>(1) {
                    values.append_option(*value);
                }
                header.append(true);
            }
            list.append(record.headers.is_some());
        }
        self.bytes += record.bytes();
    }

    pub(super) fn finish(self) -> Result<RecordBatch, ArrowError> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(self.offsets)),
            Arc::new(TimestampMillisecondArray::from(self.timestamps).with_timezone("UTC")),
            self.values.finish()?,
        ];
        if let Some(keys) = self.keys {
            columns.push(keys.finish()?);
        }
        if let Some(mut headers) = self.headers {
            columns.push(Arc::new(headers.finish()));
        }
        RecordBatch::try_new(self.schema, columns)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::Array;
    use arrow::datatypes::{Int64Type, TimestampMillisecondType};

    use super::*;

    const ALL: Parts = Parts { keys: true, headers: true };

    fn columns(parts: Parts, records: &[Record<'_>]) -> RecordBatch {
        let mut columns = Columns::with_capacity(&schema(parts), parts, 0, 0);
        for record in records {
            columns.push(record);
        }
        assert_eq!(columns.rows(), records.len());
        columns.finish().unwrap()
    }

    #[test]
    fn null_and_empty_and_text_are_three_different_values() {
        let record = |value| Record { value, key: value, ..Record::default() };
        let batch = columns(ALL, &[record(None), record(Some(b"")), record(Some(b"null"))]);
        for name in [raw::VALUE, raw::KEY] {
            let column = batch.column_by_name(name).unwrap().as_binary::<i32>();
            assert_eq!(column.iter().collect::<Vec<_>>(), [None, Some(&b""[..]), Some(b"null")], "{name}");
        }
    }

    #[test]
    fn headers_keep_their_order_and_their_nulls() {
        let headers = vec![("a".into(), Some(&b"1"[..])), ("b".into(), None), ("a".into(), Some(&b""[..]))];
        let record = Record { headers: Some(headers), ..Record::default() };
        let batch = columns(ALL, &[record, Record::default()]);
        let list = batch.column_by_name(raw::HEADERS).unwrap().as_list::<i32>();
        assert!(list.is_valid(0) && list.is_null(1));
        let first = list.value(0);
        let first = first.as_struct();
        assert_eq!(first.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a", "b", "a"]);
        let values: Vec<_> = first.column(1).as_binary::<i32>().iter().collect();
        assert_eq!(values, [Some(&b"1"[..]), None, Some(b"")]);
    }

    #[test]
    fn offsets_and_times_are_always_there() {
        let record = |offset, timestamp| Record { offset, timestamp, ..Record::default() };
        let batch = columns(Parts { keys: false, headers: false }, &[record(7, Some(1_000)), record(9, None)]);
        assert_eq!(batch.num_columns(), 3);
        assert_eq!(batch.column_by_name(raw::OFFSET).unwrap().as_primitive::<Int64Type>().values(), &[7, 9]);
        let times = batch.column_by_name(raw::TIMESTAMP).unwrap().as_primitive::<TimestampMillisecondType>();
        assert_eq!(times.iter().collect::<Vec<_>>(), [Some(1_000), None]);
    }

    #[test]
    fn a_batch_knows_its_size() {
        let headers = Some(vec![("ab".into(), Some(&b"c"[..]))]);
        let mut columns = Columns::with_capacity(&schema(ALL), ALL, 1, 16);
        columns.push(&Record { key: Some(b"key"), value: Some(b"value"), headers, ..Record::default() });
        assert_eq!(columns.bytes(), 3 + 5 + 3);
        assert_eq!(bytes(&columns.finish().unwrap()), 3 + 5 + 3);
    }

    #[test]
    fn the_sizes_of_parts_make_up_the_whole() {
        let records: Vec<_> = (0..10_usize)
            .map(|i| Record {
                key: (i % 3 > 0).then_some(&b"0123456789"[..i]),
                value: (i % 4 > 0).then_some(&b"0123456789"[i..]),
                headers: (i % 2 > 0).then(|| vec![("key".into(), Some(&b"0123456789"[..i])); i % 5]),
                ..Record::default()
            })
            .collect();
        let sizes: Vec<usize> = records.iter().map(Record::bytes).collect();
        let batch = columns(ALL, &records);
        for from in 0..10 {
            for until in from..=10 {
                let part = batch.slice(from, until - from);
                assert_eq!(bytes(&part), sizes[from..until].iter().sum::<usize>(), "{from}..{until}");
            }
        }
    }
}
