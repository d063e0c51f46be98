//! Ranks over the groups of windows that have just been closed.
//!
//! All groups of a window are closed by one checkpoint, and where they are ranked against each other they are on one shard:
//! so the rows of each partition are all there at once, and their numbers are final.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::Column;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, SortExpr, Window};
use datafusion::physical_expr::PhysicalExpr;

use super::{Numbering, call};
use crate::catalog::SinkTable;
use crate::sql::error::SqlError;
use crate::sql::options::OutputMode;
use crate::sql::pipeline::{batch_of, conform, nullable, physical};
use crate::sql::routing::canonical;
use crate::sql::shape::{self, Grouping, Shape};
use crate::sql::windows;

/// The ranking of the groups of a query, over the columns that stand for groups and aggregates.
#[derive(Clone, Debug)]
pub(in crate::sql) struct RankedGroups {
    pub(in crate::sql) numbering: Numbering,
    /// How many of the conditions on groups decide which of them are ranked. The others come after it.
    pub(in crate::sql) before: usize,
    pub(in crate::sql) partition: Vec<Expr>,
    pub(in crate::sql) order: Vec<SortExpr>,
}

impl RankedGroups {
    /// The groups that rows of one partition have in common, their window apart.
    pub(in crate::sql) fn shared(&self, grouping: &Grouping) -> Vec<usize> {
        let window = grouping.window.as_ref().map(|(number, ..)| *number);
        let shared: BTreeSet<_> =
            self.partition.iter().filter_map(shape::group).filter(|group| Some(*group) != window).collect();
        shared.into_iter().collect()
    }

    /// Whether the primary key has the number of each row, and all of which the rows are numbered: then it tells them apart
    /// without the groups. They are final, so none is written under another number later.
    pub(in crate::sql) fn numbered_apart(
        &self,
        shape: &Shape,
        sink: &SinkTable,
        carried: impl Fn(&Expr) -> bool,
    ) -> bool {
        let is_number =
            |expr: &Expr| shape::is_rank(expr) || matches!(expr, Expr::Cast(cast) if shape::is_rank(&cast.expr));
        let has_number = shape.output.iter().any(|(name, expr)| sink.primary_key.contains(name) && is_number(expr));
        self.numbering == Numbering::RowNumber && has_number && self.partition.iter().all(carried)
    }

    /// Refuses ranks that would never be final.
    pub(in crate::sql) fn check(&self, grouping: &Grouping, mode: OutputMode) -> Result<(), SqlError> {
        let name = self.numbering.name().to_uppercase();
        let by_window = grouping.window.as_ref().is_some_and(|(number, window, _)| {
            !window.is_session()
                && self.partition.iter().flat_map(parts).any(|expr| {
                    let of = windows::Window::bound_of(expr).map_or(expr, |(_, of)| of);
                    shape::group(of) == Some(*number)
                })
        });
        if !by_window {
            return Err(SqlError::new(format!(
                "{name}() over the result of an aggregation ranks the groups of one window when it is closed, so GROUP BY \
                 needs window(...) or calendar_window(...), and PARTITION BY its start: otherwise each change would change \
                 the rank of every other group"
            )));
        }
        if mode != OutputMode::Append {
            return Err(SqlError::new(format!(
                "{name}() over the result of an aggregation is final only when the window is closed: set 'output.mode' \
                 'append' on the sink"
            )));
        }
        Ok(())
    }
}

/// Of a window as a whole its bounds, of which each tells windows apart.
fn parts(expr: &Expr) -> &[Expr] {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == "named_struct" => &call.args,
        expr => std::slice::from_ref(expr),
    }
}

/// Numbers rows.
#[derive(Clone, Debug)]
pub(in crate::sql) struct Ranks {
    numbering: Numbering,
    partition: Vec<Arc<dyn PhysicalExpr>>,
    order: Vec<(Arc<dyn PhysicalExpr>, SortOptions)>,
    /// The columns of the rows, then the number.
    output: SchemaRef,
}

impl Ranks {
    pub(in crate::sql) fn new(node: &Window, state: &SessionState) -> Result<Self, SqlError> {
        let (call, numbering) = call(node)?;
        let input = node.input.schema();
        let partition = call.params.partition_by.iter().map(|expr| physical(expr, input, state));
        let order = call.params.order_by.iter().map(|sort| {
            let options = SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
            Ok((physical(&sort.expr, input, state)?, options))
        });
        Ok(Self {
            numbering,
            partition: partition.collect::<Result<_, _>>()?,
            order: order.collect::<Result<_, DataFusionError>>()?,
            output: nullable(node.schema.as_arrow()),
        })
    }

    /// The rows with their numbers. Rows at one place are told apart by their columns from left to right.
    pub(in crate::sql) fn add(&self, rows: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
        let count = rows.num_rows();
        let value = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(rows)?.into_array(count);
        let partition = self.partition.iter().map(|expr| Ok(canonical(&value(expr)?)));
        let partition = encoded(partition.collect::<Result<Vec<_>, DataFusionError>>()?.into_iter().map(plain))?;
        let order = self.order.iter().map(|(expr, options)| Ok((value(expr)?, *options)));
        let order = encoded(order.collect::<Result<Vec<_>, DataFusionError>>()?.into_iter())?;
        let whole = encoded(rows.columns().iter().cloned().map(plain))?;
        let part = |encoded: &Option<Rows>, row: usize| -> Vec<u8> {
            encoded.as_ref().map_or_else(Vec::new, |rows| rows.row(row).data().to_vec())
        };
        let keys: Vec<_> =
            (0..count).map(|row| (part(&partition, row), part(&order, row), part(&whole, row))).collect();
        let mut sorted: Vec<_> = (0..count).collect();
        sorted.sort_unstable_by(|a, b| keys[*a].cmp(&keys[*b]));
        let mut numbers = vec![0; count];
        let (mut place, mut rank, mut dense) = (0, 0, 0);
        for (at, row) in sorted.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| &keys[sorted[before]]);
            let same_partition = before.is_some_and(|before| before.0 == keys[*row].0);
            let tie = same_partition && before.is_some_and(|before| before.1 == keys[*row].1);
            (place, dense) = if same_partition { (place + 1, dense) } else { (1, 0) };
            if !tie {
                (rank, dense) = (place, dense + 1);
            }
            numbers[*row] = match self.numbering {
                Numbering::RowNumber => place,
                Numbering::Rank => rank,
                Numbering::DenseRank => dense,
            };
        }
        let numbers: ArrayRef = Arc::new(UInt64Array::from(numbers));
        let columns = rows.columns().iter().cloned().chain([numbers]).zip(self.output.fields());
        let columns = columns.map(|(column, field)| conform(column, field.data_type())).collect::<Result<_, _>>()?;
        batch_of(&self.output, columns, count)
    }
}

fn plain(column: ArrayRef) -> (ArrayRef, SortOptions) {
    (column, SortOptions::default())
}

/// Columns as bytes that can be compared; `None`: there are none.
fn encoded(columns: impl Iterator<Item = (ArrayRef, SortOptions)>) -> Result<Option<Rows>, DataFusionError> {
    let (columns, options): (Vec<_>, Vec<_>) = columns.unzip();
    if columns.is_empty() {
        return Ok(None);
    }
    let fields = columns.iter().zip(options);
    let fields = fields.map(|(column, options)| SortField::new_with_options(column.data_type().clone(), options));
    Ok(Some(RowConverter::new(fields.collect())?.convert_columns(&columns)?))
}

/// The column that stands for the rank.
pub(in crate::sql) fn shown(numbering: Numbering) -> Expr {
    Expr::Column(Column::from_name(format!("{}()", numbering.name())))
}
