//! Why a record is bad, in a sentence that names the column, what was found and what was expected, and that never
//! holds the whole payload.

use std::fmt::Display;

use super::reader::Value;

/// The longest reason, in characters.
const LONGEST_REASON: usize = 300;
/// The longest piece of payload in a reason, in characters.
const LONGEST_EXCERPT: usize = 48;
/// The longest path of a column in a reason, in characters.
const LONGEST_PATH: usize = 100;

/// Why a record is bad, and where in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The column, and the way down to the value: `items[3].price`. Empty for the record itself.
    path: String,
    reason: String,
}

impl Fault {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { path: String::new(), reason: reason.into() }
    }

    /// A value of another kind than the column's type takes.
    pub(super) fn kind(expected: impl Display, found: Value<'_>) -> Self {
        Self::new(format!("expected {expected}, found {}", shown(found)))
    }

    pub(super) fn syntax(error: &serde_json::Error) -> Self {
        Self::new(format!("not valid JSON: {error}"))
    }

    /// The same fault, seen from the field `name` that holds the value.
    pub(super) fn within(mut self, name: &str) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{name}{joint}{}", self.path);
        self
    }

    /// The same fault, seen from the list that holds the value.
    pub(super) fn at(mut self, index: usize) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("[{index}]{joint}{}", self.path);
        self
    }

    /// The whole sentence.
    pub(super) fn sentence(self) -> String {
        let sentence = if self.path.is_empty() {
            self.reason
        } else {
            format!("column \"{}\": {}", cut(&self.path, LONGEST_PATH), self.reason)
        };
        cut(&sentence, LONGEST_REASON)
    }
}

/// A value as a reason shows it.
pub(super) fn shown(value: Value<'_>) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) => excerpt(text),
        Value::Text(text) => format!("the text {}", excerpt(text)),
        Value::Array(text) => format!("the array {}", excerpt(text)),
        Value::Object(text) => format!("the object {}", excerpt(text)),
    }
}

/// The beginning of a piece of payload, on one line.
pub(super) fn excerpt(text: &str) -> String {
    cut(text, LONGEST_EXCERPT)
}

/// At most `longest` characters; a cut shows as an ellipsis. Control characters become spaces.
fn cut(text: &str, longest: usize) -> String {
    let mut characters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut kept: String = characters.by_ref().take(longest).collect();
    if characters.next().is_some() {
        kept.pop();
        kept.push('…');
    }
    kept
}
