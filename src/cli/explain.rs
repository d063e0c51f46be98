//! `strandline explain`: the plan of a pipeline, part by part, without connecting to anything.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Failure, print};
use crate::catalog::{SinkKind, StartingOffsets};
use crate::service;
use crate::settings::{Loaded, Settings, StoreKind};
use crate::sinks;
use crate::sql::Plan;
use crate::stores;

pub(super) fn explain(given: &Loaded, json: bool) -> Result<(), Failure> {
    let settings = &given.settings;
    let plan = service::planned(settings)?;
    sinks::check(&plan.sink)?;
    let explained = Explained { settings, plan: &plan, shards: service::shards(settings, &plan)? };
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

impl Explained<'_> {
    fn contents(&self, label: &str) -> Vec<&str> {
        parts(&self.plan.description).filter(|(found, _)| *found == label).map(|(_, content)| content).collect()
    }

    fn stateless(&self) -> bool {
        self.contents("state") == ["none"]
    }

    /// What decides on which shard a row is worked on.
    fn routing(&self) -> String {
        let groups = self.contents("group by");
        if groups.len() == 1 && groups[0].starts_with("nothing") {
            return "everything on one shard: there is one group".into();
        }
        if !groups.is_empty() {
            let keys: Vec<&str> =
                groups.iter().map(|group| group.split_once(": ").map_or(*group, |(_, key)| key)).collect();
            return format!("by the hash of the group ({})", keys.join(", "));
        }
        match self.plan.sink.primary_key.as_slice() {
            [] => "by the hash of topic, partition and offset".into(),
            key => format!("by the hash of the primary key of {} ({})", self.plan.sink.name, key.join(", ")),
        }
    }

    fn mode(&self) -> &str {
        self.contents("mode").first().copied().unwrap_or("update")
    }

    fn sink(&self) -> String {
        match &self.plan.sink.kind {
            SinkKind::Console { .. } => "the console".into(),
            SinkKind::Cassandra { keyspace, table, .. } => format!("the Cassandra table {keyspace}.{table}"),
            SinkKind::Blackhole => "nowhere".into(),
            #[allow(unreachable_patterns)]
            _ => self.contents("write").join(", "),
        }
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
        let mut notices = Vec::new();
        if matches!(self.plan.sink.kind, SinkKind::Console { .. }) {
            notices.push("the console is written at least once: after a crash the last rows come again".to_owned());
        }
        let windowed = self.contents("group by").iter().any(|group| group.contains("window("));
        if windowed && self.contents("watermark").is_empty() {
            notices.push(
                "there is no watermark ('watermark.column'): windows never close, no row is late, and the state grows"
                    .to_owned(),
            );
        }
        if self.plan.query().retracts() {
            notices.push(
                "the query takes rows back (HAVING): a shard with a damaged segment cannot go back to an earlier state"
                    .to_owned(),
            );
        }
        if let Some(why) = self.plan.one_shard {
            notices.push(format!("it runs in one shard: {why}"));
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

    fn sections(&self) -> Vec<(&'static str, Vec<String>)> {
        let of = |labels: &[&str]| -> Vec<String> {
            let found = parts(&self.plan.description).filter(|(label, _)| labels.contains(label));
            found.map(|(label, content)| format!("{label:<9} {content}")).collect()
        };
        const SOURCE: [&str; 6] = ["read", "option", "declared", "rule", "watermark", "filter"];
        const STATE: [&str; 3] = ["group by", "aggregate", "state"];
        const SINK: [&str; 5] = ["having", "mode", "write", "key", "column"];
        let known = [&SOURCE[..], &STATE, &SINK].concat();
        let others: Vec<&str> =
            parts(&self.plan.description).map(|(label, _)| label).filter(|label| !known.contains(label)).collect();
        let shards = match self.shards {
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards, if this is the first start"),
        };
        vec![
            ("Source stage, on each partition", of(&SOURCE)),
            ("Shuffle", vec![self.routing(), shards]),
            (
                if self.stateless() { "Shards, without state" } else { "Shards, with state" },
                [of(&STATE), of(&others), vec![format!("kept in   {}", self.store())]].concat(),
            ),
            ("Sink", [vec![format!("to        {}, output mode {}", self.sink(), self.mode())], of(&SINK)].concat()),
        ]
    }

    fn text(&self) -> String {
        let mut text =
            format!("Pipeline {}, plan fingerprint {}\n", self.settings.pipeline.name, self.plan.fingerprint);
        let notices = ("Notices", self.notices());
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
        let plan = parts(&self.plan.description).map(|(label, content)| json!({ "part": label, "content": content }));
        json!({
            "pipeline": self.settings.pipeline.name,
            "fingerprint": self.plan.fingerprint,
            "sources": sources.collect::<Vec<_>>(),
            "routing": self.routing(),
            "shards": self.shards,
            "stateless": self.stateless(),
            "store": self.store(),
            "sink": self.sink(),
            "primary_key": self.plan.sink.primary_key,
            "output_mode": self.mode(),
            "plan": plan.collect::<Vec<_>>(),
            "notices": self.notices(),
        })
    }
}
