//! What a batch carries down each lane, and how its offsets are counted.
//!
//! Every offset of the range is counted by exactly one lane, and by that lane only from its cut on. So whatever is sent
//! again after a crash, a shard's counts add up to the distance that its position moved.

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use arrow::error::ArrowError;
use chrono::DateTime;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{DeadLetter, LaneRows, StageError, StageInput, raw};
use strandline_actors::position::Offset;

use super::options::BadRecords;
use super::routing;
use super::windows::event_time::LateRows;

/// The lanes of one batch.
pub(super) struct Lanes<'a> {
    input: &'a StageInput<'a>,
    offsets: &'a [i64],
    home: ShardId,
    lanes: Vec<LaneRows>,
}

/// A record that could not be processed: its row in the batch and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) row: usize,
    pub(super) reason: String,
    /// What is done with it.
    pub(super) policy: BadRecords,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(input: &'a StageInput<'a>, offsets: &'a [i64]) -> Self {
        let shards = input.cuts.len();
        let home = routing::home(&input.partition.key, shards as u32);
        Self { input, offsets, home, lanes: vec![LaneRows::default(); shards] }
    }

    /// The number of shards.
    pub(super) fn shards(&self) -> u32 {
        self.lanes.len() as u32
    }

    /// Whether some rows of the batch may be below a lane's cut, or belong to a lane that is off.
    pub(super) fn cut(&self) -> bool {
        let from = self.input.batch.range.from;
        self.input.cuts.iter().any(|cut| cut.is_none_or(|cut| cut > from))
    }

    /// Whether a lane still wants an offset.
    fn wants(&self, lane: ShardId, offset: i64) -> bool {
        self.input.cuts[lane as usize].is_some_and(|Offset(cut)| offset >= cut)
    }

    /// Which rows are still wanted by their lanes; `records` says which record each was.
    pub(super) fn wanted(&self, shards: &[ShardId], records: &[u32]) -> BooleanArray {
        let wanted =
            shards.iter().zip(records).map(|(shard, record)| self.wants(*shard, self.offsets[*record as usize]));
        BooleanArray::from_iter(wanted.map(Some))
    }

    /// How many of these records the home lane counts.
    fn home_count(&self, records: impl Iterator<Item = usize>) -> u64 {
        records.filter(|record| self.wants(self.home, self.offsets[*record])).count() as u64
    }

    /// Counts the offsets of the range that carry no record, or no record any more.
    pub(super) fn gaps(&mut self) {
        let Some(cut) = self.input.cuts[self.home as usize] else { return };
        let range = self.input.batch.range;
        let from = range.from.max(cut);
        if from < range.until {
            let records = self.offsets.len() - self.offsets.partition_point(|offset| *offset < from.0);
            let counts = &mut self.lanes[self.home as usize].counts;
            let count = if self.input.batch.lost { &mut counts.lost } else { &mut counts.gaps };
            *count += (range.until.0 - from.0) as u64 - records as u64;
        }
    }

    /// Counts records without a value.
    pub(super) fn tombstones(&mut self, records: impl Iterator<Item = usize>) {
        let count = self.home_count(records);
        self.lanes[self.home as usize].counts.tombstones += count;
    }

    /// Counts records that the query left out.
    pub(super) fn filtered(&mut self, records: impl Iterator<Item = usize>) {
        let count = self.home_count(records);
        self.lanes[self.home as usize].counts.filtered += count;
    }

    /// Counts late records. Those that are kept aside belong to the lane that a bad record would belong to.
    pub(super) fn late(&mut self, records: &[(u32, i64)], policy: LateRows) {
        match policy {
            LateRows::Drop => {
                let count = self.home_count(records.iter().map(|(record, _)| *record as usize));
                self.lanes[self.home as usize].counts.late += count;
            }
            LateRows::DeadLetter => {
                for (record, watermark) in records {
                    let row = *record as usize;
                    let lane = routing::by_offset(&self.input.partition.key, self.offsets[row], self.shards());
                    if self.wants(lane, self.offsets[row]) {
                        let reason = format!(
                            "late: the watermark of its partition was at {} before it",
                            DateTime::from_timestamp_nanos(*watermark).format("%FT%T%.fZ")
                        );
                        let letter = self.dead_letter(row, reason);
                        let lane = &mut self.lanes[lane as usize];
                        lane.counts.late += 1;
                        lane.dead_letters.push(letter);
                    }
                }
            }
        }
    }

    /// Counts rows that reached the operator.
    pub(super) fn processed(&mut self, lane: ShardId, rows: u64) {
        self.lanes[lane as usize].counts.processed += rows;
    }

    /// Gives each bad record to the lane that owns it.
    pub(super) fn bad(&mut self, mut records: Vec<Bad>) -> Result<(), StageError> {
        records.sort_by_key(|bad| bad.row);
        for Bad { row, reason, policy } in records {
            let offset = self.offsets[row];
            let partition = &self.input.partition;
            let lane = routing::by_offset(&partition.key, offset, self.shards());
            if !self.wants(lane, offset) {
                continue;
            }
            match policy {
                BadRecords::Fail => {
                    let why = format!(
                        "{partition} stops at offset {offset}: {reason}. The table's options say 'fail' for such records; \
                         set 'bad.records' (or 'null.value' for records without a value) to 'dead-letter' or 'skip' to \
                         go on"
                    );
                    return Err(StageError::Refused { at: Offset(offset), why });
                }
                BadRecords::Skip => self.lanes[lane as usize].counts.skipped += 1,
                BadRecords::DeadLetter => {
                    let letter = self.dead_letter(row, reason);
                    let lane = &mut self.lanes[lane as usize];
                    lane.counts.dead_lettered += 1;
                    lane.dead_letters.push(letter);
                }
            }
        }
        Ok(())
    }

    fn dead_letter(&self, row: usize, reason: String) -> DeadLetter {
        let records = &self.input.batch.records;
        let bytes = |column: &str| {
            let column = records.column_by_name(column)?.as_binary_opt::<i32>()?;
            column.is_valid(row).then(|| column.value(row).to_vec())
        };
        let timestamp = records
            .column_by_name(raw::TIMESTAMP)
            .and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>())
            .filter(|column| column.is_valid(row))
            .map_or(-1, |column| column.value(row));
        DeadLetter {
            topic: self.input.partition.topic.to_string(),
            partition: self.input.partition.key,
            offset: self.offsets[row],
            timestamp,
            reason,
            key: bytes(raw::KEY),
            value: bytes(raw::VALUE),
        }
    }

    /// Splits rows by their shards.
    pub(super) fn send(&mut self, rows: &RecordBatch, shards: &[ShardId]) -> Result<(), ArrowError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        if let [lane] = self.lanes.as_mut_slice() {
            lane.rows.push(rows.clone());
            return Ok(());
        }
        let mut split = vec![Vec::new(); self.lanes.len()];
        for (row, shard) in shards.iter().enumerate() {
            split[*shard as usize].push(row as u32);
        }
        for (lane, indices) in self.lanes.iter_mut().zip(split) {
            if indices.len() == rows.num_rows() {
                lane.rows.push(rows.clone());
            } else if !indices.is_empty() {
                lane.rows.push(take_record_batch(rows, &UInt32Array::from(indices))?);
            }
        }
        Ok(())
    }

    /// What the lanes carry.
    pub(super) fn finish(self) -> Vec<LaneRows> {
        self.lanes
    }
}

/// The offsets of a batch's records.
pub(super) fn offsets(records: &RecordBatch) -> Result<&[i64], StageError> {
    records
        .column_by_name(raw::OFFSET)
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .map(|column| column.values().as_ref())
        .ok_or_else(|| StageError::Failed(format!("the batch has no column {}", raw::OFFSET)))
}
