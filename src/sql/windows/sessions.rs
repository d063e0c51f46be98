//! Sessions: rows of a key with no pause between them that is longer than the gap.
//!
//! A row with its gap is an interval. Intervals of one key that overlap, or touch at exactly the gap, are one session, so
//! sessions are what is left when all have been merged, in whatever order they came. A batch is merged before it is
//! aggregated; an operator merges what comes with the sessions that it keeps. A session is closed only when the watermark is
//! *past* its end: then a row that could still touch it would be before the watermark of its partition, and late.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;

use super::sliding::ticks;
use crate::sql::routing::{KeyEncoder, canonical};

/// The bounds of sessions in ticks.
pub(in crate::sql) struct Bounds {
    pub(in crate::sql) starts: Int64Array,
    pub(in crate::sql) ends: Int64Array,
}

impl Bounds {
    /// Those of a column of sessions.
    pub(in crate::sql) fn of(column: &ArrayRef) -> Result<Self, DataFusionError> {
        match column.as_struct_opt().map(|sessions| sessions.columns()) {
            Some([start, end]) => Ok(Self { starts: ticks(start)?, ends: ticks(end)? }),
            _ => Err(DataFusionError::Internal(format!("{} is no session", column.data_type()))),
        }
    }

    fn get(&self, row: usize) -> (i64, i64) {
        (self.starts.value(row), self.ends.value(row))
    }
}

/// A column of sessions.
pub(in crate::sql) fn column(sessions: &[(i64, i64)], data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(fields) = data_type else {
        return Err(ArrowError::SchemaError(format!("{data_type} is no session")));
    };
    let bound = |pick: fn(&(i64, i64)) -> i64, place: usize| {
        let ticks: ArrayRef = Arc::new(Int64Array::from_iter_values(sessions.iter().map(pick)));
        cast(&ticks, fields[place].data_type())
    };
    let bounds = vec![bound(|session| session.0, 0)?, bound(|session| session.1, 1)?];
    Ok(Arc::new(StructArray::try_new(fields.clone(), bounds, None)?))
}

/// Merges the intervals of one key. `intervals` are sorted by their starts; answers the session of each, and the sessions.
fn merge(intervals: impl Iterator<Item = (i64, i64)>) -> (Vec<usize>, Vec<(i64, i64)>) {
    let mut sessions: Vec<(i64, i64)> = Vec::new();
    let mut numbers = Vec::new();
    for (start, end) in intervals {
        match sessions.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => sessions.push((start, end)),
        }
        numbers.push(sessions.len() - 1);
    }
    (numbers, sessions)
}

/// A key and rows of it.
type RowsOfKey = (Box<[u8]>, Vec<usize>);

/// Encodes the keys of sessions without their bounds.
pub(in crate::sql) struct Keys {
    encoder: KeyEncoder,
    /// The column of the session among the key columns.
    column: usize,
    key_columns: usize,
}

impl Keys {
    /// Those of a grouping.
    pub(in crate::sql) fn new(keys: &SchemaRef, column: usize) -> Result<Self, ArrowError> {
        let key_columns = keys.fields().len();
        let others: Vec<_> = (0..key_columns).filter(|other| *other != column).collect();
        Ok(Self { encoder: KeyEncoder::new(&Arc::new(keys.project(&others)?))?, column, key_columns })
    }

    /// The key of each row.
    fn encode(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<Box<[u8]>>, ArrowError> {
        let others = (0..self.key_columns).filter(|other| *other != self.column);
        let others: Vec<_> = others.map(|other| canonical(&columns[other])).collect();
        Ok(match self.encoder.encode(&others)? {
            Some(keys) => keys.iter().map(|key| Box::from(key.data())).collect(),
            None => vec![Box::default(); rows],
        })
    }

    /// Puts the sessions that the rows of a batch make in the place of their intervals.
    pub(in crate::sql) fn gather(&self, rows: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
        let bounds = Bounds::of(rows.column(self.column))?;
        let mut sessions = vec![(0, 0); rows.num_rows()];
        for (_, of_key) in self.sorted(rows.columns(), &bounds)? {
            let (numbers, merged) = merge(of_key.iter().map(|row| bounds.get(*row)));
            of_key.iter().zip(numbers).for_each(|(row, number)| sessions[*row] = merged[number]);
        }
        let mut columns = rows.columns().to_vec();
        columns[self.column] = column(&sessions, rows.column(self.column).data_type())?;
        Ok(RecordBatch::try_new(rows.schema(), columns)?)
    }

    /// The rows of each key, by their starts.
    fn sorted(&self, columns: &[ArrayRef], bounds: &Bounds) -> Result<Vec<RowsOfKey>, ArrowError> {
        let mut of_key: HashMap<Box<[u8]>, Vec<usize>> = HashMap::new();
        for (row, key) in self.encode(columns, bounds.starts.len())?.into_iter().enumerate() {
            of_key.entry(key).or_default().push(row);
        }
        let mut of_key: Vec<_> = of_key.into_iter().collect();
        of_key.iter_mut().for_each(|(_, rows)| rows.sort_unstable_by_key(|row| bounds.starts.value(*row)));
        Ok(of_key)
    }
}

/// The open sessions of a shard.
pub(in crate::sql) struct Sessions {
    keys: Keys,
    open: HashMap<Box<[u8]>, Vec<(i64, i64)>>,
}

/// What becomes of partial sessions when they meet those that are open.
pub(in crate::sql) struct Met {
    /// A partial session of each session that changed, for its key, and its bounds.
    pub(in crate::sql) changed: Vec<(usize, (i64, i64))>,
    /// To which of them each partial session belongs.
    pub(in crate::sql) numbers: Vec<usize>,
    /// Sessions that went into those: which, a partial session of its key, and its bounds before.
    pub(in crate::sql) before: Vec<(usize, usize, (i64, i64))>,
    /// Whether each session that changed is the latest of its key.
    pub(in crate::sql) latest: Vec<bool>,
    /// Whether each of those that went into others was the latest of its key.
    pub(in crate::sql) was_latest: Vec<bool>,
}

impl Sessions {
    pub(in crate::sql) fn new(keys: Keys) -> Self {
        Self { keys, open: HashMap::new() }
    }

    /// About how much memory it takes.
    pub(in crate::sql) fn bytes(&self) -> usize {
        self.open.capacity() * (size_of::<(Box<[u8]>, Vec<(i64, i64)>)>() + 48)
    }

    /// Takes sessions on as they were stored.
    pub(in crate::sql) fn restore(&mut self, columns: &[ArrayRef]) -> Result<(), DataFusionError> {
        let bounds = Bounds::of(&columns[self.keys.column])?;
        for (row, key) in self.keys.encode(columns, bounds.starts.len())?.into_iter().enumerate() {
            self.open.entry(key).or_default().push(bounds.get(row));
        }
        self.open.values_mut().for_each(|sessions| sessions.sort_unstable());
        Ok(())
    }

    /// Merges partial sessions with those that are open.
    pub(in crate::sql) fn meet(&mut self, columns: &[ArrayRef]) -> Result<Met, DataFusionError> {
        let bounds = Bounds::of(&columns[self.keys.column])?;
        let rows = bounds.starts.len();
        let mut met = Met {
            changed: Vec::new(),
            numbers: vec![0; rows],
            before: Vec::new(),
            latest: Vec::new(),
            was_latest: Vec::new(),
        };
        for (key, of_key) in self.keys.sorted(columns, &bounds)? {
            let open = self.open.entry(key).or_default();
            // All intervals by their starts: a partial session is `Some` of its row.
            let mut intervals: Vec<_> = of_key.iter().map(|row| (bounds.get(*row), Some(*row))).collect();
            intervals.extend(open.iter().map(|session| (*session, None)));
            intervals.sort_unstable();
            let (numbers, merged) = merge(intervals.iter().map(|(interval, _)| *interval));
            let mut places = vec![None; merged.len()];
            for ((_, row), number) in intervals.iter().zip(&numbers) {
                if let Some(row) = row {
                    let place = *places[*number].get_or_insert_with(|| {
                        met.changed.push((*row, merged[*number]));
                        met.latest.push(*number + 1 == merged.len());
                        met.changed.len() - 1
                    });
                    met.numbers[*row] = place;
                }
            }
            for ((session, row), number) in intervals.iter().zip(&numbers) {
                if row.is_none()
                    && let Some(place) = places[*number]
                {
                    met.before.push((place, met.changed[place].0, *session));
                    met.was_latest.push(open.last() == Some(session));
                }
            }
            *open = merged;
        }
        Ok(met)
    }

    /// Forgets sessions that are closed.
    pub(in crate::sql) fn close(&mut self, columns: &[ArrayRef]) -> Result<(), DataFusionError> {
        let bounds = Bounds::of(&columns[self.keys.column])?;
        for (row, key) in self.keys.encode(columns, bounds.starts.len())?.into_iter().enumerate() {
            if let Some(open) = self.open.get_mut(&key) {
                open.retain(|session| *session != bounds.get(row));
                if open.is_empty() {
                    self.open.remove(&key);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn intervals_that_touch_are_one_session() {
        let merged = |intervals: &[(i64, i64)]| merge(intervals.iter().copied());
        assert_eq!(merged(&[(0, 10), (10, 20), (21, 31)]), (vec![0, 0, 1], vec![(0, 20), (21, 31)]));
        assert_eq!(merged(&[(0, 100), (5, 10), (100, 101)]), (vec![0, 0, 0], vec![(0, 101)]));
        assert_eq!(merged(&[]), (vec![], vec![]));
    }
}
