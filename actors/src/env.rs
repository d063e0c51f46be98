//! What a pipeline is made of, and what its actors share.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::board::Board;
use crate::clock::HybridClock;
use crate::credit::Credits;
use crate::pointer::Generation;
use crate::ports::{BatchLimit, Query, Sink, Source, StateStore, StoreError};
use crate::restart::RestartPolicy;
use crate::suspicion::Trial;

/// How the actors work.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The time between two checkpoints of a shard.
    pub checkpoint_interval: Duration,
    /// The time after which a shard that has nothing but new positions commits them.
    pub quiet_interval: Duration,
    /// What one batch may hold.
    pub batch: BatchLimit,
    /// Rows that may be in flight between the actors.
    pub rows_in_flight: usize,
    /// Bytes that may be in flight between the actors.
    pub bytes_in_flight: usize,
    /// Output rows that wait for a checkpoint, in bytes, from which on one is taken early.
    pub pending_bytes: usize,
    /// How often new partitions are looked for.
    pub discovery_interval: Duration,
    /// When crashed actors start again.
    pub restart: RestartPolicy,
    /// How long an actor may stand still with work before it.
    pub stall: Duration,
    /// After how many crashes at one place the record that causes them is looked for.
    pub poison_crashes: u32,
    /// How long the owner's heartbeat has to stand still until another instance takes over.
    pub takeover_after: Duration,
    /// Of each partition, the first batch in each such interval is traced.
    pub trace_interval: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            checkpoint_interval: Duration::from_secs(1),
            quiet_interval: Duration::from_secs(3),
            batch: BatchLimit { rows: 16_384, bytes: 4 << 20 },
            rows_in_flight: 524_288,
            bytes_in_flight: 64 << 20,
            pending_bytes: 16 << 20,
            discovery_interval: Duration::from_secs(30),
            restart: RestartPolicy::default(),
            stall: Duration::from_secs(60),
            poison_crashes: 3,
            takeover_after: Duration::from_secs(2),
            trace_interval: Duration::from_secs(1),
        }
    }
}

/// A pipeline: its ports and how it works.
pub struct Pipeline {
    /// The name under which everything is kept.
    pub name: String,
    /// Which instance this is: one with the name of the owner takes over at once, any other waits for the owner's end.
    pub instance: String,
    /// The number of shards.
    pub shards: u32,
    /// The fingerprint of the plan.
    pub fingerprint: String,
    /// Where records come from.
    pub source: Arc<dyn Source>,
    /// Where offsets and state are kept.
    pub store: Arc<dyn StateStore>,
    /// Where results go.
    pub sink: Arc<dyn Sink>,
    /// What is computed.
    pub query: Arc<dyn Query>,
    /// The clock for write timestamps.
    pub clock: HybridClock,
    /// How it works.
    pub tuning: Tuning,
}

/// What the actors of one life of the supervisor share.
pub(crate) struct Env {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) board: Arc<Board>,
    pub(crate) credits: Credits,
    pub(crate) generation: Generation,
    /// Topic names by id.
    pub(crate) topics: Mutex<BTreeMap<Uuid, Arc<str>>>,
    /// The suspects that the process is working on.
    pub(crate) trial: Arc<Trial>,
    /// The number of partitions that are read, by which a batch's share of memory is computed.
    pub(crate) partitions: AtomicU64,
}

impl Env {
    /// What one batch may hold, so that one batch of every partition together stays within the budget in flight.
    pub(crate) fn batch_limit(&self) -> BatchLimit {
        let tuning = &self.pipeline.tuning;
        let partitions = usize::try_from(self.partitions.load(Ordering::Relaxed)).unwrap_or(usize::MAX).max(1);
        BatchLimit {
            rows: tuning.batch.rows.min(tuning.rows_in_flight / partitions).max(1),
            bytes: tuning.batch.bytes.min(tuning.bytes_in_flight / partitions).max(1),
        }
    }

    pub(crate) fn topic(&self, id: &Uuid) -> Option<Arc<str>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Repeats a harmless request to the store until it answers.
    pub(crate) async fn patiently<T, F>(&self, what: &str, request: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        patiently(&self.board, what, request).await
    }

    /// Notes a fault that may pass, and waits before the next try.
    pub(crate) async fn fault(&self, patience: &mut Patience, what: &str, error: &str) {
        patience.fault(&self.board, what, error).await;
    }
}

/// Repeats a harmless request to the store until it answers.
pub(crate) async fn patiently<T, F>(board: &Board, what: &str, mut request: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut patience = Patience::default();
    loop {
        match request().await {
            Err(StoreError::Unavailable(error)) => patience.fault(board, what, &error).await,
            answer => {
                patience.over(board);
                return answer;
            }
        }
    }
}

/// Growing pauses between tries.
#[derive(Debug)]
pub(crate) struct Patience {
    pause: Duration,
    of_store: bool,
    /// There was a fault.
    tried: bool,
}

impl Default for Patience {
    /// With the store.
    fn default() -> Self {
        Self { pause: Duration::from_millis(50), of_store: true, tried: false }
    }
}

impl Patience {
    /// With the sink.
    pub(crate) fn of_sink() -> Self {
        Self { of_store: false, ..Self::default() }
    }

    /// There was an answer.
    pub(crate) fn over(&self, board: &Board) {
        if self.tried && self.of_store {
            board.committer(|status| status.store.failing = false);
        }
    }

    async fn fault(&mut self, board: &Board, what: &str, error: &str) {
        board.fault(self.of_store, format!("{what}: {error}"));
        let pause = self.pause;
        (self.pause, self.tried) = ((pause * 2).min(Duration::from_secs(5)), true);
        tracing::warn!("{what}: {error}; trying again in {pause:?}");
        tokio::time::sleep(pause).await;
    }
}
