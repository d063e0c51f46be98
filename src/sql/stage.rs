//! The first half of the query, on one partition: from undecoded records to what each lane carries.
//!
//! Everything works on whole batches. The result is a pure function of the records and the cuts: where the log was cut
//! into batches changes nothing but the number of partial aggregates that the same rows come in.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int32Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{concat_batches, filter, filter_record_batch, take};
use arrow::datatypes::{SchemaRef, TimestampMillisecondType};
use datafusion::error::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use strandline_actors::ports::{SourceStage, StageError, StageInput, StageOutput, raw};
use strandline_actors::position::SourcePartition;
use strandline_actors::spans;

use super::aggregation::Aggregation;
use super::bisect::{Evaluated, evaluate};
use super::decode::{Decoder, Decoding};
use super::expiry::Expiry;
use super::lanes::{Bad, Lanes, offsets};
use super::metadata::Metadata;
use super::notices::Notices;
use super::options::{BadRecords, NullValue};
use super::partial::Partial;
use super::pipeline::{Passed, Pipeline, batch_of, conform};
use super::routing::{KeyEncoder, by_offset, canonical};
use super::windows::Window;
use super::windows::event_time::{EventTime, Followed};
use super::windows::sessions;
use super::windows::sliding::{Sliding, ticks};

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

/// By what a row finds its shard.
#[derive(Clone, Debug)]
pub(super) enum Route {
    /// By its group: the first columns of the prepared rows.
    Group(Aggregation),
    /// By the columns of the sink's primary key.
    Key(Vec<usize>, SchemaRef),
    /// By where it was read.
    Offset,
}

/// The window by which rows are grouped.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    pub(super) window: Window,
    /// The key column that holds the start of a row's last window.
    pub(super) column: usize,
    /// If a row can be in several.
    pub(super) sliding: Option<Sliding>,
}

/// The first half of a query, as planned.
#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub(super) decoding: Decoding,
    pub(super) columns: SchemaRef,
    pub(super) origins: Vec<Origin>,
    pub(super) rules: Vec<Rule>,
    pub(super) pipeline: Pipeline,
    pub(super) route: Route,
    pub(super) event_time: Option<EventTime>,
    /// The window of the groups, or their life.
    pub(super) window: Option<Windowed>,
    pub(super) expiry: Expiry,
    /// The groups by which rows find their shard, if not all of them.
    pub(super) routed: Option<Vec<usize>>,
    pub(super) bad_records: BadRecords,
    pub(super) null_value: NullValue,
}

/// The stage of one partition.
pub(super) struct BatchStage {
    plan: Arc<StagePlan>,
    /// What can only be made once the plan runs; kept from batch to batch.
    tools: Result<Tools, String>,
}

struct Tools {
    decoder: Decoder,
    encoder: Option<KeyEncoder>,
    partial: Option<Partial>,
    /// If rows are grouped by sessions.
    sessions: Option<sessions::Keys>,
    lateness: Notices,
    ahead: Notices,
}

/// What became of the good records of a batch.
struct Selected {
    rows: RecordBatch,
    /// Which record each row was.
    records: Vec<u32>,
    /// Records that the query left out.
    filtered: Vec<u32>,
}

/// What one evaluation of a batch gave.
struct Part {
    passed: Passed,
    /// Rows that break a rule, with the number of the rule.
    broken: Vec<(usize, usize)>,
    /// Which of the rows went on to the steps; `None`: all.
    kept: Option<Vec<u32>>,
}

impl BatchStage {
    /// A stage that has seen nothing yet.
    pub(super) fn new(plan: Arc<StagePlan>, _partition: &SourcePartition) -> Self {
        let tools = Tools::new(&plan);
        Self { plan, tools }
    }
}

impl Tools {
    fn new(plan: &StagePlan) -> Result<Self, String> {
        let encoder = match &plan.route {
            Route::Group(aggregation) => {
                let keys = aggregation.keys.project(&plan.routed(aggregation)).map_err(|e| e.to_string())?;
                Some(KeyEncoder::new(&Arc::new(keys)).map_err(|e| e.to_string())?)
            }
            Route::Key(_, schema) => Some(KeyEncoder::new(schema).map_err(|e| e.to_string())?),
            Route::Offset => None,
        };
        let partial = match &plan.route {
            Route::Group(aggregation) => {
                let window = plan.window.as_ref();
                let sliding = window.and_then(|window| window.sliding.as_ref());
                let single = sliding.is_none() && !window.is_some_and(|windowed| windowed.window.is_session());
                let aggregation = sliding.map_or(aggregation, |sliding| &sliding.shared);
                Some(Partial::new(aggregation, single).map_err(|e| e.to_string())?)
            }
            _ => None,
        };
        let sessions = match (&plan.route, plan.window.as_ref().filter(|windowed| windowed.window.is_session())) {
            (Route::Group(aggregation), Some(windowed)) => {
                Some(sessions::Keys::new(&aggregation.keys, windowed.column).map_err(|e| e.to_string())?)
            }
            _ => None,
        };
        let (lateness, ahead) = (Notices::default(), Notices::default());
        Ok(Self { decoder: plan.decoding.decoder()?, encoder, partial, sessions, lateness, ahead })
    }
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl SourceStage for BatchStage {
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError> {
        let plan = Arc::clone(&self.plan);
        let tools = self.tools.as_mut().map_err(|error| StageError::Failed(error.clone()))?;
        let records = &input.batch.records;
        let offsets = offsets(records)?;
        let mut lanes = Lanes::new(&input, offsets);
        if let (Some(event_time), Some(quiet), true) = (&plan.event_time, input.quiet, input.batch.range.is_empty()) {
            let window = plan.window.as_ref().map(|windowed| &windowed.window);
            let (watermark, idle) = event_time.quiet(quiet, window, input.watermark);
            return Ok(StageOutput { lanes: lanes.finish(), watermark, idle });
        }
        // What is below every cut concerns nobody any more.
        let Some(lowest) = input.cuts.iter().flatten().min() else {
            return Ok(StageOutput { lanes: lanes.finish(), watermark: input.watermark, idle: false });
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
        let selected = plan.select(&rows, &decoded.good, &mut bad)?;
        lanes.filtered(selected.filtered.iter().map(|record| *record as usize));
        let followed = plan.follow(&input, &rows, &decoded.good, &bad)?;
        let selected = plan.timed(selected, followed.as_ref(), &mut bad)?;
        let selected = plan.timely(selected, followed.as_ref(), &mut bad, |late| {
            tools.lateness.late(&input, offsets, late);
            if let Some(event_time) = &plan.event_time {
                lanes.late(late, event_time.late_rows);
            }
        })?;
        lanes.bad(bad)?;
        if let Some(followed) = &followed {
            tools.ahead.ahead(&input, offsets, &followed.ahead);
        }
        let watermark = followed.as_ref().map_or(input.watermark, |followed| followed.after);
        tools
            .distribute(&plan, &input, offsets, selected, followed.as_ref(), &mut lanes)
            .inspect_err(|_| self.tools = Tools::new(&plan))?;
        Ok(StageOutput { lanes: lanes.finish(), watermark, idle: false })
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
                    let column = metadata_column(*metadata, input, good.len(), indices.as_ref())?;
                    conform(column, field.data_type()).map_err(failed)
                }
            })
            .collect::<Result<Vec<_>, StageError>>()?;
        batch_of(&self.columns, columns, good.len()).map_err(failed)
    }

    /// Takes good records through the rules and the steps.
    fn select(&self, rows: &RecordBatch, good: &[u32], bad: &mut Vec<Bad>) -> Result<Selected, StageError> {
        let Evaluated { parts, failed: unevaluated } = evaluate(rows, |rows| self.part(rows));
        let mut batches = Vec::with_capacity(parts.len());
        let mut records = Vec::with_capacity(rows.num_rows());
        let mut settled = vec![false; if self.pipeline.has_filter() { rows.num_rows() } else { 0 }];
        for (start, part) in parts {
            for (row, rule) in part.broken {
                settle(&mut settled, start + row);
                bad.push(Bad {
                    row: good[start + row] as usize,
                    reason: format!("breaks rule {}", self.rules[rule].name),
                    policy: self.bad_records,
                });
            }
            if rows.num_rows() == part.passed.rows.num_rows() {
                records.extend_from_slice(good);
                settled.fill(true);
                batches.push(part.passed.rows);
                continue;
            }
            for row in 0..part.passed.rows.num_rows() {
                let kept = part.passed.origin(row);
                let row = start + part.kept.as_ref().map_or(kept, |rows| rows[kept] as usize);
                settle(&mut settled, row);
                records.push(good[row]);
            }
            batches.push(part.passed.rows);
        }
        for (row, reason) in unevaluated {
            settle(&mut settled, row);
            bad.push(Bad { row: good[row] as usize, reason, policy: self.bad_records });
        }
        let filtered = settled.iter().zip(good).filter(|(settled, _)| !**settled).map(|(_, record)| *record).collect();
        let rows = match batches.as_slice() {
            [] => self.pipeline.run(&rows.slice(0, 0)).map_err(failed)?.rows,
            [only] => only.clone(),
            [first, ..] => concat_batches(&first.schema(), &batches).map_err(failed)?,
        };
        Ok(Selected { rows, records, filtered })
    }

    /// Moves the watermark over the good records.
    fn follow(
        &self,
        input: &StageInput<'_>,
        rows: &RecordBatch,
        good: &[u32],
        bad: &[Bad],
    ) -> Result<Option<Followed>, StageError> {
        let Some(event_time) = &self.event_time else { return Ok(None) };
        let records = &input.batch.records;
        let kafka = records.column_by_name(raw::TIMESTAMP).and_then(|column| column.as_primitive_opt());
        let bad = bad.iter().map(|bad| bad.row);
        event_time.follow(rows, good, bad, kafka, records.num_rows(), input.watermark).map(Some).map_err(failed)
    }

    /// Leaves out the rows of which it cannot be known how long they count, since they have no time; gives the others
    /// the life of their group, if groups have one.
    fn timed(
        &self,
        selected: Selected,
        followed: Option<&Followed>,
        bad: &mut Vec<Bad>,
    ) -> Result<Selected, StageError> {
        let (Some(followed), false) = (followed, self.expiry == Expiry::Never) else { return Ok(selected) };
        let Selected { mut rows, mut records, filtered } = selected;
        let keep: Vec<_> = records.iter().map(|record| self.expiry.time(followed, *record).is_some()).collect();
        if keep.contains(&false) {
            for (record, _) in records.iter().zip(&keep).filter(|(_, keep)| !**keep) {
                bad.push(Bad {
                    row: *record as usize,
                    reason: "it cannot be known when its state may be forgotten, since its time is NULL".to_owned(),
                    policy: self.bad_records,
                });
            }
            let mut kept = keep.iter();
            records.retain(|_| kept.next().is_some_and(|keep| *keep));
            rows = filter_record_batch(&rows, &BooleanArray::from(keep)).map_err(failed)?;
        }
        if let Some(windowed) = &self.window {
            rows = self.expiry.add_lives(&rows, &records, followed, windowed.column).map_err(failed)?;
        }
        Ok(Selected { rows, records, filtered })
    }

    /// Leaves out the rows that have no window, which are bad, and those that are late.
    fn timely(
        &self,
        selected: Selected,
        followed: Option<&Followed>,
        bad: &mut Vec<Bad>,
        late: impl FnOnce(&[(u32, i64)]),
    ) -> Result<Selected, StageError> {
        let Selected { rows, records, .. } = &selected;
        let mut keep = vec![true; records.len()];
        let mut is_late = match (&self.window, followed) {
            (Some(windowed), _) => {
                let windows = rows.column(windowed.column);
                if windows.null_count() > 0 {
                    for row in (0..windows.len()).filter(|row| windows.is_null(*row)) {
                        keep[row] = false;
                        bad.push(Bad {
                            row: records[row] as usize,
                            reason: "its window cannot be known, since its time (or gap) is NULL or out of range"
                                .to_owned(),
                            policy: self.bad_records,
                        });
                    }
                }
                match followed {
                    // A time that never goes back is never late.
                    Some(_) if matches!(self.expiry, Expiry::AfterLastRow { by_arrival: true, .. }) => None,
                    // So a row that is on time never belongs to a session that is closed.
                    Some(followed) if windowed.window.is_session() => Some(followed.late_times(records)),
                    Some(followed) => {
                        let starts = ticks(windows).map_err(failed)?;
                        Some(followed.late_windows(&windowed.window, starts.values(), records))
                    }
                    None => None,
                }
            }
            (None, followed) => followed.map(|followed| followed.late_times(records)),
        };
        if let (Some(is_late), Some(followed)) = (&mut is_late, followed) {
            is_late.iter_mut().zip(&keep).for_each(|(late, kept)| *late &= *kept);
            if is_late.contains(&true) {
                let rows = records.iter().zip(is_late.iter()).filter(|(_, late)| **late);
                late(&rows.map(|(record, _)| (*record, followed.before(*record))).collect::<Vec<_>>());
                keep.iter_mut().zip(is_late.iter()).for_each(|(keep, late)| *keep &= !late);
            }
        }
        if !keep.contains(&false) {
            return Ok(selected);
        }
        let kept = records.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(record, _)| *record).collect();
        let rows = filter_record_batch(rows, &BooleanArray::from(keep)).map_err(failed)?;
        Ok(Selected { rows, records: kept, filtered: Vec::new() })
    }

    /// The key columns by which a group finds its shard: all but its window, so that a row of several windows has one.
    fn routed(&self, aggregation: &Aggregation) -> Vec<usize> {
        if let Some(routed) = &self.routed {
            return routed.clone();
        }
        let window = self.window.as_ref().map(|window| window.column);
        (0..aggregation.key_columns()).filter(|column| Some(*column) != window).collect()
    }

    /// One evaluation of the rules and the steps. As with CHECK in SQL, a condition that is NULL is not broken.
    fn part(&self, rows: &RecordBatch) -> Result<Part, DataFusionError> {
        let mut broken = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            let value = rule.condition.evaluate(rows)?.into_array(rows.num_rows())?;
            let value = value.as_boolean();
            if value.true_count() + value.null_count() < rows.num_rows() {
                let rows = (0..rows.num_rows()).filter(|row| value.is_valid(*row) && !value.value(*row));
                broken.extend(rows.map(|row| (row, number)));
            }
        }
        if broken.is_empty() {
            return Ok(Part { passed: self.pipeline.run(rows)?, broken, kept: None });
        }
        // A record that breaks several rules is named after the first.
        broken.sort_unstable();
        broken.dedup_by_key(|(row, _)| *row);
        let mut sound = vec![true; rows.num_rows()];
        broken.iter().for_each(|(row, _)| sound[*row] = false);
        let kept = (0..rows.num_rows()).filter(|row| sound[*row]).map(|row| row as u32).collect();
        let rows = filter_record_batch(rows, &sound.into())?;
        Ok(Part { passed: self.pipeline.run(&rows)?, broken, kept: Some(kept) })
    }
}

impl Tools {
    /// Aggregates, finds the shard of every row or group, and sends it there.
    fn distribute(
        &mut self,
        plan: &StagePlan,
        input: &StageInput<'_>,
        offsets: &[i64],
        selected: Selected,
        followed: Option<&Followed>,
        lanes: &mut Lanes<'_>,
    ) -> Result<(), StageError> {
        let Selected { mut rows, records, .. } = selected;
        let sliding = plan.window.as_ref().and_then(|window| window.sliding.as_ref());
        if let Some(sliding) = sliding {
            rows = sliding.prepare(&rows, &records, followed).map_err(failed)?;
        }
        let shards = lanes.shards();
        let of_rows = |encoder: &Option<KeyEncoder>, rows: &RecordBatch, records: &[u32]| {
            let count = rows.num_rows();
            let keys = |columns: &mut dyn Iterator<Item = usize>| -> Vec<ArrayRef> {
                columns.map(|column| canonical(rows.column(column))).collect()
            };
            match (&plan.route, encoder) {
                (Route::Group(aggregation), Some(encoder)) => {
                    encoder.shards(&keys(&mut plan.routed(aggregation).into_iter()), count, shards)
                }
                (Route::Key(columns, _), Some(encoder)) => {
                    encoder.shards(&keys(&mut columns.iter().copied()), count, shards)
                }
                _ => {
                    let key = &input.partition.key;
                    Ok(records.iter().map(|record| by_offset(key, offsets[*record as usize], shards)).collect())
                }
            }
        };
        let mut routed = None;
        if lanes.cut() {
            // Rows below their lane's cut are dropped now: a partial aggregate cannot be cut.
            let of_rows = of_rows(&self.encoder, &rows, &records).map_err(failed)?;
            let wanted = lanes.wanted(&of_rows, &records);
            let routed_rows = UInt32Array::from(of_rows);
            let kept = filter(&routed_rows, &wanted).map_err(failed)?;
            routed = Some(kept.as_primitive::<arrow::datatypes::UInt32Type>().values().to_vec());
            rows = filter_record_batch(&rows, &wanted).map_err(failed)?;
        }
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let (Route::Group(aggregation), Some(partial), Some(encoder)) = (&plan.route, &mut self.partial, &self.encoder)
        else {
            let shards = match routed {
                Some(shards) => shards,
                None => of_rows(&self.encoder, &rows, &records).map_err(failed)?,
            };
            shards.iter().for_each(|shard| lanes.processed(*shard, 1));
            return lanes.send(&rows, &shards).map_err(failed);
        };
        if let Some(sessions) = &self.sessions {
            rows = sessions.gather(&rows).map_err(failed)?;
        }
        let shared = sliding.map_or(aggregation, |sliding| &sliding.shared);
        let (partial, sizes) = partial.aggregate(shared, &rows).map_err(failed)?;
        let keys: Vec<_> =
            plan.routed(aggregation).into_iter().map(|column| Arc::clone(partial.column(column))).collect();
        let shards = encoder.shards(&keys, partial.num_rows(), shards).map_err(failed)?;
        shards.iter().zip(sizes).for_each(|(shard, size)| lanes.processed(*shard, size));
        let Some(sliding) = sliding else { return lanes.send(&partial, &shards).map_err(failed) };
        let (partial, origins) = sliding.spread(aggregation, &partial).map_err(failed)?;
        let shards: Vec<_> = origins.values().iter().map(|origin| shards[*origin as usize]).collect();
        lanes.send(&partial, &shards).map_err(failed)
    }
}

fn settle(settled: &mut [bool], row: usize) {
    if let Some(settled) = settled.get_mut(row) {
        *settled = true;
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
        Metadata::Offset | Metadata::Key | Metadata::Value | Metadata::Headers => record_column(metadata.name())?,
    })
}
