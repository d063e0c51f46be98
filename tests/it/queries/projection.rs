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
