//! Times that nanoseconds do not hold, such as the year 1 in which some languages' times begin, against a reference that counts
//! in seconds.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;

use super::harness::{Dice, Pipeline, Record, assert_rows, each_way, log};

/// 0001-01-01, 1600-01-01, 2023-11-14 and 9999-12-31, in seconds.
const BASES: [i64; 4] = [-62_135_596_800, -11_676_096_000, 1_700_000_000, 253_402_300_700];
/// The first whole second that nanoseconds hold, as a watermark too.
const FIRST: i64 = -9_223_372_035;
const DELAY: i64 = 5;
const SIZE: i64 = 10;
const SLIDE: i64 = 5;

fn sql(precision: &str, select: &str, sink: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, ts TIMESTAMP({precision})) STORED AS JSON LOCATION 'kafka://orders'
           OPTIONS ('json.timestamp.unit' 'seconds', 'watermark.column' 'ts', 'watermark.delay' '{DELAY} seconds');
         CREATE EXTERNAL TABLE result ({sink};
         INSERT INTO result {select}"
    )
}

fn append(precision: &str) -> String {
    format!(
        "start TIMESTAMP({precision}), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS TABLE LOCATION 'console://'
           OPTIONS ('output.mode' 'append')"
    )
}

fn records(orders: &[(usize, i64)]) -> Vec<Record> {
    log(orders.iter().map(|(k, ts)| format!("{{\"k\":\"k{k}\",\"ts\":{ts}}}")))
}

/// A log that mostly goes on from where it was, and jumps to another age now and then, at most once into ours.
fn orders(dice: &mut Dice) -> Vec<(usize, i64)> {
    let mut base = dice.below(2);
    (0..20 + dice.below(80) as i64)
        .map(|row| {
            if dice.chance(6) {
                base = 2;
            }
            let of = if dice.chance(15) { dice.below(4) } else { base };
            (dice.below(3), BASES[of] + row / 2 + dice.below(8) as i64)
        })
        .collect()
}

/// Whether a time is past by a watermark. What is below all that can be told apart is past by no watermark that is there too.
fn past(end: i64, watermark: Option<i64>) -> bool {
    watermark.is_some_and(|watermark| end <= watermark && watermark >= FIRST)
}

/// Key and time of a row, and the watermark before it.
type Row = (usize, i64, Option<i64>);

/// Goes through a log: the rows, each with the watermark before it, and the watermark after all.
fn followed(orders: &[(usize, i64)]) -> (Vec<Row>, Option<i64>) {
    let mut watermark = None;
    let rows = orders.iter().map(|(k, ts)| {
        let before = watermark;
        // What is too far ahead moves nothing.
        if *ts < BASES[3] {
            watermark = watermark.max(Some(ts - DELAY));
        }
        (*k, *ts, before)
    });
    (rows.collect(), watermark)
}

fn row(precision: &str, start: i64, k: usize, n: i64) -> Vec<ScalarValue> {
    let start = match precision {
        "0" => ScalarValue::TimestampSecond(Some(start), None),
        _ => ScalarValue::TimestampMillisecond(Some(start * 1000), None),
    };
    vec![start, ScalarValue::Utf8(Some(format!("k{k}"))), ScalarValue::Int64(Some(n))]
}

/// Runs a query in several ways over logs whose late rows and closed windows are known.
fn check(text: &str, logs: &[Vec<(usize, i64)>], expected: &[Vec<ScalarValue>], late: u64, dice: &mut Dice) {
    let logs: Vec<_> = logs.iter().map(|orders| records(orders)).collect();
    each_way(|| {
        let mut pipeline = Pipeline::new(text, 1 + dice.below(3), logs.len());
        pipeline.run(&logs, dice);
        assert_rows(&pipeline, expected.to_vec());
        assert_eq!((pipeline.counts.late, pipeline.letters.len()), (late, 0));
        assert!(pipeline.written.values().all(|times| *times == 1), "each window is written once");
    });
}

#[test]
fn windows_of_times_that_nanoseconds_do_not_hold() {
    let mut all_late = 0;
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let slide = if dice.chance(50) { SLIDE } else { SIZE };
        let precision = ["0", "3"][dice.below(2)];
        let logs: Vec<_> = (0..1 + dice.below(2)).map(|_| orders(&mut dice)).collect();
        let (mut groups, mut late, mut ends) = (BTreeMap::<(i64, usize), i64>::new(), 0, Vec::new());
        for orders in &logs {
            let (rows, after) = followed(orders);
            for (k, ts, before) in rows {
                let starts = (ts - SIZE + 1..=ts).filter(|start| start.rem_euclid(slide) == 0);
                let timely: Vec<_> = starts.filter(|start| !past(start + SIZE, before)).collect();
                late += u64::from(timely.is_empty());
                timely.into_iter().for_each(|start| *groups.entry((start, k)).or_default() += 1);
            }
            ends.push(after);
        }
        let watermark = ends.into_iter().min().flatten();
        let closed = groups.iter().filter(|((start, _), _)| past(start + SIZE, watermark));
        let expected: Vec<_> = closed.map(|((start, k), n)| row(precision, *start, *k, *n)).collect();
        let select = format!(
            "SELECT window.start, k, count(*) FROM orders GROUP BY window(ts, '{SIZE} seconds', '{slide} seconds'), k"
        );
        check(&sql(precision, &select, &append(precision)), &logs, &expected, late, &mut dice);
        all_late += late;
    }
    assert!(all_late > 100, "{all_late} late rows");
}

#[test]
fn sessions_of_times_that_nanoseconds_do_not_hold() {
    let mut all_late = 0;
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let precision = ["0", "3"][dice.below(2)];
        let logs: Vec<_> = (0..1 + dice.below(2)).map(|_| orders(&mut dice)).collect();
        let (mut times, mut late, mut ends) = (BTreeMap::<usize, Vec<i64>>::new(), 0, Vec::new());
        for orders in &logs {
            let (rows, after) = followed(orders);
            for (k, ts, before) in rows {
                match past(ts + 1, before) {
                    true => late += 1,
                    false => times.entry(k).or_default().push(ts),
                }
            }
            ends.push(after);
        }
        let watermark = ends.into_iter().min().flatten();
        let mut expected = Vec::new();
        for (k, mut times) in times {
            times.sort_unstable();
            for session in times.chunk_by(|a, b| b - a <= SIZE) {
                if past(session[session.len() - 1] + SIZE + 1, watermark) {
                    expected.push(row(precision, session[0], k, session.len() as i64));
                }
            }
        }
        let select = format!(
            "SELECT session_window.start, k, count(*) FROM orders GROUP BY session_window(ts, '{SIZE} seconds'), k"
        );
        check(&sql(precision, &select, &append(precision)), &logs, &expected, late, &mut dice);
        all_late += late;
    }
    assert!(all_late > 100, "{all_late} late rows");
}

/// A row of the year 1 is late like any other that is before the watermark, also without a window, and where groups are
/// forgotten; and the first of a partition is not.
#[test]
fn a_time_of_the_year_1_is_a_time() {
    each_way(|| {
        let keyed = "k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://shop/result'";
        for sink in [keyed.to_owned(), format!("{keyed} OPTIONS ('state.ttl' '1 hour')")] {
            let mut pipeline = Pipeline::new(&sql("3", "SELECT k, count(*) FROM orders GROUP BY k", &sink), 2, 1);
            let log = records(&[(0, BASES[0]), (0, BASES[0] + 1), (1, BASES[2]), (0, BASES[0]), (1, BASES[1])]);
            pipeline.batch(0, &log, 0, 5);
            pipeline.checkpoint_all();
            assert_eq!((pipeline.counts.late, pipeline.letters.len()), (2, 0), "{:?}", pipeline.letters);
            let mut rows: Vec<_> = pipeline.rows.values().map(|row| format!("{} {}", row[0], row[1])).collect();
            rows.sort();
            assert_eq!(rows, ["k0 2", "k1 1"]);
        }
    });
}

/// A bound of a window that the column of the sink does not hold makes a bad record, and its shard goes on.
#[test]
fn a_bound_that_a_finer_unit_does_not_hold_makes_a_bad_record() {
    let finer = |append: &str| {
        format!(
            "start TIMESTAMP, k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS TABLE LOCATION 'console://' {append}"
        )
    };
    let (tumbling, sliding) = ("window(ts, '10 seconds')", "window(ts, '10 seconds', '5 seconds')");
    let by = |bound: &str, window: &str| format!("SELECT {bound}, k, count(*) FROM orders GROUP BY {window}, k");
    let of_windows = format!(
        "SELECT window.start, k, max(n) FROM (SELECT window, k, count(*) AS n FROM orders GROUP BY {sliding}, k)
           GROUP BY window(window, '20 seconds', '10 seconds'), k"
    );
    let sessions = by("session_window.start", "session_window(ts, '10 seconds')");
    let ranked = format!(
        "SELECT window.start, k, 1 FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY {sliding}, k ORDER BY ts) = 1"
    );
    let days = by("calendar_window.end", "calendar_window(ts, 'day', 'Europe/Berlin')");
    // In the second of its windows, of which nanoseconds do not hold the first.
    let edge = FIRST + 1;
    let (now, far) = (BASES[2], BASES[3]);
    each_way(|| {
        for (append, select, times, bad, rows) in [
            (false, by("window.start", tumbling), vec![now, far], vec![1], vec![now]),
            (
                false,
                by("window.end", tumbling),
                vec![now, far, BASES[1] - 1_000_000_000_000],
                vec![1, 2],
                vec![now + 10],
            ),
            (false, by("window.start", sliding), vec![edge, now], vec![0], vec![now - 5, now]),
            (false, by("window.start", "window(ts, '5 seconds')"), vec![edge, now], vec![], vec![FIRST, now]),
            (false, ranked.clone(), vec![now, far, edge], vec![1, 2], vec![now - 5, now]),
            (false, days.clone(), vec![far, now], vec![0], vec![now + 2_800]),
            (true, by("window.start", tumbling), vec![BASES[0], now, now + 99], vec![0], vec![now]),
            (true, by("window.end", sliding), vec![BASES[0], now, now + 99], vec![0], vec![now + 5, now + 10]),
            (true, sessions.clone(), vec![BASES[0], now, now + 99], vec![0], vec![now]),
            (true, of_windows.clone(), vec![BASES[0], now, now + 99], vec![0], vec![now - 10, now]),
        ] {
            let options = if append { "OPTIONS ('output.mode' 'append')" } else { "" };
            let mut pipeline = Pipeline::new(&sql("3", &select, &finer(options)), 1, 1);
            let log = records(&times.iter().map(|time| (0, *time)).collect::<Vec<_>>());
            pipeline.batch(0, &log, 0, times.len() as i64);
            pipeline.checkpoint_all();
            let found: Vec<_> = pipeline.letters.iter().map(|letter| letter.offset).collect();
            assert_eq!(found, bad, "{select}");
            let mut starts: Vec<_> = pipeline.rows.values().map(|row| row[0].clone()).collect();
            starts.sort_by(|a, b| a.partial_cmp(b).unwrap());
            let wanted = rows.iter().map(|start| ScalarValue::TimestampNanosecond(Some(start * 1_000_000_000), None));
            assert_eq!(starts, wanted.collect::<Vec<_>>(), "{select}");
        }
    });
}
