//! What a client says besides records: whether its brokers answer, and under which ids it fetches its topics.
//!
//! The second is a barrier. librdkafka fetches by topic id, but when a topic was deleted and created again it goes over to
//! the new id without a word to the application, at the old offset; only its debug log tells. It writes that line under
//! the topic's lock *before* it uses the new id, so whoever takes records first and looks here afterwards knows that all
//! of them came from the id that is noted here. Costs nothing; a test against a real broker holds it. Where brokers have
//! no ids nothing is noted, and the ids that are asked for from time to time are the only guard.
//!
//! The same log tells that a cluster named no broker at all, as when its only one is fenced because it stood still.
//! librdkafka 2.12 then drops all that it knew, and never asks anybody again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use uuid::Uuid;

use super::raw::{Code, Listener};
use super::topic_id;

/// A fault that waiting does not cure.
#[derive(Debug)]
struct Refusal {
    at: Instant,
    text: String,
}

#[derive(Debug, Default)]
struct State {
    topics: HashMap<String, Uuid>,
    refusal: Option<Refusal>,
    last_error: Option<(SystemTime, String)>,
}

/// What is said in the log of one cluster, by all its clients together.
#[derive(Debug)]
pub(super) struct Voice {
    cluster: String,
    away: AtomicBool,
    warned: Mutex<Option<Instant>>,
}

/// Faults of single brokers are told at most this often.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// librdkafka tells a refusal that lasts again after half this time.
const REFUSAL_LASTS: Duration = Duration::from_secs(60);

impl Voice {
    pub(super) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), away: AtomicBool::new(false), warned: Mutex::default() }
    }

    fn may_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let may = warned.is_none_or(|at| at.elapsed() > WARN_EVERY);
        if may {
            *warned = Some(Instant::now());
        }
        may
    }
}

/// The events of one client.
#[derive(Debug)]
pub(super) struct Events {
    voice: Arc<Voice>,
    /// Lines above this level were not asked for by the user.
    log_level: i32,
    /// No broker answers this client, or they refuse it.
    troubled: AtomicBool,
    /// There was a fault, and nothing was answered since.
    silent: AtomicBool,
    /// Connections that failed and questions that were not answered; each is tried again.
    retries: AtomicU64,
    /// The last answer about the cluster named no broker.
    alone: AtomicBool,
    state: Mutex<State>,
}

impl Events {
    pub(super) fn new(voice: &Arc<Voice>, log_level: i32) -> Self {
        Self {
            voice: Arc::clone(voice),
            log_level,
            troubled: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            retries: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id under which the client fetches a topic, if it knows it.
    pub(super) fn topic_id(&self, topic: &str) -> Option<Uuid> {
        self.state().topics.get(topic).copied()
    }

    /// Whether no broker answers.
    pub(super) fn troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Why the brokers will not have this client, if that is what they said last.
    pub(super) fn refusal(&self) -> Option<String> {
        if !self.troubled() {
            return None;
        }
        let state = self.state();
        state
            .refusal
            .as_ref()
            .filter(|refusal| refusal.at.elapsed() < REFUSAL_LASTS)
            .map(|refusal| refusal.text.clone())
    }

    /// The last fault of a connection, in librdkafka's words.
    pub(super) fn last_error(&self) -> Option<String> {
        self.last_fault().map(|(_, text)| text)
    }

    /// The same, and when it was.
    pub(super) fn last_fault(&self) -> Option<(SystemTime, String)> {
        self.state().last_error.clone()
    }

    /// Whether nothing was answered since the last fault. Known earlier than that no broker answers at all, and of one broker
    /// alone librdkafka never says that.
    pub(super) fn silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// How often something was tried again.
    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// A question is asked again.
    pub(super) fn asked_again(&self) {
        self.silent.store(true, Ordering::Relaxed);
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// A broker has answered.
    pub(super) fn answered(&self) {
        self.silent.store(false, Ordering::Relaxed);
        if self.troubled() {
            self.state().refusal = None;
            self.troubled.store(false, Ordering::Relaxed);
            if self.voice.away.swap(false, Ordering::Relaxed) {
                tracing::info!(cluster = %self.voice.cluster, "Kafka answers again, reading goes on");
            }
        }
    }

    /// Whether the client knows no broker any more.
    pub(super) fn alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    fn note_brokers(&self, line: &str) {
        if let Some(none) = names_none(line)
            && self.alone.swap(none, Ordering::Relaxed) != none
            && none
        {
            tracing::warn!(cluster = %self.voice.cluster, "Kafka named no broker; asking again where it was found first");
        }
    }

    fn note_topic(&self, line: &str) {
        if let Some((topic, id)) = changed_id(line) {
            let mut state = self.state();
            match id {
                Some(id) => state.topics.insert(topic.into(), id),
                None => state.topics.remove(topic),
            };
        }
    }
}

/// Reads `localhost:9092/1: 0 brokers, 1 topics`, with the thread's name in front: whether an answer about the cluster names none.
fn names_none(line: &str) -> Option<bool> {
    let (start, _) = line.split_once(" brokers, ")?;
    let (_, count) = start.rsplit_once(": ")?;
    count.parse::<u32>().ok().map(|count| count == 0)
}

/// Reads `Topic orders changed id from ... to ...`, with the thread's name in front. The id of all zeros means that
/// there is none.
fn changed_id(line: &str) -> Option<(&str, Option<Uuid>)> {
    let (start, ids) = line.split_once(" changed id from ")?;
    let (_, topic) = start.rsplit_once("Topic ")?;
    let (_, to) = ids.split_once(" to ")?;
    let id = topic_id::parse(to.trim())?;
    Some((topic, (!id.is_nil()).then_some(id)))
}

impl Listener for Events {
    fn log(&self, level: i32, facility: &str, text: &str) {
        if facility == "METADATA" {
            self.note_topic(text);
            self.note_brokers(text);
        }
        if level > self.log_level {
            return;
        }
        match level {
            // A connection that fails is told by `error`, once; here it would be told at every attempt.
            _ if matches!(facility, "FAIL" | "ERROR" | "BROKERFAIL") => {
                tracing::debug!(target: "librdkafka", facility, "{text}");
            }
            0..=3 => tracing::error!(target: "librdkafka", facility, "{text}"),
            4 => tracing::warn!(target: "librdkafka", facility, "{text}"),
            5 | 6 => tracing::info!(target: "librdkafka", facility, "{text}"),
            _ => tracing::debug!(target: "librdkafka", facility, "{text}"),
        }
    }

    fn error(&self, code: Code, text: &str) {
        let cluster = self.voice.cluster.as_str();
        self.retries.fetch_add(1, Ordering::Relaxed);
        self.silent.store(true, Ordering::Relaxed);
        match code {
            Code::LOCAL_AUTHENTICATION | Code::SASL_AUTHENTICATION | Code::SSL | Code::FATAL => {
                let mut state = self.state();
                let known = state.refusal.as_ref().is_some_and(|last| last.text == text);
                state.refusal = Some(Refusal { at: Instant::now(), text: text.into() });
                state.last_error = Some((SystemTime::now(), text.into()));
                drop(state);
                self.troubled.store(true, Ordering::Relaxed);
                if !known {
                    tracing::error!(cluster, "Kafka refuses this client: {text}");
                }
            }
            Code::ALL_BROKERS_DOWN => {
                self.troubled.store(true, Ordering::Relaxed);
                if !self.voice.away.swap(true, Ordering::Relaxed) {
                    let reason = self.last_error().unwrap_or_else(|| text.into());
                    tracing::warn!(cluster, "no Kafka broker answers; waiting until one does: {reason}");
                }
            }
            _ => {
                self.state().last_error = Some((SystemTime::now(), text.into()));
                if self.voice.may_warn() {
                    tracing::warn!(cluster, "Kafka: {text}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn events() -> Events {
        Events::new(&Arc::new(Voice::new("local")), 6)
    }

    #[test]
    fn a_client_that_was_told_of_no_broker_is_alone_until_it_is_told_of_one() {
        let events = events();
        let line = |rest: &str| format!("[thrd:main]: 127.0.0.1:9092/1: {rest}");
        for (text, alone) in [
            ("10 brokers, 1 topics", false),
            ("0 brokers, 1 topics", true),
            ("===== Received metadata (for 1 requested topics): partition leader query =====", true),
            ("1 brokers, 0 topics", false),
        ] {
            events.log(7, "METADATA", &line(text));
            assert_eq!(events.alone(), alone, "{text}");
        }
    }

    #[test]
    fn the_id_of_a_topic_is_read_off_the_log() {
        let events = events();
        let id = Uuid::new_v4();
        let other = Uuid::new_v4();
        let none = topic_id::kafka_form(Uuid::nil());
        let line =
            |topic: &str, from: &str, to: &str| format!("[thrd:main]: Topic {topic} changed id from {from} to {to}");

        events.log(7, "METADATA", &line("orders", &none, &topic_id::kafka_form(id)));
        assert_eq!(events.topic_id("orders"), Some(id));
        assert_eq!(events.topic_id("other"), None);

        events.log(7, "METADATA", &line("orders", &topic_id::kafka_form(id), &topic_id::kafka_form(other)));
        assert_eq!(events.topic_id("orders"), Some(other));

        events.log(7, "METADATA", &line("orders", &topic_id::kafka_form(other), &none));
        assert_eq!(events.topic_id("orders"), None);
    }

    #[test]
    fn other_lines_of_the_log_say_nothing_about_ids() {
        for line in ["", "Topic orders [0] Leader 1 Epoch 0", "Topic x changed id from a to b", "changed id from "] {
            assert_eq!(changed_id(line), None, "{line}");
        }
    }

    #[test]
    fn a_refusal_holds_until_somebody_answers() {
        let events = events();
        assert_eq!(events.refusal(), None);
        events.error(Code::SSL, "unknown ca");
        assert_eq!(events.refusal().as_deref(), Some("unknown ca"));
        events.answered();
        assert_eq!(events.refusal(), None);
        events.error(Code::LOCAL_AUTHENTICATION, "wrong password");
        assert_eq!(events.refusal().as_deref(), Some("wrong password"));
    }

    #[test]
    fn a_broker_that_is_away_is_no_refusal() {
        let events = events();
        events.error(Code::TRANSPORT, "connection refused");
        assert!(!events.troubled() && events.silent());
        assert_eq!(events.retries(), 1);
        events.error(Code::ALL_BROKERS_DOWN, "1/1 brokers are down");
        assert!(events.troubled());
        assert_eq!(events.refusal(), None);
        assert_eq!(events.last_error().as_deref(), Some("connection refused"));
        events.answered();
        assert!(!events.troubled() && !events.silent());
        assert_eq!(events.last_error().as_deref(), Some("connection refused"), "what happened stays");
    }

    #[test]
    fn the_clients_of_a_cluster_speak_with_one_voice() {
        let voice = Arc::new(Voice::new("local"));
        let clients = [Events::new(&voice, 6), Events::new(&voice, 6)];
        for client in &clients {
            client.error(Code::ALL_BROKERS_DOWN, "1/1 brokers are down");
        }
        assert!(voice.away.load(Ordering::Relaxed));
        clients[0].answered();
        assert!(!voice.away.load(Ordering::Relaxed));
        assert!(clients[1].troubled(), "the other has heard nothing yet");
        assert!(voice.may_warn() && !voice.may_warn());
    }
}
