//! How a grant becomes a loan: once the stream comes after all that the memory's earlier life left.

use super::view::find;
use super::{Climb, Source};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::driver::{Driver, HistoryEvent, Use, counters};
use crate::heap::{BlockId, Fence, Grant};
use crate::id::Ticket;
use crate::lane::Lane;
use crate::trace;

/// A block out of the heap, on its way to its user.
#[derive(Debug)]
#[must_use = "a block that is dropped here is memory lost"]
pub(crate) struct Allocation {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The point of the stream behind which the memory's earlier life lies; zero if it was complete.
    pub(crate) after: Ticket,
    pub(crate) source: Source,
}

impl Allocation {
    /// The same, for who looks on.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
    }

    /// As it is freed, with what was not asked for of its bytes.
    #[inline(always)]
    pub(crate) fn as_used(&self, rounding: u32) -> Use {
        Use {
            id: self.id,
            address: self.address,
            bytes: self.bytes,
            rounding,
        }
    }
}

impl Climb<'_> {
    /// Lends a grant once the stream comes after all of its fences, by a wait where it does not yet. There
    /// is none where a stream takes no event or no wait now, being captured: the memory is not to be had.
    pub(in crate::driver) fn lend_in_order(
        &self,
        grant: Grant,
        source: Source,
    ) -> Result<Option<Allocation>, DeviceError> {
        if let Some(deferred_waits) = self.deferred_waits {
            let view = self.view();
            let is_behind = |fence: &Fence| !view.is_ordered(*fence);
            let waits = deferred_waits.add(grant.fences.iter().filter(is_behind));
            let source = if waits { Source::DeviceWait } else { source };
            return Ok(Some(self.lend(grant, source)));
        }
        match self.order_after(&grant) {
            Ok(true) => Ok(Some(self.lend(grant, Source::DeviceWait))),
            Ok(false) => Ok(Some(self.lend(grant, source))),
            Err(error) => {
                // Nothing is lost: the block is pending as before.
                self.driver.heap.lock().give_back(grant.id, grant.fences);
                match error.kind() {
                    DeviceErrorKind::Unsupported => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    /// Makes the stream wait, on the device, for every fence that it does not come after yet. Says
    /// whether there was one.
    fn order_after(&self, grant: &Grant) -> Result<bool, DeviceError> {
        let lanes = self.driver.lanes();
        let view = self.view();
        let mut has_waited = false;
        for fence in grant.fences.iter().filter(|fence| !view.is_ordered(*fence)) {
            if let Some(donor) = find(&lanes, fence) {
                has_waited |= self.driver.wait_for(self.lane, donor, fence.ticket)?;
            }
        }
        Ok(has_waited)
    }

    /// A grant becomes a loan, which remembers behind which point of the stream it is safe.
    pub(super) fn lend(&self, grant: Grant, source: Source) -> Allocation {
        let is_own = |fence: Fence| fence.stream == self.lane.id;
        let (after, source) = match grant.fences.single() {
            _ if grant.fences.is_empty() => (Ticket::ZERO, source),
            Some(fence) if is_own(fence) => (fence.ticket, source.or(Source::SameStream)),
            _ if self.may_submit && self.deferred_waits.is_none() => {
                let point = self.driver.present_point(self.lane);
                (point, source.or(Source::Ordered))
            }
            _ => (self.lane.cache.open_ticket(), source.or(Source::Ordered)),
        };
        self.fences.set(grant.fences);
        Allocation {
            id: grant.id,
            address: grant.address,
            bytes: grant.bytes,
            after,
            source,
        }
    }
}

impl Source {
    /// What the heap had is named by why it was safe; what had to be fetched, by how.
    fn or(self, why: Self) -> Self {
        if self == Self::Free { why } else { self }
    }
}

impl Driver {
    /// Makes `lane`'s stream wait for a point of `donor`'s, on the device, unless it is complete.
    ///
    /// # Errors
    /// When the device cannot; the order is then not counted on.
    pub(in crate::driver) fn wait_for(
        &self,
        lane: &Lane,
        donor: &Lane,
        ticket: Ticket,
    ) -> Result<bool, DeviceError> {
        let marker = self.noted(donor.marker_for(ticket, &*self.device, &self.events))?;
        let Some(marker) = marker else {
            return Ok(false);
        };
        self.order_behind(lane, &marker)?;
        counters::add(&self.counters.device_waits, 1);
        trace::device_wait(lane.id, donor.id);
        self.write_down(|| HistoryEvent::DeviceWait {
            stream: lane.id,
            donor: donor.id,
        });
        Ok(true)
    }
}
