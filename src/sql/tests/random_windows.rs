//! Random streams at random queries over windows, and over other groups that are forgotten, against a reference that keeps all
//! rows: however the log is cut, whichever partition comes first, whenever a shard starts anew, and whatever silence closes
//! early.

mod query;
mod reference;
mod stream;

use std::collections::{BTreeMap, BTreeSet};

use self::query::{Mode, Query, Windows};
use self::reference::Truth;
use self::stream::{Event, Order};
use super::harness::{Dice, Pipeline, Record, assert_rows, each_way, planned};

/// Seeds of a normal run; `WINDOW_SEEDS=from..until` chooses others.
const SEEDS: u64 = 200;

fn seeds() -> (std::ops::Range<u64>, bool) {
    let Ok(text) = std::env::var("WINDOW_SEEDS") else { return (0..SEEDS, true) };
    let parts: Vec<u64> = text.split("..").map(|part| part.parse().expect("WINDOW_SEEDS=from..until")).collect();
    (parts[0]..parts[1], false)
}

/// Says with which seed a test failed.
struct Blamed<'a>(u64, &'a Query);

impl Drop for Blamed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, query) = self;
            eprintln!("seed {seed}: {query:?}\n{}\nrun again with WINDOW_SEEDS={seed}..{}", query.sql(), *seed + 1);
        }
    }
}

#[test]
fn random_windows_equal_a_reference_that_keeps_all_rows() {
    let (seeds, normal) = seeds();
    let mut seen = BTreeMap::<String, usize>::new();
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let query = Query::random(&mut dice);
        let _blamed = Blamed(seed, &query);
        let (logs, events) = stream::random(&query, &mut dice);
        let truth = Truth::of(&query, &logs, &events);
        let plan = planned(&query.sql());
        each_way(|| {
            let partitions = logs.len() - usize::from(is_found_later(&events));
            let pipeline = Pipeline::of(plan.clone(), 1 + dice.below(3), partitions);
            check(&query, pipeline, &logs, &events, &truth, &mut dice);
        });
        count(&query, &truth, &mut seen);
    }
    let least = [
        ("Sliding", 1_000),
        ("Berlin", 50),
        ("Session", 300),
        ("Moment", 200),
        ("Life", 40),
        ("Append", 1_000),
        ("Update", 1_000),
        ("Complete", 800),
        ("Groups", 500),
        ("FirstRows", 500),
        ("FirstGroups", 100),
        ("Again", 500),
        ("late", 800),
        ("late_closed", 500),
        ("left out", 100),
        ("bad", 200),
    ];
    let few = least.iter().filter(|(what, least)| seen.get(*what).is_none_or(|many| many < least));
    assert!(!normal || few.count() == 0, "the cases have too few: {seen:?}");
}

/// Counts what occurred: rows of each kind of query, and those that were left out.
fn count(query: &Query, truth: &Truth, seen: &mut BTreeMap<String, usize>) {
    let kind = |debug: String| debug.split([' ', '(']).next().unwrap_or_default().to_owned();
    let rows = truth.rows(query).len();
    for what in [kind(format!("{:?}", query.windows)), format!("{:?}", query.mode), kind(format!("{:?}", query.result))]
    {
        *seen.entry(what).or_default() += rows;
    }
    for (what, places) in
        [("late", &truth.late), ("late_closed", &truth.late_closed), ("left out", &truth.left_out), ("bad", &truth.bad)]
    {
        *seen.entry(what.to_owned()).or_default() += places.len();
    }
}

/// Whether the last partition is found when others were read.
fn is_found_later(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Found))
}

/// Runs one query in one of many ways, and compares everything.
fn check(
    query: &Query,
    mut pipeline: Pipeline,
    orders: &[Vec<Order>],
    events: &[Event],
    truth: &Truth,
    dice: &mut Dice,
) {
    let logs: Vec<_> = orders.iter().map(|orders| stream::records(orders)).collect();
    // Of a life that was forgotten it is not known whether it had a row.
    pipeline.may_delete_nothing = matches!(query.windows, Windows::Life(_));
    let later = is_found_later(events);
    match query.heeds_silence() {
        true => follow(&mut pipeline, &logs, events, dice),
        // Nothing but the logs decides, so their order is free.
        false => {
            pipeline.run(&logs[..logs.len() - usize::from(later)], dice);
            if later {
                pipeline.find_partition();
                pipeline.run(&logs, dice);
            }
        }
    }
    pipeline.checkpoint_all();
    assert_rows(&pipeline, truth.rows(query));
    let counts = pipeline.counts;
    assert_eq!((counts.late, counts.late_closed), (truth.late.len() as u64, truth.late_closed.len() as u64));
    assert_eq!(counts.ahead, truth.ahead);
    let skipped = if query.ahead_rows == "drop" { truth.left_out.len() as u64 } else { 0 };
    assert_eq!(counts.skipped, skipped);
    assert_letters(query, &pipeline, truth);
    if query.mode == Mode::Append {
        assert!(
            pipeline.deletes == 0 && pipeline.written.values().all(|times| *times == 1),
            "each row is written once"
        );
    }
    assert_eq!(pipeline.keys(), truth.kept(query), "what is final leaves the state, and nothing else");
    assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
}

/// Those records are kept aside, and no others.
fn assert_letters(query: &Query, pipeline: &Pipeline, truth: &Truth) {
    let mut wanted = truth.bad.clone();
    if query.ahead_rows == "dead-letter" {
        wanted.extend(&truth.left_out);
    }
    if query.late_rows == "dead-letter" {
        wanted.extend(truth.late.iter().chain(&truth.late_closed));
    }
    let letters = pipeline.letters.iter().map(|letter| (letter.partition.partition as usize, letter.offset));
    assert_eq!(letters.clone().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(letters.count(), wanted.len(), "none is kept aside twice");
}

/// Everything happens in its order, with checkpoints in between.
fn follow(pipeline: &mut Pipeline, logs: &[Vec<Record>], events: &[Event], dice: &mut Dice) {
    for event in events {
        match *event {
            Event::Found => {
                pipeline.checkpoint_all();
                pipeline.find_partition();
            }
            Event::Quiet(number, seconds) => pipeline.quiet(number, seconds),
            Event::Read(number, until) => pipeline.batch(number, &logs[number], pipeline.next(number), until),
        }
        if dice.chance(40) {
            pipeline.checkpoint(dice.below(pipeline.shards()));
        }
    }
}
