//! From the rows that a query keeps to what each lane carries: which shard has a row, whether it comes too late there, and
//! the partial aggregates.
//!
//! Whether a row is late is said by the watermark of its own partition before it, and by what its own shard has closed
//! early; and it is counted, and set aside, by the lane of that shard. So whatever a shard takes again after a crash, it
//! decides on each of its rows once, and no other shard needs to come to the same answer. (A record that can make several
//! rows is counted apart from them: see [`super::tally`].)

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{StageError, StageInput};

use super::branch::{Branch, Route, Selected};
use super::lanes::{Lanes, Late};
use super::notices::Notices;
use super::partial::Partial;
use super::routing::{KeyEncoder, by_offset, canonical};
use super::tally::Outcome;
use super::windows::event_time::{EventTime, Followed};
use super::windows::sessions;

/// What it takes to distribute rows; kept from batch to batch.
pub(super) struct Distributor {
    encoder: Option<KeyEncoder>,
    partial: Option<Partial>,
    /// If rows are grouped by sessions.
    sessions: Option<sessions::Keys>,
    late: Notices,
    late_closed: Notices,
}

/// Rows on their way, with the record that each was, and the shard of each as far as that was needed already.
struct OnTime {
    rows: RecordBatch,
    records: Vec<u32>,
    shards: Option<Vec<ShardId>>,
}

fn failed(error: impl std::fmt::Display) -> StageError {
    StageError::Failed(error.to_string())
}

impl Distributor {
    pub(super) fn new(branch: &Branch) -> Result<Self, String> {
        let encoder = match &branch.route {
            Route::Group(aggregation) => {
                let keys = aggregation.keys.project(&branch.routed(aggregation)).map_err(|e| e.to_string())?;
                Some(KeyEncoder::new(&Arc::new(keys)).map_err(|e| e.to_string())?)
            }
            Route::Key(_, schema) => Some(KeyEncoder::new(schema).map_err(|e| e.to_string())?),
            Route::Offset => None,
        };
        let partial = match &branch.route {
            Route::Group(aggregation) => {
                let window = branch.window.as_ref();
                let sliding = window.and_then(|window| window.sliding.as_ref());
                let single = sliding.is_none() && !window.is_some_and(|windowed| windowed.window.is_session());
                let aggregation = sliding.map_or(aggregation, |sliding| &sliding.shared);
                Some(Partial::new(aggregation, single).map_err(|e| e.to_string())?)
            }
            _ => None,
        };
        let sessions = match (&branch.route, branch.window.as_ref().filter(|windowed| windowed.window.is_session())) {
            (Route::Group(aggregation), Some(windowed)) => {
                Some(sessions::Keys::new(&aggregation.keys, windowed.column).map_err(|e| e.to_string())?)
            }
            _ => None,
        };
        Ok(Self { encoder, partial, sessions, late: Notices::default(), late_closed: Notices::default() })
    }

    /// Aggregates, finds the shard of every row or group, and sends it there.
    pub(super) fn distribute(
        &mut self,
        branch: &Branch,
        input: &StageInput<'_>,
        offsets: &[i64],
        selected: Selected,
        time: Option<(&EventTime, &Followed)>,
        lanes: &mut Lanes<'_>,
    ) -> Result<(), StageError> {
        let OnTime { mut rows, records, shards: known } =
            self.on_time(branch, input, offsets, selected, time, lanes)?;
        branch.counters.add(Outcome::Processed, records.len());
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let (Route::Group(aggregation), Some(partial), Some(encoder)) =
            (&branch.route, &mut self.partial, &self.encoder)
        else {
            let shards = match known {
                Some(shards) => shards,
                None => self.shards(branch, input, offsets, &rows, &records, lanes.shards())?,
            };
            shards.iter().for_each(|shard| lanes.processed(*shard, 1));
            return lanes.send(&rows, &shards, branch.insert).map_err(failed);
        };
        let sliding = branch.window.as_ref().and_then(|window| window.sliding.as_ref());
        if let Some(sliding) = sliding {
            let passed = |row: usize| {
                let own = time.map_or(i64::MIN, |(_, followed)| followed.before(records[row]));
                let shard =
                    known.as_ref().filter(|_| branch.closes()).and_then(|shards| input.closed[shards[row] as usize]);
                shard.map_or(own, |closed| closed.max(own))
            };
            rows = sliding.prepare(&rows, passed).map_err(failed)?;
        }
        if let Some(sessions) = &self.sessions {
            rows = sessions.gather(&rows).map_err(failed)?;
        }
        let shared = sliding.map_or(aggregation, |sliding| &sliding.shared);
        let (partial, sizes) = partial.aggregate(shared, &rows).map_err(failed)?;
        let keys: Vec<_> =
            branch.routed(aggregation).into_iter().map(|column| Arc::clone(partial.column(column))).collect();
        let shards = encoder.shards(&keys, partial.num_rows(), lanes.shards()).map_err(failed)?;
        shards.iter().zip(sizes).for_each(|(shard, size)| lanes.processed(*shard, size));
        let Some(sliding) = sliding else { return lanes.send(&partial, &shards, branch.insert).map_err(failed) };
        let (partial, origins) = sliding.spread(aggregation, &partial).map_err(failed)?;
        let shards: Vec<_> = origins.values().iter().map(|origin| shards[*origin as usize]).collect();
        lanes.send(&partial, &shards, branch.insert).map_err(failed)
    }

    /// The shard of each row.
    fn shards(
        &self,
        branch: &Branch,
        input: &StageInput<'_>,
        offsets: &[i64],
        rows: &RecordBatch,
        records: &[u32],
        shards: u32,
    ) -> Result<Vec<ShardId>, StageError> {
        let keys = |columns: &mut dyn Iterator<Item = usize>| -> Vec<ArrayRef> {
            columns.map(|column| canonical(rows.column(column))).collect()
        };
        let keys = match (&branch.route, &self.encoder) {
            (Route::Group(aggregation), Some(encoder)) => {
                Some((encoder, keys(&mut branch.routed(aggregation).into_iter())))
            }
            (Route::Key(columns, _), Some(encoder)) => Some((encoder, keys(&mut columns.iter().copied()))),
            _ => None,
        };
        match keys {
            Some((encoder, keys)) => encoder.shards(&keys, rows.num_rows(), shards).map_err(failed),
            None => {
                let key = &input.partition.key;
                Ok(records.iter().map(|record| by_offset(key, offsets[*record as usize], shards)).collect())
            }
        }
    }

    /// The rows that their shards still want and that do not come too late for them. The others are counted.
    fn on_time(
        &mut self,
        branch: &Branch,
        input: &StageInput<'_>,
        offsets: &[i64],
        selected: Selected,
        time: Option<(&EventTime, &Followed)>,
        lanes: &mut Lanes<'_>,
    ) -> Result<OnTime, StageError> {
        let Selected { rows, records, .. } = selected;
        let (event_time, followed) = time.unzip();
        // What several INSERTs may want has been settled before.
        let ahead = event_time.and_then(|event_time| event_time.ahead_rows).filter(|_| !lanes.several());
        // Below its lane's cut a row is dropped now: a partial aggregate cannot be cut. And where a shard may have closed
        // windows before the watermark of this partition let it, each row meets its own shard.
        let closed_early = branch.closes() && input.closed.iter().max().is_some_and(|closed| *closed > input.watermark);
        let every = lanes.cut() || closed_early;
        let ends = match followed {
            Some(followed) => branch.ends(&rows, &records, followed)?,
            None => Vec::new(),
        };
        let late = |row: usize| followed.is_some_and(|followed| ends[row] <= followed.before(records[row]));
        let is_ahead = |row: usize| ahead.is_some() && followed.is_some_and(|followed| followed.is_ahead(records[row]));
        let looked_at: Vec<u32> =
            (0..records.len() as u32).filter(|row| every || late(*row as usize) || is_ahead(*row as usize)).collect();
        if looked_at.is_empty() {
            lanes.came_to(records.iter().map(|record| (*record, Outcome::Processed)));
            return Ok(OnTime { rows, records, shards: every.then(Vec::new) });
        }
        let numbers: Vec<u32> = looked_at.iter().map(|row| records[*row as usize]).collect();
        let part = match every {
            true => rows.clone(),
            false => take_record_batch(&rows, &UInt32Array::from(looked_at.clone())).map_err(failed)?,
        };
        let shards = self.shards(branch, input, offsets, &part, &numbers, lanes.shards())?;
        let mut keep = vec![true; records.len()];
        let mut outcomes = vec![Outcome::Processed; records.len()];
        let mut too_late: [Vec<(u32, i64)>; 2] = Default::default();
        for ((row, record), shard) in looked_at.iter().zip(&numbers).zip(&shards) {
            let row = *row as usize;
            let closed = if closed_early { input.closed[*shard as usize].unwrap_or(i64::MIN) } else { i64::MIN };
            let own = followed.map_or(i64::MIN, |followed| followed.before(*record));
            let verdict = match event_time {
                Some(event_time) if late(row) => Some((Late::Own(own), event_time.late_rows)),
                Some(event_time) if closed_early && !branch.expiry.never_late() && ends[row] <= closed => {
                    Some((Late::Closed(closed), event_time.late_rows))
                }
                _ => None,
            };
            outcomes[row] = match verdict {
                Some((Late::Own(_), _)) => Outcome::Late,
                Some((Late::Closed(_), _)) => Outcome::LateClosed,
                None => Outcome::Processed,
            };
            keep[row] = false;
            if !lanes.wants(*shard, offsets[*record as usize]) {
                continue;
            }
            match (is_ahead(row).then_some(ahead).flatten(), verdict) {
                (Some(policy), _) => lanes.ahead_row(*shard, *record, policy)?,
                (None, Some((by, policy))) => {
                    lanes.late(*shard, *record, by, policy, &branch.table);
                    let (kind, mark) = match by {
                        Late::Own(own) => (0, own),
                        Late::Closed(closed) => (1, closed),
                    };
                    too_late[kind].push((*record, mark));
                }
                (None, None) => keep[row] = true,
            }
        }
        lanes.came_to(records.iter().copied().zip(outcomes));
        branch.counters.add(Outcome::Late, too_late[0].len());
        branch.counters.add(Outcome::LateClosed, too_late[1].len());
        self.late.late(input, offsets, &too_late[0]);
        self.late_closed.late_closed(input, offsets, &too_late[1]);
        let rows = match &branch.window {
            Some(life) if closed_early && branch.expiry.never_late() => {
                let forgotten = shards.iter().map(|shard| input.closed[*shard as usize]);
                branch.expiry.not_before(&rows, life.column, forgotten).map_err(failed)?
            }
            _ => rows,
        };
        if !keep.contains(&false) {
            return Ok(OnTime { rows, records, shards: every.then_some(shards) });
        }
        fn kept<T: Copy>(all: &[T], keep: &[bool]) -> Vec<T> {
            all.iter().zip(keep).filter(|(_, keep)| **keep).map(|(value, _)| *value).collect()
        }
        let (records, shards) = (kept(&records, &keep), every.then(|| kept(&shards, &keep)));
        let rows = filter_record_batch(&rows, &BooleanArray::from(keep)).map_err(failed)?;
        Ok(OnTime { rows, records, shards })
    }
}
