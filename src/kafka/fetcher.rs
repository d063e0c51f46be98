//! The thread that takes records off one librdkafka client.
//!
//! It works on demand: a reader asks for a batch, and gets it as soon as its partition has something. Meanwhile
//! librdkafka fetches ahead, up to its bound. The thread also serves the client's main queue, from the client's first
//! moment to its last. When nothing is to be done it sleeps until a queue fills or a command comes; should a wake-up ever
//! be lost, it looks by itself every few milliseconds.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use strandline_actors::ports::BatchLimit;
use tokio::sync::oneshot;

use super::events::Events;
use super::life::{Answer, Life, Start, Trouble};
use super::raw::{Client, Fault, Queue, Topic};
use super::turns::{Change, Turn, Turns};

/// The longest sleep while somebody waits for records.
const NAP: Duration = Duration::from_millis(5);
/// The longest sleep while nobody does.
const REST: Duration = Duration::from_millis(50);
/// How often the brokers are asked for the ends of partitions that seem to be read up.
pub(super) const ASK_ENDS_EVERY: Duration = Duration::from_secs(5);

/// How often a client that knows no broker any more has those asked where it began.
const ASK_SERVERS_EVERY: Duration = Duration::from_secs(1);

enum Command {
    Open { life: u64, start: Start },
    Demand { life: u64, limit: BatchLimit, reply: oneshot::Sender<Answer> },
    Close { life: u64 },
}

/// A client with its thread. Dropping it stops both.
pub(super) struct Fetcher {
    commands: mpsc::Sender<Command>,
    thread: Thread,
    client: Arc<Client>,
    events: Arc<Events>,
    lives: AtomicU64,
}

impl Fetcher {
    /// Starts the thread. `committed` says whether the client leaves out records of open transactions.
    pub(super) fn start(
        client: Client,
        events: Arc<Events>,
        committed: bool,
        turns: Option<Turns>,
        name: String,
    ) -> io::Result<Self> {
        let client = Arc::new(client);
        let (commands, inbox) = mpsc::channel();
        let (of_thread, events_of_thread) = (Arc::clone(&client), Arc::clone(&events));
        let handle = thread::Builder::new().name(name).spawn(move || {
            Worker {
                client: of_thread,
                events: events_of_thread,
                committed,
                turns,
                inbox,
                lives: BTreeMap::new(),
                active: HashMap::new(),
                topics: HashMap::new(),
                ends: None,
                asked: Instant::now(),
                begun_again: None,
            }
            .run();
        })?;
        Ok(Self { commands, thread: handle.thread().clone(), client, events, lives: AtomicU64::new(0) })
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    /// Opens a partition. `None`: the thread has died.
    pub(super) fn open(self: &Arc<Self>, start: Start) -> Option<Lease> {
        let life = self.lives.fetch_add(1, Ordering::Relaxed);
        self.send(Command::Open { life, start }).then(|| Lease { fetcher: Arc::clone(self), life })
    }

    fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.thread.unpark();
        sent
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        // The thread sees that nobody can send any more as soon as the sender is dropped, right after this.
        let (closed, _) = mpsc::channel();
        self.commands = closed;
        self.thread.unpark();
    }
}

/// The right to read a partition. Dropping it closes the partition.
pub(super) struct Lease {
    fetcher: Arc<Fetcher>,
    life: u64,
}

impl Lease {
    /// Asks for a batch. The receiver fails if the thread has died.
    pub(super) fn demand(&self, limit: BatchLimit) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        self.fetcher.send(Command::Demand { life: self.life, limit, reply });
        answer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.fetcher.send(Command::Close { life: self.life });
    }
}

struct Worker {
    client: Arc<Client>,
    events: Arc<Events>,
    committed: bool,
    /// Set where there are too many partitions to fetch them all at once.
    turns: Option<Turns>,
    inbox: mpsc::Receiver<Command>,
    lives: BTreeMap<u64, Life>,
    /// The life that fetches each partition; superseded ones only wait to be closed.
    active: HashMap<(Arc<str>, i32), u64>,
    topics: HashMap<Arc<str>, Topic>,
    /// Where the answer comes to that was asked for at `asked`.
    ends: Option<Queue>,
    asked: Instant,
    /// When the brokers were last asked where the client began.
    begun_again: Option<Instant>,
}

impl Worker {
    fn run(mut self) {
        loop {
            loop {
                match self.inbox.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.client.poll();
            self.begin_again();
            self.watch_ends();
            let mut served = false;
            let mut wanted = false;
            for life in self.lives.values_mut() {
                served |= life.serve(&self.client, &self.events);
                wanted |= life.has_demand();
            }
            self.take_turns();
            if !served {
                thread::park_timeout(if wanted { NAP } else { REST });
            }
        }
    }

    /// Asks where the client began when it was told of no broker: more than once, since those that it is about to forget are
    /// taken for known ones.
    fn begin_again(&mut self) {
        if self.events.alone() && self.begun_again.is_none_or(|at| at.elapsed() >= ASK_SERVERS_EVERY) {
            self.begun_again = Some(Instant::now());
            self.client.ask_servers_again();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { life, start } => {
                if let Err(fault) = self.open(life, start) {
                    tracing::error!("a partition cannot be opened: {fault}");
                }
            }
            Command::Demand { life, limit, reply } => match self.lives.get_mut(&life) {
                Some(life) => life.demand(limit, reply),
                None => drop(reply.send(Err(Trouble::Failed("the partition could not be opened".into())))),
            },
            Command::Close { life } => {
                let partition = self.lives.get(&life).map(|life| (Arc::clone(&life.start.topic), life.start.partition));
                if let Some(partition) = partition.filter(|partition| self.active.get(partition) == Some(&life)) {
                    self.stop(&partition);
                }
                self.lives.remove(&life);
            }
        }
    }

    /// Stops to fetch a partition, for whoever reads it.
    fn stop(&mut self, partition: &(Arc<str>, i32)) {
        let life = self.active.remove(partition).and_then(|life| self.lives.get(&life));
        let fetched = life.is_none_or(|life| life.turn() != Turn::Waiting);
        if let Some(topic) = self.topics.get(&partition.0).filter(|_| fetched) {
            topic.stop(partition.1);
        }
    }

    fn open(&mut self, life: u64, start: Start) -> Result<(), Fault> {
        let partition = (Arc::clone(&start.topic), start.partition);
        if let Some(earlier) = self.active.get(&partition).copied() {
            self.stop(&partition);
            if let Some(earlier) = self.lives.get_mut(&earlier) {
                earlier.fail(Trouble::Superseded);
            }
        }
        let c_topic = CString::new(&*start.topic).unwrap_or_default();
        if !self.topics.contains_key(&start.topic) {
            self.topics.insert(Arc::clone(&start.topic), Topic::new(&self.client, &c_topic)?);
        }
        let queue = Queue::waking(&self.client, thread::current())?;
        self.lives.insert(life, Life::new(start, c_topic, queue, &self.client));
        self.active.insert(partition, life);
        match &mut self.turns {
            Some(turns) => turns.join(life),
            None => self.begin_turn(life),
        }
        Ok(())
    }

    fn take_turns(&mut self) {
        let Some(turns) = &mut self.turns else { return };
        let share = turns.share();
        let all: Vec<_> = self.lives.iter().filter_map(|(id, life)| life.standing(*id, share)).collect();
        let Change { ends, begins } = turns.change(&all);
        for life in ends {
            let Some(life) = self.lives.get_mut(&life) else { continue };
            life.end_turn();
            self.topics[&life.start.topic].stop(life.start.partition);
        }
        for life in begins {
            self.begin_turn(life);
        }
    }

    /// Has a partition fetched, from where it stands: nothing depends on what librdkafka remembers of it.
    fn begin_turn(&mut self, life: u64) {
        let Some(life) = self.lives.get_mut(&life) else { return };
        let (from, partition) = (life.begin_turn(), life.start.partition);
        if let Err(fault) = self.topics[&life.start.topic].start(partition, from, life.queue()) {
            life.fail(Trouble::Failed(format!("{}-{partition}: {fault}", life.start.topic)));
        }
    }

    /// Asks the brokers now and then whether partitions that seem to be read up really are, so that one that has
    /// fallen asleep shows: its end is above its position and it stands still.
    fn watch_ends(&mut self) {
        if let Some(queue) = &self.ends {
            match queue.ends() {
                None if self.asked.elapsed() < ASK_ENDS_EVERY * 2 => return,
                None => {}
                Some(Ok(ends)) => {
                    self.events.answered();
                    for end in ends {
                        let partition = (Arc::from(end.topic), end.partition);
                        let life = self.active.get(&partition).and_then(|life| self.lives.get_mut(life));
                        if let Some(life) = life.filter(|life| life.waits_at_end()) {
                            life.told_end(end.end);
                        }
                    }
                }
                Some(Err(fault)) => tracing::debug!("the ends of partitions are not known: {fault}"),
            }
            self.ends = None;
        }
        if self.asked.elapsed() < ASK_ENDS_EVERY {
            return;
        }
        self.asked = Instant::now();
        let waiting: Vec<(&CStr, i32)> = self
            .active
            .values()
            .filter_map(|life| self.lives.get(life))
            .filter(|life| life.waits_at_end())
            .map(|life| (life.c_topic.as_c_str(), life.start.partition))
            .collect();
        if waiting.is_empty() {
            return;
        }
        let asked = Queue::new(&self.client).and_then(|queue| {
            self.client.ask_ends(&waiting, self.committed, ASK_ENDS_EVERY, &queue)?;
            Ok(queue)
        });
        match asked {
            Ok(queue) => self.ends = Some(queue),
            Err(fault) => tracing::debug!("the ends of partitions cannot be asked for: {fault}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let partitions: Vec<_> = self.active.keys().cloned().collect();
        for partition in partitions {
            self.stop(&partition);
        }
    }
}
