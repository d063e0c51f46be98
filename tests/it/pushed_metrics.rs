//! Metrics by OTLP reach a receiver, by gRPC and by HTTP, with the names and the values that `/metrics` shows.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric, number_data_point};
use prost::Message;

use crate::shop::{PARTITIONS, Shop, settle, sql};
use crate::stand::{PATIENCE, Stand, until};

/// What was received: the header `authorization`, and the message.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, ExportMetricsServiceRequest)>>>);

impl Received {
    fn take(&self, authorization: Option<&str>, message: &[u8]) {
        let message = ExportMetricsServiceRequest::decode(message).unwrap();
        self.0.lock().unwrap().push((authorization.unwrap_or_default().to_owned(), message));
    }

    fn last(&self) -> Option<(String, ExportMetricsServiceRequest)> {
        self.0.lock().unwrap().last().cloned()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A receiver that speaks HTTP.
fn by_http() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let into = received.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A service that is killed leaves half a request.
            let _ = request(stream, &into);
        }
    });
    (address, received)
}

fn request(mut stream: TcpStream, into: &Received) -> Option<()> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        let line = |line: &str| {
            line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned())
        };
        head.lines().find_map(line)
    };
    assert_eq!(header("content-type").as_deref(), Some("application/x-protobuf"));
    let mut body = vec![0; header("content-length").unwrap().parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    into.take(header("authorization").as_deref(), &body);
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n").ok()
}

/// A receiver that speaks gRPC.
async fn by_grpc() -> (String, Received) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let into = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream, into.clone()));
        }
    });
    (address, received)
}

async fn connection(stream: tokio::net::TcpStream, into: Received) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let into = into.clone();
        // The connection has to be polled for the body to come.
        tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            assert_eq!(head.uri.path(), "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
            let mut message = Vec::new();
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                message.extend_from_slice(&piece);
            }
            // Not compressed, and its length.
            assert_eq!(message[0], 0);
            let authorization = head.headers.get("authorization").map(|value| value.to_str().unwrap());
            into.take(authorization, &message[5..]);
            let response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let mut send = respond.send_response(response, false).unwrap();
            // An empty answer: nothing to complain of.
            send.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            send.send_trailers(trailers).unwrap();
        });
    }
}

fn text(pair: &KeyValue) -> String {
    match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => panic!("{}: {other:?}", pair.key),
    }
}

/// Every sample of a message, in the form of Prometheus' text.
fn samples(message: &ExportMetricsServiceRequest) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for metric in &message.resource_metrics[0].scope_metrics[0].metrics {
        let (counter, points): (bool, &Vec<NumberDataPoint>) = match metric.data.as_ref().unwrap() {
            metric::Data::Gauge(gauge) => (false, &gauge.data_points),
            metric::Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{metric:?}");
                (true, &sum.data_points)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(counter, metric.name.ends_with("_total"), "{}", metric.name);
        for point in points {
            assert!(point.time_unix_nano > 0 && (point.start_time_unix_nano > 0) == counter, "{metric:?}");
            let labels: Vec<String> =
                point.attributes.iter().map(|pair| format!("{}=\"{}\"", pair.key, text(pair))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let value = match point.value.as_ref().unwrap() {
                number_data_point::Value::AsInt(value) => *value as f64,
                number_data_point::Value::AsDouble(value) => *value,
            };
            assert!(samples.insert(metric.name.clone() + &labels, value).is_none(), "{} comes twice", metric.name);
        }
    }
    samples
}

/// What `/metrics` says.
fn fetched(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// What does not change while nothing is read.
fn at_rest(samples: &BTreeMap<String, f64>) -> BTreeMap<&str, f64> {
    let moves = [
        "_seconds",
        "process_",
        "_checkpoint",
        "commits",
        "epoch",
        "metrics_sent",
        "spans_",
        "batches",
        "retries",
        "deliveries",
    ];
    let rests = |name: &str| !moves.iter().any(|part| name.contains(part));
    samples.iter().filter(|(name, _)| rests(name)).map(|(name, value)| (name.as_str(), *value)).collect()
}

async fn what_is_received_is_what_is_shown(endpoint: &str, protocol: &str, received: &Received) {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 3_000, 500);
    let variables = [
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20for-a-test"),
        ("OTEL_RESOURCE_ATTRIBUTES", "zone=a"),
    ];
    let service = stand.start_in(&sql(&stand), &variables);
    service.until_ready().await;
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    let equal = || {
        let (pushed, shown) = (samples(&received.last()?.1), fetched(&service.get("/metrics")?.1));
        let names = |of: &BTreeMap<String, f64>| of.keys().cloned().collect::<Vec<_>>();
        Some(names(&pushed) == names(&shown) && at_rest(&pushed) == at_rest(&shown) && at_rest(&shown).len() > 100)
    };
    until("the values of both are equal", PATIENCE, async || equal() == Some(true)).await;
    let (authorization, message) = received.last().unwrap();
    assert_eq!(authorization, "Bearer for-a-test");
    let resource = &message.resource_metrics[0].resource.as_ref().unwrap().attributes;
    let attribute = |name: &str| resource.iter().find(|pair| pair.key == name).map(text);
    assert_eq!(attribute("service.name").as_deref(), Some("strandline"));
    assert_eq!(attribute("strandline.pipeline").as_deref(), Some(stand.pipeline.as_str()));
    assert_eq!((attribute("zone").as_deref(), attribute("service.version").is_some()), (Some("a"), true));
    let total: f64 = samples(&message)
        .iter()
        .filter(|(name, _)| name.starts_with("strandline_partition_offsets{"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(total, ends.iter().sum::<i64>() as f64);

    // The last of all is sent when it ends.
    let before = received.count();
    service.stop().await;
    assert!(received.count() > before);
    let last = samples(&received.last().unwrap().1);
    assert_eq!(last["strandline_actors{kind=\"supervisor\",life=\"stopped\"}"], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_by_grpc_are_those_that_are_shown() {
    let (endpoint, received) = by_grpc().await;
    what_is_received_is_what_is_shown(&endpoint, "grpc", &received).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_by_http_are_those_that_are_shown() {
    let (endpoint, received) = by_http();
    what_is_received_is_what_is_shown(&endpoint, "http/protobuf", &received).await;
}
