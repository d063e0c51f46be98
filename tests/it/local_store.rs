//! What the local store does with other processes, with being killed, and with folders and files that are none.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use strandline::stores::local::LocalStore;
use strandline_actors::pointer::{Attempt, Content, Epoch, Generation, Pointer, SegmentKey};
use strandline_actors::ports::{KafkaOffset, Moved, StateStore, StoreError};
use strandline_actors::position::Offset;
use uuid::Uuid;

use crate::store_places::LocalPlace;

/// Tells the other process which folder to use.
const FOLDER: &str = "STORE_TEST_FOLDER";
/// The first attempt of the other process.
const ATTEMPT: Attempt = Attempt(Uuid::from_u128(7));

fn pointer() -> Pointer {
    Pointer {
        shard: 0,
        epoch: Epoch(1),
        attempt: ATTEMPT,
        generation: Generation(1),
        timestamp: 1,
        content: Content::default(),
        kept: Vec::new(),
    }
}

fn segment(number: u32) -> SegmentKey {
    SegmentKey { shard: 0, epoch: Epoch(1), attempt: ATTEMPT, number }
}

/// Not a test: the other process, which the tests below start and kill.
#[tokio::test]
#[ignore = "the tests below run this in a process of its own"]
async fn other_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = LocalStore::open(Path::new(&folder), "p").await.unwrap();
    store.write_segment(&segment(0), &[1; 1_000_000]).await.unwrap();
    store.move_pointer(None, &pointer()).await.unwrap();
    store.write_kafka_offsets(&[KafkaOffset { topic: "t".into(), partition: 0, offset: Offset(5) }], 1).await.unwrap();
    store.write_segment(&segment(1), &[2; 1_000_000]).await.unwrap();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    // Writes until it is killed.
    for number in 2.. {
        store.write_segment(&segment(number), &[3; 100_000]).await.unwrap();
    }
}

/// The other process; it is killed at the end of a test, however that ends.
struct Other(Child);

impl Other {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The other process, once it has written all it is asked for.
fn start_other_process(folder: &Path) -> Other {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "local_store::other_process", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let other = Other(child);
    assert!(output.lines().any(|line| line.unwrap() == "ready"), "the other process ended");
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_works_with_a_store_and_another_goes_on_after_it_is_killed() {
    let place = LocalPlace::new();
    let mut other = start_other_process(&place.0);
    match LocalStore::open(&place.0, "p").await {
        Err(StoreError::Fatal(message)) => {
            let path = place.0.canonicalize().unwrap().join("p.redb");
            assert_eq!(
                message,
                format!(
                    "the local store {} is in use by another process, and only one at a time can use it. Stop that \
                     process first; to run another pipeline, give it a folder of its own with STRANDLINE_STORE__PATH. \
                     Several processes can share a store of kind cassandra",
                    path.display()
                )
            );
        }
        other => panic!("{other:?}"),
    }
    // Another pipeline is free to use the folder.
    LocalStore::open(&place.0, "q").await.unwrap();

    other.kill();
    let store = LocalStore::open(&place.0, "p").await.unwrap();
    assert_eq!(store.read_pointer(0).await.unwrap(), Some(pointer()));
    assert_eq!(store.read_segment(&segment(0)).await.unwrap(), vec![1; 1_000_000]);
    assert_eq!(store.read_segment(&segment(1)).await.unwrap(), vec![2; 1_000_000]);
    let offsets = store.kafka_offsets().await.unwrap();
    assert_eq!(offsets, [KafkaOffset { topic: "t".into(), partition: 0, offset: Offset(5) }]);
    // What was being written is there as a whole or not at all.
    for key in store.segments_of_epoch(0, Epoch(1)).await.unwrap() {
        assert!(matches!(store.read_segment(&key).await.unwrap().len(), 100_000 | 1_000_000));
    }
    let next = Pointer { epoch: Epoch(2), attempt: Attempt::fresh(), ..pointer() };
    assert_eq!(store.move_pointer(Some(pointer().base()), &next).await.unwrap(), Moved::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_closed_yet_can_be_opened_again() {
    let place = LocalPlace::new();
    let first = LocalStore::open(&place.0, "p").await.unwrap();
    let second = LocalStore::open(&place.0.join("."), "p").await.unwrap();
    first.move_pointer(None, &pointer()).await.unwrap();
    assert_eq!(second.read_pointer(0).await.unwrap(), Some(pointer()));
    drop(first);
    assert_eq!(second.read_pointer(0).await.unwrap(), Some(pointer()));
}

async fn refusal(folder: &Path, pipeline: &str) -> String {
    match LocalStore::open(folder, pipeline).await {
        Err(StoreError::Fatal(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_none_is_named() {
    let place = LocalPlace::new();
    std::fs::create_dir_all(&place.0).unwrap();
    let file = place.0.join("file");
    std::fs::write(&file, "x").unwrap();
    let message = refusal(&file.join("folder"), "p").await;
    assert!(
        message.starts_with(&format!(
            "the folder of the local store, {}, cannot be used: ",
            file.join("folder").display()
        )),
        "{message}"
    );
    assert!(message.ends_with("Choose another with STRANDLINE_STORE__PATH"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_store_is_named() {
    let place = LocalPlace::new();
    std::fs::create_dir_all(&place.0).unwrap();
    std::fs::write(place.0.join("p.redb"), "something else altogether, and more than a few bytes of it").unwrap();
    let message = refusal(&place.0, "p").await;
    assert!(message.contains("p.redb cannot be opened: "), "{message}");
    assert!(message.contains("STRANDLINE_STORE__PATH"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_pipeline_is_refused() {
    let place = LocalPlace::new();
    drop(LocalStore::open(&place.0, "p").await.unwrap());
    let path = |name: &str| -> PathBuf { place.0.join(name) };
    std::fs::rename(path("p.redb"), path("q.redb")).unwrap();
    let message = refusal(&place.0, "q").await;
    assert!(message.contains("the file belongs to pipeline 'p', not to 'q'"), "{message}");
}
