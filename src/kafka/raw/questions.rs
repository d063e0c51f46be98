//! Questions to the brokers: topics and their ids, the offsets of a log.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rd::rd_kafka_resp_err_t as Resp;
use rdkafka_sys::bindings as rd;
use uuid::Uuid;

use super::{Client, Code, Fault, Queue, c_string, millis, text};

impl Client {
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

    /// Puts a question to some broker; after one that did not answer, the next question goes to another.
    fn ask_a_broker<T>(&self, timeout: Duration, question: impl FnOnce(i32) -> Result<T, Fault>) -> Result<T, Fault> {
        let broker = self.some_broker(timeout)?;
        question(broker).inspect_err(|_| {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Asks the cluster what it knows of these topics.
    pub(in crate::kafka) fn describe_topics(
        self: &Arc<Self>,
        names: &[&str],
        timeout: Duration,
    ) -> Result<Vec<TopicDescription>, Fault> {
        self.ask_a_broker(timeout, |broker| self.describe_topics_at(broker, names, timeout))
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
        options.at_broker(broker)?;
        let queue = Queue::new(self)?;
        // SAFETY: the collection copies the names and is destroyed right after the request, which copies it in turn.
        unsafe {
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

    /// Asks the cluster for a setting of a topic; `None` if it has none of that name.
    pub(in crate::kafka) fn topic_setting(
        self: &Arc<Self>,
        topic: &str,
        setting: &str,
        timeout: Duration,
    ) -> Result<Option<String>, Fault> {
        self.ask_a_broker(timeout, |broker| self.topic_setting_at(broker, topic, setting, timeout))
    }

    fn topic_setting_at(
        self: &Arc<Self>,
        broker: i32,
        topic: &str,
        setting: &str,
        timeout: Duration,
    ) -> Result<Option<String>, Fault> {
        let topic = c_string(topic)?;
        let options = AdminOptions::new(self, rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, timeout)?;
        options.at_broker(broker)?;
        let queue = Queue::new(self)?;
        // SAFETY: the resource copies the name and is destroyed right after the request, which copies it in turn.
        unsafe {
            let mut resource =
                rd::rd_kafka_ConfigResource_new(rd::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC, topic.as_ptr());
            if resource.is_null() {
                return Err(Fault::of(Resp::RD_KAFKA_RESP_ERR__INVALID_ARG));
            }
            let rk = self.rk.as_ptr();
            rd::rd_kafka_DescribeConfigs(rk, &mut resource, 1, options.0.as_ptr(), queue.queue.as_ptr());
            rd::rd_kafka_ConfigResource_destroy(resource);
        }
        let event = queue.event(timeout + Duration::from_secs(1))?;
        // SAFETY: the result and all that it holds belong to the event, which outlives this block; each list has
        // `count` elements.
        unsafe {
            let result = rd::rd_kafka_event_DescribeConfigs_result(event.0.as_ptr());
            if result.is_null() {
                return Err(Fault::of(Resp::RD_KAFKA_RESP_ERR__INVALID_TYPE));
            }
            let mut count = 0;
            let resources = rd::rd_kafka_DescribeConfigs_result_resources(result, &mut count);
            if count == 0 {
                return Err(Fault::of(Resp::RD_KAFKA_RESP_ERR__BAD_MSG));
            }
            let resource = *resources;
            match rd::rd_kafka_ConfigResource_error(resource) {
                Resp::RD_KAFKA_RESP_ERR_NO_ERROR => {}
                code => {
                    let said = text(rd::rd_kafka_ConfigResource_error_string(resource));
                    return Err(Fault { code: Code(code as i32), text: said });
                }
            }
            let entries = rd::rd_kafka_ConfigResource_configs(resource, &mut count);
            for i in 0..count {
                let entry = *entries.add(i);
                if text(rd::rd_kafka_ConfigEntry_name(entry)) == setting {
                    let value = rd::rd_kafka_ConfigEntry_value(entry);
                    return Ok((!value.is_null()).then(|| text(value)));
                }
            }
        }
        Ok(None)
    }

    /// Says what a code of a partition means. Of one that nobody leads librdkafka says that it is unknown, and goes on saying so
    /// for minutes, so the brokers are asked anew who leads it: for the next question.
    fn of_partition(&self, code: Resp, topic: &CStr, timeout: Duration) -> Fault {
        if code == Resp::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION {
            let mut metadata = ptr::null();
            // SAFETY: a live handle; the topic and the answer are ours until they are given back, and a null configuration means
            // the default one.
            unsafe {
                let topic = rd::rd_kafka_topic_new(self.rk.as_ptr(), topic.as_ptr(), ptr::null_mut());
                if !topic.is_null() {
                    let answer = rd::rd_kafka_metadata(self.rk.as_ptr(), 0, topic, &mut metadata, millis(timeout));
                    if answer == Resp::RD_KAFKA_RESP_ERR_NO_ERROR {
                        rd::rd_kafka_metadata_destroy(metadata);
                    }
                    rd::rd_kafka_topic_destroy(topic);
                }
            }
        }
        Fault::of(code)
    }

    /// Asks the partition's leader for the first offset of the log and the first one that cannot be read yet.
    pub(in crate::kafka) fn query_watermarks(
        &self,
        topic: &str,
        partition: i32,
        timeout: Duration,
    ) -> Result<(i64, i64), Fault> {
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
            code => Err(self.of_partition(code, &topic, timeout)),
        }
    }

    /// Asks for the first offset of a record that is not older than a time in milliseconds; `None` if there is none.
    pub(in crate::kafka) fn offset_at(
        &self,
        topic: &str,
        partition: i32,
        timestamp: i64,
        timeout: Duration,
    ) -> Result<Option<i64>, Fault> {
        let topic = c_string(topic)?;
        // SAFETY: the list is made, read and destroyed here, and has the one element that was added.
        unsafe {
            let list = rd::rd_kafka_topic_partition_list_new(1);
            (*rd::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), partition)).offset = timestamp;
            let code = rd::rd_kafka_offsets_for_times(self.rk.as_ptr(), list, millis(timeout));
            let (offset, of_partition) = ((*(*list).elems).offset, (*(*list).elems).err);
            rd::rd_kafka_topic_partition_list_destroy(list);
            match (code, of_partition) {
                (Resp::RD_KAFKA_RESP_ERR_NO_ERROR, Resp::RD_KAFKA_RESP_ERR_NO_ERROR) => {
                    Ok((offset >= 0).then_some(offset))
                }
                (Resp::RD_KAFKA_RESP_ERR_NO_ERROR, code) | (code, _) => Err(self.of_partition(code, &topic, timeout)),
            }
        }
    }

    /// The log's end as the last fetch told it, with what an open transaction hides.
    pub(in crate::kafka) fn cached_end(&self, topic: &CStr, partition: i32) -> Option<i64> {
        let (mut low, mut high) = (0, 0);
        // SAFETY: as above.
        let code = unsafe {
            rd::rd_kafka_get_watermark_offsets(self.rk.as_ptr(), topic.as_ptr(), partition, &mut low, &mut high)
        };
        (code == Resp::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// Asks the leaders for the ends of these partitions, as a reader of committed records sees them; the answer comes
    /// to the queue.
    pub(in crate::kafka) fn ask_ends(
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

impl Queue {
    /// The ends that were asked for by [`Client::ask_ends`], if they have come. Never waits.
    pub(in crate::kafka) fn ends(&self) -> Option<Result<Vec<PartitionEnd>, Fault>> {
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

/// Where a partition ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct PartitionEnd {
    pub(in crate::kafka) topic: String,
    pub(in crate::kafka) partition: i32,
    pub(in crate::kafka) end: i64,
}

/// What a cluster says about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct TopicDescription {
    pub(in crate::kafka) name: String,
    /// `None` when the brokers are too old to give topics an id.
    pub(in crate::kafka) id: Option<Uuid>,
    pub(in crate::kafka) partitions: Vec<i32>,
    pub(in crate::kafka) fault: Option<Fault>,
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

    /// Puts the question to this broker.
    fn at_broker(&self, broker: i32) -> Result<(), Fault> {
        let mut reason = [0 as c_char; 256];
        // SAFETY: live options, and a buffer of the length that is said.
        unsafe {
            let (into, len) = (reason.as_mut_ptr(), reason.len());
            match rd::rd_kafka_AdminOptions_set_broker(self.0.as_ptr(), broker, into, len) {
                Resp::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
                code => Err(Fault { code: Code(code as i32), text: text(reason.as_ptr()) }),
            }
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
