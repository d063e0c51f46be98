//! Booleans, numbers, text and bytes.

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};

use super::{accepts, column, decode, refuses};
use crate::formats::json::JsonOptions;

/// One of each kind of JSON value.
const KINDS: [&str; 7] = ["null", "true", "12", "\"x\"", "[1]", "{\"a\":1}", "1.5"];

#[test]
fn every_type_takes_null_and_says_what_it_does_not_take() {
    let found = |data_type| {
        let outcomes = column(&data_type, &JsonOptions::default(), &KINDS);
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|reason| reason)).collect::<Vec<_>>()
    };
    assert_eq!(
        found(DataType::Boolean),
        [
            "NULL",
            "true",
            "expected BOOLEAN, found 12",
            "expected BOOLEAN, found the text \"x\"",
            "expected BOOLEAN, found the array [1]",
            "expected BOOLEAN, found the object {\"a\":1}",
            "expected BOOLEAN, found 1.5",
        ]
    );
    assert_eq!(
        found(DataType::Int64),
        [
            "NULL",
            "expected BIGINT, found true",
            "12",
            "expected BIGINT, found the text \"x\"",
            "expected BIGINT, found the array [1]",
            "expected BIGINT, found the object {\"a\":1}",
            "1.5 is not a whole number (BIGINT)",
        ]
    );
    assert_eq!(
        found(DataType::Float64),
        [
            "NULL",
            "expected DOUBLE, found true",
            "12.0",
            "expected DOUBLE, found the text \"x\"",
            "expected DOUBLE, found the array [1]",
            "expected DOUBLE, found the object {\"a\":1}",
            "1.5",
        ]
    );
    assert_eq!(
        found(DataType::Decimal128(10, 2)),
        [
            "NULL",
            "expected DECIMAL(10, 2), found true",
            "12.00",
            "expected DECIMAL(10, 2), found the text \"x\"",
            "expected DECIMAL(10, 2), found the array [1]",
            "expected DECIMAL(10, 2), found the object {\"a\":1}",
            "1.50",
        ]
    );
    for text in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        assert_eq!(found(text), ["NULL", "true", "12", "x", "[1]", "{\"a\":1}", "1.5"]);
    }
    for bytes in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
        assert_eq!(
            found(bytes),
            [
                "NULL",
                "expected BYTEA as hexadecimal text, found true",
                "expected BYTEA as hexadecimal text, found 12",
                "the text \"x\" is not hexadecimal; for base64 declare VARCHAR and use decode(..., 'base64')",
                "expected BYTEA as hexadecimal text, found the array [1]",
                "expected BYTEA as hexadecimal text, found the object {\"a\":1}",
                "expected BYTEA as hexadecimal text, found 1.5",
            ]
        );
    }
}

#[test]
fn integers_are_taken_to_their_very_limits_and_not_beyond() {
    for (data_type, sql, least, most, below, above) in [
        (DataType::Int8, "TINYINT", "-128", "127", "-129", "128"),
        (DataType::Int16, "SMALLINT", "-32768", "32767", "-32769", "32768"),
        (DataType::Int32, "INT", "-2147483648", "2147483647", "-2147483649", "2147483648"),
        (
            DataType::Int64,
            "BIGINT",
            "-9223372036854775808",
            "9223372036854775807",
            "-9223372036854775809",
            "9223372036854775808",
        ),
        (DataType::UInt8, "TINYINT UNSIGNED", "0", "255", "-1", "256"),
        (DataType::UInt16, "SMALLINT UNSIGNED", "0", "65535", "-1", "65536"),
        (DataType::UInt32, "INT UNSIGNED", "0", "4294967295", "-1", "4294967296"),
        (DataType::UInt64, "BIGINT UNSIGNED", "0", "18446744073709551615", "-1", "18446744073709551616"),
    ] {
        accepts(
            data_type.clone(),
            &[
                (least, least),
                (most, most),
                (&format!("\"{most}\""), most),
                (&format!("{most}.000"), most),
                (&format!("{most}0e-1"), most),
                ("-0", "0"),
                ("0.0e99999999999999999999", "0"),
                ("1e2", "100"),
                ("0.12E+2", "12"),
            ],
        );
        let fraction = format!("12.5 is not a whole number ({sql})");
        let tiny = format!("1e-99999999999999999999 is not a whole number ({sql})");
        refuses(
            data_type,
            &[
                (below, &format!("{below} is out of range for {sql}")),
                (above, &format!("{above} is out of range for {sql}")),
                (&format!("\"{above}\""), &format!("{above} is out of range for {sql}")),
                ("1e400", &format!("1e400 is out of range for {sql}")),
                ("1e99999999999999999999", &format!("1e99999999999999999999 is out of range for {sql}")),
                ("12.5", &fraction),
                ("1e-99999999999999999999", &tiny),
                ("\"12.5\"", &fraction),
                ("\"\"", &format!("expected {sql}, found the text \"\"")),
                ("\" 12\"", &format!("expected {sql}, found the text \" 12\"")),
                ("\"12 \"", &format!("expected {sql}, found the text \"12 \"")),
                ("\"+12\"", &format!("expected {sql}, found the text \"+12\"")),
                ("\"012\"", &format!("expected {sql}, found the text \"012\"")),
                ("\"0x12\"", &format!("expected {sql}, found the text \"0x12\"")),
                ("\"1_000\"", &format!("expected {sql}, found the text \"1_000\"")),
                ("\"null\"", &format!("expected {sql}, found the text \"null\"")),
            ],
        );
    }
    // Beyond 2^53 a number is not taken by way of a double.
    accepts(DataType::Int64, &[("9007199254740993", "9007199254740993"), ("9007199254740993.0", "9007199254740993")]);
    accepts(DataType::UInt64, &[("9007199254740993e0", "9007199254740993")]);
}

#[test]
fn floating_point_is_the_nearest_number_and_never_infinite_by_accident() {
    accepts(
        DataType::Float64,
        &[
            ("0.1", "0.1"),
            ("-0.0", "-0.0"),
            ("1e308", "1e308"),
            ("1.7976931348623157e308", "1.7976931348623157e308"),
            ("5e-324", "5e-324"),
            ("1e-400", "0.0"),
            ("9007199254740993", "9007199254740992.0"),
            ("\"2.5\"", "2.5"),
            ("\"NaN\"", "NaN"),
            ("\"Infinity\"", "inf"),
            ("\"-Infinity\"", "-inf"),
            ("\"+Infinity\"", "inf"),
            ("\"+INF\"", "inf"),
            ("\"-INF\"", "-inf"),
        ],
    );
    refuses(
        DataType::Float64,
        &[
            ("1e400", "1e400 is out of range for DOUBLE"),
            ("-1e400", "-1e400 is out of range for DOUBLE"),
            ("\"1e400\"", "1e400 is out of range for DOUBLE"),
            ("\"nan\"", "expected DOUBLE, found the text \"nan\""),
            ("\"inf\"", "expected DOUBLE, found the text \"inf\""),
            ("\"1.\"", "expected DOUBLE, found the text \"1.\""),
            ("\".5\"", "expected DOUBLE, found the text \".5\""),
            ("\"1e\"", "expected DOUBLE, found the text \"1e\""),
            ("\"1,5\"", "expected DOUBLE, found the text \"1,5\""),
        ],
    );
    accepts(DataType::Float32, &[("0.1", "0.1"), ("3.4028235e38", "3.4028235e38"), ("16777217", "16777216.0")]);
    refuses(DataType::Float32, &[("1e39", "1e39 is out of range for REAL")]);

    // The nearest of the whole text: never by way of another float.
    let fields = vec![Field::new("d", DataType::Float64, true), Field::new("f", DataType::Float32, true)];
    for text in ["2.2250738585072011e-308", "1.00000017881393432617187499", "0.3", "123456789.123456789e-5"] {
        let rows = decode(fields.clone(), &JsonOptions::default(), &[format!(r#"{{"d":{text},"f":{text}}}"#)]).rows;
        assert_eq!(rows.column(0).as_primitive::<Float64Type>().value(0), text.parse::<f64>().unwrap());
        assert_eq!(rows.column(1).as_primitive::<Float32Type>().value(0), text.parse::<f32>().unwrap());
    }
}

#[test]
fn decimals_are_exact_or_bad() {
    for data_type in
        [DataType::Decimal32(5, 2), DataType::Decimal64(5, 2), DataType::Decimal128(5, 2), DataType::Decimal256(5, 2)]
    {
        accepts(
            data_type.clone(),
            &[
                ("1.23", "1.23"),
                ("-1.23", "-1.23"),
                ("1.230000000000000000000000000000000000000000000000", "1.23"),
                ("999.99", "999.99"),
                ("-999.99", "-999.99"),
                ("0", "0.00"),
                ("-0.00", "0.00"),
                ("0e99999999999999999999", "0.00"),
                ("0.01", "0.01"),
                ("1e2", "100.00"),
                ("12e-2", "0.12"),
                ("0.000000000012e10", "0.12"),
                ("99999e-2", "999.99"),
                ("100", "100.00"),
                ("\"1.20\"", "1.20"),
            ],
        );
        refuses(
            data_type,
            &[
                ("1.239", "1.239 has more than 2 digits after the point, which DECIMAL(5, 2) holds"),
                ("1.231", "1.231 has more than 2 digits after the point, which DECIMAL(5, 2) holds"),
                ("0.001", "0.001 has more than 2 digits after the point, which DECIMAL(5, 2) holds"),
                ("1e-3", "1e-3 has more than 2 digits after the point, which DECIMAL(5, 2) holds"),
                ("1000", "1000 has more digits than DECIMAL(5, 2) holds"),
                ("1e3", "1e3 has more digits than DECIMAL(5, 2) holds"),
                ("-1000.00", "-1000.00 has more digits than DECIMAL(5, 2) holds"),
                ("1e99999999999999999999", "1e99999999999999999999 has more digits than DECIMAL(5, 2) holds"),
                (
                    "1e-99999999999999999999",
                    "1e-99999999999999999999 has more than 2 digits after the point, which DECIMAL(5, 2) holds",
                ),
                ("\"1.239\"", "1.239 has more than 2 digits after the point, which DECIMAL(5, 2) holds"),
                ("\"1.2.3\"", "expected DECIMAL(5, 2), found the text \"1.2.3\""),
                ("\"NaN\"", "expected DECIMAL(5, 2), found the text \"NaN\""),
            ],
        );
    }
    let widest = "12345678901234567890123456789012345678";
    accepts(DataType::Decimal128(38, 0), &[(widest, widest), (&format!("-{widest}"), &format!("-{widest}"))]);
    refuses(
        DataType::Decimal128(38, 0),
        &[(&format!("{widest}0"), &format!("{widest}0 has more digits than DECIMAL(38, 0) holds"))],
    );
    let (whole, fraction) = ("9".repeat(38), "9".repeat(38));
    let widest = format!("{whole}.{fraction}");
    accepts(DataType::Decimal256(76, 38), &[(&widest, &widest), (&format!("-{widest}"), &format!("-{widest}"))]);
    // Scales above the precision, and below zero.
    accepts(DataType::Decimal128(2, 4), &[("0.0012", "0.0012"), ("12e-4", "0.0012")]);
    refuses(DataType::Decimal128(2, 4), &[("0.0123", "0.0123 has more digits than DECIMAL(2, 4) holds")]);
    accepts(DataType::Decimal128(3, -2), &[("1200", "1200"), ("99900", "99900"), ("12e2", "1200")]);
    refuses(
        DataType::Decimal128(3, -2),
        &[
            ("1250", "1250 is not a multiple of 1e2, as DECIMAL(3, -2) needs"),
            ("100000", "100000 has more digits than DECIMAL(3, -2) holds"),
        ],
    );
}

#[test]
fn booleans_may_be_text_of_booleans() {
    accepts(DataType::Boolean, &[("true", "true"), ("false", "false"), ("\"true\"", "true"), ("\"false\"", "false")]);
    refuses(
        DataType::Boolean,
        &[
            ("0", "expected BOOLEAN, found 0"),
            ("\"TRUE\"", "expected BOOLEAN, found the text \"TRUE\""),
            ("\"yes\"", "expected BOOLEAN, found the text \"yes\""),
            ("\"\"", "expected BOOLEAN, found the text \"\""),
        ],
    );
}

#[test]
fn text_keeps_every_character() {
    for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        accepts(
            data_type.clone(),
            &[
                (r#""""#, ""),
                (r#"" a ""#, " a "),
                (r#""a text that is too long for a view to hold in place""#, {
                    "a text that is too long for a view to hold in place"
                }),
                (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
                (r#""\u0041\u00e9\u20ac\ud83d\ude00""#, "Aé€😀"),
                (r#""é€😀\u0000""#, "é€😀\0"),
                (r#""null""#, "null"),
                // Other values as they were written, to the digit and the blank.
                ("1.0", "1.0"),
                ("1E+3", "1E+3"),
                ("12345678901234567890123456789", "12345678901234567890123456789"),
                ("false", "false"),
                (r#"[1, "a\n",  null]"#, r#"[1, "a\n",  null]"#),
                (r#"{ "b":[{}] }"#, r#"{ "b":[{}] }"#),
            ],
        );
        refuses(
            data_type,
            &[
                (r#""\ud83d""#, "the text \"\\ud83d\" escapes half a character (a lone surrogate)"),
                (r#""\ude00x""#, "the text \"\\ude00x\" escapes half a character (a lone surrogate)"),
            ],
        );
    }
}

#[test]
fn bytes_are_hexadecimal() {
    for data_type in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
        accepts(data_type.clone(), &[("\"\"", ""), ("\"00ff7F\"", "00ff7f"), ("\"\\u0030a\"", "0a")]);
        let reason = |text: &str| {
            format!("the text {text} is not hexadecimal; for base64 declare VARCHAR and use decode(..., 'base64')")
        };
        for text in ["\"abc\"", "\"0g\"", "\"AQID\"", "\"é\"", "\"0 \""] {
            refuses(data_type.clone(), &[(text, &reason(text))]);
        }
    }
}
