//! Sends records to Kafka, for commands: each is acknowledged by all replicas that are in sync, or its fault is told.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError as Fault, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::util::Timeout;

use crate::catalog::KafkaTopic;
use crate::settings::KafkaSettings;

use super::client::{KafkaError, Properties};

/// How long a record may take until it is acknowledged.
const PATIENCE: Duration = Duration::from_secs(30);

/// A record that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition; `None`: by its key.
    pub partition: Option<i32>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its timestamp in milliseconds.
    pub timestamp: Option<i64>,
    /// A header, by its name.
    pub header: Option<(&'a str, &'a str)>,
}

/// Hears what is wrong with the brokers, which a record that is late does not tell.
#[derive(Clone, Debug, Default)]
struct Ear(Arc<Mutex<Option<String>>>);

impl ClientContext for Ear {
    fn error(&self, error: Fault, reason: &str) {
        // That none is up says less than why.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        }
    }

    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "librdkafka", facility, "{line}");
    }
}

/// A producer.
pub struct Sender {
    producer: FutureProducer<Ear>,
    ear: Ear,
    servers: String,
    config: ClientConfig,
}

impl Sender {
    /// A producer with the properties by which a topic is read.
    pub fn new(settings: &KafkaSettings, topic: &KafkaTopic) -> Result<Self, KafkaError> {
        let properties = Properties::new(settings, topic)?;
        let mut config = ClientConfig::new();
        for (name, value) in properties.for_producer() {
            config.set(name, value);
        }
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "5")
            .set("message.timeout.ms", PATIENCE.as_millis().to_string());
        // The brokers know how large a record of the topic may be.
        if config.get("message.max.bytes").is_none() {
            config.set("message.max.bytes", "1000000000");
        }
        let ear = Ear::default();
        let servers = properties.servers().to_owned();
        match config.create_with_context(ear.clone()) {
            Ok(producer) => Ok(Self { producer, ear, servers, config }),
            Err(error) => Err(KafkaError::Client { servers, reason: error.to_string() }),
        }
    }

    /// Sends a record and waits until the brokers have it. Answers the partition and the offset that it got.
    pub async fn send(&self, record: Outgoing<'_>) -> Result<(i32, i64), String> {
        let mut outgoing = FutureRecord::<[u8], [u8]>::to(record.topic);
        outgoing.headers = record
            .header
            .map(|(name, value)| OwnedHeaders::new_with_capacity(1).insert(Header { key: name, value: Some(value) }));
        (outgoing.partition, outgoing.timestamp) = (record.partition, record.timestamp);
        (outgoing.key, outgoing.payload) = (record.key, record.value);
        match self.producer.send(outgoing, Timeout::After(PATIENCE)).await {
            Ok(delivery) => Ok((delivery.partition, delivery.offset)),
            Err((error, _)) => {
                let heard = self.ear.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let why = heard.map(|heard| format!(" ({heard})")).unwrap_or_default();
                Err(format!("Kafka at {} did not take it: {error}{why}", self.servers))
            }
        }
    }

    /// Makes a topic if it is not there, with as many replicas as the brokers are set to. Answers how many partitions it has.
    pub async fn ensure_topic(&self, topic: &str, partitions: i32) -> Result<u64, String> {
        let failed = |why: String| format!("Kafka at {} does not make topic {topic}: {why}", self.servers);
        let mut config = ClientConfig::new();
        let of_producers =
            |name: &str| matches!(name, "acks" | "enable.idempotence" | "linger.ms" | "message.timeout.ms");
        self.config.config_map().iter().filter(|(name, _)| !of_producers(name)).for_each(|(name, value)| {
            config.set(*name, *value);
        });
        let admin: AdminClient<Ear> =
            config.create_with_context(self.ear.clone()).map_err(|error| failed(error.to_string()))?;
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(Timeout::After(PATIENCE)));
        let made = admin.create_topics([&new], &options).await.map_err(|error| {
            let heard = self.ear.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            failed(heard.map_or_else(|| error.to_string(), |heard| format!("{error} ({heard})")))
        })?;
        match made.into_iter().next() {
            Some(Err((_, code))) if code != RDKafkaErrorCode::TopicAlreadyExists => {
                return Err(failed(code.to_string()));
            }
            _ => {}
        }
        let (producer, topic) = (self.producer.clone(), topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || -> Result<u64, Fault> {
            let begun = Instant::now();
            loop {
                // A topic that was just made is not known to every broker at once.
                let known = producer.client().fetch_metadata(Some(&topic), PATIENCE)?;
                match known.topics().first().map_or(0, |topic| topic.partitions().len() as u64) {
                    0 if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
                    0 => return Err(Fault::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition)),
                    partitions => return Ok(partitions),
                }
            }
        });
        asked.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
    }
}
