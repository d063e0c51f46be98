//! The paths and their answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use strandline_actors::board::{ActorId, Life, Snapshot};
use strandline_actors::message::Target;
use strandline_actors::pause::{Scope, Wished};
use strandline_actors::position::PartitionKey;

use super::guard::{Guard, only_who_may};
use super::metrics::Measured;
use super::{Shown, health, metrics};
use crate::sinks::SinkCounts;

const PAGE: &str = include_str!("page.html");
/// The page is whole: it loads nothing from anywhere.
const CONTENT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

pub(super) fn router(shown: Arc<Shown>, guard: Guard) -> Router {
    let mut router = Router::new()
        .route("/", get(page))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
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

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing here; try /, /healthz, /readyz, /metrics or /api/status\n")
}

impl Shown {
    fn board(&self) -> Snapshot {
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

    fn sink(&self) -> Option<SinkCounts> {
        self.begun.get().and_then(|begun| (begun.sink)())
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
    let board = shown.board();
    let measured = Measured {
        healthy: shown.problems(&board).is_empty(),
        ready: shown.waiting_for(&board).is_empty(),
        board,
        since: shown.since.elapsed(),
        sink: shown.sink(),
        spans_sent: shown.spans.sent(),
        spans_dropped: shown.spans.dropped(),
    };
    match metrics::text(measured) {
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
    sink: Option<SinkStatus>,
    spans: Spans,
    demo: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct SinkStatus {
    upserts: u64,
    deletes: u64,
    refused: u64,
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
        description: shown.begun.get().map_or("", |begun| begun.description.as_str()),
        problems: shown.problems(&board),
        waiting_for: shown.waiting_for(&board),
        board,
        sink: shown.sink().map(|counts| SinkStatus {
            upserts: counts.upserts,
            deletes: counts.deletes,
            refused: counts.null_keys + counts.empty_keys + counts.long_keys + counts.unfit_keys,
        }),
        spans: Spans { sent: shown.spans.sent(), dropped: shown.spans.dropped() },
        demo: shown.demo.as_ref().map(|demo| demo.status()),
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    (headers, Json(status)).into_response()
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
