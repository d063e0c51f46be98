//! Walks JSON text: the only place that touches a JSON parser.
//!
//! Everything else sees a value as the text it stands in, already known to be valid JSON. A faster parser replaces the
//! two walks of this file and [`content`], and nothing else.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::fault::{Fault, shown};
use super::flat_object;

/// A JSON value, with the text it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    /// The digits as they were written.
    Number(&'a str),
    /// With its quotes and escapes.
    Text(&'a str),
    Array(&'a str),
    Object(&'a str),
}

impl<'a> Value<'a> {
    /// The value that valid JSON text without surrounding blanks holds.
    #[inline]
    pub(super) fn of(text: &'a str) -> Self {
        match text.as_bytes().first() {
            Some(b'"') => Self::Text(text),
            Some(b'{') => Self::Object(text),
            Some(b'[') => Self::Array(text),
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            Some(b'n') => Self::Null,
            _ => Self::Number(text),
        }
    }
}

/// Whether valid JSON text without surrounding blanks holds null.
#[inline]
pub(super) fn is_null(text: &str) -> bool {
    text.as_bytes().first() == Some(&b'n')
}

/// Calls `each` with every member of the one object that `text` holds, as name and value, in the order of the text.
///
/// Fails when the text is not one JSON object and nothing else, or with the fault of `each`.
#[inline]
pub(super) fn members<'a>(
    text: &'a str,
    each: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut fault = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let walked = json.deserialize_map(Members { each, fault: &mut fault }).and_then(|()| json.end());
    walked.map_err(|error| fault.unwrap_or_else(|| Fault::syntax(&error)))
}

/// Calls `each` with every element of the one array that `text` holds, in order.
pub(super) fn elements<'a>(text: &'a str, each: impl FnMut(&'a str) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut fault = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let walked = json.deserialize_seq(Elements { each, fault: &mut fault }).and_then(|()| json.end());
    walked.map_err(|error| fault.unwrap_or_else(|| Fault::syntax(&error)))
}

/// The one value that `text` holds, of whatever kind.
pub(super) fn value(text: &str) -> Result<Value<'_>, Fault> {
    serde_json::from_str::<&RawValue>(text).map(|raw| Value::of(raw.get())).map_err(|error| Fault::syntax(&error))
}

/// What a quoted JSON string says, without quotes and escapes.
pub(super) fn content(quoted: &str) -> Result<Cow<'_, str>, Fault> {
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    if flat_object::escapes(inner.as_bytes()) {
        // The walk that found the string has seen that its escapes are well formed; it does not look at pairs of them.
        let half =
            |_| Fault::new(format!("{} escapes half a character (a lone surrogate)", shown(Value::Text(quoted))));
        serde_json::from_str(quoted).map(Cow::Owned).map_err(half)
    } else {
        Ok(Cow::Borrowed(inner))
    }
}

struct Members<'f, F> {
    each: F,
    fault: &'f mut Option<Fault>,
}

impl<'a, F: FnMut(Cow<'a, str>, &'a str) -> Result<(), Fault>> Visitor<'a> for Members<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    #[inline]
    fn visit_map<A: MapAccess<'a>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(name) = object.next_key_seed(Name)? {
            let value = object.next_value::<&'a RawValue>()?;
            if let Err(fault) = (self.each)(name, value.get()) {
                *self.fault = Some(fault);
                return Err(A::Error::custom("a value does not fit"));
            }
        }
        Ok(())
    }
}

struct Elements<'f, F> {
    each: F,
    fault: &'f mut Option<Fault>,
}

impl<'a, F: FnMut(&'a str) -> Result<(), Fault>> Visitor<'a> for Elements<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut array: A) -> Result<(), A::Error> {
        while let Some(value) = array.next_element::<&'a RawValue>()? {
            if let Err(fault) = (self.each)(value.get()) {
                *self.fault = Some(fault);
                return Err(A::Error::custom("a value does not fit"));
            }
        }
        Ok(())
    }
}

/// The name of a member: borrowed unless it has escapes.
struct Name;

impl<'a> DeserializeSeed<'a> for Name {
    type Value = Cow<'a, str>;

    #[inline]
    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Name {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    #[inline]
    fn visit_borrowed_str<E>(self, name: &'a str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
