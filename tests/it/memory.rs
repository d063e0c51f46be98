//! Memory stays bounded, whatever waits before the service and however slow what stands behind it is.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::stand::{Stand, until};
use crate::test_topic::{Sent, producer, send};

const PARTITIONS: i32 = 100;
const RECORDS: i32 = 5_000_000;
const WATCHED: Duration = Duration::from_secs(60);
const ROWS_A_SECOND: u64 = 100;
const BOUND: u64 = 512 << 20;

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the service lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// A hundred partitions, a backlog of five million records, and a console whose reader takes a hundred rows a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_before_a_slow_sink_does_not_fill_the_memory() {
    let stand = Stand::new(PARTITIONS).await;
    let name = stand.topic.name.clone();
    tokio::task::spawn_blocking(move || {
        let producer = producer(&[("compression.type", "lz4"), ("batch.num.messages", "100000")]);
        for n in 0..RECORDS {
            let value = format!("{{\"n\":{n},\"text\":\"some text that makes the record longer\"}}");
            send(&producer, &name, n % PARTITIONS, Sent { key: None, value: Some(value.as_bytes()), headers: None });
        }
        rdkafka::producer::Producer::flush(&producer, Duration::from_secs(120)).unwrap();
    })
    .await
    .unwrap();

    let sql = format!(
        "CREATE EXTERNAL TABLE records (n BIGINT, text VARCHAR) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE shown (n BIGINT, text VARCHAR) STORED AS JSON LOCATION 'console://';
         INSERT INTO shown SELECT n, text FROM records",
        stand.topic.name
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
    command.arg("run").envs(stand.environment(&sql)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut service = command.spawn().unwrap();
    let lines = BufReader::with_capacity(512, service.stdout.take().unwrap()).lines();
    let taken = Arc::<AtomicU64>::default();
    let reader = std::thread::spawn({
        let taken = Arc::clone(&taken);
        move || {
            let begun = Instant::now();
            for _ in lines.map_while(Result::ok) {
                let number = taken.fetch_add(1, Ordering::SeqCst) + 1;
                let due = Duration::from_millis(number * 1000 / ROWS_A_SECOND);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
    });
    until("the first rows are shown", Duration::from_secs(120), async || taken.load(Ordering::SeqCst) > 0).await;
    let (begun, before, mut most) = (Instant::now(), taken.load(Ordering::SeqCst), 0);
    while begun.elapsed() < WATCHED {
        assert!(service.try_wait().unwrap().is_none(), "the service ended by itself");
        most = most.max(resident(service.id()));
        assert!(most < BOUND, "{} MB are resident after {:?}", most >> 20, begun.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let shown = taken.load(Ordering::SeqCst) - before;
    println!("{} MB at most, {shown} rows shown", most >> 20);
    assert!(shown > ROWS_A_SECOND * WATCHED.as_secs() / 2, "{shown} rows in {WATCHED:?}");
    service.kill().unwrap();
    service.wait().unwrap();
    reader.join().unwrap();
}
