//! What a device that runs tasks by itself asks of a pool.

use std::fmt;

/// Explains what a pool's requests wait for: for the report of a device on which no task can proceed.
pub trait Explain: fmt::Debug + Send + Sync {
    /// Returns which requests wait, and what is held; `None` if no request waits. May lock, and calls no device.
    fn explain(&self) -> Option<String>;
}
