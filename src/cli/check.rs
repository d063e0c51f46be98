//! `strandline check`: what would run, and whether it could.

use std::fmt::Write as _;
use std::time::Duration;

use strandline_actors::ports::{Source, SourceError};

use super::{Exit, Failure, connections, print};
use crate::kafka::KafkaSource;
use crate::service;
use crate::settings::{Loaded, Settings, StoreKind};
use crate::sql::{Insert, Plan};
use crate::stores::cassandra::CassandraStore;
use crate::stores::existing::{Existing, ExistingError};
use crate::{cassandra, sinks, stores};

/// How long Kafka may take to answer. Running, it is waited for without end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn check(given: &Loaded, connect: bool) -> Result<(), Failure> {
    let settings = &given.settings;
    let plan = service::planned(settings)?;
    plan.inserts.iter().try_for_each(|insert| sinks::check(&insert.sink))?;
    let io = connections()?;
    // Makes the clients, and so finds what is wrong with their properties, but asks no broker.
    let source = io.block_on(KafkaSource::connect(&settings.kafka, &plan.sources))?;
    print(&report(given, &plan, settings.shards()));
    let done = if connect { io.block_on(connected(settings, &plan, source.as_ref())) } else { Ok(()) };
    drop(source);
    io.shutdown_background();
    done
}

fn report(given: &Loaded, plan: &Plan, shards: u32) -> String {
    let settings = &given.settings;
    let mut text = format!("Pipeline {}\n", settings.pipeline.name);
    // Writing to a text cannot fail.
    for line in plan.description.lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "  plan fingerprint {}", plan.fingerprint);
    for notice in &plan.notices {
        let _ = writeln!(text, "  note: {notice}");
    }
    let topics: Vec<&str> = plan.sources.iter().map(|source| source.topic.as_str()).collect();
    let _ = writeln!(text, "Reads {} from Kafka at {}", topics.join(", "), settings.kafka.bootstrap_servers);
    let _ = writeln!(
        text,
        "Keeps offsets and state {}, in {} if this is the first start, with a checkpoint every {:?}",
        match settings.store.kind {
            StoreKind::Local => format!("in the folder {} of this machine", stores::folder(settings).display()),
            StoreKind::Cassandra =>
                format!("in Cassandra at {}, keyspace {}", settings.cassandra.nodes, settings.cassandra.keyspace),
        },
        match shards {
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards"),
        },
        settings.checkpoint.interval,
    );
    let mut places: Vec<&str> = given.given.values().map(String::as_str).collect();
    places.retain(|place| !place.starts_with("STRANDLINE_"));
    places.sort_unstable();
    places.dedup();
    let from =
        if places.is_empty() { "the environment".to_owned() } else { places.join(", ") + " and the environment" };
    let _ = writeln!(text, "The settings are right; {} of them are given, by {from}", given.given.len());
    text
}

/// Asks every server, and tells of all that do not answer as they should.
async fn connected(settings: &Settings, plan: &Plan, source: &KafkaSource) -> Result<(), Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    match kafka(settings, plan, source).await {
        Ok(found) => print(&found),
        Err(failure) => failures.push(failure),
    }
    match store(settings, plan).await {
        Ok(found) => print(&found),
        Err(failure) => failures.push(failure),
    }
    for Insert { sink, .. } in &plan.inserts {
        match sinks::check_connected(settings, sink).await {
            Ok(()) => print(&format!("The table {} can be written\n", sink.name)),
            Err(error) => failures.push(error.into()),
        }
    }
    // Two that name the same server in the same words are one.
    failures.dedup_by(|a, b| a.message == b.message);
    let usage = failures.iter().any(|failure| failure.exit == Exit::Usage);
    let messages: Vec<String> = failures.into_iter().map(|failure| failure.message).collect();
    match messages.is_empty() {
        true => Ok(()),
        false => Err(Failure { exit: if usage { Exit::Usage } else { Exit::Failed }, message: messages.join("\n") }),
    }
}

async fn kafka(settings: &Settings, plan: &Plan, source: &KafkaSource) -> Result<String, Failure> {
    let partitions = match tokio::time::timeout(PATIENCE, source.partitions()).await {
        Ok(Ok(partitions)) => partitions,
        Ok(Err(SourceError::Failed(why) | SourceError::Halt(why))) => return Err(Failure::failed(why)),
        Err(_) => {
            return Err(Failure::failed(format!(
                "no Kafka broker answered at {} within {PATIENCE:?}: check STRANDLINE_KAFKA__BOOTSTRAP_SERVERS, and that \
                 the brokers are up and reachable from here",
                settings.kafka.bootstrap_servers
            )));
        }
    };
    let mut text = String::new();
    for (number, source) in plan.sources.iter().enumerate() {
        let count = partitions.iter().filter(|partition| partition.source == number).count();
        let _ = writeln!(text, "Kafka answers: the topic {} has {count} partitions", source.topic);
    }
    Ok(text)
}

/// What a folder that is there has of the pipeline.
async fn local(settings: &Settings, plan: &Plan) -> Result<String, Failure> {
    let (folder, name) = (stores::folder(settings).display(), &settings.pipeline.name);
    match Existing::open(settings).await {
        Ok(existing) => {
            let shards = service::fits(settings, plan, &existing.row)?;
            Ok(format!(
                "The folder {folder} is there: it goes on from the stored state of {name}, in {shards} shards\n"
            ))
        }
        Err(ExistingError::NoPipeline { .. }) => {
            Ok(format!("The folder {folder} is there: nothing is stored of {name} yet\n"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn store(settings: &Settings, plan: &Plan) -> Result<String, Failure> {
    match settings.store.kind {
        StoreKind::Cassandra => {
            let session = cassandra::connect(&settings.cassandra).await?;
            let stored = CassandraStore::stored(&session, &settings.cassandra.keyspace, &settings.pipeline.name).await;
            let goes_on = match stored.map_err(Failure::failed)? {
                Some(stored) => {
                    let shards = service::fits(settings, plan, &stored)?;
                    format!("it goes on from the stored state of {}, in {shards} shards", settings.pipeline.name)
                }
                None => format!("nothing is stored of {} yet", settings.pipeline.name),
            };
            let one_copy = CassandraStore::one_copy(&session, &settings.cassandra.keyspace).await;
            let note = one_copy.map_err(Failure::failed)?.map(|warning| format!("  note: {warning}\n"));
            let note = note.unwrap_or_default();
            Ok(format!("Cassandra answers at {}: {goes_on}\n{note}", settings.cassandra.nodes))
        }
        StoreKind::Local => {
            let folder = stores::folder(settings);
            match std::fs::metadata(folder) {
                Ok(found) if found.is_dir() => local(settings, plan).await,
                Ok(_) => Err(Failure::usage(format!(
                    "STRANDLINE_STORE__PATH is {}, which is a file: name a folder",
                    folder.display()
                ))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Ok(format!("The folder {} will be made\n", folder.display()))
                }
                Err(error) => Err(Failure::usage(format!(
                    "STRANDLINE_STORE__PATH is {}, which cannot be used: {error}",
                    folder.display()
                ))),
            }
        }
    }
}
