//! Without pooling: each allocation is a segment of its own, and goes back to the device once it is complete.
//!
//! There is no ladder: nothing that was freed is granted again. What remains of a pool is the order of the
//! streams, and waiting.

use super::memory::For;
use super::{Allocation, Driver, Effort, Expected, Refusal, Source};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::heap::{Request, Target};
use crate::id::Ticket;
use crate::lane::Lane;

impl Driver {
    /// # Errors
    /// When the device gives nothing, also after it was given back what is complete.
    pub(super) fn allocate_unpooled(
        &self,
        lane: &Lane,
        request: Request,
        effort: Effort,
    ) -> Result<Allocation, Refusal> {
        if !self.may_call(effort) {
            return Err(Refusal::NeedsThread);
        }
        if let Some(allocation) = self.take_fresh(lane, request)? {
            return Ok(allocation);
        }
        if self.return_complete(effort)? > 0 {
            if let Some(allocation) = self.take_fresh(lane, request)? {
                return Ok(allocation);
            }
        }
        if self.pressure.is_felt() && self.spill_for(request.bytes) {
            if let Some(allocation) = self.take_fresh(lane, request)? {
                return Ok(allocation);
            }
        }
        Err(Refusal::Short(Expected::default()))
    }

    fn take_fresh(&self, lane: &Lane, request: Request) -> Result<Option<Allocation>, DeviceError> {
        let Some(plan) = self.heap.lock().plan_new(request.bytes) else {
            return Ok(None);
        };
        match self.carry_out(plan, For::Stream(lane.id)) {
            Ok(grant) => Ok(grant.map(|grant| Allocation {
                id: grant.id,
                address: grant.address,
                bytes: grant.bytes,
                after: Ticket::ZERO,
                source: Source::Grown,
            })),
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                // Others may have it: who waits asks again.
                self.pressure.note(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives back to the device what is complete by now; of a pool nothing. Returns the bytes.
    ///
    /// # Errors
    /// When the device cannot, or it may not be done here: the next one who comes tries again.
    pub(crate) fn return_complete(&self, effort: Effort) -> Result<u64, Refusal> {
        if self.settings.is_pooled || self.fault().is_some() {
            return Ok(0);
        }
        self.seal_lanes()?;
        self.reap()?;
        if self.totals().free.current == 0 {
            return Ok(0);
        }
        if !self.may_call(effort) {
            return Err(Refusal::NeedsThread);
        }
        Ok(self.release(Target::Keep(0))?)
    }

    /// Whether something was freed that the device has not been given back; of a pool never, nor of a device
    /// that takes nothing back any more.
    pub(crate) fn has_leftovers(&self) -> bool {
        if self.settings.is_pooled || self.fault().is_some() {
            return false;
        }
        let totals = self.totals();
        totals.free.current + totals.pending.current > 0
    }
}
