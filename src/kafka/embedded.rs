//! A Kafka inside the process, for the demo and for tests of faults: librdkafka's mock cluster.
//!
//! It speaks the protocol over real sockets, but it is no Kafka: it keeps only the last 5 MiB of each partition, knows no
//! retention settings, and hands out records of transactions before they are committed. So whoever produces to it must
//! not run ahead of the reader by more than that, and nothing that is shown on it proves anything about transactions.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

/// The cluster, as librdkafka's crate gives it.
type Mock = MockCluster<'static, DefaultProducerContext>;
type Call = Box<dyn FnOnce(&Mock) + Send>;

/// What one partition of the embedded Kafka keeps, in bytes; older records are deleted.
pub const EMBEDDED_RETENTION: usize = 5 << 20;

/// A running embedded Kafka. Stops when it is dropped.
pub struct EmbeddedKafka {
    servers: String,
    /// The cluster's handle stays on one thread; calls are sent there.
    calls: Option<mpsc::Sender<Call>>,
    thread: Option<JoinHandle<()>>,
}

/// Why there is no embedded Kafka.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// librdkafka does not start it.
    #[error("the embedded Kafka does not start: {0}")]
    Start(String),
    /// It does not do what was asked.
    #[error("the embedded Kafka does not {what}: {reason}")]
    Call {
        /// What was asked.
        what: String,
        /// librdkafka's words.
        reason: KafkaError,
    },
    /// It has stopped.
    #[error("the embedded Kafka has stopped")]
    Stopped,
}

impl EmbeddedKafka {
    /// Starts so many brokers on free ports of the loopback address.
    pub fn start(brokers: i32) -> Result<Self, EmbeddedError> {
        let (calls, inbox) = mpsc::channel::<Call>();
        let (started, wait) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("embedded-kafka".into())
            .spawn(move || match Mock::new(brokers) {
                Ok(mock) => {
                    let _ = started.send(Ok(mock.bootstrap_servers()));
                    for call in inbox {
                        call(&mock);
                    }
                }
                Err(error) => drop(started.send(Err(EmbeddedError::Start(error.to_string())))),
            })
            .map_err(|error| EmbeddedError::Start(error.to_string()))?;
        let servers = wait.recv().unwrap_or(Err(EmbeddedError::Stopped))?;
        Ok(Self { servers, calls: Some(calls), thread: Some(thread) })
    }

    /// `host:port`, comma-separated.
    pub fn bootstrap_servers(&self) -> &str {
        &self.servers
    }

    /// Creates a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), EmbeddedError> {
        let topic = name.to_owned();
        self.call(move |mock| mock.create_topic(&topic, partitions, 1))?
            .map_err(|reason| EmbeddedError::Call { what: format!("create topic `{name}`"), reason })
    }

    /// Calls the cluster itself, to make brokers go away, answer late or with faults.
    pub fn call<R: Send + 'static>(&self, call: impl FnOnce(&Mock) -> R + Send + 'static) -> Result<R, EmbeddedError> {
        let (answer, wait) = mpsc::channel();
        let call: Call = Box::new(move |mock| drop(answer.send(call(mock))));
        self.calls.as_ref().and_then(|calls| calls.send(call).ok()).ok_or(EmbeddedError::Stopped)?;
        wait.recv().map_err(|_| EmbeddedError::Stopped)
    }
}

impl Drop for EmbeddedKafka {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
