//! Query 12 has windows of processing time. Under a clock that is recorded, with what every batch was read at, its result is
//! that of a plain loop. Killed, it is another one, and every bid is in it once all the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use strandline_actors::clock::HybridClock;
use strandline_actors::env::Pipeline;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{KeyedOperator, Query, SourceStage, StageError, StageInput, StageOutput, WallClock};
use strandline_actors::position::SourcePartition;
use strandline_actors::run::Outcome;

use super::super::rows::{self, Rows, Value};
use super::{Bids, Run, statements};
use crate::stand::{PATIENCE, until};

const SIZE: i64 = 10_000;

/// A clock that goes on by a while whenever it is looked at.
struct Clock(AtomicI64);

impl WallClock for Clock {
    fn now_micros(&self) -> i64 {
        self.0.fetch_add(1_234_567, Ordering::SeqCst)
    }
}

/// A batch: its partition, its range, and when it was read, in microseconds.
type Batch = (i32, i64, i64, i64);

/// A query, and what its first half was given.
struct Recording {
    query: Arc<dyn Query>,
    record: Arc<Mutex<Vec<Batch>>>,
}

struct RecordingStage {
    stage: Box<dyn SourceStage>,
    record: Arc<Mutex<Vec<Batch>>>,
}

impl Query for Recording {
    fn source_stage(&self, partition: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(RecordingStage { stage: self.query.source_stage(partition), record: Arc::clone(&self.record) })
    }

    fn operator(&self, shard: ShardId) -> Box<dyn KeyedOperator> {
        self.query.operator(shard)
    }

    fn unrepeatable(&self) -> Option<&'static str> {
        self.query.unrepeatable()
    }

    fn closes(&self) -> bool {
        self.query.closes()
    }
}

impl SourceStage for RecordingStage {
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError> {
        let range = input.batch.range;
        if !range.is_empty() {
            let batch = (input.partition.key.partition, range.from.0, range.until.0, input.now);
            self.record.lock().unwrap().push(batch);
        }
        self.stage.run(input)
    }
}

fn bidder(json: &str) -> i64 {
    serde_json::from_str::<serde_json::Value>(json).unwrap()["bidder"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nexmark_12_under_a_recorded_clock() {
    let bids = Bids::filled().await;
    let (stand, sql) = statements(12, bids).await;
    let given = stand.environment(&sql).into_iter().map(|(name, value)| (name.into(), value.into()));
    let settings = strandline::settings::load(&[], given).unwrap().settings;
    let opened = strandline::service::open(&settings).await.unwrap();
    let sink = opened.plan.inserts[0].sink.clone();
    let pipeline = Arc::into_inner(opened.pipeline).unwrap();
    let (query, record) = (Arc::clone(&pipeline.query), Arc::<Mutex<Vec<Batch>>>::default());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    let pipeline = Pipeline {
        query: Arc::new(Recording { query, record: Arc::clone(&record) }),
        clock: HybridClock::new(Arc::new(Clock(AtomicI64::new(now)))),
        ..pipeline
    };
    let (begun, handle) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        strandline::service::run_to_end(Arc::new(pipeline), 2, |handle| begun.send(handle).unwrap())
    });
    let handle = handle.recv().unwrap();
    stand.until_committed(&bids.feed.ends()).await;

    let mut wanted: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    let mut next = BTreeMap::new();
    for (partition, from, until, now) in record.lock().unwrap().iter() {
        assert_eq!(next.insert(*partition, *until).unwrap_or(0), *from, "no batch was read twice");
        let start = (now / 1_000).div_euclid(SIZE) * SIZE;
        for bid in &bids.feed.logs[*partition as usize][*from as usize..*until as usize] {
            *wanted.entry((bidder(bid), start)).or_default() += 1;
        }
    }
    let row = |((bidder, start), count): ((i64, i64), i64)| {
        let (bidder, start) = (Value::Whole(bidder), Value::Timestamp(start));
        let Value::Timestamp(until) = start else { unreachable!() };
        let key = format!("{bidder:?}, {start:?}");
        (key, vec![bidder, Value::Whole(count), start, Value::Timestamp(until + SIZE)])
    };
    let windows = wanted.keys().map(|(_, start)| start).collect::<std::collections::BTreeSet<_>>().len();
    let wanted: Rows = wanted.into_iter().map(row).collect();
    assert!(windows > 3 && wanted.len() > 100, "{} groups in {windows} windows", wanted.len());
    // The last window is closed although no record comes any more.
    let all = async || rows::of_table(&stand, &sink).await.len() >= wanted.len();
    until(&format!("there are {} rows", wanted.len()), PATIENCE, all).await;
    handle.stop();
    let outcome = tokio::task::spawn_blocking(move || running.join().unwrap()).await.unwrap();
    assert_eq!(outcome, Outcome::Stopped);
    rows::assert_equal(&rows::of_table(&stand, &sink).await, &wanted, &sink, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nexmark_12_killed_has_every_bid_once() {
    let bids = Bids::filled().await;
    let Run { stand, sink, service } = Run::of(12, bids).await;
    stand.until_committed(&bids.feed.ends()).await;
    let mut wanted: BTreeMap<i64, i64> = BTreeMap::new();
    bids.feed.logs.iter().flatten().for_each(|bid| *wanted.entry(bidder(bid)).or_default() += 1);
    let sums = |rows: &Rows| {
        let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
        for row in rows.values() {
            let [Value::Whole(bidder), Value::Whole(count), Value::Timestamp(start), Value::Timestamp(end)] =
                row.as_slice()
            else {
                panic!("{row:?}")
            };
            assert!(start % SIZE == 0 && end - start == SIZE);
            *sums.entry(*bidder).or_default() += count;
        }
        sums
    };
    let all = async || sums(&rows::of_table(&stand, &sink).await).values().sum::<i64>() >= 3_680;
    until("every bid is in a window that is closed", PATIENCE, all).await;
    assert_eq!(sums(&rows::of_table(&stand, &sink).await), wanted);
    service.stop().await;
}
