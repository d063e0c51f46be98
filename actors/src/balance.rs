//! The balance of a partition: every offset that was passed lands in exactly one counter.
//!
//! Each shard counts the offsets that it owns, beside its position, and both are committed by the same write. So whatever
//! died and was read again, the counters of all shards add up to the distance that the position moved. While shards stand at
//! different places the sum lies between what the lowest and the highest of them have passed; when all stand together it is
//! exact. Where records were deleted before they were read, they are counted when all stand together: until then there may be
//! fewer.

use serde::Serialize;

use crate::position::{Counts, Offset, Position};

/// What became of the offsets of one partition, over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Where the counts begin: the partition's start, unless it was rewound. Shards that a rewind of a former version moved
    /// begin at different places; this is the lowest.
    pub from: Offset,
    /// The lowest position of all shards.
    pub position: Offset,
    /// The highest position of all shards.
    pub highest: Offset,
    /// What was counted by all shards together.
    pub counts: Counts,
    /// How many offsets were counted that were not passed (above 0), or passed and not counted (below): always 0.
    pub off: i64,
}

impl Balance {
    /// Adds up what each shard says of a partition; `None` stands for a shard that has not read of it yet. Nothing, if
    /// there is no shard.
    pub fn new<'a>(start: Offset, shards: impl IntoIterator<Item = Option<&'a Position>>) -> Option<Self> {
        let (mut counts, mut ranges, mut unsettled) = (Counts::default(), Vec::new(), false);
        for position in shards {
            unsettled |= position.is_some_and(|position| position.unsettled);
            let next = position.map_or(start, |position| position.next);
            ranges.push((position.and_then(|position| position.counted_from).unwrap_or(start), next));
            counts.add(&position.map(|position| position.counts).unwrap_or_default());
        }
        let (from, latest) = (ranges.iter().map(|range| range.0).min()?, ranges.iter().map(|range| range.0).max()?);
        let (position, highest) =
            (ranges.iter().map(|range| range.1).min()?, ranges.iter().map(|range| range.1).max()?);
        let total = i64::try_from(counts.total()).unwrap_or(i64::MAX);
        let (least, most) = (position.0.saturating_sub(latest.0), highest.0.saturating_sub(from.0));
        // What was lost is still to be counted.
        let least = if unsettled { 0 } else { least };
        let off = if total > most { total - most } else { (total - least).min(0) };
        Some(Self { from, position, highest, counts, off })
    }

    /// Whether all shards stand at one place, so that the sum is exact.
    pub fn is_exact(&self) -> bool {
        self.position == self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(next: i64, processed: u64, filtered: u64) -> Position {
        Position { counts: Counts { processed, filtered, ..Counts::default() }, ..Position::start(Offset(next)) }
    }

    fn balance(positions: &[Option<Position>]) -> Balance {
        Balance::new(Offset(10), positions.iter().map(Option::as_ref)).expect("there are shards")
    }

    #[test]
    fn shards_that_stand_together_have_counted_each_offset_once() {
        let good = balance(&[Some(position(30, 12, 1)), Some(position(30, 3, 4))]);
        assert_eq!((good.from, good.position, good.counts.total(), good.off), (Offset(10), Offset(30), 20, 0));
        assert!(good.is_exact());
        assert_eq!(balance(&[Some(position(30, 12, 2)), Some(position(30, 3, 4))]).off, 1);
        assert_eq!(balance(&[Some(position(30, 12, 0)), Some(position(30, 3, 4))]).off, -1);
    }

    #[test]
    fn shards_that_stand_apart_have_counted_between_the_lowest_and_the_highest() {
        for (counted, off) in [(4, -1), (5, 0), (13, 0), (20, 0), (21, 1)] {
            let found = balance(&[Some(position(15, 0, 0)), Some(position(30, counted, 0))]);
            assert_eq!((found.off, found.is_exact()), (off, false), "{counted}");
        }
        // A shard that has read nothing yet stands at the start.
        assert_eq!(balance(&[None, Some(position(30, 21, 0))]).off, 1);
        assert_eq!(balance(&[None, None]).off, 0);
        assert_eq!(Balance::new(Offset(10), []), None);
    }

    #[test]
    fn what_is_lost_is_missing_until_it_is_settled() {
        let unsettled = |next, processed| Some(Position { unsettled: true, ..position(next, processed, 0) });
        assert_eq!(balance(&[unsettled(28, 1), Some(position(30, 9, 0))]).off, 0);
        assert_eq!(balance(&[unsettled(28, 1), Some(position(30, 20, 0))]).off, 1);
        assert_eq!(balance(&[Some(position(28, 1, 0)), Some(position(30, 9, 0))]).off, -8);
    }

    #[test]
    fn what_was_rewound_is_counted_from_elsewhere() {
        let rewound = |next, counted_from, processed| {
            Some(Position { counted_from: Some(Offset(counted_from)), ..position(next, processed, 0) })
        };
        assert_eq!(balance(&[rewound(30, 5, 20), rewound(30, 5, 5)]).off, 0);
        assert_eq!(balance(&[rewound(30, 5, 21), rewound(30, 5, 5)]).off, 1);
        // From different places: the sum lies between.
        assert_eq!(balance(&[rewound(30, 5, 12), rewound(30, 10, 10)]).off, 0);
    }
}
