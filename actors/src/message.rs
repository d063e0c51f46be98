//! What the actors say to each other.

use std::sync::Arc;

use actix::Message;
use tracing::Span;

use crate::board::ActorId;
use crate::child::Cause;
use crate::credit::Credit;
use crate::pause::{Scope, Wished};
use crate::pointer::{Attempt, Base, Pointer, ShardId};
use crate::ports::{DeadLetter, LaneRows, OutputBatch, StateDelta, StateTable};
use crate::position::{Offset, PartitionKey, Position, Range, SourcePartition, Vector, Watermark};

/// One life of an actor, numbered.
pub(crate) type Incarnation = u64;

/// Partition → shard: where do you stand? The answer makes all earlier incarnations of the partition invalid.
#[derive(Message)]
#[rtype(result = "Option<Registered>")]
pub(crate) struct Register {
    pub(crate) partition: PartitionKey,
    pub(crate) incarnation: Incarnation,
    /// The partition's stored start, which an absent entry of the vector means.
    pub(crate) start: Offset,
}

/// The answer, given only after the shard is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) shard: Incarnation,
    pub(crate) position: Position,
    /// Up to where it has closed its windows.
    pub(crate) closed: Watermark,
}

/// Supervisor → shard: these partitions exist, with their stored starts. Said before their actors are started, so that each
/// holds back the shard's watermark until it has one.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Expect(pub(crate) Vec<(PartitionKey, Offset)>);

/// Supervisor → shard: this life of a partition is over, and it is not known whether the partition is still quiet. It holds back
/// the shard's watermark, and the life is heard no more.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Awake {
    pub(crate) partition: PartitionKey,
    pub(crate) incarnation: Incarnation,
}

/// Partition → shard: one range of a lane.
#[derive(Message)]
#[rtype(result = "LaneReply")]
pub(crate) struct LaneBatch {
    pub(crate) partition: PartitionKey,
    pub(crate) incarnation: Incarnation,
    pub(crate) shard_incarnation: Incarnation,
    pub(crate) range: Range,
    /// The partition's watermark after the range.
    pub(crate) watermark: Watermark,
    /// Nothing follows the range for now. Said in the lane alone, after the last range, so that it never overtakes one.
    pub(crate) idle: bool,
    /// Up to where windows are to close once all partitions are idle.
    pub(crate) raised: Watermark,
    /// What was lost up to here is not counted yet.
    pub(crate) unsettled: bool,
    pub(crate) rows: LaneRows,
    /// Given back when the last lane is done with the batch.
    pub(crate) credit: Option<Arc<Credit>>,
    /// The trace of the batch, which ends with the last lane, and the lane's part in it.
    pub(crate) batch: Span,
    pub(crate) span: Span,
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, actix::MessageResponse)]
pub(crate) enum LaneReply {
    /// It counts now, or it did before.
    Done {
        /// Up to where the shard has closed its windows.
        closed: Watermark,
    },
    /// It does not continue where the shard stands.
    Gap {
        /// Where it stands.
        expected: Offset,
    },
    /// It comes from a life that is over.
    Ignored,
}

/// Supervisor → shard: commit what you have, and say when it is done.
#[derive(Message)]
#[rtype(result = "bool")]
pub(crate) struct Flush;

/// Anyone → any actor: panic, to show that it is survived.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Crash;

/// Shard → committer: claim my pointer. Empties what the committer still had of this shard.
#[derive(Message)]
#[rtype(result = "Result<Box<Pointer>, Cause>")]
pub(crate) struct Claim {
    pub(crate) shard: ShardId,
    pub(crate) incarnation: Incarnation,
    pub(crate) span: Span,
}

/// Shard → committer: what my pointer lists cannot be read; go back to an earlier state of mine, if that loses nothing.
#[derive(Message)]
#[rtype(result = "Result<Box<Pointer>, Cause>")]
pub(crate) struct FallBack {
    pub(crate) shard: ShardId,
    pub(crate) incarnation: Incarnation,
    pub(crate) base: Base,
    pub(crate) why: String,
}

/// Shard → committer: make this durable. It names its base; the committer never renumbers.
#[derive(Message)]
#[rtype(result = "Result<(), Cause>")]
pub(crate) struct Checkpoint {
    pub(crate) shard: ShardId,
    pub(crate) incarnation: Incarnation,
    pub(crate) base: Base,
    pub(crate) attempt: Attempt,
    pub(crate) vector: Vector,
    /// The highest watermark so far.
    pub(crate) closed: Watermark,
    pub(crate) state: Vec<StateDelta>,
    pub(crate) output: Vec<OutputBatch>,
    pub(crate) dead_letters: Vec<DeadLetter>,
    /// The state tables.
    pub(crate) tables: Vec<StateTable>,
    pub(crate) span: Span,
}

/// Supervisor → committer: write `kafka_offsets` now.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct FlushOffsets;

/// Monitor → supervisor: an actor's life has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Died {
    pub(crate) id: ActorId,
    pub(crate) incarnation: Incarnation,
    pub(crate) cause: Cause,
}

/// Supervisor → itself: the pause after a crash is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StartAgain {
    pub(crate) id: ActorId,
    pub(crate) incarnation: Incarnation,
    /// The restart, which lasts until the actor works again.
    pub(crate) span: Span,
}

/// Supervisor → itself: these partitions exist, with their starts.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Discovered(pub(crate) Vec<(SourcePartition, Result<Offset, String>)>);

/// Anyone → supervisor: take a last checkpoint and end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Stop;

/// Anyone → supervisor: make an actor of this kind panic.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashActor(pub(crate) Target);

/// Anyone → supervisor: read this no more until you are told to go on.
#[derive(Message)]
#[rtype(result = "Wished")]
pub(crate) struct Pause(pub(crate) Scope);

/// Anyone → supervisor: read this again.
#[derive(Message)]
#[rtype(result = "Wished")]
pub(crate) struct GoOn(pub(crate) Scope);

/// Anyone → supervisor: start a halted actor again, with a full budget.
#[derive(Message)]
#[rtype(result = "bool")]
pub(crate) struct Resume(pub(crate) ActorId);

/// Which actor is to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The supervisor.
    Supervisor,
    /// The committer.
    Committer,
    /// The aggregation actor of a shard, modulo their number.
    Shard(u32),
    /// A partition actor by its place, modulo their number.
    Partition(u32),
}

/// Partition → shard: nothing follows for now, said beside the lane.
#[cfg(feature = "simulation")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct IdleBeside(pub(crate) PartitionKey);
