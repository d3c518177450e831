//! Another capacity, at run time.

use super::Engine;
use crate::device::DeviceError;
use crate::sync::Ordering;

impl Engine {
    /// Sets what may be held from the device at most: a multiple of the handles. What is held above it is
    /// released if it is free, and otherwise by the upkeep, once it comes back.
    ///
    /// # Errors
    /// When the device cannot reserve addresses, and nothing changed; or when it cannot release memory.
    pub(crate) fn resize(&self, capacity: u64) -> Result<(), DeviceError> {
        self.reserve_addresses(capacity)?;
        self.ledger.lock().set_capacity(capacity);
        self.capacity.store(capacity, Ordering::Relaxed);
        if self.totals().reserved.current > capacity {
            self.is_shrunk.store(true, Ordering::Relaxed);
            self.drain_lanes();
            self.seal_lanes()?;
            self.harvest()?;
            self.trim_to(capacity)?;
            self.note_return();
        }
        Ok(())
    }
}
