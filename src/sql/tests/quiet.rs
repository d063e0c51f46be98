//! Windows that idleness and silence close early, and rows that come for them all the same.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;

use super::harness::{Dice, Pipeline, assert_rows, each_way, log};
use super::windows::{Order, order, orders, records, shown};

/// A partition that has nothing to say holds back the others only until it is idle, and a row that it brings later for a
/// window that was closed meanwhile is left out, also after a restart.
#[test]
fn idle_partitions_hold_nothing_back() {
    each_way(|| {
        let sql =
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
          OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.idle' '30 seconds');
        CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://'
          OPTIONS ('output.mode' 'append');
        INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(ts, '10 milliseconds')";
        let mut pipeline = Pipeline::new(sql, 1, 3);
        let busy = log([1, 5, 12, 35].map(|ts| order("a", 1, ts)));
        let slow = log([7, 31, 33].map(|ts| order("a", 1, ts)));
        pipeline.batch(0, &busy, 0, 4);
        assert!(pipeline.checkpoint_all().is_empty(), "two partitions are not known");
        pipeline.quiet(1, 30);
        pipeline.quiet(2, 29);
        assert!(pipeline.checkpoint_all().is_empty(), "one partition is not known");
        pipeline.quiet(2, 30);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["0 2", "10 1"]);
        // It wakes up, with a row of a closed window, and holds back again.
        pipeline.batch(1, &slow, 0, 1);
        pipeline.restart(0);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["0 2", "10 1"]);
        assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 1));
        pipeline.batch(0, &log([35, 35, 35, 35, 90].map(|ts| order("a", 1, ts))), 4, 5);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline).len(), 2);
        pipeline.batch(1, &slow, 1, 3);
        // All idle: as if the furthest had fallen idle last.
        pipeline.quiet(0, 30);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline).len(), 2);
        pipeline.quiet(1, 30);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["0 2", "10 1", "30 3"]);
    });
}

/// A partition that is found later is read from its beginning, and holds back from then on. Its rows of windows that were closed
/// before are left out, counted and kept aside.
#[test]
fn a_partition_that_is_found_later_opens_no_window_again() {
    let sql =
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
          OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'late.rows' 'dead-letter');
        CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://'
          OPTIONS ('output.mode' 'append');
        INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(ts, '10 milliseconds')";
    each_way(|| {
        let mut pipeline = Pipeline::new(sql, 2, 1);
        let busy = log([1, 5, 12, 35, 90].map(|ts| order("a", 1, ts)));
        pipeline.batch(0, &busy, 0, 4);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["0 2", "10 1"]);
        pipeline.find_partition();
        pipeline.batch(1, &log([7, 31, 33, 41].map(|ts| order("a", 1, ts))), 0, 4);
        pipeline.batch(0, &busy, 4, 5);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["0 2", "10 1", "30 3"], "that of 40 is held open");
        assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 1));
        let closed =
            "late: windows were closed up to 1970-01-01T00:00:00.035Z while its partition was quiet or not yet found";
        let letters: Vec<_> = pipeline.letters.iter().map(|letter| (letter.offset, letter.reason.as_str())).collect();
        assert_eq!(letters, [(0, closed)]);
    });
}

/// The last windows of a source that has fallen silent are closed by the clock, once; what comes later for them is late.
#[test]
fn the_last_windows_of_a_silent_source_are_closed() {
    each_way(|| {
        for (window, first, second) in [
            ("window(ts, '1 second')", "n 2", "n 1"),
            ("window(ts, '1 second', '300 milliseconds')", "n 2", "n 1"),
            ("session_window(ts, '700 milliseconds')", "n 2", "n 1"),
            ("calendar_window(ts, 'day', 'UTC')", "n 2", "n 1"),
        ] {
            let name = window.split('(').next().unwrap();
            let sql = format!(
                "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
               LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts',
               'watermark.delay' '5 seconds', 'watermark.idle' '10 seconds', 'watermark.close.after' '60 seconds');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE
               LOCATION 'console://' OPTIONS ('output.mode' 'append');
             INSERT INTO result SELECT {name}.start, count(*) FROM orders GROUP BY {window}"
            );
            let mut pipeline = Pipeline::new(&sql, 2, 2);
            let day = 86_400_000;
            let times = [100, 250, 260, 2 * day, 2 * day + 1];
            let log = log(times.map(|ts| order("a", 1, ts)));
            pipeline.batch(0, &log, 0, 2);
            (0..2).for_each(|number| pipeline.quiet(number, 59));
            assert!(pipeline.checkpoint_all().is_empty(), "{window}");
            for _ in 0..3 {
                (0..2).for_each(|number| pipeline.quiet(number, 60));
                pipeline.checkpoint_all();
                (0..2).for_each(|shard| pipeline.restart(shard));
            }
            let closed = pipeline.told();
            assert_eq!(
                pipeline.rows.values().next().map(|row| format!("n {}", row[1])).as_deref(),
                Some(first),
                "{window}"
            );
            assert_eq!(pipeline.keys(), 0, "{window}");
            // Late by what is closed, not by its own partition, and written nowhere.
            pipeline.batch(0, &log, 2, 3);
            (0..2).for_each(|_| pipeline.quiet(0, 60));
            assert!(pipeline.checkpoint_all().is_empty() && pipeline.told() >= closed, "{window}");
            assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 1), "{window}");
            // What belongs to later windows is on time.
            pipeline.batch(0, &log, 3, 4);
            (0..2).for_each(|number| pipeline.quiet(number, 60));
            pipeline.checkpoint_all();
            assert_eq!(
                pipeline.rows.values().last().map(|row| format!("n {}", row[1])).as_deref(),
                Some(second),
                "{window}"
            );
            assert!(pipeline.written.values().all(|times| *times == 1));
            assert_eq!((pipeline.keys(), pipeline.counts.late_closed), (0, 1), "{window}");
        }
    });
}

/// Silence closes what is open again and again, also windows within the delay of those that it has closed; and a partition
/// that never had a row holds nothing back, without 'watermark.idle' too.
#[test]
fn silence_closes_windows_one_after_the_other() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
                 LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts',
                 'watermark.delay' '10 seconds', 'watermark.close.after' '60 seconds');
               CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE
                 LOCATION 'console://' OPTIONS ('output.mode' 'append');
               INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(ts, '1 minute')";
        let mut pipeline = Pipeline::new(sql, 1, 2);
        let log = log([30_000, 65_000, 125_000].map(|ts| order("a", 1, ts)));
        for number in 0..3 {
            pipeline.batch(0, &log, number, number + 1);
            (0..2).for_each(|partition| pipeline.quiet(partition, 60));
            pipeline.checkpoint_all();
            assert_eq!((pipeline.rows.len(), pipeline.keys()), (number as usize + 1, 0));
            assert_eq!((pipeline.counts.late, pipeline.counts.late_closed), (0, 0));
        }
        assert!(pipeline.written.values().all(|times| *times == 1));
    });
}

/// What rows are grouped by, in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Sliding { size: i64, slide: i64 },
    Session { gap: i64 },
}

impl Kind {
    fn random(dice: &mut Dice) -> Self {
        let size = 1 + dice.below(40) as i64;
        match dice.below(3) {
            0 => Self::Sliding { size, slide: size },
            1 => Self::Sliding { size, slide: 1 + dice.below(size as usize) as i64 },
            _ => Self::Session { gap: size },
        }
    }

    fn sql(self, delay: i64, late: &str) -> String {
        let (name, window) = match self {
            Self::Sliding { size, slide } => ("window", format!("'{size} milliseconds', '{slide} milliseconds'")),
            Self::Session { gap } => ("session_window", format!("'{gap} milliseconds'")),
        };
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '{delay} milliseconds',
                 'watermark.idle' '30 seconds', 'watermark.close.after' '60 seconds', 'late.rows' '{late}');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3), until TIMESTAMP(3), k VARCHAR, n BIGINT, total BIGINT,
                 PRIMARY KEY (k, start)) STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' 'append');
             INSERT INTO result SELECT {name}.start, {name}.end, k, count(*), sum(v) FROM orders
               GROUP BY k, {name}(ts, {window})"
        )
    }

    /// The watermark that closes a window or session with this end.
    fn closes(self, end: i64) -> i64 {
        match self {
            Self::Sliding { .. } => end * 1_000_000,
            Self::Session { .. } => end * 1_000_000 + 1,
        }
    }

    /// The windows of a time: start and end, and the watermark by which a row is too late for each.
    fn windows(self, ts: i64) -> Vec<(i64, i64, i64)> {
        match self {
            Self::Session { gap } => vec![(ts, ts + gap, ts * 1_000_000 + 1)],
            Self::Sliding { size, slide } => (ts - size + 1..=ts)
                .filter(|start| start % slide == 0)
                .map(|start| (start, start + size, (start + size) * 1_000_000))
                .collect(),
        }
    }
}

/// What happens to a partition.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Rows up to here are read.
    Read(usize, i64),
    /// It has been quiet for so many seconds.
    Quiet(usize, u64),
}

fn events(dice: &mut Dice, ends: &[i64]) -> Vec<Event> {
    let mut at = vec![0; ends.len()];
    let mut events = Vec::new();
    for _ in 0..30 {
        let number = dice.below(ends.len());
        if dice.chance(40) {
            events.push(Event::Quiet(number, if dice.chance(50) { 30 } else { 60 }));
        } else {
            at[number] = ends[number].min(at[number] + 1 + dice.below(12) as i64);
            events.push(Event::Read(number, at[number]));
        }
    }
    events.extend((0..ends.len()).map(|number| Event::Read(number, ends[number])));
    events
}

/// What must come out, row by row, with all rows kept.
#[derive(Default)]
struct Truth {
    /// Start, end, key, count and sum.
    groups: Vec<(i64, i64, usize, i64, i64)>,
    late: Vec<(usize, i64)>,
    late_closed: Vec<(usize, i64)>,
    bad: usize,
    told: Option<i64>,
}

fn truth(kind: Kind, delay: i64, logs: &[Vec<Order>], events: &[Event]) -> Truth {
    let mut truth = Truth::default();
    let mut at = vec![0; logs.len()];
    let mut highest: Vec<Option<i64>> = vec![None; logs.len()];
    // Whether it is idle, and up to where its silence closes windows.
    let mut quiet: Vec<Option<Option<i64>>> = vec![None; logs.len()];
    let watermark = |highest: Option<i64>| highest.map(|highest| (highest - delay) * 1_000_000);
    let told = |told: Option<i64>, highest: &[Option<i64>], quiet: &[Option<Option<i64>>]| {
        let awake: Vec<_> = (0..highest.len()).filter(|number| quiet[*number].is_none()).collect();
        let lowest = match awake.is_empty() {
            false => awake.iter().map(|number| watermark(highest[*number])).min().flatten(),
            true => {
                (0..highest.len()).map(|number| watermark(highest[number]).max(quiet[number].flatten())).max().flatten()
            }
        };
        told.max(lowest)
    };
    for event in events {
        match *event {
            Event::Quiet(number, seconds) => {
                let closes = |highest| kind.windows(highest).into_iter().map(|(_, end, _)| kind.closes(end)).max();
                quiet[number] = Some(highest[number].filter(|_| seconds >= 60).and_then(closes));
                truth.told = told(truth.told, &highest, &quiet);
            }
            Event::Read(number, until) => {
                for offset in at[number]..until {
                    quiet[number] = None;
                    let Order { k, v, ts } = &logs[number][offset as usize];
                    let own = watermark(highest[number]);
                    highest[number] = highest[number].max(*ts);
                    let Some(ts) = ts else {
                        truth.bad += 1;
                        continue;
                    };
                    let windows = kind.windows(*ts);
                    let over = |watermark: Option<i64>| windows.iter().all(|window| watermark >= Some(window.2));
                    if over(own) {
                        truth.late.push((number, offset));
                    } else if over(own.max(truth.told)) {
                        truth.late_closed.push((number, offset));
                    }
                    let open = windows.iter().filter(|window| own.max(truth.told) < Some(window.2));
                    truth.groups.extend(open.map(|(start, end, _)| (*start, *end, *k, 1, *v)));
                    truth.told = told(truth.told, &highest, &quiet);
                }
                at[number] = until;
            }
        }
    }
    let same = |a: &(i64, i64, usize, i64, i64), b: &(i64, i64, usize, i64, i64)| match kind {
        Kind::Sliding { .. } => (a.0, a.2) == (b.0, b.2),
        Kind::Session { .. } => a.2 == b.2 && a.0 <= b.1 && b.0 <= a.1,
    };
    let mut merged: Vec<(i64, i64, usize, i64, i64)> = Vec::new();
    truth.groups.sort_unstable_by_key(|group| (group.2, group.0));
    for group in truth.groups {
        match merged.last_mut().filter(|last| same(last, &group)) {
            Some(last) => *last = (last.0, last.1.max(group.1), last.2, last.3 + 1, last.4 + group.4),
            None => merged.push(group),
        }
    }
    Truth { groups: merged, ..truth }
}

/// However what is read at a time is cut into batches, and whenever a shard starts anew: each row is judged as if it had come
/// alone, and each window is written once.
#[test]
fn random_silence_equals_a_reference_that_keeps_all_rows() {
    let mut seen = BTreeMap::<&str, usize>::new();
    for seed in 0..150 {
        let mut dice = Dice::new(seed);
        let (kind, delay) = (Kind::random(&mut dice), dice.below(60) as i64);
        let late = if dice.chance(50) { "dead-letter" } else { "drop" };
        let orders: Vec<_> = (0..1 + dice.below(3)).map(|_| orders(&mut dice)).collect();
        let logs: Vec<_> = orders.iter().map(|orders| records(orders)).collect();
        let ends: Vec<_> = orders.iter().map(|orders| orders.len() as i64).collect();
        let events = events(&mut dice, &ends);
        let truth = truth(kind, delay, &orders, &events);
        let closed = |end: i64| truth.told >= Some(kind.closes(end));
        let millis = |time: i64| ScalarValue::TimestampMillisecond(Some(time), None);
        let wanted: Vec<_> = truth
            .groups
            .iter()
            .filter(|(_, end, ..)| closed(*end))
            .map(|(start, end, k, count, sum)| {
                let numbers = [*count, *sum].map(|number| ScalarValue::Int64(Some(number)));
                [vec![millis(*start), millis(*end), ScalarValue::Utf8(Some(format!("k{k}")))], numbers.to_vec()]
                    .concat()
            })
            .collect();
        each_way(|| {
            let what = format!("seed {seed}: {kind:?}, {delay}, {late}");
            let mut pipeline = Pipeline::new(&kind.sql(delay, late), 1 + dice.below(3), logs.len());
            let mut at = vec![0; logs.len()];
            for event in &events {
                match *event {
                    Event::Quiet(number, seconds) => pipeline.quiet(number, seconds),
                    Event::Read(number, until) => {
                        while at[number] < until {
                            let next = until.min(at[number] + 1 + dice.below(12) as i64);
                            pipeline.batch(number, &logs[number], at[number], next);
                            at[number] = next;
                        }
                    }
                }
                let shard = dice.below(pipeline.shards());
                if dice.chance(40) {
                    pipeline.checkpoint(shard);
                    if dice.chance(40) {
                        pipeline.restart(shard);
                    }
                }
            }
            pipeline.checkpoint_all();
            assert_rows(&pipeline, wanted.clone());
            let counts = pipeline.counts;
            assert_eq!(pipeline.told(), truth.told, "{what}");
            assert_eq!(counts.late, truth.late.len() as u64, "{what}");
            assert_eq!(counts.late_closed, truth.late_closed.len() as u64, "{what}");
            let mut letters: Vec<_> =
                pipeline.letters.iter().map(|letter| (letter.partition.partition as usize, letter.offset)).collect();
            letters.sort_unstable();
            if late == "dead-letter" {
                let mut wanted = [truth.late.clone(), truth.late_closed.clone()].concat();
                wanted.sort_unstable();
                letters.retain(|letter| wanted.contains(letter));
                assert_eq!(letters, wanted, "{what}");
            }
            assert!(pipeline.written.values().all(|times| *times == 1), "each window is written once: {what}");
            assert_eq!(pipeline.keys(), truth.groups.iter().filter(|(_, end, ..)| !closed(*end)).count(), "{what}");
            assert!(pipeline.checkpoint_all().is_empty(), "nothing is written twice: {what}");
        });
        let kind = match kind {
            Kind::Session { .. } => "sessions",
            Kind::Sliding { size, slide } if size > slide => "sliding",
            Kind::Sliding { .. } => "tumbling",
        };
        *seen.entry(kind).or_default() += truth.late_closed.len();
        *seen.entry("written").or_default() += wanted.len();
        *seen.entry("late").or_default() += truth.late.len();
    }
    for (what, least) in [("sessions", 50), ("sliding", 50), ("tumbling", 50), ("written", 500), ("late", 100)] {
        assert!(seen[what] >= least, "the cases have too few: {seen:?}");
    }
}

/// What one shard has closed is nothing to the rows of another, and what is counted is counted by the shard of the row, from
/// its cut on.
#[test]
fn each_row_is_judged_by_what_its_own_shard_has_closed() {
    use strandline_actors::position::Offset;

    for kind in [Kind::Sliding { size: 10, slide: 10 }, Kind::Sliding { size: 10, slide: 3 }, Kind::Session { gap: 5 }]
    {
        let plan = super::harness::planned(&kind.sql(5, "dead-letter"));
        let mut dice = Dice::new(7);
        let orders: Vec<_> =
            (0..90).map(|n| Order { k: dice.below(9), v: 1, ts: Some(n / 2 + dice.below(20) as i64) }).collect();
        let log = records(&orders);
        let partition = super::harness::partition(0);
        let batch = super::harness::batch(&log, 0, 90);
        let run = |closed: [Option<i64>; 3], cut: [i64; 3]| {
            let cuts = cut.map(|cut| Some(Offset(cut)));
            let input = super::harness::input(&partition, &batch);
            let input = strandline_actors::ports::StageInput { cuts: &cuts, closed: &closed, ..input };
            plan.query().source_stage(&partition).run(input).unwrap()
        };
        let open = run([None; 3], [0; 3]);
        for shard in 0..3 {
            let mut closed = [None; 3];
            closed[shard] = Some(20_000_000);
            let mut cut = [0; 3];
            cut[shard] = 10;
            let (whole, cut) = (run(closed, [0; 3]), run(closed, cut));
            for lane in 0..3 {
                let (before, counts) = (open.lanes[lane].counts, whole.lanes[lane].counts);
                assert_eq!(counts.late, before.late, "{kind:?}");
                assert_eq!(counts.processed + counts.late_closed, before.processed, "{kind:?}");
                assert_eq!(counts.late_closed > 0, lane == shard, "{kind:?}: {counts:?}");
                let letters = whole.lanes[lane].dead_letters.iter();
                let early: Vec<_> =
                    letters.filter(|letter| letter.reason.contains("while its partition was quiet")).collect();
                assert_eq!(early.len() as u64, counts.late_closed);
                let from = early.iter().filter(|letter| letter.offset >= 10).count() as u64;
                let after_cut = cut.lanes[lane].counts.late_closed;
                assert_eq!(after_cut, if lane == shard { from } else { counts.late_closed }, "{kind:?}");
            }
        }
    }
}
