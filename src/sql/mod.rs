//! The pipeline is SQL: from statements to a checked plan, and from it the two halves of the query.
//!
//! DataFusion parses, plans and evaluates. What is here decides which statements make a pipeline, refuses with the reason
//! and the place what would not run rightly on a stream, and cuts the plan at its one shuffle: the source stage runs on
//! each partition up to partial aggregates, the operator merges them on each shard. Several INSERTs are several branches of
//! the stage and several operators, which move together.

mod aggregation;
mod arguments;
mod bisect;
mod branch;
mod checked;
mod clock;
mod constants;
mod decode;
mod depth;
mod digits;
mod distribution;
mod error;
mod expiry;
mod fingerprint;
mod fitting;
mod flat;
mod halves;
mod keeping;
mod key;
mod lanes;
mod metadata;
mod modes;
mod notices;
mod operator;
mod options;
mod partial;
mod passthrough;
mod pipeline;
mod plan;
mod pushing;
mod ranking;
mod reading;
mod refusals;
mod routing;
mod second;
mod shape;
mod simplifying;
mod stage;
mod state;
mod statements;
mod tally;
#[cfg(test)]
mod tests;
mod together;
mod windows;

pub use error::{Place, SqlError};
pub use fingerprint::which_keep_state;
pub use plan::{Insert, Plan, plan};
pub use tally::{RowCounters, RowCounts};
