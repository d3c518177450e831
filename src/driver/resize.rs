//! Another capacity, at run time.

use super::Driver;
use crate::device::DeviceError;
use crate::heap::Target;
use crate::sync::Ordering;

impl Driver {
    /// Sets what may be held from the device at most: a multiple of the handles. What is held above it is
    /// released if it is free, and otherwise by the maintenance, once it comes back.
    ///
    /// # Errors
    /// When the device cannot reserve addresses, and nothing changed; or when it cannot release memory.
    pub(crate) fn resize(&self, capacity: u64) -> Result<(), DeviceError> {
        self.reserve_addresses(capacity)?;
        let held = {
            let mut heap = self.heap.lock();
            heap.set_capacity(capacity);
            // Inside the lock: of two who resize, both figures are the later one's.
            self.capacity.store(capacity, Ordering::Relaxed);
            // Growth that is under way goes on.
            let totals = heap.totals();
            totals.reserved.current + totals.planned
        };
        if held <= capacity {
            return Ok(());
        }
        self.is_shrunk.store(true, Ordering::Relaxed);
        let released = self.release_above(capacity);
        self.note_return();
        released
    }

    fn release_above(&self, capacity: u64) -> Result<(), DeviceError> {
        self.flush_lanes();
        self.seal_lanes()?;
        self.reap()?;
        let target = Target::DownTo {
            reserved: capacity,
            most: u64::MAX,
        };
        self.release(target).map(drop)
    }
}
