//! Stands between the service and a server, and loses what it is told to lose.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A proxy in front of one server.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: String,
    mute: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mute = Arc::new(AtomicBool::new(false));
        let (server, muted) = (server.to_owned(), Arc::clone(&mute));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, Arc::new(AtomicBool::new(false))));
                tokio::spawn(pass(from_server, to_client, Arc::clone(&muted)));
            }
        });
        Self { address, mute }
    }

    /// From now on what the server answers gets lost; what it is asked still arrives.
    pub(crate) fn lose_answers(&self, lose: bool) {
        self.mute.store(lose, Ordering::SeqCst);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mute: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    let mut lost = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // What comes after a loss would make no sense on the same connection.
        lost |= mute.load(Ordering::SeqCst);
        if !lost && to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}
