//! The server as a client sees it, over a board that the tests write on.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Instant as StdInstant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use strandline_actors::board::{Activity, Life};
use strandline_actors::child::{Cause, Origin};
use strandline_actors::pointer::{Epoch, Generation};
use strandline_actors::ports::Heartbeat;
use strandline_actors::position::{Counts, Offset, PartitionKey, Position, SourcePartition, Vector};
use tokio::time::Instant;
use uuid::Uuid;

use super::*;
use crate::sinks::{SinkCounts, SinkReach};

const STALL: Duration = Duration::from_secs(60);

/// A pipeline of which only the board exists.
#[derive(Clone)]
struct Painted {
    reach: Arc<Mutex<Reach>>,
    sink: Arc<Mutex<SinkReach>>,
    board: Arc<Board>,
    resumed: Arc<Mutex<Vec<ActorId>>>,
    killed: Arc<Mutex<Vec<Target>>>,
    paused: Arc<Mutex<Vec<Scope>>>,
}

impl Default for Painted {
    fn default() -> Self {
        let reach = Reach { servers: "kafka:9092".into(), away: false, refusal: None, retries: 2, last_error: None };
        let sink = SinkReach { troubled: false, refused: false, last_error: None };
        Self {
            reach: Arc::new(Mutex::new(reach)),
            sink: Arc::new(Mutex::new(sink)),
            board: Arc::default(),
            resumed: Arc::default(),
            killed: Arc::default(),
            paused: Arc::default(),
        }
    }
}

/// The statements of the painted pipeline.
const SQL: &str = "CREATE EXTERNAL TABLE orders (item VARCHAR) STORED AS JSON LOCATION 'kafka://orders'
      OPTIONS ('kafka.sasl.password' 'geheim');
    CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, PRIMARY KEY (item)) STORED AS CQL
      LOCATION 'cassandra://shop/totals';
    INSERT INTO totals SELECT item, count(*) FROM orders GROUP BY item";

fn planned() -> Planned {
    Planned::new(SQL, &crate::sql::plan(SQL).unwrap(), "keyspace strandline of Cassandra at 127.0.0.1:9042".into())
}

impl Running for Painted {
    fn board(&self) -> &Board {
        &self.board
    }

    fn crash(&self, _: Target) {}

    fn resume(&self, id: ActorId) -> BoxFuture<'_, bool> {
        let halted = self.board.snapshot().shards.values().any(|status| status.actor.life == Life::Halted);
        self.resumed.lock().unwrap().push(id);
        Box::pin(async move { halted })
    }

    fn pause(&self, scope: Scope) -> BoxFuture<'_, Wished> {
        self.paused.lock().unwrap().push(scope);
        Box::pin(async { Wished::Done })
    }

    fn go_on(&self, scope: Scope) -> BoxFuture<'_, Wished> {
        let mut paused = self.paused.lock().unwrap();
        let known = paused.len();
        paused.retain(|wish| *wish != scope);
        let done = paused.len() < known;
        Box::pin(async move { if done { Wished::Done } else { Wished::Already } })
    }
}

impl Demo for Painted {
    fn status(&self) -> Value {
        serde_json::json!({ "note": "a demo" })
    }

    fn kill(&self, target: Target) {
        self.killed.lock().unwrap().push(target);
    }
}

fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: Uuid::from_u128(7), partition }
}

impl Painted {
    /// Two shards and two partitions, all well.
    fn well() -> Self {
        let painted = Self::default();
        let board = &painted.board;
        board.generation(Generation(3));
        for id in [ActorId::Supervisor, ActorId::Committer, ActorId::Shard(0), ActorId::Shard(1)] {
            board.actor(id, |status| status.life = Life::Running);
        }
        for shard in 0..2 {
            board.shard(shard, |status| {
                status.committed = Some(Instant::now());
                status.keys = 10 + shard as usize;
                status.checkpoint_micros = 1500;
            });
        }
        for partition in 0..2 {
            board.add_partition(&SourcePartition { source: 0, topic: "orders".into(), key: key(partition) });
            board.partition(key(partition), |status| {
                status.actor.life = Life::Running;
                status.activity = Activity::Reading;
                status.position = Offset(90);
                status.end = Some(Offset(100));
                status.rows = 90;
            });
        }
        painted
    }

    /// Sets a partition's last progress back.
    fn standing(&self, partition: i32, for_long: Duration) {
        let then = Instant::now().checked_sub(for_long).unwrap();
        self.board.partition(key(partition), |status| status.progress = then);
    }

    fn serve(&self, demo: bool) -> Served {
        let mut shown = Shown::new("orders", STALL, &telemetry::Telemetry::default(), planned());
        if demo {
            shown = shown.with_demo(Arc::new(self.clone()));
        }
        shown.begin(self.begun());
        serve(shown)
    }

    fn begun(&self) -> Begun {
        Begun {
            running: Box::new(self.clone()),
            shards: 2,
            sources: Box::new({
                let reach = Arc::clone(&self.reach);
                move || vec![reach.lock().unwrap().clone()]
            }),
            inserts: vec![("revenue".into(), Arc::default()), ("late_orders".into(), Arc::default())],
            sinks: Box::new({
                let reach = Arc::clone(&self.sink);
                move || {
                    let written = |table: &str, upserts| Written {
                        table: table.into(),
                        counts: SinkCounts { upserts, retries: 3, ..SinkCounts::default() },
                        epochs: [(0, Epoch(upserts as i64))].into(),
                        reach: reach.lock().unwrap().clone(),
                    };
                    vec![written("revenue", 5), written("late_orders", 7)]
                }
            }),
        }
    }
}

struct Served(Server);

fn at(listen: &str) -> HttpSettings {
    HttpSettings { listen: listen.into(), ..HttpSettings::default() }
}

fn serve(shown: Shown) -> Served {
    Served(Server::start(&at("127.0.0.1:0"), Arc::new(shown)).unwrap().unwrap())
}

impl Served {
    fn ask(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.0.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "{request}Host: {}\r\nConnection: close\r\n\r\n", self.0.address()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// The head of an answer, in lower case.
    fn head(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.0.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.0.address()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase()
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\n"))
    }

    fn post(&self, path: &str, headers: &str) -> (u16, String) {
        self.ask(&format!("POST {path} HTTP/1.1\r\nContent-Length: 0\r\n{headers}"))
    }
}

#[test]
fn a_pipeline_that_gets_on_is_healthy_and_ready() {
    let served = Painted::well().serve(false);
    assert_eq!(served.get("/healthz"), (200, "the pipeline gets on\n".into()));
    assert_eq!(served.get("/readyz"), (200, "all shards are loaded and all partitions are read\n".into()));
    let (status, page) = served.get("/");
    assert_eq!(status, 200);
    assert!(page.contains("/api/status"));
    assert_eq!(served.get("/nonsense").0, 404);
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let served = Painted::well().serve(false);
    let head = served.head("/");
    assert!(
        head.contains("content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'"),
        "{head}"
    );
    assert!(served.head("/page.css").contains("content-type: text/css"));
    assert!(served.head("/page.js").contains("content-type: text/javascript"));
    let page = ["/", "/page.css", "/page.js"].map(|path| served.get(path).1).concat();
    for loading in ["@import", "url(", "eval("] {
        assert!(!page.contains(loading), "{loading}");
    }
    let parts: Vec<&str> = page.match_indices("src=\"").map(|(at, _)| &page[at..at + 13]).collect();
    assert_eq!(parts, ["src=\"page.js\""]);
    let addresses: Vec<&str> = page.match_indices("http:").map(|(at, _)| &page[at..at + 22]).collect();
    assert!(addresses.iter().all(|address| address.starts_with("http://www.w3.org/2000")), "{addresses:?}");
    assert!(!page.contains("innerHTML"), "what comes from elsewhere is shown as text only");
}

#[test]
fn the_last_minutes_are_shown() {
    let served = Painted::well().serve(false);
    let samples = |after: u64| -> Vec<Value> {
        serde_json::from_str(&served.get(&format!("/api/history?after={after}")).1).unwrap()
    };
    let begun = StdInstant::now();
    while samples(0).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", samples(0));
        std::thread::yield_now();
    }
    let all = samples(0);
    assert_eq!((&all[0]["records"], &all[0]["lag"], &all[0]["written"]), (&180.into(), &20.into(), &12.into()));
    let first = all[0]["at"].as_u64().unwrap();
    assert!(samples(first).iter().all(|sample| sample["at"].as_u64() > Some(first)));
}

#[test]
fn a_position_that_stands_still_before_records_is_unhealthy() {
    let painted = Painted::well();
    let served = painted.serve(false);
    painted.standing(1, STALL * 2);
    let (status, why) = served.get("/healthz");
    assert_eq!(status, 503);
    let said = why.strip_prefix("partition orders-1 has stood at 90 for ").and_then(|rest| rest.split_once(" s with "));
    let (seconds, rest) = said.unwrap_or_else(|| panic!("{why}"));
    assert!(seconds.parse::<u64>().unwrap() >= 120, "{why}");
    assert_eq!(rest, "10 records before it: it gets no records from Kafka\n");

    // With nothing to do it may stand for as long as it likes.
    painted.board.partition(key(1), |status| status.position = Offset(100));
    assert_eq!(served.get("/healthz").0, 200);
}

#[test]
fn what_is_halted_is_unhealthy_with_the_way_on() {
    let painted = Painted::well();
    let served = painted.serve(false);
    painted.board.actor(ActorId::Partition(key(0)), |status| {
        (status.life, status.last_error) = (Life::Halted, Some("the topic was deleted".into()));
    });
    let (status, why) = served.get("/healthz");
    assert_eq!(status, 503);
    assert!(why.starts_with("partition orders-0 is halted (the topic was deleted); "), "{why}");
    assert!(why.contains("POST /api/resume/partition/orders/0"), "{why}");
    assert_eq!(served.get("/readyz"), (503, "partition orders-0 is halted\n".into()));

    painted.board.actor(ActorId::Partition(key(0)), |status| status.life = Life::Running);
    painted.board.actor(ActorId::Shard(1), |status| status.life = Life::Halted);
    let (status, why) = served.get("/healthz");
    assert_eq!(status, 503);
    assert!(why.starts_with("aggregation 1 is halted; "), "{why}");
}

#[test]
fn a_store_that_takes_nothing_is_unhealthy() {
    let painted = Painted::well();
    let served = painted.serve(false);
    painted.board.shard(1, |status| status.committed = Instant::now().checked_sub(STALL * 3));
    painted.board.committer(|status| status.last_fault = Some("moving a pointer: no answer".into()));
    let (status, why) = served.get("/healthz");
    assert_eq!(status, 503);
    let said = why.strip_prefix("aggregation 1 has committed nothing for ").and_then(|rest| rest.split_once(" s: "));
    let (seconds, rest) = said.unwrap_or_else(|| panic!("{why}"));
    assert!(seconds.parse::<u64>().unwrap() >= 180, "{why}");
    assert_eq!(rest, "moving a pointer: no answer\n");
}

#[test]
fn it_is_ready_only_when_all_is_loaded_and_started() {
    let painted = Painted::well();
    let served = painted.serve(false);
    painted.board.actor(ActorId::Shard(1), |status| status.life = Life::Starting);
    painted.board.partition(key(1), |status| status.activity = Activity::Registering);
    let (status, why) = served.get("/readyz");
    assert_eq!((status, why.as_str()), (503, "aggregation 1 is starting\npartition orders-1 waits for the shards\n"));
    assert_eq!(served.get("/healthz").0, 200);

    let nothing = Painted::default();
    let served = nothing.serve(false);
    let (status, why) = served.get("/readyz");
    assert_eq!(status, 503);
    assert!(why.contains("no partitions are known yet"), "{why}");
}

#[test]
fn a_standby_is_healthy_and_not_ready_and_its_wait_does_not_count() {
    let painted = Painted::well();
    // It owned the pipeline long ago.
    painted.standing(0, STALL * 2);
    let long_ago = Instant::now().checked_sub(STALL * 2).unwrap();
    painted.board.shard(0, |status| status.committed = Some(long_ago));
    let served = painted.serve(false);
    assert_eq!(served.get("/healthz").0, 503);
    let owner = Heartbeat { generation: Generation(9), instance: "pod-7".into(), beat: 1, released: false };
    painted.board.standby(&owner);
    assert_eq!(served.get("/healthz").0, 200);
    let (code, text) = served.get("/readyz");
    assert_eq!(code, 503);
    assert!(text.contains("standby: instance pod-7 owns the pipeline (generation 9)"), "{text}");
    let status: Value = serde_json::from_str(&served.get("/api/status").1).unwrap();
    assert_eq!(status["board"]["owner"]["instance"], "pod-7");
    let standby = "strandline_actors{kind=\"supervisor\",life=\"standby\"}";
    assert_eq!(samples(&served.get("/metrics").1).get(standby), Some(&1.0));

    painted.board.generation(Generation(10));
    painted.board.actor(ActorId::Supervisor, |status| status.life = Life::Running);
    assert_eq!(served.get("/healthz").0, 200);
    assert_eq!(served.get("/readyz").0, 200);
    assert_eq!(samples(&served.get("/metrics").1).get(standby), None);
}

#[test]
fn before_the_pipeline_begins_it_lives_but_is_not_ready() {
    let shown = Shown::new("orders", STALL, &telemetry::Telemetry::default(), planned());
    let served = serve(shown);
    assert_eq!(served.get("/healthz").0, 200);
    assert_eq!(served.get("/readyz"), (503, "the store and the sink are being opened\n".into()));
    assert_eq!(served.get("/metrics").0, 200);
    assert_eq!(served.get("/api/status").0, 200);
}

#[test]
fn the_status_has_what_the_page_reads() {
    let painted = Painted::well();
    painted.board.event(ActorId::Partition(key(1)), "panic: for a test");
    let served = painted.serve(false);
    let (_, text) = served.get("/api/status");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["pipeline"], "orders");
    assert_eq!(status["board"]["generation"], 3);
    assert_eq!(status["board"]["partitions"][0]["end"], 100);
    assert_eq!(status["board"]["partitions"][0]["actor"]["life"], "running");
    assert_eq!(status["board"]["shards"]["1"]["keys"], 11);
    assert_eq!(status["board"]["events"][0]["actor"], "partition orders-1");
    assert_eq!(status["board"]["committer"]["actor"]["restarts"], 0);
    assert_eq!(status["board"]["committer"]["actor"]["mailbox"], 0);
    assert_eq!((&status["sinks"][0]["table"], &status["sinks"][0]["upserts"]), (&"revenue".into(), &5.into()));
    let parts = ["processed", "filtered", "late", "late_closed"];
    assert!(parts.iter().all(|part| status["inserts"][0][part] == 0), "{status}");
    assert_eq!((&status["inserts"][1]["table"], &status["inserts"][1]["late"]), (&"late_orders".into(), &0.into()));
    assert!(status["demo"].is_null());
}

/// A small reading of the text format: every sample once, and every family with its type before its samples.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    let mut samples = std::collections::BTreeMap::new();
    let mut families = std::collections::BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            current = family.split(' ').next().unwrap().to_owned();
            assert!(families.insert(current.clone()), "{current} comes twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next().unwrap(), current, "outside its family");
            assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{name} comes twice");
        }
    }
    samples
}

#[test]
fn metrics_are_those_of_the_board() {
    let painted = Painted::well();
    for (id, cause) in [
        (ActorId::Partition(key(0)), Cause::Failed(Origin::Source, "gone".into())),
        (ActorId::Partition(key(0)), Cause::Panic("for a test".into())),
        (ActorId::Partition(key(0)), Cause::Failed(Origin::Source, "gone again".into())),
        (ActorId::Supervisor, Cause::Panic("for a test".into())),
    ] {
        painted.board.actor(id, |status| {
            status.died(&cause);
            status.life = Life::Running;
        });
    }
    painted.board.partition(key(1), |status| status.end = Some(Offset(90)));
    let minute_ago = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_secs(60);
    painted.board.shard(0, |status| {
        status.counts.processed = 77;
        status.watermark = Some(minute_ago.as_nanos() as i64);
    });
    let served = painted.serve(false);
    let (status, text) = served.get("/metrics");
    assert_eq!(status, 200);
    let samples = samples(&text);
    let delay = samples["strandline_shard_watermark_delay_seconds{shard=\"0\"}"];
    assert!((60.0..120.0).contains(&delay), "{delay}");
    for (name, value) in [
        ("strandline_partition_position{topic=\"orders\",partition=\"0\"}", 90.0),
        ("strandline_partition_end{topic=\"orders\",partition=\"0\"}", 100.0),
        ("strandline_partition_lag{topic=\"orders\",partition=\"0\"}", 10.0),
        ("strandline_partition_lag{topic=\"orders\",partition=\"1\"}", 0.0),
        ("strandline_partition_records_total{topic=\"orders\",partition=\"1\"}", 90.0),
        ("strandline_shard_keys{shard=\"1\"}", 11.0),
        ("strandline_shard_checkpoint_duration_seconds{shard=\"0\"}", 0.0015),
        ("strandline_shard_offsets{shard=\"0\",outcome=\"processed\"}", 77.0),
        ("strandline_actor_restarts_total{kind=\"partition\",actor=\"partition orders-0\",cause=\"source\"}", 2.0),
        ("strandline_actor_restarts_total{kind=\"partition\",actor=\"partition orders-0\",cause=\"panic\"}", 1.0),
        ("strandline_actor_restarts_total{kind=\"partition\",actor=\"partition orders-1\",cause=\"source\"}", 0.0),
        ("strandline_actor_restarts_total{kind=\"supervisor\",actor=\"supervisor\",cause=\"panic\"}", 1.0),
        ("strandline_actor_restarts_total{kind=\"committer\",actor=\"committer\",cause=\"store\"}", 0.0),
        ("strandline_actors{kind=\"aggregation\",life=\"running\"}", 2.0),
        ("strandline_actor_mailbox_messages{kind=\"committer\",actor=\"committer\"}", 0.0),
        ("strandline_actor_mailbox_messages{kind=\"partition\",actor=\"partition orders-1\"}", 0.0),
        ("strandline_sink_rows_total{table=\"revenue\",change=\"upsert\"}", 5.0),
        ("strandline_sink_epoch{table=\"revenue\",shard=\"0\"}", 5.0),
        ("strandline_partition_lag_seconds{topic=\"orders\",partition=\"1\"}", 0.0),
        ("strandline_sink_rows_total{table=\"late_orders\",change=\"upsert\"}", 7.0),
        ("strandline_insert_rows_total{table=\"revenue\",outcome=\"late\"}", 0.0),
        ("strandline_generation", 3.0),
        ("strandline_healthy", 1.0),
        ("strandline_ready", 1.0),
        ("strandline_spans_dropped_total", 0.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{text}");
    }
    assert!(samples["strandline_shard_checkpoint_age_seconds{shard=\"0\"}"] < 20.0);
    assert!(samples["process_resident_memory_bytes"] > 1e6);
}

/// Every metric is documented, and nothing is documented that does not exist.
#[test]
fn the_documentation_names_all_metrics() {
    let painted = Painted::well();
    for partition in 0..2 {
        painted.board.partition(key(partition), |status| {
            (status.watermark, status.end) = (Some(1), Some(status.position));
        });
        painted.board.shard(partition as u32, |status| status.watermark = Some(1));
        counted(&painted, partition as u32, 0, Counts::default());
    }
    painted.board.partition(key(0), |status| status.start = Some(Offset(0)));
    let (_, text) = painted.serve(false).get("/metrics");
    let found: std::collections::BTreeSet<String> =
        samples(&text).keys().map(|name| name.split('{').next().unwrap().to_owned()).collect();
    let documentation = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/http.md")).unwrap();
    let table = documentation.split("## Metrics").nth(1).unwrap().lines().filter(|line| line.starts_with("| `"));
    let documented: std::collections::BTreeSet<String> = table
        .flat_map(|line| line.split('|').nth(1).unwrap().split(','))
        .map(|name| name.trim().trim_matches('`').to_owned())
        .collect();
    assert_eq!(found, documented);
}

#[test]
fn a_topic_that_was_made_again_gives_each_series_once() {
    let painted = Painted::well();
    let old = PartitionKey { topic_id: Uuid::from_u128(1), partition: 0 };
    painted.board.add_partition(&SourcePartition { source: 0, topic: "orders".into(), key: old });
    painted.board.actor(ActorId::Partition(old), |status| status.life = Life::Halted);
    let (_, text) = painted.serve(false).get("/metrics");
    assert_eq!(samples(&text)["strandline_partition_position{topic=\"orders\",partition=\"0\"}"], 90.0);
}

#[test]
fn halted_actors_are_resumed_by_name() {
    let painted = Painted::well();
    let served = painted.serve(false);
    assert_eq!(served.post("/api/resume/shard/1", ""), (409, "it is not halted\n".into()));
    painted.board.actor(ActorId::Shard(1), |status| status.life = Life::Halted);
    assert_eq!(served.post("/api/resume/shard/1", ""), (200, "resumed\n".into()));
    assert_eq!(served.post("/api/resume/partition/orders/1", ""), (200, "resumed\n".into()));
    painted.board.actor(ActorId::Shard(1), |status| status.life = Life::Running);
    assert_eq!(served.post("/api/resume/partition/orders/9", "").0, 404);
    assert_eq!(served.post("/api/resume/shard/9", "").0, 404);
    assert_eq!(*painted.resumed.lock().unwrap(), [ActorId::Shard(1), ActorId::Shard(1), ActorId::Partition(key(1))]);
}

#[test]
fn what_is_paused_is_healthy_and_shown_and_goes_on_when_it_is_told_to() {
    let painted = Painted::well();
    let served = painted.serve(false);
    assert_eq!(served.post("/api/pause/partition/orders/1", ""), (200, "paused\n".into()));
    assert_eq!(served.post("/api/pause/partition/orders/9", "").0, 404);
    assert_eq!(served.post("/api/pause", ""), (200, "paused\n".into()));
    assert_eq!(*painted.paused.lock().unwrap(), [Scope::Partition(key(1)), Scope::Pipeline]);

    painted.standing(1, STALL * 2);
    assert_eq!(served.get("/healthz").0, 503);
    painted.board.actor(ActorId::Partition(key(1)), |status| status.life = Life::Paused);
    assert_eq!(served.get("/healthz").0, 200, "it stands since somebody wants it to");
    assert_eq!(served.get("/readyz").0, 200);
    let status: Value = serde_json::from_str(&served.get("/api/status").1).unwrap();
    assert_eq!(status["board"]["partitions"][1]["actor"]["life"], "paused");
    let paused = "strandline_actors{kind=\"partition\",life=\"paused\"}";
    assert_eq!(samples(&served.get("/metrics").1).get(paused), Some(&1.0));

    assert_eq!(served.post("/api/resume/partition/orders/1", ""), (200, "resumed\n".into()));
    assert_eq!(served.post("/api/resume/partition/orders/1", ""), (409, "it is not halted or paused\n".into()));
    assert_eq!(served.post("/api/resume", ""), (200, "resumed\n".into()));
    assert_eq!(served.post("/api/resume", ""), (409, "it is not paused\n".into()));

    painted.board.actor(ActorId::Partition(key(0)), |status| status.life = Life::Halted);
    assert_eq!(served.post("/api/pause/partition/orders/0", "").0, 409);
}

#[test]
fn where_other_machines_can_reach_it_only_the_token_changes_anything() {
    const TOKEN: &str = "a-token-of-this-test";
    let painted = Painted::well();
    let serve = |listen: &str, token: Option<&str>| {
        let shown = Shown::new("orders", STALL, &telemetry::Telemetry::default(), planned());
        shown.begin(painted.begun());
        let settings = HttpSettings { token: token.map(Into::into), ..at(listen) };
        Served(Server::start(&settings, Arc::new(shown)).unwrap().unwrap())
    };
    let sent = format!("Authorization: Bearer {TOKEN}\r\n");
    let open = serve("0.0.0.0:0", None);
    assert_eq!(open.post("/api/pause", &sent).0, 403);
    assert!(open.post("/api/pause", "").1.contains("STRANDLINE_HTTP__TOKEN"));
    assert_eq!((open.get("/api/status").0, open.get("/metrics").0), (200, 200), "reading is free");
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let served = serve(listen, Some(TOKEN));
        assert_eq!(served.post("/api/pause", "").0, 401);
        assert_eq!(served.post("/api/pause", "Authorization: Bearer another-token-of-it\r\n").0, 401);
        assert!(painted.paused.lock().unwrap().is_empty());
        assert_eq!(served.post("/api/pause", &sent).0, 200);
        painted.paused.lock().unwrap().clear();
        for path in ["/", "/api/status", "/metrics", "/healthz"] {
            assert!(!served.get(path).1.contains(TOKEN), "{path}");
        }
    }
}

#[test]
fn only_a_demo_lets_actors_be_killed() {
    let painted = Painted::well();
    assert_eq!(painted.serve(false).post("/api/demo/kill/committer", "").0, 404);
    let served = painted.serve(true);
    for (path, target) in [
        ("partition?number=1", Target::Partition(1)),
        ("aggregation", Target::Shard(0)),
        ("committer", Target::Committer),
        ("supervisor", Target::Supervisor),
    ] {
        assert_eq!(served.post(&format!("/api/demo/kill/{path}"), "").0, 202);
        assert_eq!(painted.killed.lock().unwrap().pop(), Some(target));
    }
    assert_eq!(served.post("/api/demo/kill/process", "").0, 404);
    for path in ["partition?number=2", "aggregation?number=99", "committer?number=1"] {
        assert_eq!(served.post(&format!("/api/demo/kill/{path}"), "").0, 404, "{path}");
    }
    assert!(painted.killed.lock().unwrap().is_empty());
    assert_eq!(served.get("/api/demo/kill/committer").0, 405);
}

#[test]
fn pages_of_other_sites_can_ask_for_nothing() {
    let painted = Painted::well();
    let served = painted.serve(true);
    let kill = "/api/demo/kill/committer";
    assert_eq!(served.post(kill, "Origin: http://evil.example\r\n").0, 403);
    assert_eq!(served.post(kill, "Sec-Fetch-Site: cross-site\r\n").0, 403);
    assert!(painted.killed.lock().unwrap().is_empty());
    assert_eq!(served.post(kill, "Sec-Fetch-Site: same-origin\r\n").0, 202);
    assert_eq!(served.post(kill, &format!("Origin: http://{}\r\n", served.0.address())).0, 202);
}

#[test]
fn addresses_that_cannot_be_used_name_the_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let start = |listen: &str| {
        Server::start(&at(listen), Arc::new(Shown::new("orders", STALL, &telemetry::Telemetry::default(), planned())))
    };
    let error = start(&listen).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the address {listen} for the status page is in use by another program")),
        "{error}"
    );
    assert!(error.contains("STRANDLINE_HTTP__LISTEN"), "{error}");
    let error = start("192.0.2.1:8080").unwrap_err().to_string();
    assert!(error.starts_with("STRANDLINE_HTTP__LISTEN is `192.0.2.1:8080`"), "{error}");
    assert!(start("off").unwrap().is_none());
}

#[test]
fn slow_readers_hold_up_nobody() {
    let served = Painted::well().serve(false);
    // They connect and say half a sentence.
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(served.0.address()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
        slow.push(stream);
    }
    let begun = StdInstant::now();
    assert_eq!(served.get("/healthz").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// Counts of one shard at a position of partition 0.
fn counted(painted: &Painted, shard: u32, next: i64, counts: Counts) {
    let vector = Vector([(key(0), Position { counts, ..Position::start(Offset(next)) })].into());
    painted.board.shard(shard, |status| status.positions = Some(Arc::new(vector)));
}

#[test]
fn what_became_of_each_offset_adds_up_by_partition() {
    let painted = Painted::well();
    painted.board.partition(key(0), |status| status.start = Some(Offset(5)));
    let served = painted.serve(false);
    let lines = || -> Vec<Value> { serde_json::from_str(&served.get("/api/balance").1).unwrap() };
    counted(&painted, 0, 25, Counts { processed: 9, late: 1, gaps: 3, late_closed: 2, ..Counts::default() });
    assert_eq!(lines(), Vec::<Value>::new(), "one shard is not loaded yet");

    counted(&painted, 1, 25, Counts { filtered: 2, tombstones: 1, dead_lettered: 1, lost: 1, ..Counts::default() });
    let offsets = serde_json::json!({ "processed": 9, "filtered": 2, "late": 1, "late_closed": 2, "dead_lettered": 1,
        "skipped": 0, "tombstone": 1, "gap": 3, "lost": 1 });
    let wanted = serde_json::json!([{ "topic": "orders", "partition": 0, "from": 5, "committed": 25,
        "committed_highest": 25, "offsets": offsets, "counted": 20, "unbalanced": 0 }]);
    assert_eq!(Value::from(lines()), wanted);
    let metrics = served.get("/metrics").1;
    for line in [
        r#"strandline_partition_committed{topic="orders",partition="0"} 25"#,
        r#"strandline_partition_counted_from{topic="orders",partition="0"} 5"#,
        r#"strandline_partition_offsets{topic="orders",partition="0",outcome="gap"} 3"#,
        r#"strandline_partition_unbalanced{topic="orders",partition="0"} 0"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }

    // One offset that nobody counted.
    counted(&painted, 1, 25, Counts { filtered: 2, tombstones: 1, dead_lettered: 1, ..Counts::default() });
    assert_eq!(lines()[0]["unbalanced"], -1);
}

#[test]
fn each_connector_shows_its_state_its_retries_and_its_last_error() {
    let painted = Painted::well();
    let served = painted.serve(false);
    let shown = || -> Value { serde_json::from_str(&served.get("/api/connectors").1).unwrap() };
    let states = || {
        let shown = shown();
        let state = |of: &Value| of["state"].as_str().unwrap().to_owned();
        [state(&shown["sources"][0]), state(&shown["sinks"][0]), state(&shown["store"])]
    };
    assert_eq!(states(), ["running", "running", "running"]);
    let first = shown();
    let source = &first["sources"][0];
    assert_eq!(
        (&source["table"], &source["kind"], &source["location"]),
        (&"orders".into(), &"kafka".into(), &"orders".into())
    );
    assert_eq!((&source["servers"], &source["retries"]), (&"kafka:9092".into(), &2.into()));
    assert_eq!(source["partitions"], serde_json::json!({ "running": 2 }));
    let sink = &first["sinks"][0];
    assert_eq!((&sink["location"], &sink["upserts"], &sink["retries"]), (&"shop.totals".into(), &5.into(), &3.into()));
    assert_eq!((&sink["last_error"], &first["store"]["kind"]), (&Value::Null, &"cassandra".into()));

    let error = Some((std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(9), "no connection".to_owned()));
    painted.reach.lock().unwrap().away = true;
    painted.reach.lock().unwrap().last_error = error.clone();
    *painted.sink.lock().unwrap() = SinkReach { troubled: true, refused: false, last_error: error };
    painted.board.committer(|status| {
        status.store.failing = true;
        status.store.last_error = Some("too slow".into());
    });
    assert_eq!(states(), ["failing", "failing", "failing"]);
    let wanted = serde_json::json!({ "at": 9000, "what": "no connection" });
    assert_eq!((&shown()["sources"][0]["last_error"], &shown()["sinks"][0]["last_error"]), (&wanted, &wanted));
    assert_eq!(shown()["store"]["last_error"]["what"], "too slow");
    let up = r#"strandline_connector_up{role="source",table="orders",kind="kafka"}"#;
    assert_eq!(samples(&served.get("/metrics").1).get(up), Some(&0.0));

    painted.reach.lock().unwrap().refusal = Some("wrong password".into());
    painted.sink.lock().unwrap().refused = true;
    assert_eq!(states()[..2], ["refused", "refused"]);
    let well = Painted::well();
    *painted.reach.lock().unwrap() = well.reach.lock().unwrap().clone();
    painted.board.actor(ActorId::Partition(key(1)), |status| {
        (status.life, status.last_error) = (Life::Halted, Some("a bad record".into()));
    });
    assert_eq!(
        (states()[0].as_str(), &shown()["sources"][0]["last_error"]["what"]),
        ("halted", &"a bad record".into())
    );
    let before = serve(Shown::new("orders", STALL, &telemetry::Telemetry::default(), planned()));
    let before: Value = serde_json::from_str(&before.get("/api/connectors").1).unwrap();
    assert_eq!(
        (&before["sources"][0]["state"], &before["sinks"][0]["state"]),
        (&"starting".into(), &"starting".into())
    );
}

#[test]
fn the_statements_and_their_plan_are_shown_without_what_is_secret() {
    let served = Painted::well().serve(false);
    let (status, text) = served.get("/api/pipeline");
    assert_eq!(status, 200);
    assert!(!text.contains("geheim"), "{text}");
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert!(shown["sql"].as_str().unwrap().contains("INSERT INTO totals SELECT item, count(*)"));
    assert!(shown["plan"].as_str().unwrap().contains("orders"));
    assert_eq!(shown["sinks"][0]["location"], "shop.totals");
}
