//! A pipeline without actors, on one thread: partitions, lanes, shards, what is stored of them, and tables as sinks. It runs
//! in the way in which its test is being run ([`super::ways`]): so batches are cut otherwise, and shards die and read again
//! what they had not committed.

use std::sync::Arc;
use std::time::Duration;

use strandline_actors::ports::{
    DeadLetter, LaneRows, OperatorCheckpoint, OutputBatch, Query, SourceStage, StageError, StageInput,
};
use strandline_actors::position::{Counts, Offset, Range, SourcePartition, Watermark};

use super::dice::Dice;
use super::records::{Record, batch, of_source};
use super::shard::{Said, Shard};
use super::stage::{NOW, input, planned};
use super::table::Table;
use super::ways::{self, Way};
use crate::sql::Plan;

/// A whole pipeline. Of the tables that it writes, it stands for the first.
pub(crate) struct Pipeline {
    pub(crate) plan: Plan,
    pub(crate) query: Arc<dyn Query>,
    way: Way,
    /// There was a checkpoint. After the first one something dies for certain.
    committed: bool,
    dice: Dice,
    shards: Vec<Shard>,
    partitions: Vec<Partition>,
    /// What happened, in this order.
    events: Vec<Event>,
    /// What each INSERT writes.
    pub(crate) tables: Vec<Table>,
    /// A row may be removed that is not there.
    pub(crate) may_delete_nothing: bool,
    /// The dead letters by partition and offset.
    pub(crate) letters: Vec<DeadLetter>,
    pub(crate) counts: Counts,
    /// What the clock says, in microseconds.
    pub(crate) now: i64,
    /// If the clock is recorded: each so many records of a partition are read at one time, always the same, each time so many
    /// microseconds after those before.
    pub(crate) recorded: Option<(i64, i64)>,
}

/// A partition in this life.
struct Partition {
    source: SourcePartition,
    /// What there is of its log.
    log: Vec<Record>,
    stage: Box<dyn SourceStage>,
    next: Offset,
    watermark: Watermark,
    /// Up to where each shard has closed its windows, as far as the partition knows.
    closed: Vec<Watermark>,
    /// The shards were told that nothing follows for now.
    idle: bool,
}

#[derive(Clone, Copy)]
enum Event {
    /// A partition was read up to here.
    Read(usize, i64),
    /// A partition had been quiet for so many seconds.
    Quiet(usize, u64),
}

impl Pipeline {
    pub(crate) fn new(sql: &str, shards: usize, partitions: usize) -> Self {
        Self::of(planned(sql), shards, partitions)
    }

    /// One of a plan that is known.
    pub(crate) fn of(plan: Plan, shards: usize, partitions: usize) -> Self {
        let query = plan.query();
        let (way, number) = ways::next();
        let mut pipeline = Self {
            way,
            committed: false,
            dice: Dice::new(number),
            shards: (0..shards).map(|shard| Shard::new(shard as u32, query.as_ref())).collect(),
            partitions: Vec::new(),
            events: Vec::new(),
            tables: plan.inserts.iter().map(|insert| Table::new(&insert.sink)).collect(),
            plan,
            query,
            may_delete_nothing: false,
            letters: Vec::new(),
            counts: Counts::default(),
            now: NOW,
            recorded: None,
        };
        (0..partitions).for_each(|_| pipeline.add_partition());
        pipeline
    }

    /// One that has taken a log of one partition in.
    pub(crate) fn over(sql: &str, shards: usize, log: &[Record]) -> Self {
        let mut pipeline = Self::new(sql, shards, 1);
        pipeline.run(&[log.to_vec()], &mut Dice::new(shards as u64));
        pipeline
    }

    /// Offsets and reasons of the dead letters.
    pub(crate) fn reasons(&self) -> Vec<(i64, String)> {
        self.letters.iter().map(|letter| (letter.offset, letter.reason.clone())).collect()
    }

    /// The partitions of several topics come one after the other.
    fn add_partition(&mut self) {
        let number = self.partitions.len();
        let topic = number % self.plan.sources.len();
        let source = of_source(topic, &self.plan.sources[topic].topic, number as i32);
        self.shards.iter_mut().for_each(|shard| shard.expect(source.key));
        let stage = self.query.source_stage(&source);
        let closed = self.shards.iter().map(|shard| shard.closed).collect();
        let (log, next) = (Vec::new(), Offset(0));
        self.partitions.push(Partition { source, log, stage, next, watermark: None, closed, idle: false });
    }

    /// Another partition is found. What each shard has closed by then is stored, since it decides which of its rows are late.
    pub(crate) fn find_partition(&mut self) {
        assert!(self.shards.iter().all(Shard::is_stored));
        self.add_partition();
        self.settle();
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The table of a name.
    pub(crate) fn table(&self, name: &str) -> &Table {
        self.tables.iter().find(|table| table.sink.name == name).unwrap()
    }

    /// The watermark of a partition.
    pub(crate) fn watermark(&self, number: usize) -> Watermark {
        self.partitions[number].watermark
    }

    /// The next offset of a partition.
    pub(crate) fn next(&self, number: usize) -> i64 {
        self.partitions[number].next.0
    }

    /// The highest watermark of the shards so far.
    pub(crate) fn told(&self) -> Watermark {
        self.shards.iter().map(|shard| shard.closed).max().flatten()
    }

    /// The groups that the shards keep.
    pub(crate) fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.operator.keys()).sum()
    }

    /// A partition is read up to an offset.
    pub(crate) fn batch(&mut self, number: usize, log: &[Record], from: i64, until: i64) {
        self.read_on(number, log, from, until);
        self.perhaps_crash(60);
    }

    /// A partition has been quiet for so long at the end of its log.
    pub(crate) fn quiet(&mut self, number: usize, seconds: u64) {
        self.happened(Event::Quiet(number, seconds));
        self.perhaps_crash(60);
    }

    /// A shard commits.
    pub(crate) fn checkpoint(&mut self, shard: usize) -> Vec<OutputBatch> {
        let output = self.commit(shard);
        let first = !std::mem::replace(&mut self.committed, true);
        self.perhaps_crash(if first { 100 } else { 60 });
        output
    }

    /// The shards commit one after the other.
    pub(crate) fn checkpoint_all(&mut self) -> Vec<OutputBatch> {
        (0..self.shards.len()).flat_map(|shard| self.checkpoint(shard)).collect()
    }

    /// Why a shard cannot take a checkpoint.
    pub(crate) fn fails(&mut self, shard: usize) -> Option<String> {
        self.try_checkpoint(shard).err().map(|error| error.to_string())
    }

    /// A checkpoint that is neither stored nor written.
    pub(crate) fn try_checkpoint(&mut self, shard: usize) -> Result<OperatorCheckpoint, StageError> {
        self.shards[shard].operator.checkpoint()
    }

    /// A shard dies, and takes again what it had not committed.
    pub(crate) fn restart(&mut self, shard: usize) {
        self.crash(&[shard]);
        self.catch_up();
    }

    /// Takes all logs in, with checkpoints in between: in turn if nothing is to interrupt it, and else in random pieces.
    pub(crate) fn run(&mut self, logs: &[Vec<Record>], dice: &mut Dice) {
        let ends: Vec<i64> = logs.iter().map(|log| log.last().map_or(0, |record| record.offset + 1)).collect();
        let mut turn = 0;
        while (0..logs.len()).any(|number| self.next(number) < ends[number]) {
            let random = self.way != Way::Uninterrupted;
            turn += 1;
            let number = if random { dice.below(logs.len()) } else { turn % logs.len() };
            let from = self.next(number);
            let size = if random { piece(dice) } else { 100 };
            let until = (from + size).min(ends[number]);
            if from == until {
                continue;
            }
            self.read_on(number, &logs[number], from, until);
            if random && dice.chance(30) {
                self.commit(dice.below(self.shards.len()));
                self.perhaps_crash(40);
            }
            if !random && turn % logs.len() == 0 {
                self.checkpoint_all();
            }
        }
        self.checkpoint_all();
    }

    /// All shards die, and each goes back to what it has committed. Partitions stand where the first of them needs them.
    pub(crate) fn crash_all(&mut self) {
        self.crash(&(0..self.shards.len()).collect::<Vec<_>>());
    }

    fn commit(&mut self, shard: usize) -> Vec<OutputBatch> {
        let output = self.shards[shard].checkpoint();
        for output in &output {
            self.tables[output.sink].write(output, self.may_delete_nothing);
        }
        output
    }

    fn read_on(&mut self, number: usize, log: &[Record], from: i64, until: i64) {
        let partition = &mut self.partitions[number];
        assert_eq!(partition.next, Offset(from), "a partition is read in order");
        partition.log.retain(|record| record.offset < from);
        partition.log.extend(log.iter().filter(|record| (from..until).contains(&record.offset)).cloned());
        self.happened(Event::Read(number, until));
    }

    fn happened(&mut self, event: Event) {
        self.events.push(event);
        self.repeat(event);
        self.settle();
    }

    fn repeat(&mut self, event: Event) {
        match event {
            Event::Quiet(number, seconds) => {
                self.step(number, self.next(number), Some(Duration::from_secs(seconds)));
            }
            Event::Read(number, until) => {
                while self.next(number) < until {
                    self.read_piece(number, until);
                }
            }
        }
    }

    /// Reads some of what there is up to an offset.
    fn read_piece(&mut self, number: usize, until: i64) {
        let from = self.next(number);
        let mut to = until;
        if self.way != Way::Uninterrupted {
            to = to.min(from + piece(&mut self.dice));
        }
        if let Some((records, _)) = self.recorded {
            to = to.min((from / records + 1) * records);
        }
        self.step(number, to, None);
    }

    /// One turn of a partition: a batch up to an offset, or nothing for so long.
    fn step(&mut self, number: usize, until: i64, quiet: Option<Duration>) {
        let Partition { source, log, stage, next, watermark, closed, idle } = &mut self.partitions[number];
        let (key, from, range) = (source.key, *next, Range::new(*next, Offset(until)));
        if !range.is_empty() {
            // One that was idle asks before it goes on; otherwise it knows from some earlier answer.
            let woken = std::mem::take(idle);
            if woken {
                let said = Said { watermark: *watermark, ..Said::default() };
                self.shards
                    .iter_mut()
                    .for_each(|shard| shard.take(&key, Range::probe(from), said, LaneRows::default()));
            }
            if woken || self.dice.chance(50) {
                *closed = self.shards.iter().map(|shard| shard.closed).collect();
            }
        }
        let batch = batch(log, from.0, until);
        let cuts: Vec<_> = self.shards.iter().map(|shard| Some(shard.position(&key).next.max(from))).collect();
        let now = match self.recorded.filter(|_| quiet.is_none()) {
            Some((records, micros)) => NOW + from.0 / records * micros,
            None => self.now,
        };
        let ahead = self.shards.iter().map(|shard| shard.position(&key)).filter(|position| position.next > from);
        let mut noted: Vec<_> = ahead.map(|position| (position.next, position.watermark)).collect();
        noted.sort_unstable();
        let given = StageInput {
            watermark: *watermark,
            quiet,
            cuts: &cuts,
            closed,
            noted: &noted,
            now,
            ..input(source, &batch)
        };
        let output = stage.run(given).unwrap();
        let said = Said { watermark: output.watermark, idle: output.idle, raised: output.raised };
        *idle |= output.idle;
        (*next, *watermark) = (range.until, output.watermark);
        for (shard, lane) in self.shards.iter_mut().zip(output.lanes) {
            shard.take(&key, range, said, lane);
        }
    }

    /// Adds up what the shards say of everything that has happened.
    fn settle(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.events = self.events.len());
        self.counts = Counts::default();
        let positions = self.shards.iter().flat_map(|shard| shard.vector.0.values());
        positions.for_each(|position| self.counts.add(&position.counts));
        self.letters = self.shards.iter().flat_map(Shard::letters).cloned().collect();
        self.letters.sort_by_key(|letter| (letter.partition, letter.offset));
        let together = |partition: &Partition| {
            self.shards.iter().all(|shard| shard.position(&partition.source.key).next == partition.next)
        };
        if self.partitions.iter().all(together) {
            let read: i64 = self.partitions.iter().map(|partition| partition.next.0).sum();
            assert_eq!(self.counts.total(), read as u64, "every offset is counted once");
        }
    }

    fn perhaps_crash(&mut self, percent: usize) {
        if self.way == Way::Crashes && self.dice.chance(percent) {
            let one = self.dice.below(self.shards.len());
            match self.dice.chance(70) {
                true => self.crash_all(),
                false => self.crash(&[one]),
            }
            self.catch_up();
        }
    }

    /// Some shards die. All partitions ask where they are to begin, and are idle no more.
    fn crash(&mut self, shards: &[usize]) {
        shards.iter().for_each(|shard| self.shards[*shard].restart(self.query.as_ref()));
        for partition in &mut self.partitions {
            let key = partition.source.key;
            for shard in &mut self.shards {
                shard.expect(key);
                shard.vector.0.get_mut(&key).unwrap().wake();
            }
            let positions = self.shards.iter().map(|shard| shard.position(&key));
            let lowest = positions.min_by_key(|position| (position.next, std::cmp::Reverse(position.watermark)));
            let lowest = lowest.unwrap();
            (partition.next, partition.watermark, partition.idle) = (lowest.next, lowest.watermark, false);
            let closed = |shard: &Shard| shard.closed.max(shard.position(&key).watermark);
            partition.closed = self.shards.iter().map(closed).collect();
            partition.stage = self.query.source_stage(&partition.source);
        }
    }

    /// Reads again what some shard lacks. Where the logs alone decide, partitions take turns at random; where silence has
    /// closed windows, or partitions were found, everything happens again in its order.
    fn catch_up(&mut self) {
        let first = self.shards.iter().map(|shard| shard.events).min().unwrap_or_default();
        let (before, lost) = self.events.split_at(first);
        if self.events.iter().all(|event| matches!(event, Event::Read(..))) {
            let mut ends: Vec<_> = self.partitions.iter().map(|partition| partition.next.0).collect();
            for event in lost {
                if let Event::Read(number, until) = event {
                    ends[*number] = *until;
                }
            }
            let behind = |pipeline: &Self| {
                (0..ends.len()).filter(|number| pipeline.next(*number) < ends[*number]).collect::<Vec<_>>()
            };
            let mut left = behind(self);
            while !left.is_empty() {
                let number = left[self.dice.below(left.len())];
                self.read_piece(number, ends[number]);
                left = behind(self);
            }
        } else {
            // Those that were quiet are so still.
            let of =
                |number: usize, event: &&Event| matches!(event, Event::Read(n, _) | Event::Quiet(n, _) if *n == number);
            let last = (0..self.partitions.len()).filter_map(|number| before.iter().rfind(|event| of(number, event)));
            let still = last.filter(|event| matches!(event, Event::Quiet(..))).copied().collect::<Vec<_>>();
            still.into_iter().chain(lost.to_vec()).for_each(|event| self.repeat(event));
        }
        self.settle();
    }
}

/// So many records are read at a time.
fn piece(dice: &mut Dice) -> i64 {
    1 + if dice.chance(50) { dice.below(7) } else { dice.below(200) } as i64
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
