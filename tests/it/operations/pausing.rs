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

    // A crash does not survive the wish: a new process reads.
    counting.call_with(&["pause", "--yes"], &[at, token]).went_well();
    service.until("all partitions are paused", |status| all(status, "paused")).await;
    service.kill();
    counting.fill(10).await;
    counting.settle(counting.start()).await;
    assert_eq!(counting.table().await, counting.recount(&[0, 0], BTreeMap::new()));
}
