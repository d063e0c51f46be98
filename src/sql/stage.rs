//! The first half of the query, on one partition: from undecoded records to what each lane carries.
//!
//! Records are decoded once, whatever is made of them: each branch then takes those that are sound. A record is bad for all
//! branches or for none. Everything works on whole batches. The result is a pure function of the records and the cuts: where the log was cut
//! into batches changes nothing but the number of partial aggregates that the same rows come in.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array,
};
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::{SchemaRef, TimestampMillisecondType};
use datafusion::error::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use strandline_actors::ports::{SourceStage, StageError, StageInput, StageOutput, raw};
use strandline_actors::spans;

use super::bisect::{Evaluated, evaluate};
use super::branch::{Branch, Selected};
use super::decode::{Decoder, Decoding};
use super::distribution::Distributor;
use super::lanes::{Bad, Lanes, TOO_FAR_AHEAD, offsets};
use super::metadata::Metadata;
use super::notices::Notices;
use super::options::{BadRecords, NullValue};
use super::pipeline::{batch_of, conform};
use super::tally::Outcome;
use super::windows::event_time::{EventTime, Followed, Read};

/// Where an input column comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A column of the decoded values.
    Decoded(usize),
    /// Something that is known of the record.
    Metadata(Metadata),
}

/// A condition that each record must not break.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) condition: Arc<dyn PhysicalExpr>,
}

/// The first half of a query for the partitions of one source, as planned.
#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub(super) decoding: Decoding,
    pub(super) columns: SchemaRef,
    pub(super) origins: Vec<Origin>,
    pub(super) rules: Vec<Rule>,
    pub(super) event_time: Option<EventTime>,
    pub(super) bad_records: BadRecords,
    pub(super) null_value: NullValue,
    /// What becomes of the sound records: at least one. Those of one INSERT follow each other.
    pub(super) branches: Vec<Branch>,
}

/// The stage of one partition.
pub(super) struct BatchStage {
    /// `None`: the pipeline does not read its topic.
    plan: Option<Arc<StagePlan>>,
    /// What can only be made once the plan runs; kept from batch to batch.
    tools: Result<Tools, String>,
}

struct Tools {
    decoder: Decoder,
    /// One for each INSERT.
    distributors: Vec<Distributor>,
    ahead: Notices,
}

impl BatchStage {
    /// A stage that has seen nothing yet.
    pub(super) fn new(plan: Option<Arc<StagePlan>>) -> Self {
        let tools = match &plan {
            Some(plan) => Tools::new(plan),
            None => Err("no table of the pipeline reads this topic".to_owned()),
        };
        Self { plan, tools }
    }
}

impl Tools {
    fn new(plan: &StagePlan) -> Result<Self, String> {
        let distributors =
            plan.by_insert().filter_map(<[Branch]>::first).map(Distributor::new).collect::<Result<_, _>>()?;
        Ok(Self { decoder: plan.decoding.decoder()?, distributors, ahead: Notices::default() })
    }
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl SourceStage for BatchStage {
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError> {
        let tools = self.tools.as_mut().map_err(|error| StageError::Failed(error.clone()))?;
        let Some(plan) = self.plan.clone() else { return Err(failed("there is no plan for this topic")) };
        let records = &input.batch.records;
        let offsets = offsets(records)?;
        let several = plan.branches.len() > 1;
        let mut lanes = Lanes::new(&input, offsets, several);
        if let (Some(event_time), Some(quiet), true) = (&plan.event_time, input.quiet, input.batch.range.is_empty()) {
            let now = input.now.saturating_mul(1_000);
            let (idle, raised) = event_time.quiet(quiet, |time| plan.closed_after(time), input.watermark, now);
            return Ok(StageOutput { lanes: lanes.finish(), watermark: input.watermark, idle, raised });
        }
        // What is below every cut concerns nobody any more.
        let Some(lowest) = input.cuts.iter().flatten().min() else {
            return Ok(StageOutput { lanes: lanes.finish(), watermark: input.watermark, idle: false, raised: None });
        };
        // The watermark follows every record.
        let first = match plan.event_time {
            Some(_) => 0,
            None => offsets.partition_point(|offset| *offset < lowest.0),
        };

        lanes.gaps();
        let mut bad = Vec::new();
        let candidates = candidates(&plan, &input, offsets, first, &mut bad, &mut lanes)?;
        let decoding = spans::part(|| tracing::info_span!("decode", strandline.rows = candidates.len() as i64));
        let decoded =
            decoding.in_scope(|| tools.decoder.decode(value_column(records)?, &candidates).map_err(failed))?;
        bad.extend(decoded.bad.into_iter().map(|(row, reason)| Bad {
            row: row as usize,
            reason,
            policy: plan.bad_records,
        }));
        let rows = plan.input(&input, decoded.rows, &decoded.good)?;
        let (sound, records_of) = plan.sound(&rows, &decoded.good, &mut bad)?;
        let policy = plan.bad_records;
        let selected = plan.branches.iter().map(|branch| {
            let selected = branch.select(&sound, &records_of, policy, &mut bad)?;
            branch.within_windows(selected, policy, &mut bad)
        });
        let selected = selected.collect::<Result<Vec<_>, _>>()?;
        let followed = plan.follow(&input, offsets, &rows, &decoded.good, &bad)?;
        let followed = followed.as_ref();
        let selected = selected.into_iter().zip(&plan.branches);
        let selected = selected.map(|(selected, branch)| branch.timed(selected, followed, policy, &mut bad));
        let mut selected = selected.collect::<Result<Vec<_>, _>>()?;
        if several {
            selected = plan.settle(selected, followed, &mut bad, offsets.len())?;
        }
        lanes.bad(bad)?;
        if let Some(followed) = followed {
            let ahead: Vec<_> = followed.ahead.iter().map(|ahead| ahead.record).collect();
            lanes.ahead(ahead.iter().map(|record| *record as usize));
            tools.ahead.ahead(&input, offsets, &ahead);
        }
        let watermark = followed.map_or(input.watermark, |followed| followed.after);
        let event_time = plan.event_time.as_ref();
        let mut selected = selected.into_iter();
        for (branches, distributor) in plan.by_insert().zip(&mut tools.distributors) {
            let Some(branch) = branches.first() else { continue };
            let mut parts: Vec<_> = selected.by_ref().take(branches.len()).collect();
            let selected = match (parts.len(), parts.pop()) {
                (1, Some(only)) => only,
                (_, last) => Selected::merged(parts.into_iter().chain(last).collect())?,
            };
            let left_out = lanes.filtered(&selected.filtered);
            branch.counters.add(Outcome::Filtered, left_out);
            let time = event_time.zip(followed).filter(|_| branch.timed);
            let distributed = distributor.distribute(branch, &input, offsets, selected, time, &mut lanes);
            if let Err(error) = distributed {
                self.tools = Tools::new(&plan);
                return Err(error);
            }
        }
        Ok(StageOutput { lanes: lanes.finish(), watermark, idle: false, raised: None })
    }
}

/// The records whose values are to be decoded; the others are bad or tombstones.
fn candidates<'a>(
    plan: &StagePlan,
    input: &StageInput<'_>,
    offsets: &[i64],
    first: usize,
    bad: &mut Vec<Bad>,
    lanes: &mut Lanes<'_>,
) -> Result<Cow<'a, [u32]>, StageError> {
    let values = value_column(&input.batch.records)?;
    let all = first as u32..offsets.len() as u32;
    if input.poison.is_empty() && values.null_count() == 0 {
        return Ok(all.collect());
    }
    let mut candidates = Vec::with_capacity(all.len());
    let mut tombstones = Vec::new();
    for record in all {
        let row = record as usize;
        if input.poison.iter().any(|poison| poison.0 == offsets[row]) {
            let reason = "processing this record ended its actor or the whole process again and again".to_owned();
            bad.push(Bad { row, reason, policy: BadRecords::DeadLetter });
        } else if values.is_valid(row) {
            candidates.push(record);
        } else {
            let policy = match plan.null_value {
                NullValue::Skip => {
                    tombstones.push(row);
                    continue;
                }
                NullValue::DeadLetter => BadRecords::DeadLetter,
                NullValue::Fail => BadRecords::Fail,
            };
            bad.push(Bad { row, reason: "the value is null".to_owned(), policy });
        }
    }
    lanes.tombstones(tombstones.into_iter());
    Ok(candidates.into())
}

fn value_column(records: &RecordBatch) -> Result<&arrow::array::BinaryArray, StageError> {
    records
        .column_by_name(raw::VALUE)
        .and_then(|column| column.as_binary_opt::<i32>())
        .ok_or_else(|| StageError::Failed(format!("the batch has no column {}", raw::VALUE)))
}

impl StagePlan {
    /// The branches of each INSERT, which make the same kind of rows.
    fn by_insert(&self) -> impl Iterator<Item = &[Branch]> {
        self.branches.chunk_by(|a, b| a.insert == b.insert)
    }

    /// The rows that the steps start from: decoded columns and metadata of the good records.
    fn input(&self, input: &StageInput<'_>, decoded: RecordBatch, good: &[u32]) -> Result<RecordBatch, StageError> {
        let whole = good.len() == input.batch.records.num_rows();
        let indices = if whole { None } else { Some(UInt32Array::from(good.to_vec())) };
        let columns = self
            .origins
            .iter()
            .zip(self.columns.fields())
            .map(|(origin, field)| match origin {
                Origin::Decoded(column) => Ok(Arc::clone(decoded.column(*column))),
                Origin::Metadata(metadata) => {
                    let column = match metadata {
                        Metadata::ProcessingTime => self.processing_time(input, good.len()),
                        metadata => metadata_column(*metadata, input, good.len(), indices.as_ref())?,
                    };
                    conform(column, field.data_type()).map_err(failed)
                }
            })
            .collect::<Result<Vec<_>, StageError>>()?;
        batch_of(&self.columns, columns, good.len()).map_err(failed)
    }

    /// The time at which a batch is read. Where it moves the watermark it is never before what was closed, so no row is late
    /// by it, also where the clock went back.
    fn processing_time(&self, input: &StageInput<'_>, rows: usize) -> ArrayRef {
        let followed = self.event_time.as_ref().is_some_and(|event_time| event_time.by_clock);
        let least = input.closed.iter().copied().max().flatten().max(input.watermark).filter(|_| followed);
        let least =
            least.map_or(i64::MIN, |nanos| nanos.div_euclid(1_000_000) + i64::from(nanos.rem_euclid(1_000_000) > 0));
        let millis = input.now.div_euclid(1_000).max(least);
        Arc::new(TimestampMillisecondArray::from_value(millis, rows))
    }

    /// The good records that break no rule. As with CHECK in SQL, a condition that is NULL is not broken.
    fn sound<'a>(
        &self,
        rows: &RecordBatch,
        good: &'a [u32],
        bad: &mut Vec<Bad>,
    ) -> Result<(RecordBatch, Cow<'a, [u32]>), StageError> {
        if self.rules.is_empty() {
            return Ok((rows.clone(), good.into()));
        }
        let Evaluated { parts, failed: unevaluated } = evaluate(rows, |rows| self.broken(rows));
        let mut sound = vec![true; rows.num_rows()];
        let mut set_aside = |row: usize, reason: String| {
            sound[row] = false;
            bad.push(Bad { row: good[row] as usize, reason, policy: self.bad_records });
        };
        for (start, broken) in parts {
            for (row, rule) in broken {
                set_aside(start + row, format!("breaks rule {}", self.rules[rule].name));
            }
        }
        unevaluated.into_iter().for_each(|(row, reason)| set_aside(row, reason));
        if !sound.contains(&false) {
            return Ok((rows.clone(), good.into()));
        }
        let records = good.iter().zip(&sound).filter(|(_, sound)| **sound).map(|(record, _)| *record).collect();
        Ok((filter_record_batch(rows, &sound.into()).map_err(failed)?, Cow::Owned(records)))
    }

    /// The rows that break a rule, with the number of the first that they break.
    fn broken(&self, rows: &RecordBatch) -> Result<Vec<(usize, usize)>, DataFusionError> {
        let mut broken = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            let value = rule.condition.evaluate(rows)?.into_array(rows.num_rows())?;
            let value = value.as_boolean();
            if value.true_count() + value.null_count() < rows.num_rows() {
                let rows = (0..rows.num_rows()).filter(|row| value.is_valid(*row) && !value.value(*row));
                broken.extend(rows.map(|row| (row, number)));
            }
        }
        broken.sort_unstable();
        broken.dedup_by_key(|(row, _)| *row);
        Ok(broken)
    }

    /// A record is good for every branch or for none: takes those that are bad for one from all of them. Where several
    /// branches may want a record, one that is too far ahead is set aside here, and not row by row: by what it says itself,
    /// since the clock would say otherwise to a shard that reads it again.
    fn settle(
        &self,
        selected: Vec<Selected>,
        followed: Option<&Followed>,
        bad: &mut Vec<Bad>,
        records: usize,
    ) -> Result<Vec<Selected>, StageError> {
        let mut out = vec![false; records];
        bad.iter().for_each(|bad| out[bad.row] = true);
        let ahead_rows = self.event_time.as_ref().and_then(|event_time| event_time.ahead_rows);
        if let (Some(policy), Some(followed)) = (ahead_rows, followed) {
            for record in selected.iter().flat_map(|selected| &selected.records) {
                if followed.is_always_ahead(*record) && !std::mem::replace(&mut out[*record as usize], true) {
                    bad.push(Bad { row: *record as usize, reason: TOO_FAR_AHEAD.to_owned(), policy });
                }
            }
        }
        selected.into_iter().map(|selected| selected.without(|record| out[record as usize])).collect()
    }

    /// Moves the watermark over the good records.
    fn follow(
        &self,
        input: &StageInput<'_>,
        offsets: &[i64],
        rows: &RecordBatch,
        good: &[u32],
        bad: &[Bad],
    ) -> Result<Option<Followed>, StageError> {
        let Some(event_time) = &self.event_time else { return Ok(None) };
        let records = &input.batch.records;
        let kafka = records.column_by_name(raw::TIMESTAMP).and_then(|column| column.as_primitive_opt());
        let bad = bad.iter().map(|bad| bad.row);
        let read = Read { kafka, now: input.now.saturating_mul(1_000), offsets, noted: input.noted };
        event_time.follow(rows, good, bad, read, input.watermark).map(Some).map_err(failed)
    }

    /// The watermark at which every window that closes is closed if it has no later time than this; `None`: that is not
    /// known.
    fn closed_after(&self, time: i64) -> Option<i64> {
        let mut latest = None;
        for branch in
            self.branches.iter().filter(|branch| branch.window.as_ref().is_some_and(|windowed| windowed.closes))
        {
            latest = latest.max(Some(branch.closed_after(time)?));
        }
        latest
    }
}

/// One metadata column of the good records.
fn metadata_column(
    metadata: Metadata,
    input: &StageInput<'_>,
    rows: usize,
    indices: Option<&UInt32Array>,
) -> Result<ArrayRef, StageError> {
    let record_column = |name: &str| -> Result<ArrayRef, StageError> {
        let column = input
            .batch
            .records
            .column_by_name(name)
            .ok_or_else(|| StageError::Failed(format!("the query uses {name}, but the batch does not have it")))?;
        match indices {
            None => Ok(Arc::clone(column)),
            Some(indices) => take(column, indices, None).map_err(failed),
        }
    };
    Ok(match metadata {
        Metadata::Topic => {
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(input.partition.topic.as_ref(), rows)))
        }
        Metadata::Partition => Arc::new(Int32Array::from_value(input.partition.key.partition, rows)),
        Metadata::Timestamp => {
            let column = record_column(raw::TIMESTAMP)?;
            match column.as_primitive_opt::<TimestampMillisecondType>() {
                // The same instant; a TIMESTAMP of a query is in UTC.
                Some(column) => Arc::new(column.clone().with_timezone_opt(None::<Arc<str>>)),
                None => column,
            }
        }
        Metadata::Offset | Metadata::Key | Metadata::Value | Metadata::Headers | Metadata::ProcessingTime => {
            record_column(metadata.name())?
        }
    })
}
