//! `strandline explain`: the plan of a pipeline, part by part, without connecting to anything.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Failure, print};
use crate::catalog::{SinkKind, StartingOffsets};
use crate::service;
use crate::settings::{Loaded, Settings, StoreKind};
use crate::sinks;
use crate::sql::{Insert, Plan, which_keep_state};
use crate::stores;

pub(super) fn explain(given: &Loaded, json: bool) -> Result<(), Failure> {
    let settings = &given.settings;
    let plan = service::planned(settings)?;
    plan.inserts.iter().try_for_each(|insert| sinks::check(&insert.sink))?;
    let explained = Explained { settings, plan: &plan, shards: settings.shards() };
    print(&if json { format!("{}\n", explained.json()) } else { explained.text() });
    Ok(())
}

struct Explained<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    shards: u32,
}

/// The lines of a plan's description, by their labels.
fn parts(description: &str) -> impl Iterator<Item = (&str, &str)> {
    description.lines().filter_map(|line| {
        let (label, content) = line.split_at_checked(9)?;
        Some((label.trim_end(), content.trim_start()))
    })
}

fn contents<'a>(description: &'a str, wanted: &str) -> Vec<&'a str> {
    parts(description).filter(|(label, _)| *label == wanted).map(|(_, content)| content).collect()
}

fn lines_of(description: &str, labels: &[&str]) -> Vec<String> {
    let found = parts(description).filter(|(label, _)| labels.contains(label));
    found.map(|(label, content)| format!("{label:<9} {content}")).collect()
}

fn as_json(description: &str) -> Vec<Value> {
    parts(description).map(|(label, content)| json!({ "part": label, "content": content })).collect()
}

/// What the steps before the shuffle are called, the table that is read apart.
const BEFORE: [&str; 2] = ["from", "filter"];
const STATE: [&str; 3] = ["group by", "aggregate", "state"];
const SINK: [&str; 5] = ["having", "mode", "write", "key", "column"];

/// One INSERT.
struct Part<'a>(&'a Insert);

impl Part<'_> {
    fn contents(&self, label: &str) -> Vec<&str> {
        contents(&self.0.description, label)
    }

    fn stateless(&self) -> bool {
        which_keep_state(&self.0.description) == [false]
    }

    /// What decides on which shard a row is worked on.
    fn routing(&self) -> String {
        let groups = self.contents("group by");
        if groups.len() == 1 && groups[0].starts_with("nothing") {
            return "everything on one shard: there is one group".into();
        }
        match (groups.is_empty(), self.0.routed_by.as_slice()) {
            (true, _) => {}
            (false, []) => return "everything on one shard: no group but the window decides".into(),
            (false, keys) => return format!("by the hash of the group ({})", keys.join(", ")),
        }
        let sink = &self.0.sink;
        match sink.primary_key.as_slice() {
            [] => "by the hash of topic, partition and offset".into(),
            key => format!("by the hash of the primary key of {} ({})", sink.name, key.join(", ")),
        }
    }

    fn mode(&self) -> &str {
        self.contents("mode").first().copied().unwrap_or("update")
    }

    fn sink(&self) -> String {
        match &self.0.sink.kind {
            SinkKind::Console { .. } => "the console".into(),
            SinkKind::Cassandra { keyspace, table, .. } => format!("the Cassandra table {keyspace}.{table}"),
            SinkKind::Blackhole => "nowhere".into(),
            #[allow(unreachable_patterns)]
            _ => self.contents("write").join(", "),
        }
    }

    fn json(&self) -> Value {
        json!({
            "table": self.0.sink.name,
            "routing": self.routing(),
            "stateless": self.stateless(),
            "sink": self.sink(),
            "primary_key": self.0.sink.primary_key,
            "output_mode": self.mode(),
            "plan": as_json(&self.0.description),
        })
    }
}

impl Explained<'_> {
    fn inserts(&self) -> impl Iterator<Item = Part<'_>> {
        self.plan.inserts.iter().map(Part)
    }

    fn store(&self) -> String {
        match self.settings.store.kind {
            StoreKind::Local => format!("the folder {} of this machine", stores::folder(self.settings).display()),
            StoreKind::Cassandra => {
                format!("Cassandra at {}, keyspace {}", self.settings.cassandra.nodes, self.settings.cassandra.keyspace)
            }
        }
    }

    /// What is worth knowing before it runs.
    fn notices(&self) -> Vec<String> {
        let mut notices = self.plan.notices.clone();
        if self.inserts().any(|insert| matches!(insert.0.sink.kind, SinkKind::Console { .. })) {
            notices.push("the console is written at least once: after a crash the last rows come again".to_owned());
        }
        if let Some(why) = self.plan.query().unrepeatable() {
            notices.push(format!("a shard with a damaged segment cannot go back to an earlier state: {why}"));
        }
        if self.settings.store.kind == StoreKind::Local {
            notices.push("the local store belongs to one process of one machine".to_owned());
        }
        for source in &self.plan.sources {
            if source.starting_offsets == StartingOffsets::Latest {
                notices.push(format!("what {} holds before the first start is never read", source.topic));
            }
        }
        notices
    }

    fn shards(&self) -> String {
        match self.shards {
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards, if this is the first start"),
        }
    }

    /// The parts behind the source of one INSERT, each with its title.
    fn behind(&self, insert: &Part<'_>) -> Vec<(&'static str, Vec<String>)> {
        let description = &insert.0.description;
        let known = [&BEFORE[..], &STATE, &SINK].concat();
        let others: Vec<&str> = parts(description).map(|(label, _)| label).filter(|l| !known.contains(l)).collect();
        let state = [
            lines_of(description, &STATE),
            lines_of(description, &others),
            vec![format!("kept in   {}", self.store())],
        ];
        let to = format!("to        {}, output mode {}", insert.sink(), insert.mode());
        vec![
            ("Shuffle", vec![insert.routing(), self.shards()]),
            (if insert.stateless() { "Shards, without state" } else { "Shards, with state" }, state.concat()),
            ("Sink", [vec![to], lines_of(description, &SINK)].concat()),
        ]
    }

    fn sections(&self) -> Vec<(String, Vec<String>)> {
        let reading: Vec<String> = self.plan.reading.lines().map(str::to_owned).collect();
        let source = "Source stage, on each partition".to_owned();
        if let [only] = self.plan.inserts.as_slice() {
            let insert = Part(only);
            let first = (source, [reading, lines_of(&only.description, &BEFORE)].concat());
            let behind = self.behind(&insert).into_iter().map(|(title, lines)| (title.to_owned(), lines));
            return std::iter::once(first).chain(behind).collect();
        }
        let mut sections = vec![(format!("{source}, once for all"), reading)];
        for insert in self.inserts() {
            let name = &insert.0.sink.name;
            sections.push((format!("INSERT INTO {name}: source stage"), lines_of(&insert.0.description, &BEFORE)));
            let behind = self.behind(&insert).into_iter();
            sections
                .extend(behind.map(|(title, lines)| (format!("INSERT INTO {name}: {}", title.to_lowercase()), lines)));
        }
        sections
    }

    fn text(&self) -> String {
        let mut text =
            format!("Pipeline {}, plan fingerprint {}\n", self.settings.pipeline.name, self.plan.fingerprint);
        let notices = ("Notices".to_owned(), self.notices());
        for (title, lines) in self.sections().into_iter().chain([notices]).filter(|(_, lines)| !lines.is_empty()) {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "\n{title}");
            for line in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }

    fn json(&self) -> Value {
        let sources = self.plan.sources.iter().map(|source| json!({ "table": source.table, "topic": source.topic }));
        json!({
            "pipeline": self.settings.pipeline.name,
            "fingerprint": self.plan.fingerprint,
            "sources": sources.collect::<Vec<_>>(),
            "shards": self.shards,
            "store": self.store(),
            "inserts": self.inserts().map(|insert| insert.json()).collect::<Vec<_>>(),
            "plan": as_json(&self.plan.description),
            "notices": self.notices(),
        })
    }
}
