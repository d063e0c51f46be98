//! The naive reference: it goes through all rows one by one, keeps every one of them, and merges, counts and ranks at the end.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::common::ScalarValue;

use super::query::{HOUR, IDLE, Mode, Outcome, Over, Part, Query, SILENT, Unit, Windows};
use super::stream::{Event, Order};
use crate::sql::tests::harness::NOW;

/// Start, end and key columns of a group.
type Group = (i64, i64, Vec<Option<usize>>);

/// Id and value of each row of a group.
type Rows = Vec<(i64, i64)>;

/// Count, sum of counts and highest sum of what was aggregated again.
type Again = (i64, i64, i64);

/// What must come out.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) groups: BTreeMap<Group, Rows>,
    /// The groups of the second aggregation.
    again: BTreeMap<Group, Again>,
    /// Partition and offset of each.
    pub(super) late: BTreeSet<(usize, i64)>,
    pub(super) late_closed: BTreeSet<(usize, i64)>,
    /// Rows that were left out since they were too far ahead.
    pub(super) left_out: BTreeSet<(usize, i64)>,
    pub(super) bad: BTreeSet<(usize, i64)>,
    /// Records that were too far ahead to move the watermark.
    pub(super) ahead: u64,
    /// The highest watermark of all.
    closed: Option<i64>,
}

/// The first watermark that can be told: times before it are all the same to it.
const FIRST: i64 = i64::MIN + 1;

/// The days of 1970 on that begin in summer time in Berlin, of 2023: from the day after clocks are put forward to the one on
/// which they are put back.
const SUMMER: std::ops::RangeInclusive<i64> = 19_443..=19_659;

fn midnight(day: i64) -> i64 {
    (day * 24 - if SUMMER.contains(&day) { 2 } else { 1 }) * HOUR
}

/// The watermark, in nanoseconds, that is so many nanoseconds past a time.
fn past(time: i64, nanos: i64) -> i64 {
    time.saturating_mul(1_000_000).saturating_add(nanos).max(FIRST + 1)
}

impl Windows {
    /// Start and end of each window of a time. `v` decides on a session's gap.
    fn of(self, ts: i64, v: i64) -> Vec<(i64, i64)> {
        match self {
            Self::Moment => vec![(ts, ts)],
            Self::Life(ttl) => vec![(ts, ts + ttl)],
            Self::Session(gaps) => vec![(ts, ts + gaps[usize::from(v % 2 == 0)])],
            Self::Sliding { size, slide, offset } => {
                let starts = (ts - size + 1..=ts).filter(|start| (start - offset).rem_euclid(slide) == 0);
                starts.map(|start| (start, start + size)).collect()
            }
            Self::Berlin(unit) => {
                let days = if unit == Unit::Day { 1 } else { 7 };
                let about = ts.div_euclid(24 * HOUR);
                // 1970 began on a Thursday.
                let first = |day: &i64| unit == Unit::Day || (day + 3).rem_euclid(7) == 0;
                let windows = (about - 8..about + 8).filter(first).map(|day| (midnight(day), midnight(day + days)));
                windows.filter(|(start, end)| (*start..*end).contains(&ts)).collect()
            }
        }
    }

    /// The watermark at which a window is closed.
    fn closed_at(self, (start, end): (i64, i64)) -> i64 {
        match self {
            Self::Moment => past(start + 1, 0),
            // A row at its very end would prolong it.
            Self::Session(_) | Self::Life(_) => past(end, 1),
            _ => past(end, 0),
        }
    }

    /// The watermark at which a row is too late for one of its windows.
    fn late_at(self, (start, end): (i64, i64)) -> i64 {
        match self {
            Self::Moment | Self::Session(_) | Self::Life(_) => past(start, 1),
            _ => past(end, 0),
        }
    }
}

impl Over {
    /// The windows into which one of the first aggregation goes, with the watermark at which each is closed; `None`: never.
    fn of(&self, inner: Windows, (start, end): (i64, i64)) -> Vec<(i64, i64, Option<i64>)> {
        match self {
            Self::Nothing => vec![(0, 0, None)],
            Self::Same => vec![(start, end, Some(inner.closed_at((start, end))))],
            Self::Larger(windows, part) => {
                let time = match part {
                    Part::Start => start,
                    Part::End => end,
                    Part::Whole => end - 1,
                };
                // When the last window in it is closed.
                let last = |until: i64| match (part, inner) {
                    (Part::Start, Windows::Sliding { size, slide, .. }) => past(until - slide + size, 0),
                    (Part::Whole, Windows::Session(_)) => past(until, 1),
                    _ => past(until, 0),
                };
                windows.of(time, 0).into_iter().map(|(start, until)| (start, until, Some(last(until)))).collect()
            }
        }
    }
}

impl Query {
    /// Up to where silence closes windows if this was the highest time: the last window of such a row, and the last one of the
    /// second aggregation into which that goes.
    fn silence_closes(&self, ts: i64) -> Option<i64> {
        let windows = self.windows.of(ts, 0).into_iter();
        let closed = windows.flat_map(|window| {
            let again = match &self.result {
                Outcome::Again { over, .. } => over.of(self.windows, window),
                _ => Vec::new(),
            };
            again.into_iter().filter_map(|(.., watermark)| watermark).chain([self.windows.closed_at(window)])
        });
        closed.max()
    }
}

/// A partition as far as it was read.
#[derive(Clone, Default)]
struct Partition {
    highest: Option<i64>,
    /// It is idle, and its silence closes windows up to there.
    idle: Option<Option<i64>>,
    read: i64,
}

impl Partition {
    fn watermark(&self, query: &Query) -> Option<i64> {
        let delayed = |highest: i64| highest.saturating_mul(1_000_000).saturating_sub(query.delay * 1_000_000);
        self.highest.map(|highest| delayed(highest).max(FIRST))
    }
}

impl Truth {
    pub(super) fn of(query: &Query, logs: &[Vec<Order>], events: &[Event]) -> Self {
        let mut truth = Self::default();
        let later = events.iter().any(|event| matches!(event, Event::Found));
        let mut partitions = vec![Partition::default(); logs.len() - usize::from(later)];
        let mut rows = Vec::new();
        for event in events {
            match *event {
                Event::Found => partitions.push(Partition::default()),
                Event::Quiet(number, seconds) => {
                    let partition = &mut partitions[number];
                    let silent = query.close_after && seconds >= SILENT;
                    if silent || (query.idle && seconds >= IDLE) {
                        let closes = |ts| query.silence_closes(ts);
                        partition.idle = Some(partition.highest.filter(|_| silent).and_then(closes));
                    }
                    truth.close(query, &partitions);
                }
                Event::Read(number, until) => {
                    for offset in partitions[number].read..until {
                        let order = &logs[number][offset as usize];
                        partitions[number].idle = None;
                        truth.judge(query, &mut partitions[number], (number, offset), order, &mut rows);
                        truth.close(query, &partitions);
                    }
                    partitions[number].read = until;
                }
            }
        }
        truth.group(query, rows);
        truth.aggregate_again(query);
        truth
    }

    /// The watermark of all is the lowest of those that are not idle, and of all of them the highest if all are.
    fn close(&mut self, query: &Query, partitions: &[Partition]) {
        let awake = partitions.iter().filter(|partition| partition.idle.is_none());
        let now = match awake.map(|partition| partition.watermark(query)).min() {
            Some(lowest) => lowest,
            None => {
                let quiet = partitions.iter().map(|partition| partition.watermark(query).max(partition.idle.flatten()));
                quiet.max().flatten()
            }
        };
        self.closed = self.closed.max(now);
    }

    /// Takes one record, with its window if it is counted in one.
    fn judge(
        &mut self,
        query: &Query,
        partition: &mut Partition,
        place: (usize, i64),
        order: &Order,
        rows: &mut Vec<(Group, (i64, i64))>,
    ) {
        let own = partition.watermark(query);
        let wanted = order.v > 0;
        let Some(ts) = order.ts else {
            let asked = query.windows != Windows::Moment || query.closes();
            if wanted && asked {
                self.bad.insert(place);
            }
            return;
        };
        let limit = order.written.min(NOW / 1_000) + query.ahead;
        let ahead = ts > limit;
        match ahead {
            true => self.ahead += 1,
            false => partition.highest = partition.highest.max(Some(ts)),
        }
        if !wanted {
            return;
        }
        if ahead && query.ahead_rows != "keep" {
            self.left_out.insert(place);
            return;
        }
        let ts = match query.windows {
            // It would hold its group there. And what nanoseconds do not hold is all of one time.
            Windows::Life(_) if ahead => limit.max(own.map_or(i64::MIN, |own| own / 1_000_000)),
            Windows::Life(_) => ts.max(i64::MIN / 1_000_000),
            _ => ts,
        };
        let windows = query.windows.of(ts, order.v);
        let closed = if query.closes() { own.max(self.closed) } else { own };
        let over = |watermark: Option<i64>, window: &(i64, i64)| watermark >= Some(query.windows.late_at(*window));
        if windows.iter().all(|window| over(own, window)) {
            self.late.insert(place);
        } else if windows.iter().all(|window| over(closed, window)) {
            self.late_closed.insert(place);
        }
        let open = windows.into_iter().filter(|window| !over(closed, window));
        rows.extend(open.map(|(start, end)| ((start, end, order.key(query.keys)), (order.id, order.v))));
    }

    /// Puts rows of one window together. Sessions, and lives, are merged until none touches the next.
    fn group(&mut self, query: &Query, mut rows: Vec<(Group, (i64, i64))>) {
        rows.sort_by_key(|((start, _, key), _)| (key.clone(), *start));
        let mut merged: Vec<(Group, Rows)> = Vec::new();
        for ((start, end, key), row) in rows {
            match merged.last_mut() {
                Some(((_, until, of), rows)) if query.windows.merge() && *of == key && start <= *until => {
                    *until = end.max(*until);
                    rows.push(row);
                }
                _ => merged.push(((start, end, key), vec![row])),
            }
        }
        merged.into_iter().for_each(|(group, rows)| self.groups.entry(group).or_default().extend(rows));
    }

    fn aggregate_again(&mut self, query: &Query) {
        let Outcome::Again { over, keys, .. } = &query.result else { return };
        let mut again = BTreeMap::<Group, Again>::new();
        for ((start, end, key), rows) in self.shown(query) {
            for (start, until, _) in over.of(query.windows, (*start, *end)) {
                let group = (start, until, key[..*keys].to_vec());
                let (parts, n, most) = again.entry(group).or_insert((0, 0, i64::MIN));
                (*parts, *n, *most) = (*parts + 1, *n + rows.len() as i64, sum(rows).max(*most));
            }
        }
        self.again = again;
    }

    fn has_closed(&self, watermark: Option<i64>) -> bool {
        watermark.is_some_and(|watermark| self.closed >= Some(watermark))
    }

    fn is_closed(&self, query: &Query, group: &Group) -> bool {
        query.closes() && self.has_closed(Some(query.windows.closed_at((group.0, group.1))))
    }

    /// Whether a group of the second aggregation is final.
    fn is_final(&self, query: &Query, over: &Over, group: &Group) -> bool {
        // Any window of the first that goes into it says so.
        let goes = |inner: &Group| {
            let windows = over.of(query.windows, (inner.0, inner.1));
            windows.into_iter().find(|(start, until, _)| (*start, *until) == (group.0, group.1))
        };
        self.has_closed(self.groups.keys().find_map(goes).and_then(|(.., watermark)| watermark))
    }

    /// The groups that are given out, of those that satisfy HAVING.
    fn shown(&self, query: &Query) -> Vec<(&Group, &Rows)> {
        let finals = query.mode == Mode::Append || matches!(query.result, Outcome::Again { .. });
        let shown = |group: &Group| !finals || self.is_closed(query, group);
        let having = |rows: &Rows| !query.having || sum(rows) % 3 != 0;
        self.groups.iter().filter(|(group, rows)| shown(group) && having(rows)).collect()
    }

    /// How many groups must still be known.
    pub(super) fn kept(&self, query: &Query) -> usize {
        let open = self.groups.keys().filter(|group| !self.is_closed(query, group)).count();
        let again = match &query.result {
            Outcome::Again { over, .. } => {
                let gone = |group: &&Group| query.mode != Mode::Complete && self.is_final(query, over, group);
                self.again.keys().filter(|group| !gone(group)).count()
            }
            _ => 0,
        };
        open + again
    }

    /// The rows of the sink.
    pub(super) fn rows(&self, query: &Query) -> Vec<Vec<ScalarValue>> {
        let shown = self.shown(query);
        match &query.result {
            _ if matches!(query.windows, Windows::Life(_)) => self.latest(query),
            Outcome::Groups => {
                shown.into_iter().map(|(group, rows)| row(group, [rows.len() as i64, sum(rows)])).collect()
            }
            Outcome::FirstRows { ties, limit } => shown
                .into_iter()
                .flat_map(|(group, rows)| {
                    let before = |id: i64, v: i64| {
                        rows.iter().filter(|other| other.1 > v || (!ties && other.1 == v && other.0 < id)).count()
                    };
                    let numbered = rows.iter().map(move |(id, v)| (before(*id, *v) + 1, *id, *v));
                    numbered
                        .filter(|(place, ..)| place <= limit)
                        .map(move |(place, id, v)| row(group, [place as i64, id, v]))
                })
                .collect(),
            Outcome::FirstGroups { function, limit, within } => {
                let groups: Vec<_> = shown.into_iter().map(|(group, rows)| (group, rows.len())).collect();
                let place = |(group, n): &(&Group, usize)| {
                    let rivals = groups
                        .iter()
                        .filter(|(other, _)| other.0 == group.0 && (!within || other.2.first() == group.2.first()));
                    1 + match *function {
                        "ROW_NUMBER" => rivals.filter(|(other, m)| m > n || (m == n && other.2 < group.2)).count(),
                        "RANK" => rivals.filter(|(_, m)| m > n).count(),
                        _ => rivals.map(|(_, m)| m).filter(|m| *m > n).collect::<BTreeSet<_>>().len(),
                    }
                };
                let numbered = groups.iter().map(|group| (place(group), group));
                let first = numbered.filter(|(place, _)| place <= limit);
                first.map(|(place, (group, n))| row(group, [place as i64, *n as i64])).collect()
            }
            Outcome::Again { over, having, .. } => {
                let shown = |group: &Group| query.mode != Mode::Append || self.is_final(query, over, group);
                let groups = self.again.iter().filter(|(group, (_, n, _))| shown(group) && (!having || n % 2 == 1));
                groups
                    .map(|(group, (parts, n, most))| match over {
                        Over::Nothing => row(group, [*parts, *n, *most]).split_off(2),
                        _ => row(group, [*parts, *n, *most]),
                    })
                    .collect()
            }
        }
    }
}

impl Truth {
    /// The rows of the latest lives.
    fn latest(&self, query: &Query) -> Vec<Vec<ScalarValue>> {
        let mut latest = BTreeMap::new();
        for (group, rows) in &self.groups {
            latest.insert(&group.2, (group, rows));
        }
        let latest = latest.into_values().filter(|(_, rows)| !query.having || sum(rows) % 3 != 0);
        let numbers = |rows: &Rows| match query.result {
            Outcome::FirstRows { .. } => {
                rows.iter().map(|(id, v)| (-v, *id)).min().map(|(v, id)| [id, -v]).unwrap_or_default()
            }
            _ => [rows.len() as i64, sum(rows)],
        };
        latest.map(|(group, rows)| row(group, numbers(rows)).split_off(2)).collect()
    }
}

fn sum(rows: &Rows) -> i64 {
    rows.iter().map(|(_, v)| v).sum()
}

/// A row of the sink: the bounds, the key columns, and numbers.
fn row<const N: usize>((start, end, key): &Group, numbers: [i64; N]) -> Vec<ScalarValue> {
    let bounds = [start, end].map(|time| ScalarValue::TimestampMillisecond(Some(*time), None));
    let names = ["k", "c"].iter().zip(key);
    let key = names.map(|(name, value)| ScalarValue::Utf8(value.map(|value| format!("{name}{value}"))));
    let numbers = numbers.into_iter().map(|number| ScalarValue::Int64(Some(number)));
    bounds.into_iter().chain(key).chain(numbers).collect()
}
