//! Columns of values with parts: objects as structs or maps, arrays as lists.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, GenericListArray, MapArray, NullBufferBuilder, OffsetSizeTrait, StructArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{FieldRef, Fields};
use arrow::error::ArrowError;

use super::column::{Column, Named};
use super::fault::{Fault, excerpt, shown};
use super::flat::{Keys, finish_nulls};
use super::flat_object;
use super::layout::Layout;
use super::options::MissingField;
use super::reader::{self, Value, is_null};

/// From how many fields on a hash table finds a name faster than looking at each.
const MANY_FIELDS: usize = 16;

/// The fields that are wanted of an object, each with its column. The same for a record and for a struct in it.
pub(super) struct Members {
    fields: Vec<Named>,
    /// Where a name stands in `fields`, if they are many.
    places: HashMap<String, usize>,
    /// When extra fields are errors: the names that are declared and not wanted.
    others: Option<Vec<String>>,
    missing: MissingField,
    /// Where in the object the value of each field stands. Of fields that come twice, the last one.
    found: Vec<Option<Range<usize>>>,
    /// What stood around the values of the last object.
    layout: Layout,
}

impl Members {
    pub(super) fn new(fields: Vec<Named>, others: Option<Vec<String>>, missing: MissingField) -> Self {
        let places = fields.iter().enumerate().map(|(place, field)| (field.name.clone(), place));
        let places = if fields.len() < MANY_FIELDS { HashMap::new() } else { places.collect() };
        let found = vec![None; fields.len()];
        Self { fields, places, others, missing, found, layout: Layout::default() }
    }

    /// Appends one row: what the object in `text` holds.
    pub(super) fn append(&mut self, text: &str) -> Result<(), Fault> {
        match self.append_alike(text) {
            Some(appended) => appended,
            None => self.append_any(text),
        }
    }

    /// Appends one row if the object in `text` looks like the last one.
    #[inline]
    pub(super) fn append_alike(&mut self, text: &str) -> Option<Result<(), Fault>> {
        self.found.fill(None);
        let alike = self.layout.find(text, &mut self.found);
        alike.then(|| append_found(&mut self.fields, &mut self.found, text, self.missing))
    }

    /// Appends one row, whatever the object in `text` looks like.
    pub(super) fn append_any(&mut self, text: &str) -> Result<(), Fault> {
        let Self { fields, places, others, missing, found, layout } = self;
        found.fill(None);
        layout.begin();
        // Records name their fields in the same order mostly, so the next name is likely that of the next field.
        let mut next = 0;
        let mut take = |name: &str, value: &str| {
            let place = if fields.get(next).is_some_and(|field| field.name == name) {
                Some(next)
            } else if fields.len() < MANY_FIELDS {
                fields.iter().position(|field| field.name == name)
            } else {
                places.get(name).copied()
            };
            let start = value.as_ptr() as usize - text.as_ptr() as usize;
            let value = start..start + value.len();
            layout.member(text, &value, place);
            if let Some(place) = place {
                found[place] = Some(value);
                next = place + 1;
            } else if others.as_ref().is_some_and(|others| !others.iter().any(|other| *other == name)) {
                return Err(Fault::new(format!(
                    "the field \"{}\" is not declared, and 'json.extra' is 'error'",
                    excerpt(name)
                )));
            }
            Ok(())
        };
        match flat_object::members(text, &mut take) {
            Some(walked) => {
                walked?;
                layout.end(text);
            }
            // What the quick walk found already is found again.
            None => reader::members(text, |name, value| take(&name, value))?,
        }
        append_found(fields, found, text, *missing)
    }

    fn append_null(&mut self) {
        self.fields.iter_mut().for_each(|field| field.column.append_null());
    }

    pub(super) fn reserve(&mut self, rows: usize) {
        self.fields.iter_mut().for_each(|field| field.column.reserve(rows));
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.fields.iter_mut().for_each(|field| field.column.truncate(rows));
    }

    pub(super) fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        self.fields.iter_mut().map(|field| field.column.finish()).collect()
    }
}

/// Appends the values that were found to their columns.
#[inline]
fn append_found(
    fields: &mut [Named],
    found: &mut [Option<Range<usize>>],
    text: &str,
    missing: MissingField,
) -> Result<(), Fault> {
    for (field, found) in fields.iter_mut().zip(found) {
        field.append(found.take().and_then(|place| text.get(place)), missing)?;
    }
    Ok(())
}

/// Objects with fields of their own types.
pub(super) struct Structs {
    fields: Fields,
    members: Members,
    rows: usize,
    nulls: NullBufferBuilder,
}

impl Structs {
    pub(super) fn new(fields: &Fields, members: Members) -> Self {
        Self { fields: fields.clone(), members, rows: 0, nulls: NullBufferBuilder::new(0) }
    }
}

impl Column for Structs {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        let value = Value::of(text);
        let Value::Object(text) = value else {
            return Err(Fault::kind("STRUCT", value));
        };
        self.members.append(text)?;
        self.nulls.append_non_null();
        self.rows += 1;
        Ok(())
    }

    fn append_null(&mut self) {
        self.members.append_null();
        self.nulls.append_null();
        self.rows += 1;
    }

    fn reserve(&mut self, rows: usize) {
        self.members.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.members.truncate(rows);
        self.nulls.truncate(rows);
        self.rows = self.rows.min(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        let columns = self.members.finish()?;
        let nulls = finish_nulls(&mut self.nulls);
        Ok(Arc::new(StructArray::try_new_with_length(self.fields.clone(), columns, nulls, rows)?))
    }
}

/// The elements of a list or the values of a map.
pub(super) struct Element {
    pub(super) nullable: bool,
    pub(super) column: Box<dyn Column>,
}

impl Element {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        match is_null(text) {
            true if self.nullable => {
                self.column.append_null();
                Ok(())
            }
            true => Err(Fault::new("null, but declared NOT NULL")),
            false => self.column.append(text),
        }
    }
}

/// Where each row's elements end, after a 0.
struct Ends<O>(Vec<O>);

impl<O: OffsetSizeTrait> Ends<O> {
    fn new() -> Self {
        Self(vec![O::default()])
    }

    fn last(&self) -> usize {
        self.0.last().map_or(0, |end| end.as_usize())
    }

    fn push(&mut self, elements: usize) -> Result<(), Fault> {
        let end = O::from_usize(self.last() + elements);
        self.0.push(end.ok_or_else(|| Fault::new("the batch holds more than 2^31 elements"))?);
        Ok(())
    }

    fn push_empty(&mut self) {
        self.0.push(self.0.last().copied().unwrap_or_default());
    }

    fn finish(&mut self) -> OffsetBuffer<O> {
        OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut self.0, vec![O::default()])))
    }
}

/// Arrays of any length.
pub(super) struct Lists<O: OffsetSizeTrait> {
    item: FieldRef,
    element: Element,
    ends: Ends<O>,
    nulls: NullBufferBuilder,
}

impl<O: OffsetSizeTrait> Lists<O> {
    pub(super) fn new(item: &FieldRef, element: Element) -> Self {
        Self { item: item.clone(), element, ends: Ends::new(), nulls: NullBufferBuilder::new(0) }
    }
}

impl<O: OffsetSizeTrait> Column for Lists<O> {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        let value = Value::of(text);
        let Value::Array(text) = value else {
            return Err(Fault::kind("an array", value));
        };
        let mut elements = 0;
        reader::elements(text, |value| {
            self.element.append(value).map_err(|fault| fault.at(elements))?;
            elements += 1;
            Ok(())
        })?;
        self.ends.push(elements)?;
        self.nulls.append_non_null();
        Ok(())
    }

    fn append_null(&mut self) {
        self.ends.push_empty();
        self.nulls.append_null();
    }

    fn reserve(&mut self, rows: usize) {
        self.ends.0.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.0.truncate(rows + 1);
        self.element.column.truncate(self.ends.last());
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = self.element.column.finish()?;
        let nulls = finish_nulls(&mut self.nulls);
        Ok(Arc::new(GenericListArray::<O>::try_new(self.item.clone(), self.ends.finish(), values, nulls)?))
    }
}

/// Arrays of one length.
pub(super) struct FixedLists {
    item: FieldRef,
    length: i32,
    element: Element,
    rows: usize,
    nulls: NullBufferBuilder,
}

impl FixedLists {
    pub(super) fn new(item: &FieldRef, length: i32, element: Element) -> Self {
        Self { item: item.clone(), length, element, rows: 0, nulls: NullBufferBuilder::new(0) }
    }

    fn elements(&self) -> usize {
        usize::try_from(self.length).unwrap_or_default()
    }
}

impl Column for FixedLists {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        let value = Value::of(text);
        let Value::Array(text) = value else {
            return Err(Fault::kind("an array", value));
        };
        let mut elements = 0;
        reader::elements(text, |value| {
            self.element.append(value).map_err(|fault| fault.at(elements))?;
            elements += 1;
            Ok(())
        })?;
        if elements != self.elements() {
            return Err(Fault::new(format!(
                "expected an array of {}, found {elements} elements: {}",
                self.length,
                shown(value)
            )));
        }
        self.nulls.append_non_null();
        self.rows += 1;
        Ok(())
    }

    fn append_null(&mut self) {
        (0..self.elements()).for_each(|_| self.element.column.append_null());
        self.nulls.append_null();
        self.rows += 1;
    }

    fn reserve(&mut self, rows: usize) {
        self.element.column.reserve(rows * self.elements());
    }

    fn truncate(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
        self.element.column.truncate(self.rows * self.elements());
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        let values = self.element.column.finish()?;
        let nulls = finish_nulls(&mut self.nulls);
        let array = FixedSizeListArray::try_new_with_length(self.item.clone(), self.length, values, nulls, rows)?;
        Ok(Arc::new(array))
    }
}

/// Objects whose names are data too.
pub(super) struct Maps {
    entries: FieldRef,
    fields: Fields,
    sorted: bool,
    keys: Box<dyn Keys>,
    values: Element,
    ends: Ends<i32>,
    nulls: NullBufferBuilder,
}

impl Maps {
    pub(super) fn new(entries: &FieldRef, fields: &Fields, sorted: bool, keys: Box<dyn Keys>, values: Element) -> Self {
        let (entries, fields) = (entries.clone(), fields.clone());
        Self { entries, fields, sorted, keys, values, ends: Ends::new(), nulls: NullBufferBuilder::new(0) }
    }
}

impl Column for Maps {
    fn append(&mut self, text: &str) -> Result<(), Fault> {
        let value = Value::of(text);
        let Value::Object(text) = value else {
            return Err(Fault::kind("an object", value));
        };
        let mut entries: Vec<(Cow<'_, str>, &str)> = Vec::new();
        let mut places: HashMap<Cow<'_, str>, usize> = HashMap::new();
        reader::members(text, |key, value| {
            match places.get(&key) {
                Some(place) => entries[*place].1 = value,
                None => {
                    places.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
            Ok(())
        })?;
        if self.sorted {
            entries.sort();
        }
        for (key, value) in &entries {
            self.keys.append_key(key)?;
            self.values.append(value).map_err(|fault| fault.within(key))?;
        }
        self.ends.push(entries.len())?;
        self.nulls.append_non_null();
        Ok(())
    }

    fn append_null(&mut self) {
        self.ends.push_empty();
        self.nulls.append_null();
    }

    fn reserve(&mut self, rows: usize) {
        self.ends.0.reserve(rows);
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.0.truncate(rows + 1);
        self.keys.truncate(self.ends.last());
        self.values.column.truncate(self.ends.last());
        self.nulls.truncate(rows);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let columns = vec![self.keys.finish()?, self.values.column.finish()?];
        let entries = StructArray::try_new(self.fields.clone(), columns, None)?;
        let nulls = finish_nulls(&mut self.nulls);
        Ok(Arc::new(MapArray::try_new(self.entries.clone(), self.ends.finish(), entries, nulls, self.sorted)?))
    }
}
