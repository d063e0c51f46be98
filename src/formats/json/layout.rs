//! What stood around the values of the last object: mostly the same stands around those of the next one.
//!
//! A producer writes its records with the same fields in the same order. So the text between two values, say `,"item":`, is
//! compared as a whole with that of the last object, and only values are looked at byte by byte. What was valid JSON around
//! the values of one object is so around those of another; at the first difference the quick walk of [`super::flat_object`]
//! begins again, and whatever it takes is remembered.

use std::ops::Range;

use super::flat_object;
use crate::words::same;

/// Objects of more members are not remembered.
const MOST_MEMBERS: usize = 256;

/// The text around the values of an object that the quick walk took, and which fields the values are of.
#[derive(Default)]
pub(super) struct Layout {
    /// What stands around the values, without them.
    around: Vec<u8>,
    /// For each member where its part of `around` ends, and its field, if it is wanted.
    members: Vec<(usize, Option<usize>)>,
    /// Where the last value ended, while an object is walked.
    last: usize,
    /// All of an object is there.
    whole: bool,
}

impl Layout {
    /// Where the values of an object are, if it looks like the last one. Otherwise some may be found all the same.
    #[inline]
    pub(super) fn find(&self, text: &str, found: &mut [Option<Range<usize>>]) -> bool {
        if !self.whole {
            return false;
        }
        let bytes = text.as_bytes();
        let (mut at, mut from) = (0, 0);
        for (until, field) in &self.members {
            let before = &self.around[from..*until];
            from = *until;
            if !bytes.get(at..at + before.len()).is_some_and(|text| same(text, before)) {
                return false;
            }
            at += before.len();
            let Some(end) = flat_object::value(bytes, at) else { return false };
            if let Some(place) = field {
                found[*place] = Some(at..end);
            }
            at = end;
        }
        bytes[at..] == self.around[from..]
    }

    /// An object is walked.
    pub(super) fn begin(&mut self) {
        self.around.clear();
        self.members.clear();
        self.last = 0;
        self.whole = false;
    }

    /// Its next value is here.
    pub(super) fn member(&mut self, text: &str, value: &Range<usize>, field: Option<usize>) {
        if self.members.len() <= MOST_MEMBERS {
            self.around.extend_from_slice(text.as_bytes().get(self.last..value.start).unwrap_or_default());
            self.members.push((self.around.len(), field));
            self.last = value.end;
        }
    }

    /// The quick walk took all of it.
    pub(super) fn end(&mut self, text: &str) {
        self.around.extend_from_slice(&text.as_bytes()[self.last..]);
        self.whole = self.members.len() <= MOST_MEMBERS;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::tests::mutations::Mutations;
    use super::*;

    /// What a quick walk finds of the fields `a` and `b`, remembered in a layout.
    fn walk(layout: &mut Layout, text: &str) -> Option<[Option<Range<usize>>; 2]> {
        let mut found = [None, None];
        layout.begin();
        let walked = flat_object::members(text, |name, value| {
            let start = value.as_ptr() as usize - text.as_ptr() as usize;
            let (value, place) = (start..start + value.len(), ["a", "b"].iter().position(|known| *known == name));
            layout.member(text, &value, place);
            place.into_iter().for_each(|place| found[place] = Some(value.clone()));
            Ok(())
        });
        walked?.unwrap();
        layout.end(text);
        Some(found)
    }

    fn found(layout: &Layout, text: &str) -> Option<[Option<Range<usize>>; 2]> {
        let mut found = [None, None];
        layout.find(text, &mut found).then_some(found)
    }

    #[test]
    fn an_object_like_the_last_one_is_found_and_no_other() {
        let mut layout = Layout::default();
        assert!(found(&layout, "{}").is_none());
        walk(&mut layout, r#"{"a": 1, "x":"text", "b":null}"#).unwrap();
        assert_eq!(found(&layout, r#"{"a": -2.5e3, "x":true, "b":"öß"}"#), Some([Some(6..12), Some(28..34)]));
        for other in [
            "",
            "{",
            r#"{"a":1, "x":"text", "b":null}"#,
            r#"{"a": 1, "y":"text", "b":null}"#,
            r#"{"a": 1, "x":"text", "b":null} "#,
            r#"{"a": 1, "x":"text", "b":null,"c":1}"#,
            r#"{"a": 1, "x":"te\"xt", "b":null}"#,
            r#"{"a": 1, "x":[], "b":null}"#,
            r#"{"a": 01, "x":"text", "b":null}"#,
            r#"{"a": 1, "x":"text", "b":null"#,
            r#"{"a": 1, "x":"text", "b":nul}"#,
        ] {
            assert!(found(&layout, other).is_none(), "{other}");
        }
        walk(&mut layout, "{ }").unwrap();
        assert!(found(&layout, "{ }").is_some() && found(&layout, "{}").is_none());
    }

    /// Whatever is found by the layout of another object, a walk finds too, and alike.
    #[test]
    fn what_is_found_is_what_a_walk_finds() {
        let seeds = [
            r#"{"a":"user-0001234","x":"item-007","b":12.50}"#,
            r#" { "a" : -1e-5 , "b" : true , "x" : null , "b" : "12345678" } "#,
            r#"{"x":0,"b":"","a":false}"#,
        ];
        let pieces: [&[u8]; 14] =
            [b"\"", b"\\", b"{", b"}", b",", b":", b"0", b"7", b"-", b".", b"e", b" ", b"\x01", b"null"];
        let mut mutations = Mutations::new();
        let (mut taken, mut refused) = (0, 0);
        for round in 0..200_000 {
            let seed = seeds[round % seeds.len()];
            let mut layout = Layout::default();
            walk(&mut layout, seed).unwrap();
            let bytes = mutations.of(seed, &pieces);
            let text = std::str::from_utf8(&bytes).unwrap();
            match found(&layout, text) {
                Some(places) => {
                    assert_eq!(Some(places), walk(&mut Layout::default(), text), "{text:?}");
                    taken += 1;
                }
                None => refused += 1,
            }
        }
        assert!(taken > 20_000 && refused > 20_000, "{taken} taken, {refused} refused");
    }
}
