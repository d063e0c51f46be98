//! The decisions of a rewind; how several get along is for the simulation (`tests/simulation/rewinds.rs`).

#![allow(clippy::unwrap_used)]
use super::*;
use crate::pointer::{Kept, Outbox, SegmentKey, SegmentRef};

fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: Uuid::nil(), partition }
}

fn rewind(to: &[(i32, i64)], reset: bool) -> Rewind {
    let to = to.iter().map(|(partition, next)| Target { key: key(*partition), next: Offset(*next) }).collect();
    Rewind { id: Uuid::from_u128(1), wish: "back".into(), to, reset, stateless: Vec::new(), done: false }
}

fn of_kind(kind: SegmentKind, number: u32) -> SegmentRef {
    let key = SegmentKey { shard: 0, epoch: Epoch(7), attempt: Attempt(Uuid::nil()), number };
    SegmentRef { key, kind, rows: 1, bytes: 1, checksum: 0, until: None }
}

fn segment() -> SegmentRef {
    of_kind(SegmentKind::State { table: 0 }, 0)
}

/// A shard that stands at 90 in partition 0 and has something to lose.
fn pointer() -> Pointer {
    let counts = Counts { processed: 80, ..Counts::default() };
    let at = Position::start(Offset(90));
    let position = Position { watermark: Some(5), idle: true, raised: Some(6), counts, unsettled: true, ..at };
    let vector = Vector([(key(0), position)].into());
    let segments = vec![of_kind(SegmentKind::Upserts { sink: 0 }, 1), of_kind(SegmentKind::DeadLetters, 2)];
    let outbox = Outbox { epoch: Epoch(7), timestamp: 0, segments };
    let (closed, state) = (Some(6), vec![segment()]);
    let content = Content { vector: vector.clone(), closed, state, outbox, ..Content::default() };
    let kept = vec![Kept { epoch: Epoch(7), vector, closed, state: vec![segment()] }];
    let attempt = Attempt::fresh();
    Pointer { shard: 0, epoch: Epoch(8), attempt, generation: Generation(1), timestamp: 0, content, kept }
}

fn stopped() -> Stopped {
    let starts = [(key(0), Offset(10)), (key(1), Offset(20))].into();
    Stopped { shards: 2, fingerprint: "1".into(), starts, generation: Generation(2) }
}

#[test]
fn how_far_a_rewind_is_follows_from_the_marks() {
    let mark = |done: Option<bool>| {
        let mut pointer = pointer();
        pointer.content.rewind = done.map(|done| Box::new(Rewind { done, ..rewind(&[], true) }));
        Some(pointer)
    };
    let of = |marks: &[Option<bool>]| phase(&marks.iter().map(|done| mark(*done)).collect::<Vec<_>>());
    let rewind = || rewind(&[], true);
    assert_eq!(phase(&[None, None]).unwrap(), Phase::Free);
    assert_eq!(of(&[None, None]).unwrap(), Phase::Free);
    assert_eq!(of(&[Some(false), None]).unwrap(), Phase::Marking(rewind()));
    assert_eq!(of(&[Some(false), Some(false)]).unwrap(), Phase::Moving(rewind()));
    assert_eq!(of(&[Some(true), Some(false)]).unwrap(), Phase::Moving(rewind()));
    assert_eq!(of(&[Some(true), Some(true)]).unwrap(), Phase::Unmarking(rewind()));
    assert_eq!(of(&[None, Some(true)]).unwrap(), Phase::Unmarking(rewind()));
    assert!(matches!(of(&[None, Some(true), Some(false)]), Err(RewindError::Torn(_))));
    let mut other = mark(Some(false));
    other.as_mut().unwrap().content.rewind.as_mut().unwrap().id = Uuid::from_u128(2);
    assert!(matches!(phase(&[mark(Some(false)), other]), Err(RewindError::Torn(_))));
}

#[test]
fn after_a_reset_nothing_is_left_of_what_was_read_before() {
    for current in [Some(pointer()), None] {
        let content = stopped().moved(current.as_ref(), &rewind(&[(0, 40), (1, 15)], true), &[Some(pointer())]);
        assert!(content.state.is_empty());
        assert_eq!(content.closed, None);
        let kinds: Vec<_> = content.outbox.segments.iter().map(|segment| segment.kind).collect();
        assert_eq!(kinds, vec![SegmentKind::DeadLetters; usize::from(current.is_some())]);
        let at = |next| Position { counted_from: Some(next), ..Position::start(next) };
        assert_eq!(content.vector.0, [(key(0), at(Offset(40))), (key(1), at(Offset(15)))].into());
        assert!(content.rewind.unwrap().done);
    }
}

/// Rows that need no state are what they are, whatever becomes of the state of other queries.
#[test]
fn a_reset_keeps_output_that_is_committed_for_queries_without_state() {
    let mut current = pointer();
    current.content.outbox.segments.push(of_kind(SegmentKind::Upserts { sink: 1 }, 3));
    let rewind = Rewind { stateless: vec![1], ..rewind(&[(0, 40)], true) };
    let content = stopped().moved(Some(&current), &rewind, &[Some(current.clone())]);
    let kinds: Vec<_> = content.outbox.segments.iter().map(|segment| segment.kind).collect();
    assert_eq!(kinds, [SegmentKind::DeadLetters, SegmentKind::Upserts { sink: 1 }]);
}

/// Else rows that are read again would be late by what was read before them once, and is not counted any more.
#[test]
fn after_a_reset_a_partition_that_stays_has_no_watermark_either() {
    let content = stopped().moved(Some(&pointer()), &rewind(&[(0, 90)], true), &[Some(pointer())]);
    let there = Position { counted_from: Some(Offset(90)), ..Position::start(Offset(90)) };
    // One that nobody named when the rewind was begun starts as it would at first.
    assert_eq!(content.vector.0, [(key(0), there)].into());
}

#[test]
fn a_state_that_is_kept_keeps_its_counts_and_what_is_read_again_counts_again() {
    let content = stopped().moved(Some(&pointer()), &rewind(&[(0, 40), (1, 25)], false), &[Some(pointer())]);
    assert_eq!((content.state.as_slice(), content.outbox.segments.len()), (&[segment()][..], 2));
    assert_eq!(content.closed, Some(6));
    // It stood at 90 and started at 10: the 50 that are read again count again.
    let counts = pointer().content.vector.get(&key(0)).unwrap().counts;
    let there = Position { counts, counted_from: Some(Offset(-40)), ..Position::start(Offset(40)) };
    assert_eq!(content.vector.get(&key(0)), Some(&there));
    // Not read yet: its start, which is lower.
    assert_eq!(content.vector.get(&key(1)).unwrap().next, Offset(20));
    // A partition that is not named stays as it is.
    let content = stopped().moved(Some(&pointer()), &rewind(&[(1, 15)], false), &[Some(pointer())]);
    assert_eq!(content.vector.get(&key(0)), pointer().content.vector.get(&key(0)));
}

/// Else they would judge by different watermarks what they read from there on, each by what it had read when it crashed.
#[test]
fn all_shards_come_to_stand_at_one_place_and_none_goes_forward() {
    let mut other = pointer();
    other.content.vector.0.get_mut(&key(0)).unwrap().next = Offset(30);
    for reset in [false, true] {
        let wish = rewind(&[(0, 40)], reset);
        let mut pointers = [Some(pointer()), Some(other.clone())];
        for shard in 0..2 {
            let content = stopped().moved(pointers[shard].as_ref(), &wish, &pointers);
            let position = content.vector.get(&key(0)).unwrap();
            assert_eq!((position.next, position.watermark), (Offset(30), None), "shard {shard}, reset {reset}");
            // The ones that have moved do not change where the others go.
            pointers[shard].as_mut().unwrap().content = content;
        }
    }
}

#[test]
fn the_lowest_position_is_over_all_shards_and_starts_count_where_nothing_was_read() {
    let mut other = pointer();
    other.content.vector.0.get_mut(&key(0)).unwrap().next = Offset(70);
    let found = lowest(&[Some(pointer()), Some(other)], &stopped().starts);
    assert_eq!(found, [(key(0), Offset(70)), (key(1), Offset(20))].into());
    assert_eq!(lowest(&[Some(pointer()), None], &stopped().starts)[&key(0)], Offset(10));
}

#[test]
fn pointers_without_a_mark_are_stored_as_before() {
    let text = serde_json::to_string(&pointer().content).unwrap();
    assert!(!text.contains("rewind"), "{text}");
    let mut marked = pointer();
    marked.content.rewind = Some(Box::new(rewind(&[(3, 4)], false)));
    let text = serde_json::to_string(&marked.content).unwrap();
    assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), marked.content);
}

/// They had counted different stretches, some of them twice by now: together that is a whole number of offsets all the same.
#[test]
fn counts_and_distance_are_equal_after_every_rewind_although_shards_stood_apart() {
    let mut pointers = [Some(pointer()), Some(pointer())];
    let reads = |pointers: &mut [Option<Pointer>; 2], shard: usize, until: i64, counts: u64| {
        let position = pointers[shard].as_mut().unwrap().content.vector.0.get_mut(&key(0)).unwrap();
        (position.next, position.counts.processed) = (Offset(until), position.counts.processed + counts);
    };
    // By turns one of them is ahead of the other, and has counted all that is new.
    for (shard, until) in [(0, 100), (1, 120), (0, 140)] {
        reads(&mut pointers, shard, until, 30);
        let wish = rewind(&[(0, 40)], false);
        let moved = [0, 1].map(|shard| stopped().moved(pointers[shard].as_ref(), &wish, &pointers));
        for (pointer, content) in pointers.iter_mut().flatten().zip(moved) {
            pointer.content = content;
        }
        let positions = pointers.iter().map(|pointer| pointer.as_ref().unwrap().content.vector.get(&key(0)));
        let balance = crate::balance::Balance::new(Offset(10), positions).unwrap();
        assert!(balance.is_exact() && balance.off == 0, "{balance:?}");
        assert_eq!(balance.position.0 - balance.from.0, balance.counts.total() as i64);
    }
}
