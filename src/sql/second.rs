//! A second aggregation, over the groups of windows that the first has closed.
//!
//! What a window gives when it is closed is final, so it can be aggregated like any other row. Both aggregations are on one
//! shard: rows are sent by the groups that both have in common ([`Shape::routed`]), of which all groups of the first are on
//! that shard, and so all rows of a group of the second. If the second is over windows too, it closes one of them when the
//! watermark has closed every window of the first that belongs to it; here it is said how much later that is.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Expr;

use super::error::SqlError;
use super::shape::{self, Grouping, Shape};
use super::windows::Window;

/// By how much the windows of the second aggregation and the times in them are apart from the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// How long after the end of a window its last row may come, in nanoseconds.
    pub(super) lag: i64,
    /// How long before the end of a window of the first its row's time is, in nanoseconds.
    pub(super) before_end: i64,
}

/// Puts what was read so far before a second grouping. Answers what the columns stand for there.
pub(super) fn nest(shape: &mut Shape, names: Vec<String>, below: Vec<Expr>) -> Result<Vec<Expr>, SqlError> {
    let refused = match (&shape.first, &shape.grouping) {
        (Some(_), _) => "a third aggregation is not supported: two at most, the second over the windows of the first",
        (None, Some(Grouping { distinct: true, .. })) => {
            "an aggregate over an aggregate is not supported where the inner one is SELECT DISTINCT: take count(DISTINCT ...) and \
             the like"
        }
        (None, Some(Grouping { ranking: Some(_), .. })) => {
            "an aggregate over ROW_NUMBER() and its kin is not supported: their rows keep changing"
        }
        (None, Some(_)) if shape.ranked_groups.is_some() => {
            "an aggregate over groups that were ranked is not supported: aggregate the groups themselves"
        }
        (None, Some(Grouping { window: None, .. })) => {
            "an aggregate over an aggregate is not supported unless the inner one groups by a window, which is final when it \
             is closed: otherwise the inner results keep changing, so each change would have to be taken back from the \
             outer ones"
        }
        _ => "",
    };
    if !refused.is_empty() {
        return Err(SqlError::new(refused));
    }
    let columns = below.iter().cloned().map(of_first).collect::<Result<_, _>>()?;
    let mut first = std::mem::take(shape);
    first.output = names.into_iter().zip(below).collect();
    shape.first = Some(Box::new(first));
    Ok(columns)
}

/// An expression over the groups and aggregates of the first grouping, as the second sees it.
fn of_first(expr: Expr) -> Result<Expr, SqlError> {
    let renamed = expr.transform_up(|expr| {
        Ok(match shape::as_of_first(&expr) {
            Some(column) => Transformed::yes(column),
            None => Transformed::no(expr),
        })
    })?;
    Ok(renamed.data)
}

/// The window of the first grouping: the number of its group, and what it is.
fn of_window(first: &Shape) -> Option<(usize, &Window)> {
    let (number, window, _) = first.grouping.as_ref()?.window.as_ref()?;
    Some((*number, window))
}

/// Whether an expression is the first grouping's window as a struct of both bounds.
fn is_whole(expr: &Expr, number: usize, window: &Window) -> bool {
    match expr {
        Expr::ScalarFunction(made) if made.func.name() == "named_struct" => match made.args.as_slice() {
            [_, start, _, end] => {
                shape::first_group(start) == Some(number)
                    && matches!(Window::bound_of(end), Some(("end", of)) if shape::first_group(of) == Some(number))
            }
            _ => false,
        },
        expr => window.is_session() && shape::first_group(expr) == Some(number),
    }
}

/// Whether an expression is the end of the first grouping's window.
fn is_end(expr: &Expr, number: usize) -> bool {
    matches!(Window::bound_of(expr), Some(("end", of)) if shape::first_group(of) == Some(number))
}

/// The window among the groups of the second grouping, if there is one: windows over those of the first, or those of the
/// first themselves.
pub(super) fn window(
    first: &Shape,
    groups: &[Expr],
    types: &[DataType],
) -> Result<Option<(usize, Window, Expr)>, SqlError> {
    let Some((of_first, inner)) = of_window(first) else { return Ok(None) };
    let (mut called, mut carried) = (None, None);
    for (number, (group, data_type)) in groups.iter().zip(types).enumerate() {
        if let Some((window, time)) = Window::of(group, data_type)? {
            if window.is_session() {
                return Err(SqlError::new("session_window(...) over the windows of another grouping is not supported"));
            }
            let Some(Reach { lag, .. }) = reach(first, &window, time) else {
                return Err(SqlError::new(
                    "a window over the windows of another grouping is over their end or over both bounds, or, for \
                     window(...), over their start: otherwise it cannot be known when it is over",
                ));
            };
            called = Some((number, window.later(lag), time.clone()));
        } else if Window::called_within(group) {
            return Err(SqlError::new("a window in GROUP BY stands alone: nothing can be computed from it there"));
        } else if carried.is_none() {
            let window = if shape::first_group(group) == Some(of_first) && !inner.is_session() {
                Some(inner.clone())
            } else if is_end(group, of_first) || is_whole(group, of_first, inner) {
                Some(inner.known_by_end())
            } else {
                None
            };
            carried = window.map(|window| (number, window, group.clone()));
        }
    }
    match (called, carried) {
        (Some(_), Some(_)) => Err(SqlError::new(
            "there are two windows in the outer GROUP BY: that of the inner grouping is within one of the outer anyway, so \
             leave one of them out",
        )),
        (called, carried) => Ok(called.or(carried)),
    }
}

/// How far apart the windows over a time of the first grouping's windows are; `None`: that is not known.
pub(super) fn reach(first: &Shape, window: &Window, time: &Expr) -> Option<Reach> {
    let (number, inner) = of_window(first)?;
    if is_end(time, number) {
        return Some(Reach { lag: 0, before_end: 0 });
    }
    if is_whole(time, number, inner) {
        return Some(Reach { lag: i64::from(inner.is_session()), before_end: window.tick() });
    }
    if shape::first_group(time) != Some(number) {
        return None;
    }
    let (lag, before_end) = window.over_starts_of(inner)?;
    Some(Reach { lag, before_end })
}

impl Shape {
    /// What is done with the rows of the table first.
    pub(super) fn source(&self) -> &Shape {
        self.first.as_deref().unwrap_or(self)
    }

    /// The groups by which rows find their shard, if not all of them: those that all groups have in common which meet later,
    /// when they are ranked against each other or aggregated again.
    pub(super) fn routed(&self) -> Option<Vec<usize>> {
        let ranked = self.ranked_groups.as_ref().zip(self.grouping.as_ref());
        let ranked = ranked.map(|(ranked, grouping)| ranked.shared(grouping));
        let (Some(first), Some(grouping)) = (&self.first, &self.grouping) else { return ranked };
        let window = of_window(first).map(|(number, _)| number);
        let numbers: Vec<usize> = ranked.unwrap_or_else(|| (0..grouping.groups.len()).collect());
        let shared = numbers.into_iter().filter_map(|number| shape::first_group(grouping.groups.get(number)?));
        let mut shared: Vec<_> = shared.filter(|number| Some(*number) != window).collect();
        shared.sort_unstable();
        shared.dedup();
        Some(shared)
    }

    /// Whether a group of this grouping calls a window, rather than being one of the first grouping's.
    pub(super) fn calls_window(&self, number: usize) -> bool {
        let called = |grouping: &Grouping| {
            let (group, data_type) = (grouping.groups.get(number)?, grouping.group_types.get(number)?);
            Window::of(group, data_type).ok().flatten().map(|_| ())
        };
        self.first.is_none() || self.grouping.as_ref().and_then(called).is_some()
    }
}
