//! The service as its users run it: real processes, real Kafka, real Cassandra, records still arriving, killed at random.
//! In the end the table and `kafka_offsets` must be what an independent count of the produced records says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strandline_actors::board::{Life, PartitionStatus};
use strandline_actors::env::Pipeline;
use strandline_actors::message::Target;
use strandline_actors::run::Outcome;

use crate::stand::{Stand, until};
use crate::test_topic::{Sent, producer, send};

const PARTITIONS: i32 = 6;

/// What the produced records add up to, by item.
type Truth = BTreeMap<String, (i64, i64)>;

/// Produces orders until it is told to stop, and keeps count by itself.
struct Shop {
    stop: Arc<AtomicBool>,
    produced: Arc<AtomicU64>,
    truth: Arc<Mutex<Truth>>,
    thread: std::thread::JoinHandle<[i64; PARTITIONS as usize]>,
}

impl Shop {
    /// Opens with a backlog, then adds so many records a second.
    fn open(topic: &str, backlog: u64, rate: u64) -> Self {
        let (stop, produced, truth) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::default());
        let thread = std::thread::spawn({
            let (topic, stop, produced) = (topic.to_owned(), Arc::clone(&stop), Arc::clone(&produced));
            let truth: Arc<Mutex<Truth>> = Arc::clone(&truth);
            move || {
                let producer = producer(&[("compression.type", "lz4")]);
                let mut ends = [0i64; PARTITIONS as usize];
                let begun = Instant::now();
                let mut state = 0x2545_F491_4F6C_DD1Du64;
                let mut number = 0u64;
                while !stop.load(Ordering::SeqCst) {
                    if number >= backlog + begun.elapsed().as_millis() as u64 * rate / 1000 {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Skewed: half of the records are of one item, and one partition gets a third of them.
                    let item = if state.is_multiple_of(2) { 0 } else { state / 2 % 500 };
                    let partition =
                        (if (state / 8).is_multiple_of(3) { 0 } else { state / 64 % PARTITIONS as u64 }) as i32;
                    let qty = (state / 1024 % 9) as i64;
                    let value = format!(r#"{{"user_id":"u{number}","item":"item-{item}","qty":{qty},"note":"x"}}"#);
                    let sent = Sent { key: None, value: Some(value.as_bytes()), headers: None };
                    send(&producer, &topic, partition, sent);
                    ends[partition as usize] += 1;
                    number += 1;
                    if qty > 0 {
                        let mut truth = truth.lock().unwrap();
                        let sum = truth.entry(format!("item-{item}")).or_default();
                        *sum = (sum.0 + 1, sum.1 + qty);
                    }
                    produced.store(number, Ordering::SeqCst);
                }
                rdkafka::producer::Producer::flush(&producer, Duration::from_secs(60)).unwrap();
                ends
            }
        });
        Self { stop, produced, truth, thread }
    }

    fn close(self) -> (Truth, [i64; PARTITIONS as usize]) {
        self.stop.store(true, Ordering::SeqCst);
        let ends = self.thread.join().unwrap();
        let truth = self.truth.lock().unwrap().clone();
        (truth, ends)
    }
}

fn sql(stand: &Stand) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, qty BIGINT)
           STORED AS JSON LOCATION 'kafka://{topic}';
         CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (item))
           STORED AS CQL LOCATION 'cassandra://{keyspace}/{table}' OPTIONS ('sink.create' 'true');
         INSERT INTO totals SELECT item, count(*), sum(qty) FROM orders WHERE qty > 0 GROUP BY item;",
        topic = stand.topic.name,
        keyspace = stand.keyspace,
        table = stand.table,
    )
}

async fn committed(stand: &Stand) -> i64 {
    stand.offsets().await.values().sum()
}

async fn table(stand: &Stand) -> Truth {
    let read = format!("SELECT item, n, total FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String, i64, i64)>().unwrap().map(|row| row.unwrap()).map(|row| (row.0, (row.1, row.2))).collect()
}

/// Waits until everything is committed, and compares.
async fn settle(stand: &Stand, truth: &Truth, ends: &[i64; PARTITIONS as usize]) {
    stand.until_committed(&(0..).zip(ends.iter().copied()).collect()).await;
    assert_eq!(&table(stand).await, truth);
}

/// Kills the service again and again, each time with records unread and at least one commit since the last time.
async fn killed_again_and_again(kills: u32, by: &str) {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic.name, 100_000, 4_000);
    for kill in 0..kills {
        let before = committed(&stand).await;
        let service = stand.start(&sql(&stand));
        let what = format!("a commit before kill {kill}");
        until(&what, Duration::from_secs(60), async || committed(&stand).await > before).await;
        // At any moment between two checkpoints.
        let moment = u64::from(kill) * 7_919 % 400;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        let unread = shop.produced.load(Ordering::SeqCst) as i64 - committed(&stand).await;
        assert!(unread > 0, "nothing was unread at kill {kill}");
        match by {
            "TERM" => service.stop().await,
            _ => service.kill(),
        }
    }
    let service = stand.start(&sql(&stand));
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    service.stop().await;
    // The last checkpoint changes nothing.
    settle(&stand, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_ten_times_no_row_is_lost_or_counted_twice() {
    killed_again_and_again(10, "KILL").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_ten_times_no_row_is_lost_or_counted_twice() {
    killed_again_and_again(10, "TERM").await;
}

/// A panic in each of the four actors, twice, while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn panics_in_every_actor_change_nothing() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic.name, 50_000, 4_000);
    let given = stand.environment(&sql(&stand)).into_iter().map(|(name, value)| (name.into(), value.into()));
    let settings = strandline::settings::load(&[], given).unwrap().settings;
    let opened = strandline::service::open(&settings).await.unwrap();
    let pipeline: Arc<Pipeline> = opened.pipeline;
    let (begun, handle) = std::sync::mpsc::channel();
    let running =
        std::thread::spawn(move || strandline::service::run_to_end(pipeline, 2, |handle| begun.send(handle).unwrap()));
    let handle = handle.recv().unwrap();
    let restarts = |of: &str| {
        let board = handle.board().snapshot();
        match of {
            "supervisor" => board.supervisor.restarts,
            "committer" => board.committer.actor.restarts,
            "aggregation" => board.shards.values().map(|shard| shard.actor.restarts).sum(),
            _ => board.partitions.values().map(|partition| partition.actor.restarts).sum(),
        }
    };
    until("something is committed", Duration::from_secs(60), async || committed(&stand).await > 0).await;
    for round in 0..2 {
        for (kind, target) in [
            ("partition", Target::Partition(round)),
            ("aggregation", Target::Shard(round)),
            ("committer", Target::Committer),
            ("supervisor", Target::Supervisor),
        ] {
            let (before, already) = (restarts(kind), committed(&stand).await);
            let others: BTreeMap<i32, u64> =
                handle.board().snapshot().partitions.values().map(|p| (p.partition, p.actor.incarnation)).collect();
            handle.crash(target);
            let what = format!("{kind} restarts");
            until(&what, Duration::from_secs(30), async || restarts(kind) > before).await;
            if kind == "partition" {
                let board = handle.board().snapshot();
                let changed = board
                    .partitions
                    .values()
                    .filter(|p| others.get(&p.partition) != Some(&p.actor.incarnation))
                    .count();
                assert!(changed <= 1, "the panic of one partition started {changed} again");
            }
            // Whoever is told to panic while it starts does not hear it.
            let anew = |p: &PartitionStatus| others.get(&p.partition) != Some(&p.actor.incarnation);
            until(&format!("all run after the panic of {kind}"), Duration::from_secs(60), async || {
                let board = handle.board().snapshot();
                let runs = |p: &PartitionStatus| p.actor.life == Life::Running && (kind == "partition" || anew(p));
                board.partitions.len() == others.len() && board.partitions.values().all(runs)
            })
            .await;
            let what = format!("something is committed after the panic of {kind}");
            until(&what, Duration::from_secs(60), async || committed(&stand).await > already).await;
        }
    }
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    handle.stop();
    let outcome = tokio::task::spawn_blocking(move || running.join().unwrap()).await.unwrap();
    assert_eq!(outcome, Outcome::Stopped);
    settle(&stand, &truth, &ends).await;
}
