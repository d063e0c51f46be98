//! Which shard a row belongs to: a pure function of the row under a hash that never changes.
//!
//! Stored state depends on it, so the hash has test vectors. Rows go by the encoding of their key columns that Arrow uses
//! for comparing rows, under XXH3-64; equal keys have equal encodings whatever batch they are in.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, PrimitiveArray, StructArray,
};
use arrow::datatypes::{ArrowPrimitiveType, DataType, FieldRef, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{Row, RowConverter, Rows, SortField};
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

    /// The key columns of encoded keys.
    pub(super) fn decode<'a>(&self, keys: impl Iterator<Item = Row<'a>>) -> Result<Vec<ArrayRef>, ArrowError> {
        match &self.converter {
            Some(converter) => converter.convert_rows(keys),
            None => Ok(Vec::new()),
        }
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

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// A key column in which values that SQL calls equal are equal bit by bit: -0.0 becomes 0.0, every NaN the same one, also
/// within structs and lists.
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
        DataType::Float16 => {
            let one = |value: Half| if value.is_nan() { Half::NAN } else { value + Half::ZERO };
            let values: PrimitiveArray<Float16Type> = column.as_primitive::<Float16Type>().unary(one);
            Arc::new(values)
        }
        DataType::Struct(fields) if has_floats(column.data_type()) => {
            let structs = column.as_struct();
            let columns = structs.columns().iter().map(canonical).collect();
            Arc::new(StructArray::new(fields.clone(), columns, structs.nulls().cloned()))
        }
        DataType::List(field) if has_floats(column.data_type()) => Arc::new(of_list::<i32>(column.as_list(), field)),
        DataType::LargeList(field) if has_floats(column.data_type()) => {
            Arc::new(of_list::<i64>(column.as_list(), field))
        }
        DataType::FixedSizeList(field, size) if has_floats(column.data_type()) => {
            let lists = column.as_fixed_size_list();
            let values = canonical(lists.values());
            Arc::new(FixedSizeListArray::new(Arc::clone(field), *size, values, lists.nulls().cloned()))
        }
        _ => Arc::clone(column),
    }
}

fn of_list<O: OffsetSizeTrait>(lists: &GenericListArray<O>, field: &FieldRef) -> GenericListArray<O> {
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    GenericListArray::new(Arc::clone(field), offsets, canonical(lists.values()), nulls)
}

fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            has_floats(field.data_type())
        }
        other => other.is_floating(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{
        BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray, TimestampMillisecondArray,
    };
    use arrow::compute::cast;
    use arrow::datatypes::{Field, Schema};
    use uuid::Uuid;

    use super::*;

    fn hashes(columns: &[ArrayRef]) -> Vec<u64> {
        let fields: Vec<_> = columns.iter().map(|column| Field::new("k", column.data_type().clone(), true)).collect();
        let encoder = KeyEncoder::new(&Arc::new(Schema::new(fields))).unwrap();
        let columns: Vec<_> = columns.iter().map(canonical).collect();
        encoder.encode(&columns).unwrap().unwrap().iter().map(|row| hash(row.data())).collect()
    }

    /// Stored state lies on the shards that these numbers say. If one changes, every pipeline's state is lost.
    #[test]
    fn test_vectors() {
        let text = StringArray::from(vec![Some(""), Some("user-1"), None, Some(&"x".repeat(100))]);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), Some(i64::MAX), None]));
        let doubles = Float64Array::from(vec![0.0, 1.5, f64::NAN, f64::INFINITY]);
        let decimals = Decimal128Array::from(vec![12345]).with_precision_and_scale(18, 4).unwrap();
        let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "a", "b", "b", "c"]));
        let found = [
            hashes(&[Arc::new(text)]),
            hashes(&[Arc::clone(&numbers)]),
            hashes(&[Arc::new(doubles)]),
            hashes(&[Arc::new(decimals)]),
            hashes(&[Arc::new(BooleanArray::from(vec![true, false]))]),
            hashes(&[Arc::new(TimestampMillisecondArray::from(vec![1_700_000_000_000]))]),
            hashes(&[names, numbers]),
        ];
        let expected: [&[u64]; 7] = [
            &[0xe12e_f9d2_eb86_ceeb, 0xe82b_2eff_0b7f_ea9b, 0xc44b_dff4_074e_ecdb, 0x4c76_734b_7e75_7462],
            &[
                0x5ed9_3512_6821_1059,
                0x8245_2dc3_791a_853e,
                0xa3c3_59fd_3e03_bbfc,
                0x53a5_f4bc_2fc0_168c,
                0x3449_9569_f039_1857,
            ],
            &[0x5ed9_3512_6821_1059, 0x08ce_b942_68d2_295e, 0x4a34_7712_5194_e42d, 0x8703_ca1f_826d_9342],
            &[0xb55a_5c10_1525_b3b2],
            &[0x070d_80d6_a768_65f3, 0xab94_ac0a_ce72_76c0],
            &[0xa11b_f769_05b4_ca03],
            &[
                0x4c60_16d7_fe6c_eb51,
                0x6b74_09b2_5fa5_f416,
                0xc712_ff48_c65b_677f,
                0x4c53_7aa1_6d32_95db,
                0x5d57_d5a6_2d09_64bf,
            ],
        ];
        assert_eq!(found, expected);
        // As in the specification of XXH3.
        assert_eq!(hash(&[]), 0x2d06_8005_38d3_94c2);
        let key = PartitionKey { topic_id: Uuid::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677), partition: 3 };
        let shards: Vec<_> = (0..8).map(|offset| by_offset(&key, offset, 8)).collect();
        assert_eq!((shards, home(&key, 8)), (vec![1, 1, 5, 5, 2, 0, 4, 3], 3));
    }

    #[test]
    fn equal_values_have_equal_hashes() {
        let nan = f64::from_bits(0x7ff8_0000_0000_0001);
        let values = Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, nan]);
        for data_type in [DataType::Float16, DataType::Float32, DataType::Float64] {
            let hashes = hashes(&[cast(&values, &data_type).unwrap()]);
            assert_eq!(hashes[0], hashes[1], "{data_type}");
            assert!(hashes[2] == hashes[3] && hashes[3] == hashes[4], "{data_type}");
            assert_ne!(hashes[0], hashes[2], "{data_type}");
        }
    }

    /// The same value has the same shard, whatever else is in its batch.
    #[test]
    fn a_batch_does_not_matter() {
        let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Utf8, true)]));
        let encoder = KeyEncoder::new(&schema).unwrap();
        let names: Vec<_> = (0..50).map(|n| (n % 7 != 0).then(|| format!("name {n}"))).collect();
        let all: ArrayRef = Arc::new(StringArray::from(names));
        for shards in 1..9 {
            let whole = encoder.shards(&[Arc::clone(&all)], 50, shards).unwrap();
            for (row, shard) in whole.iter().enumerate() {
                assert_eq!(encoder.shards(&[all.slice(row, 1)], 1, shards).unwrap(), [*shard]);
            }
            assert!(whole.iter().all(|shard| *shard < shards));
        }
    }

    #[test]
    fn everything_is_one_key_without_columns() {
        let encoder = KeyEncoder::new(&Arc::new(Schema::empty())).unwrap();
        let shards = encoder.shards(&[], 3, 8).unwrap();
        assert!(shards.len() == 3 && shards.iter().all(|other| *other == shards[0]));
    }
}
