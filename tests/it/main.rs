//! Tests against the real services, all in one binary. `tests/run` starts the services and then these.

#![allow(clippy::unwrap_used)]

mod cassandra_connection;
mod cassandra_sink;
mod cassandra_store;
mod kafka_source;
mod proxy;
mod store_conformance;
mod test_topic;
