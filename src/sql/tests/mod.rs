//! Tests of the whole of `sql`: statements in, rows at the sink out, without any server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod aggregates;
mod checkpoints;
mod depth;
mod distinct;
mod documentation;
mod expiry;
mod fingerprints;
mod harness;
mod having;
mod keys;
mod ranked_windows;
mod ranking;
mod refusals;
mod stages;
mod windows;
