//! What traces cost: the same query over the same topic with and without them, by turns, so that a machine that gets slower does
//! so for both. Their collector takes everything and keeps nothing, or is the one at `BENCH_COLLECTOR`, an endpoint of OTLP by
//! HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::service::{Run, Service};
use crate::topics::{self, Topic};
use crate::{Bench, Case, Checkpoints, Q0, Q1, median, millions, turn};

const TOPIC: Topic = topics::LZ4;
const CASES: [Case; 2] = [Case::new(Q0, Checkpoints::EverySecond), Case::new(Q1, Checkpoints::EverySecond)];

/// Measures, and prints a table.
pub fn measure(bench: &Bench) {
    TOPIC.prepare(&bench.kafka, bench.records);
    let collector = std::env::var("BENCH_COLLECTOR").unwrap_or_else(|_| swallow());
    println!("\n| traces | records/s without | with | cost | CPU-s a million without | with | spans |");
    println!("|---|---|---|---|---|---|---|");
    for case in CASES.iter().filter(|case| bench.asked(case)) {
        let (mut without, mut with, mut costs, mut spans) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for round in 0..bench.runs {
            let mut off = None;
            let mut on = None;
            for traced in turn(2, round).into_iter().map(|number| number == 1) {
                let (run, sent) = read(bench, case, traced.then_some(collector.as_str()));
                eprintln!(
                    "traces {}: {}, run {round}: {} records/s, {:.2} CPU-s a million, {sent} spans",
                    if traced { "on" } else { "off" },
                    case.title(),
                    millions(run.usage.rate()),
                    run.usage.cpu_a_million(),
                );
                assert_eq!(traced, sent > 0, "spans are sent if, and only if, they are asked for");
                spans = spans.max(sent);
                *(if traced { &mut on } else { &mut off }) = Some(run);
            }
            let (off, on) = (off.expect("it ran"), on.expect("it ran"));
            costs.push(1.0 - on.usage.rate() / off.usage.rate());
            without.push(off);
            with.push(on);
        }
        println!(
            "| {} | {} | {} | {:.1} % | {:.2} | {:.2} | {spans} |",
            case.title(),
            millions(median(&mut without, |run| run.usage.rate())),
            millions(median(&mut with, |run| run.usage.rate())),
            // Of each pair, so that what the machine does meanwhile is in both.
            median(&mut costs, |cost| *cost) * 100.0,
            median(&mut without, |run| run.usage.cpu_a_million()),
            median(&mut with, |run| run.usage.cpu_a_million()),
        );
    }
}

/// One run, and how many spans were taken.
fn read(bench: &Bench, case: &Case, collector: Option<&str>) -> (Run, u64) {
    let variables = match collector {
        Some(endpoint) => [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
        None => [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
    };
    let mut service = Service::start_in(&bench.settings(&TOPIC, case), variables);
    let run = service.read(TOPIC.records(bench.records));
    if collector.is_some() {
        service.until(|service| service.spans() > 0);
    }
    let sent = service.spans();
    service.kill();
    (run, sent)
}

/// Starts a collector that takes everything and keeps nothing. Answers its endpoint.
fn swallow() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it listens"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || drop(take(&stream)));
        }
    });
    endpoint
}

/// Takes what comes on a connection, until it ends.
fn take(mut to: &TcpStream) -> std::io::Result<()> {
    let mut from = BufReader::new(to);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        std::io::copy(&mut from.by_ref().take(length), &mut std::io::sink())?;
        to.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")?;
    }
}
