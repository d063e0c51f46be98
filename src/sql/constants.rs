//! Refuses arithmetic of constants that their type does not hold: DataFusion computes it once, and wraps around.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::error::SqlError;
use super::pipeline::{batch_of, physical};

/// Looks through all expressions of a plan.
pub(super) fn check(plan: &LogicalPlan, state: &SessionState) -> Result<(), SqlError> {
    let one_row = batch_of(&Arc::new(Schema::empty()), Vec::new(), 1)?;
    let mut refused = None;
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if matches!(expr, Expr::BinaryExpr(_))
                    && expr.column_refs().is_empty()
                    && overflows(expr, state, &one_row)
                {
                    refused = Some(expr.to_string());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    match refused {
        Some(expr) => Err(SqlError::new(format!(
            "{expr} is more than its type holds: give one of the numbers a wider one, as in CAST(... AS DECIMAL(38, 0))"
        ))),
        None => Ok(()),
    }
}

fn overflows(expr: &Expr, state: &SessionState, one_row: &RecordBatch) -> bool {
    let value = physical(expr, &DFSchema::empty(), state).and_then(|expr| expr.evaluate(one_row));
    // Whatever else is wrong with it is said by whoever needs it.
    value.is_err_and(|error: DataFusionError| error.strip_backtrace().contains("verflow"))
}
