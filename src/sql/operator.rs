//! The second half of an aggregating query, on one shard: all groups of its keys.
//!
//! Between two checkpoints partial aggregates gather in a delta. A checkpoint merges the delta with the stored state of
//! just the groups that it touches, so its cost follows what changed. What it hands over is the whole new state of those
//! groups, their results, and the removal of groups that satisfied HAVING before and no longer do.
//!
//! Groups of windows that close leave the state with the same checkpoint ([`super::windows::closing`]); in append mode
//! their results are written then, and only then. What is stored of them lasts up to the watermark that closes them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::{cast, concat, concat_batches, filter_record_batch, not, take_arrays, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use strandline_actors::ports::{
    Change, KeyedOperator, OperatorCheckpoint, OutputBatch, StageError, StateDelta, StateTable as TableShape,
};
use strandline_actors::position::Watermark;

use super::aggregation::{Aggregation, Groups};
use super::bisect::evaluate;
use super::options::OutputMode;
use super::passthrough::SinkKey;
use super::pipeline::{Passed, Pipeline, batch_of, conform};
use super::ranking::{changes, top::Top};
use super::state::{EncodedKeys, Found, Rowset, StateTable};
use super::windows::closing::Closing;
use super::windows::sessions::{self, Sessions};
use super::windows::{Ends, Window};

mod lives;
pub(super) mod nested;

/// When at least one of so many groups has changed, all are written.
const REWRITTEN: usize = 2;
/// The column that says up to which watermark a row lasts.
const UNTIL: &str = "_until";
/// The column that says that a key is gone.
const DELETED: &str = "_deleted";

/// The second half of an aggregating query, as planned.
#[derive(Clone, Debug)]
pub(super) struct AggregatePlan {
    pub(super) aggregation: Aggregation,
    /// HAVING and the projections after the aggregation, down to the columns of the sink.
    pub(super) pipeline: Pipeline,
    pub(super) mode: OutputMode,
    /// The windows that close, or the lives of groups that end.
    pub(super) closing: Option<ClosingWindows>,
    pub(super) shown: Shown,
    /// The columns of the sink by which a row is removed.
    pub(super) key: Vec<usize>,
}

/// What of the groups the steps after the aggregation are given.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    /// Their keys and results.
    Groups {
        /// The columns, without the life of a group.
        schema: SchemaRef,
        /// A group is written when it comes, and never again.
        once: bool,
    },
    /// Their first rows, which the sink tells apart by its key.
    Rows(Arc<Top>, Option<SinkKey>),
}

/// Windows that close when the watermark has passed them.
#[derive(Clone, Debug)]
pub(super) struct ClosingWindows {
    pub(super) window: Window,
    /// The key column that holds a group's window.
    pub(super) column: usize,
}

impl ClosingWindows {
    /// The marks of groups. A window that cannot be expressed is never closed.
    fn marks(&self, keys: &[ArrayRef]) -> Result<Vec<i64>, StageError> {
        let marks = self.window.marks(&keys[self.column]).map_err(failed)?;
        Ok(marks.iter().map(|mark| mark.unwrap_or(i64::MAX)).collect())
    }

    /// The watermark that closes each group's window.
    fn until(&self, keys: &[ArrayRef]) -> Result<ArrayRef, StageError> {
        let mut ends = Ends::new(&self.window);
        Ok(Arc::new(Int64Array::from_iter_values(self.marks(keys)?.into_iter().map(|mark| ends.end(mark)))))
    }
}

impl AggregatePlan {
    /// The columns of a state delta. A row of state has a key, so the one group of everything gets a constant one.
    fn delta_schema(&self) -> SchemaRef {
        let key = self.whole().then(|| Arc::new(Field::new("everything", DataType::Boolean, false)));
        let fields = self.aggregation.partial.fields().iter().cloned();
        let until = self.closing.as_ref().map(|_| Arc::new(Field::new(UNTIL, DataType::Int64, false)));
        let deleted = Arc::new(Field::new(DELETED, DataType::Boolean, false));
        Arc::new(Schema::new(key.into_iter().chain(fields).chain(until).chain([deleted]).collect::<Vec<_>>()))
    }

    /// Whether a group is written only when it comes.
    pub(super) fn once(&self) -> bool {
        matches!(self.shown, Shown::Groups { once: true, .. })
    }

    /// Whether rows are removed from the sink that were written before.
    pub(super) fn retracts(&self) -> bool {
        let changes = match &self.shown {
            Shown::Groups { once, .. } => self.pipeline.has_filter() && !once,
            Shown::Rows(..) => true,
        };
        // In append mode nothing is written that is not final.
        changes && self.mode != OutputMode::Append
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
    closing: Option<Closing>,
    /// The open sessions, if the windows are sessions.
    sessions: Option<Sessions>,
    /// Keys and states of the groups whose windows close with this checkpoint, if they are to be written.
    closed: Vec<(Vec<ArrayRef>, Vec<ArrayRef>)>,
}

impl AggregateOperator {
    /// An operator without groups.
    pub(super) fn new(plan: Arc<AggregatePlan>) -> Self {
        let parts = Parts::new(&plan).map_err(|error| error.to_string());
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
        let key_columns = self.plan.aggregation.key_columns().max(1);
        vec![TableShape { key_columns, expires: self.plan.closing.is_some() }]
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError> {
        let plan = Arc::clone(&self.plan);
        let parts = self.parts()?;
        for partial in rows {
            parts.delta.merge(&plan.aggregation, &partial).map_err(failed)?;
        }
        if let Some(closing) = &mut parts.closing {
            closing.advance(watermark);
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
        if let Some(closing) = &mut parts.closing {
            closing.opened(parts.table.marks());
        }
        if let Some(sessions) = &mut parts.sessions {
            for rows in parts.table.all().map_err(failed)? {
                sessions.restore(&rows.keys).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn keys(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.table.len())
    }

    fn bytes(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| {
            parts.table.bytes() + parts.delta.size() + parts.sessions.as_ref().map_or(0, Sessions::bytes)
        })
    }

    fn pending_bytes(&self) -> usize {
        0
    }

    fn changed_bytes(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.delta.size())
    }
}

impl Parts {
    fn new(plan: &AggregatePlan) -> Result<Self, DataFusionError> {
        let aggregation = &plan.aggregation;
        Ok(Self {
            delta: aggregation.groups()?,
            table: StateTable::new(&aggregation.keys, &aggregation.partial)?,
            closing: plan.closing.as_ref().map(|_| Closing::new()),
            sessions: match plan.closing.as_ref().filter(|windows| windows.window.is_session()) {
                Some(windows) => Some(Sessions::new(sessions::Keys::new(&aggregation.keys, windows.column)?)),
                None => None,
            },
            closed: Vec::new(),
        })
    }

    fn checkpoint(&mut self, plan: &AggregatePlan) -> Result<OperatorCheckpoint, StageError> {
        let aggregation = &plan.aggregation;
        let mut checkpoint = OperatorCheckpoint::default();
        let mut gone = Vec::new();
        match (self.delta.len(), &self.sessions) {
            (0, _) => {}
            (_, None) => self.changed(plan, &mut checkpoint)?,
            (_, Some(_)) => {
                let delta = self.delta.take(aggregation).map_err(failed)?;
                self.changed_sessions(plan, &delta, &mut checkpoint, &mut gone)?;
            }
        }
        if let (Some(closing), Some(windows)) = (&mut self.closing, &plan.closing)
            && let Some(last) = closing.close(&windows.window)
        {
            let (keys, states) = self.table.take_windows(|mark| mark <= last).map_err(failed)?;
            if plan.mode == OutputMode::Append {
                self.closed.push((keys.clone(), states));
            }
            if let Some(sessions) = &mut self.sessions {
                sessions.close(&keys).map_err(failed)?;
            }
        }
        checkpoint.output.extend(plan.closed(std::mem::take(&mut self.closed))?);
        if let Some(tombstones) = plan.tombstones(&gone)? {
            checkpoint.state.insert(0, StateDelta { table: 0, rows: tombstones, whole: false });
        }
        if let OutputMode::Complete { limit } = plan.mode
            && !checkpoint.state.is_empty()
        {
            self.whole(plan, limit, &mut checkpoint)?;
        }
        Ok(checkpoint)
    }

    /// Takes changed groups into the state, and writes down what the sink and the store are to be told of them.
    fn changed(&mut self, plan: &AggregatePlan, checkpoint: &mut OperatorCheckpoint) -> Result<(), StageError> {
        let aggregation = &plan.aggregation;
        let groups = self.delta.len();
        let keys = &self.delta.take_keys(aggregation).map_err(failed)?;
        let mut encoded = self.table.encode(keys, groups).map_err(failed)?;
        let old = self.table.find(&mut encoded).map_err(failed)?;
        let states = self.delta.take_states(aggregation, &old.states, &old.numbers, groups).map_err(failed)?;
        if plan.mode != OutputMode::Append {
            checkpoint.output.extend(plan.output(keys, &old, &states, groups)?);
        }
        if self.closing.is_none() {
            let others = self.table.len() - old.numbers.len();
            checkpoint.state.extend(self.deltas(plan, plan.stored(keys, &states, groups)?, others, &encoded)?);
            return self.table.put(encoded, &states, Vec::new()).map_err(failed);
        }
        let mut stored = vec![false; groups];
        old.numbers.iter().for_each(|number| stored[*number] = true);
        self.settle(plan, Changed { keys, states: &states, stored: &stored, encoded }, checkpoint)
    }

    /// What is stored of changed rows that are not in the table yet: these rows, or with them the `others` in the table when
    /// these are not many more, since then nothing has to be merged with what is stored.
    fn deltas(
        &self,
        plan: &AggregatePlan,
        changed: RecordBatch,
        others: usize,
        found: &EncodedKeys,
    ) -> Result<Vec<StateDelta>, StageError> {
        let groups = changed.num_rows();
        let delta = |rows, whole| StateDelta { table: 0, rows, whole };
        if others == 0 || groups * REWRITTEN < groups + others {
            return Ok(vec![delta(changed, others == 0)]);
        }
        // The first of several ends what was stored, and the others come on top.
        let mut deltas = vec![delta(changed, true)];
        for Rowset { keys, states, rows } in self.table.others(found).map_err(failed)? {
            deltas.push(delta(plan.stored(&keys, &states, rows)?, false));
        }
        Ok(deltas)
    }

    /// Takes changed sessions into the state, and writes down what the sink and the store are to be told of them. The keys of
    /// those that went into others are put to those that are `gone`.
    fn changed_sessions(
        &mut self,
        plan: &AggregatePlan,
        delta: &RecordBatch,
        checkpoint: &mut OperatorCheckpoint,
        gone: &mut Vec<Vec<ArrayRef>>,
    ) -> Result<(), StageError> {
        let aggregation = &plan.aggregation;
        let (Some(sessions), Some(windows)) = (&mut self.sessions, &plan.closing) else { return Ok(()) };
        let partial = &delta.columns()[..aggregation.key_columns()];
        let met = sessions.meet(partial).map_err(failed)?;
        let of = |rows: &mut dyn Iterator<Item = (usize, (i64, i64))>| -> Result<Vec<ArrayRef>, StageError> {
            let (rows, bounds): (Vec<_>, Vec<_>) = rows.map(|(row, bounds)| (row as u32, bounds)).unzip();
            let mut keys = take_arrays(partial, &UInt32Array::from(rows), None).map_err(failed)?;
            keys[windows.column] = sessions::column(&bounds, partial[windows.column].data_type()).map_err(failed)?;
            Ok(keys)
        };
        let keys = of(&mut met.changed.iter().copied())?;
        let before = of(&mut met.before.iter().map(|(_, row, bounds)| (*row, *bounds)))?;
        let mut encoded = self.table.encode(&before, met.before.len()).map_err(failed)?;
        let old = self.table.find(&mut encoded).map_err(failed)?;
        if old.numbers.len() != met.before.len() {
            return Err(StageError::Failed("a session that is open has no state".into()));
        }
        let groups = met.changed.len();
        let mut merged = aggregation.states().map_err(failed)?;
        // These are of all groups, and so come first, as in `Groups::take_states`.
        merged.merge(aggregation.state_columns(delta), &met.numbers, groups).map_err(failed)?;
        if !met.before.is_empty() {
            let numbers: Vec<_> = met.before.iter().map(|(number, ..)| *number).collect();
            merged.merge(&old.states, &numbers, groups).map_err(failed)?;
        }
        let states = merged.take(&aggregation.partial).map_err(failed)?;
        if plan.mode != OutputMode::Append {
            checkpoint.output.extend(plan.lives(&met, &keys, &before, &old, &states)?);
        }

        // Those that keep their bounds are replaced, the others are gone.
        let mut stored = vec![false; groups];
        let mut grown = Vec::new();
        for (place, (number, _, bounds)) in met.before.iter().enumerate() {
            match *bounds == met.changed[*number].1 {
                true => stored[*number] = true,
                false => grown.push(place as u32),
            }
        }
        if !grown.is_empty() {
            let grown = take_arrays(&before, &UInt32Array::from(grown), None).map_err(failed)?;
            let encoded = self.table.encode(&grown, grown[0].len()).map_err(failed)?;
            self.table.remove(&encoded).map_err(failed)?;
            if let Some(closing) = &mut self.closing {
                closing.removed(windows.marks(&grown)?);
            }
            gone.push(grown);
        }
        let encoded = self.table.encode(&keys, groups).map_err(failed)?;
        self.settle(plan, Changed { keys: &keys, states: &states, stored: &stored, encoded }, checkpoint)
    }

    /// Puts changed groups into the state and into what is stored of it, apart from those whose windows close now.
    fn settle(
        &mut self,
        plan: &AggregatePlan,
        changed: Changed<'_>,
        checkpoint: &mut OperatorCheckpoint,
    ) -> Result<(), StageError> {
        let Changed { keys, states, stored, encoded } = changed;
        let groups = stored.len();
        let Some((closing, windows)) = self.closing.as_mut().zip(plan.closing.as_ref()) else { return Ok(()) };
        let marks = windows.marks(keys)?;
        let closes = closing.closing(&windows.window, &marks);
        if !closes.contains(&true) {
            closing.opened(marks.iter().zip(stored).filter(|(_, stored)| !**stored).map(|(mark, _)| *mark));
            checkpoint.state.push(StateDelta { table: 0, rows: plan.stored(keys, states, groups)?, whole: false });
            return self.table.put(encoded, states, marks).map_err(failed);
        }
        let pick = |wanted: &dyn Fn(usize) -> bool, columns: &[ArrayRef]| {
            let rows = UInt32Array::from_iter_values((0..groups as u32).filter(|row| wanted(*row as usize)));
            take_arrays(columns, &rows, None).map(|columns| (columns, rows.len())).map_err(failed)
        };
        let closing_now = |row: usize| closes[row];
        let (closed_keys, _) = pick(&closing_now, keys)?;
        if let Some(sessions) = &mut self.sessions {
            sessions.close(&closed_keys).map_err(failed)?;
        }
        if plan.mode == OutputMode::Append {
            self.closed.push((closed_keys, pick(&closing_now, states)?.0));
        }
        let (stored_keys, count) = pick(&|row| closes[row] && stored[row], keys)?;
        if count > 0 {
            let encoded = self.table.encode(&stored_keys, count).map_err(failed)?;
            self.table.remove(&encoded).map_err(failed)?;
            closing.removed((0..groups).filter(|row| closes[*row] && stored[*row]).map(|row| marks[row]));
        }
        let open = |row: usize| !closes[row];
        let (open_keys, count) = pick(&open, keys)?;
        if count > 0 {
            let states = pick(&open, states)?.0;
            closing.opened((0..groups).filter(|row| open(*row) && !stored[*row]).map(|row| marks[row]));
            checkpoint.state.push(StateDelta {
                table: 0,
                rows: plan.stored(&open_keys, &states, count)?,
                whole: false,
            });
            let encoded = self.table.encode(&open_keys, count).map_err(failed)?;
            let marks = (0..groups).filter(|row| open(*row)).map(|row| marks[row]).collect();
            self.table.put(encoded, &states, marks).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes all groups instead of those that changed.
    fn whole(&self, plan: &AggregatePlan, limit: usize, checkpoint: &mut OperatorCheckpoint) -> Result<(), StageError> {
        let pieces = self.table.all().map_err(failed)?.into_iter();
        let outputs = pieces.map(|Rowset { keys, states, rows }| plan.rows(&keys, &states, rows));
        let all: Vec<_> = outputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let rows: usize = all.iter().map(|output| output.rows.num_rows()).sum();
        if rows > limit {
            return Err(StageError::Halt(format!(
                "the result has {rows} rows on this shard, more than 'complete.limit' {limit}: complete mode, which writes \
                 all of them at each checkpoint, is for small results; raise the limit, or take 'output.mode' 'update'"
            )));
        }
        checkpoint.output.retain(|output| output.change == Change::Delete);
        checkpoint.output.extend(all);
        Ok(())
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
        let marks = plan.closing.as_ref().map_or(Ok(Vec::new()), |windows| windows.marks(keys))?;
        let states = &rest[..plan.aggregation.partial.fields().len() - plan.aggregation.key_columns()];
        self.table.put(encoded, states, marks).map_err(failed)
    }
}

/// A group whose row cannot be computed.
fn blamed(key: &[ArrayRef], group: usize, reason: &str) -> StageError {
    let key = key.iter().map(|column| {
        ArrayFormatter::try_new(column.as_ref(), &FormatOptions::new().with_null("NULL"))
            .map_or_else(|_| "?".to_owned(), |value| value.value(group).to_string())
    });
    StageError::Halt(format!(
        "the row of group ({}) {reason}. No single record is to blame, so none can be set aside; change the query so that \
         it yields NULL instead, with TRY_CAST or NULLIF, or has a wider type, as in sum(CAST(v AS DECIMAL(38, 0))). A \
         changed query does not fit the stored state: start it under another pipeline name, from the beginning",
        key.collect::<Vec<_>>().join(", ")
    ))
}

/// Changed groups, and which of them are stored already.
struct Changed<'a> {
    keys: &'a [ArrayRef],
    states: &'a [ArrayRef],
    stored: &'a [bool],
    encoded: EncodedKeys,
}

impl AggregatePlan {
    /// Changed groups as they are stored.
    fn stored(&self, keys: &[ArrayRef], states: &[ArrayRef], groups: usize) -> Result<RecordBatch, StageError> {
        let mut columns = keys.to_vec();
        if self.whole() {
            columns.push(Arc::new(BooleanArray::from(vec![true; groups])));
        }
        columns.extend(states.iter().cloned());
        columns.extend(self.closing.as_ref().map(|windows| windows.until(keys)).transpose()?);
        columns.push(Arc::new(BooleanArray::from(vec![false; groups])));
        batch_of(&self.delta_schema(), columns, groups).map_err(failed)
    }

    /// The removal of groups from what is stored, if there are any.
    fn tombstones(&self, gone: &[Vec<ArrayRef>]) -> Result<Option<RecordBatch>, StageError> {
        let schema = self.delta_schema();
        let batches = gone
            .iter()
            .map(|keys| {
                let groups = keys.first().map_or(0, |key| key.len());
                let mut columns = keys.clone();
                let states = &self.aggregation.partial.fields()[keys.len()..];
                columns.extend(states.iter().map(|field| new_null_array(field.data_type(), groups)));
                columns.extend(self.closing.as_ref().map(|windows| windows.until(keys)).transpose()?);
                columns.push(Arc::new(BooleanArray::from(vec![true; groups])));
                batch_of(&schema, columns, groups).map_err(failed)
            })
            .collect::<Result<Vec<_>, StageError>>()?;
        let tombstones = concat_batches(&schema, &batches).map_err(failed)?;
        Ok((tombstones.num_rows() > 0).then_some(tombstones))
    }

    /// The rows of groups for the sink.
    fn rows(&self, keys: &[ArrayRef], states: &[ArrayRef], groups: usize) -> Result<Option<OutputBatch>, StageError> {
        let rows = self.results(keys, states, groups)?.rows;
        if let Shown::Rows(_, key) = &self.shown {
            let output = changes::between(&rows.slice(0, 0), &rows, key.as_ref()).map_err(failed)?;
            return Ok(output.into_iter().next());
        }
        Ok((rows.num_rows() > 0).then_some(OutputBatch { sink: 0, change: Change::Upsert, rows }))
    }

    /// The rows of groups whose windows have just been closed, for the sink. Those of one window are all there.
    fn closed(&self, groups: Vec<(Vec<ArrayRef>, Vec<ArrayRef>)>) -> Result<Option<OutputBatch>, StageError> {
        let together = |parts: Vec<&Vec<ArrayRef>>| -> Result<Vec<ArrayRef>, StageError> {
            let columns = parts.first().map_or(0, |part| part.len());
            let column = |column: usize| {
                concat(&parts.iter().map(|part| part[column].as_ref()).collect::<Vec<_>>()).map_err(failed)
            };
            (0..columns).map(column).collect()
        };
        let keys = together(groups.iter().map(|(keys, _)| keys).collect())?;
        let states = together(groups.iter().map(|(_, states)| states).collect())?;
        match keys.first().map_or(0, |key| key.len()) {
            0 => Ok(None),
            groups => self.rows(&keys, &states, groups),
        }
    }

    /// What the sink is to be told of the changed groups.
    fn output(
        &self,
        keys: &[ArrayRef],
        old: &Found,
        states: &[ArrayRef],
        groups: usize,
    ) -> Result<Vec<OutputBatch>, StageError> {
        if self.once() {
            let mut new = vec![true; groups];
            old.numbers.iter().for_each(|number| new[*number] = false);
            let rows = UInt32Array::from_iter_values((0..groups as u32).filter(|row| new[*row as usize]));
            let pick = |columns: &[ArrayRef]| take_arrays(columns, &rows, None).map_err(failed);
            return Ok(self.rows(&pick(keys)?, &pick(states)?, rows.len())?.into_iter().collect());
        }
        let new = self.results(keys, states, groups)?;
        if let Shown::Rows(_, key) = &self.shown {
            let numbers = UInt32Array::from_iter_values(old.numbers.iter().map(|number| *number as u32));
            let keys = take_arrays(keys, &numbers, None).map_err(failed)?;
            let before = self.results(&keys, &old.states, old.numbers.len())?;
            return changes::between(&before.rows, &new.rows, key.as_ref()).map_err(failed);
        }
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
        // Some functions cannot say of which type no result is.
        if let (0, Shown::Groups { schema, .. }) = (groups, &self.shown) {
            return self.pipeline.run(&RecordBatch::new_empty(Arc::clone(schema))).map_err(failed);
        }
        let aggregation = &self.aggregation;
        let mut all = aggregation.states().map_err(failed)?;
        all.merge(states, &(0..groups).collect::<Vec<_>>(), groups).map_err(failed)?;
        let Ok(results) = all.evaluate() else { return Err(self.incomputable(keys, states, groups)) };
        let (rows, origins) = match (&self.shown, results.as_slice()) {
            (Shown::Rows(top, _), [first]) => {
                let (rows, origins) = top.expand(first, keys).map_err(failed)?;
                (rows, Some(origins))
            }
            (Shown::Rows(..), _) => return Err(StageError::Failed("a ranking has one result".into())),
            (Shown::Groups { schema, .. }, _) => (self.group_rows(keys, results, schema, groups)?, None),
        };
        let passed = self.pipeline.run(&rows).map_err(|_| self.unwritable(&rows))?;
        Ok(match origins {
            None => passed,
            Some(origins) => {
                let origin = (0..passed.rows.num_rows()).map(|row| origins.value(passed.origin(row)));
                let origin = Some(UInt32Array::from_iter_values(origin));
                Passed { rows: passed.rows, origin }
            }
        })
    }

    /// The keys and results of groups, without their lives.
    fn group_rows(
        &self,
        keys: &[ArrayRef],
        results: Vec<ArrayRef>,
        schema: &SchemaRef,
        groups: usize,
    ) -> Result<RecordBatch, StageError> {
        let visible = schema.fields().len() - results.len();
        let columns = keys.iter().take(visible).cloned().chain(results);
        let columns = columns
            .zip(schema.fields())
            .map(|(column, field)| conform(column, field.data_type()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        batch_of(schema, columns, groups).map_err(failed)
    }

    /// Names a group whose row cannot be computed.
    fn unwritable(&self, rows: &RecordBatch) -> StageError {
        let evaluated = evaluate(rows, |rows| self.pipeline.run(rows));
        let Some((row, reason)) = evaluated.failed.first() else {
            return StageError::Failed("the rows of the changed groups cannot be computed".into());
        };
        let shown = match &self.shown {
            Shown::Groups { schema, .. } => schema.fields().len().min(self.aggregation.key_columns()),
            Shown::Rows(top, _) => top.output.fields().len(),
        };
        blamed(&rows.columns()[..shown], *row, reason)
    }

    /// Names a group of which an aggregate cannot be computed.
    fn incomputable(&self, keys: &[ArrayRef], states: &[ArrayRef], groups: usize) -> StageError {
        let aggregation = &self.aggregation;
        let rows = match batch_of(&aggregation.partial, [keys, states].concat(), groups) {
            Ok(rows) => rows,
            Err(error) => return failed(error),
        };
        let evaluated = evaluate(&rows, |rows| {
            let mut some = aggregation.states()?;
            let numbers: Vec<_> = (0..rows.num_rows()).collect();
            some.merge(aggregation.state_columns(rows), &numbers, rows.num_rows())?;
            some.evaluate()
        });
        match evaluated.failed.first() {
            Some((group, reason)) => blamed(keys, *group, reason),
            None => StageError::Failed("the aggregates of the changed groups cannot be computed".into()),
        }
    }
}
