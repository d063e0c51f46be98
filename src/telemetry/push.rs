//! Metrics by OTLP: what `/metrics` shows, sent at an interval, under the same names.
//!
//! A thread of its own asks for the values and sends them. Whoever measures never waits: a receiver that is slow, dead or wrong
//! costs its own metrics, nothing else, and the end takes no longer than its deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::Uri;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Channel, Endpoint};

use super::family::{Family, Labels, Value};
use super::reminders::Reminders;
use super::variables::{Protocol, Receiver};

/// What an answer may hold.
const LARGEST_ANSWER: u64 = 64 << 10;

/// What became of what was sent.
#[derive(Clone, Debug, Default)]
pub struct Pushes(Arc<(AtomicU64, AtomicU64)>);

impl Pushes {
    /// How often all metrics were taken.
    pub fn sent(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    /// How often they, or some of them, were not.
    pub fn dropped(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

/// Answers the metrics as they are now.
pub type Measure = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// The thread that sends. It sends a last time when it is told to end.
#[derive(Debug)]
pub(super) struct Pushing {
    end: Option<oneshot::Sender<Instant>>,
    ended: blocking::Receiver<()>,
}

impl Pushing {
    pub(super) fn start(
        receiver: Receiver,
        resource: &opentelemetry_sdk::Resource,
        measure: Measure,
        pushes: Pushes,
    ) -> std::io::Result<Self> {
        let (end, ending) = oneshot::channel();
        let (over, ended) = blocking::sync_channel(1);
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        let resource = Resource { attributes, ..Resource::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let since = nanos();
        let run = move || {
            let way = runtime.block_on(async { Way::to(&receiver) });
            let sending = Sending { receiver, resource, measure, pushes, since, reminders: Reminders::default() };
            match way {
                Ok(way) => runtime.block_on(sending.run(way, ending)),
                Err(why) => tracing::error!("metrics cannot be sent: {why}"),
            }
            let _ = over.send(());
            // What hangs in a connection must not hold this thread.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("metrics".into()).spawn(run)?;
        Ok(Self { end: Some(end), ended })
    }

    /// Asks for a last sending, which has to be over by then.
    pub(super) fn tell(&mut self, by: Instant) {
        if let Some(end) = self.end.take() {
            let _ = end.send(by);
        }
    }

    /// Waits for it.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        self.ended.recv_timeout(at_most).is_ok()
    }
}

/// How to reach the receiver.
enum Way {
    Grpc(Box<MetricsServiceClient<Channel>>, MetadataMap),
    Http(HttpWay),
}

/// One request, one connection: once in an interval that is cheap enough.
struct HttpWay {
    address: String,
    head: String,
}

impl Way {
    fn to(receiver: &Receiver) -> Result<Self, String> {
        match receiver.protocol {
            Protocol::Grpc => {
                let endpoint = Endpoint::from_shared(receiver.endpoint.clone()).map_err(|error| error.to_string())?;
                let channel = endpoint.timeout(receiver.timeout).connect_timeout(receiver.timeout).connect_lazy();
                let mut metadata = MetadataMap::new();
                for (name, value) in &receiver.headers {
                    let wrong = |_| format!("the header {name} cannot be sent by gRPC");
                    let key = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes()).map_err(|_| wrong(()))?;
                    metadata.insert(key, value.parse().map_err(|_| wrong(()))?);
                }
                Ok(Self::Grpc(Box::new(MetricsServiceClient::new(channel)), metadata))
            }
            Protocol::Http => {
                let uri: Uri = receiver.endpoint.parse().map_err(|error| format!("{error}"))?;
                let host = uri.host().ok_or("the address has no host")?;
                let path = uri.path_and_query().map_or("/", |path| path.as_str());
                let mut head = format!(
                    "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/x-protobuf\r\n"
                );
                for (name, value) in &receiver.headers {
                    if value.chars().any(char::is_control) {
                        return Err(format!("the header {name} cannot be sent by HTTP"));
                    }
                    head += &format!("{name}: {value}\r\n");
                }
                Ok(Self::Http(HttpWay { address: format!("{host}:{}", uri.port_u16().unwrap_or(80)), head }))
            }
        }
    }

    async fn send(&mut self, request: ExportMetricsServiceRequest) -> Result<(), String> {
        let answer = match self {
            Self::Grpc(client, metadata) => {
                let request = tonic::Request::from_parts(metadata.clone(), Default::default(), request);
                let answer = client.export(request).await;
                answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?.into_inner()
            }
            Self::Http(way) => way.send(&request.encode_to_vec()).await?,
        };
        match answer.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => {
                Err(format!("{} values were refused: {}", partial.rejected_data_points, partial.error_message))
            }
            _ => Ok(()),
        }
    }
}

impl HttpWay {
    async fn send(&self, body: &[u8]) -> Result<ExportMetricsServiceResponse, String> {
        let failed = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(&self.address).await.map_err(failed)?;
        let head = format!("{}Content-Length: {}\r\n\r\n", self.head, body.len());
        stream.write_all(head.as_bytes()).await.map_err(failed)?;
        stream.write_all(body).await.map_err(failed)?;
        let mut answer = Vec::new();
        stream.take(LARGEST_ANSWER).read_to_end(&mut answer).await.map_err(failed)?;
        let (head, body) = split(&answer).ok_or("what answers does not speak HTTP")?;
        let status: u16 = head
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1)?.trim_end().parse().ok())
            .ok_or("what answers does not speak HTTP")?;
        if !(200..300).contains(&status) {
            return Err(format!("the receiver answers with status {status}"));
        }
        // An answer that is no message is one without complaints.
        Ok(ExportMetricsServiceResponse::decode(body).unwrap_or_default())
    }
}

/// The first line of an answer, and its body.
fn split(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    Some((head.lines().next()?, &answer[end + 4..]))
}

struct Sending {
    receiver: Receiver,
    resource: Resource,
    measure: Measure,
    pushes: Pushes,
    /// When the process began, in nanoseconds.
    since: u64,
    reminders: Reminders,
}

impl Sending {
    async fn run(mut self, mut way: Way, mut ending: oneshot::Receiver<Instant>) {
        let mut next = Instant::now() + self.receiver.interval;
        loop {
            tokio::select! {
                biased;
                // Also when whoever would tell is gone.
                by = &mut ending => return self.last(&mut way, by.ok()).await,
                () = tokio::time::sleep_until(next) => {}
            }
            next = Instant::now() + self.receiver.interval;
            let request = self.request();
            let sent = tokio::select! {
                biased;
                by = &mut ending => {
                    self.note(Err("the process ends".into()));
                    return self.last(&mut way, by.ok()).await;
                }
                sent = timeout(self.receiver.timeout, way.send(request)) => sent,
            };
            self.note(sent.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.receiver.timeout))));
        }
    }

    /// Sends the values as they are in the end.
    async fn last(&mut self, way: &mut Way, by: Option<Instant>) {
        let Some(by) = by else { return };
        let sent = tokio::time::timeout_at(by, way.send(self.request())).await;
        self.note(sent.unwrap_or_else(|_| Err("no answer before the end".into())));
    }

    fn note(&mut self, sent: Result<(), String>) {
        match sent {
            Ok(()) => {
                self.pushes.0.0.fetch_add(1, Ordering::Relaxed);
                if self.reminders.over() {
                    tracing::info!("metrics are taken again");
                }
            }
            Err(why) => {
                self.pushes.0.1.fetch_add(1, Ordering::Relaxed);
                if self.reminders.due(Instant::now()) {
                    let dropped = self.pushes.dropped();
                    tracing::warn!("metrics cannot be sent: {why}; {dropped} times so far, the work goes on");
                }
            }
        }
    }

    fn request(&self) -> ExportMetricsServiceRequest {
        let scope = InstrumentationScope {
            name: "strandline".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        let metrics = (self.measure)().iter().map(|family| metric(family, self.since, nanos())).collect();
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, schema_url: String::new() }];
        ExportMetricsServiceRequest { resource_metrics }
    }
}

/// Nanoseconds since the epoch.
fn nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A family as a message. A counter has the name that it has in Prometheus, with `_total`.
fn metric(family: &Family, since: u64, now: u64) -> Metric {
    let points = family.samples.iter().map(|(labels, value)| NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: if family.counter { since } else { 0 },
        time_unix_nano: now,
        value: Some(match value {
            Value::Whole(value) => number_data_point::Value::AsInt(*value),
            Value::Real(value) => number_data_point::Value::AsDouble(*value),
        }),
        ..NumberDataPoint::default()
    });
    let data_points = points.collect();
    let (name, data) = if family.counter {
        let aggregation_temporality = AggregationTemporality::Cumulative as i32;
        let sum = Sum { data_points, aggregation_temporality, is_monotonic: true };
        (format!("{}_total", family.name), metric::Data::Sum(sum))
    } else {
        (family.name.clone(), metric::Data::Gauge(Gauge { data_points }))
    };
    Metric { name, description: family.help.to_owned(), data: Some(data), ..Metric::default() }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let text = |value: &String| AnyValue { value: Some(any_value::Value::StringValue(value.clone())) };
    let pair = |(name, value): &(&'static str, String)| KeyValue {
        key: (*name).to_owned(),
        value: Some(text(value)),
        ..KeyValue::default()
    };
    labels.iter().map(pair).collect()
}
