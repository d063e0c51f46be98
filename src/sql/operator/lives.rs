//! What the sink is told of groups that are forgotten some time after their last row.
//!
//! Rows that come in another order can make several lives of a group at once. The sink has the row of the latest of them,
//! whatever else is known: so in the end it is the same in whatever order the rows came, and whether or not an earlier life
//! was forgotten already. Where the latest has no row, because it does not satisfy HAVING, the row of an earlier one must
//! go; of one that is forgotten it is not known whether it has a row, and then a removal of nothing does no harm.

use arrow::array::{ArrayRef, UInt32Array, new_null_array};
use arrow::compute::take_arrays;
use strandline_actors::ports::{Change, OutputBatch, StageError};

use super::{AggregatePlan, Shown, failed};
use crate::sql::state::Found;
use crate::sql::windows::sessions::Met;

impl AggregatePlan {
    /// The output for the lives that changed: `keys` and `states` are theirs, `before` and `old` those of the lives that
    /// went into them.
    pub(super) fn lives(
        &self,
        met: &Met,
        keys: &[ArrayRef],
        before: &[ArrayRef],
        old: &Found,
        states: &[ArrayRef],
    ) -> Result<Vec<OutputBatch>, StageError> {
        let mut fresh = vec![true; met.changed.len()];
        met.before.iter().for_each(|(place, ..)| fresh[*place] = false);
        let wanted = |place: &usize| met.latest[*place] && (!self.once() || fresh[*place]);
        let places: Vec<_> = (0..met.changed.len()).filter(wanted).collect();
        let rows = UInt32Array::from_iter_values(places.iter().map(|place| *place as u32));
        let pick = |columns: &[ArrayRef], rows: &UInt32Array| take_arrays(columns, rows, None).map_err(failed);
        let keys = pick(keys, &rows)?;
        let new = self.results(&keys, &pick(states, &rows)?, places.len())?;
        let mut output = Vec::new();
        let filtered = matches!(self.shown, Shown::Groups { once: false, .. }) && self.pipeline.has_filter();
        if filtered && new.rows.num_rows() < places.len() {
            // Whether the row of each group may be in the sink.
            let mut there = vec![true; places.len()];
            let known =
                UInt32Array::from_iter_values((0..met.before.len() as u32).filter(|row| met.was_latest[*row as usize]));
            let had = self.results(&pick(before, &known)?, &pick(&old.states, &known)?, known.len())?;
            let mut has_row = vec![false; known.len()];
            (0..had.rows.num_rows()).for_each(|row| has_row[had.origin(row)] = true);
            for (row, has_row) in known.values().iter().zip(has_row) {
                if let Ok(place) = places.binary_search(&met.before[*row as usize].0) {
                    there[place] = has_row;
                }
            }
            (0..new.rows.num_rows()).for_each(|row| there[new.origin(row)] = false);
            let gone = UInt32Array::from_iter_values((0..places.len() as u32).filter(|row| there[*row as usize]));
            if !gone.is_empty() {
                let rows = self.keys_alone(&pick(&keys, &gone)?, gone.len())?;
                output.push(OutputBatch { sink: 0, change: Change::Delete, rows });
            }
        }
        if new.rows.num_rows() > 0 {
            output.push(OutputBatch { sink: 0, change: Change::Upsert, rows: new.rows });
        }
        Ok(output)
    }

    /// Rows of groups of which nothing is known but their keys.
    fn keys_alone(&self, keys: &[ArrayRef], groups: usize) -> Result<arrow::array::RecordBatch, StageError> {
        let Shown::Groups { schema, .. } = &self.shown else {
            return Err(StageError::Failed("the rows of a ranking are not known by their key alone".into()));
        };
        let visible = keys.len() - 1;
        let results = schema.fields().iter().skip(visible).map(|field| new_null_array(field.data_type(), groups));
        let rows = self.group_rows(keys, results.collect(), schema, groups)?;
        Ok(self.pipeline.only(&self.key).run(&rows).map_err(failed)?.rows)
    }
}
