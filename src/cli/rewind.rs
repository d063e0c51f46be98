//! `strandline offsets rewind`: moves a stopped pipeline back, to be read again from there.
//!
//! What is read again counts again. So whoever rewinds an aggregation says what becomes of its state: dropped, so that the
//! new numbers are those of what is read from there on, or kept, so that they are counted a second time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use strandline_actors::clock::{HybridClock, SystemClock};
use strandline_actors::pointer::{Generation, Pointer};
use strandline_actors::ports::{Heartbeat, KafkaOffset, Source, SourceError, StateStore};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use strandline_actors::rewind::{self, Phase, Rewind, RewindError, Stopped, Target};
use uuid::Uuid;

use super::columns::columns;
use super::confirm::confirm;
use super::stored::{Partition, Standing, in_time, named, source, stopped};
use super::{Failure, connections, print};
use crate::settings::{Loaded, Settings, duration};
use crate::sql::which_keep_state;
use crate::stores::existing::Existing;
use crate::telemetry::Telemetry;

/// How a rewind is asked for.
#[derive(Debug, Args)]
pub(super) struct Rewound {
    /// Where to: an offset, `earliest`, a time such as 2026-11-29T20:00:00Z (the first record that is not older), or how
    /// long ago, such as `90m ago`. A partition that stands lower already stays.
    #[arg(long, value_name = "TIME|OFFSET", required_unless_present = "finish")]
    to: Option<String>,
    /// Only the partitions of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only this partition.
    #[arg(long)]
    partition: Option<i32>,
    /// Starts with an empty state at the new offsets: results count only what is read from there on.
    #[arg(long, conflicts_with = "keep_state")]
    reset_state: bool,
    /// Keeps the state: what is read again is counted a second time.
    #[arg(long)]
    keep_state: bool,
    /// Finishes a rewind that broke off.
    #[arg(long, conflicts_with_all = ["to", "topic", "partition", "reset_state", "keep_state"])]
    finish: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Rewound {
    /// What was asked for, in the words that ask for it again.
    fn words(&self) -> String {
        let mut words = format!("--to {}", self.to.as_deref().unwrap_or_default());
        // Writing to a text cannot fail.
        if let Some(topic) = &self.topic {
            let _ = write!(words, " --topic {topic}");
        }
        if let Some(partition) = self.partition {
            let _ = write!(words, " --partition {partition}");
        }
        words += if self.reset_state { " --reset-state" } else { "" };
        words += if self.keep_state { " --keep-state" } else { "" };
        words
    }
}

/// Where a rewind goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Earliest,
    Offset(i64),
    /// Milliseconds since the epoch.
    Time(i64),
}

impl To {
    fn read(text: &str, now: DateTime<Utc>) -> Result<Self, Failure> {
        let text = text.trim();
        if text == "earliest" {
            return Ok(Self::Earliest);
        }
        if let Ok(offset) = text.parse::<i64>()
            && offset >= 0
        {
            return Ok(Self::Offset(offset));
        }
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self::Time(time.timestamp_millis()));
        }
        if let Some(ago) = text.strip_suffix("ago").and_then(|ago| duration(ago.trim())) {
            let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
            return Ok(Self::Time(now.timestamp_millis().saturating_sub(ago)));
        }
        Err(Failure::usage(format!(
            "--to is `{text}`: allowed is an offset, earliest, a time with its zone such as 2026-11-29T20:00:00Z, or how \
             long ago, such as `90m ago`"
        )))
    }
}

impl From<RewindError> for Failure {
    fn from(error: RewindError) -> Self {
        Self::failed(error)
    }
}

pub(super) fn rewind(given: &Loaded, wish: &Rewound) -> Result<(), Failure> {
    let settings = &given.settings;
    named(settings)?;
    let to = wish.to.as_deref().map(|to| To::read(to, Utc::now())).transpose()?;
    let telemetry = Telemetry::start(&settings.log, None)?;
    let io = connections()?;
    let done = io.block_on(rewound(settings, wish, to));
    io.shutdown_background();
    telemetry.finish(Duration::ZERO);
    done
}

async fn rewound(settings: &Settings, wish: &Rewound, to: Option<To>) -> Result<(), Failure> {
    let existing = Existing::open(settings).await?;
    let store = existing.store();
    stopped(settings, store.as_ref()).await?;
    let standing = Standing::read(settings, &existing).await?;
    let phase = rewind::phase(&rewind::snapshot(store.as_ref(), existing.row.shards).await?)?;
    let planned = match (phase.rewind(), to) {
        (None, Some(to)) => plan(settings, &existing, &standing, wish, to).await?,
        (None, None) => return Err(Failure::usage("there is no rewind to finish")),
        (Some(begun), _) => {
            if !wish.finish && begun.wish != wish.words() {
                return Err(Failure::usage(format!(
                    "{begun}, or with --finish: `strandline offsets rewind {}`. Until then no shard is read, and no other \
                     rewind can begin",
                    begun.wish
                )));
            }
            begun.clone()
        }
    };
    let told = told(&standing, &planned);
    if !wish.json {
        print(&told);
    }
    let what = if planned.reset { "its state is dropped" } else { "its state is kept" };
    confirm(wish.yes, &format!("Pipeline {} goes back as shown, and {what}", settings.pipeline.name))?;

    let generation = store.next_generation().await.map_err(Failure::failed)?;
    tracing::warn!(
        pipeline = %settings.pipeline.name, %generation, id = %planned.id, reset_state = planned.reset,
        "rewinding: {}", planned.wish
    );
    let clock = HybridClock::new(Arc::new(SystemClock));
    let all = Stopped {
        shards: existing.row.shards,
        fingerprint: existing.row.fingerprint.clone(),
        starts: standing.starts.iter().map(|(key, (_, start))| (*key, *start)).collect(),
        generation,
    };
    let moved = match phase {
        Phase::Free => all.begin(store.as_ref(), &clock, &planned).await,
        _ => all.finish(store.as_ref(), &clock, &planned).await,
    };
    let pointers = moved.map_err(|error| {
        tracing::error!("the rewind is not finished: {error}");
        Failure::from(error)
    })?;
    finish(store.as_ref(), &standing, &all, &pointers, generation).await?;
    for Target { key, next } in &planned.to {
        let line = standing.partitions.iter().find(|line| line.key == *key);
        if let Some(line) = line.filter(|line| line.highest() > *next) {
            tracing::warn!(partition = %line.name(), from = %line.position(), to = %next, "rewound");
        }
    }
    print(&if wish.json {
        format!("{}\n", as_json(&standing, &planned, generation))
    } else {
        format!(
            "Pipeline {} is rewound on all {} shards; the next start reads on from there\n",
            settings.pipeline.name, existing.row.shards
        )
    });
    Ok(())
}

/// Shows the new positions to people, and lets go of the pipeline.
async fn finish(
    store: &dyn StateStore,
    standing: &Standing,
    all: &Stopped,
    pointers: &[Option<Pointer>],
    generation: Generation,
) -> Result<(), Failure> {
    let timestamp = pointers.iter().flatten().map(|pointer| pointer.timestamp).max().unwrap_or_default();
    let offsets: Vec<KafkaOffset> = rewind::lowest(pointers, &all.starts)
        .into_iter()
        .filter_map(|(key, offset)| {
            let (topic, _) = standing.starts.get(&key)?;
            Some(KafkaOffset { topic: topic.clone(), partition: key.partition, offset })
        })
        .collect();
    let late = |error| {
        Failure::failed(format!(
            "the pipeline is rewound, but kafka_offsets does not show it before the next start: {error}"
        ))
    };
    store.write_kafka_offsets(&offsets, timestamp).await.map_err(late)?;
    let heartbeat = Heartbeat { generation, instance: "strandline offsets rewind".into(), beat: 0, released: true };
    if let Err(error) = store.write_heartbeat(&heartbeat).await {
        tracing::debug!("the next instance may wait for the one before: {error}");
    }
    Ok(())
}

/// What becomes of every partition.
async fn plan(
    settings: &Settings,
    existing: &Existing,
    standing: &Standing,
    wish: &Rewound,
    to: To,
) -> Result<Rewind, Failure> {
    let keep_state = which_keep_state(&existing.row.plan);
    if !wish.reset_state && !wish.keep_state && keep_state.contains(&true) {
        return Err(Failure::usage(format!(
            "pipeline {} keeps a state, so say what becomes of it: --reset-state drops it, all of it and on all partitions, so \
             that results count only what is read from the new offsets on; --keep-state keeps it, so that every record that is \
             read again is counted a second time",
            settings.pipeline.name
        )));
    }
    let meant = |line: &&Partition| {
        wish.topic.as_ref().is_none_or(|topic| *topic == line.topic)
            && wish.partition.is_none_or(|partition| partition == line.key.partition)
            && !line.recreated
    };
    let lines: Vec<&Partition> = standing.partitions.iter().filter(meant).collect();
    if lines.is_empty() {
        let read: Vec<String> = standing.partitions.iter().map(Partition::name).collect();
        return Err(Failure::usage(format!(
            "pipeline {} has never read such a partition; it reads {}",
            settings.pipeline.name,
            if read.is_empty() { "nothing so far".to_owned() } else { read.join(", ") }
        )));
    }
    let lowest = standing.lowest();
    let wanted = targets(settings, &lines, to).await?;
    let goes_back = |line: &Partition| wanted.get(&line.key).is_some_and(|next| *next < line.position());
    if !lines.iter().any(|line| goes_back(line)) {
        return Err(Failure::usage(
            "there is nothing to rewind: every partition stands there already, or lower (`strandline offsets show`)",
        ));
    }
    let target = |key: &PartitionKey, low: &Offset| {
        let line = lines.iter().find(|line| line.key == *key && goes_back(line));
        line.and_then(|line| wanted.get(&line.key)).copied().unwrap_or(*low)
    };
    let reset = wish.reset_state;
    let moves = |key: &PartitionKey| lines.iter().any(|line| line.key == *key && goes_back(line));
    let to = lowest
        .iter()
        .filter(|(key, _)| reset || moves(key))
        .map(|(key, low)| Target { key: *key, next: target(key, low) })
        .collect();
    let stateless = (0..).zip(keep_state).filter(|(_, keeps)| !keeps).map(|(sink, _)| sink).collect();
    Ok(Rewind { id: Uuid::new_v4(), wish: wish.words(), to, reset, stateless, done: false })
}

/// The offsets that are meant, as Kafka has them.
async fn targets(settings: &Settings, lines: &[&Partition], to: To) -> Result<BTreeMap<PartitionKey, Offset>, Failure> {
    let mut topics: Vec<&str> = lines.iter().map(|line| line.topic.as_str()).collect();
    topics.dedup();
    let source = source(settings, &topics).await?;
    let found = in_time(settings, async {
        let mut found = BTreeMap::new();
        let now: Vec<SourcePartition> = source.partitions().await?;
        for line in lines {
            let partition = now.iter().find(|partition| partition.key == line.key);
            let Some(partition) = partition else {
                return Err(SourceError::Halt(format!("Kafka has no partition {} any more", line.name())));
            };
            let (begin, end) = source.log(partition).await?;
            let at = match to {
                To::Earliest => begin,
                To::Offset(offset) => Offset(offset),
                To::Time(millis) => source.offset_at(partition, millis).await?.unwrap_or(end),
            };
            found.insert(line.key, (at, begin));
        }
        Ok(found)
    })
    .await?;
    for line in lines {
        if let Some((at, begin)) = found.get(&line.key).filter(|(at, begin)| at < begin) {
            return Err(Failure::usage(format!(
                "{} cannot go back to {at}: Kafka has deleted its records before {begin}. `--to earliest` goes as far as \
                 there are any",
                line.name()
            )));
        }
    }
    Ok(found.into_iter().map(|(key, (at, _))| (key, at)).collect())
}

/// What happens to each partition.
fn moves<'a>(standing: &'a Standing, rewind: &'a Rewind) -> impl Iterator<Item = (&'a Partition, Offset)> {
    standing.partitions.iter().filter_map(|line| {
        let target = rewind.to.iter().find(|target| target.key == line.key)?;
        Some((line, target.next))
    })
}

/// What a rewind does, in words.
fn told(standing: &Standing, rewind: &Rewind) -> String {
    let rows: Vec<[String; 5]> = moves(standing, rewind)
        .map(|(line, next)| {
            let again = line.highest().0 - next.0;
            [
                line.topic.clone(),
                line.key.partition.to_string(),
                line.position().to_string(),
                next.to_string(),
                if again > 0 { again.to_string() } else { "stays".into() },
            ]
        })
        .collect();
    let mut text = columns(["TOPIC", ">PARTITION", ">FROM", ">TO", ">READ AGAIN"], &rows);
    text += if rewind.reset {
        "\nThe state is dropped on all shards, also that of partitions that stay. Results count only what is read from these \
         offsets on. Rows that the sink has stay until the same group is written again: empty the table before the next start \
         if it is to hold nothing else. What is written again replaces what was there (the console shows it twice).\n"
    } else {
        "\nThe state is kept. What is read again is counted a second time; rows of windows that are closed are left out. What is \
         written again replaces what was there (the console shows it twice).\n"
    };
    if rewind.reset && !rewind.stateless.is_empty() {
        text += "Rows of an INSERT that keeps no state are written all the same if they were committed before.\n";
    }
    text
}

fn as_json(standing: &Standing, rewind: &Rewind, generation: Generation) -> Value {
    let partitions = moves(standing, rewind).map(|(line, next)| {
        json!({
            "topic": line.topic,
            "partition": line.key.partition,
            "from": line.position().0,
            "to": next.0,
            "read_again": (line.highest().0 - next.0).max(0),
        })
    });
    json!({
        "rewind": rewind.id,
        "wish": rewind.wish,
        "generation": generation,
        "state": if rewind.reset { "reset" } else { "kept" },
        "partitions": partitions.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::Exit;

    #[test]
    fn a_goal_is_an_offset_a_time_or_how_long_ago() {
        let now = DateTime::parse_from_rfc3339("2026-11-29T20:00:00Z").unwrap().to_utc();
        let millis = now.timestamp_millis();
        let read = |text: &str| To::read(text, now);
        assert_eq!(read("0").unwrap(), To::Offset(0));
        assert_eq!(read(" 17 ").unwrap(), To::Offset(17));
        assert_eq!(read("earliest").unwrap(), To::Earliest);
        assert_eq!(read("2026-11-29T21:00:00+01:00").unwrap(), To::Time(millis));
        assert_eq!(read("90m ago").unwrap(), To::Time(millis - 90 * 60_000));
        for bad in ["-1", "latest", "2026-11-29", "2026-11-29T20:00:00", "90m", "ago", ""] {
            let failure = read(bad).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{bad}");
        }
    }
}
