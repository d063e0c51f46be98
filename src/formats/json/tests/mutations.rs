//! Texts that differ from a given one in a few places, for what two walks must read alike.

use crate::random::Random;

/// The same ones in every run.
pub(in crate::formats::json) struct Mutations(Random);

impl Mutations {
    pub(in crate::formats::json) fn new() -> Self {
        Self(Random(1))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.next() as usize % bound
    }

    /// The text with up to three bytes taken out, or one of the pieces put in or in place of a byte.
    pub(in crate::formats::json) fn of(&mut self, text: &str, pieces: &[&[u8]]) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + self.below(3) {
            let at = self.below(bytes.len());
            match self.below(3) {
                0 => drop(bytes.remove(at)),
                1 => drop(bytes.splice(at..at, pieces[self.below(pieces.len())].iter().copied())),
                _ => drop(bytes.splice(at..=at, pieces[self.below(pieces.len())].iter().copied())),
            }
        }
        bytes
    }
}
