//! A column under construction, and which one a type gets.

use arrow::array::ArrayRef;
use arrow::array::timezone::Tz;
use arrow::array::types::{ArrowTimestampType, *};
use arrow::datatypes::{DataType, Field, TimeUnit};
use arrow::error::ArrowError;

use super::fault::Fault;
use super::flat::{Booleans, Bytes, Primitives, hex, text};
use super::nested::{Element, FixedLists, Lists, Maps, Members, Structs};
use super::options::{ExtraField, JsonOptions, MissingField};
use super::reader::{Value, is_null};
use super::{number, time};

/// A column under construction.
///
/// After an append failed the column may hold a part of the value, at any depth: it is whole again once it was
/// truncated to the rows that it had before.
pub(super) trait Column: Send {
    /// Appends the value that stands in this text, which is valid JSON, and not null.
    fn append(&mut self, text: &str) -> Result<(), Fault>;
    /// Appends NULL, or what stands below a NULL when the column itself has none.
    fn append_null(&mut self);
    /// Makes room for more rows.
    fn reserve(&mut self, rows: usize);
    /// Forgets all rows but the first `rows`; there may be fewer.
    fn truncate(&mut self, rows: usize);
    /// The array of all rows; the column is empty afterwards.
    fn finish(&mut self) -> Result<ArrayRef, ArrowError>;
}

/// A named column, or field of a struct.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) nullable: bool,
    pub(super) column: Box<dyn Column>,
}

impl Named {
    /// Appends the value of a record's field, or the lack of it.
    #[inline]
    pub(super) fn append(&mut self, text: Option<&str>, missing: MissingField) -> Result<(), Fault> {
        match text {
            Some(text) if !is_null(text) => self.column.append(text).map_err(|fault| fault.within(&self.name)),
            _ if self.nullable => {
                if text.is_none() && missing == MissingField::Error {
                    return Err(Fault::new("missing, and 'json.missing' is 'error'").within(&self.name));
                }
                self.column.append_null();
                Ok(())
            }
            Some(_) => Err(Fault::new("null, but declared NOT NULL").within(&self.name)),
            None => Err(Fault::new("missing, but declared NOT NULL").within(&self.name)),
        }
    }
}

/// Builds columns by the options of their table.
pub(super) struct Builder<'a> {
    options: &'a JsonOptions,
    /// The names in `json.timestamp.unit.<column>` that decided something.
    pub(super) used_units: Vec<String>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(options: &'a JsonOptions) -> Self {
        Self { options, used_units: Vec::new() }
    }

    /// The column of `field`, which stands at `path`.
    pub(super) fn named(&mut self, field: &Field, path: &str) -> Result<Named, String> {
        Ok(Named {
            name: field.name().clone(),
            nullable: field.is_nullable(),
            column: self.column(field.data_type(), path)?,
        })
    }

    /// The fields of an object at `path`. `others` are fields that are declared too, but not wanted.
    pub(super) fn members<'f>(
        &mut self,
        fields: impl IntoIterator<Item = &'f Field>,
        path: Option<&str>,
        others: Vec<String>,
    ) -> Result<Members, String> {
        let below = |name: &str| path.map_or_else(|| name.to_owned(), |path| format!("{path}.{name}"));
        let fields = fields.into_iter().map(|field| self.named(field, &below(field.name())));
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let others = (self.options.extra == ExtraField::Error).then_some(others);
        Ok(Members::new(fields, others, self.options.missing))
    }

    fn element(&mut self, field: &Field, path: &str) -> Result<Element, String> {
        Ok(Element { nullable: field.is_nullable(), column: self.column(field.data_type(), path)? })
    }

    /// The unit that was declared for the timestamps at `path`: its own, or that of what holds it, or that of all.
    fn unit(&mut self, path: &str) -> Option<TimeUnit> {
        let holders = path.match_indices('.').map(|(end, _)| &path[..end]).collect::<Vec<_>>();
        for name in std::iter::once(path).chain(holders.into_iter().rev()) {
            if let Some(unit) = self.options.timestamp_units.get(name) {
                self.used_units.push(name.to_owned());
                return Some(*unit);
            }
        }
        self.options.timestamp_unit
    }

    fn timestamp<T: ArrowTimestampType>(
        &mut self,
        data_type: &DataType,
        zone: &Option<std::sync::Arc<str>>,
        path: &str,
    ) -> Result<Box<dyn Column>, String> {
        let sql = sql_name(data_type);
        let zone: Tz = zone.as_deref().unwrap_or("+00:00").parse().map_err(|error| format!("\"{path}\": {error}"))?;
        Ok(match self.unit(path) {
            Some(declared) => {
                Box::new(Primitives::<T, _>::new(data_type, move |v| time::epoch(v, declared, T::UNIT, &sql)))
            }
            None => Box::new(Primitives::<T, _>::new(data_type, move |v| time::timestamp::<T>(v, &zone, &sql))),
        })
    }

    fn column(&mut self, data_type: &DataType, path: &str) -> Result<Box<dyn Column>, String> {
        let sql = sql_name(data_type);
        macro_rules! primitive {
            ($type:ty, |$value:ident| $parse:expr) => {
                Box::new(Primitives::<$type, _>::new(data_type, move |$value: Value<'_>| $parse))
            };
        }
        macro_rules! decimal {
            ($type:ty, $precision:expr, $scale:expr) => {{
                let (precision, scale) = (*$precision, *$scale);
                primitive!($type, |v| number::decimal(v, precision, scale, &sql))
            }};
        }
        Ok(match data_type {
            DataType::Boolean => Box::new(Booleans::default()),
            DataType::Int8 => primitive!(Int8Type, |v| number::whole(v, &sql)),
            DataType::Int16 => primitive!(Int16Type, |v| number::whole(v, &sql)),
            DataType::Int32 => primitive!(Int32Type, |v| number::whole(v, &sql)),
            DataType::Int64 => primitive!(Int64Type, |v| number::whole(v, &sql)),
            DataType::UInt8 => primitive!(UInt8Type, |v| number::whole(v, &sql)),
            DataType::UInt16 => primitive!(UInt16Type, |v| number::whole(v, &sql)),
            DataType::UInt32 => primitive!(UInt32Type, |v| number::whole(v, &sql)),
            DataType::UInt64 => primitive!(UInt64Type, |v| number::whole(v, &sql)),
            DataType::Float32 => primitive!(Float32Type, |v| number::floating(v, &sql)),
            DataType::Float64 => primitive!(Float64Type, |v| number::floating(v, &sql)),
            DataType::Decimal32(precision, scale) => decimal!(Decimal32Type, precision, scale),
            DataType::Decimal64(precision, scale) => decimal!(Decimal64Type, precision, scale),
            DataType::Decimal128(precision, scale) => decimal!(Decimal128Type, precision, scale),
            DataType::Decimal256(precision, scale) => decimal!(Decimal256Type, precision, scale),
            DataType::Date32 => primitive!(Date32Type, |v| time::date::<Date32Type>(v, &sql)),
            DataType::Date64 => primitive!(Date64Type, |v| time::date::<Date64Type>(v, &sql)),
            DataType::Time32(TimeUnit::Second) => {
                primitive!(Time32SecondType, |v| Ok((time::time_of_day(v, &sql)? / 1_000_000_000) as i32))
            }
            DataType::Time32(TimeUnit::Millisecond) => {
                primitive!(Time32MillisecondType, |v| Ok((time::time_of_day(v, &sql)? / 1_000_000) as i32))
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                primitive!(Time64MicrosecondType, |v| Ok(time::time_of_day(v, &sql)? / 1_000))
            }
            DataType::Time64(TimeUnit::Nanosecond) => primitive!(Time64NanosecondType, |v| time::time_of_day(v, &sql)),
            DataType::Timestamp(unit, zone) => match unit {
                TimeUnit::Second => self.timestamp::<TimestampSecondType>(data_type, zone, path)?,
                TimeUnit::Millisecond => self.timestamp::<TimestampMillisecondType>(data_type, zone, path)?,
                TimeUnit::Microsecond => self.timestamp::<TimestampMicrosecondType>(data_type, zone, path)?,
                TimeUnit::Nanosecond => self.timestamp::<TimestampNanosecondType>(data_type, zone, path)?,
            },
            DataType::Utf8 => Box::new(Bytes::<Utf8Type>::plain(text)),
            DataType::LargeUtf8 => Box::new(Bytes::<LargeUtf8Type>::plain(text)),
            DataType::Utf8View => Box::new(Bytes::<Utf8Type>::view::<StringViewType>(text)),
            DataType::Binary => Box::new(Bytes::<BinaryType>::plain(hex)),
            DataType::LargeBinary => Box::new(Bytes::<LargeBinaryType>::plain(hex)),
            DataType::BinaryView => Box::new(Bytes::<BinaryType>::view::<BinaryViewType>(hex)),
            DataType::List(item) => Box::new(Lists::<i32>::new(item, self.element(item, path)?)),
            DataType::LargeList(item) => Box::new(Lists::<i64>::new(item, self.element(item, path)?)),
            DataType::FixedSizeList(item, length) => {
                Box::new(FixedLists::new(item, *length, self.element(item, path)?))
            }
            DataType::Struct(fields) => {
                let members = self.members(fields.iter().map(AsRef::as_ref), Some(path), Vec::new())?;
                Box::new(Structs::new(fields, members))
            }
            DataType::Map(entries, sorted) => self.map(entries, *sorted, path)?,
            _ => return Err(unreadable(path, data_type)),
        })
    }

    fn map(
        &mut self,
        entries: &arrow::datatypes::FieldRef,
        sorted: bool,
        path: &str,
    ) -> Result<Box<dyn Column>, String> {
        let DataType::Struct(fields) = entries.data_type() else {
            return Err(unreadable(path, entries.data_type()));
        };
        let [key, value] = fields.as_ref() else {
            return Err(unreadable(path, entries.data_type()));
        };
        let keys: Box<dyn super::flat::Keys> = match key.data_type() {
            DataType::Utf8 => Box::new(Bytes::<Utf8Type>::plain(text)),
            DataType::LargeUtf8 => Box::new(Bytes::<LargeUtf8Type>::plain(text)),
            DataType::Utf8View => Box::new(Bytes::<Utf8Type>::view::<StringViewType>(text)),
            other => {
                return Err(format!("column \"{path}\": a map from JSON has VARCHAR keys, not {}", sql_name(other)));
            }
        };
        let values = self.element(value, path)?;
        Ok(Box::new(Maps::new(entries, fields, sorted, keys, values)))
    }
}

fn unreadable(path: &str, data_type: &DataType) -> String {
    format!("column \"{path}\": {} cannot be read from JSON", sql_name(data_type))
}

/// A type as SQL writes it, or Arrow when SQL has no name for it.
pub(super) fn sql_name(data_type: &DataType) -> String {
    let places = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "(0)",
        TimeUnit::Millisecond => "(3)",
        TimeUnit::Microsecond => "(6)",
        TimeUnit::Nanosecond => "",
    };
    match data_type {
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 => "TINYINT UNSIGNED".into(),
        DataType::UInt16 => "SMALLINT UNSIGNED".into(),
        DataType::UInt32 => "INT UNSIGNED".into(),
        DataType::UInt64 => "BIGINT UNSIGNED".into(),
        DataType::Float32 => "REAL".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "VARCHAR".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTEA".into(),
        DataType::Date32 | DataType::Date64 => "DATE".into(),
        DataType::Time32(_) | DataType::Time64(_) => "TIME".into(),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP{}", places(unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP{} WITH TIME ZONE", places(unit)),
        DataType::Interval(_) => "INTERVAL".into(),
        other => other.to_string(),
    }
}
