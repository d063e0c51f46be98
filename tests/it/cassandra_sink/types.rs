//! What a value of each type becomes in the table.

use std::net::IpAddr;

use arrow::array::{
    Array, BinaryArray, BooleanArray, Decimal128Array, Decimal256Array, FixedSizeBinaryArray, FixedSizeListArray,
    Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, LargeStringArray, MapBuilder,
    StringBuilder, StringDictionaryBuilder, StringViewArray, StructArray, Time32SecondArray, Time64MicrosecondArray,
    Time64NanosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt8Array,
    UInt16Array, UInt32Array, UInt64Array,
};
use arrow::array::{Int64Builder, types::Float16Type};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Fields, Float32Type, Float64Type, Int64Type, i256};
use scylla::value::{CqlDecimal, CqlTime, CqlTimeuuid, CqlVarint};

use super::*;

/// Columns of values: what is written, the CQL type, and what is read back. The shorter ones are filled up with NULL.
struct Columns {
    list: Vec<(String, ArrayRef, String, Vec<Option<CqlValue>>)>,
}

impl Columns {
    fn add<T>(&mut self, cql: &str, written: impl Array + 'static, read: Vec<T>)
    where
        T: Into<Option<CqlValue>>,
    {
        let name = format!("c{}", self.list.len());
        let read = read.into_iter().map(Into::into).collect();
        self.list.push((name, Arc::new(written), cql.to_owned(), read));
    }

    /// The columns as a batch with the key `k` first, and the values that are to be read.
    fn finish(self) -> (RecordBatch, Vec<String>, Vec<Vec<Option<CqlValue>>>) {
        let longest = self.list.iter().map(|(_, written, ..)| written.len()).max().unwrap();
        let keys = Int64Array::from_iter_values(0..longest as i64);
        let mut columns = vec![("k".to_owned(), Arc::new(keys) as ArrayRef)];
        let mut types = vec!["k bigint PRIMARY KEY".to_owned()];
        let mut expected: Vec<Vec<_>> = (0..longest).map(|k| vec![Some(CqlValue::BigInt(k as i64))]).collect();
        for (name, written, cql, read) in self.list {
            assert_eq!(written.len(), read.len(), "{cql}");
            let nulls = arrow::array::new_null_array(written.data_type(), longest - written.len());
            columns.push((name.clone(), arrow::compute::concat(&[&written, &nulls]).unwrap()));
            types.push(format!("{name} {cql}"));
            for (k, row) in expected.iter_mut().enumerate() {
                row.push(read.get(k).cloned().flatten());
            }
        }
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
                .unwrap();
        (batch, types, expected)
    }
}

async fn round_trip(place: &Place, columns: Columns, create: bool) {
    let (batch, types, expected) = columns.finish();
    let sink = if create {
        place.create(&batch, 1).await
    } else {
        place.run(&format!("CREATE TABLE {{t}} ({})", types.join(", "))).await;
        sinks::open(&place.settings, &place.declare(&batch, 1)).await.unwrap()
    };
    deliver(&sink, 1_000, &[upsert(batch.clone())]).await.unwrap();
    let names: Vec<&str> = batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
    let mut found = place.rows(&names.join(", ")).await;
    found.sort_by_key(|row| row[0].as_ref().and_then(CqlValue::as_bigint));
    assert_eq!(found.len(), expected.len());
    for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for (column, (found, expected)) in types.iter().zip(found.iter().zip(expected)) {
            assert_eq!(show(found), show(expected), "row {k} of column {column}");
        }
    }
}

/// As text, in which NaN equals NaN and 0 does not equal -0.
fn show(value: &Option<CqlValue>) -> String {
    format!("{value:?}")
}

fn text(text: &str) -> CqlValue {
    CqlValue::Text(text.into())
}

fn decimal(digits: i256, scale: i32) -> CqlValue {
    CqlValue::Decimal(CqlDecimal::from_signed_be_bytes_and_exponent(shortest(digits), scale))
}

fn varint(digits: i256) -> CqlValue {
    CqlValue::Varint(CqlVarint::from_signed_bytes_be(shortest(digits)))
}

/// The two's complement in as few bytes as possible.
fn shortest(digits: i256) -> Vec<u8> {
    let bytes = digits.to_be_bytes();
    (1..=32)
        .map(|length| bytes[32 - length..].to_vec())
        .find(|short| {
            let mut wide = [if short[0] < 0x80 { 0 } else { 0xff }; 32];
            wide[32 - short.len()..].copy_from_slice(short);
            wide == bytes
        })
        .unwrap()
}

fn i(value: i128) -> i256 {
    i256::from_i128(value)
}

const UNICODE: &str = "Straße 東京 👩‍👩‍👧 \u{0} \u{10ffff} e\u{301} '\"\\";

#[tokio::test]
async fn a_created_table_holds_the_extremes_of_every_type() {
    let place = Place::new().await;
    let mut c = Columns { list: Vec::new() };
    c.add("boolean", BooleanArray::from(vec![true, false]), vec![CqlValue::Boolean(true), CqlValue::Boolean(false)]);
    let ends = [i8::MIN, -1, i8::MAX];
    c.add("tinyint", Int8Array::from(ends.to_vec()), ends.map(CqlValue::TinyInt).to_vec());
    let ends = [i16::MIN, -1, i16::MAX];
    c.add("smallint", Int16Array::from(ends.to_vec()), ends.map(CqlValue::SmallInt).to_vec());
    let ends = [i32::MIN, -1, i32::MAX];
    c.add("int", Int32Array::from(ends.to_vec()), ends.map(CqlValue::Int).to_vec());
    let ends = [i64::MIN, -1, i64::MAX];
    c.add("bigint", Int64Array::from(ends.to_vec()), ends.map(CqlValue::BigInt).to_vec());
    c.add("smallint", UInt8Array::from(vec![0, u8::MAX]), vec![CqlValue::SmallInt(0), CqlValue::SmallInt(255)]);
    c.add("int", UInt16Array::from(vec![0, u16::MAX]), vec![CqlValue::Int(0), CqlValue::Int(65_535)]);
    let most = CqlValue::BigInt(4_294_967_295);
    c.add("bigint", UInt32Array::from(vec![0, u32::MAX]), vec![CqlValue::BigInt(0), most]);
    let ends = [0, 127, 128, 255, u64::MAX];
    c.add("varint", UInt64Array::from(ends.to_vec()), ends.map(|n| varint(i(n.into()))).to_vec());
    let ends = [f32::MIN, f32::MAX, f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -0.0];
    c.add("float", Float32Array::from(ends.to_vec()), ends.map(CqlValue::Float).to_vec());
    type Half = <Float16Type as ArrowPrimitiveType>::Native;
    let halves = Float16Array::from(vec![Half::MAX, Half::MIN, Half::NAN]);
    c.add("float", halves, [65_504.0, -65_504.0, f32::NAN].map(CqlValue::Float).to_vec());
    let ends = [f64::MIN, f64::MAX, 5e-324, f64::NEG_INFINITY, f64::INFINITY, f64::NAN, -0.0];
    c.add("double", Float64Array::from(ends.to_vec()), ends.map(CqlValue::Double).to_vec());
    let most = 10_i128.pow(38) - 1;
    let decimals = Decimal128Array::from(vec![most, -most, 0, 1]).with_precision_and_scale(38, 10).unwrap();
    c.add("decimal", decimals, [most, -most, 0, 1].map(|digits| decimal(i(digits), 10)).to_vec());
    let most = i256::from_string(&"9".repeat(76)).unwrap();
    let ends = [most, most.wrapping_neg(), i(-1)];
    let decimals = Decimal256Array::from(ends.to_vec()).with_precision_and_scale(76, 76).unwrap();
    c.add("decimal", decimals, ends.map(|digits| decimal(digits, 76)).to_vec());
    let decimals = Decimal128Array::from(vec![5]).with_precision_and_scale(3, -2).unwrap();
    c.add("decimal", decimals, vec![decimal(i(5), -2)]);
    c.add("text", StringArray::from(vec![UNICODE, ""]), vec![text(UNICODE), text("")]);
    c.add("text", LargeStringArray::from(vec![UNICODE, ""]), vec![text(UNICODE), text("")]);
    c.add("text", StringViewArray::from(vec![UNICODE, ""]), vec![text(UNICODE), text("")]);
    let mut dictionary = StringDictionaryBuilder::<arrow::datatypes::Int8Type>::new();
    dictionary.extend([Some("a"), None, Some("a"), Some("b")]);
    c.add("text", dictionary.finish(), vec![Some(text("a")), None, Some(text("a")), Some(text("b"))]);
    let bytes: Vec<u8> = (0..=255).collect();
    let blobs = BinaryArray::from(vec![&bytes[..], b""]);
    c.add("blob", blobs, vec![CqlValue::Blob(bytes.clone()), CqlValue::Blob(vec![])]);
    let fixed = FixedSizeBinaryArray::try_from_iter([[1_u8, 0, 255]].iter()).unwrap();
    c.add("blob", fixed, vec![CqlValue::Blob(vec![1, 0, 255])]);
    let days = [(i32::MIN, 0), (-1, (1 << 31) - 1), (0, 1 << 31), (i32::MAX, u32::MAX)];
    c.add(
        "date",
        Date32Array::from(days.map(|(day, _)| day).to_vec()),
        days.map(|(_, day)| CqlValue::Date(CqlDate(day))).to_vec(),
    );
    let time = |nanoseconds| CqlValue::Time(CqlTime(nanoseconds));
    c.add("time", Time64NanosecondArray::from(vec![0, 86_399_999_999_999]), vec![time(0), time(86_399_999_999_999)]);
    c.add("time", Time64MicrosecondArray::from(vec![86_399_999_999]), vec![time(86_399_999_999_000)]);
    c.add("time", Time32SecondArray::from(vec![86_399]), vec![time(86_399_000_000_000)]);
    let at = |milliseconds| CqlValue::Timestamp(CqlTimestamp(milliseconds));
    let second = i64::MAX / 1000;
    c.add("timestamp", TimestampSecondArray::from(vec![-second, second]), vec![at(-second * 1000), at(second * 1000)]);
    c.add("timestamp", TimestampMillisecondArray::from(vec![i64::MIN, i64::MAX]), vec![at(i64::MIN), at(i64::MAX)]);
    // Between two milliseconds the earlier one is written, before 1970 too.
    let times = TimestampMicrosecondArray::from(vec![-1, 999, 1_000, i64::MIN]).with_timezone("Asia/Tokyo");
    c.add("timestamp", times, vec![at(-1), at(0), at(1), at(-9_223_372_036_854_776)]);
    let times = TimestampNanosecondArray::from(vec![-1, 999_999, i64::MAX]);
    c.add("timestamp", times, vec![at(-1), at(0), at(9_223_372_036_854)]);
    let lists = [Some(vec![Some(i64::MIN), Some(1)]), None, Some(vec![])];
    let list = CqlValue::List(vec![CqlValue::BigInt(i64::MIN), CqlValue::BigInt(1)]);
    let read = vec![Some(list), None, Some(CqlValue::List(vec![]))];
    c.add("frozen<list<bigint>>", ListArray::from_iter_primitive::<Int64Type, _, _>(lists), read);
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    maps.keys().append_value("a");
    maps.values().append_value(1);
    maps.append(true).unwrap();
    maps.append(true).unwrap();
    maps.keys().extend([Some("b"), Some("c")]);
    maps.values().extend([Some(2), Some(3)]);
    maps.append(true).unwrap();
    let map = |entries: &[(&str, i64)]| {
        CqlValue::Map(entries.iter().map(|(key, value)| (text(key), CqlValue::BigInt(*value))).collect())
    };
    // A collection that is not frozen cannot be told apart from NULL when it is empty.
    c.add("map<text, bigint>", maps.finish(), vec![Some(map(&[("a", 1)])), None, Some(map(&[("b", 2), ("c", 3)]))]);
    round_trip(&place, c, true).await;
}

#[tokio::test]
async fn other_types_take_the_same_values() {
    let place = Place::new().await;
    let mut c = Columns { list: Vec::new() };
    let one = Int8Array::from(vec![i8::MIN]);
    c.add("smallint", one.clone(), vec![CqlValue::SmallInt(-128)]);
    c.add("int", one.clone(), vec![CqlValue::Int(-128)]);
    c.add("bigint", one.clone(), vec![CqlValue::BigInt(-128)]);
    c.add("varint", one.clone(), vec![varint(i(-128))]);
    c.add("decimal", one, vec![decimal(i(-128), 0)]);
    let ends = [i64::MIN, -129, 0, 128, i64::MAX];
    c.add("varint", Int64Array::from(ends.to_vec()), ends.map(|n| varint(i(n.into()))).to_vec());
    c.add("bigint", UInt64Array::from(vec![i64::MAX as u64]), vec![CqlValue::BigInt(i64::MAX)]);
    c.add("decimal", UInt64Array::from(vec![u64::MAX]), vec![decimal(i(u64::MAX.into()), 0)]);
    let most = i256::from_string(&"9".repeat(76)).unwrap();
    let whole = Decimal256Array::from(vec![most, most.wrapping_neg()]).with_precision_and_scale(76, 0).unwrap();
    c.add("varint", whole, vec![varint(most), varint(most.wrapping_neg())]);
    let floats = Float32Array::from(vec![f32::MAX, 0.1, f32::NAN]);
    c.add("double", floats, [f64::from(f32::MAX), f64::from(0.1_f32), f64::NAN].map(CqlValue::Double).to_vec());
    c.add("ascii", StringArray::from(vec!["a\u{7f}"]), vec![CqlValue::Ascii("a\u{7f}".into())]);
    let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    let uuid = CqlValue::Uuid(Uuid::parse_str(id).unwrap());
    let ids = StringArray::from(vec![id.to_owned(), id.to_uppercase(), id.replace('-', "")]);
    c.add("uuid", ids, vec![uuid.clone(), uuid.clone(), uuid.clone()]);
    let fixed = FixedSizeBinaryArray::try_from_iter([Uuid::parse_str(id).unwrap().into_bytes()].iter()).unwrap();
    c.add("uuid", fixed, vec![uuid]);
    let id = "fe2b4360-28c6-11e2-81c1-0800200c9a66";
    let timeuuid = CqlValue::Timeuuid(CqlTimeuuid::from(Uuid::parse_str(id).unwrap()));
    c.add("timeuuid", StringArray::from(vec![id]), vec![timeuuid]);
    let addresses = ["127.0.0.1", "::1", "2001:db8::ff00:42:8329"];
    let read = addresses.map(|address| CqlValue::Inet(address.parse::<IpAddr>().unwrap())).to_vec();
    c.add("inet", StringArray::from(addresses.to_vec()), read);
    c.add("bigint", TimestampNanosecondArray::from(vec![-1, i64::MAX]), [-1, i64::MAX].map(CqlValue::BigInt).to_vec());
    let lists =
        || ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(3), Some(1), Some(3)]), Some(vec![])]);
    let ints = |values: &[i64]| values.iter().map(|value| CqlValue::BigInt(*value)).collect::<Vec<_>>();
    c.add("set<bigint>", lists(), vec![Some(CqlValue::Set(ints(&[1, 3]))), None]);
    c.add("frozen<set<bigint>>", lists(), vec![CqlValue::Set(ints(&[1, 3])), CqlValue::Set(vec![])]);
    c.add("frozen<list<bigint>>", lists(), vec![CqlValue::List(ints(&[3, 1, 3])), CqlValue::List(vec![])]);
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        [Some(vec![Some(0.5), Some(-1.5), Some(f32::MAX)]), None],
        3,
    );
    let vector = CqlValue::Vector([0.5, -1.5, f32::MAX].map(CqlValue::Float).to_vec());
    c.add("vector<float, 3>", vectors, vec![Some(vector), None]);
    let vectors = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(0.5), Some(f64::MIN)])]);
    c.add("vector<double, 2>", vectors, vec![CqlValue::Vector([0.5, f64::MIN].map(CqlValue::Double).to_vec())]);
    round_trip(&place, c, false).await;
}

/// Structs `{Name, tags}` of a text and a list of texts.
fn people() -> StructArray {
    let mut tags = arrow::array::ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("a"), Some("b")]);
    tags.append_value(Vec::<Option<&str>>::new());
    tags.append_null();
    tags.append_null();
    let fields = Fields::from(vec![
        Field::new("Name", DataType::Utf8, true),
        Field::new("tags", DataType::new_list(DataType::Utf8, true), true),
    ]);
    let names = StringArray::from(vec![Some(UNICODE), Some(""), None, None]);
    let nulls = NullBuffer::from(vec![true, true, true, false]);
    StructArray::new(fields, vec![Arc::new(names), Arc::new(tags.finish())], Some(nulls))
}

fn person(place: &Place, type_name: &str, name: Option<&str>, tags: Option<&[&str]>) -> CqlValue {
    CqlValue::UserDefinedType {
        keyspace: place.keyspace.into(),
        name: type_name.into(),
        fields: vec![
            ("Name".into(), name.map(text)),
            ("tags".into(), tags.map(|tags| CqlValue::List(tags.iter().map(|tag| text(tag)).collect()))),
        ],
    }
}

#[tokio::test]
async fn structs_become_user_defined_types() {
    let place = Place::new().await;
    let mut c = Columns { list: Vec::new() };
    let made = format!("{}_c0", place.table);
    let read = vec![
        Some(person(&place, &made, Some(UNICODE), Some(&["a", "b"]))),
        Some(person(&place, &made, Some(""), Some(&[]))),
        Some(person(&place, &made, None, None)),
        None,
    ];
    c.add("made", people(), read);
    round_trip(&place, c, true).await;
}

#[tokio::test]
async fn structs_fit_a_type_with_more_fields_and_a_tuple() {
    let place = Place::new().await;
    let made = format!("{}_person", place.table);
    place.run(&format!("CREATE TYPE {{k}}.{made} (age int, tags frozen<list<text>>, \"Name\" text)")).await;
    let mut c = Columns { list: Vec::new() };
    let of_type = |name: &str, tags: &[&str]| CqlValue::UserDefinedType {
        keyspace: place.keyspace.into(),
        name: made.clone(),
        fields: vec![
            ("age".into(), None),
            ("tags".into(), Some(CqlValue::List(tags.iter().map(|tag| text(tag)).collect()))),
            ("Name".into(), Some(text(name))),
        ],
    };
    let tuple = |name: &str, tags: &[&str]| {
        let tags = CqlValue::List(tags.iter().map(|tag| text(tag)).collect());
        CqlValue::Tuple(vec![Some(text(name)), Some(tags)])
    };
    let two = || people().slice(0, 2);
    c.add(&made, two(), vec![of_type(UNICODE, &["a", "b"]), of_type("", &[])]);
    c.add(&format!("frozen<{made}>"), two(), vec![of_type(UNICODE, &["a", "b"]), of_type("", &[])]);
    c.add("tuple<text, frozen<list<text>>>", two(), vec![tuple(UNICODE, &["a", "b"]), tuple("", &[])]);
    round_trip(&place, c, false).await;
}

#[tokio::test]
async fn a_value_that_the_type_does_not_have_stops_the_delivery() {
    let place = Place::new().await;
    let nulls = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None])]);
    let short = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0)])]);
    let cases: Vec<(&str, ArrayRef, &str)> = vec![
        ("bigint", Arc::new(UInt64Array::from(vec![1 << 63])), "is outside the range of the column's type"),
        ("ascii", Arc::new(StringArray::from(vec!["ä"])), "has characters that are not ASCII"),
        ("uuid", Arc::new(StringArray::from(vec!["x"])), "is not a UUID"),
        (
            "timeuuid",
            Arc::new(StringArray::from(vec!["67e55044-10b1-426f-9247-bb680e5fe0c8"])),
            "is not a UUID of version 1",
        ),
        ("inet", Arc::new(StringArray::from(vec!["localhost"])), "is not an IP address"),
        ("time", Arc::new(Time64NanosecondArray::from(vec![86_400_000_000_000])), "is outside the range"),
        ("timestamp", Arc::new(TimestampSecondArray::from(vec![i64::MAX])), "is outside the range"),
        ("frozen<list<bigint>>", Arc::new(nulls), "is a collection that holds NULL, which Cassandra does not allow"),
        ("vector<float, 2>", Arc::new(short), "has not as many elements as the column's vector"),
    ];
    let types: Vec<String> = cases.iter().enumerate().map(|(number, case)| format!("c{number} {}", case.0)).collect();
    place.run(&format!("CREATE TABLE {{t}} (k text PRIMARY KEY, {})", types.join(", "))).await;
    for (number, (_, column, reason)) in cases.into_iter().enumerate() {
        let name = format!("c{number}");
        let key: ArrayRef = Arc::new(StringArray::from(vec!["the key"]));
        let batch = RecordBatch::try_from_iter_with_nullable([("k", key, true), (&name, column, true)]).unwrap();
        let sink = sinks::open(&place.settings, &place.declare(&batch, 1)).await.unwrap();
        let error = deliver(&sink, 1_000, &[upsert(batch)]).await.unwrap_err();
        assert!(matches!(error, SinkError::Fatal(_)), "{error:?}");
        let error = error.to_string();
        let wanted = format!("cannot hold the value of the column {name} in the row (k = the key): it {reason}");
        assert!(error.contains(&wanted), "{error}");
    }
    assert!(place.rows("k").await.is_empty());
}
