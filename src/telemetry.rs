//! What the process tells of itself: log lines on standard error, and traces by OTLP.
//!
//! Neither ever holds up the work: spans go through a bounded queue, and what does not fit in is dropped and counted.

mod processor;

use std::ffi::OsString;
use std::panic::PanicHookInfo;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Metadata;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::settings::{LogFormat, LogSettings};

pub use processor::{BoundedProcessor, Counters};

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

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
    /// The address of the collector cannot be used.
    #[error("traces cannot be sent to `{endpoint}`, which {variable} names: {reason}")]
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

/// Where traces go, if they go anywhere: the first of the standard variables that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    variable: &'static str,
    endpoint: String,
}

impl Collector {
    /// What the environment names.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        ENDPOINTS.iter().find_map(|name| {
            let endpoint = variable(name)?.to_string_lossy().trim().to_owned();
            (!endpoint.is_empty()).then_some(Self { variable: name, endpoint })
        })
    }
}

/// What was set up. Traces that still wait are sent by [`Telemetry::finish`].
#[derive(Debug, Default)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    counters: Counters,
}

impl Telemetry {
    /// Sets up logs and, if there is a collector, traces, for the whole process.
    pub fn start(settings: &LogSettings, collector: Option<Collector>) -> Result<Self, TelemetryError> {
        // What the client of Cassandra says at INFO is of use to its makers.
        let quiet = if settings.level == "info" { ",scylla=warn" } else { "" };
        let level = EnvFilter::try_new(settings.level.clone() + quiet)
            .map_err(|error| TelemetryError::Level { level: settings.level.clone(), reason: error.to_string() })?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match settings.format {
            LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
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
                .with_filter(filter_fn(ours))
        });
        tracing_subscriber::registry()
            .with(lines.with_filter(level))
            .with(traces)
            .try_init()
            .map_err(|error| TelemetryError::Twice(error.to_string()))?;
        std::panic::set_hook(Box::new(log_panic));
        if telemetry.provider.is_some()
            && let Ok(protocol) = std::env::var("OTEL_EXPORTER_OTLP_PROTOCOL")
            && !matches!(protocol.as_str(), "" | "grpc")
        {
            tracing::warn!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`, but traces are sent by grpc: name the collector's port for \
                 that, which is 4317 unless it was changed"
            );
        }
        Ok(telemetry)
    }

    fn traces(collector: &Collector) -> Result<Self, TelemetryError> {
        let failed = |reason: String| TelemetryError::Endpoint {
            variable: collector.variable,
            endpoint: collector.endpoint.clone(),
            reason,
        };
        let counters = Counters::default();
        let endpoint = collector.endpoint.clone();
        // The exporter's connection belongs to the processor's own runtime, never to one that works.
        let make = move || {
            let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
            exporter.map_err(|error| error.to_string())
        };
        let processor = BoundedProcessor::start(make, counters.clone()).map_err(failed)?;
        let resource = Resource::builder();
        let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
            || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|given| given.contains("service.name="));
        let resource = if named { resource } else { resource.with_service_name("strandline") };
        let resource =
            resource.with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build();
        let provider = SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource).build();
        Ok(Self { provider: Some(provider), counters })
    }

    /// How many spans were sent and dropped.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends what still waits, but takes no longer than the deadline, whatever the collector does.
    pub fn finish(&self, deadline: Duration) {
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(deadline)
        {
            let dropped = self.counters.dropped();
            tracing::warn!(
                "not all traces were sent within {deadline:?} ({error}); {dropped} spans were dropped in all"
            );
        }
    }
}

/// Only spans of our own are traced: those of the exporter's connection would make spans themselves, without end.
fn ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("strandline")
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_variable_for_traces_wins_and_an_empty_one_counts_for_nothing() {
        let collector = |variables: &'static [(&str, &str)]| {
            Collector::of_environment(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(collector(&[]), None);
        assert_eq!(collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317");
        assert_eq!(general.1, collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317")]).unwrap().endpoint);
        let both = collector(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:4317"),
        ]);
        assert_eq!(both.unwrap().endpoint, "http://b:4317");
    }

    #[test]
    fn an_address_that_is_none_is_an_error_with_the_variable() {
        let collector = Collector { variable: ENDPOINTS[1], endpoint: "not an address".into() };
        let error = Telemetry::traces(&collector).unwrap_err().to_string();
        assert!(
            error.starts_with("traces cannot be sent to `not an address`, which OTEL_EXPORTER_OTLP_ENDPOINT names: "),
            "{error}"
        );
    }
}
