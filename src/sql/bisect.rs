//! An evaluation error belongs to single records: whoever divides by zero must not take the neighbours along.
//!
//! A batch is evaluated whole. Only when that fails is it halved, and halved again, until the failing rows stand alone.
//! A row fails alone exactly if it makes every batch that it is in fail or is left out there by a condition before, so
//! the verdict does not depend on how the log was cut into batches.

use arrow::array::RecordBatch;
use datafusion::error::DataFusionError;

/// What became of the rows of a batch.
pub(super) struct Evaluated<T> {
    /// Runs of rows that were evaluated together: the first row of each, and the result.
    pub(super) parts: Vec<(usize, T)>,
    /// Rows that cannot be evaluated, and why.
    pub(super) failed: Vec<(usize, String)>,
}

/// Evaluates a batch, apart from the rows that make it fail.
pub(super) fn evaluate<T>(
    rows: &RecordBatch,
    mut evaluation: impl FnMut(&RecordBatch) -> Result<T, DataFusionError>,
) -> Evaluated<T> {
    let mut evaluated = Evaluated { parts: Vec::new(), failed: Vec::new() };
    let mut open = vec![(0, rows.num_rows())];
    while let Some((start, length)) = open.pop() {
        if length == 0 {
            continue;
        }
        let whole = length == rows.num_rows();
        let result = if whole { evaluation(rows) } else { evaluation(&rows.slice(start, length)) };
        match result {
            Ok(result) => evaluated.parts.push((start, result)),
            Err(error) if length == 1 => evaluated.failed.push((start, reason(&error))),
            Err(_) => {
                let half = length / 2;
                // The later half first, so that the earlier one is taken next and rows keep their order.
                open.push((start + half, length - half));
                open.push((start, half));
            }
        }
    }
    evaluated
}

/// An evaluation error in words.
fn reason(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    let text = ["Arrow error: ", "Execution error: "]
        .iter()
        .fold(text.as_str(), |text, prefix| text.strip_prefix(prefix).unwrap_or(text));
    format!("cannot be evaluated: {}", text.trim_end())
}
