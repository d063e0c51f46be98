//! The actors of Strandline, the messages between them, and the ports they need.
//!
//! ```text
//!  Source --> PartitionActor --lane--> AggregationActor --checkpoint--> OffsetCommitter --> StateStore, then Sink
//!                     \___________________ Supervisor ___________________/
//! ```
//!
//! Why nothing is lost or counted twice, in the order in which to read it:
//!
//! 1. [`position`]: an offset is the next one to read; a shard's *vector* says where it stands in each partition.
//! 2. [`lane`]: a shard takes a range only where it stands. So a row counts once, whatever was sent again.
//! 3. [`mod@pointer`]: state, vector and output of a shard become durable together, by one conditional write.
//! 4. [`recovery`]: what an answer of the store means, and what no answer means.
//! 5. `partition`, `aggregation`, `committer`, `supervisor`: the four actors. After any death a partition asks every shard
//!    where it stands and reads from the lowest answer; a shard is loaded only by a claim of its pointer.
//! 6. [`ownership`]: when a process takes a generation at all, so that nobody takes over from one that is alive.
//! 7. [`rewind`]: how the positions of a stopped pipeline go back, on all shards or on none.
//!
//! This crate knows nothing of Kafka, Cassandra or SQL: it reaches them through [`ports`].

/// Whether a test has switched one of these deliberate faults on. In a service it is `false`, and what it guards is not there.
#[cfg(feature = "simulation")]
macro_rules! flaw {
    ($($flaw:ident)|+) => {
        ($($crate::flaws::on($crate::flaws::Flaw::$flaw))||+)
    };
}
#[cfg(not(feature = "simulation"))]
macro_rules! flaw {
    ($($flaw:ident)|+) => {
        false
    };
}

/// What holds whatever happens, checked in builds with debug assertions. While a deliberate fault is on, the simulation has to
/// find it by its results alone.
#[cfg(feature = "simulation")]
macro_rules! invariant {
    ($holds:expr, $($text:tt)+) => {
        debug_assert!($crate::flaws::any() || $holds, $($text)+)
    };
}
#[cfg(not(feature = "simulation"))]
macro_rules! invariant {
    ($holds:expr, $($text:tt)+) => {
        debug_assert!($holds, $($text)+)
    };
}

mod aggregation;
pub mod balance;
pub mod board;
#[cfg(feature = "simulation")]
pub mod busy;
pub mod child;
pub mod clock;
mod committer;
pub mod compaction;
pub mod credit;
mod ends;
pub mod env;
#[cfg(feature = "simulation")]
pub mod flaws;
pub mod lane;
mod lives;
pub mod mailbox;
pub mod message;
pub mod ownership;
mod partition;
pub mod pause;
pub mod pointer;
pub mod points;
pub mod ports;
pub mod position;
pub mod recovery;
pub mod restart;
mod retention;
pub mod rewind;
pub mod run;
pub mod segment;
pub mod several;
pub mod spans;
pub mod supervisor;
mod suspicion;
