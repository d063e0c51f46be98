//! Collectors that work, refuse, and never answer.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;

use opentelemetry::trace::{Span as _, Tracer, TracerProvider};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::*;

/// An exporter that keeps what it gets, or refuses it.
#[derive(Clone, Debug, Default)]
struct Memory {
    spans: Arc<Mutex<Vec<SpanData>>>,
    resource: Arc<Mutex<Option<Resource>>>,
    refuses: Arc<AtomicBool>,
}

impl super::SpanExporter for Memory {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(OTelSdkError::InternalFailure("refused".into()));
        }
        self.spans.lock().unwrap().extend(batch);
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        *self.resource.lock().unwrap() = Some(resource.clone());
    }
}

fn provider(counters: &Counters, exporter: Memory) -> SdkTracerProvider {
    let processor = BoundedProcessor::start(move || Ok(exporter), Limits::default(), counters.clone()).unwrap();
    let resource = Resource::builder_empty().with_service_name("tested").build();
    SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource).build()
}

fn spans(provider: &SdkTracerProvider, count: usize) {
    let tracer = provider.tracer("test");
    for number in 0..count {
        tracer.start(format!("span {number}")).end();
    }
}

#[test]
fn what_waits_at_the_end_is_sent() {
    let (counters, memory) = (Counters::default(), Memory::default());
    let provider = provider(&counters, memory.clone());
    spans(&provider, 1200);
    provider.shutdown_with_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(memory.spans.lock().unwrap().len(), 1200);
    assert_eq!((counters.sent(), counters.dropped()), (1200, 0));
    let resource = memory.resource.lock().unwrap().clone().unwrap();
    assert_eq!(resource.get(&"service.name".into()).unwrap().to_string(), "tested");
    assert!(provider.shutdown_with_timeout(Duration::ZERO).is_err());
}

#[test]
fn a_flush_sends_what_waits() {
    let (counters, memory) = (Counters::default(), Memory::default());
    let provider = provider(&counters, memory.clone());
    spans(&provider, 3);
    provider.force_flush().unwrap();
    assert_eq!(memory.spans.lock().unwrap().len(), 3);
}

/// Case: lost spans (opentelemetry-rust#3453, #1963).
#[test]
fn refused_spans_are_counted() {
    let (counters, memory) = (Counters::default(), Memory::default());
    memory.refuses.store(true, Ordering::SeqCst);
    let provider = provider(&counters, memory);
    spans(&provider, 7);
    provider.shutdown_with_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((counters.sent(), counters.dropped()), (0, 7));
}

#[test]
fn a_span_that_says_that_it_began_earlier_is_moved_there() {
    let (counters, memory) = (Counters::default(), Memory::default());
    let provider = provider(&counters, memory.clone());
    let tracer = provider.tracer("test");
    let began = opentelemetry::KeyValue::new(strandline_actors::spans::BEGAN_BEFORE, 2_500_000_i64);
    let other = opentelemetry::KeyValue::new("other", 7_i64);
    let before = std::time::SystemTime::now();
    tracer.span_builder("fetched").with_attributes([began, other.clone()]).start(&tracer).end();
    provider.force_flush().unwrap();
    let spans = memory.spans.lock().unwrap();
    let lasted = spans[0].end_time.duration_since(spans[0].start_time).unwrap();
    assert!(lasted >= Duration::from_millis(2_500) && spans[0].end_time >= before, "{lasted:?}");
    assert_eq!(spans[0].attributes, [other]);
}

/// An exporter that takes its time.
#[derive(Debug)]
struct Slow;

impl super::SpanExporter for Slow {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        std::future::pending().await
    }
}

#[test]
fn spans_that_take_too_long_are_given_up_and_counted() {
    let counters = Counters::default();
    let limits = Limits { patience: Duration::from_millis(20), ..Limits::default() };
    let processor = BoundedProcessor::start(|| Ok(Slow), limits, counters.clone()).unwrap();
    let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
    spans(&provider, 3);
    provider.force_flush().unwrap();
    assert_eq!((counters.sent(), counters.dropped()), (0, 3));
}

/// A collector that takes connections and never says a word.
/// Case: lost spans (opentelemetry-rust#3453, #1963).
#[test]
fn a_collector_that_never_answers_holds_up_nobody() {
    holds_up_nobody(|endpoint| SpanExporter::builder().with_tonic().with_endpoint(endpoint).build().unwrap());
}

#[test]
fn a_collector_that_never_answers_by_http_holds_up_nobody() {
    holds_up_nobody(|endpoint| {
        let builder = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
        builder.with_endpoint(endpoint).build().unwrap()
    });
}

fn holds_up_nobody(make: impl FnOnce(String) -> SpanExporter + Send + 'static) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in listener.incoming() {
            open.push(connection);
        }
    });
    let (counters, limits) = (Counters::default(), Limits::default());
    let processor = BoundedProcessor::start(move || Ok(make(endpoint)), limits, counters.clone()).unwrap();
    let provider = SdkTracerProvider::builder().with_span_processor(processor).build();

    let made = limits.queue * 3;
    let begun = std::time::Instant::now();
    spans(&provider, made);
    // If ending a span waited for the collector, this would take as long as the collector's timeout of ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(5), "spans waited: {:?}", begun.elapsed());
    assert!(counters.dropped() > 0, "more spans than fit in were taken");

    let deadline = Duration::from_millis(500);
    let begun = std::time::Instant::now();
    let ended = provider.shutdown_with_timeout(deadline);
    assert!(begun.elapsed() < deadline * 4, "the end took {:?}", begun.elapsed());
    if ended.is_ok() {
        assert_eq!(counters.dropped() + counters.sent(), made as u64);
    }
    assert_eq!(counters.sent(), 0);
}
