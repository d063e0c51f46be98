//! Directs the demo: kills actors, tells what happens, and waits at the end until everything is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strandline_actors::board::{Event, EventKind, Life, Snapshot};
use strandline_actors::message::Target;
use strandline_actors::ports::StateStore;
use strandline_actors::run::Handle;

use super::Stage;
use super::shop::{Shop, total};
use crate::cli::Signals;
use crate::http::waiting_for;

/// How often the director looks.
const LOOK: Duration = Duration::from_millis(100);
/// How often it tells how far things are.
const TELL: Duration = Duration::from_secs(5);
/// The time between two kills when the demo runs for ever.
const KILL: Duration = Duration::from_secs(15);
/// After that long a kill that hit nobody, since the actor was just being started, is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long the start, and in the end the rest of the counting, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each kind of actor, as the board's events and metrics call it.
const KINDS: [&str; 4] = ["partition", "aggregation", "committer", "supervisor"];

/// How the demo went.
pub(super) struct Verdict {
    deaths: BTreeMap<&'static str, u64>,
}

impl Verdict {
    /// What was survived, as a sentence.
    pub(super) fn survived(&self) -> String {
        let all: Vec<String> = self.deaths.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        format!("Actors that died and were started again: {}.", all.join(", "))
    }
}

/// The director.
pub(super) struct Director {
    pub(super) handle: Handle,
    pub(super) stage: Arc<Stage>,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) shards: u32,
    pub(super) shop: Shop,
    pub(super) duration: Duration,
}

/// When which actor is killed.
struct Kills {
    /// The time from one to the next.
    every: Duration,
    next: usize,
    /// The one under way: when it was asked for, and how many of its kind had died before.
    pending: Option<(Instant, u64)>,
}

impl Kills {
    /// For a demo of that length, each kind once; without an end, one after another.
    fn new(duration: Duration) -> Self {
        let every = if duration.is_zero() { KILL } else { duration / (KINDS.len() as u32 + 1) };
        Self { every, next: 0, pending: None }
    }

    fn kind(&self) -> &'static str {
        KINDS[self.next % KINDS.len()]
    }

    /// What to kill now. `up` says that all actors work.
    fn look(
        &mut self,
        at: Duration,
        now: Instant,
        deaths: &BTreeMap<&str, u64>,
        up: bool,
        forever: bool,
    ) -> Option<Target> {
        let died = deaths.get(self.kind()).copied().unwrap_or_default();
        match self.pending {
            Some((_, before)) if died > before => {
                self.next += 1;
                self.pending = None;
                return None;
            }
            Some((asked, _)) if now.duration_since(asked) < AGAIN => return None,
            Some(_) => {}
            None if !forever && self.all_done() => return None,
            None if at < self.every * (self.next as u32 + 1) || !up => return None,
            None => {}
        }
        self.pending = Some((now, died));
        // Another one each time, whatever their number.
        let number = self.next as u32 * 7 + 1;
        Some(match self.kind() {
            "partition" => Target::Partition(number),
            "aggregation" => Target::Shard(number),
            "committer" => Target::Committer,
            _ => Target::Supervisor,
        })
    }

    /// Whether each kind was killed.
    fn all_done(&self) -> bool {
        self.next >= KINDS.len()
    }
}

impl Director {
    /// Directs until the end, and stops the pipeline.
    pub(super) async fn direct(self, mut signals: Signals) -> Result<Verdict, String> {
        let handle = self.handle.clone();
        let verdict = self.play(&mut signals).await;
        handle.stop();
        verdict
    }

    async fn play(self, signals: &mut Signals) -> Result<Verdict, String> {
        let mut told = Told::default();
        let interrupted = tokio::select! {
            up = self.begin() => up.map(|()| false)?,
            _ = signals.next() => true,
        };
        let begun = Instant::now();
        let interrupted = interrupted
            || tokio::select! {
                done = self.produce(begun, &mut told) => done.map(|()| false)?,
                _ = signals.next() => true,
            };
        let Self { handle, stage, store, shards, shop, .. } = self;
        stage.say(&format!("{} no more orders; the rest is being counted", clock(begun)));
        // It only flushes to a socket of this process.
        tokio::task::block_in_place(|| shop.close())?;
        let until = Instant::now() + PATIENCE;
        loop {
            look_up(&stage, store.as_ref(), shards).await?;
            told.events(&stage, begun, &handle.board().snapshot());
            let (counted, truth) = (stage.counted.count(), stage.books.truth());
            if counted == truth && stage.books.all_committed() {
                break;
            }
            if Instant::now() > until {
                return Err(format!(
                    "after {PATIENCE:?} of waiting, {} of {} orders are counted",
                    total(&counted),
                    total(&truth)
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
        stage.say(&format!("{} all {} orders are counted and committed", clock(begun), total(&stage.books.truth())));
        let deaths = deaths(&handle.board().snapshot());
        match KINDS.iter().find(|kind| deaths.get(*kind).copied().unwrap_or_default() == 0) {
            Some(kind) if !interrupted => Err(format!("no {kind} actor was killed, so the demo shows nothing")),
            _ => Ok(Verdict { deaths }),
        }
    }

    /// Waits until all actors work.
    async fn begin(&self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let waiting = waiting_for(&self.handle.board().snapshot(), self.shards);
            if waiting.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("the pipeline has not begun after {PATIENCE:?}: {}", waiting.join(", ")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Kills and tells while orders are produced.
    async fn produce(&self, begun: Instant, told: &mut Told) -> Result<(), String> {
        let forever = self.duration.is_zero();
        let mut kills = Kills::new(self.duration);
        loop {
            tokio::time::sleep(LOOK).await;
            look_up(&self.stage, self.store.as_ref(), self.shards).await?;
            let board = self.handle.board().snapshot();
            told.events(&self.stage, begun, &board);
            told.progress(&self.stage, begun, &board);
            if let Some(excess) = self.stage.counted.excess() {
                return Err(format!("{excess}: something was counted twice"));
            }
            if let Some((name, why)) = halted(&board) {
                return Err(format!("{name} has halted: {why}"));
            }
            if self.shop.has_closed() {
                return Ok(());
            }
            let (at, now) = (begun.elapsed(), Instant::now());
            let up = waiting_for(&board, self.shards).is_empty();
            if let Some(target) = kills.look(at, now, &deaths(&board), up, forever) {
                self.stage.say(&format!("{} killing {}", clock(begun), name(target)));
                self.handle.crash(target);
            }
            if !forever && at >= self.duration && kills.all_done() {
                return Ok(());
            }
        }
    }
}

/// Reads how far everything is committed, from the pointers themselves.
async fn look_up(stage: &Stage, store: &dyn StateStore, shards: u32) -> Result<(), String> {
    let mut lowest: Option<Vec<i64>> = None;
    for shard in 0..shards {
        let pointer = store.read_pointer(shard).await.map_err(|error| error.to_string())?;
        let mut positions = vec![0; stage.books.ends().len()];
        for (key, position) in pointer.iter().flat_map(|pointer| &pointer.content.vector.0) {
            if let Some(known) = usize::try_from(key.partition).ok().and_then(|number| positions.get_mut(number)) {
                *known = position.next.0;
            }
        }
        lowest = Some(match lowest {
            None => positions,
            Some(lowest) => lowest.into_iter().zip(positions).map(|(a, b)| a.min(b)).collect(),
        });
    }
    stage.books.committed(&lowest.unwrap_or_default());
    Ok(())
}

/// What was told already.
#[derive(Default)]
struct Told {
    last: Option<Event>,
    progress: Option<Instant>,
}

impl Told {
    /// Tells what happened to actors since the last time.
    fn events(&mut self, stage: &Stage, begun: Instant, board: &Snapshot) {
        let same = |a: &Event, b: &Event| (a.at, &a.actor, &a.what) == (b.at, &b.actor, &b.what);
        let known = self.last.as_ref().and_then(|last| board.events.iter().rposition(|event| same(event, last)));
        for event in board.events.iter().skip(known.map_or(0, |place| place + 1)) {
            let died = if event.kind == EventKind::Restart { " died and starts again" } else { "" };
            stage.say(&format!("{} {}{died}: {}", clock(begun), event.actor, event.what));
        }
        self.last = board.events.back().cloned();
    }

    fn progress(&mut self, stage: &Stage, begun: Instant, board: &Snapshot) {
        if self.progress.is_some_and(|last| last.elapsed() < TELL) {
            return;
        }
        self.progress = Some(Instant::now());
        let counted = total(&stage.counted.count());
        let produced = total(&stage.books.truth());
        let restarts: u64 = deaths(board).values().sum();
        stage.say(&format!(
            "{} produced {produced:>10}   counted {counted:>10}   under way {:>8}   restarts {restarts}",
            clock(begun),
            produced.saturating_sub(counted)
        ));
    }
}

fn clock(begun: Instant) -> String {
    format!("{:>4} s ", begun.elapsed().as_secs())
}

fn name(target: Target) -> &'static str {
    match target {
        Target::Partition(_) => "a partition actor",
        Target::Shard(_) => "an aggregation actor",
        Target::Committer => "the offset committer",
        Target::Supervisor => "the supervisor",
    }
}

/// How many of each kind died and were started again.
fn deaths(board: &Snapshot) -> BTreeMap<&'static str, u64> {
    let mut deaths = BTreeMap::new();
    for (id, actor) in board.actors() {
        *deaths.entry(id.kind()).or_default() += actor.restarts;
    }
    deaths
}

fn halted(board: &Snapshot) -> Option<(String, String)> {
    board
        .actors()
        .find(|(_, actor)| actor.life == Life::Halted)
        .map(|(id, actor)| (board.name(id), actor.last_error.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_killed_once_and_again_when_it_hit_nobody() {
        let second = Duration::from_secs(1);
        let mut kills = Kills::new(second * 50);
        let mut deaths: BTreeMap<&str, u64> = KINDS.map(|kind| (kind, 0)).into();
        let now = Instant::now();
        let mut killed = Vec::new();
        for at in 0..60 {
            // Everything is restarting from 30 to 34.
            let up = !(30..35).contains(&at);
            if let Some(target) = kills.look(second * at, now + second * at, &deaths, up, false) {
                killed.push((at, target));
                // The first aimed at the partition hits nobody.
                if killed.len() > 1 {
                    *deaths.get_mut(kills.kind()).unwrap_or(&mut 0) += 1;
                }
            }
        }
        assert!(kills.all_done());
        assert_eq!(
            killed,
            [
                (10, Target::Partition(1)),
                (12, Target::Partition(1)),
                (20, Target::Shard(8)),
                (35, Target::Committer),
                (40, Target::Supervisor)
            ]
        );
    }

    #[test]
    fn without_an_end_it_goes_on() {
        let mut kills = Kills::new(Duration::ZERO);
        let mut deaths: BTreeMap<&str, u64> = KINDS.map(|kind| (kind, 0)).into();
        let now = Instant::now();
        let mut killed = 0;
        for round in 0..200u32 {
            let at = KILL * round / 2;
            if kills.look(at, now + at, &deaths, true, true).is_some() {
                *deaths.get_mut(kills.kind()).unwrap_or(&mut 0) += 1;
                killed += 1;
            }
        }
        assert!(killed > 90, "{killed}");
    }
}
