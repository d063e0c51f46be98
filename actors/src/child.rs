//! How an actor is started so that its death is noticed at once.
//!
//! Actix's own supervisor does not survive panics: the context future is made here, spawned on an arbiter and awaited, so
//! that a panic, an error and an end by will are told apart. The mailbox is unbounded, since a full mailbox of actix
//! leaves a waiting sender without a wake-up; what is in flight is bounded by [`crate::credit`] and by one unanswered
//! batch a lane instead.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use actix::dev::channel;
use actix::{Actor, Addr, Context};
use actix_rt::ArbiterHandle;
use futures::future::{AbortHandle, Abortable};

use crate::mailbox::{Depth, Mailbox};

/// What an error came from that a new start may mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The source did not do as asked.
    Source,
    /// The query met something that it cannot compute.
    Query,
    /// What is stored could not be read or written, or stands elsewhere than was thought.
    Store,
    /// A shard does not stand where the partition thought.
    Lane,
}

/// Why actors are started again, each in the word of [`Cause::kind`]. A sink is none of them: it is asked again, or halts the
/// shard.
pub const RESTARTS: [&str; 6] = ["panic", "source", "query", "store", "lane", "stall"];

/// Why an actor's life ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It panicked.
    Panic(String),
    /// It met an error that a new start may mend.
    Failed(Origin, String),
    /// It did not get on.
    Stalled(String),
    /// It did not get on, by no fault of its own: that is not charged to it, and it is started again for as long as it lasts.
    Starved(String),
    /// It met something that does not pass by itself: it is not started again.
    Halt(String),
    /// A higher generation owns what it works on: the whole process steps down.
    Fenced(String),
    /// It was told to stand still, and has nothing in flight.
    Paused,
    /// It was told to end, or replaced.
    Stopped,
}

impl Cause {
    /// The kind of cause in one word.
    pub fn kind(&self) -> &'static str {
        self.parts().0
    }

    /// The kind of cause in one word, and what was said.
    pub(crate) fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Panic(what) => ("panic", what),
            Self::Failed(Origin::Source, what) => ("source", what),
            Self::Failed(Origin::Query, what) => ("query", what),
            Self::Failed(Origin::Store, what) => ("store", what),
            Self::Failed(Origin::Lane, what) => ("lane", what),
            Self::Stalled(what) | Self::Starved(what) => ("stall", what),
            Self::Halt(what) => ("halt", what),
            Self::Fenced(what) => ("fenced", what),
            Self::Stopped => ("stopped", ""),
            Self::Paused => ("paused", ""),
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Panic(what) => write!(f, "panic: {what}"),
            Self::Failed(_, what) => write!(f, "error: {what}"),
            Self::Stalled(what) | Self::Starved(what) => write!(f, "stall: {what}"),
            Self::Halt(what) => write!(f, "halted: {what}"),
            Self::Fenced(what) => write!(f, "fenced: {what}"),
            Self::Paused => f.write_str("paused"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// Where an actor leaves word of why it ends, before it stops its context.
#[derive(Clone, Debug, Default)]
pub struct Exit(Arc<Mutex<Option<Cause>>>);

impl Exit {
    /// Leaves the cause; the first one stays.
    pub fn leave(&self, cause: Cause) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
    }

    fn take(&self) -> Cause {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(Cause::Stopped)
    }
}

/// A running actor.
#[derive(Debug)]
pub struct Child<A: Actor> {
    /// Where it gets its messages.
    pub mailbox: Mailbox<A>,
    abort: AbortHandle,
}

impl<A: Actor> Child<A> {
    /// Ends the actor without asking it. What it was doing is dropped at its next await.
    pub fn abort(&self) {
        #[cfg(feature = "simulation")]
        if let Some(busy) = crate::busy::thread() {
            let abort = self.abort.clone();
            actix_rt::spawn(async move {
                tokio::time::sleep(busy).await;
                abort.abort();
            });
            return;
        }
        self.abort.abort();
    }

    /// A handle that can end the actor without knowing its kind.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }
}

/// Starts an actor on an arbiter. What waits in its mailbox is counted in `depth`; `died` is called on that arbiter when its life
/// has ended.
pub fn spawn<A>(
    arbiter: &ArbiterHandle,
    depth: Depth,
    make: impl FnOnce(Exit) -> A + Send + 'static,
    died: impl FnOnce(Cause) + Send + 'static,
) -> Child<A>
where
    A: Actor<Context = Context<A>>,
{
    let (sender, receiver) = channel::channel(0);
    let (abort, registration) = AbortHandle::new_pair();
    arbiter.spawn_fn(move || {
        let exit = Exit::default();
        let context = Context::with_receiver(receiver);
        let life = Abortable::new(context.into_future(make(exit.clone())), registration);
        #[cfg(feature = "simulation")]
        let life = crate::busy::before(life);
        let life = actix_rt::spawn(life);
        actix_rt::spawn(async move {
            died(match life.await {
                Ok(Ok(()) | Err(_)) => exit.take(),
                Err(error) if error.is_panic() => Cause::Panic(panic_text(error.into_panic().as_ref())),
                Err(_) => Cause::Stopped,
            });
        });
    });
    Child { mailbox: Mailbox::new(Addr::new(sender), depth), abort }
}

/// What a panic said.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_actor_is_started_again_for_has_a_word() {
        let origins = [Origin::Source, Origin::Query, Origin::Store, Origin::Lane];
        let failed = origins.map(|origin| Cause::Failed(origin, "for a test".into()));
        let causes = [Cause::Panic("p".into()), Cause::Stalled("s".into())].into_iter().chain(failed);
        let mut kinds: Vec<&str> = causes.map(|cause| cause.kind()).collect();
        let mut known = RESTARTS.to_vec();
        kinds.sort_unstable();
        known.sort_unstable();
        assert_eq!(kinds, known);
    }
}
