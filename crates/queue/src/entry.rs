//! What the queue knows of a waiting request.

use crate::Tag;
use crate::fair_queue::{Flow, SortKey};
use std::time::Duration;
use weirpool_heap::id::StreamId;

/// A waiting request, as far as the queue decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position in the order.
    pub sort_key: SortKey,
    /// The party that takes turns for it.
    pub flow: Flow,
    /// The tag that is charged, if any.
    pub tag: Option<Tag>,
    /// The rounded size.
    pub bytes: u64,
    /// The stream that the memory is for.
    pub stream: StreamId,
    /// When it arrived, on the device's clock.
    pub since: Duration,
}
