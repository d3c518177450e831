//! The explanation that a device which runs tasks by itself requests from a pool.

use std::fmt;

/// Explains what a pool's requests wait for, in the report of a device on which no task can proceed.
pub trait Explain: fmt::Debug + Send + Sync {
    /// Returns the waiting requests and the holders of memory; `None` if no request waits. May lock; calls no device.
    fn explain(&self) -> Option<String>;
}
