//! Where traces and metrics go and how, from the standard variables of OpenTelemetry.
//!
//! What cannot be used is an error that says what is allowed, before anything is started: a variable that is passed over in
//! silence looks like a collector that is broken. The names of headers and their values are never shown.

mod metrics;

use std::ffi::OsString;
use std::time::Duration;

use axum::http::{HeaderName, Uri};

use super::TelemetryError;

pub use metrics::Receiver;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const COMPRESSIONS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];
const LIMITS: [&str; 3] =
    ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"];

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// By gRPC.
    Grpc,
    /// As protobuf by HTTP.
    Http,
}

/// What waits and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Spans that wait at most.
    pub queue: usize,
    /// Spans that are sent at once at most.
    pub batch: usize,
    /// How long a span waits for others to be sent with.
    pub linger: Duration,
    /// How long sending some may take, with all that is tried again.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue: 8192, batch: 512, linger: Duration::from_secs(1), patience: Duration::from_secs(30) }
    }
}

/// Where traces go, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// The variable that names it.
    pub(super) variable: &'static str,
    /// Its address, as the exporter takes it.
    pub(super) endpoint: String,
    /// How spans are sent.
    pub(super) protocol: Protocol,
    /// How long one request may take.
    pub(super) timeout: Duration,
    /// What waits and for how long.
    pub(super) limits: Limits,
    /// The service has a name of its own.
    pub(super) named: bool,
}

impl Collector {
    /// What the environment says. `None`: there are no traces.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, TelemetryError> {
        let given = Given(variable);
        if given.choice("OTEL_SDK_DISABLED", &["true", "false"])? == Some("true") {
            return Ok(None);
        }
        let exporter = given.choice("OTEL_TRACES_EXPORTER", &["otlp", "none"])?;
        let (protocol, default) = given.protocol(PROTOCOLS)?;
        let (variable, endpoint) = match (exporter, given.first(ENDPOINTS)?) {
            (Some("none"), _) | (None, None) => return Ok(None),
            (_, Some(endpoint)) => endpoint,
            (Some(_), None) => (ENDPOINTS[1], default.to_owned()),
        };
        let mut endpoint = checked(variable, endpoint)?;
        if protocol == Protocol::Http && variable == ENDPOINTS[1] {
            endpoint = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        }
        let timeout = given.number(TIMEOUTS)?.map_or(Duration::from_secs(10), Duration::from_millis);
        let limits = given.limits()?;
        given.passed_on()?;
        let named = given.named()?;
        Ok(Some(Self { variable, endpoint, protocol, timeout, limits, named }))
    }
}

/// An address of a collector that can be used.
fn checked(variable: &'static str, endpoint: String) -> Result<String, TelemetryError> {
    let error = |endpoint: &str, reason: &str| {
        let (endpoint, reason) = (endpoint.to_owned(), reason.to_owned());
        Err(TelemetryError::Endpoint { variable, endpoint, reason })
    };
    let uri = match endpoint.parse::<Uri>() {
        Ok(uri) => uri,
        Err(wrong) => return error(&endpoint, &format!("{wrong}; write it like `http://localhost:4317`")),
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return error("...", "it holds a user or a password; give them by OTEL_EXPORTER_OTLP_HEADERS");
    }
    match uri.scheme_str() {
        Some("http") => Ok(endpoint),
        Some("https") => {
            error(&endpoint, "TLS is not spoken; send to a collector or an agent on this machine, by http://")
        }
        _ => error(&endpoint, "it must begin with http://, like `http://localhost:4317`"),
    }
}

/// Headers, as a variable gives them. Their values are never shown.
fn headers(variable: &'static str, text: &str) -> Result<Vec<(String, String)>, TelemetryError> {
    let header = |header: &str| {
        let (name, value) = header.split_once('=')?;
        let name = name.trim();
        name.parse::<HeaderName>().ok()?;
        Some((name.to_owned(), unescaped(value.trim())?))
    };
    let all: Option<Vec<_>> = text.split_terminator(',').map(header).collect();
    all.ok_or_else(|| wrong(variable, "...", "allowed is name=value,name=value, the values encoded as in a URL"))
}

/// A text that is encoded as in a URL.
fn unescaped(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (code, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

fn wrong(variable: &'static str, value: &str, allowed: &str) -> TelemetryError {
    TelemetryError::Variable { variable, value: value.to_owned(), allowed: allowed.to_owned() }
}

/// What the environment holds.
struct Given<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Given<F> {
    /// A variable, unless it is empty.
    fn text(&self, name: &'static str) -> Result<Option<String>, TelemetryError> {
        match (self.0)(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) if value.trim().is_empty() => Ok(None),
            Some(Ok(value)) => Ok(Some(value.trim().to_owned())),
            Some(Err(_)) => Err(wrong(name, "...", "it is not valid UTF-8")),
        }
    }

    /// The first that is given of a variable for traces alone and the one for everything.
    fn first(&self, names: [&'static str; 2]) -> Result<Option<(&'static str, String)>, TelemetryError> {
        for name in names {
            if let Some(value) = self.text(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// How something is sent, and where to by default.
    fn protocol(&self, names: [&'static str; 2]) -> Result<(Protocol, &'static str), TelemetryError> {
        match self.first(names)? {
            None => Ok((Protocol::Grpc, "http://localhost:4317")),
            Some((_, protocol)) if protocol == "grpc" => Ok((Protocol::Grpc, "http://localhost:4317")),
            Some((_, protocol)) if protocol == "http/protobuf" => Ok((Protocol::Http, "http://localhost:4318")),
            Some((name, protocol)) => Err(wrong(name, &protocol, "allowed is grpc or http/protobuf")),
        }
    }

    /// Whether the service has a name of its own.
    fn named(&self) -> Result<bool, TelemetryError> {
        let attributes = self.attributes()?;
        Ok(self.text("OTEL_SERVICE_NAME")?.is_some() || attributes.contains("service.name="))
    }

    fn attributes(&self) -> Result<String, TelemetryError> {
        let attributes = self.text("OTEL_RESOURCE_ATTRIBUTES")?.unwrap_or_default();
        let good = |attribute: &str| attribute.split_once('=').is_some_and(|(name, _)| !name.trim().is_empty());
        match attributes.split_terminator(',').all(good) {
            true => Ok(attributes),
            false => Err(wrong("OTEL_RESOURCE_ATTRIBUTES", &attributes, "allowed is name=value,name=value")),
        }
    }

    fn choice(&self, name: &'static str, allowed: &[&'static str]) -> Result<Option<&'static str>, TelemetryError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        match allowed.iter().find(|word| word.eq_ignore_ascii_case(&value)) {
            Some(word) => Ok(Some(word)),
            None => Err(wrong(name, &value, &format!("allowed is {}", allowed.join(" or ")))),
        }
    }

    fn number<const N: usize>(&self, names: [&'static str; N]) -> Result<Option<u64>, TelemetryError> {
        for name in names {
            if let Some(value) = self.text(name)? {
                let number = value.parse().ok().filter(|number| (1..=1 << 31).contains(number));
                let allowed = "allowed is a whole number above 0, for times in milliseconds";
                return number.map(Some).ok_or_else(|| wrong(name, &value, allowed));
            }
        }
        Ok(None)
    }

    fn limits(&self) -> Result<Limits, TelemetryError> {
        let default = Limits::default();
        let size = |number: Option<u64>, or: usize| number.map_or(or, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let queue = size(self.number(["OTEL_BSP_MAX_QUEUE_SIZE"])?, default.queue);
        let given = self.number(["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"])?;
        let batch = size(given, default.batch.min(queue));
        if batch > queue {
            let allowed = format!("allowed is at most OTEL_BSP_MAX_QUEUE_SIZE, which is {queue}");
            return Err(wrong("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &batch.to_string(), &allowed));
        }
        let linger = self.number(["OTEL_BSP_SCHEDULE_DELAY"])?.map_or(default.linger, Duration::from_millis);
        let patience = self.number(["OTEL_BSP_EXPORT_TIMEOUT"])?.map_or(default.patience, Duration::from_millis);
        Ok(Limits { queue, batch, linger, patience })
    }

    /// What OpenTelemetry's libraries read by themselves, and pass over when it is wrong.
    fn passed_on(&self) -> Result<(), TelemetryError> {
        for name in HEADERS {
            headers(name, &self.text(name)?.unwrap_or_default())?;
        }
        for name in COMPRESSIONS {
            self.choice(name, &["none"])?;
        }
        for name in LIMITS {
            self.number([name])?;
        }
        self.attributes()?;
        self.sampler()
    }

    fn sampler(&self) -> Result<(), TelemetryError> {
        let Some(sampler) = self.text("OTEL_TRACES_SAMPLER")? else { return Ok(()) };
        let argument = self.text("OTEL_TRACES_SAMPLER_ARG")?;
        match sampler.as_str() {
            "always_on" | "always_off" | "parentbased_always_on" | "parentbased_always_off" => Ok(()),
            "traceidratio" | "parentbased_traceidratio" => {
                let share = argument.as_ref().and_then(|argument| argument.parse::<f64>().ok());
                match share.filter(|share| (0.0..=1.0).contains(share)) {
                    Some(_) => Ok(()),
                    None => Err(wrong(
                        "OTEL_TRACES_SAMPLER_ARG",
                        &argument.unwrap_or_default(),
                        &format!("{sampler} needs a number from 0 to 1, such as 0.1 for one in ten"),
                    )),
                }
            }
            _ => Err(wrong(
                "OTEL_TRACES_SAMPLER",
                &sampler,
                "allowed is always_on, always_off or traceidratio, or one of them after parentbased_",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::RefCell;

    use super::*;

    fn collector(variables: &[(&str, &str)]) -> Result<Option<Collector>, String> {
        let found = Collector::of_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        });
        found.map_err(|error| error.to_string())
    }

    fn endpoint(variables: &[(&str, &str)]) -> Option<String> {
        collector(variables).unwrap().map(|collector| collector.endpoint)
    }

    const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317/");
    const OF_TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:4317/here");
    const BY_HTTP: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");

    #[test]
    fn the_variable_for_traces_wins_and_an_empty_one_counts_for_nothing() {
        assert_eq!(endpoint(&[]), None);
        assert_eq!(endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        assert_eq!(endpoint(&[GENERAL]).unwrap(), "http://a:4317/");
        assert_eq!(endpoint(&[GENERAL, OF_TRACES]).unwrap(), "http://b:4317/here");
        assert_eq!(endpoint(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap(), "http://localhost:4317");
        assert_eq!(endpoint(&[("OTEL_TRACES_EXPORTER", "otlp"), BY_HTTP]).unwrap(), "http://localhost:4318/v1/traces");
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(endpoint(&[GENERAL, off]), None, "{off:?}");
        }
    }

    #[test]
    fn by_http_the_path_is_added_to_the_address_for_everything_alone() {
        assert_eq!(endpoint(&[GENERAL, BY_HTTP]).unwrap(), "http://a:4317/v1/traces");
        assert_eq!(endpoint(&[GENERAL, OF_TRACES, BY_HTTP]).unwrap(), "http://b:4317/here");
        let grpc = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert_eq!(endpoint(&[GENERAL, BY_HTTP, grpc]).unwrap(), "http://a:4317/");
    }

    #[test]
    fn times_sizes_and_names_are_taken() {
        let found = collector(&[
            GENERAL,
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "700"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=a,service.name=x"),
        ]);
        let found = found.unwrap().unwrap();
        let millis = Duration::from_millis;
        let limits = Limits { queue: 100, batch: 100, linger: millis(20), patience: millis(700) };
        assert_eq!((found.timeout, found.limits, found.named), (millis(250), limits, true));
        let plain = collector(&[GENERAL]).unwrap().unwrap();
        assert_eq!((plain.timeout, plain.limits, plain.named), (millis(10_000), Limits::default(), false));
    }

    #[test]
    fn what_cannot_be_used_is_an_error_that_says_what_is_allowed() {
        for (name, value, said) in [
            ("OTEL_SDK_DISABLED", "yes", "OTEL_SDK_DISABLED is `yes`: allowed is true or false"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "`zipkin`: allowed is otlp or none"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "`http/json`: allowed is grpc or http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s", "`10s`: allowed is a whole number above 0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "`0`: allowed is a whole number above 0"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "`-1`: allowed is a whole number"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9000", "at most OTEL_BSP_MAX_QUEUE_SIZE, which is 8192"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "few", "`few`: allowed is a whole number"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "`gzip`: allowed is none"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone", "`zone`: allowed is name=value,name=value"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "allowed is always_on, always_off or traceidratio"),
            ("OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG is ``: traceidratio needs a number"),
        ] {
            let error = collector(&[GENERAL, (name, value)]).unwrap_err();
            assert!(error.contains(said), "{name}={value}: {error}");
        }
        for (given, said) in [
            (
                "not an address",
                "traces or metrics cannot be sent to `not an address`, which OTEL_EXPORTER_OTLP_ENDPOINT names: ",
            ),
            ("localhost:4317", "it must begin with http://"),
            ("https://localhost:4317", "TLS is not spoken; send to a collector or an agent on this machine"),
        ] {
            let error = collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", given)]).unwrap_err();
            assert!(error.contains(said), "{given}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: secret"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,secret"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:secret@localhost"),
        ] {
            let error = collector(&[GENERAL, (name, value)]).unwrap_err();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
        }
        assert!(collector(&[GENERAL, ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret,")]).is_ok());
    }

    #[test]
    fn what_is_read_is_documented() {
        let asked = RefCell::new(Vec::new());
        let found = Collector::of_environment(|name| {
            asked.borrow_mut().push(name.to_owned());
            match name {
                "OTEL_TRACES_EXPORTER" => Some("otlp".into()),
                "OTEL_TRACES_SAMPLER" => Some("always_on".into()),
                _ => None,
            }
        });
        assert!(found.unwrap().is_some());
        let text = crate::settings::markdown();
        for name in asked.into_inner() {
            assert!(text.contains(&format!("`{name}`")), "{name} is not in docs/settings.md");
        }
    }
}
