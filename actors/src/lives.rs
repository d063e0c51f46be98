//! The lives of actors that have begun and of whose end no word has come.
//!
//! An actor that is ended goes on until its thread comes to an await. Where a thread does not come back that never happens, and
//! nothing that is started on it begins. By such ends that do not come a lost thread is known, whatever was started again
//! meanwhile, and so is who was in the middle of something when it was ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::AbortHandle;
use tokio::time::Instant;

use crate::board::ActorId;
use crate::message::Incarnation;

#[derive(Debug)]
struct Life {
    id: ActorId,
    /// The number of its thread, if that can be replaced.
    place: Option<usize>,
    abort: Option<AbortHandle>,
    /// Since when it is to end, and whether it was in the middle of something then.
    ending: Option<(Instant, bool)>,
}

/// An end that does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    pub(crate) id: ActorId,
    pub(crate) place: usize,
    /// It was in the middle of something.
    pub(crate) busy: bool,
}

/// The lives, by their incarnations.
#[derive(Debug, Default)]
pub(crate) struct Lives(Mutex<BTreeMap<Incarnation, Life>>);

impl Lives {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Incarnation, Life>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A life is about to begin.
    pub(crate) fn begins(&self, incarnation: Incarnation, id: ActorId, place: Option<usize>) {
        self.with(|lives| lives.insert(incarnation, Life { id, place, abort: None, ending: None }));
    }

    /// How it can be ended. It may be over already.
    pub(crate) fn ends_by(&self, incarnation: Incarnation, abort: AbortHandle) {
        self.with(|lives| lives.get_mut(&incarnation).map(|life| life.abort = Some(abort)));
    }

    /// Somebody ends it now.
    pub(crate) fn ending(&self, incarnation: Incarnation, busy: bool) {
        self.with(|lives| lives.get_mut(&incarnation).map(|life| life.end(busy)));
    }

    /// Its end has come.
    pub(crate) fn over(&self, incarnation: Incarnation) {
        self.with(|lives| lives.remove(&incarnation));
    }

    /// Ends all of them. `busy` says who is in the middle of something.
    pub(crate) fn end_all(&self, busy: impl Fn(ActorId) -> bool) {
        self.with(|lives| {
            for life in lives.values_mut() {
                life.end(busy(life.id));
                if let Some(abort) = &life.abort {
                    abort.abort();
                }
            }
        });
    }

    /// Those that were ended longer ago than this.
    pub(crate) fn overdue(&self, patience: Duration) -> Vec<Overdue> {
        let late = |life: &Life| {
            let (_, busy) = life.ending.filter(|(at, _)| at.elapsed() > patience)?;
            Some(Overdue { id: life.id, place: life.place?, busy })
        };
        self.with(|lives| lives.values().filter_map(late).collect())
    }

    /// Threads are given up, with whatever lives there.
    pub(crate) fn lost(&self, places: &BTreeSet<usize>) {
        self.with(|lives| lives.retain(|_, life| life.place.is_none_or(|place| !places.contains(&place))));
    }
}

impl Life {
    /// The first time counts: later it is in the middle of nothing that is known.
    fn end(&mut self, busy: bool) {
        self.ending.get_or_insert_with(|| (Instant::now(), busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_end_that_does_not_come_is_overdue_until_its_thread_is_given_up() {
        let lives = Lives::default();
        let (hangs, waits, comes) = (ActorId::Shard(0), ActorId::Shard(2), ActorId::Shard(1));
        lives.begins(1, hangs, Some(0));
        lives.begins(2, comes, Some(1));
        lives.begins(3, ActorId::Supervisor, None);
        lives.ending(1, true);
        lives.ending(2, true);
        // Its next life waits for the same thread, and is ended, too.
        lives.begins(4, waits, Some(0));
        lives.ending(4, false);
        lives.over(2);
        tokio::time::advance(PATIENCE).await;
        assert_eq!(lives.overdue(PATIENCE), [], "there is time yet");
        lives.end_all(|_| false);
        tokio::time::advance(PATIENCE).await;
        let late = [Overdue { id: hangs, place: 0, busy: true }, Overdue { id: waits, place: 0, busy: false }];
        assert_eq!(lives.overdue(PATIENCE), late);
        lives.lost(&[0].into());
        assert_eq!(lives.overdue(PATIENCE), []);
        // Should it come back after all, or end before it is known how to end it.
        lives.over(1);
        lives.ends_by(1, AbortHandle::new_pair().0);
    }
}
