//! Every aggregate function that `docs/sql.md` lists, and HAVING.

use super::{Case, Dice, Feed};
use crate::stand::Stand;

const COLUMNS: &str = "k VARCHAR, j BIGINT, i BIGINT, n INT, d DOUBLE, e DOUBLE, whole DOUBLE, m DECIMAL(18,4), \
                       s VARCHAR, b BOOLEAN, t TIMESTAMP(3), day DATE";

/// Calls with their types. An `~` marks those that add up DOUBLE, whose order of addition differs from the batch
/// engine's; `whole` holds whole numbers, whose sums are exact in any order.
const CALLS: &[(&str, &str)] = &[
    ("count(*)", "BIGINT"),
    ("count(s)", "BIGINT"),
    ("count(DISTINCT s)", "BIGINT"),
    ("count(DISTINCT d)", "BIGINT"),
    ("count(DISTINCT m)", "BIGINT"),
    ("count(DISTINCT b)", "BIGINT"),
    ("count(DISTINCT t)", "BIGINT"),
    ("count(*) FILTER (WHERE i > 0)", "BIGINT"),
    ("count(DISTINCT s) FILTER (WHERE b)", "BIGINT"),
    ("sum(i)", "BIGINT"),
    ("sum(n)", "BIGINT"),
    ("sum(d)", "~DOUBLE"),
    ("sum(whole)", "DOUBLE"),
    ("sum(m)", "DECIMAL(28,4)"),
    ("sum(DISTINCT i)", "BIGINT"),
    ("sum(m) FILTER (WHERE s LIKE '%3')", "DECIMAL(28,4)"),
    ("sum(i * n + 1) - min(n)", "BIGINT"),
    ("avg(i)", "~DOUBLE"),
    ("avg(d)", "~DOUBLE"),
    ("avg(m)", "DECIMAL(22,8)"),
    ("avg(DISTINCT i)", "~DOUBLE"),
    ("min(i)", "BIGINT"),
    ("max(i)", "BIGINT"),
    ("min(d)", "DOUBLE"),
    ("max(d) FILTER (WHERE NOT b)", "DOUBLE"),
    ("min(m)", "DECIMAL(18,4)"),
    ("max(m)", "DECIMAL(18,4)"),
    ("min(s)", "VARCHAR"),
    ("max(s)", "VARCHAR"),
    ("min(b)", "BOOLEAN"),
    ("min(t)", "TIMESTAMP(3)"),
    ("max(day)", "DATE"),
    ("median(i)", "BIGINT"),
    ("median(d)", "DOUBLE"),
    ("percentile_cont(d, 0.9)", "DOUBLE"),
    ("stddev(d)", "~DOUBLE"),
    ("stddev_pop(d)", "~DOUBLE"),
    ("var(d)", "~DOUBLE"),
    ("var_pop(i)", "~DOUBLE"),
    ("covar_samp(d, e)", "~DOUBLE"),
    ("covar_pop(d, e)", "~DOUBLE"),
    ("corr(d, e)", "~DOUBLE"),
    ("regr_slope(e, d)", "~DOUBLE"),
    ("regr_intercept(e, d)", "~DOUBLE"),
    ("regr_count(e, d)", "BIGINT"),
    ("regr_r2(e, d)", "~DOUBLE"),
    ("regr_avgx(e, d)", "~DOUBLE"),
    ("regr_avgy(e, d)", "~DOUBLE"),
    ("regr_sxx(e, d)", "~DOUBLE"),
    ("regr_syy(e, d)", "~DOUBLE"),
    ("regr_sxy(e, d)", "~DOUBLE"),
    ("bit_and(n)", "INT"),
    ("bit_or(n)", "INT"),
    ("bit_xor(n)", "INT"),
    ("bool_and(b)", "BOOLEAN"),
    ("bool_or(b)", "BOOLEAN"),
    ("bool_and(i > -400) FILTER (WHERE n < 3)", "BOOLEAN"),
    ("approx_distinct(s)", "BIGINT"),
    ("approx_distinct(i)", "BIGINT"),
];

const REGRESSIONS: [&str; 9] = [
    "regr_slope",
    "regr_intercept",
    "regr_count",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_syy",
    "regr_sxy",
];

fn order(dice: &mut Dice) -> String {
    let mut fields = Vec::new();
    let k = dice.below(8);
    dice.field(&mut fields, "k", format!("\"user-{k}\""));
    let j = dice.below(40);
    dice.field(&mut fields, "j", j.to_string());
    let i = dice.below(1000) as i64 - 500;
    dice.field(&mut fields, "i", i.to_string());
    let n = dice.below(16);
    dice.field(&mut fields, "n", n.to_string());
    let d = dice.below(100_000) as f64 / 7.0;
    dice.field(&mut fields, "d", format!("{d:?}"));
    let e = 2.5 * d + dice.below(100_000) as f64 / 3.0;
    dice.field(&mut fields, "e", format!("{e:?}"));
    let whole = dice.below(1 << 40) as f64;
    dice.field(&mut fields, "whole", format!("{whole:?}"));
    let m = dice.below(100_000_000) as i64 - 20_000_000;
    let sign = if m < 0 { "-" } else { "" };
    dice.field(&mut fields, "m", format!("\"{sign}{}.{:04}\"", m.abs() / 10_000, m.abs() % 10_000));
    let s = dice.below(40);
    dice.field(&mut fields, "s", format!("\"item {s}\""));
    let b = dice.chance(60);
    dice.field(&mut fields, "b", b.to_string());
    let (hour, second) = (dice.below(24), dice.below(60));
    dice.field(&mut fields, "t", format!("\"2024-05-17T{hour:02}:00:{second:02}\""));
    dice.field(&mut fields, "day", format!("\"2024-05-{:02}\"", 1 + hour));
    format!("{{{}}}", fields.join(","))
}

/// The functions that the document lists.
fn documented() -> Vec<&'static str> {
    let text = include_str!("../../../docs/sql.md");
    let list = text.split("in which records come:").nth(1).unwrap().split("; with `DISTINCT`").next().unwrap();
    let mut names: Vec<_> = list.split('`').skip(1).step_by(2).collect();
    if let Some(at) = names.iter().position(|name| *name == "regr_*") {
        names.splice(at..=at, REGRESSIONS);
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_aggregate_equals_the_batch_engine() {
    let names = documented();
    assert!(names.len() > 20, "the list was not found: {names:?}");
    for name in names {
        assert!(
            CALLS.iter().any(|(call, _)| call.starts_with(&format!("{name}("))),
            "{name} is documented but not tested"
        );
    }
    let column = |number: usize| format!("c{number}");
    let (mut result, mut select, mut inexact) = (String::new(), String::new(), Vec::new());
    for (number, (call, data_type)) in CALLS.iter().enumerate() {
        result += &format!("{} {}, ", column(number), data_type.trim_start_matches('~'));
        select += &format!(", {call}");
        inexact.extend(data_type.starts_with('~').then(|| column(number)));
    }
    let case = Case {
        columns: COLUMNS.into(),
        result: format!("k VARCHAR, {result}PRIMARY KEY (k)"),
        select: format!("SELECT k{select} FROM orders GROUP BY k"),
        null_key: Some("(none)"),
        inexact,
    };
    let (stand, mut feed, mut dice) = (Stand::new(3).await, Feed::new(3), Dice::new(4));
    let portions = [800, 500, 400, 60].map(|records| dice.portion(3, records, order));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert_eq!(before.len(), 9, "eight users and none");
    assert!(after.iter().all(|(key, row)| row != &before[key]), "all groups changed");
    case.stop(stand, &feed, service).await;
}

/// A total that is large at first and then falls, so groups come into the table and leave it again.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_no_longer_satisfy_having_leave_the_table() {
    let case = Case {
        columns: COLUMNS.into(),
        result: "j BIGINT, orders BIGINT, total BIGINT, cost DECIMAL(28,4), mean DECIMAL(22,8), any_b BOOLEAN, \
                 last_day DATE, PRIMARY KEY (j)"
            .into(),
        select: "SELECT j, count(*), sum(i), sum(m), avg(m), bool_or(b), max(day) FROM orders WHERE n IS NOT NULL \
                 GROUP BY j HAVING sum(i) > 0 AND count(*) FILTER (WHERE b) >= 3"
            .into(),
        null_key: None,
        inexact: Vec::new(),
    };
    let (stand, mut feed, mut dice) = (Stand::new(3).await, Feed::new(3), Dice::new(5));
    let portions = [600, 300, 600, 200].map(|records| dice.portion(3, records, order));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    let left = before.keys().filter(|key| !after.contains_key(*key)).count();
    let came = after.keys().filter(|key| !before.contains_key(*key)).count();
    assert!(left > 0 && came > 0, "{left} groups left and {came} came");
    // The group of NULL has no key in Cassandra: it is kept, counted and shown.
    assert!(service.status()["sinks"][0]["refused"].as_u64() > Some(0), "{}", service.status()["sinks"]);
    case.stop(stand, &feed, service).await;
}
