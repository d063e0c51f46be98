//! What a table's OPTIONS say about JSON.

use std::collections::BTreeMap;

use arrow::datatypes::TimeUnit;

/// What a table's OPTIONS say about JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// `json.timestamp.unit`: all timestamps are epochs in this unit. Without it they are ISO 8601 text.
    pub timestamp_unit: Option<TimeUnit>,
    /// `json.timestamp.unit.<column>`: the timestamps of one column, also those inside it; `a.b` is a field of a struct.
    /// The longest name decides.
    pub timestamp_units: BTreeMap<String, TimeUnit>,
    /// `json.missing`: a field that is not in the record.
    pub missing: MissingField,
    /// `json.extra`: a field that no column declares.
    pub extra: ExtraField,
}

/// What happens when a record lacks a declared field that may be NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingField {
    /// It is NULL.
    #[default]
    Null,
    /// The record is bad.
    Error,
}

/// What happens when a record has a field that is not declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtraField {
    /// It is ignored.
    #[default]
    Ignore,
    /// The record is bad.
    Error,
}

impl JsonOptions {
    /// Takes one option, its key without the `json.` in front. Fails when there is no such key or value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let choices = |choices: &str| format!("'json.{key}' '{value}': the choices are {choices}");
        let unit = || match value {
            "seconds" => Ok(TimeUnit::Second),
            "millis" => Ok(TimeUnit::Millisecond),
            "micros" => Ok(TimeUnit::Microsecond),
            "nanos" => Ok(TimeUnit::Nanosecond),
            _ => Err(choices("'seconds', 'millis', 'micros' and 'nanos'")),
        };
        match key {
            "timestamp.unit" => self.timestamp_unit = Some(unit()?),
            "missing" => {
                self.missing = match value {
                    "null" => MissingField::Null,
                    "error" => MissingField::Error,
                    _ => return Err(choices("'null' and 'error'")),
                }
            }
            "extra" => {
                self.extra = match value {
                    "ignore" => ExtraField::Ignore,
                    "error" => ExtraField::Error,
                    _ => return Err(choices("'ignore' and 'error'")),
                }
            }
            _ => match key.strip_prefix("timestamp.unit.").filter(|column| !column.is_empty()) {
                Some(column) => {
                    self.timestamp_units.insert(column.to_owned(), unit()?);
                }
                None => {
                    return Err(format!(
                        "'json.{key}' is no option of JSON; there are 'json.timestamp.unit', \
                         'json.timestamp.unit.<column>', 'json.missing' and 'json.extra'"
                    ));
                }
            },
        }
        Ok(())
    }
}
