//! A shop that produces orders for as long as a test runs and keeps count by itself: what the service makes of them must be
//! the same in the end, the table to the last row and `kafka_offsets` to the last offset.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::stand::{PATIENCE, Stand, until};
use crate::test_topic::{Sent, TestTopic, producer, send};

pub(crate) const PARTITIONS: i32 = 6;

/// Where each partition ends.
pub(crate) type Ends = [i64; PARTITIONS as usize];

/// What the produced records add up to, by item.
pub(crate) type Truth = BTreeMap<String, (i64, i64)>;

/// Produces orders until it is told to stop, and keeps count by itself.
pub(crate) struct Shop {
    wish: Arc<AtomicU8>,
    /// Everything that was produced so far has reached Kafka, and nothing comes after it.
    resting: Arc<AtomicBool>,
    produced: Arc<AtomicU64>,
    books: Arc<Mutex<(Truth, Ends)>>,
    thread: std::thread::JoinHandle<()>,
}

const OPEN: u8 = 0;
const PAUSE: u8 = 1;
const CLOSE: u8 = 2;

impl Shop {
    /// Opens with a backlog, then adds so many records a second.
    pub(crate) fn open(topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        let (wish, resting) = (Arc::<AtomicU8>::default(), Arc::<AtomicBool>::default());
        let (produced, books) = (Arc::<AtomicU64>::default(), Arc::<Mutex<(Truth, Ends)>>::default());
        let thread = std::thread::spawn({
            let (topic, servers) = (topic.name.clone(), topic.servers.clone());
            let (wish, resting) = (Arc::clone(&wish), Arc::clone(&resting));
            let (produced, books) = (Arc::clone(&produced), Arc::clone(&books));
            move || {
                let producer = producer(&[
                    ("bootstrap.servers", &servers),
                    ("compression.type", "lz4"),
                    // Whatever happens to Kafka, each order arrives once, or the count would not be the truth.
                    ("enable.idempotence", "true"),
                ]);
                let begun = Instant::now();
                let mut state = 0x2545_F491_4F6C_DD1Du64;
                let mut number = 0u64;
                loop {
                    let wished = wish.load(Ordering::SeqCst);
                    if wished != OPEN && !resting.load(Ordering::SeqCst) {
                        rdkafka::producer::Producer::flush(&producer, PATIENCE).unwrap();
                        resting.store(true, Ordering::SeqCst);
                    }
                    if wished == CLOSE {
                        return;
                    }
                    if wished == PAUSE || number >= backlog + begun.elapsed().as_millis() as u64 * rate / 1000 {
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
                    number += 1;
                    let (truth, ends) = &mut *books.lock().unwrap();
                    ends[partition as usize] += 1;
                    if qty > 0 {
                        let sum = truth.entry(format!("item-{item}")).or_default();
                        *sum = (sum.0 + 1, sum.1 + qty);
                    }
                    produced.store(number, Ordering::SeqCst);
                }
            }
        });
        Self { wish, resting, produced, books, thread }
    }

    /// How many records there are so far.
    pub(crate) fn produced(&self) -> i64 {
        self.produced.load(Ordering::SeqCst) as i64
    }

    /// Rests until it is told to go on. Answers what the records add up to, and where each partition ends.
    pub(crate) async fn pause(&self) -> (Truth, Ends) {
        self.wish.store(PAUSE, Ordering::SeqCst);
        until("the shop rests", PATIENCE, async || self.resting.load(Ordering::SeqCst)).await;
        self.books.lock().unwrap().clone()
    }

    /// Goes on, and makes up for the time.
    pub(crate) fn go_on(&self) {
        self.resting.store(false, Ordering::SeqCst);
        self.wish.store(OPEN, Ordering::SeqCst);
    }

    /// Stops. Answers what the records add up to, and where each partition ends.
    pub(crate) fn close(self) -> (Truth, Ends) {
        self.wish.store(CLOSE, Ordering::SeqCst);
        self.thread.join().unwrap();
        self.books.lock().unwrap().clone()
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
pub(crate) async fn settle(stand: &Stand, truth: &Truth, ends: &Ends) {
    stand.until_committed(&(0..).zip(ends.iter().copied()).collect()).await;
    assert_eq!(&table(stand).await, truth);
}
