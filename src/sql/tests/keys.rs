//! The primary key of the sink and the group: what is taken, what is refused.

use strandline_actors::ports::Change;

use super::harness::{Pipeline, Record, each_way, log, planned, refused, run_stage, values};
use super::windows::shown;

fn sql(columns: &str, select: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
           STORED AS JSON LOCATION 'kafka://orders';
         CREATE EXTERNAL TABLE revenue ({columns}) STORED AS CQL LOCATION 'cassandra://shop/revenue';
         INSERT INTO revenue {select}"
    )
}

#[test]
fn keys_that_go_with_the_group() {
    for (columns, select) in [
        ("item VARCHAR PRIMARY KEY, n BIGINT", "SELECT item, count(*) FROM orders GROUP BY item"),
        (
            "item VARCHAR, user_id VARCHAR, n BIGINT, PRIMARY KEY (user_id, item)",
            "SELECT item, user_id, count(*) FROM orders GROUP BY user_id, item",
        ),
        // An expression of the group adds nothing, and may be a part of the key.
        (
            "item VARCHAR, bucket INT, n BIGINT, PRIMARY KEY (bucket, item)",
            "SELECT item, character_length(item) % 8, count(*) FROM orders GROUP BY item",
        ),
        // What follows from the key need not be in it.
        (
            "item VARCHAR PRIMARY KEY, upper VARCHAR, n BIGINT",
            "SELECT item, upper(item), count(*) FROM orders GROUP BY item, upper(item)",
        ),
        ("day TIMESTAMP PRIMARY KEY, n BIGINT", "SELECT date_trunc('day', ts), count(*) FROM orders GROUP BY 1"),
        ("ts TIMESTAMP PRIMARY KEY, n BIGINT", "SELECT ts, count(*) FROM orders GROUP BY window(ts, '10 minutes'), ts"),
        ("qty VARCHAR PRIMARY KEY, n BIGINT", "SELECT qty, count(*) FROM orders GROUP BY qty"),
        ("qty INT PRIMARY KEY, n BIGINT", "SELECT qty, count(*) FROM orders GROUP BY qty"),
        ("total VARCHAR PRIMARY KEY, n BIGINT", "SELECT 'total', count(*) FROM orders"),
        (
            "k VARCHAR PRIMARY KEY, n BIGINT",
            "SELECT k, n FROM (SELECT item AS k, count(*) AS n FROM orders GROUP BY item)",
        ),
        ("item VARCHAR PRIMARY KEY, amount DOUBLE", "SELECT item, amount FROM orders"),
    ] {
        planned(&sql(columns, select));
    }
}

#[test]
fn keys_that_do_not() {
    for (columns, select, parts) in [
        (
            "item VARCHAR, user_id VARCHAR PRIMARY KEY, n BIGINT",
            "SELECT item, user_id, count(*) FROM orders GROUP BY user_id, item",
            &[
                "GROUP BY item is not determined by the primary key (user_id) of revenue",
                "add a column that holds item",
            ][..],
        ),
        (
            "n BIGINT PRIMARY KEY, item VARCHAR",
            "SELECT count(*), item FROM orders GROUP BY item",
            &["column n of the primary key of revenue is count(", "take n out of PRIMARY KEY"],
        ),
        (
            "item VARCHAR, n BIGINT, PRIMARY KEY (item, n)",
            "SELECT item, count(*) + 1 FROM orders GROUP BY item",
            &["column n of the primary key", "changes as records arrive"],
        ),
        (
            "first VARCHAR PRIMARY KEY, n BIGINT",
            "SELECT substr(item, 1, 1), count(*) FROM orders GROUP BY item",
            &["GROUP BY item is not determined"],
        ),
        (
            "ts TIMESTAMP(3) PRIMARY KEY, n BIGINT",
            "SELECT ts, count(*) FROM orders GROUP BY ts",
            &[
                "GROUP BY ts is not determined",
                "several Timestamp(ns) values may become one",
                "declare ts with the type of ts",
            ],
        ),
        (
            "amount BIGINT PRIMARY KEY, n BIGINT",
            "SELECT amount, count(*) FROM orders GROUP BY amount",
            &["GROUP BY amount is not determined", "several Float64 values may become one Int64"],
        ),
        (
            "item VARCHAR, amount DOUBLE, PRIMARY KEY (item)",
            "SELECT NULL, amount FROM orders",
            &["column item of the primary key of revenue would always be NULL"],
        ),
        ("total VARCHAR PRIMARY KEY, n BIGINT", "SELECT 'x', count(*) FROM orders GROUP BY item", &["GROUP BY item"]),
        // A time is in several windows that slide.
        (
            "ts TIMESTAMP PRIMARY KEY, n BIGINT",
            "SELECT ts, count(*) FROM orders GROUP BY window(ts, '10 minutes', '5 minutes'), ts",
            &["GROUP BY window.start is not determined by the primary key (ts)"],
        ),
        (
            "ts TIMESTAMP PRIMARY KEY, item VARCHAR",
            "SELECT ts, item FROM orders QUALIFY \
               ROW_NUMBER() OVER (PARTITION BY window(ts, '10 minutes', '5 minutes'), ts ORDER BY amount) = 1",
            &["PARTITION BY window.start is not determined by the primary key (ts)"],
        ),
        ("total BIGINT PRIMARY KEY", "SELECT count(*) FROM orders", &["column total of the primary key"]),
    ] {
        let message = refused(&sql(columns, select));
        assert!(message.starts_with("line 4, column 10: "), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{message}"));
    }
}

/// Without aggregation one row is written per key and checkpoint, the last that came; all rows of a key have one shard.
#[test]
fn rows_of_a_key_replace_each_other() {
    each_way(|| {
        let sql = sql("item VARCHAR PRIMARY KEY, amount DOUBLE", "SELECT item, amount FROM orders");
        let mut pipeline = Pipeline::new(&sql, 3, 1);
        let value = |item: usize, amount: usize| format!("{{\"item\":\"i{item}\",\"amount\":{amount}}}");
        let log = log((0..30).map(|n| value(n % 4, n)));
        for from in [0, 10, 20] {
            pipeline.batch(0, &log, from, from + 10);
        }
        let output = pipeline.checkpoint_all();
        let mut rows: Vec<_> = output
            .iter()
            .flat_map(|output| (0..output.rows.num_rows()).map(|row| values(&output.rows, row)))
            .map(|row| format!("{} {}", row[0], row[1]))
            .collect();
        rows.sort();
        assert_eq!(rows, ["i0 28", "i1 29", "i2 26", "i3 27"]);
        assert!(output.iter().all(|output| output.change == Change::Upsert));
        assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
    });
}

#[test]
fn rows_without_a_key_are_all_written_in_order() {
    let sql = "CREATE EXTERNAL TABLE orders (v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (v BIGINT) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT v FROM orders";
    let plan = planned(sql);
    let records: Vec<_> = (0..20).map(|offset| Record::new(offset, "{\"v\":1}")).collect();
    let output = run_stage(&plan, &records, 4, 0, 20);
    let mut operator = plan.query().operator(0);
    let mut sent = 0;
    for lane in output.lanes {
        sent += lane.rows.iter().map(|rows| rows.num_rows()).sum::<usize>();
        operator.apply(lane.rows, None).unwrap();
    }
    assert_eq!(sent, 20);
    assert!(operator.pending_bytes() > 0);
    let checkpoint = operator.checkpoint().unwrap();
    assert!(checkpoint.state.is_empty() && operator.tables().is_empty());
    assert_eq!(checkpoint.output.iter().map(|output| output.rows.num_rows()).sum::<usize>(), 20);
    assert_eq!(operator.pending_bytes(), 0);
    operator.restore(Vec::new()).unwrap();
    each_way(|| {
        let pipeline = Pipeline::over(sql, 4, &records);
        assert_eq!((pipeline.written.values().sum::<usize>(), pipeline.counts.processed), (20, 20));
    });
}

#[test]
fn columns_that_insert_does_not_name_are_null() {
    let sql = sql("item VARCHAR, amount DOUBLE, qty BIGINT, PRIMARY KEY (item)", "")
        .replace("INSERT INTO revenue ", "INSERT INTO revenue (qty, item) SELECT qty * 2, item FROM orders");
    each_way(|| {
        let pipeline = Pipeline::over(&sql, 2, &log(["{\"item\":\"a\",\"qty\":4}", "{\"item\":\"b\"}"]));
        assert_eq!(shown(&pipeline), ["a NULL 8", "b NULL NULL"]);
    });
    let message = refused(&sql.replace("(qty, item) SELECT qty * 2, item", "(qty) SELECT qty"));
    assert!(message.contains("column item of the primary key of revenue would always be NULL"), "{message}");
    let message = refused(&sql.replace("(qty, item) SELECT qty * 2, item", "(qty, thing) SELECT qty, item"));
    assert!(message.contains("thing"), "{message}");
}
