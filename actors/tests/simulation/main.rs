//! The whole of the actors in one thread, on fake ports with virtual time and seeded faults: whatever crashes, stalls,
//! answers late or not at all, the sink holds in the end what a plain loop over the input computes.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod faults;
mod halt;
mod poison;
mod query;
mod sink;
mod source;
mod store;
mod world;

use world::{Plan, simulate};

/// Seeds that once found a fault, beside those of every run.
const FOUND: [u64; 3] = [
    1,       // A start offset that was not stored at once ended the process.
    120,     // Segments that a later process had cleaned up were called corrupt.
    881_186, // A process that was killed in the supervisor's pause came back.
];

/// Seeds of a normal run; `SIMULATION_SEEDS=from..until` chooses others.
fn seeds() -> Vec<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else { return FOUND.into_iter().chain(0..300).collect() };
    let parts: Vec<u64> = text.split("..").map(|part| part.parse().expect("SIMULATION_SEEDS=from..until")).collect();
    (parts[0]..parts[1]).collect()
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
