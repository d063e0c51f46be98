//! A fake store that answers late, refuses, or applies and loses the answer. What was sent to it may land after whoever
//! sent it is dead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use strandline_actors::pointer::{Base, Epoch, Generation, Pointer, SegmentKey, ShardId};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError,
};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use tokio::sync::oneshot;

use crate::faults::Chance;

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
    /// Rules of the protocol that were broken.
    pub broken: Vec<String>,
}

pub struct FakeStore {
    pub contents: Arc<Mutex<Contents>>,
    pub chance: Arc<Chance>,
}

impl FakeStore {
    /// Applies a request now, late, or not at all, and answers, or not.
    async fn request<T: Send + 'static>(
        &self,
        apply: impl FnOnce(&mut Contents) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let lost = |what: &str| StoreError::Unavailable(what.to_owned());
        self.chance.pause(5).await;
        if self.chance.strikes("store refuses", 30) {
            return Err(lost("refused by chance"));
        }
        let lose = self.chance.strikes("store applies and loses the answer", 30);
        let late = if self.chance.strikes("store applies late", 30) { self.chance.number(3_000) } else { 0 };
        let network = self.chance.number(8);
        let contents = Arc::clone(&self.contents);
        let (answer, answered) = oneshot::channel();
        // A task of its own: it lands even when the sender has died meanwhile.
        tokio::task::spawn_local(async move {
            tokio::time::sleep(std::time::Duration::from_millis(late + network)).await;
            let _ = answer.send(apply(&mut contents.lock().unwrap()));
        });
        if late > 0 && self.chance.number(2) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            return Err(lost("timed out"));
        }
        let applied = answered.await.map_err(|_| lost("gone"))?;
        if lose { Err(lost("the answer was lost")) } else { Ok(applied) }
    }
}

#[async_trait]
impl StateStore for FakeStore {
    async fn define_pipeline(&self, row: &PipelineRow) -> Result<PipelineRow, StoreError> {
        Ok(row.clone())
    }

    async fn next_generation(&self) -> Result<Generation, StoreError> {
        self.request(|contents| {
            contents.generation += 1;
            Generation(contents.generation)
        })
        .await
    }

    async fn start_offset(&self, key: &PartitionKey) -> Result<Option<Offset>, StoreError> {
        let key = *key;
        self.request(move |contents| contents.starts.get(&key).map(|start| start.1)).await
    }

    async fn define_start(&self, partition: &SourcePartition, start: Offset) -> Result<Offset, StoreError> {
        let partition = partition.clone();
        self.request(move |contents| {
            contents.starts.entry(partition.key).or_insert((partition.topic.to_string(), start)).1
        })
        .await
    }

    async fn known_partitions(&self) -> Result<Vec<(String, PartitionKey)>, StoreError> {
        self.request(|contents| contents.starts.iter().map(|(key, (topic, _))| (topic.clone(), *key)).collect()).await
    }

    async fn read_pointer(&self, shard: ShardId) -> Result<Option<Pointer>, StoreError> {
        self.request(move |contents| contents.pointers.get(&shard).cloned()).await
    }

    async fn move_pointer(&self, base: Option<Base>, next: &Pointer) -> Result<Moved, StoreError> {
        let next = next.clone();
        self.request(move |contents| {
            let current = contents.pointers.get(&next.shard);
            if current.map(Pointer::base) != base {
                return Moved::Refused(current.cloned().map(Box::new));
            }
            if let Some(current) = current
                && (current.generation > next.generation || current.timestamp >= next.timestamp)
            {
                contents.broken.push(format!("{next:?} after {current:?}"));
            }
            let outbox = &next.content.outbox.segments;
            for segment in next.content.state.iter().chain(outbox) {
                if !contents.segments.contains_key(&segment.key) {
                    contents.broken.push(format!("the pointer moved before segment {:?}", segment.key));
                }
            }
            contents.pointers.insert(next.shard, next);
            Moved::Applied
        })
        .await
    }

    async fn write_segment(&self, key: &SegmentKey, bytes: &[u8]) -> Result<(), StoreError> {
        let (key, bytes) = (*key, bytes.to_vec());
        self.request(move |contents| {
            let held = contents.segments.entry(key).or_insert_with(|| bytes.clone());
            if *held != bytes {
                contents.broken.push(format!("segment {key:?} was written with other content"));
            }
        })
        .await
    }

    async fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, StoreError> {
        let key = *key;
        let read = move |contents: &mut Contents| {
            let mut bytes = contents.segments.get(&key).cloned();
            if let Some(bytes) = bytes.as_mut().filter(|_| contents.damaged.contains(&key)) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            bytes
        };
        self.request(read).await?.ok_or_else(|| StoreError::Corrupt(format!("segment {key:?} is missing")))
    }

    async fn delete_segments(&self, keys: &[SegmentKey]) -> Result<(), StoreError> {
        let keys = keys.to_vec();
        self.request(move |contents| keys.iter().for_each(|key| drop(contents.segments.remove(key)))).await
    }

    async fn segments_of_epoch(&self, shard: ShardId, epoch: Epoch) -> Result<Vec<SegmentKey>, StoreError> {
        self.request(move |contents| {
            contents.segments.keys().filter(|key| key.shard == shard && key.epoch == epoch).copied().collect()
        })
        .await
    }

    async fn write_kafka_offsets(&self, offsets: &[KafkaOffset], timestamp: i64) -> Result<(), StoreError> {
        let offsets = offsets.to_vec();
        self.request(move |contents| {
            for row in offsets {
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
        self.request(move |contents| {
            for letter in letters {
                contents.dead_letters.insert((letter.partition, letter.offset), letter);
            }
        })
        .await
    }

    async fn crash_note(&self, key: &PartitionKey) -> Result<Option<CrashNote>, StoreError> {
        let key = *key;
        self.request(move |contents| contents.notes.get(&key).copied()).await
    }

    async fn write_crash_note(&self, key: &PartitionKey, note: Option<&CrashNote>) -> Result<(), StoreError> {
        let (key, note) = (*key, note.copied());
        self.request(move |contents| {
            match note {
                Some(note) => contents.notes.insert(key, note),
                None => contents.notes.remove(&key),
            };
        })
        .await
    }

    async fn read_heartbeat(&self) -> Result<Option<Heartbeat>, StoreError> {
        self.request(|contents| contents.heartbeats.last_key_value().map(|(_, heartbeat)| heartbeat.clone())).await
    }

    async fn write_heartbeat(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        let heartbeat = heartbeat.clone();
        self.request(move |contents| {
            let held = contents.heartbeats.entry(heartbeat.generation).or_insert_with(|| heartbeat.clone());
            if held.beat < heartbeat.beat {
                *held = heartbeat;
            }
        })
        .await
    }
}
