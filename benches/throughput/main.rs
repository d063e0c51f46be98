//! How fast the service is, as a ratio to what librdkafka itself reads of the same topic on the same machine, in one run.
//!
//! Started by `benches/run`, which brings a real Kafka and a real Cassandra. Writes a table in Markdown to standard output.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod process;
mod service;
mod topics;
mod yardstick;

use std::time::Duration;

use process::Usage;
use service::{Run, Service};
use topics::Topic;

const USUAL: u64 = 50_000_000;

const Q0: (&str, &str) =
    ("user_id VARCHAR, item VARCHAR, qty BIGINT", "SELECT user_id, item, qty FROM t WHERE qty >= 3");
const Q1: (&str, &str) = (
    "user_id VARCHAR, n BIGINT, total DOUBLE, mean DOUBLE",
    "SELECT user_id, count(*), sum(amount), avg(amount) FROM t GROUP BY user_id",
);

const Q2: (&str, &str) = (
    "start TIMESTAMP, item VARCHAR, n BIGINT, total DOUBLE",
    "SELECT window.start, item, count(*), sum(amount) FROM t GROUP BY window(ts, '1 minute'), item",
);

/// Where offsets and state are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checkpoints {
    /// In Cassandra, every second.
    EverySecond,
    /// None within a run.
    Never,
}

struct Bench {
    kafka: String,
    cassandra: String,
    records: u64,
    runs: usize,
    only: Vec<String>,
}

fn main() {
    let bench = Bench::from_arguments();
    let wanted = || topics::ALL.iter().filter(|topic| bench.wants(topic.name));
    assert!(wanted().next().is_some(), "no such topic");
    wanted().for_each(|topic| topic.prepare(&bench.kafka, bench.records));
    println!("| topic | what | records/s | of the yardstick | CPU-s a million | peak MB | checkpoints: ms, kB |");
    println!("|---|---|---|---|---|---|---|");
    wanted().for_each(|topic| bench.topic(topic));
}

impl Bench {
    fn from_arguments() -> Self {
        let variable =
            |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start benches/run"));
        let (mut records, mut runs, mut only) = (USUAL, 3, Vec::new());
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|text| text.parse().ok()).expect("a number");
            match argument.as_str() {
                "--records" => records = number(),
                "--runs" => runs = number() as usize,
                name => only.push(name.to_owned()),
            }
        }
        Self { kafka: variable("BENCH_KAFKA"), cassandra: variable("BENCH_CASSANDRA"), records, runs, only }
    }

    fn wants(&self, topic: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == topic)
    }

    /// Measures all of one topic, by turns, so that a machine that gets slower does so for all.
    fn topic(&self, topic: &Topic) {
        let mut yardsticks = Vec::new();
        let cases = [
            ("Q0, a checkpoint every second", Q0, Checkpoints::EverySecond),
            ("Q0, no checkpoint", Q0, Checkpoints::Never),
            ("Q1, a checkpoint every second", Q1, Checkpoints::EverySecond),
            ("Q1, no checkpoint", Q1, Checkpoints::Never),
            ("Q2, a checkpoint every second", Q2, Checkpoints::EverySecond),
            ("Q2, no checkpoint", Q2, Checkpoints::Never),
        ];
        let mut found: Vec<Vec<Run>> = vec![Vec::new(); cases.len()];
        for round in 0..self.runs {
            yardsticks.push(yardstick::read(&self.kafka, topic, self.records));
            for (number, (what, query, checkpoints)) in cases.iter().enumerate() {
                eprintln!("{}: {what}, run {round}", topic.name);
                let mut service = Service::start(&self.settings(topic, *query, *checkpoints));
                found[number].push(service.read(topic.records(self.records)));
                service.kill();
            }
        }
        let limit = median(&mut yardsticks.clone(), Usage::rate);
        let cpu = median(&mut yardsticks.clone(), Usage::cpu_a_million);
        println!("| {} | librdkafka, just counted | {} | 100 % | {cpu:.2} | | |", topic.name, millions(limit));
        for ((what, _, _), runs) in cases.iter().zip(&mut found) {
            let rate = median(runs, |run| run.usage.rate());
            println!(
                "| {} | {what} | {} | {:.0} % | {:.2} | {:.0} | {} |",
                topic.name,
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

    fn settings(&self, topic: &Topic, query: (&str, &str), checkpoints: Checkpoints) -> Vec<(&'static str, String)> {
        let sql = format!(
            "CREATE EXTERNAL TABLE t (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
               STORED AS JSON LOCATION 'kafka://{}'
               OPTIONS ('watermark.column' 'ts', 'watermark.delay' '10 seconds');
             CREATE EXTERNAL TABLE result ({}) STORED AS CQL LOCATION 'blackhole://';
             INSERT INTO result {}",
            topic.full_name(self.records),
            query.0,
            query.1
        );
        let interval = match checkpoints {
            Checkpoints::EverySecond => Duration::from_secs(1),
            Checkpoints::Never => Duration::from_secs(86_400),
        };
        vec![
            ("PIPELINE__NAME", format!("bench-{}", uuid::Uuid::new_v4())),
            ("PIPELINE__SQL", sql),
            ("KAFKA__BOOTSTRAP_SERVERS", self.kafka.clone()),
            ("STORE__KIND", "cassandra".to_owned()),
            ("CASSANDRA__NODES", self.cassandra.clone()),
            ("CASSANDRA__KEYSPACE", "bench".to_owned()),
            ("CHECKPOINT__INTERVAL", format!("{}s", interval.as_secs())),
            ("CHECKPOINT__QUIET_INTERVAL", format!("{}s", interval.as_secs() * 3)),
        ]
    }
}

fn millions(rate: f64) -> String {
    format!("{:.2} M", rate / 1e6)
}

fn median<T>(runs: &mut [T], of: impl Fn(&T) -> f64) -> f64 {
    runs.sort_by(|a, b| of(a).total_cmp(&of(b)));
    of(&runs[runs.len() / 2])
}
