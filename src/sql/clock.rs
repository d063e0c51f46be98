//! Processing time: the column `_processing_time` says when a record was read, by the clock of whoever read it.
//!
//! A record that is read again after a crash gets another time. That does no harm as long as nothing but the shard of its
//! row sees the time: the row is counted by one shard, in the same checkpoint as its position, and so the time that it had
//! then is the one that counts, and it is never counted under two. So the time may be that of a window, or a value that is
//! kept or written; but it may not decide on which shard a row is, whether it is left out, or whether it is bad: two shards
//! that have different readings of a record would both take it then, or neither.

use datafusion::common::Column;
use datafusion::logical_expr::Expr;

use super::error::SqlError;
use super::metadata::Metadata;
use super::shape::{Grouping, Shape};
use super::windows::Window;
use crate::catalog::SinkTable;

/// Whether a column is that of the clock.
pub(super) fn is_clock(name: &str) -> bool {
    name == Metadata::ProcessingTime.name()
}

/// Whether an expression looks at the clock.
pub(super) fn looks(expr: &Expr) -> bool {
    expr.column_refs().iter().any(|column| is_clock(&column.name))
}

/// Whether an expression is the time as it is, perhaps in another type.
fn plain(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) => true,
        Expr::Cast(cast) => plain(&cast.expr),
        Expr::Alias(alias) => plain(&alias.expr),
        _ => false,
    }
}

fn refused(what: &str) -> SqlError {
    SqlError::new(format!(
        "_processing_time {what}: a record that is read again after a crash has another one, and would be counted twice or \
         not at all. It can be the time of a window in GROUP BY, an argument of an aggregate or of ORDER BY in a ranking, or a \
         column that is written, each time as it is; elsewhere take _timestamp"
    ))
}

/// Refuses a query to which it matters that a record is read again at another time.
pub(super) fn check(shape: &Shape, sink: &SinkTable) -> Result<(), SqlError> {
    let source = shape.source();
    let arms = || source.arms.iter();
    if source.arms.iter().any(|arm| arm.filters.iter().any(looks)) {
        return Err(refused("cannot decide which rows are left out"));
    }
    if arms().flat_map(|arm| arm.columns.iter().flatten()).any(|expr| looks(expr) && !plain(expr)) {
        return Err(refused("cannot be computed with"));
    }
    // A column of a union may be the time of one of its parts.
    let is_time = |column: &Column| {
        let column = Expr::Column(column.clone());
        arms().any(|arm| arm.meant(&column).is_some_and(self::looks))
    };
    let looks = |expr: &Expr| expr.column_refs().into_iter().any(&is_time);
    let harmless = |expr: &Expr| !looks(expr) || plain(expr);
    if source.filters.iter().any(looks) {
        return Err(refused("cannot decide which rows are left out"));
    }
    let Some(grouping) = &source.grouping else {
        for (name, expr) in source.output.iter().filter(|(_, expr)| looks(expr)) {
            if sink.primary_key.contains(name) {
                return Err(refused("cannot be in a primary key without GROUP BY"));
            }
            if !plain(expr) {
                return Err(refused("cannot be computed with"));
            }
        }
        return Ok(());
    };
    let Grouping { groups, group_types, aggregates, ranking, .. } = grouping;
    for (group, data_type) in groups.iter().zip(group_types).filter(|(group, _)| looks(group)) {
        let of_window = match (group, Window::of(group, data_type)?) {
            (Expr::ScalarFunction(call), Some((_, time))) => plain(time) && !call.args.iter().skip(1).any(looks),
            _ => false,
        };
        if !of_window {
            return Err(refused("cannot be grouped by except as the time of a window"));
        }
    }
    for aggregate in aggregates.iter().filter(|aggregate| looks(aggregate)) {
        let as_it_is = match aggregate {
            Expr::AggregateFunction(call) => {
                call.params.args.iter().all(harmless) && !call.params.filter.as_deref().is_some_and(looks)
            }
            _ => false,
        };
        if !as_it_is {
            return Err(refused("cannot be computed with"));
        }
    }
    if let Some(ranked) = ranking
        && !(ranked.rows.iter().all(harmless) && ranked.order.iter().all(|sort| harmless(&sort.expr)))
    {
        return Err(refused("cannot be computed with"));
    }
    Ok(())
}
