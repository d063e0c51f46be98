//! Logs with holes, while records arrive and the service is killed again and again: one that is compacted under it, and one
//! of transactions of which some are aborted.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, TopicPartitionList};

use crate::shop::{PARTITIONS, Shop, committed, settle, sql};
use crate::stand::{PATIENCE, Service, Stand, until};

/// Kills the service after it has committed something more.
async fn lives_and_dies(stand: &Stand) {
    let before = committed(stand).await;
    let service = stand.start(&sql(stand));
    stand.until_more_is_committed(before, "something is committed").await;
    service.kill();
}

/// How many offsets were met, how many of them were holes, and how many were lost, as the service shows it.
fn counts(service: &Service) -> [i64; 3] {
    let status = service.status();
    let shards = status["board"]["shards"].as_object().unwrap();
    let counts = || shards.values().map(|shard| shard["counts"].as_object().unwrap());
    let count = |of: &str| counts().map(|counts| counts[of].as_i64().unwrap()).sum();
    [counts().flat_map(|counts| counts.values().map(|n| n.as_i64().unwrap())).sum(), count("gaps"), count("lost")]
}

/// The first life that is not killed brings it to its end.
async fn finish(stand: &Stand, shop: Shop) {
    let service = stand.start(&sql(stand));
    let (truth, ends) = shop.close();
    settle(stand, &truth, &ends).await;
    let [all, gaps, lost] = counts(&service);
    eprintln!("{gaps} of {all} offsets were holes");
    assert!(gaps > 0, "there was no hole");
    assert_eq!((all, lost), (ends.iter().sum(), 0));
    service.stop().await;
    settle(stand, &truth, &ends).await;
}

/// Case: gap that is no loss (druid#5404).
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_are_committed_and_aborted_are_counted_exactly_whenever_it_is_killed() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open_with_transactions(&stand.topic, 20_000, 2_000);
    for _ in 0..6 {
        lives_and_dies(&stand).await;
    }
    finish(&stand, shop).await;
}

/// Whether compaction has left a hole in partition 0 from an offset on.
async fn has_hole(stand: &Stand, from: i64) -> bool {
    let (servers, topic) = (stand.topic.servers.clone(), stand.topic.name.clone());
    let look = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("group.id", "looks")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, rdkafka::Offset::Offset(from)).unwrap();
        client.assign(&list).unwrap();
        let (_, end) = client.fetch_watermarks(&topic, 0, Duration::from_secs(10)).unwrap();
        let mut next = from;
        while next < end {
            let Some(record) = client.poll(Duration::from_secs(5)) else { return false };
            let offset = record.unwrap().offset();
            if offset > next {
                return true;
            }
            next = offset + 1;
        }
        false
    });
    look.await.unwrap()
}

/// Case: gap that is no loss (druid#5404).
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_compacted_under_it_is_counted_exactly_whenever_it_is_killed() {
    let config = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "200"),
        ("min.cleanable.dirty.ratio", "0.0"),
        ("max.compaction.lag.ms", "1"),
        ("delete.retention.ms", "1"),
    ];
    let stand = Stand::with(PARTITIONS, &config).await;
    let shop = Shop::open_for_compaction(&stand.topic, 20_000, 2_000);
    for _ in 0..2 {
        for _ in 0..2 {
            lives_and_dies(&stand).await;
        }
        // The next life begins in front of holes, or in one.
        let from = stand.offsets().await[&0];
        until("there is a hole before it", PATIENCE, async || has_hole(&stand, from).await).await;
    }
    lives_and_dies(&stand).await;
    finish(&stand, shop).await;
}
