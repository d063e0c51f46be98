//! Which partitions of a client are fetched now, where there are too many to fetch them all at once.
//!
//! librdkafka bounds only what it holds of each partition, and a fetch brings whole batches, as large as the producer made
//! them and unpacked. So no more partitions are fetched than there is room for what they may bring, and where others wait a
//! turn is one fetch. Partitions at the end of their log take no room, so where nothing is behind all are fetched at once.

use std::collections::VecDeque;
use std::time::Duration;

/// So many partitions share the memory that there is for fetching; more take turns in it.
pub(super) const AT_A_TIME: usize = 8;

/// Whether so many partitions take turns.
pub(super) fn are_taken(partitions: usize) -> bool {
    partitions > AT_A_TIME
}

/// One of which nothing is heard for so long is not expected to bring anything: its leader may be away, or what it has may be an
/// aborted transaction, which librdkafka passes over by itself.
pub(super) const SILENT: Duration = Duration::from_secs(1);

/// Whether librdkafka fetches a partition now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It does not.
    Waiting,
    /// It does, and nothing came yet.
    Begun,
    /// It does, and something came.
    Served,
}

/// How one partition stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) life: u64,
    pub(super) turn: Turn,
    /// Somebody waits for its records.
    pub(super) asked: bool,
    /// The memory of records that were fetched and not taken, in bytes.
    pub(super) holds: usize,
    /// What the next fetch may bring, in bytes: nothing where nothing is there, or where it waits.
    pub(super) expects: usize,
    /// Nothing was heard of it in its turn for long.
    pub(super) silent: bool,
}

/// Partitions whose turn ends or begins.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) ends: Vec<u64>,
    pub(super) begins: Vec<u64>,
}

/// The memory in which partitions take turns.
#[derive(Debug)]
pub(super) struct Turns {
    /// What all of them may hold, in bytes.
    room: usize,
    /// What one that is fetched brings, as far as can be said, in bytes.
    share: usize,
    /// Those that wait, the longest one first.
    waiting: VecDeque<u64>,
}

impl Turns {
    /// `None`: there are so few partitions that librdkafka's own limits are enough.
    pub(super) fn new(memory: usize, clients: usize, partitions: usize) -> Option<Self> {
        let room = memory / clients.max(1);
        let share = room.min(memory / AT_A_TIME);
        are_taken(partitions).then(|| Self { room, share, waiting: VecDeque::new() })
    }

    /// What one that is fetched brings, in bytes.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// One more waits.
    pub(super) fn join(&mut self, life: u64) {
        self.waiting.push_back(life);
    }

    /// Takes turns. `all` are those that can be fetched, in the order of their numbers.
    pub(super) fn change(&mut self, all: &[Standing]) -> Change {
        let waits = |life: u64| {
            let at = all.binary_search_by_key(&life, |one| one.life).ok()?;
            Some(all[at]).filter(|one| one.turn == Turn::Waiting)
        };
        self.waiting.retain(|life| waits(*life).is_some());
        let asked = |life: &u64| waits(*life).is_some_and(|one| one.asked);
        let mut change = Change::default();
        let held: usize = all.iter().map(|one| one.holds).sum();
        let mut expected: usize = all.iter().map(|one| one.expects).sum();
        // Whoever has more makes room once it was served, for one that waits or because there is none. Where far more came
        // than there is room for, so do those that might bring something though nothing is expected of them.
        let full = held + expected > self.room || self.waiting.iter().any(asked);
        let flooded = held > self.room * 2;
        for one in all {
            let served = one.turn == Turn::Served;
            let (more, may_bring) = (served && one.expects > 0, one.silent || (served && one.holds == 0));
            if (more && full) || (may_bring && flooded) {
                expected -= one.expects;
                change.ends.push(one.life);
            }
        }
        // Whatever the shares, one can be fetched while there is room.
        while held + expected + self.share <= self.room || (expected == 0 && held < self.room) {
            // One that nobody asks for can wait longer than one that somebody does.
            let next = self.waiting.iter().position(asked).unwrap_or(0);
            let Some(next) = self.waiting.remove(next) else { break };
            expected += self.share;
            change.begins.push(next);
        }
        self.waiting.extend(&change.ends);
        change
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SHARE: usize = 100;

    /// Partitions of which so much is left to fetch.
    struct Client {
        turns: Turns,
        lives: BTreeMap<u64, Standing>,
        left: BTreeMap<u64, usize>,
        /// Nothing is heard of these.
        silent: Vec<u64>,
    }

    impl Client {
        fn new(partitions: u64, left: usize, clients: usize) -> Self {
            let turns = Turns::new(SHARE * AT_A_TIME, clients, partitions as usize);
            let mut turns = turns.expect("they take turns");
            let opened = |life| {
                turns.join(life);
                (life, Standing { life, turn: Turn::Waiting, asked: true, holds: 0, expects: 0, silent: false })
            };
            let lives = (0..partitions).map(opened).collect();
            Self { turns, lives, left: (0..partitions).map(|life| (life, left)).collect(), silent: Vec::new() }
        }

        /// All of them are fetched and have nothing more.
        fn at_end() -> Self {
            let mut client = Self::new(100, 0, 2);
            for _ in 0..25 {
                client.change();
                client.fetch();
            }
            assert!(client.lives.values().all(|one| one.turn == Turn::Served));
            client
        }

        /// What eight of them have comes in one answer, and nobody takes it. Says how much.
        fn one_answer(&mut self) -> usize {
            self.silent = (8..100).collect();
            self.fetch();
            self.change();
            self.silent.clear();
            self.held()
        }

        fn change(&mut self) -> Change {
            let all: Vec<Standing> = self.lives.values().copied().collect();
            let change = self.turns.change(&all);
            for (lives, turn) in [(&change.ends, Turn::Waiting), (&change.begins, Turn::Begun)] {
                for life in lives {
                    let one = self.lives.get_mut(life).expect("is known");
                    assert_ne!(one.turn == Turn::Waiting, turn == Turn::Waiting, "{one:?}");
                    one.turn = turn;
                }
            }
            self.expect();
            change
        }

        fn expect(&mut self) {
            let share = self.turns.share();
            for (life, one) in &mut self.lives {
                let known = if one.turn == Turn::Begun { share } else { share.min(self.left[life]) };
                one.expects = if one.turn == Turn::Waiting || one.silent { 0 } else { known };
            }
        }

        /// What is fetched comes, with more in it than was expected.
        fn fetch(&mut self) {
            for (life, one) in &mut self.lives {
                let left = self.left.get_mut(life).expect("is known");
                if one.turn != Turn::Waiting && one.holds == 0 && !self.silent.contains(life) {
                    one.holds = (SHARE * 3).min(*left);
                    *left -= one.holds;
                    (one.turn, one.silent) = (Turn::Served, false);
                }
            }
            self.expect();
        }

        fn take(&mut self) {
            self.lives.values_mut().for_each(|one| one.holds = 0);
            self.expect();
        }

        /// Time goes by.
        fn pass(&mut self) {
            self.lives.values_mut().for_each(|one| one.silent = one.turn == Turn::Begun);
            self.expect();
        }

        fn fetched(&self) -> usize {
            let fetched = |one: &&Standing| one.turn != Turn::Waiting && one.holds == 0 && one.expects > 0;
            self.lives.values().filter(fetched).count()
        }

        fn held(&self) -> usize {
            self.lives.values().map(|one| one.holds).sum()
        }
    }

    #[test]
    fn few_partitions_take_no_turns() {
        assert!(Turns::new(1 << 20, 2, AT_A_TIME).is_none());
    }

    #[test]
    fn no_more_are_fetched_than_there_is_room_for() {
        for (clients, at_a_time) in [(1, 8), (2, 4), (8, 1), (64, 1)] {
            let mut client = Client::new(100, 100_000, clients);
            client.change();
            assert_eq!(client.fetched(), at_a_time, "{clients} clients");
            // One whose turn has begun keeps it until something comes.
            assert_eq!(client.change(), Change::default());
            // Nobody takes what comes: nothing more is fetched.
            client.fetch();
            let held = client.held();
            for _ in 0..100 {
                client.change();
                client.fetch();
                assert_eq!(client.held(), held, "{clients} clients");
            }
        }
    }

    #[test]
    fn all_have_their_turn() {
        for clients in [1, 2, 64] {
            let mut client = Client::new(100, 3_000, clients);
            for round in 1..=10 {
                for _ in 0..100 / (AT_A_TIME / clients).max(1) + 1 {
                    client.change();
                    client.fetch();
                    client.take();
                }
                // None is two turns behind another.
                let turns = client.left.values().map(|left| (3_000 - left) / (SHARE * 3));
                let (least, most) = turns.fold((usize::MAX, 0), |(least, most), had| (least.min(had), most.max(had)));
                assert!(most - least <= 1 && least + 1 >= round, "{least} to {most} turns after {round} rounds");
            }
        }
    }

    #[test]
    fn those_of_which_nothing_is_heard_hold_nobody_up() {
        let mut client = Client::new(100, 600, 2);
        client.silent = (0..40).collect();
        for _ in 0..100 {
            client.change();
            client.fetch();
            client.take();
            client.pass();
        }
        assert!((40..100).all(|life| client.left[&life] == 0));
        // They are fetched all the while.
        assert!((0..40).all(|life| client.lives[&life].turn == Turn::Begun));
    }

    #[test]
    fn those_that_speak_after_a_long_silence_do_not_all_bring_something() {
        let mut client = Client::new(100, 100_000, 2);
        for _ in 0..50 {
            client.change();
            client.pass();
        }
        assert!(client.lives.values().all(|one| one.turn == Turn::Begun));
        let held = client.one_answer();
        client.fetch();
        assert_eq!(client.held(), held);
    }

    #[test]
    fn where_nothing_is_behind_all_are_fetched() {
        let mut client = Client::at_end();
        // A trickle changes nothing.
        client.left.values_mut().for_each(|left| *left = 1);
        client.fetch();
        assert_eq!(client.change(), Change::default());
        client.take();
        assert_eq!(client.change(), Change::default());
    }

    #[test]
    fn a_burst_at_the_end_of_all_does_not_all_come_at_once() {
        let mut client = Client::at_end();
        client.left.values_mut().for_each(|left| *left = SHARE * 3);
        let held = client.one_answer();
        for _ in 0..10 {
            client.fetch();
            client.change();
        }
        assert_eq!(client.held(), held);
    }

    #[test]
    fn one_that_somebody_asks_for_comes_first() {
        let mut client = Client::new(20, 1_000, 2);
        client.lives.iter_mut().for_each(|(life, one)| one.asked = life % 2 == 0);
        let begins = client.change().begins;
        assert!(!begins.is_empty() && begins.iter().all(|life| life % 2 == 0), "{begins:?}");
    }

    #[test]
    fn one_that_is_closed_waits_no_more() {
        let mut client = Client::new(20, 1_000, 2);
        client.change();
        client.lives.retain(|life, _| *life == 19);
        assert_eq!(client.change(), Change { ends: vec![], begins: vec![19] });
        assert_eq!(client.turns.waiting.len(), 0);
    }
}
