//! The integration tests: one program, so that it is linked once.

mod cassandra_connection;
mod cassandra_store;
mod proxy;
mod store_conformance;
