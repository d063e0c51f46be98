//! `strandline dead-letters`: what it shows of the records that could not be processed, and what it says when there are
//! none to show.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use serde_json::Value;
use strandline::settings::CassandraSettings;
use strandline_actors::ports::{DeadLetter, PipelineRow, StateStore};
use strandline_actors::position::{Offset, PartitionKey, SourcePartition};
use uuid::Uuid;

use crate::store_places::{CassandraPlace, LocalPlace, Place};

/// What a call of the program said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Where letters are, for whoever asks.
struct Asked {
    pipeline: String,
    settings: Vec<(&'static str, String)>,
}

impl Asked {
    fn local(place: &LocalPlace, pipeline: &str) -> Self {
        let settings = vec![("STORE__KIND", "local".into()), ("STORE__PATH", place.0.display().to_string())];
        Self { pipeline: pipeline.into(), settings }
    }

    fn cassandra(settings: &CassandraSettings, pipeline: &str) -> Self {
        let settings = vec![
            ("STORE__KIND", "cassandra".into()),
            ("CASSANDRA__NODES", settings.nodes.clone()),
            ("CASSANDRA__KEYSPACE", settings.keyspace.clone()),
            ("CASSANDRA__TIMEOUT", "20s".into()),
        ];
        Self { pipeline: pipeline.into(), settings }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        let settings = self.settings.iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value));
        command.arg("dead-letters").args(arguments).envs(settings).current_dir(std::env::temp_dir());
        command.env("STRANDLINE_PIPELINE__NAME", &self.pipeline).stdin(Stdio::null());
        command
    }

    fn ask(&self, arguments: &[&str]) -> Said {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What it lists as JSON.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let said = self.ask(&[&["list", "--json"], arguments].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// It fails with this code and says so in one sentence.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let said = self.ask(arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(code), ""), "{said:?}");
        assert!(said.err.starts_with("strandline: ") && said.err.lines().count() == 1, "{said:?}");
        for part in parts {
            assert!(said.err.contains(part), "{part:?} in {said:?}");
        }
    }
}

fn partition(topic: &str, number: i32) -> SourcePartition {
    let topic_id = Uuid::from_u128(topic.len() as u128);
    SourcePartition { source: 0, topic: topic.into(), key: PartitionKey { topic_id, partition: number } }
}

fn letter(topic: &str, number: i32, offset: i64, reason: &str, value: Option<&[u8]>) -> DeadLetter {
    DeadLetter {
        topic: topic.into(),
        partition: partition(topic, number).key,
        offset,
        timestamp: 1_700_000_000_000 + offset,
        reason: reason.into(),
        key: Some(format!("key {offset}").into_bytes()),
        value: value.map(<[u8]>::to_vec),
    }
}

/// A pipeline that has read two topics and set records of one aside, in the store alone.
async fn fill(store: &dyn StateStore) {
    let row = PipelineRow { shards: 1, fingerprint: "f".into(), plan: "p".into() };
    store.define_pipeline(&row).await.unwrap();
    for (topic, number) in [("orders", 0), ("orders", 1), ("orders", -1), ("quiet", 0)] {
        store.define_start(&partition(topic, number), Offset(0)).await.unwrap();
    }
    let letters = [
        letter("orders", 0, 4, "not valid JSON: EOF", Some(b"{\"a\":\"\x1b[2J")),
        letter("orders", 0, 9, "the value is null", None),
        letter("orders", 1, 2, "the value is empty", Some(b"")),
        letter("orders", 1, 300, "not valid UTF-8 from byte 0 on", Some(&[0xff, 0xfe])),
    ];
    store.write_dead_letters(&letters, 1_700_000_009_000_000).await.unwrap();
}

/// Topic, partition and offset of a line of the list.
fn places(lines: &[Value]) -> Vec<(String, i64, i64)> {
    let place = |line: &Value| {
        let topic = line["topic"].as_str().unwrap().to_owned();
        (topic, line["partition"].as_i64().unwrap(), line["offset"].as_i64().unwrap())
    };
    lines.iter().map(place).collect()
}

fn shows_what_there_is(asked: &Asked) {
    let lines = asked.json(&[]);
    let all: Vec<_> = [(0, 4), (0, 9), (1, 2), (1, 300)].map(|(p, o)| ("orders".to_owned(), p, o)).into();
    assert_eq!(places(&lines), all);
    assert_eq!((&lines[0]["value"], &lines[0]["value_encoding"]), (&"{\"a\":\"\u{1b}[2J".into(), &"text".into()));
    assert_eq!((&lines[0]["key"], &lines[0]["time"]), (&"key 4".into(), &"2023-11-14T22:13:20.004Z".into()));
    assert_eq!(lines[0]["set_aside"], "2023-11-14T22:13:29.000Z");
    assert_eq!((&lines[1]["value"], &lines[1]["value_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!((&lines[2]["value"], &lines[2]["value_bytes"]), (&"".into(), &0.into()));
    assert_eq!((&lines[3]["value"], &lines[3]["value_encoding"]), (&"fffe".into(), &"hex".into()));

    assert_eq!(places(&asked.json(&["--partition", "1"])), all[2..]);
    assert_eq!(places(&asked.json(&["--reason", "NOT VALID"])), [all[0].clone(), all[3].clone()]);
    assert_eq!(places(&asked.json(&["--topic", "orders", "--partition", "0", "--reason", "null"])), all[1..2]);
    assert_eq!(asked.json(&["--topic", "quiet"]), Vec::<Value>::new());
    assert_eq!(places(&asked.json(&["--limit", "3"])), all[..3]);
    assert_eq!(places(&asked.json(&["--limit", "0"])), all);

    let said = asked.ask(&["list", "--limit", "2"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 3, "{said:?}");
    assert!(lines[0].starts_with("TOPIC ") && lines[0].ends_with("REASON"), "{said:?}");
    let cells: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(cells[..5], ["orders", "0", "4", "2023-11-14T22:13:20.004Z", "10"]);
    assert!(lines[1].ends_with("not valid JSON: EOF"), "{said:?}");
    assert_eq!(said.err, "There are more than these 2: --limit 0 shows all\n");
    let said = asked.ask(&["list", "--topic", "quiet"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "There are no such dead letters\n"));

    let said = asked.ask(&["show", "orders", "0", "4"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for part in
        ["offset     4\n", "reason     not valid JSON: EOF\n", "key        5 bytes, text\nkey 4\n", "\\u{1b}[2J"]
    {
        assert!(said.out.contains(part), "{part:?} in {said:?}");
    }
    let said = asked.ask(&["show", "orders", "1", "300"]);
    assert!(said.out.ends_with("value      2 bytes, not UTF-8, in hexadecimal\nfffe\n"), "{said:?}");

    asked.fails(&["show", "orders", "0", "5"], 2, &["no dead letter at offset 5 of partition 0 of topic orders"]);
    asked.fails(&["show", "oders", "0", "4"], 2, &["has never read a topic `oders`", "orders, quiet"]);
    asked.fails(&["list", "--topic", "x"], 2, &["never read a topic `x`"]);
    let other = Asked { pipeline: "no.such".into(), settings: asked.settings.clone() };
    other.fails(&["list"], 2, &["there is no pipeline `no.such`", "STRANDLINE_PIPELINE__NAME"]);
    let nameless = Asked { pipeline: String::new(), settings: asked.settings.clone() };
    nameless.fails(&["list"], 2, &["STRANDLINE_PIPELINE__NAME"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_in_cassandra_are_shown_while_anybody_works_with_the_store() {
    let place = CassandraPlace::new();
    let pipeline = format!("letters-{}", Uuid::new_v4());
    let store = place.open(&pipeline).await;
    fill(store.as_ref()).await;
    shows_what_there_is(&Asked::cassandra(&place.0, &pipeline));

    // Neither a keyspace nor a server comes into being by asking.
    let nowhere = CassandraSettings { keyspace: format!("none_{}", Uuid::new_v4().simple()), ..place.0.clone() };
    Asked::cassandra(&nowhere, "p").fails(&["list"], 2, &["there is no pipeline `p`", &nowhere.keyspace]);
    Asked::cassandra(&nowhere, "p").fails(&["list"], 2, &["there is no pipeline `p`"]);
    let silent = CassandraSettings { nodes: "127.0.0.1:1".into(), ..place.0.clone() };
    Asked::cassandra(&silent, "p").fails(&["list"], 1, &["127.0.0.1:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_local_store_are_shown_when_no_service_holds_it() {
    let place = LocalPlace::new();
    let asked = Asked::local(&place, "shop");
    asked.fails(&["list"], 2, &["there is no pipeline `shop`", &place.0.display().to_string()]);
    assert!(!place.0.exists(), "asking makes no folder");
    let store = place.open("shop").await;
    fill(store.as_ref()).await;
    asked.fails(&["list"], 1, &["is in use by another process", "Stop that process", "cassandra"]);
    drop(store);
    shows_what_there_is(&asked);
}

/// More than fits a page, with values of which a few hundred would fill the memory if they were read at once.
#[tokio::test(flavor = "multi_thread")]
async fn many_and_large_letters_are_read_page_by_page() {
    let place = CassandraPlace::new();
    let pipeline = format!("letters-{}", Uuid::new_v4());
    let store = place.open(&pipeline).await;
    fill(store.as_ref()).await;
    let large = vec![b'x'; 1 << 20];
    for begin in (1_000..3_000).step_by(500) {
        let many: Vec<_> = (begin..begin + 500).map(|at| letter("orders", 0, at, "many", Some(b"{"))).collect();
        store.write_dead_letters(&many, 1).await.unwrap();
    }
    for at in 5_000..5_020 {
        store.write_dead_letters(&[letter("orders", 1, at, "large", Some(&large))], 1).await.unwrap();
    }
    let asked = Asked::cassandra(&place.0, &pipeline);
    let lines = asked.json(&["--limit", "0"]);
    let found: BTreeSet<i64> = lines.iter().map(|line| line["offset"].as_i64().unwrap()).collect();
    let wanted: BTreeSet<i64> = [2, 4, 9, 300].into_iter().chain(1_000..3_000).chain(5_000..5_020).collect();
    assert_eq!((found, lines.len()), (wanted, 4 + 2_000 + 20));
    let said = asked.ask(&["list", "--limit", "0", "--reason", "many"]);
    assert_eq!(said.out.lines().count(), 1 + 2_000, "{:?}", said.err);

    // Somebody who reads the first line only, as `| head -1` does, is no fault.
    let mut child = asked
        .command(&["list", "--json", "--limit", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(0), true));
}
