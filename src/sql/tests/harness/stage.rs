//! The source stage alone: one batch, and what its lanes carry.

use arrow::array::{AsArray, RecordBatch};
use strandline_actors::ports::{DeadLetter, StageError, StageInput, StageOutput};
use strandline_actors::position::{Counts, Offset, SourcePartition};

use super::records::{Record, batch, partition};
use crate::sql::{Plan, plan};

pub(crate) fn planned(sql: &str) -> Plan {
    plan(sql).unwrap_or_else(|error| panic!("{error}\n{sql}"))
}

pub(crate) fn refused(sql: &str) -> String {
    match plan(sql) {
        Ok(plan) => panic!("this was planned:\n{sql}\n{}", plan.description),
        Err(error) => error.to_string(),
    }
}

/// Runs one batch through a fresh stage with no cuts.
pub(crate) fn run_stage(plan: &Plan, log: &[Record], shards: usize, from: i64, until: i64) -> StageOutput {
    run_cut(plan, log, from, until, &vec![Some(Offset(0)); shards], &[]).unwrap()
}

/// What the clock says, in microseconds.
pub(crate) const NOW: i64 = 1_800_000_000_000_000;

/// What a stage is given if nothing is special.
pub(crate) fn input<'a>(
    partition: &'a SourcePartition,
    batch: &'a strandline_actors::ports::SourceBatch,
) -> StageInput<'a> {
    StageInput {
        partition,
        batch,
        watermark: None,
        quiet: None,
        cuts: &[],
        closed: &[],
        noted: &[],
        now: NOW,
        poison: &[],
    }
}

pub(crate) fn run_cut(
    plan: &Plan,
    log: &[Record],
    from: i64,
    until: i64,
    cuts: &[Option<Offset>],
    poison: &[Offset],
) -> Result<StageOutput, StageError> {
    let partition = partition(0);
    let mut stage = plan.query().source_stage(&partition);
    let batch = batch(log, from, until);
    let closed = vec![None; cuts.len()];
    stage.run(StageInput { cuts, closed: &closed, poison, ..input(&partition, &batch) })
}

pub(crate) fn total(output: &StageOutput) -> Counts {
    let mut counts = Counts::default();
    output.lanes.iter().for_each(|lane| counts.add(&lane.counts));
    counts
}

pub(crate) fn letters(output: &StageOutput) -> Vec<DeadLetter> {
    let mut letters: Vec<_> = output.lanes.iter().flat_map(|lane| lane.dead_letters.clone()).collect();
    letters.sort_by_key(|letter| letter.offset);
    letters
}

/// The text of a VARCHAR column.
pub(crate) fn strings(rows: &RecordBatch, column: usize) -> Vec<Option<String>> {
    rows.column(column).as_string::<i32>().iter().map(|value| value.map(str::to_owned)).collect()
}
