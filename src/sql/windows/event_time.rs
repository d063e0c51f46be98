//! The watermark of a partition, and which rows are late.
//!
//! The watermark moves from record to record in offset order: the highest event time so far, less the delay. A row is
//! judged by the watermark *before* it and of its own partition. So neither the cutting into batches nor the order in
//! which partitions are read decides what is late. Bad records move nothing, and neither do records whose time is further
//! ahead than is allowed: of their own Kafka timestamp, so that a replay judges the same, and of the clock, since that
//! timestamp may be wrong itself. Where only the clock decides, such a record may be judged otherwise when it is read again: it
//! moves the watermark no further than it came the first time, which the shards that are ahead have noted, and else it
//! does no harm, since each row is judged and counted by its own shard alone. A record of which several INSERTs may make rows
//! is judged as a whole, so its own timestamp alone decides whether it is left out.

use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use arrow::error::ArrowError;
use strandline_actors::position::{Offset, Watermark};

use super::tick;
use crate::sql::options::BadRecords;

/// The watermarks that nanoseconds hold, but for both ends of them: what is before the first is past by none, and neither is
/// what is after the last.
pub(in crate::sql) const EARLIEST: i64 = i64::MIN + 1;
const LATEST: i64 = i64::MAX - 1;

/// What is done with late rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sql) enum LateRows {
    /// They are counted, and one is shown now and then.
    #[default]
    Drop,
    /// They are kept aside.
    DeadLetter,
}

/// The event time of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sql) struct EventTime {
    /// The column among those that the stage starts from.
    pub(in crate::sql) column: usize,
    /// The time is that of the clock: silence passes, too.
    pub(in crate::sql) by_clock: bool,
    /// How far behind the highest time the watermark is, in nanoseconds.
    pub(in crate::sql) delay: i64,
    /// How far ahead of its Kafka timestamp and of the clock a record may move the watermark, in nanoseconds.
    pub(in crate::sql) max_ahead: i64,
    /// What becomes of a row that is further ahead, if it is not kept in its window.
    pub(in crate::sql) ahead_rows: Option<BadRecords>,
    pub(in crate::sql) late_rows: LateRows,
    /// How long a partition is quiet until it holds back no watermark.
    pub(in crate::sql) idle: Option<Duration>,
    /// How long a partition is quiet until its windows are closed.
    pub(in crate::sql) close_after: Option<Duration>,
}

/// The event times of a batch.
pub(in crate::sql) struct Followed {
    /// The time of each record in nanoseconds; `i64::MIN`: none.
    times: Vec<i64>,
    /// The watermark before each record; `i64::MIN`: not known.
    before: Vec<i64>,
    /// The watermark after the batch.
    pub(in crate::sql) after: Watermark,
    /// Records that were too far ahead to move the watermark, in order.
    pub(in crate::sql) ahead: Vec<Ahead>,
}

/// A record that was too far ahead to move the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sql) struct Ahead {
    pub(in crate::sql) record: u32,
    /// The latest time that may.
    limit: i64,
    /// It is so by its own Kafka timestamp, whenever it is read.
    always: bool,
}

/// What is known of the records of a batch beside their values.
pub(in crate::sql) struct Read<'a> {
    /// Their Kafka timestamps.
    pub(in crate::sql) kafka: Option<&'a TimestampMillisecondArray>,
    /// When they were read, in nanoseconds.
    pub(in crate::sql) now: i64,
    /// Their offsets.
    pub(in crate::sql) offsets: &'a [i64],
    /// How far the watermark had come below some offsets when these were read before.
    pub(in crate::sql) noted: &'a [(Offset, Watermark)],
}

impl Read<'_> {
    /// How far a record may move the watermark.
    fn ceiling(&self, record: usize) -> i64 {
        let mut noted = self.noted.iter();
        let before = noted.find(|(next, _)| self.offsets[record] < next.0);
        before.map_or(i64::MAX, |(_, watermark)| watermark.unwrap_or(i64::MIN))
    }
}

impl EventTime {
    /// Moves the watermark over the decoded rows of a batch. `good` says which record each row was, and `bad` which
    /// records were found bad since.
    pub(in crate::sql) fn follow(
        &self,
        rows: &RecordBatch,
        good: &[u32],
        bad: impl Iterator<Item = usize>,
        read: Read<'_>,
        watermark: Watermark,
    ) -> Result<Followed, ArrowError> {
        let column = rows.column(self.column);
        let ticks = cast(column, &DataType::Int64)?;
        let ticks = ticks.as_primitive::<Int64Type>();
        let tick = tick(column.data_type());
        let mut moves = vec![true; read.offsets.len()];
        bad.for_each(|record| moves[record] = false);
        let mut followed = Followed {
            times: vec![i64::MIN; read.offsets.len()],
            before: vec![i64::MIN; read.offsets.len()],
            after: None,
            ahead: Vec::new(),
        };
        let latest = read.now.saturating_add(self.max_ahead);
        let mut current = watermark.unwrap_or(i64::MIN);
        for (row, record) in good.iter().enumerate() {
            let place = *record as usize;
            followed.before[place] = current;
            if ticks.is_null(row) {
                continue;
            }
            let time = ticks.value(row).saturating_mul(tick).max(EARLIEST);
            followed.times[place] = time;
            if !moves[place] {
                continue;
            }
            let written = read.kafka.filter(|kafka| kafka.is_valid(place)).map(|kafka| kafka.value(place));
            let own =
                written.map_or(i64::MAX, |millis| millis.saturating_mul(1_000_000).saturating_add(self.max_ahead));
            let limit = own.min(latest);
            match time <= limit {
                true => {
                    let moved = time.saturating_sub(self.delay).clamp(EARLIEST, LATEST);
                    // The clock gives each reading its own time.
                    current = current.max(if self.by_clock { moved } else { moved.min(read.ceiling(place)) });
                }
                false => followed.ahead.push(Ahead { record: *record, limit, always: time > own }),
            }
        }
        followed.after = (current > i64::MIN).then_some(current);
        Ok(followed)
    }

    /// What a partition that has been quiet for so long says: whether it is idle, and up to where its silence lets windows
    /// close: to where no row that moved its watermark has an open one.
    pub(in crate::sql) fn quiet(
        &self,
        quiet: Duration,
        closed_after: impl Fn(i64) -> Option<i64>,
        watermark: Watermark,
        now: i64,
    ) -> (bool, Watermark) {
        if self.by_clock {
            // Once its last window is closed, more time closes nothing.
            let closed = |watermark: i64| closed_after(watermark).map_or(now, |closed| closed.min(now));
            return (true, watermark.map(closed));
        }
        let idle = self.idle.is_some_and(|idle| quiet >= idle);
        let silent = self.close_after.is_some_and(|close_after| quiet >= close_after);
        let closed = |watermark: i64| closed_after(watermark.saturating_add(self.delay));
        (idle || silent, watermark.filter(|_| silent).and_then(closed))
    }
}

impl Followed {
    /// The watermark before a record.
    pub(in crate::sql) fn before(&self, record: u32) -> i64 {
        self.before[record as usize]
    }

    /// The time of a record; `i64::MIN`: none.
    pub(in crate::sql) fn time(&self, record: u32) -> i64 {
        self.times[record as usize]
    }

    /// Whether a record was too far ahead to move the watermark.
    pub(in crate::sql) fn is_ahead(&self, record: u32) -> bool {
        self.ahead(record).is_some()
    }

    /// Whether it is so whenever it is read.
    pub(in crate::sql) fn is_always_ahead(&self, record: u32) -> bool {
        self.ahead(record).is_some_and(|ahead| ahead.always)
    }

    /// The latest time by which a record may move the watermark, if its own is beyond.
    pub(in crate::sql) fn limit(&self, record: u32) -> Option<i64> {
        self.ahead(record).map(|ahead| ahead.limit)
    }

    fn ahead(&self, record: u32) -> Option<&Ahead> {
        let place = self.ahead.binary_search_by_key(&record, |ahead| ahead.record).ok()?;
        self.ahead.get(place)
    }
}
