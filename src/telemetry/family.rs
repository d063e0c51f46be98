//! Metrics as they are measured: families of samples, whatever form they are told in.

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(i64),
    /// Any other.
    Real(f64),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Whole(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Names and values by which the samples of a family differ.
pub type Labels = Vec<(&'static str, String)>;

/// All samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name, without the ending `_total` of counters.
    pub name: String,
    /// What it means.
    pub help: &'static str,
    /// Whether it only grows, from 0 at the start of the process.
    pub counter: bool,
    /// The samples.
    pub samples: Vec<(Labels, Value)>,
}
