//! The options, and what they do to missing and extra fields.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::{decoder, outcome};
use crate::formats::json::{ExtraField, JsonDecoder, JsonOptions, MissingField};

fn options(set: &[(&str, &str)]) -> JsonOptions {
    let mut options = JsonOptions::default();
    set.iter().for_each(|(key, value)| options.set(key, value).unwrap());
    options
}

/// `a INT NOT NULL, b INT, s STRUCT<x INT, y INT>`
fn fields() -> Vec<Field> {
    let inner = ["x", "y"].map(|name| Field::new(name, DataType::Int32, true));
    vec![
        Field::new("a", DataType::Int32, false),
        Field::new("b", DataType::Int32, true),
        Field::new("s", DataType::Struct(inner.to_vec().into()), true),
    ]
}

#[test]
fn each_option_has_its_values() {
    let set = options(&[
        ("timestamp.unit", "millis"),
        ("timestamp.unit.a", "seconds"),
        ("timestamp.unit.b.c", "micros"),
        ("timestamp.unit.d", "nanos"),
        ("missing", "error"),
        ("extra", "error"),
    ]);
    let units = [("a", TimeUnit::Second), ("b.c", TimeUnit::Microsecond), ("d", TimeUnit::Nanosecond)];
    let expected = JsonOptions {
        timestamp_unit: Some(TimeUnit::Millisecond),
        timestamp_units: units.map(|(name, unit)| (name.to_owned(), unit)).into(),
        missing: MissingField::Error,
        extra: ExtraField::Error,
    };
    assert_eq!(set, expected);
    assert_eq!(options(&[("missing", "null"), ("extra", "ignore")]), JsonOptions::default());

    let refused = |key, value| JsonOptions::default().set(key, value).unwrap_err();
    let units = "the choices are 'seconds', 'millis', 'micros' and 'nanos'";
    assert_eq!(refused("timestamp.unit", "ms"), format!("'json.timestamp.unit' 'ms': {units}"));
    assert_eq!(refused("timestamp.unit.a", ""), format!("'json.timestamp.unit.a' '': {units}"));
    assert_eq!(refused("missing", "NULL"), "'json.missing' 'NULL': the choices are 'null' and 'error'");
    assert_eq!(refused("extra", "null"), "'json.extra' 'null': the choices are 'ignore' and 'error'");
    for key in ["mising", "timestamp.unit.", "timestamp"] {
        assert_eq!(
            refused(key, "x"),
            format!(
                "'json.{key}' is no option of JSON; there are 'json.timestamp.unit', 'json.timestamp.unit.<column>', \
                 'json.missing' and 'json.extra'"
            )
        );
    }
}

#[test]
fn a_unit_must_be_for_a_timestamp() {
    let ts = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let wanted = vec![
        Field::new("ts", ts.clone(), true),
        Field::new("n", DataType::Int64, true),
        Field::new("s", DataType::Struct(vec![Field::new("at", ts, true)].into()), true),
    ];
    let names = ["ts", "n", "s", "unused"].map(str::to_owned);
    let made = |key: &str| {
        let schema = Arc::new(Schema::new(wanted.clone()));
        JsonDecoder::new(schema, &names, &options(&[(&format!("timestamp.unit.{key}"), "millis")])).err()
    };
    for right in ["ts", "s", "s.at", "unused", "unused.at"] {
        assert_eq!(made(right), None, "{right}");
    }
    for (wrong, reason) in [
        ("n", "there is no TIMESTAMP at \"n\""),
        ("s.x", "there is no TIMESTAMP at \"s.x\""),
        ("ts.x", "there is no TIMESTAMP at \"ts.x\""),
        ("tz", "there is no column \"tz\""),
    ] {
        assert_eq!(made(wrong), Some(format!("'json.timestamp.unit.{wrong}': {reason}")));
    }
}

#[test]
fn missing_fields() {
    let records = [
        r#"{"a":1,"b":2,"s":{"x":3,"y":4}}"#,
        r#"{"a":1,"b":null,"s":null}"#,
        r#"{"a":1,"s":{"x":3,"y":4}}"#,
        r#"{"a":1,"b":2,"s":{"y":4}}"#,
        r#"{"a":1,"b":2}"#,
        r#"{"b":2,"s":null}"#,
        r#"{"a":null,"b":2,"s":null}"#,
        "{}",
    ];
    let missing = r#"column "a": missing, but declared NOT NULL"#;
    let null = r#"column "a": null, but declared NOT NULL"#;
    let (rows, bad) = outcome(fields(), &JsonOptions::default(), &records);
    assert_eq!(rows, ["1|2|{x: 3, y: 4}", "1|NULL|NULL", "1|NULL|{x: 3, y: 4}", "1|2|{x: NULL, y: 4}", "1|2|NULL"]);
    assert_eq!(bad, [missing, null, missing]);

    let (rows, bad) = outcome(fields(), &options(&[("missing", "error")]), &records);
    assert_eq!(rows, ["1|2|{x: 3, y: 4}", "1|NULL|NULL"]);
    let lacks = |path: &str| format!("column \"{path}\": missing, and 'json.missing' is 'error'");
    assert_eq!(bad, [&lacks("b"), &lacks("s.x"), &lacks("s"), missing, null, missing]);
}

#[test]
fn extra_fields() {
    let records = [
        r#"{"a":1,"more":[{"x":[]}]}"#,
        r#"{"a":1,"s":{"x":3,"z":5}}"#,
        r#"{"A":1,"a":2}"#,
        r#"{"a":1,"unused":{"any":1}}"#,
        r#"{"a":1}"#,
    ];
    let (rows, bad) = outcome(fields(), &JsonOptions::default(), &records);
    assert_eq!(rows, ["1|NULL|NULL", "1|NULL|{x: 3, y: NULL}", "2|NULL|NULL", "1|NULL|NULL", "1|NULL|NULL"]);
    assert_eq!(bad, Vec::<String>::new());

    // A column that is declared and not used is not extra.
    let names = ["a", "b", "s", "unused"].map(str::to_owned);
    let schema = Arc::new(Schema::new(fields()));
    let mut decoder = JsonDecoder::new(schema, &names, &options(&[("extra", "error")])).unwrap();
    let values = arrow::array::BinaryArray::from_iter_values(records);
    let decoded = decoder.decode(&values, &[0, 1, 2, 3, 4]).unwrap();
    assert_eq!(super::lines(&decoded.rows), ["1|NULL|NULL", "1|NULL|NULL"]);
    let extra = |name: &str| format!("the field \"{name}\" is not declared, and 'json.extra' is 'error'");
    assert_eq!(decoded.bad, [(0, extra("more")), (1, format!("column \"s\": {}", extra("z"))), (2, extra("A"))]);
}

#[test]
fn a_decoder_without_columns_counts_the_records() {
    let records = ["{}", r#"{"a":1}"#, "1", r#"{"a":}"#];
    let (rows, bad) = outcome(vec![], &JsonOptions::default(), &records);
    assert_eq!(rows.len(), 2);
    assert_eq!(bad, ["a record is a JSON object, found 1", "not valid JSON: expected value at line 1 column 6",]);
    assert!(decoder(vec![], &options(&[("timestamp.unit", "millis")])).is_ok());
}
