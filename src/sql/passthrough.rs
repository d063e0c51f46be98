//! The second half of a query without aggregation: rows wait, as they came, for the next checkpoint.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use strandline_actors::ports::{
    Change, KeyedOperator, OperatorCheckpoint, OutputBatch, StageError, StateDelta, StateTable,
};
use strandline_actors::position::Watermark;

use super::routing::KeyEncoder;

/// The columns of a sink's primary key.
#[derive(Clone, Debug)]
pub(super) struct SinkKey {
    pub(super) columns: Vec<usize>,
    pub(super) schema: SchemaRef,
}

/// The rows of one shard.
pub(super) struct PassThrough {
    key: Option<Arc<SinkKey>>,
    rows: Vec<RecordBatch>,
    bytes: usize,
}

impl PassThrough {
    /// An operator without rows; rows with the same key replace each other.
    pub(super) fn new(key: Option<Arc<SinkKey>>) -> Self {
        Self { key, rows: Vec::new(), bytes: 0 }
    }
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl KeyedOperator for PassThrough {
    fn tables(&self) -> Vec<StateTable> {
        Vec::new()
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, _watermark: Watermark) -> Result<(), StageError> {
        self.bytes += rows.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
        self.rows.extend(rows);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let rows = match &self.key {
            Some(key) => last_of_each(&rows, key)?,
            None => rows,
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
