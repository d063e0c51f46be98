//! The metrics: what is measured, as families of samples, computed from one picture of the board each time they are asked for.
//!
//! Prometheus' text and OpenTelemetry's messages are both made of the same families, so they never differ.

mod text;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strandline_actors::balance::Balance;
use strandline_actors::board::{Life, PartitionStatus, ShardStatus, Snapshot};
use strandline_actors::child::RESTARTS;
use strandline_actors::position::{Counts, PartitionKey};

use super::connectors::{Connector, Connectors};
use super::health::life;
use super::planned::Place;
use crate::sinks::Written;
use crate::sql::RowCounts;
use crate::telemetry::{Family, Labels, Value};

pub(super) use text::{CONTENT_TYPE, text};

/// What is measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) board: Snapshot,
    pub(super) shards: u32,
    pub(super) connectors: Connectors,
    pub(super) healthy: bool,
    pub(super) ready: bool,
    pub(super) since: Duration,
    pub(super) sinks: Vec<Written>,
    /// What became of the rows of each INSERT, by its table.
    pub(super) inserts: Vec<(String, RowCounts)>,
    pub(super) spans_sent: u64,
    pub(super) spans_dropped: u64,
    pub(super) pushes_sent: u64,
    pub(super) pushes_dropped: u64,
}

/// Gathers families one after another.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, name: String, help: &'static str, counter: bool, samples: Vec<(Labels, Value)>) {
        self.0.push(Family { name, help, counter, samples });
    }

    fn gauges<V: Into<Value>>(
        &mut self,
        name: &str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let samples = samples.into_iter().map(|(labels, value)| (labels, value.into())).collect();
        self.add(format!("strandline_{name}"), help, false, samples);
    }

    fn counters<V: Into<Value>>(
        &mut self,
        name: &str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let samples = samples.into_iter().map(|(labels, value)| (labels, value.into())).collect();
        self.add(format!("strandline_{name}"), help, true, samples);
    }

    fn gauge<V: Into<Value>>(&mut self, name: &str, help: &'static str, value: V) {
        self.gauges(name, help, [(Labels::new(), value)]);
    }

    fn counter<V: Into<Value>>(&mut self, name: &str, help: &'static str, value: V) {
        self.counters(name, help, [(Labels::new(), value)]);
    }
}

/// What became of offsets, by the names that the label `outcome` has.
pub(super) fn outcomes(counts: &Counts) -> [(&'static str, u64); 9] {
    [
        ("processed", counts.processed),
        ("filtered", counts.filtered),
        ("late", counts.late),
        ("late_closed", counts.late_closed),
        ("dead_lettered", counts.dead_lettered),
        ("skipped", counts.skipped),
        ("tombstone", counts.tombstones),
        ("gap", counts.gaps),
        ("lost", counts.lost),
    ]
}

/// The labels with one more for each outcome.
fn by_outcome(labels: &Labels, counts: &Counts) -> Vec<(Labels, u64)> {
    let with = |outcome: &str| labels.iter().cloned().chain([("outcome", outcome.to_owned())]).collect();
    outcomes(counts).map(|(outcome, count)| (with(outcome), count)).to_vec()
}

impl Measured {
    /// The partitions by their labels. A topic that was deleted and made again has two lives on the board; a series may
    /// exist only once, and the one that is read counts.
    fn partitions(&self) -> Vec<(Labels, PartitionKey, &PartitionStatus)> {
        let mut shown: BTreeMap<(&str, i32), (PartitionKey, &PartitionStatus)> = BTreeMap::new();
        for (key, status) in &self.board.partitions {
            let place = shown.entry((&status.topic, status.partition)).or_insert((*key, status));
            if place.1.actor.life == Life::Halted {
                *place = (*key, status);
            }
        }
        let labels = |topic: &str, partition: i32| vec![("topic", topic.into()), ("partition", partition.to_string())];
        shown.into_iter().map(|((topic, partition), (key, status))| (labels(topic, partition), key, status)).collect()
    }

    fn shards(&self) -> Vec<(Labels, &ShardStatus)> {
        self.board.shards.iter().map(|(shard, status)| (vec![("shard", shard.to_string())], status)).collect()
    }

    fn of_partitions(&self, families: &mut Families) {
        let all = self.partitions();
        let each = || all.iter().map(|(labels, _, status)| (labels.clone(), *status));
        families.gauges("partition_position", "The next offset to read", each().map(|(l, s)| (l, s.position.0)));
        let known = || each().filter_map(|(labels, status)| Some((labels, status.end?.0, status.lag()?)));
        families.gauges("partition_end", "The end of the log", known().map(|(l, end, _)| (l, end)));
        families.gauges("partition_lag", "Offsets between position and end", known().map(|(l, _, lag)| (l, lag)));
        families.gauges(
            "partition_lag_seconds",
            "How old the oldest record that was not read is at most; 0 at the end of the log",
            each().filter_map(|(l, s)| Some((l, s.lag_seconds?))),
        );
        families.gauges(
            "partition_progress_age_seconds",
            "The time since it last got on or had nothing to do",
            each().map(|(l, s)| (l, s.progress.elapsed().as_secs_f64())),
        );
        families.gauges(
            "partition_watermark_seconds",
            "Event time up to which it is complete, since the epoch",
            each().filter_map(|(l, s)| Some((l, s.watermark? as f64 / 1e9))),
        );
        families.gauges(
            "partition_up",
            "Whether its actor works",
            each().map(|(l, s)| (l, i64::from(s.actor.life == Life::Running))),
        );
        families.counters("partition_records", "Records read, replays included", each().map(|(l, s)| (l, s.rows)));
        families.counters("partition_bytes", "Payload read, replays included", each().map(|(l, s)| (l, s.bytes)));
        families.counters("partition_batches", "Batches read", each().map(|(l, s)| (l, s.batches)));
        families.counters(
            "partition_stage_seconds",
            "Time in the source stage",
            each().map(|(l, s)| (l, seconds(s.stage_micros))),
        );
        families.counters(
            "partition_blocked_seconds",
            "Time waiting for credit and for shards",
            each().map(|(l, s)| (l, seconds(s.blocked_micros))),
        );
        families.counters(
            "partition_credit_wait_seconds",
            "Time of this waiting for credit: as much is in flight as may be",
            each().map(|(l, s)| (l, seconds(s.credit_micros))),
        );
    }

    fn of_balance(&self, families: &mut Families) {
        let all: Vec<(Labels, Balance)> = self
            .partitions()
            .into_iter()
            .filter_map(|(labels, key, _)| Some((labels, self.board.balance(&key, self.shards)?)))
            .collect();
        let each = || all.iter().map(|(labels, balance)| (labels.clone(), *balance));
        families.gauges(
            "partition_committed",
            "The next offset that not all shards have committed yet",
            each().map(|(l, b)| (l, b.position.0)),
        );
        families.gauges(
            "partition_counted_from",
            "The offset from which on each is counted below",
            each().map(|(l, b)| (l, b.from.0)),
        );
        families.gauges(
            "partition_offsets",
            "What became of each committed offset, over all shards",
            all.iter().flat_map(|(labels, balance)| by_outcome(labels, &balance.counts)),
        );
        families.gauges(
            "partition_unbalanced",
            "Offsets that were counted and not passed, or passed and not counted (below 0): always 0",
            each().map(|(l, b)| (l, b.off)),
        );
    }

    fn of_shards(&self, families: &mut Families) {
        let all = self.shards();
        let each = || all.iter().map(|(labels, status)| (labels.clone(), *status));
        families.gauges("shard_keys", "Keys in its state", each().map(|(l, s)| (l, s.keys as i64)));
        families.gauges(
            "shard_state_bytes",
            "About how much memory its state takes",
            each().map(|(l, s)| (l, s.bytes as i64)),
        );
        families.gauges("shard_epoch", "The epoch of its last checkpoint", each().map(|(l, s)| (l, s.epoch.0)));
        families.gauges(
            "shard_checkpoint_duration_seconds",
            "How long its last checkpoint took until its output was delivered",
            each().map(|(l, s)| (l, seconds(s.checkpoint_micros))),
        );
        families.gauges(
            "shard_checkpoint_bytes",
            "The encoded size of its last checkpoint",
            each().map(|(l, s)| (l, s.checkpoint_bytes)),
        );
        families.gauges(
            "shard_checkpoint_age_seconds",
            "The time since its last checkpoint",
            each().filter_map(|(l, s)| Some((l, s.committed?.elapsed().as_secs_f64()))),
        );
        families.gauges(
            "shard_watermark_seconds",
            "The lowest watermark over its partitions, since the epoch",
            each().filter_map(|(l, s)| Some((l, s.watermark? as f64 / 1e9))),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        families.gauges(
            "shard_watermark_delay_seconds",
            "How far its watermark is behind the clock; below 0, ahead of it",
            each().filter_map(|(l, s)| Some((l, now - s.watermark? as f64 / 1e9))),
        );
        families.gauges(
            "shard_up",
            "Whether its actor works",
            each().map(|(l, s)| (l, i64::from(s.actor.life == Life::Running))),
        );
        families.counters("shard_checkpoints", "Checkpoints committed", each().map(|(l, s)| (l, s.checkpoints)));
        families.counters("shard_rows", "Rows that its lanes brought", each().map(|(l, s)| (l, s.rows)));
        families.counters("shard_replays", "Ranges that it had taken before", each().map(|(l, s)| (l, s.replays)));
        // Gauges: these count since the pipeline began, and after a crash they go on from the last checkpoint.
        let outcomes = all.iter().flat_map(|(labels, status)| by_outcome(labels, &status.counts));
        families.gauges("shard_offsets", "What became of each offset since the pipeline began", outcomes);
        families.gauges(
            "shard_ahead",
            "Records whose event time was too far ahead to move the watermark",
            each().map(|(l, s)| (l, s.counts.ahead)),
        );
    }

    fn of_actors(&self, families: &mut Families) {
        let board = &self.board;
        let mut restarts: BTreeMap<Labels, u64> = BTreeMap::new();
        let mut lives: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        // A topic that was made again has two actors of one name.
        let mut waiting: BTreeMap<Labels, i64> = BTreeMap::new();
        for (id, actor) in board.actors() {
            let kind = id.kind();
            *lives.entry((kind, life(actor.life))).or_default() += 1;
            let labels = vec![("kind", kind.to_owned()), ("actor", board.name(id))];
            for cause in RESTARTS {
                let labels = labels.iter().cloned().chain([("cause", cause.to_owned())]).collect();
                *restarts.entry(labels).or_default() += actor.causes.get(cause).copied().unwrap_or_default();
            }
            *waiting.entry(labels).or_default() += actor.mailbox.waiting() as i64;
        }
        families.gauges("actor_mailbox_messages", "Messages that wait in its mailbox", waiting);
        families.counters("actor_restarts", "Restarts after a crash, by its cause", restarts);
        families.gauges(
            "actors",
            "Actors by what they are doing",
            lives
                .into_iter()
                .map(|((kind, life), count)| (vec![("kind", kind.to_owned()), ("life", life.to_owned())], count)),
        );
        families.counter("commits", "Checkpoints committed", board.committer.commits);
        families.counter(
            "retries",
            "Requests to the store or the sink that had to be repeated",
            board.committer.retries,
        );
        families.gauge("generation", "The generation of this process", board.generation.0);
    }

    fn of_connectors(&self, families: &mut Families) {
        let Connectors { sources, sinks, store } = &self.connectors;
        let all = sources.iter().map(|source| ("source", &source.connector));
        let all = all.chain(sinks.iter().map(|sink| ("sink", &sink.connector))).chain([("store", store)]);
        let labels = |role: &str, connector: &Connector| -> Labels {
            let Place { table, kind, .. } = &connector.place;
            vec![("role", role.to_owned()), ("table", table.clone()), ("kind", (*kind).to_owned())]
        };
        let mut up: BTreeMap<Labels, i64> = BTreeMap::new();
        let mut retries: BTreeMap<Labels, u64> = BTreeMap::new();
        for (role, of) in all {
            // Two INSERTs may have one table.
            let works = up.entry(labels(role, of)).or_insert(1);
            *works = (*works).min(i64::from(of.state.is_up()));
            *retries.entry(labels(role, of)).or_default() += of.retries;
        }
        families.gauges("connector_up", "Whether the system behind it answers", up);
        families.counters("connector_retries", "Connections and requests that were tried again", retries);
    }

    fn of_inserts(&self, families: &mut Families) {
        let rows = self.inserts.iter().flat_map(|(table, counts)| {
            [
                ("processed", counts.processed),
                ("filtered", counts.filtered),
                ("late", counts.late),
                ("late_closed", counts.late_closed),
            ]
            .map(|(outcome, count)| (vec![("table", table.clone()), ("outcome", outcome.to_owned())], count))
        });
        let mut sums: BTreeMap<Labels, u64> = BTreeMap::new();
        rows.for_each(|(labels, count)| *sums.entry(labels).or_default() += count);
        families.counters("insert_rows", "What became of the rows of each INSERT, repetitions included", sums);
    }

    fn of_sinks(&self, families: &mut Families) {
        if self.sinks.is_empty() {
            return;
        }
        // Two may have one table, where its rows do not replace each other.
        let mut written: BTreeMap<Labels, u64> = BTreeMap::new();
        let mut refused: BTreeMap<Labels, u64> = BTreeMap::new();
        let mut deliveries: BTreeMap<Labels, (u64, u64)> = BTreeMap::new();
        let mut epochs: BTreeMap<Labels, i64> = BTreeMap::new();
        for Written { table, counts, epochs: taken, .. } in &self.sinks {
            for (shard, epoch) in taken {
                let last = epochs.entry(vec![("table", table.clone()), ("shard", shard.to_string())]).or_default();
                *last = epoch.0.max(*last);
            }
            for (change, count) in [("upsert", counts.upserts), ("delete", counts.deletes)] {
                *written.entry(vec![("table", table.clone()), ("change", change.to_owned())]).or_default() += count;
            }
            for (reason, count) in [
                ("null_key", counts.null_keys),
                ("empty_key", counts.empty_keys),
                ("long_key", counts.long_keys),
                ("unfit_key", counts.unfit_keys),
            ] {
                *refused.entry(vec![("table", table.clone()), ("reason", reason.to_owned())]).or_default() += count;
            }
            let delivered = deliveries.entry(vec![("table", table.clone())]).or_default();
            *delivered = (delivered.0 + counts.deliveries, delivered.1 + counts.delivery_micros);
        }
        families.counters("sink_rows", "Rows written, repetitions included", written);
        families.gauges("sink_epoch", "The epoch of the last output of a shard that it took", epochs);
        let delivered = || deliveries.iter().map(|(labels, delivered)| (labels.clone(), *delivered));
        families.counters(
            "sink_deliveries",
            "Outputs of checkpoints that were delivered",
            delivered().map(|(labels, (count, _))| (labels, count)),
        );
        families.counters(
            "sink_delivery_seconds",
            "The time that this took",
            delivered().map(|(labels, (_, micros))| (labels, seconds(micros))),
        );
        families.counters(
            "sink_refused_rows",
            "Rows that cannot be written, since the table's key does not take them",
            refused,
        );
    }
}

impl Measured {
    /// Everything that is measured.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families = Families::default();
        families.gauges(
            "build_info",
            "The version",
            [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1_i64)],
        );
        families.gauge("healthy", "Whether /healthz answers 200", i64::from(self.healthy));
        families.gauge("ready", "Whether /readyz answers 200", i64::from(self.ready));
        families.gauge("uptime_seconds", "The age of the process", self.since.as_secs_f64());
        families.counter("spans_sent", "Trace spans that the collector took", self.spans_sent);
        families.counter("spans_dropped", "Trace spans that were dropped", self.spans_dropped);
        families.counter("metrics_sent", "How often all metrics were sent by OTLP and taken", self.pushes_sent);
        families.counter("metrics_dropped", "How often they were not taken", self.pushes_dropped);
        self.of_actors(&mut families);
        self.of_partitions(&mut families);
        self.of_balance(&mut families);
        self.of_shards(&mut families);
        self.of_inserts(&mut families);
        self.of_sinks(&mut families);
        self.of_connectors(&mut families);
        of_process(&mut families);
        families.0
    }
}

fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}

/// What every Prometheus client tells of its process, under the usual names; only Linux tells it this way.
fn of_process(families: &mut Families) {
    // Linux counts these in hundredths of a second for programs, whatever its own clock does.
    const TICKS: f64 = 100.0;
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / TICKS)
    };
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(resident.split_whitespace().next()?.parse::<i64>().ok()? * 1024)
    };
    let sample = |value: Value| vec![(Labels::new(), value)];
    if let Some(seconds) = cpu() {
        families.add("process_cpu_seconds".into(), "CPU time used", true, sample(seconds.into()));
    }
    if let Some(bytes) = resident() {
        families.add("process_resident_memory_bytes".into(), "Memory in use", false, sample(bytes.into()));
    }
}
