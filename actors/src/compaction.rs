//! Merging the deltas of a shard's state, so that a checkpoint costs what changed and a restart reads what exists.
//!
//! Segments are merged in tiers: the newest ones are merged when there are enough of them of about the same size, so a row
//! is rewritten about `log(state / delta)` times in its life (size-tiered compaction, as in LSM trees).
//!
//! Rows of a table that expires say themselves up to which watermark they last, and all rows of a key say the same. So what
//! is past is left out wherever rows are read, and a segment of which all rows are past is dropped unread.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{filter_record_batch, interleave_record_batch, not};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use twox_hash::XxHash3_64;

use crate::ports::StateTable;
use crate::position::Watermark;

/// The most bytes of a batch that is merged: a column of texts cannot hold 2 GiB.
pub const LARGEST: usize = 1 << 30;
/// How many segments of one tier are merged.
const FAN_IN: usize = 4;

/// The index from which on the segments of a table should be merged into one, given their rows, oldest first.
pub fn plan(rows: &[u64]) -> Option<usize> {
    let mut start = rows.len();
    let mut newer = 0u64;
    while start > 0 {
        let size = rows[start - 1];
        if newer > 0 && size > newer.saturating_mul(FAN_IN as u64) {
            break;
        }
        newer += size.max(1);
        start -= 1;
    }
    (rows.len() - start >= FAN_IN).then_some(start)
}

/// Merges deltas, oldest first: of each key the newest row stays, if it is not gone by itself at this watermark. `whole`
/// says that nothing older exists, so removed keys need not be remembered. The batches have no key in common; there is one,
/// unless the rows are too large for that, and none without deltas.
pub fn merge(
    deltas: &[RecordBatch],
    table: StateTable,
    whole: bool,
    closed: Watermark,
) -> Result<Vec<RecordBatch>, ArrowError> {
    merge_within(LARGEST, deltas, table, whole, closed)
}

fn merge_within(
    largest: usize,
    deltas: &[RecordBatch],
    table: StateTable,
    whole: bool,
    closed: Watermark,
) -> Result<Vec<RecordBatch>, ArrowError> {
    let deltas = if flaw!(NewestDeltaDropped) && deltas.len() > 1 { &deltas[..deltas.len() - 1] } else { deltas };
    let StateTable { key_columns, expires } = table;
    let lasting;
    let deltas = match expires {
        true => {
            lasting = deltas.iter().map(|delta| living(delta, closed)).collect::<Result<Vec<_>, _>>()?;
            &lasting
        }
        false => deltas,
    };
    let Some(first) = deltas.first() else { return Ok(Vec::new()) };
    if key_columns == 0 {
        return Err(ArrowError::SchemaError("a state table needs a key column".into()));
    }
    let schema = first.schema();
    let fields = schema.fields()[..key_columns].iter().map(|field| SortField::new(field.data_type().clone())).collect();
    let converter = RowConverter::new(fields)?;
    let keys = deltas
        .iter()
        .map(|delta| converter.convert_columns(&delta.columns()[..key_columns]))
        .collect::<Result<Vec<_>, _>>()?;
    let places = newest(&keys, XxHash3_64::oneshot);
    let deltas: Vec<_> = deltas.iter().collect();
    let merged = |places: &[(usize, usize)]| {
        let merged = interleave_record_batch(&deltas, places)?;
        if whole { filter_record_batch(&merged, &not(deleted(&merged)?)?) } else { Ok(merged) }
    };
    in_pieces(largest, &places, merged, |merged| bytes(merged.columns()))
}

/// Where the newest row of each key is, in the order of the rows. Sorted by their hashes, rows of one key come together: that
/// is several times as fast as a hash table of millions of keys, which does not fit into any cache.
fn newest(keys: &[Rows], hash: impl Fn(&[u8]) -> u64) -> Vec<(usize, usize)> {
    let mut rows: Vec<(u64, u32, u32)> = Vec::with_capacity(keys.iter().map(Rows::num_rows).sum());
    for (number, keys) in keys.iter().enumerate() {
        let hashes = keys.iter().map(|key| hash(key.data()));
        rows.extend(hashes.zip(0..).map(|(hash, row)| (hash, number as u32, row)));
    }
    rows.sort_unstable();
    let mut stays: Vec<Vec<bool>> = keys.iter().map(|keys| vec![false; keys.num_rows()]).collect();
    let mut stay = |(_, number, row): (u64, u32, u32)| stays[number as usize][row as usize] = true;
    let key = |(_, number, row): &(u64, u32, u32)| keys[*number as usize].row(*row as usize);
    for same in rows.chunk_by_mut(|a, b| a.0 == b.0) {
        if let [only] = same {
            stay(*only);
            continue;
        }
        // Different keys can have one hash.
        same.sort_by(|a, b| key(a).cmp(&key(b)));
        same.chunk_by(|a, b| key(a) == key(b)).filter_map(<[_]>::last).for_each(|newest| stay(*newest));
    }
    let of_delta = |(number, stays): (usize, Vec<bool>)| {
        stays.into_iter().enumerate().filter(|(_, stays)| *stays).map(move |(row, _)| (number, row))
    };
    stays.into_iter().enumerate().flat_map(of_delta).collect()
}

/// Makes something of all rows, or of each half of them, and so on, where it is larger than this or cannot be made at all.
pub fn in_pieces<R, T>(
    largest: usize,
    rows: &[R],
    make: impl Fn(&[R]) -> Result<T, ArrowError>,
    size: impl Fn(&T) -> Result<usize, ArrowError>,
) -> Result<Vec<T>, ArrowError> {
    let (mut made, mut left) = (Vec::new(), vec![rows]);
    while let Some(part) = left.pop() {
        let piece = match make(part) {
            Ok(piece) if part.len() <= 1 || size(&piece)? <= largest => piece,
            Ok(_) | Err(ArrowError::OffsetOverflowError(_)) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                left.extend([second, first]);
                continue;
            }
            other => other?,
        };
        made.push(piece);
    }
    Ok(made)
}

/// How much memory the values of these columns take, without what they only share.
pub fn bytes(columns: &[ArrayRef]) -> Result<usize, ArrowError> {
    columns.iter().map(|column| column.to_data().get_slice_memory_size()).sum()
}

/// The rows of a table that expires without those that are gone by themselves at this watermark.
pub fn living(rows: &RecordBatch, closed: Watermark) -> Result<RecordBatch, ArrowError> {
    let until = until(rows)?;
    let Some(closed) = closed else { return Ok(rows.clone()) };
    if until.values().iter().all(|until| *until > closed) {
        return Ok(rows.clone());
    }
    filter_record_batch(rows, &BooleanArray::from_unary(until, |until| until > closed))
}

/// The watermark at which all rows are gone by themselves.
pub(crate) fn last_until(rows: &RecordBatch) -> Result<Watermark, ArrowError> {
    let until = until(rows)?.values().iter();
    Ok(if flaw!(SegmentsDroppedEarly) { until.min() } else { until.max() }.copied())
}

fn until(rows: &RecordBatch) -> Result<&Int64Array, ArrowError> {
    let column = rows.num_columns().checked_sub(2).map(|column| rows.column(column));
    column
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .filter(|column| column.null_count() == 0)
        .ok_or_else(|| ArrowError::SchemaError("the last column but one must be `_until BIGINT`".into()))
}

fn deleted(rows: &RecordBatch) -> Result<&BooleanArray, ArrowError> {
    rows.columns()
        .last()
        .and_then(|column| column.as_boolean_opt())
        .filter(|column| column.null_count() == 0)
        .ok_or_else(|| ArrowError::SchemaError("the last column of a state delta must be `_deleted BOOLEAN`".into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn delta(rows: &[(Option<&str>, i64, bool)]) -> RecordBatch {
        let keys: ArrayRef = Arc::new(StringArray::from_iter(rows.iter().map(|row| row.0)));
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)));
        let deleted: ArrayRef = Arc::new(BooleanArray::from_iter(rows.iter().map(|row| Some(row.2))));
        RecordBatch::try_from_iter_with_nullable([
            ("k", keys, true),
            ("v", values, false),
            ("_deleted", deleted, false),
        ])
        .unwrap()
    }

    fn contents(rows: &RecordBatch) -> BTreeMap<Option<String>, (i64, bool)> {
        let keys = rows.column(0).as_string::<i32>();
        let values = rows.column(1).as_primitive::<Int64Type>();
        let deleted = rows.column(2).as_boolean();
        let read = (0..rows.num_rows())
            .map(|row| {
                (keys.is_valid(row).then(|| keys.value(row).to_owned()), (values.value(row), deleted.value(row)))
            })
            .collect::<BTreeMap<_, _>>();
        assert_eq!(read.len(), rows.num_rows(), "each key once");
        read
    }

    #[test]
    fn the_newest_row_of_a_key_wins_and_removed_keys_go_at_the_bottom_only() {
        let deltas = [
            delta(&[(Some("a"), 1, false), (Some("b"), 1, false), (None, 1, false)]),
            delta(&[(Some("b"), 2, true), (Some("c"), 2, false), (None, 2, false)]),
            delta(&[(Some("c"), 3, false), (Some("d"), 3, true)]),
        ];
        let table = StateTable { key_columns: 1, expires: false };
        let partial = contents(&merge(&deltas, table, false, None).unwrap()[0]);
        let a = |text: &str| Some(text.to_owned());
        assert_eq!(
            partial,
            BTreeMap::from([
                (None, (2, false)),
                (a("a"), (1, false)),
                (a("b"), (2, true)),
                (a("c"), (3, false)),
                (a("d"), (3, true)),
            ])
        );
        let whole = contents(&merge(&deltas, table, true, None).unwrap()[0]);
        assert_eq!(whole, BTreeMap::from([(None, (2, false)), (a("a"), (1, false)), (a("c"), (3, false))]));
        assert!(merge(&[], table, true, None).unwrap().is_empty());
    }

    /// Whatever the hashes are, also when all keys have one.
    #[test]
    fn the_newest_row_is_found_whatever_the_hashes_are() {
        let converter = RowConverter::new(vec![SortField::new(arrow::datatypes::DataType::Int64)]).unwrap();
        let deltas: Vec<Vec<i64>> =
            (0..5).map(|delta| (0..40).map(|row| (row * 7 + delta * delta * 13) % 61).collect()).collect();
        let rows = |delta: &Vec<i64>| {
            converter.convert_columns(&[Arc::new(Int64Array::from(delta.clone())) as ArrayRef]).unwrap()
        };
        let keys: Vec<Rows> = deltas.iter().map(rows).collect();
        let mut newest_of = BTreeMap::new();
        for (number, delta) in deltas.iter().enumerate() {
            newest_of.extend(delta.iter().enumerate().map(|(row, key)| (*key, (number, row))));
        }
        let mut wanted: Vec<_> = newest_of.into_values().collect();
        wanted.sort_unstable();
        assert!(wanted.len() < 200 && wanted.len() > 50);
        assert_eq!(newest(&keys, XxHash3_64::oneshot), wanted);
        assert_eq!(newest(&keys, |_| 0), wanted);
        assert_eq!(newest(&keys, |key| u64::from(key[key.len() - 1] % 3)), wanted);
    }

    #[test]
    fn what_is_too_large_for_one_batch_comes_in_several() {
        let texts: Vec<_> = (0..100).map(|number| format!("{number:0>1000}")).collect();
        let deltas = [0, 1, 2].map(|round| {
            let rows: Vec<_> =
                texts.iter().skip(round * 20).map(|text| (Some(text.as_str()), round as i64, round == 1)).collect();
            delta(&rows)
        });
        let table = StateTable { key_columns: 1, expires: false };
        for whole in [false, true] {
            let one = merge(&deltas, table, whole, None).unwrap();
            assert_eq!(one.len(), 1);
            let several = merge_within(30_000, &deltas, table, whole, None).unwrap();
            assert!(several.len() >= 4, "{} batches", several.len());
            let all: BTreeMap<_, _> = several.iter().flat_map(contents).collect();
            assert_eq!(
                several.iter().map(RecordBatch::num_rows).sum::<usize>(),
                all.len(),
                "each key is in one of them"
            );
            assert_eq!(all, contents(&one[0]));
        }
        // A row that is larger than that is a batch of its own.
        assert_eq!(merge_within(100, &deltas, table, false, None).unwrap().len(), 100);
    }

    #[test]
    fn rows_that_last_no_longer_are_gone_and_take_nothing_else_with_them() {
        let expiring = |rows: &[(&str, i64, bool)]| {
            let rows: Vec<_> = rows.iter().map(|(key, until, deleted)| (Some(*key), *until, *deleted)).collect();
            delta(&rows)
        };
        let deltas = [
            expiring(&[("a", 10, false), ("b", 11, false), ("c", i64::MAX, false)]),
            expiring(&[("a", 10, true), ("b", 11, true), ("d", 12, false)]),
        ];
        let table = StateTable { key_columns: 1, expires: true };
        let keys = |whole, closed| {
            let merged = merge(&deltas, table, whole, closed).unwrap();
            contents(&merged[0]).into_keys().flatten().collect::<String>()
        };
        assert_eq!((keys(false, None), keys(true, None)), ("abcd".into(), "cd".into()));
        assert_eq!(
            (keys(false, Some(9)), keys(false, Some(10)), keys(false, Some(11))),
            ("abcd".into(), "bcd".into(), "cd".into())
        );
        assert_eq!(keys(true, Some(12)), "c");
        assert_eq!(living(&deltas[0], Some(10)).unwrap().num_rows(), 2);
        assert_eq!((last_until(&deltas[0]).unwrap(), last_until(&deltas[1]).unwrap()), (Some(i64::MAX), Some(12)));
        let no_until = deltas[0].project(&[0, 2]).unwrap();
        assert!(living(&no_until, Some(1)).unwrap_err().to_string().contains("_until BIGINT"));
    }

    #[test]
    fn equal_deltas_are_merged_in_tiers_and_a_large_base_is_left_alone() {
        assert_eq!(plan(&[]), None);
        assert_eq!(plan(&[10, 10, 10]), None);
        assert_eq!(plan(&[10, 10, 10, 10]), Some(0));
        assert_eq!(plan(&[100_000, 10, 10, 10]), None);
        assert_eq!(plan(&[100_000, 10, 10, 10, 10]), Some(1));
    }

    #[test]
    fn rows_are_rewritten_a_logarithmic_number_of_times() {
        let mut segments: Vec<u64> = Vec::new();
        let (mut rewritten, mut most) = (0u64, 0);
        for _ in 0..4096 {
            segments.push(1);
            if let Some(start) = plan(&segments) {
                let merged = segments.drain(start..).sum();
                rewritten += merged;
                segments.push(merged);
            }
            most = most.max(segments.len());
        }
        assert!(rewritten < 4096 * 14, "{rewritten} rows rewritten");
        assert!(most < 40, "{most} segments");
    }
}
