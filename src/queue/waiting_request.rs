//! The requests that wait, as plain data.

use super::waiter::Waiter;
use crate::id::StreamId;
use crate::measure::{Site, Tag, debug_in_units};
use std::time::Duration;

/// A request that waits for memory, from [`Inspect::waiting_requests`](crate::Inspect::waiting_requests). Times are on the
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
    /// Whether it waits for the [limit](crate::TagAccount::set_limit) of its tag, and not for memory.
    pub is_over_limit: bool,
    /// How long it has waited so far.
    pub waited: Duration,
    /// How long it will wait from now on, as [`Inspect::expected_wait`](crate::Inspect::expected_wait) estimates; `None`
    /// before enough waiting requests were served, and while its task does not answer.
    pub expected_wait: Option<Duration>,
    /// Where it was made.
    pub site: Site,
}

debug_in_units!(struct WaitingRequest { requested as bytes, stream, tag, is_over_limit, waited, expected_wait, site });

impl WaitingRequest {
    pub(super) fn of(waiter: &Waiter, now: Duration, expected_wait: Option<Duration>) -> Self {
        Self {
            requested: waiter.demand.request.bytes,
            stream: waiter.lane.id,
            tag: waiter.demand.tag,
            is_over_limit: waiter.is_throttled(),
            waited: now.saturating_sub(waiter.entry.since),
            expected_wait,
            site: waiter.location.into(),
        }
    }
}
