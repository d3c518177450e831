//! Events: the name of each, and its last record.
//!
//! This module does not know whether a point is complete.

use super::names::Names;
use super::schedule::Point;
use weirpool_device::{DeviceErrorKind, DeviceId, RawEvent};

/// The state of an event after a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    /// The event completes with this point, and a stream that waits for the event comes after it.
    pub(super) point: Point,
    /// The error that every query of the event reports.
    pub(super) fails: Option<DeviceErrorKind>,
}

#[derive(Debug)]
pub(super) struct Events {
    /// The number of the device, and the last record.
    names: Names<(u32, Option<Recorded>)>,
}

impl Events {
    pub(super) fn new(device: DeviceId) -> Self {
        Self {
            names: Names::new(device),
        }
    }

    pub(super) fn create(&mut self, device: u32) -> RawEvent {
        RawEvent(self.names.insert((device, None)))
    }

    /// Returns whether there was such an event.
    pub(super) fn destroy(&mut self, event: RawEvent) -> bool {
        self.names.remove(event.0).is_some()
    }

    /// Returns the last record, if there is any; `None` if there is no such event.
    pub(super) fn last(&self, event: RawEvent) -> Option<Option<Recorded>> {
        self.names.get(event.0).map(|(_, last)| *last)
    }

    /// Returns the number of the device that created an event.
    pub(super) fn device_of(&self, event: RawEvent) -> Option<u32> {
        self.names.get(event.0).map(|(device, _)| *device)
    }

    /// Replaces the last record. An unknown event is ignored.
    pub(super) fn record(&mut self, event: RawEvent, recorded: Recorded) {
        if let Some((_, last)) = self.names.get_mut(event.0) {
            *last = Some(recorded);
        }
    }
}
