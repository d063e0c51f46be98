//! The pipeline is SQL: from statements to a checked plan, and from it the two halves of the query.
//!
//! DataFusion parses, plans and evaluates. What is here decides which statements make a pipeline, refuses with the reason
//! and the place what would not run rightly on a stream, and cuts the plan at its one shuffle: the source stage runs on
//! each partition up to partial aggregates, the operator merges them on each shard.

mod aggregation;
mod bisect;
mod decode;
mod depth;
mod error;
mod expiry;
mod fingerprint;
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
mod ranking;
mod refusals;
mod routing;
mod shape;
mod stage;
mod state;
mod statements;
#[cfg(test)]
mod tests;
mod windows;

pub use error::{Place, SqlError};
pub use plan::{Plan, plan};
