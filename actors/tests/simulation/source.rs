//! A fake log: partitions with holes in their offsets, read in ragged batches, by readers that sometimes are wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use async_trait::async_trait;
use strandline_actors::ports::{BatchLimit, PartitionReader, Source, SourceBatch, SourceError};
use strandline_actors::position::{Offset, PartitionKey, Range, SourcePartition};
use tokio::time::Instant;
use uuid::Uuid;

use crate::faults::Chance;
use crate::process::Process;
use crate::world::Plan;

#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub offset: i64,
    pub key: i64,
    pub value: i64,
    /// Event time.
    pub time: i64,
}

/// A log as its producer fills it.
#[derive(Debug, Default)]
pub struct Log {
    pub records: Vec<Record>,
    pub end: i64,
}

pub struct FakeKafka {
    pub topic_id: Uuid,
    pub logs: Mutex<BTreeMap<i32, Log>>,
    /// Partitions beyond whose end a transaction is open.
    pub open_transactions: Mutex<BTreeSet<i32>>,
    /// Partitions whose leader is known and gives no records.
    pub withheld: Mutex<BTreeSet<i32>>,
    /// Partitions that cannot be opened.
    pub broken: Mutex<BTreeSet<i32>>,
    /// Partitions whose readers pass for so long over what was aborted.
    pub aborted: Mutex<BTreeMap<i32, Duration>>,
    /// What is there at first is not read.
    pub latest: bool,
    /// Partitions of which nobody tells where they could start.
    pub untold: Mutex<BTreeSet<i32>>,
    /// Its topic is compacted.
    pub thins: AtomicBool,
    /// By partition, offsets of which the broker says that their records were deleted. None was ever there, so no result changes
    /// with who has read them before.
    pub lost: Option<Mutex<BTreeMap<i32, BTreeMap<i64, i64>>>>,
    pub chance: Arc<Chance>,
}

impl FakeKafka {
    pub fn new(chance: Arc<Chance>, plan: &Plan) -> Self {
        let logs = (0..plan.partitions).map(|partition| (partition, Log::default())).collect();
        Self {
            topic_id: Uuid::from_u128(77),
            logs: Mutex::new(logs),
            open_transactions: Mutex::default(),
            withheld: Mutex::default(),
            broken: Mutex::default(),
            aborted: Mutex::default(),
            latest: plan.latest,
            untold: Mutex::default(),
            thins: AtomicBool::default(),
            lost: plan.loses.then(Mutex::default),
            chance,
        }
    }

    pub fn partition(&self, partition: i32) -> SourcePartition {
        SourcePartition { source: 0, topic: "orders".into(), key: PartitionKey { topic_id: self.topic_id, partition } }
    }

    /// Adds a partition, and answers its number.
    pub fn grow(&self) -> i32 {
        let mut logs = self.logs.lock().unwrap();
        let partition = logs.len() as i32;
        logs.insert(partition, Log::default());
        partition
    }

    /// Appends a record, sometimes after a hole.
    pub fn produce(&self, partition: i32, key: i64, value: i64, time: i64) {
        let mut hole = 0;
        if self.chance.number(10) == 0 {
            self.chance.dealt("source leaves a gap");
            hole = 1 + self.chance.number(3) as i64;
            // Long enough for a shard to stop within it.
            hole *= if self.lost.is_some() { 30 } else { 1 };
        }
        let mut logs = self.logs.lock().unwrap();
        let log = logs.entry(partition).or_default();
        let offset = log.end + hole;
        log.records.push(Record { offset, key, value, time });
        log.end = offset + 1;
        // A transaction marker, which no record follows at first.
        if self.chance.number(20) == 0 {
            log.end += 1;
        }
    }

    /// Up to where the records that a reader comes to were deleted, if they were, and where otherwise the next begin that were. Now
    /// and then a broker deletes some of a hole, for everybody from then on.
    fn deleted(&self, partition: i32, from: i64, next: i64) -> (Option<i64>, i64) {
        let Some(lost) = &self.lost else { return (None, i64::MAX) };
        let mut lost = lost.lock().unwrap();
        let lost = lost.entry(partition).or_default();
        let hole = next - from;
        if hole > 2
            && lost.range(..next).next_back().is_none_or(|(_, until)| *until <= from)
            && self.chance.number(3) == 0
        {
            self.chance.dealt("records deleted");
            lost.insert(from, from + 1 + self.chance.number(hole as u64) as i64);
        }
        match lost.range(..=from).next_back() {
            Some((_, until)) if *until > from => (Some(*until), *until),
            _ => (None, lost.range(from..).next().map_or(i64::MAX, |(begin, _)| *begin)),
        }
    }
}

pub struct ProcessKafka {
    pub kafka: Arc<FakeKafka>,
    pub process: Arc<Process>,
}

#[async_trait]
impl Source for ProcessKafka {
    async fn partitions(&self) -> Result<Vec<SourcePartition>, SourceError> {
        self.process.awaits("partitions").await;
        self.process.chance.pause(20).await;
        let partitions: Vec<i32> = self.kafka.logs.lock().unwrap().keys().copied().collect();
        Ok(partitions.into_iter().map(|partition| self.kafka.partition(partition)).collect())
    }

    async fn start_offset(&self, partition: &SourcePartition, later: bool) -> Result<Offset, SourceError> {
        self.process.awaits("start offset").await;
        while self.kafka.untold.lock().unwrap().contains(&partition.key.partition) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        if later || !self.kafka.latest {
            return Ok(Offset(0));
        }
        self.process.chance.pause(20).await;
        self.process.chance.dealt("started at the end");
        Ok(self.kafka.logs.lock().unwrap().get(&partition.key.partition).map_or(Offset(0), |log| Offset(log.end)))
    }

    async fn thins(&self, _: &SourcePartition) -> Result<bool, SourceError> {
        self.process.awaits("thins").await;
        Ok(self.kafka.thins.load(Ordering::SeqCst))
    }

    async fn end(&self, partition: &SourcePartition) -> Option<Offset> {
        let logs = self.kafka.logs.lock().unwrap();
        Some(Offset(logs.get(&partition.key.partition)?.end))
    }

    async fn open(&self, partition: &SourcePartition, from: Offset) -> Result<Box<dyn PartitionReader>, SourceError> {
        self.process.awaits("open").await;
        self.process.chance.pause(10).await;
        let broken = self.kafka.broken.lock().unwrap().contains(&partition.key.partition);
        if broken || self.process.chance.strikes("source cannot be opened", 40) {
            return Err(SourceError::Failed("the fake broker does not answer".into()));
        }
        let partition = partition.key.partition;
        self.process.note(|| format!("reads partition {partition} from {from}"));
        let (kafka, process) = (Arc::clone(&self.kafka), Arc::clone(&self.process));
        Ok(Box::new(Reader { kafka, process, partition, position: from.0, opened: Instant::now() }))
    }
}

struct Reader {
    kafka: Arc<FakeKafka>,
    process: Arc<Process>,
    partition: i32,
    position: i64,
    opened: Instant,
}

#[async_trait]
impl PartitionReader for Reader {
    async fn next(&mut self, limit: BatchLimit) -> Result<SourceBatch, SourceError> {
        let chance = &self.process.chance;
        chance.pause(30).await;
        self.process.awaits("read").await;
        if chance.strikes("source fails", 300) {
            return Err(SourceError::Failed("the fake broker is gone".into()));
        }
        if chance.strikes("source hangs", 3_000) {
            std::future::pending::<()>().await;
        }
        if self.position > 0 && chance.strikes("source rewinds", 400) {
            self.position -= 1 + chance.number(self.position.min(20) as u64) as i64;
        }
        let aborted = self.kafka.aborted.lock().unwrap().get(&self.partition).copied();
        let withheld = self.kafka.withheld.lock().unwrap().contains(&self.partition)
            || aborted.is_some_and(|takes| self.opened.elapsed() < takes);
        let most = if withheld { 0 } else { (1 + chance.number(40) as usize).min(limit.rows) };
        let (records, end, deleted, beyond) = {
            let logs = self.kafka.logs.lock().unwrap();
            let log = &logs[&self.partition];
            if self.position < log.end && chance.strikes("source jumps ahead", 400) {
                self.position += 1 + chance.number((log.end - self.position) as u64) as i64;
            }
            let first = log.records.partition_point(|record| record.offset < self.position);
            let next = log.records.get(first).map_or(self.position, |record| record.offset);
            let (deleted, beyond) = self.kafka.deleted(self.partition, self.position, next);
            let records = log.records[first..].iter().take(most).take_while(|record| record.offset < beyond);
            let records: Vec<Record> = records.copied().collect();
            (records, log.end, deleted, beyond)
        };
        let from = self.position;
        let until = match records.last() {
            _ if withheld => from,
            Some(last) if records.len() == most => last.offset + 1,
            _ => end.min(beyond),
        };
        self.position = until.max(from);
        let empty = records.is_empty() && self.position == from;
        // Now and then no broker answers, and the end is not known.
        let end = (!empty || !chance.strikes("end of the log unknown", 20)).then_some(Offset(end));
        let column =
            |of: fn(&Record) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(records.iter().map(of))) };
        let rows = RecordBatch::try_from_iter([
            ("_offset", column(|record| record.offset)),
            ("key", column(|record| record.key)),
            ("value", column(|record| record.value)),
            ("time", column(|record| record.time)),
        ])
        .unwrap();
        let range = Range::new(Offset(from), Offset(self.position));
        if !empty {
            self.process.note(|| format!("read partition {} {range} of {end:?}", self.partition));
        }
        Ok(SourceBatch {
            range,
            bytes: rows.num_rows() * 24,
            records: rows,
            end,
            open_transaction: self.kafka.open_transactions.lock().unwrap().contains(&self.partition),
            waits: false,
            lost: deleted.is_some() && !withheld,
            producers: Default::default(),
        })
    }
}
