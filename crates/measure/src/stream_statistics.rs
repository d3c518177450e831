//! The figures of a stream.

use crate::WaitStatistics;
use std::fmt;
use std::time::Duration;
use weirpool_heap::id::{StreamId, StreamLabel};
use weirpool_heap::units::{Bytes, Counted};
use weirpool_heap::{Level, debug_in_units};

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
    /// Its name, if it has one.
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
    /// Number of host tasks that hold the stream, or will when it reaches them.
    pub host_tasks: usize,
    /// Number of host tasks that were dropped before their end, or panicked.
    pub abandoned_host_tasks: u64,
}

debug_in_units!(struct StreamStatistics { stream, name, used, pending as bytes, cached_in_lane as bytes, lost_to_rounding as bytes, allocations, lane_hits, frees, waits, latency, host_tasks, abandoned_host_tasks });

impl StreamStatistics {
    /// Returns zeros for a stream.
    #[doc(hidden)]
    pub fn of(stream: StreamId) -> Self {
        Self {
            stream,
            name: None,
            used: Level::default(),
            pending: 0,
            cached_in_lane: 0,
            lost_to_rounding: 0,
            allocations: 0,
            lane_hits: 0,
            frees: 0,
            waits: WaitStatistics::default(),
            latency: Duration::ZERO,
            host_tasks: 0,
            abandoned_host_tasks: 0,
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
