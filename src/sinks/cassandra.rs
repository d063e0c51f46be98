//! A Cassandra table as a sink.
//!
//! Every row of an epoch is written under the timestamp that the shard's pointer fixed for that epoch. So a delivery that
//! is repeated changes nothing, and a process that lost its shard can only write below what its successor has written:
//! Cassandra keeps the higher timestamp. Nothing here depends on the order in which requests arrive.

mod conversion;
mod definition;
mod fit;
mod operations;
mod pace;
mod schema;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::frame::response::result::ColumnType;
use scylla::serialize::SerializationError;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use strandline_actors::ports::{Change, Delivery, SinkError};
use tokio::time::Instant;
use tracing::{info, warn};

use self::definition::{Definition, qualified, statements};
use self::fit::Fit;
use self::operations::{Keyless, Layout, Operation, Operations};
use self::pace::{Failed, Pace, Stopped};
use self::schema::{Column, Found};
use super::{Counters, SinkOpenError};
use crate::cassandra::{Failure, prepare, quote};
use crate::catalog::{SinkKind, SinkTable};
use crate::settings::CassandraSettings;

/// How long a table that was just created may stay unknown to a node.
const FRESH_TABLE: Duration = Duration::from_secs(5);
/// The time that a change of the schema may take: all nodes of a cluster take part.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(60);
/// How often rows that cannot be written are logged.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// A Cassandra table as a statement declares it.
pub(super) struct Declared<'a> {
    table: &'a SinkTable,
    keyspace: &'a str,
    name: &'a str,
    null_key: Option<&'a str>,
    definition: Definition,
    /// Whether to make the table when it is missing.
    pub(super) create: bool,
}

impl<'a> Declared<'a> {
    /// Reads the declaration, or says why Cassandra cannot have such a table. `None`: it is for another system.
    pub(super) fn new(table: &'a SinkTable) -> Result<Option<Self>, SinkOpenError> {
        let SinkKind::Cassandra { keyspace, table: name, create, null_key } = &table.kind else {
            return Ok(None);
        };
        if table.primary_key.is_empty() {
            return Err(SinkOpenError::NoPrimaryKey { table: table.name.clone() });
        }
        let fields = table.schema.fields().iter().map(AsRef::as_ref);
        let definition =
            Definition::new(keyspace, name, fields, &table.primary_key).map_err(|field| SinkOpenError::NoCqlType {
                table: table.name.clone(),
                column: field.name().clone(),
                from: field.data_type().to_string(),
                key: table.primary_key.contains(field.name()),
            })?;
        Ok(Some(Self { table, keyspace, name, null_key: null_key.as_deref(), definition, create: *create }))
    }

    /// The table's name with its keyspace.
    fn place(&self) -> String {
        qualified(self.keyspace, self.name)
    }
}

/// An open table.
pub(super) struct CassandraTable {
    session: Arc<Session>,
    insert: PreparedStatement,
    delete: PreparedStatement,
    layout: Layout,
    pace: Pace,
    noticed: Mutex<Option<Instant>>,
}

impl CassandraTable {
    /// Finds the table, or makes it if the statement says so, and checks that it takes the rows.
    pub(super) async fn open(
        session: Arc<Session>,
        settings: &CassandraSettings,
        declared: &Declared<'_>,
    ) -> Result<Self, SinkOpenError> {
        let columns = find(&session, settings, declared).await?;
        let fit = Fit::new(declared, &columns);
        fit.check_names()?;
        let place = format!("{}.{}", quote(declared.keyspace), quote(declared.name));
        let (key, values) = (fit.key(), fit.values());
        let insert = insert_statement(&place, &key, &values);
        let insert = prepare_fresh(&session, &insert).await.map_err(SinkOpenError::Failed)?;
        let delete = prepare(&session, &delete_statement(&place, &key)).await.map_err(SinkOpenError::Failed)?;
        let specs = insert.get_variable_col_specs();
        let types: Vec<(&str, &ColumnType<'_>)> = specs.iter().map(|spec| (spec.name(), spec.typ())).collect();
        let layout = fit.layout(&types)?;
        Ok(Self { session, insert, delete, layout, pace: Pace::new(), noticed: Mutex::new(None) })
    }

    /// Writes the output of one epoch.
    pub(super) async fn deliver(&self, delivery: &Delivery<'_>, counters: &Counters) -> Result<(), SinkError> {
        let operations = self.layout.operations(delivery.output)?;
        self.report_left_out(&operations, counters);
        self.write(&operations, delivery.timestamp, counters).await?;
        let deletes = operations.list.iter().filter(|operation| operation.change == Change::Delete).count();
        counters.written(Change::Delete, deletes);
        counters.written(Change::Upsert, operations.list.len() - deletes);
        Ok(())
    }

    async fn write(&self, operations: &Operations<'_>, timestamp: i64, counters: &Counters) -> Result<(), SinkError> {
        let written = self.pace.send_all(&self.layout.table, &operations.list, async |operation: &Operation| {
            let cells = operations.cells(operation, timestamp).map_err(Failed::ForGood)?;
            let statement = match operation.change {
                Change::Upsert => &self.insert,
                Change::Delete => &self.delete,
            };
            match self.session.execute_unpaged(statement, Cells(&cells)).await.map_err(Failure::from) {
                Ok(_) => {
                    counters.taken();
                    Ok(())
                }
                Err(Failure::Refused(reason)) => Err(Failed::ForGood(SinkError::Fatal(format!(
                    "Cassandra refused the row ({}) of {}: {reason}",
                    operations.show_key(operation),
                    self.layout.table
                )))),
                Err(failure) => {
                    let why = failure.to_string();
                    counters.failed(&why, false);
                    Err(Failed::ForNow(why))
                }
            }
        });
        written.await.map_err(|stopped| match stopped {
            Stopped::ForGood(error) => error,
            Stopped::GivenUp { left, reason } => SinkError::Unavailable(format!(
                "{left} of {} rows could not be written to {}: {reason}",
                operations.list.len(),
                self.layout.table
            )),
        })
    }

    /// Counts the rows that cannot be written, and shows one of them from time to time.
    fn report_left_out(&self, operations: &Operations<'_>, counters: &Counters) {
        let Some(first) = operations.left_out.first() else {
            return;
        };
        for left_out in &operations.left_out {
            let counter = match left_out.reason {
                Keyless::Null => &counters.null_keys,
                Keyless::Empty => &counters.empty_keys,
                Keyless::Long => &counters.long_keys,
                Keyless::Unfit(_) => &counters.unfit_keys,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let Ok(mut noticed) = self.noticed.lock() else {
            return;
        };
        if noticed.is_none_or(|last| last.elapsed() >= NOTICE_INTERVAL) {
            *noticed = Some(Instant::now());
            let counts = counters.read();
            warn!(
                table = self.layout.table,
                rows = counts.null_keys + counts.empty_keys + counts.long_keys + counts.unfit_keys,
                "rows are not written: {}",
                operations.explain(*first)
            );
        }
    }
}

/// Prepares a statement on a table that is in the schema tables by now: one that another process has just created is
/// listed there a moment before the node takes statements on it.
async fn prepare_fresh(session: &Session, cql: &str) -> Result<PreparedStatement, Failure> {
    let deadline = tokio::time::Instant::now() + FRESH_TABLE;
    loop {
        match prepare(session, cql).await {
            Err(Failure::Refused(error)) if tokio::time::Instant::now() < deadline => {
                tracing::debug!("{error}; asking again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

/// The columns of the table, which is made if it is missing and the statement says so.
async fn find(
    session: &Session,
    settings: &CassandraSettings,
    declared: &Declared<'_>,
) -> Result<Vec<Column>, SinkOpenError> {
    let look_up = || schema::look_up(session, declared.keyspace, declared.name);
    let mut found = look_up().await.map_err(SinkOpenError::Failed)?;
    if declared.create && matches!(found, Found::NoTable(_)) {
        for cql in declared.definition.create() {
            let mut statement = Statement::new(cql.as_str());
            statement.set_is_idempotent(true);
            statement.set_request_timeout(Some(settings.timeout.max(SCHEMA_TIMEOUT)));
            session
                .query_unpaged(statement, ())
                .await
                .map_err(|error| SinkOpenError::Failed(Failure::from(error).during(&cql)))?;
        }
        info!(table = declared.place(), "created the table");
        found = look_up().await.map_err(SinkOpenError::Failed)?;
    }
    match found {
        Found::Table(columns) => Ok(columns),
        Found::View => Err(SinkOpenError::View { table: declared.place() }),
        Found::NoTable(known) => Err(SinkOpenError::NoTable {
            table: declared.place(),
            hint: schema::hint(declared.name, known.iter().map(String::as_str)),
            ddl: statements(&declared.definition.create()),
        }),
        Found::NoKeyspace(known) => {
            let keyspace = definition::name(declared.keyspace);
            let mut ddl =
                vec![format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {}", settings.replication)];
            if !declared.create {
                ddl.extend(declared.definition.create());
            }
            let hint = schema::hint(declared.keyspace, known.iter().map(String::as_str));
            Err(SinkOpenError::NoKeyspace { keyspace, hint, ddl: statements(&ddl) })
        }
    }
}

/// Cells as they are bound, each with its length before it.
struct Cells<'a>(&'a [u8]);

impl SerializeRow for Cells<'_> {
    fn serialize(&self, _: &RowSerializationContext<'_>, writer: &mut RowWriter<'_>) -> Result<(), SerializationError> {
        let mut rest = self.0;
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let cell = writer.make_cell_writer();
            let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
                cell.set_null();
                rest = after;
                continue;
            };
            let (value, after) = after.split_at(length);
            cell.set_value(value).map_err(SerializationError::new)?;
            rest = after;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn insert_statement(place: &str, key: &[&str], values: &[&str]) -> String {
    let columns: Vec<String> = key.iter().chain(values).map(|column| quote(column)).collect();
    let markers = vec!["?"; columns.len()].join(", ");
    format!("INSERT INTO {place} ({}) VALUES ({markers}) USING TIMESTAMP ?", columns.join(", "))
}

fn delete_statement(place: &str, key: &[&str]) -> String {
    let conditions: Vec<String> = key.iter().map(|column| format!("{} = ?", quote(column))).collect();
    format!("DELETE FROM {place} USING TIMESTAMP ? WHERE {}", conditions.join(" AND "))
}
