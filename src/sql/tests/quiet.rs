//! Windows that idleness and silence close early, and rows that come for them all the same.

use super::harness::{Dice, Pipeline, each_way, log};
use super::windows::{order, shown};

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

/// What one shard has closed is nothing to the rows of another, and what is counted is counted by the shard of the row, from
/// its cut on.
#[test]
fn each_row_is_judged_by_what_its_own_shard_has_closed() {
    use strandline_actors::position::Offset;

    for kind in [
        "window(ts, '10 milliseconds')",
        "window(ts, '10 milliseconds', '3 milliseconds')",
        "session_window(ts, '5 milliseconds')",
    ] {
        let name = kind.split('(').next().unwrap();
        let sql = format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders'
               OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.delay' '5 milliseconds',
                 'watermark.idle' '30 seconds', 'late.rows' 'dead-letter');
             CREATE EXTERNAL TABLE result (start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (k, start))
               STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' 'append');
             INSERT INTO result SELECT {name}.start, k, count(*) FROM orders GROUP BY k, {kind}"
        );
        let plan = super::harness::planned(&sql);
        let mut dice = Dice::new(7);
        let log = log((0..90).map(|n| order(&format!("k{}", dice.below(9)), 1, n / 2 + dice.below(20) as i64)));
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
                assert_eq!(counts.late, before.late, "{kind}");
                assert_eq!(counts.processed + counts.late_closed, before.processed, "{kind}");
                assert_eq!(counts.late_closed > 0, lane == shard, "{kind}: {counts:?}");
                let letters = whole.lanes[lane].dead_letters.iter();
                let early: Vec<_> =
                    letters.filter(|letter| letter.reason.contains("while its partition was quiet")).collect();
                assert_eq!(early.len() as u64, counts.late_closed);
                let from = early.iter().filter(|letter| letter.offset >= 10).count() as u64;
                let after_cut = cut.lanes[lane].counts.late_closed;
                assert_eq!(after_cut, if lane == shard { from } else { counts.late_closed }, "{kind}");
            }
        }
    }
}
