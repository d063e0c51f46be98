//! The second half of a query without aggregation: rows wait, as they came, for the next checkpoint.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::SchemaRef;
use strandline_actors::ports::{
    Change, KeyedOperator, OperatorCheckpoint, OutputBatch, StageError, StateDelta, StateTable,
};
use strandline_actors::position::Watermark;

use super::routing::KeyEncoder;

/// About how large a batch gets that is put together of small ones.
const JOINED_BYTES: usize = 4 << 20;

/// The columns of a sink's primary key.
#[derive(Clone, Debug)]
pub(super) struct SinkKey {
    pub(super) columns: Vec<usize>,
    pub(super) schema: SchemaRef,
}

/// The rows of one shard.
pub(super) struct PassThrough {
    key: Option<Arc<SinkKey>>,
    /// Nobody looks at the rows; they are only counted.
    discarded: bool,
    rows: Vec<RecordBatch>,
    bytes: usize,
}

impl PassThrough {
    /// An operator without rows; rows with the same key replace each other.
    pub(super) fn new(key: Option<Arc<SinkKey>>) -> Self {
        Self { key, discarded: false, rows: Vec::new(), bytes: 0 }
    }

    /// An operator whose rows go nowhere: only their number is kept.
    pub(super) fn discarding() -> Self {
        Self { discarded: true, ..Self::new(None) }
    }
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl KeyedOperator for PassThrough {
    fn tables(&self) -> Vec<StateTable> {
        Vec::new()
    }

    fn apply(&mut self, mut rows: Vec<RecordBatch>, _watermark: Watermark) -> Result<(), StageError> {
        if self.discarded {
            rows = rows.iter().map(|rows| rows.project(&[])).collect::<Result<_, _>>().map_err(failed)?;
        }
        self.bytes += rows.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
        self.rows.extend(rows);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let rows = match &self.key {
            Some(key) => last_of_each(&rows, key)?,
            None => together(rows)?,
        };
        let output = rows.into_iter().map(|rows| OutputBatch { sink: 0, change: Change::Upsert, rows }).collect();
        Ok(OperatorCheckpoint { state: Vec::new(), output })
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        match state.is_empty() {
            true => Ok(()),
            false => Err(StageError::Halt(
                "there is stored state, but this query keeps none: it belongs to another one".into(),
            )),
        }
    }

    fn keys(&self) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn pending_bytes(&self) -> usize {
        self.bytes
    }

    fn changed_bytes(&self) -> usize {
        0
    }
}

/// The rows in few batches, in their order. Each batch of an output is written to the store for itself, and at low rates
/// they are small. Never all at once, which would take their room twice.
fn together(rows: Vec<RecordBatch>) -> Result<Vec<RecordBatch>, StageError> {
    let mut groups: Vec<Vec<RecordBatch>> = Vec::new();
    let mut room = 0;
    for rows in rows {
        let bytes = rows.get_array_memory_size();
        match groups.last_mut() {
            Some(group) if room > 0 => group.push(rows),
            _ => {
                groups.push(vec![rows]);
                room = JOINED_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    let join = |group: Vec<RecordBatch>| match group.as_slice() {
        [only] => Ok(only.clone()),
        several => concat_batches(&several[0].schema(), several).map_err(failed),
    };
    groups.into_iter().map(join).collect()
}

/// Leaves out every row that a later one replaces; the others keep the order in which they arrived.
fn last_of_each(rows: &[RecordBatch], key: &SinkKey) -> Result<Vec<RecordBatch>, StageError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let encoder = KeyEncoder::new(&key.schema).map_err(failed)?;
    let encoded = rows
        .iter()
        .map(|rows| {
            let columns: Vec<_> = key.columns.iter().map(|column| Arc::clone(rows.column(*column))).collect();
            encoder.encode(&columns)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for (batch, keys) in encoded.iter().enumerate().rev() {
        let Some(keys) = keys else { continue };
        for row in (0..keys.num_rows()).rev() {
            if seen.insert(keys.row(row).data()) {
                kept.push((batch, row));
            }
        }
    }
    kept.reverse();
    let batches: Vec<_> = rows.iter().collect();
    Ok(vec![interleave_record_batch(&batches, &kept).map_err(failed)?])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn rows_of_many_small_batches_are_one_output_in_their_order() {
        let mut operator = PassThrough::new(None);
        for number in 0..100 {
            let column = Arc::new(Int64Array::from_iter_values(number * 3..number * 3 + 3));
            operator.apply(vec![RecordBatch::try_from_iter([("n", column as _)]).unwrap()], None).unwrap();
        }
        let output = operator.checkpoint().unwrap().output;
        assert_eq!(output.len(), 1);
        assert!(output[0].rows.column(0).as_primitive::<Int64Type>().values().iter().copied().eq(0..300));
        assert!(operator.checkpoint().unwrap().output.is_empty());
        assert_eq!(operator.pending_bytes(), 0);
    }

    #[test]
    fn rows_that_go_nowhere_are_counted_and_take_no_room() {
        let mut operator = PassThrough::discarding();
        for number in 0..100 {
            let column = Arc::new(Int64Array::from_iter_values(0..number));
            operator.apply(vec![RecordBatch::try_from_iter([("n", column as _)]).unwrap()], None).unwrap();
        }
        assert_eq!(operator.pending_bytes(), 0);
        let output = operator.checkpoint().unwrap().output;
        assert_eq!(output.iter().map(|batch| batch.rows.num_rows()).sum::<usize>(), 99 * 100 / 2);
    }
}
