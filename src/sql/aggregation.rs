//! The aggregates of a query: how they are computed in parts and put together, by DataFusion's own accumulators except where
//! these depend on the order of rows ([`bounds`]) or overflow without a word ([`sums`]).
//!
//! Each half of a query aggregates into a [`Groups`]: the source stage from rows, the operator from partial states. The
//! columns of a partial aggregate are those of stored state: the group's key columns, then every aggregate's state.

mod bounds;
mod sums;
mod texts;

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Aggregate, EmitTo, Expr, ExprSchemable, GroupsAccumulator, SortExpr, Window};
use datafusion::physical_expr::aggregate::{AggregateFunctionExpr, LoweredAggregateBuilder};
use datafusion::physical_expr::{GroupsAccumulatorAdapter, PhysicalExpr};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::error::SqlError;
use super::pipeline::{batch_of, conform, nullable, physical};
use super::ranking::{self, top::Top};
use super::routing::canonical;
use texts::Texts;

/// What is computed of a group.
#[derive(Clone, Debug)]
enum Function {
    /// An aggregate of DataFusion.
    Aggregate(Arc<AggregateFunctionExpr>),
    /// Its first rows.
    Top(Arc<Top>),
}

impl Function {
    fn name(&self) -> &str {
        match self {
            Self::Aggregate(function) => function.name(),
            Self::Top(top) => top.numbering.name(),
        }
    }

    fn accumulator(&self) -> Result<Box<dyn GroupsAccumulator>, DataFusionError> {
        match self {
            Self::Aggregate(function) => accumulator(function),
            Self::Top(top) => top.accumulator(),
        }
    }
}

/// One aggregate.
#[derive(Clone, Debug)]
struct Call {
    function: Function,
    /// Its arguments in the columns of the prepared rows.
    arguments: std::ops::Range<usize>,
    /// Its FILTER in the columns of the prepared rows.
    filter: Option<usize>,
    /// Its state in the columns of the partial aggregate.
    state: std::ops::Range<usize>,
    /// The types in which the function takes its state.
    state_types: Vec<DataType>,
}

impl Call {
    /// Its arguments in prepared rows. In the middle of values DataFusion 55.2 compares those that have no order among
    /// themselves, such as a NaN with the sign of a negative number.
    fn arguments<'a>(&self, rows: &'a RecordBatch) -> Cow<'a, [ArrayRef]> {
        let arguments = &rows.columns()[self.arguments.clone()];
        match &self.function {
            Function::Aggregate(function) if function.fun().name() == "median" => {
                arguments.iter().map(canonical).collect::<Vec<_>>().into()
            }
            _ => arguments.into(),
        }
    }
}

/// The aggregates of a query and the columns around them.
#[derive(Clone, Debug)]
pub(super) struct Aggregation {
    /// The key columns of a group.
    pub(super) keys: SchemaRef,
    /// Key columns and state: a partial aggregate, and a row of stored state.
    pub(super) partial: SchemaRef,
    /// Key columns and results.
    pub(super) result: SchemaRef,
    calls: Vec<Call>,
}

/// What rows have to be made into before they are aggregated: group keys, then arguments and filters.
pub(super) struct Preparation {
    pub(super) columns: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) schema: SchemaRef,
}

impl Aggregation {
    /// Makes the aggregates of a planned node.
    pub(super) fn new(node: &Aggregate, state: &SessionState) -> Result<(Self, Preparation), DataFusionError> {
        let input: &DFSchema = node.input.schema();
        let mut columns = Vec::new();
        let mut fields = Vec::new();
        for (number, group) in node.group_expr.iter().enumerate() {
            columns.push(physical(group, input, state)?);
            fields.push(Field::new(format!("k{number}"), stored(node.schema.field(number).data_type()), true));
        }
        let keys = Arc::new(Schema::new(fields.clone()));
        let mut partial = fields.clone();
        let mut calls = Vec::new();
        for call in &node.aggr_expr {
            let context = PhysicalPlanningContext::default();
            let lowered =
                LoweredAggregateBuilder::new(call, input, input.as_arrow(), state.execution_props(), &context)
                    .build()?;
            let first = columns.len();
            for argument in lowered.aggregate.expressions() {
                fields.push(Field::new(format!("a{}", columns.len()), argument.data_type(input.as_arrow())?, true));
                columns.push(argument);
            }
            let arguments = first..columns.len();
            let filter = lowered.filter.map(|filter| {
                fields.push(Field::new(format!("f{}", columns.len()), DataType::Boolean, true));
                columns.push(filter);
                columns.len() - 1
            });
            let first = partial.len();
            let mut state_types = Vec::new();
            computable(&lowered.aggregate)?;
            let parts: Vec<_> = match sums::state_types(&lowered.aggregate)? {
                Some(wide) => wide,
                None => lowered.aggregate.state_fields()?.iter().map(|part| part.data_type().clone()).collect(),
            };
            for part in parts {
                partial.push(Field::new(format!("s{}", partial.len()), stored(&part), true));
                state_types.push(part);
            }
            let state = first..partial.len();
            calls.push(Call {
                function: Function::Aggregate(lowered.aggregate),
                arguments,
                filter,
                state,
                state_types,
            });
        }
        let aggregation =
            Self { keys, partial: Arc::new(Schema::new(partial)), result: nullable(node.schema.as_arrow()), calls };
        Ok((aggregation, Preparation { columns, schema: Arc::new(Schema::new(fields)) }))
    }

    /// The first rows of each group of a planned ranking, of which so many can pass what follows.
    pub(super) fn ranked(
        node: &Window,
        limit: usize,
        state: &SessionState,
    ) -> Result<(Self, Preparation, Arc<Top>), SqlError> {
        let input: &DFSchema = node.input.schema();
        let (call, numbering) = ranking::call(node)?;
        let mut columns = Vec::new();
        let mut fields = Vec::new();
        for (number, group) in call.params.partition_by.iter().enumerate() {
            columns.push(physical(group, input, state)?);
            fields.push(Field::new(format!("k{number}"), stored(&group.get_type(input)?), true));
        }
        let keys = Arc::new(Schema::new(fields.clone()));
        let order = call.params.order_by.iter().map(|sort| &sort.expr);
        let rows: Vec<_> = input.iter().map(|(qualifier, field)| Expr::Column((qualifier, field).into())).collect();
        let mut kept = Vec::new();
        let first = columns.len();
        for expr in order.chain(&rows) {
            let field = Field::new(format!("a{}", columns.len()), stored(&expr.get_type(input)?), true);
            columns.push(physical(expr, input, state)?);
            kept.push(field.clone());
            fields.push(field);
        }
        let sorted = |sort: &SortExpr| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
        let top = Arc::new(Top {
            numbering,
            limit,
            options: call.params.order_by.iter().map(sorted).collect(),
            fields: kept.into(),
            window: ranking::window::answered(node, &call.params.partition_by),
            output: nullable(node.schema.as_arrow()),
        });
        let state_type = top.state_type();
        let call = Call {
            function: Function::Top(Arc::clone(&top)),
            arguments: first..columns.len(),
            filter: None,
            state: keys.fields().len()..keys.fields().len() + 1,
            state_types: vec![state_type.clone()],
        };
        let state = Arc::new(Field::new("rows", state_type, true));
        let partial: Vec<_> = keys.fields().iter().cloned().chain([state]).collect();
        let partial = Arc::new(Schema::new(partial));
        let aggregation = Self { keys, result: Arc::clone(&partial), partial, calls: vec![call] };
        Ok((aggregation, Preparation { columns, schema: Arc::new(Schema::new(fields)) }, top))
    }

    /// The same aggregates with one more key column, behind the others.
    pub(super) fn with_key(&self, name: &str, data_type: DataType) -> Self {
        let keys = self.key_columns();
        let added = |schema: &Schema| {
            let mut fields: Vec<_> = schema.fields().to_vec();
            fields.insert(keys, Arc::new(Field::new(name, data_type.clone(), true)));
            Arc::new(Schema::new(fields))
        };
        let later = |range: &std::ops::Range<usize>| range.start + 1..range.end + 1;
        let calls = self.calls.iter().map(|call| Call {
            arguments: later(&call.arguments),
            filter: call.filter.map(|column| column + 1),
            state: later(&call.state),
            ..call.clone()
        });
        Self {
            keys: added(&self.keys),
            partial: added(&self.partial),
            result: added(&self.result),
            calls: calls.collect(),
        }
    }

    /// The number of key columns.
    pub(super) fn key_columns(&self) -> usize {
        self.keys.fields().len()
    }

    /// No groups yet.
    pub(super) fn groups(&self) -> Result<Groups, DataFusionError> {
        Ok(Groups { keys: Keys::new(&self.keys)?, states: self.states()?, numbers: Vec::new() })
    }

    /// Accumulators of all aggregates without groups of their own: the caller numbers the groups.
    pub(super) fn states(&self) -> Result<States, DataFusionError> {
        let accumulators = self.calls.iter().map(|call| call.function.accumulator()).collect::<Result<_, _>>()?;
        Ok(States { calls: self.calls.clone(), accumulators })
    }

    /// Whether it costs little to make each row by itself into a partial aggregate. Of most other functions the state of a
    /// row is a list of its own, and DataFusion 55.2 cannot do it for `percentile_cont`.
    pub(super) fn single_rows(&self) -> bool {
        let plain = |call: &Call| {
            let Function::Aggregate(function) = &call.function else { return false };
            let known = matches!(function.fun().name(), "count" | "sum" | "avg" | "min" | "max");
            known && !function.is_distinct() && function.groups_accumulator_supported()
        };
        !self.keys.fields().is_empty() && self.calls.iter().all(plain)
    }

    /// The state columns of a partial aggregate, without its keys.
    pub(super) fn state_columns<'a>(&self, partial: &'a RecordBatch) -> &'a [ArrayRef] {
        &partial.columns()[self.key_columns()..]
    }
}

/// The type in which a value is kept. Views share buffers, so a small state would hold on to large ones.
fn stored(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// Refuses a function that DataFusion plans but cannot compute, such as some with DISTINCT.
fn computable(function: &Arc<AggregateFunctionExpr>) -> Result<(), DataFusionError> {
    let made = accumulator(function).and_then(|_| match function.groups_accumulator_supported() {
        true => Ok(()),
        // The accumulator for groups makes them later.
        false => function.create_accumulator().map(drop),
    });
    made.map_err(|error| {
        let why = error.strip_backtrace();
        DataFusionError::Plan(format!("{} is not supported, since it cannot be computed: {why}", function.name()))
    })
}

fn accumulator(function: &Arc<AggregateFunctionExpr>) -> Result<Box<dyn GroupsAccumulator>, DataFusionError> {
    if let Some(bounds) = bounds::accumulator(function)? {
        return Ok(bounds);
    }
    if let Some(average) = sums::average(function) {
        return Ok(average);
    }
    match sums::accumulator(function, || of_datafusion(function))? {
        Some(sums) => Ok(sums),
        None => of_datafusion(function),
    }
}

/// The values of lists in one column, and the group of each: what came as the state of several groups.
pub(super) fn unnested(lists: &ListArray, groups: impl IntoIterator<Item = usize>) -> (ArrayRef, Vec<usize>) {
    let (from, until) = (lists.value_offsets()[0] as usize, lists.value_offsets()[lists.len()] as usize);
    let lengths = lists.offsets().lengths().zip(groups);
    let groups = lengths.flat_map(|(length, group)| std::iter::repeat_n(group, length)).collect();
    (lists.values().slice(from, until - from), groups)
}

fn of_datafusion(function: &Arc<AggregateFunctionExpr>) -> Result<Box<dyn GroupsAccumulator>, DataFusionError> {
    if function.groups_accumulator_supported() {
        return function.create_groups_accumulator();
    }
    let function = Arc::clone(function);
    Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
}

/// The keys that were seen, each with a number.
enum Keys {
    /// There are no key columns: one group, once there was a row.
    One {
        seen: bool,
    },
    Texts(Texts),
    Many(Box<dyn GroupValues>),
}

impl Keys {
    fn new(schema: &SchemaRef) -> Result<Self, DataFusionError> {
        let texts = match &schema.fields()[..] {
            [] => return Ok(Self::One { seen: false }),
            [only] => Texts::of(only.data_type()),
            _ => None,
        };
        match texts {
            Some(texts) => Ok(Self::Texts(texts)),
            None => Ok(Self::Many(new_group_values(Arc::clone(schema), &GroupOrdering::None)?)),
        }
    }

    fn intern(&mut self, columns: &[ArrayRef], rows: usize, numbers: &mut Vec<usize>) -> Result<(), DataFusionError> {
        match self {
            Self::One { seen } => {
                *seen |= rows > 0;
                numbers.clear();
                numbers.resize(rows, 0);
                Ok(())
            }
            Self::Texts(texts) => texts.intern(&columns[0], numbers),
            Self::Many(values) => {
                let columns: Vec<_> = columns.iter().map(canonical).collect();
                values.intern(&columns, numbers)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::One { seen } => usize::from(*seen),
            Self::Texts(texts) => texts.len(),
            Self::Many(values) => values.len(),
        }
    }

    fn take(&mut self) -> Result<Vec<ArrayRef>, DataFusionError> {
        match self {
            Self::One { seen } => {
                *seen = false;
                Ok(Vec::new())
            }
            Self::Texts(texts) => Ok(vec![texts.take()?]),
            Self::Many(values) => {
                let rows = values.len();
                let keys = values.emit(EmitTo::All)?;
                // Not all kinds of group values forget by themselves what they gave out.
                values.clear_shrink(rows);
                Ok(keys)
            }
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::One { .. } => 0,
            Self::Texts(texts) => texts.size(),
            Self::Many(values) => values.size(),
        }
    }
}

/// Accumulators of all aggregates of a query, for groups that the caller numbers.
pub(super) struct States {
    calls: Vec<Call>,
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
}

impl States {
    fn update(&mut self, rows: &RecordBatch, numbers: &[usize], groups: usize) -> Result<(), DataFusionError> {
        for (call, accumulator) in self.calls.iter().zip(&mut self.accumulators) {
            let filter = call.filter.map(|column| rows.column(column).as_boolean());
            accumulator.update_batch(&call.arguments(rows), numbers, filter, groups)?;
        }
        Ok(())
    }

    /// The state columns of every row by itself.
    fn single(&self, rows: &RecordBatch, schema: &Schema) -> Result<Vec<ArrayRef>, DataFusionError> {
        let mut columns = Vec::new();
        for (call, accumulator) in self.calls.iter().zip(&self.accumulators) {
            let filter = call.filter.map(|column| rows.column(column).as_boolean());
            for (part, field) in
                accumulator.convert_to_state(&call.arguments(rows), filter)?.into_iter().zip(call.state.clone())
            {
                columns.push(conform(part, schema.field(field).data_type())?);
            }
        }
        Ok(columns)
    }

    /// Adds the state columns of partial aggregates.
    pub(super) fn merge(
        &mut self,
        states: &[ArrayRef],
        numbers: &[usize],
        groups: usize,
    ) -> Result<(), DataFusionError> {
        let keys = self.calls.first().map_or(0, |call| call.state.start);
        for (call, accumulator) in self.calls.iter().zip(&mut self.accumulators) {
            let columns = &states[call.state.start - keys..call.state.end - keys];
            let columns = columns
                .iter()
                .zip(&call.state_types)
                .map(|(column, data_type)| conform(Arc::clone(column), data_type))
                .collect::<Result<Vec<_>, _>>()?;
            accumulator.merge_batch(&columns, numbers, groups)?;
        }
        Ok(())
    }

    /// Takes the state columns of all groups out.
    pub(super) fn take(&mut self, schema: &Schema) -> Result<Vec<ArrayRef>, DataFusionError> {
        let mut columns = Vec::new();
        for (call, accumulator) in self.calls.iter().zip(&mut self.accumulators) {
            let parts = accumulator.state(EmitTo::All)?;
            if parts.len() != call.state.len() {
                return Err(DataFusionError::Internal(format!(
                    "{} has another state than planned",
                    call.function.name()
                )));
            }
            for (part, field) in parts.into_iter().zip(call.state.clone()) {
                columns.push(conform(part, schema.field(field).data_type())?);
            }
        }
        Ok(columns)
    }

    /// Takes the results of all groups out.
    pub(super) fn evaluate(&mut self) -> Result<Vec<ArrayRef>, DataFusionError> {
        self.accumulators.iter_mut().map(|accumulator| accumulator.evaluate(EmitTo::All)).collect()
    }

    fn size(&self) -> usize {
        self.accumulators.iter().map(|accumulator| accumulator.size()).sum()
    }
}

/// Groups that are being aggregated.
pub(super) struct Groups {
    keys: Keys,
    states: States,
    numbers: Vec<usize>,
}

impl Groups {
    /// Adds prepared rows; answers the number of each row's group.
    pub(super) fn update(
        &mut self,
        aggregation: &Aggregation,
        rows: &RecordBatch,
    ) -> Result<&[usize], DataFusionError> {
        let keys = &rows.columns()[..aggregation.key_columns()];
        self.keys.intern(keys, rows.num_rows(), &mut self.numbers)?;
        self.states.update(rows, &self.numbers, self.keys.len())?;
        Ok(&self.numbers)
    }

    /// Every prepared row as a partial aggregate of its own. No group is added.
    pub(super) fn single(&self, aggregation: &Aggregation, rows: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
        let mut columns = Vec::with_capacity(aggregation.partial.fields().len());
        for (key, field) in rows.columns().iter().zip(aggregation.keys.fields()) {
            columns.push(conform(canonical(key), field.data_type())?);
        }
        columns.extend(self.states.single(rows, &aggregation.partial)?);
        batch_of(&aggregation.partial, columns, rows.num_rows())
    }

    /// Adds partial aggregates.
    pub(super) fn merge(&mut self, aggregation: &Aggregation, partial: &RecordBatch) -> Result<(), DataFusionError> {
        let (keys, states) = partial.columns().split_at(aggregation.key_columns());
        self.keys.intern(keys, partial.num_rows(), &mut self.numbers)?;
        self.states.merge(states, &self.numbers, self.keys.len())
    }

    /// The number of groups.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Takes all groups out as one partial aggregate.
    pub(super) fn take(&mut self, aggregation: &Aggregation) -> Result<RecordBatch, DataFusionError> {
        let groups = self.len();
        if groups == 0 {
            return Ok(RecordBatch::new_empty(Arc::clone(&aggregation.partial)));
        }
        let mut columns = self.take_keys(aggregation)?;
        columns.extend(self.states.take(&aggregation.partial)?);
        batch_of(&aggregation.partial, columns, groups)
    }

    /// Takes the key columns of all groups out. Their states have to be taken next.
    pub(super) fn take_keys(&mut self, aggregation: &Aggregation) -> Result<Vec<ArrayRef>, DataFusionError> {
        let keys = self.keys.take()?.into_iter().zip(aggregation.keys.fields());
        keys.map(|(key, field)| conform(key, field.data_type())).collect()
    }

    /// Takes the state columns of all `groups` out, whose keys were taken, with what some of them, by their `numbers`, had
    /// `before`. That is added to the others, which all groups have: where accumulators are given no NULL they take it that
    /// every group so far has a value.
    pub(super) fn take_states(
        &mut self,
        aggregation: &Aggregation,
        before: &[ArrayRef],
        numbers: &[usize],
        groups: usize,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        if !numbers.is_empty() {
            self.states.merge(before, numbers, groups)?;
        }
        let mut columns = self.states.take(&aggregation.partial)?;
        // Some accumulators keep the room that all of the earlier state took.
        self.states = aggregation.states()?;
        // They have grown with the groups, and rows of state are kept for long.
        columns.iter_mut().filter_map(Arc::get_mut).for_each(|column| column.shrink_to_fit());
        Ok(columns)
    }

    /// About how much memory the groups take.
    pub(super) fn size(&self) -> usize {
        self.keys.size() + self.states.size()
    }
}

/// Refuses group keys that cannot be told apart by their encoding.
pub(super) fn check_keys(groups: &[Expr], types: &[DataType]) -> Result<(), String> {
    for (expr, data_type) in groups.iter().zip(types) {
        if !groupable(data_type) {
            return Err(format!("GROUP BY {expr} is not supported: {data_type} values cannot be keys"));
        }
    }
    Ok(())
}

fn groupable(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            groupable(field.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|field| groupable(field.data_type())),
        DataType::Null | DataType::Dictionary(..) | DataType::RunEndEncoded(..) | DataType::Map(..) => false,
        DataType::Union(..) | DataType::ListView(_) | DataType::LargeListView(_) => false,
        _ => true,
    }
}
