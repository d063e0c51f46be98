//! Which shard a row belongs to: a pure function of the row under a hash that never changes.
//!
//! Stored state depends on it, so the hash has test vectors. Rows go by the encoding of their key columns that Arrow uses
//! for comparing rows, under XXH3-64; equal keys have equal encodings whatever batch they are in.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use strandline_actors::pointer::ShardId;
use strandline_actors::position::PartitionKey;
use twox_hash::XxHash3_64;

/// The hash of one encoded key.
pub(super) fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// The shard of a hash.
pub(super) fn shard(hash: u64, shards: u32) -> ShardId {
    (hash % u64::from(shards)) as ShardId
}

/// The shard that counts what of a partition belongs to no row: gaps, tombstones, and rows that were filtered out.
pub(super) fn home(partition: &PartitionKey, shards: u32) -> ShardId {
    let mut key = [0; 20];
    key[..16].copy_from_slice(partition.topic_id.as_bytes());
    key[16..].copy_from_slice(&partition.partition.to_be_bytes());
    shard(hash(&key), shards)
}

/// The shard of a single record, by where it was read.
pub(super) fn by_offset(partition: &PartitionKey, offset: i64, shards: u32) -> ShardId {
    let mut key = [0; 28];
    key[..16].copy_from_slice(partition.topic_id.as_bytes());
    key[16..20].copy_from_slice(&partition.partition.to_be_bytes());
    key[20..].copy_from_slice(&offset.to_be_bytes());
    shard(hash(&key), shards)
}

/// Encodes key columns into comparable bytes.
pub(super) struct KeyEncoder {
    /// `None`: there are no key columns, and every row has the same key.
    converter: Option<RowConverter>,
}

impl KeyEncoder {
    /// An encoder of keys with these columns.
    pub(super) fn new(keys: &SchemaRef) -> Result<Self, ArrowError> {
        let fields: Vec<_> = keys.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
        let converter = if fields.is_empty() { None } else { Some(RowConverter::new(fields)?) };
        Ok(Self { converter })
    }

    /// The encoded keys; `None` when there are no key columns.
    pub(super) fn encode(&self, columns: &[ArrayRef]) -> Result<Option<Rows>, ArrowError> {
        self.converter.as_ref().map(|converter| converter.convert_columns(columns)).transpose()
    }

    /// Room for so many encoded keys.
    pub(super) fn empty(&self, rows: usize) -> Option<Rows> {
        self.converter.as_ref().map(|converter| converter.empty_rows(rows, 0))
    }

    /// The shard of each of `rows` rows.
    pub(super) fn shards(&self, columns: &[ArrayRef], rows: usize, shards: u32) -> Result<Vec<ShardId>, ArrowError> {
        if shards == 1 {
            return Ok(vec![0; rows]);
        }
        Ok(match self.encode(columns)? {
            Some(encoded) => encoded.iter().map(|row| shard(hash(row.data()), shards)).collect(),
            None => vec![shard(hash(&[]), shards); rows],
        })
    }
}

/// A key column in which values that SQL calls equal are equal bit by bit: -0.0 becomes 0.0, every NaN the same one.
pub(super) fn canonical(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let values: PrimitiveArray<Float64Type> =
                column.as_primitive::<Float64Type>().unary(|value| if value.is_nan() { f64::NAN } else { value + 0.0 });
            Arc::new(values)
        }
        DataType::Float32 => {
            let values: PrimitiveArray<Float32Type> =
                column.as_primitive::<Float32Type>().unary(|value| if value.is_nan() { f32::NAN } else { value + 0.0 });
            Arc::new(values)
        }
        _ => Arc::clone(column),
    }
}
