//! Nested JSON: structs, lists, lists of structs, and fields of them as columns, conditions and groups.

use super::{Case, Dice, Feed};
use crate::stand::Stand;

const COLUMNS: &str = "id BIGINT, buyer STRUCT<name VARCHAR, address STRUCT<city VARCHAR, zip INT>>, \
                       lines ARRAY<STRUCT<sku VARCHAR, price DECIMAL(10,2), n INT>>, tags VARCHAR[]";

/// An object of some of these fields.
fn object(fields: &[String]) -> String {
    format!("{{{}}}", fields.join(","))
}

fn order(dice: &mut Dice, id: u64) -> String {
    let (mut fields, mut buyer, mut address) = (vec![format!("\"id\":{id}")], Vec::new(), Vec::new());
    let (city, zip) = (dice.below(7), dice.below(100_000));
    dice.field(&mut address, "city", format!("\"city {city}\""));
    dice.field(&mut address, "zip", zip.to_string());
    let name = dice.below(30);
    dice.field(&mut buyer, "name", format!("\"n\\u00e4me \\\"{name}\\\"\""));
    dice.field(&mut buyer, "address", object(&address));
    dice.field(&mut fields, "buyer", object(&buyer));
    let lines: Vec<_> = (0..dice.below(4))
        .map(|_| {
            let mut line = Vec::new();
            let (sku, price, n) = (dice.below(9), dice.below(10_000), dice.below(5));
            dice.field(&mut line, "sku", format!("\"sku-{sku}\""));
            dice.field(&mut line, "price", format!("\"{}.{:02}\"", price / 100, price % 100));
            dice.field(&mut line, "n", n.to_string());
            object(&line)
        })
        .collect();
    dice.field(&mut fields, "lines", format!("[{}]", lines.join(",")));
    let tags: Vec<_> = (0..dice.below(4)).map(|_| format!("\"tag {}\"", dice.below(5))).collect();
    dice.field(&mut fields, "tags", format!("[{}]", tags.join(",")));
    fields.push("\"more\":{\"not\":[\"declared\"]}".into());
    object(&fields)
}

fn portions(dice: &mut Dice) -> [Vec<(i32, String)>; 4] {
    let mut id = 0;
    [300, 200, 150, 50].map(|records| {
        dice.portion(2, records, |dice| {
            id += 1;
            order(dice, id)
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn structs_and_lists_are_read_taken_apart_and_written() {
    let case = Case {
        columns: COLUMNS.into(),
        result:
            "id BIGINT, city VARCHAR, first_sku VARCHAR, first_cost DECIMAL(20,2), tag_count BIGINT, last_tag VARCHAR, \
                 tags VARCHAR[], buyer STRUCT<name VARCHAR, address STRUCT<city VARCHAR, zip INT>>, \
                 lines ARRAY<STRUCT<sku VARCHAR, price DECIMAL(10,2), n INT>>, PRIMARY KEY (id)"
                .into(),
        select: "SELECT id, upper(buyer['address']['city']), lines[1]['sku'], lines[1]['price'] * lines[1]['n'], \
                 array_length(tags), tags[-1], tags, buyer, lines \
                 FROM orders WHERE buyer['address']['zip'] > 20000 OR array_has(tags, 'tag 1')"
            .into(),
        null_key: None,
        inexact: Vec::new(),
    };
    let (stand, mut feed, mut dice) = (Stand::new(2).await, Feed::new(2), Dice::new(2));
    let portions = portions(&mut dice);
    let (before, after, service) = case.run(&stand, &mut feed, portions).await;
    assert!(before.len() > 200 && after.len() > before.len());
    case.stop(stand, &feed, service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_structs_are_groups_and_are_aggregated() {
    let case = Case {
        columns: COLUMNS.into(),
        result: "city VARCHAR, n BIGINT, names BIGINT, highest_zip INT, cost DECIMAL(30,2), tags BIGINT, \
                 PRIMARY KEY (city)"
            .into(),
        select: "SELECT buyer['address']['city'], count(*), count(DISTINCT buyer['name']), \
                 max(buyer['address']['zip']), sum(lines[1]['price'] * lines[1]['n']), sum(array_length(tags)) \
                 FROM orders GROUP BY buyer['address']['city']"
            .into(),
        null_key: Some("(nowhere)"),
        inexact: Vec::new(),
    };
    let (stand, mut feed, mut dice) = (Stand::new(2).await, Feed::new(2), Dice::new(3));
    let portions = portions(&mut dice);
    let (before, _, service) = case.run(&stand, &mut feed, portions).await;
    assert_eq!(before.len(), 8, "seven cities and nowhere");
    case.stop(stand, &feed, service).await;
}
