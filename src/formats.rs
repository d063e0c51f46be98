//! From the bytes of records to Arrow columns: one module per format.

pub mod json;
