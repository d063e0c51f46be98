//! The queries of Nexmark as they stand in `config/nexmark`: read in one piece, or cut, interleaved and restored at random, the
//! result is the same, row for row. (What it is, is compared over real servers, in `tests/it/queries/nexmark.rs`.)

use std::path::Path;

use strandline_actors::position::Counts;

use super::harness::{Dice, Pipeline, Record, each_way, log};
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
    // Query 12 follows the clock.
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
        let mut dice = Dice::new(7);
        each_way(|| {
            let mut pipeline = Pipeline::new(&sql, 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            at_last(&mut pipeline, logs.len());
            assert_eq!(pipeline.rows, whole.rows, "{}", file.display());
            assert_eq!(pipeline.counts.late + pipeline.counts.late_closed, 0, "{}", file.display());
        });
    }
}

/// Under a clock that is recorded: what is read again is read at the same time. (With several shards a crash would give other
/// times, since what one of them has closed holds for all.)
#[test]
fn query_12_has_one_result_by_a_recorded_clock() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/nexmark/q12.sql");
    let sql = std::fs::read_to_string(file).unwrap();
    let logs = bids(3_000, 3);
    let mut dice = Dice::new(7);
    let mut results = Vec::new();
    each_way(|| {
        let mut pipeline = Pipeline::new(&sql, 1, logs.len());
        // Fifty bids of each partition every three seconds.
        pipeline.recorded = Some((50, 3_000_000));
        pipeline.run(&logs, &mut dice);
        pipeline.now += 3_600_000_000;
        at_last(&mut pipeline, logs.len());
        let bids: usize = logs.iter().map(Vec::len).sum();
        assert_eq!(pipeline.counts, Counts { processed: bids as u64, ..Counts::default() });
        assert!(pipeline.written.values().all(|times| *times == 1) && pipeline.keys() == 0, "a window is written once");
        results.push(pipeline.rows.clone());
    });
    assert!(results[0].len() > 100 && results.iter().all(|rows| *rows == results[0]));
}
