//! The topics that are read: filled once with records that are the same in every run, and kept from run to run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

/// What a topic holds.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    pub name: &'static str,
    pub partitions: i32,
    pub compression: &'static str,
    /// Distinct users.
    pub users: u64,
    /// Half of the records are of one user.
    pub hot: bool,
    /// Further bytes in each record.
    pub padding: usize,
    /// How many of the usual number of records it holds, as a divisor.
    pub part: u64,
}

/// What all others differ from.
pub const LZ4: Topic =
    Topic { name: "lz4", partitions: 4, compression: "lz4", users: 100_000, hot: false, padding: 0, part: 1 };

/// Whose users are so few records apart that each is within one session.
pub const SESSIONS: &str = "sessions-1m";

/// All that can be asked for.
pub const ALL: [Topic; 7] = [
    LZ4,
    Topic { name: "uncompressed", compression: "none", ..LZ4 },
    Topic { name: "large", padding: 890, part: 8, ..LZ4 },
    Topic { name: "partitions-100", partitions: 100, ..LZ4 },
    Topic { name: "keys-5m", users: 5_000_000, ..LZ4 },
    Topic { name: "hot", hot: true, ..LZ4 },
    Topic { name: SESSIONS, users: 1_000_000, ..LZ4 },
];

/// Makes a topic.
pub fn create(servers: &str, name: &str, partitions: i32) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", servers).create().expect("a client");
    let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    futures::executor::block_on(admin.create_topics([&new], &AdminOptions::new())).expect("the topic is made");
}

impl Topic {
    pub fn records(&self, usual: u64) -> u64 {
        usual / self.part
    }

    /// The name on the server, which says what is inside.
    pub fn full_name(&self, usual: u64) -> String {
        format!("bench-{}-{}", self.name, self.records(usual))
    }

    /// Makes and fills the topic unless it is there whole.
    pub fn prepare(&self, servers: &str, usual: u64) {
        let (name, records) = (self.full_name(usual), self.records(usual));
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", servers).create().expect("a client");
        let ends = || -> u64 {
            let end = |partition| client.fetch_watermarks(&name, partition, Duration::from_secs(30)).map_or(0, |w| w.1);
            (0..self.partitions).map(end).sum::<i64>() as u64
        };
        let known = client.fetch_metadata(None, Duration::from_secs(30)).expect("Kafka answers");
        if known.topics().iter().any(|topic| topic.name() == name) {
            let found = ends();
            assert_eq!(found, records, "the topic {name} is there, but not whole: delete it and start again");
            return;
        }
        create(servers, &name, self.partitions);
        self.fill(servers, &name, records);
        assert_eq!(ends(), records, "the topic {name} is whole");
    }

    /// Fills a topic.
    pub fn fill(&self, servers: &str, name: &str, records: u64) {
        let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("compression.type", self.compression)
            .set("linger.ms", "50")
            .set("batch.size", "1000000")
            .set("batch.num.messages", "100000")
            .set("queue.buffering.max.messages", "1000000")
            .create()
            .expect("a producer");
        let padding = "x".repeat(self.padding);
        let (begun, mut told) = (Instant::now(), Instant::now());
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        let mut value = String::new();
        for number in 0..records {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let user = if self.hot && random.is_multiple_of(2) { 0 } else { (random >> 8) % self.users };
            let (item, cents, qty) = ((random >> 20) % 1_000, (random >> 30) % 100_000, 1 + (random >> 50) % 5);
            // Two hours with up to five seconds of disorder.
            let milli = number * 7_200_000 / records + 5_000 - (random >> 40) % 5_000;
            let (hour, minute, second, milli) =
                (milli / 3_600_000, milli / 60_000 % 60, milli / 1_000 % 60, milli % 1_000);
            value.clear();
            use std::fmt::Write as _;
            let _ = write!(
                value,
                r#"{{"user_id":"user-{user:013}","item":"item-{item:06}","amount":{}.{:02},"qty":{qty},"ts":"2026-01-01T{hour:02}:{minute:02}:{second:02}.{milli:03}Z"{}{padding}{}}}"#,
                cents / 100,
                cents % 100,
                if self.padding > 0 { ",\"note\":\"" } else { "" },
                if self.padding > 0 { "\"" } else { "" },
            );
            let partition = (number % self.partitions as u64) as i32;
            put(&producer, BaseRecord::to(name).partition(partition).payload(value.as_bytes()));
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!("filling {name}: {number} of {records}");
            }
        }
        producer.flush(Duration::from_secs(120)).expect("all is sent");
        eprintln!("filled {name}: {records} records of about {} bytes in {:?}", value.len(), begun.elapsed());
    }
}

/// Sends a record, as soon as there is room for it.
fn put(producer: &ThreadedProducer<DefaultProducerContext>, mut record: BaseRecord<'_, [u8], [u8]>) {
    while let Err((error, back)) = producer.send(record) {
        assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "{error}");
        record = back;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Records that come in at a steady rate until this is stopped.
pub struct Trickle {
    done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Trickle {
    /// Starts, with so many records a second, over the partitions by turns.
    pub fn start(servers: &str, name: &str, partitions: i32, rate: u64) -> Self {
        let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("compression.type", "lz4")
            .set("linger.ms", "1")
            .create()
            .expect("a producer");
        let (name, done) = (name.to_owned(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let (begun, mut sent) = (Instant::now(), 0);
            while !told.load(Ordering::Relaxed) {
                let due = begun.elapsed().as_millis() as u64 * rate / 1000;
                for number in sent..due {
                    let value = format!(
                        r#"{{"user_id":"user-{:013}","item":"item-{:06}","amount":12.34,"qty":3,"ts":"2026-01-01T02:00:00.000Z"}}"#,
                        number % 100_000,
                        number % 1_000
                    );
                    let partition = (number % partitions as u64) as i32;
                    put(&producer, BaseRecord::to(&name).partition(partition).payload(value.as_bytes()));
                }
                sent = due;
                std::thread::sleep(Duration::from_millis(1));
            }
            producer.flush(Duration::from_secs(30)).expect("all is sent");
        });
        Self { done, thread }
    }

    pub fn stop(self) {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().expect("the producer");
    }
}
