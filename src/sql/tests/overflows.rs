//! What its type does not hold is never another value in silence.

use strandline_actors::ports::StageError;
use strandline_actors::position::Counts;

use super::harness::{Pipeline, each_way, log, refused};

fn grouped(calls: &str, results: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, i BIGINT, m DECIMAL(2,1), t TIMESTAMP) STORED AS JSON
           LOCATION 'kafka://orders';
         CREATE EXTERNAL TABLE result (k VARCHAR, {results}, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
         INSERT INTO result SELECT k, {calls} FROM orders GROUP BY k"
    )
}

/// Several sums of one column, each with something added, are not made of one sum.
#[test]
fn sums_of_a_column_with_something_added_are_exact_or_halt() {
    each_way(|| {
        let of = |numbers: &[i64]| log(numbers.iter().map(|i| format!("{{\"k\":\"a\",\"i\":{i},\"m\":\"1.5\"}}")));
        let mut pipeline = Pipeline::new(&grouped("sum(i + 0), sum(i + 2)", "a BIGINT, b BIGINT"), 1, 1);
        pipeline.batch(0, &of(&[i64::MAX - 3, 1]), 0, 2);
        let Err(StageError::Halt(why)) = pipeline.try_checkpoint(0) else { panic!("it has a result") };
        assert!(why.contains("group (a)") && why.contains("orders.i + Int64(2)"), "{why}");

        let mut pipeline = Pipeline::new(&grouped("sum(i - 6), sum(i - 5)", "a BIGINT, b BIGINT"), 1, 1);
        pipeline.batch(0, &of(&[i64::MAX, 1]), 0, 2);
        pipeline.checkpoint_all();
        let row: Vec<_> = pipeline.rows.values().flatten().map(ToString::to_string).collect();
        assert_eq!(row[1..], [(i64::MAX - 11).to_string(), (i64::MAX - 9).to_string()]);

        let calls = "sum(m + CAST(0.5 AS DECIMAL(2,1))), sum(m + CAST(1.0 AS DECIMAL(2,1)))";
        let mut pipeline = Pipeline::new(&grouped(calls, "a DECIMAL(20,1), b DECIMAL(20,1)"), 1, 1);
        pipeline.batch(0, &of(&[1; 20]), 0, 20);
        pipeline.checkpoint_all();
        let row: Vec<_> = pipeline.rows.values().flatten().map(ToString::to_string).collect();
        assert_eq!(row, ["a", "40.0", "50.0"]);
    });
}

/// The sum of lengths of time may be far longer than what nanoseconds last.
#[test]
fn an_average_of_lengths_of_time_is_right_however_long_they_are_together() {
    each_way(|| {
        let call = "arrow_cast(avg(t - to_timestamp('1900-01-01T00:00:00')), 'Int64'), \
                    arrow_cast(avg(t - to_timestamp('1900-01-01T00:00:00')) FILTER (WHERE i > 9), 'Int64')";
        let values = log(["2100-01-01T00:00:00", "2100-01-01T00:00:00", "2100-01-01T00:00:03"]
            .map(|t| format!("{{\"k\":\"a\",\"i\":1,\"t\":\"{t}\"}}"))
            .into_iter()
            .chain(["{\"k\":\"a\"}".to_owned(), "{\"k\":\"b\"}".to_owned()]));
        for cut in [1, 5] {
            let mut pipeline = Pipeline::new(&grouped(call, "a BIGINT, b BIGINT"), 1, 1);
            for at in (0..5).step_by(cut) {
                pipeline.batch(0, &values, at, at + cut as i64);
                pipeline.checkpoint_all();
                pipeline.restart(0);
            }
            let rows: Vec<_> = pipeline.rows.values().flatten().map(ToString::to_string).collect();
            assert_eq!(rows, ["a", "6311433601000000000", "NULL", "b", "NULL", "NULL"]);
        }
    });
}

/// A number that a row's arithmetic does not hold makes a bad record, in each place where rows are computed.
#[test]
fn arithmetic_that_overflows_makes_a_bad_record() {
    let sql = |rule: &str, select: &str| {
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, i BIGINT, n INT, p INT) STORED AS JSON LOCATION 'kafka://orders' {rule};
             CREATE EXTERNAL TABLE result (k VARCHAR, v BIGINT, PRIMARY KEY (k)) STORED AS CQL
               LOCATION 'cassandra://shop/result';
             INSERT INTO result {select}"
        )
    };
    let wide = |number: u64| format!("CAST({number}000000000000000000 AS DECIMAL(38,0))");
    let record = |i: i64, n: i32| format!("{{\"k\":\"a\",\"i\":{i},\"n\":{n},\"p\":2}}");
    let log = log([record(1, 1), record(i64::MAX, i32::MAX), record(i64::MIN, i32::MIN), record(-1, -1)]);
    for (rule, select, bad) in [
        ("", "SELECT k, i + 1 FROM orders", vec![1]),
        ("", "SELECT k, i - 1 FROM orders", vec![2]),
        ("", "SELECT k, i * 2 FROM orders", vec![1, 2]),
        ("", "SELECT k, n * p FROM orders", vec![1, 2]),
        ("", "SELECT k, -i FROM orders", vec![2]),
        ("", "SELECT k, i FROM orders WHERE i * 2 < 5", vec![1, 2]),
        ("", "SELECT k, sum(i * 2) FROM orders GROUP BY k", vec![1, 2]),
        ("", "SELECT k, count(*) FILTER (WHERE n * p > 1) FROM orders GROUP BY k", vec![1, 2]),
        ("", "SELECT CAST(n * p AS VARCHAR), count(*) FROM orders GROUP BY n * p", vec![1, 2]),
        ("OPTIONS ('rule.small' 'i * 2 < 100')", "SELECT k, i FROM orders", vec![1, 2]),
        // Of 39 digits, which the bits of 38 hold.
        ("", &format!("SELECT k, sum(CAST(i AS DECIMAL(38,0)) * {}) FROM orders GROUP BY k", wide(18)), vec![1, 2]),
        (
            "",
            &format!(
                "SELECT k, sum(d + d) FROM (SELECT k, CAST(i AS DECIMAL(38,0)) * {} AS d FROM orders) GROUP BY k",
                wide(9)
            ),
            vec![1, 2],
        ),
        (
            "",
            "SELECT k, sum(arrow_cast(i % 1000000000, 'Decimal32(9, 0)') + arrow_cast(i % 1000000000, 'Decimal32(9, 0)')) FROM orders GROUP BY k",
            vec![1, 2],
        ),
    ] {
        each_way(|| {
            let pipeline = Pipeline::over(&sql(rule, select), 1, &log);
            let found = pipeline.reasons();
            assert_eq!(found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), bad, "{select}");
            assert!(found.iter().all(|(_, reason)| reason.contains("verflow")), "{select}: {:?}", found[0]);
            assert_eq!(
                pipeline.counts,
                Counts { processed: 4 - bad.len() as u64, dead_lettered: bad.len() as u64, ..Counts::default() }
            );
        });
    }
}

/// A halt says how to go on: a changed query does not fit the stored state.
#[test]
fn a_halt_for_a_group_says_that_a_changed_query_starts_from_the_beginning() {
    let mut pipeline = Pipeline::new(&grouped("sum(i)", "a BIGINT"), 1, 1);
    let log = log([i64::MAX, 1].map(|i| format!("{{\"k\":\"a\",\"i\":{i}}}")));
    pipeline.batch(0, &log, 0, 2);
    let why = pipeline.fails(0).unwrap();
    assert!(why.contains("under another pipeline name, from the beginning"), "{why}");
}

/// One record whose key does not fit the sink is bad; its shard goes on.
#[test]
fn a_group_that_does_not_fit_its_column_makes_a_bad_record() {
    each_way(|| {
        for (from, to, select) in [
            ("BIGINT", "INT", "SELECT qty, count(*) FROM orders GROUP BY qty"),
            ("BIGINT", "SMALLINT", "SELECT CAST(qty AS INT), count(*) FROM orders GROUP BY CAST(qty AS INT)"),
            ("BIGINT", "DECIMAL(5,0)", "SELECT qty, count(*) FROM orders WHERE qty IS NULL OR qty <> 5 GROUP BY qty"),
            ("BIGINT UNSIGNED", "INT", "SELECT qty, count(*) FROM orders GROUP BY qty HAVING count(*) > 0"),
            (
                "BIGINT",
                "INT",
                "SELECT qty, count(*) FROM (SELECT qty FROM orders UNION ALL SELECT qty FROM orders) GROUP BY qty",
            ),
        ] {
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (qty {from}) STORED AS JSON LOCATION 'kafka://orders';
                 CREATE EXTERNAL TABLE result (qty {to}, n BIGINT, PRIMARY KEY (qty)) STORED AS CQL
                   LOCATION 'cassandra://shop/result';
                 INSERT INTO result {select}"
            );
            let mut pipeline = Pipeline::new(&sql, 1, 1);
            let log = log(["{\"qty\":7}", "{\"qty\":3000000000}", "{\"qty\":null}"]);
            pipeline.batch(0, &log, 0, 3);
            assert_eq!(pipeline.fails(0), None, "{select}");
            let bad: Vec<_> = pipeline.letters.iter().map(|letter| letter.offset).collect();
            assert_eq!(bad, [1], "{select}");
            assert!(pipeline.letters[0].reason.contains("3000000000"), "{}", pipeline.letters[0].reason);
        }
    });
}

/// The same in a group of a window, which a condition may leave out, and in a group of such groups.
#[test]
fn a_group_of_a_window_that_does_not_fit_its_column_makes_a_bad_record() {
    each_way(|| {
        let grouped = "SELECT window.start, qty, count(*) AS n FROM orders GROUP BY window(ts, '1 minute'), qty";
        let ranked = "ROW_NUMBER() OVER (PARTITION BY start ORDER BY n DESC, qty) AS place";
        for (select, bad) in [
            (format!("{grouped} HAVING qty > 5"), vec![1]),
            (format!("{grouped} HAVING 100 / nullif(qty, 0) < 50 AND count(*) > 0"), vec![1]),
            (format!("{grouped} HAVING count(*) > 0 AND qty > 5"), vec![1]),
            (format!("{grouped} HAVING qty < 100"), vec![]),
            (format!("{grouped} HAVING count(*) > 9 OR qty < 100"), vec![]),
            (format!("SELECT start, 100 / qty, n FROM ({grouped})"), vec![2]),
            (format!("SELECT start, qty, n FROM (SELECT *, {ranked} FROM ({grouped})) WHERE place <= 3"), vec![1]),
            (
                format!(
                    "SELECT start, qty, n FROM (SELECT *, {ranked} FROM ({grouped}) WHERE qty < 9) WHERE place <= 3"
                ),
                vec![],
            ),
            (format!("SELECT start, qty, max(n) FROM ({grouped}) GROUP BY start, qty"), vec![1]),
            (format!("SELECT start, qty, max(n) FROM ({grouped} HAVING qty < 100) GROUP BY start, qty"), vec![]),
            (format!("SELECT start, qty, max(n) FROM ({grouped}) GROUP BY start, qty HAVING qty < 100"), vec![]),
            (format!("SELECT start, 100 / qty, max(n) FROM ({grouped}) GROUP BY start, qty"), vec![2]),
            (
                format!(
                    "SELECT start, q, max(n) FROM (SELECT start, 100 / qty AS q, n FROM ({grouped})) GROUP BY start, q"
                ),
                vec![2],
            ),
        ] {
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (qty BIGINT, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://orders'
                   OPTIONS ('watermark.column' 'ts');
                 CREATE EXTERNAL TABLE result (start TIMESTAMP, qty INT, n BIGINT) STORED AS TABLE LOCATION 'console://'
                   OPTIONS ('output.mode' 'append');
                 INSERT INTO result {select}"
            );
            let mut pipeline = Pipeline::new(&sql, 1, 1);
            let log = log([7, 3_000_000_000_i64, 0, 8]
                .into_iter()
                .enumerate()
                .map(|(hour, qty)| format!("{{\"qty\":{qty},\"ts\":\"2024-01-01T{hour:02}:00:00\"}}")));
            pipeline.batch(0, &log, 0, 4);
            assert_eq!(pipeline.fails(0), None, "{select}");
            let found: Vec<_> = pipeline.letters.iter().map(|letter| letter.offset).collect();
            assert_eq!(found, bad, "{select}");
        }
    });
}

/// One record whose column does not fit the sink is bad in a ranking too, whatever its rank; its shard goes on.
#[test]
fn a_ranked_row_that_does_not_fit_its_column_makes_a_bad_record() {
    each_way(|| {
        let numbered = "(SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC, v) AS n FROM orders)";
        for (select, bad) in [
            (
                "SELECT k, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC, v) = 1".to_owned(),
                vec![1],
            ),
            (
                "SELECT v AS k, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY v ORDER BY ts) = 1".to_owned(),
                vec![1],
            ),
            (format!("SELECT k, v FROM {numbered} WHERE n = 1"), vec![1]),
            (format!("SELECT k, v FROM {numbered} WHERE n = 1 AND v < 100"), vec![]),
            (format!("SELECT k, v FROM {numbered} WHERE n = 1 AND (v < 100 OR n > 5)"), vec![]),
            (format!("SELECT k, 100 / v FROM {numbered} WHERE n = 1"), vec![2]),
            (format!("SELECT k, 100 / v FROM {numbered} WHERE v <> 0 AND n = 1"), vec![]),
            (format!("SELECT k, octet_length(CAST(ts AS VARCHAR)) FROM {numbered} WHERE n = 1"), vec![]),
        ] {
            let key = if select.starts_with("SELECT v") { "BIGINT" } else { "VARCHAR" };
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders';
                 CREATE EXTERNAL TABLE result (k {key}, v INT, PRIMARY KEY (k)) STORED AS CQL
                   LOCATION 'cassandra://shop/result';
                 INSERT INTO result {select}"
            );
            let mut pipeline = Pipeline::new(&sql, 1, 1);
            let log = log([7, 3_000_000_000_i64, 0]
                .into_iter()
                .enumerate()
                .map(|(hour, v)| format!("{{\"k\":\"k{v}\",\"v\":{v},\"ts\":\"2024-01-01T{hour:02}:00:00\"}}")));
            pipeline.batch(0, &log, 0, 3);
            assert_eq!(pipeline.fails(0), None, "{select}");
            let found: Vec<_> = pipeline.letters.iter().map(|letter| letter.offset).collect();
            assert_eq!(found, bad, "{select}");
        }
    });
}

#[test]
fn arithmetic_of_constants_that_overflows_is_refused() {
    let told = refused(&grouped("sum(i + (9223372036854775807 + 1))", "a BIGINT"));
    assert!(told.contains("Int64(9223372036854775807) + Int64(1) is more than its type holds"), "{told}");
}
