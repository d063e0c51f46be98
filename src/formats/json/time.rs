//! Timestamps, dates and times of day: ISO 8601 text as SQL's CAST reads it, or epochs in the unit that was declared.

use arrow::array::timezone::Tz;
use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime, string_to_time_nanoseconds};
use arrow::datatypes::{ArrowTimestampType, TimeUnit};

use super::fault::{Fault, excerpt, shown};
use super::number;
use super::reader::{self, Value};

/// The first second of the year 0000 and the first of the year 10000: what ISO 8601 text can say without a sign.
const WRITABLE_SECONDS: std::ops::Range<i64> = -62_167_219_200..253_402_300_800;

/// A timestamp from ISO 8601 text. Text without a zone is in `zone`.
pub(super) fn timestamp<T: ArrowTimestampType>(value: Value<'_>, zone: &Tz, sql: &str) -> Result<i64, Fault> {
    let quoted = match value {
        Value::Text(quoted) => quoted,
        Value::Number(text) => {
            return Err(Fault::new(format!(
                "{sql} takes text like \"2024-05-17T08:30:00Z\", found {}; if the column holds epochs, declare their \
                 unit in 'json.timestamp.unit'",
                excerpt(text)
            )));
        }
        _ => return Err(Fault::kind(format_args!("{sql} as text"), value)),
    };
    let text = reader::content(quoted)?;
    let moment = string_to_datetime(zone, &text)
        .map_err(|_| Fault::new(format!("{} is not an ISO 8601 timestamp for {sql}", shown(value))))?;
    T::from_naive_datetime(moment.naive_utc(), None)
        .ok_or_else(|| Fault::new(format!("{} is out of range for {sql}{}", shown(value), range(T::UNIT))))
}

/// A timestamp from a whole number of `declared` units since 1970, exactly.
pub(super) fn epoch(value: Value<'_>, declared: TimeUnit, unit: TimeUnit, sql: &str) -> Result<i64, Fault> {
    let number: i64 = number::whole(value, &format!("{sql} in epoch {}", name(declared)))?;
    let (from, to) = (per_second(declared), per_second(unit));
    let epoch = || format!("{number} epoch {}", name(declared));
    if !WRITABLE_SECONDS.contains(&number.div_euclid(from)) {
        return Err(Fault::new(format!(
            "{} is out of range: not in the years 0000 to 9999; is 'json.timestamp.unit' right?",
            epoch()
        )));
    }
    if to >= from {
        number
            .checked_mul(to / from)
            .ok_or_else(|| Fault::new(format!("{} is out of range for {sql}{}", epoch(), range(unit))))
    } else if number % (from / to) == 0 {
        Ok(number / (from / to))
    } else {
        Err(Fault::new(format!("{} is between two {} of {sql}", epoch(), name(unit))))
    }
}

/// A date from ISO 8601 text.
pub(super) fn date<T: Parser>(value: Value<'_>, sql: &str) -> Result<T::Native, Fault> {
    let Value::Text(quoted) = value else {
        return Err(Fault::kind(format_args!("{sql} as text like \"2024-05-17\""), value));
    };
    let text = reader::content(quoted)?;
    // Arrow passes over a last byte that is no digit: of "2024-05-1O" it makes the first.
    let ends = text.len() > 10 || text.ends_with(|last: char| last.is_ascii_digit());
    T::parse(&text)
        .filter(|_| ends)
        .ok_or_else(|| Fault::new(format!("{} is not an ISO 8601 date for {sql}", shown(value))))
}

/// Nanoseconds since midnight from text.
pub(super) fn time_of_day(value: Value<'_>, sql: &str) -> Result<i64, Fault> {
    /// Arrow reads the leap second 23:59:60 as the end of the day, which no time of day is.
    const DAY: i64 = 86_400_000_000_000;
    let Value::Text(quoted) = value else {
        return Err(Fault::kind(format_args!("{sql} as text like \"08:30:00\""), value));
    };
    match string_to_time_nanoseconds(&reader::content(quoted)?) {
        Ok(nanos) if nanos < DAY => Ok(nanos),
        _ => Err(Fault::new(format!("{} is not a time of day for {sql}", shown(value)))),
    }
}

/// How many of the unit a second has.
pub(super) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The unit as options name it.
fn name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "seconds",
        TimeUnit::Millisecond => "millis",
        TimeUnit::Microsecond => "micros",
        TimeUnit::Nanosecond => "nanos",
    }
}

/// What to say about a timestamp that the column's unit cannot hold.
fn range(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Nanosecond => ", whose nanoseconds reach from 1677-09-21 to 2262-04-11; TIMESTAMP(6) holds it",
        _ => "",
    }
}
