//! The spans of traces: one trace for a batch, from its fetch to the last shard; one for a checkpoint; one for a restart.
//!
//! - Never one for a record. Which batches have a trace is decided when they are fetched, and the spans of the others are not
//!   even made: a part of a span that is disabled is disabled too.
//! - Context crosses actors as a [`Span`] in the messages.
//! - A span ends when it was last left, or, if it never was entered, when the last that holds it lets it go.

use tokio::time::{Duration, Instant};
use tracing::{Level, Span};

use crate::child::Cause;

/// The field that says how many microseconds before its creation a span began: what it is about was known only then.
pub const BEGAN_BEFORE: &str = "began_before_us";

/// The target of events that are for traces alone and not for the log.
pub const FOR_TRACES: &str = "strandline::trace";

/// How many batches a checkpoint is linked with.
pub(crate) const LINKED: usize = 32;

/// A span that is a part of another one, if that is there.
macro_rules! part_of {
    ($whole:expr, $($span:tt)+) => {
        match &$whole {
            whole if whole.is_disabled() => tracing::Span::none(),
            whole => tracing::info_span!(parent: whole, $($span)+),
        }
    };
}
pub(crate) use part_of;

/// A part of the span that is entered now, if there is one.
pub fn part(make: impl FnOnce() -> Span) -> Span {
    if Span::current().is_disabled() { Span::none() } else { make() }
}

/// Notes that a span lasted until now.
pub(crate) fn lasted(span: &Span) {
    span.in_scope(|| ());
}

/// Links two spans with each other. Both have to be open.
pub(crate) fn link(one: &Span, other: &Span) {
    one.follows_from(other);
    other.follows_from(one);
}

/// Notes in a span why something died.
pub(crate) fn died(span: &Span, cause: &Cause) {
    let (kind, what) = cause.parts();
    tracing::event!(
        name: "exception",
        target: FOR_TRACES,
        parent: span,
        Level::ERROR,
        exception.type = kind,
        exception.message = what,
    );
}

/// Which batches of a partition are traced: the first in each interval.
#[derive(Debug)]
pub(crate) struct Sampling {
    every: Duration,
    begun: Instant,
    last: Option<u128>,
}

impl Sampling {
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, begun: Instant::now(), last: None }
    }

    /// Whether the batch that was fetched now is to be traced.
    pub(crate) fn due(&mut self) -> bool {
        if self.every.is_zero() {
            return true;
        }
        let interval = self.begun.elapsed().as_nanos() / self.every.as_nanos();
        self.last.replace(interval) != Some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_batch_of_each_interval_is_traced() {
        let mut sampling = Sampling::new(Duration::from_secs(1));
        let mut traced = Vec::new();
        for batch in 0..20 {
            if sampling.due() {
                traced.push(batch * 300);
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(traced, [0, 1200, 2100, 3000, 4200, 5100]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(sampling.due() && !sampling.due());
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_interval_every_batch_is_traced() {
        let mut sampling = Sampling::new(Duration::ZERO);
        assert!((0..10).all(|_| sampling.due()));
    }
}
