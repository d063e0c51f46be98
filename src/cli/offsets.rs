//! `strandline offsets`: where every shard stands in every partition, beside what Kafka has.

use clap::Subcommand;
use serde_json::Value;

use super::columns::{columns, or_dash};
use super::stored::{Partition, Standing, named};
use super::{Failure, connections, print, rewind};
use crate::settings::Loaded;
use crate::stores::existing::Existing;

/// What is asked for.
#[derive(Debug, Subcommand)]
pub(super) enum Ask {
    /// Shows the positions of all shards, what `kafka_offsets` says, and where the logs begin and end. Changes nothing.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Moves a stopped pipeline back, and says what becomes of its state.
    Rewind(rewind::Rewound),
}

pub(super) fn offsets(given: &Loaded, ask: &Ask) -> Result<(), Failure> {
    match ask {
        Ask::Show { json } => show(given, *json),
        Ask::Rewind(wish) => rewind::rewind(given, wish),
    }
}

fn show(given: &Loaded, json: bool) -> Result<(), Failure> {
    let settings = &given.settings;
    named(settings)?;
    let io = connections()?;
    let done = io.block_on(async {
        let existing = Existing::open(settings).await?;
        let standing = Standing::read(settings, &existing).await?;
        if json {
            let partitions: Vec<Value> = standing.partitions.iter().map(Partition::json).collect();
            print(&format!("{}\n", Value::from(partitions)));
        } else {
            print(&table(&standing.partitions));
        }
        if let Some(why) = &standing.unknown {
            // Not among the positions: somebody may be reading them.
            eprintln!("Where the logs begin and end is not known: {why}");
        }
        Ok(())
    });
    io.shutdown_background();
    done
}

pub(super) fn table(partitions: &[Partition]) -> String {
    let rows: Vec<[String; 8]> = partitions
        .iter()
        .map(|line| {
            let (low, high) = (line.position(), line.highest());
            [
                if line.recreated { format!("{} (an earlier one)", line.topic) } else { line.topic.clone() },
                line.key.partition.to_string(),
                low.to_string(),
                if low == high { "all".into() } else { format!("{low}..{high}") },
                or_dash(line.written),
                or_dash(line.log.map(|(begin, _)| begin)),
                or_dash(line.log.map(|(_, end)| end)),
                or_dash(line.lag()),
            ]
        })
        .collect();
    columns(["TOPIC", ">PARTITION", ">POSITION", "SHARDS", ">KAFKA_OFFSETS", ">BEGIN", ">END", ">LAG"], &rows)
}
