//! Windows of processing time: rows that are read again after a crash get another time, and are counted once all the same.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;
use strandline_actors::position::Counts;

use super::harness::{Dice, Pipeline, Record, log, planned, refused};

fn sql(options: &str, sink: &str, select: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE bids (bidder BIGINT, price BIGINT) STORED AS JSON LOCATION 'kafka://bids'{options};
         CREATE EXTERNAL TABLE result ({sink};
         INSERT INTO result {select}"
    )
}

const BY_CLOCK: &str = " OPTIONS ('watermark.column' '_processing_time')";

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
        let mut pipeline = Pipeline::new(&sql, shards, partitions);
        // In milliseconds.
        let mut now = 1_000_000;
        let read = |pipeline: &mut Pipeline, now: i64, number: usize, records: i64| {
            pipeline.now = now * 1_000 + 321;
            let from = pipeline.next(number);
            match (from + records).min(100) {
                until if until > from => pipeline.batch(number, &logs[number], from, until),
                _ => pipeline.quiet(number, 1),
            }
        };
        let mut crashes = 0;
        while (0..partitions).any(|number| pipeline.next(number) < 100) {
            let (number, records) = (dice.below(partitions), 1 + dice.below(20) as i64);
            read(&mut pipeline, now, number, records);
            now += dice.below(6_000) as i64;
            if dice.chance(40) {
                pipeline.checkpoint(dice.below(shards));
            }
            if dice.chance(8) {
                // Whoever takes over has a clock of its own.
                now += dice.below(40_000) as i64 - 25_000;
                pipeline.crash_all();
                crashes += 1;
            }
        }
        // Time passes in silence, too, and closes the last windows, though no record comes.
        for _ in 0..6 {
            now += 10_000;
            (0..partitions).for_each(|number| read(&mut pipeline, now, number, 0));
            pipeline.checkpoint_all();
        }
        assert_eq!(pipeline.keys(), 0);
        assert_eq!(pipeline.counts, Counts { processed: 100 * partitions as u64, ..Counts::default() }, "none is late");
        assert!(pipeline.written.values().all(|times| *times == 1), "a window is written once");
        assert!(pipeline.deletes == 0 && pipeline.rows.len() > 5, "{} windows", pipeline.rows.len());
        let mut found: BTreeMap<i64, i64> = BTreeMap::new();
        for row in pipeline.rows.values() {
            let number = |column: usize| match row[column] {
                ScalarValue::Int64(Some(number)) | ScalarValue::TimestampMillisecond(Some(number), None) => number,
                ref other => panic!("{other:?}"),
            };
            let (start, until, low, high) = (number(1), number(2), number(4), number(5));
            assert!(start % 10_000 == 0 && until - start == 10_000 && low >= start && high < until && low <= high);
            *found.entry(number(0)).or_default() += number(3);
        }
        assert_eq!(found, wanted, "seed {seed} with {crashes} crashes");
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
