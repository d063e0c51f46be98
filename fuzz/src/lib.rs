//! What is held against any input: the bodies of the fuzz targets, which the normal tests run too.
//!
//! Each must come to an end without a panic, whatever the bytes are, and says whether it took them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Float64Type, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit};
use serde_json::Value;
use serde_json::value::RawValue;
use strandline::formats::json::{JsonDecoder, JsonOptions};
use strandline_actors::pointer::{Attempt, Epoch, SegmentKey, SegmentKind, SegmentRef};
use strandline_actors::ports::DeadLetter;
use strandline_actors::position::PartitionKey;
use strandline_actors::segment;
use uuid::Uuid;

/// Lets panics that somebody catches pass: libFuzzer's own hook ends the process at each. One that nobody catches it sees
/// all the same.
pub fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
}

/// Columns of every kind.
fn columns() -> SchemaRef {
    let item = |data_type| Arc::new(Field::new_list_field(data_type, true));
    let parts: Fields = vec![Field::new("x", DataType::Int32, true), Field::new("y", DataType::Utf8, true)].into();
    Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("d", DataType::Float64, true),
        Field::new("b", DataType::Boolean, true),
        Field::new("v", DataType::Utf8, true),
        Field::new("l", DataType::List(item(DataType::Int32)), true),
        Field::new("s", DataType::Struct(parts), true),
        Field::new("m", DataType::Decimal128(10, 2), true),
        Field::new("u", DataType::UInt8, true),
        Field::new("x", DataType::Binary, true),
        Field::new("t", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
        Field::new("day", DataType::Date32, true),
        Field::new("time", DataType::Time64(TimeUnit::Nanosecond), true),
    ]))
}

/// The JSON decoder: it takes exactly what is one JSON object, its columns are sound, and what it takes says what
/// `serde_json` says.
pub fn json(data: &[u8]) -> bool {
    let values = BinaryArray::from_iter_values([data, b"{}"]);
    let decode = |schema: SchemaRef| {
        let mut decoder = JsonDecoder::new(schema, &[], &JsonOptions::default()).expect("a decoder");
        decoder.decode(&values, &[0, 1]).expect("a batch")
    };
    let object = serde_json::from_slice::<&RawValue>(data).is_ok_and(|raw| raw.get().starts_with('{'));
    let value = serde_json::from_slice::<Value>(data).ok().filter(Value::is_object);
    let bare = decode(Arc::new(Schema::empty()));
    let taken = bare.good == [0, 1];
    assert!(taken || bare.good == [1], "a record spoils the next one");
    assert!(!taken || object, "what is no JSON object is taken");
    // What has half a character in a text, or a number that no float holds, is JSON, but no value for serde_json.
    assert!(taken || value.is_none(), "a JSON object is refused: {:?}", bare.bad);

    let decoded = decode(columns());
    for column in decoded.rows.columns() {
        column.to_data().validate_full().expect("a sound column");
    }
    assert_eq!(decoded.good.len() + decoded.bad.len(), 2);
    assert_eq!(decoded.good.last(), Some(&1), "a record spoils the next one");
    let last = decoded.rows.num_rows() - 1;
    assert!(decoded.rows.columns().iter().all(|column| column.is_null(last)), "a record leaks into the next one");
    let Some(value) = value else { return taken };
    match decoded.good[0] {
        0 => agrees(&decoded.rows, &value),
        _ => assert!(!plain(&value), "a record that fits is refused: {:?}", decoded.bad),
    }
    taken
}

/// Whether every field is missing, null, or of the very type of its column.
fn plain(value: &Value) -> bool {
    let fits = |name: &str, fits: fn(&Value) -> bool| value[name].is_null() || fits(&value[name]);
    fits("n", Value::is_i64)
        && fits("d", |value| value.is_f64())
        && fits("b", Value::is_boolean)
        && fits("v", Value::is_string)
        && fits("l", |value| value.as_array().is_some_and(|items| items.iter().all(int)))
        && fits("s", |value| value.is_object() && int(&value["x"]) && (value["y"].is_null() || value["y"].is_string()))
        && fits("m", |_| false)
        && fits("u", |value| value.as_u64().is_some_and(|number| number < 256))
        && fits("x", |_| false)
        && fits("t", |_| false)
        && fits("day", |_| false)
        && fits("time", |_| false)
}

fn int(value: &Value) -> bool {
    value.is_null() || value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

/// Compares the first row with a value.
fn agrees(rows: &RecordBatch, value: &Value) {
    let column = |name: &str| rows.column_by_name(name).expect("a column");
    for field in rows.schema_ref().fields() {
        if value[field.name()].is_null() {
            assert!(column(field.name()).is_null(0), "{} of {value}", field.name());
        } else {
            assert!(column(field.name()).is_valid(0), "{} of {value}", field.name());
        }
    }
    if let Some(number) = value["n"].as_i64() {
        assert_eq!(column("n").as_primitive::<Int64Type>().value(0), number);
    }
    if let Some(number) = value["d"].as_f64() {
        assert_eq!(column("d").as_primitive::<Float64Type>().value(0), number);
    }
    if let Some(boolean) = value["b"].as_bool() {
        assert_eq!(column("b").as_boolean().value(0), boolean);
    }
    if let Some(text) = value["v"].as_str() {
        assert_eq!(column("v").as_string::<i32>().value(0), text);
    }
    if let Some(items) = value["l"].as_array() {
        let list = column("l").as_list::<i32>().value(0);
        assert_eq!(list.len(), items.len());
        for (at, item) in items.iter().enumerate() {
            assert_eq!(list.is_null(at), item.is_null());
            if let Some(number) = item.as_i64() {
                assert_eq!(i64::from(list.as_primitive::<Int32Type>().value(at)), number);
            }
        }
    }
    if let Some(text) = value["s"]["y"].as_str() {
        let parts: &StructArray = column("s").as_struct();
        let texts: &StringArray = parts.column(1).as_string();
        assert_eq!(texts.value(0), text);
    }
}

/// The SQL entry: any text is a plan or an error in words.
pub fn sql(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    match strandline::sql::plan(&text) {
        Ok(plan) => !plan.description.is_empty() && !plan.fingerprint.is_empty(),
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty());
            assert!(!said.contains("the planner failed"), "{said}\n{text}");
            false
        }
    }
}

/// The segment reader: any bytes under any reference are rows or an error in words. The first byte says what is wrong with
/// the reference, the second how many rows it names.
pub fn segment(data: &[u8]) -> bool {
    let [kind, rows, bytes @ ..] = data else { return false };
    let key = SegmentKey { shard: 0, epoch: Epoch(1), attempt: Attempt(Uuid::nil()), number: 0 };
    let fitting = SegmentRef {
        key,
        kind: SegmentKind::DeadLetters,
        rows: u64::from(*rows),
        bytes: bytes.len() as u64,
        checksum: segment::checksum(bytes),
        until: None,
    };
    let reference = match kind % 16 {
        0 => SegmentRef { bytes: fitting.bytes ^ (1 << (kind / 4)), ..fitting },
        1 => SegmentRef { checksum: fitting.checksum ^ (1 << (kind / 4)), ..fitting },
        _ => fitting,
    };
    match segment::decode(&reference, bytes) {
        Ok(batches) => {
            assert!(kind % 16 > 1, "a segment that is not the one that was written is taken");
            assert_eq!(batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>(), u64::from(*rows));
            for batch in batches {
                batch.columns().iter().for_each(|column| column.to_data().validate_full().expect("a sound column"));
                let _ = segment::dead_letters(&batch);
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Segments as they are written, in the form that [`segment`] takes.
pub fn segments() -> Vec<Vec<u8>> {
    let letters: Vec<_> = (0..3)
        .map(|offset| DeadLetter {
            topic: "orders".into(),
            partition: PartitionKey { topic_id: Uuid::from_u128(7), partition: 1 },
            offset,
            timestamp: 1_700_000_000_000,
            reason: "the value is empty".into(),
            key: (offset == 1).then(|| b"key".to_vec()),
            value: (offset != 1).then(|| vec![0xff; offset as usize]),
        })
        .collect();
    let list = arrow::array::ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(i32::MAX); 9]),
    ]);
    let state: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(StringArray::from(vec![Some("a"), None, Some(""), Some("long enough to be something")]))),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3, i64::MIN]))),
        ("l", Arc::new(list)),
        ("_deleted", Arc::new(arrow::array::BooleanArray::from(vec![false, true, false, false]))),
    ];
    let batches =
        [segment::dead_letter_rows(&letters).expect("rows"), RecordBatch::try_from_iter(state).expect("rows")];
    let key = || SegmentKey { shard: 0, epoch: Epoch(1), attempt: Attempt(Uuid::nil()), number: 0 };
    let encoded = batches.iter().flat_map(|rows| segment::encode(rows, SegmentKind::DeadLetters, key).expect("bytes"));
    encoded.map(|segment| [&[2, segment.reference.rows as u8], segment.bytes.as_slice()].concat()).collect()
}
