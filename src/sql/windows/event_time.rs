//! The watermark of a partition, and which rows are late.
//!
//! The watermark moves from record to record in offset order: the highest event time so far, less the delay. A row is
//! judged by the watermark *before* it and of its own partition. So neither the cutting into batches nor the order in
//! which partitions are read decides what is late. Bad records move nothing, and so do records whose time is further
//! ahead of their own Kafka timestamp than is allowed: compared with the wall clock, a replay would judge otherwise.

use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use arrow::error::ArrowError;
use strandline_actors::position::Watermark;

use super::{Ends, Window, tick};

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
    /// How far behind the highest time the watermark is, in nanoseconds.
    pub(in crate::sql) delay: i64,
    /// How far ahead of its Kafka timestamp a record may move the watermark, in nanoseconds.
    pub(in crate::sql) max_ahead: i64,
    pub(in crate::sql) late_rows: LateRows,
    /// How long a partition is quiet until it holds back no watermark.
    pub(in crate::sql) idle: Option<Duration>,
    /// How long a partition is quiet until its windows are closed.
    pub(in crate::sql) close_after: Option<Duration>,
}

const SECOND: i64 = 1_000_000_000;

/// The event times of a batch.
pub(in crate::sql) struct Followed {
    /// The time of each record in nanoseconds; `i64::MIN`: none.
    times: Vec<i64>,
    /// The watermark before each record; `i64::MIN`: not known.
    before: Vec<i64>,
    /// The watermark after the batch.
    pub(in crate::sql) after: Watermark,
    /// Records that were too far ahead to move the watermark.
    pub(in crate::sql) ahead: Vec<u32>,
}

impl EventTime {
    /// Moves the watermark over the decoded rows of a batch. `good` says which record each row was, and `bad` which
    /// records were found bad since.
    pub(in crate::sql) fn follow(
        &self,
        rows: &RecordBatch,
        good: &[u32],
        bad: impl Iterator<Item = usize>,
        kafka: Option<&TimestampMillisecondArray>,
        records: usize,
        watermark: Watermark,
    ) -> Result<Followed, ArrowError> {
        let column = rows.column(self.column);
        let ticks = cast(column, &DataType::Int64)?;
        let ticks = ticks.as_primitive::<Int64Type>();
        let tick = tick(column.data_type());
        let mut moves = vec![true; records];
        bad.for_each(|record| moves[record] = false);
        let mut followed = Followed {
            times: vec![i64::MIN; records],
            before: vec![i64::MIN; records],
            after: None,
            ahead: Vec::new(),
        };
        let mut current = watermark.unwrap_or(i64::MIN);
        for (row, record) in good.iter().enumerate() {
            let place = *record as usize;
            followed.before[place] = current;
            if ticks.is_null(row) {
                continue;
            }
            let time = ticks.value(row).saturating_mul(tick);
            followed.times[place] = time;
            let candidate = time.saturating_sub(self.delay);
            if candidate <= current || !moves[place] {
                // A row for a window that silence has not closed: the next silence has something to close again.
                if current.rem_euclid(SECOND) == 1 && time > current && self.close_after.is_some() && moves[place] {
                    current += 1;
                }
                continue;
            }
            let written = kafka.filter(|kafka| kafka.is_valid(place)).map(|kafka| kafka.value(place));
            let limit =
                written.map_or(i64::MAX, |millis| millis.saturating_mul(1_000_000).saturating_add(self.max_ahead));
            match time <= limit {
                true => current = candidate,
                false => followed.ahead.push(*record),
            }
        }
        followed.after = (current > i64::MIN).then_some(current);
        Ok(followed)
    }
}

impl EventTime {
    /// What a partition that has been quiet for so long says: its watermark, and whether it is idle.
    ///
    /// Windows are closed by raising the watermark to where no time so far has an open one. It is raised to one nanosecond
    /// past a whole second, where no time of a coarser type brings it: so it is known, also after a restart, that it was
    /// raised already, and it is not raised again.
    pub(in crate::sql) fn quiet(
        &self,
        quiet: Duration,
        window: Option<&Window>,
        watermark: Watermark,
    ) -> (Watermark, bool) {
        let idle = self.idle.is_some_and(|idle| quiet >= idle);
        let closes = self.close_after.is_some_and(|close_after| quiet >= close_after);
        let (Some(window), Some(before), true) = (window, watermark, closes) else {
            // A partition that never had a row has nothing to close, and holds back nothing.
            return (watermark, idle || closes && watermark.is_none());
        };
        if before.rem_euclid(SECOND) == 1 {
            return (watermark, true);
        }
        match window.closed_after(before.saturating_add(self.delay)) {
            Some(closed) => {
                let seconds = closed.div_euclid(SECOND) + i64::from(closed.rem_euclid(SECOND) > 0);
                (Some(seconds.saturating_mul(SECOND).saturating_add(1).max(before)), false)
            }
            None => (watermark, idle),
        }
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

    /// Which rows are late because their time is. `records` says which record each row was.
    pub(in crate::sql) fn late_times(&self, records: &[u32]) -> Vec<bool> {
        records
            .iter()
            .map(|record| {
                let time = self.times[*record as usize];
                time > i64::MIN && time < self.before[*record as usize]
            })
            .collect()
    }

    /// Which rows are late because their last window is, given its start.
    pub(in crate::sql) fn late_windows(&self, window: &Window, starts: &[i64], records: &[u32]) -> Vec<bool> {
        let mut ends = Ends::new(window);
        starts.iter().zip(records).map(|(start, record)| ends.end(*start) <= self.before[*record as usize]).collect()
    }
}
