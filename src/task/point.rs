//! The point of a stream behind submitted work.

use crate::device::DeviceError;
use crate::engine::ordering;
use crate::handles::CapturedPoint;
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
    /// Where the point is in the graph, if the stream is being captured.
    captured: Option<Box<CapturedPoint>>,
}

impl Point {
    /// Returns the point behind all work that the stream was given so far.
    pub(super) fn present(registration: &Arc<Registration>) -> Self {
        let engine = &registration.service.engine;
        // The ticket is open after the work was submitted, so its event will be recorded behind the work.
        let ticket = ordering::present_point(engine, &registration.lane);
        Self {
            ticket,
            registration: registration.clone(),
            // Without it, nothing is ordered after the point.
            captured: CapturedPoint::of(registration).ok().flatten().map(Box::new),
        }
    }

    /// Makes a stream come after the point in the graph, if it is in one. Returns whether it is.
    ///
    /// # Errors
    /// Returns an error if the capture is over, or the stream cannot join it.
    pub(super) fn order_captured(&self, on: &Arc<Registration>) -> Result<bool, DeviceError> {
        let ordered = self.captured.as_ref().map(|point| point.order(on));
        ordered.transpose().map(|ordered| ordered.is_some())
    }

    /// Returns a marker behind the point, recorded now if there is none; `None` if the device has passed the point.
    ///
    /// # Errors
    /// Returns an error if the device cannot record.
    pub(super) fn marker(&self) -> Result<Option<Arc<Marker>>, DeviceError> {
        let Registration { service, lane, .. } = &*self.registration;
        ordering::marker_for(&service.engine, lane, self.ticket)
    }

    /// Returns a future's state that waits for the point.
    pub(super) fn passage(&self) -> Passage {
        self.registration.passage(self.ticket)
    }
}
