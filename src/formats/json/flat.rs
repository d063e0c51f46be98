//! Columns of values without parts: booleans, everything of a fixed width, and text and bytes.

use std::sync::Arc;

use arrow::array::types::{ByteArrayType, ByteViewType};
use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, BooleanBufferBuilder, GenericByteArray, GenericByteViewArray,
    NullBufferBuilder, PrimitiveArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::error::ArrowError;

use super::column::Column;
use super::fault::{Fault, shown};
use super::reader::{self, Value};

/// Which rows are NULL, or nothing if none is.
pub(super) fn finish_nulls(nulls: &mut NullBufferBuilder) -> Option<NullBuffer> {
    nulls.finish().filter(|nulls| nulls.null_count() > 0)
}

/// Values of a fixed width, each made by `parse`.
pub(super) struct Primitives<T: ArrowPrimitiveType, F> {
    data_type: DataType,
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    parse: F,
}

impl<T: ArrowPrimitiveType, F: Fn(Value<'_>) -> Result<T::Native, Fault>> Primitives<T, F> {
    pub(super) fn new(data_type: &DataType, parse: F) -> Self {
        Self { data_type: data_type.clone(), values: Vec::new(), nulls: NullBufferBuilder::new(0), parse }
    }
}

impl<T: ArrowPrimitiveType, F: Fn(Value<'_>) -> Result<T::Native, Fault> + Send> Column for Primitives<T, F> {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        self.values.push((self.parse)(Value::of(text))?);
        self.nulls.append_non_null();
        Ok(())
    }

    fn append_null(&mut self) {
        self.values.push(T::Native::default());
        self.nulls.append_null();
    }

    fn reserve(&mut self, rows: usize) {
        self.values.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = ScalarBuffer::from(std::mem::take(&mut self.values));
        let array = PrimitiveArray::<T>::try_new(values, finish_nulls(&mut self.nulls))?;
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }
}

/// Booleans.
pub(super) struct Booleans {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Default for Booleans {
    fn default() -> Self {
        Self { values: BooleanBufferBuilder::new(0), nulls: NullBufferBuilder::new(0) }
    }
}

impl Column for Booleans {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        let value = Value::of(text);
        let boolean = match value {
            Value::Bool(boolean) => boolean,
            Value::Text(r#""true""#) => true,
            Value::Text(r#""false""#) => false,
            _ => return Err(Fault::kind("BOOLEAN", value)),
        };
        self.values.append(boolean);
        self.nulls.append_non_null();
        Ok(())
    }

    fn append_null(&mut self) {
        self.values.append(false);
        self.nulls.append_null();
    }

    fn reserve(&mut self, rows: usize) {
        self.values.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = std::mem::replace(&mut self.values, BooleanBufferBuilder::new(0)).build();
        Ok(Arc::new(BooleanArray::new(values, finish_nulls(&mut self.nulls))))
    }
}

/// Writes the bytes of the value that stands in a text.
pub(super) type Write = fn(&str, &mut Vec<u8>) -> Result<(), Fault>;

/// Text or bytes, each written by a function.
pub(super) struct Bytes<T: ByteArrayType> {
    bytes: Vec<u8>,
    /// Where each value ends, after a 0.
    ends: Vec<T::Offset>,
    nulls: NullBufferBuilder,
    write: Write,
    shape: fn(GenericByteArray<T>) -> ArrayRef,
}

/// The keys of a map.
pub(super) trait Keys: Column {
    /// Appends a key that has no escapes.
    fn append_key(&mut self, key: &str) -> Result<(), Fault>;
}

impl<T: ByteArrayType> Bytes<T> {
    /// A column of `T`.
    pub(super) fn plain(write: Write) -> Self {
        Self::new(write, |array| Arc::new(array))
    }

    /// A column of the view type `V`.
    pub(super) fn view<V: ByteViewType>(write: Write) -> Self
    where
        GenericByteViewArray<V>: for<'a> From<&'a GenericByteArray<T>>,
    {
        Self::new(write, |array| Arc::new(GenericByteViewArray::<V>::from(&array)))
    }

    fn new(write: Write, shape: fn(GenericByteArray<T>) -> ArrayRef) -> Self {
        Self { bytes: Vec::new(), ends: vec![T::Offset::default()], nulls: NullBufferBuilder::new(0), write, shape }
    }

    fn end(&mut self) -> Result<(), Fault> {
        let end = T::Offset::from_usize(self.bytes.len());
        self.ends.push(end.ok_or_else(|| Fault::new("the batch holds more than 2 GiB of text"))?);
        self.nulls.append_non_null();
        Ok(())
    }
}

impl<T: ByteArrayType> Column for Bytes<T> {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        (self.write)(text, &mut self.bytes)?;
        self.end()
    }

    fn append_null(&mut self) {
        self.ends.push(self.ends.last().copied().unwrap_or_default());
        self.nulls.append_null();
    }

    fn reserve(&mut self, rows: usize) {
        self.ends.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows + 1);
        self.bytes.truncate(self.ends.last().map_or(0, |end| end.as_usize()));
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let ends = std::mem::replace(&mut self.ends, vec![T::Offset::default()]);
        let bytes = Buffer::from_vec(std::mem::take(&mut self.bytes));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        Ok((self.shape)(GenericByteArray::try_new(offsets, bytes, finish_nulls(&mut self.nulls))?))
    }
}

impl<T: ByteArrayType> Keys for Bytes<T> {
    fn append_key(&mut self, key: &str) -> Result<(), Fault> {
        self.bytes.extend_from_slice(key.as_bytes());
        self.end()
    }
}

/// What a string says; of every other value its JSON text as it was written.
pub(super) fn text(text: &str, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    match Value::of(text) {
        Value::Text(quoted) => bytes.extend_from_slice(reader::content(quoted)?.as_bytes()),
        Value::Number(text) | Value::Array(text) | Value::Object(text) => bytes.extend_from_slice(text.as_bytes()),
        Value::Bool(true) => bytes.extend_from_slice(b"true"),
        Value::Bool(false) => bytes.extend_from_slice(b"false"),
        Value::Null => bytes.extend_from_slice(b"null"),
    }
    Ok(())
}

/// The bytes that a string of hexadecimal digits stands for.
pub(super) fn hex(text: &str, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    let value = Value::of(text);
    let Value::Text(quoted) = value else {
        return Err(Fault::kind("BYTEA as hexadecimal text", value));
    };
    let digits = reader::content(quoted)?;
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    };
    for two in digits.as_bytes().chunks(2) {
        bytes.push(pair(two).ok_or_else(|| {
            Fault::new(format!(
                "{} is not hexadecimal; for base64 declare VARCHAR and use decode(..., 'base64')",
                shown(value)
            ))
        })?);
    }
    Ok(())
}
