//! `strandline demo`: the whole job in one process, for somebody who has nothing installed.
//!
//! A shop produces orders to an embedded Kafka and keeps count by itself. The pipeline counts them too, with an embedded
//! store, while its actors are killed one after another. In the end both counts have to be equal to the last cent.

mod counted;
mod director;
mod shop;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use strandline_actors::message::Target;
use strandline_actors::run::{Handle, Outcome};
use uuid::Uuid;

use crate::cli::{Failure, Signals, connections, print};
use crate::http::{Begun, Demo, Planned, Server, Shown};
use crate::kafka::EmbeddedKafka;
use crate::service::{Prepared, ServiceError, run_to_end};
use crate::settings::{KafkaSettings, Loaded, LogSettings, PipelineSettings, Settings, StoreKind, StoreSettings};
use crate::sql::plan;
use crate::stores::existing;
use crate::telemetry::{Collector, Telemetry};

use counted::Counted;
use director::{Director, Verdict};
use shop::{Books, Shop, TOPIC};

/// What the demo runs. Amounts are decimals, so that equal means equal.
const SQL: &str = "\
CREATE EXTERNAL TABLE orders (user_id VARCHAR, item VARCHAR, amount DECIMAL(12, 2), qty BIGINT, ts TIMESTAMP)
  STORED AS JSON LOCATION 'kafka://orders' OPTIONS ('json.timestamp.unit' 'millis');

CREATE EXTERNAL TABLE totals (item VARCHAR, orders BIGINT, pieces BIGINT, amount DECIMAL(28, 2), PRIMARY KEY (item))
  STORED AS BLACKHOLE LOCATION 'blackhole://';

INSERT INTO totals SELECT item, count(*), sum(qty), sum(amount) FROM orders GROUP BY item;
";

const NOTE: &str = "Kafka and the store are embedded ones: both live in this process, Kafka in memory and the store in a \
                    folder that is deleted at the end. Everything else is what runs against real servers.";

/// How the demo runs.
#[derive(Clone, Debug, Args)]
pub struct DemoArguments {
    /// How long orders are produced, such as 30s or 5m; 0 for ever, until Ctrl-C.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub duration: Duration,
    /// Orders a second.
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: u64,
    /// Partitions of the topic.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub partitions: u16,
}

fn time(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    crate::settings::duration(text).ok_or_else(|| "give a time with its unit, such as 30s or 5m, or 0 for ever".into())
}

/// The folder of the store, which is deleted at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("strandline-demo-{}", Uuid::new_v4().simple())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The settings of the demo: what was given, but with its own servers and its own pipeline.
fn settings(given: &Loaded, servers: &str, folder: &Path) -> Settings {
    Settings {
        pipeline: PipelineSettings {
            name: "demo".into(),
            sql: Some(SQL.into()),
            sql_file: None,
            shards: given.settings.pipeline.shards,
            threads: given.settings.pipeline.threads,
        },
        kafka: KafkaSettings { bootstrap_servers: servers.into(), ..KafkaSettings::default() },
        store: StoreSettings { kind: StoreKind::Local, path: Some(folder.into()), ..StoreSettings::default() },
        ..given.settings.clone()
    }
}

/// What the page shows of the demo, and its buttons.
struct Stage {
    books: Arc<Books>,
    counted: Arc<Counted>,
    pipeline: OnceLock<Handle>,
    line: Mutex<String>,
}

impl Stage {
    fn say(&self, line: &str) {
        line.clone_into(&mut self.line.lock().unwrap_or_else(PoisonError::into_inner));
        print(&format!("{line}\n"));
    }
}

impl Demo for Stage {
    fn status(&self) -> Value {
        // In this order: what is produced in between makes only the truth larger.
        let counted = self.counted.count();
        let truth = self.books.truth();
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut items: Vec<_> = truth.into_iter().collect();
        items.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.orders));
        let items: Vec<Value> = items
            .into_iter()
            .map(|(item, sums)| {
                let counted = counted.get(&item).copied().unwrap_or_default();
                json!({ "item": item, "produced": sums, "counted": counted })
            })
            .collect();
        json!({ "note": NOTE, "line": line, "items": items })
    }

    fn kill(&self, target: Target) {
        if let Some(pipeline) = self.pipeline.get() {
            pipeline.crash(target);
        }
    }
}

/// Runs the demo. It went well only if the counts are equal.
pub(crate) fn demo(given: &Loaded, arguments: &DemoArguments) -> Result<(), Failure> {
    // The panics that the demo causes would fill the screen; whoever wants to see them says so.
    let by_variable = given.given.get("log.level").is_some_and(|place| place.starts_with("STRANDLINE_"));
    let wished = by_variable || given.settings.log.level != LogSettings::default().level;
    let level = if wished { given.settings.log.level.clone() } else { "off".into() };
    let log = LogSettings { level, ..given.settings.log.clone() };
    let telemetry = Telemetry::start(&log, Collector::of_environment(|name| std::env::var_os(name))?)?;
    let done = stage(given, arguments, &telemetry);
    telemetry.finish(Duration::from_secs(3));
    done
}

fn stage(given: &Loaded, arguments: &DemoArguments, telemetry: &Telemetry) -> Result<(), Failure> {
    let kafka = EmbeddedKafka::start(1).map_err(Failure::failed)?;
    kafka.create_topic(TOPIC, i32::from(arguments.partitions)).map_err(Failure::failed)?;
    let folder = Folder::new();
    let settings = settings(given, kafka.bootstrap_servers(), &folder.0);
    let plan = plan(SQL).map_err(ServiceError::from)?;

    let books = Arc::new(Books::new(arguments.partitions.into()));
    let counted = Arc::new(Counted::new(Arc::clone(&books)));
    let scene = Arc::new(Stage {
        books: Arc::clone(&books),
        counted: Arc::clone(&counted),
        pipeline: OnceLock::new(),
        line: Mutex::default(),
    });
    let planned = Planned::new(SQL, &plan, existing::place(&settings));
    let shown = Shown::new("demo", settings.supervision.stall, telemetry, planned);
    let shown = Arc::new(shown.with_demo(Arc::clone(&scene) as _));
    let server = Server::start(&settings.http, Arc::clone(&shown))?;
    introduce(server.as_ref(), arguments);

    let io = connections()?;
    let prepared = io.block_on(Prepared::new(&settings, &plan))?;
    let guard = io.enter();
    let signals = Signals::listen()?;
    drop(guard);
    let source = prepared.source();
    let pipeline = prepared.pipeline(&settings, &plan, Arc::clone(&counted) as _);
    let (shards, store) = (pipeline.shards, Arc::clone(&pipeline.store));
    let shop = Shop::open(Arc::clone(&books), kafka.bootstrap_servers(), arguments.rate).map_err(Failure::failed)?;

    let mut directing = None;
    let outcome = run_to_end(pipeline, settings.threads(), |handle| {
        let _ = scene.pipeline.set(handle.clone());
        let begun = Begun {
            running: Box::new(handle.clone()),
            shards,
            sources: Box::new(move || source.reach()),
            inserts: plan.counters(),
            sinks: Box::new(Vec::new),
        };
        shown.begin(begun);
        let director =
            Director { handle, stage: Arc::clone(&scene), store, shards, shop, duration: arguments.duration };
        directing = Some(io.spawn(director.direct(signals)));
    });
    let verdict = match (outcome, directing) {
        (Outcome::Stopped, Some(directing)) => {
            io.block_on(directing).map_err(Failure::failed)?.map_err(Failure::failed)?
        }
        (Outcome::Stopped, None) => return Err(Failure::failed("the pipeline ended before it began")),
        (Outcome::SteppedDown(why) | Outcome::Failed(why), _) => {
            return Err(Failure::failed(format!("the pipeline did not get through the demo: {why}")));
        }
    };
    drop(server);
    io.shutdown_background();
    judge(&verdict, &books, &counted)
}

fn introduce(server: Option<&Server>, arguments: &DemoArguments) {
    let page = match server {
        Some(server) => format!("Watch it, and kill actors yourself, at http://{}", server.address()),
        None => "There is no page, since STRANDLINE_HTTP__LISTEN is off".into(),
    };
    let time = match arguments.duration.is_zero() {
        true => "until Ctrl-C".into(),
        false => format!("for {:?}", arguments.duration),
    };
    print(&format!(
        "Strandline demo: {rate} orders a second {time}, counted by\n\n{sql}\n\nwhile the actors that count them are killed \
         one after another.\n\n{NOTE}\n{page}\nSTRANDLINE_LOG__LEVEL=info shows the log.\n\n",
        rate = arguments.rate,
        sql = SQL.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect::<String>().trim_end(),
    ));
}

/// Compares both counts once everything has ended, and says what came out.
fn judge(verdict: &Verdict, books: &Books, counted: &Counted) -> Result<(), Failure> {
    let (truth, count) = (books.truth(), counted.count());
    let mut table = format!(
        "\n{:<10} {:>12} {:>12} {:>12} {:>12} {:>16} {:>16}\n",
        "item", "orders", "counted", "pieces", "counted", "amount", "counted"
    );
    let money = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
    for (item, sums) in &truth {
        let found = count.get(item).copied().unwrap_or_default();
        table += &format!(
            "{item:<10} {:>12} {:>12} {:>12} {:>12} {:>16} {:>16}{}\n",
            sums.orders,
            found.orders,
            sums.pieces,
            found.pieces,
            money(sums.cents),
            money(found.cents),
            if found == *sums { "" } else { "  <- differs" }
        );
    }
    print(&table);
    let killed = verdict.survived();
    let orders = shop::total(&truth);
    if let Some(excess) = counted.excess() {
        return Err(Failure::failed(format!("{excess}: something was counted twice")));
    }
    if truth != count {
        return Err(Failure::failed(format!(
            "the counts are not the truth: {orders} orders were produced and {} counted",
            shop::total(&count)
        )));
    }
    print(&format!("\nEqual: {orders} orders, each counted exactly once. {killed}\n"));
    Ok(())
}
