//! The program as its users call it: what it says of mistakes, how it exits, and that it ends when it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdkafka::producer::Producer;
use strandline::kafka::EmbeddedKafka;

use crate::test_topic::{Sent, producer, send};

const SQL: &str = "
    CREATE EXTERNAL TABLE orders (item VARCHAR, qty BIGINT) STORED AS JSON LOCATION 'kafka://orders';
    CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (item))
      STORED AS JSON LOCATION 'console://';
    INSERT INTO totals SELECT item, count(*), sum(qty) FROM orders GROUP BY item;";

/// How long anything here may take, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder to run in, so that no settings of the repository are read; deleted at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("strandline-cli-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn with(self, file: &str, text: &str) -> Self {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn command(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("STRANDLINE_") || name.to_string_lossy().starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        let settings = settings.iter().map(|(name, value)| {
            let name = if name.starts_with("OTEL_") { (*name).to_owned() } else { format!("STRANDLINE_{name}") };
            (name, value)
        });
        command.args(arguments).envs(settings).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Said {
        self.command(arguments, settings).output().unwrap().into()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a call said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// It failed with this code and in sentences for people.
    #[track_caller]
    fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.starts_with("strandline: "), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} in {self:?}");
        }
        for dump in ["Error {", "Err(", "panicked", "stack backtrace", "Some("] {
            assert!(!self.err.contains(dump), "{dump:?} in {self:?}");
        }
    }
}

fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Said {
    Place::new().run(arguments, settings)
}

/// The settings of a pipeline that is right, with some of them changed or (if empty) left out.
fn check(changed: &[(&str, &str)]) -> Said {
    let mut settings =
        vec![("PIPELINE__NAME", "orders"), ("PIPELINE__SQL", SQL), ("KAFKA__BOOTSTRAP_SERVERS", "kafka-1:9092")];
    settings.retain(|(name, _)| !changed.iter().any(|(changed, _)| changed == name));
    settings.extend(changed);
    run(&["check"], &settings)
}

#[test]
fn a_right_pipeline_is_shown_without_any_server() {
    let said = check(&[("CASSANDRA__PASSWORD", "geheim"), ("CASSANDRA__USER", "me")]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    for part in [
        "Pipeline orders\n",
        "item",
        "count(",
        "plan fingerprint ",
        "Reads orders from Kafka at kafka-1:9092\n",
        "Keeps offsets and state in the folder strandline-data of this machine",
        "with a checkpoint every 1s",
    ] {
        assert!(said.out.contains(part), "{part:?} in {}", said.out);
    }
    assert!(!said.out.contains("geheim"), "{}", said.out);

    let said = check(&[("STORE__KIND", "cassandra"), ("CASSANDRA__NODES", "c-1:9042"), ("PIPELINE__SHARDS", "1")]);
    let expected = "Keeps offsets and state in Cassandra at c-1:9042, keyspace strandline, in 1 shard if";
    assert!(said.out.contains(expected), "{said:?}");
}

#[test]
fn what_is_missing_is_named_with_its_variable() {
    check(&[("PIPELINE__NAME", "")]).failed(2, &["STRANDLINE_PIPELINE__NAME"]);
    check(&[("PIPELINE__SQL", "")]).failed(2, &["STRANDLINE_PIPELINE__SQL", "STRANDLINE_PIPELINE__SQL_FILE"]);
    check(&[("KAFKA__BOOTSTRAP_SERVERS", "")]).failed(2, &["STRANDLINE_KAFKA__BOOTSTRAP_SERVERS", "host:port"]);
    let said = check(&[("PIPELINE__SQL", ""), ("PIPELINE__SQL_FILE", "/nowhere/pipeline.sql")]);
    said.failed(2, &["/nowhere/pipeline.sql", "STRANDLINE_PIPELINE__SQL_FILE"]);
}

#[test]
fn unknown_variables_are_refused_with_the_nearest() {
    let said = check(&[("KAFKA__BOOTSTRAPSERVERS", "x")]);
    said.failed(
        2,
        &["STRANDLINE_KAFKA__BOOTSTRAPSERVERS is no setting; the nearest is STRANDLINE_KAFKA__BOOTSTRAP_SERVERS"],
    );
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed_all_at_once() {
    let said = check(&[
        ("CHECKPOINT__INTERVAL", "5"),
        ("STORE__KIND", "redis"),
        ("HTTP__LISTEN", "everywhere"),
        ("CASSANDRA__TLS", "maybe"),
        ("LOG__LEVEL", "info,loud"),
        ("CASSANDRA__REPLICATION", "3"),
    ]);
    said.failed(
        2,
        &[
            "STRANDLINE_CHECKPOINT__INTERVAL is `5`: allowed is a time with its unit, such as 500ms, 1s or 5m",
            "STRANDLINE_STORE__KIND is `redis`: allowed is local or cassandra",
            "STRANDLINE_HTTP__LISTEN is `everywhere`",
            "STRANDLINE_CASSANDRA__TLS is `maybe`: allowed is true or false",
            "STRANDLINE_LOG__LEVEL is `info,loud`",
            "`loud` is no level",
            "STRANDLINE_CASSANDRA__REPLICATION is `3`",
        ],
    );
    assert_eq!(said.err.lines().count(), 6, "{}", said.err);
}

#[test]
fn kafka_properties_that_do_not_exist_or_would_break_promises_are_refused() {
    check(&[("KAFKA__PROPERTIES", r#"{"fetch.wait.max.mss": "5"}"#)])
        .failed(2, &["fetch.wait.max.mss", "did you mean `fetch.wait.max.ms`?"]);
    check(&[("KAFKA__PROPERTIES__ENABLE_AUTO_COMMIT", "true")]).failed(2, &["`enable.auto.commit` cannot be set"]);
    let said = check(&[("KAFKA__PROPERTIES", "{\"sasl.password\": geheim}")]);
    said.failed(2, &["STRANDLINE_KAFKA__PROPERTIES cannot be read: allowed is a JSON object"]);
    assert!(!said.err.contains("geheim"), "{}", said.err);
}

#[test]
fn wrong_statements_are_refused_with_the_place() {
    let with = |insert: &str| {
        let declared = SQL.split("INSERT").next().unwrap();
        check(&[("PIPELINE__SQL", &format!("{declared}{insert}"))])
    };
    with("INSERT INTO totals SELECT item, count(*), sum(qtty) FROM orders GROUP BY item")
        .failed(2, &["qtty", "line 5", "column"]);
    with("INSERT INTO totals SELECT item, count(*) FROM order GROUP BY item").failed(2, &["order", "line 5"]);
    with("INSERT INTO totals SELEKT").failed(2, &["line 5"]);
    with("").failed(2, &["INSERT INTO"]);
    with("INSERT INTO totals SELECT item, count(*), sum(random()) FROM orders GROUP BY item").failed(2, &["random"]);
}

#[test]
fn statements_and_settings_come_from_files_too() {
    let place = Place::new()
        .with("pipeline.sql", SQL)
        .with("config/10-kafka.toml", "[kafka]\nbootstrap_servers = \"from-file:9092\"\n")
        .with("config/20-store.toml", "[store]\npath = \"elsewhere\"\n[checkpoint]\ninterval = \"7s\"\n")
        .with("own.toml", "[kafka]\nbootstrap_servers = \"own:9092\"\n");
    let settings =
        [("PIPELINE__NAME", "orders"), ("PIPELINE__SQL_FILE", "pipeline.sql"), ("CHECKPOINT__INTERVAL", "9s")];
    let said = place.run(&["check"], &settings);
    assert_eq!(said.code, 0, "{said:?}");
    for part in ["from-file:9092", "the folder elsewhere", "every 9s", "config/10-kafka.toml, config/20-store.toml"] {
        assert!(said.out.contains(part), "{part:?} in {}", said.out);
    }
    let said = place.run(&["check", "--config", "own.toml"], &settings);
    assert!(said.out.contains("own:9092") && said.out.contains("strandline-data"), "{said:?}");
    place.run(&["check", "--config", "none.toml"], &settings).failed(2, &["--config none.toml"]);

    let place = place.with("config/30-wrong.toml", "[kafka]\nbootstrap = \"x\"\n");
    place.run(&["check"], &settings).failed(
        2,
        &["`kafka.bootstrap` in config/30-wrong.toml is no setting; the nearest is `kafka.bootstrap_servers`"],
    );
}

#[test]
fn servers_that_cannot_be_reached_are_all_named() {
    // Nobody listens on a port that was just given back.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let said = run(
        &["check", "--connect"],
        &[
            ("PIPELINE__NAME", "orders"),
            ("PIPELINE__SQL", SQL),
            ("KAFKA__BOOTSTRAP_SERVERS", &free),
            ("STORE__KIND", "cassandra"),
            ("CASSANDRA__NODES", &free),
        ],
    );
    said.failed(
        1,
        &[
            &format!("no Kafka broker answered at {free}"),
            "STRANDLINE_KAFKA__BOOTSTRAP_SERVERS",
            &format!("no Cassandra node answered at {free}"),
            "STRANDLINE_CASSANDRA__NODES",
        ],
    );
    let said = run(
        &["run"],
        &[
            ("PIPELINE__NAME", "orders"),
            ("PIPELINE__SQL", SQL),
            ("KAFKA__BOOTSTRAP_SERVERS", &free),
            ("STORE__KIND", "cassandra"),
            ("CASSANDRA__NODES", &free),
            ("HTTP__LISTEN", "off"),
            ("LOG__LEVEL", "off"),
        ],
    );
    said.failed(1, &["no Cassandra node answered at", "STRANDLINE_CASSANDRA__NODES"]);
}

#[test]
fn an_address_in_use_is_told_with_the_way_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let parts = [&format!("the address {listen} for the status page is in use"), "STRANDLINE_HTTP__LISTEN"];
    run(&["demo"], &[("HTTP__LISTEN", &listen)]).failed(1, &parts);
    let settings = [
        ("PIPELINE__NAME", "orders"),
        ("PIPELINE__SQL", SQL),
        ("KAFKA__BOOTSTRAP_SERVERS", "localhost:1"),
        ("HTTP__LISTEN", &listen),
        ("LOG__LEVEL", "off"),
    ];
    run(&["run"], &settings).failed(1, &parts);
}

#[test]
fn the_command_line_explains_itself() {
    let version = run(&["--version"], &[]);
    assert_eq!((version.code, version.out), (0, format!("strandline {}\n", env!("CARGO_PKG_VERSION"))));
    let help = run(&["--help"], &[]);
    assert_eq!(help.code, 0);
    for command in ["check", "run", "demo", "settings", "Exit codes"] {
        assert!(help.out.contains(command), "{command} in {}", help.out);
    }
    assert_eq!(run(&[], &[]).code, 2);
    assert_eq!(run(&["ruhn"], &[]).code, 2);
    let said = run(&["demo", "--duration", "soon"], &[]);
    assert!(said.code == 2 && said.err.contains("give a time with its unit"), "{said:?}");
    let settings = run(&["settings"], &[]);
    assert!(settings.code == 0 && settings.out.contains("STRANDLINE_CHECKPOINT__INTERVAL"), "{settings:?}");
}

#[test]
fn the_demo_counts_right_while_every_kind_of_actor_is_killed() {
    let said = run(&["demo", "--duration", "5s", "--rate", "2000"], &[("HTTP__LISTEN", "127.0.0.1:0")]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("Kafka and the store are embedded ones"), "{}", said.out);
    for part in ["killing a partition actor", "killing an aggregation actor", "killing the offset committer"] {
        assert!(said.out.contains(part), "{part:?} in {}", said.out);
    }
    assert!(said.out.contains("killing the supervisor"), "{}", said.out);
    let equal = said.out.lines().last().unwrap();
    assert!(equal.starts_with("Equal: ") && equal.contains("each counted exactly once"), "{}", said.out);
    let orders: u64 = equal.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(orders > 1000, "{equal}");
}

/// `strandline run` over an embedded Kafka and a local store, with its status page.
struct Running {
    child: Child,
    page: String,
    log: mpsc::Receiver<String>,
}

impl Running {
    fn start(place: &Place, kafka: &EmbeddedKafka, more: &[(&str, &str)]) -> Self {
        let mut settings = vec![
            ("PIPELINE__NAME", "orders"),
            ("PIPELINE__SQL", SQL),
            ("KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers()),
            ("CHECKPOINT__INTERVAL", "100ms"),
            ("HTTP__LISTEN", "127.0.0.1:0"),
        ];
        settings.extend(more);
        let mut child =
            place.command(&["run"], &settings).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, log) = mpsc::channel();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|l| lines.send(l))
        });
        let mut running = Self { child, page: String::new(), log };
        let line = running.line("status page at http://");
        let address = line.split("http://").nth(1).unwrap();
        let end = address.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ':')).unwrap_or(address.len());
        running.page = address[..end].to_owned();
        running
    }

    /// Waits for a line of the log.
    fn line(&self, part: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).unwrap_or_else(|_| panic!("no line with {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.page).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.page).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Waits until a page answers so.
    fn until(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let (status, body) = self.get(path);
            if wanted(status, &body) {
                return;
            }
            assert!(Instant::now() < until, "{path} still answers {status}: {body}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all partitions together are at this position.
    fn until_read(&self, count: i64) {
        self.until("/metrics", |_, metrics| {
            let positions = metrics.lines().filter(|line| line.starts_with("strandline_partition_position{"));
            positions.map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum::<i64>() == count
        });
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// How it ends, and what it wrote to standard output.
    fn end(mut self) -> (i32, String) {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), out)
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An embedded Kafka with some orders of tea.
fn orders(count: i64) -> EmbeddedKafka {
    let kafka = EmbeddedKafka::start(1).unwrap();
    kafka.create_topic("orders", 2).unwrap();
    more_orders(&kafka, count);
    kafka
}

fn more_orders(kafka: &EmbeddedKafka, count: i64) {
    let producer = producer_of(kafka);
    for number in 0..count {
        let value = br#"{"item":"tea","qty":2}"#;
        send(&producer, "orders", (number % 2) as i32, Sent { key: None, value: Some(value), headers: None });
    }
    producer.flush(PATIENCE).unwrap();
}

fn producer_of(
    kafka: &EmbeddedKafka,
) -> rdkafka::producer::ThreadedProducer<rdkafka::producer::DefaultProducerContext> {
    producer(&[("bootstrap.servers", kafka.bootstrap_servers())])
}

/// The last row of tea on the console: how many orders, how many pieces.
fn last_row(out: &str) -> (i64, i64) {
    let row = out.lines().last().unwrap_or_else(|| panic!("nothing was written: {out:?}"));
    let row: serde_json::Value = serde_json::from_str(row).unwrap();
    (row["row"]["n"].as_i64().unwrap(), row["row"]["total"].as_i64().unwrap())
}

#[test]
fn it_ends_with_a_last_checkpoint_when_it_is_told_to_and_goes_on_from_there() {
    let (place, kafka) = (Place::new(), orders(100));
    for (signal, before) in [("TERM", 100), ("INT", 200)] {
        let running = Running::start(&place, &kafka, &[("CHECKPOINT__INTERVAL", "1h"), ("LOG__FORMAT", "json")]);
        running.until("/readyz", |status, _| status == 200);
        running.until_read(before);
        assert_eq!(running.get("/healthz").0, 200);
        running.signal(signal);
        let line = running.line("taking a last checkpoint");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["level"], "INFO");
        let (code, out) = running.end();
        assert_eq!(code, 0);
        assert_eq!(last_row(&out), (before, before * 2));
        more_orders(&kafka, 100);
    }
}

/// Case: lost spans (opentelemetry-rust#3453, #1963).
#[test]
fn a_collector_that_never_answers_does_not_hold_up_the_work_or_the_end() {
    let (place, kafka) = (Place::new(), orders(1000));
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in collector.incoming() {
            open.push(connection);
        }
    });
    let running =
        Running::start(&place, &kafka, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), ("SHUTDOWN__DEADLINE", "30s")]);
    running.until_read(1000);
    let begun = Instant::now();
    running.signal("TERM");
    let (code, out) = running.end();
    assert_eq!(code, 0);
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
    assert_eq!(last_row(&out), (1000, 2000));
}

/// A service manager may send it to the process and to its group.
#[test]
fn a_second_sigterm_at_once_does_not_cut_the_last_checkpoint_short() {
    let (place, kafka) = (Place::new(), orders(1000));
    let settings = [("CHECKPOINT__INTERVAL", "1h"), ("CHECKPOINT__QUIET_INTERVAL", "1h")];
    let running = Running::start(&place, &kafka, &settings);
    running.until_read(1000);
    running.signal("TERM");
    running.signal("TERM");
    let (code, out) = running.end();
    assert_eq!(code, 0, "{out}");
    assert_eq!(last_row(&out), (1000, 2000));
}

/// A collector that says no more than HTTP/2 needs, and keeps what it is sent.
#[test]
fn traces_of_batches_and_checkpoints_reach_the_collector() {
    let (place, kafka) = (Place::new(), orders(100));
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let (sent, got) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        // An empty SETTINGS frame.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if sent.send(buffer[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
        ("SHUTDOWN__DEADLINE", "5s"),
    ];
    let running = Running::start(&place, &kafka, &settings);
    let wanted = ["strandline", "service.name", "batch", "messaging.destination.partition.id", "merge", "checkpoint"];
    let (mut bytes, until) = (Vec::new(), Instant::now() + PATIENCE);
    while !wanted.iter().all(|name| bytes.windows(name.len()).any(|part| part == name.as_bytes())) {
        let more = got.recv_timeout(until.saturating_duration_since(Instant::now()));
        bytes.extend(more.expect("no traces with all of these names"));
    }
    running.signal("TERM");
    assert_eq!(running.end().0, 0);
}

/// A sink that takes nothing: nobody reads the pipe that is its standard output.
#[test]
fn when_the_last_checkpoint_cannot_be_taken_it_ends_at_the_deadline_and_says_so() {
    let (place, kafka) = (Place::new(), orders(0));
    let producer = producer_of(&kafka);
    for number in 0..5_000 {
        let value = format!("{{\"item\":\"item number {number}\",\"qty\":1}}");
        send(&producer, "orders", number % 2, Sent { key: None, value: Some(value.as_bytes()), headers: None });
    }
    producer.flush(PATIENCE).unwrap();
    let mut running = Running::start(&place, &kafka, &[("SHUTDOWN__DEADLINE", "2s")]);
    running.until_read(5_000);
    let begun = Instant::now();
    running.signal("TERM");
    let said = running.line("strandline: ");
    assert_eq!(running.child.wait().unwrap().code(), Some(1), "{said}");
    assert!(
        said.contains("the last checkpoint was not committed in time (STRANDLINE_SHUTDOWN__DEADLINE is 2s)"),
        "{said}"
    );
    assert!(said.contains("the next start goes on from the last checkpoint that was committed"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
}

#[test]
fn two_processes_do_not_share_a_local_store() {
    let (place, kafka) = (Place::new(), orders(10));
    let running = Running::start(&place, &kafka, &[]);
    running.until("/readyz", |status, _| status == 200);
    let settings = [
        ("PIPELINE__NAME", "orders"),
        ("PIPELINE__SQL", SQL),
        ("KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers()),
        ("HTTP__LISTEN", "off"),
        ("LOG__LEVEL", "off"),
    ];
    place.run(&["run"], &settings).failed(1, &["strandline-data"]);
    running.signal("TERM");
    assert_eq!(running.end().0, 0);
}

#[test]
fn the_same_instance_takes_over_at_once_and_the_earlier_process_steps_down_with_a_code_of_its_own() {
    let nodes = std::env::var("TEST_CASSANDRA")
        .expect("TEST_CASSANDRA is not set: the tests need a real Cassandra, start them with tests/run");
    let (place, kafka) = (Place::new(), orders(100));
    let keyspace = format!("cli_{}", uuid::Uuid::new_v4().simple());
    let settings = [
        ("STORE__KIND", "cassandra"),
        ("CASSANDRA__NODES", nodes.as_str()),
        ("CASSANDRA__KEYSPACE", &keyspace),
        ("INSTANCE__ID", "the-same-pod"),
        ("STORE__TAKEOVER_AFTER", "1h"),
    ];
    let first = Running::start(&place, &kafka, &settings);
    first.until("/readyz", |status, _| status == 200);
    let second = Running::start(&place, &kafka, &settings);
    let said = first.line("strandline: ");
    assert!(said.starts_with("strandline: stepped down: "), "{said}");
    assert!(said.contains("another process took the pipeline over"), "{said}");
    assert_eq!(first.end().0, 75);
    second.until("/readyz", |status, _| status == 200);
    second.signal("TERM");
    assert_eq!(second.end().0, 0);
}

#[test]
fn a_changed_query_is_refused_with_the_difference() {
    let (place, kafka) = (Place::new(), orders(10));
    let running = Running::start(&place, &kafka, &[]);
    running.until("/readyz", |status, _| status == 200);
    running.signal("TERM");
    assert_eq!(running.end().0, 0);
    let settings = [
        ("PIPELINE__NAME", "orders"),
        ("PIPELINE__SQL", &SQL.replace("sum(qty)", "max(qty)") as &str),
        ("KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers()),
        ("HTTP__LISTEN", "off"),
        ("LOG__LEVEL", "off"),
    ];
    place.run(&["run"], &settings).failed(2, &["sum(", "max(", "STRANDLINE_PIPELINE__NAME"]);
}
