//! `strandline pause` and `resume`: nothing is read meanwhile, and nothing is lost or counted twice.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Counting;
use crate::stand::{PATIENCE, until};

fn lives(status: &Value) -> BTreeMap<i64, String> {
    let lines = status["board"]["partitions"].as_array().into_iter().flatten();
    lines
        .map(|line| (line["partition"].as_i64().unwrap(), line["actor"]["life"].as_str().unwrap().to_owned()))
        .collect()
}

fn all(status: &Value, life: &str) -> bool {
    let lives = lives(status);
    lives.len() == 2 && lives.values().all(|found| found == life)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_pipeline_reads_nothing_and_goes_on_where_it_stood() {
    let mut counting = Counting::over_cassandra(2).await;
    counting.fill(50).await;
    let token = ("HTTP__TOKEN", "a-token-for-this-test");
    let service = counting.start_with(&[token]);
    service.until_ready().await;
    counting.stand.until_committed(&counting.ends()).await;
    let before = counting.table().await;
    let address = Counting::address(&service);
    let at = ("HTTP__LISTEN", address.as_str());

    // Somebody has to agree, with the token, about this pipeline, at this address.
    counting.call_with(&["pause"], &[at, token]).failed(2, &["--yes"]);
    counting.call_with(&["pause", "--yes"], &[at]).failed(2, &["STRANDLINE_HTTP__TOKEN"]);
    counting.call_with(&["pause", "--yes"], &[token]).failed(1, &["no service answers at 127.0.0.1:1"]);
    counting.call_with(&["pause", "--yes"], &[at, token, ("PIPELINE__NAME", "another")]).failed(2, &["not another"]);
    counting.call_with(&["resume", "--yes"], &[at, token]).failed(1, &["it is not paused"]);
    counting.call_with(&["pause", "--partition", "7", "--yes"], &[at, token]).failed(2, &["there is no such actor"]);
    assert!(all(&service.status(), "running"));

    let said = counting.call_with(&["pause", "--yes", "--json"], &[at, token]).json();
    assert_eq!(said["is"], "paused");
    service.until("all partitions are paused", |status| all(status, "paused")).await;
    assert_eq!(service.status()["board"]["paused"], true);
    service.until_said("the pipeline is paused on request").await;
    counting.fill(30).await;
    // Both shards commit their positions every few seconds, also now: when each has done so again, nothing came in.
    let commits = |status: &Value| -> Vec<u64> {
        let shards = status["board"]["shards"].as_object().into_iter().flatten();
        shards.map(|(_, shard)| shard["checkpoints"].as_u64().unwrap()).collect()
    };
    let then = commits(&service.status());
    until("each shard has committed twice more", PATIENCE, async || {
        commits(&service.status()).iter().zip(&then).all(|(now, then)| *now >= then + 2)
    })
    .await;
    assert_eq!(counting.table().await, before);
    assert_eq!(service.get("/healthz").unwrap().0, 200, "it stands by somebody's wish");

    counting.call_with(&["resume", "--partition", "0", "--yes"], &[at, token]).went_well();
    service.until("one goes on", |status| lives(status).get(&0).is_some_and(|life| life == "running")).await;
    assert_eq!(lives(&service.status())[&1], "paused");
    counting.call_with(&["resume", "--yes"], &[at, token]).went_well();
    counting.stand.until_committed(&counting.ends()).await;

    // The wish survives the process: the next one stands still, too, in whole or in part, until it is told to go on.
    counting.call_with(&["pause", "--yes"], &[at, token]).went_well();
    service.until("all partitions are paused", |status| all(status, "paused")).await;
    let ends = counting.ends();
    service.kill();
    counting.fill(10).await;
    let stored = counting.call(&["status", "--json"]).json();
    assert_eq!((&stored["from"], &stored["paused"]["pipeline"]), (&"store".into(), &true.into()));
    assert!(counting.call(&["status"]).out.contains("PAUSED: it reads nothing until"));
    let service = counting.start_with(&[token]);
    service.until("the next process stands still", |status| all(status, "paused")).await;
    service.until_said("an earlier process was told to pause").await;
    service.until_each_shard_has_committed(2).await;
    assert_eq!(counting.stand.offsets().await, ends, "nothing was read");
    let address = Counting::address(&service);
    let at = ("HTTP__LISTEN", address.as_str());
    counting.call_with(&["resume", "--partition", "1", "--yes"], &[at, token]).went_well();
    service.until("one goes on", |status| lives(status).get(&1).is_some_and(|life| life == "running")).await;
    service.stop().await;
    let service = counting.start_with(&[token]);
    let half = |status: &Value| [0, 1].map(|partition| lives(status).get(&partition).cloned().unwrap_or_default());
    service.until("the one after it is so, too", |status| half(status) == ["paused", "running"]).await;
    let address = Counting::address(&service);
    let at = ("HTTP__LISTEN", address.as_str());
    counting.call_with(&["resume", "--yes"], &[at, token]).went_well();
    counting.settle(service).await;
    assert_eq!(counting.table().await, counting.recount(&[0, 0], BTreeMap::new()));
    let service = counting.start();
    service.until("nothing stands still any more", |status| all(status, "running")).await;
}

/// Of each partition: the lag in records and in seconds.
fn behind(status: &Value) -> Vec<(Option<i64>, Option<f64>)> {
    let lines = status["board"]["partitions"].as_array().into_iter().flatten();
    lines
        .map(|line| {
            let end = line["end"].as_i64();
            (end.map(|end| end - line["position"].as_i64().unwrap()), line["lag_seconds"].as_f64())
        })
        .collect()
}

/// Nobody reads a paused partition, and yet it shows how far behind it is, also in a process that never read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_partition_shows_how_far_behind_it_is() {
    let mut counting = Counting::over_local(2).await;
    counting.fill(50).await;
    let often = ("KAFKA__DISCOVERY_INTERVAL", "300ms");
    let service = counting.start_with(&[often]);
    service.until("all is read", |status| behind(status) == [(Some(0), Some(0.0)); 2]).await;
    let at = ("HTTP__LISTEN", &*Counting::address(&service));
    counting.call_with(&["pause", "--yes"], &[at]).went_well();
    service.until("all partitions are paused", |status| all(status, "paused")).await;

    counting.fill(30).await;
    service.until("what waits shows", |status| behind(status).iter().all(|(lag, _)| *lag == Some(30))).await;
    let ages = || behind(&service.status()).into_iter().map(|(_, age)| age.unwrap()).collect::<Vec<_>>();
    let before = ages();
    assert!(before.iter().all(|age| *age > 0.0), "{before:?}");
    until("it grows older", PATIENCE, async || ages().iter().zip(&before).all(|(now, then)| now > then)).await;
    counting.fill(1).await;
    service.until("more waits", |status| behind(status).iter().all(|(lag, _)| *lag == Some(31))).await;
    let metrics = service.get("/metrics").unwrap().1;
    let lines = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((lines("strandline_partition_lag{"), lines("strandline_partition_lag_seconds{")), (2, 2), "{metrics}");

    service.kill();
    counting.fill(10).await;
    let service = counting.start_with(&[often]);
    service.until("the next process knows it", |status| behind(status) == [(Some(41), None); 2]).await;
    assert!(all(&service.status(), "paused"));
    let at = ("HTTP__LISTEN", &*Counting::address(&service));
    counting.call_with(&["resume", "--yes"], &[at]).went_well();
    service.until("all is read again", |status| behind(status) == [(Some(0), Some(0.0)); 2]).await;
    counting.settle(service).await;
}
