//! Rules: records that break one are set aside under its name, and the result is that of the batch engine over the rest.

use std::collections::BTreeMap;

use super::*;
use crate::stand::count_of;

const RULES: &str = "'rule.amount' 'amount >= 0', 'rule.item' 'item IS NULL OR char_length(item) < 6', \
    'rule.even' '_partition <> 1 OR _offset % 7 <> 3'";

/// What a rule is about, for a test that judges for itself.
struct Order {
    item: Option<String>,
    amount: Option<i64>,
}

impl Order {
    fn random(dice: &mut Dice) -> Self {
        let item = match dice.below(8) {
            0 => None,
            1 => Some("far too long".to_owned()),
            n => Some(format!("item{n}")),
        };
        let amount = if dice.chance(10) { None } else { Some(dice.below(110) as i64 - 10) };
        Self { item, amount }
    }

    fn json(&self) -> String {
        serde_json::json!({ "item": self.item, "amount": self.amount }).to_string()
    }

    /// The first rule that it breaks. What is not known breaks none.
    fn broken(&self, partition: i32, offset: i64) -> Option<&'static str> {
        let too_long = self.item.as_ref().is_some_and(|item| item.len() >= 6);
        match (self.amount.is_some_and(|amount| amount < 0), too_long, partition == 1 && offset % 7 == 3) {
            (true, ..) => Some("amount"),
            (_, true, _) => Some("item"),
            (.., true) => Some("even"),
            _ => None,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_break_a_rule_are_set_aside_and_the_rest_equals_the_batch_engine() {
    let stand = Stand::new(3).await;
    let case = Case {
        columns: "item VARCHAR, amount BIGINT".into(),
        result: "item VARCHAR, n BIGINT, known BIGINT, total BIGINT, least BIGINT, PRIMARY KEY (item)".into(),
        select: "SELECT item, count(*), count(amount), sum(amount), min(amount) FROM orders WHERE amount IS NULL OR \
                 amount <> 50 GROUP BY item"
            .into(),
        null_key: Some("(none)"),
        inexact: Vec::new(),
    };
    let mut dice = Dice::new(11);
    let (mut logs, mut ends) = (BTreeMap::<i32, Vec<String>>::new(), [0_i64; 3]);
    // What passes, for the batch engine: it knows nothing of the rules.
    let mut passing = Feed::new(3);
    let (mut letters, mut filtered) = (BTreeMap::new(), 0);
    let sql = case.sql(&stand).replace(
        &format!("'kafka://{}'", stand.topic.name),
        &format!("'kafka://{}' OPTIONS ({RULES}, 'max.offsets.per.batch' '50')", stand.topic.name),
    );
    assert!(sql.contains("rule.even"), "{sql}");
    for life in 0..4 {
        let service = stand.start_with(&sql, &[("CHECKPOINT__INTERVAL", "100ms")]);
        for _ in 0..700 {
            let partition = dice.below(3) as i32;
            let order = Order::random(&mut dice);
            let offset = ends[partition as usize];
            ends[partition as usize] += 1;
            match order.broken(partition, offset) {
                Some(rule) => drop(letters.insert((partition, offset), (format!("breaks rule {rule}"), order.json()))),
                None => {
                    filtered += u64::from(order.amount == Some(50));
                    passing.logs[partition as usize].push(order.json());
                }
            }
            logs.entry(partition).or_default().push(order.json());
        }
        for (partition, orders) in std::mem::take(&mut logs) {
            stand.topic.fill(partition, orders).await;
        }
        let all: i64 = ends.iter().sum();
        let some = async || stand.offsets().await.values().sum::<i64>() > all - 700;
        until("something of the portion is committed", PATIENCE, some).await;
        if life < 3 {
            service.kill();
            continue;
        }
        service.until_each_shard_committed().await;
        stand.until_committed(&(0..).zip(ends).collect()).await;
        let sink = strandline::sql::plan(&sql).unwrap().inserts.remove(0).sink;
        let wanted = rows::batch_engine(&case.columns, &case.select, passing.lines(), &sink, case.null_key).await;
        rows::assert_equal(&rows::of_table(&stand, &sink).await, &wanted, &sink, &[]);
        let status = service.status();
        let count = |of: &str| count_of(&status, of).unwrap();
        let passed: u64 = passing.logs.iter().map(|log| log.len() as u64).sum();
        assert_eq!(count("dead_lettered"), letters.len() as u64);
        assert_eq!((count("filtered"), count("processed")), (filtered, passed - filtered));
        service.stop().await;
    }
    let reasons: std::collections::BTreeSet<_> = letters.values().map(|(reason, _)| reason.clone()).collect();
    assert_eq!(reasons.len(), 3, "every rule is broken by some record");
    let mut found = BTreeMap::new();
    for partition in 0..3 {
        let read = format!(
            "SELECT offset, reason, value FROM {}.dead_letters
             WHERE pipeline = '{}' AND topic = '{}' AND partition = {partition}",
            stand.keyspace, stand.pipeline, stand.topic.name
        );
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        for row in rows.rows::<(i64, String, Vec<u8>)>().unwrap() {
            let (offset, reason, value) = row.unwrap();
            found.insert((partition, offset), (reason, String::from_utf8(value).unwrap()));
        }
    }
    assert_eq!(found, letters);
}
