//! The paths and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use strandline_actors::board::{ActorId, Life, Snapshot};
use strandline_actors::message::Target;
use strandline_actors::pause::{Scope, Wished};
use strandline_actors::position::PartitionKey;

use super::connectors::Connectors;
use super::guard::{Guard, only_who_may};
use super::metrics::Measured;
use super::{Shown, connectors, health, metrics};
use crate::sinks::Written;
use crate::sql::RowCounts;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// In order: what draws, and what asks and shows.
const SCRIPTS: [&str; 2] = [include_str!("page/draw.js"), include_str!("page/page.js")];
/// The page loads nothing from anywhere else.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn router(shown: Arc<Shown>, guard: Guard) -> Router {
    let mut router = Router::new()
        .route("/", get(page))
        .route("/page.css", get(style))
        .route("/page.js", get(script))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
        .route("/api/balance", get(balance))
        .route("/api/connectors", get(connectors_of))
        .route("/api/history", get(history))
        .route("/api/pipeline", get(pipeline))
        .route("/api/pause", post(pause_pipeline))
        .route("/api/pause/partition/{topic}/{partition}", post(pause_partition))
        .route("/api/resume", post(resume_pipeline))
        .route("/api/resume/shard/{shard}", post(resume_shard))
        .route("/api/resume/partition/{topic}/{partition}", post(resume_partition));
    if shown.demo.is_some() {
        router = router.route("/api/demo/kill/{actor}", post(kill));
    }
    let guarded = middleware::from_fn_with_state(Arc::new(guard), only_who_may);
    router.fallback(nothing).layer(guarded).with_state(shown)
}

async fn page() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY), (header::CACHE_CONTROL, "no-store")], Html(PAGE))
        .into_response()
}

async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], STYLE).into_response()
}

async fn script() -> Response {
    let kind = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    ([kind, (header::CACHE_CONTROL, "no-store")], SCRIPTS.concat()).into_response()
}

/// From when on samples are asked for.
#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

async fn history(State(shown): State<Arc<Shown>>, Query(After { after }): Query<After>) -> Response {
    fresh(shown.history.after(after))
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing here; try /, /healthz, /readyz, /metrics or /api/status\n")
}

impl Shown {
    pub(super) fn board(&self) -> Snapshot {
        self.begun.get().map(|begun| begun.running.board().snapshot()).unwrap_or_default()
    }

    fn problems(&self, board: &Snapshot) -> Vec<String> {
        match self.begun.get() {
            Some(_) => health::problems(board, self.stall, self.since.elapsed()),
            None if self.since.elapsed() > self.stall => {
                vec![format!("the store and the sink have not been opened for {} s", self.since.elapsed().as_secs())]
            }
            None => Vec::new(),
        }
    }

    fn waiting_for(&self, board: &Snapshot) -> Vec<String> {
        match self.begun.get() {
            Some(begun) => health::waiting_for(board, begun.shards),
            None => vec!["the store and the sink are being opened".into()],
        }
    }

    /// What became of the rows of each INSERT, by its table.
    fn inserts(&self) -> Vec<(String, RowCounts)> {
        let inserts = self.begun.get().map(|begun| begun.inserts.as_slice()).unwrap_or_default();
        inserts.iter().map(|(table, counters)| (table.clone(), counters.read())).collect()
    }

    fn shards(&self) -> u32 {
        self.begun.get().map_or(0, |begun| begun.shards)
    }

    /// Everything that is measured, as it is now.
    pub(super) fn measured(&self) -> Measured {
        let board = self.board();
        Measured {
            shards: self.shards(),
            connectors: self.connectors(&board),
            healthy: self.problems(&board).is_empty(),
            ready: self.waiting_for(&board).is_empty(),
            board,
            since: self.since.elapsed(),
            sinks: self.sinks(),
            inserts: self.inserts(),
            spans_sent: self.spans.sent(),
            spans_dropped: self.spans.dropped(),
            pushes_sent: self.pushes.sent(),
            pushes_dropped: self.pushes.dropped(),
        }
    }

    pub(super) fn sinks(&self) -> Vec<Written> {
        self.begun.get().map(|begun| (begun.sinks)()).unwrap_or_default()
    }

    fn connectors(&self, board: &Snapshot) -> Connectors {
        let reached = self.begun.get().map(|begun| (begun.sources)()).unwrap_or_default();
        connectors::connectors(&self.planned, board, self.begun.get().is_some(), &reached, &self.sinks())
    }
}

fn answer(good: &str, bad: &[String]) -> (StatusCode, String) {
    if bad.is_empty() {
        return (StatusCode::OK, format!("{good}\n"));
    }
    (StatusCode::SERVICE_UNAVAILABLE, bad.join("\n") + "\n")
}

async fn healthz(State(shown): State<Arc<Shown>>) -> (StatusCode, String) {
    answer("the pipeline gets on", &shown.problems(&shown.board()))
}

async fn readyz(State(shown): State<Arc<Shown>>) -> (StatusCode, String) {
    answer("all shards are loaded and all partitions are read", &shown.waiting_for(&shown.board()))
}

async fn metrics(State(shown): State<Arc<Shown>>) -> Response {
    match metrics::text(&shown.measured()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}\n")).into_response(),
    }
}

#[derive(Serialize)]
struct Status<'a> {
    pipeline: &'a str,
    version: &'static str,
    uptime_seconds: f64,
    description: &'a str,
    /// Why it is not healthy; empty: it is.
    problems: Vec<String>,
    /// Why it is not ready; empty: it is.
    waiting_for: Vec<String>,
    board: Snapshot,
    inserts: Vec<InsertStatus>,
    sinks: Vec<SinkStatus>,
    spans: Spans,
    demo: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct InsertStatus {
    table: String,
    processed: u64,
    filtered: u64,
    late: u64,
    late_closed: u64,
}

#[derive(Serialize)]
struct SinkStatus {
    table: String,
    upserts: u64,
    deletes: u64,
    refused: u64,
}

impl From<(String, RowCounts)> for InsertStatus {
    fn from((table, counts): (String, RowCounts)) -> Self {
        let RowCounts { processed, filtered, late, late_closed } = counts;
        Self { table, processed, filtered, late, late_closed }
    }
}

impl From<Written> for SinkStatus {
    fn from(Written { table, counts, .. }: Written) -> Self {
        Self { table, upserts: counts.upserts, deletes: counts.deletes, refused: counts.refused() }
    }
}

#[derive(Serialize)]
struct Spans {
    sent: u64,
    dropped: u64,
}

async fn status(State(shown): State<Arc<Shown>>) -> Response {
    let board = shown.board();
    let status = Status {
        pipeline: &shown.pipeline,
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: shown.since.elapsed().as_secs_f64(),
        description: &shown.planned.plan,
        problems: shown.problems(&board),
        waiting_for: shown.waiting_for(&board),
        board,
        inserts: shown.inserts().into_iter().map(InsertStatus::from).collect(),
        sinks: shown.sinks().into_iter().map(SinkStatus::from).collect(),
        spans: Spans { sent: shown.spans.sent(), dropped: shown.spans.dropped() },
        demo: shown.demo.as_ref().map(|demo| demo.status()),
    };
    fresh(status)
}

/// What is not to be kept by whoever asks.
fn fresh(shown: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response()
}

async fn connectors_of(State(shown): State<Arc<Shown>>) -> Response {
    fresh(shown.connectors(&shown.board()))
}

async fn pipeline(State(shown): State<Arc<Shown>>) -> Response {
    fresh(&shown.planned)
}

/// The balance of a partition, as it is shown.
#[derive(Serialize)]
struct Line {
    topic: String,
    partition: i32,
    from: i64,
    committed: i64,
    committed_highest: i64,
    /// By outcome.
    offsets: BTreeMap<&'static str, u64>,
    counted: u64,
    unbalanced: i64,
}

async fn balance(State(shown): State<Arc<Shown>>) -> Response {
    let (board, shards) = (shown.board(), shown.shards());
    let lines = board.partitions.iter().filter_map(|(key, status)| {
        let balance = board.balance(key, shards)?;
        Some(Line {
            topic: status.topic.clone(),
            partition: status.partition,
            from: balance.from.0,
            committed: balance.position.0,
            committed_highest: balance.highest.0,
            offsets: metrics::outcomes(&balance.counts).into(),
            counted: balance.counts.total(),
            unbalanced: balance.off,
        })
    });
    fresh(lines.collect::<Vec<_>>())
}

type Said = (StatusCode, String);

fn nobody() -> Said {
    (StatusCode::NOT_FOUND, "there is no such actor\n".into())
}

async fn resume(shown: &Shown, id: Option<ActorId>) -> Said {
    let (Some(begun), Some(id)) = (shown.begun.get(), id) else { return nobody() };
    if begun.running.resume(id).await {
        tracing::info!(actor = %begun.running.board().name(id), "resumed on request");
        return (StatusCode::OK, "resumed\n".into());
    }
    match id {
        ActorId::Partition(key) => {
            said(begun.running.go_on(Scope::Partition(key)).await, "resumed", "halted or paused")
        }
        _ => (StatusCode::CONFLICT, "it is not halted\n".into()),
    }
}

fn said(wished: Wished, done: &str, not: &str) -> Said {
    match wished {
        Wished::Done => (StatusCode::OK, format!("{done}\n")),
        Wished::Unstored => (
            StatusCode::ACCEPTED,
            format!(
                "{done}, but not stored yet, since the store does not answer: that is tried on, and until then a process that \
                 is started anew does not know it\n"
            ),
        ),
        Wished::Already => (StatusCode::CONFLICT, format!("it is not {not}\n")),
        Wished::Unknown => (StatusCode::CONFLICT, "this process does not read it (yet)\n".into()),
    }
}

async fn resume_shard(State(shown): State<Arc<Shown>>, Path(shard): Path<u32>) -> Said {
    let known = shown.board().shards.contains_key(&shard).then_some(ActorId::Shard(shard));
    resume(&shown, known).await
}

/// Of several of one name, one that stands still.
fn find(board: &Snapshot, topic: &str, partition: i32) -> Option<PartitionKey> {
    let named = |stands: bool| {
        board.partitions.iter().find(|(_, status)| {
            let still = matches!(status.actor.life, Life::Halted | Life::Paused);
            status.topic == topic && status.partition == partition && still == stands
        })
    };
    named(true).or_else(|| named(false)).map(|(key, _)| *key)
}

async fn resume_partition(State(shown): State<Arc<Shown>>, Path((topic, partition)): Path<(String, i32)>) -> Said {
    let found = find(&shown.board(), &topic, partition).map(ActorId::Partition);
    resume(&shown, found).await
}

async fn resume_pipeline(State(shown): State<Arc<Shown>>) -> Said {
    match shown.begun.get() {
        Some(begun) => said(begun.running.go_on(Scope::Pipeline).await, "resumed", "paused"),
        None => said(Wished::Unknown, "", ""),
    }
}

async fn pause_pipeline(State(shown): State<Arc<Shown>>) -> Said {
    match shown.begun.get() {
        Some(begun) => said(begun.running.pause(Scope::Pipeline).await, "paused", "running: it is paused already"),
        None => said(Wished::Unknown, "", ""),
    }
}

async fn pause_partition(State(shown): State<Arc<Shown>>, Path((topic, partition)): Path<(String, i32)>) -> Said {
    let board = shown.board();
    let (Some(begun), Some(key)) = (shown.begun.get(), find(&board, &topic, partition)) else { return nobody() };
    if board.partitions.get(&key).is_some_and(|status| status.actor.life == Life::Halted) {
        return (StatusCode::CONFLICT, "it is halted, and so not read anyway\n".into());
    }
    said(begun.running.pause(Scope::Partition(key)).await, "paused", "running: it is paused already")
}

/// Which of its kind; the first unless it is said.
#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    number: u32,
}

async fn kill(
    State(shown): State<Arc<Shown>>,
    Path(actor): Path<String>,
    Query(Which { number }): Query<Which>,
) -> (StatusCode, String) {
    let Some(demo) = &shown.demo else { return (StatusCode::NOT_FOUND, "there is no demo\n".into()) };
    let target = match actor.as_str() {
        "partition" => Target::Partition(number),
        "aggregation" => Target::Shard(number),
        "committer" => Target::Committer,
        "supervisor" => Target::Supervisor,
        _ => {
            let known = "the actors are partition, aggregation, committer and supervisor\n";
            return (StatusCode::NOT_FOUND, known.into());
        }
    };
    let board = shown.board();
    let count = match target {
        Target::Partition(_) => board.partitions.len(),
        Target::Shard(_) => board.shards.len(),
        Target::Committer | Target::Supervisor => 1,
    };
    if number as usize >= count {
        return (StatusCode::NOT_FOUND, format!("there is no {actor} {number}: there are {count}, counted from 0\n"));
    }
    demo.kill(target);
    (StatusCode::ACCEPTED, format!("the {actor} is being killed\n"))
}
