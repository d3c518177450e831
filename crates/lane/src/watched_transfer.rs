//! Watches on copies of a device, as owned values.

use crate::device::{Device, Transfer, WatchId};
use crate::sync::{assert_unlocked, plain::Arc};
use std::task::Waker;

/// A copy between host and device, and a watch on it.
pub struct WatchedTransfer {
    device: Arc<dyn Device>,
    watch: Option<WatchId>,
    transfer: Box<dyn Transfer>,
}

impl WatchedTransfer {
    /// Wraps a copy of `device`.
    pub fn new(device: &Arc<dyn Device>, transfer: Box<dyn Transfer>) -> Self {
        Self {
            device: device.clone(),
            watch: None,
            transfer,
        }
    }

    /// Returns the copy, whose watch ends.
    pub fn unwatched(&mut self) -> &mut dyn Transfer {
        if let Some(watch) = self.watch.take() {
            self.device.unwatch(watch);
        }
        &mut *self.transfer
    }

    /// Calls `waker` once when the copy completes or fails; immediately if it already has.
    pub fn watch(&mut self, waker: &Waker) {
        assert_unlocked("watch");
        let event = self.unwatched().event();
        // SAFETY: the event lives as long as the transfer, which is dropped after its watch is cancelled.
        #[allow(unsafe_code, reason = "device call on the transfer's event")]
        let watch = unsafe { self.device.watch(event, waker) };
        self.watch = Some(watch);
    }
}

impl Drop for WatchedTransfer {
    fn drop(&mut self) {
        self.unwatched();
    }
}
