#![allow(clippy::unwrap_used)]

mod batches;
mod document;
pub(super) mod mutations;
mod nested;
mod options;
mod records;
mod scalars;
mod times;

use std::sync::Arc;

use arrow::array::{Array, BinaryArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{Decoded, JsonDecoder, JsonOptions};

/// A decoder whose columns are all that is declared.
fn decoder(fields: Vec<Field>, options: &JsonOptions) -> Result<JsonDecoder, String> {
    let names: Vec<_> = fields.iter().map(|field| field.name().clone()).collect();
    JsonDecoder::new(Arc::new(Schema::new(fields)), &names, options)
}

fn decode<V: AsRef<[u8]>>(fields: Vec<Field>, options: &JsonOptions, values: &[V]) -> Decoded {
    let kept: Vec<_> = (0..values.len() as u32).collect();
    let values = BinaryArray::from_iter_values(values);
    decoder(fields, options).unwrap().decode(&values, &kept).unwrap()
}

/// The rows as text, one a line, and the reasons of the bad records.
fn outcome<V: AsRef<[u8]>>(fields: Vec<Field>, options: &JsonOptions, values: &[V]) -> (Vec<String>, Vec<String>) {
    let Decoded { rows, good, bad } = decode(fields, options, values);
    assert_eq!((rows.num_rows(), good.len() + bad.len()), (good.len(), values.len()));
    (lines(&rows), bad.into_iter().map(|(_, reason)| reason).collect())
}

fn lines(rows: &arrow::array::RecordBatch) -> Vec<String> {
    let display = FormatOptions::new().with_null("NULL");
    let columns: Vec<_> = rows.columns().iter().map(|c| ArrayFormatter::try_new(c, &display).unwrap()).collect();
    let line = |row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..rows.num_rows()).map(line).collect()
}

/// The one column `c` of records whose field `c` is each of these JSON texts: as text, or the reason.
fn column(data_type: &DataType, options: &JsonOptions, texts: &[&str]) -> Vec<Result<String, String>> {
    let one = |text: &&str| {
        let (mut rows, mut reasons) =
            outcome(vec![Field::new("c", data_type.clone(), true)], options, &[format!(r#"{{"c":{text}}}"#)]);
        rows.pop().ok_or_else(|| {
            let reason = reasons.pop().unwrap();
            reason.strip_prefix("column \"c\": ").map(str::to_owned).unwrap_or(reason)
        })
    };
    texts.iter().map(one).collect()
}

/// Each JSON text becomes what is said.
#[track_caller]
fn accepts(data_type: DataType, cases: &[(&str, &str)]) {
    let texts: Vec<_> = cases.iter().map(|(text, _)| *text).collect();
    let found = column(&data_type, &JsonOptions::default(), &texts);
    for ((text, expected), found) in cases.iter().zip(found) {
        assert_eq!(found.as_deref(), Ok(*expected), "{text} into {data_type}");
    }
}

/// Each JSON text makes a bad record for the reason that is said.
#[track_caller]
fn refuses(data_type: DataType, cases: &[(&str, &str)]) {
    let texts: Vec<_> = cases.iter().map(|(text, _)| *text).collect();
    let found = column(&data_type, &JsonOptions::default(), &texts);
    for ((text, expected), found) in cases.iter().zip(found) {
        assert_eq!(found.as_ref().map_err(String::as_str), Err(*expected), "{text} into {data_type}");
    }
}

fn null_count(decoded: &Decoded, column: usize) -> usize {
    decoded.rows.column(column).null_count()
}
