//! What the actors show of themselves: one board that they write on and that the outside reads.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::time::Instant;

use crate::pointer::{Epoch, Generation, ShardId};
use crate::ports::Heartbeat;
use crate::position::{Counts, Offset, PartitionKey, SourcePartition, Watermark};

/// How many of the last events are kept.
const EVENTS: usize = 200;

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
    /// Why it last died.
    pub last_error: Option<String>,
    /// It is halted for a reason that no resuming can pass.
    pub refused: bool,
}

/// What a partition actor waits for or does, for whoever watches that it gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It asks the shards for its position.
    #[default]
    Registering,
    /// It waits for records.
    Reading,
    /// It waits until others have worked off what is in flight.
    WaitingForCredit,
    /// It processes a batch.
    Processing,
    /// It waits for shards to take what it sent.
    WaitingForLanes,
}

/// A partition.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionStatus {
    /// Its actor.
    pub actor: ActorStatus,
    /// The topic's name.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// What the actor does.
    pub activity: Activity,
    /// Since when it does that.
    #[serde(serialize_with = "ago")]
    pub activity_since: Instant,
    /// The next offset to read.
    pub position: Offset,
    /// The end of the log, as far as it is known.
    pub end: Option<Offset>,
    /// The time until Kafka's retention deletes records that were not read, in seconds; known only while something is
    /// halted that still needs them.
    pub expires: Option<u64>,
    /// The watermark, in nanoseconds.
    pub watermark: Watermark,
    /// Records read in this life of the process, replays included.
    pub rows: u64,
    /// Bytes read in this life of the process, replays included.
    pub bytes: u64,
    /// The time that the source stage took so far, in microseconds.
    pub stage_micros: u64,
    /// Batches so far.
    pub batches: u64,
    /// The time that it waited for credit or lanes, in microseconds.
    pub blocked_micros: u64,
    /// When it last got on, or had nothing to do.
    #[serde(serialize_with = "ago")]
    pub progress: Instant,
}

impl PartitionStatus {
    /// How many offsets are behind the position; `None` while the end is not known.
    pub fn lag(&self) -> Option<i64> {
        self.end.map(|end| (end.0 - self.position.0).max(0))
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
    /// The positions of the last checkpoint.
    #[serde(skip)]
    pub positions: Arc<BTreeMap<PartitionKey, Offset>>,
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
}

/// Something that happened to an actor.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Milliseconds since the epoch.
    pub at: u64,
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
}

impl Snapshot {
    fn name(&self, id: ActorId) -> String {
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
        self.with(|state| state.clone())
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
            state.partitions.entry(partition.key).or_insert_with(|| PartitionStatus {
                actor: ActorStatus::default(),
                topic: partition.topic.to_string(),
                partition: partition.key.partition,
                activity: Activity::default(),
                activity_since: Instant::now(),
                position: Offset(0),
                end: None,
                expires: None,
                watermark: None,
                rows: 0,
                bytes: 0,
                stage_micros: 0,
                batches: 0,
                blocked_micros: 0,
                progress: Instant::now(),
            });
        });
    }

    /// Changes what is known of a partition.
    pub fn partition(&self, key: PartitionKey, change: impl FnOnce(&mut PartitionStatus)) {
        self.with(|state| state.partitions.get_mut(&key).map(change));
    }

    pub(crate) fn position(&self, key: PartitionKey) -> Option<Offset> {
        self.with(|state| state.partitions.get(&key).map(|partition| partition.position))
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

    /// Forgets that a shard is busy: that life of it has been given up.
    pub(crate) fn shard_idle(&self, id: ActorId) {
        if let ActorId::Shard(shard) = id {
            self.shard(shard, |status| status.busy = None);
        }
    }

    /// Notes an event.
    pub fn event(&self, actor: ActorId, what: impl Into<String>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.with(|state| {
            if state.events.len() == EVENTS {
                state.events.pop_front();
            }
            let actor = state.name(actor);
            state.events.push_back(Event {
                at: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
                actor,
                what: what.into(),
            });
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
