//! What the sink is to be told when the first rows of a key have changed: the rows that dropped out are removed, those
//! that are new or otherwise are written. Where two rows of a key have one primary key, the first of them is written.

use std::collections::HashMap;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use strandline_actors::ports::{Change, OutputBatch};

use crate::sql::passthrough::SinkKey;

fn encoded(rows: &RecordBatch, columns: &[usize]) -> Result<Rows, ArrowError> {
    let columns: Vec<_> = columns.iter().map(|column| rows.column(*column).clone()).collect();
    RowConverter::new(columns.iter().map(|column| SortField::new(column.data_type().clone())).collect())?
        .convert_columns(&columns)
}

/// The rows that count, by what tells them apart. Without a primary key equal rows are told apart by how many there were
/// before, with one the first of them counts.
fn told_apart(keys: &Rows, has_key: bool) -> HashMap<(&[u8], usize), usize> {
    let mut seen: HashMap<&[u8], usize> = HashMap::new();
    let mut rows = HashMap::new();
    for row in 0..keys.num_rows() {
        let key = keys.row(row).data();
        let times = seen.entry(key).or_default();
        if !has_key || *times == 0 {
            rows.insert((key, *times), row);
        }
        *times += 1;
    }
    rows
}

/// The difference between the rows of some keys before and now.
pub(in crate::sql) fn between(
    before: &RecordBatch,
    now: &RecordBatch,
    key: Option<&SinkKey>,
) -> Result<Vec<OutputBatch>, ArrowError> {
    let all: Vec<_> = (0..now.num_columns()).collect();
    let columns = key.map_or(all.as_slice(), |key| key.columns.as_slice());
    let (old_keys, new_keys) = (encoded(before, columns)?, encoded(now, columns)?);
    let (old_rows, new_rows) = (encoded(before, &all)?, encoded(now, &all)?);
    let (old, new) = (told_apart(&old_keys, key.is_some()), told_apart(&new_keys, key.is_some()));
    let unchanged = |key, row: usize| old.get(key).is_some_and(|old| old_rows.row(*old) == new_rows.row(row));
    let changed = new.iter().filter(|(key, row)| !unchanged(*key, **row)).map(|(_, row)| *row as u32);
    let gone = old.iter().filter(|(key, _)| !new.contains_key(*key)).map(|(_, row)| *row as u32);
    let mut output = Vec::new();
    for (change, from, mut rows) in
        [(Change::Delete, before, gone.collect::<Vec<_>>()), (Change::Upsert, now, changed.collect())]
    {
        rows.sort_unstable();
        if !rows.is_empty() {
            output.push(OutputBatch { sink: 0, change, rows: take_record_batch(from, &UInt32Array::from(rows))? });
        }
    }
    Ok(output)
}
