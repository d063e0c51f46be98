//! The window of a ranking's groups, as the steps around the ranking see it.
//!
//! `window.start` beside ROW_NUMBER() is that of the group. It cannot be computed from a row: a row is in several sliding
//! windows, and a session is longer than what one of its rows makes. So a ranking answers the window of each group as one
//! more column, by a window function that no statement can call, and what was written of the window is made of that column.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Filter, LimitEffect, LogicalPlan, PartitionEvaluator, Projection, Signature, Volatility,
    Window, WindowFunctionDefinition, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

use super::strip;
use crate::sql::windows;

const NAME: &str = "group window";

/// A function that answers the window of the group.
#[derive(Debug, PartialEq, Eq, Hash)]
struct GroupWindow {
    signature: Signature,
    data_type: DataType,
}

impl WindowUDFImpl for GroupWindow {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(
        &self,
        _arguments: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>, DataFusionError> {
        Err(DataFusionError::Internal(format!("{NAME} is answered by the groups themselves")))
    }

    fn field(&self, arguments: WindowUDFFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        Ok(Arc::new(Field::new(arguments.name(), self.data_type.clone(), true)))
    }

    fn limit_effect(&self, _arguments: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        LimitEffect::None
    }
}

/// Whether a window expression is that function.
pub(super) fn is(expr: &Expr) -> bool {
    matches!(strip(expr), Expr::WindowFunction(call) if call.fun.name() == NAME)
}

/// The number of the PARTITION BY expression that is answered as one more column, if one is.
pub(in crate::sql) fn answered(node: &Window, partition: &[Expr]) -> Option<usize> {
    let asked = node.window_expr.iter().any(is);
    partition.iter().position(windows::Window::called_within).filter(|_| asked)
}

/// The same plan, whose ranking answers the window of its groups, if they have one, to what was written of it.
pub(in crate::sql) fn answer(plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    Ok(carry(plan)?.0)
}

/// The same plan, and what is to be replaced by which column in the steps around it.
fn carry(plan: LogicalPlan) -> Result<(LogicalPlan, Option<(Expr, Expr)>), DataFusionError> {
    match plan {
        LogicalPlan::Window(node) => {
            let call = super::call(&node).ok().map(|(call, _)| call);
            let partitions = call.iter().flat_map(|call| &call.params.partition_by);
            let Some(window) = partitions.into_iter().find(|expr| windows::Window::called_within(expr)).cloned() else {
                return Ok((LogicalPlan::Window(node), None));
            };
            let data_type = window.get_type(node.input.schema())?;
            let signature = Signature::nullary(Volatility::Immutable);
            let function = WindowUDF::from(GroupWindow { signature, data_type });
            let function = WindowFunctionDefinition::WindowUDF(Arc::new(function));
            let asked = Expr::from(WindowFunction::new(function, Vec::new()));
            let (relation, name) = asked.qualified_name();
            let column = Expr::Column(Column::new(relation, name));
            let node = Window::try_new([node.window_expr, vec![asked]].concat(), node.input)?;
            Ok((LogicalPlan::Window(node), Some((window, column))))
        }
        LogicalPlan::SubqueryAlias(mut alias) => {
            alias.input = Arc::new(answer(Arc::unwrap_or_clone(alias.input))?);
            Ok((LogicalPlan::SubqueryAlias(alias), None))
        }
        LogicalPlan::Filter(filter) => {
            let (input, window) = carry(Arc::unwrap_or_clone(filter.input))?;
            let predicate = replaced(filter.predicate, window.as_ref())?;
            Ok((LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?), window))
        }
        LogicalPlan::Projection(projection) => {
            let (input, window) = carry(Arc::unwrap_or_clone(projection.input))?;
            let names = NamePreserver::new_for_projection();
            let exprs = projection.expr.into_iter().map(|expr| {
                let name = names.save(&expr);
                Ok(name.restore(replaced(expr, window.as_ref())?))
            });
            let exprs = exprs.collect::<Result<_, DataFusionError>>()?;
            Ok((LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?), None))
        }
        other => Ok((other, None)),
    }
}

fn replaced(expr: Expr, window: Option<&(Expr, Expr)>) -> Result<Expr, DataFusionError> {
    let Some((window, column)) = window else { return Ok(expr) };
    let replaced = expr.transform_down(|expr| match expr == *window {
        true => Ok(Transformed::new(column.clone(), true, TreeNodeRecursion::Jump)),
        false => Ok(Transformed::no(expr)),
    })?;
    Ok(replaced.data)
}
