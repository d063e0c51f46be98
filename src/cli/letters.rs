//! `strandline dead-letters`: the records that could not be processed, with the reason and what they held.
//!
//! Whatever a record holds, it can neither break a line of the list nor steer the terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;

use arrow::array::TimestampMicrosecondArray;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::Subcommand;
use serde_json::{Value, json};

use super::stored::named;
use super::{Failure, connections, replay};
use crate::kafka::kafka_form;
use crate::settings::Loaded;
use crate::sinks::printable;
use crate::stores::letters::{Letter, Letters, Payload, Replays, Wanted};

/// Lines of the table that are aligned together.
const BLOCK: usize = 500;
/// The longest reason in the table.
const REASON: usize = 120;

/// What is asked for.
#[derive(Debug, Subcommand)]
pub(super) enum Ask {
    /// Lists the records by topic, partition and offset.
    List {
        /// As JSON lines, each the whole record.
        #[arg(long)]
        json: bool,
        /// Only those of this topic.
        #[arg(long)]
        topic: Option<String>,
        /// Only those of this partition.
        #[arg(long)]
        partition: Option<i32>,
        /// Only those whose reason has this text in it, in upper or lower case.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// This many at most; 0 for all.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Sends records to Kafka again, and marks them. Each is sent at least once; what is marked is passed over.
    Replay(replay::Again),
    /// Shows one record whole: reason, times, key and value.
    Show {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset.
        offset: i64,
        /// As JSON, a line for each.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn dead_letters(given: &Loaded, ask: &Ask) -> Result<(), Failure> {
    let settings = &given.settings;
    let name = named(settings)?;
    if let Ask::Replay(again) = ask {
        return replay::replay(settings, again);
    }
    let io = connections()?;
    let done = io.block_on(async {
        let letters = Letters::open(settings).await?;
        match ask {
            Ask::Replay(_) => Ok(()),
            Ask::List { json, topic, partition, reason, limit } => {
                known(&letters, name, topic.as_deref())?;
                let wanted =
                    Wanted { topic: topic.clone(), partition: *partition, payload: *json, ..Wanted::default() };
                list(&letters, &wanted, reason.as_deref(), *limit, *json).await
            }
            Ask::Show { topic, partition, offset, json } => {
                known(&letters, name, Some(topic))?;
                show(&letters, name, (topic, *partition, *offset), *json).await
            }
        }
    });
    io.shutdown_background();
    done
}

/// A topic that was never read has no letters, and was probably meant otherwise.
pub(super) fn known(letters: &Letters, pipeline: &str, topic: Option<&str>) -> Result<(), Failure> {
    let topics = letters.topics();
    match topic {
        Some(topic) if !topics.contains(topic) => {
            let read: Vec<&str> = topics.into_iter().collect();
            let read = if read.is_empty() { "nothing so far".to_owned() } else { read.join(", ") };
            Err(Failure::usage(format!("pipeline `{pipeline}` has never read a topic `{topic}`; it reads {read}")))
        }
        _ => Ok(()),
    }
}

async fn list(
    letters: &Letters,
    wanted: &Wanted,
    reason: Option<&str>,
    limit: usize,
    json: bool,
) -> Result<(), Failure> {
    let reason = reason.map(str::to_lowercase);
    let (mut shown, mut more) = (0_usize, false);
    let mut out = Out::default();
    let mut table = Table::default();
    let replays = if json { replays(letters, wanted).await? } else { BTreeMap::new() };
    let each = &mut |letter: Letter| {
        if reason.as_ref().is_some_and(|reason| !letter.reason.to_lowercase().contains(reason.as_str())) {
            return ControlFlow::Continue(());
        }
        if limit > 0 && shown == limit {
            more = true;
            return ControlFlow::Break(());
        }
        shown += 1;
        let text =
            if json { format!("{}\n", as_json(&letter, replayed(&replays, &letter))) } else { table.add(&letter) };
        out.write(&text)
    };
    letters.read(wanted, each).await.map_err(Failure::failed)?;
    if !json {
        let rest = if shown == 0 { "There are no such dead letters\n".to_owned() } else { table.rest() };
        let _ = out.write(&rest);
    }
    if more {
        // Not among the letters: somebody may be counting them.
        let _ = writeln!(std::io::stderr(), "There are more than these {limit}: --limit 0 shows all");
    }
    Ok(())
}

/// When letters were sent again, by partition.
pub(super) type AllReplays = BTreeMap<(String, i32), Replays>;

pub(super) async fn replays(letters: &Letters, wanted: &Wanted) -> Result<AllReplays, Failure> {
    let mut all = AllReplays::new();
    for (topic, partition) in letters.partitions(wanted) {
        let replays = letters.replays(topic, *partition).await.map_err(Failure::failed)?;
        if !replays.is_empty() {
            all.insert((topic.clone(), *partition), replays);
        }
    }
    Ok(all)
}

/// When a letter was sent again, in microseconds since the epoch.
pub(super) fn replayed(replays: &AllReplays, letter: &Letter) -> Option<i64> {
    let of_partition = replays.get(&(letter.topic.clone(), letter.partition))?;
    of_partition.get(&(letter.offset, letter.topic_id)).copied()
}

async fn show(
    letters: &Letters,
    pipeline: &str,
    (topic, partition, offset): (&str, i32, i64),
    json: bool,
) -> Result<(), Failure> {
    let wanted = Wanted {
        topic: Some(topic.to_owned()),
        partition: Some(partition),
        offset: Some(offset),
        payload: true,
        ..Wanted::default()
    };
    let mut found = Vec::new();
    let each = &mut |letter: Letter| {
        found.push(letter);
        ControlFlow::Continue(())
    };
    letters.read(&wanted, each).await.map_err(Failure::failed)?;
    if found.is_empty() {
        return Err(Failure::usage(format!(
            "pipeline `{pipeline}` has no dead letter at offset {offset} of partition {partition} of topic {topic}; \
             `strandline dead-letters list --topic {topic}` shows those that there are"
        )));
    }
    let replays = replays(letters, &wanted).await?;
    // More than one, if the topic was deleted and created again.
    let one = |letter: &Letter| match json {
        true => format!("{}\n", as_json(letter, replayed(&replays, letter))),
        false => whole(letter, replayed(&replays, letter)),
    };
    let shown: Vec<String> = found.iter().map(one).collect();
    let _ = Out::default().write(&shown.join(if json { "" } else { "\n" }));
    Ok(())
}

/// Standard output, until nobody reads it any more.
#[derive(Default)]
struct Out {
    closed: bool,
}

impl Out {
    fn write(&mut self, text: &str) -> ControlFlow<()> {
        let mut stdout = std::io::stdout().lock();
        self.closed |= stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err();
        if self.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A table of which the lines come one by one.
#[derive(Default)]
struct Table {
    lines: Vec<[String; 6]>,
    widths: [usize; 6],
    begun: bool,
}

impl Table {
    /// Takes a letter in, and answers the lines that are full.
    fn add(&mut self, letter: &Letter) -> String {
        let reason = printable(&letter.reason);
        let reason = match reason.char_indices().nth(REASON) {
            Some((end, _)) => format!("{}...", &reason[..end]),
            None => reason,
        };
        let size = letter.value.as_ref().map_or("null".to_owned(), |value| value.length.to_string());
        self.lines.push([
            printable(&letter.topic),
            letter.partition.to_string(),
            letter.offset.to_string(),
            record_time(letter),
            size,
            reason,
        ]);
        if self.lines.len() >= BLOCK { self.rest() } else { String::new() }
    }

    /// The lines that are left.
    fn rest(&mut self) -> String {
        if !std::mem::replace(&mut self.begun, true) {
            let head = ["TOPIC", "PARTITION", "OFFSET", "TIME", "BYTES", "REASON"];
            self.lines.insert(0, head.map(str::to_owned));
        }
        for line in &self.lines {
            for (width, cell) in self.widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for [topic, partition, offset, time, bytes, reason] in self.lines.drain(..) {
            let [a, b, c, d, e, _] = self.widths;
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{topic:a$}  {partition:>b$}  {offset:>c$}  {time:d$}  {bytes:>e$}  {reason}");
        }
        text
    }
}

/// Everything about one letter.
fn whole(letter: &Letter, replayed: Option<i64>) -> String {
    let Letter { topic, topic_id, partition, offset, set_aside, reason, key, value, .. } = letter;
    format!(
        "topic      {}, id {}\npartition  {partition}\noffset     {offset}\ntime       {}\nset aside  {}\nreason     {}\n{}\
         key        {}\nvalue      {}\n",
        printable(topic),
        kafka_form(*topic_id),
        record_time(letter),
        time(*set_aside),
        printable(reason),
        replayed.map(|at| format!("sent again {}\n", time(at))).unwrap_or_default(),
        payload(key.as_ref()),
        payload(value.as_ref()),
    )
}

/// A key or a value, after a line on what it is.
fn payload(payload: Option<&Payload>) -> String {
    let Some(payload) = payload else { return "null".into() };
    let Payload { length, bytes } = payload;
    let kept = match bytes.len() as u64 {
        0 if *length == 0 => return "empty".into(),
        kept if kept < *length => format!(", of which the first {kept} are kept"),
        _ => String::new(),
    };
    let plural = if *length == 1 { "" } else { "s" };
    match text(payload) {
        Some(text) => {
            let plain = text.split('\n').map(printable).collect::<Vec<_>>().join("\n");
            format!("{length} byte{plural}{kept}, text\n{plain}")
        }
        None => format!("{length} byte{plural}{kept}, not UTF-8, in hexadecimal\n{}", hexadecimal(bytes)),
    }
}

/// The text that the bytes are. Of bytes that were cut, the last character may be broken: it is left out.
fn text(payload: &Payload) -> Option<&str> {
    match std::str::from_utf8(&payload.bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && (payload.bytes.len() as u64) < payload.length => {
            std::str::from_utf8(&payload.bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn as_json(letter: &Letter, replayed: Option<i64>) -> Value {
    let mut line = json!({
        "topic": letter.topic,
        "topic_id": kafka_form(letter.topic_id),
        "partition": letter.partition,
        "offset": letter.offset,
        "time": (letter.timestamp >= 0).then(|| record_time(letter)),
        "set_aside": time(letter.set_aside),
        "reason": letter.reason,
        "replayed": replayed.map(time),
    });
    for (name, payload) in [("key", &letter.key), ("value", &letter.value)] {
        let (text, encoding) = match payload {
            None => (Value::Null, Value::Null),
            Some(payload) => match text(payload) {
                Some(text) => (text.into(), "text".into()),
                None => (hexadecimal(&payload.bytes).into(), "hex".into()),
            },
        };
        line[name] = text;
        line[format!("{name}_encoding")] = encoding;
        line[format!("{name}_bytes")] = payload.as_ref().map(|payload| payload.length).into();
    }
    line
}

fn record_time(letter: &Letter) -> String {
    if letter.timestamp < 0 { "none".into() } else { time(letter.timestamp.saturating_mul(1000)) }
}

/// Microseconds since the epoch as a time in UTC, to the millisecond.
pub(super) fn time(micros: i64) -> String {
    let column = TimestampMicrosecondArray::from(vec![micros - micros.rem_euclid(1000)]).with_timezone("+00:00");
    let options = FormatOptions::new().with_timestamp_tz_format(Some("%Y-%m-%dT%H:%M:%S%.3fZ"));
    match ArrayFormatter::try_new(&column, &options).map(|formatter| formatter.value(0).try_to_string()) {
        Ok(Ok(text)) => text,
        // A time that no calendar has.
        _ => format!("{micros} microseconds since 1970"),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn letter(offset: i64, value: Option<&[u8]>) -> Letter {
        Letter {
            topic: "orders".into(),
            topic_id: Uuid::from_u128(7),
            partition: 3,
            offset,
            timestamp: 1_700_000_000_123,
            set_aside: 1_700_000_001_000_456,
            reason: "the value is empty".into(),
            key: None,
            value: value.map(|value| Payload { length: value.len() as u64, bytes: value.to_vec() }),
        }
    }

    #[test]
    fn text_is_shown_as_text_and_the_rest_in_hexadecimal() {
        assert_eq!(payload(None), "null");
        let shown = |bytes: &[u8]| payload(letter(0, Some(bytes)).value.as_ref());
        assert_eq!(shown(b""), "empty");
        assert_eq!(shown("{\"a\":\n\"ä\"}".as_bytes()), "11 bytes, text\n{\"a\":\n\"ä\"}");
        assert_eq!(shown(&[0xff, 0]), "2 bytes, not UTF-8, in hexadecimal\nff00");
        assert_eq!(shown(b"\x1b[2Jx\r"), "6 bytes, text\n\\u{1b}[2Jx\\r");
        // Cut in the middle of a character.
        let cut = Payload { length: 9, bytes: "aä".as_bytes()[..2].to_vec() };
        assert_eq!(payload(Some(&cut)), "9 bytes, of which the first 2 are kept, text\na");
        let broken = Payload { length: 2, ..cut };
        assert_eq!(payload(Some(&broken)), "2 bytes, not UTF-8, in hexadecimal\n61c3");
    }

    #[test]
    fn a_record_is_shown_whole() {
        let mut letter = letter(42, Some(b"{"));
        letter.reason = "not valid JSON:\nline 1".into();
        assert_eq!(
            whole(&letter, None),
            "topic      orders, id AAAAAAAAAAAAAAAAAAAABw\npartition  3\noffset     42\n\
             time       2023-11-14T22:13:20.123Z\nset aside  2023-11-14T22:13:21.000Z\n\
             reason     not valid JSON:\\nline 1\nkey        null\nvalue      1 byte, text\n{\n"
        );
    }

    #[test]
    fn json_has_everything_and_says_how_bytes_are_written() {
        let line = as_json(&letter(1, Some(&[0xfe])), Some(1_700_000_002_000_000));
        let wanted = json!({
            "topic": "orders", "topic_id": "AAAAAAAAAAAAAAAAAAAABw", "partition": 3, "offset": 1,
            "time": "2023-11-14T22:13:20.123Z", "set_aside": "2023-11-14T22:13:21.000Z", "reason": "the value is empty",
            "replayed": "2023-11-14T22:13:22.000Z",
            "key": null, "key_encoding": null, "key_bytes": null,
            "value": "fe", "value_encoding": "hex", "value_bytes": 1,
        });
        assert_eq!(line, wanted);
        let timeless = Letter { timestamp: -1, ..letter(1, None) };
        assert_eq!(as_json(&timeless, None)["time"], Value::Null);
        assert_eq!(as_json(&timeless, None)["replayed"], Value::Null);
    }

    #[test]
    fn lines_are_aligned_and_stay_lines() {
        let mut table = Table::default();
        let mut long = letter(123_456, Some(&[b'x'; 1000]));
        long.reason = format!("a\nb{}", "x".repeat(500));
        assert_eq!(table.add(&letter(1, None)) + &table.add(&long), "");
        let text = table.rest();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "TOPIC   PARTITION  OFFSET  TIME                      BYTES  REASON");
        assert_eq!(lines[1], "orders          3       1  2023-11-14T22:13:20.123Z   null  the value is empty");
        assert!(lines[2].starts_with("orders          3  123456  2023-11-14T22:13:20.123Z   1000  a\\nbxxx"), "{text}");
        assert!(lines[2].ends_with("xxx...") && lines[2].len() < 200 && lines.len() == 3);
        assert_eq!(table.rest(), "");
    }

    #[test]
    fn a_time_that_no_calendar_has_is_a_number() {
        assert_eq!(time(i64::MAX), format!("{} microseconds since 1970", i64::MAX));
        assert_eq!(time(-1), "1969-12-31T23:59:59.999Z");
    }
}
