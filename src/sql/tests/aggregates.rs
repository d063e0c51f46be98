//! Every aggregate against DataFusion's batch engine, however the log is cut and whenever a shard starts anew.

use super::harness::{Dice, Pipeline, Record, assert_rows, batch_engine, decoded, log};

const ORDERS: &str = "CREATE EXTERNAL TABLE orders (k VARCHAR, j BIGINT, i BIGINT, n INT, d DOUBLE, e DOUBLE, \
     m DECIMAL(18,4), s VARCHAR, b BOOLEAN, t TIMESTAMP(3), day DATE) STORED AS JSON LOCATION 'kafka://orders';";

fn orders(dice: &mut Dice, partitions: usize, records: usize) -> Vec<Vec<Record>> {
    (0..partitions).map(|_| log((0..records).map(|_| order(dice)))).collect()
}

fn order(dice: &mut Dice) -> String {
    let mut fields = Vec::new();
    let mut field = |dice: &mut Dice, name: &str, value: String| {
        if !dice.chance(12) {
            fields.push(format!("\"{name}\":{value}"));
        }
    };
    let k = dice.below(8);
    field(dice, "k", format!("\"user-{k}\""));
    let j = dice.below(3);
    field(dice, "j", j.to_string());
    let i = dice.below(1000) as i64 - 500;
    field(dice, "i", i.to_string());
    let n = dice.below(16);
    field(dice, "n", n.to_string());
    let d = dice.below(100_000) as f64 / 7.0;
    field(dice, "d", format!("{d:?}"));
    let e = dice.below(1000) as f64 / 3.0 + d;
    field(dice, "e", format!("{e:?}"));
    let (whole, part) = (dice.below(10_000), dice.below(10_000));
    field(dice, "m", format!("\"{whole}.{part:04}\""));
    let s = dice.below(40);
    field(dice, "s", format!("\"item {s}\""));
    let b = dice.chance(60);
    field(dice, "b", b.to_string());
    let (hour, second) = (dice.below(24), dice.below(60));
    field(dice, "t", format!("\"2024-05-17T{hour:02}:00:{second:02}\""));
    field(dice, "day", format!("\"2024-05-{:02}\"", 1 + hour));
    format!("{{{}}}", fields.join(","))
}

/// Runs a query in many ways and compares each result with the batch engine's.
fn check(columns: &str, key: &str, select: &str) {
    for seed in 0..4 {
        let mut dice = Dice::new(seed);
        let shards = 1 + dice.below(4);
        let logs = orders(&mut dice, 1 + seed as usize % 3, 400);
        let sql = format!(
            "{ORDERS} CREATE EXTERNAL TABLE result ({columns}, PRIMARY KEY ({key})) STORED AS TABLE LOCATION 'console://'; \
             INSERT INTO result {select}"
        );
        let mut pipeline = Pipeline::new(&sql, shards, logs.len());
        pipeline.run(&logs, &mut dice);
        assert!(pipeline.letters.is_empty(), "{:?}", pipeline.letters.first());
        let declared = declared(&pipeline);
        let expected = batch_engine(select, decoded(&declared, &logs), &pipeline.plan.sink.schema);
        assert!(!expected.is_empty());
        assert_rows(&pipeline, expected);
    }
}

fn declared(_pipeline: &Pipeline) -> arrow::datatypes::SchemaRef {
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    let columns = [
        ("k", DataType::Utf8),
        ("j", DataType::Int64),
        ("i", DataType::Int64),
        ("n", DataType::Int32),
        ("d", DataType::Float64),
        ("e", DataType::Float64),
        ("m", DataType::Decimal128(18, 4)),
        ("s", DataType::Utf8),
        ("b", DataType::Boolean),
        ("t", DataType::Timestamp(TimeUnit::Millisecond, None)),
        ("day", DataType::Date32),
    ];
    let fields = columns.map(|(name, data_type)| Field::new(name, data_type, true));
    Schema::new(fields.to_vec()).into()
}

/// One aggregate of each group, with its type.
fn aggregate(call: &str, data_type: &str) {
    let select = format!("SELECT k, j, {call} FROM orders GROUP BY k, j");
    check(&format!("k VARCHAR, j BIGINT, value {data_type}"), "k, j", &select);
}

macro_rules! aggregates {
    ($($name:ident: $call:literal, $type:literal;)*) => {
        $(#[test]
        fn $name() {
            aggregate($call, $type);
        })*
    };
}

aggregates! {
    count_all: "count(*)", "BIGINT";
    count_column: "count(s)", "BIGINT";
    count_distinct_text: "count(DISTINCT s)", "BIGINT";
    count_distinct_number: "count(DISTINCT i)", "BIGINT";
    count_distinct_double: "count(DISTINCT d)", "BIGINT";
    count_distinct_timestamp: "count(DISTINCT t)", "BIGINT";
    count_distinct_boolean: "count(DISTINCT b)", "BIGINT";
    count_distinct_decimal: "count(DISTINCT m)", "BIGINT";
    count_filter: "count(*) FILTER (WHERE i > 0)", "BIGINT";
    sum_bigint: "sum(i)", "BIGINT";
    sum_int: "sum(n)", "BIGINT";
    sum_double: "sum(d)", "DOUBLE";
    sum_decimal: "sum(m)", "DECIMAL(28,4)";
    sum_distinct: "sum(DISTINCT i)", "BIGINT";
    sum_filter: "sum(i) FILTER (WHERE b)", "BIGINT";
    sum_expression: "sum(i * n + 1)", "BIGINT";
    avg_bigint: "avg(i)", "DOUBLE";
    avg_double: "avg(d)", "DOUBLE";
    avg_decimal: "avg(m)", "DECIMAL(22,8)";
    avg_distinct: "avg(DISTINCT i)", "DOUBLE";
    min_bigint: "min(i)", "BIGINT";
    max_bigint: "max(i)", "BIGINT";
    min_double: "min(d)", "DOUBLE";
    max_decimal: "max(m)", "DECIMAL(18,4)";
    min_text: "min(s)", "VARCHAR";
    max_text: "max(s)", "VARCHAR";
    min_timestamp: "min(t)", "TIMESTAMP(3)";
    max_date: "max(day)", "DATE";
    min_boolean: "min(b)", "BOOLEAN";
    max_filter: "max(i) FILTER (WHERE s LIKE '%3')", "BIGINT";
    median_bigint: "median(i)", "BIGINT";
    median_double: "median(d)", "DOUBLE";
    median_distinct: "median(DISTINCT i)", "BIGINT";
    percentile: "percentile_cont(d, 0.9)", "DOUBLE";
    stddev: "stddev(d)", "DOUBLE";
    stddev_pop: "stddev_pop(d)", "DOUBLE";
    var_samp: "var_samp(d)", "DOUBLE";
    var_pop: "var_pop(i)", "DOUBLE";
    covar_samp: "covar_samp(d, e)", "DOUBLE";
    covar_pop: "covar_pop(d, e)", "DOUBLE";
    corr: "corr(d, e)", "DOUBLE";
    regr_slope: "regr_slope(e, d)", "DOUBLE";
    regr_intercept: "regr_intercept(e, d)", "DOUBLE";
    regr_r2: "regr_r2(e, d)", "DOUBLE";
    regr_count: "regr_count(e, d)", "BIGINT";
    regr_avgx: "regr_avgx(e, d)", "DOUBLE";
    regr_avgy: "regr_avgy(e, d)", "DOUBLE";
    regr_sxx: "regr_sxx(e, d)", "DOUBLE";
    regr_syy: "regr_syy(e, d)", "DOUBLE";
    regr_sxy: "regr_sxy(e, d)", "DOUBLE";
    bit_and: "bit_and(n)", "INT";
    bit_or: "bit_or(n)", "INT";
    bit_xor: "bit_xor(n)", "INT";
    bool_and: "bool_and(b)", "BOOLEAN";
    bool_or: "bool_or(b)", "BOOLEAN";
    approx_distinct_text: "approx_distinct(s)", "BIGINT";
    approx_distinct_number: "approx_distinct(i)", "BIGINT";
}

#[test]
fn several_aggregates_and_the_expressions_around_them() {
    check(
        "k VARCHAR, n BIGINT, total DOUBLE, mean DOUBLE, spread DOUBLE, share DOUBLE, label VARCHAR",
        "k",
        "SELECT k, count(*), sum(d * 2), avg(d), stddev(d), \
         cast(count(*) FILTER (WHERE b) AS DOUBLE) / count(*), concat('k=', upper(k)) \
         FROM orders WHERE i IS NOT NULL AND n < 12 GROUP BY k",
    );
}

#[test]
fn one_group_of_everything() {
    check(
        "all_of VARCHAR, n BIGINT, total BIGINT, kinds BIGINT, low DOUBLE",
        "all_of",
        "SELECT 'everything', count(*), sum(i), count(DISTINCT s), min(d) FROM orders",
    );
}

#[test]
fn groups_without_aggregates() {
    check("k VARCHAR, j BIGINT", "k, j", "SELECT k, j FROM orders GROUP BY k, j");
}

#[test]
fn groups_by_expressions_of_every_type() {
    check(
        "hour TIMESTAMP(3), day DATE, b BOOLEAN, half DOUBLE, m DECIMAL(18,4), n BIGINT",
        "hour, day, b, half, m",
        "SELECT date_trunc('hour', t), day, b, d / 2, m, count(*) FROM orders GROUP BY 1, 2, 3, 4, 5",
    );
}

#[test]
fn texts_that_functions_make() {
    check(
        "a VARCHAR, b VARCHAR, c VARCHAR, low VARCHAR, high VARCHAR, kinds BIGINT",
        "a, b, c",
        "SELECT substr(s, 1, 6), split_part(k, '-', 2), arrow_cast(j, 'Utf8View'), min(arrow_cast(s, 'Utf8View')), \
         max(concat(s, k)), count(DISTINCT arrow_cast(s, 'Utf8View')) FROM orders GROUP BY 1, 2, 3",
    );
}

#[test]
fn a_case_that_guards_a_division() {
    check("k VARCHAR, n BIGINT", "k", "SELECT k, sum(CASE WHEN n <> 0 THEN 100 / n ELSE 0 END) FROM orders GROUP BY k");
}

/// The whole state of a group is one list: the rewrite of 100,000 values must work, and give the exact number.
#[test]
fn count_distinct_of_a_hundred_thousand_values() {
    let sql = format!(
        "{ORDERS} CREATE EXTERNAL TABLE result (b BOOLEAN, n BIGINT, texts BIGINT, PRIMARY KEY (b)) STORED AS TABLE \
         LOCATION 'console://'; INSERT INTO result SELECT b, count(DISTINCT i), count(DISTINCT s) FROM orders GROUP BY b"
    );
    let value = |i: usize| format!("{{\"b\":{},\"i\":{},\"s\":\"{}\"}}", i.is_multiple_of(2), i / 2, i / 2 % 70_000);
    let log = log((0..200_000).map(value));
    let mut pipeline = Pipeline::new(&sql, 2, 1);
    for start in (0..200_000).step_by(50_000) {
        pipeline.batch(0, &log, start, start + 50_000);
        pipeline.checkpoint_all();
        (0..2).for_each(|shard| pipeline.restart(shard));
    }
    let counts = pipeline.rows.values().map(|row| format!("{row:?}")).collect::<Vec<_>>();
    assert_eq!(
        counts,
        ["[Boolean(false), Int64(100000), Int64(70000)]", "[Boolean(true), Int64(100000), Int64(70000)]"]
    );
    assert_eq!(pipeline.keys(), 2);
}

/// Values that SQL calls equal are one group, on one shard.
#[test]
fn zero_and_nan_are_one_group_each() {
    let sql = "CREATE EXTERNAL TABLE orders (v VARCHAR) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (d DOUBLE, n BIGINT, PRIMARY KEY (d)) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT cast(v AS DOUBLE), count(*) FROM orders GROUP BY cast(v AS DOUBLE)";
    let values = ["0.0", "-0.0", "NaN", "-NaN", "0", "1"];
    let mut pipeline = Pipeline::new(sql, 4, 1);
    let log = log(values.map(|value| format!("{{\"v\":\"{value}\"}}")));
    (0..6).for_each(|at| pipeline.batch(0, &log, at, at + 1));
    pipeline.checkpoint_all();
    let rows = pipeline.rows.values().map(|row| format!("{} {}", row[0], row[1])).collect::<Vec<_>>();
    assert_eq!(rows, ["0 3", "1 1", "NaN 2"]);
}
