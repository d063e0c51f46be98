//! Whole pipelines, from records in a real Kafka to rows in a real Cassandra, against DataFusion's batch engine over the
//! same records. The service is killed in between, so what is compared went through its stored state.

mod aggregates;
mod bad_records;
mod changes;
mod hostile;
mod inserts;
mod kept;
mod nested;
mod nexmark;
mod positions;
mod projection;
mod rows;
mod rules;
mod union;
mod windows;

use std::collections::BTreeMap;

use strandline::catalog::SinkTable;

use crate::stand::{PATIENCE, Service, Stand, until};
use rows::{Line, Rows};

/// A topic and what was sent to it.
struct Feed {
    logs: Vec<Vec<String>>,
}

impl Feed {
    fn new(partitions: i32) -> Self {
        Self { logs: vec![Vec::new(); partitions as usize] }
    }

    /// Sends records to partitions, and waits until the brokers have them.
    async fn send(&mut self, stand: &Stand, portion: impl IntoIterator<Item = (i32, String)>) {
        let mut of_partition: BTreeMap<i32, Vec<String>> = BTreeMap::new();
        for (partition, record) in portion {
            self.logs[partition as usize].push(record.clone());
            of_partition.entry(partition).or_default().push(record);
        }
        for (partition, records) in of_partition {
            stand.topic.fill(partition, records).await;
        }
    }

    /// The next offset of each partition.
    fn ends(&self) -> BTreeMap<i32, i64> {
        (0..).zip(self.logs.iter().map(|log| log.len() as i64)).collect()
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        (0..)
            .zip(&self.logs)
            .flat_map(|(partition, log)| (0..).zip(log).map(move |(offset, json)| Line { partition, offset, json }))
    }
}

/// A pipeline that is compared with the batch engine.
struct Case {
    /// The columns of the topic, as they are declared.
    columns: String,
    /// The columns of the sink with their PRIMARY KEY, as they are declared.
    result: String,
    /// What goes from the one into the other.
    select: String,
    /// What is written for NULL in a key.
    null_key: Option<&'static str>,
    /// The columns of the sink that are compared within 1e-12; all others are compared exactly.
    inexact: Vec<String>,
}

impl Case {
    fn sql(&self, stand: &Stand) -> String {
        let Self { columns, result, select, null_key, .. } = self;
        let null_key = null_key.map(|text| format!(", 'sink.null.key' '{text}'")).unwrap_or_default();
        format!(
            "CREATE EXTERNAL TABLE orders ({columns}) STORED AS JSON LOCATION 'kafka://{}';
             CREATE EXTERNAL TABLE result ({result}) STORED AS CQL LOCATION 'cassandra://{}/{}'
               OPTIONS ('sink.create' 'true'{null_key});
             INSERT INTO result {select}",
            stand.topic.name, stand.keyspace, stand.table
        )
    }

    fn sink(&self, stand: &Stand) -> SinkTable {
        strandline::sql::plan(&self.sql(stand)).unwrap_or_else(|error| panic!("{error}")).inserts.remove(0).sink
    }

    /// Waits until everything is committed, and compares the table with what the batch engine says.
    async fn settle(&self, stand: &Stand, feed: &Feed) -> Rows {
        stand.until_committed(&feed.ends()).await;
        let sink = self.sink(stand);
        let wanted = rows::batch_engine(&self.columns, &self.select, feed.lines(), &sink, self.null_key).await;
        let found = rows::of_table(stand, &sink).await;
        rows::assert_equal(&found, &wanted, &sink, &self.inexact);
        found
    }

    /// Runs it over a log that grows by four portions: killed after a commit while the second arrives, so at a random
    /// place; started again with the third unread; compared after the third and the fourth. Answers both tables, and
    /// the service that still runs.
    async fn run(&self, stand: &Stand, feed: &mut Feed, portions: [Vec<(i32, String)>; 4]) -> (Rows, Rows, Service) {
        let sql = self.sql(stand);
        let [first, second, third, fourth] = portions;
        feed.send(stand, first).await;
        let service = stand.start(&sql);
        let some = async || stand.offsets().await.values().sum::<i64>() > 0;
        until("something is committed", PATIENCE, some).await;
        feed.send(stand, second).await;
        service.kill();
        feed.send(stand, third).await;
        let service = stand.start(&sql);
        let before = self.settle(stand, feed).await;
        feed.send(stand, fourth).await;
        let after = self.settle(stand, feed).await;
        (before, after, service)
    }

    /// Stops the service, after which the table must be what it was.
    async fn stop(&self, stand: Stand, feed: &Feed, service: Service) {
        service.stop().await;
        self.settle(&stand, feed).await;
    }
}

/// Numbers that are the same in each run of a test.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A field of a JSON object; one in ten is missing and one in ten null.
    fn field(&mut self, fields: &mut Vec<String>, name: &str, value: String) {
        match self.below(10) {
            0 => {}
            1 => fields.push(format!("\"{name}\":null")),
            _ => fields.push(format!("\"{name}\":{value}")),
        }
    }

    /// So many records for random partitions.
    fn portion(
        &mut self,
        partitions: u64,
        records: usize,
        mut record: impl FnMut(&mut Self) -> String,
    ) -> Vec<(i32, String)> {
        (0..records).map(|_| (self.below(partitions) as i32, record(self))).collect()
    }
}
