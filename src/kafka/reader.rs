//! One partition that is being read, as the partition actor sees it: batches, and what to do when the log is not as
//! expected.
//!
//! Never a silent jump: a position that the brokers do not have is looked into, and either the partition halts or the
//! policy says to go on at the log's start, with a range that covers the hole. Brokers that are away are waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use strandline_actors::ports::{BatchLimit, PartitionReader, SourceBatch, SourceError, raw as columns_of};
use strandline_actors::position::{Offset, Range, SourcePartition};
use tokio::sync::oneshot;

use super::cluster::{self, Cluster, Existence};
use super::columns;
use super::fetcher::Lease;
use super::life::{Answer, Start, Trouble};
use crate::catalog::OnDataLoss;

/// A topic that is reported missing is believed to be so after this time: brokers that start know nothing at first.
const BELIEVE_GONE_AFTER: Duration = Duration::from_secs(5);
/// The pause before the brokers are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// How often a partition is started again at the same position before the actor is told.
const RESTARTS: u32 = 5;

pub(super) struct Reader {
    cluster: Arc<Cluster>,
    partition: SourcePartition,
    table: usize,
    lease: Lease,
    position: i64,
    /// Rows beyond the limit of the last call.
    ready: Option<SourceBatch>,
    /// A demand that is not answered yet. Kept here, so that a dropped call loses nothing.
    pending: Option<oneshot::Receiver<Answer>>,
    /// What is being looked into.
    trouble: Option<Trouble>,
    gone_since: Option<Instant>,
    restarts: u32,
    /// Since when nothing came, or since it was last asked why.
    quiet_since: Instant,
}

impl Reader {
    pub(super) fn open(
        cluster: Arc<Cluster>,
        table: usize,
        partition: SourcePartition,
        from: Offset,
    ) -> Result<Self, SourceError> {
        let lease = cluster.lease(table, start(&cluster, table, &partition, from.0))?;
        Ok(Self {
            cluster,
            partition,
            table,
            lease,
            position: from.0,
            ready: None,
            pending: None,
            trouble: None,
            gone_since: None,
            restarts: 0,
            quiet_since: Instant::now(),
        })
    }

    fn halt(&self, reason: impl std::fmt::Display) -> SourceError {
        SourceError::Halt(format!("{} halts at offset {}: {reason}", self.partition, self.position))
    }

    fn failed(&self, reason: impl std::fmt::Display) -> SourceError {
        SourceError::Failed(format!(
            "{} cannot be read at offset {} from Kafka at {}: {reason}",
            self.partition,
            self.position,
            self.cluster.servers(self.table)
        ))
    }

    /// A batch that says only that the position is still the same.
    fn probe(&self) -> SourceBatch {
        self.empty(self.position)
    }

    fn empty(&self, until: i64) -> SourceBatch {
        let schema = columns::schema(self.cluster.parts(self.table));
        SourceBatch {
            range: Range::new(Offset(self.position), Offset(until)),
            records: RecordBatch::new_empty(schema),
            bytes: 0,
            end: None,
            open_transaction: false,
            waits: false,
            lost: false,
            producers: Default::default(),
        }
    }

    /// Starts the partition anew at the position.
    fn restart(&mut self) -> Result<(), SourceError> {
        self.restarts += 1;
        if self.restarts > RESTARTS {
            return Err(self.failed("the brokers refuse the position again and again although the log has it"));
        }
        self.lease =
            self.cluster.lease(self.table, start(&self.cluster, self.table, &self.partition, self.position))?;
        self.trouble = None;
        self.gone_since = None;
        Ok(())
    }

    /// Looks into what ended the life. `None`: reading can go on.
    async fn resolve(&mut self, trouble: Trouble) -> Result<Option<SourceBatch>, SourceError> {
        match trouble {
            Trouble::OtherTopic(id) => Err(self.halt(cluster::recreated(&self.partition, id))),
            Trouble::Superseded => Err(self.failed("the partition was opened by another reader")),
            Trouble::Failed(reason) => Err(self.failed(reason)),
            Trouble::Gone(_) | Trouble::OutOfRange(_) | Trouble::Truncated(_) => {
                match self.cluster.look_up(self.table, &self.partition).await {
                    Existence::Unknown => {
                        // For how long it is gone counts only while somebody says so.
                        self.gone_since = None;
                        tokio::time::sleep(ASK_AGAIN).await;
                        Ok(Some(self.probe()))
                    }
                    Existence::OtherTopic(id) => Err(self.halt(cluster::recreated(&self.partition, id))),
                    Existence::Missing(reason) => {
                        if self.gone_since.get_or_insert_with(Instant::now).elapsed() < BELIEVE_GONE_AFTER {
                            tokio::time::sleep(ASK_AGAIN).await;
                            return Ok(Some(self.probe()));
                        }
                        Err(self.halt(format_args!(
                        "{reason}. If it was deleted on purpose, take its table out of the pipeline; if it is created \
                         again it is another topic, and the pipeline needs a new name to read it from its beginning"
                    )))
                    }
                    Existence::There => match trouble {
                        Trouble::OutOfRange(reason) => self.out_of_range(&reason).await,
                        Trouble::Truncated(reason) => self.truncated(&reason),
                        _ => self.restart().map(|()| None),
                    },
                }
            }
        }
    }

    /// What was read may be gone, and what took its place is not read: only somebody who knows the data can tell what is right.
    fn truncated(&mut self, reason: &str) -> Result<Option<SourceBatch>, SourceError> {
        let table = self.cluster.table(self.table);
        match table.on_data_loss {
            OnDataLoss::Fail => Err(self.halt(format_args!(
                "the log of topic `{}` was cut below the position, by an unclean election or a restored disk: {reason}. \
                 Records that were counted may be gone from it, and others that took their offsets were not read. Compare with \
                 what the topic holds. To go on at the position, resume the partition, or set 'on.data.loss' 'skip' for table \
                 `{}` to do so always; to count again what the log holds now, go back with `strandline offsets rewind`",
                self.partition.topic, table.table
            ))),
            OnDataLoss::Skip => {
                tracing::error!(
                    partition = %self.partition,
                    position = self.position,
                    "the log was cut below the position; going on there, without what took the place of what was read: {reason}"
                );
                self.restart().map(|()| None)
            }
        }
    }

    async fn out_of_range(&mut self, reason: &str) -> Result<Option<SourceBatch>, SourceError> {
        let Some((low, high)) = self.cluster.watermarks(self.table, &self.partition).await else {
            tokio::time::sleep(ASK_AGAIN).await;
            return Ok(Some(self.probe()));
        };
        if self.position > high {
            return Err(self.halt(format_args!(
                "the log of topic `{}` ends at offset {high}, before the position. Records were lost by the brokers (an \
                 unclean election, a restored disk) or the topic was made anew. Compare with what the topic held; to \
                 read what is there now, give the pipeline a new name, which starts with an empty state",
                self.partition.topic
            )));
        }
        if self.position >= low {
            tracing::debug!(partition = %self.partition, position = self.position, "started again: {reason}");
            return self.restart().map(|()| None);
        }
        let lost = low - self.position;
        match self.cluster.table(self.table).on_data_loss {
            OnDataLoss::Fail => Err(self.halt(format_args!(
                "the log of topic `{}` starts at offset {low} by now, so {lost} offsets were deleted before they were \
                 read. To go on at the log's start and count the gap, set 'on.data.loss' 'skip' for table `{}` and resume \
                 the partition; to keep this from happening, lengthen the topic's retention",
                self.partition.topic,
                self.cluster.table(self.table).table
            ))),
            OnDataLoss::Skip => {
                tracing::error!(
                    partition = %self.partition,
                    from = self.position,
                    until = low,
                    "{lost} offsets were deleted before they were read; going on at the log's start"
                );
                let mut hole = self.empty(low);
                (hole.end, hole.lost) = (Some(Offset(high)), true);
                self.position = low;
                self.restarts = 0;
                self.restart()?;
                Ok(Some(hole))
            }
        }
    }

    /// Hands a batch out, or the part of it that the limit allows.
    fn hand_out(&mut self, batch: SourceBatch, limit: BatchLimit) -> SourceBatch {
        let (batch, rest) = split(batch, limit.rows);
        self.ready = rest;
        self.position = batch.range.until.0;
        if !batch.range.is_empty() {
            self.restarts = 0;
            self.quiet_since = Instant::now();
        }
        batch
    }

    /// A partition of which nothing is heard may be one that is no more: librdkafka does not say so.
    async fn look_around(&mut self) {
        if self.quiet_since.elapsed() > self.cluster.discovery_interval() {
            self.quiet_since = Instant::now();
            let existence = self.cluster.refresh(self.table, &self.partition, self.cluster.discovery_interval()).await;
            if let Existence::Missing(reason) = existence {
                self.trouble = Some(Trouble::Gone(reason));
            }
        }
    }
}

fn start(cluster: &Cluster, table: usize, partition: &SourcePartition, from: i64) -> Start {
    Start {
        topic: Arc::clone(&partition.topic),
        partition: partition.key.partition,
        from,
        id: cluster::real_id(partition),
        parts: cluster.parts(table),
    }
}

#[async_trait]
impl PartitionReader for Reader {
    async fn next(&mut self, limit: BatchLimit) -> Result<SourceBatch, SourceError> {
        let rows = self.cluster.table(self.table).max_offsets_per_batch.unwrap_or(usize::MAX).min(limit.rows).max(1);
        let limit = BatchLimit { rows, bytes: limit.bytes };
        loop {
            if let Some(id) = self.cluster.other_id(&self.partition) {
                return Err(self.halt(cluster::recreated(&self.partition, id)));
            }
            if let Some(batch) = self.ready.take() {
                return Ok(self.hand_out(batch, limit));
            }
            if let Some(trouble) = self.trouble.clone() {
                match self.resolve(trouble).await? {
                    Some(batch) => return Ok(batch),
                    None => continue,
                }
            }
            let lease = &self.lease;
            let answer = self.pending.get_or_insert_with(|| lease.demand(limit)).await;
            self.pending = None;
            match answer {
                Ok(Ok(batch)) => {
                    if batch.range.is_empty() {
                        // May be dropped here: an empty batch carries nothing.
                        self.look_around().await;
                    }
                    return Ok(self.hand_out(batch, limit));
                }
                Ok(Err(trouble)) => self.trouble = Some(trouble),
                Err(_) => return Err(self.failed("the thread that fetches has ended")),
            }
        }
    }
}

/// Cuts a batch after so many rows. The offsets without records between the parts belong to the second.
fn split(batch: SourceBatch, rows: usize) -> (SourceBatch, Option<SourceBatch>) {
    let total = batch.records.num_rows();
    if total <= rows {
        return (batch, None);
    }
    let last = batch
        .records
        .column_by_name(columns_of::OFFSET)
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .map_or(batch.range.until.0, |offsets| offsets.value(rows - 1) + 1);
    let part = |range, records: RecordBatch| SourceBatch { range, bytes: columns::bytes(&records), records, ..batch };
    let first = part(Range::new(batch.range.from, Offset(last)), batch.records.slice(0, rows));
    let second = part(Range::new(Offset(last), batch.range.until), batch.records.slice(rows, total - rows));
    (first, Some(second))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::columns::{Columns, Parts, Record};
    use super::*;

    fn batch(from: i64, offsets: &[i64], until: i64) -> SourceBatch {
        let parts = Parts { keys: false, headers: false };
        let mut columns = Columns::with_capacity(&columns::schema(parts), parts, 0, 0);
        for offset in offsets {
            columns.push(&Record { offset: *offset, value: Some(b"1234"), ..Record::default() });
        }
        let bytes = columns.bytes();
        let range = Range::new(Offset(from), Offset(until));
        let (records, end) = (columns.finish().unwrap(), Some(Offset(until)));
        SourceBatch {
            range,
            records,
            bytes,
            end,
            open_transaction: false,
            waits: false,
            lost: false,
            producers: Default::default(),
        }
    }

    #[test]
    fn a_cut_leaves_no_hole_and_no_overlap() {
        let offsets = [10, 11, 14, 20];
        for rows in 1..4 {
            let (first, second) = split(batch(8, &offsets, 25), rows);
            let second = second.unwrap();
            assert_eq!(first.range.from, Offset(8));
            assert_eq!(first.range.until, Offset(offsets[rows - 1] + 1));
            assert_eq!(second.range, Range::new(first.range.until, Offset(25)));
            assert_eq!(first.records.num_rows() + second.records.num_rows(), 4);
            assert_eq!(first.bytes + second.bytes, 16);
        }
    }

    #[test]
    fn a_batch_within_the_limit_is_left_whole() {
        for rows in [4, 5] {
            let (first, second) = split(batch(8, &[10, 11, 14, 20], 25), rows);
            assert_eq!(first.range, Range::new(Offset(8), Offset(25)));
            assert!(second.is_none());
        }
    }
}
