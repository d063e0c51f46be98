//! A record's result does not depend on its neighbours, and agrees with other readers of JSON.

use std::sync::Arc;

use arrow::array::{Array, BinaryArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::lines;
use crate::formats::json::{Decoded, JsonDecoder, JsonOptions};

/// Numbers from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }
}

fn schema() -> SchemaRef {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let inner = vec![Field::new("x", DataType::Int32, false), Field::new("y", DataType::Utf8View, true)];
    let inner = DataType::Struct(inner.into());
    let entries = vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Float64, true)];
    let entries = Arc::new(Field::new("entries", DataType::Struct(entries.into()), false));
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8View, true),
        Field::new("ok", DataType::Boolean, true),
        Field::new("price", DataType::Decimal128(10, 2), true),
        Field::new("ratio", DataType::Float64, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
        Field::new("day", DataType::Date32, true),
        Field::new("raw", DataType::Binary, true),
        Field::new("inner", inner.clone(), true),
        Field::new("tags", DataType::List(item(DataType::Utf8View)), true),
        Field::new("inners", DataType::List(item(inner)), true),
        Field::new("pair", DataType::FixedSizeList(item(DataType::Int8), 2), true),
        Field::new("map", DataType::Map(entries, false), true),
    ];
    Arc::new(Schema::new(fields))
}

/// Values that fit each column of [`schema`].
const FITTING: [(&str, &[&str]); 13] = [
    ("id", &["1", "-9223372036854775808", "42"]),
    ("name", &["\"a\"", "\"a longer name than a view holds\"", "\"\\u00e9\\n\"", "null"]),
    ("ok", &["true", "false", "null"]),
    ("price", &["1.23", "-99999999.99", "5", "null"]),
    ("ratio", &["0.1", "-1.5e10", "null"]),
    ("at", &["\"2024-05-17T08:30:00Z\"", "\"1969-12-31 23:59:59.123456789\"", "null"]),
    ("day", &["\"2024-05-17\"", "null"]),
    ("raw", &["\"00ff\"", "\"\"", "null"]),
    ("inner", &["{\"x\":1,\"y\":\"z\"}", "{\"x\":2}", "null"]),
    ("tags", &["[]", "[\"a\",null,\"b\"]", "null"]),
    ("inners", &["[{\"x\":1},null,{\"x\":2,\"y\":\"q\"}]", "[]", "null"]),
    ("pair", &["[1,2]", "[null,3]", "null"]),
    ("map", &["{\"a\":1.5,\"b\":null}", "{}", "null"]),
];

/// Values that do not.
const UNFIT: [(&str, &[&str]); 13] = [
    ("id", &["null", "1.5", "9223372036854775808", "{}"]),
    ("name", &["\"\\ud800\""]),
    ("ok", &["1", "[]"]),
    ("price", &["1.239", "100000000", "true"]),
    ("ratio", &["1e400", "\"x\""]),
    ("at", &["5", "\"soon\""]),
    ("day", &["\"2023-02-29\""]),
    ("raw", &["\"xyz\""]),
    ("inner", &["{\"y\":\"z\"}", "{\"x\":\"?\"}", "[]"]),
    ("tags", &["{}", "\"a\""]),
    ("inners", &["[{\"x\":1},{\"x\":\"?\"}]", "[{\"y\":\"q\"}]"]),
    ("pair", &["[1]", "[1,2,3]", "[1,200]"]),
    ("map", &["{\"a\":1,\"b\":\"?\"}", "[]"]),
];

/// Not records at all.
const NO_RECORDS: [&[u8]; 10] = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{\"id\":",
    b"{\"name\":\"x",
    b"{\"id\":1}{\"id\":2}",
    b"\xff",
    b"{\"id\" 1}",
    b"\xc3",
];

fn record(dice: &mut Dice) -> Vec<u8> {
    if dice.roll(8) == 0 {
        return dice.pick(&NO_RECORDS).to_vec();
    }
    let wrong = (dice.roll(3) == 0).then(|| dice.roll(UNFIT.len()));
    let mut fields = Vec::new();
    for (place, (name, fitting)) in FITTING.iter().enumerate() {
        if wrong == Some(place) {
            fields.push(format!("\"{name}\":{}", dice.pick(UNFIT[place].1)));
        } else if place == 0 || dice.roll(4) > 0 {
            fields.push(format!("\"{name}\":{}", dice.pick(fitting)));
        }
    }
    if dice.roll(3) == 0 {
        fields.push("\"extra\":[{\"a\":[1,2]},\"}\"]".to_owned());
    }
    for place in (1..fields.len()).rev() {
        fields.swap(place, dice.roll(place + 1));
    }
    format!("{{{}}}", fields.join(",")).into_bytes()
}

fn decoder() -> JsonDecoder {
    let names: Vec<_> = schema().fields().iter().map(|field| field.name().clone()).collect();
    JsonDecoder::new(schema(), &names, &JsonOptions::default()).unwrap()
}

fn assert_sound(rows: &RecordBatch) {
    assert_eq!(rows.schema(), schema());
    rows.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
}

#[test]
fn one_by_one_and_in_batches_is_the_same() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let values: Vec<_> = (0..200).map(|_| record(&mut dice)).collect();
        let values = BinaryArray::from_iter_values(&values);
        let count = values.len() as u32;

        let mut alone = Vec::new();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for index in 0..count {
            let decoded = decoder().decode(&values, &[index]).unwrap();
            alone.push(decoded.rows);
            good.extend(decoded.good);
            bad.extend(decoded.bad);
        }
        let alone = concat_batches(&schema(), &alone).unwrap();
        assert!(good.len() > 50 && bad.len() > 50, "seed {seed}: {} good, {} bad", good.len(), bad.len());

        // All at once, then cut anywhere, all by one decoder.
        let mut decoder = decoder();
        let all: Vec<_> = (0..count).collect();
        let once = decoder.decode(&values, &all).unwrap();
        assert_sound(&once.rows);
        assert_eq!((&once.rows, &once.good, &once.bad), (&alone, &good, &bad), "seed {seed}");

        let mut rest = all.as_slice();
        let mut cut = Decoded { rows: RecordBatch::new_empty(schema()), good: vec![], bad: vec![] };
        while !rest.is_empty() {
            let (now, later) = rest.split_at((1 + dice.roll(50)).min(rest.len()));
            let decoded = decoder.decode(&values, now).unwrap();
            assert_sound(&decoded.rows);
            cut.rows = concat_batches(&schema(), &[cut.rows, decoded.rows]).unwrap();
            cut.good.extend(decoded.good);
            cut.bad.extend(decoded.bad);
            rest = later;
        }
        assert_eq!((&cut.rows, &cut.good, &cut.bad), (&alone, &good, &bad), "seed {seed}");

        // Only the good ones, in another order.
        let mut shuffled = good.clone();
        (1..shuffled.len()).rev().for_each(|place| shuffled.swap(place, dice.roll(place + 1)));
        let again = decoder.decode(&values, &shuffled).unwrap();
        assert_eq!((again.good, again.bad.len()), (shuffled.clone(), 0), "seed {seed}");
        let rows: std::collections::HashMap<_, _> = good.iter().zip(lines(&alone)).collect();
        let expected: Vec<_> = shuffled.iter().map(|index| rows[index].clone()).collect();
        assert_eq!(lines(&again.rows), expected, "seed {seed}");
    }
}

#[test]
fn good_records_become_what_arrow_s_own_reader_makes_of_them() {
    let mut dice = Dice(7);
    let mut text = Vec::new();
    let mut records = Vec::new();
    while records.len() < 1000 {
        let record = record(&mut dice);
        let decoded = decoder().decode(&BinaryArray::from_iter_values([&record]), &[0]).unwrap();
        if !decoded.good.is_empty() {
            text.extend_from_slice(&record);
            text.push(b'\n');
            records.push(record);
        }
    }
    let mut arrow = arrow_json::ReaderBuilder::new(schema()).with_batch_size(1000).build(text.as_slice()).unwrap();
    let kept: Vec<_> = (0..1000).collect();
    let decoded = decoder().decode(&BinaryArray::from_iter_values(&records), &kept).unwrap();
    assert_eq!(decoded.rows, arrow.next().unwrap().unwrap());
}

#[test]
fn a_record_is_taken_exactly_when_it_is_one_json_object() {
    let seeds = [
        r#"{"id":1,"name":"a\"b","z":[true,false,null,{"q":-0.25}]}"#,
        "{\"a\":{\"b\":[[],{},\"\\\\\",\"\\u00e9\"]},\n \"c\" : 12.5}",
    ];
    let alphabet = b"{}[]\",:\\ 01.-+tfnu\xc3\xa9\xff\n\0/";
    let mut decoder = JsonDecoder::new(Arc::new(Schema::empty()), &[], &JsonOptions::default()).unwrap();
    let mut dice = Dice(11);
    let mut taken = 0;
    for round in 0..40_000 {
        let mut bytes = dice.pick(&seeds).as_bytes().to_vec();
        for _ in 0..1 + dice.roll(3) {
            let place = dice.roll(bytes.len());
            match dice.roll(8) {
                0..3 => bytes[place] = alphabet[dice.roll(alphabet.len())],
                3..6 => bytes.insert(place, alphabet[dice.roll(alphabet.len())]),
                6 => bytes.truncate(place.max(1)),
                _ if bytes.len() > 1 => _ = bytes.remove(place),
                _ => {}
            }
        }
        let decoded = decoder.decode(&BinaryArray::from_iter_values([&bytes]), &[0]).unwrap();
        let expected = serde_json::from_slice::<serde_json::Value>(&bytes).is_ok_and(|value| value.is_object());
        assert_eq!(!decoded.good.is_empty(), expected, "round {round}: {}", String::from_utf8_lossy(&bytes));
        taken += usize::from(expected);
    }
    assert!(taken > 1000, "{taken}");
}

#[test]
fn broken_values_never_panic() {
    let mut dice = Dice(13);
    let mut decoder = decoder();
    for _ in 0..2_000 {
        let values: Vec<_> = (0..4)
            .map(|_| {
                let mut bytes = record(&mut dice);
                for _ in 0..dice.roll(6) {
                    let place = dice.roll(bytes.len() + 1);
                    match dice.roll(3) {
                        0 => bytes.insert(place, dice.roll(256) as u8),
                        1 => bytes.truncate(place),
                        _ => bytes.rotate_left(place),
                    }
                }
                bytes
            })
            .collect();
        let decoded = decoder.decode(&BinaryArray::from_iter_values(&values), &[0, 1, 2, 3]).unwrap();
        assert_sound(&decoded.rows);
        assert_eq!(decoded.good.len() + decoded.bad.len(), 4);
    }
}

#[test]
fn a_large_batch_of_bad_records_takes_no_longer_than_it_should() {
    // Were the cost of a bad record that of its batch, this would take hours.
    let count = 100_000;
    let mut values: Vec<&[u8]> = vec![br#"{"id":1,"tags":["a"],"inner":{"x":"?"}}"#; count];
    values[count / 2] = br#"{"id":7}"#;
    let kept: Vec<_> = (0..count as u32).collect();
    let decoded = decoder().decode(&BinaryArray::from_iter_values(values), &kept).unwrap();
    assert_eq!((decoded.good, decoded.bad.len()), (vec![count as u32 / 2], count - 1));
    assert_eq!(lines(&decoded.rows)[0].split('|').next(), Some("7"));
}
