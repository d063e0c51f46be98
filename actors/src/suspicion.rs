//! Records that crash whoever touches them: what is known of them, and what is written down to find them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::child::Cause;
use crate::env::Env;
use crate::partition::PartitionLife;
use crate::pointer::Generation;
use crate::ports::{CrashNote, StoreError};
use crate::position::{Offset, PartitionKey, Range};

/// Into how many parts the suspects are cut after each crash of the whole process.
const NARROWING: i64 = 16;
/// Records in a batch when all that is known is that the process dies.
const FIRST_SUSPECTS: i64 = 1024;
/// How many deaths a batch counts as that did not come back: nothing else can be the cause.
const HANG: u32 = 2;
/// How often whoever waits for its turn looks whether the one before was given up.
const LOOK: Duration = Duration::from_secs(1);
/// Batches after which a partition without a suspect is trusted again.
const INNOCENT: u32 = 64;

/// The suspects that this process is working on. It outlives whoever works on them: as long as the process knows of it,
/// it has not died of them.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Held while suspects are processed, so that a death of the process accuses one partition at most. Another one is taken
    /// when whoever holds it does not come back.
    turn: Mutex<Arc<tokio::sync::Mutex<()>>>,
    /// Whose note says so, and the note as it was before.
    noted: Mutex<Option<(PartitionKey, CrashNote)>>,
}

impl Trial {
    fn noted<T>(&self, change: impl FnOnce(&mut Option<(PartitionKey, CrashNote)>) -> T) -> T {
        change(&mut self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn turn(&self) -> OwnedMutexGuard<()> {
        loop {
            let turn = Arc::clone(&self.turn.lock().unwrap_or_else(PoisonError::into_inner));
            if let Ok(held) = timeout(LOOK, turn.lock_owned()).await {
                return held;
            }
        }
    }

    /// Gives up on a life that may hold the turn for ever.
    pub(crate) fn give_up(&self) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// Whether this process tried suspects of a partition, and did not come to take the note back.
    pub(crate) fn is_of(&self, key: &PartitionKey) -> bool {
        self.noted(|noted| noted.is_some_and(|(of, _)| of == *key))
    }

    /// The note of a partition was taken back.
    pub(crate) fn over(&self, key: &PartitionKey) {
        self.noted(|noted| {
            noted.take_if(|(of, _)| of == key);
        });
    }

    /// Takes the note of a life back that ended while the process went on.
    pub(crate) async fn withdraw(&self, env: &Env) -> Result<(), StoreError> {
        let Some((key, note)) = self.noted(|noted| *noted) else { return Ok(()) };
        let store = &env.pipeline.store;
        env.patiently("taking a crash note back", || store.write_crash_note(&key, Some(&note))).await?;
        self.over(&key);
        Ok(())
    }
}

/// The note with which a life begins at a position. `lived`: this process wrote what the note says is being tried. `hung`: the
/// life before did not come back from a batch.
pub(crate) fn note(
    before: Option<CrashNote>,
    position: Offset,
    generation: Generation,
    lived: bool,
    hung: bool,
) -> CrashNote {
    let hangs = if hung { HANG } else { 0 };
    let anew = CrashNote { position, generation, deaths: hangs, suspect: None, trying: None };
    let Some(before) = before.filter(|note| note.position <= position) else { return anew };
    let died = hung || before.generation != generation && !lived;
    // What lies below the position is committed, and innocent.
    let left = |range: Range| (range.until > position).then(|| Range::new(range.from.max(position), range.until));
    let suspect = before.trying.filter(|_| died).and_then(left).or(before.suspect.and_then(left));
    if suspect.is_none() && before.position != position {
        return anew;
    }
    let deaths = before.deaths.saturating_add(hangs.max(died.into()));
    CrashNote { generation, deaths, suspect, trying: None, ..before }
}

/// What is known of records that crash whoever touches them.
///
/// A panic of the stage is caught by running it under guard after a few panics at one place. A record that kills the
/// process, or from which its thread does not come back, leaves no trace but a note that is written before each batch, once
/// that happened here again and again, and taken back after it: each further death narrows the suspects, down to one
/// record. Only what a process died of is suspected: one that ends in good order takes the note back, and so does whoever
/// goes on after another death in it.
pub(crate) struct Suspicion {
    note: CrashNote,
    /// Run the stage under guard.
    pub(crate) isolate: bool,
    /// Note every batch before it is processed.
    pub(crate) narrow: bool,
    /// Batches that were noted and survived without a suspect among them.
    survived: u32,
    pub(crate) poison: Vec<Offset>,
}

impl Suspicion {
    pub(crate) fn new(note: CrashNote, panics: u32, crashes: u32) -> Self {
        let narrow = note.deaths >= crashes.saturating_mul(2);
        let found = note.suspect.filter(|suspect| narrow && suspect.until.0 - suspect.from.0 == 1);
        Self {
            note,
            isolate: panics >= crashes,
            narrow: narrow && found.is_none(),
            survived: 0,
            poison: found.map(|suspect| suspect.from).into_iter().collect(),
        }
    }

    /// Records in the next batch at most.
    pub(crate) fn limit(&self, position: Offset) -> Option<usize> {
        if !self.narrow {
            return None;
        }
        let rows = match self.note.suspect {
            Some(suspect) if position < suspect.from => (suspect.from.0 - position.0).min(FIRST_SUSPECTS),
            Some(suspect) => ((suspect.until.0 - suspect.from.0) / NARROWING).max(1),
            None => FIRST_SUSPECTS,
        };
        usize::try_from(rows).ok()
    }

    /// Notes what is going to be processed. One partition at a time: when the process dies now, this one is accused alone.
    pub(crate) async fn trying(
        &self,
        life: &PartitionLife,
        range: Range,
    ) -> Result<Option<OwnedMutexGuard<()>>, Cause> {
        if !self.narrow {
            return Ok(None);
        }
        let trial = &life.env.trial;
        let alone = trial.turn().await;
        trial.withdraw(&life.env).await?;
        trial.noted(|noted| *noted = Some((life.partition.key, self.note)));
        self.write(life, Some(&CrashNote { trying: Some(range), ..self.note })).await?;
        Ok(Some(alone))
    }

    /// Takes the note back: the process survived.
    pub(crate) async fn survived(&mut self, life: &PartitionLife, position: Offset) -> Result<(), Cause> {
        if !self.narrow {
            return Ok(());
        }
        self.survived += 1;
        let past = self.note.suspect.map_or(self.survived > INNOCENT, |suspect| position >= suspect.until);
        if past {
            self.cleared(life).await?;
        } else {
            self.write(life, Some(&self.note)).await?;
        }
        life.env.trial.over(&life.partition.key);
        Ok(())
    }

    /// Nothing is suspected any more.
    pub(crate) async fn cleared(&mut self, life: &PartitionLife) -> Result<(), Cause> {
        if self.note.deaths == 0 {
            return Ok(());
        }
        (self.narrow, self.note.deaths, self.note.suspect) = (false, 0, None);
        self.write(life, None).await
    }

    async fn write(&self, life: &PartitionLife, note: Option<&CrashNote>) -> Result<(), Cause> {
        let (store, key) = (&life.env.pipeline.store, life.partition.key);
        Ok(life.env.patiently("writing a crash note", || store.write_crash_note(&key, note)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::Generation;

    fn note(deaths: u32, suspect: Option<(i64, i64)>) -> CrashNote {
        let suspect = suspect.map(|(from, until)| Range::new(Offset(from), Offset(until)));
        CrashNote { position: Offset(100), generation: Generation(1), deaths, suspect, trying: None }
    }

    #[test]
    fn suspicion_grows_with_every_death_at_one_place_until_one_record_is_left() {
        let first = Suspicion::new(note(0, None), 0, 3);
        assert!(!first.isolate && !first.narrow && first.limit(Offset(100)).is_none());
        let guarded = Suspicion::new(note(0, None), 3, 3);
        assert!(guarded.isolate && !guarded.narrow);
        let narrowing = Suspicion::new(note(6, None), 0, 3);
        assert_eq!((narrowing.narrow, narrowing.limit(Offset(100))), (true, Some(1024)));
        let narrower = Suspicion::new(note(7, Some((1124, 2148))), 0, 3);
        assert_eq!((narrower.limit(Offset(100)), narrower.limit(Offset(1124))), (Some(1024), Some(64)));
        assert_eq!(narrower.limit(Offset(1120)), Some(4));
        let last = Suspicion::new(note(8, Some((1200, 1203))), 0, 3);
        assert_eq!(last.limit(Offset(1200)), Some(1));
        let found = Suspicion::new(note(9, Some((1201, 1202))), 0, 3);
        assert_eq!((found.narrow, found.poison), (false, vec![Offset(1201)]));
    }

    #[test]
    fn only_what_a_process_died_of_is_suspected() {
        let (position, next) = (Offset(100), Generation(2));
        let range = |from, until| Some(Range::new(Offset(from), Offset(until)));
        let trying = CrashNote { trying: range(1200, 1201), ..note(8, Some((1200, 1216))) };
        let begin = |generation, lived| {
            let begun = super::note(Some(trying), position, generation, lived, false);
            assert_eq!((begun.position, begun.generation, begun.trying), (position, generation, None));
            (begun.deaths, begun.suspect)
        };
        assert_eq!(begin(next, false), (9, range(1200, 1201)), "the process died in it");
        assert_eq!(begin(Generation(1), false), (8, range(1200, 1216)), "a shard crashed, and the process lives");
        assert_eq!(begin(next, true), (8, range(1200, 1216)), "the supervisor crashed, and the process lives");
        let withdrawn = CrashNote { trying: None, ..trying };
        let begun = super::note(Some(withdrawn), position, next, false, false);
        assert_eq!((begun.deaths, begun.suspect), (9, range(1200, 1216)), "it ended in good order");
    }

    #[test]
    fn a_batch_that_does_not_come_back_counts_as_two_deaths() {
        let mut begun = super::note(None, Offset(100), Generation(1), false, true);
        assert_eq!(begun.deaths, 2);
        for deaths in [4, 6] {
            begun = super::note(Some(begun), Offset(100), Generation(1), false, true);
            assert_eq!((begun.deaths, begun.suspect), (deaths, None));
        }
        let trying = Some(Range::new(Offset(200), Offset(1224)));
        let begun = super::note(Some(CrashNote { trying, ..begun }), Offset(150), Generation(1), true, true);
        assert_eq!((begun.deaths, begun.suspect, begun.trying), (8, trying, None));
    }

    #[test]
    fn what_was_narrowed_holds_for_as_long_as_the_suspects_are_ahead() {
        let range = |from, until| Some(Range::new(Offset(from), Offset(until)));
        let begin = |note, position| {
            let begun = super::note(Some(note), Offset(position), Generation(2), false, false);
            (begun.position.0, begun.deaths, begun.suspect)
        };
        let tried = CrashNote { trying: range(4096, 5120), ..note(6, None) };
        assert_eq!(begin(tried, 100), (100, 7, range(4096, 5120)));
        assert_eq!(begin(tried, 1124), (100, 7, range(4096, 5120)), "what was committed before is innocent");
        assert_eq!(begin(tried, 5120), (5120, 0, None), "it was committed, and the process died of something else");
        assert_eq!(begin(tried, 99), (99, 0, None), "somebody moved it back");
        let suspected = note(7, Some((4096, 5120)));
        assert_eq!(begin(suspected, 4160), (100, 8, range(4160, 5120)), "a part of them is innocent");
        assert_eq!(begin(suspected, 5120), (5120, 0, None));
        let again = CrashNote { trying: range(3000, 4024), ..suspected };
        assert_eq!(begin(again, 100), (100, 8, range(3000, 4024)), "the last death counts");
        assert_eq!(begin(note(3, None), 100), (100, 4, None));
        assert_eq!(begin(note(3, None), 101), (101, 0, None), "it got on");
    }
}
