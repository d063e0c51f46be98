//! Finds the partitions there are, and decides once where each starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// Under this partition number the store keeps that all partitions of a topic's first discovery have their start.
const FIRST_DISCOVERY: i32 = -1;
/// Start positions that are decided at the same time.
const DECIDING: usize = 16;

/// Looks for partitions again and again, and decides where each starts. Ends only when the first look already fails for
/// good.
pub(super) async fn discover(shared: Arc<Shared>, supervisor: Mailbox<Supervisor>) -> Cause {
    let mut found = false;
    let mut beginnings = Beginnings::new();
    loop {
        match shared.pipeline.source.partitions().await {
            Ok(partitions) => {
                let source = shared.pipeline.source.as_ref();
                let decided = decide_starts(&shared, partitions.clone()).await;
                match decided {
                    Ok(decided) => {
                        found = true;
                        supervisor.do_send(Discovered(decided));
                    }
                    Err(error) if !found => return Cause::Halt(error),
                    Err(error) => tracing::error!("new partitions cannot be started: {error}"),
                }
                // Brokers that do not answer must not keep new partitions from being found.
                let watching = retention::watch(source, &shared.board, &partitions, &mut beginnings);
                if tokio::time::timeout(shared.pipeline.tuning.discovery_interval, watching).await.is_err() {
                    tracing::warn!("the beginnings of the logs cannot be read");
                }
            }
            Err(SourceError::Halt(error) | SourceError::Failed(error)) if !found => return Cause::Halt(error),
            Err(error) => tracing::warn!("partitions cannot be listed: {error}"),
        }
        tokio::time::sleep(shared.pipeline.tuning.discovery_interval).await;
    }
}

/// Decides once where each partition starts, and stores it before its first record is read. Partitions that appear after
/// a topic's first discovery start at their beginning.
async fn decide_starts(
    shared: &Shared,
    partitions: Vec<SourcePartition>,
) -> Result<Vec<(SourcePartition, Result<Offset, String>)>, String> {
    let (store, board) = (&shared.pipeline.store, &shared.board);
    let failed = |error: StoreError| error.to_string();
    let known = patiently(board, "reading start offsets", || store.known_partitions()).await.map_err(failed)?;
    let known_topic = |partition: &SourcePartition| {
        let mut ids = known.iter().filter(|(topic, _)| **topic == *partition.topic).map(|(_, key)| key.topic_id);
        ids.find(|id| *id != partition.key.topic_id)
    };
    let first_of = |topic_id: Uuid| PartitionKey { topic_id, partition: FIRST_DISCOVERY };
    let discovered: BTreeSet<Uuid> =
        known.iter().filter(|(_, key)| *key == first_of(key.topic_id)).map(|(_, key)| key.topic_id).collect();
    let decided: Vec<_> = stream::iter(partitions.iter())
        .map(|partition| {
            let discovered = &discovered;
            async move {
                if let Some(old) = known_topic(partition) {
                    let new = partition.key.topic_id;
                    return Ok((
                        partition.clone(),
                        Err(format!(
                            "topic {} was deleted and created again: its id is {new}, but the stored offsets and state are \
                             of {old}; run it under another pipeline name, or remove the stored pipeline, to start anew",
                            partition.topic
                        )),
                    ));
                }
                let stored = patiently(board, "reading a start offset", || store.start_offset(&partition.key)).await;
                if let Some(start) = stored.map_err(failed)? {
                    return Ok((partition.clone(), Ok(start)));
                }
                let later = discovered.contains(&partition.key.topic_id);
                let start = shared.pipeline.source.start_offset(partition, later).await;
                let start = start.map_err(|error| error.to_string())?;
                let define = || store.define_start(partition, start);
                if flaw!(StartNotRepeated) {
                    return Ok((partition.clone(), Ok(define().await.map_err(failed)?)));
                }
                let start = patiently(board, "storing a start offset", define).await.map_err(failed)?;
                Ok((partition.clone(), Ok(start)))
            }
        })
        .buffered(DECIDING)
        .collect::<Vec<Result<_, String>>>()
        .await
        .into_iter()
        .collect::<Result<_, _>>()?;
    let topics: BTreeMap<Uuid, &SourcePartition> = decided
        .iter()
        .filter(|(_, start): &&(SourcePartition, Result<Offset, String>)| start.is_ok())
        .map(|(partition, _)| (partition.key.topic_id, partition))
        .collect();
    for (topic_id, partition) in topics {
        if !discovered.contains(&topic_id) {
            let marker = SourcePartition { key: first_of(topic_id), ..partition.clone() };
            let define = || store.define_start(&marker, Offset(0));
            patiently(board, "storing a start offset", define).await.map_err(failed)?;
        }
    }
    Ok(decided)
}
