//! Tests of the whole of `sql`: statements in, rows at the sink out, without any server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod aggregates;
mod checkpoints;
mod depth;
mod distinct;
mod documentation;
mod expiry;
mod far_times;
mod fingerprints;
mod guards;
mod harness;
mod having;
mod inserts;
mod keys;
mod moments;
mod nested;
mod nexmark;
mod overflows;
mod processing_time;
mod quiet;
mod random_windows;
mod ranked_windows;
mod ranking;
mod refusals;
mod repeating;
mod spark;
mod stages;
mod union;
mod windows;
