//! What the statements of a pipeline declare: the topics that are read and the tables that are written.
//!
//! The SQL planner fills these types; the Kafka source and the sinks are built from them.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;

/// Where a partition that was never read starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StartingOffsets {
    /// At the first record that the log still has.
    #[default]
    Earliest,
    /// At the end.
    Latest,
    /// Per partition; -2 means earliest and -1 latest, as in Spark. Partitions that are not named start at earliest.
    Each(BTreeMap<i32, i64>),
}

/// What happens when records were deleted before they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDataLoss {
    /// The partition halts.
    #[default]
    Fail,
    /// Goes on at the log's start and counts the gap.
    Skip,
}

/// A topic that a table reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaTopic {
    /// The table's name.
    pub table: String,
    /// The topic's name.
    pub topic: String,
    /// Where a first start begins.
    pub starting_offsets: StartingOffsets,
    /// Records in one batch at most.
    pub max_offsets_per_batch: Option<usize>,
    /// What to do when records are gone.
    pub on_data_loss: OnDataLoss,
    /// librdkafka properties of this table (`kafka.<name>` in OPTIONS).
    pub properties: BTreeMap<String, String>,
    /// Whether the query uses the records' keys.
    pub keys: bool,
    /// Whether the query uses the records' headers.
    pub headers: bool,
}

impl KafkaTopic {
    /// A topic that is read from its beginning, with nothing else that the options of a table could say.
    pub fn plain(table: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            topic: topic.into(),
            starting_offsets: StartingOffsets::Earliest,
            max_offsets_per_batch: None,
            on_data_loss: OnDataLoss::Fail,
            properties: BTreeMap::new(),
            keys: false,
            headers: false,
        }
    }
}

/// How the console shows rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleFormat {
    /// A readable table per delivery.
    #[default]
    Table,
    /// One JSON object a line.
    Json,
}

/// The system that a sink writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// Standard output.
    Console {
        /// How rows look.
        format: ConsoleFormat,
    },
    /// A Cassandra table.
    Cassandra {
        /// Its keyspace.
        keyspace: String,
        /// Its name.
        table: String,
        /// Whether to create it when it is missing.
        create: bool,
        /// What is written for NULL in a text column of the primary key.
        null_key: Option<String>,
    },
    /// Nowhere, for measuring.
    Blackhole,
}

impl SinkKind {
    /// Whether both name one table, whatever else they say of it.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Cassandra { keyspace, table, .. },
                Self::Cassandra { keyspace: other_keyspace, table: other_table, .. },
            ) => keyspace == other_keyspace && table == other_table,
            _ => false,
        }
    }
}

/// A table that the pipeline writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkTable {
    /// Its name in the statements.
    pub name: String,
    /// Where it is.
    pub kind: SinkKind,
    /// The columns of the rows that it gets.
    pub schema: SchemaRef,
    /// The names of the columns of its primary key; the first is the partition key, the rest clustering columns.
    pub primary_key: Vec<String>,
}
