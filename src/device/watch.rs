//! Watches on events and copies of a device, as owned values.

use super::{Device, RawEvent, Transfer, WatchId};
use crate::sync::{assert_unlocked, plain::Arc};
use std::task::Waker;

/// The owner of an event, which a [`Watch`] keeps alive.
///
/// # Safety
/// [`event`](Self::event) returns the same event and device for as long as the owner lives, and the event is neither
/// destroyed nor recorded again before the owner is dropped.
pub(crate) unsafe trait OwnsEvent {
    /// Returns the event and its device.
    fn event(&self) -> (&dyn Device, RawEvent);
}

/// A watch on an event; cancelled when dropped. It keeps the event's owner.
#[derive(Debug)]
#[must_use = "dropping a watch cancels it"]
pub(crate) struct Watch<O: OwnsEvent> {
    id: WatchId,
    owner: crate::sync::Arc<O>,
}

impl<O: OwnsEvent> Watch<O> {
    /// Calls `waker` once when the event's last record completes or fails; immediately if it already has.
    pub(crate) fn new(owner: crate::sync::Arc<O>, waker: &Waker) -> Self {
        assert_unlocked("watch");
        let (device, event) = owner.event();
        // SAFETY: `owner`, which this watch holds, keeps the event; dropping the watch cancels it first.
        let id = unsafe { device.watch(event, waker) };
        Self { id, owner }
    }
}

impl<O: OwnsEvent> Drop for Watch<O> {
    fn drop(&mut self) {
        self.owner.event().0.unwatch(self.id);
    }
}

/// A copy between host and device, and a watch on it.
pub(crate) struct WatchedTransfer {
    device: Arc<dyn Device>,
    watch: Option<WatchId>,
    transfer: Box<dyn Transfer>,
}

impl WatchedTransfer {
    /// Wraps a copy of `device`.
    pub(crate) fn new(device: &Arc<dyn Device>, transfer: Box<dyn Transfer>) -> Self {
        Self {
            device: device.clone(),
            watch: None,
            transfer,
        }
    }

    /// Returns the copy, whose watch ends.
    pub(crate) fn unwatched(&mut self) -> &mut dyn Transfer {
        if let Some(watch) = self.watch.take() {
            self.device.unwatch(watch);
        }
        &mut *self.transfer
    }

    /// Calls `waker` once when the copy completes or fails; immediately if it already has.
    pub(crate) fn watch(&mut self, waker: &Waker) {
        assert_unlocked("watch");
        let event = self.unwatched().event();
        // SAFETY: the event lives as long as the transfer, which is dropped after its watch is cancelled.
        self.watch = Some(unsafe { self.device.watch(event, waker) });
    }
}

impl Drop for WatchedTransfer {
    fn drop(&mut self) {
        self.unwatched();
    }
}
