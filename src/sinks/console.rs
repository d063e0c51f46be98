//! The console as a sink: one readable table per delivery, or one JSON object per row.
//!
//! A delivery is written in one piece, so that the rows of two shards never mix. Nothing is remembered: a delivery that
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
use strandline_actors::ports::{Change, Delivery, OutputBatch, SinkError};

use crate::catalog::{ConsoleFormat, SinkTable};

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
        if delivery.output.iter().all(|batch| batch.rows.num_rows() == 0) {
            return Ok(());
        }
        let shown = match self.format {
            ConsoleFormat::Table => self.table(delivery),
            ConsoleFormat::Json => self.json(delivery),
        };
        let text = shown.map_err(|error| SinkError::Fatal(format!("the rows cannot be shown: {error}")))?;
        let out = Arc::clone(&self.out);
        // A pipe that nobody reads blocks, and must not block the actors.
        let written = tokio::task::spawn_blocking(move || {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            out.write_all(&text).and_then(|()| out.flush())
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Err(SinkError::Fatal(
                "standard output was closed, so no row can be shown any more: start the process again with a reader"
                    .into(),
            )),
            Ok(Err(error)) => Err(SinkError::Unavailable(format!("standard output does not take rows: {error}"))),
            Err(error) => Err(SinkError::Unavailable(format!("the rows were not written: {error}"))),
        }
    }

    fn table(&self, delivery: &Delivery<'_>) -> Result<Vec<u8>, ArrowError> {
        let batches: Vec<RecordBatch> =
            delivery.output.iter().map(|batch| self.texts(batch)).collect::<Result<_, _>>()?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let again = if delivery.again { ", perhaps shown before" } else { "" };
        let plural = if rows == 1 { "" } else { "s" };
        let header = format!("shard {}, epoch {}: {rows} row{plural}{again}", delivery.shard, delivery.epoch);
        Ok(format!("{header}\n{}\n", pretty_format_batches(&batches)?).into_bytes())
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
    fn json(&self, delivery: &Delivery<'_>) -> Result<Vec<u8>, ArrowError> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
        for batch in delivery.output {
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
                ("shard", Arc::new(UInt32Array::from_value(delivery.shard, rows))),
                ("epoch", Arc::new(Int64Array::from_value(delivery.epoch.0, rows))),
            ])?)?;
        }
        writer.finish()?;
        Ok(writer.into_inner())
    }

    fn shows(&self, change: Change, column: &str) -> bool {
        change == Change::Upsert || self.primary_key.is_empty() || self.primary_key.iter().any(|key| key == column)
    }
}

fn sign(change: Change) -> &'static str {
    match change {
        Change::Upsert => "+",
        Change::Delete => "-",
    }
}

/// A text without what would break a table or steer a terminal.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    out
}
