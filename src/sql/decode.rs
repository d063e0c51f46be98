//! From the values of records to columns, by the format that the table declares.

use arrow::array::{Array, BinaryArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use super::options::JsonOption;

/// How the values of a table are decoded.
#[derive(Clone, Debug)]
pub(super) struct Decoding {
    pub(super) schema: SchemaRef,
    pub(super) all_columns: Vec<String>,
    pub(super) options: Vec<JsonOption>,
}

/// What became of values.
pub(super) struct Decoded {
    pub(super) rows: RecordBatch,
    pub(super) good: Vec<u32>,
    pub(super) bad: Vec<(u32, String)>,
}

/// Decodes values.
pub(super) struct Decoder {
    schema: SchemaRef,
}

impl Decoding {
    pub(super) fn decoder(&self) -> Result<Decoder, String> {
        let _ = (&self.all_columns, &self.options);
        Ok(Decoder { schema: self.schema.clone() })
    }
}

impl Decoder {
    pub(super) fn decode(&mut self, values: &BinaryArray, kept: &[u32]) -> Result<Decoded, String> {
        let mut good = Vec::new();
        let mut bad = Vec::new();
        let mut batches = Vec::new();
        for row in kept {
            let value = values.value(*row as usize);
            let parsed = serde_json::from_slice::<serde_json::Value>(value).map_err(|e| e.to_string()).and_then(|_| {
                let mut decoder =
                    arrow_json::ReaderBuilder::new(self.schema.clone()).build_decoder().map_err(|e| e.to_string())?;
                decoder.decode(value).map_err(|e| e.to_string())?;
                decoder.flush().map_err(|e| e.to_string())
            });
            match parsed {
                Ok(Some(batch)) => {
                    good.push(*row);
                    batches.push(batch);
                }
                Ok(None) => bad.push((*row, "no value".to_owned())),
                Err(error) => bad.push((*row, error)),
            }
        }
        let rows = if self.schema.fields().is_empty() || batches.is_empty() {
            let options = RecordBatchOptions::new().with_row_count(Some(good.len()));
            let columns = self.schema.fields().iter().map(|f| arrow::array::new_empty_array(f.data_type())).collect();
            RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(|e| e.to_string())?
        } else {
            arrow::compute::concat_batches(&self.schema, &batches).map_err(|e| e.to_string())?
        };
        let _ = values.len();
        Ok(Decoded { rows, good, bad })
    }
}
