//! What may be in flight between the actors, in rows and bytes, over all partitions together.
//!
//! A batch pays for its rows and bytes before it is processed. When it is, it gets back what its lanes do not carry on, and
//! the rest when the last lane is done with it. Credits are given back by being dropped, so they come back with any death. A
//! thread that does not come back drops nothing: when one is given up the budget is made anew.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in units of this size, so that a semaphore can hold them.
const UNIT: usize = 1024;

/// What is free of the budget.
#[derive(Clone, Debug)]
struct Free {
    rows: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The budget.
#[derive(Clone, Debug)]
pub struct Credits {
    free: Arc<Mutex<Free>>,
    max_rows: usize,
    max_units: usize,
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Credit {
    rows: OwnedSemaphorePermit,
    bytes: OwnedSemaphorePermit,
}

impl Credit {
    /// Gives back what is beyond so many rows and bytes.
    pub fn shrink(&mut self, rows: usize, bytes: usize) {
        let beyond = |permit: &mut OwnedSemaphorePermit, needed: usize| {
            drop(permit.num_permits().checked_sub(needed).and_then(|surplus| permit.split(surplus)));
        };
        beyond(&mut self.rows, rows);
        beyond(&mut self.bytes, bytes.div_ceil(UNIT));
    }
}

impl Free {
    fn new(rows: usize, units: usize) -> Self {
        Self { rows: Arc::new(Semaphore::new(rows)), bytes: Arc::new(Semaphore::new(units)) }
    }
}

impl Credits {
    /// A budget of rows and bytes.
    pub fn new(rows: usize, bytes: usize) -> Self {
        let max_rows = rows.clamp(1, u32::MAX as usize >> 1);
        let max_units = bytes.div_ceil(UNIT).clamp(1, u32::MAX as usize >> 1);
        Self { free: Arc::new(Mutex::new(Free::new(max_rows, max_units))), max_rows, max_units }
    }

    fn free(&self) -> Free {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the budget anew, since some of it does not come back. What is in flight elsewhere comes on top until it is done.
    pub fn renew(&self) {
        let new = Free::new(self.max_rows, self.max_units);
        let old = std::mem::replace(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner), new);
        // Whoever waits for it waits for the new one.
        old.rows.close();
        old.bytes.close();
    }

    /// Waits for a part of the budget, in turn. What is larger than the whole budget waits for all of it.
    pub async fn acquire(&self, rows: usize, bytes: usize) -> Credit {
        let rows = rows.min(self.max_rows) as u32;
        let units = bytes.div_ceil(UNIT).min(self.max_units) as u32;
        loop {
            let free = self.free();
            let Ok(rows) = free.rows.acquire_many_owned(rows).await else { continue };
            let Ok(bytes) = free.bytes.acquire_many_owned(units).await else { continue };
            return Credit { rows, bytes };
        }
    }

    /// The share of the budget that is in flight now: the larger of rows and bytes, from 0 to 1.
    pub fn share_in_flight(&self) -> f64 {
        let share = |free: usize, all: usize| 1.0 - free as f64 / all as f64;
        let Free { rows, bytes } = self.free();
        share(rows.available_permits(), self.max_rows).max(share(bytes.available_permits(), self.max_units))
    }

    /// Rows that are in flight now.
    pub fn rows_in_flight(&self) -> usize {
        self.max_rows - self.free().rows.available_permits()
    }

    /// Bytes that are in flight now.
    pub fn bytes_in_flight(&self) -> usize {
        (self.max_units - self.free().bytes.available_permits()) * UNIT
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
    async fn what_a_lost_thread_holds_is_made_anew() {
        let credits = Credits::new(100, 10 * UNIT);
        let lost = credits.acquire(60, 100).await;
        let mut waiting = Box::pin(credits.acquire(60, 100));
        assert!(futures::poll!(&mut waiting).is_pending());
        credits.renew();
        let next = waiting.await;
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (60, UNIT));
        // Should it come back after all, nothing is given back twice.
        drop(lost);
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (60, UNIT));
        drop(next);
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (0, 0));
    }

    #[tokio::test]
    async fn what_is_not_carried_on_is_given_back_early() {
        let credits = Credits::new(100, 10 * UNIT);
        let mut credit = credits.acquire(60, 5 * UNIT).await;
        credit.shrink(10, UNIT + 1);
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (10, 2 * UNIT));
        // It never grows.
        credit.shrink(1_000, 1_000 * UNIT);
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (10, 2 * UNIT));
        drop(credit);
        assert_eq!((credits.rows_in_flight(), credits.bytes_in_flight()), (0, 0));
    }

    #[tokio::test]
    async fn a_batch_larger_than_everything_passes_alone() {
        let credits = Credits::new(10, UNIT);
        let whole = credits.acquire(1_000_000, 1 << 40).await;
        let mut next = Box::pin(credits.acquire(1, 1));
        assert!(futures::poll!(&mut next).is_pending());
        drop(whole);
        assert!(futures::poll!(&mut next).is_ready());
    }
}
