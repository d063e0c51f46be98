//! The plan in words, and the fingerprint that guards stored state.
//!
//! The fingerprint is the hash of the description, so whenever two plans differ for the state, the difference can be
//! shown. The description has the meaning of the statements and nothing of how they were written: no comments, no
//! layout, no names of tables, views and aliases. It also has the layout of the state, so a state that another version of
//! the planner laid out otherwise is refused rather than misread. Several tables and several INSERTs are in an order of
//! their own, whatever order the statements have.

use std::collections::BTreeSet;
use std::fmt::Write;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::Expr;

use super::expiry::Expiry;
use super::keeping;
use super::options::{KafkaOptions, OutputMode, WatermarkText};
use super::ranking;
use super::routing::hash;
use super::shape::{Arm, Grouping, Shape};
use super::statements::SourceTable;
use super::windows;
use crate::catalog::{SinkKind, SinkTable};

/// A line for each part: its label, and what there is to say.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, content: &str) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.0, "{label:<LABEL$} {content}");
    }
}

/// The width of the labels.
const LABEL: usize = 9;

/// The lines of a part of a plan that has several such parts, each with the name of its part, so that two plans that differ
/// differ in their lines.
pub(super) fn tagged(text: &str, tag: &str) -> String {
    text.lines().fold(String::new(), |mut tagged, line| {
        let (label, content) = line.split_at_checked(LABEL + 1).unwrap_or((line, ""));
        let _ = writeln!(tagged, "{label}[{tag}] {content}");
        tagged
    })
}

/// For each INSERT of a plan that is described so, in the order of their sinks, whether it keeps state.
pub fn which_keep_state(description: &str) -> Vec<bool> {
    let mut each = Vec::new();
    let mut keeps = false;
    for line in description.lines() {
        let (label, content) = line.split_at_checked(LABEL + 1).unwrap_or((line, ""));
        match label.trim() {
            "state" => keeps |= content != "none" && !content.ends_with("] none"),
            "write" => each.push(std::mem::take(&mut keeps)),
            _ => {}
        }
    }
    each
}

/// What is said of a table that is read, of which these columns are used.
pub(super) fn reading(source: &SourceTable, used: &[Field]) -> String {
    let mut lines = Lines::default();
    lines.add("read", &format!("topic {} as JSON: {}", source.topic, columns(used)));
    decoding(source, &mut lines);
    // How fast it follows the times is not stored: a watermark that is stays where it is, and never goes back.
    if let Some(WatermarkText { column, .. }) = &source.options.watermark {
        lines.add("watermark", &format!("by {column}"));
    }
    lines.0
}

/// What the description of one INSERT is made from.
pub(super) struct Described<'a> {
    pub(super) shape: &'a Shape,
    /// The table of each arm.
    pub(super) sources: &'a [&'a SourceTable],
    /// The pipeline reads several tables.
    pub(super) several: bool,
    pub(super) sink: &'a SinkTable,
    pub(super) mode: OutputMode,
    pub(super) expiry: Expiry,
    /// Key columns and state columns, if the query keeps state.
    pub(super) state: Option<&'a Schema>,
    /// The columns of the rows that a ranking keeps.
    pub(super) kept: &'a [Option<usize>],
    /// Those of a second aggregation.
    pub(super) second: Option<&'a Schema>,
}

impl Described<'_> {
    /// Which rows the query takes.
    fn taken(&self, lines: &mut Lines) {
        let source = self.shape.source();
        match source.arms.as_slice() {
            [Arm { columns: None, .. }] if self.several => {
                self.sources.iter().for_each(|source| lines.add("from", &format!("topic {}", source.topic)));
            }
            [Arm { columns: None, .. }] => {}
            arms => {
                for (number, (arm, source)) in arms.iter().zip(self.sources).enumerate() {
                    let number = number + 1;
                    let columns = arm.columns.iter().flatten().enumerate();
                    let columns = columns.map(|(number, expr)| format!("#{} = {expr}", number + 1));
                    let columns = columns.collect::<Vec<_>>().join(", ");
                    lines.add("from", &format!("{number}: topic {}: {columns}", source.topic));
                    let filters: BTreeSet<_> = arm.filters.iter().map(Expr::to_string).collect();
                    filters.iter().for_each(|filter| lines.add("filter", &format!("{number}: {filter}")));
                }
            }
        }
        let filters: BTreeSet<_> = source.filters.iter().map(|filter| source.display(filter)).collect();
        filters.iter().for_each(|filter| lines.add("filter", filter));
    }

    /// The query in words, a line for each part.
    pub(super) fn text(&self) -> String {
        let shape = self.shape.unnamed();
        Described { shape: &shape, ..*self }.lines()
    }

    fn lines(&self) -> String {
        let mut lines = Lines::default();
        self.taken(&mut lines);
        let mut line = |label: &str, content: &str| lines.add(label, content);
        let source = self.shape.source();
        match (&source.grouping, self.state) {
            (Some(grouping), Some(state)) => self.groups(source, grouping, state, &mut line),
            _ => line("state", "none"),
        }
        if let (Some(grouping), Some(state)) = (&self.shape.grouping, self.second) {
            let having: BTreeSet<_> = source.having.iter().map(|condition| source.display(condition)).collect();
            having.iter().for_each(|condition| line("having", condition));
            line("then", "what these windows give when they are closed, again:");
            self.groups(self.shape, grouping, state, &mut line);
        }
        let mut having = self.shape.having.as_slice();
        let mut label = "having";
        if let Some(ranked) = &self.shape.ranked_groups {
            let (before, after) = having.split_at(ranked.before);
            let before: BTreeSet<_> = before.iter().map(|condition| self.shape.display(condition)).collect();
            before.iter().for_each(|condition| line("having", condition));
            (having, label) = (after, "qualify");
            let partition = ranked.partition.iter().map(|expr| self.shape.display(expr)).collect::<Vec<_>>().join(", ");
            let order = ranked.order.iter().map(|sort| {
                let direction = if sort.asc { "up" } else { "down" };
                let nulls = if sort.nulls_first { "first" } else { "last" };
                format!("{} {direction} NULL {nulls}", self.shape.display(&sort.expr))
            });
            let order = order.collect::<Vec<_>>().join(", ");
            line("number", &format!("{}() in each {partition} by {order}", ranked.numbering.name()));
        }
        let having: BTreeSet<_> = having.iter().map(|condition| self.shape.display(condition)).collect();
        having.iter().for_each(|condition| line(label, condition));
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
        lines.0
    }

    /// How rows are grouped, what is computed of them, and how that is kept.
    fn groups(&self, shape: &Shape, grouping: &Grouping, state: &Schema, line: &mut impl FnMut(&str, &str)) {
        // The order counts for the state, so it must show when two descriptions are compared line by line.
        for (number, group) in grouping.groups.iter().enumerate() {
            let shown = match &grouping.window {
                Some((window, bounds, time)) if *window == number && shape.calls_window(number) => {
                    let bounds_shown = match windows::gap_of_rows(group) {
                        Some(gap) => shape.display(gap),
                        None => bounds.shown(),
                    };
                    format!("{}({}, {bounds_shown})", bounds.name(), shape.display(time))
                }
                _ => shape.display(group),
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
                let shown = shape.display(&sort.expr);
                line("order by", &format!("{}: {shown}, {direction}, NULL {nulls}", number + 1));
            }
            let limit = ranking::limit(shape, ranked.numbering).unwrap_or_default();
            line("keep", &format!("rows with {}() up to {limit}", ranked.numbering.name()));
            // By their order they are stored and told apart.
            for (number, kept) in self.kept.iter().enumerate() {
                let kept = kept.and_then(|kept| ranked.rows.get(kept));
                let shown = kept.map_or_else(|| "computed".to_owned(), |kept| shape.display(kept));
                line("row", &format!("{}: {shown}", number + 1));
            }
        }
        match self.expiry {
            Expiry::Never => {}
            Expiry::AtItsTime { group } => {
                line("forget", &format!("when the watermark has passed group {}", group + 1));
            }
            Expiry::AfterLastRow { ttl, .. } => {
                let mut columns: Vec<_> = self.sources.iter().map(|source| keeping::time_column(source)).collect();
                columns.dedup();
                let columns = columns.join(", ");
                line("forget", &format!("{} after the last row, by {columns}", windows::shown(ttl)));
            }
        }
        for (number, aggregate) in grouping.aggregates.iter().enumerate() {
            line("aggregate", &format!("{}: {}", number + 1, shape.display(aggregate)));
        }
        let types = state.fields().iter().map(|field| shown(field.data_type()));
        line("state", &types.collect::<Vec<_>>().join(", "));
    }
}

/// What decides on what becomes of the values of a table.
fn decoding(source: &SourceTable, lines: &mut Lines) {
    let KafkaOptions { json, rules, .. } = &source.options;
    let options: BTreeSet<_> = json.iter().map(|option| format!("json.{} {}", option.key, option.value)).collect();
    options.iter().for_each(|option| lines.add("option", option));
    if json.iter().any(|option| option.key == "extra") {
        // Which fields are extra depends on all columns, not only on those that are used.
        let names: Vec<_> = source.columns.fields().iter().map(|field| field.name().as_str()).collect();
        lines.add("declared", &names.join(", "));
    }
    let rules: BTreeSet<_> = rules.iter().map(|rule| format!("{}: {}", rule.name, rule.condition)).collect();
    rules.iter().for_each(|rule| lines.add("rule", rule));
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
pub(super) fn place(sink: &SinkTable) -> String {
    match &sink.kind {
        SinkKind::Console { .. } => "console".into(),
        SinkKind::Cassandra { keyspace, table, .. } => format!("Cassandra table {keyspace}.{table}"),
        SinkKind::Blackhole => "nowhere (blackhole)".into(),
    }
}
