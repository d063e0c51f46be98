//! What a plain loop over the log computes, for the whole of it or up to any positions. It knows what a rewind means: what is
//! read again counts again, or from the targets on alone where the state was dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strandline_actors::pointer::{Pointer, SegmentKey, SegmentKind, SegmentRef};
use strandline_actors::position::{Offset, Vector, Watermark};
use strandline_actors::segment;

use crate::history::History;
use crate::query::{BAD, DEADLY, DELAY, HANGS, Held, POISON, WINDOW, group};
use crate::source::{FakeKafka, Record};

/// Sum and count.
pub type Sum = (i64, i64);

/// What the loop finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// By key.
    pub sums: BTreeMap<i64, Sum>,
    /// By window and group: the rows that are not late.
    pub windows: BTreeMap<(i64, i64), Sum>,
    /// By partition: rows that came after the watermark of their own partition had passed the end of their window.
    pub late: BTreeMap<i32, u64>,
    /// By partition: offsets that were passed.
    pub counted: BTreeMap<i32, i64>,
    /// By partition.
    pub watermarks: BTreeMap<i32, Watermark>,
}

pub struct Truth {
    pub kafka: Arc<FakeKafka>,
    pub history: Arc<History>,
    pub shards: u32,
    pub seed: u64,
}

impl Truth {
    /// What all shards together find in the whole log.
    pub fn of_all(&self) -> Found {
        let mut found = Found::default();
        (0..self.shards).for_each(|shard| self.add(&mut found, shard, |_| i64::MAX));
        found
    }

    /// Every record that cannot be processed, by partition and offset: a dead letter stays, whatever is rewound.
    pub fn letters(&self) -> BTreeSet<(i32, i64)> {
        let logs = self.kafka.logs.lock().unwrap();
        let records = logs.iter().flat_map(|(partition, log)| log.records.iter().map(|record| (*partition, record)));
        let counts = |partition: i32, record: &Record| record.offset >= self.history.start(partition);
        records
            .filter(|(partition, record)| is_bad(record) && counts(*partition, record))
            .map(|(partition, record)| (partition, record.offset))
            .collect()
    }

    /// Loops over what a shard has read below the limits.
    fn add(&self, found: &mut Found, shard: u32, below: impl Fn(i32) -> i64) {
        let owns = |number: i64| number % i64::from(self.shards) == i64::from(shard);
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            let passes = self.history.passes(shard, *partition);
            for (number, pass) in passes.iter().enumerate() {
                let latest = number + 1 == passes.len();
                let until = if latest { below(*partition) } else { pass.until }.min(log.end);
                let counted = found.counted.entry(*partition).or_default();
                let records = log.records.iter().skip_while(|record| record.offset < pass.from);
                let records: Vec<_> = records.take_while(|record| record.offset < until).collect();
                if owns(i64::from(*partition)) {
                    *counted += (until - pass.from).max(0) - records.len() as i64;
                }
                let mut watermark: Watermark = None;
                for record in records {
                    if is_bad(record) {
                        *counted += i64::from(owns(record.offset));
                        continue;
                    }
                    let window = record.time.div_euclid(WINDOW) * WINDOW;
                    let late = watermark.is_some_and(|watermark| window + WINDOW <= watermark);
                    watermark = watermark.max(Some(record.time - DELAY));
                    if !owns(record.key) {
                        continue;
                    }
                    *counted += 1;
                    let add = |sum: &mut Sum| (sum.0, sum.1) = (sum.0 + record.value, sum.1 + 1);
                    add(found.sums.entry(record.key).or_default());
                    if late {
                        *found.late.entry(*partition).or_default() += 1;
                    } else {
                        add(found.windows.entry((window, group(record.key))).or_default());
                    }
                }
                found.watermarks.insert(*partition, watermark);
            }
        }
    }

    /// Some pointers are compared with the loop as soon as they are written: which, is no matter of chance, so that looking
    /// changes nothing.
    pub fn samples(&self, pointer: &Pointer) -> bool {
        (pointer.epoch.0 as u64 + u64::from(pointer.shard) + self.seed).is_multiple_of(4)
    }

    /// The state that a pointer lists.
    pub fn held(&self, pointer: &Pointer, segments: &BTreeMap<SegmentKey, Vec<u8>>) -> Result<Held, String> {
        let mut held = Held { closed: pointer.content.closed, ..Held::default() };
        for reference in &pointer.content.state {
            let SegmentKind::State { table } = reference.kind else { return Err(format!("{reference:?} is no state")) };
            let bytes = segments.get(&reference.key).ok_or_else(|| format!("segment {:?} is gone", reference.key))?;
            let batches = segment::decode(reference, bytes).map_err(|error| error.to_string())?;
            batches.iter().for_each(|rows| held.restore(table, rows));
        }
        Ok(held)
    }

    /// How the state that a pointer lists differs from what the loop finds below the pointer's positions.
    pub fn state_differences(
        &self,
        pointer: &Pointer,
        segments: &BTreeMap<SegmentKey, Vec<u8>>,
        damaged: &BTreeSet<SegmentKey>,
    ) -> Vec<String> {
        // Missing and damaged segments are noticed elsewhere.
        let readable = |segment: &SegmentRef| segments.contains_key(&segment.key) && !damaged.contains(&segment.key);
        if !pointer.content.state.iter().all(readable) {
            return Vec::new();
        }
        let held = match self.held(pointer, segments) {
            Ok(held) => held,
            Err(error) => return vec![error],
        };
        let place = format!("the state of shard {} at epoch {}", pointer.shard, pointer.epoch);
        let mut found = Found::default();
        self.add(&mut found, pointer.shard, |partition| position(&pointer.content.vector, partition));
        let mut wrong = Vec::new();
        compare(&mut wrong, &place, "key", &held.sums, &found.sums);
        let is_open = |window: i64| held.closed.is_none_or(|closed| closed < window + WINDOW);
        let open = found.windows.iter().filter(|((window, _), _)| is_open(*window));
        compare(&mut wrong, &place, "open window", &held.windows, &open.map(|(key, sum)| (*key, *sum)).collect());
        for (key, position) in &pointer.content.vector.0 {
            let (is, should) = (position.watermark, found.watermarks.get(&key.partition).copied().flatten());
            if is != should {
                wrong.push(format!("{place}: watermark {is:?} instead of {should:?} of partition {}", key.partition));
            }
        }
        wrong
    }
}

fn is_bad(record: &Record) -> bool {
    [BAD, POISON, DEADLY, HANGS].contains(&record.value)
}

fn position(vector: &Vector, partition: i32) -> i64 {
    let positions = vector.0.iter().filter(|(key, _)| key.partition == partition);
    positions.map(|(_, position)| position.next).next().unwrap_or(Offset(0)).0
}

/// Notes where two results differ.
pub fn compare<K: Ord + Copy + std::fmt::Debug>(
    wrong: &mut Vec<String>,
    place: &str,
    what: &str,
    is: &BTreeMap<K, Sum>,
    should: &BTreeMap<K, Sum>,
) {
    for key in should.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
        if is.get(key) != should.get(key) {
            wrong.push(format!("{place}, {what} {key:?}: {:?} instead of {:?}", is.get(key), should.get(key)));
        }
    }
}
