//! Bytes that are looked at eight at a time.

/// Whether two texts of one length are the same. For texts that are too short for a call to pay.
#[inline]
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    debug_assert_eq!(a.len(), b.len());
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let (words, others) = (a.chunks_exact(8), b.chunks_exact(8));
    let ends = words.remainder().iter().zip(others.remainder()).all(|(a, b)| a == b);
    ends && words.zip(others).all(|(a, b)| word(a) == word(b))
}
