//! The way of spans to the exporter: a bounded queue and one thread behind it.
//!
//! - Whoever ends a span never waits: a span that finds the queue full is dropped and counted.
//! - A collector that never answers costs spans, nothing else: the end takes no longer than its deadline.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::past;
use super::reminders::Reminders;
use super::variables::Limits;

/// What became of spans.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    /// Spans that the collector took.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Spans that found no room, or that the collector did not take.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn add_sent(&self, spans: usize) {
        self.0.sent.fetch_add(spans as u64, Ordering::Relaxed);
    }

    fn add_dropped(&self, spans: usize) {
        self.0.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

enum Message {
    Span(Box<SpanData>),
    Resource(Resource),
    Flush(blocking::SyncSender<()>),
}

/// A span processor that never blocks and ends in time.
pub struct BoundedProcessor {
    queue: mpsc::Sender<Message>,
    counters: Counters,
    /// When everything has to be over.
    end: watch::Sender<Option<Instant>>,
    ended: Mutex<Option<blocking::Receiver<()>>>,
}

impl fmt::Debug for BoundedProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedProcessor").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl BoundedProcessor {
    /// Starts the thread. The exporter is made there, since its connection belongs to that thread's runtime.
    pub fn start<E: SpanExporter + 'static>(
        make: impl FnOnce() -> Result<E, String> + Send + 'static,
        limits: Limits,
        counters: Counters,
    ) -> Result<Self, String> {
        let (queue, waiting) = mpsc::channel(limits.queue);
        let (end, ending) = watch::channel(None);
        let (made, wait) = blocking::sync_channel(1);
        let (over, ended) = blocking::sync_channel(1);
        let counted = counters.clone();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(made.send(Err(error.to_string()))),
            };
            let guard = runtime.enter();
            let exporter = match make() {
                Ok(exporter) => exporter,
                Err(error) => return drop(made.send(Err(error))),
            };
            drop(guard);
            let _ = made.send(Ok(()));
            runtime.block_on(
                Sending { exporter, limits, counters: counted, waiting, ending, reminders: Reminders::default() }.run(),
            );
            let _ = over.send(());
            // What hangs in the connection must not hold this thread.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("traces".into()).spawn(run).map_err(|error| error.to_string())?;
        wait.recv().unwrap_or_else(|_| Err("the thread that sends them has died".into()))?;
        Ok(Self { queue, counters, end, ended: Mutex::new(Some(ended)) })
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        past::move_back(&mut span);
        if span.span_context.is_sampled() && self.queue.try_send(Message::Span(Box::new(span))).is_err() {
            self.counters.add_dropped(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        let within = Duration::from_secs(5);
        let (done, wait) = blocking::sync_channel(1);
        let full = |_| OTelSdkError::InternalFailure("the queue of spans is full".into());
        self.queue.try_send(Message::Flush(done)).map_err(full)?;
        wait.recv_timeout(within).map_err(|_| OTelSdkError::Timeout(within))
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = ended.ok_or(OTelSdkError::AlreadyShutdown)?;
        // A little before the deadline the thread gives up by itself and counts what is lost.
        let own = timeout.saturating_sub((timeout / 10).min(Duration::from_millis(100)));
        self.end.send_replace(Some(Instant::now() + own));
        match ended.recv_timeout(timeout) {
            Ok(()) => Ok(()),
            Err(_) => Err(OTelSdkError::Timeout(timeout)),
        }
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Called once, before the first span: there is room.
        let _ = self.queue.try_send(Message::Resource(resource.clone()));
    }
}

/// The other end of the queue.
struct Sending<E> {
    exporter: E,
    limits: Limits,
    counters: Counters,
    waiting: mpsc::Receiver<Message>,
    ending: watch::Receiver<Option<Instant>>,
    reminders: Reminders,
}

impl<E: SpanExporter> Sending<E> {
    async fn run(mut self) {
        let mut ending = self.ending.clone();
        let mut batch = Vec::new();
        loop {
            let flushed = tokio::select! {
                biased;
                // Also when the processor was dropped.
                _ = ending.changed() => break,
                flushed = self.gather(&mut batch) => flushed,
            };
            tokio::select! {
                biased;
                () = self.export(&mut batch) => {}
                () = over(ending.clone()) => break,
            }
            if let Some(flushed) = flushed {
                let _ = flushed.send(());
            }
        }
        self.last(batch).await;
    }

    /// Waits for spans until there are enough, or the first has waited long enough.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) -> Option<blocking::SyncSender<()>> {
        let mut until: Option<Instant> = (!batch.is_empty()).then(|| Instant::now() + self.limits.linger);
        while batch.len() < self.limits.batch {
            let message = match until {
                None => self.waiting.recv().await,
                Some(until) => match timeout_at(until, self.waiting.recv()).await {
                    Ok(message) => message,
                    Err(_) => return None,
                },
            };
            match message {
                Some(Message::Span(span)) => {
                    batch.push(*span);
                    until.get_or_insert_with(|| Instant::now() + self.limits.linger);
                }
                Some(Message::Resource(resource)) => self.exporter.set_resource(&resource),
                Some(Message::Flush(done)) => return Some(done),
                // The processor is gone: `run` learns of that itself.
                None => std::future::pending().await,
            }
        }
        None
    }

    async fn export(&mut self, batch: &mut Vec<SpanData>) {
        if batch.is_empty() {
            return;
        }
        // Kept until it is known what became of them, so that an end in between can count them.
        let patience = self.limits.patience;
        let exported = timeout(patience, self.exporter.export(batch.clone())).await;
        match exported.unwrap_or(Err(OTelSdkError::Timeout(patience))) {
            Ok(()) => {
                self.counters.add_sent(batch.len());
                if self.reminders.over() {
                    tracing::info!("traces are taken again; {} spans were dropped so far", self.counters.dropped());
                }
            }
            Err(error) => {
                self.counters.add_dropped(batch.len());
                if self.reminders.due(Instant::now()) {
                    let dropped = self.counters.dropped();
                    tracing::warn!(
                        "traces cannot be sent: {error}; {dropped} spans were dropped so far, the work goes on"
                    );
                }
            }
        }
        batch.clear();
    }

    /// Sends the rest until the deadline and counts what is left then.
    async fn last(&mut self, mut batch: Vec<SpanData>) {
        let deadline = (*self.ending.borrow()).unwrap_or_else(Instant::now);
        let sending = async {
            loop {
                while batch.len() < self.limits.batch {
                    match self.waiting.try_recv() {
                        Ok(Message::Span(span)) => batch.push(*span),
                        Ok(Message::Resource(resource)) => self.exporter.set_resource(&resource),
                        Ok(Message::Flush(done)) => drop(done.send(())),
                        Err(_) => break,
                    }
                }
                if batch.is_empty() {
                    return;
                }
                self.export(&mut batch).await;
            }
        };
        if timeout_at(deadline, sending).await.is_err() {
            let mut lost = batch.len();
            while let Ok(message) = self.waiting.try_recv() {
                lost += usize::from(matches!(message, Message::Span(_)));
            }
            self.counters.add_dropped(lost);
        }
        let _ = self.exporter.shutdown_with_timeout(Duration::ZERO);
    }
}

/// Waits until the end was asked for and its deadline has passed.
async fn over(mut ending: watch::Receiver<Option<Instant>>) {
    let asked = ending.wait_for(Option::is_some).await.ok().and_then(|deadline| *deadline);
    if let Some(deadline) = asked {
        tokio::time::sleep_until(deadline).await;
    }
}

#[cfg(test)]
#[path = "processor_tests.rs"]
mod tests;
