//! What was changed between two starts: the query, the table, the topic.

use crate::stand::Stand;

fn sql(stand: &Stand, lowest: &str, highest: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (item VARCHAR, qty BIGINT) STORED AS JSON LOCATION 'kafka://{}';
         CREATE EXTERNAL TABLE result (item VARCHAR, lowest BIGINT, highest BIGINT, PRIMARY KEY (item)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO result SELECT item, {lowest}, {highest} FROM orders GROUP BY item",
        stand.topic.name, stand.keyspace, stand.table
    )
}

async fn table(stand: &Stand) -> Vec<(String, i64, i64)> {
    let read = format!("SELECT item, lowest, highest FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows().unwrap().map(|row| row.unwrap()).collect()
}

/// Case: changed query (spark PR#24173).
/// The state of MIN and of MAX look alike: only the fingerprint tells them apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_with_min_and_max_swapped_is_refused_with_the_difference() {
    let stand = Stand::new(1).await;
    let order = |qty: i64| format!("{{\"item\":\"tea\",\"qty\":{qty}}}");
    stand.topic.fill(0, [5, 1, 9].map(order)).await;
    let right = sql(&stand, "min(qty)", "max(qty)");
    let service = stand.start(&right);
    stand.until_committed(&[(0, 3)].into()).await;
    service.kill();

    stand.topic.fill(0, [order(3)]).await;
    let (code, said) = stand.start(&sql(&stand, "max(qty)", "min(qty)")).end().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has stored state of another query"), "{said}");
    let lines = |sign: char, words: [&str; 2]| {
        said.lines().any(|line| {
            line.trim_start().starts_with(sign) && words.iter().all(|word| line.to_lowercase().contains(word))
        })
    };
    for (sign, words) in
        [('-', ["lowest", "min("]), ('+', ["lowest", "max("]), ('-', ["highest", "max("]), ('+', ["highest", "min("])]
    {
        assert!(lines(sign, words), "{sign} {words:?} in {said}");
    }
    assert!(said.contains("STRANDLINE_PIPELINE__NAME") && said.contains("take the old query back"), "{said}");
    let checked = stand.check(&sql(&stand, "max(qty)", "min(qty)"));
    assert!(checked.contains("has stored state of another query"), "{checked}");
    let checked = stand.check(&right);
    assert!(
        checked.contains(&format!("goes on from the stored state of {}, in 2 shards", stand.pipeline)),
        "{checked}"
    );
    assert_eq!(table(&stand).await, [("tea".to_owned(), 1, 9)]);
    assert_eq!(stand.offsets().await, [(0, 3)].into());

    // The old query goes on, with names and layout of its own.
    stand.topic.fill(0, [order(20)]).await;
    let again = right.replace("orders", "purchases").replace("SELECT", "-- as before\n SELECT");
    let again = again.replace(&stand.topic.name.replace("orders", "purchases"), &stand.topic.name);
    let service = stand.start(&again);
    stand.until_committed(&[(0, 5)].into()).await;
    assert_eq!(table(&stand).await, [("tea".to_owned(), 1, 20)]);
    service.stop().await;
}

/// Only groups that change again would be written to a table made anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_gone_is_not_made_again_under_stored_state() {
    let stand = Stand::new(1).await;
    let sql = sql(&stand, "min(qty)", "max(qty)");
    stand.topic.fill(0, ["{\"item\":\"tea\",\"qty\":5}".to_owned()]).await;
    let service = stand.start(&sql);
    stand.until_committed(&[(0, 1)].into()).await;
    service.stop().await;

    let name = format!("{}.{}", stand.keyspace, stand.table);
    stand.session.query_unpaged(format!("DROP TABLE {name}"), ()).await.unwrap();
    let (code, said) = stand.start(&sql).end().await;
    assert_eq!(code, Some(2), "{said}");
    for part in [&format!("the table {name} is gone"), &stand.pipeline, "CREATE TABLE", "STRANDLINE_PIPELINE__NAME"] {
        assert!(said.contains(part), "{part:?} in {said}");
    }

    // Who wants it empty makes it by hand.
    let (_, ddl) = said.split_once("CREATE TABLE").unwrap();
    stand.session.query_unpaged(format!("CREATE TABLE{}", ddl.split(';').next().unwrap()), ()).await.unwrap();
    stand.topic.fill(0, ["{\"item\":\"ink\",\"qty\":7}".to_owned()]).await;
    let service = stand.start(&sql);
    stand.until_committed(&[(0, 2)].into()).await;
    assert!(table(&stand).await.contains(&("ink".to_owned(), 7, 7)));
    service.stop().await;
}

/// Nothing is stored under the name before the topics are known to exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_does_not_use_up_the_name() {
    let stand = Stand::new(1).await;
    let right = sql(&stand, "min(qty)", "max(qty)");
    let wrong = right.replace(&stand.topic.name, &format!("{}-x", stand.topic.name));
    let (code, said) = stand.start(&wrong).end().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("{}-x", stand.topic.name)), "{said}");

    stand.topic.fill(0, ["{\"item\":\"tea\",\"qty\":5}".to_owned()]).await;
    let service = stand.start(&right);
    stand.until_committed(&[(0, 1)].into()).await;
    assert_eq!(table(&stand).await, [("tea".to_owned(), 5, 5)]);
    service.stop().await;
}

/// Nor before the sinks are known to take the rows: there is no state yet that another query could not go on from.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_cannot_be_opened_does_not_use_up_the_name() {
    let stand = Stand::new(1).await;
    let right = sql(&stand, "min(qty)", "max(qty)");
    let elsewhere = format!("{}_x", stand.table);
    let wrong = right.replace(&stand.table, &elsewhere).replace("OPTIONS ('sink.create' 'true')", "");
    let (code, said) = stand.start(&wrong).end().await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&elsewhere), "{said}");

    stand.topic.fill(0, ["{\"item\":\"tea\",\"qty\":5}".to_owned()]).await;
    let service = stand.start(&right);
    stand.until_committed(&[(0, 1)].into()).await;
    assert_eq!(table(&stand).await, [("tea".to_owned(), 5, 5)]);
    service.stop().await;
}
