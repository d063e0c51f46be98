//! The integration tests: one program, so that it is linked once.

#![allow(clippy::unwrap_used)]

mod cassandra_connection;
mod cassandra_store;
mod cassandra_tls;
mod local_store;
mod proxy;
mod store_conformance;
mod store_places;
