//! Many requests, as many at a time as the servers bear.
//!
//! What fails is sent again after a pause, with fewer requests at a time; after success there are more again. Requests
//! must be harmless when they are sent twice, and their order must not matter.

use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tracing::warn;

/// Requests under way at most, over all deliveries.
const MOST_IN_FLIGHT: usize = 256;
/// Requests of one delivery under way at least, however much the servers are overloaded.
const LEAST_IN_FLIGHT: usize = 4;
/// How often in a row everything may fail before the requests are given up.
const FRUITLESS_PASSES: u32 = 5;
/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What became of one request that failed.
#[derive(Debug)]
pub(crate) enum Failed<E> {
    /// It may succeed when it is sent again.
    ForNow(String),
    /// It never will.
    ForGood(E),
}

/// Why not all requests were answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped<E> {
    /// So many are left, after nothing succeeded any more.
    GivenUp {
        /// Requests that may not have taken place.
        left: usize,
        /// What the last one said.
        reason: String,
    },
    /// One of them failed for good.
    ForGood(E),
}

/// How fast requests are sent.
#[derive(Debug)]
pub(crate) struct Pace {
    permits: Semaphore,
    /// How many requests one delivery has under way.
    width: AtomicUsize,
    first_pause: Duration,
}

struct Pass<'a, T> {
    /// What is not known to have taken place.
    left: Vec<&'a T>,
    /// Why, if anything failed.
    reason: Option<String>,
}

impl Pace {
    /// At full speed.
    pub(crate) fn new() -> Self {
        Self {
            permits: Semaphore::new(MOST_IN_FLIGHT),
            width: AtomicUsize::new(MOST_IN_FLIGHT),
            first_pause: FIRST_PAUSE,
        }
    }

    /// Sends all requests until each has succeeded. Goes on for as long as some do.
    pub(crate) async fn send_all<'a, T: 'a, E, F>(
        &self,
        to: impl Display,
        requests: impl IntoIterator<Item = &'a T>,
        send: impl Fn(&'a T) -> F,
    ) -> Result<(), Stopped<E>>
    where
        F: Future<Output = Result<(), Failed<E>>>,
    {
        let mut waiting: Vec<&T> = requests.into_iter().collect();
        let mut fruitless = 0;
        let mut pause = self.first_pause;
        while !waiting.is_empty() {
            let width = self.width.load(Ordering::Relaxed);
            let pass = self.pass(&waiting, &send, width).await.map_err(Stopped::ForGood)?;
            let Some(reason) = pass.reason else {
                self.width.store((width * 2).min(MOST_IN_FLIGHT), Ordering::Relaxed);
                return Ok(());
            };
            self.width.store((width / 4).max(LEAST_IN_FLIGHT), Ordering::Relaxed);
            if pass.left.len() < waiting.len() {
                (fruitless, pause) = (0, self.first_pause);
            } else {
                fruitless += 1;
            }
            waiting = pass.left;
            if fruitless == FRUITLESS_PASSES {
                return Err(Stopped::GivenUp { left: waiting.len(), reason });
            }
            warn!(%to, left = waiting.len(), reason, "requests failed and are sent again");
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }

    /// Sends each request once. Stops early when as many have failed as may be under way: then nothing is gained by
    /// sending the rest.
    async fn pass<'a, T: 'a, E, F>(
        &self,
        waiting: &[&'a T],
        send: &impl Fn(&'a T) -> F,
        width: usize,
    ) -> Result<Pass<'a, T>, E>
    where
        F: Future<Output = Result<(), Failed<E>>>,
    {
        let mut next = waiting.iter();
        let mut in_flight = FuturesUnordered::new();
        let mut pass = Pass { left: Vec::new(), reason: None };
        loop {
            while in_flight.len() < width && pass.left.len() < width {
                let Some(request) = next.next() else { break };
                in_flight.push(async {
                    // The semaphore is never closed, so there is always a permit to come.
                    let _permit = self.permits.acquire().await;
                    (*request, send(request).await)
                });
            }
            match in_flight.next().await {
                None => break,
                Some((_, Ok(()))) => {}
                Some((_, Err(Failed::ForGood(error)))) => return Err(error),
                Some((request, Err(Failed::ForNow(reason)))) => {
                    pass.left.push(request);
                    pass.reason = Some(reason);
                }
            }
        }
        pass.left.extend(next);
        Ok(pass)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use super::*;

    /// A server that takes each number once, after it has failed as often as it is told.
    #[derive(Default)]
    struct Server {
        taken: Mutex<Vec<usize>>,
        tried: AtomicUsize,
        at_once: AtomicUsize,
        most_at_once: AtomicUsize,
    }

    impl Server {
        async fn take(
            &self,
            number: usize,
            answer: impl Fn(usize) -> Result<(), Failed<String>>,
        ) -> Result<(), Failed<String>> {
            let tried = self.tried.fetch_add(1, Ordering::Relaxed);
            let at_once = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_at_once.fetch_max(at_once, Ordering::Relaxed);
            tokio::task::yield_now().await;
            self.at_once.fetch_sub(1, Ordering::Relaxed);
            answer(tried)?;
            self.taken.lock().unwrap().push(number);
            Ok(())
        }

        fn taken(&self) -> Vec<usize> {
            let mut taken = self.taken.lock().unwrap().clone();
            taken.sort_unstable();
            taken
        }
    }

    fn pace() -> Pace {
        Pace { first_pause: Duration::ZERO, ..Pace::new() }
    }

    fn for_now() -> Result<(), Failed<String>> {
        Err(Failed::ForNow("overloaded".into()))
    }

    #[tokio::test]
    async fn every_request_succeeds_once_and_never_too_many_at_a_time() {
        let (server, pace) = (Server::default(), pace());
        let numbers: Vec<usize> = (0..10_000).collect();
        let halves = numbers.split_at(5_000);
        let send = |number: &usize| server.take(*number, |_| Ok(()));
        let (one, other) = tokio::join!(pace.send_all("t", halves.0, send), pace.send_all("t", halves.1, send));
        one.unwrap();
        other.unwrap();
        assert_eq!(server.taken(), numbers);
        assert_eq!(server.most_at_once.load(Ordering::Relaxed), MOST_IN_FLIGHT);
    }

    #[tokio::test]
    async fn what_failed_is_sent_again_more_slowly() {
        let (server, pace) = (Server::default(), pace());
        let numbers: Vec<usize> = (0..10_000).collect();
        // Every third request fails.
        let answer = |tried: usize| if tried.is_multiple_of(3) { for_now() } else { Ok(()) };
        pace.send_all("t", &numbers, |number| server.take(*number, answer)).await.unwrap();
        assert_eq!(server.taken(), numbers);
        let width = pace.width.load(Ordering::Relaxed);
        assert!(width < MOST_IN_FLIGHT, "{width}");

        for _ in 0..10 {
            pace.send_all("t", &numbers[..1], |number| server.take(*number, |_| Ok(()))).await.unwrap();
        }
        assert_eq!(pace.width.load(Ordering::Relaxed), MOST_IN_FLIGHT);
    }

    #[tokio::test]
    async fn nothing_is_gained_by_sending_the_rest_to_a_server_that_is_away() {
        let (server, pace) = (Server::default(), pace());
        let numbers: Vec<usize> = (0..10_000).collect();
        let stopped = pace.send_all("t", &numbers, |number| server.take(*number, |_| for_now())).await;
        assert_eq!(stopped, Err(Stopped::GivenUp { left: 10_000, reason: "overloaded".into() }));
        let tried = server.tried.load(Ordering::Relaxed);
        assert!(tried < 2 * MOST_IN_FLIGHT + 2 * 64 + 2 * 16 + 4 * LEAST_IN_FLIGHT, "{tried}");
        assert!(server.taken().is_empty());
    }

    #[tokio::test]
    async fn it_goes_on_for_as_long_as_some_succeed() {
        let (server, pace) = (Server::default(), pace());
        let numbers: Vec<usize> = (0..100).collect();
        // One in four succeeds.
        let answer = |tried: usize| if tried.is_multiple_of(4) { Ok(()) } else { for_now() };
        pace.send_all("t", &numbers, |number| server.take(*number, answer)).await.unwrap();
        assert_eq!(server.taken(), numbers);
    }

    #[tokio::test]
    async fn a_failure_for_good_stops_it() {
        let (server, pace) = (Server::default(), pace());
        let numbers: Vec<usize> = (0..10_000).collect();
        let answer = |tried: usize| if tried == 1_000 { Err(Failed::ForGood("no".to_owned())) } else { Ok(()) };
        let stopped = pace.send_all("t", &numbers, |number| server.take(*number, answer)).await;
        assert_eq!(stopped, Err(Stopped::ForGood("no".into())));
        assert!(server.tried.load(Ordering::Relaxed) < 2_000);
    }
}
