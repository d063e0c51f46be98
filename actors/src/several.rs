//! Several sinks as one.
//!
//! The output of an epoch is delivered when every sink has its part. A sink that has taken its part is passed over while the
//! others are tried again, so that one that is away makes no other show a row again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::future::join_all;

use crate::pointer::{Attempt, Epoch, ShardId};
use crate::points::{self, Point};
use crate::ports::{Delivery, OutputBatch, Sink, SinkError};

/// Sinks by their numbers, and how far they are with what is being delivered. To each its rows are those of sink 0.
pub struct Several {
    sinks: Vec<Arc<dyn Sink>>,
    /// For each shard, which sinks have their part of the output that is being delivered.
    taken: Mutex<HashMap<ShardId, Taken>>,
}

struct Taken {
    of: (Epoch, Attempt),
    by: Vec<bool>,
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Several").field("sinks", &self.sinks.len()).finish_non_exhaustive()
    }
}

impl Several {
    /// One sink out of these, in the order of their numbers.
    pub fn new(sinks: Vec<Arc<dyn Sink>>) -> Self {
        Self { sinks, taken: Mutex::default() }
    }

    /// Which sinks have their part of a delivery.
    fn taken_by(&self, delivery: &Delivery<'_>) -> Vec<bool> {
        let of = (delivery.epoch, delivery.attempt);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let known = taken.get(&delivery.shard).filter(|taken| taken.of == of);
        known.map_or_else(|| vec![false; self.sinks.len()], |taken| taken.by.clone())
    }

    fn note(&self, delivery: &Delivery<'_>, by: Vec<bool>) {
        let of = (delivery.epoch, delivery.attempt);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match by.contains(&false) {
            true => taken.insert(delivery.shard, Taken { of, by }),
            false => taken.remove(&delivery.shard),
        };
    }
}

#[async_trait]
impl Sink for Several {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        if let [only] = self.sinks.as_slice() {
            return only.deliver(delivery).await;
        }
        let mut parts: Vec<Vec<OutputBatch>> = vec![Vec::new(); self.sinks.len()];
        for batch in delivery.output {
            let Some(part) = parts.get_mut(batch.sink) else {
                let message = format!("there are rows for sink {}, but there are {}", batch.sink, self.sinks.len());
                return Err(SinkError::Fatal(message));
            };
            part.push(OutputBatch { sink: 0, ..batch.clone() });
        }
        let before = self.taken_by(delivery);
        let each = self.sinks.iter().zip(&parts).zip(&before).map(|((sink, output), taken)| async move {
            if *taken || output.is_empty() {
                return Ok(());
            }
            sink.deliver(&Delivery { output, ..*delivery }).await?;
            points::reach(Point::PartDelivered);
            Ok(())
        });
        let answers = join_all(each).await;
        self.note(delivery, answers.iter().map(Result::is_ok).collect());
        if flaw!(OnePartIsEnough) && answers.iter().any(Result::is_ok) {
            return Ok(());
        }
        let mut failures: Vec<SinkError> = answers.into_iter().filter_map(Result::err).collect();
        // What will not pass decides.
        failures.sort_by_key(|failure| matches!(failure, SinkError::Unavailable(_)));
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    fn replaces(&self) -> bool {
        self.sinks.iter().all(|sink| sink.replaces())
    }

    fn discards(&self, sink: usize) -> bool {
        self.sinks.get(sink).is_some_and(|sink| sink.discards(0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::VecDeque;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use futures::FutureExt;

    use super::*;
    use crate::ports::Change;

    /// A sink that fails as it was told to, and remembers what it was given.
    #[derive(Default)]
    struct Told {
        fails: Mutex<VecDeque<SinkError>>,
        given: Mutex<Vec<(i64, usize, bool)>>,
    }

    #[async_trait]
    impl Sink for Told {
        async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
            assert!(delivery.output.iter().all(|batch| batch.sink == 0));
            let rows = delivery.output.iter().map(|batch| batch.rows.num_rows()).sum();
            self.given.lock().unwrap().push((delivery.epoch.0, rows, delivery.again));
            self.fails.lock().unwrap().pop_front().map_or(Ok(()), Err)
        }

        fn replaces(&self) -> bool {
            true
        }
    }

    fn rows(sink: usize, rows: i64) -> OutputBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        OutputBatch { sink, change: Change::Upsert, rows: RecordBatch::try_from_iter([("n", column)]).unwrap() }
    }

    fn deliver(parts: &Several, epoch: i64, attempt: Attempt, again: bool, output: &[OutputBatch]) -> Option<String> {
        let delivery = Delivery { shard: 0, epoch: Epoch(epoch), attempt, timestamp: 1, again, output };
        parts.deliver(&delivery).now_or_never().unwrap().err().map(|error| error.to_string())
    }

    #[test]
    fn a_sink_that_has_its_part_is_passed_over_while_another_is_tried_again() {
        let sinks: Vec<Arc<Told>> = (0..3).map(|_| Arc::default()).collect();
        let parts = Several::new(sinks.iter().map(|sink| Arc::clone(sink) as Arc<dyn Sink>).collect());
        let away = || SinkError::Unavailable("away".into());
        sinks[1].fails.lock().unwrap().extend([away(), away()]);
        let (first, output) = (Attempt::fresh(), [rows(1, 2), rows(0, 1), rows(1, 3)]);
        assert_eq!(deliver(&parts, 1, first, false, &output).as_deref(), Some("away"));
        assert_eq!(deliver(&parts, 1, first, true, &output).as_deref(), Some("away"));
        assert_eq!(deliver(&parts, 1, first, true, &output), None);
        let given = |sink: usize| sinks[sink].given.lock().unwrap().clone();
        assert_eq!((given(0), given(2)), (vec![(1, 1, false)], vec![]));
        assert_eq!(given(1), [(1, 5, false), (1, 5, true), (1, 5, true)]);
        // After a claim the whole of it comes again, and so does each epoch.
        assert_eq!(deliver(&parts, 1, Attempt::fresh(), true, &output), None);
        assert_eq!(deliver(&parts, 2, Attempt::fresh(), false, &output), None);
        assert_eq!(given(0), [(1, 1, false), (1, 1, true), (2, 1, false)]);
    }

    #[test]
    fn what_will_not_pass_decides() {
        let sinks: Vec<Arc<Told>> = (0..2).map(|_| Arc::default()).collect();
        let parts = Several::new(sinks.iter().map(|sink| Arc::clone(sink) as Arc<dyn Sink>).collect());
        sinks[0].fails.lock().unwrap().push_back(SinkError::Unavailable("away".into()));
        sinks[1].fails.lock().unwrap().push_back(SinkError::Fatal("refused".into()));
        let output = [rows(0, 1), rows(1, 1)];
        assert_eq!(deliver(&parts, 1, Attempt::fresh(), false, &output).as_deref(), Some("refused"));
        assert!(deliver(&parts, 1, Attempt::fresh(), false, &[rows(2, 1)]).unwrap().contains("sink 2"));
    }
}
