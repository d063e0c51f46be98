//! The fenced door to librdkafka: every `unsafe` line of the Kafka source is in this module.
//!
//! The safe crate `rdkafka` hands out records one by one. Measured over five million records, that gives 1.29 million a
//! second where librdkafka's own batch call gives 2.43 million, and it offers no way to start and stop one partition
//! without touching the others. So the source speaks to librdkafka directly, through its *simple consumer*: no group,
//! no assignment, each partition started and stopped by itself and delivered into a queue of its own.
//!
//! What the types here keep true:
//! - Each owns its pointer and destroys it once, when it is dropped.
//! - Topics, queues and records hold the client alive (`Arc<Client>`), since librdkafka demands that a client dies last.
//! - What a record points to is only lent for as long as the record is held.
//! - Handles are sent between threads only where librdkafka says that they may be: the client, topics and queues are
//!   safe to use from any thread; records are not shared.
//!
//! `client` makes and ends clients, `questions` asks the brokers, `records` takes records off queues.

mod client;
mod questions;
mod records;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::time::Duration;

use rd::rd_kafka_resp_err_t as Resp;
use rdkafka_sys::bindings as rd;

pub(super) use client::{Client, Listener, Refused, property_names};
pub(super) use questions::TopicDescription;
pub(super) use records::{Headers, Message, Messages, Queue, Topic};

/// An error code of librdkafka: negative ones are its own, positive ones the broker's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Code(i32);

impl Code {
    pub(super) const NONE: Self = Self(Resp::RD_KAFKA_RESP_ERR_NO_ERROR as i32);
    pub(super) const PARTITION_EOF: Self = Self(Resp::RD_KAFKA_RESP_ERR__PARTITION_EOF as i32);
    pub(super) const AUTO_OFFSET_RESET: Self = Self(Resp::RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET as i32);
    pub(super) const TRANSPORT: Self = Self(Resp::RD_KAFKA_RESP_ERR__TRANSPORT as i32);
    pub(super) const RESOLVE: Self = Self(Resp::RD_KAFKA_RESP_ERR__RESOLVE as i32);
    pub(super) const ALL_BROKERS_DOWN: Self = Self(Resp::RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN as i32);
    pub(super) const TIMED_OUT: Self = Self(Resp::RD_KAFKA_RESP_ERR__TIMED_OUT as i32);
    pub(super) const MSG_TIMED_OUT: Self = Self(Resp::RD_KAFKA_RESP_ERR__MSG_TIMED_OUT as i32);
    pub(super) const TIMED_OUT_QUEUE: Self = Self(Resp::RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE as i32);
    pub(super) const REQUEST_TIMED_OUT: Self = Self(Resp::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as i32);
    pub(super) const LEADER_NOT_AVAILABLE: Self = Self(Resp::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE as i32);
    pub(super) const NOT_LEADER: Self = Self(Resp::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as i32);
    pub(super) const COORDINATOR_LOADING: Self = Self(Resp::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS as i32);
    pub(super) const LOCAL_AUTHENTICATION: Self = Self(Resp::RD_KAFKA_RESP_ERR__AUTHENTICATION as i32);
    pub(super) const SASL_AUTHENTICATION: Self = Self(Resp::RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED as i32);
    pub(super) const SSL: Self = Self(Resp::RD_KAFKA_RESP_ERR__SSL as i32);
    pub(super) const FATAL: Self = Self(Resp::RD_KAFKA_RESP_ERR__FATAL as i32);
    pub(super) const UNKNOWN_TOPIC_OR_PART: Self = Self(Resp::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART as i32);
    pub(super) const UNKNOWN_TOPIC_ID: Self = Self(Resp::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_ID as i32);
    pub(super) const LOCAL_UNKNOWN_TOPIC: Self = Self(Resp::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC as i32);
    pub(super) const LOCAL_UNKNOWN_PARTITION: Self = Self(Resp::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION as i32);
    pub(super) const TOPIC_AUTHORIZATION: Self = Self(Resp::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED as i32);
}

/// What librdkafka or a broker answered instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Fault {
    /// Says what a code means, in librdkafka's words.
    fn of(code: Resp) -> Self {
        // SAFETY: answers a static string for any code.
        let text = unsafe { text(rd::rd_kafka_err2str(code)) };
        Self { code: Code(code as i32), text }
    }
}

/// # Safety
/// `pointer` is null or a C string that lives until this returns.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: by the contract above.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn c_string(text: &str) -> Result<CString, Fault> {
    CString::new(text).map_err(|_| Fault {
        code: Code(Resp::RD_KAFKA_RESP_ERR__INVALID_ARG as i32),
        text: format!("`{}` contains a zero byte", text.escape_debug()),
    })
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

fn last_fault() -> Fault {
    // SAFETY: reads a thread-local value.
    Fault::of(unsafe { rd::rd_kafka_last_error() })
}
