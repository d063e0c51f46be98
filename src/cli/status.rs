//! `strandline status`: how a pipeline is. A running service is asked; where there is none, the store is read.

use std::fmt::Write as _;

use serde_json::{Value, json};
use strandline_actors::pause::Wishes;
use strandline_actors::pointer::Pointer;

use super::columns::{columns, count, or_dash};
use super::letters::time;
use super::stored::{Owner, Standing, named, owner};
use super::{Failure, connections, print};
use crate::http::client::Client;
use crate::settings::{Loaded, Settings};
use crate::stores::existing::{self, Existing};

pub(super) fn status(given: &Loaded, json: bool) -> Result<(), Failure> {
    let settings = &given.settings;
    let name = named(settings)?;
    let elsewhere = match asked(settings) {
        Ok(status) if status["pipeline"] == name => {
            print(&if json { with_origin(status) } else { of_service(settings, &status) });
            return Ok(());
        }
        Ok(status) => format!(
            "the service at {} runs pipeline {}, not {name}",
            settings.http.listen,
            status["pipeline"].as_str().unwrap_or("of another kind")
        ),
        Err(why) => why,
    };
    let io = connections()?;
    let done = io.block_on(async {
        let existing = Existing::open(settings).await.map_err(|error| {
            let failure = Failure::from(error);
            Failure { message: format!("{elsewhere}; and the store does not tell: {}", failure.message), ..failure }
        })?;
        let owner = owner(existing.store().as_ref()).await?;
        let standing = Standing::read(settings, &existing).await?;
        let paused = existing.store().paused().await.map_err(Failure::failed)?;
        print(&if json {
            format!("{}\n", of_store_json(settings, &existing, &owner, &standing, &paused))
        } else {
            of_store(settings, &existing, &owner, &standing, &paused, &elsewhere)
        });
        Ok(())
    });
    io.shutdown_background();
    done
}

/// What a running service shows of itself, or why there is none to ask.
fn asked(settings: &Settings) -> Result<Value, String> {
    let answer = Client::new(&settings.http).get("/api/status").map_err(|error| error.to_string())?;
    serde_json::from_str(&answer.body)
        .map_err(|_| format!("what answers at {} is no Strandline (code {})", settings.http.listen, answer.status))
}

fn with_origin(status: Value) -> String {
    let mut status = status;
    status["from"] = "service".into();
    format!("{status}\n")
}

fn of_service(settings: &Settings, status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| or_dash(value.as_i64());
    let board = &status["board"];
    let mut out = format!(
        "Pipeline {}: asked the service at {}, version {}\n",
        text(&status["pipeline"]),
        settings.http.listen,
        text(&status["version"]),
    );
    let list = |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().map(text).collect() };
    let (problems, waiting) = (list(&status["problems"]), list(&status["waiting_for"]));
    // Writing to a text cannot fail.
    let _ = writeln!(
        out,
        "Up for {:.0} s, generation {}, {}, {}{}",
        status["uptime_seconds"].as_f64().unwrap_or_default(),
        number(&board["generation"]),
        if problems.is_empty() { "healthy" } else { "NOT healthy" },
        if waiting.is_empty() { "ready" } else { "not ready" },
        if board["paused"] == true { ", PAUSED" } else { "" },
    );
    for line in problems.iter().chain(&waiting) {
        let _ = writeln!(out, "  - {line}");
    }
    let partitions: Vec<[String; 7]> = board["partitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|line| {
            let (position, end) = (line["position"].as_i64(), line["end"].as_i64());
            let lag = position.zip(end).map(|(position, end)| (end - position).max(0));
            [
                text(&line["topic"]),
                number(&line["partition"]),
                number(&line["position"]),
                number(&line["end"]),
                or_dash(lag),
                text(&line["actor"]["life"]),
                number(&line["actor"]["restarts"]),
            ]
        })
        .collect();
    out += "\n";
    out += &columns(["TOPIC", ">PARTITION", ">POSITION", ">END", ">LAG", "LIFE", ">RESTARTS"], &partitions);
    let shards: Vec<[String; 7]> = board["shards"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(shard, line)| {
            [
                shard.clone(),
                number(&line["epoch"]),
                number(&line["keys"]),
                number(&line["bytes"]),
                line["committed"].as_f64().map_or("-".into(), |age| format!("{age:.1} s ago")),
                text(&line["actor"]["life"]),
                number(&line["actor"]["restarts"]),
            ]
        })
        .collect();
    out += "\n";
    out += &columns([">SHARD", ">EPOCH", ">KEYS", ">BYTES", "COMMITTED", "LIFE", ">RESTARTS"], &shards);
    // Those of a sink have the place of its INSERT.
    let inserts: Vec<[String; 7]> = status["inserts"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(status["sinks"].as_array().into_iter().flatten())
        .map(|(insert, sink)| {
            let late = insert["late"].as_i64().zip(insert["late_closed"].as_i64()).map(|(a, b)| a + b);
            [
                text(&insert["table"]),
                number(&insert["processed"]),
                number(&insert["filtered"]),
                or_dash(late),
                number(&sink["upserts"]),
                number(&sink["deletes"]),
                number(&sink["refused"]),
            ]
        })
        .collect();
    out += "\n";
    out += &columns(["TABLE", ">ROWS", ">FILTERED", ">LATE", ">WRITTEN", ">REMOVED", ">REFUSED"], &inserts);
    out
}

fn of_store(
    settings: &Settings,
    existing: &Existing,
    owner: &Owner,
    standing: &Standing,
    paused: &Wishes,
    elsewhere: &str,
) -> String {
    let mut out =
        format!("Pipeline {}: read from {}, since {elsewhere}\n", settings.pipeline.name, existing::place(settings));
    let owned = match owner {
        Owner::Nobody => "No process has owned it, or none for a week".to_owned(),
        Owner::Released(beat) => {
            format!("Stopped in good order by instance {} (generation {})", beat.instance, beat.generation)
        }
        Owner::Silent(beat) => format!(
            "The heartbeat of instance {} (generation {}) stands still: it has crashed, or cannot reach the store",
            beat.instance, beat.generation
        ),
        Owner::Alive(beat) => format!("Running: instance {} owns it (generation {})", beat.instance, beat.generation),
    };
    // Writing to a text cannot fail.
    let _ = writeln!(out, "{owned}");
    match (paused.pipeline, paused.partitions.len()) {
        (true, _) => out += "PAUSED: it reads nothing until `strandline resume`, also when it is started\n",
        (false, 0) => {}
        (false, some) => {
            let _ = writeln!(out, "PAUSED: {} until `strandline resume`", count(some, "partition"));
        }
    }
    if let Some(rewind) = standing.pointers.iter().flatten().find_map(|pointer| pointer.content.rewind.as_deref()) {
        let _ = writeln!(out, "It does not start: {rewind}");
    }
    let _ = writeln!(
        out,
        "{}, plan fingerprint {}\n",
        count(existing.row.shards as usize, "shard"),
        existing.row.fingerprint
    );
    let partitions: Vec<[String; 5]> = standing
        .partitions
        .iter()
        .map(|line| {
            [
                line.topic.clone(),
                line.key.partition.to_string(),
                line.position().to_string(),
                or_dash(line.log.map(|(_, end)| end)),
                or_dash(line.lag()),
            ]
        })
        .collect();
    out += &columns(["TOPIC", ">PARTITION", ">POSITION", ">END", ">LAG"], &partitions);
    let shards: Vec<[String; 5]> = standing
        .pointers
        .iter()
        .enumerate()
        .map(|(shard, pointer)| match pointer {
            Some(pointer) => [
                shard.to_string(),
                pointer.epoch.to_string(),
                pointer.generation.to_string(),
                time(pointer.timestamp),
                rows(pointer).to_string(),
            ],
            None => [shard.to_string(), "-".into(), "-".into(), "never".into(), "0".into()],
        })
        .collect();
    out += "\n";
    out += &columns([">SHARD", ">EPOCH", ">GENERATION", "WRITTEN", ">STATE ROWS"], &shards);
    if let Some(why) = &standing.unknown {
        let _ = writeln!(out, "\nWhere the logs end is not known: {why}");
    }
    out
}

fn rows(pointer: &Pointer) -> u64 {
    pointer.content.state.iter().map(|segment| segment.rows).sum()
}

fn of_store_json(
    settings: &Settings,
    existing: &Existing,
    owner: &Owner,
    standing: &Standing,
    paused: &Wishes,
) -> Value {
    let shards = standing.pointers.iter().enumerate().map(|(shard, pointer)| match pointer {
        Some(pointer) => json!({
            "shard": shard,
            "epoch": pointer.epoch,
            "attempt": pointer.attempt,
            "generation": pointer.generation,
            "written": time(pointer.timestamp),
            "state_segments": pointer.content.state.len(),
            "state_rows": rows(pointer),
            "delivered": pointer.content.delivered,
            "rewinding": pointer.content.rewind.is_some(),
        }),
        None => json!({ "shard": shard, "epoch": null }),
    });
    json!({
        "from": "store",
        "pipeline": settings.pipeline.name,
        "owner": owner.heartbeat(),
        "owner_is": owner.word(),
        "paused": paused,
        "fingerprint": existing.row.fingerprint,
        "shards": shards.collect::<Vec<_>>(),
        "partitions": standing.partitions.iter().map(super::stored::Partition::json).collect::<Vec<_>>(),
        "ends_unknown": standing.unknown,
    })
}
