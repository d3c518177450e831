//! A request that waits, as plain data.

use crate::Site;
use std::time::Duration;
use weirpool_heap::debug_in_units;
use weirpool_heap::id::StreamId;
use weirpool_queue::Tag;

/// A request that waits for memory, from [`Inspect::waiting_requests`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.waiting_requests). Times are on the
/// device's clock.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaitingRequest {
    /// The bytes that were requested, of memory or of a charge.
    pub requested: u64,
    /// The stream that the memory is for.
    pub stream: StreamId,
    /// The tag that the memory will be charged to.
    pub tag: Option<Tag>,
    /// Whether it waits for the [limit](https://docs.rs/weirpool/latest/weirpool/struct.TagAccount.html#method.set_limit) of its tag, and not for memory.
    pub is_over_limit: bool,
    /// How long it has waited so far.
    pub waited: Duration,
    /// How long it will wait from now on, as [`Inspect::expected_wait`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.expected_wait) estimates; `None`
    /// before enough waiting requests were served, and while its task does not answer.
    pub expected_wait: Option<Duration>,
    /// Where it was made.
    pub site: Site,
}

debug_in_units!(struct WaitingRequest { requested as bytes, stream, tag, is_over_limit, waited, expected_wait, site });

impl WaitingRequest {
    /// Returns a request that has not waited yet, and may have no tag.
    #[doc(hidden)]
    pub fn of(requested: u64, stream: StreamId, site: Site) -> Self {
        Self {
            requested,
            stream,
            tag: None,
            is_over_limit: false,
            waited: Duration::ZERO,
            expected_wait: None,
            site,
        }
    }
}
