//! The tests against real servers.

mod cassandra_sink;
