//! `strandline dead-letters replay`: sends records that were set aside to Kafka again, and marks them.
//!
//! A mark is written when the brokers have the record. A crash in between leaves a record that was sent and is not marked, and
//! so is sent once more: at least once. What is marked is passed over, and every record carries where it came from in a
//! header, by which whoever reads it can tell.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use futures::future::join_all;
use serde_json::json;
use strandline_actors::clock::SystemClock;
use strandline_actors::points::{self, Point};
use strandline_actors::ports::{Source, WallClock};

use super::columns::count;
use super::confirm::confirm;
use super::letters::{AllReplays, known, replayed, replays};
use super::stored::{in_time, tables};
use super::{Failure, connections, print};
use crate::catalog::KafkaTopic;
use crate::kafka::{KafkaSource, Outgoing, Sender};
use crate::settings::Settings;
use crate::stores::letters::{Letter, Letters, Payload, Replay, Wanted};
use crate::telemetry::Telemetry;

/// Records that are sent before they are marked. As many may be sent again after a crash.
const BATCH: usize = 64;
/// The header that says where a record came from.
const HEADER: &str = "strandline.dead-letter";

/// Which records are sent again, and where to.
#[derive(Debug, Args)]
pub(super) struct Again {
    /// Only those of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only those of this partition.
    #[arg(long)]
    partition: Option<i32>,
    /// Only the one at this offset.
    #[arg(long, requires_all = ["topic", "partition"])]
    offset: Option<i64>,
    /// Only those whose reason has this text in it, in upper or lower case.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// To this topic, where the key decides on the partition. Without it, to the partition from which it was read.
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// Also those that were sent again before.
    #[arg(long)]
    again: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// How it went.
#[derive(Debug, Default)]
struct Outcome {
    /// Acknowledged and marked.
    sent: usize,
    /// Sent again before.
    marked: usize,
    /// Not whole any more: of a long key or value only the beginning is kept.
    cut: usize,
    /// What the brokers did not take.
    failed: usize,
    why: Option<String>,
}

pub(super) fn replay(settings: &Settings, again: &Again) -> Result<(), Failure> {
    let telemetry = Telemetry::start(&settings.log, None)?;
    let io = connections()?;
    let done = io.block_on(replay_all(settings, again));
    io.shutdown_background();
    telemetry.finish(Duration::ZERO);
    done
}

/// Which letters are meant.
struct Meant<'a> {
    again: &'a Again,
    reason: Option<String>,
    replays: AllReplays,
}

impl Meant<'_> {
    fn fits(&self, letter: &Letter) -> bool {
        self.reason.as_ref().is_none_or(|reason| letter.reason.to_lowercase().contains(reason.as_str()))
    }

    fn passed_over(&self, letter: &Letter) -> bool {
        !self.again.again && replayed(&self.replays, letter).is_some()
    }
}

async fn replay_all(settings: &Settings, again: &Again) -> Result<(), Failure> {
    let letters = Letters::open_to_mark(settings).await?;
    known(&letters, &settings.pipeline.name, again.topic.as_deref())?;
    let wanted =
        Wanted { topic: again.topic.clone(), partition: again.partition, offset: again.offset, ..Wanted::default() };
    let reason = again.reason.as_ref().map(|reason| reason.to_lowercase());
    let meant = Meant { again, reason, replays: replays(&letters, &wanted).await? };

    // The last offset of each partition: what a running service sets aside again of what is sent comes behind it.
    let mut topics: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
    let mut found = 0;
    let mut outcome = Outcome::default();
    let each = &mut |letter: Letter| {
        if meant.fits(&letter) {
            match meant.passed_over(&letter) {
                true => outcome.marked += 1,
                false => {
                    let last = topics.entry(letter.topic).or_default().entry(letter.partition).or_insert(letter.offset);
                    *last = letter.offset.max(*last);
                    found += 1;
                }
            }
        }
        ControlFlow::Continue(())
    };
    letters.read(&wanted, each).await.map_err(Failure::failed)?;
    if topics.is_empty() {
        return tell(again, &outcome);
    }
    for topic in topics.keys() {
        exists(settings, topic, again.to.as_deref()).await?;
    }
    let all = count(found, "dead letter");
    let to = again.to.clone().unwrap_or_else(|| topics.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
    confirm(again.yes, &format!("{all} of pipeline {} will be sent to {to}", settings.pipeline.name))?;
    tracing::warn!(pipeline = %settings.pipeline.name, "sending {all} to {to} again");
    for topic in &topics {
        send_topic(settings, &letters, &wanted, &meant, topic, &mut outcome).await?;
        if outcome.failed > 0 {
            break;
        }
    }
    tracing::warn!(
        pipeline = %settings.pipeline.name, sent = outcome.sent, cut = outcome.cut, failed = outcome.failed,
        "dead letters were sent again"
    );
    tell(again, &outcome)
}

/// How the topic is reached to which the letters of another are sent: by the properties by which that one is read.
fn target(settings: &Settings, from: &str, to: Option<&str>) -> Result<KafkaTopic, Failure> {
    let table = tables(settings, &[from])?.into_iter().next();
    let table = table.ok_or_else(|| Failure::failed("there is no table"))?;
    Ok(KafkaTopic { topic: to.unwrap_or(from).to_owned(), ..table })
}

/// A producer may create the topic that it asks for: one that is written wrong must not come into being.
async fn exists(settings: &Settings, from: &str, to: Option<&str>) -> Result<(), Failure> {
    let source = KafkaSource::connect(&settings.kafka, &[target(settings, from, to)?]).await?;
    in_time(settings, source.partitions()).await.map(drop)
}

/// Sends the letters of one topic, a few at a time, each few marked before the next.
async fn send_topic(
    settings: &Settings,
    letters: &Letters,
    wanted: &Wanted,
    meant: &Meant<'_>,
    (topic, partitions): (&String, &BTreeMap<i32, i64>),
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let to = meant.again.to.as_deref().unwrap_or(topic);
    let sender = Sender::new(&settings.kafka, &target(settings, topic, Some(to))?)?;
    let own = Wanted { topic: Some(topic.to_owned()), payload: true, ..wanted.clone() };
    for (partition, until) in partitions {
        let mut from = None;
        loop {
            let mut batch: Vec<Letter> = Vec::new();
            let wanted = Wanted { partition: Some(*partition), from, until: Some(*until), ..own.clone() };
            let mut more = false;
            let each = &mut |letter: Letter| {
                if !meant.fits(&letter) || meant.passed_over(&letter) {
                    return ControlFlow::Continue(());
                }
                // Letters of one offset, of topics of one name, stay together.
                if batch.len() >= BATCH && batch.last().is_some_and(|last| last.offset < letter.offset) {
                    more = true;
                    return ControlFlow::Break(());
                }
                batch.push(letter);
                ControlFlow::Continue(())
            };
            letters.read(&wanted, each).await.map_err(Failure::failed)?;
            from = batch.last().map(|last| last.offset + 1);
            debug_assert!(batch.iter().all(|letter| letter.topic == *topic));
            send(letters, &sender, to, meant.again.to.is_none(), batch, outcome).await?;
            if outcome.failed > 0 {
                return Ok(());
            }
            if !more || own.offset.is_some() {
                break;
            }
        }
    }
    Ok(())
}

fn whole(payload: Option<&Payload>) -> bool {
    payload.is_none_or(|payload| payload.bytes.len() as u64 == payload.length)
}

/// Sends letters, waits until the brokers have them, and marks those.
async fn send(
    letters: &Letters,
    sender: &Sender,
    to: &str,
    same_partition: bool,
    batch: Vec<Letter>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let found = batch.len();
    let batch: Vec<Letter> =
        batch.into_iter().filter(|letter| whole(letter.key.as_ref()) && whole(letter.value.as_ref())).collect();
    outcome.cut += found - batch.len();
    let sends = batch.iter().map(|letter| async move {
        let from = format!("{}/{}/{}", letter.topic, letter.partition, letter.offset);
        let record = Outgoing {
            topic: to,
            partition: same_partition.then_some(letter.partition),
            key: letter.key.as_ref().map(|key| key.bytes.as_slice()),
            value: letter.value.as_ref().map(|value| value.bytes.as_slice()),
            timestamp: (letter.timestamp >= 0).then_some(letter.timestamp),
            header: Some((HEADER, &from)),
        };
        sender.send(record).await
    });
    let answers = join_all(sends).await;
    points::reach(Point::Replayed);
    let mut marks = Vec::new();
    for (letter, answer) in batch.iter().zip(answers) {
        match answer {
            Ok((partition, offset)) => marks.push(Replay {
                topic: letter.topic.clone(),
                topic_id: letter.topic_id,
                partition: letter.partition,
                offset: letter.offset,
                at: SystemClock.now_micros(),
                sent_to: format!("{to}/{partition}/{offset}"),
            }),
            Err(why) => {
                outcome.failed += 1;
                outcome.why.get_or_insert(why);
            }
        }
    }
    letters.mark(&marks).await.map_err(|error| {
        Failure::failed(format!(
            "{} sent, but not marked, so that another call sends them once more: {error}",
            if marks.len() == 1 { "1 dead letter was".into() } else { format!("{} dead letters were", marks.len()) }
        ))
    })?;
    outcome.sent += marks.len();
    Ok(())
}

fn tell(again: &Again, outcome: &Outcome) -> Result<(), Failure> {
    let Outcome { sent, marked, cut, failed, why } = outcome;
    print(&if again.json {
        format!("{}\n", json!({ "sent": sent, "sent_before": marked, "cut": cut, "failed": failed }))
    } else {
        let mut text = format!("{} sent again\n", count(*sent, "dead letter"));
        if *marked > 0 {
            text += &format!("{} passed over, since sent again before: --again sends them once more\n", marked);
        }
        text
    });
    match (why, cut) {
        (Some(why), _) => Err(Failure::failed(format!(
            "{} not sent, nor anything after: {why}",
            if *failed == 1 { "1 dead letter was".into() } else { format!("{failed} dead letters were") }
        ))),
        (None, 0) => Ok(()),
        (None, cut) => Err(Failure::failed(format!(
            "{} not sent, since only the beginning of a key or a value longer than 4 MB is kept: read the records from their \
             topics instead",
            if *cut == 1 { "1 dead letter was".into() } else { format!("{cut} dead letters were") }
        ))),
    }
}
