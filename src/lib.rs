//! Strandline reads Kafka, runs a SQL pipeline and keeps offsets and state in Cassandra, so that after any crash it goes
//! on from the exact state it left off.
//!
//! This crate is the service: settings, SQL planning, formats, sources, stores, sinks and the command line. Each adapter
//! implements a port of `strandline_actors`, which holds the protocol.

pub mod cassandra;
pub mod catalog;
pub mod cli;
pub mod demo;
pub mod formats;
pub mod http;
pub mod kafka;
pub mod nexmark;
mod prefetch;
mod random;
pub mod service;
pub mod settings;
pub mod sinks;
pub mod sql;
pub mod stores;
pub mod telemetry;
mod words;
