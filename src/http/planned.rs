//! What is known of a pipeline before it begins: its statements, what they become, and what it reads and writes.

use serde::Serialize;

use crate::catalog::{KafkaTopic, SinkKind, SinkTable};
use crate::settings::{HIDDEN, is_secret};
use crate::sql::Plan;

/// A pipeline as it was planned.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Planned {
    /// The statements, without what is secret in them.
    pub(super) sql: String,
    /// What they become, a line for each part.
    pub(super) plan: String,
    /// What whoever runs it should know of it.
    pub(super) notices: Vec<String>,
    /// What is read: each table with its topic.
    pub(super) sources: Vec<Place>,
    /// What is written, by each INSERT.
    pub(super) sinks: Vec<Place>,
    /// Where offsets and state are kept.
    pub(super) store: String,
}

/// A table of the statements, and where it is.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Place {
    /// Its name in the statements.
    pub(super) table: String,
    /// The kind of system.
    pub(super) kind: &'static str,
    /// Where it is there.
    pub(super) location: String,
}

impl Planned {
    /// What a plan of these statements says. `store` is where offsets and state are kept, in words.
    pub fn new(sql: &str, plan: &Plan, store: String) -> Self {
        let source =
            |topic: &KafkaTopic| Place { table: topic.table.clone(), kind: "kafka", location: topic.topic.clone() };
        let sink = |sink: &SinkTable| {
            let (kind, location) = match &sink.kind {
                SinkKind::Console { .. } => ("console", "standard output".to_owned()),
                SinkKind::Cassandra { keyspace, table, .. } => ("cassandra", format!("{keyspace}.{table}")),
                SinkKind::Blackhole => ("blackhole", String::new()),
            };
            Place { table: sink.name.clone(), kind, location }
        };
        let secrets = plan.sources.iter().flat_map(|source| &source.properties);
        let secrets = secrets.filter(|(name, _)| is_secret(name)).map(|(_, value)| value.as_str());
        Self {
            sql: without_secrets(sql.trim(), secrets),
            plan: plan.description.clone(),
            notices: plan.notices.clone(),
            sources: plan.sources.iter().map(source).collect(),
            sinks: plan.inserts.iter().map(|insert| sink(&insert.sink)).collect(),
            store,
        }
    }
}

/// The statements with the texts of these values hidden; nothing of them, if one is written in another way.
fn without_secrets<'a>(sql: &str, secrets: impl Iterator<Item = &'a str>) -> String {
    let mut shown = sql.to_owned();
    for secret in secrets.filter(|secret| !secret.is_empty()) {
        let literal = format!("'{}'", secret.replace('\'', "''"));
        if !sql.contains(&literal) {
            return "(not shown: a secret is written in them in a way that cannot be left out)".to_owned();
        }
        shown = shown.replace(&literal, &format!("'{HIDDEN}'")).replace(secret, HIDDEN);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_in_the_statements_is_not_shown() {
        let sql = "OPTIONS ('kafka.sasl.password' 'it''s', 'kafka.sasl.username' 'me') -- it's";
        let shown = without_secrets(sql, ["it's"].into_iter());
        assert!(!shown.contains("it''s") && !shown.contains("it's") && shown.contains("'me'"), "{shown}");
        assert!(!without_secrets("OPTIONS ('a' E'ge\\x68eim')", ["geheim"].into_iter()).contains("eim"));
        assert_eq!(without_secrets("SELECT 1", std::iter::empty()), "SELECT 1");
    }
}
