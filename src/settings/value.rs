//! What kinds of values settings take, and how each is read.

use std::collections::BTreeMap;
use std::time::Duration;

use config::{Value, ValueKind};
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// Text that is never shown.
    Secret,
    /// A file or a folder.
    Path,
    /// A time with its unit, not below the given number of milliseconds.
    Duration(u64),
    /// A number of bytes, with or without a unit, not below the given one.
    Bytes(u64),
    /// A whole number between the two.
    Count(u64, u64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Names with texts.
    Properties,
}

impl Kind {
    /// What is allowed, for people.
    pub fn allowed(&self) -> String {
        match self {
            Self::Text | Self::Secret => "a text".into(),
            Self::Path => "a path".into(),
            Self::Duration(least) => format!("a time with its unit, such as 500ms, 1s or 5m, not below {least}ms"),
            Self::Bytes(least) => {
                format!("a number of bytes, such as 65536, 512KiB or 64MiB, not below {}", show_bytes(*least))
            }
            Self::Count(least, most) => format!("a whole number from {least} to {most}"),
            Self::Flag => "true or false".into(),
            Self::Choice(words) => words.join(" or "),
            Self::Properties => {
                "a JSON object of texts such as {\"security.protocol\":\"SASL_SSL\"}, or lines of name=value".into()
            }
        }
    }

    /// In a word or two, for the table.
    pub fn unit(&self) -> String {
        match self {
            Self::Text => "text".into(),
            Self::Secret => "text, never shown".into(),
            Self::Path => "path".into(),
            Self::Duration(_) => "time".into(),
            Self::Bytes(_) => "bytes".into(),
            Self::Count(..) => "number".into(),
            Self::Flag => "`true` or `false`".into(),
            Self::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or "),
            Self::Properties => "JSON object".into(),
        }
    }

    /// Reads a value into the form in which the settings are deserialised. `None`: it is not allowed.
    pub(super) fn read(&self, value: &Value) -> Option<serde_json::Value> {
        let text = text_of(&value.kind);
        match self {
            Self::Text | Self::Secret | Self::Path => text.map(Into::into),
            Self::Duration(least) => {
                let text = text?;
                let time = duration(&text)?;
                (time >= Duration::from_millis(*least)).then(|| text.into())
            }
            Self::Bytes(least) => bytes(&text?).filter(|bytes| bytes >= least).map(Into::into),
            Self::Count(least, most) => {
                let count: u64 = text?.trim().replace('_', "").parse().ok()?;
                (*least..=*most).contains(&count).then(|| count.into())
            }
            Self::Flag => match text?.as_str() {
                "true" => Some(true.into()),
                "false" => Some(false.into()),
                _ => None,
            },
            Self::Choice(words) => text.filter(|text| words.contains(&text.as_str())).map(Into::into),
            Self::Properties => match &value.kind {
                ValueKind::Table(table) => {
                    let entries: Option<serde_json::Map<_, _>> =
                        table.iter().map(|(name, value)| Some((name.clone(), text_of(&value.kind)?.into()))).collect();
                    entries.map(Into::into)
                }
                _ => None,
            },
        }
    }
}

/// A single value as text.
pub(super) fn text_of(value: &ValueKind) -> Option<String> {
    match value {
        ValueKind::Nil | ValueKind::Table(_) | ValueKind::Array(_) => None,
        single => Some(single.to_string()),
    }
}

/// A time with its unit, such as `500ms` or `1m 30s`.
pub fn duration(text: &str) -> Option<Duration> {
    let deserializer: StrDeserializer<'_, ValueError> = text.into_deserializer();
    humantime_serde::deserialize(deserializer).ok()
}

const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("b", 1),
];

fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase().replace('_', "");
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number.trim_end(), *unit)))
        .unwrap_or((&text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

fn show_bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{}MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{}KiB", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// Reads properties from one variable: a JSON object, or lines of `name=value`.
pub(super) fn properties(text: &str) -> Option<BTreeMap<String, String>> {
    let text = text.trim();
    if text.starts_with('{') {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
        return object
            .into_iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(value) => Some((name, value)),
                serde_json::Value::Number(value) => Some((name, value.to_string())),
                serde_json::Value::Bool(value) => Some((name, value.to_string())),
                _ => None,
            })
            .collect();
    }
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.split_once('=')?;
            let name = name.trim();
            (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| (name.into(), value.trim().into()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, text: &str) -> Option<serde_json::Value> {
        kind.read(&Value::new(None, text))
    }

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("64MiB", Some(64 << 20)),
            ("64 mib", Some(64 << 20)),
            ("1G", Some(1 << 30)),
            ("10kB", Some(10_000)),
            ("65536", Some(65_536)),
            ("65_536", Some(65_536)),
            ("12B", Some(12)),
            ("12.5MiB", None),
            ("-1", None),
            ("MiB", None),
            ("", None),
            ("99999999999GiB", None),
            ("64 apples", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        assert_eq!(read(Kind::Bytes(1024), "1023"), None);
    }

    #[test]
    fn times_need_a_unit() {
        for good in ["1s", "500ms", "1m 30s", "2h"] {
            assert_eq!(read(Kind::Duration(1), good), Some(good.into()));
        }
        for bad in ["5", "soon", "", "-1s", "1 lightyear", "0s"] {
            assert_eq!(read(Kind::Duration(1), bad), None, "{bad}");
        }
        assert_eq!(Kind::Duration(1).read(&Value::new(None, 5_i64)), None);
        assert_eq!(read(Kind::Duration(0), "0s"), Some("0s".into()));
    }

    #[test]
    fn numbers_flags_and_choices_are_strict() {
        assert_eq!(read(Kind::Count(1, 10), "10"), Some(10.into()));
        assert_eq!(Kind::Count(1, 10).read(&Value::new(None, 7_i64)), Some(7.into()));
        for bad in ["0", "11", "1.5", "-1", "many"] {
            assert_eq!(read(Kind::Count(1, 10), bad), None, "{bad}");
        }
        assert_eq!(read(Kind::Flag, "true"), Some(true.into()));
        assert_eq!(Kind::Flag.read(&Value::new(None, false)), Some(false.into()));
        assert_eq!(read(Kind::Flag, "yes"), None);
        assert_eq!(read(Kind::Choice(&["a", "b"]), "b"), Some("b".into()));
        assert_eq!(read(Kind::Choice(&["a", "b"]), "B"), None);
    }

    #[test]
    fn properties_are_json_or_lines() {
        let expected: BTreeMap<String, String> =
            [("security.protocol".into(), "SASL_SSL".into()), ("check.crcs".into(), "true".into())].into();
        let json = r#"{"security.protocol": "SASL_SSL", "check.crcs": true}"#;
        let lines = "security.protocol = SASL_SSL\n\n# a remark\ncheck.crcs=true\n";
        assert_eq!(properties(json), Some(expected.clone()));
        assert_eq!(properties(lines), Some(expected));
        // The value of a password may hold anything.
        assert_eq!(properties("sasl.password=a=b c"), Some([("sasl.password".into(), "a=b c".into())].into()));
        for bad in ["security.protocol", "{\"a\": [1]}", "{\"a\":", "=x", "two words=x"] {
            assert_eq!(properties(bad), None, "{bad}");
        }
    }
}
