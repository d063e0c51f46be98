//! Which partitions of a client are fetched now, where there are too many to fetch them all at once.
//!
//! librdkafka bounds only what it holds of each partition, and a fetch brings whole batches, as large as the producer made
//! them and unpacked. So no more partitions are fetched than there is room for what they may bring; one whose records are
//! all taken makes room for the one that waits longest. Those at the end of their log wait for nothing and take no room, so
//! where nothing is behind, all are fetched at once.

use std::collections::VecDeque;

/// So many partitions share the memory that there is for fetching; more take turns in it.
pub(super) const AT_A_TIME: usize = 8;

/// Whether librdkafka fetches a partition now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It does, and nothing came yet.
    Begun,
    /// It does, and something came.
    Served,
    /// It does not.
    Waiting,
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
    /// What the next fetch may bring, in bytes: nothing where nothing is there.
    pub(super) expects: usize,
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
    /// What one that is fetched brings at most, as far as can be said, in bytes.
    share: usize,
    /// Those that wait, the longest one first.
    waiting: VecDeque<u64>,
}

impl Turns {
    /// `None`: there are so few partitions that librdkafka's own limits are enough.
    pub(super) fn new(memory: usize, clients: usize, partitions: usize) -> Option<Self> {
        let share = memory / AT_A_TIME;
        (partitions > AT_A_TIME).then(|| Self { room: memory / clients.max(1), share, waiting: VecDeque::new() })
    }

    /// What one that is fetched brings at most, in bytes.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// Takes turns. `all` are those that can be fetched, in the order in which they were opened.
    pub(super) fn change(&mut self, all: &[Standing]) -> Change {
        let waits = |life: u64| all.iter().find(|one| one.life == life && one.turn == Turn::Waiting);
        self.waiting.retain(|life| waits(*life).is_some());
        let mut change = Change::default();
        let takes = |one: &Standing| if one.turn == Turn::Waiting { one.holds } else { one.holds.max(one.expects) };
        let mut taken: usize = all.iter().map(takes).sum();
        // Nothing is lost by ending the turn of one whose records are all taken. Those that had something go first, then
        // those that were opened last.
        let empty = |turn| move |one: &&Standing| one.turn == turn && one.holds == 0 && one.expects > 0;
        let wanted = self.waiting.iter().any(|life| waits(*life).is_some_and(|one| one.asked));
        let served = all.iter().filter(empty(Turn::Served));
        for one in served.chain(all.iter().rev().filter(empty(Turn::Begun))) {
            if taken > self.room || (wanted && one.turn == Turn::Served) {
                taken -= one.expects;
                change.ends.push(one.life);
            }
        }
        while taken == 0 || taken + self.share <= self.room {
            // One that nobody asks for can wait longer than one that somebody does.
            let asked = self.waiting.iter().position(|life| waits(*life).is_some_and(|one| one.asked));
            let Some(next) = self.waiting.remove(asked.unwrap_or(0)) else { break };
            taken += self.share;
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

    /// Partitions of which so much is left to fetch, each asked for unless it holds something.
    struct Client {
        turns: Turns,
        lives: BTreeMap<u64, Standing>,
        left: BTreeMap<u64, usize>,
    }

    impl Client {
        fn new(partitions: u64, left: usize) -> Self {
            let opened =
                |life| (life, Standing { life, turn: Turn::Begun, asked: true, holds: 0, expects: SHARE.min(left) });
            let turns = Turns::new(SHARE * AT_A_TIME, 2, partitions as usize).expect("they take turns");
            Self {
                turns,
                lives: (0..partitions).map(opened).collect(),
                left: (0..partitions).map(|life| (life, left)).collect(),
            }
        }

        fn take_turns(&mut self) -> Change {
            let all: Vec<Standing> = self.lives.values().copied().collect();
            let change = self.turns.change(&all);
            for life in &change.ends {
                self.lives.get_mut(life).expect("is known").turn = Turn::Waiting;
            }
            for life in &change.begins {
                self.lives.get_mut(life).expect("is known").turn = Turn::Begun;
            }
            change
        }

        /// What is fetched comes, with more in it than was expected.
        fn fetch(&mut self) {
            for (life, one) in &mut self.lives {
                let left = self.left.get_mut(life).expect("is known");
                if one.turn != Turn::Waiting && one.holds == 0 && *left > 0 {
                    one.holds = (SHARE * 3).min(*left);
                    *left -= one.holds;
                    one.turn = Turn::Served;
                }
                one.expects = SHARE.min(*left);
            }
        }

        fn take(&mut self, life: u64) {
            self.lives.get_mut(&life).expect("is known").holds = 0;
        }

        fn fetched(&self) -> usize {
            self.lives.values().filter(|one| one.turn != Turn::Waiting && one.expects > 0).count()
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
        let mut client = Client::new(100, 100_000);
        client.take_turns();
        assert_eq!(client.fetched(), AT_A_TIME / 2);
        assert_eq!(client.take_turns(), Change::default());
        // Nobody takes what comes: nothing more is fetched.
        client.fetch();
        let held = client.held();
        for _ in 0..100 {
            client.take_turns();
            client.fetch();
            assert_eq!(client.held(), held);
        }
    }

    #[test]
    fn all_have_their_turn() {
        let mut client = Client::new(100, 3_000);
        for round in 1..=10 {
            for _ in 0..25 {
                client.take_turns();
                assert!(client.fetched() <= AT_A_TIME / 2);
                client.fetch();
                (0..100).for_each(|life| client.take(life));
            }
            // None is a turn ahead of another.
            for (life, left) in &client.left {
                let had = (3_000 - left) / (SHARE * 3);
                assert!(had.abs_diff(round) <= 1, "{life} had {had} turns of {round}");
            }
        }
    }

    #[test]
    fn where_nothing_is_behind_all_are_fetched() {
        let mut client = Client::new(100, 0);
        assert_eq!(client.take_turns(), Change::default());
        assert_eq!(client.turns.waiting.len(), 0);
        // A trickle changes nothing.
        client.left.values_mut().for_each(|left| *left = 1);
        client.fetch();
        (0..100).for_each(|life| client.take(life));
        assert_eq!(client.take_turns(), Change::default());
    }

    #[test]
    fn one_that_somebody_asks_for_comes_first() {
        let mut client = Client::new(20, 1_000);
        client.lives.iter_mut().for_each(|(life, one)| one.asked = life % 2 == 0);
        client.take_turns();
        client.fetch();
        (0..20).for_each(|life| client.take(life));
        let begins = client.take_turns().begins;
        assert!(!begins.is_empty() && begins.iter().all(|life| life % 2 == 0), "{begins:?}");
    }

    #[test]
    fn one_that_is_closed_waits_no_more() {
        let mut client = Client::new(20, 1_000);
        client.take_turns();
        client.lives.retain(|life, _| *life == 19);
        assert_eq!(client.take_turns(), Change { ends: vec![], begins: vec![19] });
        assert_eq!(client.turns.waiting.len(), 0);
    }
}
