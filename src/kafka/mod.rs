//! Reads Kafka: the port `Source`, on librdkafka.
//!
//! What it keeps true:
//! - Ranges are contiguous, from the position that was asked for to the consumer's position, across offsets that carry no
//!   record: compacted ones, transaction markers, aborted transactions.
//! - Never a silent jump. A position that the log does not have any more halts the partition, or is passed with a range
//!   that covers the hole, as the table's policy says.
//! - Never a record of another topic under the same name: a topic is known by its id.
//! - Partitions do not disturb each other: each is opened, read and closed by itself.
//! - Brokers that are away are waited for; only a refusal (a wrong password, an unknown authority) is a fault.
//! - Memory is bounded, whatever the backlog: by a share for each partition in librdkafka and by the limits of a batch.
//!
//! `raw` is the only module with `unsafe` code. `life` is one partition from its opening to its closing, `fetcher` the thread
//! that serves the lives of one client, `reader` what the partition actor holds, `cluster` what is known of the topics,
//! `producers` the traces that records came from.

mod client;
mod cluster;
mod columns;
mod embedded;
mod events;
mod fetcher;
mod life;
mod producers;
#[allow(unsafe_code)]
mod raw;
mod reader;
mod sender;
mod source;
mod topic_id;
mod turns;

pub use client::KafkaError;
pub use cluster::Reach;
pub use columns::{Parts, schema};
pub use embedded::{EMBEDDED_RETENTION, EmbeddedError, EmbeddedKafka};
pub use sender::{Outgoing, Sender};
pub use source::KafkaSource;
pub use topic_id::{kafka_form, of_name};
