//! How many requests may wait.

use weirpool_heap::debug_in_units;

/// The number of requests that may wait for memory at once, and their bytes. A request that would have to wait beyond
/// that fails at once, with `AllocError::QueueFull`, so that its client hears of it early enough to act.
///
/// The limit is shared among the tags that wait, by [weight](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_weight): a tag without a weight has
/// the weight 1, and so have all requests without a tag together. Each share is at least one request. A tag may wait for
/// more than its share while there is room. When the queue is full, a request of a tag within its share is admitted, and
/// the last waiting request of the tag that is furthest above its share fails with `QueueFull` in its place. So one
/// tenant's flood gets no other tenant's requests refused.
///
/// Requests that need not wait are granted as usual, and waiting requests stay otherwise. Requests that wait for the
/// [limit](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_limit) of their tag are counted separately for each tag: see
/// [`TagAccount::set_queue_limit`](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_queue_limit).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueLimit {
    /// The number of requests that may wait.
    pub requests: usize,
    /// The bytes that they may wait for together. A request for more than that never waits.
    pub bytes: u64,
}

debug_in_units!(struct QueueLimit { requests, bytes as bytes });

impl QueueLimit {
    /// Allows any number of requests to wait: the default.
    pub const NONE: Self = Self {
        requests: usize::MAX,
        bytes: u64::MAX,
    };

    /// Creates a limit that allows up to `requests` requests to wait, for any number of bytes.
    pub const fn requests(requests: usize) -> Self {
        Self {
            requests,
            ..Self::NONE
        }
    }

    /// Creates a limit that allows any number of requests to wait, for up to `bytes` bytes together.
    pub const fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::NONE
        }
    }
}

impl Default for QueueLimit {
    fn default() -> Self {
        Self::NONE
    }
}

/// Creates the limit as [`QueueLimit::requests`] does.
impl From<usize> for QueueLimit {
    fn from(requests: usize) -> Self {
        Self::requests(requests)
    }
}
