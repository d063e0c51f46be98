//! Tests against the real services, all in one binary. `tests/run` starts the services and then these.

#![allow(clippy::unwrap_used)]

mod kafka_source;
mod test_topic;
