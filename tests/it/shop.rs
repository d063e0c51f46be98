//! A shop that produces orders for as long as a test runs and keeps count by itself: what the service makes of them must be
//! the same in the end, the table to the last row and `kafka_offsets` to the last offset.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::stand::Stand;
use crate::test_topic::{Sent, producer, send};

pub(crate) const PARTITIONS: i32 = 6;

/// What the produced records add up to, by item.
pub(crate) type Truth = BTreeMap<String, (i64, i64)>;

/// Produces orders until it is told to stop, and keeps count by itself.
pub(crate) struct Shop {
    stop: Arc<AtomicBool>,
    produced: Arc<AtomicU64>,
    truth: Arc<Mutex<Truth>>,
    thread: std::thread::JoinHandle<[i64; PARTITIONS as usize]>,
}

impl Shop {
    /// Opens with a backlog, then adds so many records a second.
    pub(crate) fn open(topic: &str, backlog: u64, rate: u64) -> Self {
        let (stop, produced, truth) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::default());
        let thread = std::thread::spawn({
            let (topic, stop, produced) = (topic.to_owned(), Arc::clone(&stop), Arc::clone(&produced));
            let truth: Arc<Mutex<Truth>> = Arc::clone(&truth);
            move || {
                let producer = producer(&[("compression.type", "lz4")]);
                let mut ends = [0i64; PARTITIONS as usize];
                let begun = Instant::now();
                let mut state = 0x2545_F491_4F6C_DD1Du64;
                let mut number = 0u64;
                while !stop.load(Ordering::SeqCst) {
                    if number >= backlog + begun.elapsed().as_millis() as u64 * rate / 1000 {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Skewed: half of the records are of one item, and one partition gets a third of them.
                    let item = if state.is_multiple_of(2) { 0 } else { state / 2 % 500 };
                    let partition =
                        (if (state / 8).is_multiple_of(3) { 0 } else { state / 64 % PARTITIONS as u64 }) as i32;
                    let qty = (state / 1024 % 9) as i64;
                    let value = format!(r#"{{"user_id":"u{number}","item":"item-{item}","qty":{qty},"note":"x"}}"#);
                    let sent = Sent { key: None, value: Some(value.as_bytes()), headers: None };
                    send(&producer, &topic, partition, sent);
                    ends[partition as usize] += 1;
                    number += 1;
                    if qty > 0 {
                        let mut truth = truth.lock().unwrap();
                        let sum = truth.entry(format!("item-{item}")).or_default();
                        *sum = (sum.0 + 1, sum.1 + qty);
                    }
                    produced.store(number, Ordering::SeqCst);
                }
                rdkafka::producer::Producer::flush(&producer, Duration::from_secs(60)).unwrap();
                ends
            }
        });
        Self { stop, produced, truth, thread }
    }

    /// How many records there are so far.
    pub(crate) fn produced(&self) -> i64 {
        self.produced.load(Ordering::SeqCst) as i64
    }

    /// Stops. Answers what the records add up to, and where each partition ends.
    pub(crate) fn close(self) -> (Truth, [i64; PARTITIONS as usize]) {
        self.stop.store(true, Ordering::SeqCst);
        let ends = self.thread.join().unwrap();
        let truth = self.truth.lock().unwrap().clone();
        (truth, ends)
    }
}

/// Counts and sums by item.
pub(crate) fn sql(stand: &Stand) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, qty BIGINT)
           STORED AS JSON LOCATION 'kafka://{topic}';
         CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (item))
           STORED AS CQL LOCATION 'cassandra://{keyspace}/{table}' OPTIONS ('sink.create' 'true');
         INSERT INTO totals SELECT item, count(*), sum(qty) FROM orders WHERE qty > 0 GROUP BY item;",
        topic = stand.topic.name,
        keyspace = stand.keyspace,
        table = stand.table,
    )
}

/// How many records are committed.
pub(crate) async fn committed(stand: &Stand) -> i64 {
    stand.offsets().await.values().sum()
}

async fn table(stand: &Stand) -> Truth {
    let read = format!("SELECT item, n, total FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String, i64, i64)>().unwrap().map(|row| row.unwrap()).map(|row| (row.0, (row.1, row.2))).collect()
}

/// Waits until everything is committed, and compares.
pub(crate) async fn settle(stand: &Stand, truth: &Truth, ends: &[i64; PARTITIONS as usize]) {
    stand.until_committed(&(0..).zip(ends.iter().copied()).collect()).await;
    assert_eq!(&table(stand).await, truth);
}
