//! UNION ALL over two topics, against the batch engine over the records of both: through kills, with one topic ahead of the
//! other.

use super::{Dice, rows};
use crate::stand::{PATIENCE, Stand, until};
use crate::test_topic::TestTopic;

const COLUMNS: &str = "src VARCHAR, k VARCHAR, id BIGINT, v BIGINT";

/// A record that says of which topic it is.
fn record(dice: &mut Dice, id: &mut u64, src: &str) -> String {
    *id += 1;
    let (k, v) = (dice.below(30), dice.below(20));
    format!("{{\"src\":\"{src}\",\"k\":\"key {k}\",\"id\":{id},\"v\":{v}}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_union_of_two_topics_is_that_of_the_batch_engine_through_kills() {
    let (stand, returns) = (Stand::new(2).await, TestTopic::create("returns", 3, &[]).await);
    let sql = format!(
        "CREATE EXTERNAL TABLE orders ({COLUMNS}) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE returns ({COLUMNS}) STORED AS JSON LOCATION 'kafka://{}';
         CREATE VIEW moved AS SELECT k, id, v FROM orders WHERE v > 2 UNION ALL SELECT k, id, -v FROM returns;
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         CREATE EXTERNAL TABLE last (id BIGINT, v BIGINT, PRIMARY KEY (id)) STORED AS CQL
           LOCATION 'cassandra://{}/{}_rows' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT k, count(*), sum(v) FROM moved GROUP BY k;
         INSERT INTO last SELECT id, v FROM moved WHERE v <> 5",
        stand.topic.name, returns.name, stand.keyspace, stand.table, stand.keyspace, stand.table
    );
    let moved = "(SELECT k, id, v FROM orders WHERE src = 'orders' AND v > 2
        UNION ALL SELECT k, id, -v FROM orders WHERE src = 'returns')";
    let of_engine = [
        ("result", format!("SELECT k, count(*), sum(v) FROM {moved} GROUP BY k")),
        ("last", format!("SELECT id, v FROM {moved} WHERE v <> 5")),
    ];
    let (mut dice, mut id) = (Dice::new(41), 0);
    let mut sent: Vec<(i32, i64, String)> = Vec::new();
    let mut ends = [vec![0_i64; 2], vec![0; 3]];
    let mut send = async |sent: &mut Vec<(i32, i64, String)>, ends: &mut [Vec<i64>; 2], records: usize| {
        for (topic, (name, of)) in [("orders", &stand.topic), ("returns", &returns)].into_iter().enumerate() {
            for partition in 0..ends[topic].len() {
                let count = dice.below(records as u64) + 1;
                let portion: Vec<_> = (0..count).map(|_| record(&mut dice, &mut id, name)).collect();
                for json in &portion {
                    sent.push((partition as i32, ends[topic][partition], json.clone()));
                    ends[topic][partition] += 1;
                }
                of.fill(partition as i32, portion).await;
            }
        }
    };
    let committed = async || {
        let (orders, returns) = (stand.offsets().await, stand.offsets_of(&returns).await);
        orders.values().chain(returns.values()).sum::<i64>()
    };
    for _ in 0..3 {
        send(&mut sent, &mut ends, 150).await;
        let before = committed().await;
        let service = stand.start(&sql);
        until("something is committed", PATIENCE, async || committed().await > before).await;
        send(&mut sent, &mut ends, 80).await;
        service.kill();
    }
    let service = stand.start(&sql);
    let wanted = |ends: &[i64]| (0..).zip(ends.iter().copied()).collect();
    stand.until_committed(&wanted(&ends[0])).await;
    stand.until_committed_of(&returns, &wanted(&ends[1])).await;
    let sinks = strandline::sql::plan(&sql).unwrap().sinks();
    for (name, select) in &of_engine {
        let sink = sinks.iter().find(|sink| sink.name == *name).unwrap();
        let lines =
            sent.iter().map(|(partition, offset, json)| rows::Line { partition: *partition, offset: *offset, json });
        let wanted = rows::batch_engine(COLUMNS, select, lines, sink, None).await;
        assert!(wanted.len() >= 30, "{name}");
        rows::assert_equal(&rows::of_table(&stand, sink).await, &wanted, sink, &[]);
    }
    service.stop().await;
}
