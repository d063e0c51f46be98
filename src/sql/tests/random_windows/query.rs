//! A random query over windows, as data and as SQL. All lengths and times are in milliseconds.

use crate::sql::tests::harness::Dice;

/// One hour.
pub(super) const HOUR: i64 = 3_600_000;

/// A random query, and what its table and its sink say.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) windows: Windows,
    /// How many columns there are among the groups beside the window: none, `k`, or `k` and `c`.
    pub(super) keys: usize,
    pub(super) having: bool,
    pub(super) result: Outcome,
    pub(super) mode: Mode,
    pub(super) delay: i64,
    /// How far ahead of its Kafka timestamp a record may be, and what becomes of one that is further.
    pub(super) ahead: i64,
    pub(super) ahead_rows: &'static str,
    pub(super) late_rows: &'static str,
    /// A partition is idle after [`IDLE`] seconds.
    pub(super) idle: bool,
    /// Silence closes windows after [`SILENT`] seconds.
    pub(super) close_after: bool,
}

pub(super) const IDLE: u64 = 30;
pub(super) const SILENT: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    Sliding {
        size: i64,
        slide: i64,
        offset: i64,
    },
    /// Days or weeks of Berlin, in 2023.
    Berlin(Unit),
    /// The gap of rows with an odd value, and with an even one.
    Session([i64; 2]),
    /// Each event time is a group: `GROUP BY ts`.
    Moment,
    /// There is no window, but a group is forgotten so long after its last row: each of its lives is like a session.
    Life(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Day,
    Week,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Append,
    Update,
    Complete,
}

/// What is made of the groups of windows.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Their counts and sums.
    Groups,
    /// Their first rows: by `ROW_NUMBER()`, or with `ties` by `RANK()`.
    FirstRows { ties: bool, limit: usize },
    /// The first groups of each window, or of each window and `k`.
    FirstGroups { function: &'static str, limit: usize, within: bool },
    /// They are aggregated again, by so many of the columns.
    Again { over: Over, keys: usize, having: bool },
}

/// By which windows they are aggregated again.
#[derive(Debug)]
pub(super) enum Over {
    /// By their own.
    Same,
    /// By none.
    Nothing,
    /// By larger ones over their starts, their ends, or as a whole.
    Larger(Windows, Part),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Start,
    End,
    Whole,
}

impl Windows {
    fn random(dice: &mut Dice) -> Self {
        match dice.below(11) {
            0..5 => Self::sliding(dice, 40),
            5 => Self::Berlin(if dice.chance(70) { Unit::Day } else { Unit::Week }),
            6..9 => {
                let odd = 1 + dice.below(25) as i64;
                Self::Session([odd, if dice.chance(60) { odd } else { 1 + dice.below(40) as i64 }])
            }
            9 => Self::Moment,
            _ => Self::Life(1 + dice.below(60) as i64),
        }
    }

    fn sliding(dice: &mut Dice, most: usize) -> Self {
        let size = 1 + dice.below(most);
        let slide = if dice.chance(50) { size } else { 1 + dice.below(size) };
        Self::Sliding { size: size as i64, slide: slide as i64, offset: dice.below(30) as i64 - 10 }
    }

    fn is_session(self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Whether those that touch are one.
    pub(super) fn merge(self) -> bool {
        matches!(self, Self::Session(_) | Self::Life(_))
    }

    /// So many milliseconds are a short time to them.
    pub(super) fn unit(self) -> i64 {
        if matches!(self, Self::Berlin(_)) { HOUR } else { 1 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sliding { .. } => "window",
            Self::Berlin(_) => "calendar_window",
            Self::Session(_) => "session_window",
            Self::Moment | Self::Life(_) => "ts",
        }
    }

    /// Its first bound or its last one.
    fn bound(self, bound: &str) -> String {
        if self == Self::Moment { "ts".to_owned() } else { format!("{}.{bound}", self.name()) }
    }

    fn call(self, time: &str) -> String {
        match self {
            Self::Sliding { size, slide, offset } => {
                format!("window({time}, '{size} milliseconds', '{slide} milliseconds', '{offset} milliseconds')")
            }
            Self::Berlin(unit) => format!("calendar_window({time}, '{unit:?}', 'Europe/Berlin')"),
            Self::Session([odd, even]) if odd == even => format!("session_window({time}, '{odd} milliseconds')"),
            Self::Session([odd, even]) => format!(
                "session_window({time}, CASE WHEN v % 2 = 1 THEN INTERVAL '{odd} milliseconds'
                   ELSE INTERVAL '{even} milliseconds' END)"
            ),
            Self::Moment | Self::Life(_) => time.to_owned(),
        }
    }
}

impl Outcome {
    fn random(dice: &mut Dice, windows: Windows, keys: usize) -> Self {
        let limit = 1 + dice.below(3);
        if matches!(windows, Windows::Life(_)) {
            return if dice.chance(60) { Self::Groups } else { Self::FirstRows { ties: false, limit: 1 } };
        }
        match dice.below(6) {
            0..2 => Self::FirstRows { ties: dice.chance(50), limit },
            2 if matches!(windows, Windows::Sliding { .. } | Windows::Berlin(_)) => {
                let function = ["ROW_NUMBER", "RANK", "DENSE_RANK"][dice.below(3)];
                Self::FirstGroups { function, limit, within: keys == 2 && dice.chance(50) }
            }
            3..5 if windows != Windows::Moment => {
                let (over, outer) = (Over::random(dice, windows), dice.below(keys + 1));
                let over = match over {
                    // By nothing at all.
                    Over::Nothing if outer == 0 => Over::last(dice, windows),
                    // By what they are grouped by anyway.
                    Over::Same if outer == keys && windows.is_session() => Over::last(dice, windows),
                    over => over,
                };
                Self::Again { over, keys: outer, having: dice.chance(30) }
            }
            _ => Self::Groups,
        }
    }
}

impl Over {
    fn random(dice: &mut Dice, inner: Windows) -> Self {
        match (dice.below(4), inner) {
            (0, _) => Self::Same,
            (1, _) => Self::Nothing,
            // Those over starts begin where some of the inner ones do.
            (2, Windows::Sliding { slide, offset, .. }) => {
                let steps = 1 + dice.below(5) as i64;
                let every = 1 + dice.below(steps as usize) as i64;
                let larger = Windows::Sliding { size: slide * steps, slide: slide * every, offset };
                Self::Larger(larger, Part::Start)
            }
            _ => Self::last(dice, inner),
        }
    }

    /// Larger windows over the last moments or the ends, or their own where there are none.
    fn last(dice: &mut Dice, inner: Windows) -> Self {
        let part = if dice.chance(50) { Part::End } else { Part::Whole };
        match inner {
            Windows::Berlin(Unit::Day) => Self::Larger(Windows::Berlin(Unit::Week), part),
            Windows::Berlin(Unit::Week) => Self::Same,
            _ => Self::Larger(Windows::sliding(dice, 80), part),
        }
    }
}

impl Query {
    pub(super) fn random(dice: &mut Dice) -> Self {
        let windows = Windows::random(dice);
        let keys = if matches!(windows, Windows::Life(_)) { 1 + dice.below(2) } else { dice.below(3) };
        let result = Outcome::random(dice, windows, keys);
        let any = [Mode::Append, Mode::Update, Mode::Complete][dice.below(3)];
        let mode = match &result {
            Outcome::Again { over: Over::Nothing, .. } if any == Mode::Append => Mode::Update,
            Outcome::Again { .. } => any,
            Outcome::FirstGroups { .. } => Mode::Append,
            _ if windows.is_session() => Mode::Append,
            _ if matches!(windows, Windows::Life(_)) => Mode::Update,
            _ => any,
        };
        let mut query = Self {
            windows,
            keys,
            having: dice.chance(30) && !matches!(result, Outcome::FirstRows { .. }),
            result,
            mode,
            delay: dice.below(60) as i64 * windows.unit(),
            ahead: windows.unit() * if dice.chance(50) { dice.below(40) as i64 } else { 1_000 },
            ahead_rows: ["keep", "drop", "dead-letter"][dice.below(3)],
            late_rows: ["drop", "dead-letter"][dice.below(2)],
            idle: dice.chance(40),
            close_after: dice.chance(50),
        };
        query.close_after &= query.closes() && query.lasts();
        query
    }

    /// Whether windows close: in complete mode all groups are kept.
    pub(super) fn closes(&self) -> bool {
        self.mode != Mode::Complete || matches!(self.result, Outcome::Again { .. })
    }

    /// Whether silence knows what to close.
    fn lasts(&self) -> bool {
        match self.windows {
            Windows::Session([odd, even]) => odd == even,
            windows => !matches!(windows, Windows::Moment | Windows::Life(_)),
        }
    }

    /// Whether it matters that nothing comes.
    pub(super) fn heeds_silence(&self) -> bool {
        self.idle || self.close_after
    }

    pub(super) fn sql(&self) -> String {
        let mut options = format!(
            "'json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '{} milliseconds',
               'watermark.max.ahead' '{} milliseconds', 'ahead.rows' '{}', 'late.rows' '{}'",
            self.delay, self.ahead, self.ahead_rows, self.late_rows
        );
        if self.idle {
            options += &format!(", 'watermark.idle' '{IDLE} seconds'");
        }
        if self.close_after {
            options += &format!(", 'watermark.close.after' '{SILENT} seconds'");
        }
        let mode = format!("{:?}", self.mode).to_lowercase();
        let ttl = match self.windows {
            Windows::Life(ttl) => format!(", 'state.ttl' '{ttl} milliseconds'"),
            _ => String::new(),
        };
        let (columns, key, select) = self.select();
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, c VARCHAR, id BIGINT, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
               LOCATION 'kafka://orders' OPTIONS ({options});
             CREATE EXTERNAL TABLE result ({columns}, PRIMARY KEY ({key})) STORED AS TABLE LOCATION 'console://'
               OPTIONS ('output.mode' '{mode}'{ttl});
             INSERT INTO result {select}"
        )
    }

    /// The columns of the sink, its primary key, and the query.
    fn select(&self) -> (String, String, String) {
        let windows = self.windows;
        let (call, start, until) = (windows.call("ts"), windows.bound("start"), windows.bound("end"));
        let timed = if windows == Windows::Moment && !self.closes() { " AND ts IS NOT NULL" } else { "" };
        let from = format!("FROM orders WHERE v > 0{timed}");
        let keys = columns(self.keys, "");
        let having = if self.having { "HAVING sum(v) % 3 <> 0" } else { "" };
        if matches!(windows, Windows::Life(_)) {
            return self.lives(&from, having);
        }
        let bounds = format!("start TIMESTAMP(3), until TIMESTAMP(3){}", columns(self.keys, " VARCHAR"));
        match &self.result {
            Outcome::Groups => (
                format!("{bounds}, n BIGINT, total BIGINT"),
                format!("start{keys}"),
                format!(
                    "SELECT {start} AS start, {until} AS until{keys}, count(*), sum(v) {from} GROUP BY {call}{keys} {having}"
                ),
            ),
            Outcome::FirstRows { ties, limit } => {
                let (function, order, apart) =
                    if *ties { ("RANK", "v DESC", "id") } else { ("ROW_NUMBER", "v DESC, id", "place") };
                let numbered = format!("{function}() OVER (PARTITION BY {call}{keys} ORDER BY {order}) AS place");
                (
                    format!("{bounds}, place BIGINT, id BIGINT, v BIGINT"),
                    format!("start{keys}, {apart}"),
                    format!(
                        "SELECT start, until{keys}, place, id, v FROM (
                           SELECT {start} AS start, {until} AS until, *, {numbered} {from}) WHERE place <= {limit}"
                    ),
                )
            }
            Outcome::FirstGroups { function, limit, within } => {
                let partition = if *within { "start, k" } else { "start" };
                let ties = if *function == "ROW_NUMBER" { keys.as_str() } else { "" };
                let numbered = format!("{function}() OVER (PARTITION BY {partition} ORDER BY n DESC{ties}) AS place");
                (
                    format!("{bounds}, place BIGINT, n BIGINT"),
                    format!("start{keys}"),
                    format!(
                        "SELECT start, until{keys}, place, n FROM (SELECT *, {numbered} FROM (
                           SELECT {start} AS start, {until} AS until{keys}, count(*) AS n {from} GROUP BY {call}{keys}
                           {having})) WHERE place <= {limit}"
                    ),
                )
            }
            Outcome::Again { over, keys: outer, having: again } => {
                let inner = format!(
                    "SELECT {}, {start} AS s, {until} AS e{keys}, count(*) AS n, sum(v) AS total {from}
                     GROUP BY {call}{keys} {having}",
                    windows.name()
                );
                let (window, keys) = (over.window(windows), columns(*outer, ""));
                let having = if *again { "HAVING sum(n) % 2 = 1" } else { "" };
                let results = "count(*), sum(n), max(total)";
                let (mut columns, mut key) =
                    (format!("{}, parts BIGINT, n BIGINT, most BIGINT", columns(*outer, " VARCHAR")), keys.clone());
                let (mut shown, mut groups) = (keys.clone(), keys);
                if let Some((name, group)) = window {
                    columns = format!(", start TIMESTAMP(3), until TIMESTAMP(3){columns}");
                    key = format!(", start, until{key}");
                    shown = format!(", {name}.start, {name}.end{shown}");
                    groups = format!(", {group}{groups}");
                }
                let [columns, key, shown, groups] =
                    [columns, key, shown, groups].map(|list| list[", ".len()..].to_owned());
                let select = format!("SELECT {shown}, {results} FROM ({inner}) GROUP BY {groups} {having}");
                (columns, key, select)
            }
        }
    }
}

impl Query {
    /// The same of a query without a window.
    fn lives(&self, from: &str, having: &str) -> (String, String, String) {
        let (names, types) = (columns(self.keys, "")[2..].to_owned(), columns(self.keys, " VARCHAR")[2..].to_owned());
        match self.result {
            Outcome::FirstRows { .. } => (
                format!("{types}, id BIGINT, v BIGINT"),
                names.clone(),
                format!(
                    "SELECT {names}, id, v FROM (
                       SELECT *, ROW_NUMBER() OVER (PARTITION BY {names} ORDER BY v DESC, id) AS place {from})
                     WHERE place = 1"
                ),
            ),
            _ => (
                format!("{types}, n BIGINT, total BIGINT"),
                names.clone(),
                format!("SELECT {names}, count(*), sum(v) {from} GROUP BY {names} {having}"),
            ),
        }
    }
}

impl Over {
    /// The name of the window in the second grouping, and the group, if there is one.
    fn window(&self, inner: Windows) -> Option<(&'static str, String)> {
        match self {
            Self::Nothing => None,
            Self::Same => Some((inner.name(), inner.name().to_owned())),
            Self::Larger(windows, Part::Start) => Some((windows.name(), windows.call("s"))),
            Self::Larger(windows, Part::End) => Some((windows.name(), windows.call("e"))),
            Self::Larger(windows, Part::Whole) => Some((windows.name(), windows.call(inner.name()))),
        }
    }
}

/// The first columns among the groups, each with something behind it.
fn columns(keys: usize, with: &str) -> String {
    ["k", "c"][..keys].iter().map(|name| format!(", {name}{with}")).collect()
}
