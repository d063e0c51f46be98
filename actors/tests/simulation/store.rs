//! A fake store that answers late, refuses, or applies and loses the answer. What was sent to it may land after whoever
//! sent it is dead.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use strandline_actors::balance::Balance;
use strandline_actors::pause::Wishes;
use strandline_actors::pointer::{Base, Content, Epoch, Generation, Kept, Pointer, SegmentKey, ShardId};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError, Taken,
};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use strandline_actors::rewind::Target;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::process::Process;
use crate::truth::Truth;

#[derive(Debug, Default)]
pub struct Contents {
    pub generation: i64,
    pub starts: BTreeMap<PartitionKey, (String, Offset)>,
    pub pointers: BTreeMap<ShardId, Pointer>,
    pub segments: BTreeMap<SegmentKey, Vec<u8>>,
    /// Segments whose bytes went bad on the disk.
    pub damaged: BTreeSet<SegmentKey>,
    pub offsets: BTreeMap<(String, i32), (Offset, i64)>,
    pub dead_letters: BTreeMap<(PartitionKey, i64), DeadLetter>,
    /// Crash notes, with the turn at which each was written. As in Cassandra, one that was sent earlier and lands later changes
    /// nothing.
    pub notes: HashMap<PartitionKey, (u64, Option<CrashNote>)>,
    /// How long reading a segment takes beside the usual.
    pub reading_takes: std::time::Duration,
    /// How long moving a pointer takes beside the usual.
    pub moving_takes: std::time::Duration,
    /// Writes of crash notes so far.
    note_turn: u64,
    /// How long a note takes to land that says what is tried.
    pub noting_takes: std::time::Duration,
    /// Such notes that were sent.
    pub tries_noted: u64,
    pub heartbeats: BTreeMap<Generation, Heartbeat>,
    pub paused: Wishes,
    /// Checkpoints that were committed, claims not counted.
    pub checkpoints: u64,
    /// Every output that a pointer ever carried: shard, epoch, write timestamp.
    pub committed: HashSet<(ShardId, Epoch, i64)>,
    /// Shards that went back to an earlier state.
    pub fell_back: BTreeSet<ShardId>,
    /// By rewind the shards that it has moved.
    pub rewound: BTreeMap<Uuid, BTreeSet<ShardId>>,
    /// The latest write timestamp under which one was.
    pub rewound_at: i64,
    /// Rules of the protocol that were broken.
    pub broken: Vec<String>,
}

impl Contents {
    /// Applies a pointer write, after a look at whether it may be.
    fn moves(&mut self, base: Option<Base>, next: Pointer, truth: &Truth) -> Moved {
        let current = self.pointers.get(&next.shard).cloned();
        let current = current.as_ref();
        if current.map(Pointer::base) != base {
            return Moved::Refused(current.cloned().map(Box::new));
        }
        self.broken.extend(next.misfit(current));
        let (wrong, rewound) = self.marks(current, &next, truth);
        self.broken.extend(wrong);
        if rewound {
            self.rewound_at = self.rewound_at.max(next.timestamp);
            // No earlier state is left to go back to.
            for segment in next.content.state.iter().chain(&next.content.outbox.segments) {
                self.damaged.remove(&segment.key);
            }
        } else if let Some(current) = current
            // Idleness closes windows without a row, and so without a move of the vector.
            && (!next.content.vector.continues(&current.content.vector) || next.content.closed < current.content.closed)
        {
            let goes_back_to = |kept: &Kept| kept.vector == next.content.vector && kept.closed == next.content.closed;
            if current.kept.iter().any(goes_back_to) {
                self.fell_back.insert(next.shard);
            } else {
                self.broken.push(format!("the vector of shard {} went back at epoch {}", next.shard, next.epoch));
            }
        }
        for segment in next.content.state.iter().chain(&next.content.outbox.segments) {
            if !self.segments.contains_key(&segment.key) {
                self.broken.push(format!("the pointer moved before segment {:?}", segment.key));
            }
        }
        self.checkpoints += u64::from(next.content.outbox.epoch == next.epoch);
        self.committed.insert((next.shard, next.content.outbox.epoch, next.content.outbox.timestamp));
        if rewound || truth.samples(&next) {
            let differences = truth.state_differences(&next, &self.segments, &self.damaged);
            self.broken.extend(differences);
        }
        self.pointers.insert(next.shard, next);
        for (partition, balance) in self.balances(truth.shards).into_iter().filter(|(_, balance)| balance.off != 0) {
            self.broken.push(format!("partition {partition} is out of balance: {balance:?}"));
        }
        Moved::Applied
    }

    /// What is wrong with the marks of rewinds, and whether this write moves the shard to where one wants it.
    fn marks(&mut self, current: Option<&Pointer>, next: &Pointer, truth: &Truth) -> (Vec<String>, bool) {
        let (shard, epoch) = (next.shard, next.epoch);
        let before = current.and_then(|pointer| pointer.content.rewind.as_deref());
        let rewind = match (before, next.content.rewind.as_deref()) {
            (None, None) => return (Vec::new(), false),
            (Some(before), Some(mark)) if before.id == mark.id && !before.done && mark.done => mark,
            (before, mark) => {
                let unmarked = |content: &Content| Content { rewind: None, ..content.clone() };
                let same = current.is_none_or(|current| unmarked(&current.content) == unmarked(&next.content));
                let fits = before.is_none_or(|before| before.done) && mark.is_none_or(|mark| !mark.done);
                let wrong = format!("shard {shard} was marked {before:?} and is {mark:?} at epoch {epoch}");
                return (if same && fits { Vec::new() } else { vec![wrong] }, false);
            }
        };
        let mut wrong = Vec::new();
        if !self.rewound.entry(rewind.id).or_default().insert(shard) {
            wrong.push(format!("shard {shard} was moved twice by `{}`", rewind.wish));
        }
        // Nowhere does a shard go forward.
        let lowest = |target: &Target| target.next.min(self.lowest(truth.shards, &target.key));
        let to: BTreeMap<_, _> = rewind.to.iter().map(|target| (target.key, lowest(target))).collect();
        let numbered = |(key, next): (&PartitionKey, &Offset)| (key.partition, next.0);
        if rewind.reset {
            truth.history.reset(shard, next.timestamp, to.iter().map(numbered));
        } else {
            for (key, next) in &to {
                truth.history.again(shard, key.partition, self.stands(current, key).0, next.0);
            }
        }
        for (key, should) in to {
            let is = next.content.vector.get(&key).map(|position| position.next);
            if is != Some(should) {
                wrong.push(format!("shard {shard} was rewound to {is:?} instead of {should} of {key}"));
            }
        }
        (wrong, true)
    }

    /// What became of the offsets of each partition, by all pointers.
    pub fn balances(&self, shards: u32) -> BTreeMap<i32, Balance> {
        let of = |(key, (_, start)): (&PartitionKey, &(String, Offset))| {
            let pointers = (0..shards).map(|shard| self.pointers.get(&shard)?.content.vector.get(key));
            Some((key.partition, Balance::new(*start, pointers)?))
        };
        self.starts.iter().filter(|(key, _)| key.partition >= 0).filter_map(of).collect()
    }

    /// Where a shard stands in a partition: at its start if it has not read of it.
    fn stands(&self, pointer: Option<&Pointer>, key: &PartitionKey) -> Offset {
        let position = pointer.and_then(|pointer| pointer.content.vector.get(key));
        position.map_or(self.starts[key].1, |position| position.next)
    }

    /// The lowest committed position of a partition.
    fn lowest(&self, shards: u32, key: &PartitionKey) -> Offset {
        (0..shards).map(|shard| self.stands(self.pointers.get(&shard), key)).min().unwrap_or(self.starts[key].1)
    }

    fn lists(&self, key: &SegmentKey) -> bool {
        self.pointers.get(&key.shard).is_some_and(|pointer| {
            let listed = pointer.content.state.iter().chain(&pointer.content.outbox.segments);
            listed.chain(pointer.kept.iter().flat_map(|kept| &kept.state)).any(|segment| segment.key == *key)
        })
    }

    /// Whether a shard that cannot read this segment can go back to an earlier state without it.
    fn dispensable(&self, key: &SegmentKey) -> bool {
        let sound = |kept: &&Kept| kept.state.iter().all(|segment| !self.damaged.contains(&segment.key));
        let refuge = self.pointers.get(&key.shard).and_then(|pointer| pointer.kept.iter().find(sound));
        refuge.is_some_and(|kept| kept.state.iter().all(|segment| segment.key != *key))
    }
}

pub struct FakeStore {
    pub contents: Arc<Mutex<Contents>>,
    pub process: Arc<Process>,
    /// A shard can go back to an earlier state.
    pub replaces: bool,
    pub truth: Arc<Truth>,
}

impl FakeStore {
    /// Applies a request now, late, or not at all, and answers, or not.
    async fn request<T: Send + 'static>(
        &self,
        what: &'static str,
        apply: impl FnOnce(&mut Contents) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let chance = &self.process.chance;
        let lost = |what: &str| StoreError::Unavailable(what.to_owned());
        self.process.awaits(what).await;
        chance.pause(5).await;
        if chance.strikes("store refuses", 30) {
            return Err(lost("refused by chance"));
        }
        let lose = chance.strikes("store applies and loses the answer", 30);
        let late = if chance.strikes("store applies late", 30) { chance.number(3_000) } else { 0 };
        let network = chance.number(8);
        let contents = Arc::clone(&self.contents);
        let (answer, answered) = oneshot::channel();
        // A task of its own: it lands even when the sender has died meanwhile.
        tokio::task::spawn_local(async move {
            tokio::time::sleep(std::time::Duration::from_millis(late + network)).await;
            let _ = answer.send(apply(&mut contents.lock().unwrap()));
        });
        if late > 0 && chance.number(2) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            self.process.note(|| format!("{what}: not answered, {late} ms late"));
            return Err(lost("timed out"));
        }
        let applied = answered.await.map_err(|_| lost("gone"))?;
        self.process.awaits(what).await;
        if lose {
            self.process.note(|| format!("{what}: the answer is lost"));
            return Err(lost("the answer was lost"));
        }
        Ok(applied)
    }
}

#[async_trait]
impl StateStore for FakeStore {
    async fn define_pipeline(&self, row: &PipelineRow) -> Result<PipelineRow, StoreError> {
        Ok(row.clone())
    }

    async fn next_generation(&self) -> Result<Generation, StoreError> {
        self.request("generation", |contents| {
            contents.generation += 1;
            Generation(contents.generation)
        })
        .await
    }

    async fn take_generation(&self, known: Generation) -> Result<Taken, StoreError> {
        self.request("generation", move |contents| {
            if contents.generation != known.0 {
                return Taken::Another(Generation(contents.generation));
            }
            contents.generation += 1;
            Taken::Mine(Generation(contents.generation))
        })
        .await
    }

    async fn start_offset(&self, key: &PartitionKey) -> Result<Option<Offset>, StoreError> {
        let key = *key;
        self.request("read start", move |contents| contents.starts.get(&key).map(|start| start.1)).await
    }

    async fn define_start(&self, partition: &SourcePartition, start: Offset) -> Result<Offset, StoreError> {
        let (partition, truth) = (partition.clone(), Arc::clone(&self.truth));
        self.request("define start", move |contents| {
            let SourcePartition { key, topic, .. } = partition;
            let marker = PartitionKey { partition: -1, ..key };
            let first = contents.starts.get(&marker).map_or(0, |marker| marker.1.0);
            contents
                .starts
                .entry(key)
                .or_insert_with(|| {
                    if key.partition >= 0 && i64::from(key.partition) >= first && start > Offset(0) {
                        contents
                            .broken
                            .push(format!("partition {} was found later, but starts at {start}", key.partition));
                    }
                    truth.history.starts(key.partition, start.0);
                    (topic.to_string(), start)
                })
                .1
        })
        .await
    }

    async fn known_partitions(&self) -> Result<Vec<(String, PartitionKey)>, StoreError> {
        self.request("known partitions", |contents| {
            contents.starts.iter().map(|(key, (topic, _))| (topic.clone(), *key)).collect()
        })
        .await
    }

    async fn read_pointer(&self, shard: ShardId) -> Result<Option<Pointer>, StoreError> {
        self.request("read pointer", move |contents| contents.pointers.get(&shard).cloned()).await
    }

    async fn move_pointer(&self, base: Option<Base>, next: &Pointer) -> Result<Moved, StoreError> {
        let (next, truth, process) = (next.clone(), Arc::clone(&self.truth), Arc::clone(&self.process));
        let takes = self.contents.lock().unwrap().moving_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        self.request("move pointer", move |contents| {
            let moved = contents.moves(base, next.clone(), &truth);
            process.note(|| {
                let what = if moved == Moved::Applied { "moves" } else { "is refused" };
                format!("{what} {}", process.trace.pointer(&next))
            });
            moved
        })
        .await
    }

    async fn paused(&self) -> Result<Wishes, StoreError> {
        self.request("read paused", |contents| contents.paused.clone()).await
    }

    async fn write_paused(&self, wishes: &Wishes) -> Result<(), StoreError> {
        let wishes = wishes.clone();
        self.request("write paused", move |contents| contents.paused = wishes).await
    }

    async fn write_segment(&self, key: &SegmentKey, bytes: &[u8]) -> Result<(), StoreError> {
        let (key, bytes, process) = (*key, bytes.to_vec(), Arc::clone(&self.process));
        self.request("write segment", move |contents| {
            process.note(|| format!("writes {}", process.trace.segment(&key)));
            let before = contents.segments.insert(key, bytes.clone());
            if before.is_some_and(|before| before != bytes) {
                contents.broken.push(format!("segment {key:?} was written with other content"));
            }
        })
        .await
    }

    async fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, StoreError> {
        let (key, process, replaces) = (*key, Arc::clone(&self.process), self.replaces);
        let read = move |contents: &mut Contents| {
            let mut bytes = contents.segments.get(&key).cloned();
            let damaged = contents.damaged.contains(&key)
                || replaces && contents.dispensable(&key) && process.chance.strikes("segment read damaged", 40);
            if let Some(bytes) = bytes.as_mut().filter(|_| damaged) {
                process.note(|| format!("reads {} damaged", process.trace.segment(&key)));
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            bytes
        };
        let takes = self.contents.lock().unwrap().reading_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let bytes = self.request("read segment", read).await?;
        bytes.ok_or_else(|| StoreError::Corrupt(format!("segment {key:?} is missing")))
    }

    async fn delete_segments(&self, keys: &[SegmentKey]) -> Result<(), StoreError> {
        let (keys, process) = (keys.to_vec(), Arc::clone(&self.process));
        self.request("delete segments", move |contents| {
            for key in &keys {
                process.note(|| format!("deletes {}", process.trace.segment(key)));
                contents.segments.remove(key);
                if contents.lists(key) {
                    contents.broken.push(format!("segment {key:?} was deleted, but a pointer lists it"));
                }
            }
        })
        .await
    }

    async fn segments_of_epoch(&self, shard: ShardId, epoch: Epoch) -> Result<Vec<SegmentKey>, StoreError> {
        self.request("segments of epoch", move |contents| {
            contents.segments.keys().filter(|key| key.shard == shard && key.epoch == epoch).copied().collect()
        })
        .await
    }

    async fn write_kafka_offsets(&self, offsets: &[KafkaOffset], timestamp: i64) -> Result<(), StoreError> {
        let (offsets, shards) = (offsets.to_vec(), self.truth.shards);
        self.request("write kafka_offsets", move |contents| {
            for row in offsets {
                let key = contents.starts.keys().find(|key| key.partition == row.partition);
                let lowest = key.map(|key| contents.lowest(shards, key));
                // One who computed it before something was rewound writes it under an earlier timestamp.
                let latest = contents.fell_back.is_empty() && timestamp > contents.rewound_at;
                if latest && lowest.is_none_or(|lowest| lowest < row.offset) {
                    contents.broken.push(format!("kafka_offsets {row:?} is above what is committed: {lowest:?}"));
                }
                let held = contents.offsets.entry((row.topic, row.partition)).or_insert((row.offset, timestamp));
                // As in Cassandra: of two writes under one timestamp the larger value stays.
                if (held.1, held.0) < (timestamp, row.offset) {
                    *held = (row.offset, timestamp);
                }
            }
        })
        .await
    }

    async fn write_dead_letters(&self, letters: &[DeadLetter], _: i64) -> Result<(), StoreError> {
        let letters = letters.to_vec();
        self.request("write dead letters", move |contents| {
            for letter in letters {
                contents.dead_letters.insert((letter.partition, letter.offset), letter);
            }
        })
        .await
    }

    async fn crash_note(&self, key: &PartitionKey) -> Result<Option<CrashNote>, StoreError> {
        let key = *key;
        self.request("read crash note", move |contents| contents.notes.get(&key).and_then(|note| note.1.clone())).await
    }

    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError> {
        let (key, note) = (*key, note.cloned());
        let trying = note.as_ref().is_some_and(|note| note.trying.is_some());
        let (turn, takes) = {
            let mut contents = self.contents.lock().unwrap();
            contents.note_turn += 1;
            contents.tries_noted += u64::from(trying);
            (contents.note_turn, contents.noting_takes)
        };
        let lands = move |contents: &mut Contents| {
            let held = contents.notes.entry(key).or_default();
            if held.0 < turn {
                *held = (turn, note.clone());
            }
        };
        if trying && !takes.is_zero() {
            // It lands, whatever becomes of the sender.
            let contents = Arc::clone(&self.contents);
            let landed = tokio::task::spawn_local(async move {
                tokio::time::sleep(takes).await;
                lands(&mut contents.lock().unwrap());
            });
            landed.await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        } else {
            self.request("write crash note", lands).await?;
        }
        if trying {
            // So that something can end between the note and what it is about.
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
        Ok(())
    }

    async fn read_heartbeat(&self) -> Result<Option<Heartbeat>, StoreError> {
        self.request("read heartbeat", |contents| {
            contents.heartbeats.last_key_value().map(|(_, heartbeat)| heartbeat.clone())
        })
        .await
    }

    async fn write_heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        let heartbeat = heartbeat.clone();
        self.request("write heartbeat", move |contents| {
            let held = contents.heartbeats.entry(heartbeat.generation).or_insert_with(|| heartbeat.clone());
            if held.beat < heartbeat.beat {
                *held = heartbeat;
            }
        })
        .await
    }
}
