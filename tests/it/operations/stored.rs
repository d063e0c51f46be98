//! What `status`, `offsets show`, `checkpoints` and `explain` say, of a service that runs and of what one has left.

use std::collections::BTreeMap;

use serde_json::Value;
use strandline::settings::{Settings, StoreKind, StoreSettings};
use strandline_actors::pointer::SegmentRef;

use super::{Counting, until_says};

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_running_service_is_its_own_and_of_a_stopped_one_that_of_its_store() {
    let mut counting = Counting::over_cassandra(2).await;
    counting.call(&["status"]).failed(2, &["no service answers at 127.0.0.1:1", "there is no pipeline `tested-"]);
    counting.fill(60).await;
    let service = counting.start();
    service.until_ready().await;
    counting.stand.until_committed(&counting.ends()).await;
    let address = Counting::address(&service);
    let at = [("HTTP__LISTEN", address.as_str())];
    let text = counting.call_with(&["status"], &at);
    assert_eq!(text.code, Some(0), "{text:?}");
    let place = format!("asked the service at {address}");
    for part in [place.as_str(), "healthy, ready", "POSITION", "RESTARTS", counting.stand.topic.name.as_str()] {
        assert!(text.out.contains(part), "{part:?} in {}", text.out);
    }
    let asked = counting.call_with(&["status", "--json"], &at).json();
    assert_eq!(
        (&asked["from"], &asked["pipeline"]),
        (&"service".into(), &Value::from(counting.stand.pipeline.as_str()))
    );
    // Nobody to ask: the store tells that somebody owns it all the same.
    let stored = || counting.call(&["status", "--json"]);
    until_says("the owner is alive", stored, |status| status["owner_is"] == "alive").await;
    service.kill();
    until_says("the owner is silent", stored, |status| status["owner_is"] == "silent").await;

    counting.settle(counting.start()).await;
    let status = stored().json();
    assert_eq!((&status["from"], &status["owner_is"]), (&"store".into(), &"stopped".into()));
    assert_eq!((&status["owner"]["instance"], &status["ends_unknown"]), (&"tested".into(), &Value::Null));
    assert_eq!(status["shards"].as_array().unwrap().len(), 2);
    for line in status["partitions"].as_array().unwrap() {
        assert_eq!((&line["position"], &line["end"], &line["lag"]), (&60.into(), &60.into(), &0.into()), "{line}");
    }
    let text = counting.call(&["status"]);
    assert!(text.out.contains("Stopped in good order by instance tested"), "{text:?}");

    // A service of another pipeline at the address is not this one.
    let other = Counting::over_cassandra(1).await;
    let service = other.start();
    service.until_ready().await;
    let address = Counting::address(&service);
    let text = counting.call_with(&["status"], &[("HTTP__LISTEN", address.as_str())]);
    assert!(text.out.contains("read from keyspace") && text.out.contains("runs pipeline tested-"), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_are_shown_beside_what_kafka_has() {
    for mut counting in [Counting::over_cassandra(2).await, Counting::over_local(2).await] {
        counting.fill(40).await;
        counting.settle(counting.start()).await;
        counting.fill(7).await;
        counting.stand.topic.delete_records(1, 3).await;
        let lines = counting.call(&["offsets", "show", "--json"]).json();
        for (partition, begin) in [(0, 0), (1, 3)] {
            let line = &lines[partition];
            assert_eq!(line["partition"], partition);
            assert_eq!((&line["position"], &line["shards"]), (&40.into(), &serde_json::json!([40, 40])), "{line}");
            assert_eq!((&line["kafka_offset"], &line["begin"]), (&40.into(), &begin.into()), "{line}");
            assert_eq!(
                (&line["end"], &line["lag"], &line["recreated"]),
                (&47.into(), &7.into(), &false.into()),
                "{line}"
            );
        }
        let text = counting.call(&["offsets", "show"]);
        assert!(
            text.out.starts_with("TOPIC") && text.out.contains("KAFKA_OFFSETS") && text.out.contains("all"),
            "{text:?}"
        );
        // Without Kafka the positions are still told.
        let alone = counting.call_with(&["offsets", "show"], &[("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")]);
        assert_eq!(alone.code, Some(0), "{alone:?}");
        assert!(alone.out.contains("40") && alone.err.contains("no Kafka broker answered at 127.0.0.1:1"), "{alone:?}");
    }
}

/// The segments of the state that the shards list.
async fn listed(counting: &Counting, store: &dyn strandline_actors::ports::StateStore) -> Vec<SegmentRef> {
    let mut segments = Vec::new();
    for shard in 0..2 {
        let pointer = store.read_pointer(shard).await.unwrap().unwrap();
        segments.extend(pointer.content.state);
    }
    assert!(!segments.is_empty(), "{}", counting.stand.pipeline);
    segments
}

fn settings(counting: &Counting) -> Settings {
    let mut settings = Settings::default();
    match counting.more.iter().find(|(name, _)| *name == "STORE__PATH") {
        Some((_, path)) => {
            settings.store =
                StoreSettings { kind: StoreKind::Local, path: Some(path.into()), ..StoreSettings::default() };
        }
        None => {
            settings.store.kind = StoreKind::Cassandra;
            settings.cassandra.keyspace = counting.stand.keyspace.clone();
            settings.cassandra.nodes = crate::cassandra_connection::server();
        }
    }
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_is_gone_or_damaged_is_named_and_fails_the_verification() {
    for mut counting in [Counting::over_cassandra(2).await, Counting::over_local(2).await] {
        counting.fill(50).await;
        counting.settle(counting.start()).await;
        let list = counting.call(&["checkpoints", "list", "--json"]).json();
        let states = list.as_array().unwrap().iter().filter(|line| line["what"] == "state");
        assert!(states.map(|line| line["rows"].as_u64().unwrap()).sum::<u64>() >= 13, "a row for each item: {list}");
        assert!(counting.call(&["checkpoints", "list"]).out.contains("earlier state"));
        let good = counting.call(&["checkpoints", "verify", "--json"]).json();
        assert_eq!(good["faults"], serde_json::json!([]));
        assert!(good["segments"].as_u64() > Some(1), "{good}");

        let settings = settings(&counting);
        let store = strandline::stores::open(&settings, &counting.stand.pipeline).await.unwrap();
        let segments = listed(&counting, store.as_ref()).await;
        let (first, last) = (&segments[0], segments.last().unwrap());
        assert_ne!(first.key, last.key);
        let mut bytes = store.read_segment(&first.key).await.unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        if settings.store.kind == StoreKind::Cassandra {
            let write = format!(
                "UPDATE {}.segments SET content = ? WHERE pipeline = '{}' AND shard = {} AND epoch = {} AND attempt = {} AND \
                 number = {} AND chunk = 0",
                counting.stand.keyspace,
                counting.stand.pipeline,
                first.key.shard,
                first.key.epoch,
                first.key.attempt.0,
                first.key.number
            );
            counting.stand.session.query_unpaged(write, (bytes,)).await.unwrap();
        } else {
            store.write_segment(&first.key, &bytes).await.unwrap();
        }
        store.delete_segments(&[last.key]).await.unwrap();
        // One process at a time works with a local store.
        drop(store);

        let said = counting.call(&["checkpoints", "verify", "--json"]);
        said.failed(1, &["2 segments are missing or damaged"]);
        let told: Value = serde_json::from_str(&said.out).unwrap();
        let faults: BTreeMap<String, (u64, String)> = told["faults"]
            .as_array()
            .unwrap()
            .iter()
            .map(|fault| {
                let shard = fault["shard"].as_u64().unwrap();
                (
                    fault["what"].as_str().unwrap().to_owned(),
                    (shard, fault["needed_by"][0].as_str().unwrap().to_owned()),
                )
            })
            .collect();
        assert_eq!(faults["damaged"].0, u64::from(first.key.shard), "{told}");
        assert_eq!(faults["missing"].0, u64::from(last.key.shard), "{told}");
        assert!(faults.values().all(|(_, needed)| needed.starts_with("state ")), "{told}");
        let text = counting.call(&["checkpoints", "verify"]);
        assert!(text.code == Some(1) && text.out.contains("damaged") && text.out.contains("missing"), "{text:?}");
    }
}

/// Beside a service that commits and deletes, a segment that went by right is no fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_service_is_verified_without_false_alarm() {
    let mut counting = Counting::over_cassandra(2).await;
    counting.fill(20).await;
    let service = counting.start_with(&[("CHECKPOINT__INTERVAL", "5ms")]);
    service.until_ready().await;
    for _ in 0..8 {
        counting.fill(500).await;
        let said = counting.call(&["checkpoints", "verify", "--json"]);
        assert_eq!(said.json()["faults"], serde_json::json!([]));
    }
    counting.settle(service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_local_store_has_is_compared_before_the_service_starts() {
    let mut counting = Counting::over_local(2).await;
    counting.fill(5).await;
    counting.settle(counting.start()).await;
    let said = counting.call(&["check", "--connect"]);
    assert!(said.code == Some(0) && said.out.contains("it goes on from the stored state of tested-"), "{said:?}");
    let other = counting.sql().replace("count(*)", "count(item)");
    let said = counting.call_with(&["check", "--connect"], &[("PIPELINE__SQL", &other)]);
    said.failed(2, &["has stored state of another query", "count("]);
    let said = counting.call_with(&["check", "--connect"], &[("PIPELINE__NAME", "another")]);
    assert!(said.code == Some(0) && said.out.contains("nothing is stored of another yet"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_explained_without_any_server() {
    let counting = Counting::over_cassandra(1).await;
    let nowhere = [("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"), ("CASSANDRA__NODES", "127.0.0.1:1")];
    let text = counting.call_with(&["explain"], &nowhere);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in [
        "Source stage, on each partition\n  read",
        "Shuffle\n  by the hash of the group (item)\n  2 shards",
        "Shards, with state\n  group by  1: item\n  aggregate 1: count(",
        "output mode update",
        "kept in   Cassandra at 127.0.0.1:1",
    ] {
        assert!(text.out.contains(part), "{part:?} in {}", text.out);
    }
    let json = counting.call_with(&["explain", "--json"], &nowhere).json();
    assert_eq!(json["inserts"][0]["routing"], "by the hash of the group (item)");
    assert_eq!(
        (&json["shards"], &json["inserts"][0]["stateless"], &json["inserts"][0]["output_mode"]),
        (&2.into(), &false.into(), &"update".into())
    );
    assert_eq!(json["sources"][0]["topic"], counting.stand.topic.name.as_str());
    assert_eq!(json["notices"], serde_json::json!([]));

    // All groups of a window that meet again are on one shard; the window itself does not decide.
    let windows = "CREATE EXTERNAL TABLE orders (item VARCHAR, buyer VARCHAR, at TIMESTAMP) STORED AS JSON \
                   LOCATION 'kafka://orders' OPTIONS ('watermark.column' 'at'); \
                   CREATE EXTERNAL TABLE totals (start TIMESTAMP, item VARCHAR, n BIGINT) STORED AS JSON \
                   LOCATION 'console://';";
    let inner = "SELECT window.start AS start, item, buyer, count(*) AS n FROM orders \
                 GROUP BY window(at, '1 minute'), item, buyer";
    for (query, routing) in [
        (inner.replace("buyer, count", "count"), "by the hash of the group (item, buyer)"),
        (format!("SELECT start, item, sum(n) FROM ({inner}) GROUP BY start, item"), "by the hash of the group (item)"),
        (
            format!("SELECT start, '', sum(n) FROM ({inner}) GROUP BY start"),
            "everything on one shard: no group but the window decides",
        ),
    ] {
        let sql = format!("{windows} INSERT INTO totals {query}");
        let json = counting.call_with(&["explain", "--json"], &[("PIPELINE__SQL", &sql)]).json();
        assert_eq!(json["inserts"][0]["routing"], routing, "{query}");
    }

    let console = counting.sql().replace("STORED AS CQL", "STORED AS JSON");
    let console = console.split("LOCATION 'cassandra").next().unwrap().to_owned()
        + "LOCATION 'console://'; INSERT INTO totals SELECT item, 1 FROM orders";
    let json = counting.call_with(&["explain", "--json"], &[("PIPELINE__SQL", &console)]).json();
    assert_eq!(
        (&json["inserts"][0]["stateless"], &json["inserts"][0]["routing"]),
        (&true.into(), &"by the hash of the primary key of totals (item)".into())
    );
    assert!(json["notices"][0].as_str().unwrap().contains("at least once"), "{json}");
}
