//! Stands between the service and Cassandra, understands the frames of CQL, and loses single questions or answers of chosen
//! statements while everything else on the same connection goes through.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
const RESULT: u8 = 0x08;
/// The kind of a result that names a prepared statement.
const PREPARED: [u8; 4] = [0, 0, 0, 4];

/// What becomes of a chosen request.
const KINDS: u64 = 3;

/// A proxy that loses something of every n-th execution of the chosen statements: the question, the answer, or the time, in
/// turn.
pub(crate) struct LosingProxy {
    /// Where it listens.
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether a statement of this text is chosen.
    chosen: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// How long a question is held that comes late.
    late: Duration,
    /// The ids of the chosen statements.
    ids: Mutex<HashSet<Vec<u8>>>,
    /// Of how many executions one suffers; 0: none.
    every: AtomicU64,
    executed: AtomicU64,
    /// Questions lost, answers lost, questions late.
    suffered: [AtomicU64; KINDS as usize],
}

/// What one connection waits for, by the number of the stream.
#[derive(Default)]
struct Expected {
    /// Answers that name a chosen statement.
    preparing: HashSet<[u8; 2]>,
    /// Answers that are to be lost.
    losing: HashSet<[u8; 2]>,
}

impl LosingProxy {
    /// Starts a proxy in front of a node. `late` has to be longer than the client waits.
    pub(crate) async fn start(
        node: &str,
        chosen: impl Fn(&str) -> bool + Send + Sync + 'static,
        late: Duration,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            chosen: Box::new(chosen),
            late,
            ids: Mutex::default(),
            every: AtomicU64::new(0),
            executed: AtomicU64::new(0),
            suffered: Default::default(),
        });
        let proxy = Self { address, shared: Arc::clone(&shared) };
        let node = node.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&node).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let expected = Arc::<Mutex<Expected>>::default();
                tokio::spawn(questions(from_client, to_server, Arc::clone(&shared), Arc::clone(&expected)));
                tokio::spawn(answers(from_server, to_client, Arc::clone(&shared), expected));
            }
        });
        proxy
    }

    /// From now on one of so many executions suffers; 0: none.
    pub(crate) fn lose_one_of(&self, every: u64) {
        self.shared.every.store(every, Ordering::SeqCst);
    }

    /// Questions lost, answers lost, questions late.
    pub(crate) fn suffered(&self) -> [u64; KINDS as usize] {
        [0, 1, 2].map(|kind| self.shared.suffered[kind].load(Ordering::SeqCst))
    }
}

/// The next frame: nine bytes that begin with version, flags, stream and kind, and end with the length of the rest.
async fn frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut frame = vec![0; 9];
    from.read_exact(&mut frame).await.ok()?;
    let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
    frame.resize(9 + length, 0);
    from.read_exact(&mut frame[9..]).await.ok()?;
    Some(frame)
}

fn stream(frame: &[u8]) -> [u8; 2] {
    [frame[2], frame[3]]
}

/// Bytes that begin with their length in two bytes.
fn short_bytes(bytes: &[u8]) -> &[u8] {
    let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    &bytes[2..2 + length]
}

async fn questions(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    shared: Arc<Shared>,
    expected: Arc<Mutex<Expected>>,
) -> Option<()> {
    let to = Arc::new(tokio::sync::Mutex::new(to));
    loop {
        let frame = frame(&mut from).await?;
        match frame[4] {
            PREPARE if (shared.chosen)(&String::from_utf8_lossy(&frame[9..])) => {
                expected.lock().unwrap().preparing.insert(stream(&frame));
            }
            EXECUTE if shared.ids.lock().unwrap().contains(short_bytes(&frame[9..])) => {
                let executed = shared.executed.fetch_add(1, Ordering::SeqCst);
                let every = shared.every.load(Ordering::SeqCst);
                if every > 0 && executed.is_multiple_of(every) {
                    let kind = executed / every % KINDS;
                    shared.suffered[kind as usize].fetch_add(1, Ordering::SeqCst);
                    match kind {
                        0 => continue,
                        1 => drop(expected.lock().unwrap().losing.insert(stream(&frame))),
                        _ => {
                            let (to, late) = (Arc::clone(&to), shared.late);
                            tokio::spawn(async move {
                                tokio::time::sleep(late).await;
                                let _ = to.lock().await.write_all(&frame).await;
                            });
                            continue;
                        }
                    }
                }
            }
            _ => {}
        }
        to.lock().await.write_all(&frame).await.ok()?;
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: Arc<Shared>,
    expected: Arc<Mutex<Expected>>,
) -> Option<()> {
    loop {
        let frame = frame(&mut from).await?;
        let lost = {
            let mut expected = expected.lock().unwrap();
            if expected.preparing.remove(&stream(&frame)) && frame[4] == RESULT && frame[9..13] == PREPARED {
                shared.ids.lock().unwrap().insert(short_bytes(&frame[13..]).to_vec());
            }
            expected.losing.remove(&stream(&frame))
        };
        if !lost {
            to.write_all(&frame).await.ok()?;
        }
    }
}
