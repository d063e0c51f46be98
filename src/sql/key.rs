//! The primary key of a sink must determine the group, and the group the key.
//!
//! A row of the sink then belongs to one group, a group to one shard, and so each row has one writer. With a key that
//! says less, two groups would write to one row and overwrite each other; with one that says more, a group would leave
//! old rows behind.

use std::collections::BTreeSet;

use arrow::datatypes::DataType::Timestamp;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::logical_expr::Expr;

use super::error::SqlError;
use super::ranking;
use super::shape::{self, Grouping, Shape};
use super::windows::{Window, bound_type, tick};
use crate::catalog::SinkTable;

/// Refuses a sink whose primary key does not go with the query's groups.
pub(super) fn check(shape: &Shape, sink: &SinkTable) -> Result<(), SqlError> {
    for (name, expr) in &shape.output {
        let value = if let Expr::Cast(cast) = expr { &cast.expr } else { expr };
        if sink.primary_key.contains(name) && matches!(value, Expr::Literal(value, _) if value.is_null()) {
            return Err(SqlError::new(format!(
                "column {name} of the primary key of {} would always be NULL: write something into it",
                sink.name
            )));
        }
    }
    let Some(grouping) = &shape.grouping else { return Ok(()) };
    if sink.primary_key.is_empty() {
        return Ok(());
    }
    if let Some(ranked) = &grouping.ranking {
        ranking::check_key(ranked, shape, sink)?;
    }
    let key = sink.primary_key.join(", ");
    // Sessions of an earlier grouping can begin together and end at different times.
    let both = grouping.window.as_ref().is_some_and(|(_, window, _)| window.is_of_sessions());
    let is_window = |number: usize| grouping.window.as_ref().is_some_and(|window| window.0 == number);
    let mut bounds = BTreeSet::new();
    let mut carried = BTreeSet::new();
    let mut narrowed = Vec::new();
    for (name, expr) in &shape.output {
        if !sink.primary_key.contains(name) {
            continue;
        }
        if expr.column_refs().iter().any(|column| shape::aggregate(&Expr::Column((*column).clone())).is_some()) {
            return Err(SqlError::new(format!(
                "column {name} of the primary key of {} is {}, which changes as records arrive, so a group would leave a \
                 row behind at each change; take {name} out of PRIMARY KEY, or write a column of GROUP BY into it",
                sink.name,
                shape.display(expr)
            )));
        }
        match source(expr, grouping) {
            Source::Group(number) => {
                let value = if let Expr::Cast(cast) = expr { &cast.expr } else { expr };
                bounds
                    .extend(Window::bound_of(value).filter(|_| shape::group(value).is_none()).map(|(bound, _)| bound));
                if !both || shape::group(value).is_some() || bounds.len() == 2 {
                    carried.insert(number);
                }
            }
            Source::Narrowed(number, from, to) => narrowed.push((number, name.as_str(), from, to)),
            Source::Derived => {}
        }
    }
    if let Some(ranked) = &shape.ranked_groups
        && ranked
            .numbered_apart(shape, sink, |expr| group(expr, grouping).is_some_and(|group| carried.contains(&group)))
    {
        return Ok(());
    }
    for (number, expr) in grouping.groups.iter().enumerate() {
        if carried.contains(&number) || determined(number, expr, grouping, &carried) {
            continue;
        }
        let shown = shape.display_group(number);
        let clause = match grouping {
            Grouping { ranking: Some(_), .. } => "PARTITION BY",
            Grouping { distinct: true, .. } => "SELECT DISTINCT",
            _ => "GROUP BY",
        };
        let advice = match narrowed.iter().find(|(group, ..)| *group == number) {
            None if both && is_window(number) && bounds.len() == 1 => format!(
                "sessions of several groups can have one bound in common and not the other; add a column that holds the \
                 other one to PRIMARY KEY, or leave {shown} out of {clause}"
            ),
            Some((_, name, from, to)) => format!(
                "column {name} holds it as {to}, and several {from} values may become one {to}; declare {name} with the \
                 type of {shown}, or {clause} the cast"
            ),
            None => format!("add a column that holds {shown} to PRIMARY KEY, or leave it out of {clause}"),
        };
        return Err(SqlError::new(format!(
            "{clause} {shown} is not determined by the primary key ({key}) of {}, so two groups would be written to the \
             same row: {advice}",
            sink.name
        )));
    }
    Ok(())
}

/// Whether a group expression follows from the group columns that the key carries. Of windows that slide a time has several.
fn determined(number: usize, expr: &Expr, grouping: &Grouping, carried: &BTreeSet<usize>) -> bool {
    let slides = grouping.window.as_ref().is_some_and(|(of, window, _)| *of == number && window.slides().is_some());
    !slides
        && expr.column_refs().iter().all(|column| {
            carried.iter().any(|number| matches!(&grouping.groups[*number], Expr::Column(group) if group == *column))
        })
}

enum Source {
    /// The group expression itself, perhaps in a type that holds all its values apart.
    Group(usize),
    /// The group expression in a type in which two values may become one.
    Narrowed(usize, DataType, DataType),
    /// A constant, or computed from group expressions: it says nothing new.
    Derived,
}

/// The group that an expression is, or a bound of whose window it is.
fn group(expr: &Expr, grouping: &Grouping) -> Option<usize> {
    shape::group(expr).or_else(|| {
        let number = shape::group(Window::bound_of(expr)?.1)?;
        grouping.window.as_ref().is_some_and(|window| window.0 == number).then_some(number)
    })
}

fn source(expr: &Expr, grouping: &Grouping) -> Source {
    if let Some(number) = group(expr, grouping) {
        return Source::Group(number);
    }
    if let Expr::Cast(cast) = expr
        && let Some(number) = group(&cast.expr, grouping)
        && let Some(from) = grouping.group_types.get(number).map(bound_type)
    {
        let to = cast.field.data_type();
        // The bounds of windows are round.
        let round = match (&grouping.window, from, to) {
            (Some((window, bounds, _)), Timestamp(_, a), Timestamp(_, b)) => {
                *window == number && a == b && bounds.whole_in(tick(to))
            }
            _ => false,
        };
        return match round || injective(from, to) {
            true => Source::Group(number),
            false => Source::Narrowed(number, from.clone(), to.clone()),
        };
    }
    Source::Derived
}

/// Whether a cast keeps different values different. A value that does not fit is an error, not another value.
fn injective(from: &DataType, to: &DataType) -> bool {
    use DataType::{Binary, BinaryView, Boolean, Date32, Decimal128, Float32, Float64, LargeBinary, LargeUtf8};
    use DataType::{Utf8, Utf8View};
    let text = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8 | Utf8View);
    let bytes = |data_type: &DataType| matches!(data_type, Binary | LargeBinary | BinaryView);
    match (from, to) {
        _ if from == to => true,
        (from, to) if from.is_integer() && to.is_integer() => true,
        (from, to) if from.is_integer() && text(to) => true,
        (from, Decimal128(_, scale)) if from.is_integer() => *scale >= 0,
        (from, Float64) if from.is_integer() => !matches!(from, DataType::Int64 | DataType::UInt64),
        (Float32, Float64) | (Boolean, Utf8) | (Date32, Timestamp(..)) | (Date32, Utf8) => true,
        (Decimal128(_, from), Decimal128(_, to)) => to >= from,
        (Timestamp(from, a), Timestamp(to, b)) => a == b && fineness(to) >= fineness(from),
        (from, to) => (text(from) && (text(to) || bytes(to))) || (bytes(from) && bytes(to)),
    }
}

fn fineness(unit: &TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    }
}
