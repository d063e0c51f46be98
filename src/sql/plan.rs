//! From the statements to the two halves of the query.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::logical_expr::TableScan;
use strandline_actors::child::panic_text;
use strandline_actors::pointer::ShardId;
use strandline_actors::ports::{KeyedOperator, Query, SourceStage};
use strandline_actors::position::SourcePartition;

use super::branch::Branch;
use super::checked::{self, Checked};
use super::error::{SqlError, Text};
use super::expiry::Expiry;
use super::fingerprint::{self, Described, fingerprint, tagged};
use super::flat::{Flat, flatten};
use super::halves::{Builder, Halves};
use super::operator::nested::{NestedOperator, NestedPlan};
use super::operator::{AggregateOperator, AggregatePlan};
use super::passthrough::{PassThrough, SinkKey};
use super::reading::Reading;
use super::stage::{BatchStage, StagePlan};
use super::statements::{self, Statements};
use super::tally::RowCounters;
use super::together::Together;
use crate::catalog::{KafkaTopic, SinkKind, SinkTable};

/// The stack on which statements are planned.
const STACK: usize = 128 << 20;

/// A checked pipeline.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The topics that are read; a source's number is its place here.
    pub sources: Vec<KafkaTopic>,
    /// What is written; the number of an INSERT, and of its sink, is its place here.
    pub inserts: Vec<Insert>,
    /// Tells plans apart whose stored states do not fit each other.
    pub fingerprint: String,
    /// The plan in words, a line for each part: what is read, filtered, grouped, kept and written. Plans with different
    /// fingerprints have different descriptions.
    pub description: String,
    /// The part of it that is about reading.
    pub reading: String,
    /// What whoever runs it should know of it.
    pub notices: Vec<String>,
    stages: Vec<Arc<StagePlan>>,
    unrepeatable: Option<&'static str>,
    closes: bool,
}

/// One INSERT of a pipeline.
#[derive(Clone, Debug)]
pub struct Insert {
    /// The table that is written.
    pub sink: SinkTable,
    /// Its query in words, a line for each part, from the rows that it takes on.
    pub description: String,
    /// The groups by whose hash its rows find their shard, if it has any.
    pub routed_by: Vec<String>,
    /// What became of its rows in this process.
    pub counters: Arc<RowCounters>,
    second: Second,
}

/// The second half of a query.
#[derive(Clone, Debug)]
pub(super) enum Second {
    Aggregate(Arc<AggregatePlan>),
    /// Twice.
    Nested(Arc<NestedPlan>),
    PassThrough(Option<Arc<SinkKey>>),
    /// Rows go nowhere.
    Discard,
}

impl Second {
    fn operator(&self) -> Box<dyn KeyedOperator> {
        match self {
            Self::Aggregate(plan) => Box::new(AggregateOperator::new(Arc::clone(plan))),
            Self::Nested(plan) => Box::new(NestedOperator::new(Arc::clone(plan))),
            Self::PassThrough(key) => Box::new(PassThrough::new(key.clone())),
            Self::Discard => Box::new(PassThrough::discarding()),
        }
    }

    fn retracts(&self) -> bool {
        match self {
            Self::Aggregate(plan) => plan.retracts(),
            Self::Nested(plan) => plan.second.retracts(),
            Self::PassThrough(_) | Self::Discard => false,
        }
    }
}

/// Checks the statements and makes a plan of them. Whatever the text is, it ends with a plan or an error.
pub fn plan(sql: &str) -> Result<Plan, SqlError> {
    let text = Text::new(sql);
    text.check_depth()?;
    // On a stack that is large enough for the deepest text that is let through, in every build.
    let planner = std::thread::Builder::new().name("planner".into()).stack_size(STACK);
    std::thread::scope(|scope| {
        let planning = planner.spawn_scoped(scope, || plan_text(sql, &text));
        let planning =
            planning.map_err(|error| SqlError::new(format!("the system gives no thread to plan on: {error}")))?;
        planning.join().unwrap_or_else(|panic| {
            Err(SqlError::new(format!(
                "the planner failed, which is its fault and not that of the statements: {}. Write them otherwise, and \
                 report them",
                panic_text(panic.as_ref())
            )))
        })
    })
}

fn plan_text(sql: &str, text: &Text) -> Result<Plan, SqlError> {
    let statements = statements::read(sql, text)?;
    let checked = checked::check(&statements)?;
    build(&statements, &checked)
}

/// An INSERT that is built, before it has its number.
struct Built {
    insert: Insert,
    branches: Vec<(usize, Branch)>,
    /// What it is that happens on one shard alone.
    all_in_one: Option<&'static str>,
}

fn build(statements: &Statements, checked: &[Checked<'_>]) -> Result<Plan, SqlError> {
    let state = statements.context.state();
    let flats = checked
        .iter()
        .map(|insert| flatten(&insert.optimised).map_err(|error| error.or_at(insert.place)))
        .collect::<Result<Vec<_>, _>>()?;
    let forgets = checked.iter().any(|insert| insert.expiry != Expiry::Never);
    let tables = checked::sources(checked);
    let readings = tables
        .iter()
        .map(|table| Reading::new(table, &scans(&flats, &table.name), forgets, &state))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.or_at(checked.first().and_then(|insert| insert.place)))?;
    let several = readings.len() > 1;
    let mut built = Vec::new();
    for (insert, flat) in checked.iter().zip(&flats) {
        let builder = Builder { state: &state, insert, readings: &readings };
        let halves = builder.build(flat).map_err(|error| error.or_at(insert.place))?;
        built.push(described(insert, halves, several));
    }
    // In an order that is not that of the statements, so that stored state does not depend on it.
    built.sort_by(|a, b| a.insert.description.cmp(&b.insert.description));

    let reading: String = readings
        .iter()
        .map(|reading| {
            let fields: Vec<_> = reading.input.fields().iter().map(|field| field.as_ref().clone()).collect();
            let text = fingerprint::reading(reading.table, &fields);
            if several { tagged(&text, &reading.table.topic) } else { text }
        })
        .collect();
    let tags = tags(&built);
    let mut description = reading.clone();
    let mut notices = Vec::new();
    let mut branches: Vec<Vec<Branch>> = vec![Vec::new(); readings.len()];
    let one = built.len() == 1;
    let mut inserts = Vec::new();
    for (number, (Built { insert, branches: own, all_in_one }, tag)) in built.into_iter().zip(tags).enumerate() {
        description += &if one { insert.description.clone() } else { tagged(&insert.description, &tag) };
        let name = if one { String::new() } else { format!("{tag}: ") };
        if let Some(what) = all_in_one {
            notices.push(format!(
                "{name}all groups of a window {what}: one shard does all the work, and the others have nothing to do"
            ));
        }
        notices.extend(of_time(&own, &readings).iter().map(|notice| format!("{name}{notice}")));
        for (source, branch) in own {
            branches[source].push(Branch { insert: (!one).then_some(number), ..branch });
        }
        inserts.push(insert);
    }
    let closes = branches.iter().flatten().any(Branch::closes);
    let unrepeatable = unrepeatable(&readings, closes, &inserts);
    let stages = readings
        .iter()
        .zip(branches)
        .map(|(reading, branches)| reading.stage(branches, forgets, &state).map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(|error| error.or_at(checked.first().and_then(|insert| insert.place)))?;
    Ok(Plan {
        sources: readings.iter().map(Reading::topic).collect(),
        inserts,
        fingerprint: fingerprint(&description),
        description,
        reading,
        notices,
        stages,
        unrepeatable,
        closes,
    })
}

/// Why the same records do not give the same rows again, if they do not.
fn unrepeatable(readings: &[Reading<'_>], closes: bool, inserts: &[Insert]) -> Option<&'static str> {
    let early = |reading: &Reading<'_>| {
        let watermark = reading.table.options.watermark.as_ref();
        watermark.is_some_and(|watermark| watermark.idle.is_some() || watermark.close_after.is_some())
    };
    if inserts.iter().any(|insert| insert.second.retracts()) {
        Some("the query removes rows from the sink, and which it holds by now is not known")
    } else if readings.iter().any(|reading| reading.table.by_clock()) {
        Some("by processing time a record that is read again belongs elsewhere")
    } else if closes && readings.iter().any(early) {
        Some("what idleness or silence closed may be closed at another place when the records are read again")
    } else {
        None
    }
}

/// What becomes of time in a query, where no word of it says so.
fn of_time(branches: &[(usize, Branch)], readings: &[Reading<'_>]) -> BTreeSet<String> {
    let notice = |(source, branch): &(usize, Branch)| {
        let table = readings[*source].table;
        match branch.window {
            Some(_) if !branch.timed => Some(format!(
                "without 'watermark.column' on {} no window ever closes: no row is late, and the state grows",
                table.name
            )),
            None if branch.timed && !table.by_clock() => Some(format!(
                "without a window, too, a row whose time is before the watermark of {} is late, and left out; to take every \
                 row, read the topic in a pipeline without 'watermark.column'",
                table.name
            )),
            _ => None,
        }
    };
    branches.iter().filter_map(notice).collect()
}

/// The scans of a table.
fn scans<'a>(flats: &[Flat<'a>], table: &str) -> Vec<&'a TableScan> {
    let scans = flats.iter().flat_map(|flat| &flat.arms).map(|arm| arm.scan);
    scans.filter(|scan| scan.table_name.table() == table).collect()
}

fn described(insert: &Checked<'_>, halves: Halves, several: bool) -> Built {
    let Halves { second, state, kept, then_state, branches, counters, all_in_one, routed_by } = halves;
    let described = Described {
        shape: &insert.shape,
        sources: &insert.sources,
        several,
        sink: insert.sink,
        mode: insert.mode,
        expiry: insert.expiry,
        state: state.as_deref(),
        kept: &kept,
        second: then_state.as_deref(),
    };
    let insert = Insert { sink: insert.sink.clone(), description: described.text(), routed_by, counters, second };
    Built { insert, branches, all_in_one }
}

/// A short name of what each INSERT writes, no two the same.
fn tags(built: &[Built]) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for Built { insert, .. } in built {
        let name = match &insert.sink.kind {
            SinkKind::Console { .. } => "console".to_owned(),
            SinkKind::Cassandra { keyspace, table, .. } => format!("{keyspace}.{table}"),
            SinkKind::Blackhole => "blackhole".to_owned(),
        };
        let mut tag = name.clone();
        let mut number = 1;
        while tags.contains(&tag) {
            number += 1;
            tag = format!("{name} {number}");
        }
        tags.push(tag);
    }
    tags
}

impl Plan {
    /// The two halves of the query, for so many shards.
    pub fn query(&self) -> Arc<dyn Query> {
        let seconds = self.inserts.iter().map(|insert| insert.second.clone()).collect();
        let stages = self.stages.clone();
        Arc::new(Planned { stages, seconds, unrepeatable: self.unrepeatable, closes: self.closes })
    }

    /// The tables that are written, by the numbers of their INSERTs.
    pub fn sinks(&self) -> Vec<SinkTable> {
        self.inserts.iter().map(|insert| insert.sink.clone()).collect()
    }

    /// The table that each INSERT writes, and what becomes of its rows.
    pub fn counters(&self) -> Vec<(String, Arc<RowCounters>)> {
        self.inserts.iter().map(|insert| (insert.sink.name.clone(), Arc::clone(&insert.counters))).collect()
    }
}

struct Planned {
    /// One for each source.
    stages: Vec<Arc<StagePlan>>,
    /// One for each INSERT.
    seconds: Vec<Second>,
    unrepeatable: Option<&'static str>,
    closes: bool,
}

impl Query for Planned {
    fn source_stage(&self, partition: &SourcePartition) -> Box<dyn SourceStage> {
        Box::new(BatchStage::new(self.stages.get(partition.source).map(Arc::clone)))
    }

    fn operator(&self, _shard: ShardId) -> Box<dyn KeyedOperator> {
        match self.seconds.as_slice() {
            [only] => only.operator(),
            several => Box::new(Together::new(several.iter().map(Second::operator).collect())),
        }
    }

    fn unrepeatable(&self) -> Option<&'static str> {
        self.unrepeatable
    }

    fn closes(&self) -> bool {
        self.closes
    }
}
