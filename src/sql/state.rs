//! The kept state of one shard: for each key its latest row, in columns.
//!
//! Rows live in chunks of columns that are never changed. An index finds the row of a key by the key's encoding. A row
//! that is replaced stays behind dead until half of its chunk is; then the living ones move on, so the dead never take
//! more room than the living, and what a checkpoint costs follows what it changes.

use arrow::array::{Array, ArrayRef, new_empty_array};
use arrow::compute::interleave;
use arrow::datatypes::{FieldRef, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows;
use hashbrown::HashTable;
use strandline_actors::compaction::{LARGEST, bytes, in_pieces};

use super::routing::{KeyEncoder, hash};
use crate::prefetch::prefetch_few;

/// Rows in a chunk at most, unless they came together.
const CHUNK: usize = 64 * 1024;
/// Keys that are looked up together: what is found of them stays in the nearest cache.
const TOGETHER: usize = 512;

/// Where a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    chunk: u32,
    row: u32,
}

/// Where the row of a key is, and part of the key's hash, by which most others are told from it without a look at the row.
#[derive(Clone, Copy, Debug)]
struct Place {
    address: Address,
    tag: u32,
}

impl Place {
    fn new(address: Address, hash: u64) -> Self {
        Self { address, tag: tag(hash) }
    }
}

fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

struct Chunk {
    /// The encoded keys; `None` if there are no key columns, then there is one row.
    keys: Option<Rows>,
    hashes: Vec<u64>,
    states: Vec<ArrayRef>,
    /// The mark of each row's window; empty if the table does not follow windows.
    marks: Vec<i64>,
    living: usize,
}

impl Chunk {
    fn key(&self, row: usize) -> &[u8] {
        self.keys.as_ref().map_or(&[], |keys| keys.row(row).data())
    }

    fn bytes(&self) -> usize {
        let states: usize = self.states.iter().map(|column| column.get_array_memory_size()).sum();
        states
            + self.keys.as_ref().map_or(0, Rows::size)
            + (self.hashes.capacity() + self.marks.capacity()) * size_of::<u64>()
    }
}

/// Rows of state by key.
pub(super) struct StateTable {
    encoder: KeyEncoder,
    fields: Vec<FieldRef>,
    chunks: Vec<Option<Chunk>>,
    index: HashTable<Place>,
    bytes: usize,
    /// How often rows were put, moved or removed.
    changes: u64,
}

/// Keys to look up or to put: encoded once for both.
pub(super) struct EncodedKeys {
    keys: Option<Rows>,
    hashes: Vec<u64>,
    /// Where the rows were when they were looked up, and after how many changes of the table.
    found: Option<(u64, Vec<Option<Address>>)>,
}

/// Earlier rows of keys that were looked up.
pub(super) struct Found {
    /// The number of each key that has a row, among those looked up.
    pub(super) numbers: Vec<usize>,
    /// Their state columns.
    pub(super) states: Vec<ArrayRef>,
}

/// Some rows.
pub(super) struct Rowset {
    /// Their key columns.
    pub(super) keys: Vec<ArrayRef>,
    /// Their state columns.
    pub(super) states: Vec<ArrayRef>,
    /// How many they are.
    pub(super) rows: usize,
}

impl StateTable {
    /// An empty table of rows with these key and state columns.
    pub(super) fn new(keys: &SchemaRef, partial: &SchemaRef) -> Result<Self, ArrowError> {
        Ok(Self {
            encoder: KeyEncoder::new(keys)?,
            fields: partial.fields()[keys.fields().len()..].to_vec(),
            chunks: Vec::new(),
            index: HashTable::new(),
            bytes: 0,
            changes: 0,
        })
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// About how much memory the table takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.index.allocation_size()
    }

    /// Encodes `rows` keys.
    pub(super) fn encode(&self, keys: &[ArrayRef], rows: usize) -> Result<EncodedKeys, ArrowError> {
        let keys = self.encoder.encode(keys)?;
        let hashes = match &keys {
            Some(keys) => keys.iter().map(|key| hash(key.data())).collect(),
            None => vec![hash(&[]); rows],
        };
        Ok(EncodedKeys { keys, hashes, found: None })
    }

    /// The rows that keys have. Nearly all of the time goes into waiting for memory, so no key waits for the one before it: first
    /// the index is asked for those of one hash, then the rows are fetched, and then they are compared.
    pub(super) fn find(&self, keys: &mut EncodedKeys) -> Result<Found, ArrowError> {
        let mut found = Vec::with_capacity(keys.hashes.len());
        let mut alike = [None; TOGETHER];
        for (part, hashes) in keys.hashes.chunks(TOGETHER).enumerate() {
            for (alike, hash) in alike.iter_mut().zip(hashes) {
                *alike = self.index.find(*hash, |place| place.tag == tag(*hash)).map(|place| place.address);
            }
            alike[..hashes.len()].iter().flatten().for_each(|address| self.prefetch_key(*address));
            for (at, (alike, hash)) in alike.iter().zip(hashes).enumerate() {
                let key = keys.key(part * TOGETHER + at);
                found.push(match alike {
                    Some(address) if !self.is(*address, key) => {
                        let is_it = |place: &Place| place.tag == tag(*hash) && self.is(place.address, key);
                        self.index.find(*hash, is_it).map(|place| place.address)
                    }
                    alike => *alike,
                });
            }
        }
        let numbers =
            found.iter().enumerate().filter(|(_, address)| address.is_some()).map(|(number, _)| number).collect();
        let addresses: Vec<_> = found.iter().flatten().copied().collect();
        keys.found = Some((self.changes, found));
        Ok(Found { numbers, states: self.gather(&addresses)? })
    }

    /// Puts a row for each key, in place of the one that it had. `marks` are the marks of their windows, if the table
    /// follows windows.
    pub(super) fn put(&mut self, keys: EncodedKeys, states: &[ArrayRef], marks: Vec<i64>) -> Result<(), ArrowError> {
        let rows = keys.hashes.len();
        if rows == 0 {
            return Ok(());
        }
        let EncodedKeys { keys, hashes, found } = keys;
        let found = found.filter(|(changes, _)| *changes == self.changes).map(|(_, found)| found).unwrap_or_default();
        self.changes += 1;
        let chunk = Chunk { keys, hashes, states: states.to_vec(), marks, living: 0 };
        let number = self.add(chunk);
        let mut crowded = Vec::new();
        for row in 0..rows {
            let new = Address { chunk: number, row: row as u32 };
            if let Some(old) = self.point(new, found.get(row).copied().flatten()) {
                crowded.push(old.chunk);
            }
        }
        crowded.sort_unstable();
        crowded.dedup();
        self.tidy(crowded, number)
    }

    /// Removes keys.
    pub(super) fn remove(&mut self, keys: &EncodedKeys) -> Result<(), ArrowError> {
        self.changes += 1;
        let mut crowded = Vec::new();
        for (number, hash) in keys.hashes.iter().enumerate() {
            let key = keys.key(number);
            let chunks = &self.chunks;
            if let Ok(entry) =
                self.index.find_entry(*hash, |place| place.tag == tag(*hash) && is(chunks, place.address, key))
            {
                let (Place { address, .. }, _) = entry.remove();
                self.bury(address);
                crowded.push(address.chunk);
            }
        }
        crowded.sort_unstable();
        crowded.dedup();
        self.tidy(crowded, u32::MAX)
    }

    /// Takes out all rows whose windows' marks are wanted: their key columns and their state columns.
    pub(super) fn take_windows(
        &mut self,
        wanted: impl Fn(i64) -> bool,
    ) -> Result<(Vec<ArrayRef>, Vec<ArrayRef>), ArrowError> {
        self.changes += 1;
        let addresses = self.addresses(wanted);
        let states = self.gather(&addresses)?;
        let keys = addresses.iter().filter_map(|address| {
            let chunk = self.chunks[address.chunk as usize].as_ref()?;
            Some(chunk.keys.as_ref()?.row(address.row as usize))
        });
        let keys = self.encoder.decode(keys)?;
        let mut crowded = Vec::new();
        for address in addresses {
            let hash = hash_at(&self.chunks, address);
            if let Ok(entry) = self.index.find_entry(hash, |place| place.address == address) {
                entry.remove();
                self.bury(address);
                crowded.push(address.chunk);
            }
        }
        crowded.sort_unstable();
        crowded.dedup();
        self.tidy(crowded, u32::MAX)?;
        Ok((keys, states))
    }

    /// All rows, in as few pieces as the largest batch allows.
    pub(super) fn all(&self) -> Result<Vec<Rowset>, ArrowError> {
        self.all_within(LARGEST)
    }

    /// The rows of all keys but those that have just been looked up, likewise.
    pub(super) fn others(&self, keys: &EncodedKeys) -> Result<Vec<Rowset>, ArrowError> {
        let Some((_, found)) = keys.found.as_ref().filter(|(changes, _)| *changes == self.changes) else {
            return Err(ArrowError::ComputeError("the keys were not looked up just before".into()));
        };
        let rows = |chunk: &Option<Chunk>| vec![false; chunk.as_ref().map_or(0, |chunk| chunk.hashes.len())];
        let mut left_out: Vec<_> = self.chunks.iter().map(rows).collect();
        found.iter().flatten().for_each(|address| left_out[address.chunk as usize][address.row as usize] = true);
        let addresses = self.index.iter().map(|place| place.address);
        let others = addresses.filter(|address| !left_out[address.chunk as usize][address.row as usize]);
        self.rows_at(&others.collect::<Vec<_>>(), LARGEST)
    }

    fn all_within(&self, largest: usize) -> Result<Vec<Rowset>, ArrowError> {
        self.rows_at(&self.index.iter().map(|place| place.address).collect::<Vec<_>>(), largest)
    }

    fn rows_at(&self, addresses: &[Address], largest: usize) -> Result<Vec<Rowset>, ArrowError> {
        let key = |address: &Address| {
            let chunk = self.chunks[address.chunk as usize].as_ref()?;
            Some(chunk.keys.as_ref()?.row(address.row as usize))
        };
        let rowset = |addresses: &[Address]| {
            let keys: usize = addresses.iter().filter_map(key).map(|key| key.data().len()).sum();
            if keys > largest && addresses.len() > 1 {
                return Err(ArrowError::OffsetOverflowError(keys));
            }
            let states = self.gather(addresses)?;
            let keys = self.encoder.decode(addresses.iter().filter_map(key))?;
            Ok(Rowset { keys, states, rows: addresses.len() })
        };
        in_pieces(largest, addresses, rowset, |rowset| Ok(bytes(&rowset.keys)? + bytes(&rowset.states)?))
    }

    /// The marks of the windows of all rows.
    pub(super) fn marks(&self) -> impl Iterator<Item = i64> + '_ {
        self.index.iter().filter_map(|Place { address, .. }| {
            self.chunks[address.chunk as usize].as_ref()?.marks.get(address.row as usize).copied()
        })
    }

    /// The living rows whose windows' marks are wanted.
    fn addresses(&self, wanted: impl Fn(i64) -> bool) -> Vec<Address> {
        let mut addresses = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            for (row, (mark, hash)) in chunk.marks.iter().zip(&chunk.hashes).enumerate() {
                let address = Address { chunk: number as u32, row: row as u32 };
                if wanted(*mark) && self.index.find(*hash, |place| place.address == address).is_some() {
                    addresses.push(address);
                }
            }
        }
        addresses
    }

    fn is(&self, address: Address, key: &[u8]) -> bool {
        is(&self.chunks, address, key)
    }

    fn prefetch_key(&self, address: Address) {
        if let Some(chunk) = &self.chunks[address.chunk as usize] {
            prefetch_few(chunk.key(address.row as usize));
        }
    }

    fn add(&mut self, chunk: Chunk) -> u32 {
        self.bytes += chunk.bytes();
        match self.chunks.iter().position(Option::is_none) {
            Some(free) => {
                self.chunks[free] = Some(chunk);
                free as u32
            }
            None => {
                self.chunks.push(Some(chunk));
                (self.chunks.len() - 1) as u32
            }
        }
    }

    /// Lets the index point to a new row; answers the row that it replaced. `old` is that row, if it was looked up before.
    fn point(&mut self, new: Address, old: Option<Address>) -> Option<Address> {
        let hash = hash_at(&self.chunks, new);
        let known = old.and_then(|old| self.index.find_mut(hash, |place| place.address == old));
        let old = match known {
            Some(place) => Some(std::mem::replace(&mut place.address, new)),
            None => self.point_by_key(new, hash),
        };
        if let Some(old) = old {
            self.bury(old);
        }
        if let Some(chunk) = &mut self.chunks[new.chunk as usize] {
            chunk.living += 1;
        }
        old
    }

    fn point_by_key(&mut self, new: Address, hash: u64) -> Option<Address> {
        let chunks = &self.chunks;
        let key = chunks[new.chunk as usize].as_ref().map_or(&[][..], |chunk| chunk.key(new.row as usize));
        let is_it = |place: &Place| place.tag == tag(hash) && is(chunks, place.address, key);
        match self.index.entry(hash, is_it, |place| hash_at(chunks, place.address)) {
            hashbrown::hash_table::Entry::Occupied(mut entry) => {
                Some(std::mem::replace(&mut entry.get_mut().address, new))
            }
            hashbrown::hash_table::Entry::Vacant(entry) => {
                entry.insert(Place::new(new, hash));
                None
            }
        }
    }

    fn bury(&mut self, address: Address) {
        if let Some(chunk) = &mut self.chunks[address.chunk as usize] {
            chunk.living -= 1;
        }
    }

    /// Moves the living out of chunks that are mostly dead, and small chunks together.
    fn tidy(&mut self, touched: Vec<u32>, newest: u32) -> Result<(), ArrowError> {
        let mut moving = Vec::new();
        let mut rows = 0;
        for number in touched {
            let Some(chunk) = &self.chunks[number as usize] else { continue };
            if chunk.living * 2 < chunk.hashes.len() {
                rows += chunk.living;
                moving.push(number);
            }
        }
        // As in a log-structured merge tree: chunks that are no larger than what has just come join it.
        if let Some(Some(newest_chunk)) = self.chunks.get(newest as usize) {
            let mut size = newest_chunk.living;
            let mut small: Vec<_> = (0..self.chunks.len() as u32)
                .filter(|number| *number != newest && !moving.contains(number))
                .filter_map(|number| Some((self.chunks[number as usize].as_ref()?.living, number)))
                .filter(|(living, _)| *living < CHUNK / 2)
                .collect();
            small.sort_unstable();
            let mut joined = Vec::new();
            for (living, number) in small {
                if living > size || size + living > CHUNK {
                    break;
                }
                size += living;
                joined.push(number);
            }
            if !joined.is_empty() {
                moving.extend(joined);
                moving.push(newest);
                rows = moving.iter().filter_map(|n| self.chunks[*n as usize].as_ref()).map(|c| c.living).sum();
            }
        }
        if moving.is_empty() {
            return Ok(());
        }
        self.relocate(&moving, rows)
    }

    fn relocate(&mut self, moving: &[u32], rows: usize) -> Result<(), ArrowError> {
        let mut addresses = Vec::with_capacity(rows);
        for number in moving {
            let Some(chunk) = &self.chunks[*number as usize] else { continue };
            for (row, hash) in chunk.hashes.iter().enumerate() {
                let address = Address { chunk: *number, row: row as u32 };
                if self.index.find(*hash, |place| place.address == address).is_some() {
                    addresses.push(address);
                }
            }
        }
        let parts = addresses.chunks(CHUNK).map(|part| {
            let gathered = |part: &[Address]| Ok((part.to_vec(), self.gather(part)?));
            in_pieces(LARGEST, part, gathered, |(_, states)| bytes(states))
        });
        for (part, states) in parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
            let hashes: Vec<_> = part.iter().map(|address| hash_at(&self.chunks, *address)).collect();
            let mut keys = self.encoder.empty(part.len());
            if let Some(keys) = &mut keys {
                for address in &part {
                    if let Some(Chunk { keys: Some(old), .. }) = &self.chunks[address.chunk as usize] {
                        keys.push(old.row(address.row as usize));
                    }
                }
            }
            let marks = part.iter().filter_map(|address| {
                let chunk = self.chunks[address.chunk as usize].as_ref()?;
                chunk.marks.get(address.row as usize).copied()
            });
            let marks = marks.collect();
            let number = self.add(Chunk { keys, hashes, states, marks, living: 0 });
            for (row, old) in part.iter().enumerate() {
                let hash = hash_at(&self.chunks, *old);
                if let Some(place) = self.index.find_mut(hash, |place| place.address == *old) {
                    place.address = Address { chunk: number, row: row as u32 };
                }
                self.bury(*old);
                if let Some(chunk) = &mut self.chunks[number as usize] {
                    chunk.living += 1;
                }
            }
        }
        for number in moving {
            if let Some(chunk) = self.chunks[*number as usize].take() {
                debug_assert_eq!(chunk.living, 0, "every living row has moved");
                self.bytes -= chunk.bytes();
            }
        }
        Ok(())
    }

    /// The state columns of some rows.
    fn gather(&self, addresses: &[Address]) -> Result<Vec<ArrayRef>, ArrowError> {
        if addresses.is_empty() {
            return Ok(self.fields.iter().map(|field| new_empty_array(field.data_type())).collect());
        }
        // Only the chunks that are needed, in the order in which they are met first.
        let mut places = vec![usize::MAX; self.chunks.len()];
        let mut chunks = Vec::new();
        let mut positions = Vec::with_capacity(addresses.len());
        for address in addresses {
            let place = &mut places[address.chunk as usize];
            if *place == usize::MAX
                && let Some(chunk) = &self.chunks[address.chunk as usize]
            {
                *place = chunks.len();
                chunks.push(chunk);
            }
            positions.push((*place, address.row as usize));
        }
        (0..self.fields.len())
            .map(|column| {
                let arrays: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk.states[column].as_ref()).collect();
                interleave(&arrays, &positions)
            })
            .collect()
    }
}

fn is(chunks: &[Option<Chunk>], address: Address, key: &[u8]) -> bool {
    chunks[address.chunk as usize].as_ref().is_some_and(|chunk| chunk.key(address.row as usize) == key)
}

fn hash_at(chunks: &[Option<Chunk>], address: Address) -> u64 {
    chunks[address.chunk as usize].as_ref().map_or(0, |chunk| chunk.hashes[address.row as usize])
}

impl EncodedKeys {
    fn key(&self, number: usize) -> &[u8] {
        self.keys.as_ref().map_or(&[], |keys| keys.row(number).data())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    fn table() -> StateTable {
        let keys = Schema::new(vec![Field::new("k0", DataType::Utf8, true)]);
        let partial =
            Schema::new(vec![Field::new("k0", DataType::Utf8, true), Field::new("s1", DataType::Int64, true)]);
        StateTable::new(&Arc::new(keys), &Arc::new(partial)).unwrap()
    }

    fn keys(names: &[String]) -> Vec<ArrayRef> {
        vec![Arc::new(StringArray::from(names.to_vec()))]
    }

    fn put(table: &mut StateTable, rows: &[(String, i64)]) {
        put_all(table, rows, false);
    }

    fn put_all(table: &mut StateTable, rows: &[(String, i64)], look: bool) {
        let names: Vec<_> = rows.iter().map(|(name, _)| name.clone()).collect();
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, value)| *value)));
        let mut encoded = table.encode(&keys(&names), rows.len()).unwrap();
        if look {
            table.find(&mut encoded).unwrap();
        }
        table.put(encoded, &[values], Vec::new()).unwrap();
    }

    fn get(table: &StateTable, names: &[String]) -> BTreeMap<String, i64> {
        let found = table.find(&mut table.encode(&keys(names), names.len()).unwrap()).unwrap();
        let values = found.states[0].as_primitive::<Int64Type>();
        found.numbers.iter().enumerate().map(|(row, number)| (names[*number].clone(), values.value(row))).collect()
    }

    #[test]
    fn all_of_it_comes_in_pieces_where_it_is_too_large_for_one() {
        let mut table = table();
        let rows: Vec<_> = (0..1000).map(|number| (format!("{number:0>100}"), number)).collect();
        rows.chunks(300).for_each(|rows| put(&mut table, rows));
        assert_eq!(table.all().unwrap().len(), 1);
        let pieces = table.all_within(20_000).unwrap();
        assert!(pieces.len() >= 6, "{} pieces", pieces.len());
        let read = |piece: &Rowset| {
            let (keys, values) = (piece.keys[0].as_string::<i32>(), piece.states[0].as_primitive::<Int64Type>());
            assert_eq!((keys.len(), values.len()), (piece.rows, piece.rows));
            let read = (0..piece.rows).map(|row| (keys.value(row).to_owned(), values.value(row)));
            read.collect::<Vec<_>>()
        };
        let mut all: Vec<_> = pieces.iter().flat_map(read).collect();
        all.sort();
        assert_eq!(all, rows);
        assert!(self::table().all().unwrap().iter().all(|piece| piece.rows == 0));
    }

    /// Puts and removals of all sizes against a plain map; the dead never outgrow the living by far.
    #[test]
    fn it_is_a_map_whatever_is_moved_around() {
        let mut table = table();
        let mut model = BTreeMap::new();
        let mut random = 1_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let names: Vec<_> = (0..2000).map(|n| format!("key {n}")).collect();
        for step in 0..400 {
            let size = if below(10) == 0 { 500 } else { 1 + below(20) };
            let mut rows: BTreeMap<String, i64> = BTreeMap::new();
            for _ in 0..size {
                rows.insert(names[below(2000) as usize].clone(), step);
            }
            if below(5) == 0 {
                let gone: Vec<_> = rows.into_keys().collect();
                let encoded = table.encode(&keys(&gone), gone.len()).unwrap();
                table.remove(&encoded).unwrap();
                gone.iter().for_each(|name| {
                    model.remove(name);
                });
            } else {
                // Most are looked up before they are put.
                put_all(&mut table, &rows.clone().into_iter().collect::<Vec<_>>(), below(4) > 0);
                model.extend(rows);
            }
            assert_eq!(table.len(), model.len());
            if step % 20 == 0 {
                assert_eq!(get(&table, &names), model);
            }
            let chunks = table.chunks.iter().flatten();
            let (rows, living) = chunks.fold((0, 0), |(r, l), chunk| (r + chunk.hashes.len(), l + chunk.living));
            assert_eq!(living, model.len());
            assert!(rows <= 2 * living + 1, "{rows} rows for {living} living ones");
            assert_eq!(table.bytes, table.chunks.iter().flatten().map(Chunk::bytes).sum::<usize>());
        }
        assert_eq!(get(&table, &names), model);
        assert!(table.chunks.len() < 40, "{} chunks", table.chunks.len());
    }

    /// What was looked up before others changed the table is looked up anew.
    #[test]
    fn a_row_that_has_moved_since_it_was_looked_up_is_replaced_all_the_same() {
        let mut table = table();
        let rows: Vec<_> = (0..100).map(|n| (format!("key {n}"), n)).collect();
        put(&mut table, &rows);
        let names: Vec<_> = rows.iter().map(|(name, _)| name.clone()).collect();
        let mut encoded = table.encode(&keys(&names), 100).unwrap();
        table.find(&mut encoded).unwrap();
        let gone = table.encode(&keys(&names[..60]), 60).unwrap();
        table.remove(&gone).unwrap();
        put(&mut table, &(200..260).map(|n| (format!("key {n}"), n)).collect::<Vec<_>>());
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..100).map(|n| -n)));
        table.put(encoded, &[values], Vec::new()).unwrap();
        assert_eq!(table.len(), 160);
        assert_eq!(get(&table, &names), names.iter().cloned().zip((0..100).map(|n| -n)).collect());
        assert_eq!(table.chunks.iter().flatten().map(|chunk| chunk.living).sum::<usize>(), 160);
    }

    #[test]
    fn the_others_are_those_that_were_not_looked_up() {
        let mut table = table();
        let rows: Vec<_> = (0..1000).map(|n| (format!("key {n}"), n)).collect();
        // Of several chunks, in which some rows are dead.
        for rows in [&rows[..700], &rows[600..], &rows[100..150]] {
            put(&mut table, rows);
        }
        let names: Vec<_> = (500..1100).map(|n| format!("key {n}")).collect();
        let mut encoded = table.encode(&keys(&names), names.len()).unwrap();
        assert!(table.others(&encoded).is_err(), "they were not looked up");
        table.find(&mut encoded).unwrap();
        let others = table.others(&encoded).unwrap();
        let mut found = BTreeMap::new();
        for piece in &others {
            let (keys, values) = (piece.keys[0].as_string::<i32>(), piece.states[0].as_primitive::<Int64Type>());
            (0..piece.rows)
                .for_each(|row| assert!(found.insert(keys.value(row).to_owned(), values.value(row)).is_none()));
        }
        assert_eq!(found, rows[..500].iter().cloned().collect());
        table.put(encoded, &[Arc::new(Int64Array::from(vec![0; 600]))], Vec::new()).unwrap();
        assert_eq!(table.len(), 1100);
    }

    /// Many small checkpoints do not leave many small chunks.
    #[test]
    fn small_chunks_are_joined() {
        let mut table = table();
        for n in 0..1000 {
            put(&mut table, &[(format!("key {n}"), n)]);
        }
        assert_eq!(table.len(), 1000);
        assert!(table.chunks.iter().flatten().count() <= 11, "{}", table.chunks.iter().flatten().count());
    }

    #[test]
    fn without_key_columns_there_is_one_row() {
        let partial = Arc::new(Schema::new(vec![Field::new("s0", DataType::Int64, true)]));
        let mut table = StateTable::new(&Arc::new(Schema::empty()), &partial).unwrap();
        for value in 0..5 {
            let mut key = table.encode(&[], 1).unwrap();
            let found = table.find(&mut key).unwrap();
            assert_eq!(found.numbers.len(), usize::from(value > 0));
            table.put(key, &[Arc::new(Int64Array::from(vec![value]))], Vec::new()).unwrap();
            assert_eq!(table.len(), 1);
        }
    }
}
