//! Where the demo's results go: a table in memory, in which a row replaces the earlier one of its item.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Int64Type};
use async_trait::async_trait;
use strandline_actors::ports::{Change, Delivery, Sink, SinkError};

use super::shop::{Books, Count, Sums};

/// The table.
pub(super) struct Counted {
    rows: Mutex<BTreeMap<String, (i64, Sums)>>,
    excess: Mutex<Option<String>>,
    books: Arc<Books>,
}

impl Counted {
    /// An empty table. Whatever comes is held against the books.
    pub(super) fn new(books: Arc<Books>) -> Self {
        Self { rows: Mutex::default(), excess: Mutex::default(), books }
    }

    /// What it holds.
    pub(super) fn count(&self) -> Count {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().map(|(item, (_, sums))| (item.clone(), *sums)).collect()
    }

    /// The first time that more was counted than there was, if there was one.
    pub(super) fn excess(&self) -> Option<String> {
        self.excess.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self, rows: &RecordBatch, timestamp: i64) -> Result<(), String> {
        let column = |number: usize, kind: DataType| {
            let column = rows.columns().get(number).ok_or("a column is missing")?;
            cast(column, &kind).map_err(|error| error.to_string())
        };
        let items = column(0, DataType::Utf8)?;
        let items = items.as_string::<i32>();
        let orders = column(1, DataType::Int64)?;
        let pieces = column(2, DataType::Int64)?;
        let cents = column(3, DataType::Decimal128(38, 2))?;
        for row in 0..items.len() {
            let sums = Sums {
                orders: u64::try_from(orders.as_primitive::<Int64Type>().value(row)).unwrap_or_default(),
                pieces: pieces.as_primitive::<Int64Type>().value(row),
                cents: i64::try_from(cents.as_primitive::<Decimal128Type>().value(row)).unwrap_or(i64::MAX),
            };
            self.put(items.value(row), timestamp, sums);
        }
        Ok(())
    }

    /// As in a database, the later write wins, whenever it arrives.
    fn put(&self, item: &str, timestamp: i64, sums: Sums) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(item.to_owned()).or_default();
        if timestamp >= row.0 {
            *row = (timestamp, sums);
        }
    }

    /// More than was produced can never rightly be counted, not even for a moment.
    fn compare(&self) {
        // In this order: what is produced in between makes only the truth larger.
        let count = self.count();
        let truth = self.books.truth();
        for (item, counted) in count {
            let produced = truth.get(&item).copied().unwrap_or_default();
            if counted.orders > produced.orders {
                let mut excess = self.excess.lock().unwrap_or_else(PoisonError::into_inner);
                excess.get_or_insert_with(|| {
                    format!("{} orders of {item} were counted when there were {}", counted.orders, produced.orders)
                });
            }
        }
    }
}

#[async_trait]
impl Sink for Counted {
    async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        for batch in delivery.output {
            if batch.change != Change::Upsert {
                return Err(SinkError::Fatal("the demo's query deletes nothing".into()));
            }
            self.take(&batch.rows, delivery.timestamp).map_err(SinkError::Fatal)?;
            self.compare();
        }
        Ok(())
    }

    fn replaces(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{ArrayRef, Decimal128Array, Int64Array, StringArray};
    use strandline_actors::pointer::{Attempt, Epoch};
    use strandline_actors::ports::OutputBatch;

    use super::*;

    async fn deliver(table: &Counted, timestamp: i64, orders: i64, cents: i128) -> Result<(), SinkError> {
        let amounts = Decimal128Array::from(vec![cents]).with_precision_and_scale(28, 2).unwrap();
        let columns: [(&str, ArrayRef); 4] = [
            ("item", Arc::new(StringArray::from(vec!["tea"]))),
            ("orders", Arc::new(Int64Array::from(vec![orders]))),
            ("pieces", Arc::new(Int64Array::from(vec![orders * 2]))),
            ("amount", Arc::new(amounts)),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let output = [OutputBatch { sink: 0, change: Change::Upsert, rows }];
        let (epoch, attempt) = (Epoch(1), Attempt::fresh());
        table.deliver(&Delivery { shard: 0, epoch, attempt, timestamp, again: false, output: &output }).await
    }

    #[tokio::test]
    async fn the_later_write_wins_and_too_much_is_noticed() {
        let books = Arc::new(Books::with_truth("tea", 5));
        let table = Counted::new(books);
        deliver(&table, 20, 5, 1234).await.unwrap();
        deliver(&table, 10, 3, 1).await.unwrap();
        assert_eq!(table.count()["tea"], Sums { orders: 5, pieces: 10, cents: 1234 });
        assert_eq!(table.excess(), None);
        deliver(&table, 30, 6, 1300).await.unwrap();
        assert_eq!(table.excess().unwrap(), "6 orders of tea were counted when there were 5");
    }
}
