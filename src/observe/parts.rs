//! The figures of a stream, and of a tag.

use crate::driver::Driver;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::measure::{Accounts, Level, Tag, WaitStatistics};
use std::time::Duration;

/// A registered stream's figures at one moment; bytes unless said otherwise.
///
/// A block counts for the stream that it was allocated on, wherever else it was used.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 4096)?);
/// let block = pool.try_allocate(&stream, 4096)?; // the same memory, out of the lane
/// let figures = pool.statistics_of(&stream)?;
/// assert_eq!((figures.allocations, figures.lane_hits, figures.frees), (2, 1, 1));
/// assert_eq!(figures.used.current, block.size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamStatistics {
    /// Which stream.
    pub stream: StreamId,
    /// In live blocks. Exact, the high too.
    pub used: Level,
    /// Given back by the stream, or used by it and given back, but behind work that is not known to be
    /// complete. What waits for several streams counts for each.
    pub pending: u64,
    /// What its lane keeps.
    pub cached_in_lane: u64,
    /// What live blocks have over what was asked for.
    pub lost_to_rounding: u64,
    /// Blocks granted so far, in number.
    pub allocations: u64,
    /// Those of them that its lane had.
    pub lane_hits: u64,
    /// Blocks freed so far, in number.
    pub frees: u64,
    /// How requests for it waited.
    pub waits: WaitStatistics,
    /// From the recording of its events to their being seen complete, lately: how far the stream is
    /// behind the host. Zero before the first.
    pub latency: Duration,
}

impl StreamStatistics {
    pub(crate) fn of(driver: &Driver, lane: &Lane) -> Self {
        let figures = lane.figures();
        Self {
            stream: lane.id,
            used: figures.used(),
            pending: driver.pending_on(lane),
            cached_in_lane: figures.cached,
            lost_to_rounding: figures.counts.rounding,
            allocations: figures.counts.allocations(),
            lane_hits: figures.counts.hits,
            frees: figures.counts.frees,
            waits: lane.waits.statistics(),
            latency: lane.timeline.latency(),
        }
    }
}

/// What a [`Tag`] has of a pool at one moment; bytes unless said otherwise.
///
/// ```
/// # use weirpool::{Pool, Tag, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let [weights, scratch] = ["weights", "scratch"].map(Tag::new);
/// let _block = pool.allocate(&stream, 4096).tag(weights).try_now()?;
/// drop(pool.allocate(&stream, 8192).tag(scratch).try_now()?);
/// for figures in pool.statistics_by_tag() {
///     println!("{}: {} of at most {}", figures.tag, figures.used.current, figures.used.high);
/// }
/// # assert_eq!(pool.statistics_by_tag().len(), 2);
/// assert_eq!(pool.statistics_of_tag(scratch).used.high, 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TagStatistics {
    /// Which tag.
    pub tag: Tag,
    /// In live blocks. Exact; the high may count a request that failed in that moment on another thread.
    pub used: Level,
    /// What it may have, if that is [limited](crate::Pool::set_tag_limit).
    pub limit: Option<u64>,
    /// Its [weight](crate::Pool::set_tag_weight) in the queue; 0 if it has none.
    pub weight: u32,
    /// Blocks granted so far, in number.
    pub allocations: u64,
    /// Blocks freed so far, in number.
    pub frees: u64,
    /// How its requests waited, in the queue or for its limit.
    pub waits: WaitStatistics,
}

impl TagStatistics {
    /// All zero where the pool has not seen the tag.
    pub(crate) fn of(accounts: &Accounts, tag: Tag) -> Self {
        let account = accounts.get(tag);
        let used = account.map(|account| account.used());
        let waits = account.map(|account| account.waits.statistics());
        Self {
            tag,
            used: used.unwrap_or_default(),
            limit: account.and_then(|account| account.limit()),
            weight: account
                .and_then(|account| account.weight())
                .map_or(0, std::num::NonZeroU32::get),
            // Before the allocations: no free is told of whose allocation is not.
            frees: account.map_or(0, |account| account.frees()),
            allocations: account.map_or(0, |account| account.allocations()),
            waits: waits.unwrap_or_default(),
        }
    }

    pub(crate) fn of_all(accounts: &Accounts) -> Vec<Self> {
        let tags = accounts.iter().map(|(tag, _)| tag);
        tags.map(|tag| Self::of(accounts, tag)).collect()
    }
}
