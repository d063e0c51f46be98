//! What a query keeps of its groups: the first rows of each key, each row once, and state that expires. Through kills, and
//! against DataFusion's batch engine over the same records.

use std::fmt::Write;

use super::{Case, Dice, Feed, rows};
use crate::stand::Stand;

const PARTITIONS: i32 = 3;
const COLUMNS: &str = "k VARCHAR, id BIGINT, v BIGINT, ts TIMESTAMP(3)";

/// Records in which the time goes on with each and no two have the same id.
struct Orders {
    dice: Dice,
    now: i64,
    id: u64,
}

impl Orders {
    fn portion(&mut self, records: usize) -> Vec<(i32, String)> {
        (0..records)
            .map(|_| {
                let dice = &mut self.dice;
                self.id += 1;
                self.now += if dice.chance(2) { 400 + dice.below(300) as i64 } else { dice.below(20) as i64 };
                let ts = self.now - dice.below(200) as i64;
                let mut json = format!("{{\"k\":\"key {}\",\"id\":{}", dice.below(40), self.id);
                let _ = write!(json, ",\"v\":{},\"ts\":\"{}\"}}", dice.below(30), time(ts));
                (dice.below(PARTITIONS as u64) as i32, json)
            })
            .collect()
    }

    fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), now: 10_000, id: 0 }
    }
}

/// So many milliseconds after a certain hour.
fn time(millis: i64) -> String {
    format!(
        "2026-01-01T{:02}:{:02}:{:02}.{:03}",
        millis / 3_600_000,
        millis / 60_000 % 60,
        millis / 1000 % 60,
        millis % 1000
    )
}

fn case(result: &str, select: &str) -> Case {
    Case { columns: COLUMNS.into(), result: result.into(), select: select.into(), null_key: None, inexact: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_rows_of_each_key_are_those_of_the_batch_engine_through_kills() {
    let (stand, mut feed, mut orders) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Orders::new(21));
    let case = case(
        "k VARCHAR, id BIGINT, place BIGINT, v BIGINT, PRIMARY KEY (k, id)",
        "SELECT k, id, place, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) AS place FROM orders)
           WHERE place <= 3",
    );
    let portions = [400, 300, 300, 200].map(|records| orders.portion(records));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert!(before.len() >= 100 && before.keys().any(|key| !after.contains_key(key)), "rows drop out");
    case.stop(stand, &feed, service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_row_of_each_key_is_that_of_the_batch_engine_through_kills() {
    let (stand, mut feed, mut orders) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Orders::new(22));
    let case = case(
        "k VARCHAR, id BIGINT, ts TIMESTAMP(3), PRIMARY KEY (k)",
        "SELECT k, id, ts FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC, id DESC) = 1",
    );
    let portions = [400, 300, 300, 200].map(|records| orders.portion(records));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert!(before.len() == 40 && before != after);
    case.stop(stand, &feed, service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn distinct_rows_are_those_of_the_batch_engine_through_kills() {
    let (stand, mut feed, mut orders) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Orders::new(23));
    let case = case("k VARCHAR, v BIGINT, PRIMARY KEY (k, v)", "SELECT DISTINCT k, v % 12 FROM orders WHERE v > 1");
    let portions = [200, 100, 100, 100].map(|records| orders.portion(records));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert!(after.len() > before.len());
    case.stop(stand, &feed, service).await;
}

/// The batch engine cuts the rows of each group where the pause is longer than the time to live, and takes the last part.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_expire_end_with_their_latest_life_through_kills() {
    let (stand, mut feed, mut orders) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Orders::new(24));
    let sql = format!(
        "CREATE EXTERNAL TABLE orders ({COLUMNS}) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('watermark.column' 'ts', 'watermark.delay' '1 second');
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true', 'state.ttl' '700 milliseconds');
         INSERT INTO result SELECT k, count(*), sum(v) FROM orders GROUP BY k HAVING sum(v) % 7 <> 0",
        stand.topic.name, stand.keyspace, stand.table
    );
    for _ in 0..3 {
        feed.send(&stand, orders.portion(300)).await;
        let before: i64 = stand.offsets().await.values().sum();
        let service = stand.start(&sql);
        stand.until_more_is_committed(before, "something is committed").await;
        feed.send(&stand, orders.portion(200)).await;
        service.kill();
    }
    let service = stand.start(&sql);
    stand.until_committed(&feed.ends()).await;
    let sink = strandline::sql::plan(&sql).unwrap().inserts.remove(0).sink;
    let reference = "WITH marked AS (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > INTERVAL
          '700 milliseconds' THEN 1 ELSE 0 END AS starts FROM orders),
        lives AS (SELECT *, sum(starts) OVER (PARTITION BY k ORDER BY ts) AS life FROM marked),
        last AS (SELECT *, max(life) OVER (PARTITION BY k) AS latest FROM lives)
        SELECT k, count(*), sum(v) FROM last WHERE life = latest GROUP BY k HAVING sum(v) % 7 <> 0";
    let wanted = rows::batch_engine(COLUMNS, reference, feed.lines(), &sink, None).await;
    let found = rows::of_table(&stand, &sink).await;
    assert!(wanted.len() > 20);
    rows::assert_equal(&found, &wanted, &sink, &[]);
    service.stop().await;
}
