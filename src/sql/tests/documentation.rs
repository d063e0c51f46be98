//! `docs/sql.md` says what is so.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;

use super::super::{options, refusals};
use super::harness::{Pipeline, each_way, log, planned, refused};

const TEXT: &str = include_str!("../../../docs/sql.md");

#[test]
fn the_examples_run() {
    let examples: Vec<_> = TEXT.split("```sql\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        let plan = planned(example);
        assert_eq!(plan.sources[0].topic, "orders");
        assert!(plan.inserts.iter().any(|insert| insert.sink.name == "revenue"));
    }
}

/// The table of Spark's example: the words with their times, and how often each is in each window. In append mode the windows
/// that are not closed are missing.
#[test]
fn the_example_of_spark_has_its_results() {
    let (_, chapter) = TEXT.split_once("What Spark's documentation shows").unwrap();
    let words: Vec<_> = chapter.split('`').skip(1).step_by(2).take(10).collect();
    assert_eq!((words.len(), words[0], words[9]), (10, "12:07 dog", "12:17 owl"));
    let records = words.iter().map(|word| {
        let (time, word) = word.split_once(' ').unwrap();
        format!("{{\"ts\":\"2023-11-14T{time}:00\",\"word\":\"{word}\"}}")
    });
    let log = log(records);
    for (mode, windows, open) in [("update", 5, 9), ("append", 1, 9)] {
        each_way(|| {
            let sql = format!(
                "CREATE EXTERNAL TABLE words (word VARCHAR, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://words'
                    OPTIONS ('watermark.column' 'ts', 'watermark.delay' '10 minutes');
                CREATE EXTERNAL TABLE counts (start TIMESTAMP(0), until TIMESTAMP(0), word VARCHAR, n BIGINT,
                    PRIMARY KEY (start, word)) STORED AS CQL LOCATION 'cassandra://shop/counts'
                    OPTIONS ('output.mode' '{mode}');
                INSERT INTO counts SELECT window.start, window.end, word, count(*) FROM words
                    GROUP BY window(ts, '10 minutes', '5 minutes'), word"
            );
            let mut pipeline = Pipeline::new(&sql, 1, 1);
            pipeline.batch(0, &log, 0, 10);
            pipeline.checkpoint_all();
            let mut counts = BTreeMap::new();
            for row in pipeline.rows.values() {
                let of_window: &mut BTreeMap<_, _> =
                    counts.entry(format!("{} to {}", clock(&row[0]), clock(&row[1]))).or_default();
                of_window.insert(row[2].to_string(), row[3].to_string());
            }
            for (window, counts) in &counts {
                let count = |word: &str| counts.get(word).map_or("0", String::as_str);
                let line = format!("| {window} | {} | {} | {} |", count("cat"), count("dog"), count("owl"));
                assert!(TEXT.contains(&line), "{line}");
            }
            assert_eq!((counts.len(), pipeline.counts.late, pipeline.keys()), (windows, 1, open), "{mode}");
        });
    }
}

/// A time as hours and minutes.
fn clock(value: &ScalarValue) -> String {
    match value {
        ScalarValue::TimestampSecond(Some(time), _) => format!("{:02}:{:02}", time / 3600 % 24, time / 60 % 60),
        other => panic!("{other:?} is no time"),
    }
}

#[test]
fn every_option_is_in_the_table() {
    for key in options::KAFKA_KEYS.iter().chain(&options::OUTPUT_KEYS).chain(&[
        "sink.create",
        "sink.null.key",
        "console.format",
    ]) {
        assert!(TEXT.lines().any(|line| line.starts_with("| ") && line.contains(&format!("`{key}`"))), "{key}");
    }
}

#[test]
fn every_aggregate_is_named_and_works() {
    for name in refusals::AGGREGATES {
        let family = if name.starts_with("regr_") { "regr_*" } else { name };
        assert!(TEXT.contains(&format!("`{family}`")), "{name}");
    }
    for name in refusals::ORDERED.iter().chain(&refusals::APPROXIMATE) {
        let family = name.trim_end_matches("_with_weight");
        assert!(TEXT.contains(&format!("`{family}`")), "{name}");
        let message = refused(&format!(
            "CREATE EXTERNAL TABLE s (v DOUBLE) STORED AS JSON LOCATION 'kafka://s'; CREATE EXTERNAL TABLE d (v DOUBLE) \
             STORED AS JSON LOCATION 'console://'; INSERT INTO d SELECT {name}(v, 0.5) FROM s"
        ));
        assert!(message.contains(&format!("{name}(...) is not supported")), "{message}");
    }
}
