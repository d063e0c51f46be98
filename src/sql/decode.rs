//! From the values of records to columns, by the format that the table declares.

use arrow::array::BinaryArray;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::error::SqlError;
use super::options::JsonOption;
use super::statements::SourceTable;
use crate::formats::json::{Decoded, JsonDecoder, JsonOptions};

/// How the values of a table are decoded: only the columns that are needed.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    columns: SchemaRef,
    declared: Vec<String>,
    options: JsonOptions,
}

/// Decodes values.
pub(super) struct Decoder(JsonDecoder);

impl Decoding {
    /// How to decode these columns of a table; fails if that cannot be done.
    pub(super) fn new(columns: SchemaRef, table: &SourceTable) -> Result<Self, SqlError> {
        let mut options = JsonOptions::default();
        for JsonOption { key, value, place } in &table.options.json {
            options.set(key, value).map_err(|error| SqlError::at(format!("table {}: {error}", table.name), *place))?;
        }
        let declared = table.columns.fields().iter().map(|field| field.name().clone()).collect();
        let decoding = Self { columns, declared, options };
        match decoding.decoder() {
            Ok(_) => Ok(decoding),
            Err(error) => Err(SqlError::at(format!("table {}: {error}", table.name), table.place)),
        }
    }

    /// A decoder that has seen nothing yet.
    pub(super) fn decoder(&self) -> Result<Decoder, String> {
        JsonDecoder::new(self.columns.clone(), &self.declared, &self.options).map(Decoder)
    }
}

impl Decoder {
    /// Decodes the values at the indexes `kept`, in that order.
    pub(super) fn decode(&mut self, values: &BinaryArray, kept: &[u32]) -> Result<Decoded, ArrowError> {
        self.0.decode(values, kept)
    }
}
