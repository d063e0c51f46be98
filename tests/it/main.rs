//! Tests against the real services, all in one binary. `tests/run` starts the services and then these.

#![allow(clippy::unwrap_used)]

mod balance;
mod browser;
mod cassandra_connection;
mod cassandra_sink;
mod cassandra_store;
mod cassandra_tls;
mod chaos;
mod cli;
mod clock;
mod damage;
mod dead_letters;
mod disk;
mod documents;
mod end_to_end;
mod fuzz;
mod kafka_source;
mod kill_points;
mod leaders;
mod local_store;
mod logs;
mod losing_proxy;
mod memory;
mod operations;
mod outages;
mod own_server;
mod page;
mod prometheus;
mod proxy;
mod pushed_metrics;
mod queries;
mod shop;
mod stand;
mod store_conformance;
mod store_places;
mod takeover;
mod test_topic;
mod traces;
