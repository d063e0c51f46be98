//! One shard: its operator and its vector, and what of them is stored. It takes ranges as the aggregation actor does, and
//! its store keeps of its state what the committer does.

use strandline_actors::lane::{self, Decision};
use strandline_actors::pointer::{Attempt, Epoch, SegmentKey, SegmentKind};
use strandline_actors::ports::{DeadLetter, KeyedOperator, LaneRows, OutputBatch, Query, StateDelta};
use strandline_actors::position::{Offset, PartitionKey, Position, Range, Vector, Watermark};
use strandline_actors::{compaction, segment};

/// A shard in this life.
pub(super) struct Shard {
    number: u32,
    pub(super) operator: Box<dyn KeyedOperator>,
    pub(super) vector: Vector,
    /// The highest watermark that the operator was told, in this life or an earlier one.
    pub(super) closed: Watermark,
    /// The dead letters that are not stored yet.
    letters: Vec<DeadLetter>,
    /// How many of the events of the pipeline it has behind it.
    pub(super) events: usize,
    stored: Stored,
}

/// What of a shard is stored.
#[derive(Default)]
struct Stored {
    state: Vec<StateDelta>,
    vector: Vector,
    closed: Watermark,
    letters: Vec<DeadLetter>,
    events: usize,
    keys: usize,
}

/// What a partition says of itself with a range.
#[derive(Clone, Copy, Default)]
pub(super) struct Said {
    pub(super) watermark: Watermark,
    pub(super) idle: bool,
    pub(super) raised: Watermark,
}

impl Shard {
    pub(super) fn new(number: u32, query: &dyn Query) -> Self {
        let (vector, letters) = (Vector::default(), Vec::new());
        let operator = query.operator(number);
        Self { number, operator, vector, closed: None, letters, events: 0, stored: Stored::default() }
    }

    /// Where it stands in a partition.
    pub(super) fn position(&self, partition: &PartitionKey) -> &Position {
        self.vector.get(partition).unwrap()
    }

    /// Learns that a partition exists, before it is read.
    pub(super) fn expect(&mut self, partition: PartitionKey) {
        self.vector.0.entry(partition).or_insert_with(|| Position::start(Offset(0)));
    }

    /// Takes what it lacks of a range.
    pub(super) fn take(&mut self, partition: &PartitionKey, range: Range, said: Said, lane: LaneRows) {
        let position = self.vector.0.get_mut(partition).unwrap();
        let Some(range) = lane::cut(range, position.next) else { return };
        assert_eq!(lane::decide(position.next, range), Decision::Accept);
        position.next = range.until;
        position.watermark = said.watermark.max(position.watermark);
        (position.idle, position.raised) = (said.idle, said.raised);
        position.counts.add(&lane.counts);
        self.letters.extend(lane.dead_letters);
        let watermark = self.vector.watermark().max(self.closed);
        let risen = watermark > std::mem::replace(&mut self.closed, watermark);
        if risen || !lane.rows.is_empty() {
            self.operator.apply(lane.rows, watermark).unwrap();
        }
    }

    /// Stores what has changed. Answers what is to be written.
    pub(super) fn checkpoint(&mut self) -> Vec<OutputBatch> {
        let checkpoint = self.operator.checkpoint().unwrap();
        let stored = &mut self.stored;
        for delta in checkpoint.state {
            // Nothing older counts.
            if delta.whole {
                stored.state.retain(|stored| stored.table != delta.table);
            }
            stored.state.push(delta);
        }
        stored.letters.append(&mut self.letters);
        (stored.vector, stored.closed) = (self.vector.clone(), self.closed);
        (stored.events, stored.keys) = (self.events, self.operator.keys());
        checkpoint.output
    }

    /// Dies, and starts from what is stored, as it is after it was merged, encoded and decoded.
    pub(super) fn restart(&mut self, query: &dyn Query) {
        let mut operator = query.operator(self.number);
        let mut number = 0;
        let key = SegmentKey { shard: self.number, epoch: Epoch(1), attempt: Attempt::fresh(), number: 0 };
        let mut state = Vec::new();
        for (table, shape) in operator.tables().into_iter().enumerate() {
            let of_table = self.stored.state.iter().filter(|delta| delta.table == table);
            let deltas: Vec<_> = of_table.map(|delta| delta.rows.clone()).collect();
            for rows in compaction::merge(&deltas, shape, true, self.stored.closed).unwrap() {
                let next = || {
                    number += 1;
                    SegmentKey { number, ..key }
                };
                let segments = segment::encode(&rows, SegmentKind::State { table }, next).unwrap();
                let decoded = segments.iter().flat_map(|s| segment::decode(&s.reference, &s.bytes).unwrap());
                state.extend(decoded.map(|rows| StateDelta { table, rows, whole: false }));
            }
        }
        operator.restore(state.clone()).unwrap();
        assert_eq!(operator.keys(), self.stored.keys, "what is restored is what was stored");
        self.stored.state = state;
        self.operator = operator;
        (self.vector, self.closed) = (self.stored.vector.clone(), self.stored.closed);
        self.vector.0.values_mut().for_each(Position::wake);
        self.events = self.stored.events;
        self.letters.clear();
    }

    /// Whether all that it has taken is stored.
    pub(super) fn is_stored(&self) -> bool {
        self.stored.events == self.events
    }

    /// All its dead letters.
    pub(super) fn letters(&self) -> impl Iterator<Item = &DeadLetter> {
        self.stored.letters.iter().chain(&self.letters)
    }
}
