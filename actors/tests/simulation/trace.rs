//! What happened, in words, written only when somebody is going to read it.

use std::collections::HashMap;
use std::sync::Mutex;

use strandline_actors::pointer::{Attempt, Pointer, SegmentKey};
use tokio::time::Instant;

pub struct Trace {
    on: bool,
    begun: Instant,
    lines: Mutex<Vec<String>>,
    /// Attempts are random: here they are numbered in the order in which they were met.
    attempts: Mutex<HashMap<Attempt, usize>>,
}

impl Trace {
    pub fn new(on: bool) -> Self {
        Self { on, begun: Instant::now(), lines: Mutex::default(), attempts: Mutex::default() }
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.on {
            let line = format!("{:8.3} {}", self.begun.elapsed().as_secs_f64(), self.named(&what()));
            self.lines.lock().unwrap().push(line);
        }
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn attempt(&self, attempt: Attempt) -> String {
        let mut attempts = self.attempts.lock().unwrap();
        let next = attempts.len();
        format!("a{}", attempts.entry(attempt).or_insert(next))
    }

    /// A text in which attempts are numbered.
    fn named(&self, text: &str) -> String {
        let mut parts = text.split("Attempt(");
        let mut named = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (id, rest) = part.split_once(')').unwrap_or((part, ""));
            match id.parse() {
                Ok(id) => named.push_str(&self.attempt(Attempt(id))),
                Err(_) => named.push_str(id),
            }
            named.push_str(rest);
        }
        named
    }

    pub fn pointer(&self, pointer: &Pointer) -> String {
        let vector: Vec<String> = pointer
            .content
            .vector
            .0
            .iter()
            .map(|(key, position)| {
                let watermark = position.watermark.map_or("?".into(), |watermark| watermark.to_string());
                format!("{}@{} w{watermark}{}", key.partition, position.next, if position.idle { " idle" } else { "" })
            })
            .collect();
        format!(
            "pointer {} epoch {} {} of generation {} [{}]",
            pointer.shard,
            pointer.epoch,
            self.attempt(pointer.attempt),
            pointer.generation,
            vector.join(", ")
        )
    }

    pub fn segment(&self, key: &SegmentKey) -> String {
        format!("segment {}/{}/{}/{}", key.shard, key.epoch, self.attempt(key.attempt), key.number)
    }
}
