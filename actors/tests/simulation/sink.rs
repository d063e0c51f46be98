//! A fake table: the row with the highest write timestamp stays, as in Cassandra.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use strandline_actors::ports::{Delivery, Sink, SinkError};

use crate::faults::Chance;

#[derive(Debug, Default)]
pub struct Table {
    /// By key: sum, count, write timestamp.
    pub rows: Mutex<BTreeMap<i64, (i64, i64, i64)>>,
    /// Two writes of one key under one timestamp that said different things.
    pub conflicts: Mutex<Vec<String>>,
}

pub struct FakeSink {
    pub table: Arc<Table>,
    pub chance: Arc<Chance>,
}

#[async_trait]
impl Sink for FakeSink {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        self.chance.pause(20).await;
        if self.chance.strikes("sink fails", 12) {
            return Err(SinkError::Unavailable("the fake sink is away".into()));
        }
        let half = self.chance.strikes("sink fails half-way", 12);
        for batch in delivery.output {
            let column = |n: usize| batch.rows.column(n).as_primitive::<Int64Type>();
            for row in 0..batch.rows.num_rows() {
                if half && row * 2 > batch.rows.num_rows() {
                    return Err(SinkError::Unavailable("the fake sink went away".into()));
                }
                let (key, sum, count) = (column(0).value(row), column(1).value(row), column(2).value(row));
                let mut rows = self.table.rows.lock().unwrap();
                let held = rows.entry(key).or_insert((sum, count, delivery.timestamp));
                if held.2 == delivery.timestamp && (held.0, held.1) != (sum, count) {
                    self.table.conflicts.lock().unwrap().push(format!("key {key}: {held:?} and {sum}, {count}"));
                }
                if held.2 < delivery.timestamp {
                    *held = (sum, count, delivery.timestamp);
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn replaces(&self) -> bool {
        true
    }
}
