//! The tables in Cassandra: `deploy/cassandra/schema.cql` is their only description, for people and for this code.
//!
//! Only what is missing is created, so a user without the right to create tables can work with tables that are there.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::statement::unprepared::Statement;
use strandline_actors::ports::StoreError;

use crate::cassandra::{Failure, quote};

/// The file that people can run themselves.
pub const SCHEMA: &str = include_str!("../../../deploy/cassandra/schema.cql");

#[cfg(test)]
const KEYSPACE_PREFIX: &str = "CREATE KEYSPACE IF NOT EXISTS strandline";
const TABLE_PREFIX: &str = "CREATE TABLE IF NOT EXISTS strandline.";

/// The time for one change of the schema, which all nodes have to agree on.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A table of the file.
struct Table<'a> {
    name: &'a str,
    /// What follows the name.
    definition: &'a str,
}

/// The statements of the file, without its comments.
fn statements(cql: &str) -> Vec<String> {
    let code: Vec<&str> = cql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join("\n").split(';').map(|statement| statement.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

fn tables(statements: &[String]) -> impl Iterator<Item = Table<'_>> {
    statements.iter().filter_map(|statement| {
        let table = statement.strip_prefix(TABLE_PREFIX)?;
        let end = table.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        Some(Table { name: &table[..end], definition: &table[end..] })
    })
}

/// Creates what is missing.
pub(super) async fn ensure(session: &Session, keyspace: &str, replication: &str) -> Result<(), StoreError> {
    let statements = statements(SCHEMA);
    let existing = existing_tables(session, keyspace).await?;
    let missing: Vec<Table<'_>> = tables(&statements).filter(|table| !existing.contains(table.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if existing.is_empty() && replication_of(session, keyspace).await?.is_none() {
        tracing::info!("creating keyspace {keyspace} with replication {replication}");
        let create = format!("CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {replication}", quote(keyspace));
        change(session, &create).await.map_err(|failure| refused(failure, &format!("keyspace {keyspace}")))?;
    }
    for table in missing {
        tracing::info!("creating table {keyspace}.{}", table.name);
        let create =
            format!("CREATE TABLE IF NOT EXISTS {}.{}{}", quote(keyspace), quote(table.name), table.definition);
        change(session, &create)
            .await
            .map_err(|failure| refused(failure, &format!("table {keyspace}.{}", table.name)))?;
    }
    session.await_schema_agreement().await.map_err(|error| {
        StoreError::Unavailable(format!("the nodes of Cassandra do not agree on the schema: {error}"))
    })?;
    Ok(())
}

fn refused(failure: Failure, what: &str) -> StoreError {
    match failure {
        Failure::Refused(reason) => StoreError::Fatal(format!(
            "{what} does not exist and cannot be created: {reason}. Check STRANDLINE_CASSANDRA__REPLICATION and the \
             rights of the user, or have somebody create it with deploy/cassandra/schema.cql"
        )),
        other => other.during(&format!("creating {what}")).into(),
    }
}

async fn change(session: &Session, cql: &str) -> Result<(), Failure> {
    let mut statement = Statement::new(cql);
    statement.set_is_idempotent(true);
    statement.set_request_timeout(Some(CHANGE_TIMEOUT));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

pub(super) async fn existing_tables(session: &Session, keyspace: &str) -> Result<HashSet<String>, StoreError> {
    let what = "reading which tables exist";
    let query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let answer = session.query_unpaged(query, (keyspace,)).await.map_err(|error| Failure::from(error).during(what))?;
    let rows = answer.into_rows_result().map_err(|error| unreadable(what, &error))?;
    rows.rows::<(String,)>()
        .map_err(|error| unreadable(what, &error))?
        .map(|row| row.map(|(name,)| name).map_err(|error| unreadable(what, &error)))
        .collect()
}

/// The replication of a keyspace, if it exists.
async fn replication_of(session: &Session, keyspace: &str) -> Result<Option<HashMap<String, String>>, StoreError> {
    let what = "reading which keyspaces exist";
    let query = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let answer = session.query_unpaged(query, (keyspace,)).await.map_err(|error| Failure::from(error).during(what))?;
    let rows = answer.into_rows_result().map_err(|error| unreadable(what, &error))?;
    let row = rows.maybe_first_row::<(HashMap<String, String>,)>().map_err(|error| unreadable(what, &error))?;
    Ok(row.map(|(replication,)| replication))
}

/// How many copies a keyspace keeps of each row, over all datacenters; `None` if it does not exist or does not say.
pub(super) async fn copies(session: &Session, keyspace: &str) -> Result<Option<u32>, StoreError> {
    Ok(replication_of(session, keyspace).await?.and_then(|replication| copies_of(&replication)))
}

/// The copies that a replication says, such as `{'class': 'NetworkTopologyStrategy', 'dc1': '3', 'dc2': '3'}`.
fn copies_of(replication: &HashMap<String, String>) -> Option<u32> {
    // Of `3/1` one copy is a transient one.
    let factor = |factor: &String| factor.split('/').next().and_then(|full| full.parse::<u32>().ok());
    let factors: Option<Vec<u32>> =
        replication.iter().filter(|(key, _)| *key != "class").map(|(_, f)| factor(f)).collect();
    factors.filter(|factors| !factors.is_empty()).map(|factors| factors.iter().sum())
}

fn unreadable(what: &str, error: &dyn std::error::Error) -> StoreError {
    StoreError::Corrupt(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_of_the_file_is_used() {
        let statements = statements(SCHEMA);
        let keyspaces = statements.iter().filter(|statement| statement.starts_with(KEYSPACE_PREFIX)).count();
        let names: Vec<&str> = tables(&statements).map(|table| table.name).collect();
        assert_eq!(keyspaces, 1);
        assert_eq!(keyspaces + names.len(), statements.len());
        assert_eq!(
            names,
            [
                "kafka_offsets",
                "pipelines",
                "generations",
                "pointers",
                "segment_index",
                "segments",
                "start_offsets",
                "crash_notes",
                "dead_letters",
                "dead_letter_replays",
                "heartbeats",
                "pauses"
            ]
        );
    }

    #[test]
    fn the_copies_of_all_datacenters_count() {
        let copies = |factors: &[(&str, &str)]| {
            copies_of(&factors.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let class = ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");
        assert_eq!(copies(&[class, ("dc1", "1")]), Some(1));
        assert_eq!(copies(&[class, ("dc1", "3"), ("dc2", "2/1")]), Some(5));
        assert_eq!(copies(&[class]), None);
        assert_eq!(copies(&[class, ("dc1", "many")]), None);
    }

    #[test]
    fn comments_may_hold_semicolons() {
        assert_eq!(
            statements("-- a; b\nCREATE x;\n  -- c;\n\nCREATE y (\n-- d\n z);\n"),
            ["CREATE x", "CREATE y (\n z)"]
        );
    }
}
