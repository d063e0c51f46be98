//! Where the logs end that nobody reads just now, so that how far behind a partition is stays true while it is paused, halted,
//! or waits.
//!
//! Whoever reads hears the end with every answer of the source. What was not said for as long as new partitions are looked for
//! is asked here; what is not answered is not known any more.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::board::{Board, Life, PartitionStatus, Snapshot};
use crate::env::Pipeline;
use crate::position::{Offset, SourcePartition};

/// How often it is looked whether an end is to be asked for.
const LOOK: Duration = Duration::from_secs(1);
/// Ends that are asked for at the same time.
const ASKING: usize = 16;

/// Whether the end was not said for so long. That of what stands is wanted at once.
fn is_due(status: &PartitionStatus, every: Duration) -> bool {
    let stands = matches!(status.actor.life, Life::Halted | Life::Paused);
    match status.asked {
        Some(asked) => asked.elapsed() >= every,
        None => stands || status.activity_since.elapsed() >= every,
    }
}

/// The partitions whose ends are to be asked for, each with where it stands, if that has to be taken from the shards: its actor
/// has not started in this process. Where not even that is known an end would say nothing.
fn due(board: &Snapshot, shards: u32, every: Duration) -> Vec<(SourcePartition, Option<Offset>)> {
    let mut due = Vec::new();
    for (key, status) in board.partitions.iter().filter(|(_, status)| is_due(status, every)) {
        let committed = match status.actor.incarnation {
            0 => match board.balance(key, shards) {
                Some(balance) => Some(balance.position),
                None => continue,
            },
            _ => None,
        };
        due.push((status.source.clone(), committed));
    }
    due
}

/// Asks, for as long as the supervisor lives.
pub(crate) async fn follow(pipeline: Arc<Pipeline>, board: Arc<Board>) {
    let every = pipeline.tuning.discovery_interval;
    loop {
        sleep(LOOK.min(every)).await;
        let due = due(&board.snapshot(), pipeline.shards, every);
        let asking = stream::iter(due).for_each_concurrent(ASKING, |(partition, committed)| {
            let (source, board) = (&pipeline.source, &board);
            async move {
                let begun = Instant::now();
                let end = timeout(every, source.end(&partition)).await.ok().flatten();
                board.partition(partition.key, |status| {
                    // Whoever has begun to read it meanwhile knows better.
                    if status.asked.is_some_and(|asked| asked >= begun) {
                        return;
                    }
                    if let Some(committed) = committed.filter(|_| status.actor.incarnation == 0) {
                        status.stands(committed);
                    }
                    status.learned(end);
                });
            }
        });
        asking.await;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::board::ActorId;
    use crate::position::{PartitionKey, Position, Vector};

    const EVERY: Duration = Duration::from_secs(30);

    fn board() -> (Board, PartitionKey) {
        let (board, key) = (Board::default(), PartitionKey { topic_id: Uuid::nil(), partition: 0 });
        board.add_partition(&SourcePartition { source: 0, topic: "orders".into(), key });
        board.partition(key, |status| status.start = Some(Offset(5)));
        (board, key)
    }

    fn asked(board: &Board) -> Vec<Option<Offset>> {
        due(&board.snapshot(), 2, EVERY).into_iter().map(|(_, committed)| committed).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_asked_for_when_nobody_has_said_it_for_long() {
        let (board, key) = board();
        board.actor(ActorId::Partition(key), |status| (status.life, status.incarnation) = (Life::Running, 1));
        assert_eq!(asked(&board), [], "it may soon be read");
        sleep(EVERY).await;
        assert_eq!(asked(&board), [None]);
        board.partition(key, |status| status.learned(Some(Offset(9))));
        assert_eq!(asked(&board), []);
        sleep(EVERY - Duration::from_secs(1)).await;
        board.actor(ActorId::Partition(key), |status| status.life = Life::Paused);
        assert_eq!(asked(&board), []);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(asked(&board), [None]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_never_started_stands_where_the_shards_do() {
        let (board, key) = board();
        board.actor(ActorId::Partition(key), |status| status.life = Life::Paused);
        assert_eq!(asked(&board), [], "no shard is loaded yet");
        let at = |next| Arc::new(Vector([(key, Position::start(Offset(next)))].into()));
        board.shard(0, |status| status.positions = Some(at(70)));
        assert_eq!(asked(&board), []);
        board.shard(1, |status| status.positions = Some(at(60)));
        assert_eq!(asked(&board), [Some(Offset(60))]);
        board.shard(1, |status| status.positions = Some(Arc::default()));
        assert_eq!(asked(&board), [Some(Offset(5))], "a shard that has read nothing of it");
    }
}
