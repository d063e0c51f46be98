//! Kafka and Cassandra die, freeze and come back while the service works, and answers get lost, with records still arriving.
//! It goes on by itself, and in the end the table and `kafka_offsets` are what an independent count says.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::losing_proxy::LosingProxy;
use crate::own_server::OwnServer;
use crate::proxy::Proxy;
use crate::shop::{PARTITIONS, Shop, committed, settle, sql};
use crate::stand::{Service, Stand, until};

const PATIENCE: Duration = Duration::from_secs(300);
/// How long a server is away.
const AWAY: Duration = Duration::from_secs(20);

/// Waits until a server has been away for long enough. Records arrive, or wait to.
async fn stays_away(since: Instant, shop: &Shop) {
    let before = shop.produced();
    until("it was away for long", PATIENCE, async || since.elapsed() >= AWAY && shop.produced() > before).await;
}

async fn until_more_is_committed(stand: &Stand, what: &str) {
    let before = committed(stand).await;
    until(what, PATIENCE, async || committed(stand).await > before).await;
}

/// What it shows of its connectors.
fn connectors(service: &Service) -> Value {
    service.get("/api/connectors").map_or(Value::Null, |(_, body)| serde_json::from_str(&body).unwrap())
}

/// Waits until a connector is in a state. Answers what is shown of it.
async fn until_state(service: &Service, of: &str, state: &str) -> Value {
    let what = format!("{of} is {state}");
    let pointer = |shown: &Value| shown.pointer(of).cloned().unwrap_or_default();
    until(&what, PATIENCE, async || pointer(&connectors(service))["state"] == state).await;
    pointer(&connectors(service))
}

/// Requests to the store or the sink that were repeated.
fn retries(status: &Value) -> u64 {
    status["board"]["committer"]["retries"].as_u64().unwrap_or_default()
}

fn restarts(service: &Service, of: &str) -> u64 {
    let board = &service.status()["board"];
    match of {
        "committer" => board["committer"]["actor"]["restarts"].as_u64().unwrap(),
        "supervisor" => board["supervisor"]["restarts"].as_u64().unwrap(),
        _ => board["shards"].as_object().unwrap().values().map(|s| s["actor"]["restarts"].as_u64().unwrap()).sum(),
    }
}

async fn finish(stand: &Stand, shop: Shop, service: Service) {
    let (truth, ends) = shop.close();
    settle(stand, &truth, &ends).await;
    service.stop().await;
    settle(stand, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_may_be_killed_frozen_and_away_at_the_start() {
    let kafka = OwnServer::start("kafka").await;
    let stand = Stand::at(&kafka.address(), PARTITIONS).await;
    let shop = Shop::open_at_least_once(&stand.topic, 20_000, 2_000);
    let service = stand.start(&sql(&stand));
    until_more_is_committed(&stand, "something is committed").await;

    until("all partitions run", PATIENCE, async || {
        connectors(&service).pointer("/sources/0/partitions/running") == Some(&PARTITIONS.into())
    })
    .await;
    let source = until_state(&service, "/sources/0", "running").await;
    assert_eq!((&source["table"], &source["location"]), (&"orders".into(), &stand.topic.name.as_str().into()));
    assert_eq!((&source["servers"], &source["partitions"]["running"]), (&kafka.address().into(), &PARTITIONS.into()));
    kafka.does("kill").await;
    let away = Instant::now();
    let dead = until_state(&service, "/sources/0", "failing").await;
    assert!(dead["retries"].as_u64() > source["retries"].as_u64(), "{dead}");
    assert!(dead["last_error"]["at"].as_u64() > Some(0), "{dead}");
    assert!(dead["last_error"]["what"].as_str().unwrap().contains("onnect"), "{dead}");
    assert_eq!(connectors(&service)["sinks"][0]["state"], "running");
    stays_away(away, &shop).await;
    kafka.does("start").await;
    let back = until_state(&service, "/sources/0", "running").await;
    assert_ne!(back["last_error"], Value::Null, "what happened stays");
    until_more_is_committed(&stand, "it goes on after Kafka was killed").await;

    kafka.does("pause").await;
    stays_away(Instant::now(), &shop).await;
    kafka.does("cont").await;
    until_more_is_committed(&stand, "it goes on after Kafka was frozen").await;

    kafka.does("kill").await;
    service.kill();
    let service = stand.start(&sql(&stand));
    service.until_said("Kafka does not answer").await;
    kafka.does("start").await;
    until_more_is_committed(&stand, "it goes on after Kafka was away at the start").await;
    for actor in ["supervisor", "committer", "aggregation"] {
        assert_eq!(restarts(&service, actor), 0, "{actor}: {}", service.said());
    }
    finish(&stand, shop, service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cassandra_may_be_killed_and_frozen() {
    let cassandra = OwnServer::start("cassandra").await;
    let stand = Stand::on(&cassandra.address(), PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let service = stand.start_with(&sql(&stand), &[("CASSANDRA__TIMEOUT", "3s")]);
    until_more_is_committed(&stand, "something is committed").await;

    for (harm, mend) in [("kill", "start"), ("pause", "cont")] {
        let before = retries(&service.status());
        cassandra.does(harm).await;
        let away = Instant::now();
        service.until("it notices", |status| retries(status) > before).await;
        let store = until_state(&service, "/store", "failing").await;
        assert!(store["last_error"]["what"].as_str().unwrap().contains("Cassandra"), "{store}");
        assert_eq!(connectors(&service)["sources"][0]["state"], "running");
        stays_away(away, &shop).await;
        cassandra.does(mend).await;
        until_more_is_committed(&stand, &format!("it goes on after {harm}")).await;
        let store = until_state(&service, "/store", "running").await;
        assert!(store["retries"].as_u64() > Some(0), "{store}");
        let sink = until_state(&service, "/sinks/0", "running").await;
        assert!(sink["deliveries"].as_u64() > Some(0), "{sink}");
    }
    for actor in ["supervisor", "committer", "aggregation"] {
        assert_eq!(restarts(&service, actor), 0, "{actor}: {}", service.said());
    }
    finish(&stand, shop, service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pointer_writes_may_lose_their_question_their_answer_and_their_time() {
    let stand = Stand::new(PARTITIONS).await;
    let node = crate::cassandra_connection::server();
    // What the start asks must be answered in it, too.
    let patience = Duration::from_secs(1);
    let proxy = LosingProxy::start(&node, |statement| statement.contains(".pointers SET"), patience * 2).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let through = [("CASSANDRA__NODES", proxy.address.as_str()), ("CASSANDRA__TIMEOUT", "1s")];
    let service = stand.start_with(&sql(&stand), &through);
    service.until_each_shard_committed().await;
    proxy.lose_one_of(3);
    until("each kind of loss has struck three times", PATIENCE, async || {
        proxy.suffered().iter().all(|suffered| *suffered >= 3)
    })
    .await;
    // What is unknown is found out: nothing had to be loaded again.
    for actor in ["supervisor", "committer", "aggregation"] {
        assert_eq!(restarts(&service, actor), 0, "{actor}: {}", service.said());
    }
    assert!(retries(&service.status()) >= 9);

    // The claims of a new life suffer as well.
    service.kill();
    proxy.lose_one_of(2);
    let service = stand.start_with(&sql(&stand), &through);
    let before = proxy.suffered();
    service.until_each_shard_committed().await;
    assert_ne!(proxy.suffered(), before);
    proxy.lose_one_of(0);
    eprintln!("questions lost, answers lost, questions late: {:?}", proxy.suffered());
    finish(&stand, shop, service).await;
}

/// Any prepared statement suffers once a life has begun (what the start asks must be answered in it): those of a claim, of segments, of the sink's rows, of
/// `kafka_offsets`, of heartbeats, and the deletions.
#[tokio::test(flavor = "multi_thread")]
async fn any_statement_may_lose_its_question_its_answer_and_its_time() {
    let stand = Stand::new(PARTITIONS).await;
    let (node, late) = (crate::cassandra_connection::server(), Duration::from_secs(2));
    // The rows are so many more than all else that each of both suffers by a measure of its own.
    let table = stand.table.clone();
    let rows = LosingProxy::start(&node, move |statement| statement.contains(&table), late).await;
    let table = stand.table.clone();
    let proxy = LosingProxy::start(&rows.address, move |statement| !statement.contains(&table), late).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let through = [("CASSANDRA__NODES", proxy.address.as_str()), ("CASSANDRA__TIMEOUT", "1s")];
    rows.lose_one_of(501);
    let suffered = || [proxy.suffered(), rows.suffered()].concat();
    for life in 1..4 {
        let before = suffered();
        proxy.lose_one_of(0);
        let service = stand.start_with(&sql(&stand), &through);
        service.until_said("supervisor: starting").await;
        proxy.lose_one_of(7);
        service.until_each_shard_committed().await;
        until("each kind of loss has struck again", PATIENCE, async || {
            suffered().iter().zip(&before).all(|(now, before)| now > before)
        })
        .await;
        eprintln!("life {life}: questions lost, answers lost, questions late (twice; then of rows): {:?}", suffered());
        service.kill();
    }
    rows.lose_one_of(0);
    proxy.lose_one_of(0);
    let service = stand.start_with(&sql(&stand), &through);
    finish(&stand, shop, service).await;
}

/// Every answer of Cassandra comes 300 ms late. The work goes on, a standby does not take the pipeline from an owner whose
/// beats come late, and it takes over when the owner is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_cassandra_that_answers_late_costs_nothing_but_time() {
    let stand = Stand::new(PARTITIONS).await;
    let proxy = Proxy::start(&stand.node).await;
    let shop = Shop::open(&stand.topic, 20_000, 1_000);
    let start = |instance| {
        let more =
            [("CASSANDRA__NODES", proxy.address.as_str()), ("INSTANCE__ID", instance), ("STORE__TAKEOVER_AFTER", "5s")];
        stand.start_with(&sql(&stand), &more)
    };
    let first = start("first");
    first.until_each_shard_committed().await;
    proxy.delay_answers(Duration::from_millis(300));
    let second = start("second");
    second.until("it is a standby", |status| status["board"]["supervisor"]["life"] == "standby").await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        until_more_is_committed(&stand, "the owner commits, late").await;
    }
    assert_eq!(second.status()["board"]["supervisor"]["life"], "standby", "{}", second.said());
    for actor in ["supervisor", "committer", "aggregation"] {
        assert_eq!(restarts(&first, actor), 0, "{actor}: {}", first.said());
    }
    first.kill();
    second.until_each_shard_committed().await;
    second.kill();
    let third = start("second");
    finish(&stand, shop, third).await;
}
