//! Segments: immutable pieces of state, output or dead letters, as Arrow IPC streams, compressed by Zstandard (RFC 8878),
//! with a checksum.
//!
//! A segment is checked against the checksum in its pointer before anything in it is believed.

use std::borrow::Cow;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use twox_hash::XxHash3_64;
use uuid::Uuid;

use crate::child::panic_text;
use crate::pointer::{SegmentKey, SegmentKind, SegmentRef};
use crate::ports::DeadLetter;
use crate::position::PartitionKey;

/// About how large a segment gets before the next one is begun.
pub const SEGMENT_BYTES: usize = 16 << 20;

/// What begins a message of an Arrow IPC stream, before its length.
const CONTINUATION: u32 = 0xFFFF_FFFF;
/// What begins a compressed segment.
const ZSTANDARD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// The fastest level. What it saves costs a store more than it costs here.
const LEVEL: i32 = 1;
/// How far back a repetition is looked for, as a power of two: over a whole segment, since `sum` and `avg` of one column keep
/// the same numbers in columns that lie far apart.
const WINDOW: u32 = SEGMENT_BYTES.ilog2();
/// No stream is longer than this, whatever its compressed bytes say.
const LONGEST: u64 = 2 << 30;

/// Why a segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The bytes are not those that were written.
    #[error("segment {key:?} is corrupt: {found}")]
    Corrupt {
        /// Which one.
        key: SegmentKey,
        /// What is wrong with it.
        found: String,
    },
    /// Rows that cannot be encoded.
    #[error("rows cannot be stored as a segment: {0}")]
    Encode(#[from] ArrowError),
}

/// A segment that is ready to be written.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// How a pointer lists it.
    pub reference: SegmentRef,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The checksum of a segment's bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Encodes rows as one or more segments of a limited size. `next` gives the key of each.
pub fn encode(
    rows: &RecordBatch,
    kind: SegmentKind,
    mut next: impl FnMut() -> SegmentKey,
) -> Result<Vec<Encoded>, SegmentError> {
    let pieces = rows.get_array_memory_size().div_ceil(SEGMENT_BYTES).max(1);
    let step = rows.num_rows().div_ceil(pieces).max(1);
    let mut segments = Vec::with_capacity(pieces);
    for start in (0..rows.num_rows()).step_by(step) {
        let piece = rows.slice(start, step.min(rows.num_rows() - start));
        let mut writer = StreamWriter::try_new(Vec::new(), &piece.schema())?;
        writer.write(&piece)?;
        let bytes = packed(writer.into_inner()?)?;
        let reference = SegmentRef {
            key: next(),
            kind,
            rows: piece.num_rows() as u64,
            bytes: bytes.len() as u64,
            checksum: checksum(&bytes),
            until: None,
        };
        segments.push(Encoded { reference, bytes });
    }
    Ok(segments)
}

/// The bytes in fewer bytes, if that is possible.
fn packed(bytes: Vec<u8>) -> Result<Vec<u8>, ArrowError> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.long_distance_matching(true)?;
    compressor.window_log(WINDOW)?;
    let packed = compressor.compress(&bytes)?;
    Ok(if packed.len() < bytes.len() { packed } else { bytes })
}

fn unpacked(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if !bytes.starts_with(&ZSTANDARD) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut unpacked = Vec::new();
    let read = zstd::Decoder::new(bytes).and_then(|decoder| decoder.take(LONGEST).read_to_end(&mut unpacked));
    match read {
        Ok(_) if unpacked.len() as u64 == LONGEST => Err(format!("it unpacks to {LONGEST} bytes or more")),
        Ok(_) => Ok(Cow::Owned(unpacked)),
        Err(error) => Err(format!("it cannot be unpacked: {error}")),
    }
}

/// Checks and decodes a segment.
pub fn decode(reference: &SegmentRef, bytes: &[u8]) -> Result<Vec<RecordBatch>, SegmentError> {
    let corrupt = |found: String| SegmentError::Corrupt { key: reference.key, found };
    if bytes.len() as u64 != reference.bytes {
        return Err(corrupt(format!("{} bytes instead of {}", bytes.len(), reference.bytes)));
    }
    let found = checksum(bytes);
    if found != reference.checksum {
        return Err(corrupt(format!("checksum {found:016x} instead of {:016x}", reference.checksum)));
    }
    let batches = read(bytes).map_err(&corrupt)?;
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    if rows != reference.rows {
        return Err(corrupt(format!("{rows} rows instead of {}", reference.rows)));
    }
    Ok(batches)
}

/// Reads an Arrow IPC stream that nobody may have written: whatever the bytes are, it ends with rows or a reason.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<RecordBatch>, String> {
    let bytes = &*unpacked(bytes)?;
    framed(bytes)?;
    // The reader takes what a message says of its parts for true, and panics where it is not.
    let batches = catch_unwind(AssertUnwindSafe(|| {
        StreamReader::try_new(bytes, None).and_then(|reader| reader.collect::<Result<Vec<_>, _>>())
    }));
    match batches {
        Ok(batches) => batches.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("the bytes are no Arrow IPC stream: {}", panic_text(panic.as_ref()))),
    }
}

/// Makes sure that every message is as long as it says. The reader would first make room for that much, and a process that
/// asks for more memory than there is ends at once.
fn framed(bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes;
    let word = |bytes: &mut &[u8]| -> Option<u32> {
        let (word, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*word))
    };
    while let Some(first) = word(&mut rest) {
        let length = if first == CONTINUATION { word(&mut rest) } else { Some(first) };
        let length = length.ok_or("the length of a message is cut off")? as usize;
        if length == 0 {
            break;
        }
        let head = rest.get(..length).ok_or_else(|| format!("a message of {length} bytes is cut off"))?;
        let message = root_as_message(head).map_err(|error| format!("a message cannot be read: {error}"))?;
        let body = usize::try_from(message.bodyLength()).unwrap_or(usize::MAX);
        rest = rest[length..].get(body..).ok_or_else(|| format!("the body of a message has not {body} bytes"))?;
    }
    Ok(())
}

/// Dead letters as rows.
pub fn dead_letter_rows(letters: &[DeadLetter]) -> Result<RecordBatch, ArrowError> {
    let schema = Schema::new(vec![
        Field::new("topic", DataType::Utf8, false),
        Field::new("topic_id", DataType::Binary, false),
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("timestamp", DataType::Int64, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(letters.iter().map(|letter| &letter.topic))),
        Arc::new(BinaryArray::from_iter_values(letters.iter().map(|letter| letter.partition.topic_id.as_bytes()))),
        Arc::new(Int32Array::from_iter_values(letters.iter().map(|letter| letter.partition.partition))),
        Arc::new(Int64Array::from_iter_values(letters.iter().map(|letter| letter.offset))),
        Arc::new(Int64Array::from_iter_values(letters.iter().map(|letter| letter.timestamp))),
        Arc::new(StringArray::from_iter_values(letters.iter().map(|letter| &letter.reason))),
        Arc::new(BinaryArray::from_iter(letters.iter().map(|letter| letter.key.as_deref()))),
        Arc::new(BinaryArray::from_iter(letters.iter().map(|letter| letter.value.as_deref()))),
    ];
    RecordBatch::try_new(Arc::new(schema), columns)
}

/// Dead letters from the rows of [`dead_letter_rows`]; `None` when the rows are something else.
pub fn dead_letters(rows: &RecordBatch) -> Option<Vec<DeadLetter>> {
    let text = |name| rows.column_by_name(name)?.as_string_opt::<i32>();
    let bytes = |name| rows.column_by_name(name)?.as_binary_opt::<i32>();
    let long = |name| rows.column_by_name(name)?.as_primitive_opt::<Int64Type>();
    let partitions = rows.column_by_name("partition")?.as_primitive_opt::<Int32Type>()?;
    let (topics, reasons) = (text("topic")?, text("reason")?);
    let (ids, keys, values) = (bytes("topic_id")?, bytes("key")?, bytes("value")?);
    let (offsets, timestamps) = (long("offset")?, long("timestamp")?);
    (0..rows.num_rows())
        .map(|row| {
            Some(DeadLetter {
                topic: topics.value(row).to_owned(),
                partition: PartitionKey {
                    topic_id: Uuid::from_slice(ids.value(row)).ok()?,
                    partition: partitions.value(row),
                },
                offset: offsets.value(row),
                timestamp: timestamps.value(row),
                reason: reasons.value(row).to_owned(),
                key: keys.is_valid(row).then(|| keys.value(row).to_vec()),
                value: values.is_valid(row).then(|| values.value(row).to_vec()),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pointer::{Attempt, Epoch};

    fn keys() -> impl FnMut() -> SegmentKey {
        let attempt = Attempt::fresh();
        let mut number = 0;
        move || {
            number += 1;
            SegmentKey { shard: 1, epoch: Epoch(2), attempt, number: number - 1 }
        }
    }

    fn numbers(count: i64) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    #[test]
    fn large_rows_become_several_segments_that_hold_the_same_rows() {
        let rows = numbers(5_000_000);
        let segments = encode(&rows, SegmentKind::State { table: 0 }, keys()).unwrap();
        assert!(segments.len() > 1);
        let mut read = Vec::new();
        for (number, segment) in segments.iter().enumerate() {
            assert_eq!(segment.reference.key.number as usize, number);
            for batch in decode(&segment.reference, &segment.bytes).unwrap() {
                read.extend(batch.column(0).as_primitive::<Int64Type>().values().iter().copied());
            }
        }
        assert!(read.into_iter().eq(0..5_000_000));
    }

    /// As `sum(x)` and `avg(x)` keep them: each has the sums, and other columns lie between.
    #[test]
    fn columns_with_the_same_numbers_are_stored_once() {
        const ROWS: i64 = 500_000;
        let mixed = |salt: i64| -> ArrayRef {
            let bytes = |number: i64| (number * 31 + salt).to_le_bytes();
            Arc::new(Int64Array::from_iter_values((0..ROWS).map(|number| checksum(&bytes(number)) as i64)))
        };
        let bytes = |columns: [ArrayRef; 3]| -> usize {
            let names = ["a", "b", "c"];
            let rows = RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap();
            let segments = encode(&rows, SegmentKind::State { table: 0 }, keys()).unwrap();
            segments.iter().map(|segment| segment.bytes.len()).sum()
        };
        let (different, same) = (bytes([mixed(1), mixed(2), mixed(3)]), bytes([mixed(1), mixed(2), mixed(1)]));
        assert!(same * 100 < different * 70, "{same} bytes, and {different} when all three are different");
    }

    #[test]
    fn a_changed_bit_a_cut_and_an_exchanged_segment_are_noticed() {
        let segments = encode(&numbers(100), SegmentKind::DeadLetters, keys()).unwrap();
        let segment = &segments[0];
        let reason = |bytes: &[u8]| decode(&segment.reference, bytes).unwrap_err().to_string();
        for at in [0, segment.bytes.len() / 2, segment.bytes.len() - 1] {
            let mut bytes = segment.bytes.clone();
            bytes[at] ^= 1;
            assert!(reason(&bytes).contains("checksum"), "byte {at}");
        }
        assert!(reason(&segment.bytes[..10]).contains("10 bytes instead of"));
        assert!(reason(&[]).contains("0 bytes instead of"));
    }

    /// A checksum that fits says only that these are the bytes that were written.
    #[test]
    fn bytes_that_are_no_stream_are_corrupt_whatever_they_say_of_themselves() {
        let segments = encode(&numbers(100), SegmentKind::DeadLetters, keys()).unwrap();
        let packed = &segments[0];
        let plain = unpacked(&packed.bytes).unwrap().into_owned();
        assert!(packed.bytes.len() < plain.len());
        let reference = SegmentRef { bytes: plain.len() as u64, ..packed.reference.clone() };
        let good = &Encoded { reference, bytes: plain };
        let reason = |bytes: &[u8], rows: u64| {
            let (length, checksum) = (bytes.len() as u64, checksum(bytes));
            let reference = SegmentRef { bytes: length, checksum, rows, ..good.reference.clone() };
            decode(&reference, bytes).unwrap_err().to_string()
        };
        assert!(reason(&good.bytes, 99).contains("100 rows instead of 99"));
        assert!(reason(b"", 0).contains("corrupt"));
        assert!(reason(b"\xff\xff\xff\xff\xff\xff\xff\x7f", 0).contains("a message of 2147483647 bytes is cut off"));
        assert!(reason(b"no stream", 0).contains("is cut off"));
        // A body longer than the memory would end the process, were it believed.
        let body = numbers(100).get_array_memory_size() as u64;
        let place = (0..good.bytes.len() - 8).rev().find(|at| {
            let word = u64::from_le_bytes(good.bytes[*at..at + 8].try_into().unwrap());
            (800..=body).contains(&word) && {
                let mut bytes = good.bytes.clone();
                bytes[*at..at + 8].copy_from_slice(&(i64::MAX / 2).to_le_bytes());
                reason(&bytes, 100).contains("the body of a message has not")
            }
        });
        assert!(place.is_some(), "the length of the body is somewhere in the head");
        for segment in [good, packed] {
            for at in 0..segment.bytes.len() {
                let mut bytes = segment.bytes.clone();
                bytes[at] ^= 0x41;
                let reference = SegmentRef { checksum: checksum(&bytes), ..segment.reference.clone() };
                // Either is right; that it comes back is what counts.
                let _ = decode(&reference, &bytes);
            }
            let reference = SegmentRef { checksum: checksum(&segment.bytes), ..segment.reference.clone() };
            assert_eq!(decode(&reference, &segment.bytes).unwrap(), [numbers(100)], "also one that is not compressed");
        }
        assert!(reason(&packed.bytes[..20], 100).contains("it cannot be unpacked"));
        assert!(reason(&[&ZSTANDARD[..], b"no frame"].concat(), 100).contains("it cannot be unpacked"));
    }

    #[test]
    fn dead_letters_come_back_as_they_were() {
        let letter = |offset, key: Option<&[u8]>, value: Option<&[u8]>| DeadLetter {
            topic: "orders".into(),
            partition: PartitionKey { topic_id: Uuid::new_v4(), partition: 3 },
            offset,
            timestamp: -5,
            reason: "it is broken".into(),
            key: key.map(<[u8]>::to_vec),
            value: value.map(<[u8]>::to_vec),
        };
        let letters =
            vec![letter(1, None, Some(b"")), letter(i64::MAX, Some(b"k"), None), letter(0, Some(&[255]), None)];
        let rows = dead_letter_rows(&letters).unwrap();
        assert_eq!(dead_letters(&rows), Some(letters));
        assert_eq!(dead_letters(&numbers(1)), None);
    }
}
