//! What a batch carries down each lane, and how its offsets are counted.
//!
//! Every offset of the range is counted by exactly one lane, and by that lane only from its cut on. So whatever is sent
//! again after a crash, a shard's counts add up to the distance that its position moved. (Where a record can make several
//! rows, [`super::tally`] says what it counts as.)

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use arrow::error::ArrowError;
use chrono::DateTime;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{DeadLetter, LaneRows, StageError, StageInput, raw};
use strandline_actors::position::{Counts, Offset};

use super::options::BadRecords;
use super::routing;
use super::tally::Outcome;
use super::windows::event_time::LateRows;

/// The lanes of one batch.
pub(super) struct Lanes<'a> {
    input: &'a StageInput<'a>,
    offsets: &'a [i64],
    home: ShardId,
    lanes: Vec<LaneRows>,
    /// What each record came to, if it can make several rows.
    tally: Option<Vec<Outcome>>,
}

/// Why a record that is too far ahead is set aside.
pub(super) const TOO_FAR_AHEAD: &str = "its time is further ahead than 'watermark.max.ahead' allows";

/// The key in the metadata of a batch's schema under which it says for which of several INSERTs it is.
pub(super) const INSERT: &str = "insert";

/// A record that could not be processed: its row in the batch and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) row: usize,
    pub(super) reason: String,
    /// What is done with it.
    pub(super) policy: BadRecords,
}

/// By what a row is late, and where that was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Late {
    /// By the watermark of its own partition.
    Own(i64),
    /// By what its shard had closed while its partition was quiet, or before it was found.
    Closed(i64),
}

impl<'a> Lanes<'a> {
    /// `several` says that a record can make several rows.
    pub(super) fn new(input: &'a StageInput<'a>, offsets: &'a [i64], several: bool) -> Self {
        let shards = input.cuts.len();
        let home = routing::home(&input.partition.key, shards as u32);
        let tally = several.then(|| vec![Outcome::Nothing; offsets.len()]);
        Self { input, offsets, home, lanes: vec![LaneRows::default(); shards], tally }
    }

    /// Notes what one row of a record came to.
    fn note(&mut self, record: u32, outcome: Outcome) {
        if let Some(noted) = self.tally.as_mut().and_then(|tally| tally.get_mut(record as usize)) {
            *noted = outcome.max(*noted);
        }
    }

    /// Notes what the rows of records came to, whether or not their lanes still want them.
    pub(super) fn came_to(&mut self, records: impl Iterator<Item = (u32, Outcome)>) {
        if self.tally.is_some() {
            records.for_each(|(record, outcome)| self.note(record, outcome));
        }
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
    pub(super) fn wants(&self, lane: ShardId, offset: i64) -> bool {
        self.input.cuts[lane as usize].is_some_and(|Offset(cut)| offset >= cut)
    }

    /// How many of these records the home lane counts.
    fn home_count(&self, records: impl Iterator<Item = usize>) -> u64 {
        records.filter(|record| self.wants(self.home, self.offsets[*record])).count() as u64
    }

    /// Counts the offsets of the range that carry no record. Those that carry none any more are counted by whoever knows all lanes.
    pub(super) fn gaps(&mut self) {
        if self.input.batch.lost {
            return;
        }
        let Some(cut) = self.input.cuts[self.home as usize] else { return };
        let range = self.input.batch.range;
        let from = range.from.max(cut);
        if from < range.until {
            let records = self.offsets.len() - self.offsets.partition_point(|offset| *offset < from.0);
            self.lanes[self.home as usize].counts.gaps += (range.until.0 - from.0) as u64 - records as u64;
        }
    }

    /// Counts records without a value.
    pub(super) fn tombstones(&mut self, records: impl Iterator<Item = usize>) {
        let count = self.home_count(records);
        self.lanes[self.home as usize].counts.tombstones += count;
    }

    /// Counts records that a query left out. Answers how many there were.
    pub(super) fn filtered(&mut self, records: &[u32]) -> usize {
        let count = self.home_count(records.iter().map(|record| *record as usize));
        match self.tally.is_some() {
            true => records.iter().for_each(|record| self.note(*record, Outcome::Filtered)),
            false => self.lanes[self.home as usize].counts.filtered += count,
        }
        count as usize
    }

    /// Marks records that were too far ahead to move the watermark.
    pub(super) fn ahead(&mut self, records: impl Iterator<Item = usize>) {
        let count = self.home_count(records);
        self.lanes[self.home as usize].counts.ahead += count;
    }

    /// Sets a row of a lane aside that is too far ahead.
    pub(super) fn ahead_row(&mut self, lane: ShardId, record: u32, policy: BadRecords) -> Result<(), StageError> {
        self.set_aside(lane, Bad { row: record as usize, reason: TOO_FAR_AHEAD.to_owned(), policy })
    }

    /// Whether a record can make several rows.
    pub(super) fn several(&self) -> bool {
        self.tally.is_some()
    }

    /// Counts a row of a lane that is late there, and sets it aside if that is the policy.
    pub(super) fn late(&mut self, lane: ShardId, record: u32, late: Late, policy: LateRows, table: &str) {
        let shown = |time: i64| DateTime::from_timestamp_nanos(time).format("%FT%T%.fZ");
        let mut none = Counts::default();
        // A record that can make several rows is counted once, at the end; its letter says which of them was late.
        let (counts, whose) = match self.tally.is_some() {
            true => (&mut none, format!(" for {table}")),
            false => (&mut self.lanes[lane as usize].counts, String::new()),
        };
        let reason = match late {
            Late::Own(watermark) => {
                counts.late += 1;
                format!("late{whose}: the watermark of its partition was at {} before it", shown(watermark))
            }
            Late::Closed(closed) => {
                counts.late_closed += 1;
                let up_to = shown(closed);
                format!("late{whose}: windows were closed up to {up_to} while its partition was quiet or not yet found")
            }
        };
        if policy == LateRows::DeadLetter {
            let letter = self.dead_letter(record as usize, reason);
            self.lanes[lane as usize].dead_letters.push(letter);
        }
    }

    /// Counts rows that reached the operator.
    pub(super) fn processed(&mut self, lane: ShardId, rows: u64) {
        if self.tally.is_none() {
            self.lanes[lane as usize].counts.processed += rows;
        }
    }

    /// Gives each bad record to the lane that owns it.
    pub(super) fn bad(&mut self, mut records: Vec<Bad>) -> Result<(), StageError> {
        records.sort_by_key(|bad| bad.row);
        records.dedup_by_key(|bad| bad.row);
        for bad in records {
            let lane = routing::by_offset(&self.input.partition.key, self.offsets[bad.row], self.shards());
            if self.wants(lane, self.offsets[bad.row]) {
                self.set_aside(lane, bad)?;
            }
        }
        Ok(())
    }

    fn set_aside(&mut self, lane: ShardId, Bad { row, reason, policy }: Bad) -> Result<(), StageError> {
        let (offset, partition) = (self.offsets[row], &self.input.partition);
        match policy {
            BadRecords::Fail => {
                let why = format!(
                    "{partition} stops at offset {offset}: {reason}. The table's options say 'fail' for such records; set \
                     'bad.records' (or 'null.value' for records without a value) to 'dead-letter' or 'skip' to go on"
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

    /// Splits rows by their shards. `insert` says for which of several INSERTs they are.
    pub(super) fn send(
        &mut self,
        rows: &RecordBatch,
        shards: &[ShardId],
        insert: Option<usize>,
    ) -> Result<(), ArrowError> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let tagged;
        let rows = match insert {
            Some(insert) => {
                let metadata = [(INSERT.to_owned(), insert.to_string())].into();
                tagged = rows.clone().with_schema(Arc::new(rows.schema().as_ref().clone().with_metadata(metadata)))?;
                &tagged
            }
            None => rows,
        };
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
    pub(super) fn finish(mut self) -> Vec<LaneRows> {
        let tally = self.tally.take().unwrap_or_default();
        for (offset, outcome) in self.offsets.iter().zip(tally).filter(|(_, outcome)| *outcome != Outcome::Nothing) {
            // That no query wants it is known of the record alone, like that it has no value.
            let lane = match outcome {
                Outcome::Filtered => self.home,
                _ => routing::by_offset(&self.input.partition.key, *offset, self.shards()),
            };
            if !self.wants(lane, *offset) {
                continue;
            }
            let counts = &mut self.lanes[lane as usize].counts;
            match outcome {
                Outcome::Nothing => {}
                Outcome::Filtered => counts.filtered += 1,
                Outcome::LateClosed => counts.late_closed += 1,
                Outcome::Late => counts.late += 1,
                Outcome::Processed => counts.processed += 1,
            }
        }
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
