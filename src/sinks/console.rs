//! The console as a sink: one readable table per delivery, or one JSON object per row.
//!
//! A delivery is written without a break, so that the rows of two shards never mix. Nothing is remembered: a delivery that
//! is repeated after a crash is shown again.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringBuilder, StructArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_json::WriterBuilder;
use arrow_json::writer::LineDelimited;
use datafusion::arrow::util::pretty::pretty_format_batches;
use strandline_actors::pointer::Epoch;
use strandline_actors::ports::{Change, Delivery, OutputBatch, SinkError};

use crate::catalog::{ConsoleFormat, SinkTable};

/// So many rows are made texts at a time. A larger delivery is shown as several tables.
const PIECE: usize = 8192;

/// Standard output, or what stands for it.
pub(super) struct Console {
    format: ConsoleFormat,
    primary_key: Vec<String>,
    out: Arc<Mutex<dyn Write + Send>>,
}

impl Console {
    /// Shows rows on standard output.
    pub(super) fn stdout(table: &SinkTable, format: ConsoleFormat) -> Self {
        Self::new(table, format, Arc::new(Mutex::new(io::stdout())))
    }

    fn new(table: &SinkTable, format: ConsoleFormat, out: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self { format, primary_key: table.primary_key.clone(), out }
    }

    /// Shows the rows of one epoch. Waits for as long as nobody reads.
    pub(super) async fn deliver(&self, delivery: &Delivery<'_>) -> Result<(), SinkError> {
        let rows: usize = delivery.output.iter().map(|batch| batch.rows.num_rows()).sum();
        if rows == 0 {
            return Ok(());
        }
        let again = if delivery.again { ", perhaps shown before" } else { "" };
        let shown = Shown {
            format: self.format,
            primary_key: self.primary_key.clone(),
            shard: delivery.shard,
            epoch: delivery.epoch,
            header: format!("shard {}, epoch {}: {rows} row{}{again}", delivery.shard, delivery.epoch, plural(rows)),
            output: delivery.output.to_vec(),
        };
        let out = Arc::clone(&self.out);
        // A pipe that nobody reads blocks, and must not block the actors.
        let written = tokio::task::spawn_blocking(move || {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            shown.write(&mut *out)?;
            Ok::<_, ShowError>(out.flush()?)
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(ShowError::Write(error))) if error.kind() == io::ErrorKind::BrokenPipe => Err(SinkError::Fatal(
                "standard output was closed, so no row can be shown any more: start the process again with a reader"
                    .into(),
            )),
            Ok(Err(ShowError::Write(error))) => {
                Err(SinkError::Unavailable(format!("standard output does not take rows: {error}")))
            }
            Ok(Err(ShowError::Rows(error))) => Err(SinkError::Fatal(format!("the rows cannot be shown: {error}"))),
            Err(error) => Err(SinkError::Unavailable(format!("the rows were not written: {error}"))),
        }
    }
}

/// Why rows are not on the console.
#[derive(Debug, thiserror::Error)]
enum ShowError {
    #[error(transparent)]
    Rows(#[from] ArrowError),
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// The rows of a delivery, on their way to the console.
struct Shown {
    format: ConsoleFormat,
    primary_key: Vec<String>,
    shard: u32,
    epoch: Epoch,
    header: String,
    output: Vec<OutputBatch>,
}

impl Shown {
    /// Writes them in pieces: as texts, rows take several times their room.
    fn write(self, out: &mut dyn Write) -> Result<(), ShowError> {
        let mut header = Some(format!("{}\n", self.header));
        let mut piece = Vec::new();
        let mut room = PIECE;
        for batch in &self.output {
            let mut from = 0;
            while from < batch.rows.num_rows() {
                let rows = batch.rows.slice(from, room.min(batch.rows.num_rows() - from));
                (from, room) = (from + rows.num_rows(), room - rows.num_rows());
                piece.push(OutputBatch { sink: batch.sink, change: batch.change, rows });
                if room == 0 {
                    out.write_all(&self.text(&std::mem::take(&mut piece), header.take())?)?;
                    room = PIECE;
                }
            }
        }
        if !piece.is_empty() {
            out.write_all(&self.text(&piece, header.take())?)?;
        }
        Ok(())
    }

    fn text(&self, piece: &[OutputBatch], header: Option<String>) -> Result<Vec<u8>, ArrowError> {
        match self.format {
            ConsoleFormat::Table => {
                let batches: Vec<RecordBatch> =
                    piece.iter().map(|batch| self.texts(batch)).collect::<Result<_, _>>()?;
                let table = pretty_format_batches(&batches)?;
                Ok(format!("{}{table}\n", header.unwrap_or_default()).into_bytes())
            }
            ConsoleFormat::Json => self.json(piece),
        }
    }

    /// A batch as texts, with the kind of change before them. Of a removed row only the primary key is shown.
    fn texts(&self, batch: &OutputBatch) -> Result<RecordBatch, ArrowError> {
        let options = FormatOptions::new().with_null("NULL").with_display_error(true);
        let rows = batch.rows.num_rows();
        let sign = sign(batch.change);
        let mut fields = vec![Field::new("", DataType::Utf8, false)];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec![sign; rows]))];
        for (field, column) in batch.rows.schema_ref().fields().iter().zip(batch.rows.columns()) {
            let mut texts = StringBuilder::new();
            if self.shows(batch.change, field.name()) {
                let formatter = ArrayFormatter::try_new(column, &options)?;
                for row in 0..rows {
                    texts.append_value(printable(&formatter.value(row).to_string()));
                }
            } else {
                texts.append_nulls(rows);
            }
            fields.push(Field::new(printable(field.name()), DataType::Utf8, true));
            columns.push(Arc::new(texts.finish()));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
    }

    /// `{"op":"+","row":{...},"shard":0,"epoch":1}`, one row a line.
    fn json(&self, piece: &[OutputBatch]) -> Result<Vec<u8>, ArrowError> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
        for batch in piece {
            let rows = batch.rows.num_rows();
            let mut fields = Vec::new();
            let mut columns = Vec::new();
            for (field, column) in batch.rows.schema_ref().fields().iter().zip(batch.rows.columns()) {
                if self.shows(batch.change, field.name()) {
                    fields.push(Arc::clone(field));
                    columns.push(Arc::clone(column));
                }
            }
            let row = StructArray::try_new_with_length(fields.into(), columns, None, rows)?;
            writer.write(&RecordBatch::try_from_iter([
                ("op", Arc::new(StringArray::from(vec![sign(batch.change); rows])) as ArrayRef),
                ("row", Arc::new(row)),
                ("shard", Arc::new(UInt32Array::from_value(self.shard, rows))),
                ("epoch", Arc::new(Int64Array::from_value(self.epoch.0, rows))),
            ])?)?;
        }
        writer.finish()?;
        Ok(writer.into_inner())
    }

    fn shows(&self, change: Change, column: &str) -> bool {
        change == Change::Upsert || self.primary_key.is_empty() || self.primary_key.iter().any(|key| key == column)
    }
}

fn plural(rows: usize) -> &'static str {
    if rows == 1 { "" } else { "s" }
}

fn sign(change: Change) -> &'static str {
    match change {
        Change::Upsert => "+",
        Change::Delete => "-",
    }
}

/// A text without what would break a table or steer a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{Decimal128Array, Float64Array, Int64Array, TimestampMicrosecondArray};
    use strandline_actors::pointer::{Attempt, Epoch};

    use super::*;
    use crate::catalog::SinkKind;

    /// What has been written, or the error that writing gives.
    #[derive(Default)]
    struct Screen {
        text: Vec<u8>,
        error: Option<io::ErrorKind>,
        writes: usize,
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(kind) = self.error {
                return Err(kind.into());
            }
            self.writes += 1;
            self.text.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn rows() -> RecordBatch {
        let total = Decimal128Array::from(vec![Some(1250), None]).with_precision_and_scale(10, 2).unwrap();
        RecordBatch::try_from_iter_with_nullable([
            ("at", Arc::new(TimestampMicrosecondArray::from(vec![0, 1_500_000])) as ArrayRef, true),
            ("item", Arc::new(StringArray::from(vec![Some("Bürste"), None])), true),
            ("n", Arc::new(Int64Array::from(vec![i64::MAX, 0])), true),
            ("total", Arc::new(total), true),
        ])
        .unwrap()
    }

    fn console(format: ConsoleFormat, rows: &RecordBatch, key: &[&str]) -> (Console, Arc<Mutex<Screen>>) {
        let table = SinkTable {
            name: "results".into(),
            kind: SinkKind::Console { format },
            schema: rows.schema(),
            primary_key: key.iter().map(|column| (*column).to_owned()).collect(),
        };
        let screen = Arc::new(Mutex::new(Screen::default()));
        let out: Arc<Mutex<dyn Write + Send>> = Arc::clone(&screen) as _;
        (Console::new(&table, format, out), screen)
    }

    async fn deliver(console: &Console, output: &[OutputBatch], again: bool) -> Result<(), SinkError> {
        let attempt = Attempt::fresh();
        console.deliver(&Delivery { shard: 3, epoch: Epoch(7), attempt, timestamp: 1, again, output }).await
    }

    fn changes(rows: &RecordBatch) -> Vec<OutputBatch> {
        let batch = |change, rows| OutputBatch { sink: 0, change, rows };
        vec![batch(Change::Upsert, rows.clone()), batch(Change::Delete, rows.slice(0, 1))]
    }

    fn text(screen: &Mutex<Screen>) -> String {
        String::from_utf8(screen.lock().unwrap().text.clone()).unwrap()
    }

    #[tokio::test]
    async fn a_table_shows_the_rows_of_a_delivery_in_one_piece() {
        let (console, screen) = console(ConsoleFormat::Table, &rows(), &["at", "item"]);
        deliver(&console, &changes(&rows()), false).await.unwrap();
        let expected = "\
shard 3, epoch 7: 3 rows
+---+-------------------------+--------+---------------------+-------+
|   | at                      | item   | n                   | total |
+---+-------------------------+--------+---------------------+-------+
| + | 1970-01-01T00:00:00     | Bürste | 9223372036854775807 | 12.50 |
| + | 1970-01-01T00:00:01.500 | NULL   | 0                   | NULL  |
| - | 1970-01-01T00:00:00     | Bürste |                     |       |
+---+-------------------------+--------+---------------------+-------+
";
        assert_eq!(text(&screen), expected);
        assert_eq!(screen.lock().unwrap().writes, 1);
    }

    #[tokio::test]
    async fn a_large_delivery_is_shown_in_pieces_of_which_none_is_left_out() {
        let numbers = |from: i64, until| {
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(from..until)) as ArrayRef)])
                .unwrap()
        };
        let last = 3 * PIECE as i64 + 10;
        let batch = |rows| OutputBatch { sink: 0, change: Change::Upsert, rows };
        let output = [batch(numbers(0, 7)), batch(numbers(7, last - 1)), batch(numbers(last - 1, last))];

        let (console, screen) = self::console(ConsoleFormat::Json, &numbers(0, 1), &[]);
        deliver(&console, &output, false).await.unwrap();
        let shown = text(&screen);
        let shown = shown.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        assert!(shown.map(|line| line["row"]["n"].as_i64().unwrap()).eq(0..last));
        assert_eq!(screen.lock().unwrap().writes, 4);

        let (console, screen) = self::console(ConsoleFormat::Table, &numbers(0, 1), &[]);
        deliver(&console, &output, false).await.unwrap();
        let shown = text(&screen);
        assert!(shown.starts_with(&format!("shard 3, epoch 7: {last} rows\n+---")));
        let rows = shown.lines().filter_map(|line| line.strip_prefix("| + | "));
        assert!(rows.map(|row| row.trim_end_matches([' ', '|']).parse::<i64>().unwrap()).eq(0..last));
    }

    #[tokio::test]
    async fn a_repeated_delivery_says_so() {
        let (console, screen) = console(ConsoleFormat::Table, &rows(), &["at"]);
        let output = [OutputBatch { sink: 0, change: Change::Upsert, rows: rows().slice(0, 1) }];
        deliver(&console, &output, true).await.unwrap();
        assert!(text(&screen).starts_with("shard 3, epoch 7: 1 row, perhaps shown before\n"));
    }

    #[tokio::test]
    async fn json_lines_show_a_row_each() {
        let (console, screen) = console(ConsoleFormat::Json, &rows(), &["at", "item"]);
        deliver(&console, &changes(&rows()), false).await.unwrap();
        let expected = concat!(
            r#"{"op":"+","row":{"at":"1970-01-01T00:00:00","item":"Bürste","n":9223372036854775807,"total":12.50},"shard":3,"epoch":7}"#,
            "\n",
            r#"{"op":"+","row":{"at":"1970-01-01T00:00:01.500","item":null,"n":0,"total":null},"shard":3,"epoch":7}"#,
            "\n",
            r#"{"op":"-","row":{"at":"1970-01-01T00:00:00","item":"Bürste"},"shard":3,"epoch":7}"#,
            "\n"
        );
        assert_eq!(text(&screen), expected);
        for line in text(&screen).lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }

    #[tokio::test]
    async fn without_a_primary_key_a_removed_row_is_shown_whole() {
        let (console, screen) = console(ConsoleFormat::Json, &rows(), &[]);
        let output = [OutputBatch { sink: 0, change: Change::Delete, rows: rows().slice(1, 1) }];
        deliver(&console, &output, false).await.unwrap();
        assert!(text(&screen).contains(r#""n":0,"total":null}"#), "{}", text(&screen));
    }

    #[tokio::test]
    async fn nothing_is_shown_of_an_empty_delivery() {
        for format in [ConsoleFormat::Table, ConsoleFormat::Json] {
            let (console, screen) = console(format, &rows(), &[]);
            deliver(&console, &[], false).await.unwrap();
            let empty = OutputBatch { sink: 0, change: Change::Upsert, rows: rows().slice(0, 0) };
            deliver(&console, &[empty], false).await.unwrap();
            assert_eq!(text(&screen), "");
        }
    }

    #[tokio::test]
    async fn values_cannot_break_a_table_or_steer_a_terminal() {
        let batch = RecordBatch::try_from_iter([
            ("a\nb", Arc::new(StringArray::from(vec!["\u{1b}[2J\nnext\ttab"])) as ArrayRef),
            ("nan", Arc::new(Float64Array::from(vec![f64::NAN]))),
        ])
        .unwrap();
        let (console, screen) = console(ConsoleFormat::Table, &batch, &[]);
        let output = [OutputBatch { sink: 0, change: Change::Upsert, rows: batch }];
        deliver(&console, &output, false).await.unwrap();
        assert!(text(&screen).contains(r"| + | \u{1b}[2J\nnext\ttab | NaN |"), "{}", text(&screen));
        assert_eq!(text(&screen).lines().count(), 6);
    }

    #[tokio::test]
    async fn a_closed_output_stops_the_shard_and_another_fault_does_not() {
        let (console, screen) = console(ConsoleFormat::Table, &rows(), &[]);
        screen.lock().unwrap().error = Some(io::ErrorKind::BrokenPipe);
        let error = deliver(&console, &changes(&rows()), false).await.unwrap_err();
        assert!(matches!(error, SinkError::Fatal(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            "standard output was closed, so no row can be shown any more: start the process again with a reader"
        );
        screen.lock().unwrap().error = Some(io::ErrorKind::StorageFull);
        let error = deliver(&console, &changes(&rows()), false).await.unwrap_err();
        assert!(matches!(error, SinkError::Unavailable(_)), "{error:?}");
    }
}
