//! The figures of a tag.

use crate::WaitStatistics;
use std::fmt;
use weirpool_heap::units::{Bytes, Counted};
use weirpool_heap::{Level, debug_in_units};
use weirpool_queue::{QueueLimit, Tag};

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
    /// The most that the tag may use at once, if it has a limit.
    pub limit: Option<u64>,
    /// Its weight in the queue; 0 if it has none.
    pub weight: u32,
    /// How many of its requests may wait at once.
    pub queue_limit: QueueLimit,
    /// Number of blocks, charges and reservations granted so far. A block that is drawn from a reservation does not count.
    pub allocations: u64,
    /// Number of these that ended so far.
    pub frees: u64,
    /// How its requests waited, in the queue or at its limit.
    pub waits: WaitStatistics,
}

debug_in_units!(struct TagStatistics { tag, used, limit as bytes, weight, queue_limit, allocations, frees, waits });

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
    /// Returns zeros for a tag.
    #[doc(hidden)]
    pub fn of(tag: Tag) -> Self {
        Self {
            tag,
            used: Level::default(),
            limit: None,
            weight: 0,
            queue_limit: QueueLimit::NONE,
            allocations: 0,
            frees: 0,
            waits: WaitStatistics::default(),
        }
    }
}
