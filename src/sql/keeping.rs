//! For how long the state of a query is kept: which `state.ttl` it can have, and what bounds it otherwise.

use datafusion::logical_expr::Expr;

use super::error::{Place, SqlError};
use super::expiry::Expiry;
use super::metadata::Metadata;
use super::options::OutputMode;
use super::ranking;
use super::shape::{Grouping, Shape};
use super::statements::SourceTable;
use crate::catalog::SinkTable;

/// Decides when groups leave the state; refuses a `state.ttl` that the query cannot have.
pub(super) fn expiry(
    shape: &Shape,
    sources: &[&SourceTable],
    sink: &SinkTable,
    mode: OutputMode,
    ttl: Option<(i64, Option<Place>)>,
) -> Result<Expiry, SqlError> {
    let watermarks = || sources.iter().map(|source| source.options.watermark.as_ref());
    // Complete mode needs all groups.
    let by_time = event_time(shape, sources).filter(|_| !matches!(mode, OutputMode::Complete { .. }));
    let Some((ttl, place)) = ttl else {
        return Ok(by_time.map_or(Expiry::Never, |group| Expiry::AtItsTime { group }));
    };
    let refuse = |reason: String| -> Result<Expiry, SqlError> {
        Err(SqlError::at(format!("table {}: 'state.ttl' cannot be: {reason}", sink.name), place))
    };
    if shape.first.is_some() {
        return refuse("what the windows of the inner GROUP BY give has no time of its own; leave it out".into());
    }
    let Some(Grouping { window, ranking, .. }) = &shape.grouping else {
        return refuse("this query keeps no state; leave it out".into());
    };
    if let Some((_, window, _)) = window {
        return refuse(format!(
            "a {} is removed when the watermark has passed its end; set 'watermark.column' on {} and leave it out",
            window.name(),
            sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(" and ")
        ));
    }
    if by_time.is_some() {
        return refuse("the event time is among the groups, so the watermark bounds the state; leave it out".into());
    }
    match mode {
        OutputMode::Update => {}
        OutputMode::Append => {
            return refuse(
                "in 'append' mode a row that was written is final, but a group that was forgotten may begin anew; take \
                 'output.mode' 'update'"
                    .into(),
            );
        }
        OutputMode::Complete { .. } => {
            return refuse(
                "'complete' writes the whole result, and groups that were forgotten would be missing from it; take \
                 'output.mode' 'update'"
                    .into(),
            );
        }
    }
    if let Some(ranked) = ranking
        && let Some(reason) = ranking::no_ttl(ranked, shape, sink)
    {
        return refuse(reason);
    }
    Ok(Expiry::AfterLastRow { ttl, by_arrival: watermarks().all(|watermark| watermark.is_none()) })
}

/// Which of the groups is the event time as it is, if one is and there is no window: once the watermark has passed its
/// time, no row comes for it.
pub(super) fn event_time(shape: &Shape, sources: &[&SourceTable]) -> Option<usize> {
    let Some(Grouping { window: None, groups, .. }) = &shape.grouping else { return None };
    if shape.first.is_some() {
        return None;
    }
    let is_time = |group: &Expr| {
        shape.arms.iter().zip(sources).all(|(arm, source)| {
            source.options.watermark.as_ref().is_some_and(|watermark| arm.is_column(group, &watermark.column))
        })
    };
    groups.iter().position(is_time)
}

/// The column whose time says how old a row is.
pub(super) fn time_column(source: &SourceTable) -> &str {
    source.options.watermark.as_ref().map_or(Metadata::Timestamp.name(), |watermark| watermark.column.as_str())
}
