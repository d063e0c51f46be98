//! Every aggregate against DataFusion's batch engine, however the log is cut and whenever a shard starts anew.

use datafusion::common::ScalarValue;
use strandline_actors::ports::StageError;

use super::harness::{Dice, Pipeline, Record, assert_rows, batch_engine, decoded, each_way, log, planned, refused};

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
    check_as(columns, key, select, select);
}

/// The same where the batch engine needs other words for it.
fn check_as(columns: &str, key: &str, select: &str, reference: &str) {
    for seed in 0..2 {
        let mut dice = Dice::new(seed);
        let shards = 1 + dice.below(4);
        let logs = orders(&mut dice, 1 + seed as usize % 3, 400);
        let sql = format!(
            "{ORDERS} CREATE EXTERNAL TABLE result ({columns}, PRIMARY KEY ({key})) STORED AS TABLE LOCATION 'console://'; \
             INSERT INTO result {select}"
        );
        let expected = batch_engine(reference, decoded(&declared(), &logs), &planned(&sql).inserts[0].sink.schema);
        assert!(!expected.is_empty());
        each_way(|| {
            let mut pipeline = Pipeline::new(&sql, shards, logs.len());
            pipeline.run(&logs, &mut dice);
            assert!(pipeline.letters.is_empty(), "{:?}", pipeline.letters.first());
            assert_rows(&pipeline, expected.clone());
        });
    }
}

fn declared() -> arrow::datatypes::SchemaRef {
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
    let column = if call.starts_with("regr_intercept") { "intercept" } else { "value" };
    check(&format!("k VARCHAR, j BIGINT, {column} {data_type}"), "k, j", &select);
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
    count_distinct_pairs: "count(DISTINCT struct(s, i))", "BIGINT";
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

/// NULL is below everything, also within them, where DataFusion's result depends on the order of the rows.
#[test]
fn the_lowest_and_the_highest_of_structs_and_lists() {
    let first = |of: &str, order: &str| format!("first_value({of} ORDER BY {order})");
    let (down, up) = ("i DESC NULLS LAST, s DESC NULLS LAST", "n NULLS FIRST, j NULLS FIRST");
    check_as(
        "k VARCHAR, i BIGINT, s VARCHAR, n BIGINT, j BIGINT",
        "k",
        "SELECT k, get_field(max(named_struct('i', i / 100, 's', s)), 'i'), get_field(max(named_struct('i', i / 100, 's', s)), 's'),
           array_element(min(make_array(CAST(n AS BIGINT), j)), 1), array_element(min(make_array(CAST(n AS BIGINT), j)), 2)
         FROM orders GROUP BY k",
        &format!(
            "SELECT k, {}, {}, {}, {} FROM (SELECT k, i / 100 AS i, s, n, j FROM orders) GROUP BY k",
            first("i", down),
            first("s", down),
            first("CAST(n AS BIGINT)", up),
            first("j", up)
        ),
    );
}

/// In whatever order they come: zeros and NaNs are one each, NULL is none, and a group of which all values are left out has NULL.
#[test]
fn bounds_of_structs_do_not_depend_on_the_order_of_the_rows() {
    let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR, d VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
         CREATE EXTERNAL TABLE result (k VARCHAR, low VARCHAR, high BIGINT, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
         INSERT INTO result SELECT k, CAST(get_field(min(s), 'd') AS VARCHAR), get_field(get_field(max(s) FILTER (WHERE v > 0), 'l'), 'v')
           FROM (SELECT k, v, named_struct('d', CAST(d AS DOUBLE), 'l', named_struct('v', v)) AS s FROM orders)
           GROUP BY k";
    let values = [("0.0", "3"), ("-0.0", "-2"), ("NaN", "5"), ("-NaN", "7"), ("1", "9"), ("0.0", "null")];
    each_way(|| {
        for seed in 0..6 {
            let mut dice = Dice::new(seed);
            let mut order: Vec<_> = values.to_vec();
            (1..order.len()).for_each(|at| order.swap(at, dice.below(at + 1)));
            let records = order.iter().map(|(d, v)| format!("{{\"k\":\"a\",\"d\":\"{d}\",\"v\":{v}}}"));
            let log = log(records.chain(["{\"k\":\"b\",\"d\":\"-0.0\",\"v\":-1}".to_owned()]));
            let mut pipeline = Pipeline::new(sql, 2, 1);
            pipeline.run(&[log], &mut dice);
            let rows: Vec<_> = pipeline.rows.values().map(|row| format!("{} {} {}", row[0], row[1], row[2])).collect();
            assert_eq!(rows, ["a 0.0 7", "b 0.0 NULL"], "{order:?}");
        }
    });
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
    each_way(|| {
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
    });
}

/// Of NaN, infinities and both zeros the lowest, the highest and the middle are the same however the log is cut: by the
/// total order in which every NaN is one, above all numbers.
#[test]
fn bounds_of_floats_do_not_depend_on_cuts() {
    each_way(|| {
        const VALUES: [&str; 9] = ["NaN", "-NaN", "inf", "-inf", "0.0", "-0.0", "1.5", "-3e300", "2"];
        let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR, v VARCHAR) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (k VARCHAR, low DOUBLE, high DOUBLE, low4 REAL, high4 REAL, some DOUBLE, middle DOUBLE,
          PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT k, min(d), max(d), min(r), max(r), max(d) FILTER (WHERE v <> 'inf'), median(d)
          FROM (SELECT k, v, CAST(v AS DOUBLE) AS d, CAST(v AS REAL) AS r FROM orders) GROUP BY k";
        let one_nan = |value: f64| if value.is_nan() { f64::NAN } else { value };
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            let drawn: Vec<_> =
                (0..300).map(|_| (dice.below(90), dice.chance(90).then(|| dice.below(VALUES.len())))).collect();
            let records = drawn.iter().map(|(k, v)| match v {
                Some(v) => format!("{{\"k\":\"k{k}\",\"v\":\"{}\"}}", VALUES[*v]),
                None => format!("{{\"k\":\"k{k}\"}}"),
            });
            let logs = vec![log(records)];
            let mut pipeline = Pipeline::new(sql, 1 + dice.below(3), 1);
            pipeline.run(&logs, &mut dice);
            for row in pipeline.rows.values() {
                let of_key =
                    drawn.iter().filter(|(k, _)| row[0].to_string() == format!("k{k}")).filter_map(|(_, v)| *v);
                let sorted = |wanted: &dyn Fn(&str) -> bool| {
                    let mut values: Vec<_> = of_key.clone().map(|v| VALUES[v]).filter(|v| wanted(v)).collect();
                    values.sort_by(|a, b| one_nan(a.parse().unwrap()).total_cmp(&one_nan(b.parse().unwrap())));
                    values.into_iter().map(|value| one_nan(value.parse().unwrap())).collect::<Vec<f64>>()
                };
                let (all, some) = (sorted(&|_| true), sorted(&|value| value != "inf"));
                let bits = |value: &ScalarValue| match value {
                    ScalarValue::Float64(value) => value.map(f64::to_bits),
                    ScalarValue::Float32(value) => value.map(|value| u64::from(value.to_bits())),
                    other => panic!("{other:?}"),
                };
                let double = |value: Option<&f64>| value.map(|value| value.to_bits());
                let real = |value: Option<&f64>| value.map(|value| u64::from((*value as f32).to_bits()));
                let found: Vec<_> = row[1..6].iter().map(bits).collect();
                let wanted =
                    [double(all.first()), double(all.last()), real(all.first()), real(all.last()), double(some.last())];
                assert_eq!(found, wanted, "{row:?} of {all:?}");
                let middle = match all.len() {
                    0 => None,
                    odd if odd % 2 == 1 => Some(all[odd / 2]),
                    even => Some((all[even / 2 - 1] + all[even / 2]) / 2.0),
                };
                let ScalarValue::Float64(found) = row[6] else { panic!("{row:?}") };
                let same = found == middle || found.zip(middle).is_some_and(|(a, b)| a.is_nan() && b.is_nan());
                assert!(same, "the median is {found:?} of {all:?}");
            }
        }
    });
}

/// A group that comes beside one that is there already, and has no values: all of its aggregates are NULL, also where it is a
/// session.
#[test]
fn a_group_of_nulls_alone_has_null_whatever_was_there_before() {
    each_way(|| {
        let calls = "sum(v), min(v), max(v), avg(v), bit_and(v), bit_or(v), bit_xor(v), bool_and(v > 0), bool_or(v > 0), sum(DISTINCT v)";
        let results =
            "a BIGINT, b BIGINT, c BIGINT, d DOUBLE, e BIGINT, f BIGINT, g BIGINT, h BOOLEAN, i BOOLEAN, j BIGINT";
        let tables = |key: &str, mode: &str| {
            format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '100 milliseconds');
             CREATE EXTERNAL TABLE result (k VARCHAR, {results}{key}) STORED AS TABLE LOCATION 'console://'
               OPTIONS ('output.mode' '{mode}'); INSERT INTO result SELECT k, {calls} FROM orders GROUP BY k"
        )
        };
        let order = |k: &str, v: &str, ts: i64| format!("{{\"k\":\"{k}\",\"v\":{v},\"ts\":{ts}}}");
        let session = ", session_window(ts, '50 milliseconds')";
        for sql in [tables(", PRIMARY KEY (k)", "update"), tables("", "append") + session] {
            let mut pipeline = Pipeline::new(&sql, 1, 1);
            let log = log([order("a", "1", 10), order("a", "2", 20), order("b", "null", 20), order("c", "1", 1000)]);
            for (from, until) in [(0, 1), (1, 3), (3, 4)] {
                pipeline.batch(0, &log, from, until);
                pipeline.checkpoint_all();
            }
            let nulls: Vec<_> = pipeline.rows.values().filter(|row| row[0].to_string() == "b").collect();
            assert_eq!(nulls.len(), 1);
            assert!(nulls[0][1..].iter().all(ScalarValue::is_null), "{nulls:?}");
        }
    });
}

/// Sums that their type does not hold: the shard halts and names the group, and what only passes through the end of the range
/// is exact, however the log is cut.
#[test]
fn a_sum_that_does_not_fit_halts_and_names_the_group() {
    each_way(|| {
        let of = |call: &str, result: &str| {
            format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, i BIGINT, u BIGINT UNSIGNED, w DECIMAL(38,10), m DECIMAL(30,2), t TIMESTAMP)
               STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (k VARCHAR, v {result}, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result SELECT k, {call} FROM orders GROUP BY k"
        )
        };
        let (wide, m) = ("9".repeat(28), "9".repeat(28));
        let orders = |values: &[i64]| {
            log(values.iter().map(|i| {
            let sign = if *i < 0 { "-" } else { "" };
            let u = if *i == i64::MAX { u64::MAX } else { i.unsigned_abs() };
            format!("{{\"k\":\"a\",\"i\":{i},\"u\":{u},\"w\":\"{sign}{wide}\",\"m\":\"{sign}{m}.99\",\"t\":\"2100-01-01T00:00:00\"}}")
        }))
        };
        let since = "sum(t - to_timestamp('1900-01-01T00:00:00'))";
        let cases = [
            ("sum(i)", "BIGINT"),
            ("sum(DISTINCT i)", "BIGINT"),
            ("sum(u)", "BIGINT UNSIGNED"),
            ("sum(w)", "DECIMAL(38,10)"),
            ("avg(w)", "DECIMAL(38,14)"),
            (&format!("arrow_cast({since}, 'Int64')"), "BIGINT"),
            ("sum(arrow_cast(999999999 - i % 2, 'Decimal32(9, 0)'))", "BIGINT"),
            ("sum(arrow_cast(999999999999999999 - i % 2, 'Decimal64(18, 0)'))", "BIGINT"),
        ];
        for (call, result) in cases {
            let log = orders(&[i64::MAX, 1]);
            for cut in [1, 2] {
                let mut pipeline = Pipeline::new(&of(call, result), 1, 1);
                (0..2).step_by(cut).for_each(|at| pipeline.batch(0, &log, at, at + cut as i64));
                let Err(error) = pipeline.try_checkpoint(0) else { panic!("{call} has a result") };
                assert!(matches!(&error, StageError::Halt(why) if why.contains("group (a)")), "{call}: {error:?}");
            }
        }
        let told = refused(&of("sum(CAST(i AS DECIMAL(70,0)))", "DECIMAL(76,0)"));
        assert!(told.contains("of numbers of more than 65 digits a sum could overflow"), "{told}");
        for (call, result) in
            cases.into_iter().take(2).chain([("sum(w)", "DECIMAL(38,10)"), ("sum(m)", "DECIMAL(38,2)")])
        {
            let log = orders(&[i64::MAX, 1, -1, -5, 5]);
            for seed in 0..4 {
                let mut pipeline = Pipeline::new(&of(call, result), 1, 1);
                if seed == 0 {
                    pipeline.batch(0, &log, 0, 5);
                    pipeline.checkpoint_all();
                } else {
                    (0..5).for_each(|at| pipeline.batch(0, &log, at, at + 1));
                    pipeline.checkpoint_all();
                    pipeline.restart(0);
                }
                let shown: Vec<_> = pipeline.rows.values().map(|row| row[1].to_string()).collect();
                let wanted = match call {
                    "sum(w)" => {
                        ScalarValue::Decimal128(Some((10_i128.pow(28) - 1) * 10_i128.pow(10)), 38, 10).to_string()
                    }
                    "sum(m)" => ScalarValue::Decimal128(Some(10_i128.pow(30) - 1), 38, 2).to_string(),
                    _ => i64::MAX.to_string(),
                };
                assert_eq!(shown, [wanted], "{call}");
            }
        }
    });
}

/// Values that SQL calls equal are one group inside structs and lists too.
#[test]
fn zero_and_nan_are_one_group_each_within_structs_and_lists() {
    each_way(|| {
        let keys = [
            ("STRUCT<d DOUBLE, n BIGINT>", "named_struct('d', CAST(v AS DOUBLE), 'n', 1)"),
            ("DOUBLE[]", "make_array(CAST(v AS DOUBLE), 1.5)"),
            ("STRUCT<l REAL[]>", "named_struct('l', make_array(CAST(v AS REAL)))"),
        ];
        for (data_type, key) in keys {
            let sql = format!(
            "CREATE EXTERNAL TABLE orders (v VARCHAR) STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (d {data_type}, n BIGINT, PRIMARY KEY (d)) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result SELECT {key}, count(*) FROM orders GROUP BY {key}"
        );
            let values = ["0.0", "-0.0", "NaN", "-NaN", "0", "1"];
            let mut pipeline = Pipeline::new(&sql, 4, 1);
            let log = log(values.map(|value| format!("{{\"v\":\"{value}\"}}")));
            (0..6).for_each(|at| pipeline.batch(0, &log, at, at + 1));
            pipeline.checkpoint_all();
            let mut counts: Vec<_> = pipeline.rows.values().map(|row| row[1].to_string()).collect();
            counts.sort();
            assert_eq!(counts, ["1", "2", "3"], "{data_type}: {:?}", pipeline.rows);
        }
    });
}

/// What cannot run is refused before anything runs, with the place of the query.
#[test]
fn aggregates_that_cannot_run_are_refused() {
    let of = |call: &str| {
        refused(&format!(
            "{ORDERS}\nCREATE EXTERNAL TABLE result (k VARCHAR, v DOUBLE, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';\n\
             INSERT INTO result\nSELECT k, {call} FROM orders GROUP BY k"
        ))
    };
    let told = of("count(DISTINCT i, n)");
    assert!(told.starts_with("line 4, column 11: ") && told.contains("count(DISTINCT struct("), "{told}");
    for call in [
        "stddev(DISTINCT d)",
        "stddev_pop(DISTINCT d)",
        "arrow_cast(avg(DISTINCT t - to_timestamp_millis(0)), 'Int64')",
        "percentile_cont(d, 1.5)",
        "percentile_cont(d, e)",
    ] {
        let told = of(call);
        assert!(told.starts_with("line 3, column 1: "), "{call}: {told}");
        assert!(told.contains("cannot be computed"), "{call}: {told}");
    }
    for call in [
        "corr(DISTINCT d, e)",
        "covar_samp(DISTINCT d, e)",
        "covar_pop(DISTINCT d, e)",
        "regr_slope(DISTINCT d, e)",
        "regr_count(DISTINCT d, e)",
        "bit_xor(DISTINCT n)",
    ] {
        let told = of(call);
        assert!(told.starts_with("line 4, column 11: ") && told.contains("takes no DISTINCT"), "{call}: {told}");
    }
}
