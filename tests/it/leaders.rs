//! The leaders of partitions move while records arrive: since a broker dies, since one stands still, and since one that is
//! back gets its own again. Nothing is read twice or passed over, and nobody has to start again.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::own_server::OwnServer;
use crate::shop::{PARTITIONS, Shop, settle, sql, until_more_is_committed};
use crate::stand::{PATIENCE, Service, Stand, until};

/// Three replicas of everything, of which two must have a record before it counts, and whoever is to lead a partition leads
/// it again as soon as it can.
const SETTINGS: [&str; 8] = [
    "--set",
    "default.replication.factor=3",
    "--set",
    "min.insync.replicas=2",
    "--set",
    "leader.imbalance.check.interval.seconds=1",
    "--set",
    "leader.imbalance.per.broker.percentage=0",
];

/// How many partitions each broker leads.
async fn leaders(stand: &Stand) -> BTreeMap<i32, usize> {
    let (servers, topic) = (stand.topic.servers.clone(), stand.topic.name.clone());
    let asked = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        let mut leaders = BTreeMap::new();
        // Whoever is asked may be the one that is away.
        if let Ok(found) = client.fetch_metadata(Some(&topic), Duration::from_secs(5)) {
            for partition in found.topics()[0].partitions() {
                *leaders.entry(partition.leader()).or_default() += 1;
            }
        }
        leaders
    });
    asked.await.unwrap()
}

/// Waits until this broker leads some partitions, or none.
async fn until_led(stand: &Stand, broker: i32, leads: bool) {
    let what = format!("broker {broker} {}", if leads { "leads again" } else { "leads nothing" });
    let moved = async || {
        let leaders = leaders(stand).await;
        leaders.values().sum::<usize>() == PARTITIONS as usize
            && !leaders.contains_key(&-1)
            && leaders.contains_key(&broker) == leads
    };
    until(&what, PATIENCE, moved).await;
}

fn started_again(service: &Service) -> u64 {
    let board = &service.status()["board"];
    let shards =
        board["shards"].as_object().unwrap().values().map(|shard| shard["actor"]["restarts"].as_u64().unwrap());
    board["committer"]["actor"]["restarts"].as_u64().unwrap() + shards.sum::<u64>()
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_may_move_die_and_stand_still() {
    let first = OwnServer::start_with("kafka", "", &SETTINGS).await;
    let folder = first.folder().display().to_string();
    let joined = [&SETTINGS[..], &["--join", &folder]].concat();
    let (second, third) =
        tokio::join!(OwnServer::start_with("kafka", "", &joined), OwnServer::start_with("kafka", "", &joined));
    let stand = Stand::at(&[first.address(), second.address(), third.address()].join(","), PARTITIONS).await;
    let shop = Shop::open_at_least_once(&stand.topic, 20_000, 1_000);
    let mut service = stand.start(&sql(&stand));
    until_more_is_committed(&stand, "something is committed").await;

    for (broker, harm, mend) in [(&second, "kill", "start"), (&third, "pause", "cont"), (&second, "pause", "cont")] {
        let id = i32::from(broker.port());
        until_led(&stand, id, true).await;
        broker.does(harm).await;
        until_led(&stand, id, false).await;
        until_more_is_committed(&stand, &format!("it goes on behind other leaders after {harm}")).await;
        assert_eq!(started_again(&service), 0, "{}", service.said());
        if harm == "kill" {
            // Also a life that begins meanwhile.
            service.kill();
            service = stand.start(&sql(&stand));
            until_more_is_committed(&stand, "a new life goes on behind other leaders").await;
        }
        broker.does(mend).await;
        until_led(&stand, id, true).await;
        until_more_is_committed(&stand, &format!("it goes on behind the old leaders after {mend}")).await;
    }
    assert_eq!(started_again(&service), 0, "{}", service.said());
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    service.stop().await;
    settle(&stand, &truth, &ends).await;
}
