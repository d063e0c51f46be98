//! Who owns a pipeline, and when another process may take over.
//!
//! The pointers decide what is committed, and the higher generation wins every pointer ([`crate::recovery`]): so nothing is
//! lost or counted twice, however many processes there are. This module only keeps a process that starts from disturbing
//! one that is alive. The owner bumps a counter in the store; whoever starts takes a generation at once if nobody owns the
//! pipeline, if the owner let go of it, or if it carries the owner's own name. Otherwise it is a standby until the counter
//! stood still for long enough by its own monotonic clock. No clock of another machine is ever compared, and a wrong
//! guess costs a restart, no record.
//!
//! Of several that see the same silence one is the first to take the generation after the one they know of; the others go
//! on being standbys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, sleep, timeout};

use crate::board::{ActorId, Board};
use crate::env::{Pipeline, patiently};
use crate::pointer::Generation;
use crate::ports::{Heartbeat, StateStore, StoreError, Taken};

/// How often the counter is bumped, and looked at, within the time after which somebody takes over.
const BEATS: u32 = 8;
/// The longest time between two beats, for those who wait less long than this process would.
const SLOWEST: Duration = Duration::from_millis(250);
/// The name of an owner that has not beaten yet.
const UNKNOWN: &str = "(not known yet)";
/// How long letting go of the pipeline may take: at worst the next process waits.
const RELEASE: Duration = Duration::from_secs(1);
/// The first pause between two lines of the log of a standby, and the longest.
const REMINDERS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// Whether a process that starts may take a generation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nobody owns the pipeline.
    Free,
    /// The owner let go of it.
    Released,
    /// The owner has the same name: it is an earlier life of this instance.
    Mine,
    /// The owner's counter stood still for long enough.
    StoodStill,
    /// The owner may be alive.
    Wait,
}

/// What a standby has seen of the owner's counter.
#[derive(Debug)]
pub struct Watch {
    instance: String,
    takeover_after: Duration,
    /// The generation that another process took first. Until it beats, it is an owner that nobody knows more of.
    taken: Generation,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The latest generation that is known of, the latest that beats, and its beat.
    counter: (Generation, Option<(Generation, i64)>),
    /// How long the counter is known to have stood still.
    stood: Duration,
    /// From when on it stands still without a break; none after a look that was not answered.
    from: Option<Instant>,
}

impl Watch {
    /// For an instance that has not looked yet.
    pub fn new(instance: &str, takeover_after: Duration) -> Self {
        Self { instance: instance.to_owned(), takeover_after, taken: Generation(0), seen: None }
    }

    /// How often to look.
    pub fn pause(&self) -> Duration {
        self.takeover_after / BEATS
    }

    /// Decides after a look that was asked for and answered at these moments.
    pub fn look(&mut self, asked: Instant, answered: Instant, found: Option<&Heartbeat>) -> Turn {
        let known = self.known(found);
        match found {
            None if known == Generation(0) => return Turn::Free,
            Some(owner) if owner.generation == known && owner.released => return Turn::Released,
            Some(owner) if owner.generation == known && owner.instance == self.instance => return Turn::Mine,
            _ => {}
        }
        let counter = (known, found.map(|found| (found.generation, found.beat)));
        // A look that comes late counts as one in time: it may have been both processes that slept.
        let most = self.pause() * 2;
        match &mut self.seen {
            Some(seen) if seen.counter == counter => {
                // The counter was read somewhere between the question and the answer: only what lies between counts.
                seen.stood += seen.from.map_or(Duration::ZERO, |from| asked.saturating_duration_since(from).min(most));
                seen.from = Some(seen.from.map_or(answered, |_| asked));
                if seen.stood >= self.takeover_after { Turn::StoodStill } else { Turn::Wait }
            }
            seen => {
                *seen = Some(Seen { counter, stood: Duration::ZERO, from: Some(answered) });
                Turn::Wait
            }
        }
    }

    /// The latest generation that is known of; 0 if there is none.
    fn known(&self, found: Option<&Heartbeat>) -> Generation {
        found.map_or(self.taken, |found| found.generation.max(self.taken))
    }

    /// Another process was faster, and has taken this generation.
    pub fn overtaken(&mut self, by: Generation) {
        (self.taken, self.seen) = (by, None);
    }

    /// A look was not answered: the counter has neither moved nor stood still.
    pub fn unanswered(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.from = None;
        }
    }
}

/// Waits until this process may take a generation, and takes it.
pub(crate) async fn generation(pipeline: &Pipeline, board: &Board) -> Result<Generation, StoreError> {
    let store = &pipeline.store;
    let mut watch = Watch::new(&pipeline.instance, pipeline.tuning.takeover_after);
    let what = "asking for a generation";
    loop {
        let Some(known) = wait(&mut watch, board, || store.read_heartbeat()).await? else {
            return patiently(board, what, || store.next_generation()).await;
        };
        match patiently(board, what, || store.take_generation(known)).await? {
            Taken::Mine(generation) => return Ok(generation),
            Taken::Another(by) => {
                // It is about to beat, or died before it could.
                tracing::info!("standby: another process has taken generation {by}");
                board.event(ActorId::Supervisor, format!("standby: another process has taken generation {by}"));
                watch.overtaken(by);
            }
        }
    }
}

/// Waits until this process may take a generation: the one after the one that is answered, or just the next, since the last
/// one was its own.
async fn wait<F>(
    watch: &mut Watch,
    board: &Board,
    mut read: impl FnMut() -> F,
) -> Result<Option<Generation>, StoreError>
where
    F: Future<Output = Result<Option<Heartbeat>, StoreError>>,
{
    let after = watch.takeover_after;
    let mut reminder = (Instant::now(), REMINDERS.0);
    let mut known: Option<Generation> = None;
    loop {
        let asked = Instant::now();
        let found = match read().await {
            Ok(found) => found,
            Err(StoreError::Unavailable(error)) => {
                watch.unanswered();
                board.committer(|status| {
                    status.retries += 1;
                    status.last_fault = Some(format!("reading the owner's heartbeat: {error}"));
                });
                if Instant::now() >= reminder.0 {
                    tracing::warn!("the owner's heartbeat cannot be read: {error}; trying again");
                    remind(&mut reminder);
                }
                sleep(watch.pause()).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let turn = watch.look(asked, Instant::now(), found.as_ref());
        let latest = watch.known(found.as_ref());
        let owner = found.filter(|found| found.generation == latest).unwrap_or_else(|| Heartbeat {
            generation: latest,
            instance: UNKNOWN.to_owned(),
            beat: 0,
            released: false,
        });
        let Heartbeat { generation, instance, .. } = &owner;
        match turn {
            Turn::Wait => {
                if known != Some(*generation) {
                    known = Some(*generation);
                    board.event(
                        ActorId::Supervisor,
                        format!("standby: instance {instance} owns the pipeline (generation {generation})"),
                    );
                    reminder = (Instant::now(), REMINDERS.0);
                }
                board.standby(&owner);
                if Instant::now() >= reminder.0 {
                    tracing::info!(
                        "standby: instance {instance} owns the pipeline (generation {generation}); taking over when its \
                         heartbeat has stood still for {after:?} (STRANDLINE_STORE__TAKEOVER_AFTER)"
                    );
                    remind(&mut reminder);
                }
                sleep(watch.pause()).await;
            }
            Turn::StoodStill => {
                let what = format!(
                    "taking over from instance {instance} (generation {generation}): its heartbeat stood still for {after:?}"
                );
                tracing::warn!("{what}");
                board.event(ActorId::Supervisor, what);
                return Ok(Some(latest));
            }
            Turn::Mine => {
                tracing::info!("going on after generation {generation} of the same instance, {instance}");
                return Ok(None);
            }
            Turn::Free | Turn::Released => return Ok(Some(latest)),
        }
    }
}

fn remind((next, pause): &mut (Instant, Duration)) {
    *next = Instant::now() + *pause;
    *pause = (*pause * 2).min(REMINDERS.1);
}

/// The owner of a pipeline, as it shows that it is alive.
#[derive(Clone)]
pub(crate) struct Owner {
    pipeline: Arc<Pipeline>,
    generation: Generation,
    beats: Arc<AtomicI64>,
    released: Arc<AtomicBool>,
}

impl Owner {
    pub(crate) fn new(pipeline: Arc<Pipeline>, generation: Generation) -> Self {
        Self { pipeline, generation, beats: Arc::default(), released: Arc::default() }
    }

    fn next(&self) -> Heartbeat {
        Heartbeat {
            generation: self.generation,
            instance: self.pipeline.instance.clone(),
            beat: self.beats.fetch_add(1, Ordering::SeqCst),
            released: self.released.load(Ordering::SeqCst),
        }
    }

    /// Bumps the counter for as long as the process owns the pipeline. Whether a beat arrives holds up nothing: the next one
    /// makes up for it.
    pub(crate) async fn beat(self) {
        let pause = (self.pipeline.tuning.takeover_after / BEATS).min(SLOWEST);
        let store: &dyn StateStore = self.pipeline.store.as_ref();
        let mut times = tokio::time::interval(pause.max(Duration::from_millis(1)));
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            if self.released.load(Ordering::SeqCst) {
                return;
            }
            match timeout(pause * 2, store.write_heartbeat(&self.next())).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("a heartbeat was not written: {error}"),
                Err(_) => tracing::debug!("a heartbeat was not answered in time"),
            }
        }
    }

    /// Lets go of the pipeline, so that the next process need not wait.
    pub(crate) async fn release(self) {
        self.released.store(true, Ordering::SeqCst);
        match timeout(RELEASE, self.pipeline.store.write_heartbeat(&self.next())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the pipeline was not let go of, so another instance waits: {error}"),
            Err(_) => tracing::warn!("the pipeline was not let go of in time, so another instance may wait"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const AFTER: Duration = Duration::from_secs(2);

    fn heartbeat(generation: i64, instance: &str, beat: i64) -> Heartbeat {
        Heartbeat { generation: Generation(generation), instance: instance.into(), beat, released: false }
    }

    fn watch() -> Watch {
        Watch::new("b", AFTER)
    }

    /// Looks at moments in milliseconds since the first.
    struct Looks(Watch, Instant);

    impl Looks {
        fn new() -> Self {
            Self(watch(), Instant::now())
        }

        fn look(&mut self, asked: u64, answered: u64, beat: i64) -> Turn {
            let at = |millis| self.1 + Duration::from_millis(millis);
            self.0.look(at(asked), at(answered), Some(&heartbeat(4, "a", beat)))
        }
    }

    #[test]
    fn who_may_go_on_at_once() {
        let now = Instant::now();
        assert_eq!(watch().look(now, now, None), Turn::Free);
        assert_eq!(watch().look(now, now, Some(&heartbeat(4, "b", 7))), Turn::Mine);
        let released = Heartbeat { released: true, ..heartbeat(4, "a", 7) };
        assert_eq!(watch().look(now, now, Some(&released)), Turn::Released);
        assert_eq!(watch().look(now, now, Some(&heartbeat(4, "a", 7))), Turn::Wait);
    }

    #[test]
    fn one_that_was_overtaken_waits_for_whoever_was_faster() {
        let mut looks = Looks::new();
        for look in 0..8 {
            assert_eq!(looks.look(look * 250, look * 250, 7), Turn::Wait, "{look}");
        }
        assert_eq!(looks.look(2_000, 2_000, 7), Turn::StoodStill);
        // Another has taken generation 5, and has not beaten yet; the old heartbeat means nothing any more, whoever's it is.
        looks.0.overtaken(Generation(5));
        for (instance, released) in [("a", false), ("a", true), ("b", false)] {
            let old = Heartbeat { released, ..heartbeat(4, instance, 7) };
            assert_eq!(looks.0.look(looks.1, looks.1, Some(&old)), Turn::Wait);
        }
        looks.0.overtaken(Generation(5));
        for look in 8..16 {
            assert_eq!(looks.look(look * 250, look * 250, 7), Turn::Wait, "{look}");
        }
        // It never did: it died at once.
        assert_eq!(looks.look(4_000, 4_000, 7), Turn::StoodStill);
        assert_eq!(looks.0.known(Some(&heartbeat(4, "a", 7))), Generation(5));
        // Or it does, and is an owner like others.
        let found = Heartbeat { released: true, ..heartbeat(5, "c", 1) };
        assert_eq!(looks.0.look(looks.1, looks.1, Some(&found)), Turn::Released);
        // So it is where nobody has ever beaten.
        let mut watch = watch();
        watch.overtaken(Generation(1));
        let now = Instant::now();
        assert_eq!(watch.look(now, now, None), Turn::Wait);
    }

    #[test]
    fn a_counter_that_stands_still_is_left_to_the_next() {
        let mut looks = Looks::new();
        for look in 0..8 {
            assert_eq!(looks.look(look * 250, look * 250, 7), Turn::Wait, "{look}");
        }
        assert_eq!(looks.look(2_000, 2_000, 7), Turn::StoodStill);
    }

    #[test]
    fn a_counter_that_moves_starts_the_wait_anew() {
        let mut looks = Looks::new();
        for look in 0..100 {
            // It moves just before the time is over.
            assert_eq!(looks.look(look * 250, look * 250, look as i64 / 8), Turn::Wait, "{look}");
        }
        // Another process that takes over moves it, too, whatever it counts.
        let mut watch = watch();
        let begun = Instant::now();
        for look in 0..32u32 {
            let at = begun + look * AFTER / 8;
            assert_eq!(watch.look(at, at, Some(&heartbeat(4 + i64::from(look) / 8, "a", 7))), Turn::Wait);
        }
    }

    #[test]
    fn only_what_lies_between_two_answers_counts() {
        let mut looks = Looks::new();
        // The first answer may be as old as its question or as new as its arrival.
        assert_eq!(looks.look(0, 1_900, 7), Turn::Wait);
        for (asked, turn) in [(2_000, Turn::Wait), (2_400, Turn::Wait), (2_800, Turn::Wait), (3_200, Turn::Wait)] {
            assert_eq!(looks.look(asked, asked + 100, 7), turn);
        }
        assert_eq!(looks.look(3_600, 3_700, 7), Turn::Wait);
        assert_eq!(looks.look(3_899, 3_950, 7), Turn::Wait);
        assert_eq!(looks.look(3_900, 3_950, 7), Turn::StoodStill);
    }

    #[test]
    fn a_look_that_was_not_answered_neither_moves_nor_stands_still() {
        let mut looks = Looks::new();
        for look in 0..8 {
            assert_eq!(looks.look(look * 250, look * 250, 7), Turn::Wait);
        }
        // 1750 ms so far, and then an outage.
        looks.0.unanswered();
        looks.0.unanswered();
        assert_eq!(looks.look(60_000, 60_100, 7), Turn::Wait);
        assert_eq!(looks.look(60_200, 60_200, 7), Turn::Wait);
        assert_eq!(looks.look(60_350, 60_350, 7), Turn::StoodStill);
        // An outage before the first look.
        let mut looks = Looks::new();
        looks.0.unanswered();
        assert_eq!(looks.look(60_000, 60_000, 7), Turn::Wait);
    }

    #[test]
    fn a_standby_that_slept_itself_does_not_count_its_sleep() {
        let mut looks = Looks::new();
        assert_eq!(looks.look(0, 0, 7), Turn::Wait);
        // The machine stood still for an hour, and the owner with it.
        for look in 0..3 {
            assert_eq!(looks.look(3_600_000 + look * 250, 3_600_000 + look * 250, 7), Turn::Wait);
        }
        assert_eq!(looks.look(3_601_000, 3_601_000, 8), Turn::Wait);
    }

    /// Waits beside an owner whose heartbeat is what a function of the time makes it. Answers how long that took.
    async fn waited(
        board: &Board,
        heartbeat: impl Fn(Duration) -> Result<Option<Heartbeat>, StoreError>,
    ) -> (Duration, Result<(), StoreError>) {
        let begun = Instant::now();
        let done = wait(&mut watch(), board, || std::future::ready(heartbeat(begun.elapsed()))).await;
        (begun.elapsed(), done.map(drop))
    }

    fn alive(time: Duration) -> Result<Option<Heartbeat>, StoreError> {
        Ok(Some(heartbeat(4, "a", (time.as_millis() / 250) as i64)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_waits_for_as_long_as_the_owner_lives() {
        let board = Board::default();
        let hour = Duration::from_secs(3600);
        let (time, done) = waited(&board, |time| alive(time.min(hour))).await;
        assert!(done.is_ok());
        assert!(time >= hour + AFTER && time < hour + AFTER + AFTER / 2, "{time:?}");
        let snapshot = board.snapshot();
        assert_eq!(snapshot.owner.map(|owner| owner.instance).as_deref(), Some("a"));
        assert_eq!(snapshot.supervisor.life, crate::board::Life::Standby);
        let events: Vec<&str> = snapshot.events.iter().map(|event| event.what.as_str()).collect();
        assert_eq!(
            events,
            [
                "standby: instance a owns the pipeline (generation 4)",
                "taking over from instance a (generation 4): its heartbeat stood still for 2s"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_goes_on_at_once_when_the_owner_lets_go() {
        let let_go = Duration::from_secs(10);
        let (time, done) = waited(&Board::default(), |time| match time < let_go {
            true => alive(time),
            false => Ok(Some(Heartbeat { released: true, ..heartbeat(4, "a", 40) })),
        })
        .await;
        assert!(done.is_ok());
        assert!(time >= let_go && time <= let_go + AFTER / BEATS, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_store_is_waited_out() {
        let (from, until) = (Duration::from_secs(10), Duration::from_secs(70));
        let unavailable = || Err(StoreError::Unavailable("away".into()));
        // The owner lives, but its heartbeat cannot be written either.
        let board = Board::default();
        let (time, done) = waited(&board, |time| match time {
            time if time >= from && time < until => unavailable(),
            // It needs a moment longer to find its way back.
            time if time >= until && time < until + AFTER / 2 => alive(from - Duration::from_millis(1)),
            time if time > Duration::from_secs(100) => Ok(None),
            time => alive(time),
        })
        .await;
        assert!(done.is_ok());
        assert!(time > Duration::from_secs(100), "{time:?}");
        assert!(board.snapshot().committer.last_fault.is_some_and(|fault| fault.contains("away")));
        // The owner dies while the store is away.
        let (time, done) = waited(&Board::default(), |time| match time {
            time if time >= from && time < until => unavailable(),
            time => alive(time.min(from)),
        })
        .await;
        assert!(done.is_ok());
        assert!(time >= until && time <= until + AFTER + AFTER / BEATS, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_store_refuses_for_good_is_told() {
        let (_, done) = waited(&Board::default(), |_| Err(StoreError::Fatal("no such table".into()))).await;
        assert_eq!(done.map_err(|error| error.to_string()), Err("no such table".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_standbys_the_second_sees_that_the_first_took_over() {
        // The owner is dead; another standby takes over just before this one would.
        let taken = Duration::from_millis(1_900);
        let looks = Cell::new(0);
        let seen = RefCell::new(Vec::new());
        let end = Duration::from_secs(30);
        let (time, done) = waited(&Board::default(), |time| {
            looks.set(looks.get() + 1);
            let found = match time {
                time if time < taken => heartbeat(4, "a", 9),
                time if time < end => heartbeat(5, "c", (time.as_millis() / 250) as i64),
                _ => return Ok(None),
            };
            seen.borrow_mut().push(found.generation);
            Ok(Some(found))
        })
        .await;
        assert!(done.is_ok());
        assert!(time >= end, "{time:?}");
        assert!(seen.borrow().contains(&Generation(5)));
        // It does not flood the store either.
        assert!(looks.get() <= 125, "{}", looks.get());
    }
}
