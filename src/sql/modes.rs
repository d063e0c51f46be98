//! Whether the event time of a table, the windows of a query and the output mode of its sink go together.

use arrow::datatypes::DataType;
use datafusion::logical_expr::{Cast, Expr};

use super::clock::is_clock;
use super::error::SqlError;
use super::keeping;
use super::metadata::Metadata;
use super::options::{OutputMode, WatermarkText};
use super::shape::{Arm, Grouping, Shape};
use super::statements::SourceTable;
use super::windows::Window;

/// Refuses an output mode that the query cannot have, and windows over another time than the watermark's.
pub(super) fn check(shape: &Shape, sources: &[&SourceTable], mode: OutputMode) -> Result<(), SqlError> {
    if let Some(first) = &shape.first {
        return check_second(first, shape, sources, mode);
    }
    for (source, arm) in sources.iter().zip(&shape.arms) {
        of_source(shape, source, arm)?;
    }
    of_query(shape, sources, mode)
}

/// What holds for each table that is read.
fn of_source(shape: &Shape, source: &SourceTable, arm: &Arm) -> Result<(), SqlError> {
    let watermark = source.options.watermark.as_ref();
    watermark.map_or(Ok(()), |watermark| check_event_time(source, watermark))?;
    if let (Some(Grouping { window: Some((_, _, time)), .. }), Some(watermark)) = (&shape.grouping, watermark)
        && !arm.is_column(time, &watermark.column)
    {
        let meant = arm.meant(time).unwrap_or(time);
        let cast = matches!(meant, Expr::Cast(Cast { expr, .. })
            if matches!(&**expr, Expr::Column(column) if column.name == watermark.column));
        let advice = match (cast, &arm.columns) {
            (true, Some(_)) => "declare that column with the same type in all tables of the UNION ALL",
            (true, None) => "take the column as it is",
            (false, _) => "take one of them for both",
        };
        return Err(SqlError::new(format!(
            "the window is over {}, but the watermark of {} follows {} and cannot say when such a window is over: {advice}",
            shape.display(meant),
            source.name,
            watermark.column
        )));
    }
    Ok(())
}

/// What holds for the query as a whole.
fn of_query(shape: &Shape, sources: &[&SourceTable], mode: OutputMode) -> Result<(), SqlError> {
    if let Some(Grouping { window: Some((_, window, _)), .. }) = &shape.grouping
        && window.is_session()
        && mode != OutputMode::Append
    {
        return Err(SqlError::new(
            "a session grows and merges with others, so a row of it that was written before it is closed would have to be \
             taken back: set 'output.mode' 'append' on the sink",
        ));
    }
    if let (Some(ranked), Some(grouping)) = (&shape.ranked_groups, &shape.grouping) {
        ranked.check(grouping, mode)?;
    }
    // Groups of one time are final when the watermark has passed it.
    let passes = keeping::event_time(shape, sources).is_some();
    if let Some(Grouping { ranking: Some(ranked), window: None, .. }) = &shape.grouping
        && mode == OutputMode::Append
        && !passes
    {
        return Err(SqlError::new(format!(
            "'output.mode' 'append' writes a row once, when it is final, but a later record can always push a row out of \
             the first of its key: add window(...) or the 'watermark.column' to PARTITION BY of {}(), or take 'update'",
            ranked.numbering.name().to_uppercase()
        )));
    }
    let timeless = sources.iter().find(|source| source.options.watermark.is_none()).map(|source| source.name.as_str());
    match (mode, &shape.grouping) {
        // Each of its rows is final when it comes.
        (OutputMode::Append, Some(Grouping { distinct: true, .. })) => Ok(()),
        (OutputMode::Complete { .. }, Some(Grouping { distinct: true, .. })) => Err(SqlError::new(
            "'output.mode' 'complete' writes all rows again and again, but a row of SELECT DISTINCT never changes: take \
             'append'",
        )),
        (OutputMode::Append, Some(Grouping { window: None, .. })) if !passes => Err(SqlError::new(
            "'output.mode' 'append' writes a group once, when it is final, but without a window, or the column of a \
             watermark as it is, in GROUP BY no group ever is: add window(...), or take 'update'",
        )),
        (OutputMode::Append, Some(_)) if timeless.is_some() => Err(SqlError::new(format!(
            "'output.mode' 'append' writes a window once, when it is final, and only a watermark says when that is: set \
             'watermark.column' and 'watermark.delay' on {}, or take 'update'",
            timeless.unwrap_or_default()
        ))),
        (OutputMode::Complete { .. }, None) => Err(SqlError::new(
            "'output.mode' 'complete' writes the whole result again and again, but without GROUP BY that would be every \
             record there ever was: take 'append'",
        )),
        _ => Ok(()),
    }
}

/// One query of a pipeline, as far as it closes windows.
pub(super) struct Closer<'a> {
    pub(super) shape: &'a Shape,
    pub(super) mode: OutputMode,
    /// It forgets groups some time after their last row, or when their time is past.
    pub(super) forgets: bool,
}

impl Closer<'_> {
    /// The windows that close, and those that are over them.
    fn windows(&self) -> Option<(&Window, Option<&Window>)> {
        fn of(shape: &Shape) -> Option<&Window> {
            Some(&shape.grouping.as_ref()?.window.as_ref()?.1)
        }
        match &self.shape.first {
            Some(first) => Some((of(first)?, of(self.shape))),
            None if matches!(self.mode, OutputMode::Complete { .. }) => None,
            None => Some((of(self.shape)?, None)),
        }
    }
}

/// Refuses `watermark.close.after` where silence could not tell which windows to close.
pub(super) fn check_close_after(sources: &[&SourceTable], queries: &[Closer<'_>]) -> Result<(), SqlError> {
    let given = sources.iter().find_map(|source| {
        let (_, place) = source.options.watermark.as_ref()?.close_after?;
        Some((source, place))
    });
    let Some((source, place)) = given else { return Ok(()) };
    let mut windows = queries.iter().filter_map(Closer::windows);
    let refused = match windows.next() {
        None if queries.iter().any(|query| matches!(query.mode, OutputMode::Complete { .. })) => {
            Some("complete mode closes no windows")
        }
        None => Some(
            "without a window in GROUP BY there is nothing to close (groups of one event time are closed by the watermark \
             alone)",
        ),
        Some(first) if windows.any(|window| window != first) || queries.iter().any(|query| query.forgets) => Some(
            "several INSERT INTO have different windows, or forget groups by the same watermark, and what silence closes \
             of one would be too early for another: take one pipeline for each",
        ),
        Some((window, _)) if !window.lasts() => Some("the gap of its sessions differs from row to row"),
        Some(_) => None,
    };
    match refused {
        Some(reason) => {
            let message = format!("table {}: 'watermark.close.after' cannot be: {reason}", source.name);
            Err(SqlError::at(message, place))
        }
        None => Ok(()),
    }
}

/// Refuses tables of which some have an event time and some do not: a shard has one watermark, the lowest of all.
pub(super) fn check_watermarks(sources: &[&SourceTable]) -> Result<(), SqlError> {
    let by_clock = |source: &&&SourceTable| source.by_clock();
    if let Some(clock) = sources.iter().find(by_clock)
        && let Some(other) = sources.iter().find(|source| !by_clock(source))
    {
        return Err(SqlError::at(
            format!(
                "the watermark of table {} follows the clock and that of table {} does not, but a pipeline has one, the \
                 lowest of all its partitions: take one kind of time for both, or a pipeline for each",
                clock.name, other.name
            ),
            other.place,
        ));
    }
    let with = sources.iter().find(|source| source.options.watermark.is_some());
    let without = sources.iter().find(|source| source.options.watermark.is_none());
    let (Some(with), Some(without)) = (with, without) else { return Ok(()) };
    Err(SqlError::at(
        format!(
            "table {} has a 'watermark.column' and table {} has none, but the watermark of a pipeline is the lowest of all \
             its partitions: set one on both ('_timestamp' is the time at which Kafka got a record), perhaps with \
             'watermark.idle', or take a pipeline for each",
            with.name, without.name
        ),
        without.place,
    ))
}

/// The inner of two groupings gives out its windows when they are closed.
fn check_second(first: &Shape, shape: &Shape, sources: &[&SourceTable], mode: OutputMode) -> Result<(), SqlError> {
    if let Some(source) = sources.iter().find(|source| source.options.watermark.is_none()) {
        return Err(SqlError::new(format!(
            "an aggregate over an aggregate needs a watermark: the windows of the inner GROUP BY go into the outer one when \
             they are closed, and only a watermark says when that is: set 'watermark.column' and 'watermark.delay' on {}",
            source.name
        )));
    }
    check(first, sources, OutputMode::Append)?;
    let grouping = shape.grouping.as_ref();
    if let (Some(ranked), Some(grouping)) = (&shape.ranked_groups, grouping) {
        ranked.check(grouping, mode)?;
    }
    if mode == OutputMode::Append && grouping.is_some_and(|grouping| grouping.window.is_none()) {
        return Err(SqlError::new(
            "'output.mode' 'append' writes a group once, when it is final, but without a window in the outer GROUP BY no \
             group ever is: add the window of the inner one or one over it, or take 'update'",
        ));
    }
    Ok(())
}

/// Refuses an event time that is no time of the table.
fn check_event_time(source: &SourceTable, watermark: &WatermarkText) -> Result<(), SqlError> {
    let error = |message: String| SqlError::at(format!("table {}: {message}", source.name), watermark.place);
    let name = watermark.column.as_str();
    if name == Metadata::Timestamp.name() || is_clock(name) {
        return Ok(());
    }
    match source.columns.field_with_name(name) {
        Ok(field) if matches!(field.data_type(), DataType::Timestamp(..)) => Ok(()),
        Ok(field) => Err(error(format!(
            "'watermark.column' '{name}' is {}, not a TIMESTAMP; declare the column as TIMESTAMP, which reads texts like \
             2026-01-31T12:00:00Z, and for numbers set 'json.timestamp.unit'",
            field.data_type()
        ))),
        Err(_) => Err(error(format!(
            "'watermark.column' '{name}' is no column of the table; take one that is, or '_timestamp' for Kafka's, or \
             '_processing_time' for that of the clock"
        ))),
    }
}
