//! What a plain loop over the log computes, for the whole of it or up to any positions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strandline_actors::pointer::{Pointer, SegmentKey, SegmentKind, SegmentRef};
use strandline_actors::position::{Offset, Vector, Watermark};
use strandline_actors::segment;

use crate::query::{BAD, DELAY, Held, POISON, WINDOW, group};
use crate::source::FakeKafka;

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
    /// By partition and offset.
    pub letters: BTreeSet<(i32, i64)>,
    /// By partition.
    pub watermarks: BTreeMap<i32, Watermark>,
}

pub struct Truth {
    pub kafka: Arc<FakeKafka>,
    pub shards: u32,
    pub seed: u64,
}

impl Truth {
    /// Loops over the records below the limits; `shard` alone when one is given.
    pub fn of(&self, shard: Option<u32>, below: impl Fn(i32) -> i64) -> Found {
        let mut found = Found::default();
        for (partition, log) in self.kafka.logs.lock().unwrap().iter() {
            let mut watermark: Watermark = None;
            let limit = below(*partition);
            for record in log.records.iter().take_while(|record| record.offset < limit) {
                if record.value == BAD || record.value == POISON {
                    found.letters.insert((*partition, record.offset));
                    continue;
                }
                let window = record.time.div_euclid(WINDOW) * WINDOW;
                let late = watermark.is_some_and(|watermark| window + WINDOW <= watermark);
                watermark = watermark.max(Some(record.time - DELAY));
                if shard.is_some_and(|shard| record.key % i64::from(self.shards) != i64::from(shard)) {
                    continue;
                }
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
        found
    }

    /// Some pointers are compared with the loop as soon as they are written: which, is no matter of chance, so that looking
    /// changes nothing.
    pub fn samples(&self, pointer: &Pointer) -> bool {
        (pointer.epoch.0 as u64 + u64::from(pointer.shard) + self.seed).is_multiple_of(4)
    }

    /// The state that a pointer lists.
    pub fn held(&self, pointer: &Pointer, segments: &BTreeMap<SegmentKey, Vec<u8>>) -> Result<Held, String> {
        let mut held = Held::default();
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
        let found = self.of(Some(pointer.shard), |partition| position(&pointer.content.vector, partition));
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
