//! `strandline offsets rewind`: what is counted afterwards is what an independent count says, and a rewind that breaks off is
//! finished or nothing runs.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

use chrono::{DateTime, TimeDelta, Utc};

use super::{Counting, said};
use crate::stand::{PATIENCE, Service, until};

/// All the way: refused where it must be, done, and counted again.
async fn rewound(mut counting: Counting, running: &str) {
    counting.fill(100).await;
    let service = counting.start();
    service.until_each_shard_committed().await;
    // A pipeline that runs is not touched.
    let reset = ["offsets", "rewind", "--to", "40", "--reset-state", "--yes"];
    counting.call(&reset).failed(1, &[running]);
    counting.settle(service).await;
    assert_eq!(counting.table().await, counting.recount(&[0, 0], BTreeMap::new()));
    let ends = counting.ends();
    assert_eq!(counting.positions(), ends);

    // What becomes of the state has to be said, and somebody has to agree.
    counting
        .call(&["offsets", "rewind", "--to", "40", "--yes"])
        .failed(2, &["--reset-state", "--keep-state", "second time"]);
    let asked = counting.call(&["offsets", "rewind", "--to", "40", "--reset-state"]);
    asked.failed(2, &["--yes"]);
    assert!(asked.out.contains("Results count only what is read from these offsets on"), "{asked:?}");
    counting.call(&["offsets", "rewind", "--to", "100", "--reset-state", "--yes"]).failed(2, &["nothing to rewind"]);
    counting.call(&["offsets", "rewind", "--to", "soon", "--reset-state", "--yes"]).failed(2, &["--to is `soon`"]);
    counting
        .call(&["offsets", "rewind", "--to", "4", "--partition", "9", "--keep-state", "--yes"])
        .failed(2, &["-0", "-1"]);
    counting.call(&["offsets", "rewind", "--finish", "--yes"]).failed(2, &["no rewind to finish"]);
    assert_eq!(counting.positions(), ends, "nothing was changed");

    // An empty state at the new offsets.
    let done = counting.call(&[&reset[..], &["--json"]].concat());
    let told = done.json();
    assert_eq!((told["state"].as_str(), told["partitions"][0]["read_again"].as_i64()), (Some("reset"), Some(60)));
    assert!(
        done.err.contains("rewinding: --to 40 --reset-state") && done.err.contains("rewound"),
        "in the log: {done:?}"
    );
    assert_eq!(counting.positions(), [(0, 40), (1, 40)].into());
    counting.empty_the_table().await;
    counting.fill(20).await;
    counting.settle(counting.start()).await;
    let counted = counting.recount(&[40, 40], BTreeMap::new());
    assert_eq!(counting.table().await, counted);

    // One partition, with what was counted before.
    counting.call(&["offsets", "rewind", "--to", "90", "--partition", "1", "--keep-state", "--yes"]).went_well();
    assert_eq!(counting.positions(), [(0, 120), (1, 90)].into());
    counting.settle(counting.start()).await;
    let counted = counting.recount(&[120, 90], counted);
    assert_eq!(counting.table().await, counted);

    // As far as there is anything.
    counting.stand.topic.delete_records(0, 10).await;
    counting
        .call(&["offsets", "rewind", "--to", "5", "--reset-state", "--yes"])
        .failed(2, &["has deleted its records before 10", "--to earliest"]);
    counting.call(&["offsets", "rewind", "--to", "earliest", "--reset-state", "--yes"]).went_well();
    assert_eq!(counting.positions(), [(0, 10), (1, 0)].into());
    counting.empty_the_table().await;
    counting.settle(counting.start()).await;
    assert_eq!(counting.table().await, counting.recount(&[10, 0], BTreeMap::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_over_cassandra_counts_again_what_it_says() {
    rewound(Counting::over_cassandra(2).await, "is running: instance tested owns it").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_over_a_local_store_counts_again_what_it_says() {
    rewound(Counting::over_local(2).await, "in use by another process").await;
}

/// Rows that were committed and not delivered, and are not read again: those of a query that keeps no state are written all
/// the same, and those of the state that is dropped are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_that_drops_the_state_loses_no_row_of_a_query_that_has_none() {
    let mut counting = Counting::over_cassandra(2).await;
    counting.copies = Some(format!("{}_copies", counting.stand.table));
    counting.more.push(("PIPELINE__SHARDS", "1".into()));
    counting.fill(30).await;
    let mut dying = counting.command(&["run"], &[("HTTP__LISTEN", "127.0.0.1:0")]);
    Service::start({
        dying.env("KILL_AT", "before-output:1");
        dying
    })
    .killed_itself()
    .await;
    let stood = counting.positions();
    let (partition, stands) = stood.iter().max_by_key(|(_, position)| **position).unwrap();
    assert!(*stands > 15, "{stood:?}");
    let goes = partition.to_string();
    let rewind = ["offsets", "rewind", "--to", "15", "--partition", &goes, "--yes"];
    counting.call(&rewind).failed(2, &["keeps a state", "--reset-state"]);
    let done = counting.call(&[&rewind[..], &["--reset-state"]].concat());
    done.went_well();
    assert!(done.out.contains("keeps no state are written all the same"), "{done:?}");
    let from: Vec<usize> = (0..2).map(|other| if other == *partition { 15 } else { stood[&other] as usize }).collect();
    counting.settle(counting.start()).await;
    assert_eq!(counting.table().await, counting.recount(&from, BTreeMap::new()));
    let read =
        format!("SELECT partition, position, item FROM {}.{}_copies", counting.stand.keyspace, counting.stand.table);
    let rows = counting.stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
    let copies: BTreeMap<(i32, i64), String> =
        rows.rows::<(i32, i64, String)>().unwrap().map(|row| row.unwrap()).map(|(p, o, item)| ((p, o), item)).collect();
    let sent = (0..)
        .zip(&counting.logs)
        .flat_map(|(partition, log)| (0..).zip(log).map(move |(at, item)| ((partition, at), item.clone())));
    assert_eq!(copies, sent.collect());
}

/// Between the records of two times, the first that is not older.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_to_a_time_goes_to_the_first_record_that_is_not_older() {
    let mut counting = Counting::over_cassandra(1).await;
    counting.fill(30).await;
    let passed = async |time: DateTime<Utc>| {
        until("the clock has moved on", PATIENCE, async || Utc::now() > time + TimeDelta::milliseconds(5)).await;
    };
    passed(Utc::now()).await;
    let between = Utc::now();
    passed(between).await;
    counting.fill(12).await;
    counting.settle(counting.start()).await;
    let time = between.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    counting.call(&["offsets", "rewind", "--to", &time, "--reset-state", "--yes"]).went_well();
    assert_eq!(counting.positions(), [(0, 30)].into());
    counting.empty_the_table().await;
    counting.settle(counting.start()).await;
    assert_eq!(counting.table().await, counting.recount(&[30], BTreeMap::new()));
    // Nothing is younger than the end.
    counting.call(&["offsets", "rewind", "--to", "0s ago", "--keep-state", "--yes"]).failed(2, &["nothing to rewind"]);
}

/// The command is killed after each of its steps: two shards are marked, moved and unmarked.
async fn torn(mut counting: Counting) {
    counting.fill(50).await;
    counting.settle(counting.start()).await;
    let wish = ["offsets", "rewind", "--to", "20", "--reset-state", "--yes"];
    for step in 1..=6 {
        let mut command = counting.command(&wish, &[]);
        let output = command.env("KILL_AT", format!("rewound:{step}")).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "at step {step}: {output:?}");
        if step < 6 {
            // Neither starts, nor begins another.
            let (code, told) = counting.start().end().await;
            assert_eq!(code, Some(1), "{told}");
            assert!(told.contains("does not start: the rewind `--to 20 --reset-state` was begun"), "{told}");
            counting
                .call(&["offsets", "rewind", "--to", "30", "--keep-state", "--yes"])
                .failed(2, &["--to 20 --reset-state", "--finish"]);
            let status = counting.call(&["status"]);
            assert!(status.out.contains("It does not start: the rewind"), "{status:?}");
        }
        // By the same words, or by none.
        match step {
            6 => {}
            _ if step % 2 == 0 => said(&mut counting.command(&wish, &[])).went_well(),
            _ => counting.call(&["offsets", "rewind", "--finish", "--yes"]).went_well(),
        }
        assert_eq!(counting.positions(), [(0, 20), (1, 20)].into(), "after step {step}");
        counting.call(&["checkpoints", "verify"]).went_well();
        counting.empty_the_table().await;
        counting.settle(counting.start()).await;
        assert_eq!(counting.table().await, counting.recount(&[20, 20], BTreeMap::new()), "after step {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_that_breaks_off_is_finished_before_anything_is_read() {
    torn(Counting::over_cassandra(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_of_a_local_store_that_breaks_off_is_finished_before_anything_is_read() {
    torn(Counting::over_local(2).await).await;
}
