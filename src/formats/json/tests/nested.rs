//! Structs, lists and maps.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::{DataType, Field, Fields, TimeUnit};

use super::{accepts, column, decode, decoder, lines, null_count, outcome, refuses};
use crate::formats::json::JsonOptions;

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

fn map(key: DataType, value: DataType) -> DataType {
    let entries = Fields::from(vec![Field::new("key", key, false), Field::new("value", value, true)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
}

/// `STRUCT<a INT NOT NULL, b VARCHAR>`
fn pair() -> DataType {
    DataType::Struct(vec![Field::new("a", DataType::Int32, false), Field::new("b", DataType::Utf8View, true)].into())
}

#[test]
fn structs_follow_the_rules_of_records() {
    accepts(
        pair(),
        &[
            (r#"{"a":1,"b":"x"}"#, "{a: 1, b: x}"),
            (r#"{"b":"x", "other":[{}], "a":1}"#, "{a: 1, b: x}"),
            (r#"{"a":1}"#, "{a: 1, b: NULL}"),
            (r#"{"a":1,"b":null}"#, "{a: 1, b: NULL}"),
            (r#"{"a":1,"a":2}"#, "{a: 2, b: NULL}"),
            (r#"{"\u0061":1}"#, "{a: 1, b: NULL}"),
            ("null", "NULL"),
        ],
    );
    for (text, reason) in [
        ("{}", r#"column "c.a": missing, but declared NOT NULL"#),
        (r#"{"A":1}"#, r#"column "c.a": missing, but declared NOT NULL"#),
        (r#"{"a":null}"#, r#"column "c.a": null, but declared NOT NULL"#),
        (r#"{"a":1,"a":null}"#, r#"column "c.a": null, but declared NOT NULL"#),
        (r#"{"a":"x"}"#, r#"column "c.a": expected INT, found the text "x""#),
        ("[1]", r#"column "c": expected STRUCT, found the array [1]"#),
        ("1", r#"column "c": expected STRUCT, found 1"#),
        (r#""{}""#, r#"column "c": expected STRUCT, found the text "{}""#),
    ] {
        let (rows, bad) =
            outcome(vec![Field::new("c", pair(), true)], &JsonOptions::default(), &[format!(r#"{{"c":{text}}}"#)]);
        assert_eq!((rows, bad), (vec![], vec![reason.to_owned()]), "{text}");
    }
    // A struct without fields is legal, and so is one in another.
    accepts(DataType::Struct(Fields::empty()), &[("{}", "{}"), (r#"{"x":1}"#, "{}"), ("null", "NULL")]);
    let outer = DataType::Struct(vec![Field::new("p", pair(), true)].into());
    accepts(
        outer,
        &[(r#"{"p":{"a":1}}"#, "{p: {a: 1, b: NULL}}"), (r#"{"p":null}"#, "{p: NULL}"), ("{}", "{p: NULL}")],
    );
}

#[test]
fn a_null_struct_hides_fields_that_are_not_null() {
    let fields = vec![Field::new("c", pair(), true)];
    let decoded = decode(fields, &JsonOptions::default(), &[r#"{"c":{"a":1}}"#, "{}", r#"{"c":null}"#]);
    assert_eq!((null_count(&decoded, 0), decoded.bad), (2, vec![]));
}

#[test]
fn lists_are_arrays_of_any_length() {
    for data_type in [list(DataType::Int32), DataType::LargeList(Arc::new(Field::new("item", DataType::Int32, true)))] {
        accepts(
            data_type.clone(),
            &[("[]", "[]"), ("[1, null ,3]", "[1, NULL, 3]"), ("[\"1\"]", "[1]"), ("null", "NULL")],
        );
        refuses(
            data_type.clone(),
            &[("1", "expected an array, found 1"), ("{}", "expected an array, found the object {}")],
        );
        for (text, reason) in [
            ("[1,true]", r#"column "c[1]": expected INT, found true"#),
            ("[[1]]", r#"column "c[0]": expected INT, found the array [1]"#),
            ("[1,2147483648]", r#"column "c[1]": 2147483648 is out of range for INT"#),
        ] {
            let records = [format!(r#"{{"c":{text}}}"#)];
            let (rows, bad) =
                outcome(vec![Field::new("c", data_type.clone(), true)], &JsonOptions::default(), &records);
            assert_eq!((rows, bad), (vec![], vec![reason.to_owned()]), "{text}");
        }
    }
    accepts(list(list(pair())), &[(r#"[[{"a":1}],[],null,[null]]"#, "[[{a: 1, b: NULL}], [], NULL, [NULL]]")]);
    let found = outcome(
        vec![Field::new("c", list(list(pair())), true)],
        &JsonOptions::default(),
        &[r#"{"c":[[{"a":1},{"a":1.5}]]}"#],
    );
    assert_eq!(found.1, [r#"column "c[0][1].a": 1.5 is not a whole number (INT)"#]);
    let strict = DataType::List(Arc::new(Field::new("item", DataType::Int32, false)));
    let found = outcome(vec![Field::new("c", strict, true)], &JsonOptions::default(), &[r#"{"c":[1,null]}"#]);
    assert_eq!(found.1, [r#"column "c[1]": null, but declared NOT NULL"#]);
}

#[test]
fn lists_of_one_length_have_that_length() {
    let three = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int32, true)), 3);
    accepts(three.clone(), &[("[1,2,3]", "[1, 2, 3]"), ("[1,null,3]", "[1, NULL, 3]"), ("null", "NULL")]);
    refuses(
        three.clone(),
        &[
            ("[1,2]", "expected an array of 3, found 2 elements: the array [1,2]"),
            ("[1,2,3,4]", "expected an array of 3, found 4 elements: the array [1,2,3,4]"),
            ("[]", "expected an array of 3, found 0 elements: the array []"),
            ("1", "expected an array, found 1"),
        ],
    );
    // After a bad one in the middle of a list of them.
    let records = [r#"{"c":[[1,2,3]]}"#, r#"{"c":[[4,5,6],[7,8]]}"#, r#"{"c":[null,[9,10,11]]}"#];
    let found = outcome(vec![Field::new("c", list(three), true)], &JsonOptions::default(), &records);
    assert_eq!(found.0, ["[[1, 2, 3]]", "[NULL, [9, 10, 11]]"]);
    assert_eq!(found.1, [r#"column "c[1]": expected an array of 3, found 2 elements: the array [7,8]"#]);
}

#[test]
fn maps_take_every_name() {
    for key in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        accepts(
            map(key.clone(), DataType::Int64),
            &[
                ("{}", "{}"),
                (r#"{"b":1,"a":null,"":3}"#, "{b: 1, a: NULL, : 3}"),
                (r#"{"a":1,"b":2,"\u0061":3}"#, "{a: 3, b: 2}"),
                ("null", "NULL"),
            ],
        );
        refuses(map(key, DataType::Int64), &[("[]", "expected an object, found the array []")]);
    }
    accepts(map(DataType::Utf8, list(pair())), &[(r#"{"k":[{"a":1}]}"#, "{k: [{a: 1, b: NULL}]}")]);
    let found = outcome(
        vec![Field::new("c", map(DataType::Utf8, pair()), true)],
        &JsonOptions::default(),
        &[r#"{"c":{"x":{"a":1},"y":{"a":"?"}}}"#, r#"{"c":{"z":{"a":2}}}"#],
    );
    assert_eq!(
        found,
        (vec!["{z: {a: 2, b: NULL}}".into()], vec![r#"column "c.y.a": expected INT, found the text "?""#.into()])
    );
    let DataType::Map(entries, _) = map(DataType::Utf8, DataType::Int64) else { unreachable!() };
    accepts(DataType::Map(entries, true), &[(r#"{"b":1,"a":2}"#, "{a: 2, b: 1}")]);
}

#[test]
fn units_reach_the_timestamps_inside() {
    let at = || DataType::Timestamp(TimeUnit::Nanosecond, None);
    let inner = DataType::Struct(vec![Field::new("s", at(), true), Field::new("m", at(), true)].into());
    let fields = || {
        vec![
            Field::new("iso", at(), true),
            Field::new("list", list(at()), true),
            Field::new("deep", list(inner.clone()), true),
        ]
    };
    let mut options = JsonOptions::default();
    options.set("timestamp.unit.list", "seconds").unwrap();
    options.set("timestamp.unit.deep", "millis").unwrap();
    options.set("timestamp.unit.deep.s", "seconds").unwrap();
    let record = r#"{"iso":"1970-01-01T00:00:01Z","list":[1],"deep":[{"s":1,"m":1000}]}"#;
    let found = outcome(fields(), &options, &[record]);
    let second = "1970-01-01T00:00:01";
    assert_eq!(found, (vec![format!("{second}|[{second}]|[{{s: {second}, m: {second}}}]")], vec![]));
}

#[test]
fn types_that_json_cannot_say_are_refused_at_the_start() {
    let refused = |data_type| decoder(vec![Field::new("c", data_type, true)], &JsonOptions::default()).err();
    let interval = DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano);
    assert_eq!(refused(interval.clone()), Some("column \"c\": INTERVAL cannot be read from JSON".into()));
    assert_eq!(refused(list(interval.clone())), Some("column \"c\": INTERVAL cannot be read from JSON".into()));
    let nested = DataType::Struct(vec![Field::new("i", interval, true)].into());
    assert_eq!(refused(nested), Some("column \"c.i\": INTERVAL cannot be read from JSON".into()));
    let numbered = map(DataType::Int32, DataType::Int32);
    assert_eq!(refused(numbered), Some("column \"c\": a map from JSON has VARCHAR keys, not INT".into()));
}

#[test]
fn a_bad_record_leaves_nothing_behind_at_any_depth() {
    let fields = vec![
        Field::new("before", list(DataType::Utf8), true),
        Field::new("c", list(DataType::Struct(vec![Field::new("l", list(pair()), true)].into())), true),
        Field::new("m", map(DataType::Utf8View, list(DataType::Int8)), true),
        Field::new("after", DataType::Boolean, true),
    ];
    let good = |n: usize| {
        format!(r#"{{"before":["{n}"],"c":[{{"l":[{{"a":{n},"b":"b{n}"}}]}}],"m":{{"k{n}":[1,{n}]}},"after":true}}"#)
    };
    let bad = [
        r#"{"before":["x","y"],"c":[{"l":[{"a":7},{"a":8,"b":"z"},{"b":"q"}]}]}"#,
        r#"{"before":["x"],"c":[{"l":[]}],"m":{"k":[1],"j":[2,300]}}"#,
        r#"{"before":["x"],"c":[{"l":[]}],"m":{"k":[1]},"after":1}"#,
        r#"{"before":[1,{},2],"c":3}"#,
    ];
    let mut mixed = vec![good(1)];
    for (n, bad) in bad.iter().enumerate() {
        mixed.extend([(*bad).to_owned(), good(n + 2)]);
    }
    let decoded = decode(fields.clone(), &JsonOptions::default(), &mixed);
    let alone = decode(fields, &JsonOptions::default(), &(1..=5).map(good).collect::<Vec<_>>());
    assert_eq!(decoded.rows, alone.rows);
    assert_eq!(lines(&decoded.rows)[0], "[1]|[{l: [{a: 1, b: b1}]}]|{k1: [1, 1]}|true");
    assert_eq!(decoded.good, [0, 2, 4, 6, 8]);
    let reasons: Vec<_> = decoded.bad.iter().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            r#"column "c[0].l[2].a": missing, but declared NOT NULL"#,
            r#"column "m.j[1]": 300 is out of range for TINYINT"#,
            r#"column "after": expected BOOLEAN, found 1"#,
            r#"column "c": expected an array, found 3"#,
        ]
    );
    assert!(decoded.rows.columns().iter().all(|column| column.to_data().validate_full().is_ok()));
}

#[test]
fn wide_objects_find_every_field() {
    let names: Vec<_> = (0..40).map(|n| format!("f{n}")).collect();
    let fields: Vec<_> = names.iter().map(|name| Field::new(name, DataType::Int32, true)).collect();
    let members = |order: &mut dyn Iterator<Item = usize>| {
        let members: Vec<_> = order.map(|n| format!(r#""f{n}":{n}"#)).collect();
        format!("{{{}}}", members.join(","))
    };
    let records = [members(&mut (0..40)), members(&mut (0..40).rev()), members(&mut (0..40).map(|n| n * 7 % 40))];
    let (rows, bad) = outcome(fields, &JsonOptions::default(), &records);
    let expected = (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join("|");
    assert_eq!((rows, bad), (vec![expected; 3], vec![]));
    assert_eq!(column(&pair(), &JsonOptions::default(), &["{\"a\":1}"]), [Ok("{a: 1, b: NULL}".to_owned())]);
}
