//! A pipeline without aggregation.

use super::{Case, Dice, Feed};
use crate::stand::Stand;

fn order(dice: &mut Dice) -> String {
    let mut fields = Vec::new();
    let user = dice.below(50);
    dice.field(&mut fields, "user_id", format!("\"Üser-{user}\""));
    let price = dice.below(1_000_000) as i64 - 500_000;
    dice.field(
        &mut fields,
        "price",
        format!("\"{}{}.{:02}\"", if price < 0 { "-" } else { "" }, price.abs() / 100, price.abs() % 100),
    );
    let qty = dice.below(9);
    fields.push(format!("\"qty\":{qty}"));
    let rate = dice.below(1_000_000) as f64 / 7.0;
    dice.field(&mut fields, "rate", format!("{rate:?}"));
    let gift = dice.chance(40);
    dice.field(&mut fields, "gift", gift.to_string());
    let (day, hour, milli) = (1 + dice.below(28), dice.below(24), dice.below(1000));
    dice.field(&mut fields, "day", format!("\"2024-02-{day:02}\""));
    dice.field(&mut fields, "at", format!("\"2024-02-{day:02}T{hour:02}:30:00.{milli:03}\""));
    format!("{{{}}}", fields.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_filtered_and_computed_as_the_batch_engine_does() {
    let case = Case {
        columns: "user_id VARCHAR, price DECIMAL(10,2), qty INT, rate DOUBLE, gift BOOLEAN, day DATE, at TIMESTAMP(3)"
            .into(),
        result: "part INT, place BIGINT, who VARCHAR, cost DECIMAL(20,2), label VARCHAR, third DOUBLE, gift BOOLEAN, \
                 day DATE, hour TIMESTAMP(3), late BOOLEAN, PRIMARY KEY (part, place)"
            .into(),
        select: "SELECT _partition, _offset, upper(user_id), price * qty, \
                 CASE WHEN qty > 6 THEN concat('many: ', qty) WHEN gift THEN 'gift' END, rate / 3, NOT gift, day, \
                 date_trunc('hour', at), extract(hour FROM at) >= 18 \
                 FROM orders WHERE qty > 2 AND (price IS NULL OR price <> 0) AND user_id IS DISTINCT FROM 'Üser-7'"
            .into(),
        null_key: None,
        inexact: Vec::new(),
    };
    let (stand, mut feed, mut dice) = (Stand::new(3).await, Feed::new(3), Dice::new(1));
    let portions = [600, 400, 300, 100].map(|records| dice.portion(3, records, order));
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert!(before.len() > 500 && after.len() > before.len());
    case.stop(stand, &feed, service).await;
}

/// Rows of a pipeline without aggregation wait for the next checkpoint, and hold the sources back meanwhile: with a long
/// interval a checkpoint is taken early, instead of standing still until it is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_checkpoint_interval_does_not_stop_the_sources() {
    const RECORDS: i64 = 400_000;
    let stand = Stand::new(1).await;
    stand.topic.fill(0, (0..RECORDS).map(|n| format!("{{\"n\":{n}}}"))).await;
    let sql = format!(
        "CREATE EXTERNAL TABLE numbers (n BIGINT) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE nowhere (n BIGINT) STORED AS CQL LOCATION 'blackhole://';
         INSERT INTO nowhere SELECT n FROM numbers",
        stand.topic.name
    );
    let service = stand.start_with(&sql, &[("CHECKPOINT__INTERVAL", "1h"), ("CHECKPOINT__QUIET_INTERVAL", "2h")]);
    service
        .until("everything is read", |status| {
            let partitions = status["board"]["partitions"].as_array();
            partitions.is_some_and(|all| all.iter().any(|partition| partition["position"].as_i64() == Some(RECORDS)))
        })
        .await;
    service.stop().await;
    stand.until_committed(&[(0, RECORDS)].into()).await;
}
