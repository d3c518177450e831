//! How far a release of memory got.

use crate::Statistics;
use std::fmt;
use weirpool_heap::debug_in_units;
use weirpool_heap::units::Bytes;

/// How far `Pool::trim_to` or `Pool::resize` got, and what keeps the rest; in bytes. `used + pending + free + moving = reserved`.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).chunk_bytes(2 << 20).build()?;
/// # let stream = pool.create_stream()?;
/// let used = pool.try_allocate(&stream, 3 << 20)?; // in chunks of 2 MiB
/// drop(pool.try_allocate(&stream, 64 << 20)?);
/// let trimmed = pool.trim_to(1 << 20)?;
/// assert!(!trimmed.is_reached());
/// assert_eq!((trimmed.reserved, trimmed.excess()), (4 << 20, 3 << 20));
/// assert_eq!((trimmed.used, trimmed.free), (3 << 20, 1 << 20)); // they share a chunk
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "memory that cannot be released stays reserved above the target"]
#[non_exhaustive]
pub struct Trimmed {
    /// The reserved bytes to get down to; for a resize, the new capacity.
    pub target: u64,
    /// Released to the device by this call.
    pub released: u64,
    /// Reserved from the device after the call.
    pub reserved: u64,
    /// In live blocks and reservations: free them, and trim again.
    pub used: u64,
    /// Freed, but behind device work that is not complete: trim again when it is. After a resize, the pool releases it
    /// by itself.
    pub pending: u64,
    /// Free, and kept: within the target, or in a chunk that is partly in use. Where memory is plain, in a segment that
    /// is partly in use.
    pub free: u64,
    /// Claimed by another thread that maps or releases memory at this moment.
    pub moving: u64,
}

debug_in_units!(struct Trimmed {
    target as bytes,
    released as bytes,
    reserved as bytes,
    used as bytes,
    pending as bytes,
    free as bytes,
    moving as bytes,
});

impl Trimmed {
    /// Creates the report of a release that left these figures.
    pub fn new(target: u64, released: u64, figures: &Statistics) -> Self {
        Self {
            target,
            released,
            reserved: figures.reserved.current,
            used: figures.used.current,
            pending: figures.pending.current,
            free: figures.free,
            moving: figures.moving,
        }
    }

    /// Returns whether no more than the target is reserved.
    pub fn is_reached(&self) -> bool {
        self.excess() == 0
    }

    /// Returns the bytes that are reserved above the target.
    pub fn excess(&self) -> u64 {
        self.reserved.saturating_sub(self.target)
    }
}

/// `released 64.0 MiB; 4.0 MiB stay reserved, 3.0 MiB above the target of 1.0 MiB: 3.0 MiB used, …`
impl fmt::Display for Trimmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (released, reserved) = (Bytes(self.released), Bytes(self.reserved));
        write!(f, "released {released}; {reserved} stay reserved")?;
        if self.is_reached() {
            return Ok(());
        }
        write!(
            f,
            ", {} above the target of {}: {} used, {} pending, {} free",
            Bytes(self.excess()),
            Bytes(self.target),
            Bytes(self.used),
            Bytes(self.pending),
            Bytes(self.free),
        )?;
        match self.moving {
            0 => Ok(()),
            moving => write!(f, ", {} being moved", Bytes(moving)),
        }
    }
}
