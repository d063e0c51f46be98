//! How fast the service is, as a ratio to what librdkafka itself reads of the same topic on the same machine, in one run;
//! how long a record takes to its visible result; how long the service takes to work again after a crash; and what traces cost.
//!
//! Started by `benches/run`, which brings a real Kafka and a real Cassandra. Writes tables in Markdown to standard output.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod latency;
mod process;
mod recovery;
mod service;
mod topics;
mod traces;
mod yardstick;

use std::time::Duration;

use process::Usage;
use service::{Run, Service};
use topics::Topic;

const USUAL: u64 = 50_000_000;

/// A query, and what it needs.
#[derive(Clone, Copy)]
struct Query {
    name: &'static str,
    /// The options of its source.
    source: &'static str,
    /// The columns of its result.
    columns: &'static str,
    /// The options of its result.
    result: &'static str,
    sql: &'static str,
}

const Q0: Query = Query {
    name: "Q0",
    source: "",
    columns: "user_id VARCHAR, item VARCHAR, qty BIGINT",
    result: "",
    sql: "SELECT user_id, item, qty FROM t WHERE qty >= 3",
};

const Q1: Query = Query {
    name: "Q1",
    source: "",
    columns: "user_id VARCHAR, n BIGINT, total DOUBLE, mean DOUBLE",
    result: "",
    sql: "SELECT user_id, count(*), sum(amount), avg(amount) FROM t GROUP BY user_id",
};

/// Each window once, when it is closed.
const Q2: Query = Query {
    name: "Q2",
    source: "OPTIONS ('watermark.column' 'ts', 'watermark.delay' '10 seconds')",
    columns: "start TIMESTAMP, item VARCHAR, n BIGINT, total DOUBLE",
    result: " OPTIONS ('output.mode' 'append')",
    sql: "SELECT window.start, item, count(*), sum(amount) FROM t GROUP BY window(ts, '1 minute'), item",
};

/// Sliding windows.
const Q3: Query = Query {
    name: "Q3",
    sql: "SELECT window.start, item, count(*), sum(amount) FROM t GROUP BY window(ts, '10 minutes', '1 minute'), item",
    ..Q2
};

/// Sessions: with a million users, almost as many are open at any time.
const Q4: Query = Query {
    name: "Q4",
    columns: "start TIMESTAMP, user_id VARCHAR, n BIGINT",
    sql: "SELECT session_window.start, user_id, count(*) FROM t GROUP BY session_window(ts, '10 minutes'), user_id",
    ..Q2
};

/// Where offsets and state are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checkpoints {
    /// In Cassandra, every second.
    EverySecond,
    /// None within a run.
    Never,
}

/// Where results go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    Blackhole,
    Cassandra,
}

/// What is measured of a topic.
#[derive(Clone, Copy)]
struct Case {
    query: Query,
    checkpoints: Checkpoints,
    into: Into,
}

impl Case {
    const ALL: [Self; 10] = [
        Self::new(Q0, Checkpoints::EverySecond),
        Self::new(Q0, Checkpoints::Never),
        Self::new(Q1, Checkpoints::EverySecond),
        Self::new(Q1, Checkpoints::Never),
        Self::new(Q2, Checkpoints::EverySecond),
        Self::new(Q2, Checkpoints::Never),
        Self::new(Q3, Checkpoints::EverySecond),
        Self { into: Into::Cassandra, ..Self::new(Q1, Checkpoints::EverySecond) },
        Self::new(Q4, Checkpoints::EverySecond),
        Self::new(Q4, Checkpoints::Never),
    ];

    const fn new(query: Query, checkpoints: Checkpoints) -> Self {
        Self { query, checkpoints, into: Into::Blackhole }
    }

    fn title(&self) -> String {
        let checkpoints = match self.checkpoints {
            Checkpoints::EverySecond => "a checkpoint every second",
            Checkpoints::Never => "no checkpoint",
        };
        let into = match self.into {
            Into::Blackhole => "",
            Into::Cassandra => " into a Cassandra table",
        };
        format!("{}{into}, {checkpoints}", self.query.name)
    }
}

struct Bench {
    kafka: String,
    cassandra: String,
    records: u64,
    runs: usize,
    /// What was asked for, by name.
    only: Vec<String>,
    /// How the titles of the cases begin that were asked for; none: all.
    queries: Vec<String>,
}

fn main() {
    let bench = Bench::from_arguments();
    let wanted = || topics::ALL.iter().filter(|topic| bench.wants(topic.name));
    assert!(
        wanted().next().is_some() || ["latency", "recovery", "traces"].iter().any(|name| bench.wants(name)),
        "there is nothing of that name to measure"
    );
    wanted().for_each(|topic| topic.prepare(&bench.kafka, bench.records));
    if wanted().next().is_some() {
        println!("| topic | what | records/s | of the yardstick | CPU-s a million | peak MB | checkpoints: ms, kB |");
        println!("|---|---|---|---|---|---|---|");
    }
    wanted().for_each(|topic| bench.topic(topic));
    if bench.wants("latency") {
        latency::measure(&bench);
    }
    if bench.wants("recovery") {
        recovery::measure(&bench);
    }
    if bench.wants("traces") {
        traces::measure(&bench);
    }
}

impl Bench {
    fn from_arguments() -> Self {
        let variable =
            |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start benches/run"));
        let (mut records, mut runs, mut only, mut queries) = (USUAL, 3, Vec::new(), Vec::new());
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|text| text.parse().ok()).expect("a number");
            match argument.as_str() {
                "--records" => records = number(),
                "--runs" => runs = number() as usize,
                "--query" => queries.extend(arguments.next()),
                name => only.push(name.to_owned()),
            }
        }
        Self { kafka: variable("BENCH_KAFKA"), cassandra: variable("BENCH_CASSANDRA"), records, runs, only, queries }
    }

    fn wants(&self, topic: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == topic)
    }

    /// Whether a case is among the queries that were asked for.
    fn asked(&self, case: &Case) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|name| case.title().starts_with(name.as_str()))
    }

    /// Measures all of one topic, by turns, so that a machine that gets slower does so for all.
    fn topic(&self, topic: &Topic) {
        let mut yardsticks = Vec::new();
        let fits = |case: &Case| (case.query.name == Q4.name) == (topic.name == topics::SESSIONS) && self.asked(case);
        let cases: Vec<Case> = Case::ALL.into_iter().filter(fits).collect();
        let mut found: Vec<Vec<Run>> = vec![Vec::new(); cases.len()];
        for round in 0..self.runs {
            yardsticks.push(yardstick::read(&self.kafka, topic, self.records));
            for number in turn(cases.len(), round) {
                let case = &cases[number];
                let mut service = Service::start(&self.settings(topic, case));
                let run = service.read(topic.records(self.records));
                service.kill();
                let (rate, of) = (run.usage.rate(), yardsticks[round].rate());
                eprintln!(
                    "{}: {}, run {round}: {} records/s, {:.0} % of {}, {:.2} CPU-s a million, {} MB",
                    topic.name,
                    case.title(),
                    millions(rate),
                    rate / of * 100.0,
                    millions(of),
                    run.usage.cpu_a_million(),
                    run.usage.peak / 1_000_000
                );
                found[number].push(run);
            }
        }
        costs(topic, &cases, &found);
        let limit = median(&mut yardsticks.clone(), Usage::rate);
        let cpu = median(&mut yardsticks.clone(), Usage::cpu_a_million);
        println!("| {} | librdkafka, just counted | {} | 100 % | {cpu:.2} | | |", topic.name, millions(limit));
        for (case, runs) in cases.iter().zip(&mut found) {
            let rate = median(runs, |run| run.usage.rate());
            println!(
                "| {} | {} | {} | {:.0} % | {:.2} | {:.0} | {} |",
                topic.name,
                case.title(),
                millions(rate),
                rate / limit * 100.0,
                median(runs, |run| run.usage.cpu_a_million()),
                median(runs, |run| run.usage.peak as f64) / 1e6,
                match median(runs, |run| run.checkpoints as f64) {
                    0.0 => String::new(),
                    number => format!(
                        "{number}: {:.0}, {:.0}",
                        median(runs, |run| run.checkpoint_millis),
                        median(runs, |run| run.checkpoint_bytes as f64) / 1e3
                    ),
                }
            );
        }
    }

    fn settings(&self, topic: &Topic, case: &Case) -> Vec<(&'static str, String)> {
        let name = uuid::Uuid::new_v4().simple();
        let (query, into, options) = match case.into {
            Into::Blackhole => (case.query.columns.to_owned(), "blackhole://".to_owned(), case.query.result),
            Into::Cassandra => {
                let columns = format!("{}, PRIMARY KEY (user_id)", case.query.columns);
                (columns, format!("cassandra://bench/result_{name}"), " OPTIONS ('sink.create' 'true')")
            }
        };
        let sql = format!(
            "CREATE EXTERNAL TABLE t (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
               STORED AS JSON LOCATION 'kafka://{}' {};
             CREATE EXTERNAL TABLE result ({query}) STORED AS CQL LOCATION '{into}'{options};
             INSERT INTO result {}",
            topic.full_name(self.records),
            case.query.source,
            case.query.sql
        );
        let interval = match case.checkpoints {
            Checkpoints::EverySecond => Duration::from_secs(1),
            Checkpoints::Never => Duration::from_secs(86_400),
        };
        let mut settings = self.service(&format!("bench-{name}"), sql, interval);
        settings.push(("CHECKPOINT__QUIET_INTERVAL", format!("{}s", interval.as_secs() * 3)));
        settings
    }

    /// The settings of a service that runs these statements, all else as it is by default.
    fn service(&self, pipeline: &str, sql: String, interval: Duration) -> Vec<(&'static str, String)> {
        vec![
            ("PIPELINE__NAME", pipeline.to_owned()),
            ("PIPELINE__SQL", sql),
            ("INSTANCE__ID", "bench".to_owned()),
            ("KAFKA__BOOTSTRAP_SERVERS", self.kafka.clone()),
            ("STORE__KIND", "cassandra".to_owned()),
            ("CASSANDRA__NODES", self.cassandra.clone()),
            ("CASSANDRA__KEYSPACE", "bench".to_owned()),
            ("CHECKPOINT__INTERVAL", format!("{}ms", interval.as_millis())),
        ]
    }
}

/// The cases of a round in their order: every other round backwards, since whoever comes first reads a colder topic.
fn turn(cases: usize, round: usize) -> Vec<usize> {
    let mut turn: Vec<usize> = (0..cases).collect();
    if round % 2 == 1 {
        turn.reverse();
    }
    turn
}

/// Says what checkpoints cost of the rate and in CPU: the median over the rounds, in each of which both were measured.
fn costs(topic: &Topic, cases: &[Case], found: &[Vec<Run>]) {
    for (with, case) in cases.iter().enumerate().filter(|(_, case)| case.checkpoints == Checkpoints::EverySecond) {
        let bare = Case { checkpoints: Checkpoints::Never, ..*case };
        let Some(without) = cases.iter().position(|other| other.title() == bare.title()) else { continue };
        let of_rounds = |cost: &dyn Fn(&Run, &Run) -> f64| {
            let pairs = found[with].iter().zip(&found[without]);
            let mut costs: Vec<f64> = pairs.map(|(with, without)| cost(with, without) * 100.0).collect();
            format!("{:.1} % (of all rounds, sorted: {:.1?})", median(&mut costs, |cost| *cost), costs)
        };
        eprintln!(
            "{}: a checkpoint every second costs {} {} of the rate, {} more CPU in the process",
            topic.name,
            case.query.name,
            of_rounds(&|with, without| 1.0 - with.usage.rate() / without.usage.rate()),
            of_rounds(&|with, without| with.usage.cpu_a_million() / without.usage.cpu_a_million() - 1.0),
        );
    }
}

fn millions(rate: f64) -> String {
    format!("{:.2} M", rate / 1e6)
}

fn median<T>(runs: &mut [T], of: impl Fn(&T) -> f64) -> f64 {
    runs.sort_by(|a, b| of(a).total_cmp(&of(b)));
    of(&runs[runs.len() / 2])
}
