//! The one list of all settings. The documentation, the sample file and the checks of what was given are made from it.

use super::value::Kind;

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Section and name, as a TOML file has them.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Its default as it would be written; empty if there is none.
    pub default: &'static str,
    /// What it is for.
    pub meaning: &'static str,
}

impl Setting {
    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("STRANDLINE_{}", self.name.to_ascii_uppercase().replace('.', "__"))
    }
}

/// Variables with names of their own, since other tools know them by these.
pub const STANDARD_VARIABLES: &[(&str, &str)] = &[
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Where traces go, and metrics if that is asked for, such as `http://localhost:4317` for gRPC or `http://localhost:4318` for HTTP, where `/v1/traces` \
         and `/v1/metrics` are added. Unset: there are no traces. TLS is not spoken: send to a collector or an agent nearby.",
    ),
    (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "The same for traces alone, and for HTTP with its whole path. Wins over it.",
    ),
    (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "`grpc` (default) or `http/protobuf`. `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` and `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL` win over it.",
    ),
    (
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Headers that are sent along, `name=value,...`. Never shown. `OTEL_EXPORTER_OTLP_TRACES_HEADERS` and \
         `OTEL_EXPORTER_OTLP_METRICS_HEADERS` win over it.",
    ),
    (
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "The time that one request may take, in milliseconds. Default 10000. `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` and \
         `OTEL_EXPORTER_OTLP_METRICS_TIMEOUT` win over it.",
    ),
    (
        "OTEL_EXPORTER_OTLP_COMPRESSION",
        "Only `none`, also in `OTEL_EXPORTER_OTLP_TRACES_COMPRESSION` and `OTEL_EXPORTER_OTLP_METRICS_COMPRESSION`.",
    ),
    (
        "OTEL_TRACES_EXPORTER",
        "`otlp`, also without an endpoint: then to `localhost`, on 4317 or 4318. `none`: there are no traces.",
    ),
    (
        "OTEL_METRICS_EXPORTER",
        "`otlp`: metrics are sent, too, by default to `localhost`, on 4317 or 4318. Default `none`: `/metrics` is there to be \
         fetched.",
    ),
    (
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "Where metrics alone are sent, for HTTP with the whole path; they are, if it is set. Wins over \
         `OTEL_EXPORTER_OTLP_ENDPOINT`.",
    ),
    (
        "OTEL_METRIC_EXPORT_INTERVAL",
        "The time from one sending of the metrics to the next, in milliseconds. Default 60000.",
    ),
    ("OTEL_SDK_DISABLED", "`true`: there are no traces, and no metrics are sent."),
    ("OTEL_SERVICE_NAME", "The service's name in traces and metrics. Default `strandline`."),
    ("OTEL_RESOURCE_ATTRIBUTES", "Further attributes of the service in traces and metrics, `name=value,...`."),
    (
        "OTEL_TRACES_SAMPLER",
        "Which traces are kept of those that are made: `always_on`, `always_off` or `traceidratio`, also after \
         `parentbased_`. Default `parentbased_always_on`. Of batches one a second of each partition is made; for a share of \
         all batches set `STRANDLINE_TRACES__BATCH_INTERVAL` to `0s` too.",
    ),
    ("OTEL_TRACES_SAMPLER_ARG", "For `traceidratio` the share, from 0 to 1."),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "Spans that wait to be sent at most; more are dropped and counted. Default 8192."),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "Spans that are sent at once at most. Default 512."),
    ("OTEL_BSP_SCHEDULE_DELAY", "How long a span waits for others to be sent with, in milliseconds. Default 1000."),
    (
        "OTEL_BSP_EXPORT_TIMEOUT",
        "The time that sending some spans may take with all repetitions, in milliseconds. Default 30000.",
    ),
    (
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
        "Attributes of a span at most, and so for `OTEL_SPAN_EVENT_COUNT_LIMIT` and `OTEL_SPAN_LINK_COUNT_LIMIT`. Default \
         128 each.",
    ),
];

const fn setting(name: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Setting {
    Setting { name, kind, default, meaning }
}

const MIB: u64 = 1 << 20;
const MOST: u64 = u32::MAX as u64;

/// All settings, in the order in which they are documented.
pub const SETTINGS: &[Setting] = &[
    setting(
        "pipeline.name",
        Kind::Text,
        "",
        "The name under which offsets and state are kept. Needed to run. Another name is another pipeline, which starts \
         from nothing.",
    ),
    setting("pipeline.sql", Kind::Text, "", "The statements. Needed to run, or `pipeline.sql_file`."),
    setting("pipeline.sql_file", Kind::Path, "", "A file with the statements, instead of `pipeline.sql`."),
    setting(
        "pipeline.shards",
        Kind::Count(1, 1024),
        "",
        "Into how many shards the keys are split. Fixed when the pipeline first starts; later another number is refused. \
         Unset: the number of cores, at most 8.",
    ),
    setting(
        "pipeline.threads",
        Kind::Count(1, 1024),
        "",
        "The number of threads on which the actors run. Unset: the number of cores.",
    ),
    setting(
        "instance.id",
        Kind::Text,
        "",
        "The name of this instance of the pipeline. A process that starts under the name of the owner takes over at once; \
         any other waits until the owner is gone. Set it to the name of the pod or the host to restart without the wait \
         after a crash; no two processes that may live at the same time can share it. Unset: a new name for each process.",
    ),
    setting(
        "kafka.bootstrap_servers",
        Kind::Text,
        "",
        "Kafka brokers to ask first, `host:port`, comma-separated. Needed to run.",
    ),
    setting(
        "kafka.properties",
        Kind::Properties,
        "",
        "Any librdkafka properties, over Strandline's own defaults. In a variable a JSON object or lines of `name=value`; \
         or one variable each, such as `STRANDLINE_KAFKA__PROPERTIES__SECURITY_PROTOCOL` for `security.protocol`; in a \
         file a table with quoted names. Those that would break the promises are refused.",
    ),
    setting("kafka.discovery_interval", Kind::Duration(100), "30s", "How often new partitions are looked for."),
    setting(
        "kafka.clients",
        Kind::Count(1, 64),
        "2",
        "The number of librdkafka clients over which the partitions are spread; each fetches on a thread of its own.",
    ),
    setting(
        "kafka.fetch_memory",
        Kind::Bytes(MIB),
        "24MiB",
        "What librdkafka may hold in memory of records not yet taken, over all partitions; twice as much where more than eight take turns in it.",
    ),
    setting(
        "store.kind",
        Kind::Choice(&["local", "cassandra"]),
        "local",
        "Where offsets and state are kept: in an embedded database in a folder of this machine, or in Cassandra.",
    ),
    setting("store.path", Kind::Path, "strandline-data", "The folder of the local store."),
    setting(
        "store.takeover_after",
        Kind::Duration(100),
        "2s",
        "How long the owner's heartbeat has to stand still, by this process's own clock, until it takes over from another \
         instance. Until then it is a standby. An owner that stops by itself lets go of the pipeline at once.",
    ),
    setting(
        "cassandra.nodes",
        Kind::Text,
        "127.0.0.1:9042",
        "Cassandra nodes to ask first, `host:port`, comma-separated. For the store and for tables that are written.",
    ),
    setting(
        "cassandra.keyspace",
        Kind::Text,
        "strandline",
        "The keyspace of Strandline's own tables. Made if missing.",
    ),
    setting(
        "cassandra.replication",
        Kind::Text,
        "{'class': 'SimpleStrategy', 'replication_factor': 1}",
        "The replication of that keyspace if it has to be made, as CQL writes it. With more than one node, set it: with \
         one copy the loss of a node is the loss of state.",
    ),
    setting("cassandra.user", Kind::Text, "", "The user's name. Unset: no login."),
    setting("cassandra.password", Kind::Secret, "", "The user's password."),
    setting("cassandra.tls", Kind::Flag, "false", "Whether to use TLS."),
    setting(
        "cassandra.tls_ca",
        Kind::Path,
        "",
        "A PEM file with the authorities to trust. Unset: those that the system trusts.",
    ),
    setting("cassandra.tls_cert", Kind::Path, "", "A PEM file with the client's certificate."),
    setting("cassandra.tls_key", Kind::Path, "", "A PEM file with the client's key."),
    setting("cassandra.timeout", Kind::Duration(1), "5s", "The time that one request may take."),
    setting("cassandra.datacenter", Kind::Text, "", "The datacenter whose nodes are preferred."),
    setting(
        "checkpoint.interval",
        Kind::Duration(1),
        "1s",
        "The time between two checkpoints of a shard, and so about how old results are.",
    ),
    setting(
        "checkpoint.quiet_interval",
        Kind::Duration(1),
        "3s",
        "The time after which a shard without new rows commits its positions.",
    ),
    setting(
        "checkpoint.pending_bytes",
        Kind::Bytes(1),
        "16MiB",
        "Output rows that wait for a checkpoint: from so many on, one is taken early.",
    ),
    setting("batch.rows", Kind::Count(1, MOST), "16384", "Records in one batch at most."),
    setting(
        "batch.bytes",
        Kind::Bytes(1),
        "4MiB",
        "Payload in one batch at most; a larger record is a batch of its own.",
    ),
    setting(
        "in_flight.rows",
        Kind::Count(1, MOST),
        "524288",
        "Records that may be between reading and state at most, over all partitions.",
    ),
    setting(
        "in_flight.bytes",
        Kind::Bytes(1),
        "64MiB",
        "Payload that may be between reading and state at most, over all partitions.",
    ),
    setting(
        "supervision.initial_pause",
        Kind::Duration(0),
        "500ms",
        "The pause before the second restart of an actor. The first is at once; each further pause is twice as long. Up \
         to half of a pause is left out at random.",
    ),
    setting("supervision.max_pause", Kind::Duration(0), "1m", "The longest pause."),
    setting(
        "supervision.budget",
        Kind::Count(0, MOST),
        "20",
        "So many restarts; then that partition or shard halts and the rest goes on.",
    ),
    setting("supervision.refill", Kind::Duration(0), "2m", "The healthy time after which the budget is full again."),
    setting(
        "supervision.stall",
        Kind::Duration(10),
        "1m",
        "How long an actor may stand still with work before it, until it is restarted and `/healthz` fails.",
    ),
    setting(
        "supervision.poison_crashes",
        Kind::Count(1, MOST),
        "3",
        "After so many crashes at one place, the record that causes them is looked for and put with the dead letters.",
    ),
    setting(
        "shutdown.deadline",
        Kind::Duration(0),
        "25s",
        "The time that the last checkpoint and the rest of the end may take after SIGTERM. Below Kubernetes' 30 s.",
    ),
    setting(
        "http.listen",
        Kind::Text,
        "127.0.0.1:8080",
        "Where the status page, health and metrics are served; `off` for nowhere. Reading needs no password: open it to \
         other machines only where all may see it. Commands such as `strandline status` ask there, too.",
    ),
    setting(
        "http.token",
        Kind::Secret,
        "",
        "What whoever wants to pause, resume or kill something has to send along (`Authorization: Bearer ...`), at least 16 \
         characters; the commands send it. Unset: on a loopback address nothing need be sent, elsewhere nothing can be \
         changed.",
    ),
    setting(
        "log.format",
        Kind::Choice(&["text", "json"]),
        "text",
        "How log lines look. The log goes to standard error.",
    ),
    setting(
        "log.level",
        Kind::Text,
        "info",
        "What is logged: `error`, `warn`, `info`, `debug` or `trace`, also by module, such as \
         `info,strandline::kafka=debug`.",
    ),
    setting(
        "traces.batch_interval",
        Kind::Duration(0),
        "1s",
        "Of each partition, the first batch in each such interval has a trace, as has every checkpoint and every restart. \
         `0s`: every batch. Where traces go is in the variables of OpenTelemetry below.",
    ),
];
