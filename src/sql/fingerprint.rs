//! The plan in words, and the fingerprint that guards stored state.
//!
//! The fingerprint is the hash of the description, so whenever two plans differ for the state, the difference can be
//! shown. The description has the meaning of the statements and nothing of how they were written: no comments, no
//! layout, no names of tables, views and aliases. It also has the layout of the state, so a state that another version of
//! the planner laid out otherwise is refused rather than misread.

use std::collections::BTreeSet;
use std::fmt::Write;

use arrow::datatypes::{DataType, Field, Schema};

use super::expiry::Expiry;
use super::keeping;
use super::options::{KafkaOptions, OutputMode, WatermarkText};
use super::ranking;
use super::routing::hash;
use super::shape::Shape;
use super::statements::SourceTable;
use super::windows;
use crate::catalog::{SinkKind, SinkTable};

/// What the description is made from.
pub(super) struct Described<'a> {
    pub(super) shape: &'a Shape,
    pub(super) source: &'a SourceTable,
    pub(super) sink: &'a SinkTable,
    pub(super) mode: OutputMode,
    pub(super) expiry: Expiry,
    /// The columns that the query and the rules use.
    pub(super) used: &'a [Field],
    /// Key columns and state columns, if the query keeps state.
    pub(super) state: Option<&'a Schema>,
}

impl Described<'_> {
    /// The plan in words, a line for each part.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, content: &str| {
            let _ = writeln!(text, "{label:<9} {content}");
        };
        line("read", &format!("topic {} as JSON: {}", self.source.topic, columns(self.used)));
        self.decoding(&mut line);
        if let Some(WatermarkText { column, delay, max_ahead, idle, close_after, .. }) = &self.source.options.watermark
        {
            let (delay, ahead) = (windows::shown(*delay), windows::shown(*max_ahead));
            let idle = idle.map(|idle| format!(", idle after {}", windows::shown(idle))).unwrap_or_default();
            let close = close_after.map(|(close, _)| format!(", closed after {}", windows::shown(close)));
            line("watermark", &format!("{column} - {delay}, at most {ahead} ahead{idle}{}", close.unwrap_or_default()));
        }
        let filters: BTreeSet<_> = self.shape.filters.iter().map(|filter| self.shape.display(filter)).collect();
        filters.iter().for_each(|filter| line("filter", filter));
        match (&self.shape.grouping, self.state) {
            (Some(grouping), Some(state)) => {
                // The order counts for the state, so it must show when two descriptions are compared line by line.
                for (number, group) in grouping.groups.iter().enumerate() {
                    let shown = match &grouping.window {
                        Some((window, bounds, time)) if *window == number => {
                            let bounds_shown = match windows::gap_of_rows(group) {
                                Some(gap) => self.shape.display(gap),
                                None => bounds.shown(),
                            };
                            format!("{}({}, {bounds_shown})", bounds.name(), self.shape.display(time))
                        }
                        _ => self.shape.display(group),
                    };
                    line("group by", &format!("{}: {shown}", number + 1));
                }
                if grouping.groups.is_empty() {
                    line("group by", "nothing: one group of everything");
                }
                if grouping.distinct {
                    line("keep", "each group once");
                }
                if let Some(ranked) = &grouping.ranking {
                    for (number, sort) in ranked.order.iter().enumerate() {
                        let direction = if sort.asc { "up" } else { "down" };
                        let nulls = if sort.nulls_first { "first" } else { "last" };
                        let shown = self.shape.display(&sort.expr);
                        line("order by", &format!("{}: {shown}, {direction}, NULL {nulls}", number + 1));
                    }
                    let limit = ranking::limit(self.shape, ranked.numbering).unwrap_or_default();
                    line("keep", &format!("rows with {}() up to {limit}", ranked.numbering.name()));
                }
                match self.expiry {
                    Expiry::Never => {}
                    Expiry::AtItsTime { group } => {
                        line("forget", &format!("when the watermark has passed group {}", group + 1));
                    }
                    Expiry::AfterLastRow { ttl, .. } => {
                        let column = keeping::time_column(self.source);
                        line("forget", &format!("{} after the last row, by {column}", windows::shown(ttl)));
                    }
                }
                for (number, aggregate) in grouping.aggregates.iter().enumerate() {
                    line("aggregate", &format!("{}: {}", number + 1, self.shape.display(aggregate)));
                }
                let types = state.fields().iter().map(|field| shown(field.data_type()));
                line("state", &types.collect::<Vec<_>>().join(", "));
            }
            _ => line("state", "none"),
        }
        if let Some(ranked) = &self.shape.ranked_groups {
            let partition = ranked.partition.iter().map(|expr| self.shape.display(expr)).collect::<Vec<_>>().join(", ");
            let order = ranked.order.iter().map(|sort| {
                let direction = if sort.asc { "up" } else { "down" };
                let nulls = if sort.nulls_first { "first" } else { "last" };
                format!("{} {direction} NULL {nulls}", self.shape.display(&sort.expr))
            });
            let order = order.collect::<Vec<_>>().join(", ");
            line("number", &format!("{}() in each {partition} by {order}", ranked.numbering.name()));
        }
        let having: BTreeSet<_> = self.shape.having.iter().map(|condition| self.shape.display(condition)).collect();
        having.iter().for_each(|condition| line("having", condition));
        match self.mode {
            OutputMode::Update => {}
            OutputMode::Append => line("mode", "append"),
            OutputMode::Complete { .. } => line("mode", "complete"),
        }
        line("write", &place(self.sink));
        if !self.sink.primary_key.is_empty() {
            line("key", &self.sink.primary_key.join(", "));
        }
        for ((name, expr), field) in self.shape.output.iter().zip(self.sink.schema.fields()) {
            line("column", &format!("{name} {} = {}", shown(field.data_type()), self.shape.display(expr)));
        }
        text
    }

    fn decoding(&self, line: &mut impl FnMut(&str, &str)) {
        let KafkaOptions { json, rules, .. } = &self.source.options;
        let options: BTreeSet<_> = json.iter().map(|option| format!("json.{} {}", option.key, option.value)).collect();
        options.iter().for_each(|option| line("option", option));
        if json.iter().any(|option| option.key == "extra") {
            // Which fields are extra depends on all columns, not only on those that are used.
            let names: Vec<_> = self.source.columns.fields().iter().map(|field| field.name().as_str()).collect();
            line("declared", &names.join(", "));
        }
        let rules: BTreeSet<_> = rules.iter().map(|rule| format!("{}: {}", rule.name, rule.condition)).collect();
        rules.iter().for_each(|rule| line("rule", rule));
    }
}

/// The fingerprint of a description.
pub(super) fn fingerprint(description: &str) -> String {
    format!("1-{:016x}", hash(description.as_bytes()))
}

fn columns(fields: &[Field]) -> String {
    if fields.is_empty() {
        return "no columns".into();
    }
    let column = |field: &Field| {
        let required = if field.is_nullable() { "" } else { " NOT NULL" };
        format!("{} {}{required}", field.name(), shown(field.data_type()))
    };
    fields.iter().map(column).collect::<Vec<_>>().join(", ")
}

fn shown(data_type: &DataType) -> String {
    data_type.to_string()
}

/// Where a sink is.
fn place(sink: &SinkTable) -> String {
    match &sink.kind {
        SinkKind::Console { .. } => "console".into(),
        SinkKind::Cassandra { keyspace, table, .. } => format!("Cassandra table {keyspace}.{table}"),
        SinkKind::Blackhole => "nowhere (blackhole)".into(),
    }
}
