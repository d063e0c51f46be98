//! `strandline nexmark`: fills the topics of the Nexmark benchmark, over which the queries in `config/nexmark` run.

mod model;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use clap::Args;
use futures::future::join_all;

use crate::catalog::KafkaTopic;
use crate::cli::{Failure, connections, print};
use crate::kafka::{Outgoing, Sender};
use crate::settings::{KafkaSettings, Loaded};
use crate::telemetry::Telemetry;

pub use model::{Event, Generator, Stream};

/// Events that are under way at one time.
const BATCH: u64 = 10_000;
/// With `--paced`: how often it is looked which events are due.
const TICK: Duration = Duration::from_millis(10);

/// Which events are made, and where they go.
#[derive(Clone, Debug, Args)]
pub struct NexmarkArguments {
    /// How many events: of 50 one is a person, three are auctions and 46 are bids.
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    pub events: u64,
    /// The number of the first event: to go on where another call ended.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub first: u64,
    /// Events in a second of their own time.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: u64,
    /// Sends each event only when it is due, as if it were happening now.
    #[arg(long)]
    pub paced: bool,
    /// The time of event 0.
    #[arg(long, value_name = "TIME", default_value = "2026-01-01T00:00:00Z")]
    pub start: DateTime<Utc>,
    /// Another seed makes other events.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// What the names of the three topics begin with.
    #[arg(long, value_name = "TEXT", default_value = "nexmark_")]
    pub prefix: String,
    /// The number of partitions of topics that have to be made.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=1_000))]
    pub partitions: i32,
}

impl NexmarkArguments {
    /// The topic of a stream.
    pub fn topic(&self, stream: Stream) -> String {
        format!("{}{}", self.prefix, stream.name())
    }

    /// What makes the events.
    pub fn generator(&self) -> Generator {
        Generator { seed: self.seed, rate: self.rate, start: self.start.timestamp_millis() }
    }
}

/// Makes the topics that are missing, and sends the events.
pub(crate) fn nexmark(given: &Loaded, arguments: &NexmarkArguments) -> Result<(), Failure> {
    let telemetry = Telemetry::start(&given.settings.log, None)?;
    let io = connections()?;
    let done = io.block_on(fill(&given.settings.kafka, arguments));
    io.shutdown_background();
    telemetry.finish(Duration::ZERO);
    done
}

/// The topic of one stream.
struct Target {
    topic: String,
    partitions: u64,
    sent: u64,
}

async fn fill(settings: &KafkaSettings, arguments: &NexmarkArguments) -> Result<(), Failure> {
    let sender = Sender::new(settings, &table(arguments))?;
    let mut targets = BTreeMap::new();
    for stream in Stream::ALL {
        let topic = arguments.topic(stream);
        let partitions = sender.ensure_topic(&topic, arguments.partitions).await.map_err(Failure::failed)?;
        targets.insert(stream, Target { topic, partitions, sent: 0 });
    }
    let (generator, begun) = (arguments.generator(), Instant::now());
    let (mut next, end) = (arguments.first, arguments.first.saturating_add(arguments.events));
    while next < end {
        let until = end.min(next + BATCH).min(due(arguments, begun));
        if until <= next {
            tokio::time::sleep(TICK).await;
            continue;
        }
        send(&sender, &generator, &mut targets, next..until).await.map_err(|why| {
            Failure::failed(format!("{why}. Events below {next} were sent; go on with --first {next}"))
        })?;
        next = until;
    }
    let sent: Vec<_> = targets.values().map(|target| format!("{} to {}", target.sent, target.topic)).collect();
    print(&format!(
        "{} events in {:.1} s: {}\n",
        end - arguments.first,
        begun.elapsed().as_secs_f64(),
        sent.join(", ")
    ));
    Ok(())
}

/// Events below this number may be sent now.
fn due(arguments: &NexmarkArguments, begun: Instant) -> u64 {
    match arguments.paced {
        false => u64::MAX,
        true => {
            let passed = begun.elapsed().as_millis() * u128::from(arguments.rate) / 1_000;
            arguments.first.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
        }
    }
}

/// Sends events and waits until the brokers have them. The events of a stream go to its partitions in turn.
async fn send(
    sender: &Sender,
    generator: &Generator,
    targets: &mut BTreeMap<Stream, Target>,
    numbers: std::ops::Range<u64>,
) -> Result<(), String> {
    let mut records = Vec::new();
    for event in numbers.map(|number| generator.event(number)) {
        let Some(target) = targets.get_mut(&event.stream) else { continue };
        let partition = i32::try_from(target.sent % target.partitions).unwrap_or_default();
        target.sent += 1;
        records.push((event, partition));
    }
    let targets = &*targets;
    let sends = records.iter().filter_map(|(event, partition)| {
        let record = Outgoing {
            topic: &targets.get(&event.stream)?.topic,
            partition: Some(*partition),
            key: None,
            value: Some(event.json.as_bytes()),
            timestamp: None,
            header: None,
        };
        Some(sender.send(record))
    });
    join_all(sends).await.into_iter().try_for_each(|sent| sent.map(drop))
}

fn table(arguments: &NexmarkArguments) -> KafkaTopic {
    KafkaTopic::plain("nexmark", arguments.topic(Stream::Bid))
}
