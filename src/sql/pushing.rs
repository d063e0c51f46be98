//! Conditions are moved as far down as they go, and stay in the order in which they were written.
//!
//! The order counts: `qty <> 0 AND 100 / qty > 5` means that the second is asked of nobody for whom the first does not hold,
//! and so it does when the first is in a view. DataFusion's own rule asks what is cheap first, whatever it protects.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Distinct, Expr, ExprSchemable, Filter, LogicalPlan, Operator};

use super::ranking;
use super::windows;

/// The same plan with its conditions as far down as they go.
pub(super) fn push_down(plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    pushed(plan, Vec::new())
}

/// Puts conditions on what a plan gives into it, behind its own.
fn pushed(plan: LogicalPlan, conditions: Vec<Expr>) -> Result<LogicalPlan, DataFusionError> {
    let into = |input: Arc<LogicalPlan>, conditions| pushed(Arc::unwrap_or_clone(input), conditions).map(Arc::new);
    Ok(match plan {
        LogicalPlan::Filter(filter) => {
            let own = split_conjunction_owned(filter.predicate);
            pushed(Arc::unwrap_or_clone(filter.input), own.into_iter().chain(conditions).collect())?
        }
        LogicalPlan::SubqueryAlias(mut alias) => {
            let conditions = meant(conditions, &alias.schema, &columns(alias.input.schema()))?;
            alias.input = into(alias.input, conditions)?;
            LogicalPlan::SubqueryAlias(alias)
        }
        LogicalPlan::Projection(mut projection) => {
            let conditions = meant(conditions, &projection.schema, &projection.expr)?;
            projection.input = into(projection.input, conditions)?;
            LogicalPlan::Projection(projection)
        }
        LogicalPlan::Union(mut union) => {
            let inputs = union.inputs.into_iter().map(|input| {
                let conditions = meant(conditions.clone(), &union.schema, &columns(input.schema()))?;
                into(input, conditions)
            });
            union.inputs = inputs.collect::<Result<_, _>>()?;
            LogicalPlan::Union(union)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let conditions = meant(conditions, input.schema(), &of_groups(&columns(input.schema()), input.schema())?)?;
            LogicalPlan::Distinct(Distinct::All(into(input, conditions)?))
        }
        LogicalPlan::Aggregate(mut aggregate) => {
            let schema = &aggregate.schema;
            let groups: HashSet<_> = columns(schema).into_iter().take(aggregate.group_expr.len()).collect();
            let (down, here) = parted(conditions, schema, &groups);
            let down = meant(down, schema, &of_groups(&aggregate.group_expr, aggregate.input.schema())?)?;
            aggregate.input = into(aggregate.input, down)?;
            filtered(LogicalPlan::Aggregate(aggregate), here)?
        }
        LogicalPlan::Window(mut node) => {
            let keys = ranking::call(&node).map(|(call, _)| call.params.partition_by.iter().cloned().collect());
            let (down, here) = parted(conditions, &node.schema, &keys.unwrap_or_default());
            node.input = into(node.input, down)?;
            filtered(LogicalPlan::Window(node), here)?
        }
        other => filtered(other, conditions)?,
    })
}

/// A condition whose parts are asked one after the other, from left to right, and none twice.
pub(super) fn in_order(condition: Expr) -> Expr {
    all_of(split_conjunction_owned(condition.clone())).unwrap_or(condition)
}

/// The parts of a condition in runs that can be asked at once, since but the first of each none can fail.
pub(super) fn in_turn(condition: &Expr, input: &DFSchema) -> Vec<Expr> {
    let mut turns: Vec<Expr> = Vec::new();
    for part in split_conjunction_owned(condition.clone()) {
        match turns.pop() {
            Some(before) if never_fails(&part, input) => turns.push(before.and(part)),
            before => turns.extend(before.into_iter().chain([part])),
        }
    }
    turns
}

fn all_of(conditions: Vec<Expr>) -> Option<Expr> {
    let mut seen = HashSet::new();
    conjunction(conditions.into_iter().filter(|condition| seen.insert(condition.clone())))
}

fn filtered(plan: LogicalPlan, conditions: Vec<Expr>) -> Result<LogicalPlan, DataFusionError> {
    Ok(match all_of(conditions) {
        Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan))?),
        None => plan,
    })
}

/// The conditions that go further down, since they are on these columns alone, and those that stay. One that can fail does
/// not overtake one that may protect it.
fn parted(conditions: Vec<Expr>, schema: &DFSchema, columns: &HashSet<Expr>) -> (Vec<Expr>, Vec<Expr>) {
    let (mut down, mut here) = (Vec::new(), Vec::new());
    for condition in conditions {
        let of = condition.column_refs();
        let fits = !of.is_empty() && of.iter().all(|column| columns.contains(&Expr::Column((*column).clone())));
        match fits && (here.is_empty() || never_fails(&condition, schema)) {
            true => down.push(condition),
            false => here.push(condition),
        }
    }
    (down, here)
}

/// What rows are grouped by, as the group has it: 0.0 where a row has -0.0, which a condition can tell apart.
fn of_groups(groups: &[Expr], input: &DFSchema) -> Result<Vec<Expr>, DataFusionError> {
    let of_group = |group: &Expr| {
        let data_type = group.get_type(input)?;
        Ok(match data_type.is_floating() {
            true => group.clone().unalias() + Expr::Literal(ScalarValue::new_zero(&data_type)?, None),
            false => group.clone(),
        })
    };
    groups.iter().map(of_group).collect()
}

/// Conditions with what the columns of a schema stand for in their place.
fn meant(conditions: Vec<Expr>, schema: &DFSchema, below: &[Expr]) -> Result<Vec<Expr>, DataFusionError> {
    let meant = conditions.into_iter().map(|condition| {
        let replaced = condition.transform_up(|expr| match &expr {
            Expr::Column(column) => {
                let below = below[schema.index_of_column(column)?].clone();
                Ok(Transformed::yes(below.unalias()))
            }
            _ => Ok(Transformed::no(expr)),
        })?;
        Ok(replaced.data)
    });
    meant.collect()
}

fn columns(schema: &DFSchema) -> Vec<Expr> {
    schema.iter().map(|field| Expr::Column(field.into())).collect()
}

/// Whether an expression has a value whatever its columns hold. What is not known to have one may fail.
pub(super) fn never_fails(expr: &Expr, schema: &DFSchema) -> bool {
    let may_fail = expr.exists(|expr| {
        Ok(match expr {
            Expr::Column(_) | Expr::Literal(..) | Expr::Alias(_) | Expr::Not(_) | Expr::TryCast(_) => false,
            Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::Between(_) | Expr::InList(_) | Expr::Like(_) => false,
            Expr::IsTrue(_) | Expr::IsFalse(_) | Expr::IsNotTrue(_) | Expr::IsNotFalse(_) => false,
            Expr::BinaryExpr(binary) => !(compares(binary.op) || matches!(binary.op, Operator::And | Operator::Or)),
            Expr::ScalarFunction(call) => !cannot_fail(call.func.name()),
            Expr::Cast(cast) => {
                let from = cast.expr.get_type(schema);
                !from.is_ok_and(|from| always_fits(&from, cast.field.data_type()))
            }
            _ => true,
        })
    });
    !may_fail.unwrap_or(true)
}

/// Whether a function only takes apart or puts together what it is given, or makes bounds of windows: NULL where there is none.
fn cannot_fail(function: &str) -> bool {
    matches!(function, "get_field" | "named_struct") || windows::is_internal(function)
}

fn compares(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Whether every value of a type has one in the other.
pub(super) fn always_fits(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Float32, Float64, Int8, Int16, Int32, Int64, LargeUtf8, UInt8,
        UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    match to {
        _ if from == to || from.is_null() => true,
        Float64 => from.is_integer() || *from == Float32,
        Float32 => from.is_integer(),
        Int64 => matches!(from, Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32),
        Int32 => matches!(from, Int8 | Int16 | UInt8 | UInt16),
        Int16 => matches!(from, Int8 | UInt8),
        UInt64 => matches!(from, UInt8 | UInt16 | UInt32),
        Utf8 | LargeUtf8 | Utf8View => from.is_integer() || from.is_floating() || from.is_string(),
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => match (digits(from), digits(to)) {
            (Some((whole, places)), Some(room)) => whole <= room.0 && places <= room.1,
            _ => false,
        },
        _ => false,
    }
}

/// How many digits the numbers of a type have before and behind the point, if each has a bounded number of them.
fn digits(data_type: &DataType) -> Option<(i16, i16)> {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    Some(match data_type {
        Int8 | UInt8 => (3, 0),
        Int16 | UInt16 => (5, 0),
        Int32 | UInt32 => (10, 0),
        Int64 => (19, 0),
        UInt64 => (20, 0),
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => (i16::from(*precision) - i16::from(*scale), i16::from(*scale)),
        _ => return None,
    })
}
