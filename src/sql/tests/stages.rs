//! The source stage: cuts, counts, policies, rules, metadata, and errors of single records.

use datafusion::common::ScalarValue;
use strandline_actors::ports::{SourceBatch, StageError, StageInput};
use strandline_actors::position::{Counts, Offset};

use super::harness::{
    Dice, Pipeline, Record, batch, each_way, letters, log, partition, planned, run_cut, run_stage, strings, total,
    values,
};
use super::windows::shown;

const SINK: &str = "CREATE EXTERNAL TABLE result (k VARCHAR, v BIGINT) STORED AS TABLE LOCATION 'console://';";

fn pass_through(options: &str, select: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://orders' {options}; {SINK} \
         INSERT INTO result {select}"
    )
}

fn grouped(options: &str) -> String {
    pass_through(options, "SELECT k, sum(v) FROM orders WHERE v < 1000 GROUP BY k")
}

fn record(offset: i64, k: &str, v: i64) -> Record {
    Record::new(offset, format!("{{\"k\":\"{k}\",\"v\":{v}}}"))
}

/// Records of every kind: good, filtered, bad, null, and offsets that carry none.
fn mixed() -> Vec<Record> {
    let mut dice = Dice::new(7);
    let mut log = Vec::new();
    for offset in 0..600 {
        match dice.below(10) {
            0 => {}
            1 => log.push(Record::null(offset)),
            2 => log.push(Record::new(offset, "{\"k\":\"x")),
            3 => log.push(record(offset, "filtered", 5000)),
            _ => log.push(record(offset, &format!("k{}", dice.below(12)), dice.below(100) as i64)),
        }
    }
    log
}

#[test]
fn every_offset_is_counted_once() {
    let log = mixed();
    let end = log[log.len() - 1].offset + 1;
    each_way(|| {
        for shards in 1..5 {
            for sql in [grouped(""), pass_through("", "SELECT k, v FROM orders WHERE v < 1000")] {
                let pipeline = Pipeline::over(&sql, shards, &log);
                let counts = pipeline.counts;
                assert_eq!(counts.total(), end as u64);
                let value = |record: &Record| record.value.clone().unwrap_or_default();
                let of = |wanted: fn(&str) -> bool| {
                    log.iter().filter(|r| wanted(std::str::from_utf8(&value(r)).unwrap())).count() as u64
                };
                assert_eq!(counts.gaps, end as u64 - log.len() as u64);
                assert_eq!(counts.tombstones, of(str::is_empty));
                assert_eq!(counts.dead_lettered, of(|v| v == "{\"k\":\"x"));
                assert_eq!(counts.filtered, of(|v| v.contains("filtered")));
                assert_eq!(counts.processed, of(|v| v.contains("\"k\":\"k")));
                assert_eq!((counts.late, counts.skipped), (0, 0));
                assert_eq!(pipeline.letters.len() as u64, counts.dead_lettered);
            }
        }
    });
}

/// A shard that was cut at any offset gets exactly what it had not got before, rows and counts.
#[test]
fn what_is_sent_again_is_cut_for_each_lane() {
    let log = mixed();
    let keyed = pass_through("", "SELECT k, v FROM orders WHERE v < 1000")
        .replace("v BIGINT) STORED AS TABLE", "v BIGINT, PRIMARY KEY (k)) STORED AS TABLE");
    for sql in [grouped(""), pass_through("", "SELECT k, v FROM orders WHERE v < 1000"), keyed] {
        let plan = planned(&sql);
        let whole = run_stage(&plan, &log, 3, 0, 600);
        let mut dice = Dice::new(1);
        for _ in 0..20 {
            let cuts: Vec<_> = (0..3).map(|_| Offset(dice.below(700) as i64)).collect();
            let lowest = cuts.iter().min().unwrap().0.min(600);
            let all: Vec<_> = cuts.iter().copied().map(Some).collect();
            let later = run_cut(&plan, &log, lowest, 600, &all, &[]).unwrap();
            for (shard, cut) in cuts.iter().enumerate() {
                // What the shard has already, and what it gets now, is the whole.
                let zero = vec![Some(Offset(0)); 3];
                let earlier = run_cut(&plan, &log, 0, cut.0.min(600), &zero, &[]).unwrap();
                let mut counts = earlier.lanes[shard].counts;
                counts.add(&later.lanes[shard].counts);
                assert_eq!(counts, whole.lanes[shard].counts, "shard {shard} cut at {cut}");
                let of = |lanes: &[&strandline_actors::ports::LaneRows]| {
                    let mut operator = plan.query().operator(0);
                    for lane in lanes {
                        operator.apply(lane.rows.clone(), None).unwrap();
                    }
                    let mut rows: Vec<_> = operator
                        .checkpoint()
                        .unwrap()
                        .output
                        .iter()
                        .flat_map(|output| {
                            (0..output.rows.num_rows()).map(|row| format!("{:?}", values(&output.rows, row)))
                        })
                        .collect();
                    rows.sort();
                    rows
                };
                assert_eq!(of(&[&earlier.lanes[shard], &later.lanes[shard]]), of(&[&whole.lanes[shard]]));
            }
        }
    }
}

#[test]
fn a_lane_that_is_off_gets_nothing_and_counts_nothing() {
    let log = mixed();
    for sql in [grouped(""), pass_through("", "SELECT k, v FROM orders WHERE v < 1000")] {
        let plan = planned(&sql);
        let whole = run_stage(&plan, &log, 3, 0, 600);
        let cuts = [Some(Offset(0)), None, Some(Offset(0))];
        let output = run_cut(&plan, &log, 0, 600, &cuts, &[]).unwrap();
        assert!(output.lanes[1].rows.is_empty() && output.lanes[1].dead_letters.is_empty());
        assert_eq!(output.lanes[1].counts, Counts::default());
        assert_eq!(output.lanes[0].counts, whole.lanes[0].counts);
        assert_eq!(output.lanes[2].counts, whole.lanes[2].counts);
        let output = run_cut(&plan, &log, 0, 600, &[None, None, None], &[]).unwrap();
        assert_eq!(total(&output), Counts::default());
    }
}

#[test]
fn an_empty_range_and_a_range_of_gaps() {
    let plan = planned(&grouped(""));
    let output = run_stage(&plan, &[], 2, 5, 5);
    assert_eq!(total(&output), Counts::default());
    let output = run_stage(&plan, &[], 2, 5, 9);
    assert_eq!(total(&output), Counts { gaps: 4, ..Counts::default() });
    assert!(output.lanes.iter().all(|lane| lane.rows.is_empty()));
}

/// Offsets whose records were deleted before they were read are counted by the partition, which knows what each shard has.
#[test]
fn lost_offsets_are_no_gaps() {
    let plan = planned(&grouped(""));
    let partition = partition(0);
    let hole = SourceBatch { lost: true, ..batch(&[], 5, 50) };
    for cut in [0, 30, 60] {
        let cuts = [Some(Offset(cut)); 3];
        let input = StageInput { cuts: &cuts, closed: &[None; 3], ..super::harness::input(&partition, &hole) };
        let output = plan.query().source_stage(&partition).run(input).unwrap();
        assert_eq!(total(&output), Counts::default());
    }
}

#[test]
fn a_poison_record_is_set_aside_unseen() {
    let mut log = log(["{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":2}", "{\"k\":\"c\",\"v\":3}"]);
    log[1].key = Some(b"key".to_vec());
    for options in ["", "OPTIONS ('bad.records' 'fail')", "OPTIONS ('bad.records' 'skip')"] {
        let plan = planned(&pass_through(options, "SELECT k, v FROM orders"));
        let output = run_cut(&plan, &log, 0, 3, &[Some(Offset(0))], &[Offset(1)]).unwrap();
        let letters = letters(&output);
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].reason, "processing this record ended its actor or the whole process again and again");
        assert_eq!((letters[0].offset, letters[0].timestamp), (1, 1_700_000_000_001));
        assert_eq!(letters[0].topic, "orders");
        assert_eq!(letters[0].partition, partition(0).key);
        assert_eq!(letters[0].key.as_deref(), Some(&b"key"[..]));
        assert_eq!(letters[0].value.as_deref(), Some(&b"{\"k\":\"b\",\"v\":2}"[..]));
        assert_eq!(strings(&output.lanes[0].rows[0], 0), [Some("a".to_owned()), Some("c".to_owned())]);
    }
}

#[test]
fn bad_records_by_policy() {
    let log = log([
        "{\"k\":\"a\",\"v\":1}",
        "{\"k\":\"x",
        "",
        "[1]",
        "{\"k\":\"b\",\"v\":\"many\"}",
        "{\"k\":\"b\",\"v\":2}",
    ]);
    let select = "SELECT k, v FROM orders";
    each_way(|| {
        let pipeline = Pipeline::over(&pass_through("", select), 2, &log);
        let offsets: Vec<_> = pipeline.letters.iter().map(|letter| letter.offset).collect();
        assert_eq!(offsets, [1, 2, 3, 4]);
        assert!(pipeline.letters.iter().all(|letter| !letter.reason.is_empty()));
        assert_eq!((pipeline.counts.processed, pipeline.rows.len()), (2, 2));

        let pipeline = Pipeline::over(&pass_through("OPTIONS ('bad.records' 'skip')", select), 2, &log);
        assert_eq!(pipeline.counts, Counts { processed: 2, skipped: 4, ..Counts::default() });
        assert!(pipeline.letters.is_empty() && pipeline.rows.len() == 2);
    });

    let plan = planned(&pass_through("OPTIONS ('bad.records' 'fail')", select));
    let error = run_cut(&plan, &log, 0, 6, &[Some(Offset(0)); 2], &[]).unwrap_err();
    assert!(matches!(error, StageError::Refused { at: Offset(1), .. }));
    let error = error.to_string();
    assert!(error.starts_with("orders-0 stops at offset 1: ") && error.contains("'bad.records'"), "{error}");
}

/// Case: null value (feldera PR#6707).
#[test]
fn null_values_by_policy() {
    let log = vec![record(0, "a", 1), Record::null(1), record(2, "b", 2)];
    let select = "SELECT k, v FROM orders";
    each_way(|| {
        let pipeline = Pipeline::over(&pass_through("", select), 2, &log);
        assert_eq!(pipeline.counts, Counts { processed: 2, tombstones: 1, ..Counts::default() });

        let pipeline = Pipeline::over(&pass_through("OPTIONS ('null.value' 'dead-letter')", select), 2, &log);
        assert_eq!(pipeline.counts, Counts { processed: 2, dead_lettered: 1, ..Counts::default() });
        assert_eq!(pipeline.letters[0].reason, "the value is null");
        assert_eq!(pipeline.letters[0].value, None);
    });

    let plan = planned(&pass_through("OPTIONS ('null.value' 'fail')", select));
    let error = run_cut(&plan, &log, 0, 3, &[Some(Offset(0))], &[]).unwrap_err();
    let refused =
        matches!(&error, StageError::Refused { at: Offset(1), why } if why.contains("offset 1: the value is null"));
    assert!(refused, "{error}");
    // The shard that owns the record has it behind it: then it concerns nobody.
    let output = run_cut(&plan, &log, 0, 3, &[Some(Offset(2))], &[]).unwrap();
    assert_eq!(total(&output), Counts { processed: 1, ..Counts::default() });
}

#[test]
fn rules_name_the_record_that_breaks_them() {
    let options = "OPTIONS ('rule.small' 'v <= 10', 'rule.named' 'k IS NOT NULL AND length(k) > 0')";
    let sql = pass_through(options, "SELECT k, 1 FROM orders WHERE k <> 'out'");
    let log = log([
        "{\"k\":\"a\",\"v\":1}",
        "{\"k\":\"b\",\"v\":11}",
        "{\"k\":\"\",\"v\":5}",
        "{\"v\":12}",
        "{\"k\":\"c\"}",
        "{\"k\":\"out\",\"v\":3}",
    ]);
    each_way(|| {
        let pipeline = Pipeline::over(&sql, 2, &log);
        let rule = |name: &str| format!("breaks rule {name}");
        assert_eq!(pipeline.reasons(), [(1, rule("small")), (2, rule("named")), (3, rule("small"))]);
        // As with CHECK, a condition that is NULL is not broken.
        assert_eq!(shown(&pipeline), ["a 1", "c 1"]);
        assert_eq!(pipeline.counts, Counts { processed: 2, filtered: 1, dead_lettered: 3, ..Counts::default() });
    });
}

/// A rule may look at everything that is known of a record, and at columns that the query does not use.
#[test]
fn rules_see_metadata_and_columns_that_the_query_does_not_use() {
    let options = "OPTIONS ('rule.key' '_key IS NOT NULL', 'rule.place' '_topic = ''orders'' AND _offset <> 2', \
                   'rule.time' '_timestamp >= TIMESTAMP ''2023-11-14T00:00:00''', 'rule.v' '100 / v < 50')";
    let sql = pass_through(options, "SELECT k, 1 FROM orders");
    assert!(planned(&sql).sources[0].keys);
    let mut log = log(["{\"v\":9}", "{\"v\":9}", "{\"v\":9}", "{\"v\":9}", "{\"v\":1}", "{\"v\":0}", "{}"]);
    log.iter_mut().for_each(|record| record.key = Some(b"k".to_vec()));
    log[1].key = None;
    log[3].timestamp = 0;
    each_way(|| {
        for shards in 1..3 {
            let pipeline = Pipeline::over(&sql, shards, &log);
            let reasons = pipeline.reasons();
            let rule = |name: &str| format!("breaks rule {name}");
            let wanted = [(1, rule("key")), (2, rule("place")), (3, rule("time")), (4, rule("v"))];
            assert_eq!(reasons[..4], wanted);
            assert_eq!(reasons[4..], [(5, "cannot be evaluated: Divide by zero error".to_owned())]);
            assert_eq!(pipeline.counts, Counts { processed: 2, dead_lettered: 5, ..Counts::default() });
        }
    });
}

/// A broken rule is under the same policy as a value that cannot be decoded.
#[test]
fn broken_rules_by_policy() {
    let log = log(["{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":11}", "{\"k\":\"c\"}"]);
    let sql = |policy: &str| {
        let options = format!("OPTIONS ('rule.small' 'v <= 10', 'bad.records' '{policy}')");
        pass_through(&options, "SELECT k, v FROM orders")
    };
    each_way(|| {
        let pipeline = Pipeline::over(&sql("skip"), 2, &log);
        assert_eq!(pipeline.counts, Counts { processed: 2, skipped: 1, ..Counts::default() });
        assert_eq!(shown(&pipeline), ["a 1", "c NULL"]);
    });
    let plan = planned(&sql("fail"));
    let error = run_cut(&plan, &log, 0, 3, &[Some(Offset(0)); 2], &[]).unwrap_err();
    let refused = matches!(&error, StageError::Refused { at: Offset(1), why } if why.contains("breaks rule small"));
    assert!(refused, "{error}");
    // What stands before it is good.
    let output = run_cut(&plan, &log, 0, 1, &[Some(Offset(0)); 2], &[]).unwrap();
    assert_eq!(total(&output), Counts { processed: 1, ..Counts::default() });
}

/// An error of evaluation takes only its own record along, wherever the batch is cut.
#[test]
fn an_error_of_one_record_is_its_own() {
    let values: Vec<_> = (0..300).map(|v| format!("{{\"k\":\"{}\",\"v\":{}}}", v % 5, (v * 7) % 60)).collect();
    let log = log(values);
    let bad: Vec<_> = (0..300).filter(|v| (v * 7) % 60 == 0).collect();
    assert!(bad.len() > 2);
    for select in [
        "SELECT k, 100 / v FROM orders",
        "SELECT k, v FROM orders WHERE 100 / v < 1000",
        "SELECT k, sum(100 / v) FROM orders GROUP BY k",
        "SELECT cast(100 / v AS VARCHAR), count(*) FROM orders GROUP BY 1",
        "SELECT k, count(*) FILTER (WHERE 100 / v > 0) FROM orders GROUP BY k",
        "SELECT concat('x', k), v FROM (SELECT k, v, 100 / v AS w FROM orders) WHERE w < 1000",
    ] {
        each_way(|| {
            for shards in [1, 3] {
                let pipeline = Pipeline::over(&pass_through("", select), shards, &log);
                let found = pipeline.reasons();
                assert_eq!(found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), bad, "{select}");
                let reason = "cannot be evaluated: Divide by zero error";
                assert!(found.iter().all(|(_, found)| found == reason), "{:?}", found[0]);
                let (bad, good) = (bad.len() as u64, 300 - bad.len() as u64);
                assert_eq!(pipeline.counts, Counts { processed: good, dead_lettered: bad, ..Counts::default() });
            }
        });
    }
}

/// A condition that protects a later one protects it in a batch too, though there both sides may be evaluated for all
/// rows at once.
#[test]
fn a_condition_protects_the_next_one() {
    let log = log((0..100).map(|v| format!("{{\"k\":\"a\",\"v\":{}}}", v % 4)));
    let sql = pass_through("", "SELECT k, v FROM orders WHERE v <> 0 AND 12 / v > 4");
    each_way(|| {
        let pipeline = Pipeline::over(&sql, 2, &log);
        assert_eq!(pipeline.counts, Counts { processed: 50, filtered: 50, ..Counts::default() });
        assert_eq!(shown(&pipeline), ["a 1", "a 2"]);
    });
}

#[test]
fn casts_into_the_sink_fail_for_single_records() {
    let sql = "CREATE EXTERNAL TABLE orders (v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (v SMALLINT) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT v FROM orders";
    each_way(|| {
        let pipeline = Pipeline::over(sql, 2, &log(["{\"v\":7}", "{\"v\":70000}", "{\"v\":null}"]));
        let letters = &pipeline.letters;
        assert_eq!((letters.len(), letters[0].offset), (1, 1));
        assert!(letters[0].reason.contains("70000"), "{}", letters[0].reason);
        assert_eq!(shown(&pipeline), ["7", "NULL"]);
    });
}

#[test]
fn metadata_columns_have_the_values_of_their_records() {
    let sql = "CREATE EXTERNAL TABLE orders (v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (topic VARCHAR, p INT, o BIGINT, t TIMESTAMP(3), k VARCHAR, v VARCHAR, h VARCHAR,
          n BIGINT) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT _topic, _partition, _offset, _timestamp, cast(_key AS VARCHAR), cast(_value AS VARCHAR),
          cast(_headers[1]['value'] AS VARCHAR), v FROM orders WHERE _offset <> 11";
    let plan = planned(sql);
    assert!(plan.sources[0].keys && plan.sources[0].headers);
    let mut log = vec![
        Record::new(10, "{\"v\":1}"),
        Record::new(11, "{\"v\":2}"),
        Record::null(12),
        Record::new(13, "{\"v\":4}"),
    ];
    log[3].key = Some(b"key".to_vec());
    log[3].headers = vec![("trace".into(), Some(b"abc".to_vec())), ("none".into(), None)];
    each_way(|| {
        let pipeline = Pipeline::over(sql, 1, &log);
        assert!(pipeline.letters.is_empty(), "{:?}", pipeline.reasons());
        let at = |millis: i64| ScalarValue::TimestampMillisecond(Some(millis), None);
        let times: Vec<_> = pipeline.rows.values().map(|row| row[3].clone()).collect();
        assert_eq!(times, [at(1_700_000_000_010), at(1_700_000_000_013)]);
        let rows: Vec<Vec<_>> =
            pipeline.rows.values().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(rows[0][..3], ["orders", "0", "10"]);
        assert_eq!(rows[0][4..], ["NULL", "{\"v\":1}", "NULL", "1"]);
        assert_eq!(rows[1][4..], ["key", "{\"v\":4}", "abc", "4"]);
    });
}

#[test]
fn a_star_stands_for_the_declared_columns() {
    let sources = "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';";
    for select in [
        "SELECT * FROM orders",
        "SELECT o.* FROM orders AS o",
        "SELECT * FROM (SELECT * FROM orders)",
        "WITH w AS (SELECT * FROM orders) SELECT * FROM w",
        "SELECT * FROM seen",
        "SELECT k, v FROM (SELECT *, _offset AS o FROM orders) WHERE o >= 0",
        "SELECT * EXCEPT (v), v FROM orders",
        "SELECT * EXCLUDE v, v + 0 FROM orders",
        "SELECT * REPLACE (v + 0 AS v) FROM orders",
    ] {
        let sql = format!("{sources} CREATE VIEW seen AS SELECT * FROM orders; {SINK} INSERT INTO result {select}");
        assert!(!planned(&sql).sources[0].headers);
        let log = log(["{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":2}"]);
        each_way(|| assert_eq!(shown(&Pipeline::over(&sql, 2, &log)), ["a 1", "b 2"], "{select}"));
    }
}

#[test]
fn nested_values() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (user STRUCT<id BIGINT, tags VARCHAR[]>, lines STRUCT<sku VARCHAR, price \
          DOUBLE>[]) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (id BIGINT, n BIGINT, first VARCHAR, price DOUBLE, PRIMARY KEY (id)) STORED AS TABLE
          LOCATION 'console://';
        INSERT INTO result SELECT user['id'], count(*), max(user['tags'][1]), sum(lines[1]['price']) FROM orders
          GROUP BY user['id']";
        let log = log([
            r#"{"user":{"id":1,"tags":["x","y"]},"lines":[{"sku":"a","price":1.5},{"sku":"b","price":2}]}"#,
            r#"{"user":{"id":1,"tags":[]},"lines":[{"sku":"c","price":2.25}]}"#,
            r#"{"user":{"id":2,"tags":["z"]},"lines":[]}"#,
            r#"{"lines":null}"#,
        ]);
        let mut pipeline = Pipeline::new(sql, 2, 1);
        pipeline.batch(0, &log, 0, 2);
        pipeline.checkpoint_all();
        pipeline.batch(0, &log, 2, 4);
        pipeline.checkpoint_all();
        let rows: Vec<_> =
            pipeline.rows.values().map(|row| format!("{} {} {} {}", row[0], row[1], row[2], row[3])).collect();
        assert_eq!(rows, ["1 2 x 3.75", "2 1 z NULL", "NULL 1 NULL NULL"]);
    });
}

/// Case: null key (ksql#8658).
/// NULL is a group, as in SQL, and always on the same shard.
#[test]
fn null_is_a_group() {
    each_way(|| {
        let mut pipeline = Pipeline::new(
            &grouped("").replace("v BIGINT) STORED AS TABLE", "v BIGINT, PRIMARY KEY (k)) STORED AS TABLE"),
            4,
            1,
        );
        let log = log(["{\"v\":1}", "{\"k\":null,\"v\":2}", "{\"k\":\"\",\"v\":4}", "{\"k\":\"NULL\",\"v\":8}"]);
        (0..4).for_each(|at| pipeline.batch(0, &log, at, at + 1));
        pipeline.checkpoint_all();
        let rows: Vec<_> = pipeline.rows.values().map(|row| format!("{:?}", row)).collect();
        assert_eq!(rows, ["[Utf8(\"\"), Int64(4)]", "[Utf8(\"NULL\"), Int64(8)]", "[Utf8(NULL), Int64(3)]"]);
        assert_eq!(pipeline.keys(), 3);
    });
}

/// A column that nothing uses is not decoded, but one that must not be NULL is.
#[test]
fn only_the_columns_that_are_used_are_decoded() {
    let sql = |declared: &str| {
        format!(
            "CREATE EXTERNAL TABLE orders (k VARCHAR, unused {declared}) STORED AS JSON LOCATION 'kafka://orders'; {SINK} \
             INSERT INTO result SELECT k, count(*) FROM orders GROUP BY k"
        )
    };
    let log = log(["{\"k\":\"a\",\"unused\":\"no number\"}", "{\"k\":\"a\"}"]);
    each_way(|| {
        let pipeline = Pipeline::over(&sql("BIGINT"), 1, &log);
        assert_eq!(pipeline.counts, Counts { processed: 2, ..Counts::default() });
        let pipeline = Pipeline::over(&sql("BIGINT NOT NULL"), 1, &log);
        assert_eq!(pipeline.counts, Counts { dead_lettered: 2, ..Counts::default() });
    });
}

/// A query that uses no column still needs records that are JSON.
#[test]
fn a_count_needs_no_column() {
    let sql = pass_through("", "SELECT 'all', count(*) FROM orders");
    let sql =
        sql.replace("k VARCHAR, v BIGINT) STORED AS TABLE", "k VARCHAR, v BIGINT, PRIMARY KEY (k)) STORED AS TABLE");
    each_way(|| {
        let pipeline = Pipeline::over(&sql, 3, &log(["{\"k\":1}", "{", "{}"]));
        assert_eq!(pipeline.counts, Counts { processed: 2, dead_lettered: 1, ..Counts::default() });
        assert_eq!((shown(&pipeline), pipeline.keys()), (vec!["all 2".to_owned()], 1));
    });
}

#[test]
fn structs_and_lists_are_groups() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (place STRUCT<x BIGINT, y VARCHAR>, tags VARCHAR[]) STORED AS JSON
          LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE result (place STRUCT<x BIGINT, y VARCHAR>, tags VARCHAR[], n BIGINT,
          PRIMARY KEY (place, tags)) STORED AS TABLE LOCATION 'console://';
        INSERT INTO result SELECT place, tags, count(*) FROM orders GROUP BY place, tags";
        let log = log([
            r#"{"place":{"x":1,"y":"a"},"tags":["s","t"]}"#,
            r#"{"place":{"x":1,"y":"a"},"tags":["s"]}"#,
            r#"{"place":{"y":"a","x":1},"tags":["s","t"]}"#,
            r#"{"place":{"x":1},"tags":[]}"#,
            r#"{"place":{"x":1,"y":null},"tags":[]}"#,
            r#"{"tags":null}"#,
        ]);
        for shards in 1..4 {
            let mut pipeline = Pipeline::new(sql, shards, 1);
            for at in 0..6 {
                pipeline.batch(0, &log, at, at + 1);
                pipeline.checkpoint_all();
                (0..shards).for_each(|shard| pipeline.restart(shard));
            }
            let mut counts: Vec<_> = pipeline.rows.values().map(|row| row[2].to_string()).collect();
            counts.sort();
            assert_eq!(counts, ["1", "1", "2", "2"]);
        }
    });
}

/// What JSON cannot be read into is said when the statements are checked.
#[test]
fn json_options_are_checked_with_the_statements() {
    let refuse = |options: &str| super::harness::refused(&pass_through(options, "SELECT k, v FROM orders"));
    let message = refuse("OPTIONS ('json.timestamp.unit' 'fortnights')");
    assert!(
        message.starts_with("line 1, column ") && message.contains("'seconds', 'millis', 'micros' and 'nanos'"),
        "{message}"
    );
    let message = refuse("OPTIONS ('json.timestamp.unit.w' 'millis')");
    assert!(message.contains("there is no column \"w\""), "{message}");
    let message = refuse("OPTIONS ('json.missing' 'panic')");
    assert!(message.contains("'null' and 'error'"), "{message}");
}
