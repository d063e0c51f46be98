//! Tables that do not take the rows, and what the user is told.

use arrow::array::{BooleanArray, Float64Array, IntervalMonthDayNanoArray, TimestampNanosecondArray};
use arrow::datatypes::IntervalMonthDayNano;

use super::*;

/// `(window_start TIMESTAMP, item VARCHAR, n BIGINT, total DOUBLE)`, empty.
fn revenue() -> RecordBatch {
    rows([
        ("window_start", Arc::new(TimestampNanosecondArray::from(Vec::<i64>::new())) as ArrayRef),
        ("item", Arc::new(StringArray::from(Vec::<&str>::new()))),
        ("n", Arc::new(Int64Array::from(Vec::<i64>::new()))),
        ("total", Arc::new(Float64Array::from(Vec::<f64>::new()))),
    ])
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS SPACE.TABLE (
    window_start timestamp,
    item text,
    n bigint,
    total double,
    PRIMARY KEY ((window_start), item)
);";

impl Place {
    /// Runs the statements that an error shows, after its blank line, as the user would.
    async fn run_shown(&self, error: &str) {
        let (_, statements) = error.split_once("\n\n").unwrap();
        for statement in statements.split_inclusive(';') {
            self.run(&statement.replace("TABLE.", "TABLE .").replace("SPACE.TABLE", "{t}")).await;
        }
    }
}

#[tokio::test]
async fn a_missing_keyspace_is_shown_with_the_statements_that_make_it() {
    let place = Place::new().await;
    let mut table = place.declare(&revenue(), 2);
    let missing = format!("{}_missing", place.keyspace);
    table.kind = SinkKind::Cassandra { keyspace: missing, table: place.table.clone(), create: false, null_key: None };
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    let create = format!("CREATE KEYSPACE IF NOT EXISTS SPACE_missing WITH replication = {replication};");
    let head = format!("Cassandra has no keyspace SPACE_missing. To make it, run:\n\n{create}");
    assert_eq!(place.refused(&table).await, format!("{head}\n{}", CREATE.replace("SPACE", "SPACE_missing")));
    assert_eq!(place.refused(&creating(table)).await, head);
}

#[tokio::test]
async fn names_that_were_probably_meant_are_named() {
    let place = Place::new().await;
    place.run("CREATE TABLE {k}.revenue (window_start timestamp PRIMARY KEY, \"Item\" text, nn bigint)").await;
    let mut table = place.declare(&revenue(), 1);
    let mut refused = async |keyspace: &str, name: &str| {
        table.kind =
            SinkKind::Cassandra { keyspace: keyspace.into(), table: name.into(), create: false, null_key: None };
        place.refused(&table).await
    };
    let error = refused(place.keyspace, "Revenue").await;
    let wanted = "Cassandra has no table SPACE.\"Revenue\" (there is revenue; upper and lower case count). ";
    assert!(error.starts_with(wanted), "{error}");
    let error = refused(place.keyspace, "revnue").await;
    assert!(error.starts_with("Cassandra has no table SPACE.revnue (did you mean revenue?). "), "{error}");
    let error = refused(&place.keyspace.to_uppercase(), "revenue").await;
    let wanted = " (there is SPACE; upper and lower case count). To make it, run:";
    assert!(error.contains(wanted), "{error}");
    let error = refused(place.keyspace, "revenue").await;
    assert!(error.contains("\n- there is no column item (there is Item; upper and lower case count)\n"), "{error}");
    assert!(error.contains("\n- there is no column total\n"), "{error}");
}

#[tokio::test]
async fn a_missing_table_is_shown_with_the_statement_that_makes_it() {
    let place = Place::new().await;
    let table = place.declare(&revenue(), 2);
    let error = place.refused(&table).await;
    assert_eq!(
        error,
        format!("Cassandra has no table SPACE.TABLE. Set 'sink.create' 'true' in its OPTIONS, or run:\n\n{CREATE}")
    );
    // To check is not to create, whether it is to be created or not.
    assert!(sinks::check_connected(&place.settings, &table).await.is_err());
    sinks::check_connected(&place.settings, &creating(table.clone())).await.unwrap();
    assert_eq!(place.refused(&table).await, error);

    place.run_shown(&error).await;
    sinks::open(&place.settings, &table).await.unwrap();
    sinks::open(&place.settings, &creating(table.clone())).await.unwrap();
    sinks::check_connected(&place.settings, &table).await.unwrap();
}

#[tokio::test]
async fn missing_columns_are_shown_with_the_statement_that_adds_them() {
    let place = Place::new().await;
    place
        .run("CREATE TABLE {t} (window_start timestamp, item text, extra int, PRIMARY KEY (window_start, item))")
        .await;
    let table = place.declare(&revenue(), 2);
    let error = place.refused(&creating(table.clone())).await;
    assert_eq!(
        error,
        "the Cassandra table SPACE.TABLE does not take the rows of the statement:\n- there is no column n\n- there is \
         no column total\nTo add what is missing, run:\n\nALTER TABLE SPACE.TABLE ADD (n bigint, total double);"
    );
    place.run_shown(&error).await;
    sinks::open(&place.settings, &table).await.unwrap();
}

#[tokio::test]
async fn columns_of_other_types_are_shown_with_the_types_that_fit() {
    let place = Place::new().await;
    place
        .run(
            "CREATE TABLE {t} (window_start date, item text, n int, total set<text>, PRIMARY KEY (window_start, item))",
        )
        .await;
    let table = place.declare(&revenue(), 2);
    let error = place.refused(&table).await;
    assert_eq!(
        error,
        format!(
            "the Cassandra table SPACE.TABLE does not take the rows of the statement:\n\
             - window_start is date, but the statement writes Timestamp(ns), which goes into bigint, timestamp\n\
             - n is int, but the statement writes Int64, which goes into bigint, varint, decimal\n\
             - total is set<text>, but the statement writes Float64, which goes into double\n\
             Cassandra cannot change this in a table that is there: declare the columns as they are, or name another \
             table, which these statements make:\n\n{CREATE}"
        )
    );
}

#[tokio::test]
async fn another_primary_key_is_shown() {
    let place = Place::new().await;
    place.run("CREATE TABLE {t} (item text, window_start timestamp, n bigint, total double, PRIMARY KEY (item))").await;
    let error = place.refused(&place.declare(&revenue(), 2)).await;
    let wanted = "\n- its primary key is (item), but the statement declares (window_start, item)\n";
    assert!(error.contains(wanted), "{error}");

    let place = Place::new().await;
    place
        .run(
            "CREATE TABLE {t} (item text, window_start timestamp, n bigint, total double, extra int, \
               PRIMARY KEY ((item, extra), window_start))",
        )
        .await;
    let error = place.refused(&place.declare(&revenue(), 2)).await;
    let wanted =
        "\n- its primary key is (item, extra, window_start), but the statement declares (window_start, item)\n";
    assert!(error.contains(wanted), "{error}");
}

#[tokio::test]
async fn counters_and_static_columns_are_refused() {
    let place = Place::new().await;
    let table = place.declare(&pairs(&[]), 1);
    place.run("CREATE TABLE {t} (k text PRIMARY KEY, v counter)").await;
    let error = place.refused(&table).await;
    let wanted = "\n- v is a counter, which can only be added to, so nothing can be repeated\n";
    assert!(error.contains(wanted), "{error}");

    let place = Place::new().await;
    let columns = rows([
        ("k", Arc::new(StringArray::from(vec![""])) as ArrayRef),
        ("c", Arc::new(StringArray::from(vec![""]))),
        ("v", Arc::new(Int64Array::from(vec![1]))),
    ]);
    place.run("CREATE TABLE {t} (k text, c text, v bigint static, PRIMARY KEY (k, c))").await;
    let error = place.refused(&place.declare(&columns, 2)).await;
    let wanted = "\n- v is a static column, which has one value for a whole partition\n";
    assert!(error.contains(wanted), "{error}");
}

#[test]
fn a_table_that_cassandra_cannot_have_is_refused_without_a_server() {
    let interval = IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 1, 1)]);
    let batch = rows([("k", Arc::new(StringArray::from(vec!["a"])) as ArrayRef), ("gap", Arc::new(interval))]);
    let declare = |batch: &RecordBatch, key: &[&str]| SinkTable {
        name: "results".into(),
        kind: SinkKind::Cassandra { keyspace: "shop".into(), table: "t".into(), create: false, null_key: None },
        schema: batch.schema(),
        primary_key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let error = |table: &SinkTable| sinks::check(table).unwrap_err().to_string();
    assert_eq!(
        error(&declare(&batch, &["k"])),
        "the column gap of the table results is Interval(MonthDayNano), which no CQL type can hold: cast it in the \
         SELECT, for instance to VARCHAR or BIGINT"
    );
    assert_eq!(
        error(&declare(&pairs(&[]), &[])),
        "the table results needs a primary key, by which Cassandra replaces the earlier result of a group: declare \
         PRIMARY KEY (...) in its CREATE EXTERNAL TABLE"
    );
    sinks::check(&declare(&pairs(&[]), &["k"])).unwrap();
}

#[tokio::test]
async fn any_name_can_be_used() {
    let place = Place::new().await;
    // All words that mean something in CQL, among them those that cannot be names unless they are quoted.
    let words = "add aggregate all allow alter and any apply as asc ascii authorize batch begin between bigint blob \
                 boolean by called cast clustering columnfamily compact contains count counter create custom date \
                 decimal default delete desc describe distinct double drop entries execute exists filtering finalfunc \
                 float from frozen full function functions grant group if in index inet infinity initcond input \
                 insert int into is json key keys keyspace keyspaces language like limit list login map masked \
                 materialized mbean mbeans modify nan nologin norecursive nosuperuser not null of on options or order \
                 partition password per permission permissions primary rename replace returns revoke role roles schema \
                 select set sfunc smallint static storage stype superuser table text time timestamp timeuuid tinyint \
                 to token trigger truncate ttl tuple type unlogged unset update use user users using uuid values \
                 varchar varint vector view where with writetime";
    let odd = ["Mixed Case", "two\"quotes", "ü\u{1f980}", "1st", "_x", "a.b", "-- ", "'", "", " "];
    let names: Vec<&str> = words.split_whitespace().chain(odd.into_iter().filter(|name| !name.is_empty())).collect();
    let key: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let flag: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    let columns = [("Select", &key), ("where", &key)]
        .into_iter()
        .chain(names.iter().filter(|name| **name != "where").map(|name| (*name, &flag)));
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, Arc::clone(column), true)))
            .unwrap();
    let mut table = place.declare(&batch, 2);
    let name = format!("Order_{}", &place.table[..20]);
    table.kind =
        SinkKind::Cassandra { keyspace: place.keyspace.into(), table: name.clone(), create: true, null_key: None };
    let sink = sinks::open(&place.settings, &table).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch.clone())]).await.unwrap();
    deliver(&sink, 1_001, &[delete(batch.slice(1, 1))]).await.unwrap();
    let place = Place { table: name, ..place };
    let found = place.rows("*").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].len(), batch.num_columns());
    assert!(found[0][2..].iter().all(|value| *value == Some(CqlValue::Boolean(true))));
}

#[tokio::test]
async fn names_inside_structs_can_be_anything_too() {
    let place = Place::new().await;
    let field = Arc::new(Field::new("Order By", DataType::Utf8, true));
    let inner: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, inner)]));
    let batch = rows([("k", Arc::clone(&structs)), ("Big Thing", Arc::clone(&structs)), ("big_thing", structs)]);
    let table = place.declare(&batch, 1);
    let error = place.refused(&table).await;
    for name in ["TABLE_k", "TABLE_big_thing", "TABLE_big_thing_"] {
        let create = format!("CREATE TYPE IF NOT EXISTS SPACE.{name} (\n    \"Order By\" text\n);\n");
        assert!(error.contains(&create), "{error}");
    }
    let sink = sinks::open(&place.settings, &creating(table)).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch)]).await.unwrap();
    assert_eq!(place.rows("k").await.len(), 1);
}

#[tokio::test]
async fn a_type_with_a_name_in_quotes_disturbs_nobody() {
    let place = Place::new().await;
    let keyspace = format!("{}_quoted", place.keyspace);
    place.run(&SPACE.replace("{}", &keyspace)).await;
    place.run(&format!("CREATE TYPE {keyspace}.\"Address\" (city text)")).await;
    place.run(&format!("CREATE TABLE {keyspace}.t (k text PRIMARY KEY, v frozen<\"Address\">)")).await;
    let field = Arc::new(Field::new("city", DataType::Utf8, true));
    let city: ArrayRef = Arc::new(StringArray::from(vec!["Ulm"]));
    let address: ArrayRef = Arc::new(StructArray::from(vec![(field, city)]));
    let batch = rows([("k", Arc::new(StringArray::from(vec!["a"])) as ArrayRef), ("v", address)]);
    let mut table = place.declare(&batch, 1);
    table.kind = SinkKind::Cassandra { keyspace: keyspace.clone(), table: "t".into(), create: false, null_key: None };
    let opened = sinks::open(&place.settings, &table).await;
    let delivered = match &opened {
        Ok(sink) => deliver(sink, 1_000, &[upsert(batch)]).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    place.run(&format!("DROP KEYSPACE {keyspace}")).await;
    delivered.unwrap();
}

#[tokio::test]
async fn two_processes_may_create_the_table_at_once() {
    let place = Place::new().await;
    let table = creating(place.declare(&revenue(), 2));
    let (one, other) = tokio::join!(sinks::open(&place.settings, &table), sinks::open(&place.settings, &table));
    one.unwrap();
    other.unwrap();
}

#[tokio::test]
async fn a_row_that_is_too_large_is_named() {
    let place = Place::new().await;
    let sink = |value: String| {
        rows([
            ("k", Arc::new(StringArray::from(vec!["the key"])) as ArrayRef),
            ("v", Arc::new(StringArray::from(vec![value]))),
        ])
    };
    let opened = place.create(&sink(String::new()), 1).await;
    let error = deliver(&opened, 1_000, &[upsert(sink("x".repeat(20 << 20)))]).await.unwrap_err();
    assert!(matches!(error, SinkError::Fatal(_)), "{error:?}");
    let error = error.to_string();
    assert!(error.starts_with("Cassandra refused the row (k = the key) of "), "{error}");
}

#[tokio::test]
async fn a_table_that_was_dropped_is_an_error_of_its_own() {
    let place = Place::new().await;
    let sink = place.create(&pairs(&[]), 1).await;
    place.run("DROP TABLE {t}").await;
    let error = deliver(&sink, 1_000, &[upsert(pairs(&[("a", Some(1))]))]).await.unwrap_err();
    assert!(matches!(error, SinkError::Fatal(_)), "{error:?}");
}

#[tokio::test]
async fn a_wrong_address_is_an_error_that_may_pass() {
    let place = Place::new().await;
    let mut settings = place.settings.clone();
    settings.cassandra.nodes = "127.0.0.1:1".into();
    let error = sinks::open(&settings, &place.declare(&revenue(), 2)).await.unwrap_err();
    assert!(error.may_pass());
    assert!(error.to_string().contains("STRANDLINE_CASSANDRA__NODES"), "{error}");
}
