//! Several INSERTs over one source: each is what it would be alone, and all of them move together.

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, Field, Schema};
use strandline_actors::ports::{LaneRows, StageInput};
use strandline_actors::position::{Counts, Offset};

use super::harness::{
    Dice, Pipeline, Record, batch, batch_engine, decoded, each_way, input, letters, log, partition, planned, refused,
    run_stage, total,
};

const SOURCE: &str = "CREATE EXTERNAL TABLE orders (k VARCHAR, id BIGINT, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
    LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts',
    'watermark.delay' '15 milliseconds', 'late.rows' 'dead-letter')";

/// Of each INSERT the table that it writes, and its query.
const INSERTS: [(&str, &str); 8] = [
    (
        "copies (id BIGINT, k VARCHAR, double BIGINT, PRIMARY KEY (id)) STORED AS TABLE LOCATION 'console://'",
        "SELECT id, k, v * 2 FROM orders WHERE v % 3 <> 0",
    ),
    (
        "sums (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://shop/sums'",
        "SELECT k, count(*), sum(v) FROM orders WHERE v > 2 GROUP BY k HAVING sum(v) % 5 <> 0",
    ),
    (
        "everything (one BIGINT, n BIGINT, low BIGINT, high BIGINT, PRIMARY KEY (one)) STORED AS TABLE
          LOCATION 'console://' OPTIONS ('output.mode' 'complete')",
        "SELECT 1, count(*), min(v), max(v) FROM orders",
    ),
    (
        "minutes (start TIMESTAMP(3), k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (start, k)) STORED AS CQL
          LOCATION 'cassandra://shop/minutes' OPTIONS ('output.mode' 'append')",
        "SELECT window.start, k, count(*), sum(v) FROM orders GROUP BY k, window(ts, '30 milliseconds', '10 milliseconds')",
    ),
    (
        "sessions (start TIMESTAMP(3), k VARCHAR, n BIGINT, PRIMARY KEY (start, k)) STORED AS CQL
          LOCATION 'cassandra://shop/sessions' OPTIONS ('output.mode' 'append')",
        "SELECT session_window.start, k, count(*) FROM orders WHERE v <> 4 GROUP BY k, session_window(ts, '8 milliseconds')",
    ),
    (
        "pairs (k VARCHAR, r BIGINT, PRIMARY KEY (k, r)) STORED AS CQL LOCATION 'cassandra://shop/pairs'",
        "SELECT DISTINCT k, v % 4 FROM orders",
    ),
    (
        "firsts (k VARCHAR, id BIGINT, v BIGINT, PRIMARY KEY (k, id)) STORED AS CQL LOCATION 'cassandra://shop/firsts'",
        "SELECT k, id, v FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, id) <= 3",
    ),
    (
        "best (start TIMESTAMP(3), most BIGINT, PRIMARY KEY (start)) STORED AS CQL LOCATION 'cassandra://shop/best'
          OPTIONS ('output.mode' 'append')",
        "SELECT window.start, max(n) FROM (SELECT window, k, count(*) AS n FROM orders
           GROUP BY window(ts, '30 milliseconds', '10 milliseconds'), k) GROUP BY window(window, '60 milliseconds')",
    ),
];

fn name(table: &str) -> &str {
    table.split_once(' ').unwrap().0
}

fn sql(inserts: &[(&str, &str)]) -> String {
    let mut sql = format!("{SOURCE};");
    for (table, select) in inserts {
        sql += &format!("CREATE EXTERNAL TABLE {table};\nINSERT INTO {} {select};\n", name(table));
    }
    sql
}

/// Out of order, some of them late, some without a time.
fn logs(dice: &mut Dice, partitions: usize, records: usize) -> Vec<Vec<Record>> {
    let mut id = 0;
    (0..partitions)
        .map(|_| {
            let mut now = 1_000;
            log((0..dice.below(records)).map(|_| {
                id += 1;
                now += dice.below(6) as i64;
                let ts = match dice.below(12) {
                    0 => now - dice.below(90) as i64,
                    _ => now - dice.below(15) as i64,
                };
                let (k, v) = (dice.below(4), dice.below(9));
                format!("{{\"k\":\"k{k}\",\"id\":{id},\"v\":{v},\"ts\":{ts}}}")
            }))
        })
        .collect()
}

/// Whatever the cuts, the shards, the checkpoints and the restarts.
#[test]
fn each_of_several_inserts_is_what_it_would_be_alone() {
    each_way(|| {
        for seed in 0..25 {
            let mut dice = Dice::new(seed);
            let (shards, partitions) = (1 + dice.below(4), 1 + dice.below(3));
            let logs = logs(&mut dice, partitions, 150);
            let some: Vec<_> = INSERTS.into_iter().filter(|_| seed == 0 || dice.chance(60)).collect();
            if some.is_empty() {
                continue;
            }
            let mut together = Pipeline::new(&sql(&some), shards, partitions);
            together.run(&logs, &mut dice);
            for insert in &some {
                let mut alone = Pipeline::new(&sql(&[*insert]), 1 + dice.below(4), partitions);
                alone.run(&logs, &mut dice);
                let (found, wanted) = (together.table(name(insert.0)), &alone.tables[0]);
                assert_eq!(found.rows, wanted.rows, "seed {seed}, {}", insert.0);
                if insert.0.contains("'append'") {
                    assert!(found.written.values().all(|times| *times == 1), "seed {seed}, {}", insert.0);
                }
            }
            let records: usize = logs.iter().map(Vec::len).sum();
            assert_eq!(together.counts.total(), records as u64);
        }
    });
}

/// On time, so that the batch engine knows what comes out.
#[test]
fn several_inserts_equal_the_batch_engine() {
    each_way(|| {
        let schema = Schema::new(vec![
            Field::new("k", DataType::Utf8, true),
            Field::new("id", DataType::Int64, true),
            Field::new("v", DataType::Int64, true),
            Field::new("ts", DataType::Int64, true),
        ]);
        for seed in 0..8 {
            let mut dice = Dice::new(seed);
            let logs: Vec<_> = (0..3)
                .map(|partition| {
                    log((0..200).map(|n| {
                        let (k, v) = (dice.below(6), dice.below(30));
                        format!("{{\"k\":\"k{k}\",\"id\":{},\"v\":{v},\"ts\":{n}}}", partition * 1000 + n)
                    }))
                })
                .collect();
            let inserts = [INSERTS[0], INSERTS[1], INSERTS[5], INSERTS[6]];
            let mut pipeline = Pipeline::new(&sql(&inserts), 1 + dice.below(4), 3);
            pipeline.run(&logs, &mut dice);
            for (table, select) in inserts {
                let rows = decoded(&schema.clone().into(), &logs);
                let sink =
                    pipeline.plan.inserts.iter().find(|insert| insert.sink.name == name(table)).unwrap().sink.clone();
                pipeline.table(name(table)).assert_rows(batch_engine(select, rows, &sink.schema));
            }
        }
    });
}

/// Every offset is counted by one lane, also by one that takes it again while the others do not.
#[test]
fn wherever_a_lane_is_cut_its_counts_add_up() {
    let sql = sql(&INSERTS);
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let mut values: Vec<_> = logs(&mut dice, 1, 120).remove(0);
        for record in &mut values {
            match dice.below(12) {
                0 => record.value = Some(b"no json".to_vec()),
                1 => record.value = None,
                _ => {}
            }
        }
        let (end, shards) = (values.len() as i64, 1 + dice.below(4));
        let plan = planned(&sql);
        let whole = run_stage(&plan, &values, shards, 0, end);
        assert_eq!(total(&whole).total(), end as u64);
        let cuts: Vec<_> = (0..shards).map(|_| dice.below(values.len() + 1) as i64).collect();
        let partition = partition(0);
        let run = |until: i64, cuts: &[Option<Offset>]| {
            let batch = batch(&values, 0, until);
            let closed = vec![None; shards];
            let mut stage = plan.query().source_stage(&partition);
            let input = StageInput { cuts, closed: &closed, ..input(&partition, &batch) };
            stage.run(input).unwrap().lanes
        };
        let after = run(end, &cuts.iter().map(|cut| Some(Offset(*cut))).collect::<Vec<_>>());
        for (lane, cut) in cuts.iter().enumerate() {
            let before = run(*cut, &vec![Some(Offset(0)); shards]).remove(lane);
            let add = |a: &LaneRows, b: &LaneRows| {
                let mut counts = Counts::default();
                [a, b].iter().for_each(|lane| counts.add(&lane.counts));
                (counts, a.dead_letters.len() + b.dead_letters.len())
            };
            let wanted = add(&whole.lanes[lane], &LaneRows::default());
            assert_eq!(add(&before, &after[lane]), wanted, "seed {seed}, lane {lane} cut at {cut}");
        }
    }
}

const TWO: &str = "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT, ts TIMESTAMP(3)) STORED AS JSON
      LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis', 'watermark.column' 'ts');
    CREATE EXTERNAL TABLE a (k VARCHAR, v BIGINT) STORED AS TABLE LOCATION 'console://';
    CREATE EXTERNAL TABLE b (start TIMESTAMP(3), n BIGINT, PRIMARY KEY (start)) STORED AS TABLE LOCATION 'console://';
    INSERT INTO a SELECT k, 100 / v FROM orders WHERE v < 50;
    INSERT INTO b SELECT window.start, count(*) FROM orders WHERE v > 9 GROUP BY window(ts, '10 milliseconds');";

/// A record counts as the best that became of its rows; bad for one INSERT is bad for all.
#[test]
fn a_record_counts_once_whatever_becomes_of_its_rows() {
    let order = |v: i64, ts: &str| format!("{{\"k\":\"x\",\"v\":{v},\"ts\":{ts}}}");
    let records = log([
        order(20, "100"),  // for both
        order(5, "101"),   // for the first alone
        order(70, "102"),  // for the second alone
        order(20, "50"),   // late for both
        order(70, "50"),   // left out by the first, late for the second
        order(20, "101"),  // late without a window, on time with one
        order(0, "103"),   // cannot be divided by
        order(20, "null"), // has no window
        order(70, "null"), // the same, and the first does not want it
        order(5, "null"),  // the second does not want it
    ]);
    each_way(|| {
        for shards in 1..4 {
            let pipeline = Pipeline::over(TWO, shards, &records);
            let wanted = Counts { processed: 5, late: 2, dead_lettered: 3, filtered: 0, ..Counts::default() };
            assert_eq!(pipeline.counts, wanted);
            let reasons = pipeline.reasons();
            assert_eq!(reasons.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [6, 7, 8]);
            assert!(reasons[0].1.contains("cannot be evaluated") && reasons[1].1.contains("window"), "{reasons:?}");
        }
    });
    let plan = planned(TWO);
    (1..4).for_each(|shards| drop(run_stage(&plan, &records, shards, 0, 10)));
    let of = |name: &str| plan.inserts.iter().find(|insert| insert.sink.name == name).unwrap().counters.read();
    let (a, b) = (of("a"), of("b"));
    // Three runs.
    assert_eq!((a.processed, a.filtered, a.late), (9, 6, 6), "{a:?}");
    assert_eq!((b.processed, b.filtered, b.late), (9, 6, 6), "{b:?}");

    // With their own policy late ones are kept too, by the shard of the row.
    let kept = planned(&TWO.replace("'watermark.column'", "'late.rows' 'dead-letter', 'watermark.column'"));
    let late: Vec<_> = letters(&run_stage(&kept, &records, 2, 0, 6))
        .into_iter()
        .map(|letter| (letter.offset, letter.reason.split(':').next().unwrap().to_owned()))
        .collect();
    let of = |offset, table: &str| (offset, format!("late for {table}"));
    let mut wanted = vec![of(3, "a"), of(3, "b"), of(4, "b"), of(5, "a")];
    assert_eq!(late.len(), 4, "{late:?}");
    wanted.retain(|letter| !late.contains(letter));
    assert!(wanted.is_empty(), "{late:?}");

    // Wanted by nobody.
    let output = run_stage(&planned(&TWO.replace("v < 50", "v < 5")), &log([order(7, "1")]), 3, 0, 1);
    assert_eq!(total(&output), Counts { filtered: 1, ..Counts::default() });
}

/// The rows of an INSERT say for which one they are, and what one does not use is decoded for the other.
#[test]
fn a_topic_is_read_once_with_the_columns_of_all() {
    let plan = planned(&sql(&INSERTS));
    assert_eq!(plan.sources.len(), 1);
    assert_eq!(plan.inserts.len(), INSERTS.len());
    assert!(
        plan.reading.starts_with("read      topic orders as JSON: k Utf8, id Int64, v Int64, ts "),
        "{}",
        plan.reading
    );
    let all: BTreeSet<_> = plan.inserts.iter().map(|insert| insert.sink.name.clone()).collect();
    assert_eq!(all, INSERTS.iter().map(|(table, _)| name(table).to_owned()).collect());
}

#[test]
fn stored_state_fits_the_same_inserts_in_whatever_order() {
    let plan = planned(&sql(&INSERTS));
    let mut turned = INSERTS;
    for number in 0..INSERTS.len() {
        turned.rotate_left(1);
        if number % 2 == 0 {
            turned.swap(0, 3);
        }
        let other = planned(&sql(&turned));
        assert_eq!(other.fingerprint, plan.fingerprint, "{}", other.description);
        let names = |plan: &super::super::Plan| plan.sinks().into_iter().map(|sink| sink.name).collect::<Vec<_>>();
        assert_eq!(names(&other), names(&plan));
    }
    let lines = |sql: &str| planned(sql).description.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let all = sql(&INSERTS);
    let changed = [
        sql(&INSERTS[1..]),
        sql(&INSERTS[..6]),
        all.replace("sum(v) % 5", "sum(v) % 6"),
        all.replace("v % 3 <> 0", "v % 3 <> 1"),
        all.replace("shop/sums", "shop/sums2"),
        all.replace("'8 milliseconds'", "'9 milliseconds'"),
    ];
    let mut seen = vec![plan.fingerprint];
    for sql in changed {
        let plan = planned(&sql);
        assert!(!seen.contains(&plan.fingerprint), "{}", plan.description);
        assert_ne!(lines(&sql), lines(&all), "the difference can be shown by lines");
        seen.push(plan.fingerprint);
    }
}

#[test]
fn what_cannot_move_together_is_refused() {
    let table = |name: &str, place: &str| {
        format!(
            "CREATE EXTERNAL TABLE {name} (k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS CQL LOCATION 'cassandra://s/{place}';"
        )
    };
    let insert = |name: &str| format!("INSERT INTO {name} SELECT k, count(*) FROM orders GROUP BY k;");
    for (first, second) in [("a", "a"), ("a", "b")] {
        let tables = if first == second { table("a", "t") } else { table("a", "t") + &table("b", "t") };
        let message = refused(&format!("{SOURCE};{tables}{}{}", insert(first), insert(second)));
        assert!(message.contains("two INSERT INTO write to a (Cassandra table s.t)"), "{message}");
    }
    // Without a primary key no row replaces another.
    let console = "CREATE EXTERNAL TABLE c (k VARCHAR) STORED AS TABLE LOCATION 'console://';";
    let twice = planned(&format!(
        "{SOURCE};{console} INSERT INTO c SELECT k FROM orders; INSERT INTO c SELECT k FROM orders WHERE v > 1"
    ));
    assert!(twice.description.contains("filter    [console] v > Int64(1)"), "{}", twice.description);
    assert!(twice.description.contains("write     [console 2] console"), "{}", twice.description);

    let silent =
        sql(&[INSERTS[3], INSERTS[4]]).replace("'late.rows'", "'watermark.close.after' '1 minute', 'late.rows'");
    let message = refused(&silent);
    assert!(
        message.contains("'watermark.close.after' cannot be: several INSERT INTO have different windows"),
        "{message}"
    );
    // Windows over the same windows close later.
    let over = sql(&[INSERTS[3], INSERTS[7]]).replace("'late.rows'", "'watermark.close.after' '1 minute', 'late.rows'");
    assert!(refused(&over).contains("several INSERT INTO have different windows"));
    let (table, select) = INSERTS[3];
    let other = (table.replace("minutes", "others"), select.replace("sum(v)", "max(v)"));
    planned(
        &sql(&[INSERTS[3], (&other.0, &other.1), INSERTS[0]])
            .replace("'late.rows'", "'watermark.close.after' '1 minute', 'late.rows'"),
    );
}

/// A forgotten group of one INSERT, and rows of another that no time makes late.
#[test]
fn the_time_of_one_insert_makes_no_row_of_another_late() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
        CREATE EXTERNAL TABLE kept (k VARCHAR, n BIGINT, PRIMARY KEY (k)) STORED AS TABLE LOCATION 'console://'
          OPTIONS ('state.ttl' '1 second');
        CREATE EXTERNAL TABLE copies (k VARCHAR, v BIGINT) STORED AS TABLE LOCATION 'console://';
        INSERT INTO kept SELECT k, count(*) FROM orders GROUP BY k;
        INSERT INTO copies SELECT k, v FROM orders";
        let mut records = log((0..6).map(|n| format!("{{\"k\":\"k{n}\",\"v\":{n}}}")));
        // The last ones are older than those before by their Kafka timestamps.
        records[3].timestamp += 60_000;
        records[4].timestamp -= 60_000;
        let mut pipeline = Pipeline::new(sql, 2, 1);
        pipeline.batch(0, &records, 0, 6);
        pipeline.checkpoint_all();
        assert_eq!((pipeline.table("copies").rows.len(), pipeline.table("kept").rows.len()), (6, 6));
        assert_eq!(pipeline.counts, Counts { processed: 6, ..Counts::default() });
    });
}

/// Partitions fall silent and wake up again: windows that close early are the same for each INSERT as if it were alone, and
/// what comes for them later is late for those alone that have closed windows.
#[test]
fn silence_closes_for_each_insert_what_it_closes_for_it_alone() {
    each_way(|| {
        let sql = |inserts: &[(&str, &str)]| {
            sql(inserts).replace(
                "'late.rows'",
                "'watermark.idle' '30 seconds', 'watermark.close.after' '60 seconds', 'late.rows'",
            )
        };
        let other = (
            "others (start TIMESTAMP(3), high BIGINT, PRIMARY KEY (start)) STORED AS TABLE LOCATION 'console://'
          OPTIONS ('output.mode' 'append')",
            "SELECT window.start, max(v) FROM orders WHERE v > 1 GROUP BY window(ts, '30 milliseconds', '10 milliseconds')",
        );
        let all = [INSERTS[3], other];
        let copies = INSERTS[0];
        for seed in 0..12 {
            let mut dice = Dice::new(seed);
            let (shards, partitions) = (1 + dice.below(3), 1 + dice.below(3));
            let logs = logs(&mut dice, partitions, 120);
            let mut at = vec![0; partitions];
            // Until where each is read, or how long it is silent.
            let events: Vec<(usize, Result<i64, u64>)> = (0..40)
                .map(|_| {
                    let number = dice.below(partitions);
                    if dice.chance(45) {
                        return (number, Err(if dice.chance(50) { 30 } else { 60 }));
                    }
                    at[number] = (logs[number].len() as i64).min(at[number] + 1 + dice.below(12) as i64);
                    (number, Ok(at[number]))
                })
                .collect();
            let mut run = |inserts: &[(&str, &str)]| {
                let mut pipeline = Pipeline::new(&sql(inserts), shards, partitions);
                let mut at = vec![0; partitions];
                for (number, event) in &events {
                    match event {
                        Ok(until) if *until > at[*number] => {
                            pipeline.batch(*number, &logs[*number], at[*number], *until);
                            at[*number] = *until;
                        }
                        Ok(_) => {}
                        Err(seconds) => pipeline.quiet(*number, *seconds),
                    }
                    let shard = dice.below(shards);
                    pipeline.checkpoint(shard);
                    if dice.chance(30) {
                        pipeline.restart(shard);
                    }
                }
                pipeline.checkpoint_all();
                pipeline
            };
            let together = run(&[all[0], copies, all[1]]);
            for insert in all {
                let alone = run(&[insert]);
                assert_eq!(together.told(), alone.told());
                assert_eq!(together.table(name(insert.0)).rows, alone.tables[0].rows, "seed {seed}, {}", insert.0);
                assert!(together.table(name(insert.0)).written.values().all(|times| *times == 1), "seed {seed}");
            }
            // Without windows nothing is closed: a row is late by its own partition or not at all.
            let mut on_time = Pipeline::new(&super::inserts::sql(&[copies]), 1, partitions);
            for (number, log) in logs.iter().enumerate() {
                let end = events.iter().filter(|(of, _)| *of == number).filter_map(|(_, event)| event.ok()).max();
                on_time.batch(number, log, 0, end.unwrap_or(0));
            }
            on_time.checkpoint_all();
            assert_eq!(together.table("copies").rows, on_time.tables[0].rows, "seed {seed}");
        }
    });
}

/// A record goes to the dead letters whole, and its rows to their shards: what decides between the two must be the same whenever
/// the record is read.
#[test]
fn the_clock_does_not_decide_whether_a_record_of_several_inserts_is_left_out() {
    each_way(|| {
        let sql = "CREATE EXTERNAL TABLE orders (k VARCHAR, ts TIMESTAMP(3)) STORED AS JSON LOCATION 'kafka://orders' OPTIONS
               ('json.timestamp.unit' 'millis', 'watermark.column' 'ts', 'watermark.max.ahead' '1 minute',
                'ahead.rows' 'dead-letter');
             CREATE EXTERNAL TABLE one (k VARCHAR PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://';
             CREATE EXTERNAL TABLE other (start TIMESTAMP(3) PRIMARY KEY, n BIGINT) STORED AS TABLE LOCATION 'console://';
             INSERT INTO one SELECT k, count(*) FROM orders GROUP BY k;
             INSERT INTO other SELECT window.start, count(*) FROM orders GROUP BY window(ts, '1 second')";
        // The clock of the harness says 1,800,000,000 seconds, and later half an hour more.
        let now = 1_800_000_000_000_i64;
        // When it was written, and what it says: the second is ahead of the clock alone, the third of its own timestamp.
        let times = [(now, now), (now + 600_000, now + 600_000), (now, now + 120_000)];
        for (minutes, ahead) in [(0, 2), (30, 1)] {
            let mut pipeline = Pipeline::new(sql, 3, 1);
            pipeline.now += minutes * 60_000_000;
            let mut log = log(times.map(|(_, ts)| format!("{{\"k\":\"a\",\"ts\":{ts}}}")));
            log.iter_mut().zip(times).for_each(|(record, (written, _))| record.timestamp = written);
            pipeline.batch(0, &log, 0, 3);
            pipeline.checkpoint_all();
            let counts = pipeline.counts;
            assert_eq!(
                (counts.processed, counts.dead_lettered, counts.ahead),
                (2, 1, ahead),
                "after {minutes} minutes"
            );
            assert_eq!(pipeline.letters.iter().map(|letter| letter.offset).collect::<Vec<_>>(), [2]);
        }
    });
}
