//! A table that a pipeline writes.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use strandline_actors::ports::{Change, OutputBatch};

use super::pipeline::Pipeline;
use crate::catalog::SinkTable;

/// The rows of a sink, by the text of their key.
pub(crate) type Rows = BTreeMap<String, Vec<ScalarValue>>;

pub(crate) fn values(rows: &RecordBatch, row: usize) -> Vec<ScalarValue> {
    rows.columns().iter().map(|column| ScalarValue::try_from_array(column, row).unwrap()).collect()
}

/// A table that a pipeline writes.
pub(crate) struct Table {
    pub(crate) sink: SinkTable,
    key: Vec<usize>,
    pub(crate) rows: Rows,
    /// How often each row was written.
    pub(crate) written: BTreeMap<String, usize>,
    pub(crate) deletes: usize,
}

impl Table {
    pub(crate) fn new(sink: &SinkTable) -> Self {
        let schema = &sink.schema;
        let key = match sink.primary_key.is_empty() {
            true => (0..schema.fields().len()).collect(),
            false => sink.primary_key.iter().map(|name| schema.index_of(name).unwrap()).collect(),
        };
        Self { sink: sink.clone(), key, rows: Rows::new(), written: BTreeMap::new(), deletes: 0 }
    }

    fn key_of(&self, row: &[ScalarValue]) -> String {
        self.key.iter().map(|column| format!("{:?}", row[*column])).collect::<Vec<_>>().join("|")
    }

    pub(crate) fn write(&mut self, output: &OutputBatch, may_delete_nothing: bool) {
        assert_eq!(output.rows.schema().fields().len(), self.sink.schema.fields().len());
        assert!(output.rows.schema().metadata().is_empty());
        for row in 0..output.rows.num_rows() {
            let row = values(&output.rows, row);
            let key = self.key_of(&row);
            match output.change {
                Change::Upsert => {
                    *self.written.entry(key.clone()).or_default() += 1;
                    self.rows.insert(key, row);
                }
                Change::Delete => {
                    self.deletes += 1;
                    let there = self.rows.remove(&key).is_some();
                    assert!(there || may_delete_nothing, "what is deleted was there: {key}");
                }
            }
        }
    }

    /// Compares the rows with others; DOUBLE within 1e-12 relative, all else exactly. An intercept is the small
    /// difference of large numbers: within 1e-11.
    pub(crate) fn assert_rows(&self, expected: Vec<Vec<ScalarValue>>) {
        let wanted: Rows = expected.into_iter().map(|row| (self.key_of(&row), row)).collect();
        let keys = |rows: &Rows| rows.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&self.rows), keys(&wanted), "{}", self.sink.name);
        for (key, found) in &self.rows {
            for ((found, wanted), field) in found.iter().zip(&wanted[key]).zip(self.sink.schema.fields()) {
                let name = field.name();
                let within = if name == "intercept" { 1e-11 } else { 1e-12 };
                assert!(
                    close(found, wanted, within),
                    "{name} of {key}: {found:?}, but the batch engine says {wanted:?}"
                );
            }
        }
    }
}

/// Compares the rows of the only sink with others.
pub(crate) fn assert_rows(pipeline: &Pipeline, expected: Vec<Vec<ScalarValue>>) {
    pipeline.assert_rows(expected);
}

fn close(found: &ScalarValue, wanted: &ScalarValue, within: f64) -> bool {
    match (found, wanted) {
        (ScalarValue::Float64(Some(a)), ScalarValue::Float64(Some(b))) => {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= within * a.abs().max(b.abs())
        }
        _ => found == wanted,
    }
}
