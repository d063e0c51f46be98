//! The published model of Nexmark: people, auctions and bids of an auction house, as Apache Beam and Flink generate them.
//!
//! Of 50 events one is a person, three are auctions and 46 are bids. Ids go on with the events; half of the bids are for one hot
//! auction, and three of four people who bid or sell are the hot one of their time. An event is a function of the seed and of
//! its number, so that whoever knows both has the same streams.

use std::fmt::Write;

use chrono::DateTime;

use crate::random::Random;

/// Events of one round, by which the kinds take turns.
const ROUND: u64 = 50;
const PEOPLE: u64 = 1;
const AUCTIONS: u64 = 3;

const FIRST_ID: u64 = 1_000;
const FIRST_CATEGORY: u64 = 10;
const CATEGORIES: u64 = 5;
/// One id in so many is a hot one.
const HOT: u64 = 100;
/// Half of the bids are for the hot auction.
const HOT_AUCTION: u64 = 2;
/// Three quarters of sellers and bidders are the hot one.
const HOT_PERSON: u64 = 4;
const ACTIVE_PEOPLE: u64 = 1_000;
const OPEN_AUCTIONS: u64 = 100;
/// Ids that do not exist yet are used too: so many.
const LEAD: u64 = 10;
const CHANNELS: u64 = 10_000;
const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];

const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
const CITIES: [&str; 10] =
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"];
const FIRST_NAMES: [&str; 11] =
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"];
const LAST_NAMES: [&str; 9] = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];

/// The stream that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// People who registered.
    Person,
    /// Auctions that were opened.
    Auction,
    /// Bids that were made.
    Bid,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Person, Self::Auction, Self::Bid];

    /// Its name, which its topic ends with.
    pub fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Auction => "auction",
            Self::Bid => "bid",
        }
    }
}

/// Something that happened in the auction house.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub stream: Stream,
    /// When, in milliseconds since the epoch.
    pub time: i64,
    /// The whole of it as a JSON object.
    pub json: String,
}

/// Makes the events.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// Another seed makes other events.
    pub seed: u64,
    /// Events in a second of their own time.
    pub rate: u64,
    /// The time of the first event, in milliseconds since the epoch.
    pub start: i64,
}

impl Generator {
    /// The event of a number, from 0 on.
    pub fn event(&self, number: u64) -> Event {
        let mut random = Random::new(self.seed, number);
        let time = self.time(number);
        let (stream, json) = match number % ROUND {
            place if place < PEOPLE => (Stream::Person, person(number, time, &mut random)),
            place if place < PEOPLE + AUCTIONS => (Stream::Auction, self.auction(number, time, &mut random)),
            _ => (Stream::Bid, self.bid(number, time, &mut random)),
        };
        Event { stream, time, json }
    }

    /// The time of an event: it never goes back.
    pub fn time(&self, number: u64) -> i64 {
        let passed = u128::from(number) * 1_000 / u128::from(self.rate.max(1));
        self.start.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    fn auction(&self, number: u64, time: i64, random: &mut Random) -> String {
        let id = last_auction(number) + FIRST_ID;
        let seller = match random.below(HOT_PERSON) {
            0 => any_person(number, random),
            _ => last_person(number) / HOT * HOT,
        } + FIRST_ID;
        let category = FIRST_CATEGORY + random.below(CATEGORIES);
        let (first, more) = (price(random), price(random));
        let (item, description) = (random.words(20), random.words(100));
        // It is open for about as long as it takes until as many others were opened.
        let horizon = self.time(number + OPEN_AUCTIONS * ROUND / AUCTIONS) - time;
        let expires = time + 1 + random.below(horizon.unsigned_abs().max(1) * 2) as i64;
        let extra = random.filling(48 + item.len() + description.len(), 500);
        format!(
            "{{\"id\":{id},\"item_name\":\"{item}\",\"description\":\"{description}\",\"initial_bid\":{first},\"reserve\":{},\
             \"date_time\":\"{}\",\"expires\":\"{}\",\"seller\":{seller},\"category\":{category},\"extra\":\"{extra}\"}}",
            first + more,
            shown(time),
            shown(expires)
        )
    }

    fn bid(&self, number: u64, time: i64, random: &mut Random) -> String {
        let last = last_auction(number);
        let auction = match random.below(HOT_AUCTION) {
            0 => {
                let oldest = last.saturating_sub(OPEN_AUCTIONS);
                oldest + random.below(last - oldest + 1 + LEAD)
            }
            _ => last / HOT * HOT,
        } + FIRST_ID;
        let bidder = match random.below(HOT_PERSON) {
            0 => any_person(number, random),
            _ => last_person(number) / HOT * HOT + 1,
        } + FIRST_ID;
        let price = price(random);
        let (channel, url) = match random.below(2) {
            0 => {
                let channel = random.below(CHANNELS);
                // A channel has one address, whoever bids there.
                let mut of_channel = Random::new(self.seed, u64::MAX - channel);
                let mut url = of_channel.address();
                if of_channel.below(10) > 0 {
                    let _ = write!(url, "&channel_id={}", (channel as u32).reverse_bits() >> 1);
                }
                (format!("channel-{channel}"), url)
            }
            _ => {
                let channel = random.below(HOT_CHANNELS.len() as u64);
                let url = Random::new(self.seed, u64::MAX - CHANNELS - channel).address();
                (HOT_CHANNELS[channel as usize].to_owned(), url)
            }
        };
        let extra = random.filling(32, 100);
        format!(
            "{{\"auction\":{auction},\"bidder\":{bidder},\"price\":{price},\"channel\":\"{channel}\",\"url\":\"{url}\",\
             \"date_time\":\"{}\",\"extra\":\"{extra}\"}}",
            shown(time)
        )
    }
}

fn person(number: u64, time: i64, random: &mut Random) -> String {
    let id = last_person(number) + FIRST_ID;
    let name = format!("{} {}", random.of(&FIRST_NAMES), random.of(&LAST_NAMES));
    let email = format!("{}@{}.com", random.word(7), random.word(5));
    let card = (0..4).map(|_| format!("{:04}", random.below(10_000))).collect::<Vec<_>>().join(" ");
    let (city, state) = (random.of(&CITIES), random.of(&STATES));
    let extra = random.filling(8 + name.len() + email.len() + card.len() + city.len() + state.len(), 200);
    format!(
        "{{\"id\":{id},\"name\":\"{name}\",\"email_address\":\"{email}\",\"credit_card\":\"{card}\",\"city\":\"{city}\",\
         \"state\":\"{state}\",\"date_time\":\"{}\",\"extra\":\"{extra}\"}}",
        shown(time)
    )
}

/// How a time is written.
fn shown(time: i64) -> String {
    DateTime::from_timestamp_millis(time).unwrap_or_default().format("%Y-%m-%dT%H:%M:%S%.3f").to_string()
}

/// The number of the person that was the last to register at an event.
fn last_person(number: u64) -> u64 {
    number / ROUND * PEOPLE
}

/// The number of the auction that was the last to be opened at an event.
fn last_auction(number: u64) -> u64 {
    let opened = (number % ROUND + 1).saturating_sub(PEOPLE).min(AUCTIONS);
    (number / ROUND * AUCTIONS + opened).saturating_sub(1)
}

/// Some person of those who are active, or of the next to register.
fn any_person(number: u64, random: &mut Random) -> u64 {
    let people = last_person(number) + 1;
    let active = people.min(ACTIVE_PEOPLE);
    people - active + random.below(active + LEAD)
}

/// From one to a million, each order of magnitude as often as the others; in hundredths.
fn price(random: &mut Random) -> u64 {
    let unit = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    (10_f64.powf(unit * 6.0) * 100.0).round() as u64
}

/// What an event is made of.
impl Random {
    /// The numbers of one event.
    fn new(seed: u64, number: u64) -> Self {
        let mut random = Self(seed);
        let mixed = random.next() ^ number;
        Self(mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn of(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn letters(&mut self, count: u64, between: char) -> String {
        let letter = |random: &mut Self| match random.below(13) {
            0 => between,
            _ => char::from(b'a' + random.below(26) as u8),
        };
        (0..count).map(|_| letter(self)).collect()
    }

    /// Letters, at least three and at most so many.
    fn word(&mut self, most: u64) -> String {
        let length = 3 + self.below(most.saturating_sub(3));
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    /// Letters with spaces between.
    fn words(&mut self, most: u64) -> String {
        let length = 3 + self.below(most.saturating_sub(3));
        self.letters(length, ' ').trim().to_owned()
    }

    fn address(&mut self) -> String {
        let mut folder = || {
            let length = 3 + self.below(3);
            self.letters(length, '_')
        };
        format!("https://www.nexmark.com/{}/{}/{}/item.htm?query=1", folder(), folder(), folder())
    }

    /// Letters that make what is so long about as long as is wished, give or take a fifth of what is missing.
    fn filling(&mut self, length: usize, wished: usize) -> String {
        let missing = wished.saturating_sub(length) as u64;
        let play = missing / 5;
        let count = missing - play + self.below(2 * play + 1);
        (0..count).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    const GENERATOR: Generator = Generator { seed: 1, rate: 10_000, start: 1_767_225_600_000 };

    fn parsed(count: u64) -> Vec<(Stream, i64, Value)> {
        let event = |number| {
            let event = GENERATOR.event(number);
            (event.stream, event.time, serde_json::from_str(&event.json).unwrap())
        };
        (0..count).map(event).collect()
    }

    #[test]
    fn the_streams_have_the_published_shares_and_ids() {
        let events = parsed(5_000);
        let of = |stream| events.iter().filter(move |(of, ..)| *of == stream).map(|(.., json)| json);
        assert_eq!(Stream::ALL.map(|stream| of(stream).count()), [100, 300, 4_600]);
        let ids = |stream| of(stream).map(|json| json["id"].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(ids(Stream::Person), (1_000..1_100).collect::<Vec<_>>());
        assert_eq!(ids(Stream::Auction), (1_000..1_300).collect::<Vec<_>>());
        // Some auction is already there, or one of the next ten.
        for (number, (stream, _, json)) in events.iter().enumerate() {
            if *stream == Stream::Bid {
                let auction = json["auction"].as_u64().unwrap() - 1_000;
                let last = last_auction(number as u64);
                assert!(auction + 200 > last && auction <= last + 10, "{auction} at {last}");
            }
        }
        assert!(events.is_sorted_by_key(|(_, time, _)| *time));
        assert_eq!(events[4_999].1 - events[0].1, 499);
        assert_eq!(events[0].2["date_time"], "2026-01-01T00:00:00.000");
    }

    #[test]
    fn half_of_the_bids_are_for_the_hot_auction_and_prices_span_all_magnitudes() {
        let bids: Vec<_> = parsed(50_000).into_iter().filter(|(stream, ..)| *stream == Stream::Bid).collect();
        let (mut hot, mut magnitudes, mut channels) = (0, BTreeMap::new(), BTreeMap::new());
        for (.., bid) in &bids {
            hot += usize::from(bid["auction"].as_u64().unwrap() % 100 == 0);
            *magnitudes.entry(bid["price"].as_u64().unwrap().ilog10()).or_insert(0) += 1;
            let (channel, url) = (bid["channel"].as_str().unwrap(), bid["url"].as_str().unwrap());
            let known = channels.entry(channel.to_owned()).or_insert_with(|| url.to_owned());
            assert_eq!(known, url, "a channel has one address");
        }
        assert!(hot > bids.len() / 2 && hot < bids.len() * 6 / 10, "{hot} of {}", bids.len());
        let sixth = bids.len() / 6;
        assert_eq!(magnitudes.len(), 6, "{magnitudes:?}");
        assert!(magnitudes.values().all(|count| (sixth * 9 / 10..sixth * 11 / 10).contains(count)), "{magnitudes:?}");
        let with_id = channels.values().filter(|url| url.contains("&channel_id=")).count();
        assert!(HOT_CHANNELS.iter().all(|hot| !channels[*hot].contains("channel_id")));
        assert!(
            with_id * 100 > channels.len() * 85 && with_id < channels.len() - 100,
            "{with_id} of {}",
            channels.len()
        );
    }

    #[test]
    fn an_event_is_a_function_of_the_seed_and_its_number() {
        let other = Generator { seed: 2, ..GENERATOR };
        for number in [0, 1, 4, 777, 1_000_000] {
            assert_eq!(GENERATOR.event(number), GENERATOR.event(number));
            assert_ne!(GENERATOR.event(number).json, other.event(number).json);
        }
        // Whoever has streams of an earlier release can go on with them.
        let known = r#"{"auction":1051,"bidder":1001,"price":430,"channel":"channel-2057","url":"https://www.nexmark.com/wxy_t/hgo/kxy/item.htm?query=1&channel_id=1208483840","date_time":"2026-01-01T00:00:00.100","extra":"apzmswxbycwwqdljkiikbqkkxkpfuadorwvswomquxyhjxfgrkrevnvrovftsuxvpvqwqb"}"#;
        assert_eq!(GENERATOR.event(1_004).json, known);
    }
}
