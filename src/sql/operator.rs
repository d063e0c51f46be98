//! The second half of an aggregating query, on one shard: all groups of its keys.
//!
//! Between two checkpoints partial aggregates gather in a delta. A checkpoint merges the delta with the stored state of
//! just the groups that it touches, so its cost follows what changed. What it hands over is the whole new state of those
//! groups, their results, and the removal of groups that satisfied HAVING before and no longer do.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, filter_record_batch, not, take_arrays, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use strandline_actors::ports::{
    Change, KeyedOperator, OperatorCheckpoint, OutputBatch, StageError, StateDelta, StateTable as TableShape,
};
use strandline_actors::position::Watermark;

use super::aggregation::{Aggregation, Groups};
use super::bisect::evaluate;
use super::pipeline::{Passed, Pipeline, batch_of, conform};
use super::state::{Found, StateTable};

/// The column that says that a key is gone.
const DELETED: &str = "_deleted";

/// The second half of an aggregating query, as planned.
#[derive(Clone, Debug)]
pub(super) struct AggregatePlan {
    pub(super) aggregation: Aggregation,
    /// HAVING and the projections after the aggregation, down to the columns of the sink.
    pub(super) pipeline: Pipeline,
}

impl AggregatePlan {
    /// The columns of a state delta. A row of state has a key, so the one group of everything gets a constant one.
    fn delta_schema(&self) -> SchemaRef {
        let key = self.whole().then(|| Arc::new(Field::new("everything", DataType::Boolean, false)));
        let fields = self.aggregation.partial.fields().iter().cloned();
        let deleted = Arc::new(Field::new(DELETED, DataType::Boolean, false));
        Arc::new(Schema::new(key.into_iter().chain(fields).chain([deleted]).collect::<Vec<_>>()))
    }

    /// Whether there are no key columns.
    fn whole(&self) -> bool {
        self.aggregation.key_columns() == 0
    }
}

/// The groups of one shard.
pub(super) struct AggregateOperator {
    plan: Arc<AggregatePlan>,
    parts: Result<Parts, String>,
}

struct Parts {
    delta: Groups,
    table: StateTable,
}

impl AggregateOperator {
    /// An operator without groups.
    pub(super) fn new(plan: Arc<AggregatePlan>) -> Self {
        let parts = Parts::new(&plan.aggregation).map_err(|error| error.to_string());
        Self { plan, parts }
    }

    fn parts(&mut self) -> Result<&mut Parts, StageError> {
        self.parts.as_mut().map_err(|error| StageError::Failed(error.clone()))
    }
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl KeyedOperator for AggregateOperator {
    fn tables(&self) -> Vec<TableShape> {
        vec![TableShape { key_columns: self.plan.aggregation.key_columns().max(1) }]
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, _watermark: Watermark) -> Result<(), StageError> {
        let plan = Arc::clone(&self.plan);
        let parts = self.parts()?;
        for partial in rows {
            parts.delta.merge(&plan.aggregation, &partial).map_err(failed)?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let plan = Arc::clone(&self.plan);
        self.parts()?.checkpoint(&plan)
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        let plan = Arc::clone(&self.plan);
        let parts = self.parts()?;
        for delta in state {
            parts.restore(&plan, &delta)?;
        }
        Ok(())
    }

    fn keys(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.table.len())
    }

    fn bytes(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.table.bytes() + parts.delta.size())
    }

    fn pending_bytes(&self) -> usize {
        0
    }

    fn changed_bytes(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.delta.size())
    }
}

impl Parts {
    fn new(aggregation: &Aggregation) -> Result<Self, DataFusionError> {
        Ok(Self { delta: aggregation.groups()?, table: StateTable::new(&aggregation.keys, &aggregation.partial)? })
    }

    fn checkpoint(&mut self, plan: &AggregatePlan) -> Result<OperatorCheckpoint, StageError> {
        let aggregation = &plan.aggregation;
        if self.delta.len() == 0 {
            return Ok(OperatorCheckpoint::default());
        }
        let delta = self.delta.take(aggregation).map_err(failed)?;
        let keys = &delta.columns()[..aggregation.key_columns()];
        let encoded = self.table.encode(keys, delta.num_rows()).map_err(failed)?;
        let old = self.table.find(&encoded).map_err(failed)?;
        let states = merge(aggregation, &old, &delta).map_err(failed)?;

        let output = plan.output(keys, &old, &states, delta.num_rows())?;
        let mut columns = keys.to_vec();
        if plan.whole() {
            columns.push(Arc::new(BooleanArray::from(vec![true; delta.num_rows()])));
        }
        columns.extend(states.iter().cloned());
        columns.push(Arc::new(BooleanArray::from(vec![false; delta.num_rows()])));
        let rows = batch_of(&plan.delta_schema(), columns, delta.num_rows()).map_err(failed)?;
        self.table.put(encoded, &states).map_err(failed)?;
        Ok(OperatorCheckpoint { state: vec![StateDelta { table: 0, rows }], output })
    }

    fn restore(&mut self, plan: &AggregatePlan, delta: &StateDelta) -> Result<(), StageError> {
        let schema = plan.delta_schema();
        let wanted: Vec<_> = schema.fields().iter().map(|field| field.data_type()).collect();
        let found = delta.rows.schema();
        let found: Vec<_> = found.fields().iter().map(|field| field.data_type()).collect();
        if delta.table != 0 || wanted.len() != found.len() {
            return Err(StageError::Halt(format!(
                "the stored state has {} columns in table {}, but the query keeps {} in table 0: it belongs to another \
                 query",
                found.len(),
                delta.table,
                wanted.len()
            )));
        }
        let mut columns = Vec::with_capacity(found.len());
        for (column, data_type) in delta.rows.columns().iter().zip(wanted) {
            // Only names inside nested types may differ; anything else would be another state.
            if !column.data_type().equals_datatype(data_type) {
                return Err(StageError::Halt(format!(
                    "the stored state holds {} where the query keeps {data_type}: it belongs to another query",
                    column.data_type()
                )));
            }
            columns.push(if column.data_type() == data_type {
                Arc::clone(column)
            } else {
                cast(column, data_type).map_err(failed)?
            });
        }
        let mut rows = batch_of(&schema, columns, delta.rows.num_rows()).map_err(failed)?;
        let deleted = rows.column(rows.num_columns() - 1).as_boolean().clone();
        if plan.whole() {
            rows.remove_column(0);
        }
        if deleted.true_count() == 0 {
            return self.put(plan, &rows);
        }
        let gone = filter_record_batch(&rows, &deleted).map_err(failed)?;
        let keys = &gone.columns()[..plan.aggregation.key_columns()];
        let encoded = self.table.encode(keys, gone.num_rows()).map_err(failed)?;
        self.table.remove(&encoded).map_err(failed)?;
        let here = not(&deleted).and_then(|here| filter_record_batch(&rows, &here)).map_err(failed)?;
        self.put(plan, &here)
    }

    fn put(&mut self, plan: &AggregatePlan, rows: &RecordBatch) -> Result<(), StageError> {
        let (keys, rest) = rows.columns().split_at(plan.aggregation.key_columns());
        let encoded = self.table.encode(keys, rows.num_rows()).map_err(failed)?;
        self.table.put(encoded, &rest[..rest.len() - 1]).map_err(failed)
    }
}

/// The new states of the groups of a delta.
fn merge(aggregation: &Aggregation, old: &Found, delta: &RecordBatch) -> Result<Vec<ArrayRef>, DataFusionError> {
    let groups = delta.num_rows();
    let states = aggregation.state_columns(delta);
    if old.numbers.is_empty() {
        return Ok(states.to_vec());
    }
    let mut merged = aggregation.states()?;
    merged.merge(&old.states, &old.numbers, groups)?;
    merged.merge(states, &(0..groups).collect::<Vec<_>>(), groups)?;
    merged.take(&aggregation.partial)
}

impl AggregatePlan {
    /// What the sink is to be told of the changed groups.
    fn output(
        &self,
        keys: &[ArrayRef],
        old: &Found,
        states: &[ArrayRef],
        groups: usize,
    ) -> Result<Vec<OutputBatch>, StageError> {
        let new = self.results(keys, states, groups)?;
        let mut output = Vec::new();
        if self.pipeline.has_filter() && !old.numbers.is_empty() {
            let mut written = vec![false; groups];
            (0..new.rows.num_rows()).for_each(|row| written[new.origin(row)] = true);
            let numbers = UInt32Array::from_iter_values(old.numbers.iter().map(|number| *number as u32));
            let keys = take_arrays(keys, &numbers, None).map_err(failed)?;
            let before = self.results(&keys, &old.states, old.numbers.len())?;
            let gone = (0..before.rows.num_rows()).filter(|row| !written[old.numbers[before.origin(*row)]]);
            let gone = UInt32Array::from_iter_values(gone.map(|row| row as u32));
            if !gone.is_empty() {
                let rows = take_record_batch(&before.rows, &gone).map_err(failed)?;
                output.push(OutputBatch { sink: 0, change: Change::Delete, rows });
            }
        }
        if new.rows.num_rows() > 0 {
            output.push(OutputBatch { sink: 0, change: Change::Upsert, rows: new.rows });
        }
        Ok(output)
    }

    /// The rows that groups make for the sink.
    fn results(&self, keys: &[ArrayRef], states: &[ArrayRef], groups: usize) -> Result<Passed, StageError> {
        let aggregation = &self.aggregation;
        let mut all = aggregation.states().map_err(failed)?;
        all.merge(states, &(0..groups).collect::<Vec<_>>(), groups).map_err(failed)?;
        let columns = keys.iter().cloned().chain(all.evaluate().map_err(failed)?);
        let columns = columns
            .zip(aggregation.result.fields())
            .map(|(column, field)| conform(column, field.data_type()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        let rows = batch_of(&aggregation.result, columns, groups).map_err(failed)?;
        self.pipeline.run(&rows).map_err(|_| self.unwritable(&rows))
    }

    /// Names a group whose row cannot be computed.
    fn unwritable(&self, rows: &RecordBatch) -> StageError {
        let evaluated = evaluate(rows, |rows| self.pipeline.run(rows));
        let Some((row, reason)) = evaluated.failed.first() else {
            return StageError::Failed("the rows of the changed groups cannot be computed".into());
        };
        let key = (0..self.aggregation.key_columns()).map(|column| {
            ArrayFormatter::try_new(rows.column(column).as_ref(), &FormatOptions::new().with_null("NULL"))
                .map_or_else(|_| "?".to_owned(), |value| value.value(*row).to_string())
        });
        StageError::Halt(format!(
            "the row of group ({}) {reason}. No single record is to blame, so none can be set aside; change the query \
             so that it yields NULL instead, with TRY_CAST, NULLIF or a wider column",
            key.collect::<Vec<_>>().join(", ")
        ))
    }
}
