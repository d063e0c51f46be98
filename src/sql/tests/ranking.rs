//! The first rows of each key, against DataFusion's batch engine over the same rows.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::harness::{Dice, Pipeline, assert_rows, batch_engine, decoded, each_way, log, planned, refused};

pub(super) fn tables(columns: &str, options: &str, sink: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, id BIGINT, v BIGINT, d DOUBLE, ts TIMESTAMP(3)) STORED AS JSON
           LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis'{options});
         CREATE EXTERNAL TABLE result ({columns}) STORED AS CQL LOCATION 'cassandra://shop/result'{sink};
         INSERT INTO result "
    )
}

pub(super) fn schema() -> Schema {
    Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
        Field::new("d", DataType::Float64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ])
}

/// Rows of which no two have the same id; some values are NULL.
fn records(dice: &mut Dice, partition: usize) -> Vec<String> {
    (0..120)
        .map(|row| {
            let id = row * 4 + partition;
            let v = if dice.chance(10) { "null".to_owned() } else { dice.below(12).to_string() };
            let d = ["-0.0", "0.0", "1.5", "-3.25", "null"][dice.below(5)];
            let ts = 1000 + row * 3 + dice.below(40);
            format!("{{\"k\":\"k{}\",\"id\":{id},\"v\":{v},\"d\":{d},\"ts\":{ts}}}", dice.below(5))
        })
        .collect()
}

/// Runs a query in several ways; the rows are those that the batch engine answers, also for `reference` if it says
/// something else there.
fn check(columns: &str, select: &str, reference: Option<&str>, seeds: u64) {
    for seed in 0..seeds {
        let mut dice = Dice::new(seed);
        let logs: Vec<_> = (0..2).map(|partition| log(records(&mut dice, partition))).collect();
        let sink = planned(&(tables(columns, "", "") + select)).inserts.remove(0).sink.schema;
        let expected = batch_engine(reference.unwrap_or(select), decoded(&schema().into(), &logs), &sink);
        assert!(!expected.is_empty());
        each_way(|| {
            let mut pipeline = Pipeline::new(&(tables(columns, "", "") + select), 1 + dice.below(3), 2);
            pipeline.run(&logs, &mut dice);
            assert_rows(&pipeline, expected.clone());
            assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
        });
    }
}

#[test]
fn the_first_and_the_last_row_of_each_key() {
    let columns = "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k)";
    let first = "SELECT k, id, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts, id) AS rn FROM orders)
        WHERE rn = 1";
    check(columns, first, None, 3);
    check(columns, &first.replace("ts, id", "ts DESC, id DESC"), None, 3);
    check(columns, &first.replace("ts, id", "v DESC NULLS FIRST, id"), None, 3);
    check(columns, &first.replace("ts, id", "v ASC NULLS LAST, d DESC, id"), None, 3);
    let qualify =
        "SELECT k, id, v FROM orders WHERE v > 3 QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts, id) = 1";
    check(columns, qualify, None, 3);
    let everything = "SELECT 'all', id, v FROM orders QUALIFY ROW_NUMBER() OVER (ORDER BY ts DESC, id) = 1";
    check(columns, everything, None, 4);
}

#[test]
fn the_first_rows_of_each_key_by_number_or_by_id() {
    let inner = "FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS rn FROM orders)";
    check(
        "k VARCHAR, rn BIGINT, id BIGINT, v BIGINT, PRIMARY KEY (k, rn)",
        &format!("SELECT k, rn, id, v {inner} WHERE rn <= 4"),
        None,
        3,
    );
    let by_id = "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k, id)";
    check(by_id, &format!("SELECT k, id, v {inner} WHERE 4 > rn"), None, 3);
    check(by_id, &format!("SELECT k, id, v {inner} WHERE rn BETWEEN 2 AND 5"), None, 3);
    check(by_id, &format!("SELECT k, id, v {inner} WHERE rn IN (1, 5) AND v < 12 AND k <> 'k1'"), None, 3);
    let places = "k VARCHAR, id BIGINT, place BIGINT, PRIMARY KEY (k, id)";
    check(places, &format!("SELECT k, id, rn * 10 {inner} WHERE rn < 4"), None, 3);
}

#[test]
fn ties_are_kept_by_rank_and_dense_rank() {
    let columns = "k VARCHAR, id BIGINT, place BIGINT, v BIGINT, PRIMARY KEY (k, id)";
    for function in ["RANK", "DENSE_RANK"] {
        let select = format!(
            "SELECT k, id, place, v FROM (SELECT *, {function}() OVER (PARTITION BY k ORDER BY v) AS place FROM orders)
             WHERE place <= 2"
        );
        check(columns, &select, None, 3);
    }
}

/// As in Spark and Flink. So the latest row of a key is not for ever one without a time.
#[test]
fn null_is_below_all_values() {
    let rows = ["{\"k\":\"a\",\"id\":1}", "{\"k\":\"a\",\"id\":2,\"ts\":5}", "{\"k\":\"a\",\"id\":3,\"ts\":4}"];
    for (order, first) in [("ts", "1"), ("ts DESC", "2"), ("ts NULLS LAST", "3"), ("ts DESC NULLS FIRST", "1")] {
        let text = tables("k VARCHAR, id BIGINT, PRIMARY KEY (k)", "", "")
            + &format!("SELECT k, id FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) = 1");
        each_way(|| {
            let mut pipeline = Pipeline::new(&text, 1, 1);
            pipeline.batch(0, &log(rows), 0, 3);
            pipeline.checkpoint_all();
            assert_eq!(pipeline.rows.values().map(|row| row[1].to_string()).collect::<Vec<_>>(), [first], "{order}");
        });
    }
}

/// The group may be computed, and what is computed alike outside is the group.
#[test]
fn keys_that_are_computed() {
    let columns = "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k)";
    let select =
        "SELECT upper(k), id, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY upper(k) ORDER BY ts, id) AS rn
        FROM orders) WHERE rn = 1";
    check(columns, select, None, 4);
}

/// Where ORDER BY leaves rows at one place, their columns decide, in whatever order they came.
#[test]
fn ties_are_broken_by_the_columns_of_the_rows() {
    let columns = "k VARCHAR, rn BIGINT, id BIGINT, PRIMARY KEY (k, rn)";
    let select = "SELECT k, rn, id FROM (SELECT k, id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS rn FROM orders)
        WHERE rn <= 5";
    let reference = select.replace("ORDER BY v", "ORDER BY v, id");
    check(columns, select, Some(&reference), 3);
}

/// Rows of a window are written once, when it is closed, with the bounds of that window: a row is among the first of each
/// window that it is in, and in the session that it is a part of.
#[test]
fn the_first_rows_of_each_window() {
    let numbered = "ROW_NUMBER() OVER (PARTITION BY start, k ORDER BY v DESC, id) AS rn";
    let closed =
        "(SELECT min(last) FROM (SELECT max(ts) AS last FROM orders GROUP BY id % 4)) - INTERVAL '40 milliseconds'";
    let start = "start TIMESTAMP(3), k VARCHAR, rn BIGINT, id BIGINT, v BIGINT, PRIMARY KEY (start, k, rn)";
    let tumbling = "SELECT start, k, rn, id, v FROM (SELECT window.start, *, ROW_NUMBER() OVER
        (PARTITION BY window(ts, '50 milliseconds'), k ORDER BY v DESC, id) AS rn FROM orders) WHERE rn <= 2";
    let reference = format!(
        "SELECT start, k, rn, id, v FROM (SELECT *, {numbered}
           FROM (SELECT *, date_bin(INTERVAL '50 milliseconds', ts) AS start FROM orders))
         WHERE rn <= 2 AND start + INTERVAL '50 milliseconds' <= {closed}"
    );
    let sliding = tumbling.replace("'50 milliseconds'", "'50 milliseconds', '20 milliseconds'");
    // The starts of the last window of each row, and of those before it.
    let of_sliding = format!(
        "WITH back AS (SELECT * FROM (VALUES (INTERVAL '0 milliseconds'), (INTERVAL '20 milliseconds'),
             (INTERVAL '40 milliseconds')) AS back (back)),
         starts AS (SELECT orders.*, date_bin(INTERVAL '20 milliseconds', ts) - back AS start FROM orders CROSS JOIN back)
         SELECT start, k, rn, id, v FROM (SELECT *, {numbered} FROM starts WHERE start + INTERVAL '50 milliseconds' > ts)
         WHERE rn <= 2 AND start + INTERVAL '50 milliseconds' <= {closed}"
    );
    // The window as a whole for a query around it, and a ranking that is not bounded by a subquery.
    let whole = "SELECT w.end, k, rn, id, v FROM (SELECT window AS w, *, ROW_NUMBER() OVER
        (PARTITION BY window(ts, '50 milliseconds', '20 milliseconds'), k ORDER BY v DESC, id) AS rn FROM orders
        QUALIFY rn <= 2) WHERE w.end > to_timestamp_millis(0)";
    let of_whole = format!("SELECT start + INTERVAL '50 milliseconds', k, rn, id, v FROM ({of_sliding})");
    let bounds = "start TIMESTAMP(3), until TIMESTAMP(3), k VARCHAR, rn BIGINT, id BIGINT, PRIMARY KEY (start, k, rn)";
    let sessions = "SELECT start, until, k, rn, id FROM (SELECT session_window.start, session_window.end AS until, *,
        ROW_NUMBER() OVER (PARTITION BY k, session_window(ts, '10 milliseconds') ORDER BY ts DESC, id) AS rn FROM orders)
        WHERE rn <= 2";
    let of_sessions = format!(
        "WITH marked AS (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '10 milliseconds'
             THEN 1 ELSE 0 END AS starts FROM orders),
         numbered AS (SELECT *, sum(starts) OVER (PARTITION BY k ORDER BY ts) AS session FROM marked),
         bounds AS (SELECT *, min(ts) OVER (PARTITION BY k, session) AS start,
             max(ts) OVER (PARTITION BY k, session) + INTERVAL '10 milliseconds' AS until FROM numbered)
         SELECT start, until, k, rn, id FROM
           (SELECT *, ROW_NUMBER() OVER (PARTITION BY k, session ORDER BY ts DESC, id) AS rn FROM bounds)
         WHERE rn <= 2 AND until < {closed}"
    );
    let cases = [
        (start, tumbling, reference.as_str()),
        (start, &sliding, &of_sliding),
        (start, whole, &of_whole),
        (bounds, sessions, &of_sessions),
    ];
    let options = ", 'watermark.column' 'ts', 'watermark.delay' '40 milliseconds'";
    for (columns, select, reference) in cases {
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            let logs: Vec<_> = (0..1 + seed as usize % 2).map(|partition| log(records(&mut dice, partition))).collect();
            let rows = decoded(&schema().into(), &logs);
            let text = tables(columns, options, " OPTIONS ('output.mode' 'append')") + select;
            let wanted = batch_engine(reference, rows, &planned(&text).inserts[0].sink.schema);
            each_way(|| {
                let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), logs.len());
                pipeline.run(&logs, &mut dice);
                assert_eq!(pipeline.counts.late, 0);
                assert_rows(&pipeline, wanted.clone());
                assert!(pipeline.written.values().all(|times| *times == 1));
                assert!(pipeline.deletes == 0 && pipeline.rows.len() > 20);
                assert!(pipeline.query.unrepeatable().is_none());
            });
        }
    }
}

/// A key that was silent for long starts anew: its last row of before counts no longer.
#[test]
fn the_best_row_of_the_latest_life_of_a_key() {
    each_way(|| {
        let columns = "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k)";
        let select = "SELECT k, id, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) = 1";
        let reference = "WITH marked AS (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL
          '25 milliseconds' THEN 1 ELSE 0 END AS starts FROM orders),
        lives AS (SELECT *, sum(starts) OVER (PARTITION BY k ORDER BY ts) AS life FROM marked),
        last AS (SELECT *, max(life) OVER (PARTITION BY k) AS latest FROM lives)
        SELECT k, id, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS rn FROM last
          WHERE life = latest) WHERE rn = 1";
        let options = ", 'watermark.column' 'ts', 'watermark.delay' '40 milliseconds'";
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            let logs: Vec<_> = (0..2).map(|partition| log(records(&mut dice, partition))).collect();
            let rows = decoded(&schema().into(), &logs);
            let text = tables(columns, options, " OPTIONS ('state.ttl' '25 milliseconds')") + select;
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), 2);
            pipeline.run(&logs, &mut dice);
            assert_rows(&pipeline, batch_engine(reference, rows, &pipeline.plan.inserts[0].sink.schema));
        }
    });
}

#[test]
fn rows_that_drop_out_are_removed() {
    each_way(|| {
        let text = tables("k VARCHAR, id BIGINT, PRIMARY KEY (k, id)", "", "")
            + "SELECT k, id FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) <= 2";
        let mut pipeline = Pipeline::new(&text, 1, 1);
        assert!(pipeline.query.unrepeatable().is_some());
        let log =
            log([(1, 5), (2, 3), (3, 4), (4, 1), (5, 9)]
                .map(|(id, v)| format!("{{\"k\":\"a\",\"id\":{id},\"v\":{v}}}")));
        let mut seen = Vec::new();
        for at in 0..5 {
            pipeline.batch(0, &log, at, at + 1);
            seen.push(
                pipeline
                    .checkpoint_all()
                    .iter()
                    .map(|output| (output.change, output.rows.num_rows()))
                    .collect::<Vec<_>>(),
            );
            pipeline.restart(0);
        }
        use strandline_actors::ports::Change::{Delete, Upsert};
        let swap = vec![(Delete, 1), (Upsert, 1)];
        assert_eq!(seen, [vec![(Upsert, 1)], vec![(Upsert, 1)], swap.clone(), vec![], swap]);
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let keyed = "k VARCHAR, v BIGINT, PRIMARY KEY (k)";
    let number = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY v)";
    let inner = |call: &str, rest: &str| format!("SELECT k, v FROM (SELECT *, {call} AS rn FROM orders) {rest}");
    let ttl = " OPTIONS ('state.ttl' '1 hour')";
    let append = " OPTIONS ('output.mode' 'append')";
    let cases: &[(&str, String, &str)] = &[
        ("", inner(number, ""), "ROW_NUMBER() over a stream needs a bound"),
        ("", inner(number, "WHERE rn > 3"), "ROW_NUMBER() over a stream needs a bound"),
        ("", inner(number, "WHERE rn <= 20000"), "at most 10000 are supported"),
        ("", inner(number, "WHERE rn <= 3"), "rows of a key, which all have the same primary key (k)"),
        ("", inner(&number.replace("ROW_NUMBER", "RANK"), "WHERE rn = 1"), "rows of one rank"),
        ("", inner("ROW_NUMBER() OVER (PARTITION BY k)", "WHERE rn = 1"), "needs ORDER BY"),
        ("", inner("ROW_NUMBER() OVER (ORDER BY v ROWS 1 PRECEDING)", "WHERE rn = 1"), "PARTITION BY and ORDER BY alone"),
        ("", inner("ROW_NUMBER() OVER (PARTITION BY v ORDER BY k)", "WHERE rn = 1"), "PARTITION BY v is not determined by"),
        ("", inner("lag(v) OVER (PARTITION BY k ORDER BY v)", "WHERE rn = 1"), "the window function lag(...) OVER is not"),
        ("", inner(&format!("{number} + {}", number.replace("v)", "id)")), "WHERE rn = 1"), "several window functions"),
        ("", inner("ROW_NUMBER() OVER w", "WHERE rn = 1"), "WINDOW is not supported"),
        (
            "",
            inner("ROW_NUMBER() OVER (PARTITION BY window(ts, '1 hour'), k ORDER BY window.end, v)", "WHERE rn = 1"),
            "so all of its rows have the same",
        ),
        (append, inner(number, "WHERE rn = 1"), "a later record can always push a row out"),
        (ttl, inner(number, "WHERE rn = 1 AND v > 3"), "put the condition into the inner query"),
        (
            "",
            "SELECT k, n FROM (SELECT k, count(*) AS n, ROW_NUMBER() OVER (ORDER BY count(*)) AS rn FROM orders GROUP BY k)
             WHERE rn = 1"
                .into(),
            "ranks the groups of one window when it is closed",
        ),
    ];
    for (sink, select, message) in cases {
        let told = refused(&(tables(keyed, "", sink) + select));
        assert!(told.contains(message) && told.starts_with("line "), "{told}");
    }
    let two = tables("k VARCHAR, rn BIGINT, PRIMARY KEY (k, rn)", "", ttl)
        + "SELECT k, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS rn FROM orders) WHERE rn <= 2";
    let told = refused(&two);
    assert!(told.contains("beside those of its next life"), "{told}");
    let described = planned(&(tables(keyed, "", "") + &inner(number, "WHERE rn = 1"))).description;
    for line in ["order by  1: v, up, NULL first", "keep      rows with row_number() up to 1", "group by  1: k"] {
        assert!(described.contains(line), "{described}");
    }
}
