//! What a state store promises, held against both of them.
//!
//! Each test runs once on the local store and once on Cassandra, there all in one keyspace and each under a pipeline name
//! of its own, so that they would notice if pipelines touched each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use strandline_actors::pause::Wishes;
use strandline_actors::pointer::{
    Attempt, Base, Content, Epoch, Generation, Kept, Outbox, Pointer, SegmentKey, SegmentKind, SegmentRef, ShardId,
};
use strandline_actors::ports::{
    CrashNote, DeadLetter, Heartbeat, KafkaOffset, Moved, PipelineRow, StateStore, StoreError, Suspects, Taken,
};
use strandline_actors::position::{Counts, Offset, PartitionKey, Position, Range, SourcePartition, Vector};
use uuid::Uuid;

use crate::store_places::Place;

macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        mod local {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(&crate::store_places::LocalPlace::new()).await;
                }
            )*
        }
        mod cassandra {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(&crate::store_places::CassandraPlace::new()).await;
                }
            )*
        }
    };
}

conformance!(
    the_first_definition_of_a_pipeline_holds,
    generations_rise,
    generations_rise_under_contention,
    a_generation_is_taken_by_one_of_those_that_know_the_last,
    a_start_is_decided_once,
    a_start_is_decided_once_under_contention,
    pointers_move_only_from_their_base,
    one_of_many_moves_wins,
    pointers_move_in_quick_succession,
    a_long_pointer_comes_back_whole,
    segments_come_back_whole,
    fifty_megabytes_come_back_whole,
    writing_a_segment_again_is_harmless,
    deleted_segments_are_gone,
    orphans_of_every_attempt_are_found,
    a_segment_that_is_missing_is_corrupt,
    older_kafka_offsets_lose,
    many_kafka_offsets_at_once,
    dead_letters_are_kept_once,
    crash_notes_come_and_go,
    what_is_paused_is_kept,
    the_heartbeat_of_the_latest_owner_is_seen,
    beats_are_seen_in_quick_succession,
    pipelines_do_not_touch_each_other,
    names_may_hold_anything,
);

fn unique() -> String {
    format!("pipeline {}", Uuid::new_v4())
}

fn partition(topic: &str, number: i32) -> SourcePartition {
    // The same topic always gets the same id.
    let topic_id = Uuid::from_u128(topic.bytes().fold(7, |id, byte| id * 31 + u128::from(byte)));
    SourcePartition { source: 0, topic: topic.into(), key: PartitionKey { topic_id, partition: number } }
}

fn pointer(shard: ShardId, epoch: i64) -> Pointer {
    Pointer {
        shard,
        epoch: Epoch(epoch),
        attempt: Attempt::fresh(),
        generation: Generation(3),
        timestamp: 1_700_000_000_000_000 + epoch,
        content: Content { fingerprint: "f".into(), ..Content::default() },
        kept: Vec::new(),
    }
}

fn segment(shard: ShardId, epoch: i64, number: u32) -> SegmentKey {
    SegmentKey { shard, epoch: Epoch(epoch), attempt: Attempt::fresh(), number }
}

/// Bytes that no compression and no mistake in the order of chunks leaves as they are.
fn noise(length: usize) -> Vec<u8> {
    let mut state = length as u64 | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Moves a pointer as the committer does: by identical writes until it is known what became of it.
async fn settle(store: &dyn StateStore, base: Option<Base>, next: &Pointer) -> Moved {
    loop {
        match store.move_pointer(base, next).await {
            Ok(Moved::Refused(Some(current))) if current.attempt == next.attempt => return Moved::Applied,
            Ok(moved) => return moved,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn the_first_definition_of_a_pipeline_holds(place: &dyn Place) {
    let pipeline = unique();
    let first = PipelineRow { shards: 3, fingerprint: "one".into(), plan: "GROUP BY \"ä\"\n  x".into() };
    let second = PipelineRow { shards: 4, fingerprint: "two".into(), plan: String::new() };
    assert_eq!(place.open(&pipeline).await.define_pipeline(&first).await.unwrap(), first);
    let store = place.open(&pipeline).await;
    assert_eq!(store.define_pipeline(&first).await.unwrap(), first);
    assert_eq!(store.define_pipeline(&second).await.unwrap(), first);
}

async fn generations_rise(place: &dyn Place) {
    let pipeline = unique();
    let mut last = Generation(0);
    for _ in 0..5 {
        let next = place.open(&pipeline).await.next_generation().await.unwrap();
        assert!(next > last);
        last = next;
    }
}

async fn a_generation_is_taken_by_one_of_those_that_know_the_last(place: &dyn Place) {
    let pipeline = unique();
    let stores = join_all((0..4).map(|_| place.open(&pipeline))).await;
    let mut known = Generation(0);
    for _ in 0..3 {
        let mut mine = Vec::new();
        for answer in join_all(stores.iter().map(|store| store.take_generation(known))).await {
            match answer {
                Ok(Taken::Mine(generation)) => mine.push(generation),
                // Contention may leave it open who was first.
                Ok(Taken::Another(_)) | Err(StoreError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(mine.len() <= 1, "{mine:?}");
        // Whoever knows of an earlier one only is too late.
        known = match stores[0].take_generation(known).await.unwrap() {
            Taken::Another(latest) => latest,
            Taken::Mine(generation) => generation,
        };
        assert!(mine.iter().all(|mine| *mine <= known));
        assert_eq!(stores[1].take_generation(Generation(known.0 - 1)).await.unwrap(), Taken::Another(known));
    }
}

async fn generations_rise_under_contention(place: &dyn Place) {
    let pipeline = unique();
    let stores = join_all((0..4).map(|_| place.open(&pipeline))).await;
    let calls = stores.iter().map(|store| async move {
        let mut mine = Vec::new();
        while mine.len() < 10 {
            match store.next_generation().await {
                Ok(generation) => mine.push(generation),
                Err(StoreError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        mine
    });
    let answers = join_all(calls).await;
    for mine in &answers {
        assert!(mine.is_sorted());
    }
    let all: BTreeSet<Generation> = answers.iter().flatten().copied().collect();
    assert_eq!(all.len(), 40, "a number was given out twice");
    assert!(stores[0].next_generation().await.unwrap() > *all.last().unwrap());
}

async fn a_start_is_decided_once(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let (zero, one) = (partition("orders", 0), partition("orders", 1));
    assert_eq!(store.start_offset(&zero.key).await.unwrap(), None);
    assert_eq!(store.known_partitions().await.unwrap(), []);
    assert_eq!(store.define_start(&zero, Offset(5)).await.unwrap(), Offset(5));
    assert_eq!(store.define_start(&zero, Offset(9)).await.unwrap(), Offset(5));
    assert_eq!(store.define_start(&one, Offset(0)).await.unwrap(), Offset(0));
    let store = place.open(&pipeline).await;
    assert_eq!(store.start_offset(&zero.key).await.unwrap(), Some(Offset(5)));
    assert_eq!(store.start_offset(&one.key).await.unwrap(), Some(Offset(0)));
    let mut known = store.known_partitions().await.unwrap();
    known.sort();
    assert_eq!(known, [("orders".to_owned(), zero.key), ("orders".to_owned(), one.key)]);
    // A topic that was created again is another one.
    let again = SourcePartition { key: PartitionKey { topic_id: Uuid::new_v4(), partition: 0 }, ..zero };
    assert_eq!(store.start_offset(&again.key).await.unwrap(), None);
    assert_eq!(store.define_start(&again, Offset(1)).await.unwrap(), Offset(1));
}

async fn a_start_is_decided_once_under_contention(place: &dyn Place) {
    let pipeline = unique();
    let stores = join_all((0..4).map(|_| place.open(&pipeline))).await;
    let calls = (0..16_usize).map(|number| {
        let store = Arc::clone(&stores[number % 4]);
        async move {
            loop {
                match store.define_start(&partition("orders", (number % 2) as i32), Offset(number as i64)).await {
                    Ok(start) => return (number % 2, start),
                    Err(StoreError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    let answers: BTreeSet<(usize, Offset)> = join_all(calls).await.into_iter().collect();
    assert_eq!(answers.len(), 2, "the callers do not agree: {answers:?}");
    for (number, start) in answers {
        let key = partition("orders", number as i32).key;
        assert_eq!(stores[0].start_offset(&key).await.unwrap(), Some(start));
    }
}

async fn pointers_move_only_from_their_base(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let (first, second, other) = (pointer(1, 1), pointer(1, 2), pointer(1, 2));
    assert_eq!(store.read_pointer(1).await.unwrap(), None);
    // Nothing is there to move.
    assert_eq!(store.move_pointer(Some(first.base()), &second).await.unwrap(), Moved::Refused(None));
    assert_eq!(store.read_pointer(1).await.unwrap(), None);
    assert_eq!(store.move_pointer(None, &first).await.unwrap(), Moved::Applied);
    assert_eq!(store.read_pointer(1).await.unwrap(), Some(first.clone()));
    // Something is there already.
    assert_eq!(store.move_pointer(None, &other).await.unwrap(), Moved::Refused(Some(Box::new(first.clone()))));
    // The epoch is right, the attempt is not; and the other way round.
    let wrong = Base { epoch: first.epoch, attempt: Attempt::fresh() };
    assert_eq!(store.move_pointer(Some(wrong), &second).await.unwrap(), Moved::Refused(Some(Box::new(first.clone()))));
    let wrong = Base { epoch: Epoch(7), attempt: first.attempt };
    assert_eq!(store.move_pointer(Some(wrong), &second).await.unwrap(), Moved::Refused(Some(Box::new(first.clone()))));
    assert_eq!(store.move_pointer(Some(first.base()), &second).await.unwrap(), Moved::Applied);
    // The same write again is refused by its own outcome, and so is another one on the old base.
    let refused = Moved::Refused(Some(Box::new(second.clone())));
    assert_eq!(store.move_pointer(Some(first.base()), &second).await.unwrap(), refused);
    assert_eq!(store.move_pointer(Some(first.base()), &other).await.unwrap(), refused);
    assert_eq!(store.read_pointer(0).await.unwrap(), None);
    assert_eq!(store.read_pointer(2).await.unwrap(), None);
    assert_eq!(place.open(&pipeline).await.read_pointer(1).await.unwrap().as_ref(), Some(&second));
}

async fn one_of_many_moves_wins(place: &dyn Place) {
    let pipeline = unique();
    let stores = join_all((0..4).map(|_| place.open(&pipeline))).await;
    let mut base = None;
    for epoch in 1..=5 {
        let attempts: Vec<Pointer> = (0..8).map(|_| pointer(0, epoch)).collect();
        let moves = attempts.iter().zip(0..).map(|(next, number)| settle(&*stores[number % 4], base, next));
        let answers = join_all(moves).await;
        let winners: Vec<&Pointer> = attempts
            .iter()
            .zip(&answers)
            .filter_map(|(next, moved)| matches!(moved, Moved::Applied).then_some(next))
            .collect();
        assert_eq!(winners.len(), 1, "epoch {epoch}: {answers:?}");
        for moved in &answers {
            if let Moved::Refused(current) = moved {
                assert_eq!(current.as_deref(), Some(winners[0]));
            }
        }
        assert_eq!(stores[0].read_pointer(0).await.unwrap().as_ref(), Some(winners[0]));
        base = Some(winners[0].base());
    }
}

async fn pointers_move_in_quick_succession(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let mut last: Option<Pointer> = None;
    for epoch in 1..=50 {
        // Their write timestamps run backwards, as after a change of the clock: only the condition counts.
        let next = Pointer { timestamp: 2_000_000_000_000_000 - epoch, ..pointer(0, epoch) };
        assert_eq!(settle(&*store, last.as_ref().map(Pointer::base), &next).await, Moved::Applied);
        last = Some(next);
    }
    assert_eq!(place.open(&pipeline).await.read_pointer(0).await.unwrap(), last);
}

/// A pointer that uses every field, over that many partitions.
fn full_pointer(partitions: i32) -> Pointer {
    let vector: Vector = Vector(
        (0..partitions)
            .map(|number| {
                let counts = Counts { processed: u64::MAX, filtered: number as u64, gaps: 3, ..Counts::default() };
                let watermark = (number % 2 == 0).then_some(i64::MIN + i64::from(number));
                let raised = (number % 3 == 0).then_some(i64::MAX - i64::from(number));
                let (next, idle) = (Offset(i64::MAX), number % 3 == 0);
                let counted_from = (number % 5 == 0).then_some(Offset(-7));
                let unsettled = number % 7 == 0;
                let position = Position { next, watermark, idle, raised, counts, counted_from, unsettled };
                (partition("orders", number).key, position)
            })
            .collect(),
    );
    let until = Some(i64::MIN);
    let reference =
        |kind| SegmentRef { key: segment(9, i64::MAX, u32::MAX), kind, rows: 1, bytes: 2, checksum: u64::MAX, until };
    let state: Vec<SegmentRef> = (0..30).map(|table| reference(SegmentKind::State { table })).collect();
    Pointer {
        shard: 9,
        epoch: Epoch(i64::MAX),
        attempt: Attempt::fresh(),
        generation: Generation(i64::MAX),
        timestamp: i64::MAX,
        content: Content {
            vector: vector.clone(),
            closed: Some(i64::MAX),
            state: state.clone(),
            outbox: Outbox {
                epoch: Epoch(4),
                timestamp: 5,
                segments: vec![
                    reference(SegmentKind::Upserts { sink: 0 }),
                    reference(SegmentKind::Deletes { sink: 1 }),
                    reference(SegmentKind::DeadLetters),
                ],
            },
            fingerprint: "ß 'x' \"y\" \\ \u{0} 😀".into(),
            delivered: Epoch(3),
            garbage: (0..20).map(|number| segment(9, 2, number)).collect(),
            swept: Epoch(1),
            rewind: None,
        },
        kept: vec![Kept { epoch: Epoch(2), vector, closed: Some(i64::MIN), state }],
    }
}

async fn a_long_pointer_comes_back_whole(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let mut base = None;
    // Short, long, and short again: what one leaves behind must not show in the next.
    for partitions in [3, 1000, 0] {
        let next = full_pointer(partitions);
        assert_eq!(settle(&*store, base, &next).await, Moved::Applied);
        base = Some(next.base());
        assert_eq!(place.open(&pipeline).await.read_pointer(9).await.unwrap(), Some(next));
    }
}

async fn segments_come_back_whole(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let k256 = 256 << 10;
    let mut written = Vec::new();
    for (number, length) in (0..).zip([0, 1, k256 - 1025, k256 - 1024, k256 - 1, k256, k256 + 1, 2 * k256, 5_000_000]) {
        let key = segment(2, 7, number);
        store.write_segment(&key, &noise(length)).await.unwrap();
        written.push((key, length));
    }
    let reopened = place.open(&pipeline).await;
    for (key, length) in written {
        assert!(store.read_segment(&key).await.unwrap() == noise(length), "{length} bytes");
        assert!(reopened.read_segment(&key).await.unwrap() == noise(length), "{length} bytes, opened again");
    }
}

/// Case: big state (hmda-platform#2194).
async fn fifty_megabytes_come_back_whole(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let (key, bytes) = (segment(0, 1, 0), noise(50 << 20));
    store.write_segment(&key, &bytes).await.unwrap();
    assert!(place.open(&pipeline).await.read_segment(&key).await.unwrap() == bytes);
    store.delete_segments(&[key]).await.unwrap();
    assert!(matches!(store.read_segment(&key).await, Err(StoreError::Corrupt(_))));
}

async fn writing_a_segment_again_is_harmless(place: &dyn Place) {
    let store = place.open(&unique()).await;
    let (key, bytes) = (segment(0, 1, 0), noise(600_000));
    for _ in 0..2 {
        store.write_segment(&key, &bytes).await.unwrap();
        assert!(store.read_segment(&key).await.unwrap() == bytes);
        assert_eq!(store.segments_of_epoch(0, Epoch(1)).await.unwrap(), [key]);
    }
}

async fn deleted_segments_are_gone(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let keys: Vec<SegmentKey> = (0..5).map(|number| segment(0, 1, number)).collect();
    for key in &keys {
        store.write_segment(key, &noise(300_000)).await.unwrap();
    }
    // One of them twice, and one that never was.
    store.delete_segments(&[keys[0], keys[1], keys[1], segment(0, 1, 0)]).await.unwrap();
    store.delete_segments(&[]).await.unwrap();
    let store = place.open(&pipeline).await;
    for key in &keys[..2] {
        assert!(matches!(store.read_segment(key).await, Err(StoreError::Corrupt(_))));
    }
    for key in &keys[2..] {
        assert!(store.read_segment(key).await.unwrap() == noise(300_000));
    }
    let left: BTreeSet<SegmentKey> = store.segments_of_epoch(0, Epoch(1)).await.unwrap().into_iter().collect();
    assert_eq!(left, keys[2..].iter().copied().collect());
}

async fn orphans_of_every_attempt_are_found(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let here: BTreeSet<SegmentKey> = (0..6).map(|number| segment(1, 5, number % 3)).collect();
    let elsewhere = [segment(1, 4, 0), segment(1, 6, 0), segment(0, 5, 0), segment(2, 5, 0)];
    for key in here.iter().chain(&elsewhere) {
        store.write_segment(key, b"x").await.unwrap();
    }
    let store = place.open(&pipeline).await;
    let found: BTreeSet<SegmentKey> = store.segments_of_epoch(1, Epoch(5)).await.unwrap().into_iter().collect();
    assert_eq!(found, here);
    assert_eq!(store.segments_of_epoch(1, Epoch(6)).await.unwrap(), [elsewhere[1]]);
    assert_eq!(store.segments_of_epoch(1, Epoch(7)).await.unwrap(), []);
    assert_eq!(store.segments_of_epoch(3, Epoch(5)).await.unwrap(), []);
}

async fn a_segment_that_is_missing_is_corrupt(place: &dyn Place) {
    let store = place.open(&unique()).await;
    let key = segment(0, 1, 0);
    match store.read_segment(&key).await {
        Err(StoreError::Corrupt(message)) => assert!(message.contains(&key.attempt.0.to_string()), "{message}"),
        other => panic!("{other:?}"),
    }
}

fn line(topic: &str, partition: i32, offset: i64) -> KafkaOffset {
    KafkaOffset { topic: topic.into(), partition, offset: Offset(offset) }
}

async fn older_kafka_offsets_lose(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    assert_eq!(place.kafka_offsets(&pipeline).await, []);
    store.write_kafka_offsets(&[], 100).await.unwrap();
    store.write_kafka_offsets(&[line("a", 0, 10), line("a", 1, 20), line("b", 0, 30)], 100).await.unwrap();
    // An older one comes late; it knows of a partition that nobody else has written yet.
    store.write_kafka_offsets(&[line("a", 0, 99), line("b", 1, 7)], 99).await.unwrap();
    assert_eq!(
        place.kafka_offsets(&pipeline).await,
        [line("a", 0, 10), line("a", 1, 20), line("b", 0, 30), line("b", 1, 7)]
    );
    // A newer one wins, also with a lower offset.
    store.write_kafka_offsets(&[line("a", 0, 4), line("a", 1, 25)], 101).await.unwrap();
    assert_eq!(
        place.kafka_offsets(&pipeline).await,
        [line("a", 0, 4), line("a", 1, 25), line("b", 0, 30), line("b", 1, 7)]
    );
}

async fn many_kafka_offsets_at_once(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let lines: Vec<KafkaOffset> = (0..6_000).map(|partition| line("orders", partition, 1)).collect();
    store.write_kafka_offsets(&lines, 1).await.unwrap();
    assert_eq!(place.kafka_offsets(&pipeline).await, lines);
}

async fn dead_letters_are_kept_once(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let letter = |offset: i64, key: Option<&[u8]>, value: Option<&[u8]>| DeadLetter {
        topic: "orders".into(),
        partition: partition("orders", 1).key,
        offset,
        timestamp: 1_700_000_000_123 + offset,
        reason: format!("expected , at 'ä' (offset {offset})"),
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
    };
    let letters = [
        letter(3, None, None),
        letter(4, Some(b""), Some(b"")),
        letter(5, Some(b"k"), Some(b"{\"a\":\"x\0\xff")),
        letter(6, None, Some(&noise(1 << 20))),
    ];
    store.write_dead_letters(&letters[..3], 10).await.unwrap();
    // The same output is delivered again after a claim.
    let store = place.open(&pipeline).await;
    store.write_dead_letters(&letters, 10).await.unwrap();
    store.write_dead_letters(&[], 10).await.unwrap();
    assert_eq!(place.dead_letters(&pipeline, "orders", 1).await, letters);
    assert_eq!(place.dead_letters(&pipeline, "orders", 0).await, []);
    // The topic is created again, and its record at the same place is bad, too.
    let again =
        DeadLetter { partition: PartitionKey { topic_id: Uuid::new_v4(), partition: 1 }, ..letter(3, None, None) };
    store.write_dead_letters(std::slice::from_ref(&again), 11).await.unwrap();
    let kept = place.dead_letters(&pipeline, "orders", 1).await;
    assert_eq!(kept.len(), 5);
    assert!(kept.contains(&again) && kept.contains(&letters[0]));
}

async fn crash_notes_come_and_go(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    let (key, other) = (partition("orders", 0).key, partition("orders", 1).key);
    let first = CrashNote::new(Offset(7), Generation(1), 1);
    let second = CrashNote {
        position: Offset(7),
        generation: Generation(1),
        deaths: 2,
        suspect: Some(Suspects::new(Range::new(Offset(7), Offset(80)), 12)),
        trying: Some(Suspects::new(Range::new(Offset(8), Offset(9)), 1)),
        found: vec![Offset(81), Offset(90)],
    };
    assert_eq!(store.crash_note(&key).await.unwrap(), None);
    store.write_crash_note(&key, None).await.unwrap();
    assert_eq!(store.crash_note(&key).await.unwrap(), None);
    // One after the other, as fast as it goes.
    for _ in 0..20 {
        store.write_crash_note(&key, Some(&first)).await.unwrap();
        assert_eq!(store.crash_note(&key).await.unwrap().as_ref(), Some(&first));
        store.write_crash_note(&key, None).await.unwrap();
        assert_eq!(store.crash_note(&key).await.unwrap(), None);
        store.write_crash_note(&key, Some(&second)).await.unwrap();
        assert_eq!(store.crash_note(&key).await.unwrap().as_ref(), Some(&second));
    }
    assert_eq!(store.crash_note(&other).await.unwrap(), None);
    assert_eq!(place.open(&pipeline).await.crash_note(&key).await.unwrap().as_ref(), Some(&second));
}

async fn what_is_paused_is_kept(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    assert_eq!(store.paused().await.unwrap(), Wishes::default());
    let some = Wishes { pipeline: false, partitions: [partition("orders", 0).key, partition("bills", 3).key].into() };
    let all = Wishes { pipeline: true, ..Wishes::default() };
    for _ in 0..3 {
        for wishes in [&some, &all, &Wishes::default(), &some] {
            store.write_paused(wishes).await.unwrap();
            store.write_paused(wishes).await.unwrap();
            assert_eq!(store.paused().await.unwrap(), *wishes);
        }
    }
    assert_eq!(place.open(&pipeline).await.paused().await.unwrap(), some);
    assert_eq!(place.open(&unique()).await.paused().await.unwrap(), Wishes::default());
}

fn heartbeat(generation: i64, instance: &str, beat: i64) -> Heartbeat {
    Heartbeat { generation: Generation(generation), instance: instance.into(), beat, released: false }
}

async fn the_heartbeat_of_the_latest_owner_is_seen(place: &dyn Place) {
    let pipeline = unique();
    let store = place.open(&pipeline).await;
    assert_eq!(store.read_heartbeat().await.unwrap(), None);
    let first = heartbeat(3, "pod ä'1", 0);
    store.write_heartbeat(&first).await.unwrap();
    // Whoever asks has opened the store for itself.
    let other = place.open(&pipeline).await;
    assert_eq!(other.read_heartbeat().await.unwrap().as_ref(), Some(&first));
    let second = heartbeat(4, "pod 2", 0);
    other.write_heartbeat(&second).await.unwrap();
    assert_eq!(store.read_heartbeat().await.unwrap(), Some(second.clone()));
    // The first owner wakes up and does not know yet that it is none.
    for beat in 1..20 {
        store.write_heartbeat(&heartbeat(3, "pod ä'1", beat)).await.unwrap();
        assert_eq!(other.read_heartbeat().await.unwrap(), Some(second.clone()));
    }
    store.write_heartbeat(&Heartbeat { released: true, ..heartbeat(3, "pod ä'1", 20) }).await.unwrap();
    assert_eq!(other.read_heartbeat().await.unwrap().as_ref(), Some(&second));
    let released = Heartbeat { released: true, ..heartbeat(4, "pod 2", 1) };
    other.write_heartbeat(&released).await.unwrap();
    assert_eq!(store.read_heartbeat().await.unwrap(), Some(released));
}

async fn beats_are_seen_in_quick_succession(place: &dyn Place) {
    let store = place.open(&unique()).await;
    for beat in 0..100 {
        let beat = heartbeat(1, "only", beat);
        store.write_heartbeat(&beat).await.unwrap();
        assert_eq!(store.read_heartbeat().await.unwrap(), Some(beat));
    }
}

async fn pipelines_do_not_touch_each_other(place: &dyn Place) {
    let (one, two) = (unique(), unique());
    let (store, neighbour) = (place.open(&one).await, place.open(&two).await);
    let row = PipelineRow { shards: 1, fingerprint: "f".into(), plan: "p".into() };
    let source = partition("orders", 0);
    let key = segment(0, 1, 0);
    let next = pointer(0, 1);
    let note = CrashNote::new(Offset(1), Generation(1), 1);
    let letter = DeadLetter {
        topic: "orders".into(),
        partition: source.key,
        offset: 1,
        timestamp: 1,
        reason: "bad".into(),
        key: None,
        value: None,
    };
    store.define_pipeline(&row).await.unwrap();
    store.next_generation().await.unwrap();
    store.next_generation().await.unwrap();
    store.define_start(&source, Offset(1)).await.unwrap();
    store.move_pointer(None, &next).await.unwrap();
    store.write_segment(&key, b"mine").await.unwrap();
    store.write_kafka_offsets(&[line("orders", 0, 1)], 1).await.unwrap();
    store.write_dead_letters(&[letter], 1).await.unwrap();
    store.write_crash_note(&source.key, Some(&note)).await.unwrap();
    store.write_heartbeat(&heartbeat(1, "mine", 1)).await.unwrap();

    assert_eq!(neighbour.read_heartbeat().await.unwrap(), None);
    assert_eq!(neighbour.next_generation().await.unwrap(), Generation(1));
    assert_eq!(neighbour.start_offset(&source.key).await.unwrap(), None);
    assert_eq!(neighbour.known_partitions().await.unwrap(), []);
    assert_eq!(neighbour.read_pointer(0).await.unwrap(), None);
    assert_eq!(neighbour.segments_of_epoch(0, Epoch(1)).await.unwrap(), []);
    assert!(matches!(neighbour.read_segment(&key).await, Err(StoreError::Corrupt(_))));
    assert_eq!(neighbour.crash_note(&source.key).await.unwrap(), None);
    assert_eq!(place.kafka_offsets(&two).await, []);
    assert_eq!(place.dead_letters(&two, "orders", 0).await, []);

    let other = PipelineRow { fingerprint: "g".into(), ..row.clone() };
    assert_eq!(neighbour.define_pipeline(&other).await.unwrap(), other);
    neighbour.delete_segments(&[key]).await.unwrap();
    neighbour.write_crash_note(&source.key, None).await.unwrap();
    neighbour.write_heartbeat(&heartbeat(2, "theirs", 2)).await.unwrap();
    neighbour.write_kafka_offsets(&[line("orders", 0, 2)], 2).await.unwrap();
    assert_eq!(store.define_pipeline(&other).await.unwrap(), row);
    assert_eq!(store.read_segment(&key).await.unwrap(), b"mine");
    assert_eq!(store.crash_note(&source.key).await.unwrap(), Some(note));
    assert_eq!(store.read_heartbeat().await.unwrap(), Some(heartbeat(1, "mine", 1)));
    assert_eq!(place.kafka_offsets(&one).await, [line("orders", 0, 1)]);
}

async fn names_may_hold_anything(place: &dyn Place) {
    let suffix = Uuid::new_v4();
    let names = [
        format!("bestellungen ä 日本 😀 {suffix}"),
        format!("a'b\"c; DROP TABLE x {suffix}"),
        format!("../{suffix}/x"),
        format!("{}{suffix}", "long".repeat(100)),
    ];
    for name in names {
        let store = place.open(&name).await;
        let next = pointer(0, 1);
        assert_eq!(store.move_pointer(None, &next).await.unwrap(), Moved::Applied);
        store.write_kafka_offsets(&[line("tøpic.😀", 0, 1)], 1).await.unwrap();
        assert_eq!(place.open(&name).await.read_pointer(0).await.unwrap(), Some(next));
        assert_eq!(place.kafka_offsets(&name).await, [line("tøpic.😀", 0, 1)]);
    }
}
