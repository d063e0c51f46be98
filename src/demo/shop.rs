//! The shop of the demo: it produces orders and keeps count of them by itself, in a plain map that knows nothing of the
//! pipeline. What it counted is the truth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use serde::Serialize;

use crate::kafka::EMBEDDED_RETENTION;
use crate::random::Random;

/// The topic.
pub(super) const TOPIC: &str = "orders";
/// What is sold, by how often: the first most of all.
const ITEMS: [&str; 12] = [
    "tea", "coffee", "bread", "butter", "cheese", "apples", "honey", "olives", "salt", "pepper", "saffron", "truffles",
];
/// Of what the embedded Kafka keeps of a partition, what may be there that is not committed yet: a restart has to find
/// all of it, and records take more room there than their payload.
const BACKLOG: i64 = EMBEDDED_RETENTION as i64 / 4;
/// How often the shop looks at what is due.
const TICK: Duration = Duration::from_millis(5);

/// What orders add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sums {
    /// How many there are.
    pub(super) orders: u64,
    /// How many pieces they are for.
    pub(super) pieces: i64,
    /// What they cost, in hundredths.
    pub(super) cents: i64,
}

/// Sums by item.
pub(super) type Count = BTreeMap<String, Sums>;

/// All of it as one.
pub(super) fn total(count: &Count) -> u64 {
    count.values().map(|sums| sums.orders).sum()
}

/// What the shop and its watchers share.
#[derive(Debug)]
pub(super) struct Books {
    truth: Mutex<Count>,
    /// By partition: the end of the log.
    produced: Vec<AtomicI64>,
    /// By partition: payload bytes so far.
    bytes: Vec<AtomicI64>,
    /// By partition: the position that all shards have committed.
    committed: Vec<AtomicI64>,
    lost: AtomicU64,
    stop: AtomicBool,
}

impl Books {
    /// Empty books.
    pub(super) fn new(partitions: usize) -> Self {
        let zeros = || (0..partitions).map(|_| AtomicI64::new(0)).collect();
        Self {
            truth: Mutex::default(),
            produced: zeros(),
            bytes: zeros(),
            committed: zeros(),
            lost: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Books in which something was sold.
    #[cfg(test)]
    pub(super) fn with_truth(item: &str, orders: u64) -> Self {
        let books = Self::new(1);
        let sums = Sums { orders, ..Sums::default() };
        books.truth.lock().unwrap_or_else(PoisonError::into_inner).insert(item.into(), sums);
        books
    }

    /// What was produced so far. Counted before it is sent, so nobody can rightly have counted more.
    pub(super) fn truth(&self) -> Count {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether everything that was produced is committed by all shards.
    pub(super) fn all_committed(&self) -> bool {
        let committed = self.committed.iter().map(|position| position.load(Ordering::SeqCst));
        self.ends().into_iter().eq(committed)
    }

    /// The end of each partition's log.
    pub(super) fn ends(&self) -> Vec<i64> {
        self.produced.iter().map(|end| end.load(Ordering::SeqCst)).collect()
    }

    /// Notes the committed position of each partition.
    pub(super) fn committed(&self, positions: &[i64]) {
        for (known, position) in self.committed.iter().zip(positions) {
            known.store(*position, Ordering::SeqCst);
        }
    }

    /// Orders that Kafka did not take.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }

    /// Whether a partition may get more: else its oldest records could go before they were committed.
    fn room(&self, partition: usize) -> bool {
        let produced = self.produced[partition].load(Ordering::SeqCst);
        let behind = produced - self.committed[partition].load(Ordering::SeqCst);
        let bytes = self.bytes[partition].load(Ordering::SeqCst);
        produced == 0 || behind * (bytes / produced.max(1)) < BACKLOG
    }

    fn sell(&self, order: &Order, partition: usize, bytes: usize) {
        let mut truth = self.truth.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = truth.entry(order.item.to_owned()).or_default();
        sums.orders += 1;
        sums.pieces += order.pieces;
        sums.cents += order.cents;
        drop(truth);
        self.produced[partition].fetch_add(1, Ordering::SeqCst);
        self.bytes[partition].fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug)]
struct Order {
    user: u64,
    item: &'static str,
    cents: i64,
    pieces: i64,
}

impl Order {
    /// The order of a random number: low items far more often than high ones.
    fn of(random: u64) -> Self {
        let skewed = ((random & 0xffff) * (random >> 16 & 0xffff)) >> 16;
        Self {
            user: (random >> 32) % 10_000,
            item: ITEMS[(skewed as usize * ITEMS.len()) >> 16],
            cents: i64::try_from(random >> 20 & 0x3fff).unwrap_or_default() + 1,
            pieces: i64::try_from(random >> 44 & 7).unwrap_or_default() + 1,
        }
    }

    fn json(&self, millis: u64) -> String {
        let (user, item, pieces) = (self.user, self.item, self.pieces);
        let (whole, hundredths) = (self.cents / 100, self.cents % 100);
        format!(
            "{{\"user_id\":\"u{user}\",\"item\":\"{item}\",\"amount\":{whole}.{hundredths:02},\"qty\":{pieces},\"ts\":{millis}}}"
        )
    }
}

/// Counts the orders that Kafka did not take.
struct Deliveries(Arc<Books>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The running shop.
pub(super) struct Shop {
    books: Arc<Books>,
    thread: JoinHandle<Result<(), String>>,
}

impl Shop {
    /// Opens the shop: so many orders a second, as long as those that count them keep up.
    pub(super) fn open(books: Arc<Books>, servers: &str, rate: u64) -> Result<Self, String> {
        let producer: BaseProducer<Deliveries> = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("linger.ms", "5")
            // An order that is sent twice would make the truth wrong.
            .set("message.send.max.retries", "0")
            .set("queue.buffering.max.messages", "1000000")
            .create_with_context(Deliveries(Arc::clone(&books)))
            .map_err(|error| format!("the demo's producer cannot be made: {error}"))?;
        let selling = Arc::clone(&books);
        let thread = std::thread::Builder::new()
            .name("shop".into())
            .spawn(move || sell(&producer, &selling, rate))
            .map_err(|error| format!("the demo's producer gets no thread: {error}"))?;
        Ok(Self { books, thread })
    }

    /// Whether it has closed by itself, which it does only when something is wrong.
    pub(super) fn has_closed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes it, and waits until Kafka has all orders.
    pub(super) fn close(self) -> Result<(), String> {
        self.books.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_else(|_| Err("the demo's producer panicked".into()))?;
        match self.books.lost() {
            0 => Ok(()),
            lost => Err(format!("the embedded Kafka did not take {lost} orders, so there is no truth to compare with")),
        }
    }
}

fn sell(producer: &BaseProducer<Deliveries>, books: &Books, rate: u64) -> Result<(), String> {
    let partitions = books.produced.len();
    let begun = Instant::now();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = Random(seed.as_nanos() as u64);
    // What is due since the last look. What there was no room for is not made up for later.
    let (mut due, mut looked) = (0.0, begun);
    while !books.stop.load(Ordering::SeqCst) {
        let now = Instant::now();
        due = (due + rate as f64 * (now - looked).as_secs_f64()).min(rate as f64 / 4.0 + 1.0);
        looked = now;
        let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        while due >= 1.0 && !books.stop.load(Ordering::SeqCst) {
            due -= 1.0;
            let number = random.next();
            let order = Order::of(number);
            let partition = (order.user % partitions as u64) as usize;
            if !books.room(partition) {
                continue;
            }
            let (key, value) = (format!("u{}", order.user), order.json(millis));
            books.sell(&order, partition, key.len() + value.len());
            send(producer, partition, &key, &value)?;
        }
        producer.poll(Duration::ZERO);
        std::thread::sleep(TICK);
    }
    producer.flush(Duration::from_secs(30)).map_err(|error| format!("the embedded Kafka does not take orders: {error}"))
}

fn send(producer: &BaseProducer<Deliveries>, partition: usize, key: &str, value: &str) -> Result<(), String> {
    let partition = i32::try_from(partition).unwrap_or_default();
    let mut record = BaseRecord::to(TOPIC).partition(partition).key(key).payload(value);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                record = back;
                producer.poll(Duration::from_millis(10));
            }
            Err((error, _)) => return Err(format!("the embedded Kafka does not take orders: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn orders_are_skewed_and_whole_cents() {
        let mut random = Random(1);
        let mut sold: BTreeMap<&str, u64> = BTreeMap::new();
        for _ in 0..100_000 {
            let order = Order::of(random.next());
            *sold.entry(order.item).or_default() += 1;
            assert!(order.cents > 0 && order.pieces > 0);
            let json: serde_json::Value = serde_json::from_str(&order.json(7)).unwrap();
            let amount = json["amount"].as_f64().unwrap();
            assert_eq!((amount * 100.0).round() as i64, order.cents);
            assert_eq!(json["qty"], order.pieces);
        }
        assert_eq!(sold.len(), ITEMS.len());
        assert!(sold["tea"] > 10 * sold["truffles"], "{sold:?}");
    }

    #[test]
    fn the_shop_waits_for_those_that_count() {
        let books = Books::new(2);
        let order = Order::of(12_345);
        let bytes = 100;
        while books.room(0) {
            books.sell(&order, 0, bytes);
        }
        let behind = books.ends()[0];
        assert!((BACKLOG / 100..=BACKLOG / 100 + 1).contains(&behind), "{behind}");
        assert!(books.room(1));
        books.committed(&[behind, 0]);
        assert!(books.room(0));
        assert_eq!(total(&books.truth()), behind as u64);
    }
}
