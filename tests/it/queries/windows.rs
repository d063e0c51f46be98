//! Windows of event time over a real topic, killed again and again: each window is in the table once, when it is closed,
//! with every row that was on time by its own partition. The reference keeps all rows.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use scylla::value::CqlTimestamp;

use super::{Dice, Feed};
use crate::stand::{PATIENCE, Stand, count_of, until};

const PARTITIONS: i32 = 3;
/// In milliseconds.
const SIZE: i64 = 60_000;
const SLIDE: i64 = 20_000;
const DELAY: i64 = 30_000;

#[derive(Clone, Copy)]
struct Order {
    partition: i32,
    item: u64,
    qty: i64,
    ts: i64,
}

impl Order {
    fn json(&self) -> String {
        let Self { item, qty, ts, .. } = self;
        format!("{{\"item\":\"item {item}\",\"qty\":{qty},\"ts\":{ts}}}")
    }
}

/// Orders around a time that goes on with each of them; one in ten is minutes behind.
fn orders(dice: &mut Dice, now: &mut i64, records: usize) -> Vec<Order> {
    let order = |_| {
        *now += dice.below(700) as i64;
        let behind = if dice.chance(10) { 240_000 } else { 25_000 };
        let ts = *now - dice.below(behind) as i64;
        let (partition, item) = (dice.below(PARTITIONS as u64) as i32, dice.below(5));
        Order { partition, item, qty: dice.below(9) as i64, ts }
    };
    (0..records).map(order).collect()
}

/// Count and sum by start of the window and item.
type Groups = BTreeMap<(i64, String), (i64, i64)>;

/// The closed windows, and the number of late rows.
fn truth(sent: &[Order]) -> (Groups, u64) {
    let mut groups = Groups::new();
    let mut late = 0;
    let mut watermarks = BTreeMap::new();
    for order in sent {
        let highest = watermarks.entry(order.partition).or_insert(i64::MIN);
        let (watermark, ts) = (highest.saturating_sub(DELAY), order.ts);
        *highest = ts.max(*highest);
        if order.qty == 0 {
            continue;
        }
        let starts: Vec<_> =
            (ts - SIZE + 1..=ts).filter(|start| start % SLIDE == 0 && start + SIZE > watermark).collect();
        late += u64::from(starts.is_empty());
        for start in starts {
            let (count, total) = groups.entry((start, format!("item {}", order.item))).or_insert((0, 0));
            (*count, *total) = (*count + 1, *total + order.qty);
        }
    }
    let lowest = watermarks.values().min().unwrap() - DELAY;
    groups.retain(|(start, _), _| start + SIZE <= lowest);
    (groups, late)
}

async fn table(stand: &Stand) -> Groups {
    let read = format!("SELECT start, until, item, n, total FROM {}.{}", stand.keyspace, stand.table);
    let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(CqlTimestamp, CqlTimestamp, String, i64, i64)>()
        .unwrap()
        .map(|row| {
            let (start, until, item, n, total) = row.unwrap();
            assert_eq!(until.0 - start.0, SIZE);
            ((start.0, item), (n, total))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_window_is_written_when_it_is_closed_however_often_the_service_is_killed() {
    let (stand, mut feed, mut dice) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Dice::new(11));
    let sql = format!(
        "CREATE EXTERNAL TABLE orders (item VARCHAR, qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '30 seconds',
             'late.rows' 'dead-letter');
         CREATE EXTERNAL TABLE result (start TIMESTAMP, until TIMESTAMP, item VARCHAR, n BIGINT, total BIGINT,
             PRIMARY KEY (start, item)) STORED AS CQL LOCATION 'cassandra://{}/{}'
           OPTIONS ('sink.create' 'true', 'output.mode' 'append');
         INSERT INTO result SELECT window.start, window.end, item, count(*), sum(qty) FROM orders WHERE qty > 0
           GROUP BY window(ts, '1 minute', '20 seconds'), item",
        stand.topic.name, stand.keyspace, stand.table
    );
    let mut sent = Vec::new();
    let mut now = 1_700_000_000_000;
    let mut send = async |feed: &mut Feed, sent: &mut Vec<Order>, records| {
        let portion = orders(&mut dice, &mut now, records);
        feed.send(&stand, portion.iter().map(|order| (order.partition, order.json()))).await;
        sent.extend(portion);
    };
    send(&mut feed, &mut sent, 500).await;
    for _ in 0..4 {
        let before: i64 = stand.offsets().await.values().sum();
        let service = stand.start(&sql);
        let more = async || stand.offsets().await.values().sum::<i64>() > before;
        until("something is committed", Duration::from_secs(120), more).await;
        send(&mut feed, &mut sent, 400).await;
        service.kill();
        send(&mut feed, &mut sent, 300).await;
    }
    let service = stand.start(&sql);
    stand.until_committed(&feed.ends()).await;
    let (groups, late) = truth(&sent);
    assert!(groups.len() > 200 && late > 20, "{} groups, {late} late rows", groups.len());
    assert_eq!(table(&stand).await, groups);

    // Later rows close later windows and change none that were closed.
    send(&mut feed, &mut sent, 300).await;
    stand.until_committed(&feed.ends()).await;
    let (more, late) = truth(&sent);
    assert!(more.len() > groups.len());
    assert_eq!(table(&stand).await, more);
    assert_eq!(count_of(&service.status(), "late"), Some(late));
    let letters = format!(
        "SELECT reason FROM {}.dead_letters WHERE pipeline = '{}' ALLOW FILTERING",
        stand.keyspace, stand.pipeline
    );
    let letters = stand.session.query_unpaged(letters, ()).await.unwrap().into_rows_result().unwrap();
    let reasons: Vec<_> = letters.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect();
    assert_eq!(reasons.len() as u64, late);
    assert!(reasons.iter().all(|reason| reason.starts_with("late: the watermark of its partition was at 20")));
    service.stop().await;
}

/// Sessions of a topic of which one partition never gets a record. When the others have fallen silent, all sessions are
/// closed, and each is in the table once.
#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_of_a_silent_topic_are_all_written() {
    let (stand, mut feed, mut dice) = (Stand::new(PARTITIONS).await, Feed::new(PARTITIONS), Dice::new(12));
    let sql = format!(
        "CREATE EXTERNAL TABLE orders (item VARCHAR, qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '30 seconds',
             'watermark.close.after' '8 seconds');
         CREATE EXTERNAL TABLE result (start TIMESTAMP, until TIMESTAMP, item VARCHAR, n BIGINT, total BIGINT,
             PRIMARY KEY (item, start)) STORED AS CQL LOCATION 'cassandra://{}/{}'
           OPTIONS ('sink.create' 'true', 'output.mode' 'append');
         INSERT INTO result SELECT session_window.start, session_window.end, item, count(*), sum(qty) FROM orders
           GROUP BY item, session_window(ts, '1 second')",
        stand.topic.name, stand.keyspace, stand.table
    );
    let (mut sent, mut now) = (Vec::new(), 1_700_000_000_000);
    for life in 0..3 {
        let mut portion = orders(&mut dice, &mut now, 500);
        portion.iter_mut().for_each(|order| order.partition %= PARTITIONS - 1);
        feed.send(&stand, portion.iter().map(|order| (order.partition, order.json()))).await;
        sent.extend(portion);
        if life < 2 {
            let before: i64 = stand.offsets().await.values().sum();
            let service = stand.start(&sql);
            let more = async || stand.offsets().await.values().sum::<i64>() > before;
            until("something is committed", Duration::from_secs(120), more).await;
            service.kill();
        }
    }
    let service = stand.start(&sql);

    let mut watermarks = BTreeMap::new();
    let mut of_item: BTreeMap<u64, Vec<(i64, i64)>> = BTreeMap::new();
    for order in &sent {
        let highest = watermarks.entry(order.partition).or_insert(i64::MIN);
        if order.ts >= highest.saturating_sub(DELAY) {
            of_item.entry(order.item).or_default().push((order.ts, order.qty));
        }
        *highest = order.ts.max(*highest);
    }
    let mut wanted = BTreeMap::new();
    for (item, mut times) in of_item {
        times.sort_unstable();
        let mut start = times[0].0;
        let mut end = start;
        for (ts, qty) in times {
            if ts > end {
                start = ts;
            }
            end = ts + 1000;
            let (until, count, total) = wanted.entry((start, format!("item {item}"))).or_insert((0, 0, 0));
            (*until, *count, *total) = (end, *count + 1, *total + qty);
        }
    }
    assert!(wanted.len() > 300 && wanted.values().any(|(_, count, _)| *count > 2), "{} sessions", wanted.len());
    let read = format!("SELECT start, until, item, n, total FROM {}.{}", stand.keyspace, stand.table);
    let table = async || {
        let rows = stand.session.query_unpaged(read.as_str(), ()).await.unwrap().into_rows_result().unwrap();
        let rows = rows.rows::<(CqlTimestamp, CqlTimestamp, String, i64, i64)>().unwrap().map(|row| row.unwrap());
        rows.map(|(start, until, item, n, total)| ((start.0, item), (until.0, n, total))).collect::<BTreeMap<_, _>>()
    };
    until("as many sessions are written", Duration::from_secs(120), async || table().await.len() >= wanted.len()).await;
    assert_eq!(table().await, wanted);
    let open = |status: &serde_json::Value| {
        let shards = status["board"]["shards"].as_object()?;
        shards.values().map(|shard| shard["keys"].as_u64()).sum::<Option<u64>>()
    };
    service.until("no session is kept", |status| open(status) == Some(0)).await;
    service.stop().await;
}

/// Case: idle partition (flink PR#14679, numaflow#3399). A partition that never had a record holds nothing back for longer than
/// `watermark.idle`. What comes late, for a window that was closed meanwhile, or from the far future changes no window that was
/// written, is counted apart, and the log shows one of each.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_partition_lets_windows_close_and_what_comes_for_them_later_is_said() {
    let (stand, mut feed) = (Stand::new(2).await, Feed::new(2));
    let sql = format!(
        "CREATE EXTERNAL TABLE orders (qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '10 seconds',
             'watermark.idle' '2 seconds');
         CREATE EXTERNAL TABLE result (start TIMESTAMP, n BIGINT, total BIGINT, PRIMARY KEY (start)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true', 'output.mode' 'append');
         INSERT INTO result SELECT window.start, count(*), sum(qty) FROM orders GROUP BY window(ts, '1 minute')",
        stand.topic.name, stand.keyspace, stand.table
    );
    let minute = 60_000;
    let base = 28_333_334 * minute;
    let order = |partition: i32, ts: i64| (partition, format!("{{\"qty\":2,\"ts\":{ts}}}"));
    // The watermark gets to 290 s, so that four windows are over.
    feed.send(&stand, (0..31).map(|n| order(0, base + n * 10_000))).await;
    let table = async || by_start(&stand).await;
    let windows = |many: i64| (0..many).map(|n| (base + n * minute, (6, 12))).collect::<BTreeMap<_, _>>();
    // Also in a process that starts when everything has been quiet for long.
    for life in 0..2 {
        let service = stand.start(&sql);
        service.until_each_shard_committed().await;
        until("all is processed", PATIENCE, async || count_of(&service.status(), "processed") == Some(31)).await;
        until("the windows are written", PATIENCE, async || table().await == windows(4)).await;
        assert_eq!(count_of(&service.status(), "late_closed"), Some(0), "life {life}");
        service.kill();
    }

    let service = stand.start(&sql);
    feed.send(&stand, [order(1, base + 30_000)]).await;
    service.until_said("rows came for windows that were closed while their partition was quiet").await;
    feed.send(&stand, [order(0, base + 5_000), order(0, base + 100 * 365 * 24 * 60 * minute)]).await;
    service.until_said("late rows; this is one of them").await;
    service.until_said("records whose event time is further ahead").await;
    // Both partitions go on, and the fifth window has the rows of both.
    feed.send(&stand, [order(1, base + 295_000)]).await;
    stand.until_committed(&feed.ends()).await;
    feed.send(&stand, [order(0, base + 330_000), order(1, base + 330_000)]).await;
    let mut wanted = windows(5);
    wanted.insert(base + 4 * minute, (7, 14));
    until("the fifth window is written", PATIENCE, async || table().await == wanted).await;
    stand.until_committed(&feed.ends()).await;
    let status = service.status();
    let found = ["late", "late_closed", "ahead", "processed"].map(|of| count_of(&status, of));
    assert_eq!(found, [1, 1, 1, 35].map(Some));
    service.stop().await;
    assert_eq!(table().await, wanted);
}

/// Count and sum by start of the window, as they are in the table.
async fn by_start(stand: &Stand) -> BTreeMap<i64, (i64, i64)> {
    let read = format!("SELECT start, n, total FROM {}.{}", stand.keyspace, stand.table);
    // The first start makes it.
    let Ok(rows) = stand.session.query_unpaged(read.as_str(), ()).await else { return BTreeMap::new() };
    let rows = rows.into_rows_result().unwrap();
    let rows = rows.rows::<(CqlTimestamp, i64, i64)>().unwrap().map(|row| row.unwrap());
    rows.map(|(start, n, total)| (start.0, (n, total))).collect()
}

/// One partition is at its end, an hour further than the other, whose backlog waits for a sink that takes nothing. That one is
/// not idle, however long it lasts: none of its windows is closed before its rows have come.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_a_backlog_behind_a_slow_sink_is_not_idle() {
    const BACKLOG: i64 = 30_000;
    let (stand, mut feed) = (Stand::new(2).await, Feed::new(2));
    let sql = format!(
        "CREATE EXTERNAL TABLE orders (qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '1 second',
             'watermark.idle' '1 second');
         CREATE EXTERNAL TABLE result (start TIMESTAMP, n BIGINT, total BIGINT, PRIMARY KEY (start)) STORED AS CQL
           LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true', 'output.mode' 'append');
         CREATE EXTERNAL TABLE shown (qty BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'console://'
           OPTIONS ('console.format' 'json');
         INSERT INTO result SELECT window.start, count(*), sum(qty) FROM orders GROUP BY window(ts, '1 minute');
         INSERT INTO shown SELECT qty, ts FROM orders",
        stand.topic.name, stand.keyspace, stand.table
    );
    let minute = 60_000;
    let base = 28_333_334 * minute;
    let order = |partition: i32, ts: i64| (partition, format!("{{\"qty\":2,\"ts\":{ts}}}"));
    feed.send(&stand, [order(0, base + 60 * minute)]).await;
    let (service, console) = stand.start_with_console(&sql, &[("IN_FLIGHT__ROWS", "2000")]);
    // Once the sink holds everything up it would not be read.
    until("one partition is at its end", PATIENCE, async || service.positions().contains(&1)).await;
    feed.send(&stand, (0..BACKLOG).map(|n| order(1, base + n * 100))).await;
    // It stands still for several times as long as makes a partition idle.
    let (mut last, mut since) = (Vec::new(), Instant::now());
    until("the sink holds everything up", PATIENCE, async || service.positions().iter().sum::<u64>() > 1_000).await;
    while since.elapsed() < Duration::from_secs(5) {
        let now = service.positions();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let read = last.iter().sum::<u64>() as i64 - 1;
    assert!(last.contains(&1) && read < BACKLOG / 2, "{last:?}");
    let windows = |many: i64| (0..many).map(|n| (base + n * minute, (600, 1_200))).collect::<BTreeMap<_, _>>();
    let closed = by_start(&stand).await;
    assert_eq!(closed, windows(closed.len() as i64), "whole ones");
    assert!(closed.len() as i64 <= read / 600, "{} windows are closed, {read} records read", closed.len());

    let shown = tokio::task::spawn_blocking(move || {
        BufReader::new(console).lines().map_while(Result::ok).filter(|line| line.contains("qty")).count() as i64
    });
    stand.until_committed(&feed.ends()).await;
    let windows = windows(BACKLOG / 600);
    until("the windows are written", PATIENCE, async || by_start(&stand).await == windows).await;
    let status = service.status();
    let found = ["late", "late_closed", "processed"].map(|of| count_of(&status, of));
    assert_eq!(found, [0, 0, BACKLOG as u64 + 1].map(Some));
    service.stop().await;
    assert_eq!(by_start(&stand).await, windows);
    assert_eq!(shown.await.unwrap(), BACKLOG + 1);
}
