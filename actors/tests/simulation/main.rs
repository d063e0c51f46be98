//! The whole of the actors in one thread, on fake ports with virtual time and seeded faults: whatever crashes, stalls,
//! answers late or not at all, the sink holds in the end what a plain loop over the input computes.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod faults;
mod halt;
mod query;
mod sink;
mod source;
mod store;
mod world;

use world::{Plan, simulate};

/// Seeds of a normal run; `SIMULATION_SEEDS=from..until` chooses others.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else { return 0..300 };
    let parts: Vec<u64> = text.split("..").map(|part| part.parse().expect("SIMULATION_SEEDS=from..until")).collect();
    parts[0]..parts[1]
}

#[test]
fn without_faults_the_result_is_that_of_a_plain_loop() {
    let report = simulate(Plan::quiet(1));
    assert_eq!(report.wrong(), None, "{report:?}");
}

#[test]
fn whatever_happens_the_result_is_that_of_a_plain_loop() {
    let mut coverage = std::collections::BTreeMap::<&str, u64>::new();
    let mut seen = 0;
    for seed in seeds() {
        let report = simulate(Plan::hostile(seed));
        if let Some(wrong) = report.wrong() {
            let trace = report.trace.join("\n");
            panic!("seed {seed}: {wrong}\nrun again with SIMULATION_SEEDS={seed}..{}\n{trace}", seed + 1);
        }
        for (fault, count) in report.faults {
            *coverage.entry(fault).or_default() += count;
        }
        seen += 1;
    }
    println!("{seen} seeds; faults: {coverage:#?}");
    if seen >= 100 {
        for fault in faults::KINDS {
            assert!(coverage.get(fault).is_some_and(|count| *count > 0), "no {fault} in {seen} seeds");
        }
    }
}
