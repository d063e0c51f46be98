//! The service: it opens what a pipeline needs, runs it until a signal or its own end, and says how it ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strandline_actors::clock::{HybridClock, SystemClock};
use strandline_actors::env::Pipeline;
use strandline_actors::pointer::{Content, Pointer};
use strandline_actors::ports::{PipelineRow, Sink, Source, SourceError, StateStore, StoreError};
use strandline_actors::rewind::Rewind;
use strandline_actors::run::{Handle, Outcome, run};
use strandline_actors::supervisor::Placement;

use crate::kafka::{KafkaError, KafkaSource};
use crate::settings::Settings;
use crate::sinks::{SinkOpenError, Sinks};
use crate::sql::{Plan, SqlError, plan};
use crate::stores::OpenError;

/// How long Kafka is asked for the topics before anything is stored. One that is away is waited for later.
const TOPICS: Duration = Duration::from_secs(10);

/// Why a pipeline does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// There is nothing to run.
    #[error(
        "there is no pipeline: set STRANDLINE_PIPELINE__SQL to the statements, or STRANDLINE_PIPELINE__SQL_FILE to a file \
         with them"
    )]
    NoSql,
    /// There is too much to run.
    #[error("STRANDLINE_PIPELINE__SQL and STRANDLINE_PIPELINE__SQL_FILE are both set: unset one of them")]
    TwoSqls,
    /// The file with the statements cannot be read.
    #[error("the statements cannot be read from {path}, which STRANDLINE_PIPELINE__SQL_FILE names: {error}", path = path.display())]
    SqlFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: std::io::Error,
    },
    /// The name under which everything is kept is missing.
    #[error("the pipeline has no name: set STRANDLINE_PIPELINE__NAME; offsets and state are kept under it")]
    NoName,
    /// The statements make no pipeline.
    #[error("the statements cannot run: {0}")]
    Sql(#[from] SqlError),
    /// Kafka cannot be used as the settings say.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// A topic cannot be read. Nothing was stored yet, so the name of the pipeline is still free.
    #[error("{0}")]
    Topics(SourceError),
    /// The sink cannot be used.
    #[error(transparent)]
    Sink(#[from] SinkOpenError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store refused something.
    #[error("the store cannot be used: {0}")]
    Refused(#[from] StoreError),
    /// What was written so far is gone, and only groups that change again would be written anew.
    #[error(
        "the table {table} is gone, but pipeline {name} goes on from stored state: a new table would lack every result that \
         does not change again. Restore the table, or compute everything anew under another STRANDLINE_PIPELINE__NAME. \
         Only if those results are not needed, make it empty:\n\n{ddl}"
    )]
    TableGone {
        /// The pipeline.
        name: String,
        /// The table with its keyspace.
        table: String,
        /// What would make it.
        ddl: String,
    },
    /// Some shards stand where a rewind wants them, and some do not.
    #[error(
        "pipeline {name} does not start: {rewind}. `strandline offsets rewind --finish` finishes it as it was begun"
    )]
    Rewinding {
        /// The pipeline.
        name: String,
        /// The rewind.
        rewind: Box<Rewind>,
    },
    /// The stored state belongs to another plan.
    #[error(
        "pipeline {name} has stored state of another query, which the new one cannot go on from:\n{difference}run the new \
         query under another STRANDLINE_PIPELINE__NAME, or take the old query back"
    )]
    OtherPlan {
        /// The pipeline.
        name: String,
        /// What differs, line by line.
        difference: String,
    },
    /// The stored state is cut into another number of shards.
    #[error(
        "pipeline {name} was first started with {stored} shards, and now {asked} are asked for: the number is fixed for a \
         pipeline's life; set STRANDLINE_PIPELINE__SHARDS={stored}"
    )]
    OtherShards {
        /// The pipeline.
        name: String,
        /// The number that the state has.
        stored: u32,
        /// The number that was asked for.
        asked: u32,
    },
}

/// The statements that the settings name.
pub fn statements(settings: &Settings) -> Result<String, ServiceError> {
    match (&settings.pipeline.sql, &settings.pipeline.sql_file) {
        (Some(_), Some(_)) => Err(ServiceError::TwoSqls),
        (Some(sql), None) => Ok(sql.clone()),
        (None, Some(path)) => {
            std::fs::read_to_string(path).map_err(|error| ServiceError::SqlFile { path: path.clone(), error })
        }
        (None, None) => Err(ServiceError::NoSql),
    }
}

/// The plan of the statements that the settings name, and the pipeline's name.
pub fn planned(settings: &Settings) -> Result<Plan, ServiceError> {
    if settings.pipeline.name.trim().is_empty() {
        return Err(ServiceError::NoName);
    }
    Ok(plan(&statements(settings)?)?)
}

/// An opened pipeline.
pub struct Opened {
    /// The plan.
    pub plan: Plan,
    /// What runs.
    pub pipeline: Arc<Pipeline>,
    /// The sinks, for their counters.
    pub sinks: Arc<Sinks>,
    /// The source, for how Kafka answers.
    pub source: Arc<KafkaSource>,
}

/// What a pipeline reads from and where it keeps what it knows, before anything is fixed for its life.
struct Reached {
    source: Arc<KafkaSource>,
    store: Arc<dyn StateStore>,
    /// The number of shards, if it has a start stored, so that there may be results.
    begun: Option<u32>,
}

impl Reached {
    async fn new(settings: &Settings, plan: &Plan) -> Result<Self, ServiceError> {
        let source = KafkaSource::connect(&settings.kafka, &plan.sources).await?;
        let store = crate::stores::open(settings, &settings.pipeline.name).await?;
        // What is no partition is a note on the topic.
        let begun = store.known_partitions().await?.iter().any(|(_, key)| key.partition >= 0);
        // A slip in a topic's name must not tie the pipeline's name to it. One that goes on is not held up by Kafka.
        if !begun && let Ok(Err(error)) = tokio::time::timeout(TOPICS, source.partitions()).await {
            return Err(ServiceError::Topics(error));
        }
        // Compared before anything is asked of a sink.
        let begun = if begun { Some(define(settings, plan, store.as_ref()).await?) } else { None };
        Ok(Self { source, store, begun })
    }

    /// Fixes what is fixed for the pipeline's life.
    async fn defined(self, settings: &Settings, plan: &Plan) -> Result<Prepared, ServiceError> {
        let Self { source, store, begun } = self;
        let shards = match begun {
            Some(shards) => shards,
            None => define(settings, plan, store.as_ref()).await?,
        };
        for shard in 0..shards {
            // What else may be wrong with a pointer is found when its shard is claimed, and stops that shard alone.
            match store.read_pointer(shard).await {
                Err(error @ StoreError::Newer(_)) => return Err(error.into()),
                // A claim would find it, too, but only after this process took a generation.
                Ok(Some(Pointer { content: Content { rewind: Some(rewind), .. }, .. })) => {
                    return Err(ServiceError::Rewinding { name: settings.pipeline.name.clone(), rewind });
                }
                _ => {}
            }
        }
        Ok(Prepared { source, store, shards })
    }

    /// Opens the sinks. A table is made only before anything was read.
    async fn sinks(&self, settings: &Settings, plan: &Plan) -> Result<Arc<Sinks>, ServiceError> {
        if self.begun.is_none() {
            return Ok(Sinks::open(settings, &plan.sinks()).await?);
        }
        Sinks::reopen(settings, &plan.sinks()).await.map_err(|error| match error {
            SinkOpenError::NoTable { table, ddl, .. } => {
                ServiceError::TableGone { name: settings.pipeline.name.clone(), table, ddl }
            }
            error => error.into(),
        })
    }
}

/// A pipeline of which everything is fixed, before there is a sink.
pub struct Prepared {
    source: Arc<KafkaSource>,
    store: Arc<dyn StateStore>,
    shards: u32,
}

impl Prepared {
    /// Opens the source and the store, and makes sure that the stored state fits the plan.
    pub async fn new(settings: &Settings, plan: &Plan) -> Result<Self, ServiceError> {
        Reached::new(settings, plan).await?.defined(settings, plan).await
    }

    /// The source.
    pub fn source(&self) -> Arc<KafkaSource> {
        Arc::clone(&self.source)
    }

    /// The pipeline, with a sink.
    pub fn pipeline(self, settings: &Settings, plan: &Plan, sink: Arc<dyn Sink>) -> Arc<Pipeline> {
        Arc::new(Pipeline {
            name: settings.pipeline.name.clone(),
            instance: settings.instance(),
            shards: self.shards,
            fingerprint: plan.fingerprint.clone(),
            source: self.source,
            store: self.store,
            sink,
            query: plan.query(),
            clock: HybridClock::new(Arc::new(SystemClock)),
            tuning: settings.tuning(),
        })
    }
}

/// Connects to everything that the pipeline needs and makes sure that its stored state fits.
pub async fn open(settings: &Settings) -> Result<Opened, ServiceError> {
    let plan = planned(settings)?;
    plan.notices.iter().for_each(|notice| tracing::warn!("{notice}"));
    let reached = Reached::new(settings, &plan).await?;
    // A slip in a sink must not tie the pipeline's name to it, either.
    let sinks = reached.sinks(settings, &plan).await?;
    let prepared = reached.defined(settings, &plan).await?;
    let source = prepared.source();
    let pipeline = prepared.pipeline(settings, &plan, Arc::clone(&sinks) as _);
    Ok(Opened { plan, pipeline, sinks, source })
}

/// Stores what is fixed for the pipeline's life, or compares it with what is stored. Answers the number of shards.
async fn define(settings: &Settings, plan: &Plan, store: &dyn StateStore) -> Result<u32, ServiceError> {
    let asked = PipelineRow {
        shards: settings.shards(),
        fingerprint: plan.fingerprint.clone(),
        plan: plan.description.clone(),
    };
    let stored = store.define_pipeline(&asked).await?;
    fits(settings, plan, &stored)
}

/// Whether what is stored under the pipeline's name can be gone on from. Answers the number of shards.
pub fn fits(settings: &Settings, plan: &Plan, stored: &PipelineRow) -> Result<u32, ServiceError> {
    let name = settings.pipeline.name.clone();
    if stored.fingerprint != plan.fingerprint {
        return Err(ServiceError::OtherPlan { name, difference: difference(&stored.plan, &plan.description) });
    }
    // A default that differs between machines is no wish.
    match settings.pipeline.shards {
        Some(asked) if asked != stored.shards => Err(ServiceError::OtherShards { name, stored: stored.shards, asked }),
        _ => Ok(stored.shards),
    }
}

/// The lines that only one of two texts has: `-` for those of the first, `+` for those of the second.
fn difference(before: &str, after: &str) -> String {
    let only = |sign: char, of: &str, other: &str| -> String {
        let missing = of.lines().filter(|line| !other.lines().any(|known| known == *line));
        missing.map(|line| format!("  {sign} {line}\n")).collect()
    };
    only('-', before, after) + &only('+', after, before)
}

/// Runs a pipeline on actors of its own until it ends or is told to. `begun` gets the handle at once.
///
/// Blocks the calling thread, which becomes the supervisor's.
pub fn run_to_end(pipeline: Arc<Pipeline>, threads: usize, begun: impl FnOnce(Handle)) -> Outcome {
    actix_rt::System::new().block_on(async move {
        let (handle, running) = run(pipeline, Placement::Threads(threads));
        begun(handle);
        running.await
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_difference_shows_only_what_differs() {
        let (before, after) = ("reads orders\nkeeps min(x)\nwrites t", "reads orders\nkeeps max(x)\nwrites t");
        assert_eq!(difference(before, after), "  - keeps min(x)\n  + keeps max(x)\n");
    }

    #[test]
    fn the_statements_come_from_exactly_one_place() {
        let mut settings = Settings::default();
        assert!(statements(&settings).unwrap_err().to_string().contains("STRANDLINE_PIPELINE__SQL"));
        settings.pipeline.sql_file = Some("/nowhere/pipeline.sql".into());
        let error = statements(&settings).unwrap_err().to_string();
        assert!(error.contains("/nowhere/pipeline.sql") && error.contains("No such file"), "{error}");
        settings.pipeline.sql = Some("SELECT 1".into());
        assert!(statements(&settings).unwrap_err().to_string().contains("both set"));
        settings.pipeline.sql_file = None;
        assert_eq!(statements(&settings).unwrap(), "SELECT 1");
    }
}
