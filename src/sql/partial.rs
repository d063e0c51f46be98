//! Partial aggregation in the source stage, as long as it is worth its cost.
//!
//! Where nearly every row of a batch is a group of its own, hashing it here only repeats what the shard does anyway. Then
//! each row is made into a partial aggregate of one row instead, and only now and then a batch is tried again. (DataFusion
//! does the same within a query: `skip_partial_aggregation_probe_ratio_threshold`.) Which way a batch goes changes how many
//! partial aggregates the same rows come in, and no result.

use arrow::array::RecordBatch;
use datafusion::error::DataFusionError;

use super::aggregation::{Aggregation, Groups};

/// The share of groups among rows above which aggregating is not worth it.
const WORTH: f64 = 0.8;
/// Batches that go unaggregated before one is tried again.
const UNTRIED: u32 = 15;

/// The partial aggregates of one partition.
pub(super) struct Partial {
    groups: Groups,
    /// Rows may go on one by one; where partial aggregates are worked on further they may not.
    single: bool,
    /// Batches that are still to go unaggregated.
    untried: u32,
}

impl Partial {
    /// Nothing yet. `single` allows that rows go on one by one.
    pub(super) fn new(aggregation: &Aggregation, single: bool) -> Result<Self, DataFusionError> {
        Ok(Self { groups: aggregation.groups()?, single: single && aggregation.single_rows(), untried: 0 })
    }

    /// The partial aggregates of some prepared rows, and how many rows each is of.
    pub(super) fn aggregate(
        &mut self,
        aggregation: &Aggregation,
        rows: &RecordBatch,
    ) -> Result<(RecordBatch, Vec<u64>), DataFusionError> {
        if self.untried > 0 {
            self.untried -= 1;
            return Ok((self.groups.single(aggregation, rows)?, vec![1; rows.num_rows()]));
        }
        let numbers = self.groups.update(aggregation, rows)?;
        let mut sizes = vec![0; numbers.iter().max().map_or(0, |last| last + 1)];
        numbers.iter().for_each(|number| sizes[*number] += 1);
        if self.single && sizes.len() as f64 > rows.num_rows() as f64 * WORTH {
            self.untried = UNTRIED;
        }
        Ok((self.groups.take(aggregation)?, sizes))
    }
}
