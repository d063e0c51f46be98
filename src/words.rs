//! Bytes that are looked at eight at a time, as one word of which the first byte is the lowest.

/// Each byte is 1.
pub(crate) const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
pub(crate) const HIGH: u64 = 0x8080_8080_8080_8080;
/// Eight times the digit 0.
const ZEROS: u64 = ONES * b'0' as u64;

/// The word that eight bytes make.
#[inline]
pub(crate) fn word(bytes: &[u8]) -> u64 {
    debug_assert_eq!(bytes.len(), 8);
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Whether two texts of one length are the same. For texts that are too short for a call to pay.
#[inline]
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    debug_assert_eq!(a.len(), b.len());
    let (words, others) = (a.chunks_exact(8), b.chunks_exact(8));
    let ends = words.remainder().iter().zip(others.remainder()).all(|(a, b)| a == b);
    ends && words.zip(others).all(|(a, b)| word(a) == word(b))
}

/// The highest bit of each byte that is this one. Of several only the lowest is sure to be one ("Bit Twiddling Hacks",
/// S. E. Anderson).
#[inline]
pub(crate) fn found(word: u64, byte: u8) -> u64 {
    let zero = word ^ (ONES * u64::from(byte));
    zero.wrapping_sub(ONES) & !zero & HIGH
}

/// How many digits the word begins with.
#[inline]
pub(crate) fn digits(word: u64) -> usize {
    let value = word ^ ZEROS;
    // What is above 9 reaches the highest bit by so much, or has it.
    let others = (((value & !HIGH) + ONES * (0x80 - 10)) | value) & HIGH;
    (others.trailing_zeros() / 8) as usize
}

/// The number that at most eight characters write, digits and perhaps a point, and how many digits are behind it. `None`: there
/// is something else, nothing, or nothing behind the point.
#[inline]
pub(crate) fn number(text: &[u8]) -> Option<(u32, usize)> {
    let (size, first) = (text.len(), |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes)));
    // Short texts from two parts, which may overlap.
    let word = match (text.first_chunk::<4>(), text.last_chunk::<4>(), text) {
        (_, _, [one]) => u64::from(*one),
        (_, _, [one, two]) => u64::from(*one) | u64::from(*two) << 8,
        (_, _, [one, two, three]) => u64::from(*one) | u64::from(*two) << 8 | u64::from(*three) << 16,
        (Some(from), Some(until), _) if size <= 8 => first(from) | first(until) << (8 * (size - 4)),
        _ => return None,
    };
    // The text ends where the word does, after zeros.
    let word = word << (8 * (8 - size)) | ZEROS.checked_shr(8 * size as u32).unwrap_or(0);
    let point = found(word, b'.').trailing_zeros() / 8;
    let (word, behind) = match point {
        8 => (word, 0),
        7 => return None,
        _ => {
            let before = word & ((1 << (8 * point)) - 1);
            let after = word >> (8 * (point + 1)) << (8 * (point + 1));
            (after | before << 8 | u64::from(b'0'), 7 - point as usize)
        }
    };
    (digits(word) == 8).then(|| (eight_digits(word), behind))
}

/// The number that eight digits write (D. Lemire, "Number Parsing at a Gigabyte per Second", 2021).
#[inline]
fn eight_digits(word: u64) -> u32 {
    const PAIRS: u64 = 0x0000_00FF_0000_00FF;
    let digits = word - ZEROS;
    let pairs = digits * 10 + (digits >> 8);
    let first = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let second = ((pairs >> 16) & PAIRS).wrapping_mul(1 + (10_000 << 32));
    (first.wrapping_add(second) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The same by one byte after the other.
    fn plain(text: &[u8]) -> Option<(u32, usize)> {
        let text = str::from_utf8(text).ok()?;
        let (before, after) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{before}{after}");
        let sound = !text.is_empty() && text.len() <= 8 && !text.ends_with('.');
        (sound && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
        Some((digits.parse().ok()?, after.len()))
    }

    #[test]
    fn numbers_are_those_that_are_written() {
        let mut random = Random(11);
        let mut numbers = 0;
        for _ in 0..1_000_000 {
            let kinds: &[u8] = match random.next() % 4 {
                0 => b"0123456789./:\x00\xb0 e-",
                _ => b"0123456789.",
            };
            let size = random.next() as usize % 11;
            let text: Vec<u8> = (0..size).map(|_| kinds[random.next() as usize % kinds.len()]).collect();
            assert_eq!(number(&text), plain(&text), "{:?}", String::from_utf8_lossy(&text));
            numbers += usize::from(number(&text).is_some());
        }
        assert!(numbers > 200_000, "{numbers}");
        assert_eq!(number(b"99999999"), Some((99_999_999, 0)));
        assert_eq!(number(b"0.000001"), Some((1, 6)));
    }

    #[test]
    fn each_byte_is_a_digit_or_not() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                let mut word = *b"09051234";
                word[place] = byte;
                let wanted = if byte.is_ascii_digit() { 8 } else { place };
                assert_eq!(digits(u64::from_le_bytes(word)), wanted, "{byte} at {place}");
            }
        }
    }
}
