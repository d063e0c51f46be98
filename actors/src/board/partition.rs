//! What the board shows of a partition.

use serde::Serialize;
use tokio::time::Instant;

use super::{ActorStatus, ago};
use crate::position::{Offset, SourcePartition, Watermark};

/// What a partition actor waits for or does, for whoever watches that it gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It asks the shards for its position.
    #[default]
    Registering,
    /// It waits for records.
    Reading,
    /// It waits until others have worked off what is in flight.
    WaitingForCredit,
    /// It processes a batch.
    Processing,
    /// It waits for shards to take what it sent.
    WaitingForLanes,
}

/// A partition.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionStatus {
    /// Its actor.
    pub actor: ActorStatus,
    /// The topic's name.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// The partition itself.
    #[serde(skip)]
    pub source: SourcePartition,
    /// What the actor does.
    pub activity: Activity,
    /// Since when it does that.
    #[serde(serialize_with = "ago")]
    pub activity_since: Instant,
    /// Where it was first read; `None` if that cannot be.
    pub start: Option<Offset>,
    /// The next offset to read.
    pub position: Offset,
    /// The end of the log, as far as it is known.
    pub end: Option<Offset>,
    /// When somebody last said where the end is, or that it is not known.
    #[serde(skip)]
    pub asked: Option<Instant>,
    /// When there was last nothing to read.
    #[serde(skip)]
    pub at_end: Option<Instant>,
    /// The Kafka timestamp of a record that the next one to read follows or is, in milliseconds.
    #[serde(skip)]
    pub timestamp: Option<i64>,
    /// How old the oldest record that was not read is at most, in seconds, by Kafka's timestamps; 0 at the end of the log.
    /// `None` while that is not known.
    pub lag_seconds: Option<f64>,
    /// The time until Kafka's retention deletes records that were not read, in seconds; known only while something is
    /// halted that still needs them.
    pub expires: Option<u64>,
    /// The watermark, in nanoseconds.
    pub watermark: Watermark,
    /// Records read in this life of the process, replays included.
    pub rows: u64,
    /// Bytes read in this life of the process, replays included.
    pub bytes: u64,
    /// The time that the source stage took so far, in microseconds.
    pub stage_micros: u64,
    /// Batches so far.
    pub batches: u64,
    /// The time that it waited for credit or lanes, in microseconds.
    pub blocked_micros: u64,
    /// The time of this that it waited for credit, in microseconds.
    pub credit_micros: u64,
    /// When it last got on, or had nothing to do.
    #[serde(serialize_with = "ago")]
    pub progress: Instant,
}

impl PartitionStatus {
    pub(super) fn new(partition: &SourcePartition) -> Self {
        Self {
            actor: ActorStatus::default(),
            topic: partition.topic.to_string(),
            partition: partition.key.partition,
            source: partition.clone(),
            activity: Activity::default(),
            activity_since: Instant::now(),
            start: None,
            position: Offset(0),
            end: None,
            asked: None,
            at_end: None,
            timestamp: None,
            lag_seconds: None,
            expires: None,
            watermark: None,
            rows: 0,
            bytes: 0,
            stage_micros: 0,
            batches: 0,
            blocked_micros: 0,
            credit_micros: 0,
            progress: Instant::now(),
        }
    }

    /// How many offsets are behind the position; `None` while the end is not known.
    pub fn lag(&self) -> Option<i64> {
        self.end.map(|end| (end.0 - self.position.0).max(0))
    }

    /// Notes that it does something else now, and how long it did what it did before.
    pub(crate) fn turn(&mut self, activity: Activity) {
        self.count();
        (self.activity, self.activity_since) = (activity, Instant::now());
    }

    /// Notes where the log ends, or that nobody knows.
    pub(crate) fn learned(&mut self, end: Option<Offset>) {
        (self.end, self.asked) = (end, Some(Instant::now()));
        self.perhaps_at_end();
    }

    /// Notes where it stands, which is lower than before when it was started again.
    pub(crate) fn stands(&mut self, position: Offset) {
        if position < self.position {
            (self.at_end, self.timestamp) = (None, None);
        }
        self.position = position;
        self.perhaps_at_end();
    }

    fn perhaps_at_end(&mut self) {
        if self.end.is_some_and(|end| end <= self.position) {
            self.at_end = Some(Instant::now());
        }
    }

    /// Adds the time of what it does now to where that is counted.
    fn count(&mut self) {
        let micros = u64::try_from(self.activity_since.elapsed().as_micros()).unwrap_or(u64::MAX);
        match self.activity {
            Activity::WaitingForCredit => {
                self.credit_micros += micros;
                self.blocked_micros += micros;
            }
            Activity::WaitingForLanes => self.blocked_micros += micros,
            Activity::Processing => self.stage_micros += micros,
            Activity::Registering | Activity::Reading => {}
        }
    }

    /// Fills in, in a copy, what changes with time alone. `now` is in milliseconds since the epoch.
    pub(super) fn seen(&mut self, now: i64) {
        self.count();
        self.lag_seconds = self.age(now);
    }

    /// What is not read yet came after the last moment without anything to read, and after the record before it.
    fn age(&self, now: i64) -> Option<f64> {
        if self.lag()? == 0 {
            return Some(0.0);
        }
        let after_record = self.timestamp.filter(|at| *at <= now).map(|at| (now - at) as f64 / 1e3);
        let after_end = self.at_end.map(|at| at.elapsed().as_secs_f64());
        match (after_record, after_end) {
            (Some(record), Some(end)) => Some(record.min(end)),
            (record, end) => record.or(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;
    use uuid::Uuid;

    use super::*;
    use crate::position::PartitionKey;

    fn status() -> PartitionStatus {
        let key = PartitionKey { topic_id: Uuid::nil(), partition: 0 };
        PartitionStatus::new(&SourcePartition { source: 0, topic: "orders".into(), key })
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_as_old_as_the_record_before_it_at_most() {
        let mut status = status();
        assert_eq!((status.lag(), status.age(50_000)), (None, None), "nothing is known");
        status.learned(Some(Offset(100)));
        assert_eq!((status.lag(), status.age(50_000)), (Some(100), None), "nothing of any record");
        status.timestamp = Some(20_000);
        status.stands(Offset(60));
        assert_eq!((status.lag(), status.age(50_000)), (Some(40), Some(30.0)));
        status.timestamp = Some(90_000);
        assert_eq!(status.age(50_000), None, "a timestamp that is still to come says nothing");
        status.stands(Offset(100));
        assert_eq!((status.lag(), status.age(50_000)), (Some(0), Some(0.0)));
        status.stands(Offset(103));
        assert_eq!((status.lag(), status.age(50_000)), (Some(0), Some(0.0)), "the end that is known is older");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_came_after_there_was_nothing() {
        let mut status = status();
        status.timestamp = Some(1_000);
        status.stands(Offset(100));
        status.learned(Some(Offset(100)));
        advance(Duration::from_secs(3)).await;
        status.learned(Some(Offset(101)));
        assert_eq!(status.age(1_000_000), Some(3.0), "and not as long ago as the record before it");
        advance(Duration::from_secs(2)).await;
        assert_eq!(status.age(1_000_000), Some(5.0));
        status.learned(None);
        assert_eq!((status.lag(), status.age(1_000_000)), (None, None), "no old answer is shown");
        // Started again further back: what was known of a later place holds no more.
        status.learned(Some(Offset(101)));
        status.stands(Offset(90));
        assert_eq!((status.lag(), status.age(1_000_000)), (Some(11), None));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_counted_while_it_lasts() {
        let mut status = status();
        let second = Duration::from_secs(1);
        status.turn(Activity::WaitingForCredit);
        advance(second).await;
        let mut copy = status.clone();
        copy.seen(0);
        assert_eq!((copy.credit_micros, copy.blocked_micros, status.credit_micros), (1_000_000, 1_000_000, 0));
        advance(second).await;
        status.turn(Activity::Processing);
        advance(second).await;
        status.turn(Activity::WaitingForLanes);
        advance(second).await;
        status.turn(Activity::Reading);
        advance(second).await;
        status.seen(0);
        let micros = (status.credit_micros, status.blocked_micros, status.stage_micros);
        assert_eq!(micros, (2_000_000, 3_000_000, 1_000_000));
    }
}
