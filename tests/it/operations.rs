//! The commands by which a pipeline is watched and changed from the shell: each that changes something by its effect.

mod pausing;
mod replay;
mod rewind;
mod secrets;
mod stored;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::balance;
use crate::stand::{PATIENCE, Service, Stand, until};
use crate::store_places::LocalPlace;

/// What a call of the program said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    /// It went well. Answers what it said as JSON.
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn went_well(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }

    /// It failed with this code and says so in sentences for people.
    #[track_caller]
    fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} in {self:?}");
        }
        for dump in ["Error {", "Err(", "panicked", "Some("] {
            assert!(!self.err.contains(dump), "{dump:?} in {self:?}");
        }
    }
}

/// A pipeline that counts records by item into a table, over either store.
struct Counting {
    stand: Stand,
    more: Vec<(&'static str, String)>,
    /// What each partition holds, in order: items.
    logs: Vec<Vec<String>>,
    /// A second INSERT, which keeps no state, writes every record into a table of this name.
    copies: Option<String>,
    _folder: Option<LocalPlace>,
}

impl Counting {
    async fn over_cassandra(partitions: i32) -> Self {
        // Whoever asks for the owner must hear it on a busy machine, too.
        let more = vec![("STORE__TAKEOVER_AFTER", "6s".to_owned())];
        Self { stand: Stand::new(partitions).await, more, logs: Self::empty(partitions), copies: None, _folder: None }
    }

    async fn over_local(partitions: i32) -> Self {
        let place = LocalPlace::new();
        let more = vec![("STORE__KIND", "local".to_owned()), ("STORE__PATH", place.0.display().to_string())];
        Self {
            stand: Stand::new(partitions).await,
            more,
            logs: Self::empty(partitions),
            copies: None,
            _folder: Some(place),
        }
    }

    fn empty(partitions: i32) -> Vec<Vec<String>> {
        vec![Vec::new(); partitions as usize]
    }

    fn sql(&self) -> String {
        let copies = self.copies.as_ref().map_or_else(String::new, |table| {
            format!(
                "CREATE EXTERNAL TABLE copies (partition INT, position BIGINT, item VARCHAR, PRIMARY KEY (partition, position))
                   STORED AS CQL LOCATION 'cassandra://{}/{table}' OPTIONS ('sink.create' 'true');
                 INSERT INTO copies SELECT _partition, _offset, item FROM orders;",
                self.stand.keyspace
            )
        });
        format!(
            "CREATE EXTERNAL TABLE orders (item VARCHAR) STORED AS JSON LOCATION 'kafka://{}';
             {copies}
             CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, PRIMARY KEY (item)) STORED AS CQL
               LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
             INSERT INTO totals SELECT item, count(*) FROM orders GROUP BY item",
            self.stand.topic.name, self.stand.keyspace, self.stand.table
        )
    }

    /// Sends so many records to each partition, of ten items by turns; the first are of others.
    async fn fill(&mut self, each: usize) {
        for (partition, log) in (0..).zip(&mut self.logs) {
            let items: Vec<String> = (log.len()..log.len() + each).map(|n| item(n, partition as usize)).collect();
            let records: Vec<String> = items.iter().map(|item| format!("{{\"item\":\"{item}\"}}")).collect();
            log.extend(items);
            self.stand.topic.fill(partition, records).await;
        }
    }

    fn start(&self) -> Service {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[(&str, &str)]) -> Service {
        let settings: Vec<(&str, &str)> =
            self.more.iter().map(|(name, value)| (*name, value.as_str())).chain(more.iter().copied()).collect();
        self.stand.start_with(&self.sql(), &settings)
    }

    fn command(&self, arguments: &[&str], more: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        command.args(arguments).envs(self.stand.environment(&self.sql()));
        // Nobody listens there, unless a test says otherwise.
        command.env("STRANDLINE_HTTP__LISTEN", "127.0.0.1:1");
        command.envs(self.more.iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value)));
        command.envs(more.iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value)));
        command.stdin(Stdio::null()).current_dir(std::env::temp_dir());
        command
    }

    fn call_with(&self, arguments: &[&str], more: &[(&str, &str)]) -> Said {
        said(&mut self.command(arguments, more))
    }

    fn call(&self, arguments: &[&str]) -> Said {
        self.call_with(arguments, &[])
    }

    /// The address where a service serves its page.
    fn address(service: &Service) -> String {
        service.said().split("status page at http://").nth(1).unwrap().lines().next().unwrap().trim_end().to_owned()
    }

    /// What the table holds.
    async fn table(&self) -> BTreeMap<String, i64> {
        let read = format!("SELECT item, n FROM {}.{}", self.stand.keyspace, self.stand.table);
        let rows = self.stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        rows.rows::<(String, i64)>().unwrap().map(|row| row.unwrap()).collect()
    }

    async fn empty_the_table(&self) {
        let truncate = format!("TRUNCATE {}.{}", self.stand.keyspace, self.stand.table);
        self.stand.session.query_unpaged(truncate, ()).await.unwrap();
    }

    /// An independent count of what the partitions hold from these offsets on, added to an earlier one.
    fn recount(&self, from: &[usize], mut earlier: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
        for (log, from) in self.logs.iter().zip(from) {
            for item in &log[*from..] {
                *earlier.entry(item.clone()).or_default() += 1;
            }
        }
        earlier
    }

    fn ends(&self) -> BTreeMap<i32, i64> {
        (0..).zip(self.logs.iter().map(|log| log.len() as i64)).collect()
    }

    /// Where the stopped pipeline stands by `offsets show`: partition, position.
    #[track_caller]
    fn positions(&self) -> BTreeMap<i32, i64> {
        let lines = self.call(&["offsets", "show", "--json"]).json();
        let of = |line: &Value, what: &str| line[what].as_i64().unwrap();
        lines.as_array().unwrap().iter().map(|line| (of(line, "partition") as i32, of(line, "position"))).collect()
    }

    /// Waits until the service has everything, and stops it.
    async fn settle(&self, service: Service) {
        let ends: BTreeMap<i64, i64> =
            self.ends().into_iter().map(|(partition, end)| (partition.into(), end)).collect();
        service
            .until("everything is read", |status| {
                let lines = status["board"]["partitions"].as_array();
                lines.is_some_and(|lines| {
                    lines.len() == ends.len()
                        && lines
                            .iter()
                            .all(|line| line["position"].as_i64() == line["partition"].as_i64().map(|p| ends[&p]))
                })
            })
            .await;
        service.stop().await;
        let more = self.more.iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value.clone()));
        balance::holds(&balance::stored(self.stand.environment("").into_iter().chain(more)).await).await;
    }
}

fn item(n: usize, partition: usize) -> String {
    if n < 10 { format!("early {}", n % 3) } else { format!("item {}", (n + partition * 3) % 10) }
}

fn said(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Waits until what a command says is so.
async fn until_says(what: &str, call: impl Fn() -> Said, condition: impl Fn(&Value) -> bool) {
    until(what, PATIENCE, async || {
        let said = call();
        said.code == Some(0) && serde_json::from_str(&said.out).is_ok_and(|value| condition(&value))
    })
    .await;
}
