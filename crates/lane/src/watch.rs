//! Watches on markers, as owned values.

use crate::device::WatchId;
use crate::marker::Marker;
use crate::sync::{Arc, assert_unlocked};
use std::task::Waker;

/// A watch on a marker's event; cancelled when dropped. It keeps the marker, so that the event is not recorded again.
#[derive(Debug)]
#[must_use = "dropping a watch cancels it"]
pub struct Watch {
    id: WatchId,
    marker: Arc<Marker>,
}

impl Watch {
    /// Calls `waker` once when the event completes or fails; immediately if it already has.
    pub fn new(marker: Arc<Marker>, waker: &Waker) -> Self {
        assert_unlocked("watch");
        let (device, event) = marker.event().names();
        // SAFETY: the marker, which this watch holds, keeps the event; dropping the watch cancels it first.
        #[allow(unsafe_code, reason = "device call on an event that the marker keeps")]
        let id = unsafe { device.watch(event, waker) };
        Self { id, marker }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.marker.event().names().0.unwatch(self.id);
    }
}
