//! `docs/json.md` says what is so: its tables are run.

use arrow::datatypes::{DataType, Field};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::outcome;
use crate::formats::json::JsonOptions;

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/json.md"));

/// The rows of the one table under a heading, without its head.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = DOCUMENT.split_once(&format!("\n## {heading}\n")).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn code(cell: &str) -> &str {
    cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`')).unwrap_or(cell)
}

/// The type that DataFusion gives a column of this SQL type.
async fn arrow_type(sql: &str) -> DataType {
    let context = SessionContext::new_with_config(SessionConfig::new());
    let frame = context.sql(&format!("SELECT CAST(NULL AS {sql})")).await.unwrap();
    frame.schema().field(0).data_type().clone()
}

#[track_caller]
fn check(fields: Vec<Field>, options: &JsonOptions, record: &str, expected: &str) {
    let (mut rows, mut bad) = outcome(fields, options, &[record]);
    match expected.strip_prefix("bad: ").map(code) {
        Some(reason) => {
            let found = bad.pop().unwrap_or_else(|| panic!("{record} is good: {rows:?}"));
            assert_eq!(found.strip_prefix("column \"c\": ").unwrap_or(&found), reason, "{record}");
        }
        None => {
            let found = rows.pop().unwrap_or_else(|| panic!("{record} is bad: {bad:?}"));
            assert_eq!(found.replace('|', ", "), code(expected), "{record}");
        }
    }
}

#[tokio::test]
async fn the_document_is_true() {
    let records = table("Records");
    assert_eq!(records.len(), 18);
    let at = arrow_type("STRUCT<x INT, y INT>").await;
    let fields = vec![
        Field::new("id", arrow_type("BIGINT").await, false),
        Field::new("name", arrow_type("VARCHAR").await, true),
        Field::new("at", at, true),
    ];
    for row in records {
        let mut options = JsonOptions::default();
        if let Some((key, value)) = row[1].split_once(" = ") {
            options.set(code(key).strip_prefix("json.").unwrap(), code(value)).unwrap();
        }
        check(fields.clone(), &options, code(row[0]), row[2]);
    }

    let types = table("Types");
    assert_eq!(types.len(), 44);
    for row in types {
        let fields = vec![Field::new("c", arrow_type(code(row[0])).await, true)];
        check(fields, &JsonOptions::default(), &format!(r#"{{"c":{}}}"#, code(row[1])), row[2]);
    }

    let timestamps = table("Timestamps");
    assert_eq!(timestamps.len(), 17);
    for row in timestamps {
        let mut options = JsonOptions::default();
        if !row[1].is_empty() {
            options.set("timestamp.unit", code(row[1])).unwrap();
        }
        let fields = vec![Field::new("c", arrow_type(code(row[0])).await, true)];
        check(fields, &options, &format!(r#"{{"c":{}}}"#, code(row[2])), row[3]);
    }

    for row in table("Options") {
        let key = code(row[0]).strip_prefix("json.").unwrap().replace("<column>", "c");
        let values = row[1].split(", ").filter(|value| value.starts_with('`'));
        values.for_each(|value| JsonOptions::default().set(&key, code(value.split(' ').next().unwrap())).unwrap());
    }
}
