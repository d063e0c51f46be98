//! How long a record takes from Kafka's timestamp to its visible result, at ten thousand records a second.
//!
//! Each record becomes a row on the console, which is shown when its checkpoint is durable, and carries the timestamp that
//! Kafka gave the record.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::Bench;
use crate::service::Service;
use crate::topics::{self, Trickle};

const RATE: u64 = 10_000;
const PARTITIONS: i32 = 4;
/// What comes first is not counted: connections are made and code is loaded.
const WARM_UP: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(20);

/// Measures with two intervals between checkpoints, and prints a table.
pub fn measure(bench: &Bench) {
    println!("\n| interval | rows | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|");
    for interval in [Duration::from_millis(50), Duration::from_secs(1)] {
        let mut delays = one(bench, interval);
        delays.sort_unstable();
        let at = |part: usize| delays[(delays.len() - 1) * part / 100];
        println!("| {interval:?} | {} | {} | {} | {} |", delays.len(), at(50), at(99), at(100));
    }
}

/// The delays in milliseconds.
fn one(bench: &Bench, interval: Duration) -> Vec<u64> {
    let name = format!("bench-latency-{}", uuid::Uuid::new_v4());
    topics::create(&bench.kafka, &name, PARTITIONS);
    let sql = format!(
        "CREATE EXTERNAL TABLE t (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
           STORED AS JSON LOCATION 'kafka://{name}';
         CREATE EXTERNAL TABLE shown (at BIGINT, user_id VARCHAR) STORED AS JSON LOCATION 'console://'
           OPTIONS ('console.format' 'json');
         INSERT INTO shown SELECT CAST(_timestamp AS BIGINT), user_id FROM t"
    );
    let mut service = Service::start(&bench.service(&name, sql, interval));
    let rows = BufReader::new(service.console());
    let trickle = Trickle::start(&bench.kafka, &name, PARTITIONS, RATE);
    let (mut delays, mut first) = (Vec::new(), None);
    for line in rows.lines().map_while(Result::ok) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        let began = *first.get_or_insert_with(Instant::now);
        if began.elapsed() < WARM_UP {
            continue;
        }
        if began.elapsed() > WARM_UP + WATCHED {
            break;
        }
        let row: Value = serde_json::from_str(&line).expect("a line is a row");
        delays.push(now - row["row"]["at"].as_u64().expect("a time"));
    }
    trickle.stop();
    service.kill();
    delays
}
