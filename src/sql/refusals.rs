//! What a query must not contain, looked for in the parsed text, where the place of everything is still known.
//!
//! The rule is: what is not known to run rightly on a stream is refused with the reason. Functions and aggregates are
//! judged by what DataFusion says of them, aggregates also by a list of those whose result does not depend on the
//! order in which records arrive.

use std::ops::ControlFlow;

use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Volatility;
use datafusion::sql::sqlparser::ast::{
    Distinct, DuplicateTreatment, Expr, Function, FunctionArgumentClause, FunctionArguments, GroupByExpr, LimitClause,
    Query, Select, SetExpr, SetOperator, SetQuantifier, Spanned, TableFactor, Value, ValueWithSpan, Visit, Visitor,
    WindowType,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::error::{Place, SqlError, Text};
use super::metadata::{normal, plain_name};
use super::ranking;
use super::windows;

/// Why there are no joins yet, and what to do meanwhile.
const ONE_TABLE: &str =
    "a query reads one table so far; meanwhile have the producer write the columns into the records";

/// Aggregates whose result is the same in whatever order records come and however they are cut into batches.
pub(super) const AGGREGATES: [&str; 29] = [
    "approx_distinct",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "max",
    "median",
    "min",
    "percentile_cont",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

/// Aggregates of two columns, and one of bits, of which DataFusion takes all rows, whether DISTINCT is written or not.
const OF_ALL_ROWS: [&str; 13] = [
    "bit_xor",
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
];

/// Aggregates that need an order which a stream does not have.
pub(super) const ORDERED: [&str; 6] =
    ["any_value", "array_agg", "first_value", "last_value", "nth_value", "string_agg"];

/// Aggregates whose approximation depends on how the records were cut into batches.
pub(super) const APPROXIMATE: [&str; 3] =
    ["approx_median", "approx_percentile_cont", "approx_percentile_cont_with_weight"];

/// Functions of other dialects that have to do with time, and what there is in their place.
const OF_TIME: [(&str, &str); 8] = [
    (
        "window_time",
        "window.end is when a window is closed, and GROUP BY window(window, '1 hour') makes windows of windows",
    ),
    ("tumble", WINDOWS),
    ("hop", WINDOWS),
    ("cumulate", WINDOWS),
    ("time_bucket_gapfill", WINDOWS),
    ("session", "GROUP BY session_window(ts, '5 minutes') makes sessions, which end when nothing came for so long"),
    ("proctime", PROCESSING_TIME),
    ("current_watermark", "when a window is closed is decided by 'output.mode' 'append', not by the query"),
];
const WINDOWS: &str = "GROUP BY window(ts, '10 minutes'), or window(ts, '10 minutes', '5 minutes') for a window every five \
    minutes, makes windows of event time";
const PROCESSING_TIME: &str = "the column _processing_time is when a record is processed; as 'watermark.column' it makes \
    windows of processing time";

/// Looks through a query. `taken` says whether a name belongs to a table or view already.
pub(super) fn check(
    query: &Query,
    state: &SessionState,
    text: &Text,
    statement: Option<Place>,
    taken: &dyn Fn(&str) -> bool,
) -> Result<(), SqlError> {
    let mut check = Check { state, text, statement, taken };
    match Visit::visit(query, &mut check) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Check<'a> {
    state: &'a SessionState,
    text: &'a Text,
    statement: Option<Place>,
    taken: &'a dyn Fn(&str) -> bool,
}

type Verdict = ControlFlow<SqlError>;

impl Check<'_> {
    /// Refuses what begins at a span; where the parser lost it, the first `word` of the statement is meant.
    fn refuse(&self, span: Span, word: &str, message: impl Into<String>) -> Verdict {
        let place = Place::of(span).or_else(|| self.text.word(word, self.statement)).or(self.statement);
        ControlFlow::Break(SqlError::at(message, place))
    }

    fn refuse_word(&self, word: &str, message: impl Into<String>) -> Verdict {
        self.refuse(Span::empty(), word, message)
    }

    fn function(&mut self, function: &Function) -> Verdict {
        let Some(name) = plain_name(&function.name) else {
            let message = format!("the function name {} has several parts; use its plain name", function.name);
            return self.refuse(function.name.span(), "", message);
        };
        let span = function.name.span();
        if let Some(over) = &function.over {
            return match ranks(&name, over) {
                Ok(()) => Verdict::Continue(()),
                Err(message) => self.refuse(span, &name, message),
            };
        }
        if let Some((_, instead)) = OF_TIME.iter().find(|(of_time, _)| *of_time == name) {
            return self.refuse(span, &name, format!("{name}(...) is not supported: {instead}"));
        }
        if windows::is_internal(&name) {
            return self.refuse(span, &name, format!("there is no function {name}"));
        }
        if name == "unnest" {
            return self.refuse(
                span,
                &name,
                "unnest(...) is not supported yet: one record makes at most one row so far",
            );
        }
        if let Some(scalar) = self.state.scalar_functions().get(&name) {
            if scalar.signature().volatility != Volatility::Immutable {
                let message = format!(
                    "{name}() changes from run to run, so a record that is processed again after a crash would give \
                     another result; the record's own time is in the column _timestamp"
                );
                return self.refuse(span, &name, message);
            }
        } else if let Some(aggregate) = self.state.aggregate_functions().get(&name) {
            let canonical = aggregate.name().to_owned();
            return self.aggregate(function, &name, &canonical);
        } else if self.state.window_functions().contains_key(&name) {
            let message = format!("the window function {name}(...) is not supported: a stream has no last row");
            return self.refuse(span, &name, message);
        }
        Verdict::Continue(())
    }

    fn aggregate(&self, function: &Function, name: &str, canonical: &str) -> Verdict {
        let span = function.name.span();
        if ORDERED.contains(&canonical) {
            let message = format!(
                "{name}(...) is not supported: its result depends on the order of the rows, and records of several \
                 partitions have none"
            );
            return self.refuse(span, name, message);
        }
        if APPROXIMATE.contains(&canonical) {
            let message = format!(
                "{name}(...) is not supported: its estimate depends on how the records happen to be cut into batches, \
                 so it would change after a crash; median(...) and percentile_cont(...) are exact"
            );
            return self.refuse(span, name, message);
        }
        if !AGGREGATES.contains(&canonical) {
            let message = format!(
                "the aggregate {name}(...) is not supported yet: that its result does not depend on the order of the \
                 records is not shown; supported are {}",
                AGGREGATES.join(", ")
            );
            return self.refuse(span, name, message);
        }
        if let FunctionArguments::List(list) = &function.args {
            if list.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
                if OF_ALL_ROWS.contains(&canonical) {
                    let message = format!(
                        "{name}(DISTINCT ...) is not supported: it takes no DISTINCT, and would be computed of all rows"
                    );
                    return self.refuse(span, name, message);
                }
                if canonical == "count" && list.args.len() > 1 {
                    let columns = list.args.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    let message = format!(
                        "count(DISTINCT {columns}) is not supported: write count(DISTINCT struct({columns})), which counts rows \
                         with a NULL too"
                    );
                    return self.refuse(span, name, message);
                }
            }
            for clause in &list.clauses {
                if matches!(clause, FunctionArgumentClause::OrderBy(_) | FunctionArgumentClause::Limit(_)) {
                    let message = format!(
                        "{name}(... ORDER BY ...) is not supported: the order of the rows within a group is not kept"
                    );
                    return self.refuse(span, name, message);
                }
            }
        }
        Verdict::Continue(())
    }

    fn table(&self, factor: &TableFactor) -> Verdict {
        match factor {
            TableFactor::Table { args: Some(_), name, .. } => self.refuse(
                name.span(),
                "FROM",
                format!("the table function {name}(...) is not supported: a pipeline reads declared tables only"),
            ),
            TableFactor::Table {
                name,
                alias,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                with_hints,
                index_hints,
                ..
            } => {
                let plain = version.is_none()
                    && !with_ordinality
                    && partitions.is_empty()
                    && json_path.is_none()
                    && with_hints.is_empty()
                    && index_hints.is_empty();
                if sample.is_some() {
                    let message = "TABLESAMPLE is not supported: a random choice would differ after a crash";
                    return self.refuse(name.span(), "TABLESAMPLE", message);
                }
                if !plain {
                    let message = format!("what follows the table {name} is not supported: only its name and an alias");
                    return self.refuse(name.span(), "FROM", message);
                }
                if let Some(alias) = alias.as_ref().filter(|alias| !alias.columns.is_empty()) {
                    let message =
                        format!("the alias {alias} renames columns, which is not supported: use AS in SELECT");
                    return self.refuse(alias.name.span, "FROM", message);
                }
                if plain_name(name).is_none() {
                    let message = format!("the table name {name} has several parts; declared tables have plain names");
                    return self.refuse(name.span(), "FROM", message);
                }
                Verdict::Continue(())
            }
            TableFactor::Derived { lateral: false, sample: None, .. } => Verdict::Continue(()),
            other => self.refuse(
                other.span(),
                "FROM",
                format!("`{other}` in FROM is not supported yet: a query reads one table, view or subquery"),
            ),
        }
    }
}

impl Check<'_> {
    /// Refuses what cannot put rows together. Queries within are visited by themselves.
    fn set_operation(&self, op: SetOperator, quantifier: SetQuantifier, sides: [&SetExpr; 2]) -> Verdict {
        let word = op.to_string();
        match (op, quantifier) {
            (SetOperator::Union, SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None) => {}
            (SetOperator::Union, _) => {
                let message = "UNION ... BY NAME is not supported: columns are put together by position";
                return self.refuse_word(&word, message);
            }
            _ => {
                let message = format!("{word} is not supported yet: it would be a join of two tables");
                return self.refuse_word(&word, message);
            }
        }
        for side in sides {
            match side {
                SetExpr::Select(_) | SetExpr::Query(_) => {}
                SetExpr::SetOperation { op, set_quantifier, left, right } => {
                    self.set_operation(*op, *set_quantifier, [left, right])?;
                }
                other => {
                    let message = format!("`{other}` is not supported in {word}: use SELECT");
                    return self.refuse_word(&word, message);
                }
            }
        }
        Verdict::Continue(())
    }
}

impl Visitor for Check<'_> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &Query) -> Verdict {
        if let Some(with) = &query.with {
            if with.recursive {
                return self.refuse(with.span(), "RECURSIVE", "WITH RECURSIVE is not supported: a stream has no end");
            }
            for cte in &with.cte_tables {
                let name = normal(&cte.alias.name);
                if (self.taken)(&name) {
                    let message =
                        format!("WITH {name}: there is a table or view of this name already; use another one");
                    return self.refuse(cte.alias.name.span, &name, message);
                }
            }
        }
        match query.body.as_ref() {
            SetExpr::Select(_) | SetExpr::Query(_) => {}
            SetExpr::SetOperation { op, set_quantifier, left, right } => {
                self.set_operation(*op, *set_quantifier, [left, right])?
            }
            SetExpr::Values(_) => {
                return self.refuse_word("VALUES", "VALUES is not supported: a pipeline reads a kafka:// table");
            }
            other => {
                let message = format!("`{other}` is not supported here: use SELECT");
                return self.refuse(other.span(), "INSERT", message);
            }
        }
        if let Some(order) = &query.order_by {
            let message = "ORDER BY is not supported: a stream has no last row, so there is nothing to sort; \
                sort when you read the result";
            return self.refuse(self.keyword("ORDER", order.span()), "ORDER", message);
        }
        if query.limit_clause.is_some() || query.fetch.is_some() {
            let word = match &query.limit_clause {
                _ if query.fetch.is_some() => "FETCH",
                Some(LimitClause::LimitOffset { limit: None, .. }) => "OFFSET",
                _ => "LIMIT",
            };
            let message = format!(
                "{word} is not supported: which rows come first depends on timing, so the result would differ after a \
                 crash"
            );
            return self.refuse_word(word, message);
        }
        let plain = query.locks.is_empty()
            && query.for_clause.is_none()
            && query.settings.is_none()
            && query.format_clause.is_none()
            && query.pipe_operators.is_empty();
        if !plain {
            let message = "FOR, SETTINGS, FORMAT and |> after a query are not supported";
            return self.refuse(query.span(), "FOR", message);
        }
        Verdict::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> Verdict {
        if matches!(select.distinct, Some(Distinct::On(_))) {
            let message = "DISTINCT ON is not supported: QUALIFY ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) = 1 \
                says which row of each key is meant";
            return self.refuse_word("DISTINCT", message);
        }
        match select.from.as_slice() {
            [] => {
                return self.refuse(
                    select.span(),
                    "SELECT",
                    "this SELECT has no FROM: a pipeline reads a kafka:// table",
                );
            }
            [from] if from.joins.is_empty() => {}
            [from] => {
                let span = from.joins.first().map_or_else(Span::empty, |join| join.relation.span());
                let message = format!("JOIN is not supported yet: {ONE_TABLE}");
                return self.refuse(self.keyword("JOIN", span), "JOIN", message);
            }
            [_, second, ..] => {
                let message = format!("a join of several tables in FROM is not supported yet: {ONE_TABLE}");
                return self.refuse(second.relation.span(), "FROM", message);
            }
        }
        let modifiers = match &select.group_by {
            GroupByExpr::All(_) => {
                return self.refuse_word("GROUP", "GROUP BY ALL is not supported: name the columns to group by");
            }
            GroupByExpr::Expressions(_, modifiers) => modifiers,
        };
        if let Some(modifier) = modifiers.first() {
            let message = format!("GROUP BY ... {modifier} is not supported yet: write one query per grouping");
            return self.refuse_word("WITH", message);
        }
        if !select.named_window.is_empty() {
            let message = "WINDOW is not supported: write what it stands for into OVER (...)";
            return self.refuse_word("WINDOW", message);
        }
        let plain = select.top.is_none()
            && select.into.is_none()
            && select.exclude.is_none()
            && select.lateral_views.is_empty()
            && select.prewhere.is_none()
            && select.connect_by.is_empty()
            && select.cluster_by.is_empty()
            && select.distribute_by.is_empty()
            && select.sort_by.is_empty()
            && select.value_table_mode.is_none()
            && select.select_modifiers.is_none();
        if !plain {
            let message = "this SELECT has a clause that is not supported: known are FROM, WHERE, GROUP BY and HAVING";
            return self.refuse(select.span(), "SELECT", message);
        }
        Verdict::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> Verdict {
        self.table(factor)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> Verdict {
        match expr {
            Expr::Function(function) => self.function(function),
            Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. } => {
                let message = "a subquery inside an expression is not supported yet: it would be a join";
                self.refuse(expr.span(), "SELECT", message)
            }
            Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => {
                let word = match expr {
                    Expr::Cube(_) => "CUBE",
                    Expr::Rollup(_) => "ROLLUP",
                    _ => "GROUPING",
                };
                let name = if word == "GROUPING" { "GROUPING SETS" } else { word };
                let message = format!("{name} is not supported yet: write one query per grouping");
                self.refuse(self.keyword(word, expr.span()), word, message)
            }
            Expr::Value(ValueWithSpan { value: Value::Placeholder(name), span }) => {
                self.refuse(*span, "", format!("the placeholder {name} has no value: write the value itself"))
            }
            _ => Verdict::Continue(()),
        }
    }
}

/// Refuses a window function that is no ranking.
fn ranks(name: &str, over: &WindowType) -> Result<(), String> {
    if !ranking::FUNCTIONS.contains(&name) {
        return Err(format!(
            "the window function {name}(...) OVER is not supported: its result over a stream would never be final; \
             aggregate with GROUP BY instead, or take the first rows of each key by ROW_NUMBER() OVER (...) <= n"
        ));
    }
    let upper = name.to_uppercase();
    match over {
        WindowType::NamedWindow(window) => {
            Err(format!("WINDOW is not supported: write what {window} stands for into OVER (...)"))
        }
        WindowType::WindowSpec(spec) if spec.window_name.is_some() || spec.window_frame.is_some() => {
            Err(format!("{upper}() OVER takes PARTITION BY and ORDER BY alone"))
        }
        WindowType::WindowSpec(spec) if spec.order_by.is_empty() => Err(format!(
            "{upper}() OVER (...) needs ORDER BY: records of several partitions have no order of their own, so which comes \
             first would depend on timing"
        )),
        WindowType::WindowSpec(_) => Ok(()),
    }
}

impl Check<'_> {
    /// The place of a keyword of this statement if it is there, or else the span.
    fn keyword(&self, word: &str, span: Span) -> Span {
        if self.text.word(word, self.statement).is_some() { Span::empty() } else { span }
    }
}
