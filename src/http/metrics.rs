//! The metrics, in Prometheus' text format, computed from one picture of the board at each scrape.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use strandline_actors::board::{Life, PartitionStatus, ShardStatus, Snapshot};

use super::health::life;
use crate::sinks::SinkCounts;

pub(super) use prometheus_text::CONTENT_TYPE;

/// What is measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) board: Snapshot,
    pub(super) healthy: bool,
    pub(super) ready: bool,
    pub(super) since: Duration,
    pub(super) sink: Option<SinkCounts>,
    pub(super) spans_sent: u64,
    pub(super) spans_dropped: u64,
}

/// All metrics as text.
pub(super) fn text(measured: Measured) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("strandline");
    registry.register_collector(Box::new(measured));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    text.push_str(&process().unwrap_or_default());
    Ok(text)
}

/// Writes families one after another.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn gauges<L: EncodeLabelSet, N: EncodeGaugeValue + Copy>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, N)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet, N: EncodeCounterValue + Copy>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, N)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            prometheus_client::metrics::counter::ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge<N: EncodeGaugeValue + Copy>(&mut self, name: &str, help: &str, value: N) -> Result<(), Error> {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn counter<N: EncodeCounterValue + Copy>(&mut self, name: &str, help: &str, value: N) -> Result<(), Error> {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

type Labels = Vec<(&'static str, String)>;

impl Measured {
    /// The partitions by their labels. A topic that was deleted and made again has two lives on the board; a series may
    /// exist only once, and the one that is read counts.
    fn partitions(&self) -> Vec<(Labels, &PartitionStatus)> {
        let mut shown: BTreeMap<(&str, i32), &PartitionStatus> = BTreeMap::new();
        for status in self.board.partitions.values() {
            let place = shown.entry((&status.topic, status.partition)).or_insert(status);
            if place.actor.life == Life::Halted {
                *place = status;
            }
        }
        let labels = |topic: &str, partition: i32| vec![("topic", topic.into()), ("partition", partition.to_string())];
        shown.into_iter().map(|((topic, partition), status)| (labels(topic, partition), status)).collect()
    }

    fn shards(&self) -> Vec<(Labels, &ShardStatus)> {
        self.board.shards.iter().map(|(shard, status)| (vec![("shard", shard.to_string())], status)).collect()
    }

    fn of_partitions(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let all = self.partitions();
        let each = || all.iter().map(|(labels, status)| (labels.clone(), *status));
        families.gauges("partition_position", "The next offset to read", each().map(|(l, s)| (l, s.position.0)))?;
        let known = || each().filter_map(|(labels, status)| Some((labels, status.end?.0, status.lag()?)));
        families.gauges("partition_end", "The end of the log", known().map(|(l, end, _)| (l, end)))?;
        families.gauges("partition_lag", "Offsets between position and end", known().map(|(l, _, lag)| (l, lag)))?;
        families.gauges(
            "partition_progress_age_seconds",
            "The time since it last got on or had nothing to do",
            each().map(|(l, s)| (l, s.progress.elapsed().as_secs_f64())),
        )?;
        families.gauges(
            "partition_watermark_seconds",
            "Event time up to which it is complete, since the epoch",
            each().filter_map(|(l, s)| Some((l, s.watermark? as f64 / 1e9))),
        )?;
        families.gauges(
            "partition_up",
            "Whether its actor works",
            each().map(|(l, s)| (l, i64::from(s.actor.life == Life::Running))),
        )?;
        families.counters("partition_records", "Records read, replays included", each().map(|(l, s)| (l, s.rows)))?;
        families.counters("partition_bytes", "Payload read, replays included", each().map(|(l, s)| (l, s.bytes)))?;
        families.counters("partition_batches", "Batches read", each().map(|(l, s)| (l, s.batches)))?;
        families.counters(
            "partition_stage_seconds",
            "Time in the source stage",
            each().map(|(l, s)| (l, seconds(s.stage_micros))),
        )?;
        families.counters(
            "partition_blocked_seconds",
            "Time waiting for credit and for shards",
            each().map(|(l, s)| (l, seconds(s.blocked_micros))),
        )
    }

    fn of_shards(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let all = self.shards();
        let each = || all.iter().map(|(labels, status)| (labels.clone(), *status));
        families.gauges("shard_keys", "Keys in its state", each().map(|(l, s)| (l, s.keys as i64)))?;
        families.gauges(
            "shard_state_bytes",
            "About how much memory its state takes",
            each().map(|(l, s)| (l, s.bytes as i64)),
        )?;
        families.gauges("shard_epoch", "The epoch of its last checkpoint", each().map(|(l, s)| (l, s.epoch.0)))?;
        families.gauges(
            "shard_checkpoint_duration_seconds",
            "How long its last checkpoint took until its output was delivered",
            each().map(|(l, s)| (l, seconds(s.checkpoint_micros))),
        )?;
        families.gauges(
            "shard_checkpoint_bytes",
            "The encoded size of its last checkpoint",
            each().map(|(l, s)| (l, i64::try_from(s.checkpoint_bytes).unwrap_or(i64::MAX))),
        )?;
        families.gauges(
            "shard_checkpoint_age_seconds",
            "The time since its last checkpoint",
            each().filter_map(|(l, s)| Some((l, s.committed?.elapsed().as_secs_f64()))),
        )?;
        families.gauges(
            "shard_watermark_seconds",
            "The lowest watermark over its partitions, since the epoch",
            each().filter_map(|(l, s)| Some((l, s.watermark? as f64 / 1e9))),
        )?;
        families.gauges(
            "shard_up",
            "Whether its actor works",
            each().map(|(l, s)| (l, i64::from(s.actor.life == Life::Running))),
        )?;
        families.counters("shard_checkpoints", "Checkpoints committed", each().map(|(l, s)| (l, s.checkpoints)))?;
        families.counters("shard_rows", "Rows that its lanes brought", each().map(|(l, s)| (l, s.rows)))?;
        families.counters("shard_replays", "Ranges that it had taken before", each().map(|(l, s)| (l, s.replays)))?;
        // Gauges: these count since the pipeline began, and after a crash they go on from the last checkpoint.
        let outcomes = each().flat_map(|(labels, status)| {
            let counts = status.counts;
            [
                ("processed", counts.processed),
                ("filtered", counts.filtered),
                ("late", counts.late),
                ("dead_lettered", counts.dead_lettered),
                ("skipped", counts.skipped),
                ("tombstone", counts.tombstones),
                ("gap", counts.gaps),
                ("lost", counts.lost),
            ]
            .map(|(outcome, count)| {
                let mut labels = labels.clone();
                labels.push(("outcome", outcome.into()));
                (labels, i64::try_from(count).unwrap_or(i64::MAX))
            })
        });
        families.gauges("shard_offsets", "What became of each offset since the pipeline began", outcomes)
    }

    fn of_actors(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let board = &self.board;
        let actors = [("supervisor", &board.supervisor), ("committer", &board.committer.actor)]
            .into_iter()
            .chain(board.shards.values().map(|status| ("aggregation", &status.actor)))
            .chain(board.partitions.values().map(|status| ("partition", &status.actor)));
        let mut restarts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut lives: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for (kind, actor) in actors {
            *restarts.entry(kind).or_default() += actor.restarts;
            *lives.entry((kind, life(actor.life))).or_default() += 1;
        }
        families.counters(
            "actor_restarts",
            "Restarts after a crash",
            restarts.into_iter().map(|(kind, count)| (vec![("kind", kind)], count)),
        )?;
        families.gauges(
            "actors",
            "Actors by what they are doing",
            lives.into_iter().map(|((kind, life), count)| (vec![("kind", kind), ("life", life)], count)),
        )?;
        families.counter("commits", "Checkpoints committed", board.committer.commits)?;
        families.counter(
            "retries",
            "Requests to the store or the sink that had to be repeated",
            board.committer.retries,
        )?;
        families.gauge("generation", "The generation of this process", board.generation.0)
    }

    fn of_sink(&self, families: &mut Families<'_>) -> Result<(), Error> {
        let Some(sink) = &self.sink else { return Ok(()) };
        let written = [("upsert", sink.upserts), ("delete", sink.deletes)];
        families.counters(
            "sink_rows",
            "Rows written, repetitions included",
            written.map(|(change, count)| (vec![("change", change)], count)),
        )?;
        let refused = [
            ("null_key", sink.null_keys),
            ("empty_key", sink.empty_keys),
            ("long_key", sink.long_keys),
            ("unfit_key", sink.unfit_keys),
        ];
        families.counters(
            "sink_refused_rows",
            "Rows that cannot be written, since the table's key does not take them",
            refused.map(|(reason, count)| (vec![("reason", reason)], count)),
        )
    }
}

impl Collector for Measured {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut families = Families(encoder);
        families.gauges("build_info", "The version", [([("version", env!("CARGO_PKG_VERSION"))], 1_i64)])?;
        families.gauge("healthy", "Whether /healthz answers 200", i64::from(self.healthy))?;
        families.gauge("ready", "Whether /readyz answers 200", i64::from(self.ready))?;
        families.gauge("uptime_seconds", "The age of the process", self.since.as_secs_f64())?;
        families.counter("spans_sent", "Trace spans that the collector took", self.spans_sent)?;
        families.counter("spans_dropped", "Trace spans that were dropped", self.spans_dropped)?;
        self.of_actors(&mut families)?;
        self.of_partitions(&mut families)?;
        self.of_shards(&mut families)?;
        self.of_sink(&mut families)
    }
}

fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}

/// What every Prometheus client tells of its process, under the usual names; only Linux tells it this way.
fn process() -> Option<String> {
    // Linux counts these in hundredths of a second for programs, whatever its own clock does.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.split_whitespace().next()?.parse().ok()?;
    Some(format!(
        "# HELP process_cpu_seconds_total CPU time used.\n# TYPE process_cpu_seconds_total counter\n\
         process_cpu_seconds_total {}\n\
         # HELP process_resident_memory_bytes Memory in use.\n# TYPE process_resident_memory_bytes gauge\n\
         process_resident_memory_bytes {}\n",
        ticks / TICKS,
        kilobytes * 1024
    ))
}
