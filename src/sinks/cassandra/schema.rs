//! What Cassandra says of a table, read from its own schema tables.

use scylla::client::session::Session;
use scylla::deserialize::row::DeserializeRow;
use scylla::serialize::row::SerializeRow;

use crate::cassandra::Failure;

/// The part that a column plays in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Part of the partition key.
    Partition,
    /// Part of the rest of the primary key.
    Clustering,
    /// One value for a whole partition.
    Static,
    /// A value of a row.
    Regular,
}

/// A column as it is.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Its place in the partition key or among the clustering columns.
    pub(crate) position: i32,
    /// Its type as CQL writes it.
    pub(crate) cql: String,
}

/// What was found under a table's name.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// There is no such keyspace; these there are.
    NoKeyspace(Vec<String>),
    /// There is no such table in the keyspace; these there are.
    NoTable(Vec<String>),
    /// It is a materialized view.
    View,
    /// The table's columns: the primary key in its order, then the others.
    Table(Vec<Column>),
}

/// Looks a table up.
pub(crate) async fn look_up(session: &Session, keyspace: &str, table: &str) -> Result<Found, Failure> {
    let keyspaces: Vec<(String,)> = query(session, "SELECT keyspace_name FROM system_schema.keyspaces", ()).await?;
    if !keyspaces.iter().any(|(name,)| name == keyspace) {
        return Ok(Found::NoKeyspace(keyspaces.into_iter().map(|(name,)| name).collect()));
    }
    let tables: Vec<(String,)> =
        query(session, "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", (keyspace,)).await?;
    if !tables.iter().any(|(name,)| name == table) {
        let views: Vec<(String,)> =
            query(session, "SELECT view_name FROM system_schema.views WHERE keyspace_name = ?", (keyspace,)).await?;
        if views.iter().any(|(name,)| name == table) {
            return Ok(Found::View);
        }
        return Ok(Found::NoTable(tables.into_iter().map(|(name,)| name).collect()));
    }
    let rows: Vec<(String, String, i32, String)> = query(
        session,
        "SELECT column_name, kind, position, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?",
        (keyspace, table),
    )
    .await?;
    let mut columns: Vec<Column> = rows
        .into_iter()
        .map(|(name, kind, position, cql)| {
            let role = match kind.as_str() {
                "partition_key" => Role::Partition,
                "clustering" => Role::Clustering,
                "static" => Role::Static,
                _ => Role::Regular,
            };
            Column { name, role, position, cql }
        })
        .collect();
    columns.sort_by_key(|column| (column.role as u8, column.position));
    Ok(Found::Table(columns))
}

async fn query<T>(session: &Session, cql: &str, values: impl SerializeRow) -> Result<Vec<T>, Failure>
where
    T: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let unreadable = |error: &dyn std::fmt::Display| Failure::Unreadable(format!("{cql}: {error}"));
    let result = session.query_unpaged(cql, values).await.map_err(|error| Failure::from(error).during(cql))?;
    let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
    let rows = rows.rows::<T>().map_err(|error| unreadable(&error))?;
    rows.collect::<Result<_, _>>().map_err(|error| unreadable(&error))
}

/// Which of the known names was probably meant, in words to append, or nothing.
pub(crate) fn hint<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let distance = |name: &str| strsim::damerau_levenshtein(&wanted.to_lowercase(), &name.to_lowercase());
    let nearest = known.into_iter().map(|name| (distance(name), name)).min();
    match nearest {
        Some((0, name)) => format!(" (there is {name}; upper and lower case count)"),
        Some((far, name)) if far <= 2 && far * 2 < wanted.len() => format!(" (did you mean {name}?)"),
        _ => String::new(),
    }
}
