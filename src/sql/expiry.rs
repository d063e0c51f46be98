//! How long the state of a group is kept, as the source stage sees it.
//!
//! A group that is forgotten some time after its last row lives as a session of its rows: the stage gives each row the
//! interval from its time to the end of that span, and the operator merges the intervals of a group. Which rows belong to
//! one life is therefore a property of the times alone, not of when the state was removed.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, TimeUnit};
use datafusion::error::DataFusionError;
use strandline_actors::position::Watermark;

use super::pipeline::batch_of;
use super::windows::event_time::Followed;

/// The key column that holds the life of a group.
pub(super) const LIFE: &str = "life";

/// How long the state of a group is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Expiry {
    /// For ever, or until its window is closed.
    #[default]
    Never,
    /// Until the watermark has passed the event time that one of its columns holds.
    AtItsTime {
        /// The group expression that is the event time.
        group: usize,
    },
    /// So many nanoseconds after its last row.
    AfterLastRow {
        ttl: i64,
        /// The time is Kafka's and never goes back: within a partition, and behind what the shard of a row has forgotten. So
        /// no row is late. What is from the far future comes when the record before it came.
        by_arrival: bool,
    },
}

impl Expiry {
    /// The time of a record, if it has one.
    pub(super) fn time(&self, followed: &Followed, record: u32) -> Option<i64> {
        let (time, before) = (followed.time(record), followed.before(record));
        let time = match (self, followed.limit(record)) {
            // One from the far future would hold its group there, and all others of it would be before.
            (Self::AfterLastRow { by_arrival: true, .. }, Some(_)) if before > i64::MIN => before,
            (Self::AfterLastRow { .. }, Some(limit)) => limit.max(before),
            (Self::AfterLastRow { by_arrival: true, .. }, None) => time.max(before),
            _ => time,
        };
        (time > i64::MIN).then_some(time)
    }

    /// The lowest watermark at which the time of a record is past; `i64::MAX`: it has none. A time that never goes back is
    /// not past by the watermark of its own partition.
    pub(super) fn past(&self, followed: &Followed, record: u32) -> i64 {
        self.time(followed, record).map_or(i64::MAX, |time| time.saturating_add(1))
    }

    /// Whether no row comes too late for what its shard has forgotten.
    pub(super) fn never_late(&self) -> bool {
        matches!(self, Self::AfterLastRow { by_arrival: true, .. })
    }

    /// Puts the life that each row gives to its group behind the key columns. Every row has a time.
    pub(super) fn add_lives(
        &self,
        rows: &RecordBatch,
        records: &[u32],
        followed: &Followed,
        column: usize,
    ) -> Result<RecordBatch, DataFusionError> {
        let Self::AfterLastRow { ttl, .. } = self else { return Ok(rows.clone()) };
        let times = records.iter().map(|record| self.time(followed, *record).unwrap_or(i64::MIN));
        let lives = lives(times, *ttl)?;
        let mut columns = rows.columns().to_vec();
        columns.insert(column, lives);
        let mut fields = rows.schema().fields().to_vec();
        fields.insert(column, Arc::new(Field::new(LIFE, life_type(), true)));
        batch_of(&Arc::new(Schema::new(fields)), columns, rows.num_rows())
    }

    /// Lets the rows that would come before what their shards have forgotten come just then. A partition that is found later
    /// has such rows, and one of which the offsets were moved back: an old life that began anew would pass for the latest.
    /// (Of what another shard has forgotten nothing follows: that may be further on than this one ever was at these rows.)
    pub(super) fn not_before(
        &self,
        rows: &RecordBatch,
        column: usize,
        forgotten: impl Iterator<Item = Watermark>,
    ) -> Result<RecordBatch, DataFusionError> {
        let Self::AfterLastRow { ttl, .. } = self else { return Ok(rows.clone()) };
        let starts = cast(rows.column(column).as_struct().column(0), &DataType::Int64)?;
        let starts = starts.as_primitive::<Int64Type>().values().iter();
        let times = starts.zip(forgotten).map(|(start, forgotten)| forgotten.unwrap_or(i64::MIN).max(*start));
        let mut columns = rows.columns().to_vec();
        columns[column] = lives(times, *ttl)?;
        batch_of(&rows.schema(), columns, rows.num_rows())
    }
}

/// The lives that rows of these times give to their groups.
fn lives(times: impl Iterator<Item = i64>, ttl: i64) -> Result<ArrayRef, DataFusionError> {
    let (starts, ends): (Vec<_>, Vec<_>) = times.map(|time| (time, time.saturating_add(ttl))).unzip();
    let bound = |ticks: Vec<i64>| cast(&(Arc::new(Int64Array::from(ticks)) as ArrayRef), &instant());
    Ok(Arc::new(StructArray::try_new(bounds(), vec![bound(starts)?, bound(ends)?], None)?))
}

fn instant() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, None)
}

fn bounds() -> Fields {
    Fields::from(["start", "end"].map(|name| Field::new(name, instant(), true)).to_vec())
}

/// The type of the key column that holds the life of a group.
pub(super) fn life_type() -> DataType {
    DataType::Struct(bounds())
}
