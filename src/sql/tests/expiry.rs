//! `'state.ttl'`: a group that is forgotten starts anew, and in whatever order rows come, the sink ends with the row of its
//! latest life. The reference is DataFusion's batch engine, which cuts the rows of each group where the pause is too long.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::harness::{Dice, Pipeline, Record, assert_rows, batch_engine, decoded, each_way, log, planned, refused};

fn sql(watermark: &str, having: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
           OPTIONS ('json.timestamp.unit' 'millis'{watermark});
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k))
           STORED AS CQL LOCATION 'cassandra://shop/result' OPTIONS ('state.ttl' '100 milliseconds');
         INSERT INTO result SELECT k, count(*), sum(v) FROM orders WHERE v > 0 GROUP BY k {having}"
    )
}

/// The last life of each group.
fn reference(having: &str) -> String {
    format!(
        "WITH marked AS (
           SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL '100 milliseconds' THEN 1 ELSE 0
             END AS starts FROM orders WHERE v > 0),
         lives AS (SELECT *, sum(starts) OVER (PARTITION BY k ORDER BY ts) AS life FROM marked),
         last AS (SELECT *, max(life) OVER (PARTITION BY k) AS latest FROM lives)
         SELECT k, count(*), sum(v) FROM last WHERE life = latest GROUP BY k {having}"
    )
}

/// In every other run an aggregate that DataFusion computes group by group, instead of the sum.
fn with_total(seed: u64, sql: String) -> String {
    if seed.is_multiple_of(2) { sql } else { sql.replace("sum(v)", "count(DISTINCT CAST(v AS VARCHAR))") }
}

#[derive(Clone, Debug)]
struct Order {
    k: usize,
    v: i64,
    ts: i64,
}

fn orders(dice: &mut Dice) -> Vec<Order> {
    let mut now = dice.below(500) as i64;
    (0..dice.below(120))
        .map(|_| {
            now += if dice.chance(8) { 80 + dice.below(80) as i64 } else { dice.below(8) as i64 };
            Order { k: dice.below(6), v: dice.below(9) as i64 - 1, ts: now - dice.below(30) as i64 }
        })
        .collect()
}

fn json(orders: &[Order]) -> Vec<String> {
    orders.iter().map(|Order { k, v, ts }| format!("{{\"k\":\"k{k}\",\"v\":{v},\"ts\":{ts}}}")).collect()
}

/// The log of orders whose times are Kafka's.
fn stamped(orders: &Vec<Order>) -> Vec<Record> {
    let mut log = log(json(orders));
    log.iter_mut().zip(orders).for_each(|(record, order)| record.timestamp = order.ts);
    log
}

/// Gives each the time of the newest before it, at least.
fn forward(orders: &mut [Order], mut highest: i64) {
    for order in orders {
        highest = highest.max(order.ts);
        order.ts = highest;
    }
}

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ])
}

/// Runs a query in several ways, and compares each with the batch engine over the rows that count.
fn check(sql: &str, reference: &str, logs: &[Vec<Record>], counted: &[Vec<Order>], dice: &mut Dice) {
    let texts: Vec<Vec<Record>> = counted.iter().map(|orders| log(json(orders))).collect();
    let expected = batch_engine(reference, decoded(&schema().into(), &texts), &planned(sql).inserts[0].sink.schema);
    each_way(|| {
        let mut pipeline = Pipeline::new(sql, 1 + dice.below(3), logs.len());
        pipeline.may_delete_nothing = true;
        pipeline.run(logs, dice);
        assert_rows(&pipeline, expected.clone());
        assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
    });
}

#[test]
fn by_event_time_the_sink_has_the_latest_life_of_each_group() {
    for seed in 0..8 {
        let mut dice = Dice::new(seed);
        for having in ["", "HAVING count(*) > 3", "HAVING sum(v) % 3 <> 0"] {
            let orders: Vec<_> = (0..1 + dice.below(3)).map(|_| orders(&mut dice)).collect();
            let logs: Vec<_> = orders.iter().map(|orders| log(json(orders))).collect();
            // Late rows count in no life.
            let on_time: Vec<Vec<_>> = orders
                .iter()
                .map(|orders| {
                    let mut highest = i64::MIN;
                    let mut kept = orders.clone();
                    kept.retain(|order| {
                        let late = order.ts < highest.saturating_sub(20);
                        highest = highest.max(order.ts);
                        !late
                    });
                    kept
                })
                .collect();
            let options = ", 'watermark.column' 'ts', 'watermark.delay' '20 milliseconds'";
            let (sql, reference) = (with_total(seed, sql(options, having)), with_total(seed, reference(having)));
            check(&sql, &reference, &logs, &on_time, &mut dice);
        }
    }
}

/// Kafka's timestamps may go back within a partition; the time of a row is then that of the newest before it, and no row is
/// late.
#[test]
fn by_kafkas_timestamp_no_row_is_late_and_the_sink_has_the_latest_life() {
    for seed in 0..8 {
        let mut dice = Dice::new(seed);
        for having in ["", "HAVING count(*) > 3"] {
            let orders: Vec<_> = (0..1 + dice.below(3)).map(|_| orders(&mut dice)).collect();
            let logs: Vec<_> = orders.iter().map(stamped).collect();
            let mut counted = orders.clone();
            counted.iter_mut().for_each(|orders| forward(orders, i64::MIN));
            let (sql, reference) = (with_total(seed, sql("", having)), with_total(seed, reference(having)));
            check(&sql, &reference, &logs, &counted, &mut dice);
        }
    }
}

/// A partition that is found later is read from its beginning. Its rows count, at the earliest when what its shard has
/// forgotten ends.
#[test]
fn by_kafkas_timestamp_no_row_of_a_partition_that_is_found_later_is_late() {
    let mut raised = 0;
    for seed in 0..8 {
        let mut dice = Dice::new(seed);
        for having in ["", "HAVING count(*) > 3"] {
            let mut orders: Vec<_> = (0..2 + dice.below(2)).map(|_| orders(&mut dice)).collect();
            let logs: Vec<_> = orders.iter().map(stamped).collect();
            let found = logs.len() - 1;
            orders.iter_mut().for_each(|orders| forward(orders, i64::MIN));
            let highest = orders[..found].iter().map(|orders| orders.last().map(|order| order.ts));
            let forgotten = highest.min().flatten().unwrap_or(i64::MIN);
            raised += orders[found].iter().filter(|order| order.ts < forgotten).count();
            forward(&mut orders[found], forgotten);
            let counted: Vec<Vec<Record>> = orders.iter().map(|orders| log(json(orders))).collect();
            let sql = sql("", having);
            let sink = &planned(&sql).inserts[0].sink.schema;
            let expected = batch_engine(&reference(having), decoded(&schema().into(), &counted), sink);
            each_way(|| {
                let mut pipeline = Pipeline::new(&sql, 1 + dice.below(3), found);
                pipeline.may_delete_nothing = true;
                pipeline.run(&logs[..found], &mut dice);
                pipeline.find_partition();
                pipeline.run(&logs, &mut dice);
                assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 0));
                assert_rows(&pipeline, expected.clone());
            });
        }
    }
    assert!(raised > 100, "{raised} rows are of times that were over");
}

/// SELECT DISTINCT has no value twice, and none too few.
#[test]
fn a_value_of_a_partition_that_is_found_later_is_written() {
    let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (k VARCHAR, PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://shop/result'
          OPTIONS ('state.ttl' '100 milliseconds');
        INSERT INTO result SELECT DISTINCT k FROM orders";
    each_way(|| {
        let mut pipeline = Pipeline::new(sql, 2, 1);
        let stamped = |rows: &[(&str, i64)]| {
            let mut log = log(rows.iter().map(|(k, _)| format!("{{\"k\":\"{k}\"}}")));
            log.iter_mut().zip(rows).for_each(|(record, (_, at))| record.timestamp = *at);
            log
        };
        pipeline.batch(0, &stamped(&[("a", 0), ("b", 1000)]), 0, 2);
        pipeline.checkpoint_all();
        pipeline.find_partition();
        pipeline.batch(1, &stamped(&[("c", 5), ("b", 6), ("c", 7), ("d", 2000)]), 0, 4);
        pipeline.checkpoint_all();
        let rows: Vec<_> = pipeline.rows.values().map(|row| row[0].to_string()).collect();
        assert_eq!(rows, ["a", "b", "c", "d"]);
        assert!(pipeline.written.values().all(|times| *times == 1), "b was not forgotten yet");
        assert_eq!(pipeline.counts.processed, 6);
    });
}

/// Its state is gone when the watermark is more than the time past its last row; the row stays in the sink.
#[test]
fn a_group_is_forgotten_and_its_row_stays() {
    each_way(|| {
        let mut pipeline = Pipeline::new(&sql(", 'watermark.column' 'ts'", ""), 1, 1);
        let order = |k: usize, ts| Order { k, v: 1, ts };
        let log = log(json(&[order(1, 0), order(1, 100), order(2, 200), order(2, 201), order(1, 250), order(1, 251)]));
        for (until, keys, row) in [(2, 1, "2"), (3, 2, "2"), (4, 1, "2"), (5, 2, "1"), (6, 2, "2")] {
            let from = if until == 2 { 0 } else { until - 1 };
            pipeline.batch(0, &log, from, until);
            pipeline.checkpoint_all();
            pipeline.restart(0);
            let of_first = pipeline.rows.values().find(|values| values[0].to_string() == "k1").unwrap()[1].to_string();
            assert_eq!((pipeline.keys(), of_first.as_str()), (keys, row), "after {until}");
        }
        assert_eq!(pipeline.rows.len(), 2);
    });
}

/// A record that says it is of the far future moves neither the time of its partition nor that of its group: by Kafka's
/// timestamps as little as by event time.
#[test]
fn a_record_from_the_far_future_resets_and_freezes_no_group() {
    each_way(|| {
        let minute = 60_000;
        let noon = 1_700_000_000_000 / minute * minute;
        let times = [("a", 0), ("a", 10), ("b", 10), ("b", 40_000_000), ("a", 20), ("b", 30)];
        for options in ["", ", 'watermark.column' 'ts', 'watermark.max.ahead' '5 minutes'"] {
            let text = sql(options, "").replace("'100 milliseconds'", "'1 hour'");
            let mut log = log(times.map(|(k, at)| format!("{{\"k\":\"{k}\",\"v\":1,\"ts\":{}}}", noon + at * minute)));
            for (record, (_, at)) in log.iter_mut().zip(times) {
                // An event time is looked at beside the time at which it was written.
                record.timestamp = noon + if options.is_empty() { at } else { at.min(30) } * minute;
            }
            for cut in [1, 6] {
                let mut pipeline = Pipeline::new(&text, 2, 1);
                for at in (0..6).step_by(cut) {
                    pipeline.batch(0, &log, at, at + cut as i64);
                    pipeline.checkpoint_all();
                }
                let mut rows: Vec<_> = pipeline.rows.values().map(|row| format!("{} {}", row[0], row[1])).collect();
                rows.sort();
                assert_eq!((rows, pipeline.keys()), (vec!["a 3".to_owned(), "b 3".to_owned()], 2), "{options}");
            }
        }
    });
}

#[test]
fn a_row_without_a_time_is_bad() {
    each_way(|| {
        let mut pipeline = Pipeline::new(&sql(", 'watermark.column' 'ts'", ""), 2, 1);
        pipeline.batch(0, &log(["{\"k\":\"a\",\"v\":1,\"ts\":null}", "{\"k\":\"a\",\"v\":1,\"ts\":5}"]), 0, 2);
        pipeline.checkpoint_all();
        assert_eq!((pipeline.rows.len(), pipeline.counts.dead_lettered), (1, 1));
        assert!(pipeline.letters[0].reason.contains("its time is NULL"), "{}", pipeline.letters[0].reason);
    });
}

#[test]
fn state_is_kept_for_ever_only_where_it_says_so() {
    let described = planned(&sql("", "")).description;
    assert!(described.contains("forget    100 milliseconds after the last row, by _timestamp"), "{described}");
    let other = planned(&sql("", "").replace("100 milliseconds", "101 milliseconds"));
    assert_ne!(planned(&sql("", "")).fingerprint, other.fingerprint);
}

#[test]
fn what_cannot_expire_is_refused() {
    let with = |from: &str, to: &str| {
        let text = sql(", 'watermark.column' 'ts'", "").replace(", PRIMARY KEY (k)", "");
        let text = text.replace("CQL LOCATION 'cassandra://shop/result'", "TABLE LOCATION 'console://'");
        assert!(text.contains(from));
        refused(&text.replace(from, to))
    };
    let cases = [
        ("'100 milliseconds'", "'0 seconds'", "'state.ttl' must be more than nothing"),
        ("'100 milliseconds'", "'soon'", "is no length of time"),
        (
            "SELECT k, count(*), sum(v) FROM orders WHERE v > 0 GROUP BY k",
            "SELECT k, v, v + 1 FROM orders",
            "keeps no state",
        ),
        (
            "GROUP BY k",
            "GROUP BY k, window(ts, '1 second')",
            "a window is removed when the watermark has passed its end",
        ),
        ("'state.ttl'", "'output.mode' 'complete', 'state.ttl'", "groups that were forgotten would be missing"),
        ("'state.ttl'", "'output.mode' 'append', 'state.ttl'", "in GROUP BY no group ever is"),
        ("'state.ttl'", "'state.tll'", "did you mean 'state.ttl'?"),
    ];
    for (from, to, message) in cases {
        let told = with(from, to);
        assert!(told.contains(message), "{told}");
        assert!(told.starts_with("line "), "{told}");
    }
}
