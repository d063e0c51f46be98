//! A pipeline without actors, run in each of three ways: uninterrupted; with crashes, after which shards go back to what
//! each has committed and read the rest again; and with other cuts and interleavings. Its results are compared with
//! DataFusion's batch engine over the same rows, or with a reference that keeps them all.

mod dice;
mod pipeline;
mod records;
mod reference;
mod shard;
mod stage;
mod table;
mod ways;

pub(super) use dice::Dice;
pub(super) use pipeline::Pipeline;
pub(super) use records::{Record, batch, log, partition};
pub(super) use reference::{batch_engine, decoded};
pub(super) use stage::{NOW, input, letters, planned, refused, run_cut, run_stage, strings, total};
pub(super) use table::{assert_rows, values};
pub(super) use ways::each_way;
