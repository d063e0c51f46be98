//! A fake table: the row with the highest write timestamp stays, as in Cassandra. One part holds the running sums, the other
//! each window once. They are one sink, or a sink each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use strandline_actors::ports::{Delivery, Sink, SinkError};

use crate::history::History;
use crate::process::Process;
use crate::store::Contents;

/// Sum, count, write timestamp.
type Row = (i64, i64, i64);

#[derive(Debug, Default)]
pub struct Table {
    /// By key.
    pub rows: Mutex<BTreeMap<i64, Row>>,
    /// By window and group.
    pub windows: Mutex<BTreeMap<(i64, i64), Row>>,
    /// What must not happen, but did.
    pub conflicts: Mutex<Vec<String>>,
}

#[derive(Clone)]
pub struct FakeSink {
    /// The only part of the table that it writes; otherwise it writes both.
    pub part: Option<usize>,
    pub table: Arc<Table>,
    pub contents: Arc<Mutex<Contents>>,
    pub process: Arc<Process>,
    pub history: Arc<History>,
    pub replaces: bool,
}

impl FakeSink {
    fn conflict(&self, what: String) {
        self.table.conflicts.lock().unwrap().push(what);
    }
}

#[async_trait]
impl Sink for FakeSink {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        let chance = &self.process.chance;
        let (shard, epoch, timestamp) = (delivery.shard, delivery.epoch, delivery.timestamp);
        self.process.awaits("deliver").await;
        chance.pause(20).await;
        if chance.strikes("sink is slow", 40) {
            chance.pause(3_000).await;
        }
        if chance.strikes("sink fails", 20) {
            return Err(SinkError::Unavailable("the fake sink is away".into()));
        }
        let half = chance.strikes("sink fails half-way", 20);
        let part = self.part.map_or(String::new(), |part| format!(" to sink {part}"));
        self.process.note(|| format!("delivers output {epoch} of shard {shard}{part} at {timestamp}, half {half}"));
        let fell_back = {
            let contents = self.contents.lock().unwrap();
            if !contents.committed.contains(&(shard, epoch, timestamp)) {
                self.conflict(format!(
                    "output {epoch} of shard {shard} at {timestamp} was delivered, but not committed"
                ));
            }
            contents.fell_back.contains(&shard)
        };
        for batch in delivery.output {
            let column = |n: usize| batch.rows.column(n).as_primitive::<Int64Type>().values();
            let rows = if half { batch.rows.num_rows() / 2 } else { batch.rows.num_rows() };
            for row in 0..rows {
                if self.part.unwrap_or(batch.sink) == 0 {
                    let (key, sum, count) = (column(0)[row], column(1)[row], column(2)[row]);
                    let mut rows = self.table.rows.lock().unwrap();
                    let held = rows.entry(key).or_insert((sum, count, timestamp));
                    if held.2 == timestamp && (held.0, held.1) != (sum, count) {
                        self.conflict(format!("key {key}: {held:?} and {sum}, {count}"));
                    }
                    if held.2 < timestamp {
                        *held = (sum, count, timestamp);
                    }
                } else {
                    let (window, group, sum, count) = (column(0)[row], column(1)[row], column(2)[row], column(3)[row]);
                    let mut rows = self.table.windows.lock().unwrap();
                    let held = rows.entry((window, group)).or_insert((sum, count, timestamp));
                    let again = (sum, count, timestamp);
                    // Only who went back to an earlier state, or has dropped it, says the same window again.
                    let dropped = held.2.min(timestamp) <= self.history.reset_at(shard);
                    if *held != again && !((fell_back || dropped) && held.2 != timestamp) {
                        self.conflict(format!("window {window} of group {group} closed twice: {held:?} and {again:?}"));
                    }
                    if held.2 < timestamp {
                        *held = again;
                    }
                }
            }
            if half {
                return Err(SinkError::Unavailable("the fake sink went away".into()));
            }
            tokio::task::yield_now().await;
        }
        self.process.awaits("delivered").await;
        Ok(())
    }

    fn replaces(&self) -> bool {
        self.replaces
    }
}
