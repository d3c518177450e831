//! Whether streams have anything to do.

use super::Service;
use crate::device::DeviceError;
use crate::lane::{Lane, Marker};
use crate::measure::Streams;
use crate::sync::Arc;

/// How often a stream is asked: an idle one gets to a point within a microsecond.
const ASKED: usize = 16;

/// A point of a stream.
#[derive(Debug)]
pub(super) struct Point {
    lane: Arc<Lane>,
    marker: Arc<Marker>,
}

impl Point {
    pub(super) fn marker(&self) -> &Arc<Marker> {
        &self.marker
    }
}

impl Service {
    /// A point that one of the streams is given now, and does not get to in the moment that an idle one takes.
    ///
    /// # Errors
    /// What the device says instead: a stream may be one that is being captured.
    pub(super) fn busy_point(&self, streams: Streams) -> Result<Option<Point>, DeviceError> {
        let lanes = self.driver.lanes();
        for lane in lanes.iter().filter(|lane| streams.contains(lane.id)) {
            let Some(marker) = self.present_marker(lane)? else {
                continue;
            };
            let point = Point {
                marker,
                lane: lane.clone(),
            };
            let mut has_passed = false;
            for _ in 0..ASKED {
                has_passed = has_passed || self.has_passed(&point)?;
            }
            if !has_passed {
                return Ok(Some(point));
            }
        }
        Ok(None)
    }

    /// A point behind what the stream was given so far; of an external one, which may be gone, behind its latest
    /// free, if that is not complete.
    fn present_marker(&self, lane: &Lane) -> Result<Option<Arc<Marker>>, DeviceError> {
        if lane.is_external {
            return Ok(lane.timeline.newest());
        }
        self.driver.mark(lane).map(Some)
    }

    /// # Errors
    /// What the device says instead of an answer.
    pub(super) fn has_passed(&self, point: &Point) -> Result<bool, DeviceError> {
        self.driver.has_passed(&point.lane, point.marker.ticket)
    }
}
