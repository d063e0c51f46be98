//! Stands between the service and a server, and loses or delays what it is told to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

/// A proxy in front of one server.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: String,
    mute: Arc<AtomicBool>,
    /// By how many milliseconds answers come later.
    delay: Arc<AtomicU64>,
    /// What was sent to the server while its answers got lost.
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let proxy = Self { address, mute: Arc::default(), delay: Arc::default(), sent: Arc::default() };
        let (server, mute, sent) = (server.to_owned(), Arc::clone(&proxy.mute), Arc::clone(&proxy.sent));
        let delay = Arc::clone(&proxy.delay);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(ask(from_client, to_server, Arc::clone(&mute), Arc::clone(&sent)));
                tokio::spawn(answer(from_server, to_client, Arc::clone(&mute), Arc::clone(&delay)));
            }
        });
        proxy
    }

    /// From now on what the server answers gets lost; what it is asked still arrives.
    pub(crate) fn lose_answers(&self, lose: bool) {
        self.mute.store(lose, Ordering::SeqCst);
    }

    /// From now on every answer comes so much later. What is asked meanwhile is not held up by it.
    pub(crate) fn delay_answers(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// How often something was sent to the server while its answers got lost.
    pub(crate) fn times_sent(&self, what: &[u8]) -> usize {
        self.sent.lock().unwrap().windows(what.len()).filter(|window| *window == what).count()
    }
}

async fn ask(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mute: Arc<AtomicBool>, sent: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if mute.load(Ordering::SeqCst) {
            sent.lock().unwrap().extend_from_slice(&buffer[..length]);
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mute: Arc<AtomicBool>, delay: Arc<AtomicU64>) {
    let (later, mut due) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    let mut lost = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // What comes after a loss would make no sense on the same connection.
        lost |= mute.load(Ordering::SeqCst);
        let at = Instant::now() + Duration::from_millis(delay.load(Ordering::SeqCst));
        if !lost && later.send((at, buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}
