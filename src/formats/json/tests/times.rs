//! Timestamps, dates and times of day.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{accepts, column, outcome, refuses};
use crate::formats::json::JsonOptions;

const UNITS: [(TimeUnit, &str); 4] = [
    (TimeUnit::Second, "TIMESTAMP(0)"),
    (TimeUnit::Millisecond, "TIMESTAMP(3)"),
    (TimeUnit::Microsecond, "TIMESTAMP(6)"),
    (TimeUnit::Nanosecond, "TIMESTAMP"),
];

fn timestamp(unit: TimeUnit) -> DataType {
    DataType::Timestamp(unit, None)
}

fn declared(unit: TimeUnit) -> JsonOptions {
    JsonOptions { timestamp_unit: Some(unit), ..JsonOptions::default() }
}

#[track_caller]
fn epochs(unit: TimeUnit, into: TimeUnit, cases: &[(&str, Result<&str, &str>)]) {
    let texts: Vec<_> = cases.iter().map(|(text, _)| *text).collect();
    let found = column(&timestamp(into), &declared(unit), &texts);
    for ((text, expected), found) in cases.iter().zip(&found) {
        assert_eq!(found.as_deref().map_err(String::as_str), *expected, "{text}");
    }
}

#[test]
fn text_is_read_as_cast_reads_it() {
    let texts = [
        "2024-05-17T08:30:00Z",
        "2024-05-17T08:30:00",
        "2024-05-17 08:30:00",
        "2024-05-17t08:30:00z",
        "2024-05-17T08:30:00.1",
        "2024-05-17T08:30:00.123456789Z",
        "2024-05-17T08:30:00.1234567891234Z",
        "2024-05-17T08:30:00+02:00",
        "2024-05-17T08:30:00.5-0530",
        "2024-05-17 083000 +07",
        "2024-05-17 08:30:00 Europe/Berlin",
        "2024-03-31 02:30:00 Europe/Berlin",
        "2024-10-27 02:30:00 Europe/Berlin",
        "2024-05-17",
        "1969-12-31T23:59:59.999999999Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "1677-09-21T00:12:43Z",
        "2262-04-11T23:47:16.854775807Z",
        "2262-04-11T23:47:16.854775808Z",
        "2016-12-31T23:59:60Z",
        "2024-02-30T00:00:00Z",
        "2024-13-01",
        "2024-05-17T25:00:00Z",
        "2024-05-17T08:30",
        "2024-05-17T08:30:00.Z",
        "2024-05-17T08:30:00Zulu",
        "2024-05-17T08:30:00é",
        "2024-05-1é",
        "20240517",
        "17.05.2024",
        " 2024-05-17",
        "+12024-05-17T00:00:00Z",
        "1715934600",
        "now",
        "",
    ];
    let display = FormatOptions::new().with_null("NULL");
    let zones = [None, Some("+02:00"), Some("America/New_York")];
    for (unit, zone) in UNITS.iter().flat_map(|(unit, _)| zones.map(|zone| (*unit, zone))) {
        let data_type = DataType::Timestamp(unit, zone.map(Into::into));
        for text in texts {
            let found = column(&data_type, &JsonOptions::default(), &[&format!("\"{text}\"")]).remove(0);
            let array: ArrayRef = Arc::new(StringArray::from(vec![text]));
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            let expected = cast_with_options(&array, &data_type, &strict);
            let expected = expected.map(|c| ArrayFormatter::try_new(&c, &display).unwrap().value(0).to_string());
            assert_eq!(found.clone().ok(), expected.ok(), "{text} into {data_type}");
            if let Err(reason) = found {
                assert!(reason.contains(&format!("\"{text}\"")) && reason.contains("TIMESTAMP"), "{reason}");
            }
        }
    }
    accepts(timestamp(TimeUnit::Millisecond), &[("\"2024-05-17T08:30:00.123999Z\"", "2024-05-17T08:30:00.123")]);
    accepts(timestamp(TimeUnit::Nanosecond), &[(r#""2024-05-17\u005408:30:00+02:00""#, "2024-05-17T06:30:00")]);
}

#[test]
fn a_number_without_a_declared_unit_is_bad_and_says_what_to_declare() {
    for (unit, sql) in UNITS {
        let reason = |found: &str| {
            format!(
                "{sql} takes text like \"2024-05-17T08:30:00Z\", found {found}; if the column holds epochs, declare \
                 their unit in 'json.timestamp.unit'"
            )
        };
        refuses(
            timestamp(unit),
            &[
                ("1715934600000", &reason("1715934600000")),
                ("0", &reason("0")),
                ("-1.5", &reason("-1.5")),
                ("true", &format!("expected {sql} as text, found true")),
                ("[]", &format!("expected {sql} as text, found the array []")),
                ("\"1715934600000\"", &format!("the text \"1715934600000\" is not an ISO 8601 timestamp for {sql}")),
            ],
        );
    }
    refuses(
        timestamp(TimeUnit::Nanosecond),
        &[(
            "\"9999-12-31T00:00:00Z\"",
            "the text \"9999-12-31T00:00:00Z\" is out of range for TIMESTAMP, whose nanoseconds reach from 1677-09-21 \
             to 2262-04-11; TIMESTAMP(6) holds it",
        )],
    );
}

#[test]
fn an_epoch_is_converted_exactly_from_each_unit_into_each() {
    // 2024-05-17T08:30:00 and one second before 1970, in every unit.
    for (from, declared_zeros) in
        [(UNITS[0].0, ""), (UNITS[1].0, "000"), (UNITS[2].0, "000000"), (UNITS[3].0, "000000000")]
    {
        for (into, _) in UNITS {
            epochs(
                from,
                into,
                &[
                    (&format!("1715934600{declared_zeros}"), Ok("2024-05-17T08:30:00")),
                    (&format!("-1{declared_zeros}"), Ok("1969-12-31T23:59:59")),
                    (&format!("\"-1{declared_zeros}\""), Ok("1969-12-31T23:59:59")),
                    (&format!("1715934600{declared_zeros}.0"), Ok("2024-05-17T08:30:00")),
                    (&format!("17159346{declared_zeros}e2"), Ok("2024-05-17T08:30:00")),
                    ("0", Ok("1970-01-01T00:00:00")),
                    ("null", Ok("NULL")),
                ],
            );
        }
    }
    let millis = TimeUnit::Millisecond;
    epochs(millis, TimeUnit::Nanosecond, &[("-1", Ok("1969-12-31T23:59:59.999"))]);
    epochs(
        millis,
        TimeUnit::Second,
        &[
            ("1999", Err("1999 epoch millis is between two seconds of TIMESTAMP(0)")),
            ("-1", Err("-1 epoch millis is between two seconds of TIMESTAMP(0)")),
        ],
    );
    epochs(
        TimeUnit::Nanosecond,
        TimeUnit::Microsecond,
        &[("1715934600123456789", Err("1715934600123456789 epoch nanos is between two micros of TIMESTAMP(6)"))],
    );
}

/// Case: epoch unit (risingwave#16097).
#[test]
fn an_epoch_in_the_wrong_unit_or_shape_is_bad() {
    let years = |number: &str, unit: &str| {
        format!("{number} epoch {unit} is out of range: not in the years 0000 to 9999; is 'json.timestamp.unit' right?")
    };
    for (into, sql) in UNITS {
        epochs(
            TimeUnit::Millisecond,
            into,
            &[
                ("63072000000000000", Err(&years("63072000000000000", "millis"))),
                ("-63072000000000000", Err(&years("-63072000000000000", "millis"))),
                ("253402300800000", Err(&years("253402300800000", "millis"))),
                ("-62167219200001", Err(&years("-62167219200001", "millis"))),
                ("9223372036854775807", Err(&years("9223372036854775807", "millis"))),
                ("-9223372036854775808", Err(&years("-9223372036854775808", "millis"))),
                ("9223372036854775808", Err(&format!("9223372036854775808 is out of range for {sql} in epoch millis"))),
                ("1.5", Err(&format!("1.5 is not a whole number ({sql} in epoch millis)"))),
                ("1e400", Err(&format!("1e400 is out of range for {sql} in epoch millis"))),
                ("true", Err(&format!("expected {sql} in epoch millis, found true"))),
                (
                    "\"2024-05-17T08:30:00Z\"",
                    Err(&format!("expected {sql} in epoch millis, found the text \"2024-05-17T08:30:00Z\"")),
                ),
            ],
        );
        epochs(TimeUnit::Second, into, &[("1715934600000", Err(&years("1715934600000", "seconds")))]);
    }
    epochs(
        TimeUnit::Millisecond,
        TimeUnit::Second,
        &[("253402300799000", Ok("9999-12-31T23:59:59")), ("-62167219200000", Ok("0000-01-01T00:00:00"))],
    );
    // The widest TIMESTAMP of SQL, nanoseconds, ends earlier: exactly where 64 bits end.
    epochs(
        TimeUnit::Millisecond,
        TimeUnit::Nanosecond,
        &[
            ("9223372036854", Ok("2262-04-11T23:47:16.854")),
            (
                "9223372036855",
                Err("9223372036855 epoch millis is out of range for TIMESTAMP, whose nanoseconds reach from \
                     1677-09-21 to 2262-04-11; TIMESTAMP(6) holds it"),
            ),
        ],
    );
    epochs(
        TimeUnit::Nanosecond,
        TimeUnit::Nanosecond,
        &[
            ("9223372036854775807", Ok("2262-04-11T23:47:16.854775807")),
            ("-9223372036854775808", Ok("1677-09-21T00:12:43.145224192")),
        ],
    );
}

#[test]
fn a_column_s_own_unit_goes_before_the_one_for_all() {
    let mut options = declared(TimeUnit::Millisecond);
    options.set("timestamp.unit.b", "seconds").unwrap();
    let fields = ["a", "b"].map(|name| Field::new(name, timestamp(TimeUnit::Nanosecond), true));
    let (rows, bad) = outcome(fields.to_vec(), &options, &[r#"{"a":1715934600000,"b":1715934600}"#]);
    assert_eq!((rows, bad), (vec!["2024-05-17T08:30:00|2024-05-17T08:30:00".to_owned()], vec![]));
}

#[test]
fn dates_are_text() {
    for data_type in [DataType::Date32, DataType::Date64] {
        let out_of = if data_type == DataType::Date32 { "" } else { "T00:00:00" };
        let expected = |date: &str| format!("{date}{out_of}");
        accepts(
            data_type.clone(),
            &[
                ("\"2024-05-17\"", &expected("2024-05-17")),
                ("\"2024-5-7\"", &expected("2024-05-07")),
                ("\"20240517\"", &expected("2024-05-17")),
                ("\"1969-12-31\"", &expected("1969-12-31")),
                ("\"2024-02-29\"", &expected("2024-02-29")),
                ("null", "NULL"),
            ],
        );
        refuses(
            data_type,
            &[
                ("19860", "expected DATE as text like \"2024-05-17\", found 19860"),
                ("true", "expected DATE as text like \"2024-05-17\", found true"),
                ("\"2023-02-29\"", "the text \"2023-02-29\" is not an ISO 8601 date for DATE"),
                ("\"17.05.2024\"", "the text \"17.05.2024\" is not an ISO 8601 date for DATE"),
                ("\"\"", "the text \"\" is not an ISO 8601 date for DATE"),
                ("\"2024-05-1O\"", "the text \"2024-05-1O\" is not an ISO 8601 date for DATE"),
                ("\"2024-5-17x\"", "the text \"2024-5-17x\" is not an ISO 8601 date for DATE"),
                ("\"2024-5-1x\"", "the text \"2024-5-1x\" is not an ISO 8601 date for DATE"),
                ("\"2024-05-17é\"", "the text \"2024-05-17é\" is not an ISO 8601 date for DATE"),
            ],
        );
    }
    accepts(DataType::Date32, &[("\"2024-05-17T23:30:00Z\"", "2024-05-17"), ("\"+12024-05-17\"", "+12024-05-17")]);
}

#[test]
fn times_of_day_are_text() {
    for data_type in [
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
    ] {
        accepts(
            data_type.clone(),
            &[("\"08:30:00\"", "08:30:00"), ("\"08:30\"", "08:30:00"), ("\"11:59:59 pm\"", "23:59:59")],
        );
        refuses(
            data_type,
            &[
                ("30600", "expected TIME as text like \"08:30:00\", found 30600"),
                ("\"30600\"", "the text \"30600\" is not a time of day for TIME"),
                ("\"24:00:00\"", "the text \"24:00:00\" is not a time of day for TIME"),
                ("\"23:59:60\"", "the text \"23:59:60\" is not a time of day for TIME"),
                ("\"08:30:00Z\"", "the text \"08:30:00Z\" is not a time of day for TIME"),
                ("\"\"", "the text \"\" is not a time of day for TIME"),
            ],
        );
    }
    let text = "\"08:30:00.123456789\"";
    accepts(DataType::Time32(TimeUnit::Second), &[(text, "08:30:00")]);
    accepts(DataType::Time32(TimeUnit::Millisecond), &[(text, "08:30:00.123")]);
    accepts(DataType::Time64(TimeUnit::Microsecond), &[(text, "08:30:00.123456")]);
    accepts(DataType::Time64(TimeUnit::Nanosecond), &[(text, "08:30:00.123456789")]);
}
