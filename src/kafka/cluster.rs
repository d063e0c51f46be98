//! What is known of the cluster: its clients, its topics and their ids, and the questions that are asked of it.
//!
//! Tables with the same properties share their clients: one that only asks questions, so that these do not queue up
//! behind fetches, and some that fetch, over which the partitions are spread, since librdkafka has one thread for each
//! broker and client. Clients that fetch are made when the first partition is opened: only then is it known over how many
//! partitions their memory is shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use strandline_actors::ports::SourceError;
use strandline_actors::position::{PartitionKey, SourcePartition};
use uuid::Uuid;

use crate::catalog::KafkaTopic;
use crate::settings::KafkaSettings;

use super::client::{KafkaError, Properties};
use super::columns::Parts;
use super::events::{Events, Voice};
use super::fetcher::{Fetcher, Lease};
use super::life::Start;
use super::raw::{Client, Code, Fault, TopicDescription};
use super::topic_id;
use super::turns::{self, Turns};

/// The time that one question may take before it is asked again.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one may wait for the answer to another's question, which takes longer only when who asked is lost.
const ASKING: Duration = Duration::from_secs(30);
/// A topic that the brokers do not know is asked for again for so long: metadata takes a moment to spread.
const MISSING_AFTER: Duration = Duration::from_secs(2);

/// Whether a partition is there, as the cluster says now.
#[derive(Debug)]
pub(super) enum Existence {
    /// Nobody answers.
    Unknown,
    There,
    Missing(String),
    OtherTopic(Uuid),
}

/// How the brokers that a topic is read from answer.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The addresses by which they are found.
    pub servers: String,
    /// None answers.
    pub away: bool,
    /// They will not have this client, and why.
    pub refusal: Option<String>,
    /// Connections that failed and questions that were not answered; each was tried again.
    pub retries: u64,
    /// The last fault, and when it was.
    pub last_error: Option<(SystemTime, String)>,
}

#[derive(Clone, Debug)]
struct Known {
    id: Option<Uuid>,
    partitions: usize,
    at: Instant,
}

/// Tables that share their clients.
struct Group {
    properties: Properties,
    voice: Arc<Voice>,
    asker: Arc<Fetcher>,
    fetchers: Mutex<Vec<Option<Arc<Fetcher>>>>,
}

pub(super) struct Cluster {
    settings: KafkaSettings,
    tables: Vec<KafkaTopic>,
    group_of: Vec<usize>,
    groups: Vec<Group>,
    known: Mutex<HashMap<String, Known>>,
    /// When each group of tables last got no answer, held by whoever asks.
    asking: tokio::sync::Mutex<HashMap<usize, Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Faults that pass when a broker answers again. One of a partition that is known to exist is that nobody leads it.
fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::LOCAL_UNKNOWN_PARTITION
            | Code::TRANSPORT
            | Code::RESOLVE
            | Code::ALL_BROKERS_DOWN
            | Code::TIMED_OUT
            | Code::MSG_TIMED_OUT
            | Code::TIMED_OUT_QUEUE
            | Code::REQUEST_TIMED_OUT
            | Code::LEADER_NOT_AVAILABLE
            | Code::NOT_LEADER
            | Code::COORDINATOR_LOADING
            | Code::LOCAL_AUTHENTICATION
            | Code::SASL_AUTHENTICATION
            | Code::SSL
    )
}

fn is_missing(code: Code) -> bool {
    matches!(code, Code::UNKNOWN_TOPIC_OR_PART | Code::UNKNOWN_TOPIC_ID | Code::LOCAL_UNKNOWN_TOPIC)
}

/// The id that the partition's topic must have, unless it stands in for one that brokers do not give.
pub(super) fn real_id(partition: &SourcePartition) -> Option<Uuid> {
    let id = partition.key.topic_id;
    (id != topic_id::of_name(&partition.topic)).then_some(id)
}

/// What is said when a topic is another one under the same name.
pub(super) fn recreated(partition: &SourcePartition, now: Uuid) -> String {
    format!(
        "topic `{}` was deleted and created again: its id was {} when this pipeline read it and is {} now. The offsets and \
         the state belong to the old topic. To read the new one from its beginning, give the pipeline a new name, which \
         starts with an empty state; to go on with the old one, restore it and let the table name it",
        partition.topic,
        topic_id::kafka_form(partition.key.topic_id),
        topic_id::kafka_form(now)
    )
}

impl Cluster {
    pub(super) fn connect(settings: &KafkaSettings, tables: &[KafkaTopic]) -> Result<Self, KafkaError> {
        let mut group_of = Vec::new();
        let mut groups: Vec<Group> = Vec::new();
        for (i, table) in tables.iter().enumerate() {
            if let Some(first) = tables[..i].iter().find(|other| other.topic == table.topic) {
                return Err(KafkaError::TopicTwice {
                    topic: table.topic.clone(),
                    first: first.table.clone(),
                    second: table.table.clone(),
                });
            }
            let properties = Properties::new(settings, table)?;
            let group = match groups.iter().position(|group| group.properties.same_client(&properties)) {
                Some(group) => group,
                None => {
                    let name = format!("kafka-ask-{}", groups.len());
                    let voice = Arc::new(Voice::new(properties.servers()));
                    let asker = Arc::new(fetcher(&properties, &voice, settings.fetch_memory, (1, 1), name)?);
                    groups.push(Group { properties, voice, asker, fetchers: Mutex::default() });
                    groups.len() - 1
                }
            };
            group_of.push(group);
        }
        Ok(Self {
            settings: settings.clone(),
            tables: tables.to_vec(),
            group_of,
            groups,
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn table(&self, table: usize) -> &KafkaTopic {
        &self.tables[table]
    }

    pub(super) fn tables(&self) -> &[KafkaTopic] {
        &self.tables
    }

    /// The table that a partition belongs to.
    pub(super) fn table_of(&self, partition: &SourcePartition) -> Option<usize> {
        self.tables.iter().position(|table| table.topic == *partition.topic)
    }

    pub(super) fn parts(&self, table: usize) -> Parts {
        Parts { keys: self.tables[table].keys, headers: self.tables[table].headers }
    }

    pub(super) fn discovery_interval(&self) -> Duration {
        self.settings.discovery_interval
    }

    pub(super) fn servers(&self, table: usize) -> &str {
        self.group(table).properties.servers()
    }

    fn group(&self, table: usize) -> &Group {
        &self.groups[self.group_of[table]]
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Questions

    /// Asks once.
    async fn ask_once<T: Send + 'static>(
        &self,
        table: usize,
        question: impl FnOnce(&Arc<Client>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let asker = Arc::clone(&self.group(table).asker);
        let thread = tokio::task::spawn_blocking(move || {
            let answer = question(asker.client());
            if answer.is_ok() {
                asker.events().answered();
            }
            answer
        });
        thread.await.unwrap_or_else(|error| Err(Fault { code: Code::FATAL, text: error.to_string() }))
    }

    /// Asks until somebody answers, and says now and then that it waits.
    async fn ask<T: Send + 'static>(
        &self,
        table: usize,
        what: &str,
        question: impl Fn(&Arc<Client>) -> Result<T, Fault> + Clone + Send + 'static,
    ) -> Result<T, SourceError> {
        let servers = self.servers(table);
        let asker = &self.group(table).asker;
        let mut pause = Duration::from_millis(100);
        let mut tell_at = Instant::now();
        let mut tell_pause = Duration::from_secs(5);
        loop {
            let fault = match self.ask_once(table, question.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            if let Some(refusal) = asker.events().refusal() {
                return Err(SourceError::Failed(format!("Kafka at {servers} refuses this client: {refusal}")));
            }
            if !passes(fault.code) {
                return Err(SourceError::Failed(format!("Kafka at {servers} does not tell {what}: {fault}")));
            }
            if Instant::now() >= tell_at {
                let reason = asker.events().last_error().unwrap_or_else(|| fault.to_string());
                tracing::warn!(servers, "Kafka does not answer; waiting for {what}: {reason}");
                tell_at = Instant::now() + tell_pause;
                tell_pause = (tell_pause * 2).min(Duration::from_secs(60));
            }
            asker.events().asked_again();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// How the brokers of a table answer its clients.
    pub(super) fn reach(&self, table: usize) -> Reach {
        let group = self.group(table);
        let fetchers: Vec<Arc<Fetcher>> = lock(&group.fetchers).iter().flatten().cloned().collect();
        let all = || fetchers.iter().chain([&group.asker]).map(|fetcher| fetcher.events());
        // Whoever fetches hears at once, whoever asks only when it asks again.
        let away = match fetchers.is_empty() {
            true => group.asker.events().silent(),
            false => fetchers.iter().all(|fetcher| fetcher.events().silent()),
        };
        Reach {
            servers: group.properties.servers().to_owned(),
            away,
            refusal: all().find_map(Events::refusal),
            retries: all().map(Events::retries).sum(),
            last_error: all().filter_map(Events::last_fault).max_by_key(|(at, _)| *at),
        }
    }

    fn learn(&self, description: &TopicDescription) {
        let known = Known { id: description.id, partitions: description.partitions.len(), at: Instant::now() };
        lock(&self.known).insert(description.name.clone(), known);
    }

    /// Asks what partitions a table's topic has. Waits for as long as nobody answers.
    pub(super) async fn describe(&self, table: usize) -> Result<TopicDescription, SourceError> {
        let topic = self.tables[table].topic.clone();
        let servers = self.servers(table).to_owned();
        let asked_since = Instant::now();
        loop {
            let name = topic.clone();
            let description = self
                .ask(table, &format!("the partitions of topic `{topic}`"), move |client| describe(client, &name))
                .await?;
            let Some(fault) = &description.fault else {
                self.learn(&description);
                return Ok(description);
            };
            if !is_missing(fault.code) {
                return Err(SourceError::Failed(self.denied(table, fault)));
            }
            if asked_since.elapsed() > MISSING_AFTER {
                return Err(SourceError::Halt(format!(
                    "topic `{topic}` of table `{}` does not exist on Kafka at {servers}. Strandline creates no topics: \
                     create it, or correct the table's LOCATION",
                    self.tables[table].table
                )));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn denied(&self, table: usize, fault: &Fault) -> String {
        let KafkaTopic { topic, table: name, .. } = &self.tables[table];
        let advice = if fault.code == Code::TOPIC_AUTHORIZATION {
            ". Grant this client's principal READ and DESCRIBE on the topic"
        } else {
            ""
        };
        format!(
            "topic `{topic}` of table `{name}` cannot be read from Kafka at {}: {fault}{advice}",
            self.servers(table)
        )
    }

    /// Asks for the log's first offset and for its end, waiting for as long as nobody answers.
    pub(super) async fn log_range(&self, table: usize, partition: &SourcePartition) -> Result<(i64, i64), SourceError> {
        let (topic, number) = (Arc::clone(&partition.topic), partition.key.partition);
        self.ask(table, &format!("the offsets of {partition}"), move |client| {
            client.query_watermarks(&topic, number, ASK_TIMEOUT)
        })
        .await
    }

    /// Asks how the topic of a table is cleaned up (`cleanup.policy`), waiting for as long as nobody answers.
    pub(super) async fn cleanup_policy(&self, table: usize) -> Result<String, SourceError> {
        let topic = self.tables[table].topic.clone();
        let what = format!("`cleanup.policy` of topic `{topic}`");
        let policy =
            self.ask(table, &what, move |client| client.topic_setting(&topic, "cleanup.policy", ASK_TIMEOUT)).await?;
        policy.ok_or_else(|| SourceError::Failed(format!("Kafka at {} does not tell {what}", self.servers(table))))
    }

    /// Asks for the first offset of a record that is not older than a time in milliseconds, waiting for as long as nobody
    /// answers.
    pub(super) async fn offset_at(
        &self,
        table: usize,
        partition: &SourcePartition,
        timestamp: i64,
    ) -> Result<Option<i64>, SourceError> {
        let (topic, number) = (Arc::clone(&partition.topic), partition.key.partition);
        self.ask(table, &format!("the offsets of {partition}"), move |client| {
            client.offset_at(&topic, number, timestamp, ASK_TIMEOUT)
        })
        .await
    }

    /// The log's first offset and its end, asked once; `None` when nobody answers.
    pub(super) async fn watermarks(&self, table: usize, partition: &SourcePartition) -> Option<(i64, i64)> {
        let (topic, number) = (Arc::clone(&partition.topic), partition.key.partition);
        let answer = self.ask_once(table, move |client| client.query_watermarks(&topic, number, ASK_TIMEOUT)).await;
        answer.inspect_err(|fault| tracing::debug!(%partition, "the log's offsets are not known: {fault}")).ok()
    }

    /// Asks once whether a partition is there and still the same.
    pub(super) async fn look_up(&self, table: usize, partition: &SourcePartition) -> Existence {
        let name = self.tables[table].topic.clone();
        let description = match self.ask_once(table, move |client| describe(client, &name)).await {
            Ok(description) => description,
            Err(fault) => {
                tracing::debug!(%partition, "the topic cannot be looked up: {fault}");
                return Existence::Unknown;
            }
        };
        match description.fault {
            Some(fault) if is_missing(fault.code) => Existence::Missing(format!(
                "topic `{}` does not exist any more on Kafka at {}",
                partition.topic,
                self.servers(table)
            )),
            Some(_) => Existence::Unknown,
            None => {
                self.learn(&description);
                match self.other_id(partition) {
                    Some(id) => Existence::OtherTopic(id),
                    None if description.partitions.contains(&partition.key.partition) => Existence::There,
                    None => Existence::Missing(format!(
                        "topic `{}` on Kafka at {} has no partition {}, only {}",
                        partition.topic,
                        self.servers(table),
                        partition.key.partition,
                        description.partitions.len()
                    )),
                }
            }
        }
    }

    /// Asks whether a partition is there and still the same, unless its topic was seen less than `age` ago.
    pub(super) async fn refresh(&self, table: usize, partition: &SourcePartition, age: Duration) -> Existence {
        // Many partitions ask at once, and one answer serves them all; so does one that did not come.
        let (since, group) = (Instant::now(), self.group_of[table]);
        // Whoever asks does so for a few seconds, or is lost with its thread.
        let Ok(mut unanswered) = tokio::time::timeout(ASKING, self.asking.lock()).await else {
            return self.look_up(table, partition).await;
        };
        if unanswered.get(&group).is_some_and(|at| *at >= since) {
            return Existence::Unknown;
        }
        let known = lock(&self.known).get(&*partition.topic).cloned();
        if known.is_some_and(|known| known.at.elapsed() < age) {
            return self.other_id(partition).map_or(Existence::There, Existence::OtherTopic);
        }
        let existence = self.look_up(table, partition).await;
        if matches!(existence, Existence::Unknown) {
            unanswered.insert(group, Instant::now());
        }
        existence
    }

    /// The id that the partition's topic has now, if it is known to be another one.
    pub(super) fn other_id(&self, partition: &SourcePartition) -> Option<Uuid> {
        let expected = real_id(partition)?;
        lock(&self.known).get(&*partition.topic).and_then(|known| known.id).filter(|id| *id != expected)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Fetching

    /// Opens a partition on the client that it belongs to, making it if need be.
    pub(super) fn lease(&self, table: usize, start: Start) -> Result<Lease, SourceError> {
        let group = self.group(table);
        let count = self.settings.clients.max(1);
        let slot = (table + usize::try_from(start.partition).unwrap_or(0)) % count;
        let mut fetchers = lock(&group.fetchers);
        fetchers.resize(count, None);
        if let Some(lease) = fetchers[slot].as_ref().and_then(|fetcher| fetcher.open(start.clone())) {
            return Ok(lease);
        }
        // None yet, or its thread has died.
        let partitions = lock(&self.known).values().map(|known| known.partitions).sum::<usize>();
        let name = format!("kafka-fetch-{slot}");
        let spread = (partitions, count * self.groups.len());
        let fetcher = fetcher(&group.properties, &group.voice, self.settings.fetch_memory, spread, name)
            .map_err(|error| SourceError::Failed(error.to_string()))?;
        let fetcher = Arc::new(fetcher);
        let lease = fetcher.open(start);
        fetchers[slot] = Some(fetcher);
        lease.ok_or_else(|| SourceError::Failed("the thread that fetches from Kafka has ended at once".into()))
    }
}

fn describe(client: &Arc<Client>, topic: &str) -> Result<TopicDescription, Fault> {
    let described = client.describe_topics(&[topic], ASK_TIMEOUT)?;
    let description = described
        .into_iter()
        .find(|description| description.name == topic)
        .ok_or_else(|| Fault { code: Code::LOCAL_UNKNOWN_TOPIC, text: "the answer does not name it".into() })?;
    match &description.fault {
        Some(fault) if passes(fault.code) => Err(fault.clone()),
        _ => Ok(description),
    }
}

fn fetcher(
    properties: &Properties,
    voice: &Arc<Voice>,
    memory: usize,
    (partitions, clients): (usize, usize),
    name: String,
) -> Result<Fetcher, KafkaError> {
    // Those that take turns stand still between two of them unless others have enough to go on with.
    let memory = if turns::are_taken(partitions) { memory.saturating_mul(2) } else { memory };
    let turns = Turns::new(memory, clients, partitions);
    let events = Arc::new(Events::new(voice, properties.log_level()));
    let listener = Arc::clone(&events);
    let client = Client::new(&properties.for_client(memory, partitions), listener)
        .map_err(|refused| properties.explain(refused))?;
    Ok(Fetcher::start(client, events, properties.committed(), turns, name)?)
}

/// The key of a partition in a topic of which the cluster told this.
pub(super) fn key(description: &TopicDescription, partition: i32) -> PartitionKey {
    PartitionKey { topic_id: description.id.unwrap_or_else(|| topic_id::of_name(&description.name)), partition }
}
