//! Merging the deltas of a shard's state, so that a checkpoint costs what changed and a restart reads what exists.
//!
//! Segments are merged in tiers: the newest ones are merged when there are enough of them of about the same size, so a row
//! is rewritten about `log(state / delta)` times in its life (size-tiered compaction, as in LSM trees).

use std::collections::HashMap;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{filter_record_batch, interleave_record_batch, not};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};

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

/// Merges deltas, oldest first: of each key the newest row stays. `whole` says that nothing older exists, so removed keys
/// need not be remembered.
pub fn merge(deltas: &[RecordBatch], key_columns: usize, whole: bool) -> Result<Option<RecordBatch>, ArrowError> {
    let deltas = if flaw!(NewestDeltaDropped) && deltas.len() > 1 { &deltas[..deltas.len() - 1] } else { deltas };
    let Some(first) = deltas.first() else { return Ok(None) };
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
    let most = deltas.iter().map(RecordBatch::num_rows).max().unwrap_or(0);
    let mut newest: HashMap<&[u8], (usize, usize)> = HashMap::with_capacity(most);
    for (number, keys) in keys.iter().enumerate() {
        newest.extend(keys.iter().enumerate().map(|(row, key)| (key.data(), (number, row))));
    }
    let mut places: Vec<(usize, usize)> = newest.into_values().collect();
    places.sort_unstable();
    let merged = interleave_record_batch(&deltas.iter().collect::<Vec<_>>(), &places)?;
    if !whole {
        return Ok(Some(merged));
    }
    let kept = not(deleted(&merged)?)?;
    Ok(Some(filter_record_batch(&merged, &kept)?))
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

    use arrow::array::{ArrayRef, Int64Array, StringArray};
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
        let partial = contents(&merge(&deltas, 1, false).unwrap().unwrap());
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
        let whole = contents(&merge(&deltas, 1, true).unwrap().unwrap());
        assert_eq!(whole, BTreeMap::from([(None, (2, false)), (a("a"), (1, false)), (a("c"), (3, false))]));
        assert!(merge(&[], 1, true).unwrap().is_none());
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
