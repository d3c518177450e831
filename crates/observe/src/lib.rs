#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod metrics;

pub use metrics::Metrics;
