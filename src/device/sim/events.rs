//! Events: a name each, and the point that was recorded last.
//!
//! Knows nothing of whether a point is complete.

use super::names::Names;
use super::schedule::Point;
use crate::device::{DeviceId, RawEvent};

#[derive(Debug)]
pub(super) struct Events {
    names: Names<Option<Point>>,
}

impl Events {
    pub(super) fn new(device: DeviceId) -> Self {
        Self {
            names: Names::new(device),
        }
    }

    pub(super) fn create(&mut self) -> RawEvent {
        RawEvent(self.names.insert(None))
    }

    /// Answers whether there was such an event.
    pub(super) fn destroy(&mut self, event: RawEvent) -> bool {
        self.names.remove(event.0).is_some()
    }

    /// The point that was recorded last, if any was; nothing when there is no such event.
    pub(super) fn last(&self, event: RawEvent) -> Option<Option<Point>> {
        self.names.get(event.0).copied()
    }

    /// Replaces what was recorded before. An unknown event is ignored.
    pub(super) fn record(&mut self, event: RawEvent, point: Point) {
        if let Some(last) = self.names.get_mut(event.0) {
            *last = Some(point);
        }
    }
}
