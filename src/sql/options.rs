//! The OPTIONS of a table: which keys each kind of table knows, and what their values mean.
//!
//! Keys are dotted and lower case. A key that is not known is an error that names the nearest one, so a misspelt option
//! is never silently without effect.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::ast::Value;

use super::clock::is_clock;
use super::error::{Place, SqlError, Text};
use super::windows::calls;
use super::windows::event_time::LateRows;
use crate::catalog::{ConsoleFormat, OnDataLoss, StartingOffsets};

/// What becomes of a record that cannot be processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BadRecords {
    /// It is kept aside with the reason.
    #[default]
    DeadLetter,
    /// It is counted, no more.
    Skip,
    /// The partition halts.
    Fail,
}

/// What becomes of a record without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NullValue {
    /// It is counted as a tombstone.
    #[default]
    Skip,
    /// It is kept aside.
    DeadLetter,
    /// The partition halts.
    Fail,
}

/// A condition that each record of a table must not break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleText {
    pub(super) name: String,
    pub(super) condition: String,
    pub(super) place: Option<Place>,
}

/// The options of a `kafka://` table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KafkaOptions {
    pub(super) starting_offsets: StartingOffsets,
    pub(super) max_offsets_per_batch: Option<usize>,
    pub(super) on_data_loss: OnDataLoss,
    pub(super) bad_records: BadRecords,
    pub(super) null_value: NullValue,
    pub(super) rules: Vec<RuleText>,
    pub(super) watermark: Option<WatermarkText>,
    pub(super) late_rows: LateRows,
    /// What becomes of rows too far ahead, if they are not kept in their windows.
    pub(super) ahead_rows: Option<BadRecords>,
    /// `json.<key>`, without the prefix.
    pub(super) json: Vec<JsonOption>,
    /// `kafka.<property>`, without the prefix.
    pub(super) properties: BTreeMap<String, String>,
}

/// How the event time of a table is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatermarkText {
    pub(super) column: String,
    /// In nanoseconds.
    pub(super) delay: i64,
    /// In nanoseconds.
    pub(super) max_ahead: i64,
    /// In nanoseconds.
    pub(super) idle: Option<i64>,
    /// In nanoseconds, and where it was given.
    pub(super) close_after: Option<(i64, Option<Place>)>,
    pub(super) place: Option<Place>,
}

/// What a sink is told of the groups of a query, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OutputMode {
    /// The groups that changed, at each checkpoint.
    #[default]
    Update,
    /// Each window once, when it is closed.
    Append,
    /// All groups, at each checkpoint.
    Complete {
        /// Rows that a shard may have.
        limit: usize,
    },
}

/// One `json.<key>` option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonOption {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Option<Place>,
}

/// The options of a sink, of whichever kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SinkOptions {
    pub(super) create: bool,
    pub(super) null_key: Option<String>,
    pub(super) console_format: Option<ConsoleFormat>,
    pub(super) told: Told,
}

/// What a table that is written says of the query that writes it, each with the place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) mode: Option<(OutputMode, Option<Place>)>,
    /// After how many nanoseconds without a row a group is forgotten.
    pub(super) ttl: Option<(i64, Option<Place>)>,
}

/// An option as it was written.
pub(super) struct Written<'a> {
    pub(super) table: &'a str,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Option<Place>,
}

impl Written<'_> {
    fn error(&self, message: String) -> SqlError {
        SqlError::at(format!("table {}: {message}", self.table), self.place)
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, SqlError> {
        choices.iter().find(|(name, _)| *name == self.value).map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("'{name}'")).collect();
            self.error(format!("'{}' '{}' is not one of {}", self.key, self.value, names.join(", ")))
        })
    }

    /// A length of time in nanoseconds.
    fn length(&self) -> Result<i64, SqlError> {
        match calls::length(&self.value) {
            Ok(nanos) if nanos >= 0 => Ok(nanos),
            Ok(_) => Err(self.error(format!("'{}' '{}' is less than nothing", self.key, self.value))),
            Err(message) => Err(self.error(format!("'{}': {message}", self.key))),
        }
    }

    fn unknown(&self, known: &[&str]) -> SqlError {
        let nearest = known
            .iter()
            .map(|name| (strsim::normalized_damerau_levenshtein(&self.key.to_lowercase(), name), name))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let advice = match nearest {
            Some((near, name)) if near > 0.5 => format!("; did you mean '{name}'?"),
            _ => format!("; known are {}", known.iter().map(|k| format!("'{k}'")).collect::<Vec<_>>().join(", ")),
        };
        self.error(format!("unknown option '{}'{advice}", self.key))
    }
}

/// The options of one statement as they were written, each key once.
pub(super) fn written<'a>(
    table: &'a str,
    options: &[(String, Value)],
    text: &Text,
    statement: Option<Place>,
) -> Result<Vec<Written<'a>>, SqlError> {
    let mut seen = std::collections::BTreeSet::new();
    options
        .iter()
        .map(|(key, value)| {
            let value = match value {
                Value::SingleQuotedString(text)
                | Value::DoubleQuotedString(text)
                | Value::EscapedStringLiteral(text) => text.clone(),
                other => other.to_string(),
            };
            let option = Written { table, key: key.clone(), value, place: text.string(key, statement) };
            match seen.insert(key.clone()) {
                true => Ok(option),
                false => Err(option.error(format!("option '{key}' is given twice"))),
            }
        })
        .collect()
}

pub(super) const KAFKA_KEYS: [&str; 18] = [
    "starting.offsets",
    "max.offsets.per.batch",
    "on.data.loss",
    "bad.records",
    "null.value",
    "watermark.column",
    "watermark.delay",
    "watermark.max.ahead",
    "watermark.idle",
    "watermark.close.after",
    "late.rows",
    "ahead.rows",
    "json.timestamp.unit",
    "json.timestamp.unit.<column>",
    "json.missing",
    "json.extra",
    "rule.<name>",
    "kafka.<property>",
];

/// The options of every table that is written.
pub(super) const OUTPUT_KEYS: [&str; 3] = ["output.mode", "complete.limit", "state.ttl"];

/// How far a record may move the watermark ahead of its Kafka timestamp if nothing else is said: a day.
pub(super) const MAX_AHEAD: i64 = 86_400_000_000_000;
/// Rows that complete mode writes if nothing else is said.
const COMPLETE_LIMIT: usize = 10_000;

/// librdkafka properties that carry the promise that nothing is lost or counted twice.
const RESERVED: [&str; 4] =
    ["enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof"];

/// Reads the options of a `kafka://` table.
pub(super) fn kafka(options: Vec<Written<'_>>) -> Result<KafkaOptions, SqlError> {
    let mut read = KafkaOptions::default();
    let mut watermark = Watermark::default();
    let table = options.first().map_or("", |option| option.table);
    for option in options {
        match option.key.as_str() {
            "starting.offsets" => read.starting_offsets = starting_offsets(&option)?,
            "max.offsets.per.batch" => {
                let number = option.value.parse::<usize>().ok().filter(|number| *number > 0);
                read.max_offsets_per_batch = Some(number.ok_or_else(|| {
                    option.error(format!("'max.offsets.per.batch' '{}' is not a number above 0", option.value))
                })?);
            }
            "on.data.loss" => {
                read.on_data_loss = option.one_of(&[("fail", OnDataLoss::Fail), ("skip", OnDataLoss::Skip)])?;
            }
            "bad.records" => {
                read.bad_records = option.one_of(&[
                    ("dead-letter", BadRecords::DeadLetter),
                    ("skip", BadRecords::Skip),
                    ("fail", BadRecords::Fail),
                ])?;
            }
            "null.value" => {
                read.null_value = option.one_of(&[
                    ("skip", NullValue::Skip),
                    ("dead-letter", NullValue::DeadLetter),
                    ("fail", NullValue::Fail),
                ])?;
            }
            "watermark.column" => watermark.column = Some((option.value.clone(), option.place)),
            "watermark.delay" => watermark.delay = Some((option.length()?, option.place)),
            "watermark.max.ahead" => watermark.max_ahead = Some((option.length()?, option.place)),
            "watermark.idle" => watermark.idle = Some((option.length()?, option.place)),
            "watermark.close.after" => watermark.close_after = Some((option.length()?, option.place)),
            "late.rows" => {
                read.late_rows = option.one_of(&[("drop", LateRows::Drop), ("dead-letter", LateRows::DeadLetter)])?;
                watermark.rows = option.place.or(watermark.rows);
            }
            "ahead.rows" => {
                read.ahead_rows = option.one_of(&[
                    ("keep", None),
                    ("drop", Some(BadRecords::Skip)),
                    ("dead-letter", Some(BadRecords::DeadLetter)),
                ])?;
                watermark.rows = option.place.or(watermark.rows);
            }
            key => match key.split_once('.') {
                Some(("json", json)) if json_key(json) => read.json.push(JsonOption {
                    key: json.to_owned(),
                    value: option.value.clone(),
                    place: option.place,
                }),
                Some(("rule", name)) if !name.is_empty() => read.rules.push(RuleText {
                    name: name.to_owned(),
                    condition: option.value.clone(),
                    place: option.place,
                }),
                Some(("kafka", property)) if RESERVED.contains(&property) => {
                    return Err(option.error(format!(
                        "'kafka.{property}' cannot be set: where reading goes on is decided by the stored offsets alone"
                    )));
                }
                Some(("kafka", property)) if !property.is_empty() => {
                    read.properties.insert(property.to_owned(), option.value.clone());
                }
                _ => return Err(option.unknown(&KAFKA_KEYS)),
            },
        }
    }
    read.watermark = watermark.read(table)?;
    Ok(read)
}

/// The options of a watermark as they come.
#[derive(Default)]
struct Watermark {
    column: Option<(String, Option<Place>)>,
    delay: Option<(i64, Option<Place>)>,
    max_ahead: Option<(i64, Option<Place>)>,
    idle: Option<(i64, Option<Place>)>,
    close_after: Option<(i64, Option<Place>)>,
    /// Where it was said what becomes of rows.
    rows: Option<Place>,
}

impl Watermark {
    fn read(self, table: &str) -> Result<Option<WatermarkText>, SqlError> {
        let Some((column, place)) = self.column else {
            let place =
                [self.delay, self.max_ahead, self.idle, self.close_after].into_iter().flatten().map(|(_, place)| place);
            let place = place.chain(self.rows.map(Some)).next();
            return match place {
                Some(place) => Err(SqlError::at(
                    format!(
                        "table {table}: this option needs 'watermark.column', the column that holds the event time \
                         ('_timestamp' is Kafka's)"
                    ),
                    place,
                )),
                None => Ok(None),
            };
        };
        let others = [self.delay, self.max_ahead, self.idle, self.close_after].into_iter().flatten();
        let others = others.map(|(_, place)| place).chain(self.rows.map(Some));
        if is_clock(&column)
            && let Some(place) = others.into_iter().next()
        {
            return Err(SqlError::at(
                format!(
                    "table {table}: this option goes with an event time: by '_processing_time' no row is late or ahead, and \
                     time passes in a quiet partition too"
                ),
                place,
            ));
        }
        let delay = self.delay.map_or(0, |(delay, _)| delay);
        let max_ahead = self.max_ahead.map_or(MAX_AHEAD, |(ahead, _)| ahead);
        let idle = self.idle.map(|(idle, _)| idle);
        Ok(Some(WatermarkText { column, delay, max_ahead, idle, close_after: self.close_after, place }))
    }
}

fn json_key(key: &str) -> bool {
    matches!(key, "timestamp.unit" | "missing" | "extra")
        || key.strip_prefix("timestamp.unit.").is_some_and(|column| !column.is_empty())
}

fn starting_offsets(option: &Written<'_>) -> Result<StartingOffsets, SqlError> {
    match option.value.as_str() {
        "earliest" => Ok(StartingOffsets::Earliest),
        "latest" => Ok(StartingOffsets::Latest),
        json => {
            let wrong = || {
                option.error(format!(
                    "'starting.offsets' '{json}' is not 'earliest', 'latest' or an offset per partition like \
                     '{{\"0\": 5, \"1\": -2}}' (-2 is earliest, -1 latest)"
                ))
            };
            let offsets: BTreeMap<i32, i64> = serde_json::from_str(json).map_err(|_| wrong())?;
            let valid = offsets.iter().all(|(partition, offset)| *partition >= 0 && *offset >= -2);
            if valid { Ok(StartingOffsets::Each(offsets)) } else { Err(wrong()) }
        }
    }
}

/// Reads the options of a `cassandra://` table.
pub(super) fn cassandra(options: Vec<Written<'_>>) -> Result<SinkOptions, SqlError> {
    sink(options, &["sink.create", "sink.null.key"])
}

/// Reads the options of a `console://` table.
pub(super) fn console(options: Vec<Written<'_>>) -> Result<SinkOptions, SqlError> {
    sink(options, &["console.format"])
}

/// Reads the options of a `blackhole://` table.
pub(super) fn blackhole(options: Vec<Written<'_>>) -> Result<SinkOptions, SqlError> {
    sink(options, &[])
}

/// Reads the options of a sink that has some of its own.
fn sink(options: Vec<Written<'_>>, own: &[&str]) -> Result<SinkOptions, SqlError> {
    let mut read = SinkOptions::default();
    let mut limit = None;
    let table = options.first().map_or("", |option| option.table);
    for option in options {
        let key = option.key.as_str();
        if !own.contains(&key) && !OUTPUT_KEYS.contains(&key) {
            return Err(option.unknown(&[own, &OUTPUT_KEYS].concat()));
        }
        match key {
            "sink.create" => read.create = option.one_of(&[("true", true), ("false", false)])?,
            "sink.null.key" => read.null_key = Some(option.value.clone()),
            "console.format" => {
                read.console_format =
                    Some(option.one_of(&[("table", ConsoleFormat::Table), ("json", ConsoleFormat::Json)])?);
            }
            "output.mode" => {
                let complete = OutputMode::Complete { limit: COMPLETE_LIMIT };
                let modes = [("append", OutputMode::Append), ("update", OutputMode::Update), ("complete", complete)];
                read.told.mode = Some((option.one_of(&modes)?, option.place));
            }
            "state.ttl" => {
                let ttl = option.length()?;
                if ttl == 0 {
                    return Err(option.error("'state.ttl' must be more than nothing".into()));
                }
                read.told.ttl = Some((ttl, option.place));
            }
            _ => {
                let number = option.value.parse::<usize>().ok().filter(|number| *number > 0);
                let Some(number) = number else {
                    let message = format!("'complete.limit' '{}' is not a number above 0", option.value);
                    return Err(option.error(message));
                };
                limit = Some((number, option.place));
            }
        }
    }
    match (&mut read.told.mode, limit) {
        (Some((OutputMode::Complete { limit }, _)), Some((number, _))) => *limit = number,
        (_, Some((_, place))) => {
            return Err(SqlError::at(
                format!("table {table}: 'complete.limit' is for 'output.mode' 'complete'"),
                place,
            ));
        }
        _ => {}
    }
    Ok(read)
}
