//! Windows of processing time: rows that are read again after a crash get another time, and are counted once all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use strandline_actors::ports::{Change, KeyedOperator, Query, StageInput, StateDelta};
use strandline_actors::position::{Offset, Position, Vector, Watermark};

use super::harness::{Dice, Record, batch, input, log, partition, planned, refused};

fn sql(options: &str, sink: &str, select: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE bids (bidder BIGINT, price BIGINT) STORED AS JSON LOCATION 'kafka://bids'{options};
         CREATE EXTERNAL TABLE result ({sink};
         INSERT INTO result {select}"
    )
}

const BY_CLOCK: &str = " OPTIONS ('watermark.column' '_processing_time')";

/// What of a shard is stored.
#[derive(Clone, Default)]
struct Stored {
    state: Vec<StateDelta>,
    vector: BTreeMap<usize, Position>,
    closed: Watermark,
}

/// A shard in this life.
struct Shard {
    operator: Box<dyn KeyedOperator>,
    vector: BTreeMap<usize, Position>,
    closed: Watermark,
}

/// A window of a bidder: how many bids, and the first and the last time that one of them had.
type Written = BTreeMap<(i64, i64, i64), (i64, i64, i64)>;

/// Partitions and shards that crash together, each shard with what it has committed itself.
struct World {
    query: std::sync::Arc<dyn Query>,
    logs: Vec<Vec<Record>>,
    stored: Vec<Stored>,
    shards: Vec<Shard>,
    written: Written,
    /// In milliseconds.
    now: i64,
}

impl World {
    fn new(sql: &str, shards: usize, logs: Vec<Vec<Record>>) -> Self {
        let query = planned(sql).query();
        let start = (0..logs.len()).map(|number| (number, Position::start(Offset(0)))).collect();
        let stored = vec![Stored { vector: start, ..Stored::default() }; shards];
        let mut world = Self { query, logs, stored, shards: Vec::new(), written: Written::new(), now: 1_000_000 };
        world.crash();
        world
    }

    /// Every shard goes back to what it has committed.
    fn crash(&mut self) {
        let shards = self.stored.iter().enumerate().map(|(number, stored)| {
            let mut operator = self.query.operator(number as u32);
            operator.restore(stored.state.clone()).unwrap();
            Shard { operator, vector: stored.vector.clone(), closed: stored.closed }
        });
        self.shards = shards.collect();
    }

    /// The next position of a partition: the lowest that a shard needs.
    fn lowest(&self, number: usize) -> Position {
        let positions = self.shards.iter().map(|shard| shard.vector[&number]);
        positions.min_by_key(|position| (position.next, std::cmp::Reverse(position.watermark))).unwrap()
    }

    /// Reads so many records of a partition, or says that it has been quiet for long.
    fn read(&mut self, number: usize, records: i64) {
        let from = self.lowest(number);
        let end = self.logs[number].len() as i64;
        let until = (from.next.0 + records).min(end);
        let cuts: Vec<_> = self.shards.iter().map(|shard| Some(shard.vector[&number].next.max(from.next))).collect();
        let closed: Vec<_> = self.shards.iter().map(|shard| shard.closed).collect();
        let (partition, batch) = (partition(number as i32), batch(&self.logs[number], from.next.0, until));
        let quiet = (from.next.0 == end).then_some(Duration::from_secs(1));
        let (watermark, now) = (from.watermark, self.now * 1_000 + 321);
        let given = StageInput { watermark, quiet, cuts: &cuts, closed: &closed, now, ..input(&partition, &batch) };
        let output = self.query.source_stage(&partition).run(given).unwrap();
        for (shard, lane) in self.shards.iter_mut().zip(output.lanes) {
            let position = shard.vector.get_mut(&number).unwrap();
            // What it has already is dropped, as a replay.
            if position.next.0 > until || (position.next.0 == until && from.next.0 < until) {
                continue;
            }
            position.next = Offset(until);
            position.watermark = output.watermark.max(position.watermark);
            (position.idle, position.raised) = (output.idle, output.raised);
            let vector = shard
                .vector
                .iter()
                .map(|(number, position)| (super::harness::partition(*number as i32).key, *position));
            shard.closed = Vector(vector.collect()).watermark().max(shard.closed);
            assert_eq!((lane.counts.late, lane.counts.late_closed, lane.counts.ahead), (0, 0, 0));
            shard.operator.apply(lane.rows, shard.closed).unwrap();
        }
    }

    fn commit(&mut self, number: usize) {
        let (shard, stored) = (&mut self.shards[number], &mut self.stored[number]);
        let checkpoint = shard.operator.checkpoint().unwrap();
        // As the store does: the latest row of each key, without those that have expired.
        let shape = shard.operator.tables()[0];
        for delta in checkpoint.state {
            if delta.whole {
                stored.state.clear();
            }
            stored.state.push(delta);
        }
        let deltas: Vec<_> = stored.state.drain(..).map(|delta| delta.rows).collect();
        let merged = strandline_actors::compaction::merge(&deltas, shape, true, shard.closed).unwrap();
        stored.state.extend(merged.into_iter().map(|rows| StateDelta { table: 0, rows, whole: false }));
        (stored.vector, stored.closed) = (shard.vector.clone(), shard.closed);
        for output in checkpoint.output {
            assert_eq!(output.change, Change::Upsert);
            let time = |column: usize| output.rows.column(column).as_primitive::<TimestampMillisecondType>().values();
            let number = |column: usize| output.rows.column(column).as_primitive::<Int64Type>().values();
            for row in 0..output.rows.num_rows() {
                let key = (number(0)[row], time(1)[row], time(2)[row]);
                let before = self.written.insert(key, (number(3)[row], time(4)[row], time(5)[row]));
                assert_eq!(before, None, "a window is written once: {key:?}");
            }
        }
    }
}

/// The shards commit different parts of the log, the process dies again and again, and the clock of the next may be behind.
#[test]
fn processing_time_counts_each_row_once_whatever_each_shard_has_committed() {
    let sql = sql(
        BY_CLOCK,
        "bidder BIGINT, start TIMESTAMP(3), until TIMESTAMP(3), n BIGINT, low TIMESTAMP(3), high TIMESTAMP(3),
           PRIMARY KEY (bidder, start)) STORED AS CQL LOCATION 'cassandra://shop/result' OPTIONS ('output.mode' 'append')",
        "SELECT bidder, window.start, window.end, count(*), min(_processing_time), max(_processing_time) FROM bids
         GROUP BY bidder, window(_processing_time, '10 seconds')",
    );
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let mut wanted: BTreeMap<i64, i64> = BTreeMap::new();
        let logs: Vec<Vec<Record>> = (0..1 + dice.below(3))
            .map(|_| {
                let bidders: Vec<_> = (0..100).map(|_| dice.below(5) as i64).collect();
                bidders.iter().for_each(|bidder| *wanted.entry(*bidder).or_default() += 1);
                log(bidders.iter().map(|bidder| format!("{{\"bidder\":{bidder},\"price\":1}}")))
            })
            .collect();
        let (partitions, shards) = (logs.len(), 1 + dice.below(3));
        let mut world = World::new(&sql, shards, logs);
        let mut crashes = 0;
        while (0..partitions).any(|number| world.lowest(number).next.0 < 100) {
            let (number, records) = (dice.below(partitions), 1 + dice.below(20) as i64);
            world.read(number, records);
            world.now += dice.below(6_000) as i64;
            if dice.chance(40) {
                world.commit(dice.below(shards));
            }
            if dice.chance(8) {
                // Whoever takes over has a clock of its own.
                world.now += dice.below(40_000) as i64 - 25_000;
                world.crash();
                crashes += 1;
            }
        }
        // Time passes in silence, too, and closes the last windows, though no record comes.
        for _ in 0..6 {
            world.now += 10_000;
            (0..partitions).for_each(|number| world.read(number, 0));
            (0..shards).for_each(|shard| world.commit(shard));
        }
        assert_eq!(world.shards.iter().map(|shard| shard.operator.keys()).sum::<usize>(), 0);
        let mut found: BTreeMap<i64, i64> = BTreeMap::new();
        for ((bidder, start, until), (n, low, high)) in &world.written {
            assert!(start % 10_000 == 0 && until - start == 10_000 && low >= start && high < until && low <= high);
            *found.entry(*bidder).or_default() += n;
        }
        assert_eq!(found, wanted, "seed {seed} with {crashes} crashes");
        assert!(world.written.len() > 5, "{} windows", world.written.len());
    }
}

/// Whatever decides where a row goes, or whether it is taken, cannot follow the clock.
#[test]
fn processing_time_decides_on_no_row() {
    let sink = "k VARCHAR, t TIMESTAMP(3), n BIGINT, PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://shop/result'";
    let with_time = sink.replace("PRIMARY KEY (k)", "PRIMARY KEY (k, t)");
    let plain = "SELECT 'a', _processing_time, price FROM bids";
    let cases = [
        (
            "",
            sink,
            "SELECT 'a', NULL, 1 FROM bids WHERE _processing_time > _timestamp",
            "decide which rows are left out",
        ),
        (
            "",
            sink,
            "SELECT 'a', max(_processing_time), 1 FROM bids WHERE extract(hour FROM _processing_time) = 1",
            "left out",
        ),
        ("", &with_time, plain, "in a primary key without GROUP BY"),
        ("", sink, "SELECT 'a', _processing_time + INTERVAL '1 day', price FROM bids", "be computed with"),
        ("", sink, "SELECT 'a', NULL, sum(1000 / extract(second FROM _processing_time)) FROM bids", "be computed with"),
        ("", &with_time, "SELECT 'a', _processing_time, count(*) FROM bids GROUP BY _processing_time", "be grouped by"),
        (
            " OPTIONS ('rule.fresh' '_processing_time < _timestamp')",
            sink,
            "SELECT 'a', NULL, price FROM bids",
            "a rule cannot look at _processing_time",
        ),
        (
            " OPTIONS ('watermark.column' '_processing_time', 'watermark.delay' '1 second')",
            sink,
            plain,
            "this option goes with an event time",
        ),
    ];
    for (options, sink, select, message) in cases {
        let told = refused(&sql(options, sink, select));
        assert!(told.contains(message) && told.starts_with("line "), "{told}");
    }
    // As it is it can be kept and written.
    planned(&sql("", sink, plain));
    let last = "SELECT k, t, price FROM (SELECT 'a' AS k, bidder, _processing_time AS t, price,
        ROW_NUMBER() OVER (PARTITION BY 'a' ORDER BY _processing_time DESC) AS rn FROM bids) WHERE rn = 1";
    planned(&sql("", sink, last));
}
