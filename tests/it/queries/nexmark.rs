//! The queries of Nexmark as they stand in `config/nexmark`, over topics that `strandline nexmark` filled, killed on the way.
//! In the end each table is what DataFusion's batch engine makes of the same bids; sessions, which it does not have, are
//! compared with those that a plain loop finds.

mod recorded;

use std::collections::BTreeMap;
use std::path::Path;

use strandline::catalog::SinkTable;
use strandline::nexmark::{Generator, Stream};
use tokio::sync::OnceCell;

use super::Feed;
use super::rows::{self, Rows, Value};
use crate::stand::{PATIENCE, Service, Stand, until};
use crate::test_topic::servers;

const PARTITIONS: u64 = 3;
const EVENTS: u64 = 4_000;
/// Events in a second: they last 200 seconds, so there are windows and sessions of ten.
const RATE: u64 = 20;
/// 2026-01-01T00:00:00Z, in milliseconds.
const START: i64 = 1_767_225_600_000;
/// The columns of a bid.
const BID: &str = "auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, date_time TIMESTAMP(3), \
                   extra VARCHAR";

/// The topic of bids, which all of these tests read, and what is in each partition.
struct Bids {
    topic: String,
    feed: Feed,
}

impl Bids {
    async fn filled() -> &'static Self {
        static BIDS: OnceCell<Bids> = OnceCell::const_new();
        BIDS.get_or_init(async || {
            let prefix = format!("nexmark-{}-", uuid::Uuid::new_v4().simple());
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_strandline"));
            let numbers = ["--events", "4000", "--rate", "20", "--partitions", "3"];
            command.arg("nexmark").args(numbers).args(["--prefix", &prefix]);
            command.env("STRANDLINE_KAFKA__BOOTSTRAP_SERVERS", servers());
            let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            let text = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
            let wanted = format!("80 to {prefix}person, 240 to {prefix}auction, 3680 to {prefix}bid");
            assert!(said.status.success() && text.contains(&wanted), "{text}");
            let generator = Generator { seed: 1, rate: RATE, start: START };
            let mut logs = vec![Vec::new(); PARTITIONS as usize];
            let events = (0..EVENTS).map(|number| generator.event(number));
            for (number, bid) in events.filter(|event| event.stream == Stream::Bid).enumerate() {
                logs[number % PARTITIONS as usize].push(bid.json);
            }
            Bids { topic: format!("{prefix}bid"), feed: Feed { logs } }
        })
        .await
    }
}

/// The statements of a query as a user has them.
fn file(query: u32) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/nexmark/q{query}.sql"));
    std::fs::read_to_string(path).unwrap()
}

/// The SELECT of a query.
fn select(query: u32) -> String {
    let text = file(query);
    let (_, select) = text.split_once(&format!("INSERT INTO q{query}\n")).unwrap();
    select.trim_end().trim_end_matches(';').to_owned()
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
    text.replace(from, to)
}

/// A query over topics and tables of the test's own. Batches are small, so that there is something to read for a while.
async fn statements(query: u32, bids: &Bids) -> (Stand, String) {
    let mut stand = Stand::new(1).await;
    stand.topic.name.clone_from(&bids.topic);
    let (at, table) = (format!("cassandra://nexmark/q{query}"), format!("{}/{}", stand.keyspace, stand.table));
    let sql = replaced(&file(query), &at, &format!("cassandra://{table}"));
    let small = "'max.offsets.per.batch' '100'";
    let sql = match sql.contains("OPTIONS ('watermark.column'") {
        true => replaced(&sql, "OPTIONS ('watermark.column'", &format!("OPTIONS ({small}, 'watermark.column'")),
        false => replaced(&sql, "'kafka://nexmark_bid'", &format!("'kafka://nexmark_bid' OPTIONS ({small})")),
    };
    let sql = sql.replace("'watermark.close.after' '10 seconds'", "'watermark.close.after' '2 seconds'");
    (stand, replaced(&sql, "'kafka://nexmark_bid'", &format!("'kafka://{}'", bids.topic)))
}

/// One query that runs.
struct Run {
    stand: Stand,
    sink: SinkTable,
    service: Service,
}

impl Run {
    /// Starts a query, kills it after it has committed something, and starts it again.
    async fn of(query: u32, bids: &Bids) -> Self {
        let (stand, sql) = statements(query, bids).await;
        let sink = strandline::sql::plan(&sql).unwrap_or_else(|error| panic!("{error}")).inserts.remove(0).sink;
        let service = stand.start(&sql);
        stand.until_more_is_committed(0, "something is committed").await;
        service.kill();
        let service = stand.start(&sql);
        Self { stand, sink, service }
    }

    /// Waits until all is read and the last window is closed, and compares the table.
    async fn settle(self, bids: &Bids, wanted: Rows) {
        let Self { stand, sink, service } = self;
        stand.until_committed(&bids.feed.ends()).await;
        let all = async || rows::of_table(&stand, &sink).await.len() >= wanted.len();
        until(&format!("there are {} rows", wanted.len()), PATIENCE, all).await;
        rows::assert_equal(&rows::of_table(&stand, &sink).await, &wanted, &sink, &[]);
        service.stop().await;
        rows::assert_equal(&rows::of_table(&stand, &sink).await, &wanted, &sink, &[]);
    }
}

/// Runs a query. In the end it has the result of the reference, and at least so many rows.
async fn compare(query: u32, reference: &str, least: usize) {
    let bids = Bids::filled().await;
    let run = Run::of(query, bids).await;
    let wanted = rows::batch_engine(BID, reference, bids.feed.lines(), &run.sink, None).await;
    assert!(wanted.len() >= least, "{} rows", wanted.len());
    run.settle(bids, wanted).await;
}

/// Queries whose text means the same to the batch engine.
macro_rules! same_text {
    ($($name:ident: $query:literal, $least:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            compare($query, &select($query).replace("FROM bid", "FROM orders"), $least).await;
        })*
    };
}

same_text! {
    nexmark_0_passes_all_bids: 0, 3_680;
    nexmark_1_converts_prices: 1, 3_680;
    nexmark_2_selects_auctions: 2, 5;
    nexmark_14_computes_and_filters: 14, 500;
    nexmark_15_counts_of_each_day: 15, 1;
    nexmark_16_counts_of_each_channel: 16, 1_000;
    nexmark_17_prices_of_each_auction: 17, 100;
    nexmark_21_extracts_by_an_expression: 21, 3_000;
    nexmark_22_splits_addresses: 22, 3_680;
}

/// Of each sliding window the auctions with the most bids.
#[tokio::test(flavor = "multi_thread")]
async fn nexmark_5_hot_items() {
    let reference = "WITH counted AS (
          SELECT date_bin(INTERVAL '2 seconds', date_time) - back AS start, auction, count(*) AS num
          FROM orders CROSS JOIN (
            VALUES (INTERVAL '0 seconds'), (INTERVAL '2 seconds'), (INTERVAL '4 seconds'), (INTERVAL '6 seconds'),
              (INTERVAL '8 seconds')) AS slides (back)
          GROUP BY date_bin(INTERVAL '2 seconds', date_time) - back, auction),
        most AS (SELECT start, max(num) AS num FROM counted GROUP BY start)
        SELECT counted.start, counted.start + INTERVAL '10 seconds', auction, counted.num
        FROM counted JOIN most ON counted.start = most.start AND counted.num = most.num";
    compare(5, reference, 104).await;
}

/// Of each window the highest bids.
#[tokio::test(flavor = "multi_thread")]
async fn nexmark_7_highest_bids() {
    let reference = "WITH most AS (
          SELECT date_bin(INTERVAL '10 seconds', date_time) AS start, max(price) AS price FROM orders
          GROUP BY date_bin(INTERVAL '10 seconds', date_time))
        SELECT start, auction, orders.price, bidder, date_time, extra, _partition, _offset
        FROM orders JOIN most ON date_bin(INTERVAL '10 seconds', date_time) = start AND orders.price = most.price";
    compare(7, reference, 20).await;
}

/// Bids of the same millisecond are told apart by their columns.
#[tokio::test(flavor = "multi_thread")]
async fn nexmark_18_the_last_bids() {
    let ties = "ORDER BY date_time DESC, auction, bidder, price, channel, url, date_time, extra";
    let reference = replaced(&select(18), "ORDER BY date_time DESC", ties).replace("FROM bid", "FROM orders");
    compare(18, &reference, 500).await;
}

/// Rows that drop out of the first ten are removed.
#[tokio::test(flavor = "multi_thread")]
async fn nexmark_19_the_highest_bids_of_each_auction() {
    let ties = "ORDER BY price DESC, auction, bidder, price, channel, url, date_time, extra, _partition, _offset";
    let reference = replaced(&select(19), "ORDER BY price DESC", ties).replace("FROM bid", "FROM orders");
    compare(19, &reference, 500).await;
}

/// Bids of one bidder with no longer pause than ten seconds between them.
#[tokio::test(flavor = "multi_thread")]
async fn nexmark_11_sessions() {
    const GAP: i64 = 10_000;
    let bids = Bids::filled().await;
    let run = Run::of(11, bids).await;
    let mut times: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for line in bids.feed.lines() {
        let bid: serde_json::Value = serde_json::from_str(line.json).unwrap();
        let time = bid["date_time"].as_str().unwrap().parse::<chrono::NaiveDateTime>().unwrap();
        let of_bidder = times.entry(bid["bidder"].as_i64().unwrap()).or_default();
        of_bidder.push(time.and_utc().timestamp_millis());
    }
    let mut wanted = Rows::new();
    for (bidder, mut times) in times {
        times.sort_unstable();
        for session in times.chunk_by(|earlier, later| later - earlier <= GAP) {
            let (start, end) = (session[0], session[session.len() - 1] + GAP);
            let key = format!("{:?}, {:?}", Value::Whole(bidder), Value::Timestamp(start));
            let bounds = [Value::Timestamp(start), Value::Timestamp(end)];
            let row = [Value::Whole(bidder), Value::Whole(session.len() as i64)].into_iter().chain(bounds);
            wanted.insert(key, row.collect());
        }
    }
    assert!(wanted.len() > 200, "{} sessions", wanted.len());
    run.settle(bids, wanted).await;
}
