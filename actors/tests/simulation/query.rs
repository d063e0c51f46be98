//! A query that is simple enough to be plainly right, since the simulation attacks the protocol and not SQL: running sums by
//! key, and windows of event time that are told once, when the shard's watermark has passed them.
//!
//! A row is late if the end of its window is at or before the watermark of its own partition before the row. Where idleness
//! (or a partition that is new) let a window close early, rows that are not late may meet a closed window: they are counted
//! apart, and the [`Ledger`] says whether that was allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{
    Change, DeadLetter, KeyedOperator, LaneRows, OperatorCheckpoint, OutputBatch, Query, SourceStage, StageError,
    StageInput, StageOutput, StateDelta, StateTable,
};
use strandline_actors::position::{Offset, SourcePartition, Watermark};

use crate::faults::Chance;
use crate::truth::Sum;

/// Records with this value go to the dead letters.
pub const BAD: i64 = -1;
/// A record with this value makes the stage panic, every time.
pub const POISON: i64 = -2;
/// The length of a window.
pub const WINDOW: i64 = 100;
/// How far the watermark of a partition stays behind the latest event.
pub const DELAY: i64 = 40;
/// How long a partition is quiet until it is idle, in the runs that have idleness.
const IDLE: Duration = Duration::from_millis(1_500);

/// Kinds of rows in the second state table.
const OPEN: i64 = 0;
const EARLY: i64 = 1;
const CLOSED: i64 = 2;

/// The group by which windows are counted: coarser than the key, and on the same shard.
pub fn group(key: i64) -> i64 {
    key % 6
}

/// What the stages said and the operators met, to tell what was allowed.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Partitions are called idle at all.
    pub idle: bool,
    /// By partition the first offset at which it was called idle.
    pub idle_at: Mutex<BTreeMap<i32, i64>>,
    /// Partitions from this one on appeared while the pipeline ran.
    pub grown_from: i32,
    pub broken: Mutex<Vec<String>>,
}

impl Ledger {
    fn early(&self, partition: i32, first: i64, window: i64) {
        let called_idle = self.idle_at.lock().unwrap().get(&partition).is_some_and(|at| *at <= first);
        if !called_idle && partition < self.grown_from {
            let what =
                format!("window {window} was closed before row {first} of partition {partition}, which was not idle");
            self.broken.lock().unwrap().push(what);
        }
    }
}

pub struct SumsAndWindows {
    pub shards: u32,
    /// A shard whose operator refuses every row, for as long as this says so.
    pub refusing: Arc<AtomicI64>,
    pub chance: Arc<Chance>,
    pub ledger: Arc<Ledger>,
}

impl Query for SumsAndWindows {
    fn source_stage(&self, _: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(Stage { shards: self.shards, chance: Arc::clone(&self.chance), ledger: Arc::clone(&self.ledger) })
    }

    fn retracts(&self) -> bool {
        false
    }

    fn operator(&self, shard: ShardId) -> Box<dyn KeyedOperator> {
        Box::new(Operator {
            shard,
            refusing: Arc::clone(&self.refusing),
            chance: Arc::clone(&self.chance),
            ledger: Arc::clone(&self.ledger),
            held: Held::default(),
            changed: BTreeSet::new(),
            changed_windows: BTreeSet::new(),
            output: Vec::new(),
        })
    }
}

struct Stage {
    shards: u32,
    chance: Arc<Chance>,
    ledger: Arc<Ledger>,
}

fn long<'a>(rows: &'a RecordBatch, name: &str) -> &'a [i64] {
    rows.column_by_name(name).unwrap().as_primitive::<Int64Type>().values()
}

/// What a batch adds to one lane.
#[derive(Clone, Default)]
struct Partial {
    sums: BTreeMap<i64, Sum>,
    /// By window and group: sum, count and the first offset.
    windows: BTreeMap<(i64, i64), (i64, i64, i64)>,
}

impl SourceStage for Stage {
    fn run(&mut self, input: StageInput<'_>) -> Result<StageOutput, StageError> {
        if self.chance.strikes("stage panics", 400) {
            panic!("a stage panics by chance");
        }
        if self.chance.strikes("stage fails", 400) {
            return Err(StageError::Failed("a stage fails by chance".into()));
        }
        let rows = &input.batch.records;
        let partition = input.partition.key.partition;
        let shards = self.shards as usize;
        let home = partition as usize % shards;
        let mut lanes = vec![LaneRows::default(); shards];
        let mut partials = vec![Partial::default(); shards];
        let mut expected = input.batch.range.from.0;
        let mut watermark = input.watermark;
        let needs = |lane: usize, offset: i64| input.cuts[lane].is_some_and(|cut| offset >= cut.0);
        let gap = |lanes: &mut Vec<LaneRows>, from: i64, until: i64| {
            lanes[home].counts.gaps += (from..until).filter(|offset| needs(home, *offset)).count() as u64;
        };
        let (offsets, keys, values, times) =
            (long(rows, "_offset"), long(rows, "key"), long(rows, "value"), long(rows, "time"));
        for row in 0..rows.num_rows() {
            let (offset, key, value, time) = (offsets[row], keys[row], values[row], times[row]);
            gap(&mut lanes, expected, offset);
            expected = offset + 1;
            if value == BAD || input.poison.contains(&Offset(offset)) {
                let lane = (offset as usize) % shards;
                if needs(lane, offset) {
                    lanes[lane].counts.dead_lettered += 1;
                    lanes[lane].dead_letters.push(DeadLetter {
                        topic: input.partition.topic.to_string(),
                        partition: input.partition.key,
                        offset,
                        timestamp: 0,
                        reason: "bad".into(),
                        key: None,
                        value: None,
                    });
                }
                continue;
            }
            assert_ne!(value, POISON, "a poisoned record");
            let window = time.div_euclid(WINDOW) * WINDOW;
            let late = watermark.is_some_and(|watermark| window + WINDOW <= watermark);
            watermark = watermark.max(Some(time - DELAY));
            let lane = (key as usize) % shards;
            if !needs(lane, offset) {
                continue;
            }
            let (partial, counts) = (&mut partials[lane], &mut lanes[lane].counts);
            let sum = partial.sums.entry(key).or_default();
            (sum.0, sum.1) = (sum.0 + value, sum.1 + 1);
            if late {
                counts.late += 1;
            } else {
                counts.processed += 1;
                let sum = partial.windows.entry((window, group(key))).or_insert((0, 0, offset));
                (sum.0, sum.1) = (sum.0 + value, sum.1 + 1);
            }
        }
        gap(&mut lanes, expected, input.batch.range.until.0);
        for (lane, partial) in lanes.iter_mut().zip(&partials).filter(|(_, partial)| !partial.sums.is_empty()) {
            lane.rows.push(batch(["key", "sum", "count"], partial.sums.iter().map(|(key, sum)| [*key, sum.0, sum.1])));
            if !partial.windows.is_empty() {
                let names = ["window", "group", "sum", "count", "first", "partition"];
                let windows = partial.windows.iter();
                let rows = windows.map(|(key, sum)| [key.0, key.1, sum.0, sum.1, sum.2, i64::from(partition)]);
                lane.rows.push(batch(names, rows));
            }
        }
        let idle = self.ledger.idle && input.quiet.is_some_and(|quiet| quiet >= IDLE);
        if idle {
            let at = input.batch.range.from.0;
            self.ledger.idle_at.lock().unwrap().entry(partition).or_insert(at);
        }
        Ok(StageOutput { lanes, watermark, idle })
    }
}

fn batch<const N: usize>(names: [&str; N], rows: impl Iterator<Item = [i64; N]>) -> RecordBatch {
    let rows: Vec<[i64; N]> = rows.collect();
    let column = |n: usize| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row[n]))) };
    RecordBatch::try_from_iter(names.into_iter().enumerate().map(|(n, name)| (name, column(n)))).unwrap()
}

fn delta(rows: RecordBatch, deleted: Vec<bool>) -> RecordBatch {
    let schema = rows.schema();
    let mut columns: Vec<(&str, ArrayRef)> =
        schema.fields().iter().map(|field| field.name().as_str()).zip(rows.columns().iter().cloned()).collect();
    columns.push(("_deleted", Arc::new(BooleanArray::from(deleted))));
    RecordBatch::try_from_iter(columns).unwrap()
}

/// The state of a shard.
#[derive(Debug, Default)]
pub struct Held {
    pub sums: BTreeMap<i64, Sum>,
    /// Windows that are open, by window and group.
    pub windows: BTreeMap<(i64, i64), Sum>,
    /// Rows that were not late but met a closed window.
    pub early: BTreeMap<(i64, i64), Sum>,
    /// Windows are closed up to here.
    pub closed: Watermark,
}

impl Held {
    /// Takes rows of a state table on.
    pub fn restore(&mut self, table: usize, rows: &RecordBatch) {
        let deleted = rows.columns().last().unwrap().as_boolean();
        for row in 0..rows.num_rows() {
            let column = |name| long(rows, name)[row];
            let sum = (column("sum"), column("count"));
            if table == 0 {
                self.sums.insert(column("key"), sum);
                continue;
            }
            let key = (column("window"), column("group"));
            match column("kind") {
                OPEN if deleted.value(row) => drop(self.windows.remove(&key)),
                OPEN => drop(self.windows.insert(key, sum)),
                EARLY => drop(self.early.insert(key, sum)),
                _ => self.closed = Some(sum.0),
            }
        }
    }
}

struct Operator {
    shard: ShardId,
    refusing: Arc<AtomicI64>,
    chance: Arc<Chance>,
    ledger: Arc<Ledger>,
    held: Held,
    changed: BTreeSet<i64>,
    /// By kind, window and group.
    changed_windows: BTreeSet<(i64, i64, i64)>,
    /// Windows that closed since the last checkpoint.
    output: Vec<[i64; 4]>,
}

impl Operator {
    fn add(&mut self, rows: &RecordBatch) {
        let (sums, counts) = (long(rows, "sum"), long(rows, "count"));
        let add = |held: &mut Sum, row: usize| (held.0, held.1) = (held.0 + sums[row], held.1 + counts[row]);
        if rows.column_by_name("key").is_some() {
            for (row, key) in long(rows, "key").iter().enumerate() {
                add(self.held.sums.entry(*key).or_default(), row);
                self.changed.insert(*key);
            }
            return;
        }
        let (firsts, partitions) = (long(rows, "first"), long(rows, "partition"));
        for (row, (window, group)) in long(rows, "window").iter().zip(long(rows, "group")).enumerate() {
            let key = (*window, *group);
            let closed = self.held.closed.is_some_and(|closed| window + WINDOW <= closed);
            if closed {
                self.ledger.early(partitions[row] as i32, firsts[row], *window);
            }
            let (kind, table) = if closed { (EARLY, &mut self.held.early) } else { (OPEN, &mut self.held.windows) };
            add(table.entry(key).or_default(), row);
            self.changed_windows.insert((kind, *window, *group));
        }
    }

    fn close(&mut self, watermark: Watermark) {
        if watermark <= self.held.closed {
            return;
        }
        self.held.closed = watermark;
        self.changed_windows.insert((CLOSED, 0, 0));
        let over = |window: i64| watermark.is_some_and(|watermark| window + WINDOW <= watermark);
        while let Some(((window, group), sum)) = self.held.windows.first_key_value().map(|(key, sum)| (*key, *sum)) {
            if !over(window) {
                break;
            }
            self.held.windows.pop_first();
            self.changed_windows.insert((OPEN, window, group));
            self.output.push([window, group, sum.0, sum.1]);
        }
    }
}

impl KeyedOperator for Operator {
    fn tables(&self) -> Vec<StateTable> {
        vec![StateTable { key_columns: 1 }, StateTable { key_columns: 3 }]
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError> {
        if self.refusing.load(Ordering::SeqCst) == i64::from(self.shard) {
            return Err(StageError::Failed("the operator refuses by order".into()));
        }
        if self.chance.strikes("operator panics", 800) {
            panic!("an operator panics by chance");
        }
        let fails = !rows.is_empty() && self.chance.strikes("operator fails half-way", 800);
        for rows in rows {
            if fails {
                self.add(&rows.slice(0, rows.num_rows() / 2));
                return Err(StageError::Failed("an operator fails by chance".into()));
            }
            self.add(&rows);
        }
        self.close(watermark);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<OperatorCheckpoint, StageError> {
        if self.chance.strikes("checkpoint panics", 200) {
            panic!("a checkpoint panics by chance");
        }
        let mut made = OperatorCheckpoint::default();
        let changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            let sums = &self.held.sums;
            let rows = batch(["key", "sum", "count"], changed.iter().map(|key| [*key, sums[key].0, sums[key].1]));
            made.state.push(StateDelta { table: 0, rows: delta(rows.clone(), vec![false; rows.num_rows()]) });
            made.output.push(OutputBatch { sink: 0, change: Change::Upsert, rows });
        }
        let changed = std::mem::take(&mut self.changed_windows);
        if !changed.is_empty() {
            let held = |(kind, window, group): &(i64, i64, i64)| match *kind {
                OPEN => self.held.windows.get(&(*window, *group)).copied(),
                EARLY => self.held.early.get(&(*window, *group)).copied(),
                _ => self.held.closed.map(|closed| (closed, 0)),
            };
            let deleted = changed.iter().map(|key| held(key).is_none()).collect();
            let rows = changed.iter().map(|key| {
                let sum = held(key).unwrap_or_default();
                [key.0, key.1, key.2, sum.0, sum.1]
            });
            let rows = batch(["kind", "window", "group", "sum", "count"], rows);
            made.state.push(StateDelta { table: 1, rows: delta(rows, deleted) });
        }
        let output = std::mem::take(&mut self.output);
        if !output.is_empty() {
            let rows = batch(["window", "group", "sum", "count"], output.into_iter());
            made.output.push(OutputBatch { sink: 1, change: Change::Upsert, rows });
        }
        Ok(made)
    }

    fn restore(&mut self, state: Vec<StateDelta>) -> Result<(), StageError> {
        if self.chance.strikes("restore panics", 60) {
            panic!("a restore panics by chance");
        }
        state.iter().for_each(|delta| self.held.restore(delta.table, &delta.rows));
        Ok(())
    }

    fn keys(&self) -> usize {
        self.held.sums.len() + self.held.windows.len()
    }

    fn bytes(&self) -> usize {
        self.keys() * 24
    }

    fn pending_bytes(&self) -> usize {
        self.output.len() * 32
    }

    fn changed_bytes(&self) -> usize {
        self.changed.len() * 24 + self.changed_windows.len() * 40
    }
}
