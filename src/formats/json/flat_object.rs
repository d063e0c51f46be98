//! The quick walk over an object that looks as nearly all records do: names and strings without escapes, no object or
//! array inside.
//!
//! It takes nothing that the full walk in [`super::reader`] would not take, and reads it alike; at anything else it gives
//! up, and the full walk decides. Strings and digits are passed over eight bytes at a time.

use super::fault::Fault;
use crate::words::{self, HIGH, ONES};

/// Calls `each` with the name and the text of every member, in order. `None`: this walk cannot tell, although `each` may
/// have been called for some members already.
#[inline]
pub(super) fn members<'a>(
    text: &'a str,
    mut each: impl FnMut(&'a str, &'a str) -> Result<(), Fault>,
) -> Option<Result<(), Fault>> {
    let bytes = text.as_bytes();
    let mut at = blanks(bytes, 0);
    if *bytes.get(at)? != b'{' {
        return None;
    }
    at = blanks(bytes, at + 1);
    if *bytes.get(at)? == b'}' {
        return (blanks(bytes, at + 1) == bytes.len()).then_some(Ok(()));
    }
    loop {
        let name_end = string(bytes, at)?;
        let name = text.get(at + 1..name_end - 1)?;
        at = blanks(bytes, name_end);
        if *bytes.get(at)? != b':' {
            return None;
        }
        at = blanks(bytes, at + 1);
        let end = value(bytes, at)?;
        if let Err(fault) = each(name, text.get(at..end)?) {
            return Some(Err(fault));
        }
        at = blanks(bytes, end);
        match bytes.get(at)? {
            b',' => at = blanks(bytes, at + 1),
            b'}' => return (blanks(bytes, at + 1) == bytes.len()).then_some(Ok(())),
            _ => return None,
        }
    }
}

/// The end of the value that begins at `at`.
#[inline]
pub(super) fn value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string(bytes, at),
        b'-' | b'0'..=b'9' => number(bytes, at),
        b't' => word(bytes, at, b"true"),
        b'f' => word(bytes, at, b"false"),
        b'n' => word(bytes, at, b"null"),
        _ => None,
    }
}

/// Whether there is a backslash.
#[inline]
pub(super) fn escapes(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(8);
    let mut rest = words.remainder().iter();
    let holds = |word: &[u8]| words::found(words::word(word), b'\\') != 0;
    words.fold(false, |found, word| found | holds(word)) || rest.any(|byte| *byte == b'\\')
}

/// The first place from `at` on that is no blank.
#[inline]
fn blanks(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the string that begins at `at`, if it has neither escapes nor control characters.
#[inline]
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    while let Some(word) = bytes.get(at..at + 8) {
        let word = words::word(word);
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let found = words::found(word, b'"') | words::found(word, b'\\') | control;
        if found != 0 {
            // Of several only the lowest is sure to be one, and it is the one that is wanted.
            at += (found.trailing_zeros() / 8) as usize;
            return (bytes[at] == b'"').then_some(at + 1);
        }
        at += 8;
    }
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' | ..0x20 => return None,
            _ => at += 1,
        }
    }
}

/// The end of the number that begins at `at` (RFC 8259, section 6).
#[inline]
fn number(bytes: &[u8], mut at: usize) -> Option<usize> {
    let digits = |mut at: usize| {
        let from = at;
        while let Some(word) = bytes.get(at..at + 8) {
            let digits = words::digits(words::word(word));
            at += digits;
            if digits < 8 {
                return (at > from).then_some(at);
            }
        }
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        (at > from).then_some(at)
    };
    if bytes[at] == b'-' {
        at += 1;
    }
    at = if *bytes.get(at)? == b'0' { at + 1 } else { digits(at)? };
    if bytes.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        at = digits(at)?;
    }
    Some(at)
}

#[inline]
fn word(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    bytes[at..].starts_with(word).then_some(at + word.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::reader;
    use super::super::tests::mutations::Mutations;
    use super::*;

    fn quick(text: &str) -> Option<Vec<(String, String)>> {
        let mut found = Vec::new();
        let walked = members(text, |name, value| {
            found.push((name.to_owned(), value.to_owned()));
            Ok(())
        });
        walked.map(|walked| walked.map(|()| found).unwrap())
    }

    fn full(text: &str) -> Option<Vec<(String, String)>> {
        let mut found = Vec::new();
        let walked = reader::members(text, |name, value| {
            found.push((name.into_owned(), value.to_owned()));
            Ok(())
        });
        walked.ok().map(|()| found)
    }

    #[test]
    fn plain_records_are_taken() {
        for text in [
            "{}",
            " { } ",
            r#"{"a":1}"#,
            "{\"a\" :\t-0.5e+10 ,\n\"b\": \"text that is longer than one word\", \"\":null,\"ü\":\"öß\"}\r\n",
            r#"{"a":true,"a":false,"b":"","c":"1234567","d":"12345678","e":"123456789"}"#,
        ] {
            assert!(quick(text).is_some(), "{text}");
            assert_eq!(quick(text), full(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_full_walk() {
        for text in [r#"{"a":[1]}"#, r#"{"a":{}}"#, r#"{"a":"\n"}"#, r#"{"\u0061":1}"#] {
            assert!(quick(text).is_none() && full(text).is_some(), "{text}");
        }
    }

    /// Whatever the quick walk takes, the full one takes, and reads alike.
    #[test]
    fn the_quick_walk_never_takes_more_than_the_full_one() {
        let seeds = [
            r#"{"user_id":"user-0001234","item":"item-007","amount":12.50,"qty":3,"ts":"2026-01-01T00:00:01.123Z"}"#,
            r#" { "a" : -1e-5 , "b" : true , "c" : null , "d" : "12345678" } "#,
            r#"{"a":0,"b":"\\","c":[],"d":"x"}"#,
        ];
        let pieces: [&[u8]; 18] = [
            b"\"",
            b"\\",
            b"{",
            b"}",
            b",",
            b":",
            b"0",
            b"1",
            b"-",
            b".",
            b"e",
            b"+",
            b" ",
            b"\n",
            b"\x01",
            b"\x1f",
            b"true",
            "é".as_bytes(),
        ];
        let mut mutations = Mutations::new();
        let (mut taken, mut refused) = (0, 0);
        for round in 0..200_000 {
            let bytes = mutations.of(seeds[round % seeds.len()], &pieces);
            let Ok(text) = std::str::from_utf8(&bytes) else { continue };
            match quick(text) {
                Some(found) => {
                    assert_eq!(Some(found), full(text), "{text:?}");
                    taken += 1;
                }
                None => refused += 1,
            }
        }
        assert!(taken > 20_000 && refused > 20_000, "{taken} taken, {refused} refused");
    }
}
