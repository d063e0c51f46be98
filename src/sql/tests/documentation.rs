//! `docs/sql.md` says what is so.

use super::super::{options, refusals};
use super::harness::{planned, refused};

const TEXT: &str = include_str!("../../../docs/sql.md");

#[test]
fn the_example_runs() {
    let (_, rest) = TEXT.split_once("```sql\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let plan = planned(example);
    assert_eq!((plan.sources[0].topic.as_str(), plan.sink.name.as_str()), ("orders", "revenue"));
}

#[test]
fn every_option_is_in_the_table() {
    for key in options::KAFKA_KEYS.iter().chain(&["sink.create", "sink.null.key", "console.format"]) {
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
