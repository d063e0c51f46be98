//! Keys of one text column, with a number each in the order in which they came.
//!
//! Once there are more keys than a cache holds, a lookup costs what it waits for memory. So rows are looked up in two passes,
//! in neither of which one has to wait for another: the first finds the key that has the hash of each row, the second
//! compares their bytes. Only what found none, or another key of the same hash, is looked up by itself and inserted.

use std::hash::BuildHasher;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray, NullBufferBuilder};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{BinaryType, ByteArrayType, DataType, Utf8Type};
use datafusion::error::DataFusionError;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::words;

/// Rows that are looked up together: what is found of them stays in the nearest cache.
const TOGETHER: usize = 512;
/// In place of a group, where none was found.
const NONE: u32 = u32::MAX;

/// A key, with what is needed to know it again.
#[derive(Clone, Copy)]
struct Key {
    hash: u32,
    group: u32,
    start: u32,
    length: u32,
}

const NO_KEY: Key = Key { hash: 0, group: NONE, start: 0, length: 0 };

/// Texts or binary values, and NULL.
pub(super) struct Texts {
    data_type: DataType,
    hasher: DefaultHashBuilder,
    index: HashTable<Key>,
    bytes: Vec<u8>,
    /// Where each group's key ends in `bytes`, after a 0.
    ends: Vec<i32>,
    /// The group of NULL, which has no bytes.
    null: Option<usize>,
}

/// A hash as the table takes it, which wants all bits of a word to differ.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Texts {
    /// Keys of this type, if it is one of texts or binary values.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        matches!(data_type, DataType::Utf8 | DataType::Binary).then(|| Self {
            data_type: data_type.clone(),
            hasher: DefaultHashBuilder::default(),
            index: HashTable::new(),
            bytes: Vec::new(),
            ends: vec![0],
            null: None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn size(&self) -> usize {
        self.index.allocation_size() + self.bytes.capacity() + self.ends.capacity() * size_of::<i32>()
    }

    /// Writes down the number of each row's key.
    pub(super) fn intern(&mut self, column: &ArrayRef, numbers: &mut Vec<usize>) -> Result<(), DataFusionError> {
        if let Some(texts) = column.as_string_opt::<i32>() {
            return self.intern_all(texts, numbers);
        }
        match column.as_binary_opt::<i32>() {
            Some(values) => self.intern_all(values, numbers),
            None => {
                Err(DataFusionError::Internal(format!("keys of {} came as {}", self.data_type, column.data_type())))
            }
        }
    }

    fn intern_all<T: ByteArrayType<Offset = i32>>(
        &mut self,
        column: &GenericByteArray<T>,
        numbers: &mut Vec<usize>,
    ) -> Result<(), DataFusionError> {
        let (data, offsets) = (column.value_data(), column.value_offsets());
        let key = |row: usize| &data[offsets[row] as usize..offsets[row + 1] as usize];
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        let rows = offsets.len() - 1;
        numbers.clear();
        numbers.reserve(rows);
        let (mut hashes, mut found) = ([0; TOGETHER], [NO_KEY; TOGETHER]);
        for from in (0..rows).step_by(TOGETHER) {
            let until = (from + TOGETHER).min(rows);
            for ((hash, found), row) in hashes.iter_mut().zip(&mut found).zip(from..until) {
                *hash = self.hash(key(row));
                *found = self.index.find(spread(*hash), |key| key.hash == *hash).copied().unwrap_or(NO_KEY);
            }
            for ((hash, found), row) in hashes.iter().zip(&found).zip(from..until) {
                numbers.push(if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                    self.of_null()
                } else if found.group != NONE && is(&self.bytes, found, key(row)) {
                    found.group as usize
                } else {
                    self.insert(*hash, key(row))?
                });
            }
        }
        Ok(())
    }

    fn hash(&self, key: &[u8]) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }

    fn of_null(&mut self) -> usize {
        *self.null.get_or_insert_with(|| {
            self.ends.extend_from_within(self.ends.len() - 1..);
            self.ends.len() - 2
        })
    }

    /// The number of a key that may be new.
    fn insert(&mut self, hash: u32, key: &[u8]) -> Result<usize, DataFusionError> {
        let bytes = &self.bytes;
        let entry = self.index.entry(
            spread(hash),
            |known| known.hash == hash && is(bytes, known, key),
            |known| spread(known.hash),
        );
        match entry {
            hashbrown::hash_table::Entry::Occupied(entry) => Ok(entry.get().group as usize),
            hashbrown::hash_table::Entry::Vacant(entry) => {
                let group = self.ends.len() - 1;
                let end = i32::try_from(bytes.len() + key.len()).ok().filter(|_| group < NONE as usize);
                let end = end.ok_or_else(|| {
                    DataFusionError::ResourcesExhausted("the keys of one checkpoint have more than 2 GiB".into())
                })?;
                // All of them fit, as the end does.
                let (start, length) = (bytes.len() as u32, key.len() as u32);
                entry.insert(Key { hash, group: group as u32, start, length });
                self.bytes.extend_from_slice(key);
                self.ends.push(end);
                Ok(group)
            }
        }
    }

    /// Takes all keys out, in the order of their numbers.
    pub(super) fn take(&mut self) -> Result<ArrayRef, DataFusionError> {
        let groups = self.len();
        // As many may come again.
        if self.index.capacity() > 4 * groups.max(TOGETHER) {
            self.index = HashTable::with_capacity(groups);
        } else {
            self.index.clear();
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes.reserve(bytes.len());
        let mut ends = Vec::with_capacity(groups + 1);
        ends.push(0);
        let ends = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut self.ends, ends)));
        let mut nulls = NullBufferBuilder::new(groups);
        if let Some(null) = self.null.take() {
            nulls.append_n_non_nulls(null);
            nulls.append_null();
            nulls.append_n_non_nulls(groups - null - 1);
        }
        let (bytes, nulls) = (Buffer::from_vec(bytes), nulls.finish());
        Ok(match self.data_type {
            DataType::Utf8 => Arc::new(GenericByteArray::<Utf8Type>::try_new(ends, bytes, nulls)?),
            _ => Arc::new(GenericByteArray::<BinaryType>::try_new(ends, bytes, nulls)?),
        })
    }
}

/// Whether a known key is this one.
#[inline]
fn is(bytes: &[u8], known: &Key, key: &[u8]) -> bool {
    let Key { start, length, .. } = *known;
    length as usize == key.len() && words::same(&bytes[start as usize..(start + length) as usize], key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;

    use arrow::array::{BinaryArray, StringArray};

    use super::*;
    use crate::random::Random;

    #[test]
    fn each_key_has_one_number_in_the_order_in_which_they_came() {
        let mut random = Random(7);
        let mut below = |limit: u64| random.next() % limit;
        let mut texts = Texts::of(&DataType::Utf8).unwrap();
        for take in 0..4 {
            let mut known = HashMap::<Option<String>, usize>::new();
            let mut order = Vec::new();
            for _ in 0..20 {
                let rows: Vec<Option<String>> = (0..below(3 * TOGETHER as u64))
                    .map(|_| match below(40) {
                        0 => None,
                        1 => Some(String::new()),
                        n => Some("ö".repeat(n as usize % 19) + &below(4_000).to_string()),
                    })
                    .collect();
                let wanted: Vec<usize> = rows
                    .iter()
                    .map(|row| {
                        *known.entry(row.clone()).or_insert_with(|| {
                            order.push(row.clone());
                            order.len() - 1
                        })
                    })
                    .collect();
                let mut numbers = vec![77; 3];
                // Of a larger column, so that its offsets do not begin at 0.
                let all = StringArray::from_iter([Some("before".to_owned())].into_iter().chain(rows));
                let column: ArrayRef = Arc::new(all.slice(1, all.len() - 1));
                texts.intern(&column, &mut numbers).unwrap();
                assert_eq!(numbers, wanted, "take {take}");
                assert_eq!(texts.len(), order.len());
            }
            assert!(texts.size() > 0);
            assert_eq!(texts.take().unwrap().as_string::<i32>(), &StringArray::from_iter(order));
            assert_eq!(texts.len(), 0);
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut texts = Texts::of(&DataType::Binary).unwrap();
        let first = texts.insert(5, b"a").unwrap();
        let second = texts.insert(5, b"b").unwrap();
        assert_eq!((first, second), (0, 1));
        assert_eq!((texts.insert(5, b"b").unwrap(), texts.insert(5, b"a").unwrap()), (1, 0));
        // What is found by its hash alone is another key.
        let column: ArrayRef = Arc::new(BinaryArray::from_iter_values([&b"c"[..], &[0xff], b"c"]));
        let hash = texts.hash(b"c");
        texts.insert(hash, b"d").unwrap();
        let mut numbers = Vec::new();
        texts.intern(&column, &mut numbers).unwrap();
        assert_eq!(numbers, [3, 4, 3]);
        let wanted = BinaryArray::from_iter_values([&b"a"[..], b"b", b"d", b"c", &[0xff]]);
        assert_eq!(texts.take().unwrap().as_binary::<i32>(), &wanted);
    }
}
