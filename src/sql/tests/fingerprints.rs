//! The fingerprint follows the meaning, not the writing.

use super::harness::planned;
use crate::sql::which_keep_state;

const SQL: &str =
    "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
  STORED AS JSON LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'rule.qty' 'qty > 0');
CREATE EXTERNAL TABLE revenue (item VARCHAR, low DOUBLE, high DOUBLE, PRIMARY KEY (item))
  STORED AS CQL LOCATION 'cassandra://shop/revenue';
INSERT INTO revenue SELECT item, min(amount), max(amount) FROM orders WHERE qty > 1 AND ts IS NOT NULL GROUP BY item
HAVING max(amount) > 5";

#[test]
fn the_description_says_what_is_read_kept_and_written() {
    let plan = planned(SQL);
    assert_eq!(
        plan.description,
        "read      topic orders as JSON: item Utf8, amount Float64, qty Int64, ts Timestamp(ns)\n\
         option    json.timestamp.unit millis\n\
         rule      qty: qty > 0\n\
         filter    qty > Int64(1)\n\
         filter    ts IS NOT NULL\n\
         group by  1: item\n\
         aggregate 1: min(amount)\n\
         aggregate 2: max(amount)\n\
         state     Utf8, Float64, Float64\n\
         having    max(amount) > CAST(Int64(5) AS Float64)\n\
         write     Cassandra table shop.revenue\n\
         key       item\n\
         column    item Utf8 = item\n\
         column    low Float64 = min(amount)\n\
         column    high Float64 = max(amount)\n"
    );
}

/// A literal, so that a change of what goes into the fingerprint is noticed: it would refuse everybody's stored state.
#[test]
fn the_fingerprint_is_the_same_in_every_version() {
    assert_eq!(planned(SQL).fingerprint, "1-cae0ed1fea26a028");
}

#[test]
fn writing_it_otherwise_changes_nothing() {
    let fingerprint = planned(SQL).fingerprint;
    let same = [
        SQL.replace('\n', "\n\n   -- a comment\n"),
        SQL.replace("SELECT", "select").replace("GROUP BY", "group  by"),
        SQL.replace("orders (", "\"Bestellungen\" (").replace("FROM orders", "FROM \"Bestellungen\" AS b"),
        SQL.replace("revenue (", "sums (").replace("INTO revenue", "INTO sums"),
        SQL.replace("qty > 1 AND ts IS NOT NULL", "ts IS NOT NULL AND qty > 1"),
        SQL.replace("SELECT item, min(amount)", "SELECT item AS thing, min(orders.amount) AS m"),
        SQL.replace(
            "INSERT INTO revenue SELECT item, min(amount), max(amount) FROM orders",
            "CREATE VIEW big AS SELECT item AS i, amount AS a, qty AS q, ts FROM orders;
             INSERT INTO revenue SELECT i, min(a), max(a) FROM (SELECT i, a, q AS qty, ts FROM big)",
        )
        .replace("GROUP BY item", "GROUP BY i")
        .replace("HAVING max(amount)", "HAVING max(a)"),
        SQL.replace(
            "OPTIONS (",
            "OPTIONS ('starting.offsets' 'latest', 'bad.records' 'skip', 'kafka.check.crcs' 'true', ",
        ),
        // A column that is not used.
        SQL.replace("user_id VARCHAR, ", "user_id BIGINT, more VARCHAR, "),
    ];
    for sql in same {
        assert_eq!(planned(&sql).fingerprint, fingerprint, "{sql}\n{}", planned(&sql).description);
    }
}

#[test]
fn another_meaning_is_another_fingerprint() {
    let changed = [
        SQL.replace("min(amount), max(amount)", "max(amount), min(amount)"),
        SQL.replace(
            "INTO revenue SELECT item, min(amount), max(amount)",
            "INTO revenue (item, high, low) SELECT item, max(amount), min(amount)",
        ),
        SQL.replace("kafka://orders", "kafka://orders2"),
        SQL.replace("shop/revenue", "shop/revenue2"),
        SQL.replace("shop/revenue", "shop2/revenue"),
        SQL.replace("qty > 1 AND", "qty > 2 AND"),
        SQL.replace("qty > 1 AND ", ""),
        SQL.replace("HAVING max(amount) > 5", "HAVING max(amount) > 6"),
        SQL.replace("HAVING max(amount) > 5", ""),
        SQL.replace("'millis'", "'micros'"),
        SQL.replace("'qty > 0'", "'qty > 1'"),
        SQL.replace(", 'rule.qty' 'qty > 0'", ""),
        SQL.replace("qty BIGINT", "qty INT"),
        SQL.replace("ts TIMESTAMP)", "ts TIMESTAMP(3))"),
        SQL.replace("amount DOUBLE", "amount DECIMAL(10,2)"),
        SQL.replace("max(amount) FROM", "max(amount) FILTER (WHERE qty < 9) FROM"),
        SQL.replace("max(amount)", "max(amount + 1)"),
        SQL.replace("STORED AS CQL LOCATION 'cassandra://shop/revenue'", "STORED AS TABLE LOCATION 'console://'"),
        SQL.replace("GROUP BY item", "GROUP BY upper(item)").replace("SELECT item", "SELECT upper(item)"),
        SQL.replace("low DOUBLE", "low INT"),
        SQL.replace("OPTIONS (", "OPTIONS ('json.missing' 'error', "),
        SQL.replace("OPTIONS (", "OPTIONS ('json.extra' 'error', "),
        SQL.replace("amount DOUBLE", "amount DOUBLE NOT NULL"),
    ];
    let mut seen = vec![planned(SQL).fingerprint];
    for sql in changed {
        let plan = planned(&sql);
        assert!(!seen.contains(&plan.fingerprint), "{sql}\n{}", plan.description);
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
        assert_ne!(lines(&plan.description), lines(&planned(SQL).description), "the difference can be shown by lines");
        seen.push(plan.fingerprint);
    }
}

/// The rows that a ranking keeps are stored column by column, and told apart from left to right: their order counts, and
/// not how they are called.
#[test]
fn the_columns_of_ranked_rows_are_part_of_the_plan() {
    let of = |inner: &str, outer: &str| {
        planned(&format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, id BIGINT, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k)) STORED AS CQL
               LOCATION 'cassandra://shop/result';
             INSERT INTO result SELECT {outer} FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS rn
               FROM ({inner})) WHERE rn = 1"
        ))
    };
    let (id_last, id_first) =
        (of("SELECT k, v, id FROM orders", "k, id, v"), of("SELECT k, id, v FROM orders", "k, id, v"));
    assert_ne!(id_last.fingerprint, id_first.fingerprint, "{}", id_last.description);
    let computed = of("SELECT k, id + 1 AS id, v FROM orders", "k, id, v");
    assert_ne!(computed.fingerprint, of("SELECT k, id + 2 AS id, v FROM orders", "k, id, v").fingerprint);
    let renamed = of("SELECT t.k, w AS v, t.id AS number FROM (SELECT v AS w, * FROM orders) t", "k, number, v");
    assert_eq!(renamed.description, id_last.description);
}

/// A condition on the groups that are ranked is not one on those that are left.
#[test]
fn conditions_before_and_after_a_ranking_are_told_apart() {
    let of = |having: &str, outer: &str| {
        planned(&format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('watermark.column' 'ts');
             CREATE EXTERNAL TABLE result (start TIMESTAMP, k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS CQL
               LOCATION 'cassandra://shop/result' OPTIONS ('output.mode' 'append');
             INSERT INTO result SELECT start, k, n FROM (SELECT start, k, n, RANK() OVER (PARTITION BY start ORDER BY n) AS place
               FROM (SELECT window.start, k, count(*) AS n FROM orders GROUP BY window(ts, '1 minute'), k {having}))
               WHERE place = 1 {outer}"
        ))
    };
    let (before, after) = (of("HAVING count(*) > 1", ""), of("", "AND n > 1"));
    assert_ne!(before.fingerprint, after.fingerprint, "{}", before.description);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_ne!(lines(&before.description), lines(&after.description), "the difference can be shown by lines");
}

/// How fast the watermark follows, and how silence is taken, can be tuned without starting anew.
#[test]
fn the_lengths_of_the_watermark_are_not_part_of_the_plan() {
    let of = |options: &str| {
        planned(&SQL.replace("'json.timestamp.unit'", &format!("{options}'json.timestamp.unit'"))).fingerprint
    };
    let with = |options: &str| of(&format!("'watermark.column' 'ts', {options}"));
    let plain = with("");
    for options in [
        "'watermark.delay' '10 seconds', ",
        "'watermark.max.ahead' '2 days', ",
        "'watermark.idle' '1 minute', ",
        "'watermark.delay' '1 minute', 'watermark.idle' '5 minutes', ",
    ] {
        assert_eq!(with(options), plain, "{options}");
    }
    assert_ne!(of("'watermark.column' '_timestamp', "), plain);
    assert_ne!(of(""), plain);
}

/// What a rewind has to know of a pipeline is read from its stored description.
#[test]
fn which_inserts_keep_state_is_in_the_description() {
    assert_eq!(which_keep_state(&planned(SQL).description), [true]);
    let copy = "CREATE EXTERNAL TABLE copies (item VARCHAR, PRIMARY KEY (item)) STORED AS CQL LOCATION 'cassandra://shop/copies';
        INSERT INTO copies SELECT item FROM orders";
    let both = planned(&format!("{SQL}; {copy}"));
    let told: Vec<bool> = both.inserts.iter().map(|insert| insert.sink.name == "revenue").collect();
    assert_eq!(which_keep_state(&both.description), told);
    let alone = SQL.split("INSERT").next().unwrap().to_owned() + copy;
    assert_eq!(which_keep_state(&planned(&alone).description), [false]);
}
