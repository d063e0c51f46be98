//! Rows of a result, read back from Cassandra or computed by DataFusion's batch engine, in one form that can be compared.
//! The batch engine's input is decoded by arrow-json, so not by what is tested.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::SessionConfig;
use scylla::statement::Statement;
use scylla::value::{CqlValue, Row};
use strandline::catalog::{SinkKind, SinkTable};

use crate::stand::Stand;

/// One record and where it is.
pub(super) struct Line<'a> {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) json: &'a str,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Boolean(bool),
    Whole(i64),
    /// The digits and how many of them are behind the point.
    Decimal(i128, i32),
    Double(f64),
    Text(String),
    /// Milliseconds since the epoch.
    Timestamp(i64),
    /// Days since the epoch.
    Date(i64),
    List(Vec<Value>),
    Struct(Vec<(String, Value)>),
}

/// The rows of a table by their primary keys, as text.
pub(super) type Rows = BTreeMap<String, Vec<Value>>;

fn by_key(rows: impl IntoIterator<Item = Vec<Value>>, sink: &SinkTable) -> Rows {
    let key: Vec<usize> = sink.primary_key.iter().map(|name| sink.schema.index_of(name).unwrap()).collect();
    let mut found = Rows::new();
    for row in rows {
        let text = key.iter().map(|column| format!("{:?}", row[*column])).collect::<Vec<_>>().join(", ");
        assert!(found.insert(text.clone(), row).is_none(), "two rows of the key {text}");
    }
    found
}

/// All rows of the table that a sink writes.
pub(super) async fn of_table(stand: &Stand, sink: &SinkTable) -> Rows {
    let columns: Vec<&str> = sink.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let SinkKind::Cassandra { keyspace, table, .. } = &sink.kind else {
        panic!("{} is no table of Cassandra", sink.name)
    };
    let mut read = Statement::new(format!("SELECT {} FROM {keyspace}.{table}", columns.join(", ")));
    read.set_page_size(i32::MAX);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    by_key(rows.rows::<Row>().unwrap().map(|row| row.unwrap().columns.into_iter().map(of_cassandra).collect()), sink)
}

fn of_cassandra(value: Option<CqlValue>) -> Value {
    let Some(value) = value else { return Value::Null };
    match value {
        CqlValue::Boolean(value) => Value::Boolean(value),
        CqlValue::Int(value) => Value::Whole(value.into()),
        CqlValue::BigInt(value) => Value::Whole(value),
        CqlValue::Double(value) => Value::Double(value),
        CqlValue::Text(value) => Value::Text(value),
        CqlValue::Timestamp(value) => Value::Timestamp(value.0),
        CqlValue::Date(value) => Value::Date(i64::from(value.0) - (1 << 31)),
        CqlValue::Decimal(value) => {
            let (bytes, scale) = value.as_signed_be_bytes_slice_and_exponent();
            let negative = bytes.first().is_some_and(|first| *first >= 0x80);
            let start = if negative { -1 } else { 0 };
            Value::Decimal(bytes.iter().fold(start, |digits, byte| digits << 8 | i128::from(*byte)), scale)
        }
        CqlValue::List(values) => Value::List(values.into_iter().map(|value| of_cassandra(Some(value))).collect()),
        CqlValue::UserDefinedType { fields, .. } => {
            Value::Struct(fields.into_iter().map(|(name, value)| (name, of_cassandra(value))).collect())
        }
        other => panic!("no test writes {other:?}"),
    }
}

/// What the batch engine makes of the same records. Rows that a key of Cassandra cannot have get `null_key` or are left
/// out.
pub(super) async fn batch_engine<'a>(
    columns: &str,
    select: &str,
    lines: impl Iterator<Item = Line<'a>>,
    sink: &SinkTable,
    null_key: Option<&str>,
) -> Rows {
    let mut config = SessionConfig::new().with_target_partitions(1);
    let parser = &mut config.options_mut().sql_parser;
    parser.map_string_types_to_utf8view = false;
    parser.default_null_ordering = "nulls_min".to_owned();
    let context = SessionContext::new_with_config(config);
    context.sql(&format!("CREATE TABLE orders ({columns}, _partition INT, _offset BIGINT)")).await.unwrap();
    let schema = Arc::clone(context.table("orders").await.unwrap().schema().inner());
    let mut text = String::new();
    for Line { partition, offset, json } in lines {
        let fields = json.strip_prefix('{').unwrap();
        writeln!(text, "{{\"_partition\":{partition},\"_offset\":{offset},{fields}").unwrap();
    }
    let reader = arrow_json::ReaderBuilder::new(Arc::clone(&schema)).build(text.as_bytes()).unwrap();
    let records: Vec<RecordBatch> = reader.map(|batch| batch.unwrap()).collect();
    context.deregister_table("orders").unwrap();
    context.register_table("orders", Arc::new(MemTable::try_new(schema, vec![records]).unwrap())).unwrap();
    let results = context.sql(select).await.unwrap().collect().await.unwrap();
    let mut rows = Vec::new();
    for batch in results {
        let columns = batch.columns().iter().zip(sink.schema.fields());
        let columns: Vec<ArrayRef> =
            columns.map(|(column, field)| arrow::compute::cast(column, field.data_type()).unwrap()).collect();
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| of_arrow(column, row)).collect::<Vec<_>>());
        }
    }
    let key: Vec<usize> = sink.primary_key.iter().map(|name| sink.schema.index_of(name).unwrap()).collect();
    for column in &key {
        match null_key {
            Some(text) if sink.schema.field(*column).data_type() == &DataType::Utf8 => rows
                .iter_mut()
                .filter(|row| row[*column] == Value::Null)
                .for_each(|row| row[*column] = Value::Text(text.to_owned())),
            _ => rows.retain(|row| row[*column] != Value::Null),
        }
    }
    by_key(rows, sink)
}

fn of_arrow(column: &ArrayRef, row: usize) -> Value {
    of_scalar(ScalarValue::try_from_array(column, row).unwrap())
}

fn of_scalar(value: ScalarValue) -> Value {
    if value.is_null() {
        return Value::Null;
    }
    match value {
        ScalarValue::Boolean(Some(value)) => Value::Boolean(value),
        ScalarValue::Int32(Some(value)) => Value::Whole(value.into()),
        ScalarValue::Int64(Some(value)) => Value::Whole(value),
        ScalarValue::Decimal128(Some(digits), _, scale) => Value::Decimal(digits, scale.into()),
        ScalarValue::Float64(Some(value)) => Value::Double(value),
        ScalarValue::Utf8(Some(value)) => Value::Text(value),
        ScalarValue::Date32(Some(days)) => Value::Date(days.into()),
        ScalarValue::TimestampMillisecond(Some(millis), None) => Value::Timestamp(millis),
        ScalarValue::List(list) => {
            let elements = list.value(0);
            Value::List((0..elements.len()).map(|element| of_arrow(&elements, element)).collect())
        }
        ScalarValue::Struct(row) => {
            let fields = row.fields().iter().zip(row.columns());
            Value::Struct(fields.map(|(field, column)| (field.name().clone(), of_arrow(column, 0))).collect())
        }
        other => panic!("no test computes {other:?}"),
    }
}

/// Compares two tables: the named columns within 1e-12, all else exactly.
pub(super) fn assert_equal(found: &Rows, wanted: &Rows, sink: &SinkTable, inexact: &[String]) {
    let missing: Vec<_> = wanted.keys().filter(|key| !found.contains_key(*key)).collect();
    let surplus: Vec<_> = found.keys().filter(|key| !wanted.contains_key(*key)).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing rows: {missing:?}; rows too many: {surplus:?}");
    for (key, found) in found {
        for ((found, wanted), field) in found.iter().zip(&wanted[key]).zip(sink.schema.fields()) {
            let equal = match (found, wanted) {
                (Value::Double(found), Value::Double(wanted)) if inexact.contains(field.name()) => {
                    (found - wanted).abs() <= 1e-12 * found.abs().max(wanted.abs())
                }
                _ => found == wanted,
            };
            assert!(equal, "{} of {key} is {found:?}, but the batch engine says {wanted:?}", field.name());
        }
    }
}
