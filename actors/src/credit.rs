//! What may be in flight between the actors, in rows and bytes, over all partitions together.
//!
//! A batch pays for its rows and bytes before it is processed and gets them back when the last lane is done with it.
//! Credits are given back by being dropped, so they come back with any death.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in units of this size, so that a semaphore can hold them.
const UNIT: usize = 1024;

/// The budget.
#[derive(Clone, Debug)]
pub struct Credits {
    rows: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    max_rows: usize,
    max_units: usize,
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Credit {
    _rows: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Credits {
    /// A budget of rows and bytes.
    pub fn new(rows: usize, bytes: usize) -> Self {
        let max_rows = rows.clamp(1, u32::MAX as usize >> 1);
        let max_units = bytes.div_ceil(UNIT).clamp(1, u32::MAX as usize >> 1);
        Self {
            rows: Arc::new(Semaphore::new(max_rows)),
            bytes: Arc::new(Semaphore::new(max_units)),
            max_rows,
            max_units,
        }
    }

    /// Waits for a part of the budget, in turn. What is larger than the whole budget waits for all of it.
    pub async fn acquire(&self, rows: usize, bytes: usize) -> Option<Credit> {
        let rows = rows.min(self.max_rows) as u32;
        let units = bytes.div_ceil(UNIT).min(self.max_units) as u32;
        let rows = Arc::clone(&self.rows).acquire_many_owned(rows).await.ok()?;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(units).await.ok()?;
        Some(Credit { _rows: rows, _bytes: bytes })
    }

    /// The share of the budget that is in flight now: the larger of rows and bytes, from 0 to 1.
    pub fn share_in_flight(&self) -> f64 {
        let share = |free: usize, all: usize| 1.0 - free as f64 / all as f64;
        share(self.rows.available_permits(), self.max_rows).max(share(self.bytes.available_permits(), self.max_units))
    }

    /// Rows that are in flight now.
    pub fn rows_in_flight(&self) -> usize {
        self.max_rows - self.rows.available_permits()
    }

    /// Bytes that are in flight now.
    pub fn bytes_in_flight(&self) -> usize {
        (self.max_units - self.bytes.available_permits()) * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_waits_until_another_is_done() {
        let credits = Credits::new(100, 10 * UNIT);
        let first = credits.acquire(60, 100).await;
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (60, UNIT));
        assert!((credits.share_in_flight() - 0.6).abs() < 1e-9);
        let mut second = Box::pin(credits.acquire(60, 100));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert!(futures::poll!(&mut second).is_ready());
    }

    #[tokio::test]
    async fn a_batch_larger_than_everything_passes_alone() {
        let credits = Credits::new(10, UNIT);
        let whole = credits.acquire(1_000_000, 1 << 40).await;
        assert!(whole.is_some());
        let mut next = Box::pin(credits.acquire(1, 1));
        assert!(futures::poll!(&mut next).is_pending());
        drop(whole);
        assert!(futures::poll!(&mut next).is_ready());
    }
}
