//! Prometheus' text format.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Measured;
use crate::telemetry::{Family, Value};

pub(in super::super) use prometheus_text::CONTENT_TYPE;

/// All metrics as text.
pub(in super::super) fn text(measured: &Measured) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Told(measured.families())));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Told(Vec<Family>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for Family { name, help, counter, samples } in &self.0 {
            let kind = if *counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in samples {
                let metric = family.encode_family(labels)?;
                match (*counter, *value) {
                    (true, Value::Whole(value)) => ConstCounter::new(value.cast_unsigned()).encode(metric)?,
                    (true, Value::Real(value)) => ConstCounter::new(value).encode(metric)?,
                    (false, Value::Whole(value)) => ConstGauge::new(value).encode(metric)?,
                    (false, Value::Real(value)) => ConstGauge::new(value).encode(metric)?,
                }
            }
        }
        Ok(())
    }
}
