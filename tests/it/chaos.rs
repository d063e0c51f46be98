//! Everything that can be seen is on, somebody looks at all of it all the time, and what takes traces and metrics swallows them
//! without a word: actors panic, processes are killed, and the result is exact and the end in time.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strandline_actors::points::Point;

use crate::shop::{PARTITIONS, Shop, committed, settle, sql};
use crate::stand::{PATIENCE, Service, Stand, until};

/// How long the end may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Takes connections and whatever comes through them, and never answers. Answers where it is, and how many bytes came.
fn black_hole() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let swallowed = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&swallowed);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    counted.fetch_add(read as u64, Ordering::Relaxed);
                }
            });
        }
    });
    (address, swallowed)
}

/// Looks at everything, again and again, until it is told to stop. Answers how often something was shown.
fn looker(address: String) -> (Arc<AtomicBool>, std::thread::JoinHandle<u64>) {
    let stop = Arc::<AtomicBool>::default();
    let stopped = Arc::clone(&stop);
    let looking = std::thread::spawn(move || {
        let mut shown = 0;
        while !stopped.load(Ordering::SeqCst) {
            for path in
                ["metrics", "healthz", "api/status", "api/connectors", "api/balance", "api/history", "api/pipeline"]
            {
                shown += u64::from(Service::get_at(&address, &format!("/{path}")).is_some());
            }
            // As often as a hasty page.
            std::thread::sleep(Duration::from_millis(50));
        }
        shown
    });
    (stop, looking)
}

fn of_metric(service: &Service, name: &str) -> f64 {
    let text = service.get("/metrics").map_or_else(String::new, |(_, text)| text);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

async fn exact_and_in_time(protocol: &str) {
    let (endpoint, swallowed) = black_hole();
    let stand = Stand::new(PARTITIONS).await;
    let shop = Shop::open(&stand.topic, 20_000, 2_000);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let deadline = format!("{}s", DEADLINE.as_secs());
    let everything = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32"),
        ("STRANDLINE_TRACES__BATCH_INTERVAL", "0s"),
        ("STRANDLINE_LOG__FORMAT", "json"),
        ("STRANDLINE_LOG__LEVEL", "debug"),
        ("STRANDLINE_HTTP__LISTEN", address.as_str()),
        ("STRANDLINE_SHUTDOWN__DEADLINE", deadline.as_str()),
    ];
    let start = |panic: &str| {
        let variables: Vec<(&str, &str)> = everything.iter().copied().chain([("PANIC_AT", panic)]).collect();
        stand.start_in(&sql(&stand), &variables)
    };
    let (stop, looking) = looker(address.clone());
    // Points of a partition, a shard and the committer: one panics in each life, which then is killed.
    let points =
        [Point::Fetched, Point::Aggregated, Point::Segments, Point::PointerApplied, Point::BeforeOutput, Point::Claim];
    for (number, point) in points.into_iter().enumerate() {
        let n = if point == Point::Claim { 1 } else { 5 };
        let service = start(&format!("{}:{n}", point.name()));
        service.until_said("starting again in").await;
        let before = committed(&stand).await;
        until(&format!("it gets on after {}", point.name()), PATIENCE, async || committed(&stand).await > before).await;
        if number == 0 {
            until("spans are dropped", PATIENCE, async || of_metric(&service, "strandline_spans_dropped_total") > 0.0)
                .await;
            until("metrics are dropped", PATIENCE, async || {
                of_metric(&service, "strandline_metrics_dropped_total") > 0.0
            })
            .await;
        }
        service.kill();
    }
    let mut service = start("restore:1000000");
    let (truth, ends) = shop.close();
    settle(&stand, &truth, &ends).await;
    let begun = Instant::now();
    service.signal("TERM");
    let (code, said) = service.end().await;
    let took = begun.elapsed();
    assert!(code == Some(0) && took < DEADLINE, "the end took {took:?}, with {code:?}: {said}");
    settle(&stand, &truth, &ends).await;
    stop.store(true, Ordering::SeqCst);
    assert!(looking.join().unwrap() > 100, "somebody looked");
    assert!(swallowed.load(Ordering::Relaxed) > 0, "the collector was reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_of_it_on_and_a_collector_that_swallows_everything_the_result_is_exact_by_grpc() {
    exact_and_in_time("grpc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_of_it_on_and_a_collector_that_swallows_everything_the_result_is_exact_by_http() {
    exact_and_in_time("http/protobuf").await;
}
