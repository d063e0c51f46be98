//! Whether a shard takes a range from a lane: the check that makes every row count exactly once.
//!
//! A range is accepted only if it begins where the shard stands. Everything else is either a replay, which is dropped, or
//! a gap, after which the partition actor starts again from the positions that the shards answer.

use crate::position::{Offset, Range};

/// What a shard does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It continues where the shard stands: take it and move to its end.
    Accept,
    /// All of it was taken before: drop and count it.
    Replay,
    /// It begins after, or across, the place where the shard stands: take nothing, start the partition again.
    Gap,
}

/// Decides on a range, given the next offset that the shard expects.
pub fn decide(expected: Offset, range: Range) -> Decision {
    if range.from == expected || flaw!(NoVectorCheck) {
        Decision::Accept
    } else if range.until <= expected || (flaw!(StraddleDropped) && range.from < expected) {
        Decision::Replay
    } else {
        Decision::Gap
    }
}

/// The part of a batch that a lane still has to carry, given the first offset that its shard needs: `None` when the
/// shard is past the batch.
pub fn cut(batch: Range, needed: Offset) -> Option<Range> {
    if flaw!(StraddleDropped) {
        return (needed <= batch.until).then_some(batch);
    }
    let from = batch.from.max(needed);
    if batch.is_empty() && needed == batch.from {
        return Some(batch);
    }
    (from < batch.until).then(|| Range::new(from, batch.until))
}

/// Where a lane stands, and what its shard has counted of the partition up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The next offset that goes down the lane.
    pub next: Offset,
    /// From where on the shards count.
    pub from: Offset,
    /// How many offsets the shard has counted.
    pub total: u64,
    /// The shard has passed over what was lost, or is about to.
    pub unsettled: bool,
}

/// Which lane counts what was lost, and how much that is, given a range of which no record can be read any more or one behind it.
/// Shards that stand above the beginning of what was lost may have counted some of it. So it is what is missing from all counts
/// together, this range's included, once all shards stand together at its end; until then nobody knows. `None` among the lanes
/// stands for one that is switched off, and where that stands nobody knows either.
///
/// A shard counts it that has passed over it and takes something of this range: if it dies before this is committed it comes back
/// below what was lost, or still has it to count. One that stood above would not.
pub fn lost(range: Range, lanes: &[Option<Counted>]) -> Option<(usize, u64)> {
    let lanes: Vec<Counted> = lanes.iter().copied().collect::<Option<_>>()?;
    if lanes.iter().any(|lane| lane.next > range.until) {
        return None;
    }
    let takes = |lane: &Counted| lane.next < range.until || range.is_empty();
    let counts = lanes.iter().position(|lane| takes(lane) && (lane.unsettled || flaw!(AnyShardSettles)))?;
    let from = lanes.iter().map(|lane| lane.from).min()?;
    let counted = lanes.iter().map(|lane| lane.total).fold(0, u64::saturating_add);
    let passed = u64::try_from(range.until.0.saturating_sub(from.0)).unwrap_or(0);
    Some((counts, passed.saturating_sub(counted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: i64, until: i64) -> Range {
        Range::new(Offset(from), Offset(until))
    }

    #[test]
    fn every_case_of_a_range_against_a_position() {
        let expected = Offset(10);
        let cases = [
            (range(10, 20), Decision::Accept, "continues"),
            (range(10, 10), Decision::Accept, "a probe at the position"),
            (range(0, 10), Decision::Replay, "ends at the position"),
            (range(0, 5), Decision::Replay, "ends below"),
            (range(5, 5), Decision::Replay, "a probe below"),
            (range(11, 20), Decision::Gap, "begins above"),
            (range(11, 11), Decision::Gap, "a probe above"),
            (range(5, 15), Decision::Gap, "straddles"),
            (range(9, 11), Decision::Gap, "straddles by one"),
        ];
        for (range, decision, what) in cases {
            assert_eq!(decide(expected, range), decision, "{what}: {range} at {expected}");
        }
    }

    #[test]
    fn a_lane_carries_what_its_shard_needs_and_nothing_below() {
        assert_eq!(cut(range(10, 20), Offset(10)), Some(range(10, 20)));
        assert_eq!(cut(range(10, 20), Offset(15)), Some(range(15, 20)));
        assert_eq!(cut(range(10, 20), Offset(20)), None);
        assert_eq!(cut(range(10, 20), Offset(25)), None);
        assert_eq!(cut(range(10, 10), Offset(10)), Some(range(10, 10)));
        assert_eq!(cut(range(10, 10), Offset(11)), None);
    }

    #[test]
    fn what_is_lost_is_what_no_shard_has_counted() {
        let above = |next, total| Some(Counted { next: Offset(next), from: Offset(5), total, unsettled: false });
        let lane = |next, total| above(next, total).map(|lane| Counted { unsettled: true, ..lane });
        // They stand together: all of it.
        assert_eq!(lost(range(10, 50), &[lane(10, 3), lane(10, 2)]), Some((0, 40)));
        // The first has counted 18 of the 40 before it was lost, or all of them.
        assert_eq!(lost(range(10, 50), &[above(50, 21), lane(10, 2)]), Some((1, 22)));
        assert_eq!(lost(range(10, 50), &[above(50, 43), lane(10, 2)]), Some((1, 0)));
        // It stands above what was lost, and the second still has to read that far: it counts 4 of the last 10.
        assert_eq!(lost(range(10, 50), &[above(60, 29), lane(10, 2)]), None);
        assert_eq!(lost(range(50, 60), &[above(60, 29), lane(50, 2 + 4)]), Some((1, 20)));
        // One comes from below that has not passed over it, and the other takes nothing of its range, but of the next, or a probe.
        assert_eq!(lost(range(50, 60), &[above(50, 29), lane(60, 2 + 4)]), None);
        assert_eq!(lost(range(60, 70), &[above(60, 29), lane(60, 2 + 4 + 10)]), Some((1, 20)));
        assert_eq!(lost(range(60, 60), &[above(60, 29), lane(60, 2 + 4)]), Some((1, 20)));
        // One is off, wherever it stands: when it is back it is known.
        assert_eq!(lost(range(10, 50), &[lane(10, 3), None]), None);
        assert_eq!(lost(range(10, 50), &[None]), None);
    }

    #[test]
    fn whatever_is_sent_in_whatever_order_each_offset_is_taken_once() {
        // All sequences of four ranges over five offsets: the shard takes a contiguous run from where it stood.
        let ranges: Vec<Range> = (0..5).flat_map(|from| (from..5).map(move |until| range(from, until))).collect();
        for a in &ranges {
            for b in &ranges {
                for c in &ranges {
                    let mut expected = Offset(0);
                    let mut taken = Vec::new();
                    for sent in [a, b, c] {
                        if decide(expected, *sent) == Decision::Accept {
                            taken.extend(sent.from.0..sent.until.0);
                            expected = sent.until;
                        }
                    }
                    assert!(taken.iter().copied().eq(0..expected.0), "{a} {b} {c} took {taken:?}");
                }
            }
        }
    }
}
