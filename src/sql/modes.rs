//! Whether the event time of a table, the windows of a query and the output mode of its sink go together.

use arrow::datatypes::DataType;
use datafusion::logical_expr::Expr;

use super::error::SqlError;
use super::metadata::Metadata;
use super::options::{OutputMode, WatermarkText};
use super::shape::{Grouping, Shape};
use super::statements::SourceTable;

/// Refuses an output mode that the query cannot have, and windows over another time than the watermark's.
pub(super) fn check(shape: &Shape, source: &SourceTable, mode: OutputMode) -> Result<(), SqlError> {
    let watermark = source.options.watermark.as_ref();
    watermark.map_or(Ok(()), |watermark| check_event_time(source, watermark))?;
    if let (Some(Grouping { window: Some((_, _, time)), .. }), Some(watermark)) = (&shape.grouping, watermark) {
        let same = matches!(time, Expr::Column(column) if column.name == watermark.column);
        if !same {
            return Err(SqlError::new(format!(
                "the window is over {}, but the watermark of {} follows {} and cannot say when such a window is over: \
                 take one of them for both",
                shape.display(time),
                source.name,
                watermark.column
            )));
        }
    }
    if let Some((_, place)) = watermark.and_then(|watermark| watermark.close_after) {
        let window = shape.grouping.as_ref().and_then(|grouping| grouping.window.as_ref());
        let refused = match window {
            _ if matches!(mode, OutputMode::Complete { .. }) => Some("complete mode closes no windows"),
            None => Some("without a window in GROUP BY there is nothing to close"),
            Some((_, window, _)) if !window.lasts() => Some("the gap of its sessions differs from row to row"),
            Some(_) => None,
        };
        if let Some(reason) = refused {
            let message = format!("table {}: 'watermark.close.after' cannot be: {reason}", source.name);
            return Err(SqlError::at(message, place));
        }
    }
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
    if let Some(Grouping { ranking: Some(ranked), window: None, .. }) = &shape.grouping
        && mode == OutputMode::Append
    {
        return Err(SqlError::new(format!(
            "'output.mode' 'append' writes a row once, when it is final, but a later record can always push a row out of \
             the first of its key: add window(...) to PARTITION BY of {}(), or take 'update'",
            ranked.numbering.name().to_uppercase()
        )));
    }
    match (mode, &shape.grouping) {
        // Each of its rows is final when it comes.
        (OutputMode::Append, Some(Grouping { distinct: true, .. })) => Ok(()),
        (OutputMode::Complete { .. }, Some(Grouping { distinct: true, .. })) => Err(SqlError::new(
            "'output.mode' 'complete' writes all rows again and again, but a row of SELECT DISTINCT never changes: take \
             'append'",
        )),
        (OutputMode::Append, Some(Grouping { window: None, .. })) => Err(SqlError::new(
            "'output.mode' 'append' writes a group once, when it is final, but without a window in GROUP BY no group ever \
             is: add window(...), or take 'update'",
        )),
        (OutputMode::Append, Some(_)) if watermark.is_none() => Err(SqlError::new(format!(
            "'output.mode' 'append' writes a window once, when it is final, and only a watermark says when that is: set \
             'watermark.column' and 'watermark.delay' on {}, or take 'update'",
            source.name
        ))),
        (OutputMode::Complete { .. }, None) => Err(SqlError::new(
            "'output.mode' 'complete' writes the whole result again and again, but without GROUP BY that would be every \
             record there ever was: take 'append'",
        )),
        _ => Ok(()),
    }
}

/// Refuses an event time that is no time of the table.
fn check_event_time(source: &SourceTable, watermark: &WatermarkText) -> Result<(), SqlError> {
    let error = |message: String| SqlError::at(format!("table {}: {message}", source.name), watermark.place);
    let name = watermark.column.as_str();
    if name == Metadata::Timestamp.name() {
        return Ok(());
    }
    match source.columns.field_with_name(name) {
        Ok(field) if matches!(field.data_type(), DataType::Timestamp(..)) => Ok(()),
        Ok(field) => Err(error(format!(
            "'watermark.column' '{name}' is {}, not a TIMESTAMP; for numbers declare the column as TIMESTAMP and set \
             'json.timestamp.unit'",
            field.data_type()
        ))),
        Err(_) => Err(error(format!(
            "'watermark.column' '{name}' is no column of the table; take one that is, or '_timestamp' for Kafka's"
        ))),
    }
}
