//! Windows of event time against a reference that keeps all rows, however the log is cut, whichever partition comes first
//! and whenever a shard starts anew.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;

use super::harness::{Dice, Pipeline, Record, assert_rows, each_way, log};

/// A random query over windows. Its lengths are in milliseconds, or in hours over days of Berlin.
#[derive(Debug)]
struct Query {
    windows: Windows,
    delay: i64,
    /// How far ahead of its Kafka timestamp a record may be, and what becomes of one that is further.
    ahead: i64,
    ahead_rows: &'static str,
    append: bool,
    having: bool,
    dead_letters: bool,
}

#[derive(Debug)]
enum Windows {
    Sliding {
        size: i64,
        slide: i64,
        offset: i64,
    },
    /// Days of Berlin in 2023, from this one on.
    Days {
        first: i64,
    },
}

/// The days of 1970 on that begin in summer time in Berlin, of 2023: from the day after clocks are put forward to the one on
/// which they are put back.
const SUMMER: std::ops::RangeInclusive<i64> = 19_443..=19_659;

impl Query {
    fn random(dice: &mut Dice) -> Self {
        let size = 1 + dice.below(40) as i64;
        let slide = if dice.chance(50) { size } else { 1 + dice.below(size as usize) as i64 };
        let windows = match dice.chance(75) {
            true => Windows::Sliding { size, slide, offset: dice.below(30) as i64 - 10 },
            // Around one of the changes.
            false => Windows::Days { first: [*SUMMER.start(), *SUMMER.end()][dice.below(2)] - 10 },
        };
        Self {
            windows,
            delay: dice.below(60) as i64,
            ahead: if dice.chance(50) { dice.below(40) as i64 } else { 1_000 },
            ahead_rows: ["keep", "drop", "dead-letter"][dice.below(3)],
            append: dice.chance(50),
            having: dice.chance(30),
            dead_letters: dice.chance(30),
        }
    }

    /// So many milliseconds are one of its lengths.
    fn unit(&self) -> i64 {
        if matches!(self.windows, Windows::Days { .. }) { 3_600_000 } else { 1 }
    }

    fn sql(&self) -> String {
        let (call, name) = match &self.windows {
            Windows::Sliding { size, slide, offset } => {
                let lengths = format!("'{size} milliseconds', '{slide} milliseconds', '{offset} milliseconds'");
                (format!("window(ts, {lengths})"), "window")
            }
            Windows::Days { .. } => ("calendar_window(ts, 'day', 'Europe/Berlin')".to_owned(), "calendar_window"),
        };
        let mode = if self.append { "append" } else { "update" };
        let having = match self.having {
            true => format!(
                "HAVING sum(v) % 3 <> 0 AND {name}.end <> to_timestamp_millis(7) AND {name}.start <> to_timestamp_millis(11)"
            ),
            false => String::new(),
        };
        let late = if self.dead_letters { "dead-letter" } else { "drop" };
        let (delay, ahead, ahead_rows) = (self.delay * self.unit(), self.ahead * self.unit(), self.ahead_rows);
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '{delay} milliseconds',
                 'watermark.max.ahead' '{ahead} milliseconds', 'ahead.rows' '{ahead_rows}', 'late.rows' '{late}');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3), until TIMESTAMP, k VARCHAR, n BIGINT, total BIGINT,
                 PRIMARY KEY (start, k))
               STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' '{mode}');
             INSERT INTO result
             SELECT {name}.start, {name}.end, k, count(*), sum(v) FROM orders WHERE v > 0 GROUP BY k, {call} {having}"
        )
    }

    /// Start and end of each window of a time, in milliseconds.
    fn windows(&self, ts: i64) -> Vec<(i64, i64)> {
        match self.windows {
            Windows::Sliding { size, slide, offset } => {
                let starts = (ts - size + 1..=ts).filter(|start| (start - offset) % slide == 0);
                starts.map(|start| (start, start + size)).collect()
            }
            Windows::Days { first } => {
                let midnight = |day: i64| (day * 24 - if SUMMER.contains(&day) { 2 } else { 1 }) * 3_600_000;
                let mut days = (first - 60..first + 60).map(|day| (midnight(day), midnight(day + 1)));
                vec![days.find(|(start, end)| (*start..*end).contains(&ts)).unwrap()]
            }
        }
    }

    /// The log of some orders, times as they are sent.
    fn log(&self, dice: &mut Dice) -> Vec<Order> {
        let mut orders = if dice.chance(8) { Vec::new() } else { orders(dice) };
        if let Windows::Days { first } = self.windows {
            orders.iter_mut().for_each(|order| order.ts = order.ts.map(|ts| (first * 24 + ts) * 3_600_000));
        }
        orders
    }
}

/// The Kafka timestamps of orders: the highest time before each.
fn written(orders: &[Order]) -> Vec<i64> {
    let mut highest = orders.iter().find_map(|order| order.ts).unwrap_or_default();
    let times = orders.iter().map(|order| {
        let written = highest;
        highest = order.ts.map_or(highest, |ts| ts.max(highest));
        written
    });
    times.collect()
}

/// A record of the log: its key, value and time, as they are sent.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) k: usize,
    pub(super) v: i64,
    pub(super) ts: Option<i64>,
}

pub(super) fn orders(dice: &mut Dice) -> Vec<Order> {
    let records = dice.below(80);
    let mut now = dice.below(300) as i64 - 200;
    (0..records)
        .map(|_| {
            now += dice.below(6) as i64;
            let ts = match dice.below(20) {
                0 => now - dice.below(300) as i64,
                1 => now + dice.below(50) as i64,
                _ => now - dice.below(20) as i64,
            };
            Order { k: dice.below(3), v: dice.below(9) as i64 - 1, ts: (!dice.chance(4)).then_some(ts) }
        })
        .collect()
}

pub(super) fn records(orders: &[Order]) -> Vec<Record> {
    log(orders.iter().map(|Order { k, v, ts }| {
        let ts = ts.map_or_else(|| "null".to_owned(), |ts| ts.to_string());
        format!("{{\"k\":\"k{k}\",\"v\":{v},\"ts\":{ts}}}")
    }))
}

/// What must come out.
#[derive(Default)]
struct Truth {
    /// Count and sum by start, end and key.
    groups: BTreeMap<(i64, i64, usize), (i64, i64)>,
    late: u64,
    late_closed: u64,
    ahead: u64,
    /// Rows that were left out since they were too far ahead.
    left_out: u64,
    bad: u64,
    /// Up to where windows are closed.
    closed: Option<i64>,
}

/// The reference: every window that could be, row by row. If the last partition is found later, the others were read before.
fn truth(query: &Query, logs: &[Vec<Order>], later: bool) -> Truth {
    let mut truth = Truth::default();
    let mut watermarks = Vec::new();
    for (number, log) in logs.iter().enumerate() {
        let delay = query.delay * query.unit();
        let mut highest: Option<i64> = None;
        if later && number == logs.len() - 1 {
            truth.closed = watermarks.iter().copied().min().flatten();
        }
        for (Order { k, v, ts }, written) in log.iter().zip(written(log)) {
            let own = highest.map(|highest| highest - delay);
            let ahead = ts.is_some_and(|ts| ts > written + query.ahead * query.unit());
            if *v > 0 && ts.is_none() {
                truth.bad += 1;
                continue;
            }
            // Also rows that the query leaves out move it.
            if ahead {
                truth.ahead += 1;
            } else {
                highest = highest.max(*ts);
            }
            let (Some(ts), true) = (ts, *v > 0) else { continue };
            if ahead && query.ahead_rows != "keep" {
                truth.left_out += 1;
                continue;
            }
            let windows = query.windows(*ts);
            let over = |watermark: Option<i64>, end: i64| watermark.is_some_and(|watermark| end <= watermark);
            let open: Vec<_> = windows.iter().filter(|(_, end)| !over(own.max(truth.closed), *end)).collect();
            for (start, end) in &open {
                let (count, sum) = truth.groups.entry((*start, *end, *k)).or_default();
                (*count, *sum) = (*count + 1, *sum + v);
            }
            match windows.iter().all(|(_, end)| over(own, *end)) {
                true => truth.late += 1,
                false => truth.late_closed += u64::from(open.is_empty()),
            }
        }
        watermarks.push(highest.map(|highest| highest - delay));
    }
    truth.closed = truth.closed.max(watermarks.into_iter().min().flatten());
    truth
}

impl Truth {
    fn closed(&self, end: i64) -> bool {
        self.closed.is_some_and(|closed| end <= closed)
    }

    fn rows(&self, query: &Query) -> Vec<Vec<ScalarValue>> {
        let millis = |time: i64| ScalarValue::TimestampMillisecond(Some(time), None);
        let nanos = |time: i64| ScalarValue::TimestampNanosecond(Some(time * 1_000_000), None);
        self.groups
            .iter()
            .filter(|((_, end, _), _)| !query.append || self.closed(*end))
            .filter(|((start, end, _), (_, sum))| !query.having || (sum % 3 != 0 && *end != 7 && *start != 11))
            .map(|((start, end, k), (count, sum))| {
                let key = ScalarValue::Utf8((*k != NULL).then(|| format!("k{k}")));
                let counts = [*count, *sum].map(|number| ScalarValue::Int64(Some(number)));
                [vec![millis(*start), nanos(*end), key], counts.to_vec()].concat()
            })
            .collect()
    }
}

/// The key that is NULL.
const NULL: usize = 2;

/// Runs one query over some logs in one of many ways, and compares everything.
fn check(query: &Query, orders: &[Vec<Order>], later: bool, shards: usize, dice: &mut Dice) {
    let logs = orders.iter().map(|orders| {
        let mut records = records(orders);
        for ((record, order), written) in records.iter_mut().zip(orders).zip(written(orders)) {
            record.timestamp = written;
            if order.k == NULL {
                let text = String::from_utf8(record.value.take().unwrap()).unwrap();
                record.value = Some(text.replace("\"k2\"", "null").into_bytes());
            }
        }
        records
    });
    let logs: Vec<_> = logs.collect();
    let truth = truth(query, orders, later);
    let at_first = logs.len() - usize::from(later);
    let mut pipeline = Pipeline::new(&query.sql(), shards, at_first);
    pipeline.run(&logs[..at_first], dice);
    if later {
        pipeline.find_partition();
        pipeline.run(&logs, dice);
    }
    assert_rows(&pipeline, truth.rows(query));
    let counts = pipeline.counts;
    assert_eq!((counts.late, counts.late_closed), (truth.late, truth.late_closed), "{query:?}");
    assert_eq!(counts.ahead, truth.ahead, "{query:?}");
    let (skipped, set_aside) = if query.ahead_rows == "drop" { (truth.left_out, 0) } else { (0, truth.left_out) };
    assert_eq!((counts.skipped, counts.dead_lettered), (skipped, set_aside + truth.bad), "{query:?}");
    let late_letters = if query.dead_letters { truth.late + truth.late_closed } else { 0 };
    assert_eq!(pipeline.letters.len() as u64, truth.bad + set_aside + late_letters);
    let late = pipeline.letters.iter().filter(|letter| letter.reason.starts_with("late: "));
    assert_eq!(late.count() as u64, late_letters);
    if query.append {
        assert!(pipeline.written.values().all(|times| *times == 1), "each window is written once");
    }
    let open = truth.groups.keys().filter(|(_, end, _)| !truth.closed(*end)).count();
    assert_eq!(pipeline.keys(), open, "closed windows leave the state");
    assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
}

/// Sliding and tumbling windows, and days of a time zone; some partitions are empty or found later, some keys NULL, and some
/// records too far ahead.
#[test]
fn random_windows_equal_a_reference_that_keeps_all_rows() {
    let mut seen = BTreeMap::<&str, u64>::new();
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let query = Query::random(&mut dice);
        let orders: Vec<_> = (0..1 + dice.below(3)).map(|_| query.log(&mut dice)).collect();
        let later = orders.len() > 1 && dice.chance(30);
        each_way(|| {
            let shards = 1 + dice.below(3);
            check(&query, &orders, later, shards, &mut dice);
        });
        let truth = truth(&query, &orders, later);
        let closed = truth.groups.keys().filter(|(_, end, _)| truth.closed(*end));
        let days = if matches!(query.windows, Windows::Days { .. }) { "days" } else { "windows" };
        *seen.entry(days).or_default() += closed.count() as u64;
        for (what, many) in [
            ("late", truth.late),
            ("late_closed", truth.late_closed),
            ("ahead", truth.ahead),
            ("left out", truth.left_out),
        ] {
            *seen.entry(what).or_default() += many;
        }
    }
    let least =
        [("windows", 1_000), ("days", 100), ("late", 400), ("late_closed", 50), ("ahead", 200), ("left out", 50)];
    assert!(least.iter().all(|(what, least)| seen[what] >= *least), "the cases have too few: {seen:?}");
}

/// A pipeline over times in milliseconds, `watermark` behind them.
fn pipeline(options: &str, result: &str, mode: &str, select: &str) -> Pipeline {
    Pipeline::new(
        &format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', {options});
             CREATE EXTERNAL TABLE result ({result}) STORED AS TABLE LOCATION 'console://'
               OPTIONS ('output.mode' '{mode}');
             {select}"
        ),
        2,
        1,
    )
}

pub(super) fn order(k: &str, v: i64, ts: i64) -> String {
    format!("{{\"k\":\"{k}\",\"v\":{v},\"ts\":{ts}}}")
}

pub(super) fn shown(pipeline: &Pipeline) -> Vec<String> {
    let mut rows: Vec<_> =
        pipeline.rows.values().map(|row| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")).collect();
    rows.sort();
    rows
}

/// A window is an expression like any other: for a query around it, a view, and a struct of both bounds.
#[test]
fn bounds_in_queries_around_the_aggregation() {
    each_way(|| {
        let outer = [
        "INSERT INTO result SELECT s, n FROM
           (SELECT window.start AS s, k, count(*) AS n FROM orders GROUP BY window(ts, '10 milliseconds'), k) WHERE n > 1",
        "CREATE VIEW counts AS SELECT window, count(*) AS n FROM orders GROUP BY k, window(ts, '10 milliseconds');
         INSERT INTO result SELECT window.start, n FROM counts WHERE n > 1",
        "WITH c AS (SELECT window AS w, count(*) AS n FROM orders GROUP BY k, window(ts, INTERVAL '10' MILLISECOND))
         INSERT INTO result SELECT c.w.start, n FROM c WHERE n > 1",
        "INSERT INTO result SELECT start, n FROM
           (SELECT window.start, window.end, count(*) AS n FROM orders GROUP BY window(ts, '10 milliseconds'), k)
           WHERE n > 1",
        "INSERT INTO result SELECT window.start, count(*) FROM orders o
           GROUP BY k, window(o.ts, '10 milliseconds', '10 milliseconds', '20 milliseconds') HAVING count(*) > 1",
        "INSERT INTO result SELECT window(ts, '10 milliseconds').start, count(*) FROM orders
           GROUP BY k, window(ts, '10 milliseconds') HAVING count(*) > 1",
    ];
        let mut fingerprints = Vec::new();
        for select in outer {
            let select = match select.strip_prefix("WITH") {
                Some(rest) => {
                    let (with, insert) = rest.split_once("INSERT INTO result").unwrap();
                    format!("INSERT INTO result WITH{with}{insert}")
                }
                None => select.to_owned(),
            };
            let delay = "'watermark.delay' '5 milliseconds'";
            let mut pipeline = pipeline(delay, "start TIMESTAMP(3), n BIGINT", "append", &select);
            let orders = [("a", 1), ("b", 3), ("a", 9), ("a", 12), ("c", 14), ("c", 16), ("d", 25), ("d", 26)];
            pipeline.batch(0, &log(orders.map(|(k, ts)| order(k, 1, ts))), 0, 8);
            pipeline.checkpoint_all();
            assert_eq!(shown(&pipeline), ["0 2", "10 2"], "{select}");
            assert_eq!(pipeline.keys(), 1, "{select}");
            fingerprints.push(pipeline.plan.fingerprint);
        }
        assert_eq!(fingerprints[1], fingerprints[2]);
        assert_eq!(fingerprints[4], fingerprints[5], "one meaning, written otherwise");
    });
}

/// Either bound of a window in the primary key stands for it, also in a coarser type that holds round bounds apart.
#[test]
fn either_bound_determines_the_window() {
    for (key, bound, window, good) in [
        ("TIMESTAMP(3)", "window.start", "window(ts, '10 milliseconds')", true),
        ("TIMESTAMP", "window.end", "window(ts, '10 milliseconds')", true),
        ("TIMESTAMP(0)", "window.end", "window(ts, '1 minute')", true),
        ("TIMESTAMP(0)", "window.start", "window(ts, '10 milliseconds')", false),
        ("TIMESTAMP(0)", "window.start", "window(ts, '1 minute', '1 minute', '5 milliseconds')", false),
        ("TIMESTAMP(0)", "calendar_window.end", "calendar_window(ts, 'month', 'Asia/Kathmandu')", true),
        ("TIMESTAMP", "session_window.start", "session_window(ts, '1 minute')", true),
        ("TIMESTAMP(3)", "session_window.end", "session_window(ts, '1 minute')", true),
        ("TIMESTAMP(0)", "session_window.start", "session_window(ts, '1 minute')", false),
        ("BIGINT", "count(ts)", "window(ts, '1 minute')", false),
    ] {
        let sql = format!(
            "CREATE EXTERNAL TABLE orders (ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('watermark.column' 'ts');
             CREATE EXTERNAL TABLE result (b {key} PRIMARY KEY, n BIGINT) STORED AS CQL LOCATION 'cassandra://a/b'
               OPTIONS ('output.mode' 'append');
             INSERT INTO result SELECT {bound}, count(*) FROM orders GROUP BY {window}"
        );
        match good {
            true => drop(super::harness::planned(&sql)),
            false => assert!(super::harness::refused(&sql).contains("primary key"), "{sql}"),
        }
    }
}

/// One record from the far future closes nothing; a record a little ahead does.
#[test]
fn a_record_from_the_far_future_does_not_move_the_watermark() {
    each_way(|| {
        let select = "INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(ts, '1 second')";
        let options = "'watermark.max.ahead' '1 hour'";
        let mut pipeline = pipeline(options, "start TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", select);
        // The harness gives each record its Kafka timestamp: 1,700,000,000,000 plus its offset.
        let now = 1_700_000_000_000;
        let times = [now, now + 3_600_002, now + 500, 253_402_300_799_000, now + 700, now + 3_600_004, now];
        let log = log(times.map(|ts| order("a", 1, ts)));
        (0..7).for_each(|at| pipeline.batch(0, &log, at, at + 1));
        // Record 1 is 1 ms too far ahead; record 5 is not, and moves the watermark, so record 6 is late.
        assert_eq!(pipeline.watermark(0), Some((now + 3_600_004) * 1_000_000));
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["1700000000000 3"]);
        assert_eq!((pipeline.counts.processed, pipeline.counts.late, pipeline.counts.ahead), (6, 1, 2));
        assert_eq!(pipeline.keys(), 2, "the windows an hour ahead and in the year 9999");
    });
}

/// What is too far ahead can be left out, so that no window waits for ever. Kafka's own timestamp is compared with the clock.
#[test]
fn rows_from_the_far_future_are_kept_dropped_or_set_aside() {
    each_way(|| {
        let select =
            "INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(_timestamp, '1 second')";
        // The clock of the harness says 1,800,000,000 seconds.
        let now = 1_800_000_000_000_i64;
        let stamps = [now, now + 60_000, now + 60_001, 253_402_300_799_000, now + 59_000, now];
        for (policy, processed, skipped, dead_lettered, keys) in
            [("keep", 5, 0, 0, 3), ("drop", 3, 2, 0, 2), ("dead-letter", 3, 0, 2, 2)]
        {
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (k VARCHAR) STORED AS JSON LOCATION 'kafka://orders' OPTIONS
               ('watermark.column' '_timestamp', 'watermark.max.ahead' '1 minute', 'watermark.delay' '1 second',
                'ahead.rows' '{policy}');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE
               LOCATION 'console://' OPTIONS ('output.mode' 'append');
             {select}"
            );
            let mut pipeline = Pipeline::new(&sql, 3, 1);
            let mut log = log(stamps.map(|_| "{\"k\":\"a\"}"));
            log.iter_mut().zip(stamps).for_each(|(record, stamp)| record.timestamp = stamp);
            pipeline.batch(0, &log, 0, 6);
            pipeline.checkpoint_all();
            let counts = pipeline.counts;
            assert_eq!((counts.processed, counts.late, counts.ahead), (processed, 1, 2), "{policy}");
            assert_eq!((counts.skipped, counts.dead_lettered), (skipped, dead_lettered), "{policy}");
            assert_eq!(pipeline.watermark(0), Some((now + 59_000) * 1_000_000));
            // The windows of 59 and 60 seconds later are open, and that of the year 9999 if it is kept.
            assert_eq!((shown(&pipeline), pipeline.keys()), (vec![format!("{now} 1")], keys));
            let letters: Vec<_> =
                pipeline.letters.iter().map(|letter| (letter.offset, letter.reason.as_str())).collect();
            let ahead = "its time is further ahead than 'watermark.max.ahead' allows";
            assert_eq!(letters, if dead_lettered == 2 { vec![(2, ahead), (3, ahead)] } else { vec![] });
        }
    });
}

/// What no window says is easily overlooked.
#[test]
fn queries_without_a_window_are_told_that_rows_can_be_late() {
    let notices = |column: &str, rest: &str| {
        let sql = format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, ts TIMESTAMP) STORED AS JSON LOCATION 'kafka://orders' {column};
             CREATE EXTERNAL TABLE result (k VARCHAR PRIMARY KEY, n BIGINT) STORED AS CQL LOCATION 'cassandra://shop/result'
               {rest}"
        );
        super::harness::planned(&sql).notices
    };
    let insert = "; INSERT INTO result SELECT k, count(*) FROM orders GROUP BY k";
    let told = notices("OPTIONS ('watermark.column' 'ts')", insert);
    assert!(told.len() == 1 && told[0].contains("before the watermark of orders is late, and left out"), "{told:?}");
    for (column, rest) in [
        ("", insert.to_owned()),
        ("OPTIONS ('watermark.column' '_processing_time')", insert.to_owned()),
        // What expires says so itself.
        ("OPTIONS ('watermark.column' 'ts')", format!("OPTIONS ('state.ttl' '1 hour') {insert}")),
    ] {
        assert!(notices(column, &rest).is_empty(), "{column} {rest}");
    }
}

/// Without windows a row is late if its time is before the watermark, which a row of NULL never is.
#[test]
fn late_rows_without_windows() {
    each_way(|| {
        let select = "INSERT INTO result SELECT k, sum(v) FROM orders GROUP BY k";
        let options = "'watermark.delay' '10 milliseconds', 'late.rows' 'dead-letter'";
        let mut pipeline = pipeline(options, "k VARCHAR PRIMARY KEY, total BIGINT", "update", select);
        let values = [("a", 1, 100), ("a", 2, 90), ("a", 4, 89), ("a", 8, 110), ("a", 16, 99), ("a", 32, 100)];
        let mut values = values.map(|(k, v, ts)| order(k, v, ts)).to_vec();
        values.push("{\"k\":\"a\",\"v\":64}".to_owned());
        let log = log(values);
        pipeline.batch(0, &log, 0, 7);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["a 107"]);
        let letters: Vec<_> = pipeline.letters.iter().map(|letter| (letter.offset, letter.reason.as_str())).collect();
        assert_eq!(
            letters,
            [
                (2, "late: the watermark of its partition was at 1970-01-01T00:00:00.090Z before it"),
                (4, "late: the watermark of its partition was at 1970-01-01T00:00:00.100Z before it")
            ]
        );
        assert_eq!((pipeline.counts.late, pipeline.counts.processed), (2, 5));
    });
}

/// A bad record moves no watermark, whatever time it says.
#[test]
fn bad_records_do_not_move_the_watermark() {
    each_way(|| {
        let select =
            "INSERT INTO result SELECT window.start, sum(100 / v) FROM orders GROUP BY window(ts, '10 milliseconds')";
        let options = "'rule.sane' 'v < 1000', 'bad.records' 'skip'";
        let mut pipeline = pipeline(options, "start TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", select);
        let records = [("a", 1, 5), ("a", 1000, 900), ("a", 0, 900), ("a", 2, 7), ("a", 1, 19), ("a", 1, 9)];
        pipeline.batch(0, &log(records.map(|(k, v, ts)| order(k, v, ts))), 0, 6);
        pipeline.checkpoint_all();
        assert_eq!(pipeline.watermark(0), Some(19_000_000));
        assert_eq!(shown(&pipeline), ["0 150"]);
        assert_eq!((pipeline.counts.skipped, pipeline.counts.late), (2, 1));

        // Nor does one whose window cannot be known: of this session the gap is none.
        let select = "INSERT INTO result SELECT session_window.start, count(*) FROM orders
        GROUP BY session_window(ts, CASE WHEN v = 0 THEN NULL WHEN v < 0 THEN INTERVAL '0 seconds'
          ELSE INTERVAL '10 milliseconds' END)";
        let mut pipeline = self::pipeline(options, "start TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", select);
        let records = [("a", 1, 5), ("a", 0, 900), ("a", -1, 900), ("a", 2, 7), ("a", 1, 19), ("a", 1, 9)];
        pipeline.batch(0, &log(records.map(|(k, v, ts)| order(k, v, ts))), 0, 6);
        pipeline.checkpoint_all();
        assert_eq!(pipeline.watermark(0), Some(19_000_000));
        assert_eq!(shown(&pipeline), ["5 2"]);
        assert_eq!((pipeline.counts.skipped, pipeline.counts.late), (2, 1));
    });
}

/// A day on which clocks are put forward has 23 hours.
#[test]
fn days_of_a_time_zone() {
    each_way(|| {
        let select = "INSERT INTO result SELECT calendar_window.start, calendar_window.end, count(*) FROM orders
        GROUP BY calendar_window(ts, 'day', 'Europe/Berlin')";
        let result = "start TIMESTAMP(3) PRIMARY KEY, until TIMESTAMP(3), n BIGINT";
        let mut pipeline = pipeline("'watermark.delay' '0 seconds'", result, "append", select);
        let hour = 3_600_000;
        // From 2023-03-25T00:00Z on, every hour for three days, each twice.
        let midnight = 1_679_702_400_000_i64;
        let log = log((0..72).map(|n| order("a", 1, midnight + n * hour)).flat_map(|order| [order.clone(), order]));
        pipeline.batch(0, &log, 0, 144);
        pipeline.checkpoint_all();
        let day = |first: i64, hours: i64| {
            let start = midnight + first * hour;
            format!("{start} {} {}", start + hours * hour, 2 * hours)
        };
        // The first day began an hour before the records, the second has 23 hours.
        assert_eq!(shown(&pipeline)[1], day(23, 23));
        assert_eq!(shown(&pipeline)[0], format!("{} {} 46", midnight - hour, midnight + 23 * hour));
        assert_eq!(pipeline.keys(), 1);
        assert!(pipeline.plan.description.contains("group by  1: calendar_window(ts, day in Europe/Berlin)\n"));
    });
}

/// 2018 began on a Monday.
#[test]
fn weeks_and_months_of_a_time_zone() {
    each_way(|| {
        let hour = 3_600_000;
        let midnight = 1_514_764_800_000_i64;
        // Two a day, until the 28th of February.
        let log = log((0..118).map(|n| order("a", 1, midnight + n * 12 * hour)));
        let closed = |unit: &str| {
            let select = format!(
                "INSERT INTO result SELECT calendar_window.start, calendar_window.end, count(*) FROM orders
                 GROUP BY calendar_window(ts, '{unit}', 'Europe/Berlin')"
            );
            let result = "start TIMESTAMP(3) PRIMARY KEY, until TIMESTAMP(3), n BIGINT";
            let mut pipeline = pipeline("'watermark.delay' '0 seconds'", result, "append", &select);
            pipeline.batch(0, &log, 0, 118);
            pipeline.checkpoint_all();
            assert_eq!(pipeline.keys(), 1);
            shown(&pipeline)
        };
        let begins = |day: i64| midnight + (day * 24 - 1) * hour;
        let weeks: Vec<_> = (0..8).map(|n| format!("{} {} 14", begins(7 * n), begins(7 * n + 7))).collect();
        assert_eq!(closed("week"), weeks);
        assert_eq!(closed("month"), [format!("{} {} 62", begins(0), begins(31))]);
    });
}

/// The whole result at each checkpoint, and no more rows than allowed.
#[test]
fn complete_mode_writes_everything() {
    each_way(|| {
        let select = "INSERT INTO result SELECT k, sum(v) FROM orders GROUP BY k HAVING sum(v) > 0";
        let mut pipeline = pipeline(
            "'watermark.delay' '1 day'",
            "k VARCHAR PRIMARY KEY, total BIGINT",
            "complete', 'complete.limit' '3",
            select,
        );
        let values = [
            ("a", 1),
            ("b", 2),
            ("c", 3),
            ("a", 5),
            ("b", -2),
            ("d", 1),
            ("e", 1),
            ("f", 1),
            ("g", 1),
            ("h", 1),
            ("i", 1),
        ];
        let log = log(values.map(|(k, v)| order(k, v, 0)));
        pipeline.batch(0, &log, 0, 3);
        let rows = |output: Vec<strandline_actors::ports::OutputBatch>| {
            output.iter().map(|o| o.rows.num_rows()).sum::<usize>()
        };
        assert_eq!(rows(pipeline.checkpoint_all()), 3);
        assert!(pipeline.checkpoint_all().is_empty(), "nothing has changed");
        (0..2).for_each(|shard| pipeline.restart(shard));
        pipeline.batch(0, &log, 3, 6);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["a 6", "c 3", "d 1"], "b is gone");
        assert!(pipeline.written.values().any(|times| *times == 2), "unchanged groups are written again");
        pipeline.batch(0, &log, 6, 11);
        let error = (0..2).find_map(|shard| pipeline.fails(shard)).unwrap();
        assert!(error.contains("more than 'complete.limit' 3"), "{error}");
    });
}

/// What is sent again after a crash is cut for each lane, and each row is counted by one lane once, in however many
/// windows it is.
#[test]
fn rows_of_several_windows_are_cut_once() {
    use strandline_actors::position::Offset;

    let windows = Windows::Sliding { size: 30, slide: 7, offset: 0 };
    let (append, having, dead_letters) = (false, false, false);
    let query = Query { windows, delay: 5, ahead: 1_000, ahead_rows: "keep", append, having, dead_letters };
    let plan = super::harness::planned(&query.sql());
    let mut dice = Dice::new(9);
    let orders: Vec<_> =
        (0..60).map(|n| Order { k: dice.below(6), v: 1, ts: Some(n / 2 + dice.below(9) as i64) }).collect();
    let log = records(&orders);
    let sums = |output: &strandline_actors::ports::StageOutput, lane: usize| -> i64 {
        use arrow::array::AsArray;
        let rows = output.lanes[lane].rows.iter();
        rows.map(|rows| rows.column(2).as_primitive::<arrow::datatypes::Int64Type>().values().iter().sum::<i64>()).sum()
    };
    let whole = super::harness::run_stage(&plan, &log, 3, 0, 60);
    let cuts = [Some(Offset(20)), Some(Offset(0)), Some(Offset(41))];
    let cut = super::harness::run_cut(&plan, &log, 0, 60, &cuts, &[]).unwrap();
    assert_eq!(cut.watermark, whole.watermark);
    for (lane, from) in [20, 0, 41].into_iter().enumerate() {
        let mut only = [None; 3];
        only[lane] = Some(Offset(0));
        let before = super::harness::run_cut(&plan, &log, 0, from, &only, &[]).unwrap();
        assert_eq!(sums(&whole, lane), sums(&before, lane) + sums(&cut, lane), "lane {lane}");
        let mut counts = before.lanes[lane].counts;
        counts.add(&cut.lanes[lane].counts);
        assert_eq!(counts, whole.lanes[lane].counts, "lane {lane}");
        assert!(sums(&cut, lane) > 0);
    }
}

/// Sessions with a gap that may differ from row to row, in milliseconds.
#[derive(Debug)]
struct SessionQuery {
    /// The gap of rows with an odd value, and with an even one.
    gaps: [i64; 2],
    delay: i64,
    having: bool,
}

impl SessionQuery {
    fn sql(&self) -> String {
        let Self { gaps: [odd, even], delay, having } = self;
        let gap = match odd == even {
            true => format!("'{odd} milliseconds'"),
            false => format!(
                "CASE WHEN v % 2 = 1 THEN INTERVAL '{odd} milliseconds' ELSE INTERVAL '{even} milliseconds' END"
            ),
        };
        let having =
            if *having { "HAVING count(*) > 1 AND session_window.start <> to_timestamp_millis(33)" } else { "" };
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '{delay} milliseconds');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3), until TIMESTAMP(3), k VARCHAR, n BIGINT, total BIGINT,
                 PRIMARY KEY (k, start))
               STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' 'append');
             INSERT INTO result
             SELECT session_window.start, session_window.end, k, count(*), sum(v) FROM orders WHERE v > 0
             GROUP BY k, session_window(ts, {gap}) {having}"
        )
    }
}

/// Start, end, key, count and sum of each session, the number of late rows and of bad ones, and the lowest watermark.
type Sessions = (Vec<(i64, i64, usize, i64, i64)>, u64, usize, Option<i64>);

/// The reference: all rows that are on time, merged until nothing can be merged any more.
fn sessions(query: &SessionQuery, logs: &[Vec<Order>]) -> Sessions {
    let (mut sessions, mut late, mut bad) = (Vec::new(), 0, 0);
    let mut watermarks = Vec::new();
    for log in logs {
        let mut highest: Option<i64> = None;
        for Order { k, v, ts } in log {
            let watermark = highest.map(|highest| highest - query.delay);
            highest = highest.max(*ts);
            match ts {
                _ if *v <= 0 => {}
                None => bad += 1,
                Some(ts) if watermark.is_some_and(|watermark| *ts < watermark) => late += 1,
                Some(ts) => sessions.push((*ts, ts + query.gaps[usize::from(v % 2 == 0)], *k, 1, *v)),
            }
        }
        watermarks.push(highest.map(|highest| highest - query.delay));
    }
    let touching = |sessions: &[(i64, i64, usize, i64, i64)]| {
        for (a, first) in sessions.iter().enumerate() {
            for (b, second) in sessions.iter().enumerate().skip(a + 1) {
                if first.2 == second.2 && first.0 <= second.1 && second.0 <= first.1 {
                    return Some((a, b));
                }
            }
        }
        None
    };
    while let Some((a, b)) = touching(&sessions) {
        let other = sessions.remove(b);
        let into = &mut sessions[a];
        *into = (into.0.min(other.0), into.1.max(other.1), into.2, into.3 + other.3, into.4 + other.4);
    }
    (sessions, late, bad, watermarks.into_iter().min().flatten())
}

#[test]
fn random_sessions_equal_a_reference_that_keeps_all_rows() {
    let (mut closed_sessions, mut merged, mut late_rows) = (0, 0, 0);
    for seed in 0..250 {
        let mut dice = Dice::new(seed);
        let odd = 1 + dice.below(25) as i64;
        let even = if dice.chance(50) { odd } else { 1 + dice.below(40) as i64 };
        let query = SessionQuery { gaps: [odd, even], delay: dice.below(60) as i64, having: dice.chance(30) };
        let orders: Vec<_> = (0..1 + dice.below(3)).map(|_| orders(&mut dice)).collect();
        let (all, late, bad, watermark) = sessions(&query, &orders);
        let closed = |end: i64| watermark.is_some_and(|watermark| end < watermark);
        let millis = |time: i64| ScalarValue::TimestampMillisecond(Some(time), None);
        let wanted: Vec<_> = all
            .iter()
            .filter(|(start, end, _, count, _)| closed(*end) && (!query.having || *count > 1 && *start != 33))
            .map(|(start, end, k, count, sum)| {
                let numbers = [*count, *sum].map(|number| ScalarValue::Int64(Some(number)));
                let key = ScalarValue::Utf8(Some(format!("k{k}")));
                [vec![millis(*start), millis(*end), key], numbers.to_vec()].concat()
            })
            .collect();
        each_way(|| {
            let logs: Vec<_> = orders.iter().map(|orders| records(orders)).collect();
            let mut pipeline = Pipeline::new(&query.sql(), 1 + dice.below(3), logs.len());
            pipeline.run(&logs, &mut dice);
            assert_rows(&pipeline, wanted.clone());
            assert_eq!((pipeline.counts.late, pipeline.letters.len()), (late, bad), "{query:?}");
            assert!(pipeline.written.values().all(|times| *times == 1), "each session is written once");
            let open = all.iter().filter(|(_, end, ..)| !closed(*end)).count();
            assert_eq!(pipeline.keys(), open, "closed sessions leave the state");
            assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice");
        });
        closed_sessions += wanted.len();
        merged += all.iter().filter(|session| session.3 > 1).count();
        late_rows += late;
    }
    assert!(
        closed_sessions > 1000 && merged > 1000 && late_rows > 500,
        "{closed_sessions} closed, {merged} merged, {late_rows} late"
    );
}

/// Sessions whose gap is no length of time are bad, and their bounds are there for a query around them.
#[test]
fn sessions_in_queries_around_the_aggregation() {
    each_way(|| {
        let select = "INSERT INTO result SELECT session_window.end, n FROM
        (SELECT session_window, sum(v) AS n FROM orders
           GROUP BY session_window(ts, CASE WHEN v > 100 THEN INTERVAL '-1 seconds' ELSE INTERVAL '10 milliseconds' END))
        WHERE n > 1";
        let mut pipeline =
            pipeline("'watermark.delay' '0 seconds'", "until TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", select);
        let orders =
            [("a", 1, 0), ("b", 2, 10), ("a", 200, 15), ("a", 1, 21), ("a", 7, 40), ("a", 1, 51), ("a", 1, 70)];
        pipeline.batch(0, &log(orders.map(|(k, v, ts)| order(k, v, ts))), 0, 7);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["20 3", "50 7"]);
        assert!(pipeline.letters[0].reason.contains("its window cannot be known"));
        assert!(
            pipeline.plan.description.contains("column    until Timestamp(ms) = session_window.end\n"),
            "{}",
            pipeline.plan.description
        );
    });
}
