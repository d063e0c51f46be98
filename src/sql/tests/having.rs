//! HAVING over changing groups: a group that no longer satisfies it leaves the sink.

use strandline_actors::ports::Change;

use super::harness::{Dice, Pipeline, assert_rows, batch_engine, decoded, each_way, log};

const SQL: &str = "CREATE EXTERNAL TABLE orders (k BIGINT, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
    CREATE EXTERNAL TABLE result (k BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
    LOCATION 'cassandra://shop/result';
    INSERT INTO result ";
const SELECT: &str = "SELECT k, sum(v) FROM orders GROUP BY k HAVING sum(v) > 10";

fn value(k: usize, v: i64) -> String {
    format!("{{\"k\":{k},\"v\":{v}}}")
}

#[test]
fn a_group_comes_changes_goes_and_comes_back() {
    each_way(|| {
        let mut pipeline = Pipeline::new(&format!("{SQL}{SELECT}"), 1, 1);
        let log = log([value(1, 5), value(1, 10), value(1, 1), value(1, -10), value(1, -1), value(1, 20)]);
        let mut seen = Vec::new();
        for at in 0..6 {
            pipeline.batch(0, &log, at, at + 1);
            let output = pipeline.checkpoint_all();
            pipeline.restart(0);
            assert!(output.len() <= 1);
            seen.push(output.first().map(|output| (output.change, output.rows.num_rows())));
        }
        let (up, down) = (Some((Change::Upsert, 1)), Some((Change::Delete, 1)));
        assert_eq!(seen, [None, up, up, down, None, up]);
        assert_eq!(format!("{:?}", pipeline.rows.values().next()), "Some([Int64(1), Int64(25)])");
    });
}

#[test]
fn random_groups_equal_the_batch_engine() {
    each_way(|| {
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            let mut pipeline = Pipeline::new(&format!("{SQL}{SELECT}"), 1 + dice.below(4), 2);
            let logs: Vec<_> =
                (0..2).map(|_| log((0..500).map(|_| value(dice.below(20), dice.below(21) as i64 - 10)))).collect();
            pipeline.run(&logs, &mut dice);
            assert!(pipeline.deletes > 0, "some groups went");
            let schema = arrow::datatypes::Schema::new(vec![
                arrow::datatypes::Field::new("k", arrow::datatypes::DataType::Int64, true),
                arrow::datatypes::Field::new("v", arrow::datatypes::DataType::Int64, true),
            ]);
            let rows = decoded(&schema.into(), &logs);
            let expected = batch_engine(SELECT, rows, &pipeline.plan.inserts[0].sink.schema);
            assert_rows(&pipeline, expected);
        }
    });
}

/// A condition on the group itself is the same before and after the aggregation; nothing is ever deleted for it.
#[test]
fn having_on_the_group_alone_needs_no_deletes() {
    each_way(|| {
        let sql = format!("{SQL}SELECT k, sum(v) FROM orders GROUP BY k HAVING k > 1");
        let mut pipeline = Pipeline::new(&sql, 1, 1);
        let log = log([value(1, 5), value(2, 10)]);
        pipeline.batch(0, &log, 0, 2);
        pipeline.checkpoint_all();
        assert_eq!(pipeline.rows.len(), 1);
        assert_eq!(pipeline.counts.filtered, 1);
    });
}

/// A group of floats is 0.0 where a row of it is -0.0: a condition means the group, also where it is asked of rows.
#[test]
fn having_on_a_float_means_the_group() {
    each_way(|| {
        for (columns, select, expected) in [
            ("d DOUBLE PRIMARY KEY, n BIGINT", "SELECT d, count(*) FROM orders GROUP BY d HAVING 1 / d > 0", "0 2"),
            ("d DOUBLE PRIMARY KEY", "SELECT d FROM (SELECT DISTINCT d FROM orders) WHERE 1 / d > 0", "0"),
            // A record is bad for which it cannot be computed, and no group.
            (
                "d DOUBLE PRIMARY KEY, n BIGINT",
                "SELECT d, count(*) FROM orders GROUP BY d HAVING CAST(d AS BIGINT) = 0",
                "0 2",
            ),
        ] {
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (d DOUBLE) STORED AS JSON LOCATION 'kafka://orders';
                 CREATE EXTERNAL TABLE result ({columns}) STORED AS TABLE LOCATION 'console://'; INSERT INTO result {select}"
            );
            let mut pipeline = Pipeline::new(&sql, 2, 1);
            let log = log(["-0.0", "-0.0", "-1", "-1e300"].map(|d| format!("{{\"d\":{d}}}")));
            (0..4).for_each(|at| pipeline.batch(0, &log, at, at + 1));
            pipeline.checkpoint_all();
            let rows =
                pipeline.rows.values().map(|row| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            assert_eq!(rows.collect::<Vec<_>>(), [expected], "{select}");
        }
    });
}

/// What cannot be computed for a group halts the shard and names the group, since no record is to blame.
#[test]
fn a_result_that_cannot_be_computed_names_its_group() {
    let sql = format!("{SQL}SELECT k, 100 / sum(v) FROM orders GROUP BY k");
    let plan = super::harness::planned(&sql);
    let output = super::harness::run_stage(&plan, &log([value(3, 5), value(7, 0)]), 1, 0, 2);
    let mut operator = plan.query().operator(0);
    operator.apply(output.lanes[0].rows.clone(), None).unwrap();
    let error = operator.checkpoint().unwrap_err().to_string();
    assert!(error.contains("group (7)") && error.contains("ivide by zero") && error.contains("NULLIF"), "{error}");
}

/// Of a group whose next life satisfies HAVING no more, only the key is computed: nothing is known of the rest of its row.
#[test]
fn a_row_is_removed_by_its_key_alone() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (k BIGINT, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
              OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts');
            CREATE EXTERNAL TABLE result (share BIGINT, k VARCHAR, PRIMARY KEY (k)) STORED AS CQL
              LOCATION 'cassandra://shop/result' OPTIONS ('state.ttl' '100 milliseconds');
            INSERT INTO result SELECT 100 / coalesce(total, 0), k FROM (SELECT concat('k', k) AS k, sum(v) AS total FROM orders
              GROUP BY concat('k', k)) WHERE total > 3";
        let mut pipeline = Pipeline::new(sql, 1, 1);
        let value = |k: i64, v: i64, ts: i64| format!("{{\"k\":{k},\"v\":{v},\"ts\":{ts}}}");
        let log = log([value(1, 5, 0), value(2, 5, 1000), value(1, 1, 1000)]);
        for at in 0..3 {
            pipeline.batch(0, &log, at, at + 1);
            pipeline.checkpoint_all();
            pipeline.restart(0);
        }
        assert_eq!(pipeline.deletes, 1);
        let rows: Vec<_> = pipeline.rows.values().map(|row| format!("{row:?}")).collect();
        assert_eq!(rows, ["[Int64(20), Utf8(\"k2\")]"]);
    });
}
