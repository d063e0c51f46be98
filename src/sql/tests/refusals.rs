//! Everything that is refused, with the message and the place.

use super::harness::{planned, refused};

const TABLES: &str =
    "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, amount DOUBLE, qty BIGINT, ts TIMESTAMP)
  STORED AS JSON LOCATION 'kafka://orders';
CREATE EXTERNAL TABLE other (id BIGINT) STORED AS JSON LOCATION 'kafka://other';
CREATE EXTERNAL TABLE result (k VARCHAR, v DOUBLE) STORED AS TABLE LOCATION 'console://';
INSERT INTO result
";

/// The refusal of a query that is on line 6 of the text; its statement begins on line 5.
fn query(sql: &str) -> String {
    refused(&format!("{TABLES}{sql}"))
}

macro_rules! refuses {
    ($($name:ident: $sql:expr => $place:literal, $($part:literal),+;)*) => {
        $(#[test]
        fn $name() {
            let message = query($sql);
            let place = match $place {
                0 => "line 5, column 1: ".to_owned(),
                column => format!("line 6, column {column}: "),
            };
            assert!(message.starts_with(&place), "{message}");
            $(assert!(message.contains($part), "{message}");)+
        })*
    };
}

refuses! {
    random: "SELECT item, random() FROM orders" => 14, "random() changes from run to run", "_timestamp";
    uuid: "SELECT uuid(), amount FROM orders" => 8, "uuid() changes from run to run", "_timestamp";
    now: "SELECT item, 1.0 FROM orders WHERE ts < now()" => 41, "now() changes from run to run", "_timestamp";
    current_timestamp: "SELECT item, 1.0 FROM orders WHERE ts < current_timestamp" => 41, "current_timestamp() changes", "_timestamp";
    current_date: "SELECT item, 1.0 FROM orders WHERE ts < CURRENT_DATE" => 41, "current_date() changes", "_timestamp";
    current_time: "SELECT cast(current_time AS VARCHAR), 1.0 FROM orders" => 13, "current_time() changes", "_timestamp";
    random_in_group: "SELECT item, sum(amount) FROM orders GROUP BY item, random()" => 53, "random() changes";
    random_in_aggregate: "SELECT item, sum(amount * random()) FROM orders GROUP BY item" => 27, "random() changes";
    join: "SELECT o.item, o.amount FROM orders o JOIN other p ON o.qty = p.id" => 39, "JOIN is not supported yet", "one table";
    comma_join: "SELECT item, amount FROM orders, other" => 34, "several tables in FROM is not supported yet";
    except: "SELECT item, amount FROM orders EXCEPT ALL SELECT item, amount FROM orders" => 33, "EXCEPT is not supported yet";
    union_by_name: "SELECT item, amount FROM orders UNION ALL BY NAME SELECT amount, item FROM orders" => 33,
        "UNION ... BY NAME is not supported";
    union_of_values: "SELECT item, amount FROM orders UNION ALL VALUES ('x', 1)" => 33, "`VALUES ('x', 1)` is not supported in UNION";
    intersect: "SELECT item, amount FROM orders INTERSECT SELECT item, amount FROM orders" => 33, "INTERSECT is not supported yet";
    subquery: "SELECT item, amount FROM orders WHERE qty = (SELECT max(id) FROM other)" => 46, "subquery inside an expression is not supported yet";
    in_subquery: "SELECT item, amount FROM orders WHERE qty IN (SELECT id FROM other)" => 39, "subquery inside an expression";
    exists: "SELECT item, amount FROM orders WHERE EXISTS (SELECT id FROM other)" => 47, "subquery inside an expression";
    window_function: "SELECT item, sum(amount) OVER (PARTITION BY item) FROM orders" => 14, "window function sum(...) OVER", "GROUP BY";
    row_number: "SELECT item, row_number() OVER () FROM orders" => 14, "ROW_NUMBER() OVER (...) needs ORDER BY";
    distinct_on: "SELECT DISTINCT ON (item) item, amount FROM orders" => 8, "DISTINCT ON is not supported", "QUALIFY ROW_NUMBER()";
    order_by: "SELECT item, amount FROM orders ORDER BY item" => 33, "ORDER BY is not supported";
    limit: "SELECT item, amount FROM orders LIMIT 5" => 33, "LIMIT is not supported";
    offset_clause: "SELECT item, amount FROM orders OFFSET 5" => 33, "OFFSET is not supported";
    fetch: "SELECT item, amount FROM orders FETCH FIRST 5 ROWS ONLY" => 33, "FETCH is not supported";
    rollup: "SELECT item, sum(amount) FROM orders GROUP BY ROLLUP (item)" => 47, "ROLLUP is not supported yet";
    cube: "SELECT item, sum(amount) FROM orders GROUP BY CUBE (item)" => 47, "CUBE is not supported yet";
    grouping_sets: "SELECT item, sum(amount) FROM orders GROUP BY GROUPING SETS ((item), ())" => 47, "GROUPING SETS is not supported yet";
    group_by_all: "SELECT item, sum(amount) FROM orders GROUP BY ALL" => 38, "GROUP BY ALL is not supported";
    session_in_update_mode: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, '1 minute'), item" => 0, "a session grows and merges with others", "'output.mode' 'append'";
    session_without_gap: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts), item" => 47, "session_window(...) has other arguments";
    session_of_months: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, '1 month'), item" => 47, "'1 month' is no fixed length";
    session_of_nothing: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, '0 seconds'), item" => 47, "gap of a session must be more than nothing";
    session_of_numbers: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, qty), item" => 0, "the gap of a session is an INTERVAL, not Int64", "INTERVAL '5 minutes'";
    session_of_text: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, item), item" => 0, "the gap of a session is an INTERVAL, not Utf8";
    session_of_numbers_by_case: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, CASE WHEN qty > 1 THEN 5 ELSE 1 END), item" => 0, "the gap of a session is an INTERVAL, not Int64";
    session_ranked: "SELECT item, amount FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY session_window(ts, qty), item ORDER BY amount) = 1" => 0, "the gap of a session is an INTERVAL, not Int64";
    session_of_no_length: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, CASE WHEN qty > 1 THEN 'soon' ELSE '1 minute' END), item" => 47, "'soon' is no length of time";
    session_and_window: "SELECT item, sum(amount) FROM orders GROUP BY session_window(ts, '1 minute'), window(ts, '1 minute')" => 79, "two windows in GROUP BY";
    session: "SELECT item, sum(amount) FROM orders GROUP BY session(ts, '1 minute'), item" => 47, "session(...) is not supported", "session_window(ts, '5 minutes')";
    proctime: "SELECT item, amount FROM orders WHERE ts < proctime()" => 44, "_processing_time";
    tumble_of_flink: "SELECT item, amount FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' MINUTE))" => 45, "GROUP BY window(ts, '1 minute')";
    tumbling: "SELECT item, sum(amount) FROM orders WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY item" => 54, "GROUP BY window(ts, '1 minute')";
    emit: "SELECT item, sum(amount) FROM orders GROUP BY item EMIT CHANGES" => 52, "'output.mode' 'append'";
    tumble: "SELECT item, sum(amount) FROM orders GROUP BY tumble(ts, '1 minute'), item" => 47, "tumble(...) is not supported", "window(ts, '10 minutes')";
    window_in_select: "SELECT window(ts, '1 minute'), amount FROM orders" => 8, "window(...) belongs into GROUP BY";
    window_in_where: "SELECT item, amount FROM orders WHERE window(ts, '1 minute') = ts" => 39, "window(...) belongs into GROUP BY";
    window_in_expression: "SELECT item, sum(amount) FROM orders GROUP BY item, date_trunc('hour', window(ts, '1 minute'))" => 72, "window(...) belongs into GROUP BY, alone";
    two_windows: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts, '1 minute'), window(ts, '2 minutes')" => 77, "two windows in GROUP BY";
    window_of_months: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts, '1 month')" => 53, "'1 month' is no fixed length", "calendar_window(ts, 'month'";
    window_without_size: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts)" => 53, "window(...) has other arguments", "write window(ts, '10 minutes')";
    window_of_a_number: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts, 60)" => 53, "60 is no length of time", "'10 minutes'";
    window_of_nothing: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts, '0 seconds')" => 53, "more than nothing";
    window_with_gaps: "SELECT item, sum(amount) FROM orders GROUP BY item, window(ts, '1 minute', '2 minutes')" => 53, "slide of a window must not be longer than its size";
    window_of_text: "SELECT item, sum(amount) FROM orders GROUP BY item, window(item, '1 minute')" => 0, "a window is of a TIMESTAMP, not of Utf8";
    window_in_aggregate: "SELECT item, count(window.start) FROM orders GROUP BY item, window(ts, '1 minute')" => 0, "inside an aggregate are not supported";
    calendar_of_years: "SELECT item, sum(amount) FROM orders GROUP BY item, calendar_window(ts, 'year', 'UTC')" => 53, "'year' is no unit of calendar_window";
    calendar_of_nowhere: "SELECT item, sum(amount) FROM orders GROUP BY item, calendar_window(ts, 'day', 'Berlin')" => 53, "'Berlin' is no time zone";
    calendar_without_zone: "SELECT item, sum(amount) FROM orders GROUP BY item, calendar_window(ts, 'day')" => 53, "write calendar_window(ts, 'day'";
    internal_function: "SELECT item, \"window end\"(ts, 5) FROM orders" => 14, "there is no function window end";
    table_function: "SELECT 'x', value FROM generate_series(1, 10)" => 24, "table function generate_series(...) is not supported";
    tablesample: "SELECT item, amount FROM orders TABLESAMPLE (10 PERCENT)" => 26, "TABLESAMPLE is not supported";
    unnest: "SELECT unnest(make_array(item)), amount FROM orders" => 8, "unnest(...) is not supported yet";
    array_agg: "SELECT item, array_agg(amount) FROM orders GROUP BY item" => 14, "array_agg(...) is not supported", "order of the rows";
    first_value: "SELECT item, first_value(amount) FROM orders GROUP BY item" => 14, "first_value(...) is not supported", "order";
    last_value: "SELECT item, last_value(amount ORDER BY ts) FROM orders GROUP BY item" => 14, "last_value(...) is not supported";
    nth_value: "SELECT item, nth_value(amount, 2) FROM orders GROUP BY item" => 14, "nth_value(...) is not supported";
    any_value: "SELECT item, any_value(amount) FROM orders GROUP BY item" => 14, "any_value(...) is not supported";
    string_agg: "SELECT string_agg(item, ','), sum(amount) FROM orders" => 8, "string_agg(...) is not supported";
    ordered_aggregate: "SELECT item, sum(amount ORDER BY ts) FROM orders GROUP BY item" => 14, "sum(... ORDER BY ...) is not supported";
    approx_percentile: "SELECT item, approx_percentile_cont(amount, 0.5) FROM orders GROUP BY item" => 14, "cut into batches", "percentile_cont";
    approx_median: "SELECT item, approx_median(amount) FROM orders GROUP BY item" => 14, "cut into batches", "median(...)";
    grouping: "SELECT item, grouping(item) FROM orders GROUP BY item" => 14, "the aggregate grouping(...) is not supported yet";
    aggregate_of_aggregate: "SELECT max(k), max(v) FROM (SELECT item AS k, sum(amount) AS v FROM orders GROUP BY item)" => 0, "an aggregate over an aggregate is not supported";
    values: "VALUES ('a', 1.0)" => 1, "VALUES is not supported";
    no_from: "SELECT 'a', 1.0" => 1, "no FROM";
    placeholder: "SELECT item, amount FROM orders WHERE qty = $1" => 45, "placeholder $1 has no value";
    unknown_column: "SELECT itme, amount FROM orders" => 8, "No field named itme", "item";
    unknown_table: "SELECT item, amount FROM ordres" => 26, "there is no table or view ordres";
    unknown_function: "SELECT uper(item), amount FROM orders" => 8, "Invalid function 'uper'", "upper";
    wrong_type: "SELECT item, amount FROM orders WHERE item" => 8, "Utf8";
    not_grouped: "SELECT item, amount FROM orders GROUP BY item" => 14, "amount", "GROUP BY";
    wrong_argument: "SELECT item, sum(item) FROM orders GROUP BY item" => 14, "No function matches the given name and argument types 'sum(Utf8)'";
    too_few_columns: "SELECT item FROM orders" => 0, "the query selects 1 columns (item), but table result has 2 (k, v)";
    too_many_columns: "SELECT item, amount, qty FROM orders" => 0, "the query selects 3 columns (item, amount, qty), but table result has 2";
    cte_of_a_taken_name: "WITH orders AS (SELECT item, amount FROM other) SELECT item, amount FROM orders" => 6, "WITH orders", "already";
    recursive: "WITH RECURSIVE r AS (SELECT item, amount FROM orders) SELECT * FROM r" => 1, "WITH RECURSIVE is not supported";
    from_a_sink: "SELECT k, v FROM result" => 0, "result is a table to write to; only kafka:// tables can be read";
    misspelt_group_by: "SELECT item, sum(amount) FROM orders GROUPBY item" => 46, "found: item", "did you mean GROUP BY where GROUPBY stands?";
    misspelt_from: "SELECT item, amount FORM orders" => 26, "did you mean FROM where FORM stands?";
    misspelt_where: "SELECT item, amount FROM orders WHRE qty > 1" => 38, "did you mean WHERE where WHRE stands?";
    no_slip: "SELECT item AS intto, amount FROM orders WHERE intto > GROUP BY item" => 62, "Expected: ";
    syntax: "SELECT item, amount FROM orders WHERE qty > 1 2" => 47, "Expected: end of statement, found: 2";
    qualify: "SELECT item, amount FROM orders QUALIFY row_number() OVER () = 1" => 41, "ROW_NUMBER() OVER (...) needs ORDER BY";
    renaming_alias: "SELECT a, c FROM orders AS o (a, b, c, d, e)" => 28, "renames columns, which is not supported";
    lateral: "SELECT item, amount FROM orders, LATERAL (SELECT 1)" => 43, "several tables";
}

/// The refusal of a whole text.
fn whole(sql: &str, place: &str, parts: &[&str]) {
    let message = refused(sql);
    assert!(message.starts_with(place), "{message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "{message}"));
}

const SOURCE: &str = "CREATE EXTERNAL TABLE s (a VARCHAR, b BIGINT NOT NULL) STORED AS JSON LOCATION 'kafka://t'";
const SINK: &str = "CREATE EXTERNAL TABLE d (a VARCHAR, b BIGINT) STORED AS TABLE LOCATION 'console://'";

#[test]
fn statements_that_make_no_pipeline() {
    whole("", "", &["insert into nothing"]);
    whole(&format!("{SOURCE}; {SINK}"), "", &["insert into nothing: add INSERT INTO"]);
    whole("SELECT 1", "line 1, column 1: ", &["this query's result goes nowhere: write INSERT INTO"]);
    whole(
        "CREATE TABLE x (a INT)",
        "line 1, column 1: ",
        &["is not supported", "CREATE EXTERNAL TABLE, CREATE VIEW and INSERT INTO"],
    );
    whole("DROP TABLE x", "line 1, column 1: ", &["`DROP TABLE x` is not supported"]);
    whole("SET datafusion.execution.batch_size = 1", "line 1, column 1: ", &["is not supported"]);
    whole("SELCT 1", "line 1, column 1: ", &["did you mean SELECT where SELCT stands?"]);
    whole("EXPLAIN SELECT 1", "line 1, column 1: ", &["is not supported"]);
    whole("COPY (SELECT 1) TO 'x.csv' STORED AS CSV", "line 1, column 1: ", &["is not supported"]);
    whole("CREATE EXTERNAL TABLE", "Expected: identifier, found: EOF", &[]);
    let keyed = "CREATE EXTERNAL TABLE d (a BIGINT, b BIGINT, PRIMARY KEY (a)) STORED AS TABLE LOCATION 'console://'";
    let twice = format!("{SOURCE};\n{keyed};\nINSERT INTO d SELECT a, b FROM s;\n  INSERT INTO d SELECT a, b FROM s");
    whole(&twice, "line 4, column 3: ", &["two INSERT INTO write to d (console)", "UNION ALL"]);
    let into_source = format!("{SOURCE}; INSERT INTO s SELECT a, b FROM s");
    whole(&into_source, "line 1, column ", &["s is a kafka:// table, which can only be read so far"]);
    let into_nothing = format!("{SOURCE};\nINSERT INTO nowhere SELECT a, b FROM s");
    whole(&into_nothing, "line 2, column 13: ", &["there is no table nowhere to insert into"]);
    whole(&format!("{SOURCE};\n{SOURCE}"), "line 2, column 1: ", &["there are two tables or views named s"]);
    let view = format!("{SOURCE};\nCREATE VIEW s AS SELECT a FROM s");
    whole(&view, "line 2, column 1: ", &["there are two tables or views named s"]);
    let materialized = format!("{SOURCE};\nCREATE MATERIALIZED VIEW v AS SELECT a FROM s");
    whole(&materialized, "line 2, column 1: ", &["only CREATE VIEW name AS SELECT"]);
    let in_view = format!("{SOURCE};\nCREATE VIEW v AS SELECT random() AS r FROM s");
    whole(&in_view, "line 2, column 25: ", &["random() changes from run to run"]);
    let overwrite = format!("{SOURCE}; {SINK};\nINSERT OVERWRITE d SELECT a, b FROM s");
    whole(&overwrite, "line 2, column 1: ", &["only INSERT INTO is supported"]);
}

#[test]
fn tables_that_cannot_be() {
    let table = |columns: &str, rest: &str| format!("CREATE EXTERNAL TABLE t ({columns}) {rest}");
    let cases: &[(&str, &str, &[&str])] = &[
        ("a INT", "STORED AS PARQUET LOCATION 'kafka://t'", &["STORED AS PARQUET is not supported for Kafka", "JSON"]),
        ("a INT", "STORED AS JSON LOCATION 'kafka://'", &["'' is not the name of a topic"]),
        ("a INT", "STORED AS JSON LOCATION 'kafka://a b'", &["'a b' is not the name of a topic"]),
        ("a INT", "STORED AS JSON LOCATION 'orders.json'", &["names no connector"]),
        ("a INT", "STORED AS JSON LOCATION 'pulsar://t'", &["there is no connector 'pulsar://'", "kafka://"]),
        ("a INT", "STORED AS JSON LOCATION ('kafka://a', 'kafka://b')", &["exactly one LOCATION"]),
        ("_offset INT", "STORED AS JSON LOCATION 'kafka://t'", &["_offset is a metadata column"]),
        ("a INT PRIMARY KEY", "STORED AS JSON LOCATION 'kafka://t'", &["no PRIMARY KEY"]),
        ("a INT COMMENT 'x'", "STORED AS JSON LOCATION 'kafka://t'", &["`COMMENT 'x'` of column a is not supported"]),
        ("a INT UNIQUE", "STORED AS JSON LOCATION 'kafka://t'", &["UNIQUE is not supported"]),
        ("a INT, CHECK (a > 1)", "STORED AS JSON LOCATION 'kafka://t'", &["Check constraints are not"]),
        ("a INT DEFAULT 5", "STORED AS JSON LOCATION 'kafka://t'", &["DEFAULT of column a is not supported"]),
        ("", "STORED AS JSON LOCATION 'kafka://t'", &["has no columns"]),
        ("a INT", "STORED AS CQL LOCATION 'cassandra://k/t'", &["needs a PRIMARY KEY", "add PRIMARY KEY (...)"]),
        ("a INT PRIMARY KEY", "STORED AS CQL LOCATION 'cassandra://t'", &["'cassandra://<keyspace>/<table>'"]),
        ("a INT PRIMARY KEY", "STORED AS JSON LOCATION 'cassandra://k/t'", &["STORED AS JSON", "write STORED AS CQL"]),
        ("a INT, PRIMARY KEY (b)", "STORED AS CQL LOCATION 'cassandra://k/t'", &["primary key", "b"]),
        (
            "a INT NOT NULL",
            "STORED AS TABLE LOCATION 'console://'",
            &["NOT NULL of column a is not supported on a sink"],
        ),
        ("a INT", "STORED AS TABLE LOCATION 'console://x'", &["has something after 'console://'"]),
        ("a INT", "PARTITIONED BY (a) STORED AS JSON LOCATION 'kafka://t'", &["only CREATE EXTERNAL TABLE name"]),
        ("a WHATEVER", "STORED AS JSON LOCATION 'kafka://t'", &["WHATEVER"]),
        ("a INT, a INT", "STORED AS JSON LOCATION 'kafka://t'", &["duplicate", "a"]),
    ];
    for (columns, rest, parts) in cases {
        let message = refused(&table(columns, rest));
        assert!(message.starts_with("line 1, column "), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{message}"));
    }
}

#[test]
fn options_that_are_wrong() {
    let kafka = |option: &str| {
        refused(&format!("CREATE EXTERNAL TABLE t (a INT) STORED AS JSON LOCATION 'kafka://t'\n OPTIONS ({option})"))
    };
    let cases: &[(&str, &[&str])] = &[
        ("'starting.offset' 'latest'", &["unknown option 'starting.offset'; did you mean 'starting.offsets'?"]),
        ("'Starting.Offsets' 'latest'", &["unknown option 'Starting.Offsets'; did you mean 'starting.offsets'?"]),
        ("'bad.record' 'skip'", &["unknown option 'bad.record'; did you mean 'bad.records'?"]),
        ("'has_header' 'true'", &["unknown option 'has_header'"]),
        (
            "'starting.offsets' 'newest'",
            &["'starting.offsets' 'newest' is not 'earliest', 'latest' or an offset per partition"],
        ),
        ("'starting.offsets' '{\"0\": -3}'", &["is not 'earliest'"]),
        ("'starting.offsets' '{\"x\": 3}'", &["is not 'earliest'"]),
        ("'max.offsets.per.batch' '0'", &["is not a number above 0"]),
        ("'max.offsets.per.batch' 'many'", &["is not a number above 0"]),
        ("'on.data.loss' 'ignore'", &["'on.data.loss' 'ignore' is not one of 'fail', 'skip'"]),
        ("'bad.records' 'drop'", &["'bad.records' 'drop' is not one of 'dead-letter', 'skip', 'fail'"]),
        ("'null.value' 'keep'", &["'null.value' 'keep' is not one of 'skip', 'dead-letter', 'fail'"]),
        ("'watermark.delay' '10 seconds'", &["this option needs 'watermark.column'"]),
        ("'late.rows' 'drop'", &["this option needs 'watermark.column'"]),
        ("'watermark.delay' '10'", &["'watermark.delay': '10' is no length of time"]),
        ("'watermark.delay' '-1 second'", &["'watermark.delay' '-1 second' is less than nothing"]),
        ("'watermark.delay' '1 month'", &["'1 month' is no fixed length"]),
        ("'watermark.delays' '1 second'", &["did you mean 'watermark.delay'?"]),
        ("'late.rows' 'keep'", &["'late.rows' 'keep' is not one of 'drop', 'dead-letter'"]),
        ("'kafka.enable.auto.commit' 'true'", &["'kafka.enable.auto.commit' cannot be set", "stored offsets"]),
        ("'kafka.auto.offset.reset' 'latest'", &["'kafka.auto.offset.reset' cannot be set"]),
        ("'bad.records' 'skip', 'bad.records' 'fail'", &["option 'bad.records' is given twice"]),
        ("'sink.create' 'true'", &["unknown option 'sink.create'"]),
        (
            "'json.timestamp.units' 'ms'",
            &["unknown option 'json.timestamp.units'; did you mean 'json.timestamp.unit'?"],
        ),
    ];
    for (option, parts) in cases {
        let message = kafka(option);
        assert!(message.starts_with("line 2, column 11: table t: "), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{message}"));
    }
    let sink = |location: &str, format: &str, option: &str| {
        refused(&format!(
            "CREATE EXTERNAL TABLE t (a INT PRIMARY KEY) STORED AS {format} LOCATION '{location}' OPTIONS ({option})"
        ))
    };
    let message = sink("cassandra://k/t", "CQL", "'sink.crate' 'true'");
    assert!(message.contains("unknown option 'sink.crate'; did you mean 'sink.create'?"), "{message}");
    let message = sink("cassandra://k/t", "CQL", "'sink.create' 'yes'");
    assert!(message.contains("'sink.create' 'yes' is not one of 'true', 'false'"), "{message}");
    let message = sink("console://", "TABLE", "'console.format' 'csv'");
    assert!(message.contains("'console.format' 'csv' is not one of 'table', 'json'"), "{message}");
    let message = sink("blackhole://", "JSON", "'a.b' 'c'");
    assert!(message.contains("unknown option 'a.b'; known are 'output.mode', 'complete.limit'"), "{message}");
    let message = sink("blackhole://", "JSON", "'output.mode' 'overwrite'");
    assert!(message.contains("is not one of 'append', 'update', 'complete'"), "{message}");
    let message = sink("blackhole://", "JSON", "'complete.limit' '5'");
    assert!(message.contains("table t: 'complete.limit' is for 'output.mode' 'complete'"), "{message}");
    let message = sink("blackhole://", "JSON", "'output.mode' 'complete', 'complete.limit' '0'");
    assert!(message.contains("'complete.limit' '0' is not a number above 0"), "{message}");
}

/// What a query cannot have: the place is that of the option.
#[test]
fn event_time_that_does_not_go_together() {
    let whole = |source: &str, mode: &str, select: &str| {
        refused(&format!(
            "CREATE EXTERNAL TABLE s (a VARCHAR, b BIGINT, ts TIMESTAMP, other TIMESTAMP) STORED AS JSON
             LOCATION 'kafka://t' OPTIONS ('bad.records' 'skip'{source});
             CREATE EXTERNAL TABLE d (a VARCHAR, n BIGINT) STORED AS TABLE LOCATION 'console://'
             OPTIONS ('output.mode' '{mode}');
             INSERT INTO d SELECT a, {select}"
        ))
    };
    let grouped = "count(*) FROM s GROUP BY a";
    let windowed = "count(*) FROM s GROUP BY a, window(ts, '1 minute')";
    let ts = ", 'watermark.column' 'ts'";
    for (source, mode, select, place, part) in [
        (ts, "append", grouped, "line 4, column 23: ", "in GROUP BY no group ever is"),
        ("", "append", windowed, "line 4, column 23: ", "set 'watermark.column' and 'watermark.delay' on s"),
        (ts, "complete", "b FROM s", "line 4, column 23: ", "without GROUP BY that would be every record"),
        (
            ts,
            "complete",
            "count(*) FROM s GROUP BY a, session_window(ts, '1 minute')",
            "line 4, column 23: ",
            "a session grows and merges with others",
        ),
        (
            ", 'watermark.column' 'other'",
            "update",
            windowed,
            "line 4, column 23: ",
            "the window is over ts, but the watermark of s follows other",
        ),
        (
            ", 'watermark.close.after' '1 minute', 'watermark.column' 'ts'",
            "update",
            grouped,
            "line 2, column 66: ",
            "there is nothing to close",
        ),
        (
            ", 'watermark.close.after' '1 minute', 'watermark.column' 'ts'",
            "append",
            "count(*) FROM s GROUP BY a, session_window(ts, CASE WHEN b > 1 THEN INTERVAL '1 second' END)",
            "line 2, column 66: ",
            "the gap of its sessions differs from row to row",
        ),
        (", 'watermark.column' 'b'", "update", windowed, "line 2, column 66: ", "'b' is Int64, not a TIMESTAMP"),
        (", 'watermark.column' 'c'", "update", windowed, "line 2, column 66: ", "'c' is no column of the table"),
        (", 'watermark.column' '_offset'", "update", windowed, "line 2, column 66: ", "'_offset' is no column"),
    ] {
        let message = whole(source, mode, select);
        assert!(message.starts_with(place) && message.contains(part), "{message}");
    }
    let coarse = refused(
        "CREATE EXTERNAL TABLE s (ts TIMESTAMP(0)) STORED AS JSON LOCATION 'kafka://t';
         CREATE EXTERNAL TABLE d (n BIGINT) STORED AS TABLE LOCATION 'console://';
         INSERT INTO d SELECT count(*) FROM s GROUP BY window(ts, '1500 milliseconds')",
    );
    assert!(coarse.contains("is too coarse for a window of 1500 milliseconds"), "{coarse}");
    let coarse = refused(
        "CREATE EXTERNAL TABLE s (ts TIMESTAMP(0)) STORED AS JSON LOCATION 'kafka://t' OPTIONS ('watermark.column' 'ts');
         CREATE EXTERNAL TABLE d (n BIGINT) STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' 'append');
         INSERT INTO d SELECT count(*) FROM s GROUP BY session_window(ts, '500 milliseconds')",
    );
    assert!(coarse.contains("is too coarse for a window of 500 milliseconds"), "{coarse}");
    let many = refused(
        "CREATE EXTERNAL TABLE s (ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://t';
         CREATE EXTERNAL TABLE d (n BIGINT) STORED AS TABLE LOCATION 'console://';
         INSERT INTO d SELECT count(*) FROM s GROUP BY window(ts, '365 days', '1 second')",
    );
    assert!(many.contains("each row would be in 31536000 windows, more than 10000"), "{many}");
}

/// Stored sessions that were joined under one gap do not go on under another.
#[test]
fn the_gap_of_each_row_is_part_of_the_plan() {
    let plan = |minutes: u32| {
        crate::sql::plan(&format!(
            "CREATE EXTERNAL TABLE s (a VARCHAR, vip BOOLEAN, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://t'
               OPTIONS ('watermark.column' 'ts');
             CREATE EXTERNAL TABLE d (a VARCHAR, n BIGINT) STORED AS TABLE LOCATION 'console://'
               OPTIONS ('output.mode' 'append');
             INSERT INTO d SELECT a, count(*) FROM s GROUP BY a, session_window(ts,
               CASE WHEN vip THEN INTERVAL '{minutes} minutes' ELSE INTERVAL '1 minute' END)"
        ))
        .unwrap()
    };
    assert_ne!(plan(5).fingerprint, plan(10).fingerprint);
    assert_eq!(plan(5).fingerprint, plan(5).fingerprint);
}

#[test]
fn rules_that_are_wrong() {
    let rule = |condition: &str| {
        refused(&format!(
            "CREATE EXTERNAL TABLE s (a BIGINT) STORED AS JSON LOCATION 'kafka://t'\n OPTIONS ('rule.small' '{condition}'); \
             {SINK}; INSERT INTO d SELECT 'x', a FROM s"
        ))
    };
    let start = "line 2, column 11: table s: rule 'small': ";
    for (condition, part) in [
        ("b < 5", "No field named b"),
        ("a + 1", "not a condition"),
        ("a < random()", "random() changes from run to run"),
        ("a <", "Expected"),
        ("a < uuid()", "uuid() changes from run to run"),
        ("_timestamp < now()", "now() changes from run to run"),
        ("_timestamp < current_date", "current_date() changes from run to run"),
        ("sum(a) > 1", "cannot aggregate"),
        ("count(*) FILTER (WHERE a > 1) > 1", "cannot aggregate"),
        ("row_number() OVER () > 1", "window functions are not supported"),
        ("a > (SELECT 1)", ""),
        ("a IN (SELECT a FROM s)", ""),
        ("EXISTS (SELECT 1)", ""),
        ("a > $1", ""),
        ("unnest([a]) > 1", "unnest"),
        ("a > 0; SELECT 1", ""),
    ] {
        let message = rule(condition);
        assert!(message.starts_with(start), "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn what_is_taken_is_planned() {
    let plan = planned(&format!(
        "-- a comment; with a semicolon\n{SOURCE} OPTIONS ('starting.offsets' '{{\"0\": 5, \"1\": -2}}', \
         'max.offsets.per.batch' 100, 'on.data.loss' 'skip', 'kafka.fetch.wait.max.ms' '5', 'bad.records' 'skip', \
         'rule.b' 'b > 0');\n{SINK};\n
         CREATE VIEW v AS SELECT a AS x, b AS y FROM s WHERE b < 100;
         INSERT INTO d WITH w AS (SELECT * FROM v) SELECT x, y FROM (SELECT x, y FROM w) AS z"
    ));
    let topic = &plan.sources[0];
    assert_eq!((topic.table.as_str(), topic.topic.as_str()), ("s", "t"));
    assert_eq!(topic.max_offsets_per_batch, Some(100));
    assert_eq!(topic.properties["fetch.wait.max.ms"], "5");
    assert!(!topic.keys && !topic.headers);
    let crate::catalog::StartingOffsets::Each(offsets) = &topic.starting_offsets else { panic!("{topic:?}") };
    assert_eq!(offsets.iter().map(|(p, o)| (*p, *o)).collect::<Vec<_>>(), [(0, 5), (1, -2)]);
}
