//! The settings of the process: what they are, their defaults, and where they come from.
//!
//! Layers, each over the one before: the defaults here, TOML files, and environment variables `STRANDLINE_SECTION__NAME`.
//! Whatever is not known, cannot be read or contradicts something else is an error that says where it was given and what
//! is allowed. [`SETTINGS`] lists them all; a test holds it against these structs and against the documentation.

mod list;
mod load;
mod secret;
mod table;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strandline_actors::env::Tuning;
use strandline_actors::ports::BatchLimit;
use strandline_actors::restart::RestartPolicy;
use uuid::Uuid;

pub use list::{SETTINGS, STANDARD_VARIABLES, Setting};
pub use load::{Loaded, SettingsError, files, load};
pub use secret::Secret;
pub(crate) use secret::{HIDDEN, is_secret};
pub use table::{markdown, toml};
pub use value::{Kind, duration};

/// All settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `STRANDLINE_PIPELINE__...`
    pub pipeline: PipelineSettings,
    /// `STRANDLINE_INSTANCE__...`
    pub instance: InstanceSettings,
    /// `STRANDLINE_KAFKA__...`
    pub kafka: KafkaSettings,
    /// `STRANDLINE_STORE__...`
    pub store: StoreSettings,
    /// `STRANDLINE_CASSANDRA__...`
    pub cassandra: CassandraSettings,
    /// `STRANDLINE_CHECKPOINT__...`
    pub checkpoint: CheckpointSettings,
    /// `STRANDLINE_BATCH__...`
    pub batch: BatchSettings,
    /// `STRANDLINE_IN_FLIGHT__...`
    pub in_flight: InFlightSettings,
    /// `STRANDLINE_SUPERVISION__...`
    pub supervision: SupervisionSettings,
    /// `STRANDLINE_SHUTDOWN__...`
    pub shutdown: ShutdownSettings,
    /// `STRANDLINE_HTTP__...`
    pub http: HttpSettings,
    /// `STRANDLINE_LOG__...`
    pub log: LogSettings,
    /// `STRANDLINE_TRACES__...`
    pub traces: TraceSettings,
}

impl Settings {
    /// The number of shards that a pipeline gets that starts for the first time.
    pub fn shards(&self) -> u32 {
        self.pipeline.shards.unwrap_or_else(|| u32::try_from(cores().min(8)).unwrap_or(8))
    }

    /// The number of threads on which the actors run.
    pub fn threads(&self) -> usize {
        self.pipeline.threads.unwrap_or_else(cores)
    }

    /// The name of this instance; a fresh one for each process unless one is given.
    pub fn instance(&self) -> String {
        self.instance.id.clone().unwrap_or_else(|| Uuid::new_v4().to_string())
    }

    /// How the actors work.
    pub fn tuning(&self) -> Tuning {
        Tuning {
            checkpoint_interval: self.checkpoint.interval,
            quiet_interval: self.checkpoint.quiet_interval,
            batch: BatchLimit { rows: self.batch.rows, bytes: self.batch.bytes },
            rows_in_flight: self.in_flight.rows,
            bytes_in_flight: self.in_flight.bytes,
            pending_bytes: self.checkpoint.pending_bytes,
            discovery_interval: self.kafka.discovery_interval,
            restart: RestartPolicy {
                initial: self.supervision.initial_pause,
                max: self.supervision.max_pause,
                budget: self.supervision.budget,
                refill: self.supervision.refill,
            },
            stall: self.supervision.stall,
            poison_crashes: self.supervision.poison_crashes,
            takeover_after: self.store.takeover_after,
            trace_interval: self.traces.batch_interval,
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// The number of threads on which the actors run.
    pub threads: Option<usize>,
}

/// Which process this is, among those that run the same pipeline.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceSettings {
    /// Its name.
    pub id: Option<String>,
}

/// How Kafka is reached.
#[derive(Clone, Serialize, Deserialize)]
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
    /// What librdkafka may hold in memory over all partitions, in bytes; twice as much where they take turns in it.
    pub fetch_memory: usize,
}

impl Default for KafkaSettings {
    fn default() -> Self {
        Self {
            bootstrap_servers: String::new(),
            properties: BTreeMap::new(),
            discovery_interval: Duration::from_secs(30),
            clients: 2,
            fetch_memory: 24 << 20,
        }
    }
}

/// Shows the names of all properties, and the values of those that are no secrets.
impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties: BTreeMap<&str, &str> = self
            .properties
            .iter()
            .map(|(name, value)| (name.as_str(), if secret::is_secret(name) { secret::HIDDEN } else { value }))
            .collect();
        f.debug_struct("KafkaSettings")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("properties", &properties)
            .field("discovery_interval", &self.discovery_interval)
            .field("clients", &self.clients)
            .field("fetch_memory", &self.fetch_memory)
            .finish()
    }
}

/// Where offsets and state are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// An embedded database, for one machine.
    #[default]
    Local,
    /// Cassandra.
    Cassandra,
}

/// Which store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// `local` or `cassandra`.
    pub kind: StoreKind,
    /// The folder of the local store.
    pub path: Option<PathBuf>,
    /// How long the owner's heartbeat has to stand still until another instance takes over.
    #[serde(with = "humantime_serde")]
    pub takeover_after: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { kind: StoreKind::Local, path: Some("strandline-data".into()), takeover_after: Duration::from_secs(2) }
    }
}

/// How Cassandra is reached, for the store and for sinks.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    pub password: Option<Secret>,
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
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// The time between two checkpoints of a shard.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// The time after which a shard without new rows commits its positions.
    #[serde(with = "humantime_serde")]
    pub quiet_interval: Duration,
    /// Output rows that wait, in bytes, from which on a checkpoint is taken early.
    pub pending_bytes: usize,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), quiet_interval: Duration::from_secs(3), pending_bytes: 16 << 20 }
    }
}

/// How much is read at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSettings {
    /// Records in one batch at most.
    pub rows: usize,
    /// Payload bytes in one batch at most.
    pub bytes: usize,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { rows: 16_384, bytes: 4 << 20 }
    }
}

/// How much may be between the actors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InFlightSettings {
    /// Rows at most.
    pub rows: usize,
    /// Bytes at most.
    pub bytes: usize,
}

impl Default for InFlightSettings {
    fn default() -> Self {
        Self { rows: 524_288, bytes: 64 << 20 }
    }
}

/// When crashed actors start again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisionSettings {
    /// The pause before the second restart; the first is at once.
    #[serde(with = "humantime_serde")]
    pub initial_pause: Duration,
    /// The longest pause.
    #[serde(with = "humantime_serde")]
    pub max_pause: Duration,
    /// Restarts until the actor halts.
    pub budget: u32,
    /// The healthy time after which the budget is full again.
    #[serde(with = "humantime_serde")]
    pub refill: Duration,
    /// How long an actor may stand still with work before it.
    #[serde(with = "humantime_serde")]
    pub stall: Duration,
    /// After how many crashes at one place the record that causes them is looked for.
    pub poison_crashes: u32,
}

impl Default for SupervisionSettings {
    fn default() -> Self {
        Self {
            initial_pause: Duration::from_millis(500),
            max_pause: Duration::from_secs(60),
            budget: 20,
            refill: Duration::from_secs(120),
            stall: Duration::from_secs(60),
            poison_crashes: 3,
        }
    }
}

/// How the process ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownSettings {
    /// The time that the last checkpoint and the rest of the end may take.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
}

impl Default for ShutdownSettings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(25) }
    }
}

/// The status page.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// The address to listen on, or `off`.
    pub listen: String,
    /// What whoever wants to change something has to send.
    pub token: Option<Secret>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { listen: "127.0.0.1:8080".into(), token: None }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The log, which goes to standard error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// How lines look.
    pub format: LogFormat,
    /// What is logged, in the form of `RUST_LOG`.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".into() }
    }
}

/// What is traced. Where traces go is in the standard variables of OpenTelemetry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceSettings {
    /// Of each partition, the first batch in each such interval is traced.
    #[serde(with = "humantime_serde")]
    pub batch_interval: Duration,
}

impl Default for TraceSettings {
    fn default() -> Self {
        Self { batch_interval: Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_actors() {
        assert_eq!(format!("{:?}", Settings::default().tuning()), format!("{:?}", Tuning::default()));
    }

    #[test]
    fn secrets_are_never_shown() {
        let mut settings = Settings::default();
        settings.cassandra.password = Some("geheim-1".into());
        for (name, value) in [
            ("sasl.password", "geheim-2"),
            ("ssl.key.password", "geheim-3"),
            ("ssl.keystore.password", "geheim-4"),
            ("sasl.oauthbearer.client.secret", "geheim-5"),
            ("ssl.key.pem", "geheim-6"),
            ("sasl.oauthbearer.config", "geheim-7"),
            ("ssl.ca.location", "/etc/ca.pem"),
        ] {
            settings.kafka.properties.insert(name.into(), value.into());
        }
        let shown = format!("{settings:?} {settings:#?}");
        assert!(!shown.contains("geheim"), "{shown}");
        assert!(shown.contains("/etc/ca.pem") && shown.contains("sasl.password"), "{shown}");
        settings.http.token = Some("geheim-8".into());
        let shown = format!("{:?} {:#?}", settings.http, settings.http);
        let json = serde_json::to_string(&(&settings.cassandra, &settings.http)).unwrap_or_default();
        assert!(!json.contains("geheim") && !shown.contains("geheim"), "{json} {shown}");
    }
}
