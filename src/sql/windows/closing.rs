//! Closing windows: when the watermark of a shard passes the end of a window, its groups are final and leave the state.
//!
//! No row comes for a closed window: one that is late by its own partition, or by what its shard had closed while that
//! partition was idle, is left out before. So a window is given out once. What is stored of its groups says itself up to
//! which watermark it lasts, so nothing is written to remove them.

use std::collections::BTreeMap;

use strandline_actors::position::Watermark;

use super::{Ends, Window};

/// Which windows of a shard are open.
pub(in crate::sql) struct Closing {
    /// The number of groups in each window, by its mark.
    groups: BTreeMap<i64, usize>,
    /// The watermark of the shard.
    watermark: Watermark,
}

impl Closing {
    pub(in crate::sql) fn new() -> Self {
        Self { groups: BTreeMap::new(), watermark: None }
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

    /// Which of these windows are to be closed now.
    pub(in crate::sql) fn closing(&self, window: &Window, marks: &[i64]) -> Vec<bool> {
        let mut ends = Ends::new(window);
        let watermark = self.watermark.unwrap_or(i64::MIN);
        marks.iter().map(|mark| ends.end(*mark) <= watermark).collect()
    }

    /// Closes every open window whose end the watermark has passed. Answers the highest of their marks.
    pub(in crate::sql) fn close(&mut self, window: &Window) -> Option<i64> {
        let watermark = self.watermark?;
        let mut last = None;
        while let Some(first) = self.groups.first_entry() {
            if window.end(*first.key()) > watermark {
                break;
            }
            last = Some(*first.key());
            first.remove();
        }
        last
    }
}
