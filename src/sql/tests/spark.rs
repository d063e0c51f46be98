//! `docs/windows-and-spark.md`: what Spark documents, with its results, and where the two differ.

use super::harness::{Pipeline, each_way, log};

/// The rows that are written, by the names of their columns' values, in order.
fn written(pipeline: &Pipeline) -> Vec<String> {
    let mut rows: Vec<_> = pipeline
        .rows
        .values()
        .map(|row| {
            let values: Vec<_> = row.iter().map(|value| value.to_array().unwrap()).collect();
            let shown = values.iter().map(|value| arrow::util::display::array_value_to_string(value, 0).unwrap());
            shown.collect::<Vec<_>>().join(" ").replace("2021-01-01T", "").replace("2020-12-31T", "")
        })
        .collect();
    rows.sort();
    rows
}

/// A pipeline over words and their times of one day.
fn words(window: &str, name: &str, options: &str, mode: &str) -> Pipeline {
    Pipeline::new(
        &format!(
            "CREATE EXTERNAL TABLE events (a VARCHAR, b TIMESTAMP) STORED AS JSON LOCATION 'kafka://events'
               OPTIONS ('watermark.column' 'b'{options});
             CREATE EXTERNAL TABLE result (a VARCHAR, start TIMESTAMP, until TIMESTAMP, n BIGINT, PRIMARY KEY (a, start))
               STORED AS TABLE LOCATION 'console://' OPTIONS ('output.mode' '{mode}');
             INSERT INTO result SELECT a, {name}.start, {name}.end, count(*) FROM events GROUP BY a, {window}"
        ),
        1,
        1,
    )
}

fn event(a: &str, time: &str) -> String {
    format!("{{\"a\":\"{a}\",\"b\":\"2021-01-01T{time}\"}}")
}

/// The examples of `window` in Spark's list of functions.
#[test]
fn the_windows_of_sparks_reference_have_its_results() {
    each_way(|| {
        let events = [("A1", "00:00:00"), ("A1", "00:04:30"), ("A1", "00:06:00"), ("A2", "00:01:00")];
        let expected: [(&str, &[&str]); 2] = [
            ("'5 minutes'", &["A1 00:00:00 00:05:00 2", "A1 00:05:00 00:10:00 1", "A2 00:00:00 00:05:00 1"]),
            (
                "'10 minutes', '5 minutes'",
                &[
                    "A1 00:00:00 00:10:00 3",
                    "A1 00:05:00 00:15:00 1",
                    "A1 23:55:00 00:05:00 2",
                    "A2 00:00:00 00:10:00 1",
                    "A2 23:55:00 00:05:00 1",
                ],
            ),
        ];
        for (lengths, rows) in expected {
            let late = ", 'watermark.delay' '1 hour'";
            let mut pipeline = words(&format!("window(b, {lengths})"), "window", late, "update");
            pipeline.batch(0, &log(events.map(|(a, time)| event(a, time))), 0, 4);
            pipeline.checkpoint_all();
            assert_eq!(written(&pipeline), rows, "{lengths}");
        }
    });
}

/// The examples of `session_window` there, with one gap and with a gap of each row, as intervals and as texts.
#[test]
fn the_sessions_of_sparks_reference_have_its_results() {
    each_way(|| {
        let one = [("A1", "00:00:00"), ("A1", "00:04:30"), ("A1", "00:10:00"), ("A2", "00:01:00")];
        let two = [one.as_slice(), &[("A2", "00:04:30")]].concat();
        let gaps = "CASE WHEN a = 'A1' THEN INTERVAL '5 minutes' WHEN a = 'A2' THEN INTERVAL '1 minute'
        ELSE INTERVAL '10 minutes' END";
        let texts = gaps.replace("INTERVAL ", "");
        let both = ["A1 00:00:00 00:09:30 2", "A1 00:10:00 00:15:00 1"];
        let expected = [
            ("'5 minutes'", one.to_vec(), vec![both[0], both[1], "A2 00:01:00 00:06:00 1"]),
            (gaps, two.clone(), vec![both[0], both[1], "A2 00:01:00 00:02:00 1", "A2 00:04:30 00:05:30 1"]),
            (&texts, two, vec![both[0], both[1], "A2 00:01:00 00:02:00 1", "A2 00:04:30 00:05:30 1"]),
        ];
        for (gap, events, rows) in expected {
            let late = ", 'watermark.delay' '1 hour'";
            let mut pipeline = words(&format!("session_window(b, {gap})"), "session_window", late, "append");
            // A later row of another key closes them.
            let mut log = log(events.iter().map(|(a, time)| event(a, time)));
            log.extend(super::harness::log([event("A3", "02:00:00")]));
            let last = log.len() as i64 - 1;
            log.last_mut().unwrap().offset = last;
            pipeline.batch(0, &log, 0, last);
            assert!(pipeline.checkpoint_all().is_empty(), "nothing is final");
            pipeline.batch(0, &log, last, last + 1);
            pipeline.checkpoint_all();
            assert_eq!(written(&pipeline), rows, "{gap}");
        }
    });
}

/// The first picture of Spark's guide: words in windows of ten minutes every five, and the whole result after each of three
/// triggers.
#[test]
fn the_counts_of_sparks_guide_have_its_results() {
    each_way(|| {
        let events = [
            ("cat", "12:02:00"),
            ("dog", "12:02:00"),
            ("dog", "12:03:00"),
            ("dog", "12:03:00"),
            ("owl", "12:07:00"),
            ("cat", "12:07:00"),
            ("dog", "12:11:00"),
            ("owl", "12:13:00"),
        ];
        let log = log(events.map(|(word, time)| event(word, time)));
        let late = ", 'watermark.delay' '1 hour'";
        let mut pipeline = words("window(b, '10 minutes', '5 minutes')", "window", late, "complete");
        let of = |pipeline: &Pipeline, start: &str| -> Vec<String> {
            written(pipeline).into_iter().filter(|row| row.split(' ').nth(1) == Some(&format!("{start}:00"))).collect()
        };
        pipeline.batch(0, &log, 0, 4);
        pipeline.checkpoint_all();
        assert_eq!(of(&pipeline, "12:00"), ["cat 12:00:00 12:10:00 1", "dog 12:00:00 12:10:00 3"]);
        pipeline.batch(0, &log, 4, 6);
        pipeline.checkpoint_all();
        let first = ["cat 12:00:00 12:10:00 2", "dog 12:00:00 12:10:00 3", "owl 12:00:00 12:10:00 1"];
        assert_eq!(of(&pipeline, "12:00"), first);
        assert_eq!(of(&pipeline, "12:05"), ["cat 12:05:00 12:15:00 1", "owl 12:05:00 12:15:00 1"]);
        pipeline.batch(0, &log, 6, 8);
        pipeline.checkpoint_all();
        assert_eq!(of(&pipeline, "12:00"), first);
        let second = ["cat 12:05:00 12:15:00 1", "dog 12:05:00 12:15:00 1", "owl 12:05:00 12:15:00 2"];
        assert_eq!(of(&pipeline, "12:05"), second);
        assert_eq!(of(&pipeline, "12:10"), ["dog 12:10:00 12:20:00 1", "owl 12:10:00 12:20:00 1"]);
    });
}

/// A window is written when the watermark is at its end, not past it; a session when it is past its end, since a row at the
/// very end would prolong it.
#[test]
fn a_window_is_written_at_its_end_and_a_session_past_it() {
    each_way(|| {
        let log = log(["00:00:30", "00:01:00", "00:01:00.001"].map(|time| event("a", time)));
        for (window, name, at_end) in
            [("window(b, '1 minute')", "window", 1), ("session_window(b, '30 seconds')", "session_window", 0)]
        {
            let mut pipeline = Pipeline::new(
            &format!(
                "CREATE EXTERNAL TABLE events (a VARCHAR, b TIMESTAMP) STORED AS JSON LOCATION 'kafka://events'
                   OPTIONS ('watermark.column' 'b');
                 CREATE EXTERNAL TABLE result (start TIMESTAMP PRIMARY KEY, n BIGINT) STORED AS TABLE
                   LOCATION 'console://' OPTIONS ('output.mode' 'append');
                 INSERT INTO result SELECT {name}.start, count(*) FROM events WHERE b <> to_timestamp('2021-01-01T00:01:00')
                   GROUP BY {window}"
            ),
            1,
            1,
        );
            for (until, rows) in [(1, 0), (2, at_end), (3, 1)] {
                pipeline.batch(0, &log, until - 1, until);
                pipeline.checkpoint_all();
                assert_eq!(pipeline.rows.len(), rows, "{window} after {until} rows");
            }
        }
    });
}

/// In complete mode no window is closed, but a row that is late is left out all the same.
#[test]
fn late_rows_are_left_out_in_complete_mode_too() {
    each_way(|| {
        let mut pipeline = words("window(b, '1 minute')", "window", "", "complete");
        pipeline.batch(0, &log(["00:00:30", "00:02:00", "00:00:40"].map(|time| event("a", time))), 0, 3);
        pipeline.checkpoint_all();
        assert_eq!(written(&pipeline), ["a 00:00:00 00:01:00 1", "a 00:02:00 00:03:00 1"]);
        assert_eq!((pipeline.counts.late, pipeline.keys()), (1, 2));
    });
}
