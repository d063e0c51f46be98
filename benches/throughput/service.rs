//! One run of the real service over a topic, from its start until everything is read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
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

/// What a process writes to its standard output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Console {
    /// Rows, if any; the log is on standard error.
    Rows,
    /// What it has to say.
    Log,
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

fn program() -> String {
    std::env::var("BENCH_SERVICE").expect("BENCH_SERVICE is the service: start benches/run")
}

impl Service {
    pub fn start(settings: &[(&str, String)]) -> Self {
        Self::start_in(settings, [])
    }

    /// The same with further variables, by their whole names.
    pub fn start_in<'a>(settings: &[(&str, String)], variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut command = Command::new(program());
        command.arg("run").envs(variables);
        for (name, value) in settings {
            command.env(format!("STRANDLINE_{name}"), value);
        }
        Self::spawn(command, Console::Rows)
    }

    /// The demo, which has its own Kafka and a local store.
    pub fn demo() -> Self {
        let mut command = Command::new(program());
        command.args(["demo", "--rate", "10000"]);
        Self::spawn(command, Console::Log)
    }

    fn spawn(mut command: Command, console: Console) -> Self {
        command.env("STRANDLINE_HTTP__LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
        command.stderr(if console == Console::Rows { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().expect("the service starts");
        let said = Arc::<Mutex<String>>::default();
        let (told, address) = std::sync::mpsc::channel();
        let log: Box<dyn Read + Send> = match console {
            Console::Log => Box::new(child.stdout.take().expect("its console is read")),
            Console::Rows => Box::new(child.stderr.take().expect("its log is read")),
        };
        std::thread::spawn({
            let said = Arc::clone(&said);
            move || {
                for line in BufReader::new(log).lines().map_while(Result::ok) {
                    if let Some((_, address)) = line.split_once(" at http://") {
                        let _ = told.send(address.trim_end_matches('.').trim().to_owned());
                    }
                    *said.lock().expect("the log") += &(line + "\n");
                }
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

    /// The console, whose rows somebody reads.
    pub fn console(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("nobody else reads it")
    }

    fn ask(&self, method: &str, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }

    fn get(&self, path: &str) -> Option<String> {
        self.ask("GET", path).map(|(_, body)| body)
    }

    pub fn post(&self, path: &str) {
        let answer = self.ask("POST", path).expect("it answers");
        assert!(answer.0.starts_with("HTTP/1.1 202 "), "{answer:?}");
    }

    /// Whether all shards are loaded and all partitions are read.
    pub fn ready(&self) -> bool {
        self.ask("GET", "/readyz").is_some_and(|(head, _)| head.starts_with("HTTP/1.1 200 "))
    }

    /// Waits until something is so.
    pub fn until(&mut self, condition: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the service ended ({status}):\n{}", self.said.lock().expect("the log"));
            }
            assert!(begun.elapsed() < PATIENCE, "in vain:\n{}", self.said.lock().expect("the log"));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn partitions(&self, of: impl Fn(&Value) -> Option<u64>) -> Option<u64> {
        let status = self.status();
        let partitions = status["board"]["partitions"].as_array()?;
        partitions.iter().map(of).sum()
    }

    fn shards(&self, of: &str) -> u64 {
        let status = self.status();
        let shards = status["board"]["shards"].as_object().into_iter().flat_map(|map| map.values());
        shards.filter_map(|shard| shard[of].as_u64()).sum()
    }

    /// The records between the positions and the ends, if both are known.
    pub fn lag(&self) -> Option<u64> {
        self.partitions(|partition| Some(partition["end"].as_u64()?.saturating_sub(partition["position"].as_u64()?)))
    }

    /// The keys in the state.
    pub fn keys(&self) -> u64 {
        self.shards("keys")
    }

    /// The checkpoints of this life.
    pub fn checkpoints(&self) -> u64 {
        self.shards("checkpoints")
    }

    /// Trace spans that the collector took.
    pub fn spans(&self) -> u64 {
        self.status()["spans"]["sent"].as_u64().unwrap_or_default()
    }

    /// How often actors of a kind were started again.
    pub fn restarts(&self, kind: &str) -> u64 {
        let board = &self.status()["board"];
        let of = |actor: &Value| actor["restarts"].as_u64().unwrap_or_default();
        match kind {
            "partition" => board["partitions"].as_array().into_iter().flatten().map(|p| of(&p["actor"])).sum(),
            "aggregation" => {
                board["shards"].as_object().into_iter().flat_map(|map| map.values()).map(|s| of(&s["actor"])).sum()
            }
            "committer" => of(&board["committer"]["actor"]),
            _ => of(&board["supervisor"]),
        }
    }

    pub fn status(&self) -> Value {
        self.get("/api/status").and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default()
    }

    /// The sum of the positions of all partitions.
    pub fn position(&self) -> u64 {
        self.partitions(|partition| partition["position"].as_u64()).unwrap_or_default()
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
            std::thread::sleep(Duration::from_millis(100));
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
