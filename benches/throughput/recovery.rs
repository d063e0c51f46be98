//! How long it takes until work goes on: after the whole process was killed, with a million keys of state and ten thousand
//! records a second coming in, and after a panic of each kind of actor.

use std::time::{Duration, Instant};

use crate::service::Service;
use crate::topics::{self, Topic, Trickle};
use crate::{Bench, Q1};

/// The keys in the state.
const TOPIC: Topic = Topic { name: "keys-1m", users: 1_000_000, ..topics::LZ4 };
const RECORDS: u64 = 5_000_000;
const RATE: u64 = 10_000;
/// It has caught up when it is no more behind than this, which comes in within a tenth of a second.
const BEHIND: u64 = RATE / 10;
const KILLS: usize = 5;

/// Measures, and prints a table.
pub fn measure(bench: &Bench) {
    println!("\n| what was killed | works again after ms (median of {KILLS}) | longest |\n|---|---|---|");
    process(bench);
    for actor in ["partition", "aggregation", "committer", "supervisor"] {
        // A fresh service each time: only the first restart within minutes is at once.
        let times = (0..KILLS).map(|_| {
            let mut demo = Service::demo();
            demo.until(Service::ready);
            let restarts = demo.restarts(actor);
            let begun = Instant::now();
            demo.post(&format!("/api/demo/kill/{actor}"));
            demo.until(|demo| demo.restarts(actor) > restarts && demo.ready());
            let took = begun.elapsed();
            demo.kill();
            took
        });
        print(&format!("an actor of the kind {actor}"), times.collect());
    }
}

fn process(bench: &Bench) {
    let name = format!("bench-recovery-{}", uuid::Uuid::new_v4());
    topics::create(&bench.kafka, &name, TOPIC.partitions);
    TOPIC.fill(&bench.kafka, &name, RECORDS);
    let sql = format!(
        "CREATE EXTERNAL TABLE t (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
           STORED AS JSON LOCATION 'kafka://{name}';
         CREATE EXTERNAL TABLE result ({}) STORED AS CQL LOCATION 'blackhole://';
         INSERT INTO result {}",
        Q1.columns, Q1.sql
    );
    let settings = bench.service(&name, sql, Duration::from_secs(1));
    let mut service = Service::start(&settings);
    service.until(|service| service.position() >= RECORDS && service.keys() > 950_000);
    let trickle = Trickle::start(&bench.kafka, &name, TOPIC.partitions, RATE);
    let mut times = Vec::new();
    for _ in 0..KILLS {
        let checkpoints = service.checkpoints();
        service.until(|service| service.checkpoints() > checkpoints + 4);
        service.kill();
        let begun = Instant::now();
        service = Service::start(&settings);
        service.until(|service| service.ready() && service.lag().is_some_and(|lag| lag <= BEHIND));
        times.push(begun.elapsed());
    }
    trickle.stop();
    service.kill();
    print("the process, with a million keys", times);
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("| {what} | {} | {} |", times[times.len() / 2].as_millis(), times[times.len() - 1].as_millis());
}
