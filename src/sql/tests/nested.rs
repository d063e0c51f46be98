//! A second aggregation over the groups of closed windows, against DataFusion's batch engine over the same rows, however
//! logs are cut, partitions are interleaved, and shards start anew.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::harness::{Dice, Pipeline, Record, assert_rows, batch_engine, decoded, each_way, log, planned, refused};
use super::windows::shown;

const DELAY: i64 = 40;
const APPEND: &str = " OPTIONS ('output.mode' 'append')";

fn tables(columns: &str, sink: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, city VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
           LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts',
             'watermark.delay' '{DELAY} milliseconds', 'watermark.close.after' '5 seconds');
         CREATE EXTERNAL TABLE result ({columns}) STORED AS CQL LOCATION 'cassandra://shop/result'{sink};
         INSERT INTO result "
    )
}

/// Logs of some partitions, and the watermark after them.
fn logs(dice: &mut Dice) -> (Vec<Vec<Record>>, i64) {
    let mut lowest = i64::MAX;
    let logs = (0..1 + dice.below(3)).map(|_| {
        let mut highest = i64::MIN;
        let records = (0..200).map(|row| {
            let (k, city, v) = (dice.below(6), dice.below(2), dice.below(9));
            let ts = 1_000 + row * 3 + dice.below(DELAY as usize) as i64;
            highest = highest.max(ts);
            format!("{{\"k\":\"k{k}\",\"city\":\"c{city}\",\"v\":{v},\"ts\":{ts}}}")
        });
        let records: Vec<_> = records.collect();
        lowest = lowest.min(highest - DELAY);
        log(records)
    });
    (logs.collect(), lowest)
}

/// Runs a query in several ways. `reference` is it over `closed`: the groups of the first aggregation, of windows of so many
/// milliseconds every so many, with `start` and `until`, that are closed; `watermark` is a function without arguments.
fn check(columns: &str, sink: &str, select: &str, (size, slide): (i64, i64), reference: &str) {
    let schema = Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("city", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]);
    let text = tables(columns, sink) + select;
    let starts = (0..size / slide).map(|k| {
        format!(
            "SELECT *, date_bin(INTERVAL '{slide} milliseconds', ts) - INTERVAL '{} milliseconds' AS start FROM orders",
            k * slide
        )
    });
    let starts = starts.collect::<Vec<_>>().join(" UNION ALL ");
    for seed in 0..2 {
        let mut dice = Dice::new(seed);
        let (logs, watermark) = logs(&mut dice);
        let until = |watermark: &str| {
            format!(
                "WITH starts AS ({starts}), timed AS (
                   SELECT *, start + INTERVAL '{size} milliseconds' AS until FROM starts), closed AS (
                   SELECT start, until, k, city, count(*) AS n, sum(v) AS total FROM timed
                   WHERE until <= to_timestamp_millis({watermark}) GROUP BY start, until, k, city) {}",
                reference.replace("watermark()", &format!("to_timestamp_millis({watermark})"))
            )
        };
        let rows = decoded(&schema.clone().into(), &logs);
        let sink = &planned(&text).inserts[0].sink.schema;
        let expected = batch_engine(&until(&watermark.to_string()), rows.clone(), sink);
        let at_last = batch_engine(&until("1000000"), rows, sink);
        let append = text.contains("'append'");
        each_way(|| {
            let mut pipeline = Pipeline::new(&text, 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            assert!(pipeline.rows.len() > 1, "{} rows", pipeline.rows.len());
            assert_rows(&pipeline, expected.clone());
            // Silence closes all windows, also those of the second aggregation.
            (0..logs.len()).for_each(|number| pipeline.quiet(number, 6));
            pipeline.checkpoint_all();
            assert_rows(&pipeline, at_last.clone());
            if append {
                assert!(
                    pipeline.deletes == 0 && pipeline.written.values().all(|times| *times == 1),
                    "each row is once"
                );
                assert_eq!(pipeline.keys(), 0, "closed windows are gone");
            }
        });
    }
}

#[test]
fn the_most_of_each_window() {
    let columns = "start TIMESTAMP(3), until TIMESTAMP(3), most BIGINT, keys BIGINT, total BIGINT, PRIMARY KEY (start)";
    let select = "SELECT window.start, window.end, max(n), count(*), sum(total) FROM (
        SELECT window, k, city, count(*) AS n, sum(v) AS total FROM orders
        GROUP BY window(ts, '50 milliseconds', '10 milliseconds'), k, city) GROUP BY window";
    let reference = "SELECT start, until, max(n), count(*), sum(total) FROM closed GROUP BY start, until";
    check(columns, APPEND, select, (50, 10), reference);
    let plan = planned(&(tables(columns, APPEND) + select));
    assert!(plan.notices.len() == 1 && plan.notices[0].contains("one shard does all the work"), "{:?}", plan.notices);
    check(columns, "", select, (50, 10), reference);
}

/// Within a city: its groups are on one shard. The bounds may be groups of their own, and groups of both may be left out.
#[test]
fn the_most_of_each_window_and_city() {
    let columns = "start TIMESTAMP(3), city VARCHAR, most BIGINT, keys BIGINT, PRIMARY KEY (start, city)";
    let select = "SELECT start, city, max(n), count(DISTINCT k) FROM (
        SELECT window.start, window.end AS until, k, city, count(*) AS n FROM orders
        GROUP BY window(ts, '50 milliseconds'), city, k HAVING count(*) > 1) WHERE n % 2 = 0
        GROUP BY start, until, city HAVING count(DISTINCT k) > 1";
    let reference = "SELECT start, city, max(n), count(DISTINCT k) FROM closed WHERE n > 1 AND n % 2 = 0
        GROUP BY start, city HAVING count(DISTINCT k) > 1";
    check(columns, APPEND, select, (50, 50), reference);
    let plan = planned(&(tables(columns, APPEND) + select));
    assert!(plan.notices.is_empty(), "{:?}", plan.notices);
    let described = "having    count(Int64(1)) % Int64(2) = Int64(0)\n\
                     having    count(Int64(1)) > Int64(1)\n\
                     then      what these windows give when they are closed, again:\n\
                     group by  1: window.start\n\
                     group by  2: window.end\n\
                     group by  3: city\n\
                     aggregate 1: max(count(Int64(1)))\n\
                     aggregate 2: count(DISTINCT k)\n";
    assert!(plan.description.contains(described), "{}", plan.description);
}

/// Windows of windows: over the starts, the ends, or the windows themselves. Those that only end with the larger window go
/// into it with it.
#[test]
fn larger_windows_over_closed_windows() {
    let columns = "start TIMESTAMP(3), city VARCHAR, rows BIGINT, most BIGINT, parts BIGINT, PRIMARY KEY (start, city)";
    let of = |times: &str, size: &str, inner: &str| {
        format!(
            "SELECT window.start, city, sum(n), max(n), count(*) FROM (
               SELECT window, window.start AS s, window.end AS e, k, city, count(*) AS n FROM orders
               GROUP BY window(ts, {inner}), k, city) GROUP BY window({times}, {size}), city"
        )
    };
    let reference = |time: &str, size: i64, slides: &[i64], step: i64, closed: &str| {
        let starts = slides.iter().map(|slide| {
            format!(
                "SELECT *, date_bin(INTERVAL '{step} milliseconds', {time}) - INTERVAL '{slide} milliseconds' AS w FROM closed"
            )
        });
        format!(
            "SELECT w, city, sum(n), max(n), count(*) FROM ({}) WHERE w + INTERVAL '{size} milliseconds' {closed} <= watermark()
             AND w + INTERVAL '{size} milliseconds' > {time} GROUP BY w, city",
            starts.collect::<Vec<_>>().join(" UNION ALL ")
        )
    };
    let ms = |length: i64| format!("'{length} milliseconds'");
    let sliding = |size: i64, slide: i64| format!("{}, {}", ms(size), ms(slide));
    // A window that ends with the larger one is in it by its start and as a whole, and in the next one by its end.
    check(columns, APPEND, &of("s", &ms(60), &ms(20)), (20, 20), &reference("start", 60, &[0], 60, ""));
    check(columns, APPEND, &of("e", &ms(60), &ms(20)), (20, 20), &reference("until", 60, &[0], 60, ""));
    let last = "(until - INTERVAL '1 millisecond')";
    check(columns, APPEND, &of("window", &ms(60), &ms(20)), (20, 20), &reference(last, 60, &[0], 60, ""));
    // Both slide.
    let twice = of("window", &sliding(60, 20), &sliding(20, 10));
    check(columns, APPEND, &twice, (20, 10), &reference(last, 60, &[0, 20, 40], 20, ""));
    // The last that starts before the end of the larger one ends 10 ms after it, or up to 20 ms if they do not align.
    let lag = "+ INTERVAL '10 milliseconds'";
    check(columns, APPEND, &of("s", &ms(60), &sliding(20, 10)), (20, 10), &reference("start", 60, &[0], 60, lag));
    let lag = "+ INTERVAL '20 milliseconds'";
    check(columns, APPEND, &of("s", &ms(50), &ms(20)), (20, 20), &reference("start", 50, &[0], 50, lag));
}

/// Without a window of its own the second aggregation goes on for ever, over what is final.
#[test]
fn running_results_over_closed_windows() {
    let columns = "k VARCHAR, most BIGINT, windows BIGINT, PRIMARY KEY (k)";
    let select = "SELECT k, max(n), count(*) FROM (SELECT k, count(*) AS n FROM orders
        GROUP BY window(ts, '20 milliseconds'), k, city) GROUP BY k HAVING count(*) % 3 <> 0";
    let reference = "SELECT k, max(n), count(*) FROM closed GROUP BY k HAVING count(*) % 3 <> 0";
    check(columns, "", select, (20, 20), reference);
    let everything = "SELECT 'all', max(n), count(*) FROM (SELECT k, count(*) AS n FROM orders
        GROUP BY window(ts, '20 milliseconds'), k, city)";
    let columns = "what VARCHAR, most BIGINT, windows BIGINT, PRIMARY KEY (what)";
    let twice = everything.replace("'all'", "k").replace("k, city)", "k, city) GROUP BY k");
    check(columns, "", &twice, (20, 20), "SELECT k, max(n), count(*) FROM closed GROUP BY k");
}

/// The groups of the second aggregation are ranked against each other when their window is closed.
#[test]
fn ranks_over_a_second_aggregation() {
    let columns = "start TIMESTAMP(3), city VARCHAR, keys BIGINT, PRIMARY KEY (start, city)";
    let select = "SELECT start, city, keys FROM (
        SELECT start, city, keys, RANK() OVER (PARTITION BY start ORDER BY keys DESC) AS place FROM (
          SELECT start, city, count(*) AS keys FROM (
            SELECT window.start, k, city, count(*) AS n FROM orders GROUP BY window(ts, '20 milliseconds'), k, city)
          GROUP BY start, city)) WHERE place = 1";
    let reference = "SELECT start, city, keys FROM (
        SELECT start, city, keys, RANK() OVER (PARTITION BY start ORDER BY keys DESC) AS place FROM (
          SELECT start, city, count(*) AS keys FROM closed GROUP BY start, city)) WHERE place = 1";
    check(columns, APPEND, select, (20, 20), reference);
}

/// Sessions are closed at their own times, and go into the window in which they end.
#[test]
fn windows_over_closed_sessions() {
    each_way(|| {
        let columns = "start TIMESTAMP(3), k VARCHAR, sessions BIGINT, rows BIGINT, PRIMARY KEY (start, k)";
        let text = |time: &str, sink: &str| {
            tables(columns, sink)
                + &format!(
                    "SELECT window.start, k, count(*), sum(n) FROM (
                   SELECT session_window, session_window.end AS e, k, count(*) AS n FROM orders
                   GROUP BY session_window(ts, '4 milliseconds'), k) GROUP BY window({time}, '50 milliseconds'), k"
                )
        };
        for (time, back) in [("e", 0), ("session_window", 1)] {
            for seed in 0..2 {
                let mut dice = Dice::new(seed);
                let (logs, watermark) = logs(&mut dice);
                let mut times = std::collections::BTreeMap::<String, Vec<i64>>::new();
                for record in logs.iter().flatten() {
                    let order: serde_json::Value = serde_json::from_slice(record.value.as_ref().unwrap()).unwrap();
                    times.entry(order["k"].as_str().unwrap().into()).or_default().push(order["ts"].as_i64().unwrap());
                }
                let mut wanted = std::collections::BTreeMap::<(i64, String), (i64, i64)>::new();
                for (k, mut times) in times {
                    times.sort_unstable();
                    for session in times.chunk_by(|earlier, later| later - earlier <= 4) {
                        let start = (session[session.len() - 1] + 4 - back).div_euclid(50) * 50;
                        let (sessions, rows) = wanted.entry((start, k.clone())).or_default();
                        (*sessions, *rows) = (*sessions + 1, *rows + session.len() as i64);
                    }
                }
                // A session is closed when the watermark is past its end, one tick later than a window.
                wanted.retain(|(start, _), _| start + 50 + back <= watermark);
                let mut pipeline = Pipeline::new(&text(time, APPEND), 1 + dice.below(3), logs.len());
                pipeline.run(&logs, &mut dice);
                let found: std::collections::BTreeMap<_, _> = pipeline
                    .rows
                    .values()
                    .map(|row| match row.as_slice() {
                        [
                            datafusion::common::ScalarValue::TimestampMillisecond(Some(start), _),
                            datafusion::common::ScalarValue::Utf8(Some(k)),
                            datafusion::common::ScalarValue::Int64(Some(sessions)),
                            datafusion::common::ScalarValue::Int64(Some(rows)),
                        ] => ((*start, k.clone()), (*sessions, *rows)),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                assert!(found.len() > 20, "{} windows", found.len());
                assert_eq!(found, wanted);
            }
        }
    });
}

/// Sessions of several keys can begin together and end at different times, or end together: once a key of them is gone, one
/// bound does not tell them apart.
#[test]
fn sessions_without_their_key_are_told_apart_by_both_bounds() {
    let text = |key: &str, city: &str| {
        let columns = format!("start TIMESTAMP(3), until TIMESTAMP(3), city VARCHAR, rows BIGINT, PRIMARY KEY ({key})");
        let groups = if city == "city" { ", city" } else { "" };
        tables(&columns, APPEND)
            + &format!(
                "SELECT session_window.start, session_window.end, {city}, sum(n) FROM (
                   SELECT session_window, k, city, count(*) AS n FROM orders
                   GROUP BY session_window(ts, '4 milliseconds'), k, city) GROUP BY session_window{groups}"
            )
    };
    for (key, city) in [("start", "'all'"), ("until", "'all'"), ("start, city", "city"), ("until, city", "city")] {
        let told = refused(&text(key, city));
        assert!(told.contains("one bound in common and not the other"), "{told}");
    }
    let windows = text("start", "city").replace("session_window", "window");
    assert!(refused(&windows).contains("add a column that holds city to PRIMARY KEY"), "{}", refused(&windows));
    let order = |(k, city, ts): (usize, usize, i64)| format!("{{\"k\":\"k{k}\",\"city\":\"c{city}\",\"ts\":{ts}}}");
    let log = log([(0, 0, 0), (1, 0, 0), (1, 0, 3), (2, 1, 0), (0, 0, 100)].map(order));
    for (text, wanted) in [
        (text("start, until", "'all'"), vec!["0 4 all 2", "0 7 all 2"]),
        (text("start, until, city", "city"), vec!["0 4 c0 1", "0 4 c1 1", "0 7 c0 2"]),
    ] {
        each_way(|| {
            let mut pipeline = Pipeline::new(&text, 2, 1);
            pipeline.batch(0, &log, 0, 5);
            pipeline.checkpoint_all();
            assert_eq!(shown(&pipeline), wanted);
        });
    }
}

/// Silence closes the window in which the last session ends, also where that is its very end, and not the next one.
#[test]
fn silence_closes_no_window_after_the_last_session() {
    let text = tables("start TIMESTAMP, n BIGINT, PRIMARY KEY (start)", APPEND).replace("TIMESTAMP(3)", "TIMESTAMP")
        + "SELECT window.start, sum(n) FROM (SELECT session_window, count(*) AS n FROM orders
             GROUP BY session_window(ts, '10 seconds')) GROUP BY window(session_window, '1 minute')";
    let order = |seconds: i64| format!("{{\"ts\":{}}}", seconds * 1000);
    each_way(|| {
        let mut pipeline = Pipeline::new(&text, 2, 1);
        let log = log([order(50), order(75)]);
        pipeline.batch(0, &log, 0, 1);
        pipeline.quiet(0, 6);
        pipeline.checkpoint_all();
        assert_eq!((pipeline.rows.len(), pipeline.keys()), (1, 0));
        pipeline.batch(0, &log, 1, 2);
        assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 0), "it is of the next window");
    });
}

#[test]
fn second_aggregations_that_are_never_final_are_refused() {
    let columns = "start TIMESTAMP(3), n BIGINT, PRIMARY KEY (start)";
    let inner =
        "(SELECT window, window.start AS s, k, count(*) AS n FROM orders GROUP BY window(ts, '20 milliseconds'), k)";
    let sessions = "(SELECT session_window.start AS s, k, count(*) AS n FROM orders
                     GROUP BY session_window(ts, '20 milliseconds'), k)";
    let cases = [
        (
            APPEND,
            "SELECT min(ts), max(n) FROM (SELECT k, min(ts) AS ts, count(*) AS n FROM orders GROUP BY k)".to_owned(),
            "unless the inner one groups by a window",
        ),
        (APPEND, format!("SELECT NULL, max(n) FROM {inner} GROUP BY k"), "always be NULL"),
        (
            APPEND,
            format!("SELECT window.start, max(n) FROM {sessions} GROUP BY window(s, '1 second')"),
            "over their end",
        ),
        (
            APPEND,
            format!("SELECT session_window.start, max(n) FROM {inner} GROUP BY session_window(s, '1 second')"),
            "session_window(...) over the windows of another grouping",
        ),
        (
            APPEND,
            format!("SELECT s, max(n) FROM {inner} GROUP BY s, window(s, '1 second')"),
            "two windows in the outer GROUP BY",
        ),
        (
            " OPTIONS ('state.ttl' '1 hour')",
            format!("SELECT s, max(n) FROM {inner} GROUP BY s"),
            "'state.ttl' cannot be",
        ),
        (
            APPEND,
            format!("SELECT s, max(m) FROM (SELECT s, max(n) AS m FROM {inner} GROUP BY s, k) GROUP BY s"),
            "a third aggregation is not supported",
        ),
    ];
    for (sink, select, message) in cases {
        let told = refused(&(tables(columns, sink) + &select));
        assert!(told.contains(message) && told.starts_with("line "), "{told}");
    }
    let text =
        tables("k VARCHAR, n BIGINT, PRIMARY KEY (k)", APPEND) + &format!("SELECT k, max(n) FROM {inner} GROUP BY k");
    assert!(refused(&text).contains("without a window in the outer GROUP BY"), "{}", refused(&text));
}
