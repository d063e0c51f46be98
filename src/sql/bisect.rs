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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    type Parts = Vec<(usize, Vec<i64>)>;

    fn batch(values: Vec<i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("v", Arc::new(Int64Array::from(values)) as ArrayRef)]).unwrap()
    }

    /// Fails if a value is negative; counts its calls.
    fn halves(rows: RecordBatch) -> (Parts, Vec<usize>, usize) {
        let mut calls = 0;
        let evaluated = evaluate(&rows, |rows| {
            calls += 1;
            let values = rows.column(0).as_primitive::<Int64Type>().values().to_vec();
            match values.iter().any(|value| *value < 0) {
                true => Err(DataFusionError::Execution("negative".into())),
                false => Ok(values),
            }
        });
        assert!(evaluated.failed.iter().all(|(_, reason)| reason == "cannot be evaluated: negative"));
        (evaluated.parts, evaluated.failed.into_iter().map(|(row, _)| row).collect(), calls)
    }

    #[test]
    fn a_good_batch_is_evaluated_once() {
        assert_eq!(halves(batch(vec![1, 2, 3])), (vec![(0, vec![1, 2, 3])], vec![], 1));
        assert_eq!(halves(batch(vec![])), (vec![], vec![], 0));
    }

    #[test]
    fn every_good_row_is_kept_in_order() {
        for bad in [vec![0], vec![999], vec![0, 1, 500, 998, 999], (0..1000).collect::<Vec<_>>()] {
            let values: Vec<_> = (0..1000).map(|v| if bad.contains(&v) { -1 } else { v as i64 }).collect();
            let (parts, failed, calls) = halves(batch(values));
            let kept: Vec<_> = parts.iter().flat_map(|(_, values)| values.clone()).collect();
            assert_eq!(kept, (0..1000).filter(|v| !bad.contains(v)).map(|v| v as i64).collect::<Vec<_>>());
            assert!(parts.iter().all(|(start, values)| values[0] == *start as i64));
            assert_eq!(failed, bad);
            assert!(calls <= 2 * (bad.len() * 11).min(1000), "{calls} calls for {} bad rows", bad.len());
        }
    }
}
