//! Rewrites the calls of windows in the parsed text, before it is planned.
//!
//! `GROUP BY window(ts, '1 minute')` groups by the start of the window, so that is what the call becomes. `window.start`,
//! `window.end` and `window` in SELECT and HAVING become the same expression, its end, and both as a struct; a query
//! around it finds `window.start` in that struct. So whatever DataFusion does with a query, a window is an expression
//! like any other to it.

use std::ops::ControlFlow;

use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, ExcludeSelectItem, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, GroupByExpr, Ident, Interval, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, Spanned, UnaryOperator, Value, Visit, VisitMut, Visitor, VisitorMut,
    WildcardAdditionalOptions, WindowType,
};

use super::calendar::Calendar;
use super::functions;
use crate::sql::error::{Place, SqlError, Text};
use crate::sql::metadata::{normal, plain_name};

/// The most windows that one row may be in: each is a group of its own.
const MOST_WINDOWS: i64 = 10_000;

/// The calls.
pub(in crate::sql) const CALLS: [&str; 3] = ["window", "calendar_window", "session_window"];

/// Rewrites all calls of windows in a query.
pub(in crate::sql) fn rewrite(query: &mut Query, text: &Text, statement: Option<Place>) -> Result<(), SqlError> {
    match VisitMut::visit(query, &mut Rewrite { text, statement }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rewrite<'a> {
    text: &'a Text,
    statement: Option<Place>,
}

/// The window that a SELECT groups by.
struct Grouped {
    /// The name by which SELECT and HAVING know it.
    name: String,
    /// The call as it was written.
    call: Expr,
    start: Expr,
    end: Expr,
    /// The call as it is grouped by: the start, or both bounds of a session.
    group: Expr,
}

impl VisitorMut for Rewrite<'_> {
    type Break = SqlError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        match self.select(select) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        // Whatever was in its place is rewritten by now.
        match call_of(expr) {
            Some((name, function)) => ControlFlow::Break(self.error(
                function,
                format!(
                    "{name}(...) belongs into GROUP BY, alone; SELECT and HAVING then have its bounds as {name}.start \
                     and {name}.end"
                ),
            )),
            None => ControlFlow::Continue(()),
        }
    }
}

impl Rewrite<'_> {
    fn error(&self, function: &Function, message: impl Into<String>) -> SqlError {
        let place = Place::of(function.name.span()).or_else(|| {
            let name = plain_name(&function.name).unwrap_or_default();
            self.text.word(&name, self.statement)
        });
        SqlError::at(message, place.or(self.statement))
    }

    fn select(&self, select: &mut Select) -> Result<(), SqlError> {
        spell_out(select);
        let mut partitions = partitions(select);
        let GroupByExpr::Expressions(groups, _) = &mut select.group_by else { return Ok(()) };
        // Those of PARTITION BY of a ranking are replaced below, with all that means the same.
        partitions.retain(|partition| !groups.contains(partition));
        let mut grouped: Option<Grouped> = None;
        for group in groups.iter_mut().chain(&mut partitions) {
            let Some((name, function)) = call_of(group) else { continue };
            if grouped.is_some() {
                let message = "there are two windows in GROUP BY: a row would be counted once for each pair of them";
                return Err(self.error(function, message));
            }
            let (start, end, key) = match name.as_str() {
                "session_window" => {
                    let session = self.session(function)?;
                    let bound = |name: &str| {
                        call("get_field", [session.clone(), Expr::value(Value::SingleQuotedString(name.to_owned()))])
                    };
                    (bound("start"), bound("end"), session)
                }
                _ => {
                    let (start, end) = self.bounds(&name, function)?;
                    (start.clone(), end, start)
                }
            };
            grouped = Some(Grouped { name, call: group.clone(), start, end, group: key.clone() });
            *group = key;
        }
        let Some(grouped) = grouped else { return Ok(()) };
        grouped.list(&mut select.projection);
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && let Some((written, replaced)) = grouped.meaning(expr)
            {
                *item = SelectItem::ExprWithAlias { expr: replaced, alias: Ident::with_quote('"', written) };
                continue;
            }
            if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
                grouped.replace(expr);
            }
        }
        for condition in [&mut select.having, &mut select.qualify].into_iter().flatten() {
            grouped.replace(condition);
        }
        Ok(())
    }

    /// The session that a row makes.
    fn session(&self, function: &Function) -> Result<Expr, SqlError> {
        let wrong =
            || self.error(function, format!("session_window(...) has other arguments: {}", usage("session_window")));
        let arguments = arguments(function).ok_or_else(wrong)?;
        let [time, gap] = arguments.as_slice() else { return Err(wrong()) };
        let gap = match (length_of(gap), gap) {
            (Ok(nanos), _) if nanos <= 0 => {
                return Err(self.error(function, "the gap of a session must be more than nothing"));
            }
            (Ok(nanos), _) => number(nanos),
            (Err(message), Expr::Value(_) | Expr::Interval(_)) => return Err(self.error(function, message)),
            // A gap of each row.
            (Err(_), gap) => {
                let mut gap = (*gap).clone();
                with_intervals(&mut gap).map_err(|message| self.error(function, message))?;
                gap
            }
        };
        Ok(call(functions::SESSION, [(*time).clone(), gap]))
    }

    /// The expressions of the start and the end that a call stands for.
    fn bounds(&self, name: &str, function: &Function) -> Result<(Expr, Expr), SqlError> {
        let arguments = arguments(function)
            .ok_or_else(|| self.error(function, format!("{name}(...) takes plain arguments: {}", usage(name))))?;
        match (name, arguments.as_slice()) {
            ("window", [time, lengths @ ..]) if (1..=3).contains(&lengths.len()) => {
                let mut nanos = Vec::new();
                for length in lengths {
                    nanos.push(length_of(length).map_err(|message| self.error(function, message))?);
                }
                let size = nanos[0];
                let slide = nanos.get(1).copied().unwrap_or(size);
                let offset = nanos.get(2).copied().unwrap_or(0);
                if size <= 0 || slide <= 0 {
                    return Err(self.error(function, "the size and the slide of a window must be more than nothing"));
                }
                if slide > size {
                    let message = "the slide of a window must not be longer than its size: rows between two windows would \
                                   be in none";
                    return Err(self.error(function, message));
                }
                if size / slide > MOST_WINDOWS {
                    let message = format!(
                        "each row would be in {} windows, more than {MOST_WINDOWS}: choose a longer slide",
                        size / slide
                    );
                    return Err(self.error(function, message));
                }
                // So two texts of one meaning are one plan.
                let offset = offset.rem_euclid(slide);
                let numbers = [size, slide, offset].map(number);
                let start = call(functions::START, std::iter::once((*time).clone()).chain(numbers));
                let end = call(functions::END, [start.clone(), number(size)]);
                Ok((start, end))
            }
            ("calendar_window", [time, unit, zone]) => {
                let (Some(unit), Some(zone)) = (string(unit), string(zone)) else {
                    return Err(self.error(function, format!("the unit and the zone are texts: {}", usage(name))));
                };
                Calendar::new(&unit, &zone).map_err(|message| self.error(function, message))?;
                let names = [unit.to_ascii_lowercase(), zone].map(|text| Expr::value(Value::SingleQuotedString(text)));
                let start = call(functions::CALENDAR_START, std::iter::once((*time).clone()).chain(names.clone()));
                let end = call(functions::CALENDAR_END, std::iter::once(start.clone()).chain(names));
                Ok((start, end))
            }
            _ => Err(self.error(function, format!("{name}(...) has other arguments: {}", usage(name)))),
        }
    }
}

fn usage(name: &str) -> &'static str {
    match name {
        "session_window" => "write session_window(ts, '5 minutes'), or an expression of INTERVAL as the gap",
        "calendar_window" => "write calendar_window(ts, 'day' | 'week' | 'month', 'Europe/Berlin')",
        _ => {
            "write window(ts, '10 minutes'), window(ts, '10 minutes', '5 minutes') or window(ts, '1 day', '1 day', '6 hours')"
        }
    }
}

impl Grouped {
    /// What an expression means if it is the window or one of its bounds, and under which name.
    fn meaning(&self, expr: &Expr) -> Option<(String, Expr)> {
        let bound = |field: &Ident| match normal(field).as_str() {
            "start" => Some(("start".to_owned(), self.start.clone())),
            "end" => Some(("end".to_owned(), self.end.clone())),
            _ => None,
        };
        match expr {
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [window, field] if normal(window) == self.name => bound(field),
                _ => None,
            },
            Expr::CompoundFieldAccess { root, access_chain } if **root == self.call => match access_chain.as_slice() {
                [AccessExpr::Dot(Expr::Identifier(field))] => bound(field),
                _ => None,
            },
            Expr::Identifier(window) if normal(window) == self.name => Some((self.name.clone(), self.whole())),
            expr if *expr == self.call => Some((self.name.clone(), self.whole())),
            _ => None,
        }
    }

    /// Puts both bounds in the place of `window.*`. With words that change what it means it stays, and is refused.
    fn list(&self, items: &mut Vec<SelectItem>) {
        let is_bound =
            |name: &ObjectName| plain_name(name).is_some_and(|name| matches!(name.as_str(), "start" | "end"));
        let whole = |options: &WildcardAdditionalOptions| {
            let WildcardAdditionalOptions { opt_exclude, opt_replace, opt_rename, opt_ilike, .. } = options;
            let left_out =
                matches!(opt_exclude, Some(ExcludeSelectItem::Multiple(names)) if names.iter().any(is_bound));
            !left_out && opt_replace.is_none() && opt_rename.is_none() && opt_ilike.is_none()
        };
        let all = |item: &SelectItem| match item {
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(window), options) => {
                whole(options) && plain_name(window).is_some_and(|window| window == self.name)
            }
            _ => false,
        };
        let bound =
            |name| SelectItem::UnnamedExpr(Expr::CompoundIdentifier(vec![Ident::new(&self.name), Ident::new(name)]));
        while let Some(at) = items.iter().position(all) {
            items.splice(at..=at, ["start", "end"].map(bound));
        }
    }

    fn whole(&self) -> Expr {
        if self.name == "session_window" {
            return self.group.clone();
        }
        let name = |name: &str| Expr::value(Value::SingleQuotedString(name.to_owned()));
        call("named_struct", [name("start"), self.start.clone(), name("end"), self.end.clone()])
    }

    fn replace(&self, expr: &mut Expr) {
        struct Replace<'a>(&'a Grouped);
        impl VisitorMut for Replace<'_> {
            type Break = ();

            fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
                if let Expr::Function(Function { over: Some(WindowType::WindowSpec(spec)), .. }) = expr {
                    let whole = |expr: &Expr| self.0.meaning(expr).is_some_and(|(name, _)| name == self.0.name);
                    for partition in spec.partition_by.iter_mut().filter(|expr| whole(expr)) {
                        *partition = self.0.group.clone();
                    }
                }
                ControlFlow::Continue(())
            }

            fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
                if let Some((_, meaning)) = self.0.meaning(expr) {
                    *expr = meaning;
                }
                ControlFlow::Continue(())
            }
        }
        let _ = VisitMut::visit(expr, &mut Replace(self));
    }
}

/// Puts calls of windows into GROUP BY that are named there by their alias or their number in SELECT.
fn spell_out(select: &mut Select) {
    let GroupByExpr::Expressions(groups, _) = &mut select.group_by else { return };
    let items = &select.projection;
    for group in groups {
        let item = match &*group {
            Expr::Identifier(name) => items
                .iter()
                .find(|item| matches!(item, SelectItem::ExprWithAlias { alias, .. } if normal(alias) == normal(name))),
            Expr::Value(value) => match &value.value {
                Value::Number(number, _) => {
                    number.parse::<usize>().ok().and_then(|number| items.get(number.checked_sub(1)?))
                }
                _ => None,
            },
            _ => None,
        };
        if let Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item
            && call_of(expr).is_some()
        {
            *group = expr.clone();
        }
    }
}

/// The calls in PARTITION BY of window functions, each once.
fn partitions(select: &Select) -> Vec<Expr> {
    struct Partitions(Vec<Expr>);
    impl Visitor for Partitions {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(Function { over: Some(WindowType::WindowSpec(spec)), .. }) = expr {
                for call in spec.partition_by.iter().filter(|expr| call_of(expr).is_some()) {
                    if !self.0.contains(call) {
                        self.0.push(call.clone());
                    }
                }
            }
            ControlFlow::Continue(())
        }
    }
    let mut found = Partitions(Vec::new());
    for item in &select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            let _ = Visit::visit(expr, &mut found);
        }
    }
    let _ = Visit::visit(&select.qualify, &mut found);
    found.0
}

fn call_of(expr: &Expr) -> Option<(String, &Function)> {
    let Expr::Function(function) = expr else { return None };
    let name = plain_name(&function.name)?;
    CALLS.contains(&name.as_str()).then_some((name, function))
}

/// The arguments of a call that has nothing but plain arguments.
fn arguments(function: &Function) -> Option<Vec<&Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let plain = list.duplicate_treatment.is_none() && list.clauses.is_empty() && function.filter.is_none();
    if !plain {
        return None;
    }
    list.args
        .iter()
        .map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        })
        .collect()
}

fn call(name: &str, arguments: impl IntoIterator<Item = Expr>) -> Expr {
    let args = arguments.into_iter().map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))).collect();
    Expr::Function(Function {
        name: ObjectName::from(Ident::with_quote('"', name)),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn number(value: i64) -> Expr {
    Expr::value(Value::Number(value.to_string(), false))
}

fn string(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Value(value) => value.value.clone().into_string(),
        _ => None,
    }
}

/// A length of time as it is written in SQL, in nanoseconds.
fn length_of(expr: &Expr) -> Result<i64, String> {
    let written = match expr {
        Expr::Interval(interval) => match (string(&interval.value), &interval.leading_field) {
            (Some(text), Some(field)) => Some(format!("{text} {field}")),
            (Some(text), None) => Some(text),
            (None, Some(field)) => match interval.value.as_ref() {
                Expr::Value(value) => Some(format!("{value} {field}")),
                _ => None,
            },
            (None, None) => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => return length_of(expr).map(|nanos| -nanos),
        expr => string(expr),
    };
    let written = written.ok_or_else(|| format!("{expr} is no length of time: write it like '10 minutes'"))?;
    length(&written)
}

/// Makes intervals of the texts that a CASE results in, as Spark reads them.
fn with_intervals(gap: &mut Expr) -> Result<(), String> {
    match gap {
        Expr::Nested(gap) => with_intervals(gap),
        Expr::Case { conditions, else_result, .. } => {
            let results = conditions.iter_mut().map(|case| &mut case.result);
            results.chain(else_result.as_deref_mut()).try_for_each(with_intervals)
        }
        text if string(text).is_some() => {
            let nanos = Expr::value(Value::SingleQuotedString(format!("{} nanoseconds", length_of(text)?)));
            *text = Expr::Interval(Interval {
                value: Box::new(nanos),
                leading_field: None,
                leading_precision: None,
                last_field: None,
                fractional_seconds_precision: None,
            });
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A length of time as text, in nanoseconds.
pub(in crate::sql) fn length(text: &str) -> Result<i64, String> {
    let words = text.trim();
    let words = words.strip_prefix("interval ").or_else(|| words.strip_prefix("INTERVAL ")).unwrap_or(words);
    // Arrow takes a number alone for seconds, and nothing for 0; that is no way to write a length.
    let named = words.chars().any(|c| c.is_ascii_alphabetic());
    let interval = match parse_interval_month_day_nano(words) {
        Ok(interval) if named => interval,
        _ => return Err(format!("'{text}' is no length of time: write it like '10 minutes' or '1 hour 30 minutes'")),
    };
    if interval.months != 0 {
        return Err(format!(
            "'{text}' is no fixed length, since months differ: write days, like '30 days'; for windows, \
             calendar_window(ts, 'month', 'Europe/Berlin') has the months of a time zone"
        ));
    }
    i64::from(interval.days)
        .checked_mul(86_400_000_000_000)
        .and_then(|days| days.checked_add(interval.nanoseconds))
        .ok_or_else(|| format!("'{text}' is too long"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::length;

    #[test]
    fn lengths_as_they_are_written() {
        for (text, seconds) in [
            ("1 minute", 60),
            ("10 seconds", 10),
            ("1 hour 30 minutes", 5400),
            ("interval 2 days", 172_800),
            ("1 week", 604_800),
            ("-5 minutes", -300),
            ("0 seconds", 0),
        ] {
            assert_eq!(length(text), Ok(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(length("1500 milliseconds"), Ok(1_500_000_000));
        assert_eq!(length("7 microseconds"), Ok(7_000));
        for (text, part) in [
            ("1 month", "calendar_window"),
            ("1 year 2 days", "calendar_window"),
            ("soon", "no length of time"),
            ("", "no length of time"),
            ("5", "no length of time"),
        ] {
            assert!(length(text).unwrap_err().contains(part), "{text}: {:?}", length(text));
        }
    }
}
