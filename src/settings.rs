//! The settings of the process: what they are, their defaults, and where they come from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// All settings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `STRANDLINE_PIPELINE__...`
    pub pipeline: PipelineSettings,
    /// `STRANDLINE_KAFKA__...`
    pub kafka: KafkaSettings,
    /// `STRANDLINE_STORE__...`
    pub store: StoreSettings,
    /// `STRANDLINE_CASSANDRA__...`
    pub cassandra: CassandraSettings,
    /// `STRANDLINE_CHECKPOINT__...`
    pub checkpoint: CheckpointSettings,
    /// `STRANDLINE_HTTP__...`
    pub http: HttpSettings,
}

/// What runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineSettings {
    /// The name under which offsets and state are kept.
    pub name: String,
    /// The statements.
    pub sql: Option<String>,
    /// A file with the statements, instead of `sql`.
    pub sql_file: Option<PathBuf>,
    /// The number of shards; fixed when the pipeline first starts.
    pub shards: Option<u32>,
}

/// How Kafka is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaSettings {
    /// `host:port`, comma-separated.
    pub bootstrap_servers: String,
    /// Any librdkafka property, which wins over Strandline's own defaults.
    pub properties: BTreeMap<String, String>,
    /// How often new partitions are looked for.
    #[serde(with = "humantime_serde")]
    pub discovery_interval: Duration,
    /// The number of librdkafka clients over which partitions are spread.
    pub clients: usize,
    /// What librdkafka may hold in memory over all partitions, in bytes.
    pub fetch_memory: usize,
}

impl Default for KafkaSettings {
    fn default() -> Self {
        Self {
            bootstrap_servers: String::new(),
            properties: BTreeMap::new(),
            discovery_interval: Duration::from_secs(30),
            clients: 2,
            fetch_memory: 64 << 20,
        }
    }
}

/// Where offsets and state are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// An embedded database, for one machine.
    #[default]
    Local,
    /// Cassandra.
    Cassandra,
}

/// Which store.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// `local` or `cassandra`.
    pub kind: StoreKind,
    /// The folder of the local store.
    pub path: Option<PathBuf>,
}

/// How Cassandra is reached, for the store and for sinks.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CassandraSettings {
    /// `host:port`, comma-separated.
    pub nodes: String,
    /// The keyspace of Strandline's own tables.
    pub keyspace: String,
    /// The replication of the keyspace if it has to be created, as CQL writes it.
    pub replication: String,
    /// User name.
    pub user: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Whether to use TLS.
    pub tls: bool,
    /// A PEM file with the authorities to trust.
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the client's certificate.
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    pub tls_key: Option<PathBuf>,
    /// The time that one request may take.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// The datacenter to prefer.
    pub datacenter: Option<String>,
}

impl Default for CassandraSettings {
    fn default() -> Self {
        Self {
            nodes: "127.0.0.1:9042".into(),
            keyspace: "strandline".into(),
            replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}".into(),
            user: None,
            password: None,
            tls: false,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            timeout: Duration::from_secs(5),
            datacenter: None,
        }
    }
}

/// When state is made durable.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// The time between two checkpoints of a shard.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1) }
    }
}

/// The status page.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// The address to listen on.
    pub listen: String,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8080".into() }
    }
}
