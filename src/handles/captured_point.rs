//! A point in a captured stream.

use super::{CaptureClock, GraphShare, GraphUses, Registration, Route};
use crate::device::{CapturedWork, DeviceError};
use crate::engine::{Change, ordering};
use crate::lane::{Lane, refused};
use crate::sync::{Arc, plain};

/// A point in a captured stream: behind the work that it was given so far. Other streams can be ordered after it while the
/// capture goes on; it cannot be awaited. It does not keep the capture's memory.
#[derive(Debug)]
pub(crate) struct CapturedPoint {
    share: plain::Weak<GraphShare>,
    clock: plain::Weak<CaptureClock>,
    /// What the graph of the capture will use.
    uses: plain::Weak<GraphUses>,
    registration: Arc<Registration>,
    work: Vec<CapturedWork>,
}

impl CapturedPoint {
    /// Returns the [present](Self::present) point of a stream, if it is being captured.
    pub(crate) fn of(registration: &Arc<Registration>) -> Result<Option<Self>, DeviceError> {
        let route = Route::of(registration);
        let present = route.map(|route| Self::present(&route, registration));
        present.transpose()
    }

    /// Returns the present point of a stream of the capture that a route leads to. Memory that was freed there so far can be reused by streams
    /// that are ordered after the point.
    ///
    /// # Errors
    /// Returns an error if the device cannot tell.
    pub(crate) fn present(
        of: &Route,
        registration: &Arc<Registration>,
    ) -> Result<Self, DeviceError> {
        let work = of.clock.close(&registration.lane);
        Ok(Self {
            share: plain::Arc::downgrade(&of.share),
            clock: plain::Arc::downgrade(&of.clock),
            uses: plain::Arc::downgrade(&of.uses),
            registration: registration.clone(),
            work: work.ok_or_else(|| refused("record"))?,
        })
    }

    /// Makes a stream come after the point. A stream that is not being captured joins the capture.
    ///
    /// # Errors
    /// Returns an error if the capture is over, if the stream is of another device or part of another capture, or if it
    /// cannot be captured.
    pub(crate) fn order(&self, on: &Arc<Registration>) -> Result<(), DeviceError> {
        let (earlier, later) = (&self.registration, &on.lane);
        if later.id == earlier.lane.id {
            return Ok(());
        }
        let (Some(share), Some(uses), Some(clock)) = (
            self.share.upgrade(),
            self.uses.upgrade(),
            self.clock.upgrade(),
        ) else {
            return Err(refused("wait"));
        };
        let is_of = |route: &Route| plain::Arc::ptr_eq(&route.clock, &clock);
        // An external stream that is not routed any more may be gone.
        let may_ask = !earlier.lane.is_external || Route::of(earlier).as_ref().is_some_and(is_of);
        let is_beside = earlier.stream_device().id() == on.stream_device().id();
        // The names of work belong to this capture alone.
        if !may_ask || !is_beside || later.is_host() || clock.frontier(&earlier.lane).is_none() {
            return Err(refused("wait"));
        }
        let joins = match Route::of(on) {
            Some(route) if is_of(&route) => false,
            Some(_) => return Err(refused("wait")),
            None => true,
        };
        if joins {
            if clock.frontier(later).is_none() {
                // Memory that it freed before is available to others, and its earlier tasks can be awaited.
                ordering::mark(&on.service.engine, later)?;
                on.service.publish(Change::Memory);
            }
            Route::begin(on, &share, &uses, &clock)?;
        }
        let ordered = self.come_after(&clock, later);
        if joins && (ordered.is_err() || !uses.keep_joined(on)) {
            Route::end(on);
        }
        ordered
    }

    fn come_after(&self, clock: &CaptureClock, later: &Lane) -> Result<(), DeviceError> {
        let _visit = clock.visit().ok_or_else(|| refused("wait"))?;
        clock.call(later, "wait", |captures, stream| {
            // SAFETY: the lanes keep their streams' owners; the work is of the capture that the point's stream is part of.
            #[allow(unsafe_code, reason = "device call on the lanes' streams")]
            unsafe {
                captures.come_after(stream, self.registration.lane.raw, &self.work)
            }
        })
    }
}
