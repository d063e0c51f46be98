//! The sinks of all INSERTs of a pipeline as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use strandline_actors::pointer::{Epoch, ShardId};
use strandline_actors::ports::{Delivery, Sink, SinkError};
use strandline_actors::several::Several;

use super::{SinkCounts, SinkOpenError, SinkReach, TableSink, open, reopen};
use crate::catalog::SinkTable;
use crate::settings::Settings;

/// The tables that a pipeline writes, opened.
#[derive(Debug)]
pub struct Sinks {
    tables: Vec<(String, Arc<TableSink>)>,
    all: Several,
}

/// What one sink has done since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The table's name in the statements.
    pub table: String,
    /// What was written.
    pub counts: SinkCounts,
    /// For each shard, the epoch of the last output that it took.
    pub epochs: BTreeMap<ShardId, Epoch>,
    /// How it takes what it is sent.
    pub reach: SinkReach,
}

impl Sinks {
    /// Opens the sinks of a pipeline, as [`open`] does each.
    pub async fn open(settings: &Settings, tables: &[SinkTable]) -> Result<Arc<Self>, SinkOpenError> {
        let mut opened = Vec::new();
        for table in tables {
            opened.push((table.name.clone(), open(settings, table).await?));
        }
        Ok(Self::of(opened))
    }

    /// Opens the sinks of a pipeline that has written to them before, as [`reopen`] does each.
    pub async fn reopen(settings: &Settings, tables: &[SinkTable]) -> Result<Arc<Self>, SinkOpenError> {
        let mut opened = Vec::new();
        for table in tables {
            opened.push((table.name.clone(), reopen(settings, table).await?));
        }
        Ok(Self::of(opened))
    }

    fn of(tables: Vec<(String, Arc<TableSink>)>) -> Arc<Self> {
        let sinks = tables.iter().map(|(_, sink)| Arc::clone(sink) as Arc<dyn Sink>).collect();
        Arc::new(Self { tables, all: Several::new(sinks) })
    }

    /// What each has done since it was opened.
    pub fn written(&self) -> Vec<Written> {
        let written = |(table, sink): &(String, Arc<TableSink>)| Written {
            table: table.clone(),
            counts: sink.counts(),
            epochs: sink.epochs(),
            reach: sink.reach(),
        };
        self.tables.iter().map(written).collect()
    }
}

#[async_trait]
impl Sink for Sinks {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        self.all.deliver(delivery).await
    }

    fn replaces(&self) -> bool {
        self.all.replaces()
    }

    fn discards(&self, sink: usize) -> bool {
        self.all.discards(sink)
    }
}
