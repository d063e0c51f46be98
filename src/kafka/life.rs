//! One life of a partition: from the moment it is opened at an offset until it is closed.
//!
//! Each life has a queue of its own, so nothing that an earlier life fetched can come out of it; and what lies below the
//! position is dropped, whatever librdkafka delivers. Ranges are contiguous: a batch starts where the last one ended and
//! ends at the consumer's position, across offsets that carry no record. A fault ends the life: what was taken before it
//! is still answered, nothing after it is.

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use strandline_actors::ports::{BatchLimit, Producers, SourceBatch};
use strandline_actors::position::{Offset, Range};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::client::RECORD;
use super::columns::{self, Columns, LARGEST_BATCH, Parts, Record};
use super::events::Events;
use super::fetcher::ASK_ENDS_EVERY;
use super::producers;
use super::raw::{Client, Code, Message, Messages, Queue};
use super::turns::{SILENT, Standing, Turn};

/// A demand that nothing came for is answered with an empty batch after this time.
pub(super) const PROBE_AFTER: Duration = Duration::from_millis(100);

/// An end that nobody has confirmed for so long is not known any more: its leader may be out of reach for us alone.
const CONFIRMED_FOR: Duration = ASK_ENDS_EVERY.saturating_mul(3);

/// Records that are taken by one call at most; what was taken beyond the limits stays with the life.
const LARGEST_TAKE: usize = 512;

/// Fewer records than these at once are likely to be the last ones there are.
const LITTLE: usize = 256;
/// Whether they were is told by then: what lies behind them may be no record.
const LULL: Duration = Duration::from_millis(50);

/// What a life is opened with.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) from: i64,
    /// The id that the topic must have; `None` where brokers give none.
    pub(super) id: Option<Uuid>,
    pub(super) parts: Parts,
}

/// Why a life has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The brokers have no such position.
    OutOfRange(String),
    /// The log was cut below the position, and may have grown beyond it again with other records.
    Truncated(String),
    /// The brokers have no such topic or partition.
    Gone(String),
    /// The topic is another one under the same name.
    OtherTopic(Uuid),
    /// The partition was opened again.
    Superseded,
    /// Anything else.
    Failed(String),
}

/// What a demand is answered.
pub(super) type Answer = Result<SourceBatch, Trouble>;

struct Demand {
    limit: BatchLimit,
    reply: oneshot::Sender<Answer>,
    since: Instant,
}

pub(super) struct Life {
    pub(super) start: Start,
    /// The topic's name as librdkafka takes it.
    pub(super) c_topic: CString,
    queue: Queue,
    messages: Messages,
    schema: SchemaRef,
    position: i64,
    /// The position is the end of what can be read, as the last fetch told.
    at_end: bool,
    /// The end that the brokers told when asked, if it is above the position.
    told_end: Option<i64>,
    /// The end as librdkafka knew it when something was last taken.
    known_end: Option<i64>,
    /// When the brokers last said what the end is.
    confirmed: Option<Instant>,
    trouble: Option<Trouble>,
    demand: Option<Demand>,
    /// Whether librdkafka fetches it now.
    turn: Turn,
    /// When its turn began.
    turned: Instant,
    /// How long its turn lasts at least though nothing comes: longer each time, so that it gets past what librdkafka passes over.
    patience: Duration,
    /// Records that came since the queue was empty.
    brought: usize,
    /// When little came and nothing after it, which is mostly all that there is.
    lull: Option<Instant>,
    /// What follows the last record that was taken from the queue.
    taken: i64,
    /// The usual size of a record, to judge how many to take.
    mean: usize,
    /// Where the first records of the batch that is being gathered were produced.
    producers: Producers,
}

impl Life {
    /// A life whose turn has not begun.
    pub(super) fn new(start: Start, c_topic: CString, queue: Queue, client: &Arc<Client>) -> Self {
        Self {
            schema: columns::schema(start.parts),
            position: start.from,
            c_topic,
            queue,
            messages: Messages::new(client),
            at_end: false,
            told_end: None,
            known_end: None,
            confirmed: None,
            trouble: None,
            demand: None,
            turn: Turn::Waiting,
            turned: Instant::now(),
            patience: SILENT,
            brought: 0,
            lull: None,
            taken: start.from,
            mean: 256,
            producers: Producers::default(),
            start,
        }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn demand(&mut self, limit: BatchLimit, reply: oneshot::Sender<Answer>) {
        let limit = BatchLimit { rows: limit.rows.max(1), bytes: limit.bytes.min(LARGEST_BATCH) };
        self.demand = Some(Demand { limit, reply, since: Instant::now() });
    }

    pub(super) fn has_demand(&self) -> bool {
        self.demand.is_some()
    }

    /// Ends the life; the first reason stays.
    pub(super) fn fail(&mut self, trouble: Trouble) {
        self.trouble.get_or_insert(trouble);
    }

    /// Whether somebody waits for records and the last fetch said that there are none.
    pub(super) fn waits_at_end(&self) -> bool {
        self.demand.is_some() && self.at_end && self.trouble.is_none()
    }

    pub(super) fn turn(&self) -> Turn {
        self.turn
    }

    /// Its turn begins: librdkafka is to fetch from here.
    pub(super) fn begin_turn(&mut self) -> i64 {
        (self.turn, self.turned) = (Turn::Begun, Instant::now());
        self.taken
    }

    /// Its turn ends: librdkafka is to stop right after this. What waits in the queue is taken, so that nothing of it is
    /// fetched again.
    pub(super) fn end_turn(&mut self) {
        while self.take(LARGEST_TAKE) {}
        // What was the end need not be it when this is looked at.
        self.messages.forget_last(|message| message.code() == Code::PARTITION_EOF);
        if self.turn == Turn::Begun {
            self.patience *= 2;
        }
        // While it waits nobody says what the end is.
        (self.turn, self.at_end) = (Turn::Waiting, false);
    }

    /// Takes so many records from the queue at most. Says whether there were any.
    fn take(&mut self, most: usize) -> bool {
        let count = self.messages.take(&self.queue, most);
        if count == 0 {
            return false;
        }
        self.brought += count;
        self.lull = None;
        if self.queue.len() == 0 {
            self.lull = (std::mem::take(&mut self.brought) < LITTLE).then(Instant::now);
        }
        if let Some(last) = self.messages.last() {
            // An end is told at the offset that follows; after a fault nothing is fetched.
            self.taken = self.taken.max(last.offset() + i64::from(last.code() == Code::NONE));
        }
        if self.turn == Turn::Begun {
            (self.turn, self.patience) = (Turn::Served, SILENT);
        }
        true
    }

    /// How it stands among others, of which each may bring a share. `None`: it has ended.
    pub(super) fn standing(&self, life: u64, share: usize) -> Option<Standing> {
        let record = self.mean + RECORD;
        let queued = self.queue.len();
        let behind = |end: i64| usize::try_from(end - self.taken).unwrap_or(0).saturating_sub(queued);
        let expects = match (self.turn, self.known_end) {
            (Turn::Waiting, _) => 0,
            (Turn::Begun, _) if self.turned.elapsed() > SILENT => 0,
            (Turn::Served, _) if self.at_end || self.lull.is_some_and(|since| since.elapsed() < LULL) => 0,
            (Turn::Served, Some(end)) => behind(end).saturating_mul(record).min(share),
            (Turn::Begun, _) | (Turn::Served, None) => share,
        };
        let silent = self.turn == Turn::Begun && self.turned.elapsed() > self.patience;
        let (asked, holds) = (self.demand.is_some(), (self.messages.len() + queued) * record);
        self.trouble.is_none().then_some(Standing { life, turn: self.turn, asked, holds, expects, silent })
    }

    /// Takes note of the end that the brokers told.
    pub(super) fn told_end(&mut self, end: i64) {
        self.told_end = (end > self.position).then_some(end);
        self.confirmed = Some(Instant::now());
    }

    /// Answers the demand if there is something to answer. Says whether it did.
    pub(super) fn serve(&mut self, client: &Client, events: &Events) -> bool {
        let Some(demand) = self.demand.take() else { return false };
        if demand.reply.is_closed() {
            // The reader is gone, and with it the right to take anything.
            return false;
        }
        let answer = match self.gather(demand.limit, client, events) {
            Some(answer) => Some(answer),
            None if demand.since.elapsed() < PROBE_AFTER => None,
            // One that has seen the end has been let in.
            None => Some(match events.refusal().filter(|_| !self.at_end) {
                Some(text) => Err(Trouble::Failed(format!("the brokers refuse this client: {text}"))),
                None => {
                    let records = RecordBatch::new_empty(Arc::clone(&self.schema));
                    let probe = self.batch(self.position, records, 0, client);
                    // What was the end need not be the end while nobody answers.
                    Ok(SourceBatch { end: probe.end.filter(|_| !events.troubled()), ..probe })
                }
            }),
        };
        match answer {
            Some(answer) => {
                // A reader that has gone in this very moment opens the partition again, at its own position.
                let _ = demand.reply.send(answer);
                true
            }
            None => {
                self.demand = Some(demand);
                false
            }
        }
    }

    /// Takes what is there, within the limits. `None`: nothing is there.
    fn gather(&mut self, limit: BatchLimit, client: &Client, events: &Events) -> Option<Answer> {
        let from = self.position;
        self.producers = Producers::default();
        let mut columns = None;
        if self.trouble.is_none() && self.fill(&mut columns, limit) {
            events.answered();
        }
        // After the records were taken: only so does the id that is noted now vouch for them.
        if let (Some(expected), Some(noted)) = (self.start.id, events.topic_id(&self.start.topic))
            && expected != noted
        {
            self.trouble = Some(Trouble::OtherTopic(noted));
            return Some(Err(Trouble::OtherTopic(noted)));
        }
        if self.position == from {
            return self.trouble.clone().map(Err);
        }
        let (records, bytes) = match columns {
            None => (RecordBatch::new_empty(Arc::clone(&self.schema)), 0),
            Some(columns) => {
                let (rows, bytes) = (columns.rows(), columns.bytes());
                self.mean = (bytes / rows.max(1)).max(1);
                match columns.finish() {
                    Ok(records) => (records, bytes),
                    Err(error) => return Some(Err(Trouble::Failed(format!("records do not fit a batch: {error}")))),
                }
            }
        };
        Some(Ok(self.batch(from, records, bytes, client)))
    }

    fn batch(&mut self, from: i64, records: RecordBatch, bytes: usize, client: &Client) -> SourceBatch {
        let cached = client.cached_end(&self.c_topic, self.start.partition);
        self.known_end = cached;
        let end = match self.told_end {
            Some(end) => Some(end),
            None if self.at_end => self.confirmed.filter(|at| at.elapsed() < CONFIRMED_FOR).map(|_| self.position),
            // What is cached may be left from an earlier life: before anything came it tells only what lies ahead.
            None => cached.filter(|end| *end > self.position || self.position > from),
        };
        SourceBatch {
            range: Range::new(Offset(from), Offset(self.position)),
            records,
            bytes,
            end: end.map(|end| Offset(end.max(self.position))),
            open_transaction: self.at_end && cached.is_some_and(|high| high > self.position),
            waits: self.turn == Turn::Waiting,
            lost: false,
            producers: self.producers,
        }
    }

    /// Says whether anything came from the brokers.
    fn fill(&mut self, columns: &mut Option<Columns>, limit: BatchLimit) -> bool {
        let mut heard = false;
        loop {
            let (rows, bytes) = columns.as_ref().map_or((0, 0), |columns| (columns.rows(), columns.bytes()));
            if rows >= limit.rows || (rows > 0 && bytes >= limit.bytes) {
                return heard;
            }
            if self.messages.len() == 0 {
                let by_bytes = limit.bytes.saturating_sub(bytes) / self.mean + 1;
                let most = (limit.rows - rows).min(by_bytes).min(LARGEST_TAKE);
                if !self.take(most) {
                    return heard;
                }
                heard = true;
            }
            if !self.pour(columns, limit) {
                return heard;
            }
        }
    }

    /// Moves what was taken into the columns. Says whether all of it went in.
    fn pour(&mut self, columns: &mut Option<Columns>, limit: BatchLimit) -> bool {
        let mut used = 0;
        let mut all = true;
        while let Some(message) = self.messages.get(used) {
            match message.code() {
                Code::NONE if message.offset() < self.position => {}
                Code::NONE => {
                    let record = record(message, self.start.parts);
                    let size = record.bytes();
                    let columns = columns.get_or_insert_with(|| {
                        // As many as wait, and a little more than they usually take, so that values are not moved while it grows.
                        let rows = limit.rows.min(self.messages.len() + self.queue.len());
                        let bytes = limit.bytes.min(rows * self.mean / 16 * 17);
                        Columns::with_capacity(&self.schema, self.start.parts, rows, bytes)
                    });
                    let full = columns.rows() >= limit.rows || columns.bytes() + size > limit.bytes;
                    if full && columns.rows() > 0 {
                        all = false;
                        break;
                    }
                    if columns.rows() < producers::SAMPLED {
                        producers::note(&mut self.producers, message.header(producers::HEADER));
                    }
                    columns.push(&record);
                    self.position = record.offset + 1;
                    self.at_end = false;
                    self.told_end = None;
                }
                Code::PARTITION_EOF => {
                    self.position = self.position.max(message.offset());
                    self.told_end = None;
                    (self.at_end, self.confirmed) = (true, Some(Instant::now()));
                }
                code => {
                    let reason = message.reason();
                    self.fail(trouble(code, reason));
                    all = false;
                    used += 1;
                    break;
                }
            }
            used += 1;
        }
        self.messages.discard(used);
        all
    }
}

fn record<'a>(message: Message<'a>, parts: Parts) -> Record<'a> {
    Record {
        offset: message.offset(),
        timestamp: message.timestamp(),
        key: if parts.keys { message.key() } else { None },
        value: message.value(),
        headers: if parts.headers { message.headers() } else { None },
    }
}

fn trouble(code: Code, reason: String) -> Trouble {
    match code {
        // librdkafka compares the epochs of the leaders, and has no code of its own for what it finds.
        Code::AUTO_OFFSET_RESET if reason.contains("log truncation detected") => Trouble::Truncated(reason),
        Code::AUTO_OFFSET_RESET => Trouble::OutOfRange(reason),
        Code::UNKNOWN_TOPIC_OR_PART
        | Code::UNKNOWN_TOPIC_ID
        | Code::LOCAL_UNKNOWN_TOPIC
        | Code::LOCAL_UNKNOWN_PARTITION => Trouble::Gone(reason),
        _ => Trouble::Failed(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In librdkafka's words, of a leader that has less, one that knows no such epoch, and one whose log starts later.
    #[test]
    fn a_log_that_was_cut_is_told_from_a_position_that_it_does_not_have() {
        let cut = "orders [0]: Partition log truncation detected at offset 150 (leader epoch 3): broker end offset is 100 \
                   (offset leader epoch 3). Reset to INVALID.: Local: Partition log truncation detected (broker 2)";
        assert_eq!(trouble(Code::AUTO_OFFSET_RESET, cut.into()), Trouble::Truncated(cut.into()));
        let unknown = "No epoch found less or equal to offset 150 (leader epoch 3): broker end offset is -1 (offset leader \
                       epoch -1). Reset using configured policy.: Local: Partition log truncation detected (broker 2)";
        assert_eq!(trouble(Code::AUTO_OFFSET_RESET, unknown.into()), Trouble::Truncated(unknown.into()));
        let later =
            "fetch failed due to requested offset not available on the broker: Broker: Offset out of range (broker 2)";
        assert_eq!(trouble(Code::AUTO_OFFSET_RESET, later.into()), Trouble::OutOfRange(later.into()));
    }
}
