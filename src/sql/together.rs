//! The operators of several INSERTs as one, so that they move together: in one checkpoint, under one vector.
//!
//! Each has state tables and a sink of its own, which are numbered one after the other, and is given the rows that carry
//! its number. What each of them does is what it would do alone.

use arrow::array::RecordBatch;
use strandline_actors::ports::{KeyedOperator, OperatorCheckpoint, StageError, StateDelta, StateTable};
use strandline_actors::position::Watermark;

use super::lanes::INSERT;

/// The operators of one shard, by the numbers of their INSERTs.
pub(super) struct Together {
    operators: Vec<Box<dyn KeyedOperator>>,
}

impl Together {
    pub(super) fn new(operators: Vec<Box<dyn KeyedOperator>>) -> Self {
        Self { operators }
    }

    /// The number of the first state table of each.
    fn first_tables(&self) -> Vec<usize> {
        let sizes = self.operators.iter().map(|operator| operator.tables().len());
        sizes.scan(0, |first, size| Some(std::mem::replace(first, *first + size))).collect()
    }

    fn sum(&self, of: fn(&dyn KeyedOperator) -> usize) -> usize {
        self.operators.iter().map(|operator| of(operator.as_ref())).sum()
    }
}

/// The number that rows carry, and the rows without it.
fn untagged(rows: &RecordBatch) -> Result<(usize, RecordBatch), StageError> {
    let schema = rows.schema();
    let number = schema.metadata().get(INSERT).and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| StageError::Failed("rows do not say for which INSERT they are".into()))?;
    let plain = schema.as_ref().clone().with_metadata(Default::default());
    let rows = RecordBatch::try_new_with_options(
        plain.into(),
        rows.columns().to_vec(),
        &arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.num_rows())),
    );
    Ok((number, rows.map_err(|error| StageError::Failed(error.to_string()))?))
}

impl KeyedOperator for Together {
    fn tables(&self) -> Vec<StateTable> {
        self.operators.iter().flat_map(|operator| operator.tables()).collect()
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError> {
        let mut of_each = vec![Vec::new(); self.operators.len()];
        for rows in &rows {
            let (number, rows) = untagged(rows)?;
            let of_one = of_each.get_mut(number);
            of_one
                .ok_or_else(|| StageError::Failed(format!("rows are for INSERT {number}, which is not there")))?
                .push(rows);
        }
        let mut operators = self.operators.iter_mut().zip(of_each);
        operators.try_for_each(|(operator, rows)| operator.apply(rows, watermark))
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let mut whole = OperatorCheckpoint::default();
        let first_tables = self.first_tables();
        for (number, (operator, first_table)) in self.operators.iter_mut().zip(first_tables).enumerate() {
            let OperatorCheckpoint { state, output } = operator.checkpoint()?;
            whole.state.extend(state.into_iter().map(|delta| StateDelta { table: first_table + delta.table, ..delta }));
            whole.output.extend(output.into_iter().map(|mut output| {
                output.sink = number;
                output
            }));
        }
        Ok(whole)
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        let tables = self.tables().len();
        if let Some(delta) = state.iter().find(|delta| delta.table >= tables) {
            return Err(StageError::Halt(format!(
                "there is stored state in table {}, but the queries keep {tables} tables: it belongs to others",
                delta.table
            )));
        }
        let first_tables = self.first_tables();
        for (operator, first) in self.operators.iter_mut().zip(first_tables) {
            let own = first..first + operator.tables().len();
            let of_one = state.iter().filter(|delta| own.contains(&delta.table));
            let of_one = of_one.map(|delta| StateDelta { table: delta.table - first, ..delta.clone() });
            operator.restore(of_one.collect())?;
        }
        Ok(())
    }

    fn keys(&self) -> usize {
        self.sum(|operator| operator.keys())
    }

    fn bytes(&self) -> usize {
        self.sum(|operator| operator.bytes())
    }

    fn pending_bytes(&self) -> usize {
        self.sum(|operator| operator.pending_bytes())
    }

    fn changed_bytes(&self) -> usize {
        self.sum(|operator| operator.changed_bytes())
    }
}
