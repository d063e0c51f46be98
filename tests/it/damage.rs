//! What is stored goes bad: a segment is lost, a bit of one is flipped, a pointer is of a newer version. Where that is safe
//! the shard goes back to an earlier state, otherwise it halts and says what to do; the numbers are right either way, with
//! records still arriving.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use redb::{ReadableDatabase, TableDefinition};
use strandline::settings::CassandraSettings;
use strandline_actors::pointer::{Pointer, SegmentKey};
use strandline_actors::ports::{KafkaOffset, StateStore};
use strandline_actors::position::Offset;

use crate::balance;
use crate::shop::{Ends, PARTITIONS, Shop, Truth, counted, sql, table};
use crate::stand::{PATIENCE, Service, Stand, until};
use crate::store_places::{CassandraPlace, LocalPlace, Place};

/// The flipped bit is the lowest of this byte.
const BYTE: usize = 100;

/// A store of which something can be harmed and mended behind the service's back.
#[async_trait]
trait Harmed: Place {
    /// The settings of a service that works with it.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Turns one bit of a segment, or turns it back.
    async fn flip(&self, stand: &Stand, key: &SegmentKey);

    /// Loses a segment.
    async fn lose(&self, stand: &Stand, key: &SegmentKey) {
        self.open(&stand.pipeline).await.delete_segments(&[*key]).await.unwrap();
    }

    /// What is stored as the pointer of a shard, word for word.
    async fn pointer_text(&self, stand: &Stand, shard: u32) -> String;

    /// Stores something else in its place.
    async fn write_pointer_text(&self, stand: &Stand, shard: u32, text: &str);
}

fn cassandra(stand: &Stand) -> CassandraPlace {
    CassandraPlace(CassandraSettings {
        nodes: stand.node.clone(),
        keyspace: stand.keyspace.clone(),
        timeout: PATIENCE,
        ..CassandraSettings::default()
    })
}

#[async_trait]
impl Harmed for CassandraPlace {
    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    async fn flip(&self, stand: &Stand, key: &SegmentKey) {
        let segment = format!(
            "pipeline = '{}' AND shard = {} AND epoch = {} AND attempt = {} AND number = {} AND chunk = 0",
            stand.pipeline, key.shard, key.epoch, key.attempt.0, key.number
        );
        let read = format!("SELECT content, WRITETIME(content) FROM {}.segments WHERE {segment}", stand.keyspace);
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        let (mut content, written) = rows.single_row::<(Vec<u8>, i64)>().unwrap();
        content[BYTE] ^= 1;
        let write = format!(
            "UPDATE {}.segments USING TIMESTAMP {} SET content = ? WHERE {segment}",
            stand.keyspace,
            written + 1
        );
        stand.session.query_unpaged(write, (content,)).await.unwrap();
    }

    async fn pointer_text(&self, stand: &Stand, shard: u32) -> String {
        let read = format!(
            "SELECT content FROM {}.pointers WHERE pipeline = '{}' AND shard = {shard}",
            stand.keyspace, stand.pipeline
        );
        let rows = stand.session.query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
        rows.single_row::<(String,)>().unwrap().0
    }

    async fn write_pointer_text(&self, stand: &Stand, shard: u32, text: &str) {
        let write = format!(
            "UPDATE {}.pointers SET content = ?, attempt = uuid() WHERE pipeline = '{}' AND shard = {shard} IF EXISTS",
            stand.keyspace, stand.pipeline
        );
        stand.session.query_unpaged(write, (text,)).await.unwrap();
    }
}

impl LocalPlace {
    fn file(&self, stand: &Stand) -> std::path::PathBuf {
        self.0.join(format!("{}.redb", stand.pipeline))
    }
}

const POINTERS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("pointers");

#[async_trait]
impl Harmed for LocalPlace {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("STORE__KIND", "local".into()), ("STORE__PATH", self.0.display().to_string())]
    }

    /// On the disk itself, wherever the segment's bytes are.
    async fn flip(&self, stand: &Stand, key: &SegmentKey) {
        let bytes = self.open(&stand.pipeline).await.read_segment(key).await;
        let mut file = std::fs::read(self.file(stand)).unwrap();
        // One that was flipped before is not read any more: what is before the bit and behind it is enough to find it.
        let bytes = bytes.unwrap();
        let found: Vec<usize> = (0..file.len() - bytes.len())
            .filter(|at| {
                let here = &file[*at..at + bytes.len()];
                here[..BYTE] == bytes[..BYTE] && here[BYTE + 1..] == bytes[BYTE + 1..]
            })
            .collect();
        assert!(!found.is_empty(), "the segment is nowhere in the file");
        found.into_iter().for_each(|at| file[at + BYTE] ^= 1);
        std::fs::write(self.file(stand), file).unwrap();
    }

    async fn pointer_text(&self, stand: &Stand, shard: u32) -> String {
        let database = redb::Database::open(self.file(stand)).unwrap();
        let table = database.begin_read().unwrap().open_table(POINTERS).unwrap();
        let text = table.get(shard).unwrap().unwrap().value().to_vec();
        String::from_utf8(text).unwrap()
    }

    async fn write_pointer_text(&self, stand: &Stand, shard: u32, text: &str) {
        let database = redb::Database::open(self.file(stand)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(POINTERS).unwrap().insert(shard, text.as_bytes()).unwrap();
        transaction.commit().unwrap();
    }
}

fn start(stand: &Stand, place: &dyn Harmed) -> Service {
    let settings = place.settings();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    stand.start_with(&sql(stand), &settings)
}

/// The pointers of both shards. Nobody may work with the store.
async fn pointers(stand: &Stand, place: &dyn Harmed) -> [Pointer; 2] {
    let store: Arc<dyn StateStore> = place.open(&stand.pipeline).await;
    [store.read_pointer(0).await.unwrap().unwrap(), store.read_pointer(1).await.unwrap().unwrap()]
}

/// Segments of the state as it is now that the state before did without.
fn newest(pointer: &Pointer) -> Vec<SegmentKey> {
    let before: HashSet<SegmentKey> = pointer.kept[0].state.iter().map(|segment| segment.key).collect();
    let now = pointer.content.state.iter().map(|segment| segment.key);
    now.filter(|key| !before.contains(key)).collect()
}

/// Waits until the table is right, ends the service, and compares what it leaves.
async fn finish(stand: &Stand, place: &dyn Harmed, service: Service, truth: &Truth, ends: &Ends) {
    until("the table is right", PATIENCE, async || table(stand).await == *truth).await;
    service.stop().await;
    assert_eq!(table(stand).await, *truth);
    let line = |(partition, offset): (i32, &i64)| KafkaOffset {
        topic: stand.topic.name.clone(),
        partition,
        offset: Offset(*offset),
    };
    assert_eq!(place.kafka_offsets(&stand.pipeline).await, (0..).zip(ends).map(line).collect::<Vec<_>>());
    let settings = place.settings().into_iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value));
    let stored = balance::stored(stand.environment("").into_iter().chain(settings)).await;
    counted(&stored, truth, ends).await;
}

/// A service that has committed several checkpoints, and is killed.
async fn lives_and_dies(stand: &Stand, place: &dyn Harmed) {
    let service = start(stand, place);
    // The state before the last but one is not the first of all, which is empty.
    service.until_each_shard_has_committed(5).await;
    service.kill();
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    StateLost,
    StateFlipped,
    OutputLost,
    OutputFlipped,
}

/// Both shards are harmed in each way, one after the other.
async fn goes_back(stand: &Stand, place: &dyn Harmed) {
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    for harm in [Harm::StateLost, Harm::StateFlipped, Harm::OutputLost, Harm::OutputFlipped] {
        lives_and_dies(stand, place).await;
        let before = pointers(stand, place).await;
        for pointer in &before {
            let key = match harm {
                Harm::StateLost | Harm::StateFlipped => newest(pointer)[0],
                Harm::OutputLost | Harm::OutputFlipped => pointer.content.outbox.segments[0].key,
            };
            match harm {
                Harm::StateLost | Harm::OutputLost => place.lose(stand, &key).await,
                Harm::StateFlipped | Harm::OutputFlipped => place.flip(stand, &key).await,
            }
        }
        let service = start(stand, place);
        service.until_each_shard_committed().await;
        let said = service.said();
        let back = said.lines().filter(|line| line.contains("going back to an earlier state"));
        assert_eq!(back.count(), 2, "{harm:?}: {said}");
        let (truth, ends) = shop.pause().await;
        finish(stand, place, service, &truth, &ends).await;
        for (before, after) in before.iter().zip(pointers(stand, place).await) {
            assert!(after.epoch > before.epoch && after.timestamp > before.timestamp, "{harm:?}: {after:?}");
        }
        shop.go_on();
    }
    let _ = shop.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_bad_in_a_store_is_computed_again_from_an_earlier_state() {
    let (one, other) = tokio::join!(Stand::new(PARTITIONS), Stand::new(PARTITIONS));
    let (cassandra, local) = (cassandra(&one), LocalPlace::new());
    tokio::join!(goes_back(&one, &cassandra), goes_back(&other, &local));
}

/// Waits until a shard has halted, and says what its status page says of it.
async fn halted(service: &Service, shard: u32) -> String {
    let name = format!("aggregation {shard} is halted");
    until(&name, PATIENCE, async || {
        service.get("/healthz").is_some_and(|(code, why)| code == 503 && why.contains(&name))
    })
    .await;
    service.get("/healthz").unwrap().1
}

/// What the status page says is to be done.
const ADVICE: [&str; 2] = [
    ". Restore what is damaged from a backup of the store, or compute everything anew under another \
     STRANDLINE_PIPELINE__NAME)",
    "; mend the cause, then resume it by POST /api/resume/shard/0 or restart the process",
];

/// What all kept states need is damaged: shard 0 halts, and nothing of it is changed. Mended, it goes on as if nothing had
/// been.
async fn halts(stand: &Stand, place: &dyn Harmed) {
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    lives_and_dies(stand, place).await;
    let [before, _] = pointers(stand, place).await;
    let kept = before.kept.iter().map(|kept| &kept.state);
    let bad: HashSet<SegmentKey> = kept.chain([&before.content.state]).map(|state| state[0].key).collect();
    for key in &bad {
        place.flip(stand, key).await;
    }

    let service = start(stand, place);
    let why = halted(&service, 0).await;
    let what = "; going back to an earlier state is not possible: those that are kept need what is damaged, too";
    for part in [what, ADVICE[0], ADVICE[1]] {
        assert!(why.contains(part), "{part:?} in {why}");
    }
    // The other shard is none the worse.
    service.until("shard 1 commits", |status| status["board"]["shards"]["1"]["checkpoints"].as_u64() > Some(1)).await;
    // It ends as it is told to.
    service.stop().await;
    let [after, _] = pointers(stand, place).await;
    assert_eq!((&after.content, &after.kept), (&before.content, &before.kept), "a claim changes nothing");

    for key in &bad {
        place.flip(stand, key).await;
    }
    let service = start(stand, place);
    let (truth, ends) = shop.close();
    finish(stand, place, service, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_bad_in_every_kept_state_halts_until_it_is_mended() {
    let (one, other) = tokio::join!(Stand::new(PARTITIONS), Stand::new(PARTITIONS));
    let (cassandra, local) = (cassandra(&one), LocalPlace::new());
    tokio::join!(halts(&one, &cassandra), halts(&other, &local));
}

/// The earlier state is there, but Kafka has deleted what came after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_kafka_has_no_records_for_any_more_halts_until_it_is_mended_and_resumed() {
    let stand = Stand::new(PARTITIONS).await;
    let place = cassandra(&stand);
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    // What a kept state needs can be deleted only when both shards are past it.
    let (bad, offsets) = loop {
        lives_and_dies(&stand, &place).await;
        let [before, _] = pointers(&stand, &place).await;
        let offsets = stand.offsets().await;
        let mut needed = before.kept[0].vector.0.iter();
        if needed.any(|(key, position)| position.next.0 < offsets[&key.partition]) {
            break (newest(&before)[0], offsets);
        }
    };
    place.flip(&stand, &bad).await;
    for (partition, offset) in offsets {
        stand.topic.delete_records(partition, offset).await;
    }

    let service = start(&stand, &place);
    let why = halted(&service, 0).await;
    let what = "; going back to an earlier state is not possible: ";
    for part in [what, " by now, the records from ", " on are needed", ADVICE[0], ADVICE[1]] {
        assert!(why.contains(part), "{part:?} in {why}");
    }
    place.flip(&stand, &bad).await;
    let (code, answer) = service.ask("POST", "/api/resume/shard/0").unwrap();
    assert_eq!(code, 200, "{answer}");
    service.until_each_shard_committed().await;
    let (truth, ends) = shop.close();
    finish(&stand, &place, service, &truth, &ends).await;
}

/// As if a later version had written it.
fn newer(text: &str) -> String {
    assert!(text.contains("\"version\":1,"), "{text}");
    text.replace("\"version\":1,", "\"version\":2,\"unheard_of\":[],")
}

async fn refuses(stand: &Stand, place: &dyn Harmed) {
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    lives_and_dies(stand, place).await;
    let ours = place.pointer_text(stand, 1).await;
    let theirs = newer(&ours);
    place.write_pointer_text(stand, 1, &theirs).await;
    for _ in 0..2 {
        let (code, said) = start(stand, place).end().await;
        let last = said.lines().last().unwrap_or_default();
        assert_eq!(code, Some(2), "{said}");
        assert!(last.starts_with("strandline: the store cannot be used: "), "{last}");
        for part in [
            "the pointer of shard 1 has format 2, and this version of Strandline (",
            ") reads formats up to 1: a newer version has written the state of this pipeline. Nothing was changed. \
             Start that version, or let this one compute everything anew under another STRANDLINE_PIPELINE__NAME",
        ] {
            assert!(last.contains(part), "{part:?} in {last}");
        }
    }
    assert_eq!(place.pointer_text(stand, 1).await, theirs);
    place.write_pointer_text(stand, 1, &ours).await;
    let service = start(stand, place);
    let (truth, ends) = shop.close();
    finish(stand, place, service, &truth, &ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pointer_of_a_newer_version_is_refused_and_left_alone() {
    let (one, other) = tokio::join!(Stand::new(PARTITIONS), Stand::new(PARTITIONS));
    let (cassandra, local) = (cassandra(&one), LocalPlace::new());
    tokio::join!(refuses(&one, &cassandra), refuses(&other, &local));
}

/// A newer version takes over from one that still runs: that one steps down, as from any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_pointer_becomes_one_of_a_newer_version_steps_down() {
    let stand = Stand::new(PARTITIONS).await;
    let place = cassandra(&stand);
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let service = start(&stand, &place);
    service.until_each_shard_committed().await;
    let text = place.pointer_text(&stand, 0).await;
    place.write_pointer_text(&stand, 0, &newer(&text)).await;
    let (code, said) = service.end().await;
    assert_eq!(code, Some(75), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("stepped down: ") && last.contains("has format 2"), "{last}");
    let _ = shop.close();
}
