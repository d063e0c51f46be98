//! The disk of the local store is full while records arrive: the service says so and waits, nothing is lost, and it goes on
//! when there is room again.
//!
//! A disk is made full in two ways: by a limit on the size of files, which everybody may set for himself, and by a small
//! file system of its own, where the user may mount one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use strandline_actors::ports::KafkaOffset;
use strandline_actors::position::Offset;

use crate::balance;
use crate::shop::{PARTITIONS, Shop, counted, table};
use crate::stand::{PATIENCE, Service, Stand, until};
use crate::store_places::{LocalPlace, Place};

/// Keeps a count for each order, so that the state grows.
fn sql(stand: &Stand) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, qty BIGINT)
           STORED AS JSON LOCATION 'kafka://{topic}';
         CREATE EXTERNAL TABLE totals (item VARCHAR, user_id VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (item, user_id))
           STORED AS CQL LOCATION 'cassandra://{keyspace}/{table}' OPTIONS ('sink.create' 'true');
         INSERT INTO totals SELECT item, user_id, count(*), sum(qty) FROM orders WHERE qty > 0 GROUP BY item, user_id;",
        topic = stand.topic.name,
        keyspace = stand.keyspace,
        table = stand.table,
    )
}

/// Sets the largest size that a process may give a file.
fn limit(process: u32, bytes: &str) {
    let set = Command::new("prlimit").args([format!("--pid={process}"), format!("--fsize={bytes}:")]).status();
    assert!(set.unwrap().success());
}

fn start(stand: &Stand, place: &LocalPlace, through: &[&str]) -> Service {
    let folder = place.0.display().to_string();
    stand.start_through(through, &sql(stand), &[("STORE__KIND", "local"), ("STORE__PATH", &folder)])
}

/// A small file system in memory, and a file on it that takes what room there is.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where the user may not mount one.
    fn mounted_at(folder: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(folder).unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder).output().unwrap();
        mounted.status.success().then(|| Self(folder.to_owned()))
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("other files")).unwrap();
        let block = [7; 4096];
        let error = std::iter::repeat_with(|| file.write_all(&block)).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("other files")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Waits until the service says that there is no room.
async fn until_full(service: &Service) {
    service
        .until("it says that the disk is full", |status| {
            let fault = status["board"]["committer"]["last_fault"].as_str().unwrap_or_default();
            fault.contains("local store ") && fault.contains("Check the disk and the space on it")
        })
        .await;
}

/// Waits until everything is in the table, ends the service and compares what it leaves. No actor had to start again.
async fn finish(stand: &Stand, place: &LocalPlace, shop: Shop, service: Service) {
    let (truth, ends) = shop.close();
    until("the table is right", PATIENCE, async || table(stand).await == truth).await;
    let board = &service.status()["board"];
    assert_eq!(board["committer"]["actor"]["restarts"], 0, "{}", service.said());
    for shard in board["shards"].as_object().unwrap().values() {
        assert_eq!(shard["actor"]["restarts"], 0, "{}", service.said());
    }
    service.stop().await;
    assert_eq!(table(stand).await, truth);
    let line = |(partition, offset): (i32, i64)| KafkaOffset {
        topic: stand.topic.name.clone(),
        partition,
        offset: Offset(offset),
    };
    assert_eq!(place.kafka_offsets(&stand.pipeline).await, (0..).zip(ends).map(line).collect::<Vec<_>>());
    let local = [("STORE__KIND", "local".to_owned()), ("STORE__PATH", place.0.display().to_string())];
    let local = local.into_iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value));
    let stored = balance::stored(stand.environment("").into_iter().chain(local)).await;
    counted(&stored, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_store_that_may_not_grow_is_waited_for_and_loses_nothing() {
    let stand = Stand::new(PARTITIONS).await;
    let place = LocalPlace::new();
    let file = place.0.join(format!("{}.redb", stand.pipeline));
    let size = || std::fs::metadata(&file).unwrap().len().to_string();
    let shop = Shop::open(&stand.topic, 3_000, 500);
    let service = start(&stand, &place, &[]);
    service.until_each_shard_committed().await;

    limit(service.process(), &size());
    until_full(&service).await;
    limit(service.process(), "unlimited");
    let before = shop.produced();
    until("it goes on when there is room again", PATIENCE, async || {
        table(&stand).await.values().map(|sum| sum.0).sum::<i64>() > before
    })
    .await;

    // Full again, and killed; a start without any room says so.
    limit(service.process(), &size());
    until_full(&service).await;
    service.kill();
    let (code, said) = start(&stand, &place, &["prlimit", "--fsize=1:"]).end().await;
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains(&stand.pipeline) && last.contains("Check the "), "{last}");
    // With as much room as it has already it begins, and waits for more.
    let full = format!("--fsize={}:", size());
    let service = start(&stand, &place, &["prlimit", &full]);
    until_full(&service).await;
    limit(service.process(), "unlimited");
    finish(&stand, &place, shop, service).await;
}

/// Other files take all of the disk, also while the service is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_store_on_a_full_disk_is_waited_for_and_loses_nothing() {
    let place = LocalPlace::new();
    let Some(disk) = SmallDisk::mounted_at(&place.0, "32m") else {
        // Written past the test runner, which shows only what failed.
        let text = "disk: this user may not mount a file system, so no disk is really full here; a limit on files stands for it\n";
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    };
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 3_000, 500);
    let service = start(&stand, &place, &[]);
    service.until_each_shard_committed().await;
    disk.fill();
    until_full(&service).await;
    disk.make_room();
    let before = shop.produced();
    until("it goes on when there is room again", PATIENCE, async || {
        table(&stand).await.values().map(|sum| sum.0).sum::<i64>() > before
    })
    .await;
    disk.fill();
    until_full(&service).await;
    service.kill();
    let service = start(&stand, &place, &[]);
    until_full(&service).await;
    disk.make_room();
    finish(&stand, &place, shop, service).await;
}
