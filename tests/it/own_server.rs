//! A Kafka, a Cassandra or a Jaeger of a test's own, which it may kill, freeze and start again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Where the next server looks for a port.
static NEXT: AtomicU16 = AtomicU16::new(0);
/// One Cassandra at a time: each takes a gigabyte.
static CASSANDRAS: Semaphore = Semaphore::const_new(1);

/// A server in a folder that goes away with it.
pub(crate) struct OwnServer {
    kind: &'static str,
    folder: PathBuf,
    port: u16,
    /// Options of Java.
    java: String,
    _turn: Option<SemaphorePermit<'static>>,
}

impl OwnServer {
    /// Starts a `kafka`, a `cassandra` or a `jaeger`.
    pub(crate) async fn start(kind: &'static str) -> Self {
        Self::start_with(kind, "", &[]).await
    }

    /// Starts a server with further options of Java, and of `services start`.
    pub(crate) async fn start_with(kind: &'static str, java: &str, options: &[&str]) -> Self {
        let turn = if kind == "cassandra" { Some(CASSANDRAS.acquire().await.unwrap()) } else { None };
        let folder = std::env::temp_dir().join(format!("strandline-{kind}-{}", uuid::Uuid::new_v4()));
        let memory = if kind == "cassandra" { "-Xms512m -Xmx512m" } else { "-Xmx512m" };
        // Quick to start; speed does not matter here.
        let java = format!("{memory} -XX:TieredStopAtLevel=1 {java}");
        let mut server = Self { kind, folder, port: 0, java, _turn: turn };
        for _ in 0..3 {
            server.port = free_port();
            if server.run("start", &[&["--port", &server.port.to_string()], options].concat()).await {
                return server;
            }
        }
        panic!("{kind} does not start; what it wrote is in {}", server.folder.display());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it lives.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address of one of the ports after its first.
    pub(crate) fn neighbour(&self, number: u16) -> String {
        format!("127.0.0.1:{}", self.port + number)
    }

    /// Does something to it: `kill`, `pause`, `cont`, or `start` with its data.
    pub(crate) async fn does(&self, verb: &str) {
        assert!(
            self.run(verb, &[]).await,
            "{} {verb} failed; what it wrote is in {}",
            self.kind,
            self.folder.display()
        );
    }

    async fn run(&self, verb: &str, more: &[&str]) -> bool {
        let services = std::env::var("TEST_SERVICES")
            .expect("TEST_SERVICES is not set: these tests start servers of their own, start them with tests/run");
        let mut command = Command::new(services);
        command.args([verb, self.kind, "--dir"]).arg(&self.folder).args(more);
        command.env(format!("SERVICES_{}_JVM", self.kind.to_uppercase()), &self.java);
        // It shares the machine with other tests.
        command.env("SERVICES_START_TIMEOUT", "300");
        tokio::task::spawn_blocking(move || command.status().unwrap().success()).await.unwrap()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Ok(services) = std::env::var("TEST_SERVICES") {
            let _ = Command::new(services).args(["kill", self.kind, "--dir"]).arg(&self.folder).status();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// The first of three neighbouring ports that are free, below those that the ends of connections get.
fn free_port() -> u16 {
    let first = (std::process::id() % 1_000) as u16;
    for _ in 0..1_000 {
        let port = 22_000 + (first + NEXT.fetch_add(1, Ordering::SeqCst)) % 1_000 * 4;
        if (port..port + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
    panic!("no port is free");
}
