//! Memory is bounded, whatever the backlog, the number of partitions and the speed of the sink.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use rdkafka::producer::Producer;
use serde_json::Value;

use crate::stand::{PATIENCE, Service, Stand, until};
use crate::test_topic::{Sent, producer, send};

const PARTITIONS: i32 = 100;
const BACKLOG: u64 = 5_000_000;
const ROWS_PER_SECOND: usize = 100;
const WATCHED: Duration = Duration::from_secs(60);
const ALLOWED_MB: u64 = 512;

/// The backlog: plain orders, strongly compressed, in batches as large as a producer that takes its time makes them: a fetch
/// brings whole ones, unpacked.
fn fill(topic: String) {
    let producer = producer(&[("compression.type", "lz4"), ("linger.ms", "3000"), ("batch.size", "1000000")]);
    for number in 0..BACKLOG {
        let value = format!(
            r#"{{"user_id":"u{}","item":"item-{}","qty":{},"note":"x"}}"#,
            number % 50_000,
            number % 500,
            number % 9
        );
        // So many in a row to one partition, so that its batches get large.
        let partition = (number / 1000 % PARTITIONS as u64) as i32;
        send(&producer, &topic, partition, Sent { key: None, value: Some(value.as_bytes()), headers: None });
    }
    producer.flush(Duration::from_secs(120)).unwrap();
}

/// Records that were taken on so far, over all partitions.
fn taken_on(service: &Service) -> u64 {
    service.positions().iter().sum()
}

/// The most memory that a process ever had, in megabytes.
fn peak_mb(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_sink_bounds_memory_over_a_backlog_in_a_hundred_partitions() {
    let stand = Stand::new(PARTITIONS).await;
    let topic = stand.topic.name.clone();
    tokio::task::spawn_blocking(move || fill(topic)).await.unwrap();

    let sql = format!(
        "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, qty BIGINT) STORED AS JSON \
         LOCATION 'kafka://{}'; \
         CREATE EXTERNAL TABLE shown (user_id VARCHAR, item VARCHAR, qty BIGINT) STORED AS JSON LOCATION 'console://' \
         OPTIONS ('console.format' 'json'); \
         INSERT INTO shown SELECT user_id, item, qty FROM orders WHERE qty >= 3;",
        stand.topic.name
    );
    let (service, console) = stand.start_with_console(&sql, &[]);
    // A sink that takes a hundred rows a second: whoever reads the console reads no faster.
    let (sender, mut rows) = tokio::sync::mpsc::channel::<Value>(1);
    std::thread::spawn(move || {
        for line in BufReader::new(console).lines().map_while(Result::ok) {
            // The service is killed at the end, maybe within a line.
            let Ok(row) = serde_json::from_str(&line) else { return };
            if sender.blocking_send(row).is_err() {
                return;
            }
        }
    });
    let row = rows.recv().await.unwrap();
    assert!(row["row"]["qty"].as_i64() >= Some(3), "{row}");
    let mut pace = tokio::time::interval(Duration::from_secs(1) / u32::try_from(ROWS_PER_SECOND).unwrap());
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let begun = Instant::now();
    let mut read = 1;
    while begun.elapsed() < WATCHED {
        pace.tick().await;
        // It is the sink that is slow: there is always another row.
        let row = tokio::time::timeout(PATIENCE, rows.recv()).await.expect("there is a row").unwrap();
        assert!(row["row"]["qty"].as_i64() >= Some(3), "{row}");
        read += 1;
        if read % 500 == 1 {
            assert!(peak_mb(service.process()) < ALLOWED_MB, "{} MB", peak_mb(service.process()));
        }
    }
    let peak = peak_mb(service.process());
    eprintln!("{read} rows were read in {WATCHED:?}, {} offsets taken on, at most {peak} MB", taken_on(&service));
    assert!(peak < ALLOWED_MB, "{peak} MB");
    // What comes after it waits in Kafka.
    assert!(taken_on(&service) < BACKLOG / 2, "{}", taken_on(&service));

    // It still works: with a reader in a hurry it goes on.
    let before = taken_on(&service);
    tokio::spawn(async move { while rows.recv().await.is_some() {} });
    until("it goes on when the sink does", PATIENCE, async || taken_on(&service) > before + 100_000).await;
    assert!(peak_mb(service.process()) < ALLOWED_MB, "{} MB", peak_mb(service.process()));
}
