//! Chance that is the same in each run of a test.

use crate::random::Random;

/// Numbers that are the same in each run of a test.
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
