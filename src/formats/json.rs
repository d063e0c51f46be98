//! JSON records into Arrow columns.
//!
//! A record is one JSON object (RFC 8259, UTF-8); its fields become the declared columns of the same name. What is kept
//! true here:
//!
//! - **A value is taken exactly or not at all.** What a column's type cannot hold exactly makes the record a bad one,
//!   with a reason that names the column and what was found; nothing is rounded, cut or guessed. (The two exceptions are
//!   SQL's own: floating point takes the nearest number, and text of a timestamp or a time loses the digits below the
//!   column's unit, as CAST does.)
//! - **A record's result depends on that record alone.** A bad record is taken back out of every column before the next
//!   one is read, so its neighbours are never lost, and a batch of bad records costs no more than one of good ones.
//! - **Nothing in a payload can crash the process.** Depth is bounded and no walk recurses by the payload.
//!
//! | Case | Outcome |
//! |---|---|
//! | field missing | NULL; bad under `json.missing` = `error`, or when NOT NULL |
//! | field `null` | NULL; bad when NOT NULL |
//! | field not declared | ignored, but must be valid JSON; bad under `json.extra` = `error` |
//! | field twice, or a map's key twice | the last one counts |
//! | names | compared exactly, upper and lower case differ |
//! | empty value, blank value, text `null`, array, number, string, boolean as the record | bad, each with its own reason |
//! | two objects in one value, anything after the object, anything cut off, comments, missing or extra commas, `NaN` without quotes, single quotes, raw control characters in strings, invalid UTF-8 | bad |
//! | more than [`DEEPEST`] levels | bad |
//! | number into an integer | exact; `1.0` and `1e3` are whole numbers, `1.5` is bad; out of range is bad |
//! | number into REAL or DOUBLE | the nearest; `1e400` is bad |
//! | number into DECIMAL | exact; more digits than scale or precision is bad, zeros at the end do not count |
//! | string into a number or a boolean | taken when it holds exactly the JSON text of one (`"12"`, `"true"`), or for floating point `"NaN"`, `"Infinity"`, `"+INF"` and the like |
//! | number, boolean, object or array into VARCHAR | its JSON text as it was written |
//! | string into BYTEA | hexadecimal digits |
//! | string into TIMESTAMP, DATE, TIME | as CAST reads it; a number is bad |
//! | TIMESTAMP with a declared unit | a whole number, exact, of the years 0000 to 9999; text of a date is bad |
//! | array into a list, object into a struct or map | element by element, with all of the above |
//! | any other kind of value | bad |
//!
//! `docs/json.md` says the same for users.

mod column;
mod fault;
mod flat;
mod flat_object;
mod layout;
mod nested;
mod number;
mod options;
mod reader;
#[cfg(test)]
mod tests;
mod time;

use std::collections::HashSet;

use arrow::array::{Array, BinaryArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

pub use options::{ExtraField, JsonOptions, MissingField};

use column::Builder;
use fault::{Fault, shown};
use nested::Members;

/// The most levels of objects and arrays that a record may have.
pub const DEEPEST: usize = 128;

/// Decodes the values of one table's records.
pub struct JsonDecoder {
    schema: SchemaRef,
    columns: Members,
}

/// What became of values.
#[derive(Debug)]
pub struct Decoded {
    /// The good ones, in order.
    pub rows: RecordBatch,
    /// Which value each row was.
    pub good: Vec<u32>,
    /// Which values are bad and why, in order.
    pub bad: Vec<(u32, String)>,
}

impl JsonDecoder {
    /// A decoder for the columns in `schema`: those of the declared columns `all_columns` that the query uses.
    ///
    /// Fails, with a sentence for the user, when a type cannot be read from JSON or an option names no timestamp.
    pub fn new(schema: SchemaRef, all_columns: &[String], options: &JsonOptions) -> Result<Self, String> {
        let unwanted = all_columns.iter().filter(|name| schema.index_of(name).is_err()).cloned().collect();
        let mut builder = Builder::new(options);
        let columns = builder.members(schema.fields().iter().map(AsRef::as_ref), None, unwanted)?;
        let used: HashSet<_> = builder.used_units.into_iter().collect();
        for name in options.timestamp_units.keys().filter(|name| !used.contains(*name)) {
            let column = |column: &&String| *name == **column || name.starts_with(&format!("{column}."));
            let wanted = schema.fields().iter().map(|field| field.name()).any(|name| column(&name));
            if wanted {
                return Err(format!("'json.timestamp.unit.{name}': there is no TIMESTAMP at \"{name}\""));
            }
            if !all_columns.iter().any(|name| column(&name)) {
                return Err(format!("'json.timestamp.unit.{name}': there is no column \"{name}\""));
            }
        }
        Ok(Self { schema, columns })
    }

    /// Decodes the values at the indexes `kept`, in that order.
    ///
    /// Fails only if the columns do not make the batch that the schema promises, which is a bug and no fault of a record.
    pub fn decode(&mut self, values: &BinaryArray, kept: &[u32]) -> Result<Decoded, ArrowError> {
        let mut good = Vec::with_capacity(kept.len());
        let mut bad = Vec::new();
        self.columns.reserve(kept.len());
        // Looked at all together, they are mostly found to be in UTF-8 sooner than one by one.
        let together = values.value_data().get(spread(values)).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let first = values.value_offsets().first().map_or(0, |offset| *offset as usize);
        for index in kept {
            let row = *index as usize;
            let value = values.is_valid(row).then(|| values.value(row));
            let checked = together.and_then(|text| {
                let place = |row: usize| values.value_offsets()[row] as usize - first;
                text.get(place(row)..place(row + 1))
            });
            match record(value, checked).and_then(|text| self.append(text)) {
                Ok(()) => good.push(*index),
                Err(fault) => {
                    self.columns.truncate(good.len());
                    bad.push((*index, fault.sentence()));
                }
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(good.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), self.columns.finish()?, &options)?;
        Ok(Decoded { rows, good, bad })
    }

    /// Appends a record. One that looks like the last one has no parts inside, so it is not deep.
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        if let Some(appended) = self.columns.append_alike(text) {
            return appended;
        }
        if deeper_than(text, DEEPEST) {
            return Err(Fault::new(format!("objects and arrays are nested more than {DEEPEST} levels deep")));
        }
        self.columns.append_any(text).map_err(|fault| explain(text, fault))
    }
}

/// Where the bytes of values are.
fn spread(values: &BinaryArray) -> std::ops::Range<usize> {
    match values.value_offsets() {
        [first, .., last] => *first as usize..*last as usize,
        _ => 0..0,
    }
}

/// The text of a record, if it may be one: there and in UTF-8. `checked` is its text, if it is known to be in
/// UTF-8.
fn record<'a>(value: Option<&'a [u8]>, checked: Option<&'a str>) -> Result<&'a str, Fault> {
    let value = value.ok_or_else(|| Fault::new("the value is null"))?;
    if value.is_empty() {
        return Err(Fault::new("the value is empty"));
    }
    match checked {
        Some(text) => Ok(text),
        None => std::str::from_utf8(value)
            .map_err(|error| Fault::new(format!("not valid UTF-8 from byte {} on", error.valid_up_to()))),
    }
}

/// Says better what is wrong with a record that is no object.
#[cold]
fn explain(text: &str, fault: Fault) -> Fault {
    match text.trim_start_matches([' ', '\t', '\r', '\n']).chars().next() {
        Some('{') => fault,
        None => Fault::new("the value is blank"),
        Some('\0') => Fault::new("not JSON: begins with a zero byte, as the serializers of a schema registry write"),
        Some('\u{feff}') => Fault::new("not valid JSON: begins with a byte order mark"),
        Some(_) => match reader::value(text) {
            Ok(value) => Fault::new(format!("a record is a JSON object, found {}", shown(value))),
            Err(fault) => fault,
        },
    }
}

/// Whether objects and arrays are nested deeper than `most`.
fn deeper_than(text: &str, most: usize) -> bool {
    let opens = |byte: &u8| matches!(byte, b'{' | b'[');
    // Nearly all records are too short or have too few parts to be deep at all.
    if text.len() <= most || text.bytes().filter(opens).count() <= most {
        return false;
    }
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte == b'"' {
            quoted = true;
        } else if opens(&byte) {
            depth += 1;
            if depth > most {
                return true;
            }
        } else if matches!(byte, b'}' | b']') {
            depth = depth.saturating_sub(1);
        }
    }
    false
}
