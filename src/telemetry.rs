//! What the process tells of itself: log lines on standard error, and traces and metrics by OTLP.
//!
//! None ever holds up the work: spans go through a bounded queue, and what does not fit in is dropped and counted.

mod family;
mod lines;
mod past;
mod processor;
mod push;
mod reminders;
mod variables;

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::ResourceBuilder;
use opentelemetry_sdk::trace::SdkTracerProvider;
use strandline_actors::spans::FOR_TRACES;
use tracing::Metadata;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use self::lines::Traced;
use self::push::Pushing;
use crate::settings::{LogFormat, LogSettings};

pub use family::{Family, Labels, Value};
pub use processor::{BoundedProcessor, Counters};
pub use push::{Measure, Pushes};
pub use variables::{Collector, Limits, Protocol, Receiver};

/// Why logs or traces cannot be set up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level was not understood.
    #[error("STRANDLINE_LOG__LEVEL is `{level}`: {reason}")]
    Level {
        /// What was given.
        level: String,
        /// Why it is wrong.
        reason: String,
    },
    /// A variable of OpenTelemetry holds what cannot be used.
    #[error("{variable} is `{value}`: {allowed}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// What was given, unless it may be secret.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The address of the collector cannot be used.
    #[error("traces or metrics cannot be sent to `{endpoint}`, which {variable} names: {reason}")]
    Endpoint {
        /// The variable.
        variable: &'static str,
        /// What was given.
        endpoint: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// Something else has set up logging in this process before.
    #[error("logging is set up already: {0}")]
    Twice(String),
}

/// What was set up. Traces that still wait are sent by [`Telemetry::finish`].
#[derive(Debug, Default)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    counters: Counters,
    pushing: Mutex<Option<Pushing>>,
    pushes: Pushes,
}

impl Telemetry {
    /// Sets up logs and, if there is a collector, traces, for the whole process.
    pub fn start(settings: &LogSettings, collector: Option<Collector>) -> Result<Self, TelemetryError> {
        // What the client of Cassandra says at INFO is of use to its makers.
        let quiet = if settings.level == "info" { ",scylla=warn" } else { "" };
        let level = EnvFilter::try_new(format!("{}{quiet},{FOR_TRACES}=off", settings.level))
            .map_err(|error| TelemetryError::Level { level: settings.level.clone(), reason: error.to_string() })?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let lines = match settings.format {
            LogFormat::Text => {
                let lines = lines.with_ansi(colours);
                lines.map_event_format(|format| Traced::text(format.with_ansi(colours))).boxed()
            }
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false);
                lines.map_event_format(Traced::json).boxed()
            }
        };
        let telemetry = match collector {
            Some(collector) => Self::traces(&collector)?,
            None => Self::default(),
        };
        let traces = telemetry.provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("strandline"))
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_filter(filter_fn(ours).with_max_level_hint(LevelFilter::INFO))
        });
        tracing_subscriber::registry()
            .with(lines.with_filter(level))
            .with(traces)
            .try_init()
            .map_err(|error| TelemetryError::Twice(error.to_string()))?;
        std::panic::set_hook(Box::new(log_panic));
        Ok(telemetry)
    }

    fn traces(collector: &Collector) -> Result<Self, TelemetryError> {
        let failed = |reason: String| TelemetryError::Endpoint {
            variable: collector.variable,
            endpoint: collector.endpoint.clone(),
            reason,
        };
        let counters = Counters::default();
        let Collector { endpoint, protocol, timeout, .. } = collector.clone();
        // The exporter's connection belongs to the processor's own runtime, never to one that works.
        let make = move || {
            let builder = SpanExporter::builder();
            let exporter = match protocol {
                Protocol::Grpc => builder.with_tonic().with_endpoint(endpoint).with_timeout(timeout).build(),
                Protocol::Http => {
                    let builder = builder.with_http().with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
                    builder.with_endpoint(endpoint).with_timeout(timeout).build()
                }
            };
            exporter.map_err(|error| error.to_string())
        };
        let processor = BoundedProcessor::start(make, collector.limits, counters.clone()).map_err(failed)?;
        let resource = resource(collector.named).build();
        let provider = SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource).build();
        Ok(Self { provider: Some(provider), counters, ..Self::default() })
    }

    /// Sends metrics from now on.
    pub fn push(&self, receiver: Receiver, pipeline: &str, measure: Measure) -> Result<(), TelemetryError> {
        let pipeline = KeyValue::new("strandline.pipeline", pipeline.to_owned());
        let resource = resource(receiver.named).with_attribute(pipeline).build();
        let (variable, endpoint) = (receiver.variable, receiver.endpoint.clone());
        let pushing = Pushing::start(receiver, &resource, measure, self.pushes.clone())
            .map_err(|error| TelemetryError::Endpoint { variable, endpoint, reason: error.to_string() })?;
        *self.pushing.lock().unwrap_or_else(PoisonError::into_inner) = Some(pushing);
        Ok(())
    }

    /// How often metrics were sent, and not.
    pub fn pushes(&self) -> &Pushes {
        &self.pushes
    }

    /// How many spans were sent and dropped.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends what still waits, but takes no longer than the deadline, whatever the collector does.
    pub fn finish(&self, deadline: Duration) {
        let by = Instant::now() + deadline;
        let mut pushing = self.pushing.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A little before the deadline the thread gives up by itself.
        pushing
            .iter_mut()
            .for_each(|pushing| pushing.tell((by - (deadline / 10).min(Duration::from_millis(100))).into()));
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(deadline)
        {
            let dropped = self.counters.dropped();
            tracing::warn!(
                "not all traces were sent within {deadline:?} ({error}); {dropped} spans were dropped in all"
            );
        }
        if pushing.is_some_and(|pushing| !pushing.wait(by.saturating_duration_since(Instant::now()))) {
            tracing::warn!("the last metrics were not sent within {deadline:?}");
        }
    }
}

/// What is told of the service itself. `named`: by the environment.
fn resource(named: bool) -> ResourceBuilder {
    let resource = Resource::builder();
    let resource = if named { resource } else { resource.with_service_name("strandline") };
    resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
}

/// Only spans of our own are traced, and the events in them: those of the exporter's connection would make spans themselves,
/// without end.
fn ours(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("strandline")
}

/// A panic of an actor is survived; it belongs into the log as one line, not as a trace of the stack.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic without words");
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed").to_owned();
    match panic.location() {
        Some(at) => tracing::error!(thread, at = %at, "panic: {what}"),
        None => tracing::error!(thread, "panic: {what}"),
    }
}
