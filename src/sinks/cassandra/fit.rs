//! Whether a table that is there takes the rows of a statement, and how.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType;
use scylla::frame::response::result::ColumnType;
use tracing::warn;

use super::conversion::Conversion;
use super::definition::{self, Definition, simple_types_for, statements};
use super::operations::{Layout, Written};
use super::schema::{self, Column, Role};
use super::{Declared, SinkOpenError};
use crate::catalog::SinkTable;

/// A declared table beside the one that is there.
pub(super) struct Fit<'a> {
    table: &'a SinkTable,
    definition: &'a Definition,
    null_key: Option<&'a str>,
    name: String,
    columns: &'a [Column],
}

impl<'a> Fit<'a> {
    /// Puts the two side by side.
    pub(super) fn new(declared: &'a Declared<'a>, columns: &'a [Column]) -> Self {
        Self {
            table: declared.table,
            definition: &declared.definition,
            null_key: declared.null_key,
            name: declared.place(),
            columns,
        }
    }

    /// The primary key in the table's own order.
    pub(super) fn key(&self) -> Vec<&'a str> {
        let key = |column: &&Column| matches!(column.role, Role::Partition | Role::Clustering);
        self.columns.iter().filter(key).map(|column| column.name.as_str()).collect()
    }

    /// The declared columns outside the primary key.
    pub(super) fn values(&self) -> Vec<&'a str> {
        let key = self.key();
        self.table
            .schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .filter(|name| !key.contains(name))
            .collect()
    }

    fn existing(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Whether all columns are there, and the same columns are the primary key. How the key is split into partition and
    /// clustering columns does not matter: either way they identify a row.
    pub(super) fn check_names(&self) -> Result<(), SinkOpenError> {
        let mut problems = Vec::new();
        let mut missing = Vec::new();
        let key = self.key();
        for field in self.table.schema.fields() {
            let name = field.name().as_str();
            match self.existing(name) {
                None => {
                    let hint = schema::hint(name, self.columns.iter().map(|column| column.name.as_str()));
                    missing.push(name);
                    problems.push(format!("there is no column {}{hint}", definition::name(name)));
                }
                Some(column) if column.role == Role::Static => {
                    problems.push(format!("{name} is a static column, which has one value for a whole partition"));
                }
                Some(column) if column.cql == "counter" => {
                    problems
                        .push(format!("{name} is a counter, which can only be added to, so nothing can be repeated"));
                }
                // The elements of such a list have no identity of their own: Cassandra gives each a new one every time.
                Some(column) if column.cql.starts_with("list<") => problems.push(format!(
                    "{name} is {}, whose elements would be doubled by a repeated delivery; frozen<{}> can be written",
                    column.cql, column.cql
                )),
                Some(_) => {}
            }
        }
        let mut declared: Vec<&str> = self.table.primary_key.iter().map(String::as_str).collect();
        let mut actual = key.clone();
        declared.sort_unstable();
        actual.sort_unstable();
        let same_key = declared == actual;
        if !same_key {
            problems.push(format!(
                "its primary key is ({}), but the statement declares ({})",
                key.join(", "),
                self.table.primary_key.join(", ")
            ));
        }
        if problems.is_empty() {
            Ok(())
        } else if missing.len() == problems.len() {
            Err(self.mismatch(&problems, "To add what is missing, run", &self.definition.add(&missing)))
        } else {
            Err(self.mismatch(&problems, OTHER_TABLE, &self.definition.create()))
        }
    }

    /// How rows are written, now that the types are known.
    pub(super) fn layout(self, types: &[(&str, &ColumnType<'_>)]) -> Result<Layout, SinkOpenError> {
        let mut problems = Vec::new();
        let mut choose = |name: &&str, is_key: bool| {
            let field = self.table.schema.field_with_name(name).ok()?;
            let (_, to) = types.iter().find(|(column, _)| column == name)?;
            let conversion = Conversion::choose(field.data_type(), to, is_key);
            if conversion.is_none() {
                let mut fitting = simple_types_for(field.data_type(), is_key);
                if fitting.is_empty() {
                    fitting.extend(self.definition.cql(name));
                }
                problems.push(format!(
                    "{} is {}, but the statement writes {}, which goes into {}",
                    definition::name(name),
                    self.existing(name).map_or("of another type", |column| column.cql.as_str()),
                    field.data_type(),
                    fitting.join(", ")
                ));
            }
            Some(Written { name: (*name).to_owned(), conversion: conversion? })
        };
        let key: Vec<Written> = self.key().iter().filter_map(|name| choose(name, true)).collect();
        let values: Vec<Written> = self.values().iter().filter_map(|name| choose(name, false)).collect();
        if !problems.is_empty() {
            return Err(self.mismatch(&problems, OTHER_TABLE, &self.definition.create()));
        }
        let partition = self.columns.iter().filter(|column| column.role == Role::Partition).count();
        let null_key = match self.null_key {
            Some(text) => null_keys(self.table, text, &key, partition)?,
            None => vec![None; key.len()],
        };
        Ok(Layout { table: self.name, key, partition, null_key, values })
    }

    fn mismatch(&self, problems: &[String], remedy: &'static str, ddl: &[String]) -> SinkOpenError {
        SinkOpenError::Mismatch {
            table: self.name.clone(),
            problems: problems.iter().map(|problem| format!("- {problem}")).collect::<Vec<_>>().join("\n"),
            remedy,
            ddl: statements(ddl),
        }
    }
}

const OTHER_TABLE: &str = "Cassandra cannot change this in a table that is there: declare the columns as they are, or \
                           name another table, which these statements make";

/// The cells that stand for NULL in the key columns: the text itself, or the value that it denotes in a column of another
/// type. A column in which it denotes nothing keeps none, but one column at least must take it.
fn null_keys(
    table: &SinkTable,
    text: &str,
    key: &[Written],
    partition: usize,
) -> Result<Vec<Option<Vec<u8>>>, SinkOpenError> {
    let unusable = |reason: String| SinkOpenError::NullKey { table: table.name.clone(), text: text.to_owned(), reason };
    let mut cells = Vec::with_capacity(key.len());
    let mut reasons = Vec::new();
    for written in key {
        let from = table.schema.field_with_name(&written.name).map_or(&DataType::Utf8, |field| field.data_type());
        match null_key(text, from, &written.conversion) {
            Ok(cell) => cells.push(Some(cell)),
            Err(reason) => {
                reasons.push(format!("{} is {from}: {reason}", written.name));
                cells.push(None);
            }
        }
    }
    if cells.iter().all(Option::is_none) {
        return Err(unusable(format!("no column of the primary key can hold it ({})", reasons.join("; "))));
    }
    let empty = |cell: &Vec<u8>| cell.len() == 4;
    if partition == 1 && cells[0].as_ref().is_some_and(empty) {
        return Err(unusable(format!("the partition key {} cannot be empty", key[0].name)));
    }
    if !reasons.is_empty() {
        warn!(
            table = table.name,
            "'sink.null.key' does not apply to every column of the primary key; rows with NULL there are not written: {}",
            reasons.join("; ")
        );
    }
    Ok(cells)
}

fn null_key(text: &str, from: &DataType, conversion: &Conversion) -> Result<Vec<u8>, String> {
    let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let value = cast_with_options(&text, from, &options).map_err(|error| error.to_string())?;
    let value = conversion.normalize(&value)?;
    let mut cell = Vec::new();
    conversion.write(&value, 0, &mut cell).map_err(|unfit| format!("it {unfit}"))?;
    Ok(cell)
}
