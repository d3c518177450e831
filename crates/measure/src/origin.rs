//! Where live blocks and reservations come from.

use crate::{Site, Source};
use std::time::Duration;
use weirpool_heap::debug_in_units;
use weirpool_queue::Tag;

/// The allocation that a block comes from, as an observer remembers it.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockOrigin {
    /// The number of the allocation within the pool, counted from 1.
    pub number: u64,
    /// Where it was requested.
    pub site: Site,
    /// When it was granted, on the device's clock.
    pub time: Duration,
    /// The bytes that were requested.
    pub requested: u64,
    /// The tag that it is charged to.
    pub tag: Option<Tag>,
    /// Where the memory came from.
    pub source: Source,
    /// Whether the request waited in the queue.
    pub waited: bool,
}

debug_in_units!(struct BlockOrigin { number, site, time, requested as bytes, tag, source, waited });

/// The request that a reservation comes from, as an observer remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReservationOrigin {
    /// Where it was requested, or split off.
    pub site: Site,
    /// When it was granted, or split off, on the device's clock.
    pub time: Duration,
    /// The tag that it is charged to.
    pub tag: Option<Tag>,
}
