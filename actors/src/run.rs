//! Running a pipeline: whoever calls this awaits the supervisor itself, and starts everything anew when it dies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_rt::Arbiter;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::board::{ActorId, Board, EventKind, Life};
use crate::child::{self, Cause};
use crate::env::Pipeline;
use crate::lives::Lives;
use crate::mailbox::{Depth, Mailbox};
use crate::message::{CrashActor, GoOn, Pause, Resume, Stop, Target};
use crate::pause::{Scope, Wished};
use crate::restart::{Crashes, Restart};
use crate::spans;
use crate::supervisor::{Arbiters, Placement, Shared, Supervisor, restart};

/// How a pipeline ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was told to stop.
    Stopped,
    /// Another process with a later generation owns the pipeline.
    SteppedDown(String),
    /// It cannot go on.
    Failed(String),
}

#[derive(Debug, Default)]
struct Control {
    supervisor: Mutex<Option<Mailbox<Supervisor>>>,
    stop: AtomicBool,
    killed: AtomicBool,
    /// Told whenever one of them is set.
    told: Notify,
}

/// What can be asked of a running pipeline, from any thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    control: Arc<Control>,
}

impl Handle {
    /// What the actors show of themselves.
    pub fn board(&self) -> &Arc<Board> {
        &self.shared.board
    }

    fn supervisor(&self) -> Option<Mailbox<Supervisor>> {
        self.control.supervisor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for a last checkpoint and the end.
    pub fn stop(&self) {
        self.control.stop.store(true, Ordering::SeqCst);
        self.control.told.notify_one();
        if let Some(supervisor) = self.supervisor() {
            supervisor.do_send(Stop);
        }
    }

    /// Makes an actor panic, to show that it is survived.
    pub fn crash(&self, target: Target) {
        if let Some(supervisor) = self.supervisor() {
            supervisor.do_send(CrashActor(target));
        }
    }

    /// Ends everything at once and commits nothing, as the death of the process would. What was sent to the store or the
    /// sink may still arrive there.
    pub fn kill(&self) {
        self.control.killed.store(true, Ordering::SeqCst);
        self.control.told.notify_one();
        self.shared.end_all();
    }

    /// Reads the pipeline or a partition no more, until it is told to go on, by this process or a later one.
    pub async fn pause(&self, scope: Scope) -> Wished {
        match self.supervisor() {
            Some(supervisor) => supervisor.send(Pause(scope)).await.unwrap_or(Wished::Unknown),
            None => Wished::Unknown,
        }
    }

    /// Reads what was paused again.
    pub async fn go_on(&self, scope: Scope) -> Wished {
        match self.supervisor() {
            Some(supervisor) => supervisor.send(GoOn(scope)).await.unwrap_or(Wished::Unknown),
            None => Wished::Unknown,
        }
    }

    /// Starts a halted partition or shard again. Answers whether it was halted.
    pub async fn resume(&self, id: ActorId) -> bool {
        match self.supervisor() {
            Some(supervisor) => supervisor.send(Resume(id)).await.unwrap_or(false),
            None => false,
        }
    }
}

/// Starts a pipeline on the current actix system. The future ends when the pipeline does.
pub fn run(pipeline: Arc<Pipeline>, placement: Placement) -> (Handle, impl Future<Output = Outcome>) {
    let shared = Arc::new(Shared {
        pipeline,
        board: Arc::default(),
        arbiters: Mutex::new(Arbiters::new(&placement)),
        incarnations: AtomicU64::new(0),
        pauses: Arc::default(),
        trial: Arc::default(),
        lives: Lives::default(),
    });
    let handle = Handle { shared: Arc::clone(&shared), control: Arc::default() };
    let running = supervise(shared, Arc::clone(&handle.control));
    (handle, running)
}

async fn supervise(shared: Arc<Shared>, control: Arc<Control>) -> Outcome {
    let outcome = until_the_end(&shared, &control).await;
    if !control.killed.load(Ordering::SeqCst) {
        let withdrawing = async move { shared.trial.end(&shared.pipeline, &shared.board).await };
        // In a task of its own: nothing that goes wrong in it changes how this ended.
        let _ = actix_rt::spawn(withdrawing).await;
    }
    outcome
}

async fn until_the_end(shared: &Arc<Shared>, control: &Control) -> Outcome {
    let mut crashes = Crashes::new(shared.pipeline.tuning.restart);
    loop {
        let since = Instant::now();
        let (died, death) = oneshot::channel();
        let (next, depth) = (Arc::clone(shared), Depth::default());
        let (own, incarnation) = (depth.clone(), shared.incarnation());
        shared.lives.begins(incarnation, ActorId::Supervisor, None);
        let child = child::spawn(
            &Arbiter::current(),
            depth,
            move |exit| Supervisor::new(next, incarnation, exit, own),
            |cause| {
                // Whoever waited is gone only when the whole system is.
                let _ = died.send(cause);
            },
        );
        shared.lives.ends_by(incarnation, child.abort_handle());
        *control.supervisor.lock().unwrap_or_else(PoisonError::into_inner) = Some(child.mailbox.clone());
        if control.stop.load(Ordering::SeqCst) {
            child.mailbox.do_send(Stop);
        }
        let cause = death.await.unwrap_or(Cause::Stopped);
        shared.lives.over(incarnation);
        shared.end_all();
        let ended = |life| shared.board.actor(ActorId::Supervisor, |status| status.life = life);
        ended(match cause {
            Cause::Stopped | Cause::Fenced(_) | Cause::Halt(_) => Life::Stopped,
            _ => Life::BackingOff,
        });
        let why = match &cause {
            _ if control.killed.load(Ordering::SeqCst) => return Outcome::Failed("killed".into()),
            Cause::Stopped => return Outcome::Stopped,
            Cause::Fenced(why) => return Outcome::SteppedDown(why.clone()),
            Cause::Halt(why) => return Outcome::Failed(why.clone()),
            cause => cause.to_string(),
        };
        if control.stop.load(Ordering::SeqCst) {
            return Outcome::Failed(format!("the supervisor died while it stopped: {why}"));
        }
        shared.board.happened(ActorId::Supervisor, EventKind::Restart, why.clone());
        shared.board.actor(ActorId::Supervisor, |status| status.died(&cause));
        match crashes.crashed(since.elapsed(), 0.5) {
            Restart::After(pause) => {
                let span = restart(&shared.board, ActorId::Supervisor, &cause, pause);
                // Whoever wants the end does not wait for the pause.
                let told = control.told.notified();
                let _ = tokio::time::timeout(pause.max(Duration::from_millis(1)), told).await;
                spans::lasted(&span);
                if control.killed.load(Ordering::SeqCst) && !flaw!(KilledInPauseComesBack) {
                    return Outcome::Failed("killed".into());
                }
                if control.stop.load(Ordering::SeqCst) {
                    return Outcome::Failed(format!("told to stop after the supervisor died: {why}"));
                }
            }
            Restart::Halt => return Outcome::Failed(format!("the supervisor crashed too often, last by {why}")),
        }
    }
}
