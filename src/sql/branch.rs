//! One way from the records of a source to one INSERT: the steps of the query up to its shuffle.
//!
//! Several INSERTs over one source, and several parts of a UNION ALL over it, are a branch each: the records are decoded
//! once, and every branch takes the same sound ones.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use strandline_actors::ports::StageError;

use super::aggregation::Aggregation;
use super::bisect::{Evaluated, evaluate};
use super::expiry::Expiry;
use super::lanes::Bad;
use super::options::BadRecords;
use super::pipeline::{Passed, Pipeline};
use super::tally::RowCounters;
use super::windows::event_time::Followed;
use super::windows::sliding::{Sliding, ticks};
use super::windows::{Ends, Window};

/// By what a row finds its shard.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// By its group: the first columns of the prepared rows.
    Group(Aggregation),
    /// By the columns of the sink's primary key.
    Key(Vec<usize>, SchemaRef),
    /// By where it was read.
    Offset,
}

/// The window by which rows are grouped.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    pub(super) window: Window,
    /// The key column that holds the start of a row's last window.
    pub(super) column: usize,
    /// If a row can be in several.
    pub(super) sliding: Option<Sliding>,
    /// Windows close when the watermark has passed them.
    pub(super) closes: bool,
}

/// One way from a source to an INSERT, as planned.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// The number of the INSERT; `None`: the pipeline has only one.
    pub(super) insert: Option<usize>,
    /// The table that it writes.
    pub(super) table: Arc<str>,
    pub(super) pipeline: Pipeline,
    pub(super) route: Route,
    /// The window of the groups, or their life.
    pub(super) window: Option<Windowed>,
    pub(super) expiry: Expiry,
    /// The groups by which rows find their shard, if not all of them.
    pub(super) routed: Option<Vec<usize>>,
    /// The windows into which those of the groups go, and how long before the end of one of the groups' its time is.
    pub(super) then: Option<(Window, i64)>,
    /// Rows can be late.
    pub(super) timed: bool,
    pub(super) counters: Arc<RowCounters>,
}

/// What became of the sound records of a batch.
pub(super) struct Selected {
    pub(super) rows: RecordBatch,
    /// Which record each row was.
    pub(super) records: Vec<u32>,
    /// Records that the query left out.
    pub(super) filtered: Vec<u32>,
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl Selected {
    /// The rows that several parts of one query make, in the order of their records: so where the log was cut into batches
    /// does not decide which row of a key is last.
    pub(super) fn merged(parts: Vec<Self>) -> Result<Self, StageError> {
        let mut records: Vec<(u32, u32)> = parts.iter().flat_map(|part| &part.records).copied().zip(0..).collect();
        records.sort_unstable();
        let Some(schema) = parts.first().map(|first| first.rows.schema()) else {
            return Err(failed("a query has no part"));
        };
        let rows = concat_batches(&schema, parts.iter().map(|part| &part.rows)).map_err(failed)?;
        let order = UInt32Array::from_iter_values(records.iter().map(|(_, row)| *row));
        let rows = take_record_batch(&rows, &order).map_err(failed)?;
        // Left out is what every part leaves out.
        let mut parts = parts.into_iter().map(|part| part.filtered);
        let mut filtered = parts.next().unwrap_or_default();
        for others in parts {
            filtered.retain(|record| others.binary_search(record).is_ok());
        }
        Ok(Self { rows, records: records.into_iter().map(|(record, _)| record).collect(), filtered })
    }

    /// Leaves out the rows of some records.
    pub(super) fn without(self, out: impl Fn(u32) -> bool) -> Result<Self, StageError> {
        let Self { mut rows, mut records, mut filtered } = self;
        let keep: Vec<_> = records.iter().map(|record| !out(*record)).collect();
        if keep.contains(&false) {
            rows = filter_record_batch(&rows, &BooleanArray::from(keep)).map_err(failed)?;
            records.retain(|record| !out(*record));
        }
        filtered.retain(|record| !out(*record));
        Ok(Self { rows, records, filtered })
    }
}

impl Branch {
    /// Takes sound records through the steps.
    pub(super) fn select(
        &self,
        rows: &RecordBatch,
        sound: &[u32],
        policy: BadRecords,
        bad: &mut Vec<Bad>,
    ) -> Result<Selected, StageError> {
        let Evaluated { parts, failed: unevaluated } = evaluate(rows, |rows| self.pipeline.run(rows));
        let mut batches = Vec::with_capacity(parts.len());
        let mut records = Vec::with_capacity(rows.num_rows());
        let mut settled = vec![false; if self.pipeline.has_filter() { rows.num_rows() } else { 0 }];
        for (start, passed) in parts {
            let Passed { rows: passed_rows, .. } = &passed;
            if rows.num_rows() == passed_rows.num_rows() {
                records.extend_from_slice(sound);
                settled.fill(true);
            } else {
                for row in 0..passed_rows.num_rows() {
                    let row = start + passed.origin(row);
                    settle(&mut settled, row);
                    records.push(sound[row]);
                }
            }
            batches.push(passed.rows);
        }
        for (row, reason) in unevaluated {
            settle(&mut settled, row);
            bad.push(Bad { row: sound[row] as usize, reason, policy });
        }
        let filtered = settled.iter().zip(sound).filter(|(settled, _)| !**settled).map(|(_, record)| *record).collect();
        let rows = match batches.as_slice() {
            [] => self.pipeline.run(&rows.slice(0, 0)).map_err(failed)?.rows,
            [only] => only.clone(),
            [first, ..] => concat_batches(&first.schema(), &batches).map_err(failed)?,
        };
        Ok(Selected { rows, records, filtered })
    }

    /// Leaves out the rows of which it cannot be known how long they count, since they have no time; gives the others
    /// the life of their group, if groups have one.
    pub(super) fn timed(
        &self,
        mut selected: Selected,
        followed: Option<&Followed>,
        policy: BadRecords,
        bad: &mut Vec<Bad>,
    ) -> Result<Selected, StageError> {
        let (Some(followed), false) = (followed, self.expiry == Expiry::Never) else { return Ok(selected) };
        let timeless = |record: u32| self.expiry.time(followed, record).is_none();
        bad.extend(selected.records.iter().filter(|record| timeless(**record)).map(|record| Bad {
            row: *record as usize,
            reason: "it cannot be known when its state may be forgotten, since its time is NULL".to_owned(),
            policy,
        }));
        // Of a record that is left out no time is asked.
        let filtered = std::mem::take(&mut selected.filtered);
        let Selected { mut rows, records, .. } = selected.without(timeless)?;
        if let Some(windowed) = &self.window {
            rows = self.expiry.add_lives(&rows, &records, followed, windowed.column).map_err(failed)?;
        }
        Ok(Selected { rows, records, filtered })
    }

    /// Leaves out the rows that have no window, which are bad. Lives are no such windows, and come later.
    pub(super) fn within_windows(
        &self,
        selected: Selected,
        policy: BadRecords,
        bad: &mut Vec<Bad>,
    ) -> Result<Selected, StageError> {
        let Selected { rows, records, .. } = &selected;
        let written = self.window.as_ref().filter(|_| self.expiry == Expiry::Never);
        let windows = written.map(|windowed| rows.column(windowed.column));
        let Some(windows) = windows.filter(|windows| windows.null_count() > 0) else { return Ok(selected) };
        let keep: Vec<_> = (0..windows.len()).map(|row| windows.is_valid(row)).collect();
        bad.extend(records.iter().zip(&keep).filter(|(_, keep)| !**keep).map(|(record, _)| Bad {
            row: *record as usize,
            reason: "its window cannot be known, since its time (or gap) is NULL or out of range".to_owned(),
            policy,
        }));
        let kept = records.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(record, _)| *record).collect();
        let rows = filter_record_batch(rows, &BooleanArray::from(keep)).map_err(failed)?;
        Ok(Selected { rows, records: kept, filtered: selected.filtered })
    }

    /// The watermark at which every window is closed that has no later time than this.
    pub(super) fn closed_after(&self, time: i64) -> Option<i64> {
        let inner = &self.window.as_ref()?.window;
        let closed = inner.closed_after(time)?;
        match &self.then {
            Some((window, before_end)) => {
                // A session is closed a nanosecond past its end.
                let end = closed.saturating_sub(i64::from(inner.is_session()));
                window.closed_after(end.saturating_sub(*before_end)).max(Some(closed))
            }
            None => Some(closed),
        }
    }

    /// Whether windows close, or groups are forgotten.
    pub(super) fn closes(&self) -> bool {
        self.expiry != Expiry::Never || self.window.as_ref().is_some_and(|windowed| windowed.closes)
    }

    /// For each row the lowest watermark at which it is late: the end of its last window. A row of a session, or without a
    /// window, is late if its own time is past: then a row that is on time never belongs to a session that is closed.
    pub(super) fn ends(
        &self,
        rows: &RecordBatch,
        records: &[u32],
        followed: &Followed,
    ) -> Result<Vec<i64>, StageError> {
        match self.window.as_ref().filter(|windowed| !windowed.window.is_session()) {
            Some(windowed) => {
                let starts = ticks(rows.column(windowed.column)).map_err(failed)?;
                let mut ends = Ends::new(&windowed.window);
                Ok(starts.values().iter().map(|start| ends.end(*start)).collect())
            }
            None => Ok(records.iter().map(|record| self.expiry.past(followed, *record)).collect()),
        }
    }

    /// The key columns by which a group finds its shard: all but its window, so that a row of several windows has one.
    pub(super) fn routed(&self, aggregation: &Aggregation) -> Vec<usize> {
        if let Some(routed) = &self.routed {
            return routed.clone();
        }
        let window = self.window.as_ref().map(|window| window.column);
        (0..aggregation.key_columns()).filter(|column| Some(*column) != window).collect()
    }
}

fn settle(settled: &mut [bool], row: usize) {
    if let Some(settled) = settled.get_mut(row) {
        *settled = true;
    }
}
