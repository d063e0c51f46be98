//! Where results go: the console, a Cassandra table, or nowhere.
//!
//! A sink takes the output of one epoch of one shard whole. How often a row can arrive depends on the system behind it:
//! a table holds each row once, however often it is delivered; the console shows a repeated delivery again.

mod cassandra;
mod console;
mod several;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use strandline_actors::pointer::{Epoch, ShardId};
use strandline_actors::ports::{Change, Delivery, Sink, SinkError};

use self::cassandra::{CassandraTable, Declared};
use self::console::Console;
pub(crate) use self::console::printable;
pub use self::several::{Sinks, Written};
use crate::cassandra::{CassandraError, Failure};
use crate::catalog::{SinkKind, SinkTable};
use crate::settings::{CassandraSettings, Settings};

/// Opens the sink of a pipeline: connects, and makes sure that the table takes the rows of the statement.
///
/// A missing Cassandra table is created only if the statement says `'sink.create' 'true'`; every other difference is an
/// error that shows what to run.
pub async fn open(settings: &Settings, table: &SinkTable) -> Result<Arc<TableSink>, SinkOpenError> {
    open_table(settings, table, true).await
}

/// Opens the sink of a pipeline that has written to it before: what is missing now is missing for good.
pub async fn reopen(settings: &Settings, table: &SinkTable) -> Result<Arc<TableSink>, SinkOpenError> {
    open_table(settings, table, false).await
}

async fn open_table(settings: &Settings, table: &SinkTable, may_create: bool) -> Result<Arc<TableSink>, SinkOpenError> {
    let target = match &table.kind {
        SinkKind::Console { format } => Target::Console(Console::stdout(table, *format)),
        SinkKind::Cassandra { .. } | SinkKind::Blackhole => match Declared::new(table)? {
            Some(mut declared) => {
                declared.create &= may_create;
                Target::Cassandra(Box::new(connect(&settings.cassandra, &declared).await?))
            }
            None => Target::Blackhole,
        },
    };
    Ok(Arc::new(TableSink { target, counters: Counters::default() }))
}

/// Checks what can be checked of a sink without its servers.
pub fn check(table: &SinkTable) -> Result<(), SinkOpenError> {
    Declared::new(table).map(drop)
}

/// Checks a sink with its servers and changes nothing there, even if [`open`] would create the table.
pub async fn check_connected(settings: &Settings, table: &SinkTable) -> Result<(), SinkOpenError> {
    let Some(mut declared) = Declared::new(table)? else {
        return Ok(());
    };
    let create = std::mem::take(&mut declared.create);
    match connect(&settings.cassandra, &declared).await {
        Err(SinkOpenError::NoTable { .. }) if create => Ok(()),
        other => other.map(drop),
    }
}

async fn connect(settings: &CassandraSettings, declared: &Declared<'_>) -> Result<CassandraTable, SinkOpenError> {
    let session = crate::cassandra::connect(settings).await?;
    CassandraTable::open(session, settings, declared).await
}

/// Why a sink cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SinkOpenError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] CassandraError),
    /// The server did not do as asked.
    #[error("{0}")]
    Failed(Failure),
    /// The statement declares no primary key.
    #[error(
        "the table {table} needs a primary key, by which Cassandra replaces the earlier result of a group: declare \
         PRIMARY KEY (...) in its CREATE EXTERNAL TABLE"
    )]
    NoPrimaryKey {
        /// The table's name in the statements.
        table: String,
    },
    /// A column has a type that Cassandra does not have.
    #[error(
        "the column {column} of the table {table} is {from}, which no CQL type{of_key} can hold: cast it in the SELECT, \
         for instance to VARCHAR or BIGINT",
        of_key = if *.key { " of a primary key" } else { "" }
    )]
    NoCqlType {
        /// The table's name in the statements.
        table: String,
        /// The column.
        column: String,
        /// Its type.
        from: String,
        /// Whether it is part of the primary key.
        key: bool,
    },
    /// The keyspace is missing.
    #[error("Cassandra has no keyspace {keyspace}{hint}. To make it, run:\n\n{ddl}")]
    NoKeyspace {
        /// The keyspace.
        keyspace: String,
        /// Names that are near.
        hint: String,
        /// What to run.
        ddl: String,
    },
    /// The table is missing.
    #[error("Cassandra has no table {table}{hint}. Set 'sink.create' 'true' in its OPTIONS, or run:\n\n{ddl}")]
    NoTable {
        /// The table with its keyspace.
        table: String,
        /// Names that are near.
        hint: String,
        /// What to run.
        ddl: String,
    },
    /// The table takes no writes, since it is a view.
    #[error("{table} is a materialized view, which only Cassandra itself writes: name its base table in LOCATION")]
    View {
        /// The view with its keyspace.
        table: String,
    },
    /// The table is another one than the statement declares.
    #[error("the Cassandra table {table} does not take the rows of the statement:\n{problems}\n{remedy}:\n\n{ddl}")]
    Mismatch {
        /// The table with its keyspace.
        table: String,
        /// Each difference on a line of its own.
        problems: String,
        /// What running the statements achieves.
        remedy: &'static str,
        /// What to run.
        ddl: String,
    },
    /// The text for NULL in a key cannot be used.
    #[error("'sink.null.key' '{text}' of the table {table}: {reason}")]
    NullKey {
        /// The table's name in the statements.
        table: String,
        /// The text.
        text: String,
        /// Why it cannot be used.
        reason: String,
    },
}

impl SinkOpenError {
    /// Whether trying again later may help, with nothing changed.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(error) => error.may_pass(),
            Self::Failed(failure) => matches!(failure, Failure::Unknown(_)),
            _ => false,
        }
    }
}

/// The table that a pipeline writes, opened.
pub struct TableSink {
    target: Target,
    counters: Counters,
}

enum Target {
    Console(Console),
    Cassandra(Box<CassandraTable>),
    Blackhole,
}

impl std::fmt::Debug for TableSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableSink").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl TableSink {
    /// What the sink has done since it was opened.
    pub fn counts(&self) -> SinkCounts {
        self.counters.read()
    }

    /// For each shard, the epoch of the last output that it took since it was opened.
    pub fn epochs(&self) -> BTreeMap<ShardId, Epoch> {
        self.counters.epochs().clone()
    }

    /// How it takes what it is sent.
    pub fn reach(&self) -> SinkReach {
        let Trouble { last_error, refused } = self.counters.trouble().clone();
        SinkReach { troubled: self.counters.troubled.load(Ordering::Relaxed), refused, last_error }
    }

    async fn hand_over(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        match &self.target {
            Target::Console(console) => console.deliver(delivery).await?,
            Target::Cassandra(table) => return table.deliver(delivery, &self.counters).await,
            Target::Blackhole => {}
        }
        for batch in delivery.output {
            self.counters.written(batch.change, batch.rows.num_rows());
        }
        Ok(())
    }
}

#[async_trait]
impl Sink for TableSink {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        if let Some(stray) = delivery.output.iter().find(|batch| batch.sink != 0) {
            return Err(SinkError::Fatal(format!("there are rows for sink {}, but only sink 0 is open", stray.sink)));
        }
        let begun = Instant::now();
        let handed = self.hand_over(delivery).await;
        match &handed {
            Ok(()) => {
                self.counters.deliveries.fetch_add(1, Ordering::Relaxed);
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.counters.delivery_micros.fetch_add(micros, Ordering::Relaxed);
                self.counters.epochs().insert(delivery.shard, delivery.epoch);
                self.counters.taken();
            }
            Err(SinkError::Unavailable(why)) => self.counters.failed(why, false),
            Err(SinkError::Fatal(why)) => self.counters.failed(why, true),
        }
        handed
    }

    fn replaces(&self) -> bool {
        !matches!(self.target, Target::Console(_))
    }

    fn discards(&self, _sink: usize) -> bool {
        matches!(self.target, Target::Blackhole)
    }
}

/// What a sink has done since it was opened. A delivery that is repeated counts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Rows that were inserted or replaced.
    pub upserts: u64,
    /// Rows that were removed.
    pub deletes: u64,
    /// Rows that were not written, since a column of their primary key is NULL.
    pub null_keys: u64,
    /// Rows that were not written, since their partition key is empty.
    pub empty_keys: u64,
    /// Rows that were not written, since their primary key is longer than Cassandra allows.
    pub long_keys: u64,
    /// Rows that were not written, since a column of their primary key has a value that the CQL type does not have.
    pub unfit_keys: u64,
    /// Outputs of checkpoints that were delivered.
    pub deliveries: u64,
    /// The time that this took, in microseconds.
    pub delivery_micros: u64,
    /// Requests that were sent again.
    pub retries: u64,
}

impl SinkCounts {
    /// Rows that were not written, since the table's key does not take them.
    pub fn refused(self) -> u64 {
        self.null_keys + self.empty_keys + self.long_keys + self.unfit_keys
    }
}

/// How the system behind a sink takes what it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkReach {
    /// It did not take what it was last sent; that is sent again, unless it was refused for good.
    pub troubled: bool,
    /// It refused it for good.
    pub refused: bool,
    /// The last fault, and when it was.
    pub last_error: Option<(SystemTime, String)>,
}

#[derive(Debug, Default)]
struct Counters {
    upserts: AtomicU64,
    deletes: AtomicU64,
    null_keys: AtomicU64,
    empty_keys: AtomicU64,
    long_keys: AtomicU64,
    unfit_keys: AtomicU64,
    deliveries: AtomicU64,
    delivery_micros: AtomicU64,
    retries: AtomicU64,
    epochs: Mutex<BTreeMap<ShardId, Epoch>>,
    troubled: AtomicBool,
    trouble: Mutex<Trouble>,
}

/// What the system behind a sink last would not do.
#[derive(Clone, Debug, Default)]
struct Trouble {
    last_error: Option<(SystemTime, String)>,
    refused: bool,
}

impl Counters {
    fn epochs(&self) -> MutexGuard<'_, BTreeMap<ShardId, Epoch>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is sent again, or, if it is refused for good, no more.
    fn failed(&self, why: &str, refused: bool) {
        self.retries.fetch_add(u64::from(!refused), Ordering::Relaxed);
        let mut trouble = self.trouble();
        *trouble = Trouble { last_error: Some((SystemTime::now(), why.to_owned())), refused };
        self.troubled.store(true, Ordering::Relaxed);
    }

    /// Something was taken.
    fn taken(&self) {
        if self.troubled.load(Ordering::Relaxed) {
            self.trouble().refused = false;
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    fn written(&self, change: Change, rows: usize) {
        let counter = match change {
            Change::Upsert => &self.upserts,
            Change::Delete => &self.deletes,
        };
        counter.fetch_add(rows as u64, Ordering::Relaxed);
    }

    fn read(&self) -> SinkCounts {
        SinkCounts {
            upserts: self.upserts.load(Ordering::Relaxed),
            deletes: self.deletes.load(Ordering::Relaxed),
            null_keys: self.null_keys.load(Ordering::Relaxed),
            empty_keys: self.empty_keys.load(Ordering::Relaxed),
            long_keys: self.long_keys.load(Ordering::Relaxed),
            unfit_keys: self.unfit_keys.load(Ordering::Relaxed),
            deliveries: self.deliveries.load(Ordering::Relaxed),
            delivery_micros: self.delivery_micros.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
        }
    }
}
