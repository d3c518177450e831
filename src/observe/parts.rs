//! The figures of a stream, and of a tag.

use crate::engine::{Engine, figures};
use crate::id::{StreamId, StreamLabel};
use crate::lane::Lane;
use crate::measure::{Account, Bytes, Counted, Level, Tag, WaitStatistics, debug_in_units};
use crate::queue::Service;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The figures of a registered stream at one moment; in bytes unless stated otherwise.
///
/// A block counts for the stream that it was allocated on, whichever other streams use it.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 4096)?);
/// let block = pool.try_allocate(&stream, 4096)?; // the same memory, from the lane
/// let figures = stream.statistics();
/// assert_eq!((figures.allocations, figures.lane_hits, figures.frees), (2, 1, 1));
/// assert_eq!(figures.used.current, block.size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamStatistics {
    /// The stream.
    pub stream: StreamId,
    /// Its [name](crate::Stream::named), if it has one.
    pub name: Option<String>,
    /// In live blocks. The high-water mark is exact while one thread at a time uses the stream; otherwise it is the
    /// highest that was seen.
    pub used: Level,
    /// Freed by the stream, or used by it and freed, but behind device work that is not known to be complete. Bytes
    /// that wait for several streams count for each.
    pub pending: u64,
    /// Cached by the stream's lane.
    pub cached_in_lane: u64,
    /// Granted to live blocks beyond their requests.
    pub lost_to_rounding: u64,
    /// Number of blocks granted so far.
    pub allocations: u64,
    /// Number of those that the stream's lane granted.
    pub lane_hits: u64,
    /// Number of blocks freed so far.
    pub frees: u64,
    /// How the requests for this stream waited.
    pub waits: WaitStatistics,
    /// The recent time from the recording of the stream's events until they were seen complete: how far the stream is
    /// behind the host. Zero before the first event.
    pub latency: Duration,
    /// Number of [host tasks](crate::Stream::spawn) that hold the stream, or will when it reaches them.
    pub host_tasks: usize,
    /// Number of host tasks that were dropped before their end, or panicked.
    pub abandoned_host_tasks: u64,
}

debug_in_units!(struct StreamStatistics { stream, name, used, pending as bytes, cached_in_lane as bytes, lost_to_rounding as bytes, allocations, lane_hits, frees, waits, latency, host_tasks, abandoned_host_tasks });

impl StreamStatistics {
    pub(crate) fn of(engine: &Engine, lane: &Lane) -> Self {
        let (figures, pending) = figures::figures_of(&engine.streams, &engine.store, lane);
        let (host_tasks, abandoned_host_tasks) = lane.host_tasks.counts();
        Self {
            stream: lane.id,
            name: lane.name().map(str::to_owned),
            used: figures.used(),
            pending,
            cached_in_lane: figures.cached,
            lost_to_rounding: figures.counts.rounding,
            allocations: figures.counts.allocations(),
            lane_hits: figures.counts.hits(),
            frees: figures.counts.frees,
            waits: lane.waits.statistics(),
            latency: lane.timeline.latency(),
            host_tasks,
            abandoned_host_tasks,
        }
    }
}

/// `decode (S1): 4.0 KiB (high 4.0 KiB) used, 0 B pending, …`
impl fmt::Display for StreamStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, name) = (self.stream, self.name.as_deref());
        write!(
            f,
            "{}: {} used, {} pending, {} cached; {}, {} of them from the cache; {}",
            StreamLabel { id, name },
            self.used,
            Bytes(self.pending),
            Bytes(self.cached_in_lane),
            Counted(self.allocations, "allocation"),
            self.lane_hits,
            self.waits,
        )
    }
}

/// The figures of a [`Tag`] in one pool at one moment; in bytes unless stated otherwise.
///
/// ```
/// # use weirpool::{Pool, Tag, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let [weights, scratch] = ["weights", "scratch"].map(Tag::new);
/// let _block = pool.allocate(&stream, 4096).tag(weights).try_now()?;
/// drop(pool.allocate(&stream, 8192).tag(scratch).try_now()?);
/// for figures in pool.inspect().statistics_by_tag() {
///     println!("{figures}"); // weights: 4.0 KiB (high 4.0 KiB) used; 1 allocation; 0 waiting, …
/// }
/// # assert_eq!(pool.inspect().statistics_by_tag().len(), 2);
/// assert_eq!(pool.tag(scratch).statistics().used.high, 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TagStatistics {
    /// The tag.
    pub tag: Tag,
    /// In live blocks, charges and reservations, each reservation with its whole size. The high-water mark may include a
    /// request that failed at that moment on another thread.
    pub used: Level,
    /// The most that the tag may use at once, if it has a [limit](crate::TagAccount::set_limit).
    pub limit: Option<u64>,
    /// Its [weight](crate::TagAccount::set_weight) in the queue; 0 if it has none.
    pub weight: u32,
    /// Number of blocks, charges and reservations granted so far. A block that is drawn from a reservation does not count.
    pub allocations: u64,
    /// Number of these that ended so far.
    pub frees: u64,
    /// How its requests waited, in the queue or at its limit.
    pub waits: WaitStatistics,
}

debug_in_units!(struct TagStatistics { tag, used, limit as bytes, weight, allocations, frees, waits });

/// `weights: 4.0 KiB (high 4.0 KiB) used of 1.0 MiB; 1 allocation; …`
impl fmt::Display for TagStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} used", self.tag, self.used)?;
        if let Some(limit) = self.limit {
            write!(f, " of {}", Bytes(limit))?;
        }
        let allocations = Counted(self.allocations, "allocation");
        write!(f, "; {allocations}; {}", self.waits)
    }
}

impl TagStatistics {
    /// Returns zeros for a tag that the pool has not seen.
    pub(crate) fn of(service: &Service, tag: Tag) -> Self {
        let account = service.queue.accounts.get(tag);
        account.map_or(Self::none(tag), |account| {
            Self::of_account(service, tag, account)
        })
    }

    pub(crate) fn of_all(service: &Service) -> Vec<Self> {
        let accounts = service.queue.accounts.iter();
        accounts
            .map(|(tag, account)| Self::of_account(service, tag, account))
            .collect()
    }

    fn of_account(service: &Service, tag: Tag, account: &Account) -> Self {
        // Before the allocations: the allocation of every free that is counted is counted, too.
        let frees = account.frees();
        Self {
            tag,
            used: account.used(),
            limit: account.limit(),
            weight: service.queue.weight(tag).map_or(0, NonZeroU32::get),
            allocations: account.allocations(),
            frees,
            waits: account.waits.statistics(),
        }
    }

    fn none(tag: Tag) -> Self {
        Self {
            tag,
            used: Level::default(),
            limit: None,
            weight: 0,
            allocations: 0,
            frees: 0,
            waits: WaitStatistics::default(),
        }
    }
}
