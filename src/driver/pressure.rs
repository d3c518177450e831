//! Pressure: the device refuses memory within the pool's capacity, because others hold it.
//!
//! Other pools of this process that keep free memory of the same device spill: they release as much as is needed,
//! unless all of them together have too little. A pool in which requests wait spills only for a pool with an older
//! request (see [`registry`](crate::registry)). Other processes cannot be asked, nor can they tell when they let go. While a request waits and the device refuses, the device is asked again from time
//! to time: first for how much it has left, because asking for more would take all of it for a moment.

use super::supply::Supply;
use crate::heap::Target;
use crate::sync::{Ordering, SharedFlag};

/// Makes other pools than the one of this layer release that many bytes. Returns how many they released.
pub(crate) type Spill = fn(&Supply, u64) -> u64;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Pressure {
    /// The device refused when it was last asked for memory.
    is_felt: SharedFlag,
    spill: Spill,
}

impl Pressure {
    pub(super) fn new(spill: Spill) -> Self {
        Self {
            is_felt: SharedFlag::new(false),
            spill,
        }
    }

    pub(crate) fn is_felt(&self) -> bool {
        self.is_felt.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, is_felt: bool) {
        if self.is_felt() != is_felt {
            self.is_felt.store(is_felt, Ordering::Relaxed);
        }
    }
}

impl Supply {
    /// Makes other pools release the memory that a refused request lacks, if they have that much. Says whether any
    /// did.
    pub(super) fn spill_for(&self, bytes: u64) -> bool {
        let geometry = self.settings.geometry;
        let step = geometry.chunk_bytes;
        // Free chunks of this pool are remapped, if they can be.
        let own = if geometry.virtual_memory {
            self.totals().whole_free_chunks * step
        } else {
            0
        };
        let lacking = bytes.saturating_sub(own).max(1).next_multiple_of(step);
        (self.pressure.spill)(self, lacking) > 0
    }

    /// Returns how many bytes the device itself could give.
    pub(crate) fn left_on_device(&self) -> u64 {
        let info = self.device.memory_info(self.settings.kind);
        info.map_or(0, |info| info.free)
    }

    /// Returns whether the device refused, and has less than this many bytes by now.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        self.pressure.is_felt() && self.left_on_device() < bytes
    }

    /// Returns whether the device refuses memory that it has, although nothing of the pool is in use or on its way:
    /// then no other pool or process stands in the way, and only time would pass.
    pub(super) fn refuses_for_no_reason(&self, bytes: u64) -> bool {
        let totals = self.totals();
        let in_use = totals.in_use.current + totals.claimed + totals.planned;
        bytes > 0 && in_use == 0 && self.left_on_device() >= bytes
    }

    /// Returns how many bytes could be released at once for another pool; none after the pool has ended. If `asks`,
    /// flushes the caches and asks the streams first.
    pub(crate) fn could_give(&self, asks: bool) -> u64 {
        if self.is_closed() || self.is_draining() || self.fault().is_some() {
            return 0;
        }
        if asks {
            // A failure is noted; the rest may be enough.
            let _ = self.reclaim();
        }
        self.totals().releasable
    }

    /// Releases up to this many free bytes for another pool. Returns how many.
    pub(crate) fn spill(&self, bytes: u64) -> u64 {
        let step = self.settings.geometry.chunk_bytes;
        let target = Target::Bytes(bytes.next_multiple_of(step));
        // A failure is noted; the rest may be enough.
        self.release_and_publish(target).unwrap_or(0)
    }
}
