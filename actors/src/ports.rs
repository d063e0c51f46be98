//! What the actors need from the world: a source, a state store, a sink, and the two halves of a query.
//!
//! Adapters implement these; the actors know no other way out.

use std::fmt;
use std::time::Duration;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tracing::Span;

use crate::pause::Wishes;
use crate::pointer::{Attempt, Base, Epoch, Generation, Pointer, SegmentKey, ShardId};
use crate::position::{Counts, Offset, PartitionKey, Range, SourcePartition, Watermark};

// ---------------------------------------------------------------------------------------------------------------------
// Source

/// How much one batch may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit {
    /// Records at most.
    pub rows: usize,
    /// Payload bytes at most; one record that is larger still makes a batch of its own.
    pub bytes: usize,
}

/// What was read from one partition in one go.
#[derive(Clone, Debug)]
pub struct SourceBatch {
    /// The offsets that this batch covers: from the position before to the position after, holes included.
    pub range: Range,
    /// The records in offset order, in the columns of [`raw`].
    pub records: RecordBatch,
    /// The size of keys, values and headers.
    pub bytes: usize,
    /// The first offset that the log does not have yet, as far as it is known.
    pub end: Option<Offset>,
    /// Records lie beyond that end which nobody may read yet, since a transaction is open.
    pub open_transaction: bool,
    /// The source reads other partitions first: that nothing comes is no fault.
    pub waits: bool,
    /// The records of the whole range were deleted before they were read, and the policy says to go on without them.
    pub lost: bool,
    /// The spans in which some of its records were produced, as their headers tell.
    pub producers: Producers,
}

/// A span of somebody else, as the W3C's `traceparent` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Its trace.
    pub trace: u128,
    /// The span itself.
    pub span: u64,
}

/// A few spans, each of another trace.
pub type Producers = [Option<TraceParent>; 4];

/// The columns of an undecoded batch: `_offset BIGINT`, `_timestamp TIMESTAMP(ms, UTC)`, `_key`, `_value` (nullable
/// BINARY), `_headers` (list of `{key VARCHAR, value BINARY}`, nullable; the adapter may leave it out when unused).
pub mod raw {
    /// The record's offset.
    pub const OFFSET: &str = "_offset";
    /// The record's Kafka timestamp.
    pub const TIMESTAMP: &str = "_timestamp";
    /// The record's key.
    pub const KEY: &str = "_key";
    /// The record's value.
    pub const VALUE: &str = "_value";
    /// The record's headers.
    pub const HEADERS: &str = "_headers";
}

/// Why a source cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// A fault that may pass: the partition actor is restarted.
    #[error("{0}")]
    Failed(String),
    /// A fault that does not pass by itself: the partition halts until somebody decides.
    #[error("{0}")]
    Halt(String),
}

/// Where records come from. One for the whole pipeline.
#[async_trait]
pub trait Source: Send + Sync {
    /// All partitions of all sources as they are now. Waits for as long as the servers are away.
    async fn partitions(&self) -> Result<Vec<SourcePartition>, SourceError>;

    /// Where a partition that was never read starts. `discovered` says that the partition appeared after the
    /// pipeline's first start, and so starts at its beginning.
    async fn start_offset(&self, partition: &SourcePartition, discovered: bool) -> Result<Offset, SourceError>;

    /// Whether records may disappear from the middle of the partition's log, as from a compacted topic: then what was read
    /// once may not be there to be read again.
    async fn thins(&self, partition: &SourcePartition) -> Result<bool, SourceError>;

    /// Starts to read a partition at an offset.
    async fn open(&self, partition: &SourcePartition, from: Offset) -> Result<Box<dyn PartitionReader>, SourceError>;

    /// The first offset that a partition's log does not have yet, asked once; `None` when nobody answers, or when the partition
    /// is gone.
    async fn end(&self, partition: &SourcePartition) -> Option<Offset>;

    /// Links the span of a batch with those in which its records were produced.
    fn link(&self, _batch: &Span, _producers: &Producers) {}
}

/// One partition that is being read. Dropping it stops the reading.
#[async_trait]
pub trait PartitionReader: Send {
    /// The records that follow. Waits for a while when there are none, then answers an empty batch. Must be safe to drop
    /// while it waits: nothing is lost.
    async fn next(&mut self, limit: BatchLimit) -> Result<SourceBatch, SourceError>;
}

// ---------------------------------------------------------------------------------------------------------------------
// The two halves of a query

/// A record that could not be processed, with all that is needed to find or repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The topic's name.
    pub topic: String,
    /// Where it was read.
    pub partition: PartitionKey,
    /// Its offset.
    pub offset: i64,
    /// Its Kafka timestamp, in milliseconds.
    pub timestamp: i64,
    /// Why it could not be processed.
    pub reason: String,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
}

impl DeadLetter {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let payload = self.key.as_ref().map_or(0, Vec::len) + self.value.as_ref().map_or(0, Vec::len);
        size_of::<Self>() + self.topic.len() + self.reason.len() + payload
    }
}

/// What the source stage is given.
#[derive(Debug)]
pub struct StageInput<'a> {
    /// The partition.
    pub partition: &'a SourcePartition,
    /// What was read.
    pub batch: &'a SourceBatch,
    /// The partition's watermark before the batch.
    pub watermark: Watermark,
    /// For how long the shards have had everything up to the end of the log; `None` while something is read, in flight or
    /// not known.
    pub quiet: Option<Duration>,
    /// For each shard the first offset that it still needs; rows below are cut before aggregation. `None`: the lane is
    /// off and gets nothing.
    pub cuts: &'a [Option<Offset>],
    /// For each shard up to where it had closed its windows when it last answered: what belongs to these is too late there. It
    /// closes no more of them than the partition's own watermark lets it, for as long as the partition is not idle.
    pub closed: &'a [Watermark],
    /// What shards that are ahead have of this partition, in the order of their positions: below this offset its watermark
    /// never came further than this. A record that was read before moves it no further when it is read again, whatever the
    /// clock says by then.
    pub noted: &'a [(Offset, Watermark)],
    /// The wall clock, in microseconds since the epoch.
    pub now: i64,
    /// Records that are dead-lettered without being looked at, since they made the stage panic before.
    pub poison: &'a [Offset],
}

/// What one lane carries for one range.
#[derive(Clone, Debug, Default)]
pub struct LaneRows {
    /// The rows or partial aggregates, in the form that the operator expects.
    pub rows: Vec<RecordBatch>,
    /// Bad records that this lane owns.
    pub dead_letters: Vec<DeadLetter>,
    /// What became of the offsets that this lane owns.
    pub counts: Counts,
}

impl LaneRows {
    /// How many rows and bad records it carries.
    pub fn num_rows(&self) -> usize {
        self.rows.iter().map(RecordBatch::num_rows).sum::<usize>() + self.dead_letters.len()
    }

    /// What they take in memory.
    pub fn bytes(&self) -> usize {
        let letters: usize = self.dead_letters.iter().map(DeadLetter::bytes).sum();
        self.rows.iter().map(RecordBatch::get_array_memory_size).sum::<usize>() + letters
    }
}

/// What the source stage made of a batch.
#[derive(Clone, Debug)]
pub struct StageOutput {
    /// One for each shard.
    pub lanes: Vec<LaneRows>,
    /// The partition's watermark after the batch.
    pub watermark: Watermark,
    /// The partition was quiet for so long that it is to hold back no watermark until its next range. Counts only with an
    /// empty batch.
    pub idle: bool,
    /// Up to where windows are to close once all partitions are idle, since this one is silent. Counts only when it is idle.
    pub raised: Watermark,
}

/// Why a half of the query cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StageError {
    /// The actor is restarted, and halts when that does not help.
    #[error("{0}")]
    Failed(String),
    /// A fault that does not pass by itself: the actor halts until somebody decides.
    #[error("{0}")]
    Halt(String),
    /// The policy for the record at this offset is to halt. What comes before it is good, and is processed first.
    #[error("{why}")]
    Refused {
        /// Where the record is; the partition halts here.
        at: Offset,
        /// What is wrong with it, with its topic, partition and offset.
        why: String,
    },
}

/// The first half of the query, on one partition: decode, filter, project, watermark, partial aggregation, routing.
///
/// Its result is a pure function of the input: how the log was cut into batches changes nothing. What becomes of a row is
/// decided and counted by the lane that the row belongs to: a shard that takes ranges again judges only its own rows anew.
pub trait SourceStage: Send {
    /// Makes of a batch what each lane carries.
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError>;
}

/// Changed rows of one state table: the key columns first, then the state, last `_deleted BOOLEAN`. A row replaces the
/// earlier one of its key; a deleted one removes it.
#[derive(Clone, Debug)]
pub struct StateDelta {
    /// The number of the table.
    pub table: usize,
    /// The changed rows, each key at most once.
    pub rows: RecordBatch,
    /// These, and those of the deltas of the same checkpoint and table that follow, are all rows that the table has now, each
    /// key once: nothing older counts, and nothing has to be merged.
    pub whole: bool,
}

/// A state table of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTable {
    /// How many of its columns, from the first on, are the key.
    pub key_columns: usize,
    /// The last column but one, `_until BIGINT`, is a function of the key, and says when a row is gone by itself: once a
    /// checkpoint has a watermark that is not below it. So a window that has closed needs no removal of its groups.
    pub expires: bool,
}

/// Whether rows are written or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Insert the rows or replace them.
    Upsert,
    /// Remove the rows: only the columns of the primary key count.
    Delete,
}

/// Rows for one sink.
#[derive(Clone, Debug)]
pub struct OutputBatch {
    /// The number of the sink.
    pub sink: usize,
    /// What is to be done with the rows.
    pub change: Change,
    /// The rows.
    pub rows: RecordBatch,
}

/// What an operator changed since its last checkpoint.
#[derive(Clone, Debug, Default)]
pub struct OperatorCheckpoint {
    /// Its state.
    pub state: Vec<StateDelta>,
    /// What the sinks are to be told, in order.
    pub output: Vec<OutputBatch>,
}

/// The second half of the query, on one shard: all state of its keys.
pub trait KeyedOperator: Send {
    /// The operator's state tables.
    fn tables(&self) -> Vec<StateTable>;

    /// Takes what a lane carried. `watermark` is that of the shard after the range: the lowest over its partitions that are
    /// not idle, and never below an earlier one. Also called without rows, when the watermark has risen.
    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError>;

    /// What has changed since the last call. Called between two ranges, never inside one.
    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError>;

    /// Takes the stored state on, once, before anything is applied: batches of each table, oldest first.
    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError>;

    /// The number of keys that are kept.
    fn keys(&self) -> usize;

    /// About how much memory the state takes.
    fn bytes(&self) -> usize;

    /// About how much memory rows take that wait for the next checkpoint as they came; they hold back the sources.
    fn pending_bytes(&self) -> usize;

    /// About how much memory changes of the state take that wait for the next checkpoint; they hold back the sources only
    /// when they outgrow their bound.
    fn changed_bytes(&self) -> usize;
}

/// Makes the two halves of a query, a fresh one for each life of an actor.
pub trait Query: Send + Sync {
    /// The first half, for one partition.
    fn source_stage(&self, partition: &SourcePartition) -> Box<dyn SourceStage>;

    /// The second half, for one shard.
    fn operator(&self, shard: ShardId) -> Box<dyn KeyedOperator>;

    /// Why a shard cannot go back to an earlier state and compute the same records again, if it cannot: rows that it wrote
    /// before would stay in the sink, which a second time it does not write.
    fn unrepeatable(&self) -> Option<&'static str>;

    /// Whether the watermark closes windows, or lets groups be forgotten.
    fn closes(&self) -> bool;
}

// ---------------------------------------------------------------------------------------------------------------------
// State store

/// Why a store did not answer as wanted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer, or not enough of one: whether a write took place is unknown.
    #[error("{0}")]
    Unavailable(String),
    /// The store holds something that cannot be right.
    #[error("{0}")]
    Corrupt(String),
    /// The store holds something that a newer version of this program has written, and that this one cannot read.
    #[error("{0}")]
    Newer(String),
    /// Refused for good: a missing table, a missing right.
    #[error("{0}")]
    Fatal(String),
}

/// What a conditional write answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The pointer is now what was asked for.
    Applied,
    /// The condition did not hold; this is the pointer as it is.
    Refused(Option<Box<Pointer>>),
}

/// What became of a wish for the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is this one.
    Mine(Generation),
    /// Somebody was faster; this is the latest that was taken.
    Another(Generation),
}

/// What is fixed when a pipeline first starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineRow {
    /// The number of shards.
    pub shards: u32,
    /// The fingerprint of the plan.
    pub fingerprint: String,
    /// The plan in words, to show what has changed.
    pub plan: String,
}

/// How often processes died at one place of a partition, so that records that kill even the process are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashNote {
    /// The position at which the partition was started.
    pub position: Offset,
    /// The last process that started there.
    pub generation: Generation,
    /// Processes that ended there without getting on.
    pub deaths: u32,
    /// What was being processed when a process died, once that is suspected.
    pub suspect: Option<Suspects>,
    /// What is being processed: whoever dies now makes it the suspects.
    #[serde(default)]
    pub trying: Option<Suspects>,
    /// Records that were found, and are not committed as dead letters yet.
    #[serde(default)]
    pub found: Vec<Offset>,
}

impl CrashNote {
    /// So many deaths at a position, and nobody is suspected.
    pub fn new(position: Offset, generation: Generation, deaths: u32) -> Self {
        Self { position, generation, deaths, suspect: None, trying: None, found: Vec::new() }
    }
}

/// Records one of which is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspects {
    /// The offsets from the first of them to the last.
    #[serde(flatten)]
    pub range: Range,
    /// How many they are; not known of those that a former version wrote.
    #[serde(default)]
    pub rows: Option<usize>,
}

impl Suspects {
    /// So many records of a range.
    pub fn new(range: Range, rows: usize) -> Self {
        Self { range, rows: Some(rows) }
    }

    /// How many records they are at most.
    pub fn records(&self) -> usize {
        let offsets = usize::try_from(self.range.until.0 - self.range.from.0).unwrap_or(usize::MAX);
        self.rows.map_or(offsets, |rows| rows.min(offsets))
    }
}

/// A sign of life of the process that owns the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The owner's generation.
    pub generation: Generation,
    /// The name that the owner was given, or gave itself.
    pub instance: String,
    /// A counter that the owner keeps bumping; only whether it moves means something.
    pub beat: i64,
    /// The owner has ended by itself and needs the pipeline no more.
    pub released: bool,
}

/// One line of `kafka_offsets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaOffset {
    /// The topic's name.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next offset that not all shards have committed yet.
    pub offset: Offset,
}

/// Where offsets and state are kept. One for the whole pipeline, written by the committer alone (start positions, crash
/// notes and heartbeats excepted).
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Inserts the pipeline row if there is none, and answers the row that holds.
    async fn define_pipeline(&self, row: &PipelineRow) -> Result<PipelineRow, StoreError>;

    /// A number that no process of this pipeline had before, higher than all earlier ones.
    async fn next_generation(&self) -> Result<Generation, StoreError>;

    /// The same, but only if no later generation than this one (0: none at all) was taken so far. An error means that it is
    /// unknown whether one was taken; when asked again, the answer may be that it was another's.
    async fn take_generation(&self, known: Generation) -> Result<Taken, StoreError>;

    /// The stored start of a partition.
    async fn start_offset(&self, key: &PartitionKey) -> Result<Option<Offset>, StoreError>;

    /// Stores the start of a partition if there is none, and answers the one that holds.
    async fn define_start(&self, partition: &SourcePartition, start: Offset) -> Result<Offset, StoreError>;

    /// Every partition that has a stored start, with the topic's name.
    async fn known_partitions(&self) -> Result<Vec<(String, PartitionKey)>, StoreError>;

    /// Reads a pointer with serial consistency.
    async fn read_pointer(&self, shard: ShardId) -> Result<Option<Pointer>, StoreError>;

    /// Moves a pointer by one conditional write: if it is still `base` (`None`: if there is none). An error means that
    /// it is unknown whether it moved.
    async fn move_pointer(&self, base: Option<Base>, next: &Pointer) -> Result<Moved, StoreError>;

    /// Writes a segment. Writing the same one again is harmless.
    async fn write_segment(&self, key: &SegmentKey, bytes: &[u8]) -> Result<(), StoreError>;

    /// Reads a segment whole.
    async fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, StoreError>;

    /// Deletes segments; those that do not exist are passed over.
    async fn delete_segments(&self, keys: &[SegmentKey]) -> Result<(), StoreError>;

    /// The segments that were written for one epoch of a shard, by whichever attempt.
    async fn segments_of_epoch(&self, shard: ShardId, epoch: Epoch) -> Result<Vec<SegmentKey>, StoreError>;

    /// Writes `kafka_offsets` in one batch under a write timestamp (microseconds).
    async fn write_kafka_offsets(&self, offsets: &[KafkaOffset], timestamp: i64) -> Result<(), StoreError>;

    /// Writes dead letters under a write timestamp (microseconds). Writing the same ones again is harmless.
    async fn write_dead_letters(&self, letters: &[DeadLetter], timestamp: i64) -> Result<(), StoreError>;

    /// What was told to stand still. Nothing, if that was never stored.
    async fn paused(&self) -> Result<Wishes, StoreError>;

    /// Stores what is to stand still, over what was stored before.
    async fn write_paused(&self, wishes: &Wishes) -> Result<(), StoreError>;

    /// Reads a partition's crash note.
    async fn crash_note(&self, key: &PartitionKey) -> Result<Option<CrashNote>, StoreError>;

    /// Writes a partition's crash note (`None`: removes it).
    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError>;

    /// The heartbeat of the latest generation that has one. Not repeated when it is not answered: whoever asks wants to
    /// know in time.
    async fn read_heartbeat(&self) -> Result<Option<Heartbeat>, StoreError>;

    /// Writes a heartbeat over earlier ones of its generation. One of an earlier generation never hides that of a later.
    async fn write_heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), StoreError>;
}

// ---------------------------------------------------------------------------------------------------------------------
// Sink

/// Why output could not be delivered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SinkError {
    /// May pass: the delivery is repeated.
    #[error("{0}")]
    Unavailable(String),
    /// Will not pass: the shard stops.
    #[error("{0}")]
    Fatal(String),
}

/// The output of one epoch of one shard.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The shard.
    pub shard: ShardId,
    /// The epoch of the checkpoint that made the output.
    pub epoch: Epoch,
    /// The pointer write that carries it now, for sinks that note it with the output.
    pub attempt: Attempt,
    /// The write timestamp that the pointer fixed for it, in microseconds.
    pub timestamp: i64,
    /// The same output may have been delivered before.
    pub again: bool,
    /// The rows, in order.
    pub output: &'a [OutputBatch],
}

/// Where results go. One for the whole pipeline; the number in an [`OutputBatch`] tells its parts apart.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Delivers the output of one epoch whole. Delivering it again must change nothing, as far as the kind of sink
    /// allows.
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError>;

    /// Whether a row replaces the earlier one of its key, so that computing it again from earlier records is harmless.
    fn replaces(&self) -> bool;

    /// Whether the sink of this number takes nothing, so that no output need be kept for another delivery.
    fn discards(&self, _sink: usize) -> bool {
        false
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Time

/// The wall clock, for write timestamps.
pub trait WallClock: Send + Sync {
    /// Microseconds since the epoch.
    fn now_micros(&self) -> i64;
}

impl fmt::Debug for dyn WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}
