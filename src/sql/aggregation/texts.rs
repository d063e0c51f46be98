//! Keys of one text column, with a number each in the order in which they came.
//!
//! Once there are more keys than a cache holds, a lookup costs what it waits for memory, and a branch that is guessed wrongly
//! meanwhile makes the next one wait, too. So rows are looked up some together, and what they need is fetched for all of them
//! before anything is decided on it: first where the table may have them, then where the keys found there are, then their
//! bytes. Nothing is ever removed but all at once, so the table is a plain one with linear probing.

use std::hash::BuildHasher;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray, NullBufferBuilder};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{BinaryType, ByteArrayType, DataType, Utf8Type};
use datafusion::error::DataFusionError;
use hashbrown::DefaultHashBuilder;

use crate::prefetch::{prefetch, prefetch_few};
use crate::words;

/// Rows that are looked up together: what is fetched for them stays in the nearest cache.
const TOGETHER: usize = 128;
/// The table has as many slots at least.
const FEWEST: usize = 64;

/// A place for a key in the table.
#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    group: u32,
}

/// No key is here.
const FREE: Slot = Slot { hash: 0, group: u32::MAX };

/// Texts or binary values, and NULL.
pub(super) struct Texts {
    data_type: DataType,
    hasher: DefaultHashBuilder,
    /// A power of two of them, of which a quarter is free at least.
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    /// Where each group's key ends in `bytes`, after a 0.
    ends: Vec<i32>,
    /// The group of NULL, which has no bytes.
    null: Option<usize>,
}

/// How many keys so many slots take.
fn most(slots: usize) -> usize {
    slots / 4 * 3
}

impl Texts {
    /// Keys of this type, if it is one of texts or binary values.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        matches!(data_type, DataType::Utf8 | DataType::Binary).then(|| Self {
            data_type: data_type.clone(),
            hasher: DefaultHashBuilder::default(),
            slots: vec![FREE; FEWEST],
            bytes: Vec::new(),
            ends: vec![0],
            null: None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn size(&self) -> usize {
        size_of_val(&*self.slots) + self.bytes.capacity() + self.ends.capacity() * size_of::<i32>()
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
        let (mut hashes, mut alike) = ([0; TOGETHER], [None; TOGETHER]);
        for from in (0..rows).step_by(TOGETHER) {
            let until = (from + TOGETHER).min(rows);
            for (hash, row) in hashes.iter_mut().zip(from..until) {
                *hash = self.hash(key(row));
                prefetch(&self.slots[self.first(*hash)]);
            }
            for (alike, hash) in alike.iter_mut().zip(&hashes[..until - from]) {
                *alike = self.alike(*hash);
                alike.iter().for_each(|group| prefetch(&self.ends[*group as usize]));
            }
            for group in alike[..until - from].iter().flatten() {
                prefetch_few(self.bytes_of(*group));
            }
            for ((hash, alike), row) in hashes.iter().zip(&alike).zip(from..until) {
                numbers.push(match alike {
                    _ if nulls.is_some_and(|nulls| nulls.is_null(row)) => self.of_null(),
                    Some(group) if self.is(*group, key(row)) => *group as usize,
                    _ => self.insert(*hash, key(row))?,
                });
            }
        }
        Ok(())
    }

    fn hash(&self, key: &[u8]) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }

    /// Where a key of this hash is looked for first (Fibonacci hashing: the highest bits of a product).
    fn first(&self, hash: u32) -> usize {
        let product = u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (product >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    /// The slots where a key of this hash may be, in order; the last one is free.
    fn places(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let (first, last) = (self.first(hash), self.slots.len() - 1);
        (first..).map(move |place| place & last)
    }

    /// The first group of this hash, which mostly is the one.
    #[inline]
    fn alike(&self, hash: u32) -> Option<u32> {
        let mut slots = self.places(hash).map(|place| self.slots[place]);
        let slot = slots.find(|slot| slot.hash == hash || slot.group == FREE.group)?;
        (slot.group != FREE.group).then_some(slot.group)
    }

    /// Whether this is the key of a group.
    #[inline]
    fn is(&self, group: u32, key: &[u8]) -> bool {
        let bytes = self.bytes_of(group);
        bytes.len() == key.len() && words::same(bytes, key)
    }

    #[inline]
    fn bytes_of(&self, group: u32) -> &[u8] {
        &self.bytes[self.ends[group as usize] as usize..self.ends[group as usize + 1] as usize]
    }

    fn of_null(&mut self) -> usize {
        *self.null.get_or_insert_with(|| {
            self.ends.extend_from_within(self.ends.len() - 1..);
            self.ends.len() - 2
        })
    }

    /// The number of a key that may be new.
    fn insert(&mut self, hash: u32, key: &[u8]) -> Result<usize, DataFusionError> {
        let mut free = self.slots.len();
        for place in self.places(hash) {
            let slot = self.slots[place];
            if slot.group == FREE.group {
                free = place;
                break;
            }
            if slot.hash == hash && self.is(slot.group, key) {
                return Ok(slot.group as usize);
            }
        }
        let group = self.len();
        let end = i32::try_from(self.bytes.len() + key.len()).ok().filter(|_| group < i32::MAX as usize);
        let end = end.ok_or_else(|| {
            DataFusionError::ResourcesExhausted("the keys of one checkpoint have more than 2 GiB".into())
        })?;
        self.slots[free] = Slot { hash, group: group as u32 };
        self.bytes.extend_from_slice(key);
        self.ends.push(end);
        if self.len() > most(self.slots.len()) {
            self.grow();
        }
        Ok(group)
    }

    fn grow(&mut self) {
        let larger = vec![FREE; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.group != FREE.group
                && let Some(free) = self.places(slot.hash).find(|place| self.slots[*place].group == FREE.group)
            {
                self.slots[free] = slot;
            }
        }
    }

    /// Takes all keys out, in the order of their numbers.
    pub(super) fn take(&mut self) -> Result<ArrayRef, DataFusionError> {
        let groups = self.len();
        // As many may come again.
        let slots = groups.next_power_of_two().max(FEWEST);
        let slots = if groups > most(slots) { slots * 2 } else { slots };
        self.slots.clear();
        self.slots.shrink_to(slots);
        self.slots.resize(slots, FREE);
        let bytes = std::mem::take(&mut self.bytes);
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
                let rows: Vec<Option<String>> = (0..below(10 * TOGETHER as u64))
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
