//! Passwords and tokens appear nowhere: not in the log at its loudest, not in errors, on the page, among the metrics, in traces,
//! nor in what any command says.

use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::Counting;
use crate::stand::{PATIENCE, until};

const KAFKA: &str = "geheim-of-kafka-4711";
const KEY: &str = "geheim-of-the-key-4712";
const CASSANDRA: &str = "geheim-of-cassandra-4713";
const TOKEN: &str = "geheim-of-the-token-4714";

/// All that is secret in these settings.
const SECRETS: [(&str, &str); 7] = [
    ("KAFKA__PROPERTIES__SASL_USERNAME", "me"),
    ("KAFKA__PROPERTIES__SASL_PASSWORD", KAFKA),
    ("KAFKA__PROPERTIES__SSL_KEY_PASSWORD", KEY),
    ("CASSANDRA__USER", "me"),
    ("CASSANDRA__PASSWORD", CASSANDRA),
    ("HTTP__TOKEN", TOKEN),
    ("LOG__LEVEL", "debug,strandline=trace,strandline_actors=trace"),
];

#[track_caller]
fn clean(what: &str, text: &str) {
    assert!(!text.is_empty(), "{what} says nothing");
    for secret in [KAFKA, KEY, CASSANDRA, TOKEN, "geheim"] {
        if let Some(at) = text.find(secret) {
            let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
            panic!("{what} gives {secret} away: {}", text[start..].lines().next().unwrap_or_default());
        }
    }
}

/// Takes whatever is sent, as a collector of traces that never answers.
fn collector() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let taken = Arc::<Mutex<Vec<u8>>>::default();
    let into = Arc::clone(&taken);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let into = Arc::clone(&into);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    into.lock().unwrap().extend_from_slice(&piece[..read]);
                }
            });
        }
    });
    (address, taken)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_nowhere_to_be_seen() {
    let mut counting = Counting::over_cassandra(2).await;
    counting.fill(30).await;
    counting.stand.topic.fill(0, ["no record".to_owned()]).await;
    let (endpoint, traced) = collector();
    let mut command = counting.command(&["run"], &SECRETS);
    command.env("STRANDLINE_HTTP__LISTEN", "127.0.0.1:0").env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=public").env("OTEL_METRICS_EXPORTER", "otlp");
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    let service = crate::stand::Service::start(command);
    service.until_ready().await;
    counting.stand.until_committed(&[(0, 31), (1, 30)].into()).await;
    for path in [
        "/",
        "/page.js",
        "/page.css",
        "/api/history",
        "/api/status",
        "/api/connectors",
        "/api/balance",
        "/api/pipeline",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        clean(path, &service.get(path).unwrap().1);
    }
    let address = Counting::address(&service);
    let with = |more: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        let mut all: Vec<(&str, String)> = SECRETS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        all.push(("HTTP__LISTEN", address.clone()));
        all.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        all
    };
    let all_of = |arguments: &[&str], more: &[(&'static str, &str)]| {
        let settings = with(more);
        let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let said = counting.call_with(arguments, &settings);
        clean(&arguments.join(" "), &(said.out.clone() + &said.err));
        said
    };
    let topic = counting.stand.topic.name.as_str();
    for arguments in [
        &["check"][..],
        &["check", "--connect"],
        &["settings"],
        &["explain"],
        &["explain", "--json"],
        &["status"],
        &["status", "--json"],
        &["offsets", "show", "--json"],
        &["checkpoints", "list", "--json"],
        &["checkpoints", "verify", "--json"],
        &["dead-letters", "list", "--json"],
        &["dead-letters", "show", topic, "0", "30"],
        &["dead-letters", "replay", "--to", topic, "--yes", "--json"],
        &["pause", "--yes", "--json"],
        &["resume", "--yes", "--json"],
    ] {
        assert_eq!(all_of(arguments, &[]).code, Some(0), "{arguments:?}");
    }
    // What is wrong, in each of the ways that a secret is near.
    for (arguments, more) in [
        (&["pause", "--yes"][..], ("HTTP__TOKEN", "geheim-of-nobody-4715")),
        (&["pause", "--yes"][..], ("HTTP__TOKEN", "geheim")),
        (&["offsets", "rewind", "--to", "1", "--reset-state", "--yes"][..], ("LOG__FORMAT", "json")),
        (&["check", "--connect"][..], ("CASSANDRA__NODES", "127.0.0.1:1")),
        (&["check", "--connect"][..], ("KAFKA__PROPERTIES__SECURITY_PROTOCOL", "SASL_PLAINTEXT")),
        (&["check"][..], ("KAFKA__PROPERTIES__SASL_PASSWORT", "geheim")),
        (&["check"][..], ("CASSANDRA__PASSWORT", "geheim")),
    ] {
        let said = all_of(arguments, &[more]);
        assert!(matches!(said.code, Some(1 | 2)), "{arguments:?} {said:?}");
    }
    // The batch of the collector goes out every few seconds.
    let found = |what: &str| traced.lock().unwrap().windows(what.len()).any(|window| window == what.as_bytes());
    let both = async || found("checkpoint") && found(topic) && found("strandline_partition_position");
    until("spans and metrics arrive at the collector", PATIENCE, both).await;
    for secret in [KAFKA, KEY, CASSANDRA, TOKEN] {
        assert!(!found(secret), "the traces give {secret} away");
    }
    let said = service.said();
    assert!(said.contains("DEBUG") && said.contains("INFO"), "the log is loud");
    clean("the log", &said);
    service.kill();

    // A start that fails at everything.
    let wrong = [("KAFKA__PROPERTIES__SECURITY_PROTOCOL", "SASL_PLAINTEXT"), ("CASSANDRA__NODES", "127.0.0.1:1")];
    let settings: Vec<(&str, &str)> = SECRETS.iter().chain(&wrong).copied().collect();
    let (code, said) = counting.start_with(&settings).end().await;
    assert!(matches!(code, Some(1 | 2)), "{code:?} {said}");
    clean("a start that fails", &said);
}
