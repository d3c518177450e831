//! The point of a stream behind submitted work.

use crate::device::DeviceError;
use crate::engine::ordering;
use crate::fault::injected;
use crate::handles::Registration;
use crate::id::Ticket;
use crate::lane::Marker;
use crate::queue::Passage;
use crate::sync::Arc;

/// A point in a stream that may have no event yet. The event is recorded when the point is awaited, or when another
/// stream is ordered after it; until then it costs one lock of the lane's, and no device call.
#[derive(Debug)]
pub struct Point {
    pub(super) registration: Arc<Registration>,
    ticket: Ticket,
}

impl Point {
    /// Returns the point behind all work that the stream was given so far.
    pub(super) fn present(registration: &Arc<Registration>) -> Self {
        let engine = &registration.service.engine;
        // The ticket is open after the work was submitted, so its event will be recorded behind the work.
        let mut ticket = ordering::present_point(engine, &registration.lane);
        if injected("task-before-the-open-ticket") {
            ticket.0 -= 1;
        }
        Self {
            ticket,
            registration: registration.clone(),
        }
    }

    /// Returns a marker behind the point, recorded now if there is none; `None` if the device has passed the point.
    ///
    /// # Errors
    /// Returns an error if the device cannot record.
    pub(super) fn marker(&self) -> Result<Option<Arc<Marker>>, DeviceError> {
        let Registration { service, lane, .. } = &*self.registration;
        ordering::marker_for(
            &service.engine.streams,
            &service.engine.shared,
            lane,
            self.ticket,
        )
    }

    /// Returns a future's state that waits for the point.
    pub(super) fn passage(&self) -> Passage {
        self.registration.passage(self.ticket)
    }
}
