//! What is computed of groups, and of the rows of a ranking, once they are made is computed of each row before that, too.
//!
//! Where it fails, as when a number does not fit the column of the sink, the row's record is to blame; afterwards nobody would be,
//! and the shard would halt. What a condition leaves out of the result is not asked for, as far as that can be told of a row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, ExprSchemable, cast, lit, when};
use datafusion::physical_expr::PhysicalExpr;

use super::flat::GroupNode;
use super::halves::{TIME, time_of};
use super::pipeline::physical;
use super::pushing::{in_turn, never_fails};
use super::shape::{self, Grouping, Shape};
use super::windows::Window;

/// What must be possible to compute of prepared rows.
pub(super) fn checks(
    shape: &Shape,
    node: GroupNode<'_>,
    prepared: &Schema,
    state: &SessionState,
) -> Result<Vec<Arc<dyn PhysicalExpr>>, DataFusionError> {
    let prepared = DFSchema::try_from(prepared.clone())?;
    let mut checks = Vec::new();
    for (_, output) in &shape.output {
        // A row of windows that slide is in all from the first to the last.
        for first in [false, true] {
            let rows = Rows { shape, node, prepared: &prepared, first };
            match rows.check(output)? {
                Some(check) if !checks.contains(&check) => checks.push(check),
                Some(_) => {}
                None => break,
            }
        }
    }
    checks.iter().map(|check| physical(check, &prepared, state)).collect()
}

/// The expressions of a query over prepared rows.
struct Rows<'a> {
    shape: &'a Shape,
    node: GroupNode<'a>,
    prepared: &'a DFSchema,
    /// Whether each row stands for the first of its windows instead of the last.
    first: bool,
}

impl Rows<'_> {
    /// What is written into a column, if it is made of rows alone and can fail.
    fn check(&self, output: &Expr) -> Result<Option<Expr>, DataFusionError> {
        let (output, known) = self.of_rows(output, self.shape)?;
        let used = output.column_refs();
        if !known || used.is_empty() || never_fails(&output, self.prepared) {
            return Ok(None);
        }
        let before = self.shape.first.iter().flat_map(|first| first.having.iter().map(|having| (&**first, having)));
        let conditions = before.chain(self.shape.having.iter().map(|having| (self.shape, having)));
        let (mut asked, mut all_known) = (Vec::new(), true);
        for (shape, condition) in conditions {
            let (condition, known) = self.of_rows(condition, shape)?;
            if known && (all_known || never_fails(&condition, self.prepared)) {
                asked.push(condition);
            } else if condition.column_refs().iter().any(|column| used.contains(column)) {
                // Perhaps it is what keeps this row out.
                return Ok(None);
            } else {
                all_known = false;
            }
        }
        let turns = conjunction(asked).map(|all| in_turn(&all, self.prepared)).unwrap_or_default();
        let protected = |then: Expr, condition: Expr| when(condition, then).end();
        turns.into_iter().rev().try_fold(output.clone(), protected).map(Some)
    }

    /// An expression over the groups and rows of a shape, and whether nothing else is in it.
    fn of_rows(&self, expr: &Expr, shape: &Shape) -> Result<(Expr, bool), DataFusionError> {
        let mut all_known = true;
        let replaced = expr.clone().transform_down(|expr| {
            if !matches!(expr, Expr::Column(_)) {
                return Ok(Transformed::no(expr));
            }
            let (meant, known) = self.meant(expr, shape)?;
            all_known &= known;
            Ok(Transformed::new(meant, true, TreeNodeRecursion::Jump))
        })?;
        Ok((replaced.data, all_known))
    }

    /// What a column that stands for a group or a row is in prepared rows, if it is known there.
    fn meant(&self, column: Expr, shape: &Shape) -> Result<(Expr, bool), DataFusionError> {
        let Some(prepared) = &self.shape.source().grouping else { return Ok((column, false)) };
        if let (Some(first), Some(number)) = (&shape.first, shape::group(&column)) {
            let Some(grouping) = &shape.grouping else { return Ok((column, false)) };
            let (group, known) = self.of_rows(&grouping.groups[number], first)?;
            let called = grouping.window.as_ref().filter(|(of, ..)| *of == number && shape.calls_window(number));
            let first_start = match (called, &group) {
                (Some((_, window, _)), Expr::ScalarFunction(call)) => self.first_start(window, call, None)?,
                _ => None,
            };
            return Ok((first_start.unwrap_or(group), known));
        }
        if let Some(number) = shape::group(&column).or_else(|| shape::first_group(&column)) {
            let first_start = match (&prepared.window, self.node.group(number)) {
                (Some((of, window, _)), Some(Expr::ScalarFunction(call))) if *of == number => {
                    self.first_start(window, call, Some(TIME))?
                }
                _ => None,
            };
            let group = || self.kept(number, &prepared.group_types[number]);
            return Ok((first_start.unwrap_or_else(group), true));
        }
        Ok(match shape::row(&column).and_then(|number| self.row(number, prepared)) {
            Some(row) => (row, true),
            None => (column, false),
        })
    }

    /// The start of the first window of a row, if that is asked for and may be another than the start of the last, which the
    /// call gives. `time`: the prepared column of the time, if it is one.
    fn first_start(
        &self,
        window: &Window,
        call: &ScalarFunction,
        time: Option<&str>,
    ) -> Result<Option<Expr>, DataFusionError> {
        let Some((size, slide)) = window.slides().filter(|_| self.first) else { return Ok(None) };
        let time = match time {
            Some(name) => Expr::Column(Column::from_name(name)),
            None => time_of(call, self.prepared)?,
        };
        let data_type = time.get_type(self.prepared)?;
        // It is the last of a time that is so much earlier.
        let earlier = cast(cast(time, DataType::Int64) - lit(size - slide), data_type);
        let arguments = std::iter::once(earlier).chain(call.args.iter().skip(1).cloned());
        Ok(Some(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&call.func), arguments.collect()))))
    }

    /// A column of the rows that a ranking keeps.
    fn row(&self, number: usize, grouping: &Grouping) -> Option<Expr> {
        let (ranked, input) = (grouping.ranking.as_ref()?, self.node.input());
        let place = ranked.kept(input).iter().position(|kept| *kept == Some(number))?;
        let before = grouping.groups.len() + ranked.order.len();
        Some(self.kept(before + place, input.schema().field(place).data_type()))
    }

    /// A prepared column in the type that it has in the query.
    fn kept(&self, place: usize, data_type: &DataType) -> Expr {
        let kept = self.prepared.field(place);
        let column = Expr::Column(Column::from_name(kept.name()));
        if kept.data_type() == data_type { column } else { cast(column, data_type.clone()) }
    }
}
