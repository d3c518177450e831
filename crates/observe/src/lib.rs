#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "export")]
mod export;
mod metrics;

#[cfg(feature = "export")]
pub use export::{write_chrome_trace, write_memory_viz, write_trace};
pub use metrics::Metrics;
