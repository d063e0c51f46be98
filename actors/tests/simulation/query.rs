//! A query that is simple enough to be plainly right, since the simulation attacks the protocol and not SQL: running sums by
//! key, and windows of event time that are told once, when the shard's watermark has passed them.
//!
//! A row is late if the end of its window is at or before the watermark of its own partition before the row. Where idleness,
//! silence or a partition that is new let a window close early, rows that are not late may meet a closed window: the stage
//! knows from the shards' answers, and they are counted apart. The [`Ledger`] says whether that was allowed; and no row
//! reaches a shard for a window that is closed there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
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
use crate::history::History;
use crate::process::Process;
use crate::truth::Sum;

/// Records with this value go to the dead letters.
pub const BAD: i64 = -1;
/// A record with this value makes the stage panic, every time.
pub const POISON: i64 = -2;
/// A record with this value ends the process that processes it, every time.
pub const DEADLY: i64 = -3;
/// The stage does not come back from a record with this value.
pub const HANGS: i64 = -4;
/// Instead of a shard that refuses every row: the first one panics.
pub const PANICS: i64 = -2;
/// The length of a window.
pub const WINDOW: i64 = 100;
/// How far the watermark of a partition stays behind the latest event.
pub const DELAY: i64 = 40;
/// How long a partition is quiet until it is idle, in the runs that have idleness.
const IDLE: Duration = Duration::from_millis(1_500);
/// How long it is quiet until its windows close, in the runs that have silence.
pub const SILENCE: Duration = Duration::from_millis(2_500);

/// Kinds of rows in the second state table.
const OPEN: i64 = 0;
const EARLY: i64 = 1;

/// The group by which windows are counted: coarser than the key, and on the same shard.
pub fn group(key: i64) -> i64 {
    key % 6
}

/// What the stages said and the operators met, to tell what was allowed.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Partitions are called idle at all.
    pub idle: bool,
    /// The windows of silent partitions close.
    pub silence: bool,
    /// Where the whole state is written, the changes come first and then the rest.
    pub in_parts: bool,
    /// By partition the first offset at which it was called idle.
    pub idle_at: Mutex<BTreeMap<i32, i64>>,
    /// Partitions from this one on appeared while the pipeline ran.
    pub grown_from: i32,
    /// What was rewound.
    pub history: Arc<History>,
    /// Stages that do not come back.
    pub hanging: AtomicU64,
    pub broken: Mutex<Vec<String>>,
}

impl Ledger {
    /// `again` says from where on partitions were read a second time when the shard was loaded.
    fn early(&self, shard: ShardId, again: &BTreeMap<i32, i64>, partition: i32, offset: i64, window: i64) {
        let called_idle = self.idle_at.lock().unwrap().get(&partition).is_some_and(|at| *at <= offset);
        let again = again.get(&partition).copied().or_else(|| self.history.again_from(shard, partition));
        if !called_idle && partition < self.grown_from && again.is_none_or(|from| offset < from) {
            self.breaks(format!(
                "window {window} was closed before row {offset} of partition {partition}, which was not idle"
            ));
        }
    }

    fn breaks(&self, what: String) {
        self.broken.lock().unwrap().push(what);
    }
}

pub struct SumsAndWindows {
    pub shards: u32,
    /// A shard whose operator refuses every row, for as long as this says so.
    pub refusing: Arc<AtomicI64>,
    pub process: Arc<Process>,
    pub chance: Arc<Chance>,
    pub ledger: Arc<Ledger>,
    /// Why it cannot be computed again, if it cannot.
    pub unrepeatable: Option<&'static str>,
    /// What was closed may come out otherwise when partitions are found.
    pub closes: bool,
}

impl Query for SumsAndWindows {
    fn source_stage(&self, _: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(Stage {
            shards: self.shards,
            process: Arc::clone(&self.process),
            chance: Arc::clone(&self.chance),
            ledger: Arc::clone(&self.ledger),
        })
    }

    fn unrepeatable(&self) -> Option<&'static str> {
        self.unrepeatable
    }

    /// Its windows are compared with what was closed when, whatever comes out.
    fn closes(&self) -> bool {
        self.closes
    }

    fn operator(&self, shard: ShardId) -> Box<dyn KeyedOperator> {
        Box::new(Operator {
            shard,
            refusing: Arc::clone(&self.refusing),
            chance: Arc::clone(&self.chance),
            ledger: Arc::clone(&self.ledger),
            held: Held::default(),
            again: BTreeMap::new(),
            changed: BTreeSet::new(),
            changed_windows: BTreeSet::new(),
            output: Vec::new(),
        })
    }
}

struct Stage {
    shards: u32,
    process: Arc<Process>,
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
    /// By kind, window and group: sum, count and the first offset.
    windows: BTreeMap<(i64, i64, i64), (i64, i64, i64)>,
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
            if !input.batch.lost {
                lanes[home].counts.gaps += (from..until).filter(|offset| needs(home, *offset)).count() as u64;
            }
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
            if value == DEADLY {
                self.process.kill();
            }
            if value == HANGS {
                self.ledger.hanging.fetch_add(1, Ordering::SeqCst);
                loop {
                    std::thread::park();
                }
            }
            let window = time.div_euclid(WINDOW) * WINDOW;
            let late = watermark.is_some_and(|watermark| window + WINDOW <= watermark);
            watermark = watermark.max(Some(time - DELAY));
            // The times say no other than before, so what a shard noted is never in the way.
            let noted = input.noted.iter().find(|(next, _)| offset < next.0);
            if let Some((_, noted)) = noted.filter(|(_, noted)| watermark > *noted) {
                self.ledger
                    .breaks(format!("{watermark:?} at {partition}-{offset} is beyond what was noted, {noted:?}"));
            }
            let lane = (key as usize) % shards;
            if !needs(lane, offset) {
                continue;
            }
            let (partial, counts) = (&mut partials[lane], &mut lanes[lane].counts);
            let sum = partial.sums.entry(key).or_default();
            (sum.0, sum.1) = (sum.0 + value, sum.1 + 1);
            if late {
                counts.late += 1;
                continue;
            }
            let kind = match input.closed[lane].is_some_and(|closed| window + WINDOW <= closed) {
                true => {
                    counts.late_closed += 1;
                    EARLY
                }
                false => {
                    counts.processed += 1;
                    OPEN
                }
            };
            let sum = partial.windows.entry((kind, window, group(key))).or_insert((0, 0, offset));
            (sum.0, sum.1) = (sum.0 + value, sum.1 + 1);
        }
        gap(&mut lanes, expected, input.batch.range.until.0);
        for (lane, partial) in lanes.iter_mut().zip(&partials).filter(|(_, partial)| !partial.sums.is_empty()) {
            lane.rows.push(batch(["key", "sum", "count"], partial.sums.iter().map(|(key, sum)| [*key, sum.0, sum.1])));
            if !partial.windows.is_empty() {
                let names = ["kind", "window", "group", "sum", "count", "first", "partition"];
                let windows = partial.windows.iter();
                let rows = windows.map(|(key, sum)| [key.0, key.1, key.2, sum.0, sum.1, sum.2, i64::from(partition)]);
                lane.rows.push(batch(names, rows));
            }
        }
        let quiet = |at_least| input.quiet.is_some_and(|quiet| quiet >= at_least);
        let silent = self.ledger.silence && quiet(SILENCE);
        let idle = silent || self.ledger.idle && quiet(IDLE);
        let raised = watermark.filter(|_| silent).map(|watermark| {
            let highest = watermark + DELAY;
            highest - highest.rem_euclid(WINDOW) + WINDOW
        });
        if idle {
            let at = input.batch.range.from.0;
            self.ledger.idle_at.lock().unwrap().entry(partition).or_insert(at);
        }
        Ok(StageOutput { lanes, watermark, idle, raised })
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

/// When a row of the second table is gone by itself.
fn until(kind: i64, window: i64) -> i64 {
    if kind == OPEN { window + WINDOW } else { i64::MAX }
}

impl Held {
    /// Takes rows of a state table on, as far as they last.
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
            assert!(!deleted.value(row), "closed windows are not removed one by one");
            match column("kind") {
                _ if self.closed.is_some_and(|closed| column("_until") <= closed) => {}
                OPEN => drop(self.windows.insert(key, sum)),
                _ => drop(self.early.insert(key, sum)),
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
    /// From where on partitions are read again with the state as it was loaded.
    again: BTreeMap<i32, i64>,
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
        let (kinds, firsts, partitions) = (long(rows, "kind"), long(rows, "first"), long(rows, "partition"));
        for (row, (window, group)) in long(rows, "window").iter().zip(long(rows, "group")).enumerate() {
            if kinds[row] == OPEN && self.held.closed.is_some_and(|closed| window + WINDOW <= closed) {
                self.ledger.breaks(format!("rows came for window {window}, which was closed on shard {}", self.shard));
            }
            if kinds[row] == EARLY {
                self.ledger.early(self.shard, &self.again, partitions[row] as i32, firsts[row], *window);
            }
            let table = if kinds[row] == OPEN { &mut self.held.windows } else { &mut self.held.early };
            add(table.entry((*window, *group)).or_default(), row);
            self.changed_windows.insert((kinds[row], *window, *group));
        }
    }

    fn close(&mut self, watermark: Watermark) {
        if watermark <= self.held.closed {
            return;
        }
        self.held.closed = watermark;
        let over = |window: i64| watermark.is_some_and(|watermark| window + WINDOW <= watermark);
        while let Some(((window, group), sum)) = self.held.windows.first_key_value().map(|(key, sum)| (*key, *sum)) {
            if !over(window) {
                break;
            }
            self.held.windows.pop_first();
            self.changed_windows.remove(&(OPEN, window, group));
            self.output.push([window, group, sum.0, sum.1]);
        }
    }
}

impl KeyedOperator for Operator {
    fn tables(&self) -> Vec<StateTable> {
        vec![StateTable { key_columns: 1, expires: false }, StateTable { key_columns: 3, expires: true }]
    }

    fn apply(&mut self, rows: Vec<RecordBatch>, watermark: Watermark) -> Result<(), StageError> {
        let refusing = self.refusing.load(Ordering::SeqCst);
        if refusing == PANICS && self.shard == 0 {
            panic!("the operator was told to panic");
        }
        if refusing == i64::from(self.shard) {
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
            let told = |keys: &mut dyn Iterator<Item = &i64>| {
                batch(["key", "sum", "count"], keys.map(|key| [*key, sums[key].0, sums[key].1]))
            };
            let rows = told(&mut changed.iter());
            // Where much has changed, or just so, all of it is written.
            let whole = changed.len() * 2 >= sums.len() || self.chance.number(6) == 0;
            let stored = |rows: RecordBatch, whole| {
                let gone = vec![false; rows.num_rows()];
                StateDelta { table: 0, rows: delta(rows, gone), whole }
            };
            let others = || told(&mut sums.keys().filter(|key| !changed.contains(key)));
            made.state.extend(match whole {
                true if self.ledger.in_parts => vec![stored(rows.clone(), true), stored(others(), false)],
                true => vec![stored(told(&mut sums.keys()), true)],
                false => vec![stored(rows.clone(), false)],
            });
            made.output.push(OutputBatch { sink: 0, change: Change::Upsert, rows });
        }
        let changed = std::mem::take(&mut self.changed_windows);
        if !changed.is_empty() {
            let whole = self.chance.number(4) == 0;
            let open = self.held.windows.iter().map(|(key, sum)| (OPEN, key, sum));
            let early = self.held.early.iter().map(|(key, sum)| (EARLY, key, sum));
            let stored = open
                .chain(early)
                .filter(|(kind, (window, group), _)| whole || changed.contains(&(*kind, *window, *group)));
            let rows =
                stored.map(|(kind, (window, group), sum)| [kind, *window, *group, sum.0, sum.1, until(kind, *window)]);
            let rows = batch(["kind", "window", "group", "sum", "count", "_until"], rows);
            let gone = vec![false; rows.num_rows()];
            made.state.push(StateDelta { table: 1, rows: delta(rows, gone), whole });
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
        let again = |partition| Some((partition, self.ledger.history.again_from(self.shard, partition)?));
        self.again = (0..self.ledger.grown_from).filter_map(again).collect();
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
