//! The limit: how fast librdkafka itself hands out the records of a topic, by its batch call and two clients, when they
//! are only counted.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rdkafka_sys::bindings as rd;

use crate::process::{Usage, of_this_process};
use crate::topics::Topic;

const CLIENTS: i32 = 2;
const SETTINGS: [(&str, &str); 8] = [
    ("enable.auto.commit", "false"),
    ("check.crcs", "true"),
    ("fetch.message.max.bytes", "1048576"),
    ("fetch.max.bytes", "8388608"),
    ("queued.min.messages", "100000"),
    ("queued.max.messages.kbytes", "65536"),
    ("fetch.queue.backoff.ms", "1"),
    ("fetch.wait.max.ms", "10"),
];

/// Reads a topic from its first to its last record.
pub fn read(servers: &str, topic: &Topic, usual: u64) -> Usage {
    let (name, records) = (topic.full_name(usual), topic.records(usual));
    let counted = AtomicU64::new(0);
    let (begun, before) = (Instant::now(), of_this_process());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let partitions: Vec<i32> =
                (0..topic.partitions).filter(|partition| partition % CLIENTS == client).collect();
            let (name, counted) = (&name, &counted);
            scope.spawn(move || count(servers, name, &partitions, counted, records));
        }
    });
    before.until(&of_this_process(), begun.elapsed(), records)
}

fn count(servers: &str, name: &str, partitions: &[i32], counted: &AtomicU64, records: u64) {
    let text = |text: &str| CString::new(text).expect("no zero bytes");
    let mut reason = [0; 512];
    // SAFETY: handles are made, used and destroyed on this thread alone, the topic and the queue before their client;
    // the batch call fills as many pointers as it says, and each record is given back once.
    unsafe {
        let conf = rd::rd_kafka_conf_new();
        for (key, value) in SETTINGS.into_iter().chain([("bootstrap.servers", servers)]) {
            let (key, value) = (text(key), text(value));
            let set = rd::rd_kafka_conf_set(conf, key.as_ptr(), value.as_ptr(), reason.as_mut_ptr(), reason.len());
            assert_eq!(set, rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK, "{key:?}");
        }
        let client = rd::rd_kafka_new(rd::rd_kafka_type_t::RD_KAFKA_CONSUMER, conf, reason.as_mut_ptr(), reason.len());
        assert!(!client.is_null());
        let topic = rd::rd_kafka_topic_new(client, text(name).as_ptr(), std::ptr::null_mut());
        let queue = rd::rd_kafka_queue_new(client);
        for partition in partitions {
            assert_eq!(rd::rd_kafka_consume_start_queue(topic, *partition, 0, queue), 0);
        }
        let mut taken = vec![std::ptr::null_mut(); 20_000];
        while counted.load(Ordering::Relaxed) < records {
            let count = rd::rd_kafka_consume_batch_queue(queue, 20, taken.as_mut_ptr(), taken.len()).max(0) as usize;
            let mut good = 0;
            for message in &taken[..count] {
                good += u64::from(std::ptr::addr_of!((**message).err).cast::<i32>().read() == 0);
                rd::rd_kafka_message_destroy(*message);
            }
            counted.fetch_add(good, Ordering::Relaxed);
        }
        for partition in partitions {
            rd::rd_kafka_consume_stop(topic, *partition);
        }
        rd::rd_kafka_queue_destroy(queue);
        rd::rd_kafka_topic_destroy(topic);
        rd::rd_kafka_destroy(client);
    }
}
