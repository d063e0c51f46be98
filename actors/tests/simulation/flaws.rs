//! Shows that the simulation bites: every deliberate fault of the protocol is found within the seeds of a normal run.

use std::sync::Mutex;

use strandline_actors::flaws::{self, Flaw};

use crate::life::simulate;
use crate::world::Plan;
use crate::{on_all_processors, seeds};

#[test]
fn every_deliberate_fault_is_found() {
    let missed = Mutex::new(Vec::new());
    on_all_processors(Flaw::ALL, |flaw| {
        flaws::switch(Some(*flaw));
        let found = seeds().into_iter().find_map(|seed| {
            let report = simulate(Plan::hostile(seed));
            report.wrong.into_iter().next().map(|wrong| (seed, wrong))
        });
        flaws::switch(None);
        match found {
            Some((seed, wrong)) => println!("{flaw:?} is found by seed {seed}: {wrong:.200}"),
            None => missed.lock().unwrap().push(*flaw),
        }
        true
    });
    assert_eq!(missed.into_inner().unwrap(), [], "not found within the seeds of a normal run");
}
