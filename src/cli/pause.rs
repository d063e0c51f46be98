//! `strandline pause` and `strandline resume`: tells a running service to read a pipeline or a partition no more, and to go
//! on.

use clap::Args;
use serde_json::{Value, json};

use super::confirm::confirm;
use super::stored::named;
use super::{Failure, print};
use crate::http::client::{Client, escaped};
use crate::settings::{Loaded, Settings};

/// What is meant.
#[derive(Debug, Args)]
pub(super) struct Scope {
    /// The topic of one partition; can be left out if the pipeline reads one topic.
    #[arg(long, requires = "partition")]
    topic: Option<String>,
    /// One partition. Without it, all of them.
    #[arg(long)]
    partition: Option<i32>,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What is meant by a wish to go on.
#[derive(Debug, Args)]
pub(super) struct Resumed {
    #[command(flatten)]
    scope: Scope,
    /// A shard that is halted.
    #[arg(long, conflicts_with_all = ["topic", "partition"])]
    shard: Option<u32>,
}

pub(super) fn pause(given: &Loaded, scope: &Scope) -> Result<(), Failure> {
    let service = Service::find(&given.settings)?;
    let (path, what) = service.partition(scope)?;
    confirm(
        scope.yes,
        &format!("{what} will not be read until it is resumed, also not by a process that starts anew"),
    )?;
    service.wish(&format!("/api/pause{path}"), "paused", &what, scope.json)
}

pub(super) fn resume(given: &Loaded, Resumed { scope, shard }: &Resumed) -> Result<(), Failure> {
    let service = Service::find(&given.settings)?;
    let (path, what) = match shard {
        Some(shard) => (format!("/shard/{shard}"), format!("shard {shard}")),
        None => service.partition(scope)?,
    };
    confirm(scope.yes, &format!("{what} will be read again"))?;
    service.wish(&format!("/api/resume{path}"), "resumed", &what, scope.json)
}

/// A service that runs the pipeline of the settings.
struct Service<'a> {
    settings: &'a Settings,
    client: Client,
    status: Value,
}

impl<'a> Service<'a> {
    fn find(settings: &'a Settings) -> Result<Self, Failure> {
        let name = named(settings)?;
        let client = Client::new(&settings.http);
        let answer = client.get("/api/status").map_err(Failure::failed)?;
        let status: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        match status["pipeline"].as_str() {
            Some(found) if found == name => Ok(Self { settings, client, status }),
            Some(other) => Err(Failure::usage(format!(
                "the service at {} runs pipeline {other}, not {name}: check STRANDLINE_HTTP__LISTEN",
                settings.http.listen
            ))),
            None => Err(Failure::usage(format!(
                "what answers at {} is no Strandline: check STRANDLINE_HTTP__LISTEN",
                settings.http.listen
            ))),
        }
    }

    /// The path and the name of what is meant.
    fn partition(&self, scope: &Scope) -> Result<(String, String), Failure> {
        let Some(partition) = scope.partition else {
            return Ok((String::new(), format!("pipeline {}", self.settings.pipeline.name)));
        };
        let mut topics: Vec<&str> = self.status["board"]["partitions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|line| line["topic"].as_str())
            .collect();
        topics.sort_unstable();
        topics.dedup();
        let topic = match (&scope.topic, topics.as_slice()) {
            (Some(topic), _) => topic.as_str(),
            (None, [topic]) => topic,
            (None, _) => {
                return Err(Failure::usage(format!("--topic is needed: the pipeline reads {}", topics.join(", "))));
            }
        };
        Ok((format!("/partition/{}/{partition}", escaped(topic)), format!("partition {topic}-{partition}")))
    }

    fn wish(&self, path: &str, done: &str, what: &str, json: bool) -> Result<(), Failure> {
        let answer = self.client.post(path).map_err(Failure::failed)?;
        let said = answer.body.trim_end();
        match answer.status {
            202 => Err(Failure::failed(format!("{what} is {said}"))),
            200 => {
                print(&if json {
                    format!("{}\n", json!({ "pipeline": self.settings.pipeline.name, "what": what, "is": done }))
                } else {
                    format!("{what} is {done}\n")
                });
                Ok(())
            }
            401 | 403 | 404 => Err(Failure::usage(format!("{what} is not {done}: {said}"))),
            _ => Err(Failure::failed(format!("{what} is not {done}: {said}"))),
        }
    }
}
