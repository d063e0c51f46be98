//! A row of sliding windows belongs to several of them.
//!
//! Rows are aggregated once for each run of windows that they share, from the first that is not late to the last, and
//! only the partial aggregates are given to each window. So a slide costs what its groups cost, not what its rows do.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::DataFusionError;

use super::Window;
use crate::sql::aggregation::Aggregation;
use crate::sql::pipeline::batch_of;

/// Sliding windows of a grouping.
#[derive(Clone, Debug)]
pub(in crate::sql) struct Sliding {
    pub(in crate::sql) window: Window,
    /// The key column that holds the start of the last window of a row.
    pub(in crate::sql) column: usize,
    /// The prepared column that holds the time of a row.
    pub(in crate::sql) time: usize,
    /// The aggregation with one more key: the start of a row's first window that is not late.
    pub(in crate::sql) shared: Aggregation,
}

impl Sliding {
    /// Puts the start of each row's first window that is not late behind the key columns. `passed` says which watermark it
    /// comes after.
    pub(in crate::sql) fn prepare(
        &self,
        rows: &RecordBatch,
        passed: impl Fn(usize) -> i64,
    ) -> Result<RecordBatch, DataFusionError> {
        let Some((size, slide)) = self.window.slides() else { return Ok(rows.clone()) };
        let lasts = ticks(rows.column(self.column))?;
        let times = ticks(rows.column(self.time))?;
        let firsts = lasts.values().iter().zip(times.values()).enumerate().map(|(row, (last, time))| {
            let windows = (last - time + size - 1) / slide;
            let mut first = last - windows * slide;
            let watermark = passed(row);
            while first < *last && self.window.end(first) <= watermark {
                first += slide;
            }
            first
        });
        let firsts: ArrayRef = Arc::new(Int64Array::from_iter_values(firsts));
        let keys = self.shared.key_columns() - 1;
        let mut columns = rows.columns().to_vec();
        columns.insert(keys, firsts);
        let mut fields: Vec<_> = rows.schema().fields().to_vec();
        fields.insert(keys, Arc::new(self.shared.keys.field(keys).clone()));
        batch_of(&Arc::new(arrow::datatypes::Schema::new(fields)), columns, rows.num_rows())
    }

    /// Gives each partial aggregate to all of its windows. Answers them with the partial that each came from.
    pub(in crate::sql) fn spread(
        &self,
        aggregation: &Aggregation,
        shared: &RecordBatch,
    ) -> Result<(RecordBatch, UInt32Array), DataFusionError> {
        let Some((_, slide)) = self.window.slides() else {
            return Ok((shared.clone(), UInt32Array::from_iter_values(0..shared.num_rows() as u32)));
        };
        let keys = self.shared.key_columns() - 1;
        let lasts = ticks(shared.column(self.column))?;
        let firsts = ticks(shared.column(keys))?;
        let mut origins = Vec::new();
        let mut starts = Vec::new();
        for (row, (first, last)) in firsts.values().iter().zip(lasts.values()).enumerate() {
            let mut start = *first;
            while start <= *last {
                origins.push(row as u32);
                starts.push(start);
                start += slide;
            }
        }
        let origins = UInt32Array::from(origins);
        let starts: ArrayRef = Arc::new(Int64Array::from(starts));
        let mut columns = Vec::with_capacity(shared.num_columns() - 1);
        for (number, column) in shared.columns().iter().enumerate() {
            if number == self.column {
                columns.push(cast(&starts, column.data_type())?);
            } else if number != keys {
                columns.push(take(column, &origins, None)?);
            }
        }
        Ok((batch_of(&aggregation.partial, columns, origins.len())?, origins))
    }
}

/// The ticks of a column of times.
pub(in crate::sql) fn ticks(column: &ArrayRef) -> Result<Int64Array, DataFusionError> {
    Ok(cast(column, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
}
