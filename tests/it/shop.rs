//! A shop that produces orders for as long as a test runs and keeps count by itself: what the service makes of them must be
//! the same in the end, the table to the last row and `kafka_offsets` to the last offset.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use strandline::stores::existing::Existing;
use strandline_actors::position::Counts;

use crate::balance;
use crate::stand::{PATIENCE, Stand, until};
use crate::test_topic::{Sent, TestTopic, producer, send};

pub(crate) const PARTITIONS: i32 = 6;

/// Where each partition ends.
pub(crate) type Ends = [i64; PARTITIONS as usize];

/// What the produced records add up to, by item.
pub(crate) type Truth = BTreeMap<String, (i64, i64)>;

/// How orders are produced.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// One by one.
    Plain,
    /// With keys: orders of nothing share a few, so that compaction takes them away, and sometimes one of these keys is
    /// deleted. Nothing else is ever taken away.
    Compacted,
    /// In transactions, of which one in three is aborted.
    Transactions,
    /// One by one, each at least once: what is in the topic is counted at the end. (While brokers stand still, an idempotent
    /// producer of librdkafka takes a whole core.)
    AtLeastOnce,
}

/// How many orders a transaction has.
const TRANSACTION: u64 = 100;

/// Produces orders until it is told to stop, and keeps count by itself.
pub(crate) struct Shop {
    wish: Arc<AtomicU8>,
    /// Everything that was produced so far has reached Kafka, and nothing comes after it.
    resting: Arc<AtomicBool>,
    produced: Arc<AtomicU64>,
    books: Arc<Mutex<(Truth, Ends)>>,
    /// The servers and the topic whose records are counted at the end.
    recount: Option<(String, String)>,
    thread: std::thread::JoinHandle<()>,
}

const OPEN: u8 = 0;
const PAUSE: u8 = 1;
const CLOSE: u8 = 2;

impl Shop {
    /// Opens with a backlog, then adds so many records a second.
    pub(crate) fn open(topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        Self::open_in(Manner::Plain, topic, backlog, rate)
    }

    /// Opens for a topic that is compacted.
    pub(crate) fn open_for_compaction(topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        Self::open_in(Manner::Compacted, topic, backlog, rate)
    }

    /// Opens with orders in transactions.
    pub(crate) fn open_with_transactions(topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        Self::open_in(Manner::Transactions, topic, backlog, rate)
    }

    /// Opens with a producer that may repeat itself.
    pub(crate) fn open_at_least_once(topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        Self::open_in(Manner::AtLeastOnce, topic, backlog, rate)
    }

    fn open_in(manner: Manner, topic: &TestTopic, backlog: u64, rate: u64) -> Self {
        let (wish, resting) = (Arc::<AtomicU8>::default(), Arc::<AtomicBool>::default());
        let (produced, books) = (Arc::<AtomicU64>::default(), Arc::<Mutex<(Truth, Ends)>>::default());
        let thread = std::thread::spawn({
            let (topic, servers) = (topic.name.clone(), topic.servers.clone());
            let (wish, resting) = (Arc::clone(&wish), Arc::clone(&resting));
            let (produced, books) = (Arc::clone(&produced), Arc::clone(&books));
            move || {
                let mut settings = vec![
                    ("bootstrap.servers", servers.as_str()),
                    ("compression.type", "lz4"),
                    // Whatever happens to Kafka, each order arrives once, or the count would not be the truth.
                    ("enable.idempotence", if manner == Manner::AtLeastOnce { "false" } else { "true" }),
                    ("acks", "all"),
                ];
                if manner == Manner::Transactions {
                    settings.push(("transactional.id", topic.as_str()));
                }
                let producer = producer(&settings);
                if manner == Manner::Transactions {
                    producer.init_transactions(PATIENCE).unwrap();
                    producer.begin_transaction().unwrap();
                }
                let mut transaction = Transaction::default();
                let begun = Instant::now();
                let mut state = 0x2545_F491_4F6C_DD1Du64;
                let mut number = 0u64;
                loop {
                    let wished = wish.load(Ordering::SeqCst);
                    if wished != OPEN && !resting.load(Ordering::SeqCst) {
                        producer.flush(PATIENCE).unwrap();
                        if manner == Manner::Transactions {
                            transaction.end(&producer, &books);
                        }
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
                    let taken_away = manner == Manner::Compacted && !(state / 1024).is_multiple_of(3);
                    let qty = if taken_away { 0 } else { (state / 1024 % 9) as i64 };
                    let key = match qty {
                        0 => format!("nothing-{}", state / 8192 % 7),
                        _ => format!("order-{number}"),
                    };
                    let value = format!(r#"{{"user_id":"u{number}","item":"item-{item}","qty":{qty},"note":"x"}}"#);
                    let deleted = taken_away && (state / 8192).is_multiple_of(5);
                    let sent = Sent {
                        key: (manner == Manner::Compacted).then_some(key.as_bytes()),
                        value: (!deleted).then_some(value.as_bytes()),
                        headers: None,
                    };
                    send(&producer, &topic, partition, sent);
                    number += 1;
                    let order = Order { partition: partition as usize, item, qty };
                    if manner == Manner::Transactions {
                        transaction.0.push(order);
                        if number.is_multiple_of(TRANSACTION) {
                            transaction.end(&producer, &books);
                        }
                    } else {
                        order.enter(&mut books.lock().unwrap());
                    }
                    produced.store(number, Ordering::SeqCst);
                }
            }
        });
        let recount = (manner == Manner::AtLeastOnce).then(|| (topic.servers.clone(), topic.name.clone()));
        Self { wish, resting, produced, books, recount, thread }
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
        match self.recount {
            Some((servers, topic)) => recount(&servers, &topic),
            None => self.books.lock().unwrap().clone(),
        }
    }
}

/// What the records of a topic add up to, and where each partition ends.
fn recount(servers: &str, topic: &str) -> (Truth, Ends) {
    let settings = [("bootstrap.servers", servers), ("group.id", topic), ("enable.auto.commit", "false")];
    let config: ClientConfig = settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let consumer: BaseConsumer = config.create().unwrap();
    let mut books = (Truth::new(), Ends::default());
    for partition in 0..PARTITIONS {
        let (begin, end) = consumer.fetch_watermarks(topic, partition, PATIENCE).unwrap();
        assert_eq!(begin, 0);
        let assign = |offset| {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
            consumer.assign(&list).unwrap();
        };
        assign(0);
        let (mut offset, mut since) = (0, Instant::now());
        while offset < end {
            let record = match consumer.poll(Duration::from_secs(20)) {
                Some(Ok(record)) => record,
                // A broker that has much to do, or that was away a moment ago, is asked again.
                other => {
                    assert!(since.elapsed() < PATIENCE, "at {offset} of {end} of partition {partition}: {other:?}");
                    assign(offset);
                    continue;
                }
            };
            assert_eq!((record.partition(), record.offset()), (partition, offset));
            (offset, since) = (offset + 1, Instant::now());
            let order: serde_json::Value = serde_json::from_slice(record.payload().unwrap()).unwrap();
            let item = order["item"].as_str().unwrap().trim_start_matches("item-").parse().unwrap();
            let order = Order { partition: partition as usize, item, qty: order["qty"].as_i64().unwrap() };
            order.enter(&mut books);
        }
        assert_eq!(books.1[partition as usize], end);
    }
    books
}

/// What is known of an order that was sent.
struct Order {
    partition: usize,
    item: u64,
    qty: i64,
}

impl Order {
    /// Counts an order that is valid.
    fn enter(&self, (truth, ends): &mut (Truth, Ends)) {
        ends[self.partition] += 1;
        if self.qty > 0 {
            let sum = truth.entry(format!("item-{}", self.item)).or_default();
            *sum = (sum.0 + 1, sum.1 + self.qty);
        }
    }
}

/// The orders of the transaction that is open, and how many there were before it.
#[derive(Default)]
struct Transaction(Vec<Order>, u64);

impl Transaction {
    /// Commits it or aborts it, and begins the next.
    fn end(&mut self, producer: &ThreadedProducer<DefaultProducerContext>, books: &Mutex<(Truth, Ends)>) {
        let orders = std::mem::take(&mut self.0);
        // What is aborted before it was sent would leave no trace.
        producer.flush(PATIENCE).unwrap();
        let aborted = self.1 % 3 == 1;
        match aborted {
            true => producer.abort_transaction(PATIENCE).unwrap(),
            false => producer.commit_transaction(PATIENCE).unwrap(),
        }
        producer.begin_transaction().unwrap();
        self.1 += 1;
        let mut books = books.lock().unwrap();
        // One marker in each partition.
        let partitions: BTreeSet<usize> = orders.iter().map(|order| order.partition).collect();
        partitions.into_iter().for_each(|partition| books.1[partition] += 1);
        for order in orders {
            match aborted {
                true => books.1[order.partition] += 1,
                false => order.enter(&mut books),
            }
        }
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

/// Waits until more records are committed than now.
pub(crate) async fn until_more_is_committed(stand: &Stand, what: &str) {
    stand.until_more_is_committed(committed(stand).await, what).await;
}

/// What the table says, by item.
pub(crate) async fn table(stand: &Stand) -> Truth {
    let read = format!("SELECT item, n, total FROM {}.{}", stand.keyspace, stand.table);
    // The table is made by the service's first start.
    let Ok(rows) = stand.session.query_unpaged(read, ()).await else { return Truth::new() };
    let rows = rows.into_rows_result().unwrap();
    let mut table = Truth::new();
    for row in rows.rows::<(String, i64, i64)>().unwrap() {
        let (item, n, total) = row.unwrap();
        let sum = table.entry(item).or_default();
        *sum = (sum.0 + n, sum.1 + total);
    }
    table
}

/// Waits until everything is committed, and compares.
pub(crate) async fn settle(stand: &Stand, truth: &Truth, ends: &Ends) {
    stand.until_committed(&(0..).zip(ends.iter().copied()).collect()).await;
    assert_eq!(&table(stand).await, truth);
    counted(stand.stored().await, truth, ends).await;
}

/// Whether each offset of the orders was counted once, in the counter where it belongs.
pub(crate) async fn counted(existing: &Existing, truth: &Truth, ends: &Ends) {
    let balances = balance::of(existing).await;
    let moved: Vec<(i64, bool)> = balances.values().map(|balance| (balance.position.0, balance.is_exact())).collect();
    assert_eq!(moved, ends.map(|end| (end, true)), "{balances:?}");
    let total = |count: fn(&Counts) -> u64| -> u64 { balances.values().map(|balance| count(&balance.counts)).sum() };
    let valid: i64 = truth.values().map(|sum| sum.0).sum();
    assert_eq!(i64::try_from(total(|counts| counts.processed)), Ok(valid), "{balances:?}");
    // All else was nothing, or deleted, or never a record.
    let others = total(|counts| counts.filtered + counts.tombstones + counts.gaps);
    assert_eq!(i64::try_from(others), Ok(ends.iter().sum::<i64>() - valid), "{balances:?}");
}
