//! One run of the real service over a topic, from its start until everything is read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{self, Usage};

/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(900);

pub struct Service {
    child: Child,
    address: String,
    said: Arc<Mutex<String>>,
}

/// What one run showed.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub usage: Usage,
    /// The longest checkpoint of all shards, in milliseconds, and its bytes, as they stood at the end.
    pub checkpoint_millis: f64,
    pub checkpoint_bytes: u64,
    pub checkpoints: u64,
}

impl Service {
    pub fn start(settings: &[(&str, String)]) -> Self {
        let mut command =
            Command::new(std::env::var("BENCH_SERVICE").expect("BENCH_SERVICE is the service: start benches/run"));
        command.arg("run").env("STRANDLINE_HTTP__LISTEN", "127.0.0.1:0").stderr(Stdio::piped());
        for (name, value) in settings {
            command.env(format!("STRANDLINE_{name}"), value);
        }
        let mut child = command.spawn().expect("the service starts");
        let stderr = child.stderr.take().expect("its log is read");
        let said = Arc::<Mutex<String>>::default();
        let log = Arc::clone(&said);
        let (told, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("status page at http://") {
                    let _ = told.send(address.trim().to_owned());
                }
                *log.lock().expect("the log") += &(line + "\n");
            }
        });
        let Ok(address) = address.recv_timeout(Duration::from_secs(30)) else {
            panic!("the service did not start:\n{}", said.lock().expect("the log"));
        };
        Self { child, address, said }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.split_once("\r\n\r\n")?.1.to_owned())
    }

    pub fn status(&self) -> Value {
        self.get("/api/status").and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default()
    }

    /// The sum of the positions of all partitions.
    pub fn position(&self) -> u64 {
        let status = self.status();
        let partitions = status["board"]["partitions"].as_array().into_iter().flatten();
        partitions.filter_map(|partition| partition["position"].as_u64()).sum()
    }

    /// Waits until so many records are read and merged. The clock runs from the first record on.
    pub fn read(&mut self, records: u64) -> Run {
        let started = Instant::now();
        let alive = |child: &mut Child, said: &Mutex<String>| {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the service ended ({status}):\n{}", said.lock().expect("the log"));
            }
            assert!(started.elapsed() < PATIENCE, "the service is not done:\n{}", said.lock().expect("the log"));
        };
        let (first, begun, before) = loop {
            let position = self.position();
            if position > 0 {
                break (position, Instant::now(), process::of(self.pid()).expect("it lives"));
            }
            alive(&mut self.child, &self.said);
            std::thread::sleep(Duration::from_millis(2));
        };
        while self.position() < records {
            alive(&mut self.child, &self.said);
            std::thread::sleep(Duration::from_millis(20));
        }
        let after = process::of(self.pid()).expect("it lives");
        let usage = before.until(&after, begun.elapsed(), records - first);
        let status = self.status();
        let shards: Vec<&Value> =
            status["board"]["shards"].as_object().into_iter().flat_map(|map| map.values()).collect();
        let most = |field: &str| shards.iter().filter_map(|shard| shard[field].as_u64()).max().unwrap_or(0);
        Run {
            usage,
            checkpoint_millis: most("checkpoint_micros") as f64 / 1e3,
            checkpoint_bytes: most("checkpoint_bytes"),
            checkpoints: shards.iter().filter_map(|shard| shard["checkpoints"].as_u64()).sum(),
        }
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
