//! The state of the queue when a request could not join it, or lost its place.

use crate::Tag;
use std::fmt;
use std::time::Duration;
use weirpool_heap::debug_in_units;
use weirpool_heap::units::{Bytes, Counted};

/// The state of the queue when a request could not join it, or lost its place to a tag below its
/// [share](crate::QueueLimit). Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FullQueue {
    /// The tag whose own queue is full: by its [queue limit](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_queue_limit), or of requests that wait
    /// for its limit. `None` for the pool's queue.
    pub tag: Option<Tag>,
    /// The size of the request, rounded up to the pool's step.
    pub requested: u64,
    /// The number of waiting requests.
    pub waiting: usize,
    /// The number of requests that may wait.
    pub limit: usize,
    /// The bytes that the waiting requests asked for.
    pub waiting_bytes: u64,
    /// The bytes that waiting requests may ask for.
    pub limit_bytes: u64,
    /// The expected wait of the request behind those that are served before it, if it can be estimated.
    pub expected_wait: Option<Duration>,
}

debug_in_units!(struct FullQueue { tag, requested as bytes, waiting, limit, waiting_bytes as bytes, limit_bytes as bytes, expected_wait });

/// `the queue is full: 7 waiting requests for 512 B, 8 may wait`
impl fmt::Display for FullQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue")?;
        if let Some(tag) = self.tag {
            write!(f, " of tag {tag}")?;
        }
        let waiting_bytes = Bytes(self.waiting_bytes);
        write!(
            f,
            " is full: {} for {waiting_bytes}, ",
            Counted(self.waiting as u64, "waiting request")
        )?;
        match (self.limit, self.limit_bytes) {
            (limit, u64::MAX) => write!(f, "{limit} may wait"),
            (usize::MAX, bytes) => write!(f, "requests for {} may wait", Bytes(bytes)),
            (limit, bytes) => write!(f, "{limit} for {} may wait", Bytes(bytes)),
        }
    }
}
