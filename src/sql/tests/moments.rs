//! Groups of one event time: no row comes for one once the watermark has passed it, so they are final then, and forgotten.

use datafusion::common::ScalarValue;
use strandline_actors::position::Counts;

use super::harness::{Dice, Pipeline, assert_rows, batch_engine, decoded, each_way, log, planned, refused};
use super::ranking::{self, schema};

fn tables(columns: &str, sink: &str) -> String {
    ranking::tables(columns, ", 'watermark.column' 'ts', 'watermark.delay' '7 milliseconds'", sink)
}

/// The logs of partitions, those of their rows that are on time, and the lowest of their watermarks.
fn logs(dice: &mut Dice) -> (Vec<Vec<String>>, Vec<String>, i64) {
    let (mut logs, mut on_time, mut lowest) = (Vec::new(), Vec::new(), i64::MAX);
    for partition in 0..1 + dice.below(3) as i64 {
        let (mut now, mut highest) = (0, i64::MIN);
        let records = (0..100).map(|row| {
            now += dice.below(3) as i64;
            let ts = now - dice.below(14) as i64;
            let (k, v) = (dice.below(3), dice.below(12));
            let record = format!("{{\"k\":\"k{k}\",\"id\":{},\"v\":{v},\"ts\":{ts}}}", row * 3 + partition);
            if ts >= highest.saturating_sub(7) {
                on_time.push(record.clone());
            }
            highest = highest.max(ts);
            record
        });
        logs.push(records.collect());
        lowest = lowest.min(highest - 7);
    }
    (logs, on_time, lowest)
}

/// Runs a query of which the second column of the result is its event time.
fn check(columns: &str, sink: &str, select: &str, groups: &str) {
    let text = tables(columns, sink) + select;
    let schema_of_sink = planned(&text).inserts.remove(0).sink.schema;
    let append = sink.contains("append");
    for seed in 0..6 {
        let mut dice = Dice::new(seed);
        let (logs, on_time, lowest) = logs(&mut dice);
        let logs: Vec<_> = logs.into_iter().map(log).collect();
        let on_time = decoded(&schema().into(), &[log(on_time)]);
        let time = |row: &[ScalarValue]| match row[1] {
            ScalarValue::TimestampMillisecond(Some(ts), None) => ts,
            ref other => panic!("{other:?}"),
        };
        let mut expected = batch_engine(select, on_time.clone(), &schema_of_sink);
        let kept = batch_engine(groups, on_time, &schema_of_sink);
        let kept = kept.iter().filter(|group| time(group) >= lowest).count();
        if append {
            expected.retain(|row| time(row) < lowest);
        }
        assert!(!expected.is_empty() && kept > 0);
        each_way(|| {
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            assert_rows(&pipeline, expected.clone());
            assert_eq!(pipeline.keys(), kept, "what is past is forgotten");
            assert!(!append || pipeline.written.values().all(|times| *times == 1), "each row once");
            assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
        });
    }
}

const COMPLETE: &str = " OPTIONS ('output.mode' 'complete')";
const APPEND: &str = " OPTIONS ('output.mode' 'append')";
const GROUPS: &str = "SELECT DISTINCT k, ts FROM orders";

#[test]
fn groups_of_one_time_are_forgotten() {
    let columns = "k VARCHAR, ts TIMESTAMP(3), n BIGINT, total BIGINT, PRIMARY KEY (k, ts)";
    let select = "SELECT k, ts, count(*), sum(v) FROM orders GROUP BY ts, k";
    for sink in ["", APPEND] {
        check(columns, sink, select, GROUPS);
        check(columns, sink, &format!("{select} HAVING count(*) > 1"), GROUPS);
        // A row that was written may satisfy it no more.
        check(columns, sink, &format!("{select} HAVING sum(v) % 3 > 0"), GROUPS);
        check(
            columns,
            sink,
            "SELECT k, at, count(*), sum(v) FROM (SELECT k, ts AS at, v FROM orders) GROUP BY k, at",
            GROUPS,
        );
    }
}

/// Deduplication within the watermark.
#[test]
fn the_first_rows_of_one_time_are_forgotten() {
    let select = "SELECT k, ts, id, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k, ts ORDER BY v DESC, id)";
    for sink in ["", APPEND] {
        let one = "k VARCHAR, ts TIMESTAMP(3), id BIGINT, v BIGINT, PRIMARY KEY (k, ts)";
        check(one, sink, &format!("{select} = 1"), GROUPS);
        let several = one.replace("(k, ts)", "(k, ts, id)");
        check(&several, sink, &format!("{select} <= 2"), GROUPS);
        let ranked = select.replace("ROW_NUMBER", "RANK").replace(" DESC, id", "");
        check(&several, sink, &format!("{ranked} = 1"), GROUPS);
    }
}

fn described(select: &str) -> String {
    planned(&(tables("k VARCHAR, ts TIMESTAMP(3), n BIGINT, PRIMARY KEY (k, ts)", "") + select)).description
}

const FORGET: &str = "forget    when the watermark has passed group";

/// A time that was computed is another one.
#[test]
fn only_the_event_time_as_it_is_bounds_the_state() {
    let forgotten = |select: &str| described(select).contains(FORGET);
    assert!(forgotten("SELECT k, ts, count(*) FROM orders GROUP BY k, ts"));
    assert!(!forgotten(
        "SELECT k, t, count(*) FROM (SELECT k, ts + INTERVAL '0 seconds' AS t FROM orders) GROUP BY k, t"
    ));
    assert!(!forgotten(
        "SELECT k, t, count(*) FROM (SELECT k, date_trunc('second', ts) AS t FROM orders) GROUP BY k, t"
    ));
    let told = refused(
        &(tables("k VARCHAR, ts TIMESTAMP(3), n BIGINT, PRIMARY KEY (k, ts)", APPEND)
            + "SELECT k, date_trunc('second', ts), count(*) FROM orders GROUP BY k, date_trunc('second', ts)"),
    );
    assert!(told.contains("in GROUP BY no group ever is"), "{told}");
}

/// It has no group of which could be known when it is final.
#[test]
fn a_row_without_a_time_is_bad() {
    each_way(|| {
        let text = tables("k VARCHAR, ts TIMESTAMP(3), n BIGINT, PRIMARY KEY (k, ts)", "")
            + "SELECT k, ts, count(*) FROM orders GROUP BY k, ts";
        let mut pipeline = Pipeline::new(&text, 2, 1);
        pipeline.batch(0, &log(["{\"k\":\"a\",\"ts\":5}", "{\"k\":\"a\"}", "{\"k\":\"a\",\"ts\":5}"]), 0, 3);
        pipeline.checkpoint_all();
        assert_eq!(pipeline.letters.iter().map(|letter| letter.offset).collect::<Vec<_>>(), [1]);
        assert!(pipeline.letters[0].reason.contains("its time is NULL"), "{}", pipeline.letters[0].reason);
        assert_eq!(pipeline.rows.len(), 1);
    });
}

/// Of a record that WHERE leaves out no time is asked: it is counted as left out, also where groups are forgotten after some
/// time.
#[test]
fn a_record_that_is_left_out_needs_no_time() {
    let by_time = tables("k VARCHAR, ts TIMESTAMP(3), n BIGINT, PRIMARY KEY (k, ts)", "")
        + "SELECT k, ts, count(*) FROM orders WHERE v > 0 GROUP BY k, ts";
    let by_ttl = tables("k VARCHAR, n BIGINT, PRIMARY KEY (k)", " OPTIONS ('state.ttl' '1 hour')")
        + "SELECT k, count(*) FROM orders WHERE v > 0 GROUP BY k";
    let log = log(["{\"k\":\"a\",\"v\":1,\"ts\":5}", "{\"k\":\"a\",\"v\":0}", "{\"k\":\"a\",\"v\":1}"]);
    for text in [by_time, by_ttl] {
        each_way(|| {
            let pipeline = Pipeline::over(&text, 2, &log);
            assert_eq!(
                pipeline.counts,
                Counts { processed: 1, filtered: 1, dead_lettered: 1, ..Counts::default() },
                "{text}"
            );
        });
    }
}

/// Complete mode writes all groups again, so none is forgotten.
#[test]
fn complete_mode_keeps_them() {
    each_way(|| {
        let text = tables("k VARCHAR, ts TIMESTAMP(3), n BIGINT, PRIMARY KEY (k, ts)", COMPLETE)
            + "SELECT k, ts, count(*) FROM orders GROUP BY ts, k";
        let mut pipeline = Pipeline::new(&text, 1, 1);
        let times = log([5, 5, 100, 200].map(|ts| format!("{{\"k\":\"a\",\"ts\":{ts}}}")));
        for at in 0..4 {
            pipeline.batch(0, &times, at, at + 1);
            pipeline.checkpoint_all();
        }
        assert_eq!((pipeline.keys(), pipeline.rows.len()), (3, 3));
    });
}
