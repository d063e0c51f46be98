//! A pipeline without actors: batches cut at random, lanes, checkpoints, restarts from stored state, and a table as
//! sink. Its results are compared with DataFusion's batch engine over the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Int64Array, RecordBatch, StringBuilder, StructArray,
    TimestampMillisecondArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::SessionConfig;
use strandline_actors::pointer::{Attempt, Epoch, SegmentKey, SegmentKind};
use strandline_actors::ports::{
    Change, DeadLetter, KeyedOperator, OperatorCheckpoint, OutputBatch, Query, SourceBatch, SourceStage, StageError,
    StageInput, StageOutput, StateDelta, raw,
};
use strandline_actors::position::{Counts, Offset, PartitionKey, Position, Range, SourcePartition, Vector, Watermark};
use strandline_actors::segment;
use uuid::Uuid;

use super::super::{Plan, plan};
use crate::catalog::SinkTable;

/// Numbers that are the same in each run of a test.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// One record of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) offset: i64,
    pub(super) timestamp: i64,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    pub(super) fn new(offset: i64, value: impl Into<Vec<u8>>) -> Self {
        Self { offset, timestamp: 1_700_000_000_000 + offset, value: Some(value.into()), ..Self::default() }
    }

    pub(super) fn null(offset: i64) -> Self {
        Self { offset, ..Self::default() }
    }
}

/// Records with these values at the offsets 0, 1, 2 ...
pub(super) fn log<V: Into<Vec<u8>>>(values: impl IntoIterator<Item = V>) -> Vec<Record> {
    values.into_iter().enumerate().map(|(offset, value)| Record::new(offset as i64, value)).collect()
}

pub(super) fn partition(number: i32) -> SourcePartition {
    of_source(0, "orders", number)
}

/// A partition of one of several topics.
fn of_source(source: usize, topic: &str, number: i32) -> SourcePartition {
    let topic_id = Uuid::from_u128(0x5eed + source as u128);
    SourcePartition { source, topic: topic.into(), key: PartitionKey { topic_id, partition: number } }
}

/// The batch of a range of a log, as the Kafka adapter makes it.
pub(super) fn batch(log: &[Record], from: i64, until: i64) -> SourceBatch {
    let records: Vec<_> = log.iter().filter(|r| (from..until).contains(&r.offset)).collect();
    let bytes = |get: fn(&Record) -> Option<&[u8]>| -> ArrayRef {
        Arc::new(records.iter().map(|record| get(record)).collect::<BinaryArray>())
    };
    let timestamps = records.iter().map(|r| r.timestamp).collect::<Vec<_>>();
    let columns: Vec<(&str, ArrayRef)> = vec![
        (raw::OFFSET, Arc::new(Int64Array::from_iter_values(records.iter().map(|r| r.offset)))),
        (raw::TIMESTAMP, Arc::new(TimestampMillisecondArray::from(timestamps).with_timezone("UTC"))),
        (raw::KEY, bytes(|r| r.key.as_deref())),
        (raw::VALUE, bytes(|r| r.value.as_deref())),
        (raw::HEADERS, headers(&records)),
    ];
    SourceBatch {
        range: Range::new(Offset(from), Offset(until)),
        records: RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap(),
        bytes: 0,
        end: None,
        open_transaction: false,
        lost: false,
        producers: Default::default(),
    }
}

fn headers(records: &[&Record]) -> ArrayRef {
    let mut keys = StringBuilder::new();
    let mut values = BinaryBuilder::new();
    for (key, value) in records.iter().flat_map(|record| &record.headers) {
        keys.append_value(key);
        values.append_option(value.as_deref());
    }
    let fields =
        Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)]);
    let entries = StructArray::new(fields.clone(), vec![Arc::new(keys.finish()), Arc::new(values.finish())], None);
    let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
    let offsets = OffsetBuffer::from_lengths(records.iter().map(|record| record.headers.len()));
    Arc::new(arrow::array::ListArray::new(item, offsets, Arc::new(entries), None))
}

pub(super) fn planned(sql: &str) -> Plan {
    plan(sql).unwrap_or_else(|error| panic!("{error}\n{sql}"))
}

pub(super) fn refused(sql: &str) -> String {
    match plan(sql) {
        Ok(plan) => panic!("this was planned:\n{sql}\n{}", plan.description),
        Err(error) => error.to_string(),
    }
}

/// Runs one batch through a fresh stage with no cuts.
pub(super) fn run_stage(plan: &Plan, log: &[Record], shards: usize, from: i64, until: i64) -> StageOutput {
    run_cut(plan, log, from, until, &vec![Some(Offset(0)); shards], &[]).unwrap()
}

/// What a stage is given if nothing is special.
pub(super) fn input<'a>(partition: &'a SourcePartition, batch: &'a SourceBatch) -> StageInput<'a> {
    let now = 1_800_000_000_000_000;
    StageInput { partition, batch, watermark: None, quiet: None, cuts: &[], closed: &[], now, poison: &[] }
}

pub(super) fn run_cut(
    plan: &Plan,
    log: &[Record],
    from: i64,
    until: i64,
    cuts: &[Option<Offset>],
    poison: &[Offset],
) -> Result<StageOutput, StageError> {
    let partition = partition(0);
    let mut stage = plan.query().source_stage(&partition);
    let batch = batch(log, from, until);
    let closed = vec![None; cuts.len()];
    stage.run(StageInput { cuts, closed: &closed, poison, ..input(&partition, &batch) })
}

pub(super) fn total(output: &StageOutput) -> Counts {
    let mut counts = Counts::default();
    output.lanes.iter().for_each(|lane| counts.add(&lane.counts));
    counts
}

pub(super) fn letters(output: &StageOutput) -> Vec<DeadLetter> {
    let mut letters: Vec<_> = output.lanes.iter().flat_map(|lane| lane.dead_letters.clone()).collect();
    letters.sort_by_key(|letter| letter.offset);
    letters
}

/// The rows of a sink, by the text of their key.
pub(super) type Rows = BTreeMap<String, Vec<ScalarValue>>;

pub(super) fn values(rows: &RecordBatch, row: usize) -> Vec<ScalarValue> {
    rows.columns().iter().map(|column| ScalarValue::try_from_array(column, row).unwrap()).collect()
}

/// A table that a pipeline writes.
pub(super) struct Table {
    sink: SinkTable,
    key: Vec<usize>,
    pub(super) rows: Rows,
    /// How often each row was written.
    pub(super) written: BTreeMap<String, usize>,
    pub(super) deletes: usize,
}

impl Table {
    fn new(sink: &SinkTable) -> Self {
        let schema = &sink.schema;
        let key = match sink.primary_key.is_empty() {
            true => (0..schema.fields().len()).collect(),
            false => sink.primary_key.iter().map(|name| schema.index_of(name).unwrap()).collect(),
        };
        Self { sink: sink.clone(), key, rows: Rows::new(), written: BTreeMap::new(), deletes: 0 }
    }

    fn key_of(&self, row: &[ScalarValue]) -> String {
        self.key.iter().map(|column| format!("{:?}", row[*column])).collect::<Vec<_>>().join("|")
    }

    fn write(&mut self, output: &OutputBatch, may_delete_nothing: bool) {
        assert_eq!(output.rows.schema().fields().len(), self.sink.schema.fields().len());
        assert!(output.rows.schema().metadata().is_empty());
        for row in 0..output.rows.num_rows() {
            let row = values(&output.rows, row);
            let key = self.key_of(&row);
            match output.change {
                Change::Upsert => {
                    *self.written.entry(key.clone()).or_default() += 1;
                    self.rows.insert(key, row);
                }
                Change::Delete => {
                    self.deletes += 1;
                    let there = self.rows.remove(&key).is_some();
                    assert!(there || may_delete_nothing, "what is deleted was there: {key}");
                }
            }
        }
    }

    /// Compares the rows with others; DOUBLE within 1e-12 relative, all else exactly.
    pub(super) fn assert_rows(&self, expected: Vec<Vec<ScalarValue>>) {
        let wanted: Rows = expected.into_iter().map(|row| (self.key_of(&row), row)).collect();
        let keys = |rows: &Rows| rows.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&self.rows), keys(&wanted), "{}", self.sink.name);
        for (key, found) in &self.rows {
            for ((found, wanted), field) in found.iter().zip(&wanted[key]).zip(self.sink.schema.fields()) {
                let name = field.name();
                assert!(close(found, wanted), "{name} of {key}: {found:?}, but the batch engine says {wanted:?}");
            }
        }
    }
}

/// A whole pipeline. Of the tables that it writes, it stands for the first.
pub(super) struct Pipeline {
    pub(super) plan: Plan,
    pub(super) query: Arc<dyn Query>,
    pub(super) shards: usize,
    stages: Vec<Box<dyn SourceStage>>,
    operators: Vec<Box<dyn KeyedOperator>>,
    stored: Vec<Vec<StateDelta>>,
    partitions: Vec<SourcePartition>,
    /// What each INSERT writes.
    pub(super) tables: Vec<Table>,
    /// The watermark of each partition.
    pub(super) watermarks: Vec<Watermark>,
    idle: Vec<bool>,
    raised: Vec<Watermark>,
    /// The highest watermark of the shards so far.
    pub(super) told: Watermark,
    /// What each partition knows of it.
    closed: Vec<Watermark>,
    /// What the last checkpoint of each shard had of it.
    stored_closed: Vec<Watermark>,
    batches: usize,
    /// A row may be removed that is not there.
    pub(super) may_delete_nothing: bool,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) counts: Counts,
}

impl Pipeline {
    pub(super) fn new(sql: &str, shards: usize, partitions: usize) -> Self {
        let plan = planned(sql);
        let query = plan.query();
        // The partitions of several topics come one after the other.
        let partitions: Vec<_> = (0..partitions)
            .map(|number| {
                let source = number % plan.sources.len();
                of_source(source, &plan.sources[source].topic, number as i32)
            })
            .collect();
        let number = partitions.len();
        Self {
            stages: partitions.iter().map(|partition| query.source_stage(partition)).collect(),
            operators: (0..shards).map(|shard| query.operator(shard as u32)).collect(),
            stored: vec![Vec::new(); shards],
            tables: plan.inserts.iter().map(|insert| Table::new(&insert.sink)).collect(),
            partitions,
            plan,
            query,
            shards,
            watermarks: vec![None; number],
            idle: vec![false; number],
            raised: vec![None; number],
            told: None,
            closed: vec![None; number],
            stored_closed: vec![None; shards],
            batches: 0,
            may_delete_nothing: false,
            letters: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The table of a name.
    pub(super) fn table(&self, name: &str) -> &Table {
        self.tables.iter().find(|table| table.sink.name == name).unwrap()
    }

    pub(super) fn batch(&mut self, number: usize, log: &[Record], from: i64, until: i64) {
        let partition = self.partitions[number].clone();
        let batch = batch(log, from, until);
        let cuts = vec![Some(Offset(from)); self.shards];
        let watermark = self.watermarks[number];
        // One that was idle asks before it goes on; otherwise it knows from some earlier answer.
        self.batches += 1;
        if std::mem::take(&mut self.idle[number]) || self.batches.is_multiple_of(2) {
            self.closed[number] = self.told;
        }
        self.raised[number] = None;
        let closed = vec![self.closed[number]; self.shards];
        let input = StageInput { watermark, cuts: &cuts, closed: &closed, ..input(&partition, &batch) };
        let output = self.stages[number].run(input).unwrap();
        self.watermarks[number] = output.watermark;
        let lowest = self.lowest();
        assert_eq!(total(&output).total(), (until - from) as u64, "every offset is counted once");
        self.counts.add(&total(&output));
        for (operator, lane) in self.operators.iter_mut().zip(output.lanes) {
            self.letters.extend(lane.dead_letters);
            operator.apply(lane.rows, lowest).unwrap();
        }
    }

    /// A partition has been quiet for so long at the end of its log.
    pub(super) fn quiet(&mut self, number: usize, seconds: u64) {
        let partition = self.partitions[number].clone();
        let batch = batch(&[], 0, 0);
        let quiet = Some(Duration::from_secs(seconds));
        let (watermark, cuts) = (self.watermarks[number], vec![Some(Offset(0)); self.shards]);
        let closed = vec![self.closed[number]; self.shards];
        let input = StageInput { watermark, quiet, cuts: &cuts, closed: &closed, ..input(&partition, &batch) };
        let output = self.stages[number].run(input).unwrap();
        assert_eq!(output.watermark, self.watermarks[number]);
        (self.idle[number], self.raised[number]) = (output.idle, output.raised);
        let lowest = self.lowest();
        self.operators.iter_mut().for_each(|operator| operator.apply(Vec::new(), lowest).unwrap());
    }

    /// The watermark of the shards.
    fn lowest(&mut self) -> Watermark {
        let positions = (0..self.watermarks.len()).map(|number| {
            let (watermark, idle, raised) = (self.watermarks[number], self.idle[number], self.raised[number]);
            let position = Position { watermark, idle, raised, ..Position::start(Offset(0)) };
            (self.partitions[number].key, position)
        });
        self.told = self.told.max(Vector(positions.collect()).watermark());
        self.told
    }

    pub(super) fn checkpoint(&mut self, shard: usize) -> Vec<OutputBatch> {
        let checkpoint = self.operators[shard].checkpoint().unwrap();
        for delta in checkpoint.state {
            // Nothing older counts.
            if delta.whole {
                self.stored[shard].retain(|stored| stored.table != delta.table);
            }
            self.stored[shard].push(delta);
        }
        self.stored_closed[shard] = self.told;
        for output in &checkpoint.output {
            self.tables[output.sink].write(output, self.may_delete_nothing);
        }
        checkpoint.output
    }

    /// Why a shard cannot take a checkpoint.
    pub(super) fn fails(&mut self, shard: usize) -> Option<String> {
        self.try_checkpoint(shard).err().map(|error| error.to_string())
    }

    /// A checkpoint that is neither stored nor written.
    pub(super) fn try_checkpoint(&mut self, shard: usize) -> Result<OperatorCheckpoint, StageError> {
        self.operators[shard].checkpoint()
    }

    pub(super) fn checkpoint_all(&mut self) -> Vec<OutputBatch> {
        (0..self.shards).flat_map(|shard| self.checkpoint(shard)).collect()
    }

    /// Replaces a shard's operator by a fresh one that starts from the stored state, as it is after it was encoded,
    /// merged and decoded.
    pub(super) fn restart(&mut self, shard: usize) {
        let mut fresh = self.query.operator(shard as u32);
        let mut number = 0;
        let key = SegmentKey { shard: shard as u32, epoch: Epoch(1), attempt: Attempt::fresh(), number: 0 };
        let mut stored = Vec::new();
        for (table, shape) in fresh.tables().into_iter().enumerate() {
            let of_table = self.stored[shard].iter().filter(|delta| delta.table == table);
            let deltas: Vec<_> = of_table.map(|delta| delta.rows.clone()).collect();
            let merged = strandline_actors::compaction::merge(&deltas, shape, true, self.stored_closed[shard]).unwrap();
            for rows in merged {
                let next = || {
                    number += 1;
                    SegmentKey { number, ..key }
                };
                let segments = segment::encode(&rows, SegmentKind::State { table }, next).unwrap();
                let decoded = segments.iter().flat_map(|s| segment::decode(&s.reference, &s.bytes).unwrap());
                stored.extend(decoded.map(|rows| StateDelta { table, rows, whole: false }));
            }
        }
        self.stored[shard] = stored;
        fresh.restore(self.stored[shard].clone()).unwrap();
        assert_eq!(fresh.keys(), self.operators[shard].keys());
        self.operators[shard] = fresh;
    }

    pub(super) fn keys(&self) -> usize {
        self.operators.iter().map(|operator| operator.keys()).sum()
    }

    /// Takes all logs in, in random pieces, with checkpoints and restarts in between.
    pub(super) fn run(&mut self, logs: &[Vec<Record>], dice: &mut Dice) {
        let ends: Vec<i64> = logs.iter().map(|log| log.last().map_or(0, |record| record.offset + 1)).collect();
        let mut at = vec![0; logs.len()];
        while at != ends {
            let number = dice.below(logs.len());
            if at[number] == ends[number] {
                continue;
            }
            let size = if dice.chance(50) { 1 + dice.below(7) } else { 1 + dice.below(200) };
            let until = (at[number] + size as i64).min(ends[number]);
            self.batch(number, &logs[number], at[number], until);
            at[number] = until;
            let shard = dice.below(self.shards);
            if dice.chance(30) {
                self.checkpoint(shard);
                if dice.chance(40) {
                    self.restart(shard);
                }
            }
        }
        self.checkpoint_all();
    }
}

/// The rows of a table, decoded by Arrow's own JSON reader.
pub(super) fn decoded(schema: &SchemaRef, logs: &[Vec<Record>]) -> RecordBatch {
    let mut decoder =
        arrow_json::ReaderBuilder::new(Arc::clone(schema)).with_batch_size(1 << 20).build_decoder().unwrap();
    for record in logs.iter().flatten() {
        decoder.decode(record.value.as_ref().unwrap()).unwrap();
    }
    decoder.flush().unwrap().unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(schema)))
}

/// What DataFusion's batch engine makes of the rows, cast to the columns of a sink.
pub(super) fn batch_engine(select: &str, rows: RecordBatch, sink: &Schema) -> Vec<Vec<ScalarValue>> {
    let mut config = SessionConfig::new().with_target_partitions(1);
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let context = SessionContext::new_with_config(config);
    context.register_table("orders", Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let batches = runtime.block_on(async { context.sql(select).await.unwrap().collect().await.unwrap() });
    batches
        .iter()
        .flat_map(|batch| {
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .zip(sink.fields())
                .map(|(column, field)| arrow::compute::cast(column, field.data_type()).unwrap())
                .collect();
            (0..batch.num_rows()).map(move |row| {
                columns.iter().map(|column| ScalarValue::try_from_array(column, row).unwrap()).collect::<Vec<_>>()
            })
        })
        .collect()
}

impl std::ops::Deref for Pipeline {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.tables[0]
    }
}

impl std::ops::DerefMut for Pipeline {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.tables[0]
    }
}

/// Compares the rows of the only sink with others.
pub(super) fn assert_rows(pipeline: &Pipeline, expected: Vec<Vec<ScalarValue>>) {
    pipeline.assert_rows(expected);
}

fn close(found: &ScalarValue, wanted: &ScalarValue) -> bool {
    match (found, wanted) {
        (ScalarValue::Float64(Some(a)), ScalarValue::Float64(Some(b))) => {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
        }
        _ => found == wanted,
    }
}

/// The text of a VARCHAR column.
pub(super) fn strings(rows: &RecordBatch, column: usize) -> Vec<Option<String>> {
    rows.column(column).as_string::<i32>().iter().map(|value| value.map(str::to_owned)).collect()
}

pub(super) fn timestamps(rows: &RecordBatch, column: usize) -> Vec<i64> {
    let column = rows.column(column);
    assert_eq!(column.data_type(), &DataType::Timestamp(TimeUnit::Millisecond, None));
    column.as_primitive::<arrow::datatypes::TimestampMillisecondType>().values().to_vec()
}
