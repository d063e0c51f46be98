//! Log lines that were written within a trace carry its id, so that the one is found from the other.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// A format of lines, with the ids of the trace and the span at the end.
pub(super) struct Traced<F> {
    format: F,
    json: bool,
}

impl<F> Traced<F> {
    /// Adds ` trace_id=... span_id=...`.
    pub(super) fn text(format: F) -> Self {
        Self { format, json: false }
    }

    /// Adds `"trace_id"` and `"span_id"` to the object that each line is.
    pub(super) fn json(format: F) -> Self {
        Self { format, json: true }
    }
}

impl<S, N, F> FormatEvent<S, N> for Traced<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let current = Context::current();
        let span = current.span().span_context().clone();
        if !span.is_sampled() {
            return self.format.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let (trace, span) = (span.trace_id(), span.span_id());
        match line.strip_suffix("}\n").filter(|_| self.json) {
            Some(object) => writeln!(writer, "{object},\"trace_id\":\"{trace}\",\"span_id\":\"{span}\"}}"),
            None => writeln!(writer, "{} trace_id={trace} span_id={span}", line.trim_end_matches('\n')),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Two lines, the second within a span. Answers them with the ids of the trace and the span.
    fn lines(json: bool, sampler: Sampler) -> (Vec<String>, String, String) {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer::<Registry>().with_writer(move || writer.clone()).with_ansi(false);
        let lines = match json {
            true => lines.json().flatten_event(true).with_current_span(false).map_event_format(Traced::json).boxed(),
            false => lines.map_event_format(Traced::text).boxed(),
        };
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let ids = tracing::subscriber::with_default(tracing_subscriber::registry().with(lines).with(traces), || {
            tracing::info!("outside");
            tracing::info_span!("work").in_scope(|| {
                tracing::warn!(number = 7, "inside");
                let context = Context::current();
                let span = context.span().span_context().clone();
                (span.trace_id().to_string(), span.span_id().to_string())
            })
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        (text.lines().map(str::to_owned).collect(), ids.0, ids.1)
    }

    #[test]
    fn lines_within_a_trace_carry_its_id_and_others_do_not() {
        let (text, trace, span) = lines(false, Sampler::AlwaysOn);
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].ends_with("outside"), "{text:?}");
        assert!(text[1].ends_with(&format!("inside number=7 trace_id={trace} span_id={span}")), "{text:?}");

        let (text, trace, span) = lines(true, Sampler::AlwaysOn);
        let objects: Vec<serde_json::Value> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&objects[0]["message"], objects[0].get("trace_id")), (&"outside".into(), None));
        assert_eq!((&objects[1]["message"], &objects[1]["number"]), (&"inside".into(), &7.into()));
        assert_eq!((&objects[1]["trace_id"], &objects[1]["span_id"]), (&trace.into(), &span.into()));
    }

    #[test]
    fn a_trace_that_is_not_kept_is_not_named() {
        for json in [false, true] {
            let (text, trace, _) = lines(json, Sampler::AlwaysOff);
            assert!(text.len() == 2 && !text[1].contains(&trace), "{text:?}");
        }
    }
}
