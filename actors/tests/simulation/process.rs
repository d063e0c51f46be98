//! One process as its ports see it: it may panic, die or freeze at every await.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strandline_actors::child::RESTARTS;
use strandline_actors::message::Target;
use strandline_actors::run::Handle;
use tokio::sync::Notify;

use crate::faults::Chance;
use crate::trace::Trace;

pub struct Process {
    pub number: u32,
    pub chance: Arc<Chance>,
    pub trace: Arc<Trace>,
    /// Odd while it is frozen: each freezing and waking counts.
    frozen: AtomicU64,
    woken: Notify,
    dead: AtomicBool,
    died: Notify,
    /// Taken out when the process has ended: the handle holds the ports, and they hold this.
    handle: Mutex<Option<Handle>>,
}

impl Process {
    pub fn new(number: u32, chance: Arc<Chance>, trace: Arc<Trace>) -> Self {
        Self {
            number,
            chance,
            trace,
            frozen: 0.into(),
            woken: Notify::new(),
            dead: false.into(),
            died: Notify::new(),
            handle: Mutex::default(),
        }
    }

    pub fn begins(&self, handle: &Handle) {
        *self.handle.lock().unwrap() = Some(handle.clone());
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        self.trace.note(|| format!("process {}: {}", self.number, what()));
    }

    /// Whatever a port does, it does here first, and here again before it answers.
    pub async fn awaits(self: &Arc<Self>, what: &str) {
        if self.chance.strikes("port panics", 1_500) {
            self.note(|| format!("panics at {what}"));
            panic!("a port panics by chance");
        }
        if self.chance.strikes("an actor panics at an await of another", 1_500) {
            let target = match self.chance.number(4) {
                0 => Target::Committer,
                1 => Target::Partition(self.chance.number(8) as u32),
                _ => Target::Shard(self.chance.number(8) as u32),
            };
            self.note(|| format!("{target:?} panics at {what}"));
            if let Some(handle) = &*self.handle.lock().unwrap() {
                handle.crash(target);
            }
        }
        if self.chance.strikes("process killed at an await", 6_000) {
            self.note(|| format!("killed at {what}"));
            self.kill();
            std::future::pending::<()>().await;
        }
        if self.chance.strikes("process frozen at an await", 3_000) {
            self.note(|| format!("freezes at {what}"));
            let freeze = self.freeze();
            let process = Arc::clone(self);
            tokio::task::spawn_local(async move {
                process.chance.pause(6_000).await;
                // Unless somebody has meanwhile decided how long it is to last.
                if process.frozen.load(Ordering::SeqCst) == freeze {
                    process.wake();
                }
            });
        }
        // Nothing of it gets on: neither what it sends nor what was answered to it.
        while self.is_frozen() {
            let woken = self.woken.notified();
            let _ = tokio::time::timeout(Duration::from_secs(1), woken).await;
        }
    }

    fn is_frozen(&self) -> bool {
        !self.frozen.load(Ordering::SeqCst).is_multiple_of(2)
    }

    /// Freezes it, also when it is frozen already: for how long is a new matter. Answers which freeze this is.
    pub fn freeze(&self) -> u64 {
        let step = if self.is_frozen() { 2 } else { 1 };
        self.frozen.fetch_add(step, Ordering::SeqCst) + step
    }

    pub fn wake(&self) {
        if self.is_frozen() {
            self.frozen.fetch_add(1, Ordering::SeqCst);
            self.note(|| "wakes".into());
            self.woken.notify_waiters();
        }
    }

    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_waiters();
        if let Some(handle) = &*self.handle.lock().unwrap() {
            handle.kill();
        }
    }

    /// Waits until it is killed.
    pub async fn dies(&self) {
        loop {
            let died = self.died.notified();
            if self.dead.load(Ordering::SeqCst) {
                return;
            }
            died.await;
        }
    }

    /// What went wrong in it, as its board shows.
    pub fn ended(&self, broken: &mut Vec<String>) {
        let Some(handle) = self.handle.lock().unwrap().take() else { return };
        let board = handle.board().snapshot();
        // Every restart is for one of the causes that are shown.
        for (id, actor) in board.actors() {
            let shown: u64 = RESTARTS.iter().filter_map(|cause| actor.causes.get(cause)).sum();
            if shown != actor.restarts {
                broken
                    .push(format!("process {}: {id}: {} restarts for {:?}", self.number, actor.restarts, actor.causes));
            }
        }
        for event in board.events {
            self.note(|| format!("board: {}: {}", event.actor, event.what));
            // Lanes are contiguous, and those of earlier lives are fenced: no shard ever sees a gap.
            if event.what.contains("there is a gap") || event.what.starts_with("halted") {
                broken.push(format!("process {}: {}: {}", self.number, event.actor, event.what));
            }
        }
    }
}
