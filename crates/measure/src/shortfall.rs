//! The state of the pool when a request could not be served.

use std::fmt;
use std::time::Duration;
use weirpool_device::MemoryInfo;
use weirpool_heap::units::Bytes;
use weirpool_heap::{debug_in_units, fragmentation};
use weirpool_queue::Tag;

/// The state of the pool when a request could not be served. Sizes are in bytes.
///
/// `free` counts memory that was available to any stream, in pieces of at most `largest_free`. `pending` counts memory
/// that was freed but may still be touched by running work, including cached blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Shortfall {
    /// The size of the request, rounded up to the pool's step.
    pub requested: u64,
    /// Free memory.
    pub free: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Freed memory behind work that is not complete.
    pub pending: u64,
    /// Memory of live blocks.
    pub used: u64,
    /// Memory reserved from the device: free, pending and used.
    pub reserved: u64,
    /// The most bytes that the pool may reserve.
    pub capacity: u64,
    /// The most bytes that the pool may reserve now: the capacity, unless a source lends less.
    pub leased: u64,
    /// The number of waiting requests.
    pub waiting: usize,
    /// The expected wait of such a request, as [`Inspect::expected_wait`](https://docs.rs/weirpool/latest/weirpool/struct.Inspect.html#method.expected_wait) estimates it.
    pub expected_wait: Option<Duration>,
    /// The state of the request's tag, if it has a limit.
    pub tag: Option<TagShortfall>,
    /// The memory that the device reported, if it refused memory that the pool may have. The rest is held by other
    /// users of the device, in this process or in another.
    pub device: Option<MemoryInfo>,
}

debug_in_units!(struct Shortfall { requested as bytes, free as bytes, largest_free as bytes, pending as bytes, used as bytes, reserved as bytes, capacity as bytes, leased as bytes, waiting, expected_wait, tag, device });

/// The state of a [tag](Tag) with a limit when a request for it could not be served. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TagShortfall {
    /// The tag of the request.
    pub tag: Tag,
    /// The bytes that the tag holds, and that were promised to its requests in the queue.
    pub used: u64,
    /// The most bytes that the tag may hold.
    pub limit: u64,
}

debug_in_units!(struct TagShortfall { tag, used as bytes, limit as bytes });

impl TagShortfall {
    /// Returns the state of a tag.
    #[doc(hidden)]
    pub fn of(tag: Tag, used: u64, limit: u64) -> Self {
        Self { tag, used, limit }
    }
}

impl Shortfall {
    /// Returns the share of free memory outside the largest free block: from 0 (one piece, or none) to 1.
    pub fn fragmentation(&self) -> f64 {
        fragmentation(self.free, self.largest_free)
    }
}

/// `4.0 MiB requested; 2.0 MiB free (largest block 1.0 MiB, fragmentation 50 %), …`
impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requested; {} free (largest block {}, fragmentation {:.0} %), {} pending, {} used, \
             {} reserved of a capacity of {}, {} waiting",
            Bytes(self.requested),
            Bytes(self.free),
            Bytes(self.largest_free),
            self.fragmentation() * 100.0,
            Bytes(self.pending),
            Bytes(self.used),
            Bytes(self.reserved),
            Bytes(self.capacity),
            self.waiting,
        )?;
        if self.leased < self.capacity {
            write!(f, "; {} of it leased", Bytes(self.leased))?;
        }
        if let Some(TagShortfall { tag, used, limit }) = self.tag {
            let (used, limit) = (Bytes(used), Bytes(limit));
            write!(
                f,
                "; tag {tag} holds or was promised {used} of its limit of {limit}"
            )?;
        }
        if let Some(MemoryInfo { free, total }) = self.device {
            let (free, total) = (Bytes(free), Bytes(total));
            write!(
                f,
                "; the device refused more, and has {free} of {total} free"
            )?;
        }
        if let Some(expected) = self.expected_wait {
            write!(f, "; expected wait {expected:?}")?;
        }
        Ok(())
    }
}
