//! What aggregates are given is computed in a step of its own below them.
//!
//! So DataFusion's rewrites see columns there: it would make `sum(i + 1), sum(i + 2)` of `sum(i)` and `count(i)`, by additions
//! that wrap around. And what `FILTER (WHERE ...)` leaves out is not computed: DataFusion computes it of every row.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection, when};

use super::pushing::never_fails;

/// The same plan, whose aggregates are given columns.
pub(super) fn computed_below(plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    let computed = plan.transform_up(|node| match node {
        LogicalPlan::Aggregate(aggregate) => aggregated(aggregate),
        other => Ok(Transformed::no(other)),
    })?;
    Ok(computed.data)
}

fn aggregated(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>, DataFusionError> {
    let input = aggregate.input.schema();
    let mut computed = Vec::new();
    let names = NamePreserver::new_for_projection();
    let calls = aggregate.aggr_expr.iter().map(|call| {
        let name = names.save(call);
        let call = call.clone().transform_down(|expr| match expr {
            Expr::AggregateFunction(call) => {
                let call = Expr::AggregateFunction(of_columns(call, input, &mut computed)?);
                Ok(Transformed::new(call, true, TreeNodeRecursion::Jump))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(name.restore(call.data))
    });
    let calls = calls.collect::<Result<_, DataFusionError>>()?;
    if computed.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let columns = input.iter().map(|field| Expr::Column(field.into())).chain(computed).collect();
    let Aggregate { input, group_expr, schema, .. } = aggregate;
    let input = Arc::new(LogicalPlan::Projection(Projection::try_new(columns, input)?));
    let aggregate = Aggregate::try_new_with_schema(input, group_expr, calls, schema)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

/// A call whose arguments are columns; what they are is added to what is computed.
fn of_columns(
    mut call: AggregateFunction,
    input: &DFSchema,
    computed: &mut Vec<Expr>,
) -> Result<AggregateFunction, DataFusionError> {
    let mut column = |expr: Expr| {
        // A constant stays, since some functions ask for one.
        if matches!(expr, Expr::Column(_)) || expr.column_refs().is_empty() {
            return expr;
        }
        let name = format!("argument {}", computed.len());
        computed.push(expr.alias(&name));
        Expr::Column(Column::from_name(name))
    };
    let filter = call.params.filter.take();
    let arguments = call.params.args.into_iter().map(|argument| match &filter {
        Some(filter) if !never_fails(&argument, input) => Ok(column(when((**filter).clone(), argument).end()?)),
        _ => Ok(column(argument)),
    });
    call.params.args = arguments.collect::<Result<_, DataFusionError>>()?;
    call.params.filter = filter.map(|filter| Box::new(column(*filter)));
    Ok(call)
}
