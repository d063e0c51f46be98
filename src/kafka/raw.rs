//! The fenced door to librdkafka: every `unsafe` line of the Kafka source is in this file.
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

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use rdkafka_sys::bindings as rd;
use uuid::Uuid;

use rd::rd_kafka_resp_err_t as Resp;

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

/// Why a client could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// librdkafka has no such property.
    Unknown { name: String },
    /// It has, but not with that value.
    Invalid { name: String, text: String },
    /// The properties do not go together, or a file that they name cannot be used.
    Client { text: String },
}

/// Who is told what librdkafka has to say. Called from librdkafka's own threads while it holds locks: must be quick and
/// must not call librdkafka.
pub(super) trait Listener: Send + Sync + 'static {
    /// A line of librdkafka's log, under syslog's levels.
    fn log(&self, level: i32, facility: &str, text: &str);
    /// A fault of a broker or of the client as a whole; told by [`Client::poll`].
    fn error(&self, code: Code, text: &str);
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

/// The names of all properties that this build of librdkafka knows.
pub(super) fn property_names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: both objects are made, read and destroyed here; a dump is `count` strings, names and values by turns, and
    // is given back with its count.
    unsafe {
        let conf = rd::rd_kafka_conf_new();
        let topic_conf = rd::rd_kafka_topic_conf_new();
        let mut count = 0;
        let dump = rd::rd_kafka_conf_dump(conf, &mut count);
        names.extend((0..count).step_by(2).map(|i| text(*dump.add(i))));
        rd::rd_kafka_conf_dump_free(dump, count);
        let dump = rd::rd_kafka_topic_conf_dump(topic_conf, &mut count);
        names.extend((0..count).step_by(2).map(|i| text(*dump.add(i))));
        rd::rd_kafka_conf_dump_free(dump, count);
        rd::rd_kafka_topic_conf_destroy(topic_conf);
        rd::rd_kafka_conf_destroy(conf);
    }
    names
}

/// A client of one cluster: its connections, its threads, its main queue.
pub(super) struct Client {
    rk: NonNull<rd::rd_kafka_t>,
    /// Given to librdkafka as its opaque pointer, and taken back when the client is destroyed.
    listener: NonNull<Arc<dyn Listener>>,
    /// How many questions went unanswered: each goes to another broker than the one before.
    unanswered: AtomicUsize,
}

// SAFETY: librdkafka's handle may be used from any thread, and the listener behind it is `Send + Sync`.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Makes a client of these properties. Starts its threads, but waits for no broker.
    pub(super) fn new(properties: &BTreeMap<String, String>, listener: Arc<dyn Listener>) -> Result<Self, Refused> {
        let mut reason = [0 as c_char; 512];
        // SAFETY: `conf` is destroyed on every way out but the one on which `rd_kafka_new` takes it over. The listener's
        // pointer comes from a box and is taken back either here, when no client was made, or in `drop`.
        unsafe {
            let conf = rd::rd_kafka_conf_new();
            for (name, value) in properties {
                let (Ok(c_name), Ok(c_value)) = (CString::new(name.as_str()), CString::new(value.as_str())) else {
                    rd::rd_kafka_conf_destroy(conf);
                    return Err(Refused::Invalid { name: name.clone(), text: "contains a zero byte".into() });
                };
                let answer =
                    rd::rd_kafka_conf_set(conf, c_name.as_ptr(), c_value.as_ptr(), reason.as_mut_ptr(), reason.len());
                if answer != rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
                    rd::rd_kafka_conf_destroy(conf);
                    let name = name.clone();
                    return Err(match answer {
                        rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_UNKNOWN => Refused::Unknown { name },
                        _ => Refused::Invalid { name, text: text(reason.as_ptr()) },
                    });
                }
            }
            let listener = NonNull::from(Box::leak(Box::new(listener)));
            rd::rd_kafka_conf_set_opaque(conf, listener.as_ptr().cast());
            rd::rd_kafka_conf_set_log_cb(conf, Some(on_log));
            rd::rd_kafka_conf_set_error_cb(conf, Some(on_error));
            let rk = rd::rd_kafka_new(rd::rd_kafka_type_t::RD_KAFKA_CONSUMER, conf, reason.as_mut_ptr(), reason.len());
            match NonNull::new(rk) {
                Some(rk) => Ok(Self { rk, listener, unanswered: AtomicUsize::new(0) }),
                None => {
                    rd::rd_kafka_conf_destroy(conf);
                    drop(Box::from_raw(listener.as_ptr()));
                    Err(Refused::Client { text: text(reason.as_ptr()) })
                }
            }
        }
    }

    /// Serves the main queue: errors, statistics, renewal of tokens. Never waits.
    pub(super) fn poll(&self) {
        // SAFETY: the handle is alive.
        unsafe { rd::rd_kafka_poll(self.rk.as_ptr(), 0) };
    }

    /// The id of a broker, to put a question to. Left to itself, librdkafka waits for the controller, which not every
    /// cluster names.
    fn some_broker(&self, timeout: Duration) -> Result<i32, Fault> {
        let turn = self.unanswered.load(Ordering::Relaxed);
        let mut metadata = ptr::null();
        // SAFETY: a live handle; without a topic only the brokers and the topics known here are told. What it answers is
        // ours until it is given back, and has as many brokers as it says.
        unsafe {
            match rd::rd_kafka_metadata(self.rk.as_ptr(), 0, ptr::null_mut(), &mut metadata, millis(timeout)) {
                Resp::RD_KAFKA_RESP_ERR_NO_ERROR => {}
                code => return Err(Fault::of(code)),
            }
            let count = usize::try_from((*metadata).broker_cnt).unwrap_or(0);
            let broker = (count > 0).then(|| (*(*metadata).brokers.add(turn % count)).id);
            rd::rd_kafka_metadata_destroy(metadata);
            broker.ok_or_else(|| Fault::of(Resp::RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN))
        }
    }

    /// Asks the cluster what it knows of these topics.
    pub(super) fn describe_topics(
        self: &Arc<Self>,
        names: &[&str],
        timeout: Duration,
    ) -> Result<Vec<TopicDescription>, Fault> {
        let broker = self.some_broker(timeout)?;
        self.describe_topics_at(broker, names, timeout).inspect_err(|_| {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn describe_topics_at(
        self: &Arc<Self>,
        broker: i32,
        names: &[&str],
        timeout: Duration,
    ) -> Result<Vec<TopicDescription>, Fault> {
        let names = names.iter().map(|name| c_string(name)).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let options = AdminOptions::new(self, rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, timeout)?;
        let queue = Queue::new(self)?;
        let mut reason = [0 as c_char; 256];
        // SAFETY: the collection copies the names and is destroyed right after the request, which copies it in turn.
        unsafe {
            let code =
                rd::rd_kafka_AdminOptions_set_broker(options.0.as_ptr(), broker, reason.as_mut_ptr(), reason.len());
            if code != Resp::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(Fault { code: Code(code as i32), text: text(reason.as_ptr()) });
            }
            let topics = rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            rd::rd_kafka_DescribeTopics(self.rk.as_ptr(), topics, options.0.as_ptr(), queue.queue.as_ptr());
            rd::rd_kafka_TopicCollection_destroy(topics);
        }
        let event = queue.event(timeout + Duration::from_secs(1))?;
        let mut described = Vec::new();
        // SAFETY: the result and all that it holds belong to the event, which outlives this block; each list has
        // `count` elements.
        unsafe {
            let result = rd::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
            if result.is_null() {
                return Err(Fault::of(Resp::RD_KAFKA_RESP_ERR__INVALID_TYPE));
            }
            let mut count = 0;
            let topics = rd::rd_kafka_DescribeTopics_result_topics(result, &mut count);
            for i in 0..count {
                let topic = *topics.add(i);
                let error = rd::rd_kafka_TopicDescription_error(topic);
                let code =
                    if error.is_null() { Resp::RD_KAFKA_RESP_ERR_NO_ERROR } else { rd::rd_kafka_error_code(error) };
                let fault = (code != Resp::RD_KAFKA_RESP_ERR_NO_ERROR)
                    .then(|| Fault { code: Code(code as i32), text: text(rd::rd_kafka_error_string(error)) });
                let mut partition_count = 0;
                let partitions = rd::rd_kafka_TopicDescription_partitions(topic, &mut partition_count);
                described.push(TopicDescription {
                    name: text(rd::rd_kafka_TopicDescription_name(topic)),
                    id: uuid_of(rd::rd_kafka_TopicDescription_topic_id(topic)),
                    partitions: (0..partition_count)
                        .map(|j| rd::rd_kafka_TopicPartitionInfo_partition(*partitions.add(j)))
                        .collect(),
                    fault,
                });
            }
        }
        Ok(described)
    }

    /// Asks the partition's leader for the first offset of the log and the first one that cannot be read yet.
    pub(super) fn query_watermarks(&self, topic: &str, partition: i32, timeout: Duration) -> Result<(i64, i64), Fault> {
        let topic = c_string(topic)?;
        let (mut low, mut high) = (0, 0);
        // SAFETY: plain values and a string that lives across the call.
        let code = unsafe {
            rd::rd_kafka_query_watermark_offsets(
                self.rk.as_ptr(),
                topic.as_ptr(),
                partition,
                &mut low,
                &mut high,
                millis(timeout),
            )
        };
        match code {
            Resp::RD_KAFKA_RESP_ERR_NO_ERROR => Ok((low, high)),
            code => Err(Fault::of(code)),
        }
    }

    /// The log's end as the last fetch told it.
    pub(super) fn cached_end(&self, topic: &CStr, partition: i32) -> Option<i64> {
        let (mut low, mut high) = (0, 0);
        // SAFETY: as above.
        let code = unsafe {
            rd::rd_kafka_get_watermark_offsets(self.rk.as_ptr(), topic.as_ptr(), partition, &mut low, &mut high)
        };
        (code == Resp::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// Asks the leaders for the ends of these partitions, as a reader of committed records sees them; the answer comes
    /// to the queue.
    pub(super) fn ask_ends(
        self: &Arc<Self>,
        partitions: &[(&CStr, i32)],
        committed: bool,
        timeout: Duration,
        queue: &Queue,
    ) -> Result<(), Fault> {
        let options = AdminOptions::new(self, rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS, timeout)?;
        let isolation = if committed {
            rd::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED
        } else {
            rd::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
        };
        // SAFETY: the list is made and destroyed here and copied by the request; `add` answers a live element of it.
        unsafe {
            let error = rd::rd_kafka_AdminOptions_set_isolation_level(options.0.as_ptr(), isolation);
            if !error.is_null() {
                rd::rd_kafka_error_destroy(error);
            }
            let list = rd::rd_kafka_topic_partition_list_new(partitions.len() as c_int);
            for (topic, partition) in partitions {
                let element = rd::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), *partition);
                (*element).offset = rd::rd_kafka_OffsetSpec_t::RD_KAFKA_OFFSET_SPEC_LATEST as i64;
            }
            rd::rd_kafka_ListOffsets(self.rk.as_ptr(), list, options.0.as_ptr(), queue.queue.as_ptr());
            rd::rd_kafka_topic_partition_list_destroy(list);
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: topics, queues and records hold the client, so none is left. Once destroyed, librdkafka calls the
        // listener no more.
        unsafe {
            rd::rd_kafka_destroy(self.rk.as_ptr());
            drop(Box::from_raw(self.listener.as_ptr()));
        }
    }
}

/// # Safety
/// Called by librdkafka only, with the client that carries our opaque pointer.
unsafe extern "C" fn on_log(rk: *const rd::rd_kafka_t, level: c_int, facility: *const c_char, line: *const c_char) {
    // SAFETY: the opaque pointer is the listener for as long as the client lives; the strings live across the call.
    unsafe {
        let listener = rd::rd_kafka_opaque(rk).cast::<Arc<dyn Listener>>();
        if let Some(listener) = listener.as_ref() {
            listener.log(level, &text(facility), &text(line));
        }
    }
}

/// # Safety
/// Called by librdkafka only, with our opaque pointer.
unsafe extern "C" fn on_error(_: *mut rd::rd_kafka_t, code: c_int, reason: *const c_char, opaque: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        if let Some(listener) = opaque.cast::<Arc<dyn Listener>>().as_ref() {
            listener.error(Code(code), &text(reason));
        }
    }
}

/// What a cluster says about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicDescription {
    pub(super) name: String,
    /// `None` when the brokers are too old to give topics an id.
    pub(super) id: Option<Uuid>,
    pub(super) partitions: Vec<i32>,
    pub(super) fault: Option<Fault>,
}

/// # Safety
/// `id` is null or points to a live id.
unsafe fn uuid_of(id: *const rd::rd_kafka_Uuid_t) -> Option<Uuid> {
    if id.is_null() {
        return None;
    }
    // SAFETY: by the contract above.
    let (high, low) =
        unsafe { (rd::rd_kafka_Uuid_most_significant_bits(id), rd::rd_kafka_Uuid_least_significant_bits(id)) };
    ((high, low) != (0, 0)).then(|| Uuid::from_u64_pair(high as u64, low as u64))
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

struct AdminOptions(NonNull<rd::rd_kafka_AdminOptions_t>);

impl AdminOptions {
    fn new(client: &Client, operation: rd::rd_kafka_admin_op_t, timeout: Duration) -> Result<Self, Fault> {
        let mut reason = [0 as c_char; 256];
        // SAFETY: plain calls on a live handle; a null answer means that there is no such operation.
        unsafe {
            let options = NonNull::new(rd::rd_kafka_AdminOptions_new(client.rk.as_ptr(), operation))
                .map(Self)
                .ok_or_else(|| Fault::of(Resp::RD_KAFKA_RESP_ERR__INVALID_ARG))?;
            let code = rd::rd_kafka_AdminOptions_set_request_timeout(
                options.0.as_ptr(),
                millis(timeout),
                reason.as_mut_ptr(),
                reason.len(),
            );
            if code != Resp::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(Fault { code: Code(code as i32), text: text(reason.as_ptr()) });
            }
            Ok(options)
        }
    }
}

impl Drop for AdminOptions {
    fn drop(&mut self) {
        // SAFETY: owned, and requests copy what they need.
        unsafe { rd::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

struct Event(NonNull<rd::rd_kafka_event_t>);

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { rd::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// A topic as a client knows it: where partitions are started and stopped.
pub(super) struct Topic {
    topic: NonNull<rd::rd_kafka_topic_t>,
    _client: Arc<Client>,
}

// SAFETY: librdkafka's topic handles may be used from any thread.
unsafe impl Send for Topic {}

impl Topic {
    pub(super) fn new(client: &Arc<Client>, name: &CStr) -> Result<Self, Fault> {
        // SAFETY: a live handle and a string that lives across the call; a null configuration means the default one.
        let topic = unsafe { rd::rd_kafka_topic_new(client.rk.as_ptr(), name.as_ptr(), ptr::null_mut()) };
        match NonNull::new(topic) {
            Some(topic) => Ok(Self { topic, _client: Arc::clone(client) }),
            None => Err(last_fault()),
        }
    }

    /// Starts to fetch a partition into a queue. The queue gets nothing from before.
    pub(super) fn start(&self, partition: i32, offset: i64, queue: &Queue) -> Result<(), Fault> {
        // SAFETY: live handles of the same client.
        let answer =
            unsafe { rd::rd_kafka_consume_start_queue(self.topic.as_ptr(), partition, offset, queue.queue.as_ptr()) };
        if answer == 0 { Ok(()) } else { Err(last_fault()) }
    }

    /// Stops a partition. When this returns, its queue gets nothing more.
    pub(super) fn stop(&self, partition: i32) {
        // SAFETY: a live handle. Waits for librdkafka's main thread, which never waits for us. The only fault there can
        // be is that the partition was not started.
        unsafe { rd::rd_kafka_consume_stop(self.topic.as_ptr(), partition) };
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: owned; the client is still alive.
        unsafe { rd::rd_kafka_topic_destroy(self.topic.as_ptr()) }
    }
}

fn last_fault() -> Fault {
    // SAFETY: reads a thread-local value.
    Fault::of(unsafe { rd::rd_kafka_last_error() })
}

/// A queue: of one partition's records, or of answers.
pub(super) struct Queue {
    queue: NonNull<rd::rd_kafka_queue_t>,
    /// Who is woken when the queue is no longer empty. On the heap, since librdkafka holds its address.
    woken: Option<Box<Thread>>,
    client: Arc<Client>,
}

// SAFETY: librdkafka's queues may be used from any thread.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(client: &Arc<Client>) -> Result<Self, Fault> {
        // SAFETY: a live handle.
        let queue = unsafe { rd::rd_kafka_queue_new(client.rk.as_ptr()) };
        match NonNull::new(queue) {
            Some(queue) => Ok(Self { queue, woken: None, client: Arc::clone(client) }),
            None => Err(last_fault()),
        }
    }

    /// A queue that unparks a thread whenever it turns from empty to not empty.
    pub(super) fn waking(client: &Arc<Client>, thread: Thread) -> Result<Self, Fault> {
        let mut queue = Self::new(client)?;
        let thread = &**queue.woken.insert(Box::new(thread));
        // SAFETY: the thread handle stays where it is until `drop` has taken the callback away.
        unsafe {
            rd::rd_kafka_queue_cb_event_enable(
                queue.queue.as_ptr(),
                Some(on_filled),
                ptr::from_ref(thread).cast_mut().cast(),
            );
        }
        Ok(queue)
    }

    /// How many entries wait. Not all need be records.
    pub(super) fn len(&self) -> usize {
        // SAFETY: a live handle.
        unsafe { rd::rd_kafka_queue_length(self.queue.as_ptr()) }
    }

    /// The ends that were asked for by [`Client::ask_ends`], if they have come. Never waits.
    pub(super) fn ends(&self) -> Option<Result<Vec<PartitionEnd>, Fault>> {
        if self.len() == 0 {
            return None;
        }
        let event = match self.event(Duration::ZERO) {
            Ok(event) => event,
            Err(fault) => return Some(Err(fault)),
        };
        let mut ends = Vec::new();
        // SAFETY: all belongs to the event, which outlives this block; the list has `count` elements.
        unsafe {
            let result = rd::rd_kafka_event_ListOffsets_result(event.0.as_ptr());
            if result.is_null() {
                return Some(Err(Fault::of(Resp::RD_KAFKA_RESP_ERR__INVALID_TYPE)));
            }
            let mut count = 0;
            let infos = rd::rd_kafka_ListOffsets_result_infos(result, &mut count);
            for i in 0..count {
                let partition = &*rd::rd_kafka_ListOffsetsResultInfo_topic_partition(*infos.add(i));
                if partition.err == Resp::RD_KAFKA_RESP_ERR_NO_ERROR && partition.offset >= 0 {
                    ends.push(PartitionEnd {
                        topic: text(partition.topic),
                        partition: partition.partition,
                        end: partition.offset,
                    });
                }
            }
        }
        Some(Ok(ends))
    }

    /// Waits for the answer of an administrative request.
    fn event(&self, timeout: Duration) -> Result<Event, Fault> {
        // SAFETY: the event is ours and destroyed by its wrapper; the error's text belongs to it.
        unsafe {
            let event = NonNull::new(rd::rd_kafka_queue_poll(self.queue.as_ptr(), millis(timeout)))
                .map(Event)
                .ok_or_else(|| Fault::of(Resp::RD_KAFKA_RESP_ERR__TIMED_OUT))?;
            let code = rd::rd_kafka_event_error(event.0.as_ptr());
            if code != Resp::RD_KAFKA_RESP_ERR_NO_ERROR {
                let text = text(rd::rd_kafka_event_error_string(event.0.as_ptr()));
                return Err(Fault { code: Code(code as i32), text });
            }
            Ok(event)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: owned. Taking the callback away waits for the queue's lock, under which it is called, so the thread
        // handle is used no more afterwards.
        unsafe {
            if self.woken.is_some() {
                rd::rd_kafka_queue_cb_event_enable(self.queue.as_ptr(), None, ptr::null_mut());
            }
            rd::rd_kafka_queue_destroy(self.queue.as_ptr());
        }
    }
}

/// # Safety
/// Called by librdkafka only, with the thread handle that [`Queue::waking`] gave it.
unsafe extern "C" fn on_filled(_: *mut rd::rd_kafka_t, opaque: *mut c_void) {
    // SAFETY: the queue keeps the handle for as long as the callback is set.
    if let Some(thread) = unsafe { opaque.cast::<Thread>().as_ref() } {
        thread.unpark();
    }
}

/// Where a partition ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionEnd {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) end: i64,
}

/// Records that were taken from a queue, in its order.
pub(super) struct Messages {
    taken: VecDeque<NonNull<rd::rd_kafka_message_t>>,
    /// Where the batch call writes, kept from call to call.
    scratch: Vec<*mut rd::rd_kafka_message_t>,
    _client: Arc<Client>,
}

// SAFETY: records may be handed to another thread, they are only not to be shared.
unsafe impl Send for Messages {}

impl Messages {
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self { taken: VecDeque::new(), scratch: Vec::new(), _client: Arc::clone(client) }
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Takes up to `most` further records from the queue by one call, without waiting. Says how many.
    pub(super) fn take(&mut self, queue: &Queue, most: usize) -> usize {
        debug_assert!(Arc::ptr_eq(&self._client, &queue.client), "records stay with the client of their queue");
        let most = most.min(queue.len());
        if most == 0 {
            return 0;
        }
        self.scratch.clear();
        self.scratch.reserve(most);
        // SAFETY: the buffer has room for `most` pointers; librdkafka fills in as many as it says, and they are ours.
        let count = unsafe {
            let count = rd::rd_kafka_consume_batch_queue(queue.queue.as_ptr(), 0, self.scratch.as_mut_ptr(), most);
            let count = usize::try_from(count).unwrap_or(0);
            self.scratch.set_len(count);
            count
        };
        self.taken.extend(self.scratch.drain(..).filter_map(NonNull::new));
        count
    }

    /// The record at this place, lent.
    pub(super) fn get(&self, at: usize) -> Option<Message<'_>> {
        // SAFETY: the pointer is ours until `discard` or `drop`, neither of which can run while this borrow lives.
        self.taken.get(at).map(|message| Message(unsafe { message.as_ref() }))
    }

    /// Gives the first `count` records back.
    pub(super) fn discard(&mut self, count: usize) {
        for message in self.taken.drain(..count.min(self.taken.len())) {
            // SAFETY: owned, and no longer in the list.
            unsafe { rd::rd_kafka_message_destroy(message.as_ptr()) };
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.discard(self.taken.len());
    }
}

/// One record, or a word about the partition in place of one.
#[derive(Clone, Copy)]
pub(super) struct Message<'a>(&'a rd::rd_kafka_message_t);

impl<'a> Message<'a> {
    /// Set when this is not a record.
    pub(super) fn code(&self) -> Code {
        // SAFETY: brokers may send codes that the enumeration does not have, so it is read as the number that it is.
        Code(unsafe { ptr::addr_of!(self.0.err).cast::<i32>().read() })
    }

    /// What librdkafka says about it when it is not a record.
    pub(super) fn reason(&self) -> String {
        // SAFETY: answers a string that lives as long as the message.
        unsafe { text(rd::rd_kafka_message_errstr(self.0)) }
    }

    pub(super) fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Milliseconds since the epoch.
    pub(super) fn timestamp(&self) -> Option<i64> {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: a live record.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.0, &mut kind) };
        (kind != rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(time)
    }

    pub(super) fn key(&self) -> Option<&'a [u8]> {
        // SAFETY: `key_len` bytes that live as long as the record.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    pub(super) fn value(&self) -> Option<&'a [u8]> {
        // SAFETY: `len` bytes that live as long as the record.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    /// The headers in their order; `None` when there are none.
    pub(super) fn headers(&self) -> Option<Vec<(String, Option<&'a [u8]>)>> {
        let mut headers = ptr::null_mut();
        let mut list = Vec::new();
        // SAFETY: the headers belong to the record and live as long; names are C strings, values have `size` bytes.
        unsafe {
            if rd::rd_kafka_message_headers(self.0, &mut headers) != Resp::RD_KAFKA_RESP_ERR_NO_ERROR {
                return None;
            }
            let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
            while rd::rd_kafka_header_get_all(headers, list.len(), &mut name, &mut value, &mut size)
                == Resp::RD_KAFKA_RESP_ERR_NO_ERROR
            {
                list.push((text(name), bytes(value, size)));
            }
        }
        Some(list)
    }
}

/// # Safety
/// `pointer` is null or points to `len` bytes that live for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: by the contract above.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}
