//! Blocks that are filled at their beginning and their end, where the pool was asked to. Out of the way of
//! those that are not.

use super::{Caller, Observers, Registration};
use crate::device::DeviceError;
use crate::driver::Filling;
use crate::id::Ticket;
use crate::lane::{Lane, Use};
use crate::sync::Arc;
use std::panic::Location;

impl Registration {
    /// Fills a block that was granted to the stream behind the point `after`, as the caller or the pool asks. Returns the
    /// point that a further stream must come after.
    ///
    /// # Errors
    /// When the device cannot; the block is the caller's still.
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
            streams: &self.service.driver,
            address: block.address,
            bytes: block.bytes,
            fill,
            location: caller.location,
        };
        filling.granted(&self.lane, after, caller.fill.is_some())
    }

    /// A block of the stream is about to be freed, and was used on these: fills it, behind that point of the
    /// stream, if there is one. Says whether the first of them comes after all of that now.
    pub(crate) fn fill_ending(
        &self,
        observers: &Observers,
        lanes: &[Arc<Lane>],
        earlier: Option<Ticket>,
        block: Use,
        location: Option<&'static Location<'static>>,
    ) -> bool {
        // Of a drop nobody knows the place: the pool's own it is.
        let location = location.unwrap_or(Location::caller());
        observers.fills.on_free.is_some_and(|fill| {
            let filling = Filling {
                streams: &self.service.driver,
                address: block.address,
                bytes: block.bytes,
                fill,
                location,
            };
            let earlier = earlier.map(|after| (&*self.lane, after));
            filling.freed(lanes, earlier)
        })
    }
}
