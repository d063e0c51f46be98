//! A Cassandra table as a sink, against a real Cassandra.

#![allow(clippy::unwrap_used)]

mod differences;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, Date32Array, Int64Array, Int64Builder, ListArray, MapBuilder, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use scylla::client::session::Session;
use scylla::value::{CqlDate, CqlTimestamp, CqlValue, Row};
use strandline::catalog::{SinkKind, SinkTable};
use strandline::settings::{CassandraSettings, Settings};
use strandline::sinks::{self, TableSink};
use strandline_actors::pointer::{Attempt, Epoch};
use strandline_actors::ports::{Change, Delivery, OutputBatch, Sink, SinkError};
use tokio::sync::OnceCell;
use uuid::Uuid;

const SPACE: &str = "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {'class': 'SimpleStrategy', \
                     'replication_factor': 1}";

fn settings() -> Settings {
    let nodes = std::env::var("TEST_CASSANDRA").expect("TEST_CASSANDRA is not set: start the servers with tests/run");
    // All tests change the schema at once, and Cassandra makes one change after the other.
    let cassandra = CassandraSettings { nodes, timeout: Duration::from_secs(60), ..CassandraSettings::default() };
    Settings { cassandra, ..Settings::default() }
}

/// A keyspace that all tests of this run share, with a table name of its own for each.
struct Place {
    settings: Settings,
    session: Arc<Session>,
    keyspace: &'static str,
    table: String,
}

impl Place {
    async fn new() -> Self {
        static KEYSPACE: OnceCell<String> = OnceCell::const_new();
        let settings = settings();
        let session = strandline::cassandra::connect(&settings.cassandra).await.unwrap();
        let keyspace = KEYSPACE
            .get_or_init(|| async {
                let name = format!("sink_{}", Uuid::new_v4().simple());
                session.query_unpaged(SPACE.replace("{}", &name), ()).await.unwrap();
                name
            })
            .await;
        Self { settings, session, keyspace, table: format!("t_{}", Uuid::new_v4().simple()) }
    }

    /// A declared table with these columns, whose first `key` ones are the primary key.
    fn declare(&self, columns: &RecordBatch, key: usize) -> SinkTable {
        let schema = columns.schema();
        let primary_key = schema.fields().iter().take(key).map(|field| field.name().clone()).collect();
        SinkTable {
            name: "results".into(),
            kind: SinkKind::Cassandra {
                keyspace: self.keyspace.into(),
                table: self.table.clone(),
                create: false,
                null_key: None,
            },
            schema,
            primary_key,
        }
    }

    async fn create(&self, columns: &RecordBatch, key: usize) -> Arc<TableSink> {
        sinks::open(&self.settings, &creating(self.declare(columns, key))).await.unwrap()
    }

    async fn run(&self, cql: &str) {
        let cql = cql.replace("{t}", &format!("{}.{}", self.keyspace, self.table)).replace("{k}", self.keyspace);
        self.session.query_unpaged(cql.as_str(), ()).await.unwrap_or_else(|error| panic!("{cql}: {error}"));
    }

    async fn rows(&self, columns: &str) -> Vec<Vec<Option<CqlValue>>> {
        let mut cql =
            scylla::statement::Statement::new(format!("SELECT {columns} FROM {}.\"{}\"", self.keyspace, self.table));
        cql.set_page_size(i32::MAX);
        let result = self.session.query_unpaged(cql, ()).await.unwrap().into_rows_result().unwrap();
        result.rows::<Row>().unwrap().map(|row| row.unwrap().columns).collect()
    }

    /// The rows of two columns, an int after a text or an int, by the first.
    async fn pairs(&self) -> BTreeMap<String, Option<i64>> {
        let show = |value: CqlValue| match value {
            CqlValue::Text(text) => text,
            CqlValue::BigInt(value) => value.to_string(),
            other => format!("{other:?}"),
        };
        let rows = self.rows("k, v").await.into_iter();
        rows.map(|mut row| {
            let value = row.pop().unwrap().map(|value| value.as_bigint().unwrap());
            (show(row.pop().unwrap().unwrap()), value)
        })
        .collect()
    }

    /// The error that opening it gives, as the user sees it.
    async fn refused(&self, table: &SinkTable) -> String {
        let text = sinks::open(&self.settings, table).await.unwrap_err().to_string();
        text.replace(&self.table, "TABLE").replace(self.keyspace, "SPACE")
    }
}

fn creating(mut table: SinkTable) -> SinkTable {
    let SinkKind::Cassandra { create, .. } = &mut table.kind else { panic!("not a Cassandra table") };
    *create = true;
    table
}

fn with_null_key(mut table: SinkTable, text: &str) -> SinkTable {
    let SinkKind::Cassandra { null_key, .. } = &mut table.kind else { panic!("not a Cassandra table") };
    *null_key = Some(text.into());
    table
}

fn rows(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// Rows of a text key and a number.
fn pairs(list: &[(&str, Option<i64>)]) -> RecordBatch {
    let keys: StringArray = list.iter().map(|(key, _)| Some(*key)).collect();
    let values: Int64Array = list.iter().map(|(_, value)| *value).collect();
    rows([("k", Arc::new(keys) as ArrayRef), ("v", Arc::new(values))])
}

fn map(list: &[(&str, Option<i64>)]) -> BTreeMap<String, Option<i64>> {
    list.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

fn upsert(rows: RecordBatch) -> OutputBatch {
    OutputBatch { sink: 0, change: Change::Upsert, rows }
}

fn delete(rows: RecordBatch) -> OutputBatch {
    OutputBatch { sink: 0, change: Change::Delete, rows }
}

async fn deliver(sink: &TableSink, timestamp: i64, output: &[OutputBatch]) -> Result<(), SinkError> {
    let attempt = Attempt::fresh();
    sink.deliver(&Delivery { shard: 0, epoch: Epoch(timestamp), attempt, timestamp, again: false, output }).await
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows and timestamps

/// Case: lost write by clock (scalar-labs/scalardb PR#3890).
#[tokio::test]
async fn a_repeated_delivery_changes_nothing_and_an_older_one_loses() {
    let place = Place::new().await;
    let sink = place.create(&pairs(&[]), 1).await;
    let second = [upsert(pairs(&[("a", Some(2)), ("b", Some(20))])), delete(pairs(&[("c", None)]))];
    deliver(&sink, 1_000, &[upsert(pairs(&[("a", Some(1)), ("b", Some(10)), ("c", Some(100))]))]).await.unwrap();
    deliver(&sink, 2_000, &second).await.unwrap();
    let table = place.rows("k, v, writetime(v)").await;
    assert_eq!(place.pairs().await, map(&[("a", Some(2)), ("b", Some(20))]));

    deliver(&sink, 2_000, &second).await.unwrap();
    assert_eq!(place.rows("k, v, writetime(v)").await, table);

    // A process that does not know yet that it lost its shard: what it writes, and what it removes, is too old.
    deliver(&sink, 1_500, &[upsert(pairs(&[("a", Some(9)), ("c", Some(9))])), delete(pairs(&[("b", None)]))])
        .await
        .unwrap();
    assert_eq!(place.rows("k, v, writetime(v)").await, table);

    deliver(&sink, 2_001, &[upsert(pairs(&[("c", Some(3))]))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("a", Some(2)), ("b", Some(20)), ("c", Some(3))]));
}

#[tokio::test]
async fn of_a_key_that_a_delivery_names_twice_the_last_operation_holds() {
    let place = Place::new().await;
    let sink = place.create(&pairs(&[]), 1).await;
    // Under one timestamp Cassandra itself would let the removal and the larger value win.
    let output = [
        upsert(pairs(&[("larger first", Some(9)), ("larger first", Some(1)), ("removed at last", Some(5))])),
        delete(pairs(&[("written at last", None), ("removed at last", None)])),
        upsert(pairs(&[("written at last", Some(7))])),
    ];
    deliver(&sink, 1_000, &output).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("larger first", Some(1)), ("written at last", Some(7))]));
    assert_eq!((sink.counts().upserts, sink.counts().deletes), (2, 1));
}

#[tokio::test]
async fn null_replaces_an_earlier_value() {
    let place = Place::new().await;
    let sets = |values: Vec<Option<Vec<Option<i32>>>>| {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(values);
        rows([("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef), ("s", Arc::new(lists))])
    };
    place.run("CREATE TABLE {t} (k bigint PRIMARY KEY, s set<int>)").await;
    let sink = sinks::open(&place.settings, &place.declare(&sets(vec![None]), 1)).await.unwrap();
    deliver(&sink, 1_000, &[upsert(sets(vec![Some(vec![Some(1), Some(2), Some(3)])]))]).await.unwrap();
    // Two epochs can follow each other within one microsecond of the clock.
    deliver(&sink, 1_001, &[upsert(sets(vec![Some(vec![Some(4)])]))]).await.unwrap();
    assert_eq!(place.rows("s").await, [[Some(CqlValue::Set(vec![CqlValue::Int(4)]))]]);
    deliver(&sink, 1_002, &[upsert(sets(vec![None]))]).await.unwrap();
    assert_eq!(place.rows("k, s").await, [[Some(CqlValue::BigInt(1)), None]]);
    // What comes too late leaves no element behind.
    deliver(&sink, 1_001, &[upsert(sets(vec![Some(vec![Some(4)])]))]).await.unwrap();
    assert_eq!(place.rows("k, s").await, [[Some(CqlValue::BigInt(1)), None]]);
}

#[tokio::test]
async fn a_repeated_delivery_does_not_change_collections() {
    let place = Place::new().await;
    let list = |values: &[i32]| {
        let values = Some(values.iter().map(|value| Some(*value)).collect::<Vec<_>>());
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([values])) as ArrayRef
    };
    let mut map = MapBuilder::new(None, Int64Builder::new(), Int64Builder::new());
    map.keys().append_value(1);
    map.values().append_value(2);
    map.append(true).unwrap();
    let field = Arc::new(Field::new("x", DataType::Int64, true));
    let point = StructArray::from(vec![(field, Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    let batch = rows([
        ("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef),
        ("frozen_list", list(&[1, 2])),
        ("of_set", list(&[1, 2])),
        ("of_map", Arc::new(map.finish())),
        ("of_type", Arc::new(point)),
    ]);
    place.run("CREATE TYPE {k}.repeated_point (x bigint)").await;
    place
        .run(
            "CREATE TABLE {t} (k bigint PRIMARY KEY, frozen_list frozen<list<int>>, of_set set<int>, \
              of_map map<bigint, bigint>, of_type repeated_point)",
        )
        .await;
    let sink = sinks::open(&place.settings, &place.declare(&batch, 1)).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch.clone())]).await.unwrap();
    let table = place.rows("*").await;
    deliver(&sink, 1_000, &[upsert(batch)]).await.unwrap();
    assert_eq!(place.rows("*").await, table);
}

#[tokio::test]
async fn lists_that_a_repeated_delivery_would_double_are_refused() {
    let place = Place::new().await;
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)])]);
    let batch = rows([("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef), ("l", Arc::new(lists))]);
    place.run("CREATE TABLE {t} (k bigint PRIMARY KEY, l list<int>)").await;
    let error = place.refused(&place.declare(&batch, 1)).await;
    let wanted = "\n- l is list<int>, whose elements would be doubled by a repeated delivery; frozen<list<int>> can be written\n";
    assert!(error.contains(wanted), "{error}");
}

#[tokio::test]
async fn a_row_is_there_even_if_all_its_values_are_null() {
    let place = Place::new().await;
    let sink = place.create(&pairs(&[]), 1).await;
    deliver(&sink, 1_000, &[upsert(pairs(&[("a", Some(1)), ("b", None)]))]).await.unwrap();
    deliver(&sink, 1_001, &[upsert(pairs(&[("a", None)]))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("a", None), ("b", None)]));
}

#[tokio::test]
async fn a_hundred_thousand_rows_arrive_each_once() {
    const ROWS: i64 = 100_000;
    let place = Place::new().await;
    let batch = |value: i64| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
        rows([("k", keys), ("v", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|k| k * value))))])
    };
    let sink = place.create(&batch(0), 1).await;
    deliver(&sink, 1_000, &[upsert(batch(1)), upsert(batch(3))]).await.unwrap();
    assert_eq!(sink.counts().upserts, ROWS as u64);
    let found = place.pairs().await;
    assert_eq!(found.len() as i64, ROWS);
    assert!((0..ROWS).all(|k| found[&k.to_string()] == Some(k * 3)));
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys that Cassandra does not have

#[tokio::test]
async fn rows_without_a_key_are_left_out_and_counted() {
    let place = Place::new().await;
    let batch = |keys: Vec<Option<&str>>, seconds: Vec<Option<&str>>| {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys.len() as i64));
        rows([
            ("k", Arc::new(StringArray::from(keys)) as ArrayRef),
            ("second", Arc::new(StringArray::from(seconds))),
            ("v", numbers),
        ])
    };
    let long = "x".repeat(65_535);
    let longer = "x".repeat(65_536);
    let keys = vec![None, Some("a"), Some("b"), Some(""), Some("c"), Some(&long[..]), Some(&longer[..]), Some("d")];
    let seconds = vec![Some("a"), None, Some("b"), Some("c"), Some(""), Some("e"), Some("e"), Some(&longer[..])];
    let sink = place.create(&batch(vec![], vec![]), 2).await;
    deliver(&sink, 1_000, &[upsert(batch(keys.clone(), seconds.clone()))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("b", Some(2)), ("c", Some(4)), (&long, Some(5))]));
    let counts = sink.counts();
    assert_eq!((counts.null_keys, counts.empty_keys, counts.long_keys, counts.upserts), (2, 1, 2, 3));

    // To remove what was never written is to do nothing.
    deliver(&sink, 2_000, &[delete(batch(keys, seconds))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[]));
    assert_eq!((sink.counts().null_keys, sink.counts().deletes), (2, 3));
}

#[tokio::test]
async fn an_empty_text_may_be_part_of_a_longer_partition_key() {
    let place = Place::new().await;
    place.run("CREATE TABLE {t} (k text, second text, v bigint, PRIMARY KEY ((second, k)))").await;
    let batch = rows([
        ("k", Arc::new(StringArray::from(vec![Some(""), Some("a"), None])) as ArrayRef),
        ("second", Arc::new(StringArray::from(vec!["", "", ""]))),
        ("v", Arc::new(Int64Array::from(vec![1, 2, 3]))),
    ]);
    // The table has the same key in another order and split: it identifies the same rows.
    let sink = sinks::open(&place.settings, &place.declare(&batch, 2)).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch.clone())]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("", Some(1)), ("a", Some(2))]));
    deliver(&sink, 2_000, &[delete(batch.slice(0, 1))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("a", Some(2))]));
    assert_eq!(sink.counts().null_keys, 1);
}

#[tokio::test]
async fn a_text_stands_for_null_in_a_key() {
    let place = Place::new().await;
    let batch = |keys: Vec<Option<&str>>, days: Vec<Option<i32>>, v: Vec<i64>| {
        rows([
            ("k", Arc::new(StringArray::from(keys)) as ArrayRef),
            ("day", Arc::new(Date32Array::from(days))),
            ("v", Arc::new(Int64Array::from(v))),
        ])
    };
    let declared = creating(place.declare(&batch(vec![], vec![], vec![]), 2));
    let sink = sinks::open(&place.settings, &with_null_key(declared.clone(), "1970-01-02")).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch(vec![None, Some("a")], vec![None, None], vec![1, 2]))]).await.unwrap();
    let day = Some(CqlValue::Date(CqlDate((1 << 31) + 1)));
    let mut found = place.rows("k, day, v").await;
    found.sort_by_key(|row| row[2].as_ref().and_then(CqlValue::as_bigint));
    let text = |text: &str| Some(CqlValue::Text(text.into()));
    assert_eq!(
        found,
        [[text("1970-01-02"), day.clone(), Some(CqlValue::BigInt(1))], [text("a"), day, Some(CqlValue::BigInt(2))]]
    );
    deliver(&sink, 2_000, &[delete(batch(vec![None, Some("a")], vec![None, None], vec![0, 0]))]).await.unwrap();
    assert!(place.rows("k").await.is_empty());

    // A text that is no date stands for NULL in the text alone.
    let sink = sinks::open(&place.settings, &with_null_key(declared.clone(), "none")).await.unwrap();
    deliver(&sink, 3_000, &[upsert(batch(vec![None, None], vec![Some(0), None], vec![1, 2]))]).await.unwrap();
    assert_eq!(place.pairs().await, map(&[("none", Some(1))]));
    assert_eq!(sink.counts().null_keys, 1);

    let error = place.refused(&with_null_key(declared, "")).await;
    assert_eq!(error, "'sink.null.key' '' of the table results: the partition key k cannot be empty");
}

#[tokio::test]
async fn a_text_for_null_must_fit_some_column_of_the_key() {
    let place = Place::new().await;
    let batch = rows([("k", Arc::new(Int64Array::from(vec![None])) as ArrayRef)]);
    let declared = creating(place.declare(&batch, 1));
    let error = place.refused(&with_null_key(declared.clone(), "none")).await;
    assert!(
        error.starts_with(
            "'sink.null.key' 'none' of the table results: no column of the primary key can hold it (k is Int64: "
        ),
        "{error}"
    );
    let sink = sinks::open(&place.settings, &with_null_key(declared, "-1")).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch)]).await.unwrap();
    assert_eq!(place.rows("k").await, [[Some(CqlValue::BigInt(-1))]]);
}

#[tokio::test]
async fn two_groups_never_meet_in_one_row() {
    let place = Place::new().await;
    place.run("CREATE TABLE {t} (id uuid, at timestamp, v bigint, PRIMARY KEY (id, at))").await;
    let lower = "00000000-0000-0000-0000-00000000abcd";
    let ids = vec![lower, "00000000-0000-0000-0000-00000000ABCD", lower, "no uuid"];
    let batch = rows([
        ("id", Arc::new(StringArray::from(ids)) as ArrayRef),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![-1_000, -1_000, -999, 0]))),
        ("v", Arc::new(Int64Array::from(vec![1, 2, 3, 4]))),
    ]);
    let sink = sinks::open(&place.settings, &place.declare(&batch, 2)).await.unwrap();
    deliver(&sink, 1_000, &[upsert(batch)]).await.unwrap();
    assert_eq!(place.rows("at, v").await, [[Some(CqlValue::Timestamp(CqlTimestamp(-1))), Some(CqlValue::BigInt(1))]]);
    assert_eq!(sink.counts().unfit_keys, 3);
}
