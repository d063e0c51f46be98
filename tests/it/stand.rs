//! What a test of the whole service needs: a topic, a keyspace and the real process over them, started as its users
//! start it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use serde_json::Value;
use strandline::stores::existing::Existing;
use tokio::sync::OnceCell;

use crate::balance;
use crate::test_topic::{TestTopic, servers};

/// How long anything here may take, on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// One keyspace for all pipelines of these tests, since each change of Cassandra's schema takes seconds.
static KEYSPACE: OnceCell<String> = OnceCell::const_new();

/// Waits for a state.
pub(crate) async fn until(what: &str, patience: Duration, condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < patience, "waited {patience:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One pipeline of one test: its topic, its name, the table it writes, and how its service is started.
pub(crate) struct Stand {
    pub(crate) topic: TestTopic,
    pub(crate) pipeline: String,
    pub(crate) keyspace: String,
    pub(crate) table: String,
    pub(crate) session: Session,
    pub(crate) node: String,
    stored: OnceCell<Existing>,
}

/// The variables of settings.
fn variables<'a>(settings: &'a [(&str, &str)]) -> impl Iterator<Item = (String, &'a str)> {
    settings.iter().map(|(name, value)| (format!("STRANDLINE_{name}"), *value))
}

impl Stand {
    pub(crate) async fn new(partitions: i32) -> Self {
        Self::at(&servers(), partitions).await
    }

    /// With these settings of the topic.
    pub(crate) async fn with(partitions: i32, config: &[(&str, &str)]) -> Self {
        Self::over_shared_cassandra(&servers(), partitions, config).await
    }

    /// With a Kafka of the test's own.
    pub(crate) async fn at(kafka: &str, partitions: i32) -> Self {
        Self::over_shared_cassandra(kafka, partitions, &[]).await
    }

    async fn over_shared_cassandra(kafka: &str, partitions: i32, config: &[(&str, &str)]) -> Self {
        let node = std::env::var("TEST_CASSANDRA")
            .expect("TEST_CASSANDRA is not set: the tests need a real Cassandra, start them with tests/run");
        let session = SessionBuilder::new().known_node(&node).connection_timeout(PATIENCE).build().await.unwrap();
        let keyspace = KEYSPACE.get_or_init(|| create_keyspace(&session)).await.clone();
        Self::over(kafka, partitions, config, node, session, keyspace).await
    }

    /// With a Cassandra of the test's own.
    pub(crate) async fn on(node: &str, partitions: i32) -> Self {
        let session = SessionBuilder::new().known_node(node).connection_timeout(PATIENCE).build().await.unwrap();
        let keyspace = create_keyspace(&session).await;
        Self::over(&servers(), partitions, &[], node.to_owned(), session, keyspace).await
    }

    async fn over(
        kafka: &str,
        partitions: i32,
        config: &[(&str, &str)],
        node: String,
        session: Session,
        keyspace: String,
    ) -> Self {
        let topic = TestTopic::create_at(kafka, "orders", partitions, config).await;
        let own = uuid::Uuid::new_v4().simple();
        Self {
            topic,
            pipeline: format!("tested-{own}"),
            keyspace,
            table: format!("result_{own}"),
            session,
            node,
            stored: OnceCell::new(),
        }
    }

    /// What is stored of the pipeline, once it has been started.
    pub(crate) async fn stored(&self) -> &Existing {
        self.stored.get_or_init(|| balance::stored(self.environment("SELECT 1"))).await
    }

    /// The settings of a service that runs these statements.
    pub(crate) fn environment(&self, sql: &str) -> Vec<(String, String)> {
        let settings = [
            ("PIPELINE__NAME", self.pipeline.clone()),
            // A service that is started again goes on at once.
            ("INSTANCE__ID", "tested".to_owned()),
            ("PIPELINE__SQL", sql.to_owned()),
            ("PIPELINE__SHARDS", "2".to_owned()),
            ("KAFKA__BOOTSTRAP_SERVERS", self.topic.servers.clone()),
            ("STORE__KIND", "cassandra".to_owned()),
            ("CASSANDRA__NODES", self.node.clone()),
            // Many tests change its schema at the same time, on a machine that may be slow.
            ("CASSANDRA__TIMEOUT", "20s".to_owned()),
            ("CASSANDRA__KEYSPACE", self.keyspace.clone()),
            ("CHECKPOINT__INTERVAL", "300ms".to_owned()),
            ("HTTP__LISTEN", "127.0.0.1:0".to_owned()),
        ];
        settings.into_iter().map(|(name, value)| (format!("STRANDLINE_{name}"), value)).collect()
    }

    pub(crate) fn start(&self, sql: &str) -> Service {
        self.start_with(sql, &[])
    }

    /// Starts a service that is to die at a point in the code, when it comes there for the n-th time.
    pub(crate) fn start_to_die(&self, sql: &str, point: &str, n: u32) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        command.arg("run").envs(self.environment(sql)).env("KILL_AT", format!("{point}:{n}"));
        Service::start(command)
    }

    /// Starts the service with further settings, or others.
    pub(crate) fn start_with(&self, sql: &str, more: &[(&str, &str)]) -> Service {
        self.start_through(&[], sql, more)
    }

    /// Starts the service through a command that ends by becoming it.
    pub(crate) fn start_through(&self, through: &[&str], sql: &str, more: &[(&str, &str)]) -> Service {
        let words: Vec<&str> = through.iter().copied().chain([env!("CARGO_BIN_EXE_strandline"), "run"]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).envs(self.environment(sql)).envs(variables(more));
        Service::start(command)
    }

    /// Starts the service with a console that somebody reads, and with further settings.
    pub(crate) fn start_with_console(&self, sql: &str, more: &[(&str, &str)]) -> (Service, ChildStdout) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        command.arg("run").envs(self.environment(sql)).envs(variables(more)).stdout(Stdio::piped());
        let mut service = Service::start(command);
        let console = service.child.stdout.take().unwrap();
        (service, console)
    }

    /// Starts the service with these variables too, by their whole names.
    pub(crate) fn start_in(&self, sql: &str, variables: &[(&str, &str)]) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        command.arg("run").envs(self.environment(sql)).envs(variables.iter().copied());
        Service::start(command)
    }

    /// What `check --connect` says of these statements.
    pub(crate) fn check(&self, sql: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strandline"));
        let said = command.args(["check", "--connect"]).envs(self.environment(sql)).output().unwrap();
        String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
    }

    /// What `kafka_offsets` says, as anyone would read it.
    pub(crate) async fn offsets(&self) -> BTreeMap<i32, i64> {
        self.offsets_of(&self.topic).await
    }

    /// The same of another topic that the pipeline reads.
    pub(crate) async fn offsets_of(&self, topic: &TestTopic) -> BTreeMap<i32, i64> {
        let read = format!(
            "SELECT partition, offset FROM {}.kafka_offsets WHERE pipeline = '{}' AND topic = '{}'",
            self.keyspace, self.pipeline, topic.name
        );
        // The table is made by the service's first start.
        let Ok(rows) = self.session.query_unpaged(read, ()).await else { return BTreeMap::new() };
        let rows = rows.into_rows_result().unwrap();
        rows.rows::<(i32, i64)>().unwrap().map(|row| row.unwrap()).collect()
    }

    /// Waits until more records are committed than so many.
    pub(crate) async fn until_more_is_committed(&self, before: i64, what: &str) {
        until(what, PATIENCE, async || self.offsets().await.values().sum::<i64>() > before).await;
    }

    /// Waits until `kafka_offsets` has come to these offsets. Then the counters have, too.
    pub(crate) async fn until_committed(&self, ends: &BTreeMap<i32, i64>) {
        self.until_committed_of(&self.topic, ends).await;
    }

    /// The same of another topic that the pipeline reads.
    pub(crate) async fn until_committed_of(&self, topic: &TestTopic, ends: &BTreeMap<i32, i64>) {
        let begun = Instant::now();
        loop {
            let found = self.offsets_of(topic).await;
            if found == *ends {
                return balance::holds(self.stored().await).await;
            }
            assert!(begun.elapsed() < PATIENCE, "{ends:?} should be committed, but kafka_offsets stays at {found:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn create_keyspace(session: &Session) -> String {
    let keyspace = format!("pipelines_{}", uuid::Uuid::new_v4().simple());
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    let create = format!("CREATE KEYSPACE {keyspace} WITH replication = {replication}");
    session.query_unpaged(create, ()).await.unwrap();
    keyspace
}

/// A running service. It is killed when the test is done with it, and what it said is shown when the test fails.
pub(crate) struct Service {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Service {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (stderr, said) = (child.stderr.take().unwrap(), Arc::<Mutex<String>>::default());
        let reader = std::thread::spawn({
            let said = Arc::clone(&said);
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    *said.lock().unwrap() += &format!("{line}\n");
                }
            }
        });
        Self { child, said, reader: Some(reader) }
    }

    /// The number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// What a path of its status page answers; `None` while there is no page.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        self.ask("GET", path)
    }

    /// What a request to a path of its status page answers; `None` while there is no page.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let said = self.said();
        let address = said.split("status page at http://").nth(1)?.split(['\n', '"']).next()?.trim_end();
        Self::ask_at(address, method, path)
    }

    /// What a path of the status page at an address answers.
    pub(crate) fn get_at(address: &str, path: &str) -> Option<(u16, String)> {
        Self::ask_at(address, "GET", path)
    }

    fn ask_at(address: &str, method: &str, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(address).ok()?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// What it shows of itself.
    pub(crate) fn status(&self) -> Value {
        self.get("/api/status").map_or(Value::Null, |(_, body)| serde_json::from_str(&body).unwrap())
    }

    /// Where its partitions stand.
    pub(crate) fn positions(&self) -> Vec<u64> {
        let status = self.status();
        let partitions = status["board"]["partitions"].as_array().into_iter().flatten();
        partitions.filter_map(|partition| partition["position"].as_u64()).collect()
    }

    /// Waits until what it shows of itself is so.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        until(what, PATIENCE, async || condition(&self.status())).await;
    }

    /// Waits until all shards are loaded and all partitions are read.
    pub(crate) async fn until_ready(&self) {
        until("it is ready", PATIENCE, async || self.get("/readyz").is_some_and(|(code, _)| code == 200)).await;
    }

    /// Waits until every shard has committed something in this life.
    pub(crate) async fn until_each_shard_committed(&self) {
        self.until_each_shard_has_committed(1).await;
    }

    /// Waits until every shard has committed so many checkpoints in this life.
    pub(crate) async fn until_each_shard_has_committed(&self, checkpoints: u64) {
        self.until("every shard has committed", |status| {
            let shards = status["board"]["shards"].as_object();
            shards.is_some_and(|shards| {
                shards.len() == 2 && shards.values().all(|shard| shard["checkpoints"].as_u64() >= Some(checkpoints))
            })
        })
        .await;
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the service ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&mut self, name: &str) {
        assert!(self.child.try_wait().unwrap().is_none(), "the service ended by itself");
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has said something.
    pub(crate) async fn until_said(&self, what: &str) {
        until(&format!("it says {what:?}"), PATIENCE, async || self.said().contains(what)).await;
    }

    /// Asks it to stop, which it does well.
    pub(crate) async fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.ended().await, Some(0), "a service that is told to stop ends well");
    }

    /// Waits until it kills itself.
    pub(crate) async fn killed_itself(mut self) -> String {
        let status = self.status_at_end().await;
        self.reader.take().unwrap().join().unwrap();
        assert_eq!(status.signal(), Some(9), "it ended with {status}");
        self.said()
    }

    /// Waits until it ends by itself. Answers its exit code and what it said.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let code = self.ended().await;
        self.reader.take().unwrap().join().unwrap();
        (code, self.said())
    }

    async fn ended(&mut self) -> Option<i32> {
        self.status_at_end().await.code()
    }

    async fn status_at_end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the service does not end; its status is {}", self.status());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What became of offsets, over all shards, as a status shows it; none before there are shards.
pub(crate) fn count_of(status: &Value, of: &str) -> Option<u64> {
    let shards = status["board"]["shards"].as_object()?;
    shards.values().map(|shard| shard["counts"][of].as_u64()).sum()
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the service said:\n{}", self.said());
        }
    }
}
