//! Closing windows: when the watermark of a shard passes the end of a window, its groups are final and leave the state.
//!
//! No row can come for a closed window that is not late by its own partition, since the shard's watermark is the lowest of
//! all partitions. Only where a partition was called idle and woke up again can it be otherwise: so the shard remembers,
//! also over a restart, up to where it has closed windows, and passes over what comes below. A window is given out once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::error::ArrowError;
use strandline_actors::ports::StateDelta;
use strandline_actors::position::Watermark;

use super::{Ends, Window};

/// The number of the state table that says up to where windows are closed.
pub(in crate::sql) const TABLE: usize = 1;

/// Which windows of a shard are open.
pub(in crate::sql) struct Closing {
    /// The number of groups in each window, by its mark.
    groups: BTreeMap<i64, usize>,
    /// The watermark of the shard.
    watermark: Watermark,
    /// The highest watermark at which windows were closed; `i64::MIN`: none yet.
    closed: i64,
}

impl Closing {
    pub(in crate::sql) fn new() -> Self {
        Self { groups: BTreeMap::new(), watermark: None, closed: i64::MIN }
    }

    /// Takes a new watermark.
    pub(in crate::sql) fn advance(&mut self, watermark: Watermark) {
        self.watermark = watermark;
    }

    /// Counts groups that came, by the marks of their windows.
    pub(in crate::sql) fn opened(&mut self, marks: impl IntoIterator<Item = i64>) {
        marks.into_iter().for_each(|mark| *self.groups.entry(mark).or_default() += 1);
    }

    /// Counts groups that are gone.
    pub(in crate::sql) fn removed(&mut self, marks: impl IntoIterator<Item = i64>) {
        for mark in marks {
            if let Some(groups) = self.groups.get_mut(&mark) {
                *groups -= 1;
                if *groups == 0 {
                    self.groups.remove(&mark);
                }
            }
        }
    }

    /// Which of these windows were closed before.
    pub(in crate::sql) fn were_closed(&self, window: &Window, marks: &[i64]) -> Vec<bool> {
        let mut ends = Ends::new(window);
        marks.iter().map(|mark| self.closed > i64::MIN && ends.end(*mark) <= self.closed).collect()
    }

    /// Which of these windows are to be closed now.
    pub(in crate::sql) fn closing(&self, window: &Window, marks: &[i64]) -> Vec<bool> {
        let mut ends = Ends::new(window);
        let watermark = self.watermark.unwrap_or(i64::MIN);
        marks.iter().map(|mark| ends.end(*mark) <= watermark).collect()
    }

    /// Closes every open window whose end the watermark has passed. Answers their marks, the highest last. `others` says
    /// that groups are closed that were never open here.
    pub(in crate::sql) fn close(&mut self, window: &Window, others: bool) -> Closed {
        let Some(watermark) = self.watermark else { return Closed::default() };
        let mut marks = Vec::new();
        while let Some(first) = self.groups.first_entry() {
            if window.end(*first.key()) > watermark {
                break;
            }
            marks.push(*first.key());
            first.remove();
        }
        let moved = (others || !marks.is_empty()) && watermark > self.closed;
        if moved {
            self.closed = watermark;
        }
        Closed { marks, moved }
    }

    /// What is stored of it.
    pub(in crate::sql) fn delta(&self) -> Result<StateDelta, ArrowError> {
        let schema = Schema::new(vec![
            Field::new("everything", DataType::Boolean, false),
            Field::new("closed", DataType::Int64, false),
            Field::new("_deleted", DataType::Boolean, false),
        ]);
        let rows = RecordBatch::try_new(
            Arc::new(schema),
            vec![
                Arc::new(BooleanArray::from(vec![true])),
                Arc::new(Int64Array::from(vec![self.closed])),
                Arc::new(BooleanArray::from(vec![false])),
            ],
        )?;
        Ok(StateDelta { table: TABLE, rows })
    }

    /// Takes on what was stored. Answers whether it was that.
    pub(in crate::sql) fn restore(&mut self, rows: &RecordBatch) -> bool {
        let Some(closed) = rows.columns().get(1).and_then(|column| column.as_primitive_opt::<Int64Type>()) else {
            return false;
        };
        if closed.null_count() == 0 {
            self.closed = closed.values().iter().fold(self.closed, |highest, closed| highest.max(*closed));
        }
        rows.num_columns() == 3
    }
}

/// Windows that have just been closed.
#[derive(Default)]
pub(in crate::sql) struct Closed {
    /// Their marks.
    pub(in crate::sql) marks: Vec<i64>,
    /// Whether the place up to where windows are closed has moved.
    pub(in crate::sql) moved: bool,
}
