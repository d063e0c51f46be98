//! Whether Kafka's retention is about to delete records that something halted or paused still needs.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::board::{Board, Life, Snapshot};
use crate::ports::Source;
use crate::position::{Offset, PartitionKey, SourcePartition};

/// From which time before the loss on it is warned of.
const WARNING: Duration = Duration::from_secs(3600);

/// The logs' beginnings as they were when it was first looked.
pub(crate) type Beginnings = BTreeMap<PartitionKey, (Instant, Offset)>;

/// The first offset that something halted still needs.
fn needed(board: &Snapshot, key: &PartitionKey) -> Option<Offset> {
    let stands =
        board.partitions.get(key).is_some_and(|status| matches!(status.actor.life, Life::Halted | Life::Paused));
    let shards = board.shards.values().filter(|shard| stands || shard.actor.life == Life::Halted);
    shards.filter_map(|shard| Some(shard.positions.as_ref()?.get(key)?.next)).min()
}

/// How long it takes until a log's beginning passes an offset, if it goes on moving as it has: `None` while it stands.
fn expiry(needed: Offset, first: Offset, now: Offset, elapsed: Duration) -> Option<Duration> {
    let (moved, left) = ((now.0 - first.0).max(0) as f64, (needed.0 - now.0) as f64);
    match left > 0.0 {
        true if moved > 0.0 => Some(elapsed.mul_f64((left / moved).min(1e9))),
        true => None,
        false => Some(Duration::ZERO),
    }
}

/// Nobody tells the beginning of a log while no broker leads its partition.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Looks at the logs of everything that is halted, shows how long their records last, and warns in time.
pub(crate) async fn watch(source: &dyn Source, board: &Board, partitions: &[SourcePartition], seen: &mut Beginnings) {
    let snapshot = board.snapshot();
    for partition in partitions {
        let Some(needed) = needed(&snapshot, &partition.key) else {
            seen.remove(&partition.key);
            board.partition(partition.key, |status| status.expires = None);
            continue;
        };
        // The beginning of the log is where a partition starts that is found later.
        let told = tokio::time::timeout(TOLD_WITHIN, source.start_offset(partition, true)).await;
        let Ok(Ok(begin)) = told else { continue };
        let (since, first) = *seen.entry(partition.key).or_insert((Instant::now(), begin));
        let left = expiry(needed, first, begin, since.elapsed());
        board.partition(partition.key, |status| status.expires = left.map(|left| left.as_secs()));
        match left {
            Some(Duration::ZERO) if begin > needed => tracing::error!(
                %partition,
                "Kafka has deleted the records from {needed} to {begin}, which were not read since something is halted"
            ),
            Some(left) if left < WARNING => tracing::warn!(
                %partition,
                "in about {} s Kafka deletes records from {needed} on that were not read, since something is halted",
                left.as_secs()
            ),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_how_fast_the_log_begins_later() {
        let after = |needed, first, now| expiry(Offset(needed), Offset(first), Offset(now), Duration::from_secs(60));
        assert_eq!(after(1000, 0, 0), None, "nothing is deleted");
        assert_eq!(after(1000, 0, 100), Some(Duration::from_secs(540)));
        assert_eq!(after(1000, 900, 1000), Some(Duration::ZERO), "the next deletion takes it");
        assert_eq!(after(1000, 900, 1100), Some(Duration::ZERO), "it is gone");
    }
}
