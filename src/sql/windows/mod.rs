//! Windows of event time: what they are, and to which of them a time belongs.
//!
//! A window is `[start, end)`. In SQL it is a call in GROUP BY, which [`calls`] rewrites into functions that DataFusion
//! evaluates ([`functions`]); a group's key column is then the start of its window, or both bounds of its session. [`event_time`] moves the watermark of
//! a partition row by row and says which rows are late, [`sliding`] gives a row to each of its windows, [`sessions`] merges rows into sessions, and [`closing`]
//! closes windows that the watermark of a shard has passed.

mod calendar;
pub(super) mod calls;
pub(super) mod closing;
pub(super) mod event_time;
mod functions;
pub(super) mod sessions;
pub(super) mod sliding;
mod spans;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::Expr;

use self::calendar::Calendar;
use self::event_time::EARLIEST;
use self::sessions::Bounds;
use self::sliding::ticks;
use super::error::SqlError;

/// The windows of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    kind: Kind,
    /// Nanoseconds in one tick of the times.
    tick: i64,
    /// How long after its end a window is closed, in nanoseconds.
    lag: i64,
}

/// Lengths of windows in ticks of the times.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Windows of one size, one every `slide`. Tumbling windows are those that slide by their size.
    Sliding { size: i64, slide: i64, offset: i64 },
    /// Days, weeks or months somewhere.
    Calendar(Calendar),
    /// As long as rows come, with a gap of this many nanoseconds if it is the same for all of them.
    Session { gap: Option<i64> },
    /// Windows of an earlier grouping, known by their end or by both bounds; perhaps sessions.
    Ended { sessions: bool },
}

/// The expression of a session's gap, if it is not the same for all rows.
pub(super) fn gap_of_rows(group: &Expr) -> Option<&Expr> {
    let Expr::ScalarFunction(call) = group else { return None };
    match (call.func.name(), call.args.as_slice()) {
        (functions::SESSION, [_, gap]) if whole(gap).is_none() => Some(gap),
        _ => None,
    }
}

fn too_coarse(time: &Expr, data_type: &DataType, nanos: i64) -> SqlError {
    SqlError::new(format!(
        "{time} is {data_type}, which is too coarse for a window of {}: declare it with a finer unit",
        shown(nanos)
    ))
}

impl Window {
    /// The window that a group expression stands for, if it is one, with the expression of its time.
    pub(super) fn of<'a>(group: &'a Expr, data_type: &DataType) -> Result<Option<(Self, &'a Expr)>, SqlError> {
        let Expr::ScalarFunction(call) = group else { return Ok(None) };
        let arguments = call.args.as_slice();
        let (time, kind) = match (call.func.name(), arguments) {
            (functions::START, [time, size, slide, offset]) => {
                let tick = tick(data_type);
                let mut lengths = [0; 3];
                for (length, written) in lengths.iter_mut().zip([size, slide, offset]) {
                    let nanos = whole(written).unwrap_or_default();
                    if nanos % tick != 0 {
                        return Err(too_coarse(time, data_type, nanos));
                    }
                    *length = nanos / tick;
                }
                let [size, slide, offset] = lengths;
                (time, Kind::Sliding { size, slide, offset })
            }
            (functions::CALENDAR_START, [time, unit, zone]) => {
                let (unit, zone) = (text(unit).unwrap_or_default(), text(zone).unwrap_or_default());
                (time, Kind::Calendar(Calendar::new(unit, zone).map_err(SqlError::new)?))
            }
            (functions::SESSION, [time, gap]) => {
                if let Some(nanos) = whole(gap).filter(|nanos| nanos % tick(bound_type(data_type)) != 0) {
                    return Err(too_coarse(time, bound_type(data_type), nanos));
                }
                (time, Kind::Session { gap: whole(gap) })
            }
            _ => return Ok(None),
        };
        Ok(Some((Self { kind, tick: tick(bound_type(data_type)), lag: 0 }, time)))
    }

    /// Whether an expression is a bound that is taken from the window of another expression: which, and of what.
    pub(super) fn bound_of(expr: &Expr) -> Option<(&str, &Expr)> {
        let Expr::ScalarFunction(call) = expr else { return None };
        match (call.func.name(), call.args.as_slice()) {
            (functions::END | functions::CALENDAR_END, [start, ..]) => Some(("end", start)),
            ("get_field", [session, name]) => Some((text(name)?, session)),
            _ => None,
        }
    }

    /// Whether an expression makes windows, anywhere in it.
    pub(super) fn within(expr: &Expr) -> bool {
        use datafusion::common::tree_node::TreeNode;
        let of_windows = |expr: &Expr| matches!(expr, Expr::ScalarFunction(call) if is_internal(call.func.name()));
        expr.exists(|expr| Ok(of_windows(expr))).unwrap_or(false)
    }

    /// Whether an expression calls a window, anywhere in it.
    pub(super) fn called_within(expr: &Expr) -> bool {
        use datafusion::common::tree_node::TreeNode;
        const CALLED: [&str; 3] = [functions::START, functions::CALENDAR_START, functions::SESSION];
        let called = |expr: &Expr| matches!(expr, Expr::ScalarFunction(call) if CALLED.contains(&call.func.name()));
        expr.exists(|expr| Ok(called(expr))).unwrap_or(false)
    }

    /// The same windows, closed so many nanoseconds later.
    pub(super) fn later(self, lag: i64) -> Self {
        Self { lag, ..self }
    }

    /// These windows where a column holds their ends, or both bounds. They are closed at the same watermark.
    pub(super) fn known_by_end(&self) -> Self {
        let sessions = self.is_session();
        Self { kind: Kind::Ended { sessions }, tick: self.tick, lag: i64::from(sessions) }
    }

    /// Nanoseconds in one tick of the times.
    pub(super) fn tick(&self) -> i64 {
        self.tick
    }

    /// For windows over the starts of others: how long after the end of one of them the others in it may still be open, and
    /// how long these last, both in nanoseconds. `None`: that differs.
    pub(super) fn over_starts_of(&self, inner: &Self) -> Option<(i64, i64)> {
        let Kind::Sliding { size: inner_size, slide: step, offset: first } = &inner.kind else { return None };
        let lag = match &self.kind {
            // The last that starts before an end starts one step before it.
            Kind::Sliding { size, slide, offset } if slide % step == 0 && (offset + size - first) % step == 0 => {
                inner_size - step
            }
            _ => *inner_size,
        };
        Some((lag * self.tick, inner_size * self.tick))
    }

    /// Whether the windows are sessions.
    pub(super) fn is_session(&self) -> bool {
        matches!(self.kind, Kind::Session { .. })
    }

    /// Whether they were sessions of an earlier grouping.
    pub(super) fn is_of_sessions(&self) -> bool {
        matches!(self.kind, Kind::Ended { sessions: true })
    }

    /// How its bounds are called.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sliding { .. } => "window",
            Kind::Calendar(_) => "calendar_window",
            Kind::Session { .. } => "session_window",
            Kind::Ended { .. } => "window",
        }
    }

    /// The ticks by which [`Window::end`] knows the windows in a key column: their starts, or the ends of sessions.
    pub(super) fn marks(&self, column: &ArrayRef) -> Result<Int64Array, DataFusionError> {
        match matches!(column.data_type(), DataType::Struct(_)) {
            true => Ok(Bounds::of(column)?.ends),
            false => ticks(column),
        }
    }

    /// The watermark at which a window is closed, in nanoseconds since the epoch: its end, or what is just past that of a
    /// session, which a row at its very end would prolong.
    pub(super) fn end(&self, mark: i64) -> i64 {
        let end = match &self.kind {
            Kind::Session { .. } => mark.saturating_mul(self.tick).saturating_add(1),
            Kind::Sliding { size, .. } => self.closed_at(mark.saturating_add(*size)),
            Kind::Calendar(calendar) => self.closed_at(calendar.end(mark, self.tick).unwrap_or(i64::MAX)),
            Kind::Ended { .. } => self.closed_at(mark),
        };
        // One that ended before all watermarks that can be told is closed by the second of them, not by the first.
        end.max(EARLIEST + 1)
    }

    fn closed_at(&self, end: i64) -> i64 {
        end.saturating_mul(self.tick).saturating_add(self.lag)
    }

    /// The window in words.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            Kind::Sliding { size, slide, offset } => {
                let mut text = shown(size * self.tick);
                if slide != size {
                    text += &format!(" every {}", shown(slide * self.tick));
                }
                if *offset != 0 {
                    text += &format!(" from {}", shown(offset * self.tick));
                }
                text
            }
            Kind::Calendar(calendar) => calendar.shown(),
            Kind::Session { gap: Some(gap) } => shown(*gap),
            Kind::Session { gap: None } => "the gap of each row".into(),
            Kind::Ended { .. } => "until its end".into(),
        }
    }

    /// The watermark at which every window is closed that has no later time than this, both in nanoseconds; `None`: that is
    /// not known, since it depends on the rows.
    pub(super) fn closed_after(&self, time: i64) -> Option<i64> {
        let time = time.div_euclid(self.tick);
        let mark = match &self.kind {
            Kind::Sliding { slide, offset, .. } => time - (time - offset).rem_euclid(*slide),
            Kind::Calendar(calendar) => calendar.bounds(time, self.tick)?.0,
            Kind::Session { gap } => time.saturating_add((*gap)? / self.tick),
            Kind::Ended { .. } => time,
        };
        Some(self.end(mark))
    }

    /// Whether all rows make windows of the same length.
    pub(super) fn lasts(&self) -> bool {
        !matches!(self.kind, Kind::Session { gap: None })
    }

    /// If a time can be in several windows: their size and slide.
    pub(super) fn slides(&self) -> Option<(i64, i64)> {
        match &self.kind {
            Kind::Sliding { size, slide, .. } if size > slide => Some((*size, *slide)),
            _ => None,
        }
    }

    /// Whether starts and ends keep apart when they are written with so many nanoseconds in a tick.
    pub(super) fn whole_in(&self, tick: i64) -> bool {
        match &self.kind {
            Kind::Sliding { size, slide, offset } => {
                [size, slide, offset].into_iter().all(|length| (length * self.tick) % tick == 0)
            }
            Kind::Calendar(_) => tick <= 1_000_000_000,
            Kind::Session { .. } | Kind::Ended { .. } => false,
        }
    }
}

/// Ends of windows by their starts, of which neighbours are often the same.
pub(super) struct Ends<'a> {
    window: &'a Window,
    last: Option<(i64, i64)>,
}

impl<'a> Ends<'a> {
    pub(super) fn new(window: &'a Window) -> Self {
        Self { window, last: None }
    }

    /// As [`Window::end`].
    pub(super) fn end(&mut self, start: i64) -> i64 {
        match self.last {
            Some((last, end)) if last == start => end,
            _ => {
                let end = self.window.end(start);
                self.last = Some((start, end));
                end
            }
        }
    }
}

/// The type of the bounds in a key column.
pub(super) fn bound_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Struct(bounds) => bounds.first().map_or(data_type, |bound| bound.data_type()),
        other => other,
    }
}

/// Teaches DataFusion the functions that the calls are rewritten into.
pub(super) fn register(context: &SessionContext) {
    functions::all().into_iter().for_each(|function| context.register_udf(function));
}

/// Whether a name is one of those functions, which no statement calls itself.
pub(super) fn is_internal(name: &str) -> bool {
    functions::ALL.contains(&name)
}

/// Nanoseconds in one tick of a type of times.
pub(super) fn tick(data_type: &DataType) -> i64 {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        _ => 1,
    }
}

/// A length of time in words: in the largest unit that it is a whole number of.
pub(super) fn shown(nanos: i64) -> String {
    const UNITS: [(i64, &str); 8] = [
        (604_800_000_000_000, "week"),
        (86_400_000_000_000, "day"),
        (3_600_000_000_000, "hour"),
        (60_000_000_000, "minute"),
        (1_000_000_000, "second"),
        (1_000_000, "millisecond"),
        (1_000, "microsecond"),
        (1, "nanosecond"),
    ];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| nanos != 0 && nanos % unit == 0).unwrap_or((1, "nanosecond"));
    let count = nanos / unit;
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

fn whole(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(ScalarValue::Int64(value), _) => *value,
        Expr::Negative(expr) => whole(expr).and_then(i64::checked_neg),
        Expr::Cast(cast) => whole(&cast.expr),
        _ => None,
    }
}

fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        Expr::Cast(cast) => text(&cast.expr),
        _ => None,
    }
}
