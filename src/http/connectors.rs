//! How the systems outside answer: each source, each sink, and the store.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use strandline_actors::board::{Life, PartitionStatus, Snapshot, StoreStatus};
use strandline_actors::pointer::{Epoch, ShardId};

use super::health::life;
use super::planned::{Place, Planned};
use crate::kafka::Reach;
use crate::sinks::{SinkCounts, Written};

/// How a connector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing is known yet.
    Starting,
    /// It answers.
    Running,
    /// It does not answer, or not as it should; what it was asked is asked again.
    Failing,
    /// It refuses this client, or what it was sent, for good.
    Refused,
    /// A partition of it is halted.
    Halted,
    /// All that is read of it is paused.
    Paused,
}

impl State {
    /// Whether all is well.
    pub(super) fn is_up(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    /// In milliseconds since the epoch, if it is known.
    pub(super) at: Option<u64>,
    pub(super) what: String,
}

/// A connector.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Connector {
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) state: State,
    /// What was tried again since the process began.
    pub(super) retries: u64,
    pub(super) last_error: Option<Fault>,
}

/// A source.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Source {
    #[serde(flatten)]
    pub(super) connector: Connector,
    /// The addresses by which the brokers are found.
    servers: String,
    /// Restarts of the actors of its partitions.
    restarts: u64,
    /// How many partitions do what.
    partitions: BTreeMap<&'static str, usize>,
}

/// A sink.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sink {
    #[serde(flatten)]
    pub(super) connector: Connector,
    /// What was written, repetitions included; none where it is not counted.
    upserts: Option<u64>,
    deletes: Option<u64>,
    /// Rows that the table's key does not take.
    refused_rows: Option<u64>,
    /// Outputs of checkpoints, and the time that they took.
    deliveries: Option<u64>,
    delivery_seconds: Option<f64>,
    /// For each shard, the epoch of the last output that it took in this process.
    epochs: Option<BTreeMap<ShardId, Epoch>>,
}

/// All of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Connectors {
    pub(super) sources: Vec<Source>,
    pub(super) sinks: Vec<Sink>,
    pub(super) store: Connector,
}

/// How all of them are. `begun`: the pipeline has begun, so its connections are open.
pub(super) fn connectors(
    planned: &Planned,
    board: &Snapshot,
    begun: bool,
    reached: &[Reach],
    written: &[Written],
) -> Connectors {
    let sources = planned.sources.iter().enumerate();
    // Both are in the order of the INSERTs.
    let sinks = planned.sinks.iter().enumerate();
    Connectors {
        sources: sources.map(|(number, place)| source(place, board, reached.get(number))).collect(),
        sinks: sinks.map(|(number, place)| sink(place, begun, written.get(number))).collect(),
        store: store(planned, begun, &board.committer.store),
    }
}

fn millis(at: SystemTime) -> Option<u64> {
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn fault((at, what): &(SystemTime, String)) -> Fault {
    Fault { at: millis(*at), what: what.clone() }
}

fn source(place: &Place, board: &Snapshot, reach: Option<&Reach>) -> Source {
    let own: Vec<&PartitionStatus> = board.partitions.values().filter(|p| p.topic == place.location).collect();
    let all = |life: Life| own.iter().all(|partition| partition.actor.life == life);
    let halted = own.iter().find(|partition| partition.actor.life == Life::Halted);
    let refusal = reach.and_then(|reach| reach.refusal.as_ref());
    let state = match reach {
        _ if refusal.is_some() => State::Refused,
        Some(reach) if reach.away => State::Failing,
        _ if halted.is_some() => State::Halted,
        _ if own.is_empty() || all(Life::Starting) => State::Starting,
        _ if all(Life::Paused) => State::Paused,
        _ => State::Running,
    };
    let said = reach.and_then(|reach| reach.last_error.as_ref()).map(fault);
    let died = || own.iter().find_map(|partition| partition.actor.last_error.clone());
    let died = || died().map(|what| Fault { at: None, what });
    let why = halted.and_then(|partition| partition.actor.last_error.clone()).map(|what| Fault { at: None, what });
    let last_error = if state == State::Halted { why } else { said.or_else(died) };
    let mut partitions = BTreeMap::new();
    for partition in &own {
        *partitions.entry(life(partition.actor.life)).or_default() += 1;
    }
    Source {
        connector: Connector {
            place: place.clone(),
            state,
            retries: reach.map_or(0, |reach| reach.retries),
            last_error,
        },
        servers: reach.map(|reach| reach.servers.clone()).unwrap_or_default(),
        restarts: own.iter().map(|partition| partition.actor.restarts).sum(),
        partitions,
    }
}

fn sink(place: &Place, begun: bool, written: Option<&Written>) -> Sink {
    let (counts, reach) = (written.map(|written| written.counts), written.map(|written| &written.reach));
    let state = match reach {
        _ if !begun => State::Starting,
        Some(reach) if reach.refused => State::Refused,
        Some(reach) if reach.troubled => State::Failing,
        _ => State::Running,
    };
    Sink {
        connector: Connector {
            place: place.clone(),
            state,
            retries: counts.map_or(0, |counts| counts.retries),
            last_error: reach.and_then(|reach| reach.last_error.as_ref()).map(fault),
        },
        upserts: counts.map(|counts| counts.upserts),
        deletes: counts.map(|counts| counts.deletes),
        refused_rows: counts.map(SinkCounts::refused),
        deliveries: counts.map(|counts| counts.deliveries),
        delivery_seconds: counts.map(|counts| counts.delivery_micros as f64 / 1e6),
        epochs: written.map(|written| written.epochs.clone()),
    }
}

fn store(planned: &Planned, begun: bool, status: &StoreStatus) -> Connector {
    let kind = if planned.store.contains("Cassandra") { "cassandra" } else { "local" };
    Connector {
        place: Place { table: "store".into(), kind, location: planned.store.clone() },
        state: match (begun, status.failing) {
            (false, _) => State::Starting,
            (true, true) => State::Failing,
            (true, false) => State::Running,
        },
        retries: status.retries,
        last_error: status.last_error.clone().map(|what| Fault { at: status.last_error_at, what }),
    }
}
