//! Spans that began before they were made.
//!
//! Whether a batch has a trace is decided when it has been fetched, and `tracing` makes no span in the past. So such a span
//! says in a field how long ago it began, and is moved there when it ends.

use std::time::Duration;

use opentelemetry::Value;
use opentelemetry_sdk::trace::SpanData;
use strandline_actors::spans::BEGAN_BEFORE;

/// Moves the beginning of a span to where it says that it was.
pub(super) fn move_back(span: &mut SpanData) {
    let Some(place) = span.attributes.iter().position(|attribute| attribute.key.as_str() == BEGAN_BEFORE) else {
        return;
    };
    if let Value::I64(micros) = span.attributes.swap_remove(place).value {
        let earlier = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
        span.start_time = span.start_time.checked_sub(earlier).unwrap_or(span.start_time);
    }
}
