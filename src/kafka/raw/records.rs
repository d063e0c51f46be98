//! Records: partitions that are started and stopped, their queues, and what is taken off them.

use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread::Thread;

use rd::rd_kafka_resp_err_t as Resp;
use rdkafka_sys::bindings as rd;

use super::{Client, Code, Fault, last_fault, text};

/// A topic as a client knows it: where partitions are started and stopped.
pub(in crate::kafka) struct Topic {
    topic: NonNull<rd::rd_kafka_topic_t>,
    _client: Arc<Client>,
}

// SAFETY: librdkafka's topic handles may be used from any thread.
unsafe impl Send for Topic {}

impl Topic {
    pub(in crate::kafka) fn new(client: &Arc<Client>, name: &CStr) -> Result<Self, Fault> {
        // SAFETY: a live handle and a string that lives across the call; a null configuration means the default one.
        let topic = unsafe { rd::rd_kafka_topic_new(client.rk.as_ptr(), name.as_ptr(), ptr::null_mut()) };
        match NonNull::new(topic) {
            Some(topic) => Ok(Self { topic, _client: Arc::clone(client) }),
            None => Err(last_fault()),
        }
    }

    /// Starts to fetch a partition into a queue. The queue gets nothing from before.
    pub(in crate::kafka) fn start(&self, partition: i32, offset: i64, queue: &Queue) -> Result<(), Fault> {
        // SAFETY: live handles of the same client.
        let answer =
            unsafe { rd::rd_kafka_consume_start_queue(self.topic.as_ptr(), partition, offset, queue.queue.as_ptr()) };
        if answer == 0 { Ok(()) } else { Err(last_fault()) }
    }

    /// Stops a partition. When this returns, its queue gets nothing more.
    pub(in crate::kafka) fn stop(&self, partition: i32) {
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

/// A queue: of one partition's records, or of answers.
pub(in crate::kafka) struct Queue {
    pub(super) queue: NonNull<rd::rd_kafka_queue_t>,
    /// Who is woken when the queue is no longer empty. On the heap, since librdkafka holds its address.
    woken: Option<Box<Thread>>,
    client: Arc<Client>,
}

// SAFETY: librdkafka's queues may be used from any thread.
unsafe impl Send for Queue {}

impl Queue {
    pub(in crate::kafka) fn new(client: &Arc<Client>) -> Result<Self, Fault> {
        // SAFETY: a live handle.
        let queue = unsafe { rd::rd_kafka_queue_new(client.rk.as_ptr()) };
        match NonNull::new(queue) {
            Some(queue) => Ok(Self { queue, woken: None, client: Arc::clone(client) }),
            None => Err(last_fault()),
        }
    }

    /// A queue that unparks a thread whenever it turns from empty to not empty.
    pub(in crate::kafka) fn waking(client: &Arc<Client>, thread: Thread) -> Result<Self, Fault> {
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
    pub(in crate::kafka) fn len(&self) -> usize {
        // SAFETY: a live handle.
        unsafe { rd::rd_kafka_queue_length(self.queue.as_ptr()) }
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

/// Records that were taken from a queue, in its order.
pub(in crate::kafka) struct Messages {
    taken: VecDeque<NonNull<rd::rd_kafka_message_t>>,
    /// Where the batch call writes, kept from call to call.
    scratch: Vec<*mut rd::rd_kafka_message_t>,
    _client: Arc<Client>,
}

// SAFETY: records may be handed to another thread, they are only not to be shared.
unsafe impl Send for Messages {}

impl Messages {
    pub(in crate::kafka) fn new(client: &Arc<Client>) -> Self {
        Self { taken: VecDeque::new(), scratch: Vec::new(), _client: Arc::clone(client) }
    }

    pub(in crate::kafka) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Takes up to `most` further records from the queue by one call, without waiting. Says how many.
    pub(in crate::kafka) fn take(&mut self, queue: &Queue, most: usize) -> usize {
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
    pub(in crate::kafka) fn get(&self, at: usize) -> Option<Message<'_>> {
        // SAFETY: the pointer is ours until `discard` or `drop`, neither of which can run while this borrow lives.
        self.taken.get(at).map(|message| Message(unsafe { message.as_ref() }))
    }

    /// The last record, lent.
    pub(in crate::kafka) fn last(&self) -> Option<Message<'_>> {
        self.get(self.taken.len().checked_sub(1)?)
    }

    /// Gives back the last ones of this kind.
    pub(in crate::kafka) fn forget_last(&mut self, forgotten: impl Fn(Message<'_>) -> bool) {
        while self.last().is_some_and(&forgotten) {
            // SAFETY: owned, and no longer in the list.
            self.taken
                .pop_back()
                .into_iter()
                .for_each(|message| unsafe { rd::rd_kafka_message_destroy(message.as_ptr()) });
        }
    }

    /// Gives the first `count` records back.
    pub(in crate::kafka) fn discard(&mut self, count: usize) {
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

/// The headers of a record, in their order.
pub(in crate::kafka) type Headers<'a> = Vec<(String, Option<&'a [u8]>)>;

/// One record, or a word about the partition in place of one.
#[derive(Clone, Copy)]
pub(in crate::kafka) struct Message<'a>(&'a rd::rd_kafka_message_t);

impl<'a> Message<'a> {
    /// Set when this is not a record.
    pub(in crate::kafka) fn code(&self) -> Code {
        // SAFETY: brokers may send codes that the enumeration does not have, so it is read as the number that it is.
        Code(unsafe { ptr::addr_of!(self.0.err).cast::<i32>().read() })
    }

    /// What librdkafka says about it when it is not a record.
    pub(in crate::kafka) fn reason(&self) -> String {
        // SAFETY: answers a string that lives as long as the message.
        unsafe { text(rd::rd_kafka_message_errstr(self.0)) }
    }

    pub(in crate::kafka) fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Milliseconds since the epoch, if the record has a time.
    pub(in crate::kafka) fn timestamp(&self) -> Option<i64> {
        /// What producers write that have none.
        const NONE: i64 = -1;
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: a live record.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.0, &mut kind) };
        (kind != rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && time != NONE).then_some(time)
    }

    pub(in crate::kafka) fn key(&self) -> Option<&'a [u8]> {
        // SAFETY: `key_len` bytes that live as long as the record.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    pub(in crate::kafka) fn value(&self) -> Option<&'a [u8]> {
        // SAFETY: `len` bytes that live as long as the record.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    /// The last header of this name.
    pub(in crate::kafka) fn header(&self, name: &CStr) -> Option<&'a [u8]> {
        let mut headers = ptr::null_mut();
        let (mut value, mut size) = (ptr::null(), 0);
        // SAFETY: the headers belong to the record and live as long; the name is a C string, the value has `size` bytes.
        unsafe {
            if rd::rd_kafka_message_headers(self.0, &mut headers) != Resp::RD_KAFKA_RESP_ERR_NO_ERROR
                || rd::rd_kafka_header_get_last(headers, name.as_ptr(), &mut value, &mut size)
                    != Resp::RD_KAFKA_RESP_ERR_NO_ERROR
            {
                return None;
            }
            bytes(value, size)
        }
    }

    /// The headers in their order; `None` when there are none.
    pub(in crate::kafka) fn headers(&self) -> Option<Headers<'a>> {
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
