//! UNION ALL of filters and projections, over one topic and over two, against DataFusion's batch engine; and views of views.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;

use super::harness::{Dice, Pipeline, Record, batch_engine, decoded, each_way, log, planned, refused};

const ORDERS: &str = "CREATE EXTERNAL TABLE orders (k VARCHAR, id BIGINT, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
    LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis');";
const RETURNS: &str = "CREATE EXTERNAL TABLE returns (k VARCHAR, id INT, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
    LOCATION 'kafka://returns' OPTIONS ('json.timestamp.unit' 'millis', 'json.extra' 'ignore');";

/// Of even partitions `orders`, of odd ones `returns`, as `src` says to the batch engine.
fn logs(dice: &mut Dice, partitions: usize, topics: usize) -> Vec<Vec<Record>> {
    let mut id = 0;
    (0..partitions)
        .map(|partition| {
            let src = if partition % topics == 0 { "orders" } else { "returns" };
            log((0..dice.below(150)).map(|n| {
                id += 1;
                let (k, v, ts) = (dice.below(5), dice.below(20), 10 * n + dice.below(40));
                format!("{{\"src\":\"{src}\",\"k\":\"k{k}\",\"id\":{id},\"v\":{v},\"ts\":{ts}}}")
            }))
        })
        .collect()
}

fn reference(select: &str, logs: &[Vec<Record>], sink: &Schema) -> Vec<Vec<ScalarValue>> {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let whole = |name: &str| Field::new(name, DataType::Int64, true);
    let schema = Schema::new(vec![text("src"), text("k"), whole("id"), whole("v"), whole("ts")]);
    batch_engine(select, decoded(&schema.into(), logs), sink)
}

/// Tables, what is done with them, and the same over one table for the batch engine.
const QUERIES: [(&str, &str, &str); 8] = [
    (
        "k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)",
        "SELECT k, count(*), sum(v) FROM (SELECT k, v FROM orders WHERE v > 4
           UNION ALL SELECT upper(k), v * 2 FROM orders WHERE v < 9) GROUP BY k HAVING count(*) > 1",
        "",
    ),
    (
        "id BIGINT, part VARCHAR, v BIGINT, PRIMARY KEY (id, part)",
        "SELECT id, 'low' AS part, v FROM orders WHERE v < 7 UNION ALL SELECT id, 'high', v + 1 FROM orders WHERE v > 4",
        "",
    ),
    ("k VARCHAR, v BIGINT, PRIMARY KEY (k, v)", "SELECT k, v FROM orders UNION SELECT upper(k), v % 3 FROM orders", ""),
    (
        "k VARCHAR, n BIGINT, PRIMARY KEY (k)",
        "SELECT k, count(*) FROM (SELECT k, v FROM orders UNION ALL (SELECT k, v FROM orders WHERE v > 3
           UNION ALL SELECT 'all', v FROM (SELECT v FROM orders UNION ALL SELECT v + 5 FROM orders) WHERE v < 9))
         WHERE v <> 8 GROUP BY k",
        "",
    ),
    (
        "k VARCHAR, n BIGINT, total BIGINT, least BIGINT, PRIMARY KEY (k)",
        "SELECT k, count(*), sum(v), min(id) FROM (SELECT k, id, v FROM orders WHERE v > 2
           UNION ALL SELECT k, id, -v FROM returns) GROUP BY k",
        "SELECT k, count(*), sum(v), min(id) FROM (SELECT k, id, v FROM orders WHERE src = 'orders' AND v > 2
           UNION ALL SELECT k, id, -v FROM orders WHERE src = 'returns') GROUP BY k",
    ),
    (
        "id BIGINT, k VARCHAR, v BIGINT, PRIMARY KEY (id)",
        "SELECT id, k, v FROM (SELECT id, k, v FROM orders UNION ALL SELECT id, concat(k, '!'), v FROM returns) WHERE v < 15",
        "SELECT id, k, v FROM (SELECT id, k, v FROM orders WHERE src = 'orders'
           UNION ALL SELECT id, concat(k, '!'), v FROM orders WHERE src = 'returns') WHERE v < 15",
    ),
    (
        "start BIGINT, k VARCHAR, n BIGINT, PRIMARY KEY (start, k)",
        "SELECT CAST(window.start AS BIGINT), k, count(*) FROM (SELECT ts, k FROM orders UNION ALL SELECT ts, k FROM returns)
           GROUP BY window(ts, '100 milliseconds'), k",
        "SELECT ts / 100 * 100, k, count(*) FROM orders GROUP BY 1, 2",
    ),
    (
        "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k, id)",
        "SELECT k, id, v FROM (SELECT k, id, v FROM orders UNION ALL SELECT k, id, v + 3 FROM returns)
           QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) <= 2",
        "SELECT k, id, v FROM (SELECT k, id, CASE src WHEN 'orders' THEN v ELSE v + 3 END AS v FROM orders)
           QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) <= 2",
    ),
];

#[test]
fn unions_equal_the_batch_engine() {
    each_way(|| {
        for (number, (columns, select, of_engine)) in QUERIES.into_iter().enumerate() {
            let of_engine = if of_engine.is_empty() { select } else { of_engine };
            let topics = 1 + usize::from(select.contains("returns"));
            let sql = format!(
                "{ORDERS} {RETURNS} CREATE EXTERNAL TABLE result ({columns}) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result {select}"
            );
            // The window's start is a key in the type of the time.
            let sql = sql
                .replace("start BIGINT", "start TIMESTAMP(3)")
                .replace("CAST(window.start AS BIGINT)", "window.start");
            for seed in 0..4 {
                let mut dice = Dice::new(seed * 100 + number as u64);
                let partitions = topics * (1 + dice.below(2));
                let logs = logs(&mut dice, partitions, topics);
                let mut pipeline = Pipeline::new(&sql, 1 + dice.below(4), partitions);
                assert_eq!(pipeline.plan.sources.len(), topics);
                pipeline.run(&logs, &mut dice);
                let sink = pipeline.plan.inserts[0].sink.schema.clone();
                pipeline.assert_rows(reference(of_engine, &logs, &sink));
            }
        }
    });
}

/// Windows over two topics close by the lowest watermark of both.
#[test]
fn windows_of_two_topics_wait_for_both() {
    each_way(|| {
        let timed = |table: &str| table.replace("OPTIONS (", "OPTIONS ('watermark.column' 'ts', ");
        let sql = format!(
            "{} {} CREATE EXTERNAL TABLE result (start TIMESTAMP(3), n BIGINT, PRIMARY KEY (start)) STORED AS TABLE
           LOCATION 'console://' OPTIONS ('output.mode' 'append');
         INSERT INTO result SELECT window.start, count(*) FROM (SELECT ts FROM orders UNION ALL SELECT ts FROM returns)
           GROUP BY window(ts, '10 milliseconds')",
            timed(ORDERS),
            timed(RETURNS)
        );
        let times = |times: &[i64]| log(times.iter().map(|ts| format!("{{\"ts\":{ts}}}")).collect::<Vec<_>>());
        let (orders, returns) = (times(&[1, 5, 12, 35]), times(&[3, 14, 29, 30]));
        let mut pipeline = Pipeline::new(&sql, 2, 2);
        pipeline.batch(0, &orders, 0, 4);
        assert!(pipeline.checkpoint_all().is_empty());
        pipeline.batch(1, &returns, 0, 2);
        pipeline.checkpoint_all();
        let shown = |pipeline: &Pipeline| pipeline.rows.values().map(|row| row[1].to_string()).collect::<Vec<_>>();
        assert_eq!(shown(&pipeline), ["3"]);
        pipeline.restart(0);
        pipeline.batch(1, &returns, 2, 4);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["3", "2", "1"]);
        let mixed = sql.replacen("'watermark.column' 'ts', ", "", 1);
        let message = refused(&mixed);
        assert!(message.contains("set 'watermark.column' and 'watermark.delay' on orders"), "{message}");
        let update = mixed.replace(" OPTIONS ('output.mode' 'append')", "");
        let message = refused(&update);
        assert!(message.contains("table returns has a 'watermark.column' and table orders has none"), "{message}");
    });
}

/// Each record of both parts of a union over one topic is read once, and counted once.
#[test]
fn a_record_that_makes_two_rows_counts_once() {
    let sql = format!(
        "{ORDERS} CREATE EXTERNAL TABLE result (k VARCHAR, v BIGINT) STORED AS TABLE LOCATION 'console://';
         INSERT INTO result SELECT k, v FROM orders WHERE v < 6 UNION ALL SELECT k, v FROM orders WHERE v > 3 AND v < 9"
    );
    let plan = planned(&sql);
    let records = log((0..10).map(|v| format!("{{\"k\":\"k\",\"v\":{v}}}")));
    each_way(|| {
        let pipeline = Pipeline::over(&sql, 3, &records);
        let (rows, counts) = (pipeline.written.values().sum::<usize>(), pipeline.counts);
        assert_eq!((rows, counts.processed, counts.filtered, counts.total()), (11, 9, 1, 10));
    });
    assert!(plan.description.contains("from      1: topic orders: #1 = k, #2 = v\n"), "{}", plan.description);
}

/// Which row of a key is last does not depend on the cuts.
#[test]
fn rows_of_one_key_keep_the_order_of_their_records() {
    each_way(|| {
        let sql = format!(
        "{ORDERS} CREATE EXTERNAL TABLE result (k VARCHAR, id BIGINT, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
         INSERT INTO result SELECT k, id FROM orders WHERE v % 2 = 0
           UNION ALL SELECT k, -id FROM orders WHERE v % 2 = 1 OR v % 5 = 0"
    );
        for seed in 0..8 {
            let mut dice = Dice::new(seed);
            let logs = logs(&mut dice, 1, 1);
            let mut wanted = BTreeMap::new();
            for record in &logs[0] {
                let json: serde_json::Value = serde_json::from_slice(record.value.as_ref().unwrap()).unwrap();
                let (k, id, v) =
                    (json["k"].as_str().unwrap(), json["id"].as_i64().unwrap(), json["v"].as_i64().unwrap());
                if v % 2 == 1 || v % 5 == 0 {
                    wanted.insert(k.to_owned(), -id);
                } else if v % 2 == 0 {
                    wanted.insert(k.to_owned(), id);
                }
            }
            let mut pipeline = Pipeline::new(&sql, 1 + dice.below(3), 1);
            pipeline.run(&logs, &mut dice);
            let text = |row: &[ScalarValue]| (row[0].to_string(), row[1].to_string().parse().unwrap());
            assert_eq!(
                pipeline.rows.values().map(|row| text(row)).collect::<BTreeMap<_, i64>>(),
                wanted,
                "seed {seed}"
            );
        }
    });
}

/// What the columns of the parts are called changes nothing, what they are does.
#[test]
fn the_fingerprint_of_a_union_follows_its_meaning() {
    let sql = |select: &str| {
        format!(
            "{ORDERS} {RETURNS} CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS TABLE
               LOCATION 'console://'; INSERT INTO result {select}"
        )
    };
    let plan = planned(&sql(
        "SELECT k, sum(v) FROM (SELECT k, v FROM orders WHERE v > 1 UNION ALL SELECT k, v FROM returns) WHERE v < 9 GROUP BY k",
    ));
    let same = "CREATE VIEW a AS SELECT k AS x, v AS y FROM orders WHERE v > 1";
    let same = format!(
        "{same}; INSERT INTO result SELECT m, sum(n) FROM (SELECT x AS m, y AS n FROM a UNION ALL
           SELECT k, v AS w FROM returns) WHERE n < 9 GROUP BY m"
    );
    let same = sql(&same).replace("INSERT INTO result CREATE", "CREATE");
    assert_eq!(planned(&same).description, plan.description);
    for other in [
        "SELECT k, sum(v) FROM (SELECT k, v FROM orders WHERE v > 2 UNION ALL SELECT k, v FROM returns) WHERE v < 9 GROUP BY k",
        "SELECT k, sum(v) FROM (SELECT k, v FROM orders WHERE v > 1 UNION ALL SELECT k, id FROM returns) WHERE v < 9 GROUP BY k",
        "SELECT k, sum(v) FROM (SELECT k, v FROM orders WHERE v > 1 UNION ALL SELECT k, v FROM returns) WHERE v < 8 GROUP BY k",
        "SELECT k, sum(v) FROM (SELECT k, v FROM orders WHERE v > 1 UNION ALL SELECT k, v FROM orders) WHERE v < 9 GROUP BY k",
    ] {
        assert_ne!(planned(&sql(other)).fingerprint, plan.fingerprint, "{other}");
    }
}

#[test]
fn views_of_views_and_of_unions_are_read_through() {
    each_way(|| {
        let sql = format!(
            "{ORDERS} {RETURNS}
         CREATE VIEW big AS SELECT k, v FROM orders WHERE v > 5;
         CREATE VIEW even AS SELECT upper(k) AS k, v AS w FROM big WHERE v % 2 = 0;
         CREATE VIEW both AS SELECT * FROM even UNION ALL SELECT k, v FROM returns WHERE v < 4;
         CREATE VIEW sums AS SELECT k, count(*) AS n, sum(w) AS total FROM both GROUP BY k;
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS TABLE
           LOCATION 'console://';
         CREATE EXTERNAL TABLE evens (k VARCHAR, w BIGINT, n BIGINT, PRIMARY KEY (k, w)) STORED AS TABLE
           LOCATION 'console://';
         INSERT INTO result SELECT k, n, total FROM sums WHERE n > 1;
         INSERT INTO evens SELECT k, w, count(*) FROM even GROUP BY k, w"
        );
        let both = "(SELECT upper(k) AS k, v AS w FROM orders WHERE src = 'orders' AND v > 5 AND v % 2 = 0
        UNION ALL SELECT k, v FROM orders WHERE src = 'returns' AND v < 4)";
        let of_engine = [
            ("result", format!("SELECT k, count(*), sum(w) FROM {both} GROUP BY k HAVING count(*) > 1")),
            (
                "evens",
                "SELECT upper(k), v, count(*) FROM orders WHERE src = 'orders' AND v > 5 AND v % 2 = 0 GROUP BY 1, 2"
                    .into(),
            ),
        ];
        for seed in 0..4 {
            let mut dice = Dice::new(seed);
            let logs = logs(&mut dice, 4, 2);
            let mut pipeline = Pipeline::new(&sql, 1 + dice.below(3), 4);
            pipeline.run(&logs, &mut dice);
            for (table, select) in &of_engine {
                let sink =
                    pipeline.plan.inserts.iter().find(|insert| insert.sink.name == *table).unwrap().sink.schema.clone();
                pipeline.table(table).assert_rows(reference(select, &logs, &sink));
            }
        }
    });
}

#[test]
fn what_cannot_be_put_together_is_refused() {
    let refused = |select: &str| {
        refused(&format!(
            "{ORDERS} {RETURNS} CREATE EXTERNAL TABLE again (k VARCHAR) STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result {select}"
        ))
    };
    for (select, reason) in [
        (
            "SELECT k, count(*) FROM orders GROUP BY k UNION ALL SELECT k, count(*) FROM returns GROUP BY k",
            "UNION ALL of results that are grouped is not supported",
        ),
        ("SELECT DISTINCT k, v FROM orders UNION ALL SELECT k, v FROM returns", "of results that are grouped"),
        (
            "SELECT k, count(*) FROM (SELECT k FROM orders UNION ALL SELECT k FROM again) GROUP BY k",
            "tables again and orders read the same topic orders",
        ),
        ("SELECT k, v FROM orders UNION ALL SELECT k FROM returns", "UNION"),
        (
            "SELECT k, count(*) FROM (SELECT k, _processing_time AS t FROM orders UNION ALL SELECT k, ts FROM returns)
               WHERE t IS NOT NULL GROUP BY k",
            "_processing_time cannot decide which rows are left out",
        ),
        ("SELECT k, v FROM orders INTERSECT SELECT k, v FROM returns", "INTERSECT is not supported yet"),
    ] {
        let message = refused(select);
        assert!(message.contains(reason), "{select}: {message}");
    }
}

/// Whose column has another type in each of them is cast, which nobody has written.
#[test]
fn event_times_of_two_types_are_refused_by_their_cause() {
    for (from, advice) in [
        (
            "(SELECT ts FROM coarse UNION ALL SELECT ts FROM fine) GROUP BY window(ts, '1 minute')",
            "declare that column with the same type in all tables of the UNION ALL",
        ),
        ("coarse GROUP BY window(CAST(ts AS TIMESTAMP(6)), '1 minute')", "take the column as it is"),
    ] {
        let message = refused(&format!(
            "CREATE EXTERNAL TABLE fine (ts TIMESTAMP(6)) STORED AS JSON LOCATION 'kafka://fine';
             CREATE EXTERNAL TABLE coarse (ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://coarse'
               OPTIONS ('watermark.column' 'ts');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(6) PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result SELECT window.start, count(*) FROM {from}"
        ));
        let reason = format!("the watermark of coarse follows ts and cannot say when such a window is over: {advice}");
        assert!(message.contains("the window is over CAST(") && message.contains(&reason), "{from}: {message}");
    }
}
