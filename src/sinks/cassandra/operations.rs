//! What a delivery does to a table: for each primary key one write or one removal, the last one that the delivery names.
//!
//! Cassandra lets a removal win over a write with the same timestamp, and of two writes the larger value. All of a
//! delivery has one timestamp, so a key that occurs twice must be reduced to its last operation before anything is sent.

use std::collections::HashMap;
use std::fmt::Write as _;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::util::display::array_value_to_string;
use strandline_actors::ports::{Change, OutputBatch, SinkError};

use super::conversion::{Conversion, Unfit};

/// The longest partition key, and the longest clustering key, that Cassandra takes.
const LONGEST_KEY: usize = 65_535;

/// The length of a cell that is NULL.
const NULL: i32 = -1;

/// A column of the table that the statement writes.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) conversion: Conversion,
}

/// How rows become statements.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The table with its keyspace, for messages.
    pub(crate) table: String,
    /// The primary key in the table's own order.
    pub(crate) key: Vec<Written>,
    /// How many of the key's columns are the partition key.
    pub(crate) partition: usize,
    /// For each column of the key the cell that stands for NULL.
    pub(crate) null_key: Vec<Option<Vec<u8>>>,
    /// The other columns.
    pub(crate) values: Vec<Written>,
}

/// Why a row cannot be in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyless {
    /// A column of the key is NULL.
    Null,
    /// The partition key is empty.
    Empty,
    /// The key is too long.
    Long,
    /// The column's type does not have the value.
    Unfit(Unfit),
}

/// A row that cannot be in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    pub(crate) reason: Keyless,
    /// The column that is to blame, by its place in the key.
    column: usize,
    batch: usize,
    row: usize,
}

/// One write or removal.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) change: Change,
    /// The cells of the key.
    key: Box<[u8]>,
    batch: usize,
    row: usize,
}

/// The operations of a delivery, each key once.
#[derive(Debug)]
pub(crate) struct Operations<'a> {
    layout: &'a Layout,
    batches: Vec<Columns<'a>>,
    pub(crate) list: Vec<Operation>,
    pub(crate) left_out: Vec<LeftOut>,
}

#[derive(Debug)]
struct Columns<'a> {
    rows: &'a RecordBatch,
    key: Vec<ArrayRef>,
    values: Vec<ArrayRef>,
}

impl Layout {
    /// Reduces a delivery to one operation per key.
    pub(crate) fn operations<'a>(&'a self, output: &'a [OutputBatch]) -> Result<Operations<'a>, SinkError> {
        let mut operations = Operations {
            layout: self,
            batches: Vec::with_capacity(output.len()),
            list: Vec::new(),
            left_out: Vec::new(),
        };
        let mut last: HashMap<Box<[u8]>, (Change, usize, usize)> = HashMap::new();
        let mut cells = Vec::new();
        for (number, batch) in output.iter().enumerate() {
            let columns = Columns {
                rows: &batch.rows,
                key: self.normalize(&self.key, &batch.rows)?,
                values: match batch.change {
                    Change::Upsert => self.normalize(&self.values, &batch.rows)?,
                    Change::Delete => Vec::new(),
                },
            };
            for row in 0..batch.rows.num_rows() {
                cells.clear();
                match self.key(&columns.key, row, &mut cells) {
                    Ok(()) => {
                        last.insert(cells.as_slice().into(), (batch.change, number, row));
                    }
                    // What was never written need not be removed.
                    Err(_) if batch.change == Change::Delete => {}
                    Err((reason, column)) => {
                        operations.left_out.push(LeftOut { reason, column, batch: number, row });
                    }
                }
            }
            operations.batches.push(columns);
        }
        operations.list =
            last.into_iter().map(|(key, (change, batch, row))| Operation { change, key, batch, row }).collect();
        operations.list.sort_unstable_by_key(|operation| (operation.batch, operation.row));
        Ok(operations)
    }

    fn normalize(&self, columns: &[Written], rows: &RecordBatch) -> Result<Vec<ArrayRef>, SinkError> {
        let normalize = |written: &Written| {
            let column = rows.column_by_name(&written.name).ok_or_else(|| {
                SinkError::Fatal(format!("a row for {} comes without its column {}", self.table, written.name))
            })?;
            written.conversion.normalize(column).map_err(|reason| {
                SinkError::Fatal(format!("the column {} of {} cannot be written: {reason}", written.name, self.table))
            })
        };
        columns.iter().map(normalize).collect()
    }

    /// Appends the cells of a row's key, or says why there are none and which column is to blame.
    fn key(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) -> Result<(), (Keyless, usize)> {
        // Each component of a partition key of several columns carries its length and an end mark.
        let extra = if self.partition > 1 { 3 } else { 0 };
        let (mut partition, mut clustering) = (0, 0);
        for (number, (written, column)) in self.key.iter().zip(columns).enumerate() {
            let start = out.len();
            written.conversion.write(column, row, out).map_err(|unfit| (Keyless::Unfit(unfit), number))?;
            if out[start..] == NULL.to_be_bytes() {
                let Some(instead) = &self.null_key[number] else {
                    return Err((Keyless::Null, number));
                };
                out.truncate(start);
                out.extend_from_slice(instead);
            }
            let length = out.len() - start - 4;
            if number < self.partition {
                if self.partition == 1 && length == 0 {
                    return Err((Keyless::Empty, number));
                }
                partition += length + extra;
            } else {
                clustering += length;
            }
            if partition > LONGEST_KEY || clustering > LONGEST_KEY {
                return Err((Keyless::Long, number));
            }
        }
        Ok(())
    }

    /// A row's key for people.
    fn show_key(&self, rows: &RecordBatch, row: usize) -> String {
        const LONGEST: usize = 80;
        let mut text = String::new();
        for written in &self.key {
            let Some(column) = rows.column_by_name(&written.name) else { continue };
            let value = if column.is_null(row) {
                "NULL".to_owned()
            } else {
                array_value_to_string(column, row).unwrap_or_else(|error| error.to_string())
            };
            let shown: String = value.chars().take(LONGEST).collect();
            let cut = if shown.len() < value.len() { "..." } else { "" };
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{} = {shown}{cut}", written.name);
        }
        text
    }
}

impl Operations<'_> {
    /// The cells that an operation binds: for a write the key, the other columns and the timestamp; for a removal the
    /// timestamp and the key.
    pub(crate) fn cells(&self, operation: &Operation, timestamp: i64) -> Result<Vec<u8>, SinkError> {
        let mut cells = Vec::with_capacity(operation.key.len() + 12 + 16 * self.layout.values.len());
        if operation.change == Change::Delete {
            bigint(timestamp, &mut cells);
            cells.extend_from_slice(&operation.key);
            return Ok(cells);
        }
        cells.extend_from_slice(&operation.key);
        let batch = &self.batches[operation.batch];
        for (written, column) in self.layout.values.iter().zip(&batch.values) {
            written.conversion.write(column, operation.row, &mut cells).map_err(|unfit| {
                SinkError::Fatal(format!(
                    "{} cannot hold the value of the column {} in the row ({}): it {unfit}. Leaving the row out would \
                     leave an older one in its place; change the statement or the column's type",
                    self.layout.table,
                    written.name,
                    self.show_key(operation)
                ))
            })?;
        }
        bigint(timestamp, &mut cells);
        Ok(cells)
    }

    /// Why a row was left out, for people.
    pub(crate) fn explain(&self, left_out: LeftOut) -> String {
        let column = &self.layout.key[left_out.column].name;
        let why = match left_out.reason {
            Keyless::Null => "is NULL, which no primary key in Cassandra can hold: set 'sink.null.key', or leave such \
                              rows out by WHERE"
                .to_owned(),
            Keyless::Empty => "is empty, which no partition key in Cassandra can be: leave such rows out by WHERE, or \
                               give them another value"
                .to_owned(),
            Keyless::Long => format!("makes the key longer than Cassandra's {LONGEST_KEY} bytes"),
            Keyless::Unfit(unfit) => unfit.to_string(),
        };
        let key = self.layout.show_key(self.batches[left_out.batch].rows, left_out.row);
        format!("the column {column} {why}; the row ({key})")
    }

    /// An operation's key for people.
    pub(crate) fn show_key(&self, operation: &Operation) -> String {
        self.layout.show_key(self.batches[operation.batch].rows, operation.row)
    }
}

fn bigint(value: i64, cells: &mut Vec<u8>) {
    cells.extend_from_slice(&8_i32.to_be_bytes());
    cells.extend_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::DataType;
    use scylla::frame::response::result::{ColumnType, NativeType};

    use super::*;

    fn written(name: &str, from: DataType, to: NativeType, key: bool) -> Written {
        let conversion = Conversion::choose(&from, &ColumnType::Native(to), key).unwrap();
        Written { name: name.to_owned(), conversion }
    }

    /// A table of a text key and a number.
    fn layout() -> Layout {
        Layout {
            table: "shop.t".into(),
            key: vec![written("k", DataType::Utf8, NativeType::Text, true)],
            partition: 1,
            null_key: vec![None],
            values: vec![written("v", DataType::Int64, NativeType::BigInt, false)],
        }
    }

    fn batch(change: Change, rows: &[(Option<&str>, i64)]) -> OutputBatch {
        let keys: StringArray = rows.iter().map(|(key, _)| *key).collect();
        let values = Int64Array::from_iter_values(rows.iter().map(|(_, value)| *value));
        let columns: [(_, ArrayRef, _); 2] = [("v", Arc::new(values), true), ("k", Arc::new(keys), true)];
        OutputBatch { sink: 0, change, rows: RecordBatch::try_from_iter_with_nullable(columns).unwrap() }
    }

    fn shown(operations: &Operations<'_>) -> Vec<(Change, String)> {
        operations.list.iter().map(|operation| (operation.change, operations.show_key(operation))).collect()
    }

    #[test]
    fn of_each_key_the_last_operation_remains() {
        let layout = layout();
        let output = [
            batch(Change::Upsert, &[(Some("a"), 1), (Some("b"), 2), (Some("a"), 3), (Some("c"), 4)]),
            batch(Change::Delete, &[(Some("b"), 0), (Some("d"), 0)]),
            batch(Change::Upsert, &[(Some("d"), 5)]),
        ];
        let operations = layout.operations(&output).unwrap();
        let expected = [
            (Change::Upsert, "k = a".to_owned()),
            (Change::Upsert, "k = c".to_owned()),
            (Change::Delete, "k = b".to_owned()),
            (Change::Upsert, "k = d".to_owned()),
        ];
        assert_eq!(shown(&operations), expected);
        assert!(operations.left_out.is_empty());
    }

    #[test]
    fn a_write_binds_key_values_and_timestamp_and_a_removal_timestamp_and_key() {
        let layout = layout();
        let output = [batch(Change::Upsert, &[(Some("a"), 1)]), batch(Change::Delete, &[(Some("b"), 0)])];
        let operations = layout.operations(&output).unwrap();
        let cells = |number: usize| operations.cells(&operations.list[number], -2).unwrap();
        let (value, timestamp) =
            ([0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 8, 255, 255, 255, 255, 255, 255, 255, 254]);
        assert_eq!(cells(0), [&[0, 0, 0, 1, b'a'][..], &value, &timestamp].concat());
        assert_eq!(cells(1), [&timestamp[..], &[0, 0, 0, 1, b'b']].concat());
    }

    #[test]
    fn rows_without_a_key_are_explained() {
        let layout = layout();
        let long = "x".repeat(LONGEST_KEY + 1);
        let output = [
            batch(Change::Upsert, &[(None, 1), (Some(""), 2), (Some(&long), 3)]),
            batch(Change::Delete, &[(None, 0), (Some(""), 0)]),
        ];
        let operations = layout.operations(&output).unwrap();
        assert!(operations.list.is_empty());
        let explained: Vec<String> = operations.left_out.iter().map(|row| operations.explain(*row)).collect();
        let expected = [
            "the column k is NULL, which no primary key in Cassandra can hold: set 'sink.null.key', or leave such rows \
             out by WHERE; the row (k = NULL)"
                .to_owned(),
            "the column k is empty, which no partition key in Cassandra can be: leave such rows out by WHERE, or give \
             them another value; the row (k = )"
                .to_owned(),
            format!("the column k makes the key longer than Cassandra's 65535 bytes; the row (k = {}...)", "x".repeat(80)),
        ];
        assert_eq!(explained, expected);
    }

    #[test]
    fn rows_of_another_shape_are_refused() {
        let layout = layout();
        let rows = batch(Change::Upsert, &[(Some("a"), 1)]).rows.project(&[1]).unwrap();
        let error = layout.operations(&[OutputBatch { sink: 0, change: Change::Upsert, rows }]).unwrap_err();
        assert_eq!(error.to_string(), "a row for shop.t comes without its column v");

        let texts: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
        let rows = RecordBatch::try_from_iter([("k", Arc::clone(&texts)), ("v", texts)]).unwrap();
        let error = layout.operations(&[OutputBatch { sink: 0, change: Change::Upsert, rows }]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the column v of shop.t cannot be written: it comes as Utf8, not as the statement declares it"
        );
    }
}
