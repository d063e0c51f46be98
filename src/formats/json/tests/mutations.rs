//! Texts that differ from a given one in a few places, for what two walks must read alike.

/// The same ones in every run.
pub(in crate::formats::json) struct Mutations(u64);

impl Mutations {
    pub(in crate::formats::json) fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
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
