//! What the actors show of themselves: one board that they write on and that the outside reads.

mod partition;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::balance::Balance;
use crate::child::Cause;
use crate::clock;
use crate::mailbox::Depth;
use crate::message::Incarnation;
use crate::pointer::{Epoch, Generation, ShardId};
use crate::ports::{DeadLetter, Heartbeat};
use crate::position::{Counts, Offset, PartitionKey, SourcePartition, Vector, Watermark};

pub use partition::{Activity, PartitionStatus};

/// How many of the last events are kept.
const EVENTS: usize = 200;
/// How many of the last dead letters are shown.
const LETTERS: usize = 50;

/// An actor by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActorId {
    /// The supervisor.
    Supervisor,
    /// The offset committer.
    Committer,
    /// The aggregation actor of a shard.
    Shard(ShardId),
    /// The actor of a partition.
    Partition(PartitionKey),
}

impl ActorId {
    /// The kind of actor, as metrics name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Committer => "committer",
            Self::Shard(_) => "aggregation",
            Self::Partition(_) => "partition",
        }
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Supervisor => f.write_str("supervisor"),
            Self::Committer => f.write_str("committer"),
            Self::Shard(shard) => write!(f, "aggregation {shard}"),
            Self::Partition(key) => write!(f, "partition {key}"),
        }
    }
}

/// What an actor is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It finds out where to begin.
    #[default]
    Starting,
    /// It waits until another process, which owns the pipeline, is gone.
    Standby,
    /// It works.
    Running,
    /// It crashed and waits until it may start again.
    BackingOff,
    /// It stands still until somebody decides.
    Halted,
    /// It was told to stand still, until it is told to go on.
    Paused,
    /// It was told to stop.
    Stopped,
}

/// What is known of every actor.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ActorStatus {
    /// What it is doing.
    pub life: Life,
    /// Which of its lives this is.
    pub incarnation: u64,
    /// How often it was started again after it had died by itself.
    pub restarts: u64,
    /// How often for each kind of cause, of those that there were.
    pub causes: BTreeMap<&'static str, u64>,
    /// How many messages wait in its mailbox, at the time of reading.
    pub mailbox: Depth,
    /// Why it last died.
    pub last_error: Option<String>,
    /// It is halted for a reason that no resuming can pass.
    pub refused: bool,
}

impl ActorStatus {
    /// Notes that it died and, if its budget allows, is started again.
    pub fn died(&mut self, cause: &Cause) {
        self.restarts += 1;
        *self.causes.entry(cause.kind()).or_default() += 1;
        self.last_error = Some(cause.to_string());
        self.life = Life::BackingOff;
    }
}

/// A shard.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ShardStatus {
    /// Its actor.
    pub actor: ActorStatus,
    /// Keys in its state.
    pub keys: usize,
    /// About how much memory its state takes.
    pub bytes: usize,
    /// The epoch of its last checkpoint.
    pub epoch: Epoch,
    /// Rows that its lanes brought in this life of the process, partial aggregates counted once.
    pub rows: u64,
    /// Ranges that it had taken before and dropped.
    pub replays: u64,
    /// What became of the offsets that it owns, since the pipeline began.
    pub counts: Counts,
    /// The lowest watermark over its partitions.
    pub watermark: Watermark,
    /// How long the last checkpoint took from the snapshot to the delivered output, in microseconds.
    pub checkpoint_micros: u64,
    /// The encoded size of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Checkpoints in this life of the process.
    pub checkpoints: u64,
    /// Since when it handles the same message.
    #[serde(serialize_with = "maybe_ago")]
    pub busy: Option<Instant>,
    /// The positions of the last checkpoint, with what it had counted; none until the shard was claimed.
    #[serde(skip)]
    pub positions: Option<Arc<Vector>>,
    /// When the last checkpoint was committed.
    #[serde(serialize_with = "maybe_ago")]
    pub committed: Option<Instant>,
}

/// The committer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommitterStatus {
    /// Its actor.
    pub actor: ActorStatus,
    /// Checkpoints that it committed in this life of the process.
    pub commits: u64,
    /// Requests to the store or the sink that had to be repeated.
    pub retries: u64,
    /// The last of these faults.
    pub last_fault: Option<String>,
    /// How the store answers.
    pub store: StoreStatus,
}

/// How the store answers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreStatus {
    /// Requests that had to be repeated.
    pub retries: u64,
    /// The last fault.
    pub last_error: Option<String>,
    /// When it was, in milliseconds since the epoch.
    pub last_error_at: Option<u64>,
    /// Nothing was answered since.
    pub failing: bool,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An actor died, and is started again.
    Restart,
    /// An actor stands still until somebody decides.
    Halt,
    /// Anything else.
    Note,
}

/// A record that could not be processed, as it is shown: where it is and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// The topic's name.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its Kafka timestamp, in milliseconds.
    pub timestamp: i64,
    /// Why it could not be processed.
    pub reason: String,
}

/// Something that happened to an actor.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Milliseconds since the epoch.
    pub at: u64,
    /// What kind of thing it is.
    pub kind: EventKind,
    /// Which actor.
    pub actor: String,
    /// What happened.
    pub what: String,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The generation of this process.
    pub generation: Generation,
    /// While this process is a standby: the heartbeat of the owner.
    pub owner: Option<Heartbeat>,
    /// When this process took over, if it was a standby.
    #[serde(serialize_with = "maybe_ago")]
    pub standby_until: Option<Instant>,
    /// The supervisor.
    pub supervisor: ActorStatus,
    /// The committer.
    pub committer: CommitterStatus,
    /// The shards by number.
    pub shards: BTreeMap<ShardId, ShardStatus>,
    /// Everything that is read was told to stand still.
    pub paused: bool,
    /// The partitions.
    #[serde(serialize_with = "values")]
    pub partitions: BTreeMap<PartitionKey, PartitionStatus>,
    /// The last events, oldest first.
    pub events: VecDeque<Event>,
    /// The last dead letters that this process wrote, oldest first.
    pub dead_letters: VecDeque<Letter>,
}

impl Snapshot {
    /// What became of a partition's offsets by the last checkpoint of every shard. Not known before all `shards` were claimed.
    pub fn balance(&self, key: &PartitionKey, shards: u32) -> Option<Balance> {
        let start = self.partitions.get(key)?.start?;
        let vectors: Option<Vec<&Vector>> =
            (0..shards).map(|shard| self.shards.get(&shard)?.positions.as_deref()).collect();
        Balance::new(start, vectors?.into_iter().map(|vector| vector.get(key)))
    }

    /// All actors.
    pub fn actors(&self) -> impl Iterator<Item = (ActorId, &ActorStatus)> {
        let own = [(ActorId::Supervisor, &self.supervisor), (ActorId::Committer, &self.committer.actor)];
        let shards = self.shards.iter().map(|(shard, status)| (ActorId::Shard(*shard), &status.actor));
        let partitions = self.partitions.iter().map(|(key, status)| (ActorId::Partition(*key), &status.actor));
        own.into_iter().chain(shards).chain(partitions)
    }

    /// An actor as people know it: a partition by its topic's name.
    pub fn name(&self, id: ActorId) -> String {
        match id {
            ActorId::Partition(key) => match self.partitions.get(&key) {
                Some(partition) => format!("partition {}-{}", partition.topic, partition.partition),
                None => id.to_string(),
            },
            other => other.to_string(),
        }
    }
}

/// The board. Writing is cheap; reading copies.
#[derive(Debug, Default)]
pub struct Board {
    state: Mutex<Snapshot>,
}

impl Board {
    fn with<T>(&self, change: impl FnOnce(&mut Snapshot) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All that is on the board.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.with(|state| state.clone());
        let now = i64::try_from(clock::millis()).unwrap_or(i64::MAX);
        snapshot.partitions.values_mut().for_each(|status| status.seen(now));
        snapshot
    }

    /// Notes that the process owns the pipeline, and under which generation.
    pub fn generation(&self, generation: Generation) {
        self.with(|state| {
            state.generation = generation;
            if state.owner.take().is_some() {
                state.standby_until = Some(Instant::now());
            }
        });
    }

    /// Notes that the process waits for another one, which owns the pipeline.
    pub fn standby(&self, owner: &Heartbeat) {
        self.with(|state| {
            state.owner = Some(owner.clone());
            state.supervisor.life = Life::Standby;
        });
    }

    /// Adds a partition, or makes sure that it is there.
    pub fn add_partition(&self, partition: &SourcePartition) {
        self.with(|state| {
            state.partitions.entry(partition.key).or_insert_with(|| PartitionStatus::new(partition));
        });
    }

    /// Changes what is known of a partition.
    pub fn partition(&self, key: PartitionKey, change: impl FnOnce(&mut PartitionStatus)) {
        self.with(|state| state.partitions.get_mut(&key).map(change));
    }

    /// Changes what is known of a partition, by a life of its actor. One that is over may come back late: it has no say.
    pub(crate) fn life(&self, key: PartitionKey, incarnation: Incarnation, change: impl FnOnce(&mut PartitionStatus)) {
        self.partition(key, |status| {
            if status.actor.incarnation == incarnation {
                change(status);
            }
        });
    }

    pub(crate) fn position(&self, key: PartitionKey) -> Option<Offset> {
        self.with(|state| state.partitions.get(&key).map(|partition| partition.position))
    }

    /// The lowest committed position of a partition over some shards; not known before each of them was claimed. `start`: where
    /// a shard stands that has none.
    pub(crate) fn committed(
        &self,
        key: &PartitionKey,
        start: Offset,
        shards: impl Iterator<Item = ShardId>,
    ) -> Option<Offset> {
        self.with(|state| {
            let mut lowest = None;
            for shard in shards {
                let positions = state.shards.get(&shard)?.positions.as_ref()?;
                let next = positions.get(key).map_or(start, |position| position.next);
                lowest = Some(lowest.map_or(next, |low: Offset| low.min(next)));
            }
            lowest
        })
    }

    /// Notes whether the pipeline was told to stand still.
    pub(crate) fn paused(&self, paused: bool) {
        self.with(|state| state.paused = paused);
    }

    /// An actor as people know it: a partition by its topic's name.
    pub fn name(&self, id: ActorId) -> String {
        self.with(|state| state.name(id))
    }

    /// Changes what is known of a shard.
    pub fn shard(&self, shard: ShardId, change: impl FnOnce(&mut ShardStatus)) {
        self.with(|state| change(state.shards.entry(shard).or_default()));
    }

    /// Changes what is known of the committer.
    pub fn committer(&self, change: impl FnOnce(&mut CommitterStatus)) {
        self.with(|state| change(&mut state.committer));
    }

    /// Changes what is known of any actor.
    pub fn actor(&self, id: ActorId, change: impl FnOnce(&mut ActorStatus)) {
        self.with(|state| match id {
            ActorId::Supervisor => change(&mut state.supervisor),
            ActorId::Committer => change(&mut state.committer.actor),
            ActorId::Shard(shard) => change(&mut state.shards.entry(shard).or_default().actor),
            ActorId::Partition(key) => {
                if let Some(partition) = state.partitions.get_mut(&key) {
                    change(&mut partition.actor);
                }
            }
        });
    }

    /// Whether an actor is in the middle of a message, or of a batch.
    pub(crate) fn busy(&self, id: ActorId) -> bool {
        self.with(|state| match id {
            ActorId::Shard(shard) => state.shards.get(&shard).is_some_and(|status| status.busy.is_some()),
            ActorId::Partition(key) => {
                state.partitions.get(&key).is_some_and(|status| status.activity == Activity::Processing)
            }
            ActorId::Supervisor | ActorId::Committer => false,
        })
    }

    /// Forgets what an actor was doing: that life of it is over, or has been given up.
    pub(crate) fn over(&self, id: ActorId) {
        match id {
            ActorId::Shard(shard) => self.shard(shard, |status| status.busy = None),
            ActorId::Partition(key) => self.partition(key, |status| status.turn(Activity::default())),
            ActorId::Supervisor | ActorId::Committer => {}
        }
    }

    /// Notes that a request to the store, or else to the sink, has to be repeated.
    pub(crate) fn fault(&self, of_store: bool, what: String) {
        self.committer(|status| {
            status.retries += 1;
            if of_store {
                let retries = status.store.retries + 1;
                let (last_error, last_error_at) = (Some(what.clone()), Some(clock::millis()));
                status.store = StoreStatus { retries, last_error, last_error_at, failing: true };
            }
            status.last_fault = Some(what);
        });
    }

    /// Notes dead letters that were written. One that was written again is noted once.
    pub(crate) fn dead_letters(&self, letters: &[DeadLetter]) {
        self.with(|state| {
            for letter in letters.iter().skip(letters.len().saturating_sub(LETTERS)) {
                let shown = Letter {
                    topic: letter.topic.clone(),
                    partition: letter.partition.partition,
                    offset: letter.offset,
                    timestamp: letter.timestamp,
                    reason: letter.reason.clone(),
                };
                if state.dead_letters.contains(&shown) {
                    continue;
                }
                if state.dead_letters.len() == LETTERS {
                    state.dead_letters.pop_front();
                }
                state.dead_letters.push_back(shown);
            }
        });
    }

    /// Notes that something happened.
    pub fn event(&self, actor: ActorId, what: impl Into<String>) {
        self.happened(actor, EventKind::Note, what);
    }

    /// Notes an event of a kind.
    pub fn happened(&self, actor: ActorId, kind: EventKind, what: impl Into<String>) {
        self.with(|state| {
            if state.events.len() == EVENTS {
                state.events.pop_front();
            }
            let actor = state.name(actor);
            state.events.push_back(Event { at: clock::millis(), kind, actor, what: what.into() });
        });
    }
}

fn seconds(since: Instant) -> f64 {
    Instant::now().checked_duration_since(since).unwrap_or(Duration::ZERO).as_secs_f64()
}

fn ago<S: serde::Serializer>(at: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(seconds(*at))
}

fn maybe_ago<S: serde::Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(seconds).serialize(serializer)
}

fn values<S: serde::Serializer>(
    partitions: &BTreeMap<PartitionKey, PartitionStatus>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(partitions.values())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread of the former one was lost, and comes back.
    #[test]
    fn what_a_former_life_says_is_not_shown() {
        let board = Board::default();
        let key = PartitionKey { topic_id: uuid::Uuid::nil(), partition: 0 };
        board.add_partition(&SourcePartition { source: 0, topic: "orders".into(), key });
        board.actor(ActorId::Partition(key), |status| status.incarnation = 2);
        board.life(key, 2, |status| status.turn(Activity::Processing));
        board.life(key, 1, |status| status.turn(Activity::Reading));
        assert_eq!(board.snapshot().partitions[&key].activity, Activity::Processing);
        assert!(board.busy(ActorId::Partition(key)));
    }
}
