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
