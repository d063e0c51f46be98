//! What a condition leaves out is not computed: WHERE, HAVING and FILTER protect what comes after them.

use strandline_actors::position::Counts;

use super::harness::{Pipeline, each_way, log};

const ORDERS: &str = "CREATE EXTERNAL TABLE orders (k VARCHAR, code VARCHAR, v BIGINT, q BIGINT) STORED AS JSON
    LOCATION 'kafka://orders';";
const SINK: &str = "CREATE EXTERNAL TABLE result (k VARCHAR, v BIGINT, PRIMARY KEY (k)) STORED AS CQL
    LOCATION 'cassandra://shop/result';";

fn inserted(select: &str) -> String {
    format!("{ORDERS} {SINK} INSERT INTO result {select}")
}

/// How many rows each query takes of records that its later conditions, or its columns, cannot be computed of.
#[test]
fn conditions_protect_those_after_them_in_the_order_in_which_they_are_written() {
    let records: Vec<_> = (0..40)
        .map(|n| match n % 4 {
            0 => "{\"k\":\"ab\",\"code\":\"abc\",\"v\":0,\"q\":0}",
            1 => "{\"k\":\"ab\",\"code\":\"500\",\"v\":2,\"q\":10}",
            2 => "{\"k\":\"x\",\"code\":null,\"v\":0}",
            _ => "{\"k\":\"ab\",\"v\":0}",
        })
        .collect();
    for select in [
        "SELECT k, v FROM orders WHERE v > 0 AND k LIKE 'a%' AND 12 / v > 4",
        "SELECT k, v FROM orders WHERE code ~ '^[0-9]+$' AND CAST(code AS BIGINT) > 100",
        "SELECT k, v FROM orders WHERE coalesce(q, 0) <> 0 AND 100 / q > 5",
        "SELECT k, v FROM orders WHERE upper(code) = '500' AND (12 / v > 4 AND upper(code) = '500')",
        "SELECT k, v FROM orders WHERE q > 1 AND 12 / v > 4",
        "SELECT k, v FROM (SELECT * FROM orders WHERE coalesce(q, 0) <> 0) WHERE 100 / q > 5",
        "SELECT k, v FROM (SELECT k, v, 12 / v AS r FROM orders) WHERE v <> 0 AND r > 4",
        "SELECT k, v FROM (SELECT k, 12 / v AS v FROM orders WHERE coalesce(v, 0) > 0) WHERE v > 4",
        "SELECT k, count(*) FROM orders WHERE coalesce(v, 0) <> 0 AND 12 / v > 4 GROUP BY k",
        "SELECT k, v FROM (SELECT k, v FROM orders UNION ALL SELECT k, q FROM orders WHERE k = '') \
           WHERE coalesce(v, 0) > 0 AND 12 / v > 4",
    ] {
        each_way(|| {
            let pipeline = Pipeline::over(&inserted(select), 2, &log(records.clone()));
            assert_eq!(pipeline.reasons(), [], "{select}");
            assert_eq!(pipeline.counts, Counts { processed: 10, filtered: 30, ..Counts::default() }, "{select}");
        });
    }
}

/// A record that a condition of one INSERT protects from a later one is not taken from another INSERT.
#[test]
fn what_one_insert_leaves_out_is_counted_by_the_other() {
    each_way(|| {
        let sql = format!(
            "{ORDERS} {SINK} CREATE EXTERNAL TABLE counts (k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS CQL
               LOCATION 'cassandra://shop/counts';
             INSERT INTO result SELECT k, sum(v) FROM orders WHERE v > 0 AND k LIKE 'a%' AND 12 / v > 4 GROUP BY k;
             INSERT INTO counts SELECT k, count(*) FROM orders GROUP BY k"
        );
        let mut pipeline = Pipeline::new(&sql, 1, 1);
        let log = log(["{\"k\":\"a\",\"v\":0}", "{\"k\":\"a\",\"v\":2}", "{\"k\":\"b\",\"v\":0}"]);
        pipeline.batch(0, &log, 0, 3);
        pipeline.checkpoint_all();
        assert!(pipeline.letters.is_empty(), "{:?}", pipeline.letters.first());
        let counts: Vec<_> = pipeline.table("counts").rows.values().map(|row| row[1].to_string()).collect();
        assert_eq!(counts, ["2", "1"]);
    });
}

#[test]
fn conditions_of_having_protect_those_after_them() {
    each_way(|| {
        let by_group = SINK.replace("v BIGINT", "g BIGINT, v BIGINT").replace("KEY (k)", "KEY (k, g)");
        for (sink, select) in [
            (
                SINK,
                "SELECT k, sum(v) FROM orders GROUP BY k HAVING sum(v) > 0 AND round(avg(q)) > 2 AND sum(q) / sum(v) > 2",
            ),
            (
                SINK,
                "SELECT k, n FROM (SELECT k, sum(v) AS n FROM orders GROUP BY k) WHERE n > 0 AND upper(k) = 'A' AND 12 / n > 2",
            ),
            // A condition on the group does not come before one that protects it.
            (&by_group, "SELECT k, v, sum(q) FROM orders GROUP BY k, v HAVING sum(q) > 0 AND 12 / v > 4"),
            (&by_group, "SELECT k, v, sum(q) FROM orders GROUP BY k, v HAVING v > 0 AND sum(q) > 0 AND 12 / v > 4"),
        ] {
            let mut pipeline = Pipeline::new(&format!("{ORDERS} {sink} INSERT INTO result {select}"), 1, 1);
            let log = log(["{\"k\":\"a\",\"v\":2,\"q\":9}", "{\"k\":\"b\",\"v\":0,\"q\":0}"]);
            pipeline.batch(0, &log, 0, 2);
            assert_eq!(pipeline.fails(0), None, "{select}");
            let letter = pipeline.letters.first();
            assert!(letter.is_none(), "{select}: {letter:?}");
        }
    });
}

/// A row that FILTER leaves out is counted elsewhere, whatever the argument would be of it.
#[test]
fn a_filter_protects_the_argument() {
    each_way(|| {
        let sql = format!(
            "{ORDERS} CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, s BIGINT, a DOUBLE, h BIGINT, b BOOLEAN, d BIGINT,
               PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://shop/result';
             INSERT INTO result SELECT k, count(*), sum(100 / q) FILTER (WHERE q > 0), avg(100 / q) FILTER (WHERE q > 0),
               max(CAST(code AS BIGINT)) FILTER (WHERE code ~ '^[0-9]+$'), bool_and(100 / q > 5) FILTER (WHERE q > 0),
               count(DISTINCT 100 / q) FILTER (WHERE q > 0 AND v > 0) FROM orders GROUP BY k"
        );
        let mut pipeline = Pipeline::new(&sql, 1, 1);
        let log = log([
            "{\"k\":\"a\",\"q\":0,\"code\":\"x\",\"v\":1}",
            "{\"k\":\"a\",\"q\":10,\"code\":\"7\",\"v\":1}",
            "{\"k\":\"a\",\"q\":5,\"v\":0}",
            "{\"k\":\"a\",\"v\":1}",
        ]);
        pipeline.batch(0, &log, 0, 4);
        pipeline.checkpoint_all();
        assert!(pipeline.letters.is_empty(), "{:?}", pipeline.letters.first());
        let row: Vec<_> = pipeline.rows.values().flatten().map(ToString::to_string).collect();
        assert_eq!(row, ["a", "4", "30", "15", "7", "true", "1"]);
    });
}

/// A comparison is with what the cast makes of a value, wherever it stands: DataFusion would compare the value itself.
#[test]
fn what_a_cast_makes_is_compared_and_not_the_value_before_it() {
    const CASTS: &str =
        "CREATE EXTERNAL TABLE orders (k VARCHAR, amount DECIMAL(10,2), qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON
        LOCATION 'kafka://orders'";
    let records = log([
        "{\"k\":\"a\",\"amount\":\"12.00\",\"qty\":5,\"ts\":\"2024-01-01T00:00:00\"}",
        "{\"k\":\"b\",\"amount\":\"12.50\",\"qty\":70000,\"ts\":\"2024-01-01T00:00:01\"}",
        "{\"k\":\"c\",\"amount\":\"13.00\",\"qty\":3000000000,\"ts\":\"9999-01-01T00:00:00\"}",
        "{\"k\":\"d\"}",
    ]);
    let results = |options: &str, select: &str| {
        let sql = format!("{CASTS} {options}; {SINK} INSERT INTO result {select}");
        let mut pipeline = Pipeline::new(&sql, 1, 1);
        pipeline.batch(0, &records, 0, 4);
        pipeline.checkpoint_all();
        let mut rows: Vec<_> = pipeline.rows.values().map(|row| row[0].to_string()).collect();
        rows.sort();
        (rows.concat(), pipeline.letters.iter().map(|letter| letter.offset).collect::<Vec<_>>())
    };
    each_way(|| {
        for (condition, taken, bad) in [
            ("CAST(amount AS BIGINT) = 12", "ab", vec![]),
            ("12 = CAST(amount AS BIGINT)", "ab", vec![]),
            ("CAST(amount AS BIGINT) > 12", "c", vec![]),
            ("CAST(amount AS BIGINT) <= 12", "ab", vec![]),
            ("CAST(amount AS BIGINT) <> 12", "c", vec![]),
            ("CAST(amount AS BIGINT) IS DISTINCT FROM 12", "cd", vec![]),
            ("CAST(amount AS BIGINT) IN (12, 15, 16, 17, 18)", "ab", vec![]),
            ("CAST(amount AS BIGINT) BETWEEN 12 AND 12", "ab", vec![]),
            ("CAST(amount AS BIGINT) * 1 = 12", "ab", vec![]),
            ("CASE WHEN true THEN CAST(amount AS BIGINT) END = 12", "ab", vec![]),
            ("CAST(amount AS DECIMAL(10,0)) = 13", "bc", vec![]),
            ("CAST(amount AS DECIMAL(20,4)) = 12", "a", vec![]),
            ("amount = 12", "a", vec![]),
            ("TRY_CAST(qty AS SMALLINT) > 100", "", vec![]),
            ("TRY_CAST(qty AS INT) > 100", "b", vec![]),
            ("CAST(qty AS INT) > 5", "b", vec![2]),
            // The literal is a time in nanoseconds: the year 9999 is compared with it if milliseconds hold it as well.
            ("ts > TIMESTAMP '2024-01-01 00:00:00'", "bc", vec![]),
            ("ts < TIMESTAMP '2024-01-01 00:00:00.0005'", "a", vec![2]),
            ("TRY_CAST(ts AS TIMESTAMP) > TIMESTAMP '2024-01-01 00:00:00'", "b", vec![]),
        ] {
            let found = results("", &format!("SELECT k, qty FROM orders WHERE {condition}"));
            assert_eq!(found, (taken.to_owned(), bad), "{condition}");
        }
        for (select, taken) in [
            ("SELECT k, qty FROM (SELECT *, CAST(amount AS BIGINT) = 12 AS b FROM orders) WHERE b", "ab"),
            ("SELECT k, sum(qty) FROM orders GROUP BY k HAVING CAST(sum(amount) AS BIGINT) = 12", "ab"),
            (
                "SELECT k, n FROM (SELECT k, count(*) FILTER (WHERE CAST(amount AS BIGINT) = 12) AS n FROM orders GROUP BY k) \
                   WHERE n = 1",
                "ab",
            ),
            (
                "SELECT k, v FROM (SELECT k, qty AS v, CAST(amount AS BIGINT) = 12 AS b FROM orders \
                   UNION ALL SELECT k, qty, false FROM orders) WHERE b",
                "ab",
            ),
        ] {
            assert_eq!(results("", select), (taken.to_owned(), vec![]), "{select}");
        }
        // A rule of the same text takes the same, and what is NULL.
        for (condition, taken) in [("CAST(amount AS BIGINT) = 12", "abd"), ("TRY_CAST(qty AS SMALLINT) > 100", "bcd")] {
            let found = results(&format!("OPTIONS ('rule.x' '{condition}')"), "SELECT k, qty FROM orders");
            assert_eq!(found.0, taken, "{condition}");
        }
    });
}
