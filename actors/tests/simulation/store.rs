//! A fake store that answers late, refuses, or applies and loses the answer. What was sent to it may land after whoever
//! sent it is dead.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use strandline_actors::pointer::{Base, Epoch, Generation, Pointer, SegmentKey, ShardId};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError, Taken,
};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use tokio::sync::oneshot;

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
    pub notes: HashMap<PartitionKey, CrashNote>,
    pub heartbeats: BTreeMap<Generation, Heartbeat>,
    /// Checkpoints that were committed, claims not counted.
    pub checkpoints: u64,
    /// Every output that a pointer ever carried: shard, epoch, write timestamp.
    pub committed: HashSet<(ShardId, Epoch, i64)>,
    /// Shards that went back to an earlier state.
    pub fell_back: BTreeSet<ShardId>,
    /// Rules of the protocol that were broken.
    pub broken: Vec<String>,
}

impl Contents {
    /// Applies a pointer write, after a look at whether it may be.
    fn moves(&mut self, base: Option<Base>, next: Pointer, truth: &Truth) -> Moved {
        let current = self.pointers.get(&next.shard);
        if current.map(Pointer::base) != base {
            return Moved::Refused(current.cloned().map(Box::new));
        }
        self.broken.extend(next.misfit(current));
        if let Some(current) = current
            && !next.content.vector.continues(&current.content.vector)
        {
            if current.kept.iter().any(|kept| kept.vector == next.content.vector) {
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
        if truth.samples(&next) {
            let differences = truth.state_differences(&next, &self.segments, &self.damaged);
            self.broken.extend(differences);
        }
        self.pointers.insert(next.shard, next);
        Moved::Applied
    }

    /// The lowest committed position of each partition.
    pub fn lowest(&self) -> BTreeMap<i32, Offset> {
        let mut lowest = BTreeMap::new();
        for (key, position) in self.pointers.values().flat_map(|pointer| &pointer.content.vector.0) {
            let low = lowest.entry(key.partition).or_insert(position.next);
            *low = position.next.min(*low);
        }
        lowest
    }

    fn lists(&self, key: &SegmentKey) -> bool {
        self.pointers.get(&key.shard).is_some_and(|pointer| {
            let listed = pointer.content.state.iter().chain(&pointer.content.outbox.segments);
            listed.chain(pointer.kept.iter().flat_map(|kept| &kept.state)).any(|segment| segment.key == *key)
        })
    }

    /// Whether a shard that cannot read this segment can go back to an earlier state without it.
    fn dispensable(&self, key: &SegmentKey) -> bool {
        self.pointers
            .get(&key.shard)
            .and_then(|pointer| pointer.kept.first())
            .is_some_and(|kept| kept.state.iter().all(|segment| segment.key != *key))
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
        let partition = partition.clone();
        self.request("define start", move |contents| {
            contents.starts.entry(partition.key).or_insert((partition.topic.to_string(), start)).1
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
                || replaces && contents.dispensable(&key) && process.chance.strikes("segment read damaged", 150);
            if let Some(bytes) = bytes.as_mut().filter(|_| damaged) {
                process.note(|| format!("reads {} damaged", process.trace.segment(&key)));
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            bytes
        };
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
        let offsets = offsets.to_vec();
        self.request("write kafka_offsets", move |contents| {
            let lowest = contents.lowest();
            for row in offsets {
                if contents.fell_back.is_empty() && lowest.get(&row.partition).is_none_or(|low| *low < row.offset) {
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
        self.request("read crash note", move |contents| contents.notes.get(&key).copied()).await
    }

    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError> {
        let (key, note) = (*key, note.copied());
        self.request("write crash note", move |contents| {
            match note {
                Some(note) => contents.notes.insert(key, note),
                None => contents.notes.remove(&key),
            };
        })
        .await
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
