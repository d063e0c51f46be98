//! Records that crash whoever touches them: what is known of them, and what is written down to find them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::board::Board;
use crate::child::Cause;
use crate::env::{Pipeline, patiently};
use crate::partition::PartitionLife;
use crate::pointer::Generation;
use crate::ports::{CrashNote, StoreError, Suspects};
use crate::position::{Offset, PartitionKey, Range};

/// Into how many parts the suspects are cut after each crash of the whole process.
const NARROWING: usize = 16;
/// Records in a batch when all that is known is that the process dies.
const FIRST_SUSPECTS: usize = 1024;
/// How many deaths a batch counts as that did not come back: nothing else can be the cause.
const HANG: u32 = 2;
/// How often whoever waits for its turn looks whether the one before was given up.
const LOOK: Duration = Duration::from_secs(1);
/// How long a process that ends tries to take a note back.
const WITHDRAWING: Duration = Duration::from_secs(1);

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
        self.noted(|noted| noted.as_ref().is_some_and(|(of, _)| of == key))
    }

    /// The note of a partition was taken back.
    pub(crate) fn over(&self, key: &PartitionKey) {
        self.noted(|noted| {
            noted.take_if(|(of, _)| of == key);
        });
    }

    /// Takes the note of a life back that ended while the process went on. One that another process has written since stays.
    async fn withdraw(&self, pipeline: &Pipeline, board: &Board) -> Result<(), StoreError> {
        let Some((key, note)) = self.noted(|noted| noted.clone()) else { return Ok(()) };
        let store = &pipeline.store;
        let stored = patiently(board, "reading a crash note", || store.crash_note(&key)).await?;
        // Also where it says that nothing is tried: a note that was sent may still be on its way, and is older than this one.
        if stored.is_some_and(|stored| stored.generation == note.generation) {
            patiently(board, "taking a crash note back", || store.write_crash_note(&key, Some(&note))).await?;
        }
        self.over(&key);
        Ok(())
    }

    /// The process ends, and nobody died of what was being tried.
    pub(crate) async fn end(&self, pipeline: &Pipeline, board: &Board) {
        if !matches!(timeout(WITHDRAWING, self.withdraw(pipeline, board)).await, Ok(Ok(()))) {
            tracing::warn!("a crash note could not be taken back, so records that did no harm may be suspected");
        }
    }
}

/// The note with which a life begins at a position. What lies below `passed` was processed once, and so harms nobody. `lived`:
/// this process wrote what the note says is being tried. `hung`: the life before did not come back from a batch.
pub(crate) fn note(
    before: Option<CrashNote>,
    position: Offset,
    passed: Offset,
    generation: Generation,
    lived: bool,
    hung: bool,
) -> CrashNote {
    let hangs = if hung { HANG } else { 0 };
    let anew = CrashNote::new(position, generation, hangs);
    let Some(before) = before.filter(|note| note.position <= position) else { return anew };
    let died = hung || before.generation != generation && !lived;
    // What some shard has is innocent, also where others still lack it. To set it aside now would count it twice.
    let left = |suspects: Suspects| {
        let Range { from, until } = suspects.range;
        (until > passed).then(|| Suspects { range: Range::new(from.max(passed), until), ..suspects })
    };
    let tried = before.trying.filter(|_| died).and_then(left);
    let mut suspect = tried.or(before.suspect.and_then(left));
    let mut found = before.found;
    found.retain(|offset| *offset >= position);
    if suspect.is_none() && found.is_empty() && before.position != position {
        return anew;
    }
    // It may not be the only one: what else kills is looked for while it is set aside.
    if let Some(alone) = suspect.take_if(|suspect| tried.is_some() && suspect.records() == 1) {
        found.push(Offset(alone.range.until.0 - 1));
    }
    let deaths = before.deaths.saturating_add(hangs.max(died.into()));
    CrashNote { position: before.position, generation, deaths, suspect, trying: None, found }
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
    /// So many deaths at one place are no chance.
    enough: u32,
    /// Up to where the stage runs under guard: to the end of the batch that begins at the place of the panics.
    guarded: Option<Offset>,
    /// Note every batch before it is processed.
    pub(crate) narrow: bool,
}

impl Suspicion {
    /// `panics` says where the stage last panicked, and how often in a row.
    pub(crate) fn new(note: CrashNote, panics: (Offset, u32), crashes: u32) -> Self {
        let enough = crashes.saturating_mul(2);
        let guarded = (panics.1 >= crashes).then_some(panics.0);
        Self { narrow: note.deaths >= enough, note, enough, guarded }
    }

    /// Run the stage under guard.
    pub(crate) fn isolate(&self) -> bool {
        self.guarded.is_some()
    }

    /// A batch is through. One that precedes the place of the panics, and was lost with them, says nothing of it.
    pub(crate) fn passed(&mut self, batch: Range) {
        self.guarded.take_if(|place| !batch.is_empty() && batch.from >= *place);
    }

    /// Records that are set aside.
    pub(crate) fn poison(&self) -> &[Offset] {
        &self.note.found
    }

    /// Records in the next batch at most, and the offset before which it has to end.
    pub(crate) fn limit(&self, position: Offset) -> Option<(usize, Option<Offset>)> {
        if !self.narrow {
            return None;
        }
        Some(match self.note.suspect {
            Some(suspect) if position < suspect.range.from => (FIRST_SUSPECTS, Some(suspect.range.from)),
            Some(suspect) if position < suspect.range.until => {
                ((suspect.records() / NARROWING).max(1), Some(suspect.range.until))
            }
            _ => (FIRST_SUSPECTS, None),
        })
    }

    /// Notes what is going to be processed. One partition at a time: when the process dies now, this one is accused alone.
    pub(crate) async fn trying(
        &self,
        life: &PartitionLife,
        suspects: Suspects,
    ) -> Result<Option<OwnedMutexGuard<()>>, Cause> {
        if !self.narrow {
            return Ok(None);
        }
        let (env, trial) = (&life.env, &life.env.trial);
        let alone = trial.turn().await;
        trial.withdraw(&env.pipeline, &env.board).await?;
        trial.noted(|noted| *noted = Some((life.partition.key, self.note.clone())));
        self.write(life, Some(&CrashNote { trying: Some(suspects), ..self.note.clone() })).await?;
        Ok(Some(alone))
    }

    /// Takes the note back: the process survived.
    pub(crate) async fn survived(&self, life: &PartitionLife) -> Result<(), Cause> {
        self.write(life, Some(&self.note)).await?;
        life.env.trial.over(&life.partition.key);
        Ok(())
    }

    /// Trusts the partition again once what the note is about is committed: what was only read is read again after the next
    /// death. `end`: where nothing follows.
    pub(crate) async fn settle(&mut self, life: &PartitionLife, end: Option<Offset>) -> Result<(), Cause> {
        if self.note.deaths == 0 {
            return Ok(());
        }
        let Some(committed) = life.committed().filter(|committed| self.settled(*committed, end)) else { return Ok(()) };
        // What kills may be further on than is read before a commit: of the next death here all is noted again at once.
        let deaths = if self.narrow && end.is_none() { self.enough.saturating_sub(1) } else { 0 };
        (self.note, self.narrow) = (CrashNote::new(committed, self.note.generation, deaths), false);
        self.write(life, Some(&self.note).filter(|note| note.deaths > 0)).await
    }

    fn settled(&self, committed: Offset, end: Option<Offset>) -> bool {
        let note = &self.note;
        let passed = committed > note.position
            && note.suspect.is_none_or(|suspect| suspect.range.until <= committed)
            && note.found.iter().all(|found| *found < committed);
        passed || end.is_some_and(|end| end <= committed)
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

    fn range(from: i64, until: i64) -> Range {
        Range::new(Offset(from), Offset(until))
    }

    /// A record at every offset.
    fn suspects(from: i64, until: i64) -> Option<Suspects> {
        Some(Suspects::new(range(from, until), (until - from) as usize))
    }

    fn note(deaths: u32, suspect: Option<(i64, i64)>) -> CrashNote {
        let suspect = suspect.and_then(|(from, until)| suspects(from, until));
        CrashNote { suspect, ..CrashNote::new(Offset(100), Generation(1), deaths) }
    }

    fn suspicion(note: CrashNote) -> Suspicion {
        Suspicion::new(note, Default::default(), 3)
    }

    #[test]
    fn suspicion_grows_with_every_death_at_one_place_until_one_record_is_left() {
        let first = suspicion(note(0, None));
        assert!(!first.isolate() && !first.narrow && first.limit(Offset(100)).is_none());
        let guarded = Suspicion::new(note(0, None), (Offset(100), 3), 3);
        assert!(guarded.isolate() && !guarded.narrow);
        let narrowing = suspicion(note(6, None));
        assert_eq!((narrowing.narrow, narrowing.limit(Offset(100))), (true, Some((1024, None))));
        let narrower = suspicion(note(7, Some((1124, 2148))));
        assert_eq!(narrower.limit(Offset(100)), Some((1024, Some(Offset(1124)))), "the others are apart from them");
        assert_eq!(narrower.limit(Offset(1124)), Some((64, Some(Offset(2148)))));
        assert_eq!(narrower.limit(Offset(2148)), Some((1024, None)), "they did no harm this time");
        let last = suspicion(note(8, Some((1200, 1203))));
        assert_eq!(last.limit(Offset(1200)), Some((1, Some(Offset(1203)))));
        let trying = CrashNote { trying: suspects(1201, 1202), ..note(8, Some((1200, 1203))) };
        let found = suspicion(super::note(Some(trying), Offset(100), Offset(100), Generation(2), false, false));
        assert_eq!((found.narrow, found.poison()), (true, [Offset(1201)].as_slice()));
        // Some shard has it, and so has counted it.
        let trying = CrashNote { trying: suspects(1201, 1202), ..note(8, Some((1200, 1203))) };
        let passed = super::note(Some(trying), Offset(100), Offset(1202), Generation(2), false, false);
        assert_eq!((passed.suspect.map(|left| left.range), passed.found.len()), (Some(range(1202, 1203)), 0));
    }

    /// After a compaction a few records may span a million offsets.
    #[test]
    fn what_is_narrowed_is_records_and_not_offsets() {
        let sparse = Suspects::new(range(1_000, 1_001_000), 1_024);
        let limits = |records| {
            let suspect = Some(Suspects::new(sparse.range, records));
            suspicion(CrashNote { suspect, ..note(7, None) }).limit(Offset(1_000)).map(|limit| limit.0)
        };
        assert_eq!([1_024, 64, 4].map(limits), [Some(64), Some(4), Some(1)]);
        // One that a former version wrote.
        let old = r#"{"position":100,"generation":1,"deaths":7,"suspect":{"from":1000,"until":1016}}"#;
        let old: CrashNote = serde_json::from_str(old).expect("a note");
        assert_eq!((old.suspect.map(|suspect| suspect.records()), old.trying, old.found.len()), (Some(16), None, 0));
        let new = CrashNote { trying: Some(sparse), found: vec![Offset(7)], ..note(7, None) };
        let text = serde_json::to_string(&new).expect("a text");
        assert_eq!(serde_json::from_str::<CrashNote>(&text).expect("a note"), new);
    }

    #[test]
    fn after_one_record_is_found_the_others_are_looked_for() {
        let next = |before: CrashNote| super::note(Some(before), Offset(100), Offset(100), Generation(2), false, false);
        let found = next(CrashNote { trying: suspects(200, 201), ..note(8, Some((200, 203))) });
        assert_eq!((found.found.as_slice(), found.suspect, found.deaths), ([Offset(200)].as_slice(), None, 9));
        assert!(suspicion(found.clone()).narrow);
        let generation = Generation(1);
        let both = next(CrashNote { trying: suspects(202, 203), generation, ..found });
        assert_eq!(both.found, [Offset(200), Offset(202)]);
        let committed = super::note(Some(both.clone()), Offset(202), Offset(202), Generation(2), false, false);
        assert_eq!(committed.found, [Offset(202)], "its dead letter is committed");
        let anew = super::note(Some(both), Offset(203), Offset(203), Generation(2), false, false);
        assert_eq!((anew.position, anew.deaths, anew.found.len()), (Offset(203), 0, 0));
    }

    #[test]
    fn a_partition_is_trusted_again_when_what_was_suspected_is_committed() {
        let settled =
            |note: CrashNote, committed, end: Option<i64>| suspicion(note).settled(Offset(committed), end.map(Offset));
        assert!(!settled(note(6, None), 100, None) && settled(note(6, None), 101, None));
        let suspected = || note(7, Some((200, 300)));
        assert!(!settled(suspected(), 299, None) && settled(suspected(), 300, None));
        let found = || CrashNote { found: vec![Offset(400)], ..note(7, None) };
        assert!(!settled(found(), 400, None) && settled(found(), 401, None));
        assert!(!settled(note(6, None), 99, Some(100)), "what was read up to the end is not committed yet");
        assert!(settled(note(6, None), 100, Some(100)), "it died of nothing that is read");
    }

    /// Case: poison (actix#158).
    #[test]
    fn the_guard_stays_until_the_batch_that_panicked_is_through() {
        let mut suspicion = Suspicion::new(note(0, None), (Offset(40), 3), 3);
        for before in [range(20, 40), range(30, 40), range(40, 40)] {
            suspicion.passed(before);
            assert!(suspicion.isolate(), "{before} was lost with the one that panicked");
        }
        suspicion.passed(range(40, 50));
        assert!(!suspicion.isolate());
    }

    #[test]
    fn only_what_a_process_died_of_is_suspected() {
        let (position, next) = (Offset(100), Generation(2));
        let trying = CrashNote { trying: suspects(1200, 1202), ..note(8, Some((1200, 1216))) };
        let begin = |generation, lived| {
            let begun = super::note(Some(trying.clone()), position, position, generation, lived, false);
            assert_eq!((begun.position, begun.generation, begun.trying), (position, generation, None));
            (begun.deaths, begun.suspect)
        };
        assert_eq!(begin(next, false), (9, suspects(1200, 1202)), "the process died in it");
        assert_eq!(begin(Generation(1), false), (8, suspects(1200, 1216)), "a shard crashed, and the process lives");
        assert_eq!(begin(next, true), (8, suspects(1200, 1216)), "the supervisor crashed, and the process lives");
        let withdrawn = CrashNote { trying: None, ..trying };
        let begun = super::note(Some(withdrawn), position, position, next, false, false);
        assert_eq!((begun.deaths, begun.suspect), (9, suspects(1200, 1216)), "it ended in good order");
    }

    #[test]
    fn a_batch_that_does_not_come_back_counts_as_two_deaths() {
        let mut begun = super::note(None, Offset(100), Offset(100), Generation(1), false, true);
        assert_eq!(begun.deaths, 2);
        for deaths in [4, 6] {
            begun = super::note(Some(begun), Offset(100), Offset(100), Generation(1), false, true);
            assert_eq!((begun.deaths, begun.suspect), (deaths, None));
        }
        let trying = suspects(200, 1224);
        let begun =
            super::note(Some(CrashNote { trying, ..begun }), Offset(150), Offset(150), Generation(1), true, true);
        assert_eq!((begun.deaths, begun.suspect, begun.trying), (8, trying, None));
    }

    #[test]
    fn what_was_narrowed_holds_for_as_long_as_the_suspects_are_ahead() {
        let begin = |note, position| {
            let begun = super::note(Some(note), Offset(position), Offset(position), Generation(2), false, false);
            (begun.position.0, begun.deaths, begun.suspect)
        };
        let tried = CrashNote { trying: suspects(4096, 5120), ..note(6, None) };
        assert_eq!(begin(tried.clone(), 100), (100, 7, suspects(4096, 5120)));
        assert_eq!(begin(tried.clone(), 1124), (100, 7, suspects(4096, 5120)), "what was committed before is innocent");
        assert_eq!(
            begin(tried.clone(), 5120),
            (5120, 0, None),
            "it was committed, and the process died of something else"
        );
        assert_eq!(begin(tried, 99), (99, 0, None), "somebody moved it back");
        let suspected = note(7, Some((4096, 5120)));
        let left = suspects(4096, 5120).map(|all| Suspects { range: range(4160, 5120), ..all });
        assert_eq!(begin(suspected.clone(), 4160), (100, 8, left), "a part of them is innocent");
        assert_eq!(begin(suspected.clone(), 5120), (5120, 0, None));
        let again = CrashNote { trying: suspects(3000, 4024), ..suspected };
        assert_eq!(begin(again, 100), (100, 8, suspects(3000, 4024)), "the last death counts");
        assert_eq!(begin(note(3, None), 100), (100, 4, None));
        assert_eq!(begin(note(3, None), 101), (101, 0, None), "it got on");
    }
}
