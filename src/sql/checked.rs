//! The INSERTs of a pipeline, each checked by itself, and all of them against each other.

use std::collections::BTreeMap;

use datafusion::logical_expr::LogicalPlan;

use super::aggregation::check_keys;
use super::clock;
use super::constants;
use super::error::{Place, SqlError};
use super::expiry::Expiry;
use super::fingerprint::place;
use super::flat::{optimise, optimise_first};
use super::keeping;
use super::key;
use super::modes::{self, Closer};
use super::options::{OutputMode, Told};
use super::ranking;
use super::shape::Shape;
use super::statements::{InsertInto, SourceTable, Statements};
use crate::catalog::SinkTable;

/// One INSERT that would run rightly by itself.
pub(super) struct Checked<'a> {
    pub(super) sink: &'a SinkTable,
    pub(super) shape: Shape,
    /// The table of each arm.
    pub(super) sources: Vec<&'a SourceTable>,
    pub(super) mode: OutputMode,
    pub(super) expiry: Expiry,
    pub(super) optimised: LogicalPlan,
    pub(super) place: Option<Place>,
}

impl<'a> Checked<'a> {
    fn new(statements: &'a Statements, insert: &InsertInto) -> Result<Self, SqlError> {
        let state = statements.context.state();
        let analysed = state.analyzer().execute_and_check(insert.query.clone(), state.config_options(), |_, _| {})?;
        constants::check(&analysed, &state)?;
        let shape = Shape::of(&analysed)?;
        let Some(sink) = statements.sinks.get(&insert.sink) else {
            return Err(SqlError::new(format!("there is no table {} to insert into", insert.sink)));
        };
        let source = |table: &String| {
            let message = || format!("{table} is a table to write to; only kafka:// tables can be read");
            statements.sources.get(table).ok_or_else(|| SqlError::new(message()))
        };
        let sources = shape.source().arms.iter().map(|arm| source(&arm.table)).collect::<Result<Vec<_>, _>>()?;
        key::check(&shape, sink)?;
        clock::check(&shape, sink)?;
        let Told { mode: written, ttl } = statements.told.get(&insert.sink).copied().unwrap_or_default();
        let mode = written.map_or(OutputMode::default(), |(mode, _)| mode);
        modes::check(&shape, &sources, mode).map_err(|error| error.or_at(written.and_then(|(_, place)| place)))?;
        let expiry = keeping::expiry(&shape, &sources, sink, mode, ttl)?;
        for grouping in [&shape, shape.source()].into_iter().filter_map(|shape| shape.grouping.as_ref()) {
            check_keys(&grouping.groups, &grouping.group_types).map_err(SqlError::new)?;
        }
        let windowed = shape.grouping.as_ref().is_some_and(|grouping| grouping.window.is_some());
        let optimised = match shape.first {
            Some(_) => optimise_first(analysed)?,
            None if windowed => optimise(ranking::window::answer(analysed)?, true)?,
            None => optimise(analysed, false)?,
        };
        Ok(Self { sink, shape, sources, mode, expiry, optimised, place: insert.place })
    }
}

/// Checks all INSERTs.
pub(super) fn check(statements: &Statements) -> Result<Vec<Checked<'_>>, SqlError> {
    if statements.inserts.is_empty() {
        return Err(SqlError::new(
            "the statements insert into nothing: add INSERT INTO <table> SELECT ... FROM <table>",
        ));
    }
    let checked = statements
        .inserts
        .iter()
        .map(|insert| Checked::new(statements, insert).map_err(|error| error.or_at(insert.place)))
        .collect::<Result<Vec<_>, _>>()?;
    one_writer(&checked)?;
    let sources = sources(&checked);
    for (number, source) in sources.iter().enumerate() {
        if let Some(first) = sources[..number].iter().find(|first| first.topic == source.topic) {
            let message = format!(
                "tables {} and {} read the same topic {}, which is read once: declare one table with all columns, and views \
                 of it",
                first.name, source.name, source.topic
            );
            return Err(SqlError::at(message, source.place));
        }
    }
    modes::check_watermarks(&sources)?;
    let closers: Vec<_> = checked
        .iter()
        .map(|insert| Closer { shape: &insert.shape, mode: insert.mode, forgets: insert.expiry != Expiry::Never })
        .collect();
    modes::check_close_after(&sources, &closers)?;
    Ok(checked)
}

/// The tables that are read, by their topics.
pub(super) fn sources<'a>(checked: &[Checked<'a>]) -> Vec<&'a SourceTable> {
    let all = checked.iter().flat_map(|insert| &insert.sources);
    let mut sources: Vec<_> =
        all.map(|source| (source.name.as_str(), *source)).collect::<BTreeMap<_, _>>().into_values().collect();
    sources.sort_by_key(|source| source.topic.as_str());
    sources
}

/// Refuses two INSERTs whose rows could replace each other: their shards do not know of each other, so which of them is
/// last would depend on timing.
fn one_writer(checked: &[Checked<'_>]) -> Result<(), SqlError> {
    for (number, insert) in checked.iter().enumerate() {
        let same = |first: &&Checked<'_>| {
            !insert.sink.primary_key.is_empty()
                && (first.sink.name == insert.sink.name || first.sink.kind.is_same(&insert.sink.kind))
        };
        if let Some(first) = checked[..number].iter().find(same) {
            let sink = first.sink;
            return Err(SqlError::at(
                format!(
                    "two INSERT INTO write to {} ({}), where rows of one would replace those of the other, in an order that \
                     depends on timing: put the queries together by UNION ALL, or take a table for each",
                    sink.name,
                    place(sink)
                ),
                insert.place,
            ));
        }
    }
    Ok(())
}
