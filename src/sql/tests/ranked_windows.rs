//! The groups of a window, ranked when it is closed, against DataFusion's batch engine over the same rows.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::harness::{Dice, Pipeline, assert_rows, batch_engine, decoded, each_way, log, planned, refused};

fn tables(columns: &str, sink: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, city VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
           LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts',
             'watermark.delay' '40 milliseconds');
         CREATE EXTERNAL TABLE result ({columns}) STORED AS CQL LOCATION 'cassandra://shop/result'{sink};
         INSERT INTO result "
    )
}

const APPEND: &str = " OPTIONS ('output.mode' 'append')";

fn records(dice: &mut Dice) -> Vec<String> {
    (0..250)
        .map(|row| {
            let (k, city, v) = (dice.below(7), dice.below(2), dice.below(9));
            let ts = 1000 + row * 2 + dice.below(40);
            format!("{{\"k\":\"k{k}\",\"city\":\"c{city}\",\"v\":{v},\"ts\":{ts}}}")
        })
        .collect()
}

/// Runs a query in several ways; `reference` is it over `starts`, which has the start of each row's window.
fn check(columns: &str, select: &str, reference: &str) {
    let schema = Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("city", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]);
    for seed in 0..3 {
        let mut dice = Dice::new(seed);
        let logs = vec![log(records(&mut dice))];
        let reference = format!(
            "WITH starts AS (SELECT *, date_bin(INTERVAL '50 milliseconds', ts) AS start FROM orders), closed AS (
               SELECT * FROM starts WHERE start + INTERVAL '50 milliseconds' <=
                 (SELECT max(ts) FROM orders) - INTERVAL '40 milliseconds') {reference}"
        );
        let text = tables(columns, APPEND) + select;
        let rows = decoded(&schema.clone().into(), &logs);
        let expected = batch_engine(&reference, rows, &planned(&text).inserts[0].sink.schema);
        each_way(|| {
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), 1);
            pipeline.run(&logs, &mut dice);
            assert!(pipeline.rows.len() > 10 && pipeline.deletes == 0, "{}", pipeline.rows.len());
            assert_rows(&pipeline, expected.clone());
            assert!(pipeline.written.values().all(|times| *times == 1), "each row is written once");
        });
    }
}

/// Nexmark's query 5 has this shape: all groups of a window against each other, ties kept.
#[test]
fn the_groups_with_the_most_rows_of_each_window() {
    let select = "SELECT start, k, n FROM (SELECT start, k, n, RANK() OVER (PARTITION BY start ORDER BY n DESC) AS place
        FROM (SELECT window.start, k, count(*) AS n FROM orders GROUP BY window(ts, '50 milliseconds'), k)) WHERE place = 1";
    let reference =
        "SELECT start, k, n FROM (SELECT start, k, n, RANK() OVER (PARTITION BY start ORDER BY n DESC) AS place
        FROM (SELECT start, k, count(*) AS n FROM closed GROUP BY start, k)) WHERE place = 1";
    check("start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)", select, reference);
    let qualified = "SELECT window.start, k, count(*) AS n FROM orders GROUP BY window(ts, '50 milliseconds'), k
        QUALIFY RANK() OVER (PARTITION BY window(ts, '50 milliseconds') ORDER BY count(*) DESC) = 1";
    check("start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)", qualified, reference);
    let whole = "SELECT w.start, k, n FROM (SELECT w, k, n, RANK() OVER (PARTITION BY w ORDER BY n DESC) AS place
        FROM (SELECT window AS w, k, count(*) AS n FROM orders GROUP BY window(ts, '50 milliseconds'), k)) WHERE place = 1";
    check("start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)", whole, reference);
    let notices =
        planned(&(tables("start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)", APPEND) + select)).notices;
    assert!(notices.len() == 1 && notices[0].contains("one shard does all the work"), "{notices:?}");
}

/// Within a city: its groups are on one shard. The number tells rows apart.
#[test]
fn the_groups_of_each_window_and_key() {
    let numbered = "ROW_NUMBER() OVER (PARTITION BY start, city ORDER BY total DESC, k)";
    let select = format!(
        "SELECT start, city, place, k, total FROM (SELECT start, city, k, total, {numbered} AS place FROM
           (SELECT window.start, city, k, sum(v) AS total FROM orders GROUP BY window(ts, '50 milliseconds'), city, k))
         WHERE place < 3"
    );
    let reference = format!(
        "SELECT start, city, place, k, total FROM (SELECT start, city, k, total, {numbered} AS place FROM
           (SELECT start, city, k, sum(v) AS total FROM closed GROUP BY start, city, k)) WHERE place < 3"
    );
    let columns =
        "start TIMESTAMP(3), city VARCHAR, place BIGINT, k VARCHAR, total BIGINT, PRIMARY KEY (start, city, place)";
    check(columns, &select, &reference);
    let plan = planned(&(tables(columns, APPEND) + &select));
    assert!(plan.notices.is_empty() && plan.query().unrepeatable().is_none());
    let wanted = "number    row_number() in each window.start, city by sum(v) down NULL last, k up NULL first";
    assert!(plan.description.contains(wanted), "{}", plan.description);
}

#[test]
fn ranks_that_are_never_final_are_refused() {
    let columns = "start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)";
    let select = |partition: &str, group: &str| {
        format!(
            "SELECT start, k, n FROM (SELECT *, RANK() OVER ({partition} ORDER BY n) AS place
               FROM (SELECT {group}.start, k, count(*) AS n FROM orders GROUP BY {group}(ts, '1 second'), k)) WHERE place = 1"
        )
    };
    let cases = [
        (APPEND, select("", "window"), "PARTITION BY its start"),
        (APPEND, select("PARTITION BY k", "window"), "PARTITION BY its start"),
        (APPEND, select("PARTITION BY start", "session_window"), "GROUP BY needs window(...) or calendar_window(...)"),
        ("", select("PARTITION BY start", "window"), "is final only when the window is closed"),
    ];
    for (sink, select, message) in cases {
        let told = refused(&(tables(columns, sink) + &select));
        assert!(told.contains(message) && told.starts_with("line "), "{told}");
    }
}
