//! Traces as a real Jaeger shows them: of a batch across the actors, of the checkpoint that holds it, and of a restart with
//! its cause.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::Producer;
use serde_json::Value;

use crate::own_server::OwnServer;
use crate::shop::sql;
use crate::stand::{PATIENCE, Service, Stand, until};
use crate::test_topic::{Sent, producer, send};

/// A span as Jaeger's query interface shows it.
#[derive(Clone, Debug)]
struct Span(Value);

impl Span {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap()
    }

    fn name(&self) -> &str {
        self.text("operationName")
    }

    fn id(&self) -> &str {
        self.text("spanID")
    }

    fn trace(&self) -> &str {
        self.text("traceID")
    }

    fn tag(&self, key: &str) -> Value {
        let tags = self.0["tags"].as_array().unwrap();
        tags.iter().find(|tag| tag["key"] == key).map_or(Value::Null, |tag| tag["value"].clone())
    }

    fn references(&self, kind: &str) -> Vec<(&str, &str)> {
        let references = self.0["references"].as_array().map_or(&[][..], Vec::as_slice);
        let of_kind = references.iter().filter(|reference| reference["refType"] == kind);
        of_kind.map(|r| (r["traceID"].as_str().unwrap(), r["spanID"].as_str().unwrap())).collect()
    }

    /// The spans that it is linked with, by trace and span.
    fn links(&self) -> Vec<(&str, &str)> {
        self.references("FOLLOWS_FROM")
    }

    fn parent(&self) -> Option<&str> {
        self.references("CHILD_OF").first().map(|(_, span)| *span)
    }

    /// When it began and ended, in microseconds.
    fn time(&self) -> (u64, u64) {
        let begun = self.0["startTime"].as_u64().unwrap();
        (begun, begun + self.0["duration"].as_u64().unwrap())
    }

    /// What was noted in it, by name.
    fn events(&self) -> Vec<BTreeMap<&str, &str>> {
        let logs = self.0["logs"].as_array().unwrap();
        logs.iter()
            .map(|log| {
                let fields = log["fields"].as_array().unwrap();
                fields.iter().map(|f| (f["key"].as_str().unwrap(), f["value"].as_str().unwrap_or_default())).collect()
            })
            .collect()
    }
}

/// All spans of one trace.
#[derive(Clone, Debug)]
struct Trace(Vec<Span>);

impl Trace {
    fn of(shown: &Value) -> Self {
        Self(shown["spans"].as_array().unwrap().iter().cloned().map(Span).collect())
    }

    fn all(&self, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.name() == name).collect()
    }

    /// The only span of this name.
    fn only(&self, name: &str) -> &Span {
        let found = self.all(name);
        assert_eq!(found.len(), 1, "spans with the name {name} in {self:?}");
        found[0]
    }

    fn root(&self) -> &Span {
        self.0.iter().find(|span| span.parent().is_none()).unwrap_or_else(|| panic!("no root: {self:?}"))
    }

    /// The only span of this name below another one.
    fn below(&self, parent: &Span, name: &str) -> &Span {
        let of_parent = |span: &&&Span| span.parent() == Some(parent.id());
        let found: Vec<&Span> = self.all(name).iter().filter(of_parent).copied().collect();
        assert_eq!(found.len(), 1, "spans with the name {name} below {} in {self:?}", parent.name());
        found[0]
    }
}

/// A Jaeger of the test's own.
struct Jaeger(OwnServer);

impl Jaeger {
    async fn start() -> Self {
        Self(OwnServer::start("jaeger").await)
    }

    fn by_grpc(&self) -> String {
        format!("http://{}", self.0.neighbour(0))
    }

    fn by_http(&self) -> String {
        format!("http://{}", self.0.neighbour(1))
    }

    /// What its query interface answers.
    fn ask(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(self.0.neighbour(2)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }

    /// The traces of a service that hold a span of this name.
    fn traces(&self, service: &str, name: &str) -> Vec<Trace> {
        let found = self.ask(&format!("/api/traces?service={service}&operation={name}&limit=1000&lookback=1h"));
        found["data"].as_array().map_or_else(Vec::new, |traces| traces.iter().map(Trace::of).collect())
    }

    fn trace(&self, id: &str) -> Option<Trace> {
        self.ask(&format!("/api/traces/{id}"))["data"].as_array()?.first().map(Trace::of)
    }
}

/// Starts a service that sends its traces somewhere, under the pipeline's name.
fn start(stand: &Stand, endpoint: &str, more: &[(&str, &str)]) -> Service {
    let mut variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_SERVICE_NAME", stand.pipeline.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("STRANDLINE_LOG__FORMAT", "json"),
    ];
    variables.extend(more);
    stand.start_in(&sql(stand), &variables)
}

/// Asks it to stop, which it does well. Answers what it said.
async fn stopped(mut service: Service) -> String {
    service.signal("TERM");
    let (code, said) = service.end().await;
    assert_eq!(code, Some(0), "{said}");
    said
}

/// The trace of the producer that made a record.
fn of_producer(number: u64) -> (String, String) {
    // With all of its digits: Jaeger leaves out leading zeros.
    (
        format!("5eed0000{:024x}", 0xabc0_0000_u128 + u128::from(number)),
        format!("{:016x}", 0x5eed_0000_0000_def0 + number),
    )
}

/// Sends orders to partition 0, the first of them out of traces of their own.
fn orders(stand: &Stand, count: u64) {
    let producer = producer(&[]);
    for number in 0..count {
        let value = format!(r#"{{"user_id":"u","item":"item-{}","qty":1}}"#, number % 50);
        let (trace, span) = of_producer(number);
        let parent = format!("00-{trace}-{span}-01");
        let header = Header { key: "traceparent", value: Some(parent.as_str()) };
        let headers = (number < 2).then(|| OwnedHeaders::new().insert(header));
        send(&producer, &stand.topic.name, 0, Sent { key: None, value: Some(value.as_bytes()), headers });
    }
    producer.flush(PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jaeger_shows_a_batch_its_checkpoint_and_a_restart_with_its_cause() {
    let jaeger = Jaeger::start().await;
    let stand = Stand::new(1).await;
    orders(&stand, 200);
    // Not in the first batches: they are to be committed first.
    let variables = [("PANIC_AT", "aggregated:13"), ("STRANDLINE_TRACES__BATCH_INTERVAL", "0s")];
    let service = start(&stand, &jaeger.by_grpc(), &variables);
    let mut sent = 200;
    stand.until_committed(&[(0, sent)].into()).await;
    while !service.said().contains("starting again in") {
        orders(&stand, 200);
        sent += 200;
        stand.until_committed(&[(0, sent)].into()).await;
    }
    let said = stopped(service).await;

    until("Jaeger has the last batch and the restart", PATIENCE, async || {
        let batches = jaeger.traces(&stand.pipeline, "batch");
        let last = batches.iter().any(|trace| trace.root().tag("strandline.offset.until") == sent);
        last && !jaeger.traces(&stand.pipeline, "restart").is_empty()
    })
    .await;
    let batches = jaeger.traces(&stand.pipeline, "batch");
    let first = batches.iter().find(|trace| trace.root().tag("strandline.offset.from") == 0).unwrap();
    let checkpoints = a_batch(&stand, first);
    for (merge, checkpoint) in &checkpoints {
        a_checkpoint(&jaeger, first.root().trace(), merge, checkpoint);
    }
    let restarts = jaeger.traces(&stand.pipeline, "restart");
    assert_eq!(restarts.len(), 1, "{restarts:?}");
    a_restart(&restarts[0], &said);
    // The batch at which it died says so, too.
    let failed = |span: &&Span| span.name() == "merge" && span.tag("error") == true;
    let failed: Vec<&Span> = batches.iter().flat_map(|trace| &trace.0).filter(failed).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let told = failed[0].events().iter().any(|event| event["event"].contains("told to panic at the point aggregated"));
    assert!(told, "{failed:?}");
}

/// Looks at the trace of a batch. Answers the id of each merge with the checkpoint that it is linked with.
fn a_batch(stand: &Stand, trace: &Trace) -> Vec<(String, String)> {
    let batch = trace.only("batch");
    assert_eq!(batch.parent(), None);
    assert_eq!(batch.tag("span.kind"), "consumer");
    assert_eq!(batch.tag("messaging.system"), "kafka");
    assert_eq!(batch.tag("messaging.operation.type"), "process");
    assert_eq!(batch.tag("messaging.destination.name"), stand.topic.name.as_str());
    assert_eq!(batch.tag("messaging.destination.partition.id"), "0");
    let rows = batch.tag("messaging.batch.message_count").as_i64().unwrap();
    assert_eq!(batch.tag("strandline.offset.until"), rows);
    assert!(batch.tag("strandline.bytes").as_i64().unwrap() > rows * 30, "{batch:?}");
    assert_eq!(batch.tag("began_before_us"), Value::Null);
    let producers: Vec<_> = (0..rows.min(2)).map(|number| of_producer(number as u64)).collect();
    let links: Vec<_> = batch.links().into_iter().map(|(trace, span)| (trace.to_owned(), span.to_owned())).collect();
    assert_eq!(links, producers);

    let fetch = trace.below(batch, "fetch");
    assert_eq!(fetch.tag("messaging.operation.type"), "receive");
    assert_eq!(fetch.tag("messaging.batch.message_count"), rows);
    let stage = trace.below(batch, "source stage");
    let decode = trace.below(stage, "decode");
    assert_eq!(decode.tag("strandline.rows"), rows);
    let mut checkpoints = Vec::new();
    let mut shards = Vec::new();
    for lane in trace.all("lane") {
        assert_eq!(lane.parent(), Some(batch.id()));
        assert_eq!(lane.tag("strandline.offset.until"), rows);
        shards.push(lane.tag("strandline.shard").as_i64().unwrap());
        let merge = trace.below(lane, "merge");
        let links = merge.links();
        assert_eq!(links.len(), 1, "{merge:?}");
        checkpoints.push((merge.id().to_owned(), links[0].0.to_owned()));
        assert!(merge.time().0 >= stage.time().1, "merged before it was made");
    }
    shards.sort_unstable();
    assert_eq!(shards, [0, 1]);
    let names = ["batch", "fetch", "credit", "source stage", "decode", "lane", "merge"];
    assert!(trace.0.iter().all(|span| names.contains(&span.name())), "{trace:?}");
    // The whole lasts from the fetch to the last merge, and no longer.
    let begun = trace.0.iter().map(|span| span.time().0).min().unwrap();
    let ended = trace.0.iter().filter(|span| span.name() != "batch").map(|span| span.time().1).max().unwrap();
    let (from, until) = batch.time();
    assert_eq!(from, begun, "{batch:?}");
    assert!(until >= ended && until - ended < 1_000_000, "{batch:?}");
    assert!(fetch.time().1 <= stage.time().0, "decoded before it was fetched");
    checkpoints
}

fn a_checkpoint(jaeger: &Jaeger, batch: &str, merge: &str, checkpoint: &str) {
    let trace = jaeger.trace(checkpoint).unwrap_or_else(|| panic!("no checkpoint {checkpoint}"));
    let root = trace.only("checkpoint");
    assert_eq!(root.parent(), None);
    assert!(root.links().contains(&(batch, merge)), "{root:?} is not linked with {merge} of {batch}");
    assert!(root.tag("strandline.epoch").as_i64().unwrap() > 1);
    let steps: Vec<&Span> = ["snapshot", "segments", "pointer", "publish"].map(|name| trace.below(root, name)).to_vec();
    assert!(steps.windows(2).all(|two| two[0].time().1 <= two[1].time().0), "{trace:?}");
    let [_, segments, _, publish] = steps[..] else { panic!("{steps:?}") };
    assert!(segments.tag("strandline.segments").as_i64().unwrap() > 0);
    assert!(segments.tag("strandline.bytes").as_i64().unwrap() > 0);
    assert!(publish.tag("strandline.rows").as_i64().unwrap() > 0);
    assert_eq!(trace.0.len(), 5, "{trace:?}");
}

fn a_restart(trace: &Trace, said: &str) {
    let restart = trace.only("restart");
    assert_eq!(restart.parent(), None);
    assert_eq!(restart.tag("strandline.actor.kind"), "aggregation");
    assert_eq!(restart.tag("error"), true);
    let events = restart.events();
    let exception = events.iter().find(|event| event.get("event") == Some(&"exception")).unwrap();
    assert_eq!(exception["exception.type"], "panic");
    assert_eq!(exception["exception.message"], "told to panic at the point aggregated");
    // What follows hangs below it: the shard is claimed and loaded, and the partition asks where it stands.
    let load = trace.below(restart, "load");
    trace.below(load, "claim");
    trace.below(restart, "register");
    // The line in the log leads to it.
    let line = said.lines().find(|line| line.contains("starting again in")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["trace_id"], &line["span_id"]), (&restart.trace().into(), &restart.id().into()));
}

/// By HTTP, and with the settings as they are by default: one batch a second has a trace.
#[tokio::test(flavor = "multi_thread")]
async fn by_http_one_batch_a_second_and_every_checkpoint_reach_jaeger() {
    let jaeger = Jaeger::start().await;
    let stand = Stand::new(1).await;
    let variables = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"), ("STRANDLINE_BATCH__ROWS", "10")];
    let service = start(&stand, &jaeger.by_http(), &variables);
    service.until_ready().await;
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < Duration::from_millis(3_500) {
        orders(&stand, 50);
        sent += 50;
        stand.until_committed(&[(0, sent)].into()).await;
    }
    let seconds = begun.elapsed().as_secs();
    let status = service.status();
    let read = &status["board"]["partitions"][0];
    let (batches, most) = (read["batches"].as_u64().unwrap() as usize, seconds as usize + 2);
    let checkpoints: u64 = {
        let shards = status["board"]["shards"].as_object().unwrap();
        shards.values().map(|shard| shard["checkpoints"].as_u64().unwrap()).sum()
    };
    service.stop().await;
    until("Jaeger has the checkpoints", PATIENCE, async || {
        jaeger.traces(&stand.pipeline, "checkpoint").len() as u64 >= checkpoints
    })
    .await;
    let traced = jaeger.traces(&stand.pipeline, "batch").len();
    // On a slow machine there are seconds without a batch. The exact rule has tests of its own, in virtual time.
    assert!((1..=most).contains(&traced) && traced < batches, "{traced} of {batches} batches in {seconds} s");
}

/// A server that speaks something else: Kafka.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_none_holds_up_nothing_and_what_is_dropped_is_counted() {
    for protocol in ["grpc", "http/protobuf"] {
        let stand = Stand::new(1).await;
        let endpoint = format!("http://{}", stand.topic.servers);
        let variables = [("OTEL_EXPORTER_OTLP_PROTOCOL", protocol), ("STRANDLINE_SHUTDOWN__DEADLINE", "30s")];
        let service = start(&stand, &endpoint, &variables);
        orders(&stand, 1_000);
        stand.until_committed(&[(0, 1_000)].into()).await;
        until("dropped spans are counted", PATIENCE, async || {
            let metrics = service.get("/metrics").map_or_else(String::new, |(_, text)| text);
            let dropped = metrics.lines().find_map(|line| line.strip_prefix("strandline_spans_dropped_total "));
            dropped.is_some_and(|dropped| dropped.parse::<f64>().unwrap() > 0.0)
        })
        .await;
        let begun = Instant::now();
        let said = stopped(service).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "the end took {:?}", begun.elapsed());
        assert!(said.contains("traces cannot be sent: "), "{said}");
    }
}
