//! Filling blocks when they are granted and freed, in pools that do so. Other blocks do not come here.

use super::{Caller, Observers, Registration};
use crate::device::DeviceError;
use crate::engine::Filling;
use crate::id::Ticket;
use crate::lane::{Lane, Use};
use crate::sync::Arc;
use std::panic::Location;

impl Registration {
    /// Fills a block that was granted to the stream behind the point `after`, as the caller or the pool asks. Returns
    /// the point that a further stream must come after.
    ///
    /// # Errors
    /// Returns an error if the device cannot; the caller still owns the block.
    pub(crate) fn fill_granted(
        &self,
        after: Ticket,
        block: Use,
        caller: Caller,
    ) -> Result<Ticket, DeviceError> {
        let pools = || self.observers.as_ref()?.fills.on_allocate;
        let Some(fill) = caller.fill.or_else(pools) else {
            return Ok(after);
        };
        let filling = Filling {
            engine: &self.service.engine,
            address: block.address,
            bytes: block.bytes,
            fill,
            is_captured: caller.is_captured,
            location: caller.location,
        };
        filling.granted(&self.lane, after, caller.fill.is_some())
    }

    /// Fills a block that is about to be freed, behind the point `earlier` of its home stream, if there is one. `lanes`
    /// are the streams that it was used on. In the capture that the block was allocated in, the fill is captured.
    /// Returns whether the first of them now comes after all uses.
    pub(crate) fn fill_ending(
        &self,
        observers: &Observers,
        lanes: &[Arc<Lane>],
        earlier: Option<Ticket>,
        block: Use,
        is_captured: bool,
        location: Option<&'static Location<'static>>,
    ) -> bool {
        // A drop has no location of its own: the pool's counts.
        let location = location.unwrap_or(Location::caller());
        observers.fills.on_free.is_some_and(|fill| {
            let filling = Filling {
                engine: &self.service.engine,
                address: block.address,
                bytes: block.bytes,
                fill,
                is_captured,
                location,
            };
            let earlier = earlier.map(|after| (&*self.lane, after));
            filling.freed(lanes, earlier)
        })
    }
}
