//! The traces in which records were produced, as the header `traceparent` of the first records of a batch names them.
//!
//! A batch is linked with a few of them, and only those that somebody keeps: so a slow record is found from its producer's
//! trace, at a cost that does not grow with the records.

use std::ffi::CStr;

use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
use opentelemetry::{SpanId, TraceId};
use strandline_actors::ports::{Producers, TraceParent};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The header that the W3C's Trace Context defines.
pub(super) const HEADER: &CStr = c"traceparent";

/// How many records of a batch are looked at.
pub(super) const SAMPLED: usize = 16;

/// Takes note of what a record's header says, if there is room and the trace is another one.
pub(super) fn note(producers: &mut Producers, header: Option<&[u8]>) {
    let Some(parent) = header.and_then(parse) else { return };
    if producers.iter().flatten().any(|known| known.trace == parent.trace) {
        return;
    }
    if let Some(free) = producers.iter_mut().find(|place| place.is_none()) {
        *free = Some(parent);
    }
}

/// Links a batch with the spans that its records came from.
pub(super) fn link(batch: &Span, producers: &Producers) {
    for TraceParent { trace, span } in producers.iter().flatten() {
        let (trace, span) = (TraceId::from_bytes(trace.to_be_bytes()), SpanId::from_bytes(span.to_be_bytes()));
        batch.add_link(SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE));
    }
}

/// Reads `00-<trace>-<span>-<flags>`, of this version or a later one. `None` also for a trace that is not kept.
fn parse(header: &[u8]) -> Option<TraceParent> {
    let text = std::str::from_utf8(header).ok()?;
    let mut parts = text.split('-');
    let mut next = |digits| parts.next().filter(|part| part.len() == digits && is_hexadecimal(part));
    let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    sampled.then_some(TraceParent { trace, span })
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

    #[test]
    fn only_what_the_definition_allows_is_read() {
        let parent = TraceParent { trace: TRACE, span: 0x00f0_67aa_0ba9_02b7 };
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(parse(good.as_bytes()), Some(parent));
        assert_eq!(parse(good.replacen("00", "cc", 1).as_bytes()), Some(parent));
        assert_eq!(parse((good.replacen("00", "cc", 1) + "-what-comes-later").as_bytes()), Some(parent));
        assert_eq!(parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03"), Some(parent));
        for bad in [
            "",
            "4bf92f3577b34da6a3ce929d0e0e4736",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(&[0xff; 55]), None);
    }

    #[test]
    fn each_trace_is_noted_once_and_only_a_few() {
        let mut producers = Producers::default();
        note(&mut producers, None);
        note(&mut producers, Some(b"nonsense"));
        for trace in [1, 1, 2, 2, 3, 4, 5, 6] {
            note(&mut producers, Some(format!("00-{trace:032x}-{trace:016x}-01").as_bytes()));
        }
        let noted: Vec<u128> = producers.iter().flatten().map(|parent| parent.trace).collect();
        assert_eq!(noted, [1, 2, 3, 4]);
    }
}
