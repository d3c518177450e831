//! Waits on the device, put off until all parts of a request are had: a stream that is given nothing waits for
//! nothing.
//!
//! While parts are looked for, the stream is taken to come after what it will be made to wait for. What is found is
//! its own only once the waits are submitted.

use super::ladder::{Allocation, find};
use super::{Driver, Source};
use crate::device::DeviceError;
use crate::heap::{Clock, Fence, Fences};
use crate::lane::Lane;
use std::cell::RefCell;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct DeferredWaits(RefCell<Fences>);

impl DeferredWaits {
    /// The stream is to wait for these. Says whether there are any.
    pub(super) fn add(&self, fences: impl Iterator<Item = Fence>) -> bool {
        let mut deferred_waits = self.0.borrow_mut();
        let count = fences.map(|fence| deferred_waits.join(fence)).count();
        count > 0
    }

    /// What the stream comes after once it has waited, as far as that is known now.
    pub(super) fn count_in(&self, clock: &mut Clock) {
        clock.join_all(&self.0.borrow());
    }
}

impl Driver {
    /// Submits the waits, and says of each loan behind which point of the stream it is safe.
    ///
    /// # Errors
    /// When the device cannot; nothing may be lent then.
    pub(super) fn wait_for_all<'a>(
        &self,
        lane: &Lane,
        deferred_waits: &DeferredWaits,
        allocations: impl Iterator<Item = (&'a mut Allocation, &'a Fences)>,
    ) -> Result<(), DeviceError> {
        let has_waited = self.submit(lane, deferred_waits)?;
        let is_own = |fence: Fence| fence.stream == lane.id;
        let mut point = None;
        for (allocation, fences) in allocations {
            if allocation.source == Source::DeviceWait && !has_waited {
                // It was complete by then.
                allocation.source = Source::Ordered;
            }
            if !fences.is_empty() && !fences.single().is_some_and(is_own) {
                // A point from now on: behind the waits.
                allocation.after = *point.get_or_insert_with(|| self.present_point(lane));
            }
        }
        Ok(())
    }

    /// One wait for each stream. Says whether there was one.
    fn submit(&self, lane: &Lane, deferred_waits: &DeferredWaits) -> Result<bool, DeviceError> {
        let lanes = self.lanes();
        let mut has_waited = false;
        for fence in deferred_waits.0.borrow().iter() {
            if let Some(donor) = find(&lanes, fence) {
                has_waited |= self.wait_for(lane, donor, fence.ticket)?;
            }
        }
        Ok(has_waited)
    }
}
