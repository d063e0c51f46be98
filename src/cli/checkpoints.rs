//! `strandline checkpoints`: the states that are stored, and whether they can be read.
//!
//! Beside a running service pointers move and old segments are deleted: what cannot be read is a fault only if a pointer
//! still lists it afterwards.

use std::collections::HashSet;

use clap::Subcommand;
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use strandline_actors::pointer::{Epoch, Pointer, SegmentRef, ShardId};
use strandline_actors::ports::{StateStore, StoreError};
use strandline_actors::segment;

use super::columns::{columns, count, or_dash};
use super::letters::time;
use super::stored::named;
use super::{Failure, connections, print};
use crate::settings::Loaded;
use crate::stores::existing::Existing;

/// Segments that are read at the same time: each may have 16 MB.
const READING: usize = 4;

/// What is asked for.
#[derive(Debug, Subcommand)]
pub(super) enum Ask {
    /// Lists what each shard has: its present state and the earlier ones that it could go back to.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Reads everything that is stored and compares it with its checksums. Ends with 1 if something is missing or damaged.
    Verify {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn checkpoints(given: &Loaded, ask: &Ask) -> Result<(), Failure> {
    let settings = &given.settings;
    named(settings)?;
    let io = connections()?;
    let done = io.block_on(async {
        let existing = Existing::open(settings).await?;
        match ask {
            Ask::List { json } => list(&existing, *json).await,
            Ask::Verify { json } => verify(&existing, *json).await,
        }
    });
    io.shutdown_background();
    done
}

/// One state of a shard.
struct Line<'a> {
    shard: ShardId,
    epoch: Epoch,
    what: &'static str,
    written: Option<i64>,
    segments: &'a [SegmentRef],
}

fn lines(pointer: &Pointer) -> Vec<Line<'_>> {
    let shard = pointer.shard;
    let line = |epoch, what, written, segments| Line { shard, epoch, what, written, segments };
    let content = &pointer.content;
    let mut lines = vec![
        line(pointer.epoch, "state", Some(pointer.timestamp), content.state.as_slice()),
        line(content.outbox.epoch, "output", Some(content.outbox.timestamp), content.outbox.segments.as_slice()),
    ];
    lines.extend(pointer.kept.iter().map(|kept| line(kept.epoch, "earlier state", None, kept.state.as_slice())));
    lines
}

async fn read_all(existing: &Existing) -> Result<Vec<Option<Pointer>>, Failure> {
    let store = existing.store();
    let mut pointers = Vec::new();
    for shard in 0..existing.row.shards {
        pointers.push(store.read_pointer(shard).await.map_err(Failure::failed)?);
    }
    Ok(pointers)
}

async fn list(existing: &Existing, json: bool) -> Result<(), Failure> {
    let pointers = read_all(existing).await?;
    let total = |segments: &[SegmentRef], of: fn(&SegmentRef) -> u64| segments.iter().map(of).sum::<u64>();
    let all: Vec<Line<'_>> = pointers.iter().flatten().flat_map(lines).collect();
    if json {
        let values = all.iter().map(|line| {
            json!({
                "shard": line.shard,
                "epoch": line.epoch,
                "what": line.what,
                "written": line.written.map(time),
                "segments": line.segments.len(),
                "rows": total(line.segments, |segment| segment.rows),
                "bytes": total(line.segments, |segment| segment.bytes),
            })
        });
        print(&format!("{}\n", Value::from(values.collect::<Vec<_>>())));
        return Ok(());
    }
    let rows: Vec<[String; 7]> = all
        .iter()
        .map(|line| {
            [
                line.shard.to_string(),
                line.epoch.to_string(),
                line.what.into(),
                or_dash(line.written.map(time)),
                line.segments.len().to_string(),
                total(line.segments, |segment| segment.rows).to_string(),
                total(line.segments, |segment| segment.bytes).to_string(),
            ]
        })
        .collect();
    print(&columns([">SHARD", ">EPOCH", "WHAT", "WRITTEN", ">SEGMENTS", ">ROWS", ">BYTES"], &rows));
    Ok(())
}

/// What is wrong with a segment that a pointer lists.
struct Fault {
    segment: SegmentRef,
    what: &'static str,
    needed_by: Vec<String>,
    why: String,
}

async fn verify(existing: &Existing, json: bool) -> Result<(), Failure> {
    let store = existing.store();
    let (mut faults, mut segments, mut bytes, mut shards) = (Vec::new(), 0_usize, 0_u64, 0_usize);
    for shard in 0..existing.row.shards {
        let Some(pointer) = store.read_pointer(shard).await.map_err(Failure::failed)? else { continue };
        shards += 1;
        if pointer.content.fingerprint != existing.row.fingerprint {
            return Err(Failure::failed(format!(
                "shard {shard} holds the state of plan {}, but the pipeline is of plan {}",
                pointer.content.fingerprint, existing.row.fingerprint
            )));
        }
        let mut seen = HashSet::new();
        let distinct: Vec<&SegmentRef> =
            lines(&pointer).iter().flat_map(|line| line.segments).filter(|segment| seen.insert(segment.key)).collect();
        segments += distinct.len();
        bytes += distinct.iter().map(|segment| segment.bytes).sum::<u64>();
        let store = store.as_ref();
        let found: Vec<Result<Option<(&'static str, String)>, StoreError>> =
            stream::iter(&distinct).map(|segment| read(store, segment)).buffered(READING).collect().await;
        let mut bad = Vec::new();
        for (segment, found) in distinct.into_iter().zip(found) {
            if let Some((what, why)) = found.map_err(Failure::failed)? {
                bad.push((segment, what, why));
            }
        }
        if bad.is_empty() {
            continue;
        }
        let now = store.read_pointer(shard).await.map_err(Failure::failed)?;
        let now: Vec<Line<'_>> = now.iter().flat_map(lines).collect();
        for (segment, what, why) in bad {
            let needs = |line: &&Line<'_>| line.segments.iter().any(|listed| listed.key == segment.key);
            let needed_by: Vec<String> =
                now.iter().filter(needs).map(|line| format!("{} {}", line.what, line.epoch)).collect();
            if !needed_by.is_empty() {
                faults.push(Fault { segment: segment.clone(), what, needed_by, why });
            }
        }
    }
    tell(&faults, shards, segments, bytes, json);
    match faults.as_slice() {
        [] => Ok(()),
        faults => Err(Failure::failed(format!(
            "{} missing or damaged: a shard that needs one goes back to an earlier state if it can, and halts otherwise. \
             Restore them from a backup of the store before the next start",
            if faults.len() == 1 { "1 segment is".into() } else { format!("{} segments are", faults.len()) }
        ))),
    }
}

fn tell(faults: &[Fault], shards: usize, segments: usize, bytes: u64, json: bool) {
    if json {
        let faults = faults.iter().map(|fault| {
            let key = &fault.segment.key;
            json!({
                "shard": key.shard,
                "epoch": key.epoch,
                "attempt": key.attempt,
                "number": key.number,
                "kind": fault.segment.kind,
                "what": fault.what,
                "needed_by": fault.needed_by,
                "why": fault.why,
            })
        });
        let faults: Vec<Value> = faults.collect();
        print(&format!("{}\n", json!({ "shards": shards, "segments": segments, "bytes": bytes, "faults": faults })));
        return;
    }
    let rows: Vec<[String; 5]> = faults
        .iter()
        .map(|fault| {
            let key = &fault.segment.key;
            [
                key.shard.to_string(),
                format!("{}/{}/{}", key.epoch, key.attempt.0, key.number),
                fault.what.into(),
                fault.needed_by.join(", "),
                fault.why.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        print(&columns([">SHARD", "SEGMENT", "WHAT", "NEEDED BY", "WHY"], &rows));
    }
    print(&format!(
        "Read {} of {} ({bytes} bytes): {}\n",
        count(segments, "segment"),
        count(shards, "shard"),
        if faults.is_empty() { "all are there and have their checksums".into() } else { count(faults.len(), "fault") }
    ));
}

/// What is wrong with a segment, if anything is.
async fn read(store: &dyn StateStore, reference: &SegmentRef) -> Result<Option<(&'static str, String)>, StoreError> {
    match store.read_segment(&reference.key).await {
        Ok(bytes) => Ok(segment::decode(reference, &bytes).err().map(|error| ("damaged", error.to_string()))),
        Err(StoreError::Corrupt(why)) => Ok(Some(("missing", why))),
        Err(error) => Err(error),
    }
}
