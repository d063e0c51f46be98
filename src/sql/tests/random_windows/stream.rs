//! Random partitions, and what happens to them one after the other.

use super::query::{HOUR, IDLE, Query, SILENT, Windows};
use crate::sql::tests::harness::{Dice, Record, log};

/// A record: its key columns, value and time, as they are sent.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) k: Option<usize>,
    pub(super) c: Option<usize>,
    pub(super) id: i64,
    pub(super) v: i64,
    pub(super) ts: Option<i64>,
    /// Its Kafka timestamp.
    pub(super) written: i64,
}

impl Order {
    /// What of the key columns is among so many.
    pub(super) fn key(&self, columns: usize) -> Vec<Option<usize>> {
        [self.k, self.c][..columns].to_vec()
    }
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A partition is read up to here.
    Read(usize, i64),
    /// A partition has been quiet for so many seconds.
    Quiet(usize, u64),
    /// The last partition is found.
    Found,
}

/// The year 1, in which the times of some languages begin, and the end of the year 9999.
const YEAR_1: i64 = -62_135_596_800_000;
const YEAR_9999: i64 = 253_402_300_700_000;

/// Days of 1970 on around which clocks are put forward or back in Berlin in 2023.
const CHANGES: [i64; 2] = [19_442, 19_659];

/// Some partitions, and what happens to them. Whatever they say, the last event leaves nothing unread.
pub(super) fn random(query: &Query, dice: &mut Dice) -> (Vec<Vec<Order>>, Vec<Event>) {
    let base = match query.windows {
        Windows::Berlin(_) => (CHANGES[dice.below(2)] - 5) * 24 * HOUR,
        _ => 0,
    };
    let logs: Vec<_> = (0..1 + dice.below(3) as i64).map(|number| orders(query, base, number, dice)).collect();
    let events = events(&logs, query.heeds_silence(), dice);
    (logs, events)
}

fn orders(query: &Query, base: i64, number: i64, dice: &mut Dice) -> Vec<Order> {
    let unit = query.windows.unit();
    let far = match query.windows {
        Windows::Berlin(_) => [base - 1_200 * HOUR, base + 1_200 * HOUR],
        _ => [YEAR_1, YEAR_9999],
    };
    let records = if dice.chance(8) { 0 } else { dice.below(80) as i64 };
    // Now and then times begin with some that were never set.
    let unset = if dice.chance(10) { dice.below(10) as i64 } else { 0 };
    let mut now = dice.below(300) as i64 - 200;
    let mut last = now;
    let orders = (0..records).map(|offset| {
        now += dice.below(6) as i64;
        let near = match dice.below(20) {
            0 => now - dice.below(300) as i64,
            1 => now + dice.below(50) as i64,
            2 => last,
            _ => now - dice.below(20) as i64,
        };
        let is_far = dice.chance(4).then(|| dice.below(2)).or((offset < unset).then_some(0));
        let ts = is_far.map_or(base, |past_or_future| far[past_or_future]) + unit * near;
        last = near;
        // The Kafka timestamp of one from the far future may be just as wrong.
        let wrong = is_far == Some(1) && dice.chance(50);
        Order {
            k: [Some(0), Some(1), None][dice.below(3)],
            c: Some(dice.below(2)),
            id: number * 1_000 + offset,
            v: dice.below(9) as i64 - 1,
            ts: (!dice.chance(4)).then_some(ts),
            written: if wrong { ts } else { base + unit * now },
        }
    });
    orders.collect()
}

fn events(logs: &[Vec<Order>], silence: bool, dice: &mut Dice) -> Vec<Event> {
    let later = logs.len() > 1 && dice.chance(30);
    let mut script = Script { at: vec![0; logs.len()], quiet: vec![0; logs.len()], events: Vec::new() };
    let known = logs.len() - usize::from(later);
    script.go_on(&logs[..known], silence, dice);
    if later {
        script.events.push(Event::Found);
        script.go_on(logs, silence, dice);
    }
    script.events
}

struct Script {
    /// Up to where each partition was read.
    at: Vec<i64>,
    /// For how long it has been quiet.
    quiet: Vec<u64>,
    events: Vec<Event>,
}

impl Script {
    fn go_on(&mut self, logs: &[Vec<Order>], silence: bool, dice: &mut Dice) {
        let turns = if silence { 20 } else { 0 };
        for _ in 0..turns {
            let number = dice.below(logs.len());
            match dice.chance(40) {
                true => self.quiet(number, dice),
                false => {
                    self.read(number, (self.at[number] + 1 + dice.below(12) as i64).min(logs[number].len() as i64))
                }
            }
        }
        (0..logs.len()).for_each(|number| self.read(number, logs[number].len() as i64));
        if silence && dice.chance(50) {
            (0..logs.len()).for_each(|number| self.quiet(number, dice));
        }
    }

    fn read(&mut self, number: usize, until: i64) {
        if until > self.at[number] {
            (self.at[number], self.quiet[number]) = (until, 0);
            self.events.push(Event::Read(number, until));
        }
    }

    /// The longer it lasts, the longer it has lasted.
    fn quiet(&mut self, number: usize, dice: &mut Dice) {
        self.quiet[number] = self.quiet[number].max([IDLE, SILENT][dice.below(2)]);
        self.events.push(Event::Quiet(number, self.quiet[number]));
    }
}

/// The records of a partition.
pub(super) fn records(orders: &[Order]) -> Vec<Record> {
    let text = |name: &str, value: Option<usize>| {
        value.map_or_else(|| "null".to_owned(), |value| format!("\"{name}{value}\""))
    };
    let mut records = log(orders.iter().map(|Order { k, c, id, v, ts, .. }| {
        let ts = ts.map_or_else(|| "null".to_owned(), |ts| ts.to_string());
        format!("{{\"k\":{},\"c\":{},\"id\":{id},\"v\":{v},\"ts\":{ts}}}", text("k", *k), text("c", *c))
    }));
    records.iter_mut().zip(orders).for_each(|(record, order)| record.timestamp = order.written);
    records
}
