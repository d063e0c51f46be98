//! A real Prometheus takes the alert rules, and finds in a running service all that they and the dashboard ask for.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shop::{PARTITIONS, Shop};
use crate::stand::{PATIENCE, Stand, until};

/// The script that finds a Prometheus, or fetches one.
const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/local/prometheus");
/// What it is to load.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus");

/// One of the programs that come with a Prometheus.
fn program(name: &str) -> Command {
    let found = Command::new(FINDER).stderr(Stdio::inherit()).output().unwrap();
    assert!(found.status.success(), "there is no Prometheus, and none can be fetched: see above what {FINDER} says");
    Command::new(Path::new(String::from_utf8(found.stdout).unwrap().trim_end()).join(name))
}

/// What `promtool` says of files of the folder, all of which it finds good.
fn promtool(arguments: &[&str]) -> String {
    let said = program("promtool").args(arguments).current_dir(FOLDER).output().unwrap();
    let text = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    assert!(said.status.success(), "promtool {arguments:?}: {text}");
    text
}

/// The alerts that the rules name.
fn alerts() -> Vec<String> {
    let rules = fs::read_to_string(Path::new(FOLDER).join("strandline.rules.yml")).unwrap();
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

#[test]
fn promtool_takes_the_rules_and_each_alert_fires_when_it_is_to() {
    let checked = promtool(&["check", "rules", "strandline.rules.yml"]);
    assert!(checked.contains(&format!("{} rules found", alerts().len())), "{checked}");
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["test", "rules", "strandline.test.yml"]);
    let tests = fs::read_to_string(Path::new(FOLDER).join("strandline.test.yml")).unwrap();
    for alert in alerts() {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "no test lets {alert} fire");
    }
}

/// A Prometheus that scrapes one service under the name of its pipeline.
struct Prometheus {
    process: Child,
    address: String,
    folder: PathBuf,
}

impl Prometheus {
    fn start(target: &str, pipeline: &str) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let folder = std::env::temp_dir().join(format!("strandline-prometheus-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(&folder).unwrap();
        let given = fs::read_to_string(Path::new(FOLDER).join("prometheus.yml")).unwrap();
        // What is shipped, with another target and without the wait for a minute of samples.
        let mut config = given.clone();
        for (from, to) in [
            ("strandline:8080", target),
            ("pipeline: revenue", &format!("pipeline: {pipeline}")),
            ("interval: 15s", "interval: 1s"),
            ("- strandline.rules.yml", &format!("- {FOLDER}/strandline.rules.yml")),
        ] {
            assert!(config.contains(from), "{from:?} in {given}");
            config = config.replace(from, to);
        }
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let mut command = program("prometheus");
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let log = File::create(folder.join("log")).unwrap();
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { process, address, folder }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let url = format!("http://{}{path}", self.address);
        let said = Command::new("curl").args(["--silent", "--fail", "--max-time", "30", &url]).output().unwrap();
        said.status.success().then(|| serde_json::from_slice(&said.stdout).unwrap())
    }

    /// Its rules by their names: how they are, and whether they fire.
    fn rules(&self) -> Vec<(String, String, String)> {
        let answer = self.ask("/api/v1/rules").unwrap_or_default();
        let groups = answer["data"]["groups"].as_array().into_iter().flatten();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let text = |rule: &Value, what: &str| rule[what].as_str().unwrap().to_owned();
        rules.map(|rule| (text(rule, "name"), text(rule, "health"), text(rule, "state"))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("Prometheus said:\n{}", fs::read_to_string(self.folder.join("log")).unwrap_or_default());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A pipeline with all that there can be: event time, and a table that it writes.
fn sql(stand: &Stand) -> String {
    format!(
        "CREATE EXTERNAL TABLE orders (item VARCHAR, qty BIGINT) STORED AS JSON LOCATION 'kafka://{}'
           OPTIONS ('watermark.column' '_timestamp');
         CREATE EXTERNAL TABLE totals (item VARCHAR, n BIGINT, total BIGINT, PRIMARY KEY (item))
           STORED AS CQL LOCATION 'cassandra://{}/{}' OPTIONS ('sink.create' 'true');
         INSERT INTO totals SELECT item, count(*), sum(qty) FROM orders GROUP BY item",
        stand.topic.name, stand.keyspace, stand.table
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prometheus_finds_in_a_running_service_what_rules_and_dashboard_ask_for() {
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 2_000, 200);
    let service = stand.start(&sql(&stand));
    service.until_ready().await;
    let said = service.said();
    let target = said.split("status page at http://").nth(1).unwrap().lines().next().unwrap().trim_end();
    let prometheus = Prometheus::start(target, &stand.pipeline);

    // Every expression of the dashboard, and every selector of the rules.
    let begun = Instant::now();
    let asked: usize = loop {
        let check = Command::new(format!("{FOLDER}/check")).arg(format!("http://{}", prometheus.address)).output();
        let check = check.unwrap();
        let said = String::from_utf8([check.stdout, check.stderr].concat()).unwrap();
        if check.status.success() {
            assert!(said.ends_with("0 without data, 0 left out\n"), "{said}");
            break said.split(' ').next().unwrap().parse().unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until everything has data:\n{said}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    assert!(asked > 60, "only {asked} expressions are asked");

    // Every rule is loaded and evaluated, and nothing is wrong with this pipeline.
    let well = |(_, health, state): &(String, String, String)| health == "ok" && state == "inactive";
    until("all rules are evaluated, and none holds", PATIENCE, async || {
        let rules = prometheus.rules();
        rules.iter().map(|(name, ..)| name).eq(&alerts()) && rules.iter().all(well)
    })
    .await;
    shop.close();
    service.stop().await;
}
