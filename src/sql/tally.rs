//! What became of records and rows where one record makes a row for several INSERTs, or several rows for one.
//!
//! An offset lands in exactly one counter of the balance. Where a record makes one row, that is the counter of the row, and
//! the row's shard counts it. Where it can make several, their shards may come to different ends: then the record counts as
//! what the best of its rows came to, and is counted by the shard that its offset belongs to. The rows of each INSERT have
//! counters of their own.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a record came to, from the worst to the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// It is not told by its rows.
    #[default]
    Nothing,
    /// No query wanted it.
    Filtered,
    /// A row met a window that was closed early.
    LateClosed,
    /// A row was late by its own partition.
    Late,
    /// A row reached an operator.
    Processed,
}

/// What became of the rows of one INSERT in this process, those that were read again after a crash included.
#[derive(Debug, Default)]
pub struct RowCounters {
    processed: AtomicU64,
    filtered: AtomicU64,
    late: AtomicU64,
    late_closed: AtomicU64,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that reached the operator.
    pub processed: u64,
    /// Rows that the query left out.
    pub filtered: u64,
    /// Rows that were late by the watermark of their own partition.
    pub late: u64,
    /// Rows whose window was closed while their partition was quiet or not yet found.
    pub late_closed: u64,
}

impl RowCounters {
    pub(super) fn add(&self, outcome: Outcome, rows: usize) {
        let counter = match outcome {
            Outcome::Nothing => return,
            Outcome::Filtered => &self.filtered,
            Outcome::LateClosed => &self.late_closed,
            Outcome::Late => &self.late,
            Outcome::Processed => &self.processed,
        };
        counter.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// What they are now.
    pub fn read(&self) -> RowCounts {
        RowCounts {
            processed: self.processed.load(Ordering::Relaxed),
            filtered: self.filtered.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            late_closed: self.late_closed.load(Ordering::Relaxed),
        }
    }
}
