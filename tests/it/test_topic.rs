//! A topic of one test: made under a name of its own, filled, changed and deleted.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

/// The Kafka that the tests run against.
pub(crate) fn servers() -> String {
    std::env::var("TEST_KAFKA").expect("TEST_KAFKA is not set: the tests need a real Kafka, start them with tests/run")
}

fn admin(servers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", servers).create().unwrap()
}

/// A producer with these settings.
pub(crate) fn producer(settings: &[(&str, &str)]) -> ThreadedProducer<DefaultProducerContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers()).set("linger.ms", "2").set("queue.buffering.max.messages", "1000000");
    for (name, value) in settings {
        config.set(*name, *value);
    }
    config.create().unwrap()
}

/// What is sent to one partition.
pub(crate) struct Sent<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: Option<rdkafka::message::OwnedHeaders>,
}

/// Puts a record into a producer's queue, which is given time when it is full.
pub(crate) fn send(producer: &ThreadedProducer<DefaultProducerContext>, topic: &str, partition: i32, sent: Sent<'_>) {
    let mut record = BaseRecord::<[u8], [u8]>::to(topic).partition(partition);
    record.key = sent.key;
    record.payload = sent.value;
    record.headers = sent.headers;
    while let Err((error, back)) = producer.send(record) {
        assert_eq!(
            error.rdkafka_error_code(),
            Some(rdkafka::types::RDKafkaErrorCode::QueueFull),
            "a record cannot be sent: {error}"
        );
        record = back;
        std::thread::yield_now();
    }
}

pub(crate) struct TestTopic {
    pub(crate) name: String,
    /// Where it is.
    pub(crate) servers: String,
}

impl TestTopic {
    pub(crate) async fn create(prefix: &str, partitions: i32, config: &[(&str, &str)]) -> Self {
        Self::create_at(&servers(), prefix, partitions, config).await
    }

    /// Creates a topic at a Kafka of the test's own.
    pub(crate) async fn create_at(servers: &str, prefix: &str, partitions: i32, config: &[(&str, &str)]) -> Self {
        let topic = Self { name: format!("{prefix}-{}", uuid::Uuid::new_v4()), servers: servers.to_owned() };
        topic.create_again(partitions, config).await;
        topic
    }

    /// Creates a topic of one partition whose replicas are on these brokers. The first leads.
    pub(crate) async fn create_on(servers: &str, prefix: &str, brokers: &[i32], config: &[(&str, &str)]) -> Self {
        let topic = Self { name: format!("{prefix}-{}", uuid::Uuid::new_v4()), servers: servers.to_owned() };
        topic.make(1, TopicReplication::Variable(&[brokers]), config).await;
        topic
    }

    /// Creates the topic under its name, and waits until the brokers know it.
    pub(crate) async fn create_again(&self, partitions: i32, config: &[(&str, &str)]) {
        // As many replicas as the brokers are set to.
        self.make(partitions, TopicReplication::Fixed(-1), config).await;
    }

    async fn make(&self, partitions: i32, replication: TopicReplication<'_>, config: &[(&str, &str)]) {
        let mut new = NewTopic::new(&self.name, partitions, replication);
        for (name, value) in config {
            new = new.set(name, value);
        }
        let results = admin(&self.servers).create_topics([&new], &AdminOptions::new()).await.unwrap();
        assert_eq!(results, [Ok(self.name.clone())]);
        self.wait_for(usize::try_from(partitions).unwrap()).await;
    }

    /// Deletes the topic, and waits until the brokers have forgotten it.
    pub(crate) async fn delete(&self) {
        let results = admin(&self.servers).delete_topics(&[&self.name], &AdminOptions::new()).await.unwrap();
        assert_eq!(results, [Ok(self.name.clone())]);
        self.wait_for(0).await;
    }

    pub(crate) async fn add_partitions(&self, total: usize) {
        let new = NewPartitions::new(&self.name, total);
        let results = admin(&self.servers).create_partitions([&new], &AdminOptions::new()).await.unwrap();
        assert_eq!(results, [Ok(self.name.clone())]);
        self.wait_for(total).await;
    }

    async fn wait_for(&self, partitions: usize) {
        let (name, servers) = (self.name.clone(), self.servers.clone());
        tokio::task::spawn_blocking(move || {
            // A consumer, since a producer that asks for a topic may create it.
            let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
            let since = std::time::Instant::now();
            let led = |metadata: &rdkafka::metadata::Metadata| {
                metadata.topics()[0].partitions().iter().filter(|partition| partition.leader() >= 0).count()
            };
            // A broker may be slow, or on its way.
            while client.fetch_metadata(Some(&name), Duration::from_secs(10)).map_or(usize::MAX, |found| led(&found))
                != partitions
            {
                assert!(since.elapsed() < Duration::from_secs(180), "{name} does not get {partitions} partitions");
                std::thread::sleep(Duration::from_millis(50));
            }
        })
        .await
        .unwrap();
    }

    /// Waits until a broker leads the first partition.
    pub(crate) async fn led_by(&self, broker: i32) {
        let (name, servers) = (self.name.clone(), self.servers.clone());
        tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
            let since = std::time::Instant::now();
            // Whoever is asked may be the one that is away.
            while client
                .fetch_metadata(Some(&name), Duration::from_secs(5))
                .map_or(-1, |found| found.topics()[0].partitions()[0].leader())
                != broker
            {
                assert!(since.elapsed() < Duration::from_secs(180), "broker {broker} does not lead");
                std::thread::sleep(Duration::from_millis(50));
            }
        })
        .await
        .unwrap();
    }

    /// Deletes the records of a partition below an offset.
    pub(crate) async fn delete_records(&self, partition: i32, below: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.name, partition, Offset::Offset(below)).unwrap();
        admin(&self.servers).delete_records(&list, &AdminOptions::new()).await.unwrap();
    }

    /// Sends values to a partition and waits until the brokers have them.
    pub(crate) async fn fill(&self, partition: i32, values: impl IntoIterator<Item = String> + Send + 'static) {
        self.fill_with(&[], partition, values).await;
    }

    pub(crate) async fn fill_with(
        &self,
        settings: &[(&str, &str)],
        partition: i32,
        values: impl IntoIterator<Item = String> + Send + 'static,
    ) {
        let (name, producer) = (self.name.clone(), producer(settings));
        tokio::task::spawn_blocking(move || {
            for value in values {
                send(&producer, &name, partition, Sent { key: None, value: Some(value.as_bytes()), headers: None });
            }
            producer.flush(Duration::from_secs(60)).unwrap();
        })
        .await
        .unwrap();
    }
}
