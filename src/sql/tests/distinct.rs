//! SELECT DISTINCT: each row once, when it first comes.

use std::collections::BTreeSet;

use datafusion::common::ScalarValue;

use super::harness::{Dice, Pipeline, each_way, log, planned, refused};

fn sql(options: &str, sink: &str, columns: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
           OPTIONS ('json.timestamp.unit' 'millis'{options});
         CREATE EXTERNAL TABLE result ({columns}) STORED AS TABLE LOCATION 'console://'{sink};
         INSERT INTO result "
    )
}

const COLUMNS: &str = "k VARCHAR, v BIGINT";

fn order(k: usize, v: usize, ts: i64) -> String {
    format!("{{\"k\":\"k{k}\",\"v\":{v},\"ts\":{ts}}}")
}

/// Without a bound every row is remembered, in both modes.
#[test]
fn each_row_is_written_once() {
    each_way(|| {
        for seed in 0..16 {
            let mut dice = Dice::new(seed);
            let mode = if dice.chance(50) { " OPTIONS ('output.mode' 'append')" } else { "" };
            let text = sql("", mode, COLUMNS) + "SELECT DISTINCT k, v % 5 FROM orders WHERE v > 2";
            let logs: Vec<_> = (0..2)
                .map(|_| log((0..100).map(|_| order(dice.below(6), dice.below(40), 0)).collect::<Vec<_>>()))
                .collect();
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), 2);
            pipeline.run(&logs, &mut dice);
            let wanted: BTreeSet<_> = logs
                .iter()
                .flatten()
                .filter_map(|record| {
                    let value: serde_json::Value = serde_json::from_slice(record.value.as_ref().unwrap()).unwrap();
                    let v = value["v"].as_i64().unwrap();
                    (v > 2).then(|| (value["k"].as_str().unwrap().to_owned(), v % 5))
                })
                .collect();
            let found: BTreeSet<_> = pipeline
                .rows
                .values()
                .map(|row| match row.as_slice() {
                    [ScalarValue::Utf8(Some(k)), ScalarValue::Int64(Some(v))] => (k.clone(), *v),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(found, wanted);
            assert!(pipeline.written.values().all(|times| *times == 1), "each row once");
            assert_eq!(pipeline.keys(), wanted.len());
            assert!(pipeline.query.unrepeatable().is_none());
        }
    });
}

/// With the event time among the columns a row is forgotten when no more of its time can come, and still written once.
#[test]
fn the_watermark_bounds_the_state() {
    each_way(|| {
        for seed in 0..24 {
            let mut dice = Dice::new(seed);
            let options = ", 'watermark.column' 'ts', 'watermark.delay' '7 milliseconds'";
            let text = sql(options, "", "k VARCHAR, ts TIMESTAMP(3)") + "SELECT DISTINCT k, ts FROM orders";
            let mut wanted = BTreeSet::new();
            let mut watermarks = Vec::new();
            let logs: Vec<_> = (0..1 + dice.below(2))
                .map(|_| {
                    let (mut now, mut highest) = (0, i64::MIN);
                    let records: Vec<_> = (0..100)
                        .map(|_| {
                            now += dice.below(3) as i64;
                            let (k, ts) = (dice.below(3), now - dice.below(14) as i64);
                            if ts >= highest.saturating_sub(7) {
                                wanted.insert((format!("k{k}"), ts));
                            }
                            highest = highest.max(ts);
                            order(k, 1, ts)
                        })
                        .collect();
                    watermarks.push(highest - 7);
                    log(records)
                })
                .collect();
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            let found: BTreeSet<_> = pipeline
                .rows
                .values()
                .map(|row| match row.as_slice() {
                    [ScalarValue::Utf8(Some(k)), ScalarValue::TimestampMillisecond(Some(ts), None)] => (k.clone(), *ts),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(found, wanted);
            assert!(pipeline.written.values().all(|times| *times == 1), "each row once");
            let lowest = *watermarks.iter().min().unwrap();
            assert_eq!(pipeline.keys(), wanted.iter().filter(|(_, ts)| *ts >= lowest).count());
        }
    });
}

/// With a time to live a row is written again when it comes after it was forgotten.
#[test]
fn a_row_that_was_forgotten_is_written_again() {
    each_way(|| {
        let options = ", 'watermark.column' 'ts'";
        let text =
            sql(options, " OPTIONS ('state.ttl' '100 milliseconds')", COLUMNS) + "SELECT DISTINCT k, v FROM orders";
        let mut pipeline = Pipeline::new(&text, 1, 1);
        let log = log([
            order(1, 1, 0),
            order(1, 1, 90),
            order(2, 1, 180),
            order(1, 1, 190),
            order(3, 1, 291),
            order(1, 1, 292),
        ]);
        let mut written = Vec::new();
        for at in 0..6 {
            pipeline.batch(0, &log, at, at + 1);
            written.push(pipeline.checkpoint_all().iter().map(|output| output.rows.num_rows()).sum::<usize>());
            pipeline.restart(0);
        }
        assert_eq!(written, [1, 0, 1, 0, 1, 1]);
        assert_eq!((pipeline.rows.len(), pipeline.keys()), (3, 2));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let refuses = |text: String, message: &str| {
        let told = refused(&text);
        assert!(told.contains(message) && told.starts_with("line "), "{told}");
    };
    let plain = |sink: &str| sql(", 'watermark.column' 'ts'", sink, COLUMNS);
    refuses(
        plain("") + "SELECT DISTINCT ON (k) k, v FROM orders",
        "DISTINCT ON is not supported: QUALIFY ROW_NUMBER()",
    );
    refuses(plain("") + "SELECT DISTINCT k, count(*) FROM orders GROUP BY k", "SELECT DISTINCT over GROUP BY");
    refuses(
        plain("") + "SELECT k, count(*) FROM (SELECT DISTINCT k, v FROM orders) GROUP BY k",
        "aggregate over an aggregate",
    );
    refuses(plain(" OPTIONS ('output.mode' 'complete')") + "SELECT DISTINCT k, v FROM orders", "never changes");
    refuses(
        plain(" OPTIONS ('output.mode' 'append', 'state.ttl' '1 hour')") + "SELECT DISTINCT k, v FROM orders",
        "may begin anew",
    );
    let timed = sql(", 'watermark.column' 'ts'", " OPTIONS ('state.ttl' '1 hour')", "k VARCHAR, ts TIMESTAMP");
    refuses(timed + "SELECT DISTINCT k, ts FROM orders", "the watermark bounds the state");
    let keyed = sql("", "", "k VARCHAR, v BIGINT, PRIMARY KEY (k)") + "SELECT DISTINCT k, v FROM orders";
    refuses(keyed, "SELECT DISTINCT v is not determined by the primary key (k)");
    let described = planned(&(sql("", "", COLUMNS) + "SELECT DISTINCT k, v FROM orders")).description;
    assert!(described.contains("keep      each group once"), "{described}");
}
