//! A query that sums values by key, simple enough to be plainly right: the simulation attacks the protocol, not SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{
    Change, DeadLetter, KeyedOperator, LaneRows, OperatorCheckpoint, OutputBatch, Query, SourceStage, StageError,
    StageInput, StageOutput, StateDelta, StateTable,
};
use strandline_actors::position::{Offset, SourcePartition, Watermark};

use crate::faults::Chance;

/// Records with this value go to the dead letters.
pub const BAD: i64 = -1;
/// A record with this value makes the stage panic, every time.
pub const POISON: i64 = -2;

pub struct Sums {
    pub shards: u32,
    /// A shard whose operator refuses every row, for as long as this says so.
    pub refusing: Arc<AtomicI64>,
    pub chance: Arc<Chance>,
}

impl Query for Sums {
    fn source_stage(&self, _: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(Stage { shards: self.shards, chance: Arc::clone(&self.chance) })
    }

    fn retracts(&self) -> bool {
        false
    }

    fn operator(&self, shard: ShardId) -> Box<dyn KeyedOperator> {
        Box::new(Operator { shard, refusing: Arc::clone(&self.refusing), ..Operator::default() })
    }
}

struct Stage {
    shards: u32,
    chance: Arc<Chance>,
}

fn long<'a>(rows: &'a RecordBatch, name: &str) -> &'a [i64] {
    rows.column_by_name(name).unwrap().as_primitive::<Int64Type>().values()
}

impl SourceStage for Stage {
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError> {
        if self.chance.strikes("stage panics", 300) {
            panic!("a stage panics by chance");
        }
        let rows = &input.batch.records;
        let shards = self.shards as usize;
        let home = input.partition.key.partition as usize % shards;
        let mut lanes = vec![LaneRows::default(); shards];
        let mut sums: Vec<BTreeMap<i64, (i64, i64)>> = vec![BTreeMap::new(); shards];
        let mut expected = input.batch.range.from.0;
        let needs = |lane: usize, offset: i64| input.cuts[lane].is_some_and(|cut| offset >= cut.0);
        let gap = |lanes: &mut Vec<LaneRows>, from: i64, until: i64| {
            lanes[home].counts.gaps += (from..until).filter(|offset| needs(home, *offset)).count() as u64;
        };
        for ((offset, key), value) in long(rows, "_offset").iter().zip(long(rows, "key")).zip(long(rows, "value")) {
            gap(&mut lanes, expected, *offset);
            expected = offset + 1;
            if *value == BAD || input.poison.contains(&Offset(*offset)) {
                let lane = (*offset as usize) % shards;
                if needs(lane, *offset) {
                    lanes[lane].counts.dead_lettered += 1;
                    lanes[lane].dead_letters.push(DeadLetter {
                        topic: input.partition.topic.to_string(),
                        partition: input.partition.key,
                        offset: *offset,
                        timestamp: 0,
                        reason: "bad".into(),
                        key: None,
                        value: None,
                    });
                }
                continue;
            }
            assert_ne!(*value, POISON, "a poisoned record");
            let lane = (*key as usize) % shards;
            if needs(lane, *offset) {
                lanes[lane].counts.processed += 1;
                let (sum, count) = sums[lane].entry(*key).or_default();
                *sum += value;
                *count += 1;
            }
        }
        gap(&mut lanes, expected, input.batch.range.until.0);
        for (lane, sums) in lanes.iter_mut().zip(&sums).filter(|(_, sums)| !sums.is_empty()) {
            lane.rows.push(batch(sums.iter().map(|(key, (sum, count))| [*key, *sum, *count])));
        }
        Ok(StageOutput { lanes, watermark: Some(input.batch.range.until.0) })
    }
}

fn batch(rows: impl Iterator<Item = [i64; 3]>) -> RecordBatch {
    let rows: Vec<[i64; 3]> = rows.collect();
    let column = |n: usize| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row[n]))) };
    RecordBatch::try_from_iter([("key", column(0)), ("sum", column(1)), ("count", column(2))]).unwrap()
}

#[derive(Default)]
struct Operator {
    shard: ShardId,
    refusing: Arc<AtomicI64>,
    sums: BTreeMap<i64, (i64, i64)>,
    changed: BTreeSet<i64>,
}

impl KeyedOperator for Operator {
    fn tables(&self) -> Vec<StateTable> {
        vec![StateTable { key_columns: 1 }]
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, _: Watermark) -> Result<(), StageError> {
        if self.refusing.load(Ordering::SeqCst) == i64::from(self.shard) {
            return Err(StageError::Failed("the operator refuses by order".into()));
        }
        for rows in rows {
            for ((key, sum), count) in long(&rows, "key").iter().zip(long(&rows, "sum")).zip(long(&rows, "count")) {
                let (all, n) = self.sums.entry(*key).or_default();
                (*all, *n) = (*all + sum, *n + count);
                self.changed.insert(*key);
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return Ok(OperatorCheckpoint::default());
        }
        let rows = batch(changed.iter().map(|key| [*key, self.sums[key].0, self.sums[key].1]));
        let mut columns: Vec<(&str, ArrayRef)> =
            ["key", "sum", "count"].into_iter().zip(rows.columns().iter().cloned()).collect();
        columns.push(("_deleted", Arc::new(BooleanArray::from(vec![false; rows.num_rows()]))));
        let state = RecordBatch::try_from_iter(columns).unwrap();
        Ok(OperatorCheckpoint {
            state: vec![StateDelta { table: 0, rows: state }],
            output: vec![OutputBatch { sink: 0, change: Change::Upsert, rows }],
        })
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        for StateDelta { rows, .. } in state {
            for ((key, sum), count) in long(&rows, "key").iter().zip(long(&rows, "sum")).zip(long(&rows, "count")) {
                self.sums.insert(*key, (*sum, *count));
            }
        }
        Ok(())
    }

    fn keys(&self) -> usize {
        self.sums.len()
    }

    fn bytes(&self) -> usize {
        self.sums.len() * 24
    }

    fn pending_bytes(&self) -> usize {
        0
    }

    fn changed_bytes(&self) -> usize {
        self.changed.len() * 24
    }
}
