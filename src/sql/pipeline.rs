//! The steps that rows go through one by one: filters and projections, evaluated by DataFusion on whole batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{cast, filter, filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, NegativeExpr, lit};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use super::digits::Digits;
use super::ranking::closed::Ranks;

/// Builds physical expressions.
pub(super) fn physical(
    expr: &Expr,
    input: &DFSchema,
    state: &SessionState,
) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    let expr = create_physical_expr(expr, input, state.execution_props(), &PhysicalPlanningContext::default())?;
    exact(expr, input.as_arrow())
}

/// The same expression, which fails where a number does not fit its type. DataFusion's arithmetic wraps around.
pub(super) fn exact(expr: Arc<dyn PhysicalExpr>, input: &Schema) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    let exact = expr.transform_up(|expr| {
        let (left, operator, right) = match (expr.downcast_ref::<BinaryExpr>(), expr.downcast_ref::<NegativeExpr>()) {
            (Some(binary), _) => (Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right())),
            (_, Some(negative)) => match negative.arg().data_type(input) {
                Ok(data_type) if data_type.is_integer() => {
                    (lit(ScalarValue::new_zero(&data_type)?), Operator::Minus, Arc::clone(negative.arg()))
                }
                _ => return Ok(Transformed::no(expr)),
            },
            _ => return Ok(Transformed::no(expr)),
        };
        let exact: Arc<dyn PhysicalExpr> = match operator {
            Operator::Plus | Operator::Minus | Operator::Multiply => {
                Arc::new(BinaryExpr::new(left, operator, right).with_fail_on_overflow(true))
            }
            Operator::Divide => expr,
            _ => return Ok(Transformed::no(expr)),
        };
        Ok(Transformed::yes(match Digits::may_exceed(&exact.data_type(input)?) {
            true => Arc::new(Digits::of(exact)),
            false => exact,
        }))
    })?;
    Ok(exact.data)
}

/// One step.
#[derive(Clone, Debug)]
enum Step {
    /// Keeps the rows of which the condition is true.
    Filter(Arc<dyn PhysicalExpr>),
    /// Leaves rows as they are, but fails where this cannot be computed.
    Check(Vec<Arc<dyn PhysicalExpr>>),
    /// Makes new columns.
    Project(Vec<Arc<dyn PhysicalExpr>>, SchemaRef),
    /// Numbers the rows, of which those of one partition are all there.
    Rank(Arc<Ranks>),
}

/// Steps in the order in which they are done.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipeline {
    steps: Vec<Step>,
    filters: bool,
}

/// What is left of a batch.
pub(super) struct Passed {
    /// The rows.
    pub(super) rows: RecordBatch,
    /// Which rows of the input they were; `None`: all.
    pub(super) origin: Option<UInt32Array>,
}

impl Passed {
    /// Which row of the input a row was.
    pub(super) fn origin(&self, row: usize) -> usize {
        match &self.origin {
            Some(origin) => origin.value(row) as usize,
            None => row,
        }
    }
}

impl Pipeline {
    /// Adds a filter.
    pub(super) fn filter(&mut self, condition: Arc<dyn PhysicalExpr>) {
        self.filters = true;
        self.steps.push(Step::Filter(condition));
    }

    /// Adds what must be possible to compute of every row.
    pub(super) fn check(&mut self, computed: Vec<Arc<dyn PhysicalExpr>>) {
        if !computed.is_empty() {
            self.steps.push(Step::Check(computed));
        }
    }

    /// Adds a projection; `schema` names and types the new columns.
    pub(super) fn project(&mut self, columns: Vec<Arc<dyn PhysicalExpr>>, schema: &Schema) {
        self.steps.push(Step::Project(columns, nullable(schema)));
    }

    /// Gives the columns other names, and the types that they have in the schema.
    pub(super) fn rename(&mut self, schema: &Schema) {
        let columns = schema.fields().iter().enumerate();
        let columns = columns.map(|(place, field)| Arc::new(Column::new(field.name(), place)) as Arc<dyn PhysicalExpr>);
        self.project(columns.collect(), schema);
    }

    /// Adds a numbering of rows.
    pub(super) fn rank(&mut self, ranks: Arc<Ranks>) {
        self.steps.push(Step::Rank(ranks));
    }

    /// The projections without the filters, of which only these columns are computed. All others are NULL.
    pub(super) fn only(&self, columns: &[usize]) -> Self {
        let mut wanted: BTreeSet<_> = columns.iter().copied().collect();
        let mut steps = Vec::new();
        for step in self.steps.iter().rev() {
            let Step::Project(columns, schema) = step else { continue };
            let columns: Vec<_> = columns
                .iter()
                .enumerate()
                .map(
                    |(number, column)| {
                        if wanted.contains(&number) { Arc::clone(column) } else { lit(ScalarValue::Null) }
                    },
                )
                .collect();
            wanted = columns.iter().flat_map(collect_columns).map(|column| column.index()).collect();
            steps.push(Step::Project(columns, Arc::clone(schema)));
        }
        steps.reverse();
        Self { steps, filters: false }
    }

    /// Whether rows can be left out.
    pub(super) fn has_filter(&self) -> bool {
        self.filters
    }

    /// Takes a batch through all steps. Fails if a single row fails.
    pub(super) fn run(&self, batch: &RecordBatch) -> Result<Passed, DataFusionError> {
        let mut rows = batch.clone();
        let mut origin: Option<UInt32Array> = None;
        for step in &self.steps {
            match step {
                Step::Filter(condition) => {
                    let keep = boolean(condition.as_ref(), &rows)?;
                    if keep.true_count() == rows.num_rows() {
                        continue;
                    }
                    let before = match origin.take() {
                        Some(origin) => origin,
                        None => UInt32Array::from_iter_values(0..rows.num_rows() as u32),
                    };
                    origin = Some(filter(&before, &keep)?.as_primitive().clone());
                    rows = filter_record_batch(&rows, &keep)?;
                }
                Step::Check(computed) => {
                    for expr in computed {
                        expr.evaluate(&rows)?;
                    }
                }
                Step::Rank(ranks) => rows = ranks.add(&rows)?,
                Step::Project(columns, schema) => {
                    let count = rows.num_rows();
                    let arrays = columns
                        .iter()
                        .zip(schema.fields())
                        .map(|(column, field)| conform(column.evaluate(&rows)?.into_array(count)?, field.data_type()))
                        .collect::<Result<Vec<_>, _>>()?;
                    rows = batch_of(schema, arrays, count)?;
                }
            }
        }
        Ok(Passed { rows, origin })
    }
}

/// A condition's value for each row; NULL is not true.
pub(super) fn boolean(condition: &dyn PhysicalExpr, rows: &RecordBatch) -> Result<BooleanArray, DataFusionError> {
    let value = condition.evaluate(rows)?.into_array(rows.num_rows())?;
    let Some(value) = value.as_boolean_opt() else {
        return Err(DataFusionError::Internal(format!("the condition {condition} is not BOOLEAN")));
    };
    Ok(if value.null_count() > 0 { prep_null_mask_filter(value) } else { value.clone() })
}

/// A batch of so many rows, which also holds when there are no columns.
pub(super) fn batch_of(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, DataFusionError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// An array in the type that was planned; kernels sometimes name nested fields otherwise.
pub(super) fn conform(array: ArrayRef, data_type: &DataType) -> Result<ArrayRef, DataFusionError> {
    Ok(if array.data_type() == data_type { array } else { cast(&array, data_type)? })
}

/// The schema with all columns nullable and without metadata, so that batches from different ways agree.
pub(super) fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| Field::new(field.name(), field.data_type().clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
