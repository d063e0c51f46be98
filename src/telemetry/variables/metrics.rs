//! Where metrics are sent, if that is asked for. Nothing is sent otherwise: `/metrics` is there for whoever wants to fetch them.

use std::ffi::OsString;
use std::time::Duration;

use super::super::TelemetryError;
use super::{Given, Protocol, checked, headers};

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const COMPRESSIONS: [&str; 2] = ["OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];

/// Where metrics go, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The variable that names it.
    pub(in super::super) variable: &'static str,
    /// Its address, for HTTP with the path.
    pub(in super::super) endpoint: String,
    /// How they are sent.
    pub(in super::super) protocol: Protocol,
    /// How long one request may take.
    pub(in super::super) timeout: Duration,
    /// The time from one request to the next.
    pub(in super::super) interval: Duration,
    /// What is sent along.
    pub(in super::super) headers: Vec<(String, String)>,
    /// The service has a name of its own.
    pub(in super::super) named: bool,
}

impl Receiver {
    /// What the environment says. `None`: nothing is sent.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, TelemetryError> {
        let given = Given(variable);
        if given.choice("OTEL_SDK_DISABLED", &["true", "false"])? == Some("true") {
            return Ok(None);
        }
        let exporter = given.choice("OTEL_METRICS_EXPORTER", &["otlp", "none"])?;
        let own = given.text(ENDPOINTS[0])?.is_some();
        if exporter == Some("none") || (exporter.is_none() && !own) {
            return Ok(None);
        }
        let (protocol, default) = given.protocol(PROTOCOLS)?;
        let (variable, endpoint) = given.first(ENDPOINTS)?.unwrap_or((ENDPOINTS[1], default.to_owned()));
        let mut endpoint = checked(variable, endpoint)?;
        if protocol == Protocol::Http && variable == ENDPOINTS[1] {
            endpoint = format!("{}/v1/metrics", endpoint.trim_end_matches('/'));
        }
        let timeout = given.number(TIMEOUTS)?.map_or(Duration::from_secs(10), Duration::from_millis);
        let interval = given.number(["OTEL_METRIC_EXPORT_INTERVAL"])?;
        let interval = interval.map_or(Duration::from_secs(60), Duration::from_millis);
        let headers = match given.first(HEADERS)? {
            Some((name, text)) => headers(name, &text)?,
            None => Vec::new(),
        };
        for name in COMPRESSIONS {
            given.choice(name, &["none"])?;
        }
        let named = given.named()?;
        Ok(Some(Self { variable, endpoint, protocol, timeout, interval, headers, named }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::RefCell;

    use super::*;

    fn receiver(variables: &[(&str, &str)]) -> Result<Option<Receiver>, String> {
        let found = Receiver::of_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        });
        found.map_err(|error| error.to_string())
    }

    const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317");
    const ASKED: (&str, &str) = ("OTEL_METRICS_EXPORTER", "otlp");
    const BY_HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");

    #[test]
    fn metrics_are_sent_only_when_that_is_asked_for() {
        let endpoint = |variables: &[(&str, &str)]| receiver(variables).unwrap().map(|found| found.endpoint);
        assert_eq!(endpoint(&[]), None);
        assert_eq!(endpoint(&[GENERAL]), None, "traces alone");
        assert_eq!(endpoint(&[GENERAL, ASKED]).unwrap(), "http://a:4317");
        assert_eq!(endpoint(&[GENERAL, ASKED, BY_HTTP]).unwrap(), "http://a:4317/v1/metrics");
        assert_eq!(endpoint(&[ASKED]).unwrap(), "http://localhost:4317");
        assert_eq!(endpoint(&[ASKED, BY_HTTP]).unwrap(), "http://localhost:4318/v1/metrics");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://b:9090/api/v1/otlp/v1/metrics");
        assert_eq!(endpoint(&[own, GENERAL, BY_HTTP]).unwrap(), own.1);
        assert_eq!(endpoint(&[own, ("OTEL_METRICS_EXPORTER", "none")]), None);
        assert_eq!(endpoint(&[GENERAL, ASKED, ("OTEL_SDK_DISABLED", "true")]), None);
    }

    #[test]
    fn times_and_headers_are_taken() {
        let found = receiver(&[
            ASKED,
            ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "900"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=Bearer%20x, tenant = a%2Cb"),
            ("OTEL_SERVICE_NAME", "shop"),
        ]);
        let found = found.unwrap().unwrap();
        assert_eq!(
            (found.interval, found.timeout, found.named),
            (Duration::from_millis(250), Duration::from_millis(900), true)
        );
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(found.headers, [header("authorization", "Bearer x"), header("tenant", "a,b")]);
    }

    #[test]
    fn what_cannot_be_used_is_an_error_that_says_what_is_allowed() {
        for (name, value, said) in [
            ("OTEL_METRICS_EXPORTER", "prometheus", "`prometheus`: allowed is otlp or none"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "`1m`: allowed is a whole number above 0"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "geheim", "is `...`: allowed is name=value"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=%zz", "is `...`: allowed is name=value"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://b", "TLS is not spoken"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip", "`gzip`: allowed is none"),
        ] {
            let given = if name == ASKED.0 { vec![(name, value)] } else { vec![ASKED, (name, value)] };
            let error = receiver(&given).unwrap_err();
            assert!(error.contains(said), "{name}={value}: {error}");
        }
    }

    #[test]
    fn what_is_read_is_documented() {
        let asked = RefCell::new(Vec::new());
        let found = Receiver::of_environment(|name| {
            asked.borrow_mut().push(name.to_owned());
            (name == ASKED.0).then(|| ASKED.1.into())
        });
        assert!(found.unwrap().is_some());
        let text = crate::settings::markdown();
        for name in asked.into_inner() {
            assert!(text.contains(&format!("`{name}`")), "{name} is not in docs/settings.md");
        }
    }
}
