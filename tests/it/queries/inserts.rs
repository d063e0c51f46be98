//! Several INSERTs over one topic, each into a table of its own: through kills at random, and in the middle of a delivery,
//! when some tables have their part of it and others do not. In the end each table is what the batch engine says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use strandline::catalog::SinkTable;
use strandline_actors::points::Point;

use super::{Dice, Feed, rows};
use crate::stand::{Service, Stand};

const PARTITIONS: i32 = 3;
const COLUMNS: &str = "k VARCHAR, id BIGINT, v BIGINT";

/// Of each INSERT the name of its table, its columns, and its query.
const INSERTS: [(&str, &str, &str); 5] = [
    ("copies", "id BIGINT, k VARCHAR, v BIGINT, PRIMARY KEY (id)", "SELECT id, k, v * 3 FROM orders WHERE v % 3 <> 1"),
    (
        "sums",
        "k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)",
        "SELECT k, count(*), sum(v) FROM orders WHERE v > 4 GROUP BY k HAVING sum(v) % 3 <> 0",
    ),
    ("totals", "one BIGINT, n BIGINT, high BIGINT, PRIMARY KEY (one)", "SELECT 1, count(*), max(v) FROM orders"),
    ("pairs", "k VARCHAR, r BIGINT, PRIMARY KEY (k, r)", "SELECT DISTINCT k, v % 12 FROM orders WHERE v <> 7"),
    (
        "firsts",
        "k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k, id)",
        "SELECT k, id, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) <= 3",
    ),
];

fn sql(stand: &Stand, inserts: &[(&str, &str, &str)]) -> String {
    let mut sql = format!(
        "CREATE EXTERNAL TABLE orders ({COLUMNS}) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE measured (k VARCHAR) STORED AS JSON LOCATION 'blackhole://';
         INSERT INTO measured SELECT k FROM orders WHERE v = 2;",
        stand.topic.name
    );
    for (name, columns, select) in inserts {
        let _ = write!(
            sql,
            "CREATE EXTERNAL TABLE {name} ({columns}) STORED AS CQL LOCATION 'cassandra://{}/{}_{name}'
               OPTIONS ('sink.create' 'true');
             INSERT INTO {name} {select};",
            stand.keyspace, stand.table
        );
    }
    sql
}

/// Records of which no two have the same id.
struct Orders {
    dice: Dice,
    id: u64,
}

impl Orders {
    fn portion(&mut self, records: usize) -> Vec<(i32, String)> {
        (0..records)
            .map(|_| {
                self.id += 1;
                let (k, v) = (self.dice.below(40), self.dice.below(30));
                let json = format!("{{\"k\":\"key {k}\",\"id\":{},\"v\":{v}}}", self.id);
                (self.dice.below(PARTITIONS as u64) as i32, json)
            })
            .collect()
    }
}

/// Waits until everything is committed, and compares every table with what the batch engine says.
async fn settle(stand: &Stand, feed: &Feed, sql: &str) {
    stand.until_committed(&feed.ends()).await;
    let sinks: BTreeMap<String, SinkTable> =
        strandline::sql::plan(sql).unwrap().sinks().into_iter().map(|sink| (sink.name.clone(), sink)).collect();
    for (name, _, select) in INSERTS {
        let sink = &sinks[name];
        let wanted = rows::batch_engine(COLUMNS, select, feed.lines(), sink, None).await;
        let found = rows::of_table(stand, sink).await;
        assert!(!wanted.is_empty(), "{name}");
        rows::assert_equal(&found, &wanted, sink, &[]);
    }
}

/// How many offsets were counted, over all shards.
fn counted(service: &Service) -> u64 {
    let status = service.status();
    let shards = status["board"]["shards"].as_object().unwrap();
    let of_shard = |counts: &serde_json::Value| -> u64 {
        counts.as_object().unwrap().iter().filter(|(name, _)| *name != "ahead").filter_map(|(_, n)| n.as_u64()).sum()
    };
    shards.values().map(|shard| of_shard(&shard["counts"])).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_inserts_are_those_of_the_batch_engine_through_kills() {
    let (stand, mut feed) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS));
    let mut orders = Orders { dice: Dice::new(31), id: 0 };
    let sql = sql(&stand, &INSERTS);
    for life in 0..4 {
        feed.send(&stand, orders.portion(300)).await;
        let before: i64 = stand.offsets().await.values().sum();
        let service = stand.start(&sql);
        stand.until_more_is_committed(before, "something is committed").await;
        feed.send(&stand, orders.portion(200)).await;
        if life == 2 {
            settle(&stand, &feed, &sql).await;
        }
        service.kill();
    }
    let service = stand.start_with(&sql, &[("CHECKPOINT__QUIET_INTERVAL", "300ms")]);
    settle(&stand, &feed, &sql).await;
    feed.send(&stand, orders.portion(200)).await;
    settle(&stand, &feed, &sql).await;
    let records: i64 = feed.ends().values().sum();
    service.until_each_shard_committed().await;
    assert_eq!(counted(&service), records as u64, "each offset is counted once");

    let status = service.status();
    let names = |of: &str| -> Vec<String> {
        let all = status[of].as_array().unwrap().iter();
        let mut names: Vec<_> = all.map(|one| one["table"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let all = ["copies", "firsts", "measured", "pairs", "sums", "totals"];
    assert_eq!((names("sinks"), names("inserts")), (all.map(str::to_owned).to_vec(), all.map(str::to_owned).to_vec()));
    let (_, metrics) = service.get("/metrics").unwrap();
    for part in ["strandline_sink_rows_total{table=\"copies\",change=\"upsert\"}", "outcome=\"filtered\"} "] {
        assert!(metrics.contains(part), "{part} in {metrics}");
    }
    service.stop().await;
    settle(&stand, &feed, &sql).await;
}

/// A service that kills itself when it has reached a point so many times. Orders come until it does, since a few of them may
/// need fewer checkpoints than that.
async fn dies(stand: &Stand, feed: &mut Feed, orders: &mut Orders, sql: &str, (point, n): (Point, u32)) -> String {
    let mut dying = Box::pin(stand.start_to_die(sql, point.name(), n).killed_itself());
    loop {
        if let Ok(said) = tokio::time::timeout(Duration::from_secs(1), &mut dying).await {
            return said;
        }
        feed.send(stand, orders.portion(20)).await;
    }
}

/// The process dies when one or some of the tables have their part of an epoch's output, in the work and in a claim.
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_tables_of_one_delivery_no_table_lacks_its_part() {
    let (stand, mut feed) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS));
    let mut orders = Orders { dice: Dice::new(32), id: 0 };
    let sql = sql(&stand, &INSERTS);
    for n in [1, 2, 3, 4, 1, 6, 9, 1, 1] {
        feed.send(&stand, orders.portion(250)).await;
        let said = dies(&stand, &mut feed, &mut orders, &sql, (Point::PartDelivered, n)).await;
        assert!(said.contains("killed at the point part-delivered"), "{said}");
    }
    let service = stand.start(&sql);
    settle(&stand, &feed, &sql).await;
    service.kill();
    for point in [Point::PointerApplied, Point::BeforeOutput, Point::AfterOutput, Point::PointerSent] {
        feed.send(&stand, orders.portion(200)).await;
        dies(&stand, &mut feed, &mut orders, &sql, (point, 3)).await;
    }
    let service = stand.start(&sql);
    settle(&stand, &feed, &sql).await;
    service.stop().await;
}

/// Stored state goes with all INSERTs, in whatever order they are written.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_an_added_and_a_removed_insert_are_refused_with_the_difference() {
    let (stand, mut feed) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS));
    let mut orders = Orders { dice: Dice::new(33), id: 0 };
    feed.send(&stand, orders.portion(200)).await;
    let before = sql(&stand, &INSERTS[..4]);
    let service = stand.start(&before);
    stand.until_committed(&feed.ends()).await;
    service.stop().await;
    let table = |name: &str| format!("[{}.{}_{name}]", stand.keyspace, stand.table);

    let changed = before.replace("sum(v) % 3", "sum(v) % 4");
    let added = sql(&stand, &INSERTS);
    let removed = sql(&stand, &[INSERTS[0], INSERTS[1], INSERTS[3]]);
    for (sql, sign, tag) in
        [(&changed, "+ having", "sums"), (&added, "+ order by", "firsts"), (&removed, "- column", "totals")]
    {
        let (code, said) = stand.start(sql).end().await;
        let line = said.lines().find(|line| line.trim_start().starts_with(sign) && line.contains(&table(tag)));
        assert!(code == Some(2) && line.is_some(), "{code:?}, {sign} {tag}: {said}");
        assert!(said.contains("has stored state of another query"), "{said}");
    }

    let mut turned = [INSERTS[0], INSERTS[1], INSERTS[2], INSERTS[3]];
    turned.reverse();
    let turned = sql(&stand, &turned);
    let said = stand.check(&turned);
    for part in ["it goes on from the stored state", "The table totals can be written", &table("pairs")] {
        assert!(said.contains(part), "{part} in {said}");
    }
    feed.send(&stand, orders.portion(200)).await;
    let service = stand.start(&turned);
    stand.until_committed(&feed.ends()).await;
    service.stop().await;
    for sink in strandline::sql::plan(&before).unwrap().sinks() {
        let Some((_, _, select)) = INSERTS.iter().find(|(name, ..)| *name == sink.name) else { continue };
        let wanted = rows::batch_engine(COLUMNS, select, feed.lines(), &sink, None).await;
        rows::assert_equal(&rows::of_table(&stand, &sink).await, &wanted, &sink, &[]);
    }
}
