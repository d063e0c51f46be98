//! Finds the partitions there are, and decides once where each starts.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use uuid::Uuid;

use super::{Shared, Supervisor};
use crate::child::Cause;
use crate::env::patiently;
use crate::mailbox::Mailbox;
use crate::message::Discovered;
use crate::ports::{SourceError, StoreError};
use crate::position::{Offset, PartitionKey, SourcePartition};
use crate::retention::{self, Beginnings};

/// Under this partition number the store keeps how many partitions a topic had when it was first discovered. It is decided
/// once, before any of their starts is: so whoever decides where a partition starts, in whatever process, knows alike whether it
/// was found later. (What was stored by a version that wrote 0, when all had their start, says the same of all others.)
const FIRST_DISCOVERY: i32 = -1;
/// Start positions that are decided at the same time.
const DECIDING: usize = 256;
/// How long the others wait until it is told where a partition could start that was found later. Nobody tells it while nobody
/// leads it. Those that were found first are waited for, since what came before them would be late, and `latest` means the first
/// start.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// The pause before it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Looks for partitions again and again, and decides where each starts. Ends only when the first look already fails for
/// good.
pub(super) async fn discover(shared: Arc<Shared>, supervisor: Mailbox<Supervisor>) -> Cause {
    let mut found = false;
    let interval = shared.pipeline.tuning.discovery_interval;
    let mut beginnings = Beginnings::new();
    loop {
        let mut pause = interval;
        match shared.pipeline.source.partitions().await {
            Ok(partitions) => {
                let source = shared.pipeline.source.as_ref();
                let decided = decide_starts(&shared, partitions.clone()).await;
                match decided {
                    Ok(decided) => {
                        found = true;
                        if decided.len() < partitions.len() {
                            pause = pause.min(ASK_AGAIN);
                        }
                        supervisor.do_send(Discovered(decided));
                    }
                    Err(error) if !found => return Cause::Halt(error),
                    Err(error) => tracing::error!("new partitions cannot be started: {error}"),
                }
                // Brokers that do not answer must not keep new partitions from being found.
                let watching = retention::watch(source, &shared.board, &partitions, &mut beginnings);
                if tokio::time::timeout(interval, watching).await.is_err() {
                    tracing::warn!("the beginnings of the logs cannot be read");
                }
            }
            Err(SourceError::Halt(error) | SourceError::Failed(error)) if !found => return Cause::Halt(error),
            Err(error) => tracing::warn!("partitions cannot be listed: {error}"),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Decides once where each partition starts, and stores it before its first record is read. Partitions that a topic did not
/// have at its first discovery start at their beginning. One of these of which nobody tells where it could start is left out.
async fn decide_starts(
    shared: &Shared,
    partitions: Vec<SourcePartition>,
) -> Result<Vec<(SourcePartition, Result<Offset, String>)>, String> {
    let (store, board) = (&shared.pipeline.store, &shared.board);
    let known = patiently(board, "reading start offsets", || store.known_partitions()).await.map_err(failed)?;
    let known_topic = |partition: &SourcePartition| {
        let of_topic = known.iter().filter(|(topic, key)| **topic == *partition.topic && key.partition >= 0);
        of_topic.map(|(_, key)| key.topic_id).find(|id| *id != partition.key.topic_id)
    };
    let of_known = partitions.iter().filter(|partition| known_topic(partition).is_none());
    let at_first = first_discoveries(shared, of_known, known.iter().map(|(_, key)| *key).collect()).await?;
    let decided = stream::iter(partitions.iter())
        .map(|partition| {
            let at_first = &at_first;
            async move {
                if let Some(old) = known_topic(partition) {
                    let new = partition.key.topic_id;
                    return Ok(Some((
                        partition.clone(),
                        Err(format!(
                            "topic {} was deleted and created again: its id is {new}, but the stored offsets and state are \
                             of {old}; run it under another pipeline name, or remove the stored pipeline, to start anew",
                            partition.topic
                        )),
                    )));
                }
                let stored = patiently(board, "reading a start offset", || store.start_offset(&partition.key)).await;
                if let Some(start) = stored.map_err(failed)?.filter(|_| !flaw!(StartDecidedAgain)) {
                    return Ok(Some((partition.clone(), Ok(start))));
                }
                let first = at_first.get(&partition.key.topic_id).copied().unwrap_or_default();
                let later = i64::from(partition.key.partition) >= first && !flaw!(FoundLaterAsFirst);
                let start = shared.pipeline.source.start_offset(partition, later);
                let patience = if later { TOLD_WITHIN } else { Duration::MAX };
                let Ok(start) = tokio::time::timeout(patience, start).await else {
                    tracing::warn!(%partition, "not read yet: nobody tells where it could start, as while no broker leads it");
                    return Ok(None);
                };
                let start = start.map_err(|error| error.to_string())?;
                let define = || store.define_start(partition, start);
                if flaw!(StartNotRepeated) {
                    return Ok(Some((partition.clone(), Ok(define().await.map_err(failed)?))));
                }
                let stored = patiently(board, "storing a start offset", define).await.map_err(failed)?;
                Ok(Some((partition.clone(), Ok(if flaw!(StartDecidedAgain) { start } else { stored }))))
            }
        })
        .buffered(DECIDING)
        .collect::<Vec<Result<Option<_>, String>>>()
        .await;
    decided.into_iter().filter_map(Result::transpose).collect()
}

/// How many partitions the topics of these had when they were first discovered, which is now if it is not stored. Of a topic of
/// which only starts are stored, by a version that wrote them first, those are the first.
async fn first_discoveries<'a>(
    shared: &Shared,
    partitions: impl Iterator<Item = &'a SourcePartition>,
    known: HashSet<PartitionKey>,
) -> Result<BTreeMap<Uuid, i64>, String> {
    let mut topics = BTreeMap::<Uuid, Vec<&SourcePartition>>::new();
    for partition in partitions {
        topics.entry(partition.key.topic_id).or_default().push(partition);
    }
    let mut at_first = BTreeMap::new();
    for (topic_id, listed) in topics {
        let key = PartitionKey { topic_id, partition: FIRST_DISCOVERY };
        if known.contains(&key) && listed.iter().all(|partition| known.contains(&partition.key)) {
            continue;
        }
        let stored = known.iter().filter(|known| known.topic_id == topic_id).map(|known| known.partition).max();
        let highest =
            stored.filter(|highest| *highest >= 0).or(listed.iter().map(|partition| partition.key.partition).max());
        let (Some(any), Some(highest)) = (listed.first(), highest) else { continue };
        let (marker, now) = (SourcePartition { key, ..(*any).clone() }, Offset(i64::from(highest) + 1));
        let define = || shared.pipeline.store.define_start(&marker, now);
        let stored = patiently(&shared.board, "storing how many partitions there are", define).await.map_err(failed)?;
        at_first.insert(topic_id, stored.0);
    }
    Ok(at_first)
}

fn failed(error: StoreError) -> String {
    error.to_string()
}
