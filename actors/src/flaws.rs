//! Deliberate faults of the protocol, by which the simulation shows that it would find them.
//!
//! They exist only with the cargo feature `simulation`, which the tests of this crate alone switch on; no service contains them.
//! A simulation runs on one thread, so a flaw is switched on for one thread. Some guards hide behind others: a flaw then
//! switches off what hides it too, and says so.

use std::cell::Cell;

use crate::env::Env;
use crate::pointer::{Epoch, Pointer};
use crate::ports::StateDelta;
use crate::segment;

macro_rules! flaws {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// A deliberate fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flaw { $($(#[$text])* $name,)* }

        impl Flaw {
            /// Every one.
            pub const ALL: &[Flaw] = &[$(Flaw::$name,)*];
        }
    };
}

flaws! {
    /// A shard takes every range, wherever it stands. Hidden by the incarnations, which make sure that only one actor of a
    /// partition sends ranges and that they are contiguous: they are not checked either.
    NoVectorCheck,
    /// The pointer is moved before the segments that it lists are written.
    PointerBeforeSegments,
    /// A pointer write whose answer was lost is repeated as another write with a timestamp of its own, without reading the
    /// pointer; when that one is refused, the first is believed to have landed.
    BlindRetry,
    /// The positions of a checkpoint are one lower than what its state contains.
    OffsetTooLow,
    /// The positions of a checkpoint are one higher than what its state contains.
    OffsetTooHigh,
    /// The rows of a replay are not cut for a shard that is ahead of the others, only the range is.
    ReplayNotTrimmed,
    /// A shard that loads reads every state segment of its epochs, also those of attempts that never committed.
    DroppedAttemptsRead,
    /// After a claim the last output is not delivered again.
    OutputNotDeliveredAgain,
    /// A shard is loaded from the pointer as it is read, without a claim; the committer goes on with what the earlier life
    /// had sent. Hidden by the base that a checkpoint names: it is not checked either.
    NoClaim,
    /// Segments are keyed by their epoch, and not by the attempt. Hidden by the claim, which gives each life of a shard epochs
    /// of its own: it is left out.
    KeyedByEpoch,
    /// A committer that numbers checkpoints itself: when the pointer has moved meanwhile, it puts the checkpoint on top of
    /// what it finds. Hidden by the claim, which empties its queue, and by the base that a checkpoint names: the claim leaves
    /// the queue alone, and the base is not checked.
    Renumbered,
    /// After a checkpoint has failed, the shard goes on and the next one is kept.
    LaterCheckpointKept,
    /// Orphans are looked for up to epochs above the pointer's, where attempts are in flight.
    UnboundedSweep,
    /// A range that straddles the place where a shard stands is dropped as a replay. Hidden by the lane, which cuts ranges to
    /// what the shard needs: it sends them whole.
    StraddleDropped,
    /// A shard is loaded again, but the partition actors are not started again.
    PartitionsNotRestarted,
    /// A partition tells the shards that it is idle as soon as it has read up to the end, in a message of its own.
    IdleBesideTheLane,
    /// The generation of a pointer is not looked at after a write that was refused, nor before a claim.
    FenceIgnored,
    /// Positions are restored without their watermarks.
    WatermarkNotRestored,
    /// A shard that is loaded again has forgotten up to where it had closed windows, so that it closes some a second time.
    ClosedForgotten,
    /// A partition that was idle goes on without asking the shards what they have closed meanwhile.
    WokenUnasked,
    /// A segment is dropped as soon as one of its rows is gone by itself.
    SegmentsDroppedEarly,
    /// Segments stay although all of their rows are gone by themselves.
    ClosedSegmentsKept,
    /// A partition whose watermark is not known does not hold back the shard's.
    UnknownWatermarkPassedOver,
    /// The shards do not know of a partition before its actor has asked them for its position.
    PartitionsNotExpected,
    /// Merging deltas leaves out the newest.
    NewestDeltaDropped,
    /// A checkpoint is taken when half of a range's rows have been merged.
    CheckpointInBatch,
    /// Output is delivered before the pointer has moved.
    DeliveredBeforeCommit,
    /// A process does not raise its clock to the write timestamps that it reads.
    ClockNotRaised,
    /// An output that is delivered again after a claim gets the epoch and timestamp of the claim.
    OutputRestamped,
    /// `kafka_offsets` gets the highest committed position over the shards.
    HighestOffsets,
    /// Segments are deleted although an earlier state that is kept lists them.
    KeptStateDeleted,
    /// The positions that a partition actor reads from are not the lowest of the shards' answers, but the highest.
    ReadFromHighest,
    /// A range that does not begin where the partition actor stands is sent on all the same.
    WrongRangeSentOn,
    /// After an error in the middle of a range the operator goes on as if nothing had been merged.
    HalfRangeKept,
    /// A segment that cannot be read is called corrupt, without asking the pointer whether somebody else owns the shard by
    /// now and has cleaned up. Hidden where the shard can go back to an earlier state, since that write is refused.
    ForeignCleanupIsCorruption,
    /// A shard that has nothing new commits nothing, so a process that has lost its shards does not learn of it.
    QuietShardsSilent,
    /// A process that is killed in the supervisor's pause comes back.
    KilledInPauseComesBack,
    /// A start position whose write is not answered ends the process.
    StartNotRepeated,
    /// A process that starts decides anew where a partition starts, whatever is stored.
    StartDecidedAgain,
    /// A partition that is found later starts as those that were found first.
    FoundLaterAsFirst,
    /// A rewind moves the shards that are marked before all of them are.
    RewindMovesEarly,
    /// A shard with the mark of a rewind is loaded and worked on.
    MarkedShardLoaded,
    /// The earlier states of a shard that is rewound can still be gone back to.
    RewindKeepsEarlier,
    /// A rewind that keeps the state forgets up to where windows are closed.
    RewindForgetsClosed,
    /// Where a rewind that drops the state leaves a partition as it stands, it leaves its watermark, too.
    ResetKeepsWatermark,
    /// A rewind that has tried to write and finds no marks believes that it was its own that came off.
    RewindBelieved,
    /// A rewind goes on with the next shard when another one's mark was faster on this one.
    RewindGoesOn,
    /// A rewind decides from pointers that it has read one after another.
    RewindLooksOnce,
    /// An output counts as delivered when one of two sinks has its part.
    OnePartIsEnough,
    /// What has changed counts as the whole of a state table.
    ChangesAreWhole,
    /// A partition actor does not know that an earlier life passed over records whose number was not known yet.
    LostForgotten,
    /// What was lost may be counted by a shard that stood above it, and is lost once more when that one dies.
    AnyShardSettles,
}

thread_local! {
    static ON: Cell<Option<Flaw>> = const { Cell::new(None) };
}

/// Switches one flaw on for this thread, or all off.
pub fn switch(flaw: Option<Flaw>) {
    ON.set(flaw);
}

pub(crate) fn any() -> bool {
    ON.get().is_some()
}

pub(crate) fn on(flaw: Flaw) -> bool {
    ON.get() == Some(flaw)
}

/// State segments that were written for the epochs of a pointer and that it does not list. `listed` is the state that it
/// lists, by which the tables are told apart.
pub(crate) async fn dropped_attempts(env: &Env, pointer: &Pointer, listed: &[StateDelta]) -> Vec<StateDelta> {
    let store = &env.pipeline.store;
    let keys: Vec<_> = pointer.content.state.iter().map(|segment| segment.key).collect();
    let mut dropped = Vec::new();
    for epoch in pointer.epoch.0 - 3..=pointer.epoch.0 {
        let found = store.segments_of_epoch(pointer.shard, Epoch(epoch)).await.unwrap_or_default();
        for key in found.into_iter().filter(|key| !keys.contains(key)) {
            let Ok(bytes) = store.read_segment(&key).await else { continue };
            for rows in segment::read(&bytes).unwrap_or_default() {
                if let Some(delta) = listed.iter().find(|delta| delta.rows.schema() == rows.schema()) {
                    dropped.push(StateDelta { table: delta.table, rows, whole: false });
                }
            }
        }
    }
    dropped
}
