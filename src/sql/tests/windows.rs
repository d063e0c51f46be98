//! Windows of event time: what they are in a query, when they are closed, and what is late.

use super::harness::{Dice, Pipeline, each_way, log, planned, run_cut, run_stage};

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

/// A window that has a name or a number in SELECT is grouped by that, and its bounds are conditions like others.
#[test]
fn windows_are_grouped_by_their_alias_or_number() {
    each_way(|| {
        let times = [0, 400, 1_100, 1_200, 1_300, 2_500, 9_000];
        let log = log(times.map(|ts| order("a", 1, ts)));
        for (inner, outer) in [
            ("window(ts, '1 second') AS w, count(*) AS n FROM orders GROUP BY w", "w.start"),
            ("count(*) AS n, window(ts, '1 second') AS w FROM orders GROUP BY 2", "w.start"),
            ("window.start AS w, count(*) AS n FROM orders GROUP BY window(ts, '1 second')", "w"),
            ("window.*, count(*) AS n FROM orders GROUP BY window(ts, '1 second')", "start"),
            (
                "window.start AS w, count(*) AS n FROM orders GROUP BY window(ts, '1 second')
                   HAVING window.start >= TIMESTAMP '1970-01-01T00:00:00' AND window.end < TIMESTAMP '1970-01-01T00:00:05'",
                "w",
            ),
        ] {
            let select = format!("INSERT INTO result SELECT {outer}, n FROM (SELECT {inner})");
            let mut pipeline = pipeline("", "start TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", &select);
            pipeline.batch(0, &log, 0, 7);
            pipeline.checkpoint_all();
            assert_eq!(shown(&pipeline), ["0 2", "1000 3", "2000 1"], "{select}");
        }
        let select = "INSERT INTO result SELECT window.start, count(*) FROM orders GROUP BY window(ts, '1 second')
            HAVING window.start >= TIMESTAMP '1970-01-01T00:00:01' AND window.end < TIMESTAMP '1970-01-01T00:00:03'";
        let mut pipeline = pipeline("", "start TIMESTAMP(3) PRIMARY KEY, n BIGINT", "append", select);
        pipeline.batch(0, &log, 0, 7);
        pipeline.checkpoint_all();
        assert_eq!(shown(&pipeline), ["1000 3"]);
    });
    let fingerprint = |columns: &str| {
        super::harness::planned(&format!(
            "CREATE EXTERNAL TABLE orders (ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, until TIMESTAMP(3)) STORED AS TABLE
               LOCATION 'console://';
             INSERT INTO result SELECT {columns} FROM orders GROUP BY window(ts, '1 second')"
        ))
        .fingerprint
    };
    assert_eq!(fingerprint("window.*"), fingerprint("window.start, window.end"));
    for options in ["EXCEPT (\"end\")", "EXCLUDE \"end\"", "REPLACE (1 AS \"end\")"] {
        let message = super::harness::refused(&format!(
            "CREATE EXTERNAL TABLE orders (ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders';
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://';
             INSERT INTO result SELECT window.* {options}, count(*) FROM orders GROUP BY window(ts, '1 second')"
        ));
        assert!(message.contains("window"), "{options}: {message}");
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

/// By the time that some shards read a record again, the clock may allow it what it did not allow the first time. It moves the
/// watermark no further than it came then, so no row is late that was not.
#[test]
fn a_record_that_is_read_again_moves_the_watermark_no_further_than_before() {
    let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR) STORED AS JSON LOCATION 'kafka://orders' OPTIONS
           ('watermark.column' '_timestamp', 'watermark.max.ahead' '1 minute', 'watermark.delay' '1 second');
         CREATE EXTERNAL TABLE result (start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS TABLE
           LOCATION 'console://' OPTIONS ('output.mode' 'append');
         INSERT INTO result SELECT window.start, k, count(*) FROM orders GROUP BY window(_timestamp, '1 second'), k";
    let now = 1_800_000_000_000_i64;
    let stamps = [now, now + 90_000, now, now + 5_000, now];
    let mut log = log((0..5).map(|n| format!("{{\"k\":\"k{n}\"}}")));
    log.iter_mut().zip(stamps).for_each(|(record, stamp)| record.timestamp = stamp);
    for committed in 0..3 {
        let mut pipeline = Pipeline::new(sql, 3, 1);
        pipeline.batch(0, &log, 0, 3);
        assert_eq!((pipeline.watermark(0), pipeline.counts.ahead), (Some((now - 1_000) * 1_000_000), 1));
        pipeline.checkpoint(committed);
        pipeline.now += 2 * 3_600_000_000;
        pipeline.crash_all();
        // The others read all three again, and the clock is two hours further.
        assert_eq!(pipeline.next(0), 0);
        pipeline.batch(0, &log, 0, 3);
        assert_eq!(pipeline.watermark(0), Some((now - 1_000) * 1_000_000), "{committed}");
        // What nobody has read before moves it as far as its time allows.
        pipeline.batch(0, &log, 3, 5);
        assert_eq!(pipeline.watermark(0), Some((now + 4_000) * 1_000_000));
        assert_eq!((pipeline.counts.processed, pipeline.counts.late), (4, 1), "the last one");
    }
}

/// What no window says is easily overlooked.
#[test]
fn queries_are_told_what_becomes_of_time() {
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
    let windows =
        "; CREATE EXTERNAL TABLE hours (start TIMESTAMP, k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS CQL
          LOCATION 'cassandra://shop/hours';
        INSERT INTO hours SELECT window.start, k, count(*) FROM orders GROUP BY window(ts, '1 hour'), k";
    let told = notices("", windows);
    assert!(
        told.len() == 1 && told[0].contains("without 'watermark.column' on orders no window ever closes"),
        "{told:?}"
    );
    assert!(notices("OPTIONS ('watermark.column' 'ts')", windows).is_empty());
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

    let plan = planned(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
           OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '5 milliseconds');
         CREATE EXTERNAL TABLE result (start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k))
           STORED AS TABLE LOCATION 'console://';
         INSERT INTO result SELECT window.start, k, count(*) FROM orders
           GROUP BY k, window(ts, '30 milliseconds', '7 milliseconds')",
    );
    let mut dice = Dice::new(9);
    let log = log((0..60).map(|n| order(&format!("k{}", dice.below(6)), 1, n / 2 + dice.below(9) as i64)));
    let sums = |output: &strandline_actors::ports::StageOutput, lane: usize| -> i64 {
        use arrow::array::AsArray;
        let rows = output.lanes[lane].rows.iter();
        rows.map(|rows| rows.column(2).as_primitive::<arrow::datatypes::Int64Type>().values().iter().sum::<i64>()).sum()
    };
    let whole = run_stage(&plan, &log, 3, 0, 60);
    let cuts = [Some(Offset(20)), Some(Offset(0)), Some(Offset(41))];
    let cut = run_cut(&plan, &log, 0, 60, &cuts, &[]).unwrap();
    assert_eq!(cut.watermark, whole.watermark);
    for (lane, from) in [20, 0, 41].into_iter().enumerate() {
        let mut only = [None; 3];
        only[lane] = Some(Offset(0));
        let before = run_cut(&plan, &log, 0, from, &only, &[]).unwrap();
        assert_eq!(sums(&whole, lane), sums(&before, lane) + sums(&cut, lane), "lane {lane}");
        let mut counts = before.lanes[lane].counts;
        counts.add(&cut.lanes[lane].counts);
        assert_eq!(counts, whole.lanes[lane].counts, "lane {lane}");
        assert!(sums(&cut, lane) > 0);
    }
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
