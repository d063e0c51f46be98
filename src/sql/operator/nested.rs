//! Two aggregations on one shard: what the windows of the first give when they are closed goes into the second.
//!
//! Each checkpoint first closes the windows of the first that the watermark has passed, then takes their rows into the second,
//! and then closes the windows of the second. All of it is in one checkpoint, so a row of the first is in the second exactly
//! once, whatever crashes; and since no more than the watermark decides, it does not matter when checkpoints are taken.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::compute::{filter_record_batch, is_not_null, is_null};
use strandline_actors::ports::{KeyedOperator, OperatorCheckpoint, StageError, StateDelta, StateTable as TableShape};
use strandline_actors::position::Watermark;

use super::{AggregateOperator, AggregatePlan, failed};
use crate::sql::aggregation::Groups;
use crate::sql::windows::sliding::Sliding;

/// Two aggregations as planned.
#[derive(Clone, Debug)]
pub(in crate::sql) struct NestedPlan {
    /// The first, down to the rows that the second aggregates.
    pub(in crate::sql) first: Arc<AggregatePlan>,
    pub(in crate::sql) second: Arc<AggregatePlan>,
    /// If a row can be in several windows of the second.
    pub(in crate::sql) sliding: Option<Sliding>,
}

/// Two aggregations on one shard.
pub(in crate::sql) struct NestedOperator {
    plan: Arc<NestedPlan>,
    first: AggregateOperator,
    second: AggregateOperator,
    /// Runs of windows that rows share.
    shared: Option<Result<Groups, String>>,
}

impl NestedOperator {
    /// An operator without groups.
    pub(in crate::sql) fn new(plan: Arc<NestedPlan>) -> Self {
        let shared = plan.sliding.as_ref().map(|sliding| sliding.shared.groups().map_err(|error| error.to_string()));
        let (first, second) = (Arc::clone(&plan.first), Arc::clone(&plan.second));
        Self { plan, first: AggregateOperator::new(first), second: AggregateOperator::new(second), shared }
    }

    /// Takes rows of closed windows into the second aggregation.
    fn add(&mut self, rows: &RecordBatch) -> Result<(), StageError> {
        let aggregation = &self.plan.second.aggregation;
        let delta = &mut self.second.parts()?.delta;
        let (Some(sliding), Some(shared)) = (&self.plan.sliding, &mut self.shared) else {
            return delta.update(aggregation, rows).map(drop).map_err(failed);
        };
        let shared = shared.as_mut().map_err(|error| StageError::Failed(error.clone()))?;
        let windows = rows.column(sliding.column);
        if windows.null_count() > 0 {
            // Their window cannot be expressed: they are in that of NULL, which is never closed.
            let none = is_null(windows).and_then(|none| filter_record_batch(rows, &none)).map_err(failed)?;
            delta.update(aggregation, &none).map_err(failed)?;
        }
        let some = is_not_null(windows).and_then(|some| filter_record_batch(rows, &some)).map_err(failed)?;
        let rows = sliding.prepare(&some, |_| i64::MIN).map_err(failed)?;
        shared.update(&sliding.shared, &rows).map_err(failed)?;
        let partial = shared.take(&sliding.shared).map_err(failed)?;
        let (partial, _) = sliding.spread(aggregation, &partial).map_err(failed)?;
        delta.merge(aggregation, &partial).map_err(failed)
    }
}

impl KeyedOperator for NestedOperator {
    fn tables(&self) -> Vec<TableShape> {
        [self.first.tables(), self.second.tables()].concat()
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError> {
        self.first.apply(rows, watermark)?;
        self.second.apply(Vec::new(), watermark)
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let first = self.first.checkpoint()?;
        for closed in &first.output {
            self.add(&closed.rows)?;
        }
        let mut second = self.second.checkpoint()?;
        second.state.iter_mut().for_each(|delta| delta.table = 1);
        second.state.splice(0..0, first.state);
        Ok(second)
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        let (first, mut second): (Vec<_>, Vec<_>) = state.into_iter().partition(|delta| delta.table == 0);
        if second.iter().any(|delta| delta.table != 1) {
            return Err(StageError::Halt(
                "the stored state has more tables than the query: it is of another one".into(),
            ));
        }
        second.iter_mut().for_each(|delta| delta.table = 0);
        self.first.restore(first)?;
        self.second.restore(second)
    }

    fn keys(&self) -> usize {
        self.first.keys() + self.second.keys()
    }

    fn bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }

    fn pending_bytes(&self) -> usize {
        0
    }

    fn changed_bytes(&self) -> usize {
        self.first.changed_bytes() + self.second.changed_bytes()
    }
}
