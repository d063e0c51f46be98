//! The paths and their answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use strandline_actors::board::{ActorId, Life, Snapshot};
use strandline_actors::message::Target;

use super::metrics::Measured;
use super::{Begun, Shown, health, metrics};
use crate::sinks::SinkCounts;

const PAGE: &str = include_str!("page.html");
/// The page is whole: it loads nothing from anywhere.
const CONTENT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

pub(super) fn router(shown: Arc<Shown>) -> Router {
    let mut router = Router::new()
        .route("/", get(page))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
        .route("/api/resume/shard/{shard}", post(resume_shard))
        .route("/api/resume/partition/{topic}/{partition}", post(resume_partition));
    if shown.demo.is_some() {
        router = router.route("/api/demo/kill/{actor}", post(kill));
    }
    router.fallback(nothing).layer(middleware::from_fn(of_the_same_site)).with_state(shown)
}

/// Refuses what another site's page sends in the reader's name. Programs send neither header.
async fn of_the_same_site(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let foreign = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let host = text("host").unwrap_or_default();
            origin.split_once("://").map_or(origin, |(_, host)| host) != host
        }
        (None, None) => false,
    };
    if request.method() == axum::http::Method::POST && foreign {
        return (StatusCode::FORBIDDEN, "this is for the page of the same address and for programs\n").into_response();
    }
    next.run(request).await
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

async fn resume(begun: Option<&Begun>, id: Option<ActorId>) -> (StatusCode, String) {
    let (Some(begun), Some(id)) = (begun, id) else {
        return (StatusCode::NOT_FOUND, "there is no such actor\n".into());
    };
    if begun.running.resume(id).await {
        tracing::info!(actor = %id, "resumed on request");
        (StatusCode::OK, "resumed\n".into())
    } else {
        (StatusCode::CONFLICT, "it is not halted\n".into())
    }
}

async fn resume_shard(State(shown): State<Arc<Shown>>, Path(shard): Path<u32>) -> (StatusCode, String) {
    let known = shown.board().shards.contains_key(&shard).then_some(ActorId::Shard(shard));
    resume(shown.begun.get(), known).await
}

async fn resume_partition(
    State(shown): State<Arc<Shown>>,
    Path((topic, partition)): Path<(String, i32)>,
) -> (StatusCode, String) {
    let board = shown.board();
    let named = |halted: bool| {
        board.partitions.iter().find(|(_, status)| {
            status.topic == topic && status.partition == partition && (status.actor.life == Life::Halted) == halted
        })
    };
    let found = named(true).or_else(|| named(false)).map(|(key, _)| ActorId::Partition(*key));
    resume(shown.begun.get(), found).await
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
    demo.kill(target);
    (StatusCode::ACCEPTED, format!("the {actor} is being killed\n"))
}
