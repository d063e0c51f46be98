//! From a value of an Arrow column to the bytes of a CQL column.
//!
//! A conversion is chosen once per column, from the two types. It exists only where no value changes its meaning, with
//! two exceptions that the documentation names: a `timestamp` is floored to milliseconds, and every NaN becomes the same
//! NaN. Values that a type allows and the column does not (a text that is no UUID) are refused one by one.
//!
//! In a primary key a conversion must also be one-to-one, since two groups that met in one row would overwrite each
//! other: there a timestamp has to be whole milliseconds, and a UUID written in its usual form.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Date32Type, Decimal256Type, Field, Float32Type, Float64Type, Int64Type, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, i256,
};
use scylla::frame::response::result::{CollectionType, ColumnType, NativeType};
use uuid::Uuid;

/// Nanoseconds of a day, the first value that CQL's `time` does not have.
const DAY: i64 = 86_400_000_000_000;

/// How values of one column are converted.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// The type to which columns are cast before their values are read, so that few types remain.
    normal: DataType,
    encoding: Encoding,
}

/// Why a value cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Outside what the CQL type can hold.
    OutOfRange,
    /// A text with other characters, for `ascii`.
    NotAscii,
    /// A text that is not a UUID, or is one in an unusual form where the form must be the usual one.
    NotUuid,
    /// A UUID of another version than 1, for `timeuuid`.
    NotTimeUuid,
    /// A text that is not an IP address, or is one in an unusual form where the form must be the usual one.
    NotInet,
    /// A collection that holds NULL.
    NullElement,
    /// A vector of another length.
    WrongLength,
    /// Between two milliseconds, where that would be lost.
    NotWholeMilliseconds,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "is outside the range of the column's type",
            Self::NotAscii => "has characters that are not ASCII",
            Self::NotUuid => "is not a UUID, or not written as 8-4-4-4-12 lower-case hexadecimal digits",
            Self::NotTimeUuid => "is not a UUID of version 1",
            Self::NotInet => "is not an IP address, or not written in its shortest form",
            Self::NullElement => "is a collection that holds NULL, which Cassandra does not allow",
            Self::WrongLength => "has not as many elements as the column's vector",
            Self::NotWholeMilliseconds => "is not a whole number of milliseconds, which is all that timestamp holds",
        })
    }
}

#[derive(Debug)]
enum Encoding {
    /// A column that is NULL throughout.
    Null,
    Boolean,
    Tinyint,
    Smallint,
    Int,
    Bigint,
    /// `Int64` into `varint`.
    IntVarint,
    /// `Int64` into `decimal`.
    IntDecimal,
    /// Whole decimals into `bigint`, for unsigned 64-bit integers.
    DecimalBigint,
    /// Whole decimals into `varint`.
    DecimalVarint,
    Decimal {
        scale: i8,
    },
    Float,
    /// `Float32` into `double`.
    FloatDouble,
    Double,
    Text,
    Ascii,
    Blob,
    Uuid {
        time: bool,
        usual_form: bool,
    },
    /// 16 bytes into `uuid`.
    UuidBytes {
        time: bool,
    },
    Inet {
        usual_form: bool,
    },
    Date,
    Time,
    Timestamp {
        unit: TimeUnit,
        exact: bool,
    },
    /// A timestamp's number into `bigint`.
    TimestampBigint {
        unit: TimeUnit,
    },
    /// Into `list` or `set`.
    List(Box<Encoding>),
    Vector {
        element: Box<Encoding>,
        dimensions: usize,
    },
    Map(Box<Encoding>, Box<Encoding>),
    /// Into a tuple or a user-defined type: for each of its fields the number of the Arrow field.
    Struct(Vec<(Option<usize>, Encoding)>),
}

impl Conversion {
    /// The conversion from one type to the other, if there is one. `key` says that it has to be one-to-one.
    pub(crate) fn choose(from: &DataType, to: &ColumnType<'_>, key: bool) -> Option<Self> {
        Some(Self { normal: normal(from)?, encoding: Encoding::choose(from, to, key)? })
    }

    /// Brings a column into the form that [`write`](Self::write) reads, or says why it cannot.
    pub(crate) fn normalize(&self, column: &ArrayRef) -> Result<ArrayRef, String> {
        if column.data_type() == &self.normal {
            return Ok(Arc::clone(column));
        }
        if normal(column.data_type()).as_ref() != Some(&self.normal) {
            return Err(format!("it comes as {}, not as the statement declares it", column.data_type()));
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(column, &self.normal, &options).map_err(|error| error.to_string())
    }

    /// Appends a value of a normalized column as a cell: its length, or -1 for NULL, and its bytes.
    pub(crate) fn write(&self, column: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.encoding.cell(column, row, out)
    }
}

/// The type among those with the same values that the encodings read.
fn normal(from: &DataType) -> Option<DataType> {
    Some(match from {
        DataType::Null | DataType::Boolean | DataType::Float32 | DataType::Float64 | DataType::Timestamp(..) => {
            from.clone()
        }
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal256(76, 0),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => DataType::Decimal256(76, *scale),
        DataType::Float16 => DataType::Float32,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            DataType::Binary
        }
        DataType::Date32 | DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Nanosecond),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => DataType::List(normal_field(Field::LIST_FIELD_DEFAULT_NAME, item)?),
        DataType::Map(_, sorted) => {
            let (key, value) = entry(from)?;
            let fields = vec![Field::new("key", normal(key)?, false), Field::new("value", normal(value)?, true)];
            DataType::Map(Arc::new(Field::new("entries", DataType::Struct(fields.into()), false)), *sorted)
        }
        DataType::Struct(fields) => {
            let normal = fields.iter().map(|field| normal_field(field.name(), field));
            DataType::Struct(normal.collect::<Option<Vec<_>>>()?.into())
        }
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) => normal(plain(from))?,
        _ => return None,
    })
}

fn normal_field(name: &str, field: &Field) -> Option<Arc<Field>> {
    Some(Arc::new(Field::new(name, normal(field.data_type())?, true)))
}

/// The type of a column's values without the way in which they are packed.
pub(super) fn plain(from: &DataType) -> &DataType {
    match from {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        other => other,
    }
}

/// The type of a list's elements.
pub(super) fn item(from: &DataType) -> Option<&DataType> {
    match from {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some(item.data_type()),
        _ => None,
    }
}

/// The types of a map's keys and values.
pub(super) fn entry(from: &DataType) -> Option<(&DataType, &DataType)> {
    let DataType::Map(entries, _) = from else {
        return None;
    };
    let DataType::Struct(fields) = entries.data_type() else {
        return None;
    };
    let [key, value] = &fields[..] else {
        return None;
    };
    Some((key.data_type(), value.data_type()))
}

/// The bits that a signed integer needs for every value of an integer type.
fn bits(from: &DataType) -> u32 {
    match from {
        DataType::Int8 => 8,
        DataType::UInt8 => 9,
        DataType::Int16 => 16,
        DataType::UInt16 => 17,
        DataType::Int32 => 32,
        DataType::UInt32 => 33,
        _ => 64,
    }
}

impl Encoding {
    fn choose(from: &DataType, to: &ColumnType<'_>, key: bool) -> Option<Self> {
        let from = plain(from);
        Some(match to {
            _ if from == &DataType::Null && !key => Self::Null,
            ColumnType::Native(to) => Self::native(from, to, key)?,
            // The same set can be written as several lists, and the same map as several maps.
            ColumnType::Collection { typ: CollectionType::Set(_) | CollectionType::Map(..), .. } if key => return None,
            ColumnType::Collection { typ: CollectionType::List(element) | CollectionType::Set(element), .. } => {
                Self::List(Box::new(Self::choose(item(from)?, element, key)?))
            }
            ColumnType::Collection { typ: CollectionType::Map(to_key, to_value), .. } => {
                let (from_key, from_value) = entry(from)?;
                // A map's keys have to stay apart too.
                Self::Map(
                    Box::new(Self::choose(from_key, to_key, true)?),
                    Box::new(Self::choose(from_value, to_value, false)?),
                )
            }
            ColumnType::Vector { typ, dimensions } => {
                // Elements of variable size have a length in another form than everywhere else.
                typ.type_size_for_vector()?;
                let element = Box::new(Self::choose(item(from)?, typ, key)?);
                Self::Vector { element, dimensions: usize::from(*dimensions) }
            }
            ColumnType::UserDefinedType { definition, .. } => {
                let DataType::Struct(fields) = from else {
                    return None;
                };
                let to = &definition.field_types;
                if fields.iter().any(|field| !to.iter().any(|(name, _)| name == field.name())) {
                    return None;
                }
                let mut parts = Vec::with_capacity(to.len());
                for (name, to) in to {
                    parts.push(match fields.find(name) {
                        Some((number, field)) => (Some(number), Self::choose(field.data_type(), to, key)?),
                        None => (None, Self::Null),
                    });
                }
                Self::Struct(parts)
            }
            ColumnType::Tuple(to) => {
                let DataType::Struct(fields) = from else {
                    return None;
                };
                if fields.len() != to.len() {
                    return None;
                }
                let mut parts = Vec::with_capacity(to.len());
                for (number, (field, to)) in fields.iter().zip(to).enumerate() {
                    parts.push((Some(number), Self::choose(field.data_type(), to, key)?));
                }
                Self::Struct(parts)
            }
            _ => return None,
        })
    }

    fn native(from: &DataType, to: &NativeType, key: bool) -> Option<Self> {
        Some(match (normal(from)?, to) {
            (DataType::Boolean, NativeType::Boolean) => Self::Boolean,
            (DataType::Int64, NativeType::TinyInt) if bits(from) <= 8 => Self::Tinyint,
            (DataType::Int64, NativeType::SmallInt) if bits(from) <= 16 => Self::Smallint,
            (DataType::Int64, NativeType::Int) if bits(from) <= 32 => Self::Int,
            (DataType::Int64, NativeType::BigInt) => Self::Bigint,
            (DataType::Int64, NativeType::Varint) => Self::IntVarint,
            (DataType::Int64, NativeType::Decimal) => Self::IntDecimal,
            // Counts are often unsigned and never that large; a larger one is refused when it comes.
            (DataType::Decimal256(..), NativeType::BigInt) if from == &DataType::UInt64 => Self::DecimalBigint,
            (DataType::Decimal256(_, 0), NativeType::Varint) => Self::DecimalVarint,
            (DataType::Decimal256(_, scale), NativeType::Decimal) => Self::Decimal { scale },
            (DataType::Float32, NativeType::Float) => Self::Float,
            (DataType::Float32, NativeType::Double) => Self::FloatDouble,
            (DataType::Float64, NativeType::Double) => Self::Double,
            (DataType::Utf8, NativeType::Text) => Self::Text,
            (DataType::Utf8, NativeType::Ascii) => Self::Ascii,
            (DataType::Utf8, NativeType::Uuid) => Self::Uuid { time: false, usual_form: key },
            (DataType::Utf8, NativeType::Timeuuid) => Self::Uuid { time: true, usual_form: key },
            (DataType::Utf8, NativeType::Inet) => Self::Inet { usual_form: key },
            (DataType::Binary, NativeType::Blob) => Self::Blob,
            (DataType::Binary, NativeType::Uuid) if from == &DataType::FixedSizeBinary(16) => {
                Self::UuidBytes { time: false }
            }
            (DataType::Binary, NativeType::Timeuuid) if from == &DataType::FixedSizeBinary(16) => {
                Self::UuidBytes { time: true }
            }
            (DataType::Date32, NativeType::Date) => Self::Date,
            (DataType::Time64(_), NativeType::Time) => Self::Time,
            (DataType::Timestamp(unit, _), NativeType::Timestamp) => Self::Timestamp { unit, exact: key },
            (DataType::Timestamp(unit, _), NativeType::BigInt) => Self::TimestampBigint { unit },
            _ => return None,
        })
    }

    fn cell(&self, column: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
        if column.is_null(row) || matches!(self, Self::Null) {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            return Ok(());
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.bytes(column, row, out)?;
        let length = i32::try_from(out.len() - start - 4).map_err(|_| Unfit::OutOfRange)?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// The bytes of a value that is not NULL.
    fn bytes(&self, column: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
        match self {
            Self::Null => {}
            Self::Boolean => out.push(u8::from(column.as_boolean().value(row))),
            Self::Tinyint => out.extend_from_slice(&narrow::<i8>(int(column, row))?.to_be_bytes()),
            Self::Smallint => out.extend_from_slice(&narrow::<i16>(int(column, row))?.to_be_bytes()),
            Self::Int => out.extend_from_slice(&narrow::<i32>(int(column, row))?.to_be_bytes()),
            Self::Bigint => out.extend_from_slice(&int(column, row).to_be_bytes()),
            Self::IntVarint => varint(&int(column, row).to_be_bytes(), out),
            Self::IntDecimal => {
                out.extend_from_slice(&0_i32.to_be_bytes());
                varint(&int(column, row).to_be_bytes(), out);
            }
            Self::DecimalBigint => {
                let value = i64::try_from(decimal(column, row).to_i128().ok_or(Unfit::OutOfRange)?);
                out.extend_from_slice(&value.map_err(|_| Unfit::OutOfRange)?.to_be_bytes());
            }
            Self::DecimalVarint => varint(&decimal(column, row).to_be_bytes(), out),
            Self::Decimal { scale } => {
                out.extend_from_slice(&i32::from(*scale).to_be_bytes());
                varint(&decimal(column, row).to_be_bytes(), out);
            }
            Self::Float => {
                let value = column.as_primitive::<Float32Type>().value(row);
                out.extend_from_slice(&if value.is_nan() { f32::NAN } else { value }.to_be_bytes());
            }
            Self::FloatDouble => double(f64::from(column.as_primitive::<Float32Type>().value(row)), out),
            Self::Double => double(column.as_primitive::<Float64Type>().value(row), out),
            Self::Text => out.extend_from_slice(text(column, row).as_bytes()),
            Self::Ascii => {
                let text = text(column, row);
                if !text.is_ascii() {
                    return Err(Unfit::NotAscii);
                }
                out.extend_from_slice(text.as_bytes());
            }
            Self::Blob => out.extend_from_slice(column.as_binary::<i32>().value(row)),
            Self::Uuid { time, usual_form } => {
                let text = text(column, row);
                let value = Uuid::try_parse(text).map_err(|_| Unfit::NotUuid)?;
                if *usual_form && value.hyphenated().encode_lower(&mut Uuid::encode_buffer()) != text {
                    return Err(Unfit::NotUuid);
                }
                uuid(value, *time, out)?;
            }
            Self::UuidBytes { time } => {
                let bytes = column.as_binary::<i32>().value(row);
                uuid(Uuid::from_slice(bytes).map_err(|_| Unfit::NotUuid)?, *time, out)?;
            }
            Self::Inet { usual_form } => {
                let text = text(column, row);
                let address: IpAddr = text.parse().map_err(|_| Unfit::NotInet)?;
                if *usual_form && address.to_string() != text {
                    return Err(Unfit::NotInet);
                }
                match address {
                    IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
                    IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
                }
            }
            // CQL counts days from 2^31 days before 1970, so that all are positive.
            Self::Date => {
                let days = column.as_primitive::<Date32Type>().value(row).cast_unsigned() ^ (1 << 31);
                out.extend_from_slice(&days.to_be_bytes());
            }
            Self::Time => {
                let time = column.as_primitive::<Time64NanosecondType>().value(row);
                if !(0..DAY).contains(&time) {
                    return Err(Unfit::OutOfRange);
                }
                out.extend_from_slice(&time.to_be_bytes());
            }
            Self::Timestamp { unit, exact } => {
                let milliseconds = milliseconds(timestamp(column, row, *unit), *unit, *exact)?;
                out.extend_from_slice(&milliseconds.to_be_bytes());
            }
            Self::TimestampBigint { unit } => {
                out.extend_from_slice(&timestamp(column, row, *unit).to_be_bytes());
            }
            Self::List(element) => {
                let list = column.as_list::<i32>();
                count(list.value_length(row), out);
                for row in span(list.value_offsets(), row) {
                    element.element(list.values(), row, out)?;
                }
            }
            Self::Vector { element, dimensions } => {
                let list = column.as_list::<i32>();
                let span = span(list.value_offsets(), row);
                if span.len() != *dimensions {
                    return Err(Unfit::WrongLength);
                }
                for row in span {
                    if list.values().is_null(row) || matches!(**element, Self::Null) {
                        return Err(Unfit::NullElement);
                    }
                    element.bytes(list.values(), row, out)?;
                }
            }
            Self::Map(key, value) => {
                let map = column.as_map();
                count(map.value_length(row), out);
                for row in span(map.value_offsets(), row) {
                    key.element(map.keys(), row, out)?;
                    value.element(map.values(), row, out)?;
                }
            }
            Self::Struct(fields) => {
                let values = column.as_struct();
                for (number, encoding) in fields {
                    match number {
                        Some(number) => encoding.cell(values.column(*number), row, out)?,
                        None => out.extend_from_slice(&(-1_i32).to_be_bytes()),
                    }
                }
            }
        }
        Ok(())
    }

    fn element(&self, column: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
        if column.is_null(row) || matches!(self, Self::Null) {
            return Err(Unfit::NullElement);
        }
        self.cell(column, row, out)
    }
}

fn int(column: &dyn Array, row: usize) -> i64 {
    column.as_primitive::<Int64Type>().value(row)
}

fn narrow<T: TryFrom<i64>>(value: i64) -> Result<T, Unfit> {
    T::try_from(value).map_err(|_| Unfit::OutOfRange)
}

fn decimal(column: &dyn Array, row: usize) -> i256 {
    column.as_primitive::<Decimal256Type>().value(row)
}

fn text(column: &dyn Array, row: usize) -> &str {
    column.as_string::<i32>().value(row)
}

fn double(value: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(&if value.is_nan() { f64::NAN } else { value }.to_be_bytes());
}

/// A big-endian two's complement in as few bytes as it needs.
fn varint(bytes: &[u8], out: &mut Vec<u8>) {
    let fill = if bytes[0] & 0x80 == 0 { 0 } else { 0xff };
    let mut start = 0;
    while start + 1 < bytes.len() && bytes[start] == fill && (bytes[start + 1] ^ fill) & 0x80 == 0 {
        start += 1;
    }
    out.extend_from_slice(&bytes[start..]);
}

fn uuid(value: Uuid, time: bool, out: &mut Vec<u8>) -> Result<(), Unfit> {
    if time && value.get_version_num() != 1 {
        return Err(Unfit::NotTimeUuid);
    }
    out.extend_from_slice(value.as_bytes());
    Ok(())
}

fn timestamp(column: &dyn Array, row: usize, unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => column.as_primitive::<TimestampSecondType>().value(row),
        TimeUnit::Millisecond => column.as_primitive::<TimestampMillisecondType>().value(row),
        TimeUnit::Microsecond => column.as_primitive::<TimestampMicrosecondType>().value(row),
        TimeUnit::Nanosecond => column.as_primitive::<TimestampNanosecondType>().value(row),
    }
}

fn milliseconds(value: i64, unit: TimeUnit, exact: bool) -> Result<i64, Unfit> {
    let per_millisecond = match unit {
        TimeUnit::Second => return value.checked_mul(1000).ok_or(Unfit::OutOfRange),
        TimeUnit::Millisecond => return Ok(value),
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1_000_000,
    };
    if exact && value % per_millisecond != 0 {
        return Err(Unfit::NotWholeMilliseconds);
    }
    Ok(value.div_euclid(per_millisecond))
}

fn count(elements: i32, out: &mut Vec<u8>) {
    out.extend_from_slice(&elements.to_be_bytes());
}

/// The rows of a list's elements; offsets are never negative.
fn span(offsets: &[i32], row: usize) -> std::ops::Range<usize> {
    offsets[row].unsigned_abs() as usize..offsets[row + 1].unsigned_abs() as usize
}
