//! How librdkafka is set up: Strandline's defaults, the user's properties over them, and the few that are not theirs to
//! set because the promises rest on them.

use std::collections::BTreeMap;

use crate::catalog::KafkaTopic;
use crate::settings::KafkaSettings;

use super::raw::{self, Refused};
use super::turns::{self, AT_A_TIME};

/// Why the Kafka source could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    /// No servers are named.
    #[error("no Kafka servers are set: set STRANDLINE_KAFKA__BOOTSTRAP_SERVERS to host:port, comma-separated")]
    NoServers,
    /// librdkafka has no such property.
    #[error("{place}: librdkafka has no property `{name}`{}", .nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownProperty {
        /// Where it is set.
        place: String,
        /// The property.
        name: String,
        /// The name that is most like it.
        nearest: Option<String>,
    },
    /// librdkafka does not take the value.
    #[error("{place}: librdkafka does not take this value of `{name}`: {reason}")]
    InvalidProperty {
        /// Where it is set.
        place: String,
        /// The property.
        name: String,
        /// librdkafka's words.
        reason: String,
    },
    /// The property would break what Strandline promises.
    #[error("{place}: `{name}` cannot be set to `{value}`: {why}")]
    ReservedProperty {
        /// Where it is set.
        place: String,
        /// The property.
        name: String,
        /// The value.
        value: String,
        /// What would break, and what to use instead.
        why: &'static str,
    },
    /// The properties do not go together, or a file that they name cannot be used.
    #[error("the Kafka client for {servers} cannot be made: {reason}")]
    Client {
        /// The servers.
        servers: String,
        /// librdkafka's words.
        reason: String,
    },
    /// A topic is read by two tables.
    #[error(
        "topic `{topic}` is read by two tables, `{first}` and `{second}`: a pipeline has one position in a topic; \
         declare the topic once and use that table twice"
    )]
    TopicTwice {
        /// The topic.
        topic: String,
        /// One table.
        first: String,
        /// The other.
        second: String,
    },
    /// The system gives no thread.
    #[error("the thread that fetches from Kafka cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The properties of a client, and what the source itself must know of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Properties {
    map: BTreeMap<String, String>,
    /// Those that the user set, with the place.
    places: BTreeMap<String, String>,
}

/// What is set unless the user sets it. The fetch settings were measured (`docs/architecture.md`): with librdkafka's own
/// a full queue stalls for a second.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "strandline"),
    ("isolation.level", "read_committed"),
    ("check.crcs", "true"),
    ("fetch.wait.max.ms", "10"),
    ("fetch.queue.backoff.ms", "1"),
    ("fetch.error.backoff.ms", "200"),
    ("reconnect.backoff.max.ms", "2000"),
    ("socket.keepalive.enable", "true"),
    ("log.connection.close", "false"),
];

/// What is always set, and why nothing else will do.
const RESERVED: &[(&str, &str, &str)] = &[
    (
        "enable.auto.commit",
        "false",
        "offsets are kept with the state they belong to; look at the table kafka_offsets instead",
    ),
    (
        "auto.commit.enable",
        "false",
        "offsets are kept with the state they belong to; look at the table kafka_offsets instead",
    ),
    ("enable.auto.offset.store", "false", "offsets are kept with the state they belong to"),
    (
        "auto.offset.reset",
        "error",
        "a position that is lost would jump silently; use 'starting.offsets' for the first start and 'on.data.loss' \
         for records that were deleted before they were read",
    ),
    ("enable.partition.eof", "true", "the end of a partition is how transaction markers are passed"),
    ("log.queue", "false", "the log tells when a topic was deleted and created again"),
];

/// Properties of consumer groups, of which the source is no member.
const GROUP: &[&str] = &["group.id", "group.instance.id", "group.protocol", "group.remote.assignor"];

impl Properties {
    /// Strandline's defaults, the settings' properties over them, and the table's over both.
    pub(super) fn new(settings: &KafkaSettings, topic: &KafkaTopic) -> Result<Self, KafkaError> {
        let mut map: BTreeMap<String, String> =
            DEFAULTS.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut places = BTreeMap::new();
        map.insert("bootstrap.servers".into(), settings.bootstrap_servers.clone());
        let layers = [
            ("the settings' Kafka properties".to_owned(), &settings.properties),
            (format!("OPTIONS of table `{}`", topic.table), &topic.properties),
        ];
        for (place, layer) in &layers {
            for (name, value) in *layer {
                refuse_reserved(place, name, value)?;
                map.insert(canonical(name).into(), value.clone());
                places.insert(canonical(name).to_owned(), place.clone());
            }
        }
        for (name, value, _) in RESERVED {
            map.insert((*name).into(), (*value).into());
        }
        // Only to be refused: without a group nothing can be committed, and librdkafka warns of the mere mention.
        map.remove("auto.commit.enable");
        if map.get("bootstrap.servers").is_none_or(|servers| servers.trim().is_empty()) {
            return Err(KafkaError::NoServers);
        }
        Ok(Self { map, places })
    }

    fn get(&self, name: &str) -> &str {
        self.map.get(name).map_or("", String::as_str)
    }

    /// The servers.
    pub(super) fn servers(&self) -> &str {
        self.get("bootstrap.servers")
    }

    /// Whether records of open and aborted transactions are left out.
    pub(super) fn committed(&self) -> bool {
        self.get("isolation.level") != "read_uncommitted"
    }

    /// The lines of librdkafka's log that the user wants to see: its own default, unless they say otherwise.
    pub(super) fn log_level(&self) -> i32 {
        let debugging = if self.get("debug").is_empty() { 6 } else { 7 };
        self.get("log_level").parse().unwrap_or(debugging)
    }

    /// Whether both would make the same client.
    pub(super) fn same_client(&self, other: &Self) -> bool {
        self.map == other.map
    }

    /// What librdkafka is given, for a client that shares `memory` bytes over `partitions` partitions.
    pub(super) fn for_client(&self, memory: usize, partitions: usize) -> BTreeMap<String, String> {
        let budget = fetch_budget(memory, partitions);
        let mut map = self.map.clone();
        map.entry("queued.max.messages.kbytes".into()).or_insert_with(|| budget.queued_kbytes.to_string());
        map.entry("queued.min.messages".into()).or_insert_with(|| budget.queued_messages.to_string());
        map.entry("fetch.message.max.bytes".into()).or_insert_with(|| budget.fetch_bytes.to_string());
        // librdkafka refuses a fetch that is smaller than a message may be.
        let message = map.get("message.max.bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        map.entry("fetch.max.bytes".into()).or_insert_with(|| budget.answer_bytes.max(message).to_string());
        // The log tells when a topic gets another id; everything else at that level is left out again.
        map.insert("log_level".into(), "7".into());
        let debug = map.entry("debug".into()).or_default();
        if !debug.split(',').any(|context| matches!(context.trim(), "metadata" | "all")) {
            debug.push_str(if debug.is_empty() { "metadata" } else { ",metadata" });
        }
        map
    }

    /// What a producer for the same brokers is given: what the user set, without what is for consumers alone.
    pub(super) fn for_producer(&self) -> BTreeMap<String, String> {
        let consumer = |name: &str| {
            ["fetch.", "queued.", "isolation.", "check.crcs", "enable.auto", "auto.", "enable.partition", "max.poll"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        let common = |name: &str| {
            matches!(name, "bootstrap.servers" | "client.id" | "reconnect.backoff.max.ms" | "socket.keepalive.enable")
        };
        let kept = self.map.iter().filter(|(name, _)| {
            !consumer(name.as_str()) && (common(name.as_str()) || self.places.contains_key(name.as_str()))
        });
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// What went wrong, with the place where the property was set.
    pub(super) fn explain(&self, refused: Refused) -> KafkaError {
        let place = |name: &str| self.places.get(name).cloned().unwrap_or_else(|| "Strandline's own defaults".into());
        match refused {
            Refused::Unknown { name } => KafkaError::UnknownProperty {
                place: place(&name),
                nearest: nearest(&name, raw::property_names()),
                name,
            },
            Refused::Invalid { name, text } => KafkaError::InvalidProperty { place: place(&name), name, reason: text },
            Refused::Client { text } => {
                // librdkafka names the property whose file it cannot use, but not the file.
                let files = self.map.iter().filter(|(name, _)| name.ends_with(".location") && text.contains(*name));
                let files: String = files.map(|(name, file)| format!(" ({name} is {file})")).collect();
                KafkaError::Client { servers: self.servers().into(), reason: text + &files }
            }
        }
    }
}

/// librdkafka knows some properties by two names: a default must not stand beside the user's value.
fn canonical(name: &str) -> &str {
    match name {
        "metadata.broker.list" => "bootstrap.servers",
        "max.partition.fetch.bytes" => "fetch.message.max.bytes",
        name => name,
    }
}

fn refuse_reserved(place: &str, name: &str, value: &str) -> Result<(), KafkaError> {
    let refused =
        |why| Err(KafkaError::ReservedProperty { place: place.into(), name: name.into(), value: value.into(), why });
    if GROUP.contains(&name) {
        return refused(
            "the source reads its partitions as no member of a consumer group, so there is no group to name",
        );
    }
    match RESERVED.iter().find(|(reserved, ..)| *reserved == name) {
        Some((_, only, why)) if !value.trim().eq_ignore_ascii_case(only) => refused(why),
        _ => Ok(()),
    }
}

fn nearest(name: &str, known: Vec<String>) -> Option<String> {
    let distance = |candidate: &String| strsim::damerau_levenshtein(name, candidate);
    known.into_iter().min_by_key(distance).filter(|candidate| distance(candidate) <= name.len().max(6) / 3)
}

#[derive(Debug, PartialEq, Eq)]
struct Budget {
    queued_kbytes: usize,
    queued_messages: usize,
    fetch_bytes: usize,
    answer_bytes: usize,
}

/// What librdkafka keeps for a small record beside its payload, which counts nowhere.
pub(super) const RECORD: usize = 800;

/// What one partition may hold in librdkafka. Its limits count for each partition, and are only looked at before a fetch,
/// so one fetch more comes on top: of compressed bytes, while what librdkafka keeps is the records, each with an overhead
/// of its own. A fetch of small records that compress well takes many times its size.
fn fetch_budget(memory: usize, partitions: usize) -> Budget {
    const LEAST: usize = 32 << 10;
    const LARGEST_FETCH: usize = 1 << 20;
    const LARGEST_ANSWER: usize = 8 << 20;
    const LARGEST_QUEUE: usize = 2_097_151;
    // What is fetched grows so much when it is unpacked, for records of some hundred bytes.
    const UNPACKED: usize = 16;
    let share = memory / partitions.clamp(1, AT_A_TIME);
    let fetch_bytes = (share / UNPACKED).clamp(LEAST, LARGEST_FETCH);
    let queued = share.saturating_sub(fetch_bytes).max(LEAST);
    // One that takes turns is not fetched again before all is taken from it.
    let queued_messages = if turns::are_taken(partitions) { 1 } else { (share / RECORD).clamp(500, 100_000) };
    Budget {
        queued_kbytes: (queued / 1000).min(LARGEST_QUEUE),
        queued_messages,
        fetch_bytes,
        answer_bytes: (memory / UNPACKED).clamp(LARGEST_FETCH, LARGEST_ANSWER),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::super::events::{Events, Voice};
    use super::*;
    use crate::catalog::{OnDataLoss, StartingOffsets};

    fn settings(properties: &[(&str, &str)]) -> KafkaSettings {
        KafkaSettings {
            bootstrap_servers: "127.0.0.1:1".into(),
            properties: properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..KafkaSettings::default()
        }
    }

    fn table(properties: &[(&str, &str)]) -> KafkaTopic {
        KafkaTopic {
            table: "orders".into(),
            topic: "orders".into(),
            starting_offsets: StartingOffsets::Earliest,
            max_offsets_per_batch: None,
            on_data_loss: OnDataLoss::Fail,
            properties: properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            keys: false,
            headers: false,
        }
    }

    fn client(properties: &Properties) -> Result<raw::Client, KafkaError> {
        raw::Client::new(&properties.for_client(64 << 20, 6), Arc::new(Events::new(&Arc::new(Voice::new("local")), 6)))
            .map_err(|refused| properties.explain(refused))
    }

    #[test]
    fn the_defaults_make_a_client() {
        client(&Properties::new(&settings(&[]), &table(&[])).unwrap()).unwrap();
    }

    #[test]
    fn the_table_wins_over_the_settings_and_both_over_the_defaults() {
        let properties = Properties::new(
            &settings(&[("client.id", "mine"), ("isolation.level", "read_uncommitted"), ("check.crcs", "false")]),
            &table(&[("check.crcs", "true"), ("max.partition.fetch.bytes", "77777")]),
        )
        .unwrap();
        assert_eq!(properties.get("client.id"), "mine");
        assert_eq!(properties.get("check.crcs"), "true");
        assert!(!properties.committed());
        let map = properties.for_client(64 << 20, 6);
        assert_eq!(map["fetch.message.max.bytes"], "77777");
        assert!(!map.contains_key("max.partition.fetch.bytes"));
    }

    #[test]
    fn what_the_promises_rest_on_cannot_be_set_otherwise() {
        for (name, value) in [
            ("enable.auto.commit", "true"),
            ("auto.commit.enable", "true"),
            ("enable.auto.offset.store", "true"),
            ("auto.offset.reset", "latest"),
            ("enable.partition.eof", "false"),
            ("log.queue", "true"),
            ("group.id", "mine"),
            ("group.instance.id", "mine"),
        ] {
            let error = Properties::new(&settings(&[(name, value)]), &table(&[])).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("the settings' Kafka properties"), "{error}");
            let error = Properties::new(&settings(&[]), &table(&[(name, value)])).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("table `orders`"), "{error}");
        }
        Properties::new(&settings(&[("enable.auto.commit", "FALSE"), ("auto.offset.reset", "error")]), &table(&[]))
            .unwrap();
    }

    #[test]
    fn an_unknown_property_is_named_with_its_place_and_its_neighbour() {
        let properties = Properties::new(&settings(&[]), &table(&[("fetch.wait.max.m", "10")])).unwrap();
        assert_eq!(
            client(&properties).err().unwrap().to_string(),
            "OPTIONS of table `orders`: librdkafka has no property `fetch.wait.max.m`; did you mean `fetch.wait.max.ms`?"
        );
        let properties = Properties::new(&settings(&[("spring.boot.magic.setting", "1")]), &table(&[])).unwrap();
        assert_eq!(
            client(&properties).err().unwrap().to_string(),
            "the settings' Kafka properties: librdkafka has no property `spring.boot.magic.setting`"
        );
    }

    #[test]
    fn a_bad_value_is_explained() {
        let properties = Properties::new(&settings(&[("fetch.wait.max.ms", "soon")]), &table(&[])).unwrap();
        let error = client(&properties).err().unwrap().to_string();
        assert!(error.starts_with("the settings' Kafka properties: librdkafka does not take"), "{error}");
        assert!(error.contains("`fetch.wait.max.ms`"), "{error}");
        let properties = Properties::new(
            &settings(&[("security.protocol", "ssl"), ("ssl.ca.location", "/does/not/exist.pem")]),
            &table(&[]),
        )
        .unwrap();
        let error = client(&properties).err().unwrap().to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("/does/not/exist.pem"), "{error}");
    }

    #[test]
    fn without_servers_there_is_no_client() {
        let error = Properties::new(&KafkaSettings::default(), &table(&[])).unwrap_err().to_string();
        assert!(error.contains("STRANDLINE_KAFKA__BOOTSTRAP_SERVERS"), "{error}");
        Properties::new(&KafkaSettings::default(), &table(&[("bootstrap.servers", "other:9092")])).unwrap();
    }

    #[test]
    fn the_log_shows_what_the_user_asked_for() {
        let level =
            |properties: &[(&str, &str)]| Properties::new(&settings(properties), &table(&[])).unwrap().log_level();
        assert_eq!(level(&[]), 6);
        assert_eq!(level(&[("log_level", "3")]), 3);
        assert_eq!(level(&[("debug", "fetch")]), 7);
        let properties = Properties::new(&settings(&[("debug", "fetch")]), &table(&[])).unwrap();
        assert_eq!(properties.for_client(1, 1)["debug"], "fetch,metadata");
    }

    #[test]
    fn memory_is_shared_over_the_partitions() {
        let total = |partitions: usize| {
            let budget = fetch_budget(64 << 20, partitions);
            (budget.queued_kbytes * 1000 + budget.fetch_bytes) * partitions
        };
        for partitions in 1..=AT_A_TIME {
            assert!(total(partitions) <= 64 << 20, "{partitions}: {}", total(partitions));
            assert!(total(partitions) > 60 << 20, "{partitions}: {}", total(partitions));
        }
        assert_eq!(fetch_budget(64 << 20, 0), fetch_budget(64 << 20, 1));
        let taking_turns = Budget { queued_messages: 1, ..fetch_budget(64 << 20, AT_A_TIME) };
        assert_eq!(fetch_budget(64 << 20, 100), taking_turns);
        let least = Budget { queued_kbytes: 32, queued_messages: 500, fetch_bytes: 32 << 10, answer_bytes: 1 << 20 };
        assert_eq!(fetch_budget(1, 1), least);
    }
}
