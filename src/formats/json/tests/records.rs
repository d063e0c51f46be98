//! What is a record, and what is not.

use arrow::array::BinaryArray;
use arrow::datatypes::{DataType, Field};

use super::{decode, decoder, outcome};
use crate::formats::json::{DEEPEST, JsonOptions};

/// `a VARCHAR, n BIGINT`
fn fields() -> Vec<Field> {
    vec![Field::new("a", DataType::Utf8View, true), Field::new("n", DataType::Int64, true)]
}

/// Each value is bad for the reason given, alone and between good neighbours that do not suffer.
#[track_caller]
fn bad<V: AsRef<[u8]>>(cases: &[(V, &str)]) {
    let good = br#"{"a":"good","n":1}"#.as_slice();
    for (value, reason) in cases {
        let value = value.as_ref();
        let shown = String::from_utf8_lossy(value);
        let (rows, reasons) = outcome(fields(), &JsonOptions::default(), &[value]);
        assert_eq!((rows.len(), reasons), (0, vec![(*reason).to_owned()]), "{shown}");
        let decoded = decode(fields(), &JsonOptions::default(), &[good, value, good, value, value, good]);
        assert_eq!(super::lines(&decoded.rows), ["good|1"; 3], "{shown}");
        assert_eq!(decoded.good, [0, 2, 5], "{shown}");
        assert_eq!(decoded.bad, [1, 3, 4].map(|index| (index, (*reason).to_owned())), "{shown}");
    }
}

#[test]
fn blanks_around_and_inside_a_record_say_nothing() {
    let records = [" \t\r\n{ \"a\" : \"x\" ,\n\"n\":1 } \r\n", "{\"a\":\"x\",\"n\":1}\n"];
    let (rows, bad) = outcome(fields(), &JsonOptions::default(), &records);
    assert_eq!((rows, bad), (vec!["x|1".to_owned(); 2], vec![]));
}

#[test]
fn the_last_of_two_fields_counts() {
    let records =
        [r#"{"a":"first","n":1,"a":"last"}"#, r#"{"n":"no number","a":"x","n":2}"#, r#"{"a":"x","\u0061":null}"#];
    let (rows, bad) = outcome(fields(), &JsonOptions::default(), &records);
    assert_eq!((rows, bad), (vec!["last|1".to_owned(), "x|2".into(), "NULL|NULL".into()], vec![]));
    let (_, bad) = outcome(fields(), &JsonOptions::default(), &[r#"{"n":2,"n":"no number"}"#]);
    assert_eq!(bad, [r#"column "n": expected BIGINT, found the text "no number""#]);
}

/// Case: null value (feldera PR#6707).
#[test]
fn nothing_null_and_empty_are_three_different_things() {
    bad(&[
        ("", "the value is empty"),
        (" \n\t", "the value is blank"),
        ("null", "a record is a JSON object, found null"),
        (" null ", "a record is a JSON object, found null"),
    ]);
    let values = BinaryArray::from_iter([Some(br#"{"a":"x"}"#.as_slice()), None, Some(b"")]);
    let mut decoder = decoder(fields(), &JsonOptions::default()).unwrap();
    let decoded = decoder.decode(&values, &[0, 1, 2]).unwrap();
    assert_eq!(decoded.bad, [(1, "the value is null".to_owned()), (2, "the value is empty".to_owned())]);
    let decoded = decoder.decode(&values, &[0, 2]).unwrap();
    assert_eq!((decoded.good, decoded.bad), (vec![0], vec![(2, "the value is empty".to_owned())]));
}

#[test]
fn a_record_is_an_object() {
    bad(&[
        ("[]", "a record is a JSON object, found the array []"),
        (r#"[{"a":"x"}]"#, r#"a record is a JSON object, found the array [{"a":"x"}]"#),
        ("12", "a record is a JSON object, found 12"),
        ("true", "a record is a JSON object, found true"),
        (r#""{}""#, r#"a record is a JSON object, found the text "{}""#),
    ]);
}

#[test]
fn what_is_cut_off_does_not_swallow_the_next_record() {
    bad(&[
        ("{", "not valid JSON: EOF while parsing an object at line 1 column 1"),
        (r#"{"a":"x"#, "not valid JSON: EOF while parsing a string at line 1 column 7"),
        (r#"{"a":"x\"#, "not valid JSON: EOF while parsing a string at line 1 column 8"),
        (r#"{"a":"x""#, "not valid JSON: EOF while parsing an object at line 1 column 8"),
        (r#"{"a":"x","#, "not valid JSON: EOF while parsing a value at line 1 column 9"),
        (r#"{"a"#, "not valid JSON: EOF while parsing a string at line 1 column 3"),
        (r#"{"a":"#, "not valid JSON: EOF while parsing a value at line 1 column 5"),
        (r#"{"n":12"#, "not valid JSON: EOF while parsing an object at line 1 column 7"),
        (r#"{"n":tru"#, "not valid JSON: EOF while parsing a value at line 1 column 8"),
        (r#"{"z":[{"y":"#, "not valid JSON: EOF while parsing a value at line 1 column 11"),
    ]);
}

#[test]
fn two_records_in_one_value_are_none() {
    bad(&[
        (r#"{"a":"x"}{"a":"y"}"#, "not valid JSON: trailing characters at line 1 column 10"),
        ("{\"a\":\"x\"}\n{\"a\":\"y\"}", "not valid JSON: trailing characters at line 2 column 1"),
        (r#"{"a":"x"},"#, "not valid JSON: trailing characters at line 1 column 10"),
        (r#"{"a":"x"}}"#, "not valid JSON: trailing characters at line 1 column 10"),
        ("{}\0", "not valid JSON: trailing characters at line 1 column 3"),
    ]);
}

#[test]
fn only_json_is_json() {
    bad(&[
        (r#"{"a":"x" "n":1}"#, "not valid JSON: expected `,` or `}` at line 1 column 10"),
        (r#"{"a":"x",,"n":1}"#, "not valid JSON: key must be a string at line 1 column 10"),
        (r#"{"a":"x",}"#, "not valid JSON: trailing comma at line 1 column 10"),
        (r#"{,"a":"x"}"#, "not valid JSON: key must be a string at line 1 column 2"),
        (r#"{"z":[1,]}"#, "not valid JSON: expected value at line 1 column 9"),
        (r#"{"z":[1 2]}"#, "not valid JSON: expected `,` or `]` at line 1 column 9"),
        (r#"{"a" "x"}"#, "not valid JSON: expected `:` at line 1 column 6"),
        (r#"{'a':'x'}"#, "not valid JSON: key must be a string at line 1 column 2"),
        (r#"{a:"x"}"#, "not valid JSON: key must be a string at line 1 column 2"),
        (r#"{"z":NaN}"#, "not valid JSON: expected value at line 1 column 6"),
        (r#"{"z":-Infinity}"#, "not valid JSON: invalid number at line 1 column 7"),
        (r#"{"z":01}"#, "not valid JSON: invalid number at line 1 column 7"),
        (r#"{"z":+1}"#, "not valid JSON: expected value at line 1 column 6"),
        (r#"{"z":1.}"#, "not valid JSON: invalid number at line 1 column 8"),
        (r#"{"z":.5}"#, "not valid JSON: expected value at line 1 column 6"),
        (r#"{"z":1e}"#, "not valid JSON: invalid number at line 1 column 8"),
        (r#"{"z":1-2}"#, "not valid JSON: expected `,` or `}` at line 1 column 7"),
        (r#"{"z":0x10}"#, "not valid JSON: expected `,` or `}` at line 1 column 7"),
        (r#"{"z":True}"#, "not valid JSON: expected value at line 1 column 6"),
        (r#"{"z":"\x"}"#, "not valid JSON: invalid escape at line 1 column 8"),
        (r#"{"z":"\u00g0"}"#, "not valid JSON: invalid escape at line 1 column 12"),
        (
            "{\"z\":\"a\nb\"}",
            "not valid JSON: control character (\\u0000-\\u001F) found while parsing a string at line 1 column 7",
        ),
        (r#"{"a":"x"/* no */}"#, "not valid JSON: expected `,` or `}` at line 1 column 9"),
        ("// no\n{}", "not valid JSON: expected value at line 1 column 1"),
        ("text", "not valid JSON: expected ident at line 1 column 2"),
        ("\u{feff}{}", "not valid JSON: begins with a byte order mark"),
        ("\0\0\0\0\u{7}{}", "not JSON: begins with a zero byte, as the serializers of a schema registry write"),
    ]);
}

#[test]
fn only_utf_8_is_text() {
    bad(&[
        (b"{\"a\":\"\xff\"}".as_slice(), "not valid UTF-8 from byte 6 on"),
        // A sequence that is cut off is not completed by the next record, nor by the next field.
        (b"{\"a\":\"\xc3", "not valid UTF-8 from byte 6 on"),
        (b"{\"a\":\"\xc3\",\"b\":\"\xa9\"}", "not valid UTF-8 from byte 6 on"),
        (b"\xa9\"}", "not valid UTF-8 from byte 0 on"),
        // A surrogate, and an overlong form.
        (b"{\"z\":\"\xed\xa0\x80\"}", "not valid UTF-8 from byte 6 on"),
        (b"{\"z\":\"\xc0\x80\"}", "not valid UTF-8 from byte 6 on"),
        (b"{\"\xff\":1}", "not valid UTF-8 from byte 2 on"),
        // UTF-16.
        (b"\xff\xfe{\0}\0", "not valid UTF-8 from byte 0 on"),
    ]);
}

#[test]
fn depth_is_bounded_wherever_it_is() {
    let nested = |open: &str, levels: usize, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    let reason = format!("objects and arrays are nested more than {DEEPEST} levels deep");
    for levels in [DEEPEST, 10_000, 1_000_000] {
        bad(&[
            (format!(r#"{{"z":{}}}"#, nested("[", levels, "", "]")), reason.as_str()),
            (format!(r#"{{"a":{}}}"#, nested("[", levels, "", "]")), &reason),
            (format!(r#"{{"n":{}}}"#, nested(r#"{"n":"#, levels, "1", "}")), &reason),
            // A text that ends in an escaped backslash ends there.
            (format!(r#"{{"y":"\\","z":{}}}"#, nested("[", levels, "", "]")), &reason),
            (nested("[", levels + 1, "", "]"), &reason),
            ("[".repeat(levels + 1), &reason),
            (r#"{"z":"#.repeat(levels + 1), &reason),
        ]);
    }
    let allowed = [
        format!(r#"{{"z":{},"n":1}}"#, nested("[", DEEPEST - 1, "", "]")),
        // Brackets in text, after escapes too, and brackets side by side are not depth.
        format!(r#"{{"z":"\\\"{}","n":1}}"#, "[{".repeat(10_000)),
        format!(r#"{{"z":[{}0],"n":1}}"#, "[],{},".repeat(10_000)),
    ];
    let (rows, bad) = outcome(fields(), &JsonOptions::default(), &allowed);
    assert_eq!((rows, bad), (vec!["NULL|1".to_owned(); 3], vec![]));
}

#[test]
fn a_reason_is_short_and_on_one_line() {
    let long = "x".repeat(1_000_000);
    let column = Field::new("long ".repeat(1_000), DataType::Int64, true);
    let records = [
        format!(r#"{{"n":"{long}"}}"#),
        format!(r#"{{"n":[{}1]}}"#, "1,\n\t".repeat(100_000)),
        format!(r#"{{"n":{}}}"#, "9".repeat(1_000_000)),
        format!(r#"{{"{}":true}}"#, column.name()),
        format!(r#"{{"m":{{"{long}":true}}}}"#),
        format!(r#"{{"{long}":}}"#),
        format!("[\"{long}\"]"),
        format!(r#"{{"n":"{}"}}"#, "é😀".repeat(1_000)),
    ];
    let entries = vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int64, true)];
    let entries = Field::new("entries", DataType::Struct(entries.into()), false);
    let map = Field::new("m", DataType::Map(std::sync::Arc::new(entries), false), true);
    let mut options = JsonOptions::default();
    let mut fields = fields();
    fields.extend([column, map]);
    let (_, bad) = outcome(fields.clone(), &options, &records);
    assert_eq!(bad.len(), records.len());
    let starts = [
        r#"column "n": expected BIGINT, found the text "xxx"#,
        r#"column "n": expected BIGINT, found the array [1,  1,  1"#,
        r#"column "n": 9999"#,
        r#"column "long long"#,
        r#"column "m.xxx"#,
        "not valid JSON: expected value at line 1 column 1000005",
        "a record is a JSON object, found the array [\"xxx",
        r#"column "n": expected BIGINT, found the text "é😀é😀"#,
    ];
    for (reason, start) in bad.iter().zip(starts) {
        assert!(reason.starts_with(start), "{reason}");
        assert!(reason.chars().count() <= 300 && !reason.contains(char::is_control), "{reason}");
    }
    options.set("extra", "error").unwrap();
    let (_, bad) = outcome(fields, &options, &[format!(r#"{{"{long}":1}}"#)]);
    assert!(bad[0].starts_with("the field \"xxx") && bad[0].chars().count() <= 300, "{}", bad[0]);
}
