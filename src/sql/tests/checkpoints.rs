//! What a checkpoint of an aggregating query holds, and what a restore takes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Decimal128Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use strandline_actors::ports::{Change, StageError, StateDelta};

use super::super::Plan;
use super::harness::{log, planned, run_stage, values};

fn counting() -> Plan {
    planned(
        "CREATE EXTERNAL TABLE orders (k VARCHAR, v BIGINT) STORED AS JSON LOCATION 'kafka://orders';
         CREATE EXTERNAL TABLE result (k VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (k)) STORED AS CQL
           LOCATION 'cassandra://shop/result';
         INSERT INTO result SELECT k, count(*), sum(v) FROM orders GROUP BY k",
    )
}

fn rows(plan: &Plan, keys: std::ops::Range<usize>) -> Vec<RecordBatch> {
    let log = log(keys.map(|k| format!("{{\"k\":\"k{k}\",\"v\":{k}}}")));
    run_stage(plan, &log, 1, 0, log.len() as i64).lanes[0].rows.clone()
}

/// The cost of a checkpoint follows what changed: it holds the changed groups whole, and no others.
#[test]
fn a_checkpoint_holds_the_changed_groups() {
    let plan = counting();
    let mut operator = plan.query().operator(0);
    operator.apply(rows(&plan, 0..1000), None).unwrap();
    let first = operator.checkpoint().unwrap();
    assert_eq!((first.state[0].rows.num_rows(), first.output[0].rows.num_rows()), (1000, 1000));
    assert_eq!(operator.keys(), 1000);
    assert!(operator.bytes() > 1000);

    operator.apply(rows(&plan, 5..8), None).unwrap();
    operator.apply(rows(&plan, 7..8), None).unwrap();
    let second = operator.checkpoint().unwrap();
    assert_eq!(second.state.len(), 1);
    let state = &second.state[0].rows;
    assert_eq!((state.num_rows(), state.num_columns()), (3, 4));
    assert_eq!(state.schema().field(3).name(), "_deleted");
    assert_eq!(state.schema().field(3).data_type(), &DataType::Boolean);
    assert_eq!(state.column(3).as_boolean().true_count(), 0);
    assert_eq!(operator.tables()[0].key_columns, 1);
    let output = &second.output[0];
    assert_eq!((second.output.len(), output.sink, output.change), (1, 0, Change::Upsert));
    let mut changed: Vec<_> = (0..3).map(|row| format!("{:?}", values(&output.rows, row))).collect();
    changed.sort();
    assert_eq!(
        changed,
        [
            "[Utf8(\"k5\"), Int64(2), Int64(10)]",
            "[Utf8(\"k6\"), Int64(2), Int64(12)]",
            "[Utf8(\"k7\"), Int64(3), Int64(21)]"
        ]
    );
    let third = operator.checkpoint().unwrap();
    assert!(third.state.is_empty() && third.output.is_empty());
}

/// When half of the groups or more have changed, all are written: the changed ones first, which end what was stored, and then
/// each of the others once, in no row together.
#[test]
fn where_most_groups_have_changed_all_are_written() {
    let plan = counting();
    let mut operator = plan.query().operator(0);
    let mut stored = Vec::new();
    // None yet; half of those that there are then; too few; new ones, and all that there are.
    for (keys, whole, others) in
        [(0..600, true, 0), (300..900, true, 300), (0..449, false, 0), (600..1200, true, 600), (0..1200, true, 0)]
    {
        let changed = keys.len();
        operator.apply(rows(&plan, keys), None).unwrap();
        let state = operator.checkpoint().unwrap().state;
        let found: Vec<_> = state.iter().map(|delta| (delta.whole, delta.rows.num_rows())).collect();
        let wanted = [(whole, changed), (false, others)];
        assert_eq!(found, wanted[..if others > 0 { 2 } else { 1 }]);
        if whole {
            stored.clear();
        }
        stored.extend(state);
        let mut restored = plan.query().operator(0);
        restored.restore(stored.clone()).unwrap();
        assert_eq!(restored.keys(), operator.keys());
        // A row more for each group shows what it had.
        for operator in [&mut operator, &mut restored] {
            operator.apply(rows(&plan, 0..1200), None).unwrap();
        }
        let results = [operator, restored].map(|mut operator| {
            let rows = operator.checkpoint().unwrap().output.remove(0).rows;
            let mut rows: Vec<_> = (0..rows.num_rows()).map(|row| format!("{:?}", values(&rows, row))).collect();
            rows.sort();
            rows
        });
        assert_eq!(results[0].len(), 1200);
        assert_eq!(results[0], results[1]);
        operator = plan.query().operator(0);
        operator.restore(stored.clone()).unwrap();
    }
}

fn delta(names: &[&str], counts: &[i64], gone: &[bool]) -> StateDelta {
    let sums = DataType::Decimal128(38, 0);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k0", Arc::new(StringArray::from(names.to_vec()))),
        ("s1", Arc::new(Int64Array::from(counts.to_vec()))),
        (
            "s2",
            Arc::new(
                Decimal128Array::from_iter_values(counts.iter().map(|count| i128::from(*count))).with_data_type(sums),
            ),
        ),
        ("_deleted", Arc::new(BooleanArray::from(gone.to_vec()))),
    ];
    StateDelta { table: 0, rows: RecordBatch::try_from_iter(columns).unwrap(), whole: false }
}

#[test]
fn later_rows_replace_earlier_ones_and_deleted_ones_are_gone() {
    let plan = counting();
    let mut operator = plan.query().operator(0);
    operator
        .restore(vec![
            delta(&["k0", "k1", "k2", "k3"], &[1, 1, 1, 1], &[false; 4]),
            delta(&["k0", "k1", "k9"], &[5, 0, 0], &[false, true, true]),
            delta(&["k2"], &[0], &[true]),
            delta(&["k2"], &[7], &[false]),
        ])
        .unwrap();
    assert_eq!(operator.keys(), 3);
    operator.apply(rows(&plan, 0..4), None).unwrap();
    let checkpoint = operator.checkpoint().unwrap();
    let output = &checkpoint.output[0].rows;
    let counts = output.column(1).as_primitive::<Int64Type>().values().to_vec();
    let names = super::harness::strings(output, 0).into_iter().flatten();
    let mut found: Vec<_> = names.zip(counts).collect();
    found.sort();
    let expected = [("k0", 6), ("k1", 1), ("k2", 8), ("k3", 2)];
    assert_eq!(found, expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn the_state_of_another_query_is_refused() {
    let plan = counting();
    let refuse = |delta: StateDelta| {
        let error = plan.query().operator(0).restore(vec![delta]).unwrap_err();
        assert!(matches!(error, StageError::Halt(_)));
        error.to_string()
    };
    let good = delta(&["a"], &[1], &[false]);
    let fewer = StateDelta { table: 0, rows: good.rows.project(&[0, 1, 3]).unwrap(), whole: false };
    assert!(refuse(fewer).contains("the stored state has 3 columns"));
    let other = StateDelta { table: 0, rows: good.rows.project(&[1, 0, 2, 3]).unwrap(), whole: false };
    assert!(refuse(other).contains("the stored state holds Int64 where the query keeps Utf8"));
    assert!(refuse(StateDelta { table: 1, ..good }).contains("table 1"));
}
