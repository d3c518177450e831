//! Pressure: the device refuses memory that the pool may have, since others have it.
//!
//! Other pools of this process that keep free memory of the same device give way: they release as much as
//! is needed, unless somebody waits for it there, or all of them together have not enough. Other processes
//! cannot be asked, nor can they tell when they let go: while a request waits and the device refuses, it is
//! asked again now and then; for what it has left first, since to ask for more takes all of it for a moment.

use super::Driver;
use crate::sync::{Ordering, SharedFlag};

/// Has other pools than that of the driver release so many bytes. Answers how many they did.
pub(crate) type Spill = fn(&Driver, u64) -> u64;

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

impl Driver {
    /// The device refused memory for a request: has other pools release what it lacks, if they have that
    /// much. Says whether any did.
    pub(super) fn spill_for(&self, bytes: u64) -> bool {
        let geometry = self.settings.geometry;
        let step = geometry.chunk_bytes;
        // What is free here is mapped elsewhere, if it can be.
        let own = if geometry.virtual_memory {
            self.totals().whole_free_chunks * step
        } else {
            0
        };
        let lacking = bytes.saturating_sub(own).max(1).next_multiple_of(step);
        (self.pressure.spill)(self, lacking) > 0
    }

    /// What the device itself could give, in bytes.
    pub(crate) fn left_on_device(&self) -> u64 {
        let info = self.device.memory_info(self.settings.kind);
        info.map_or(0, |info| info.free)
    }

    /// Whether the device refused, and has less than so many bytes by now.
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

    /// What could be released at once for another pool, in bytes; nothing while somebody waits for it here.
    /// If need be, after taking back what lanes keep, and asking what has completed.
    pub(crate) fn could_give(&self, asks: bool) -> u64 {
        if !self.is_open() || !self.settings.is_pooled {
            return 0;
        }
        if asks {
            self.flush_lanes();
            // What fails is noted; the rest may do.
            let _ = self.seal_lanes();
            let _ = self.reap();
        }
        self.heap_figures().releasable_bytes
    }

    /// Releases up to so many bytes of what is free, for another pool. Returns how many.
    pub(crate) fn spill(&self, bytes: u64) -> u64 {
        let step = self.settings.geometry.chunk_bytes;
        // What fails is noted; the rest may do.
        self.release_free(bytes.next_multiple_of(step)).unwrap_or(0)
    }

    /// Whether the memory of both comes from the same place.
    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        let is_of_host = |driver: &Self| driver.settings.kind.is_of_host();
        self.device.id() == other.device.id() && is_of_host(self) == is_of_host(other)
    }
}
