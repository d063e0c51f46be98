//! The queries of Nexmark as they stand in `config/nexmark`: read in one piece, or cut, interleaved and restored at random, the
//! result is the same, row for row. (What it is, is compared over real servers, in `tests/it/queries/nexmark.rs`.)

use std::path::Path;

use super::harness::{Dice, Pipeline, Record, log};
use crate::nexmark::{Generator, Stream};

/// The bids of so many events, over some partitions.
fn bids(events: u64, partitions: usize) -> Vec<Vec<Record>> {
    // Not far ahead of the Kafka timestamps that these records have.
    let generator = Generator { seed: 7, rate: 20, start: 1_700_000_000_000 };
    let mut of_partition = vec![Vec::new(); partitions];
    let events = (0..events).map(|number| generator.event(number));
    for (number, bid) in events.filter(|event| event.stream == Stream::Bid).enumerate() {
        of_partition[number % partitions].push(bid.json);
    }
    of_partition.into_iter().map(log).collect()
}

/// After the topic has been silent for long.
fn at_last(pipeline: &mut Pipeline, partitions: usize) {
    (0..partitions).for_each(|number| pipeline.quiet(number, 60));
    pipeline.checkpoint_all();
}

#[test]
fn every_query_has_one_result_however_it_is_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/nexmark");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Query 12 follows the clock, which stands still here.
    files.retain(|file| !file.ends_with("q12.sql"));
    files.sort_unstable();
    assert_eq!(files.len(), 14);
    let logs = bids(3_000, 3);
    for file in files {
        let sql = std::fs::read_to_string(&file).unwrap();
        let mut whole = Pipeline::new(&sql, 1, logs.len());
        for (number, log) in logs.iter().enumerate() {
            whole.batch(number, log, 0, log.len() as i64);
        }
        at_last(&mut whole, logs.len());
        assert!(!whole.rows.is_empty() && whole.letters.is_empty(), "{}", file.display());
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            let mut pipeline = Pipeline::new(&sql, 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            at_last(&mut pipeline, logs.len());
            assert_eq!(pipeline.rows, whole.rows, "{} with seed {seed}", file.display());
            assert_eq!(pipeline.counts.late + pipeline.counts.late_closed, 0, "{}", file.display());
        }
    }
}
