//! Events of a device as owned values, watches on them, and alarms.

use super::{AlarmId, Device, DeviceError, RawEvent, RawStream, Transfer, WatchId};
use crate::sync::{assert_unlocked, plain::Arc};
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// An event of a device; destroyed when dropped.
pub(crate) struct Event {
    device: Arc<dyn Device>,
    raw: RawEvent,
}

impl Event {
    /// Makes an event that was never recorded.
    ///
    /// # Errors
    /// Returns an error if the device call fails.
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<Self, DeviceError> {
        assert_unlocked("create_event");
        let raw = device.create_event()?;
        let device = device.clone();
        Ok(Self { device, raw })
    }

    /// Records the event behind everything that was submitted to `stream` so far.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the event keeps its earlier record.
    ///
    /// # Safety
    /// The stream is one of the event's device, and usable during the call.
    pub(crate) unsafe fn record(&self, stream: RawStream) -> Result<(), DeviceError> {
        assert_unlocked("record");
        // SAFETY: the event is destroyed only when `self` is dropped; the caller guarantees the stream.
        unsafe { self.device.record(self.raw, stream) }
    }

    /// Returns whether the work behind the last record is complete.
    ///
    /// # Errors
    /// Returns the error of the work or of the device.
    pub(crate) fn is_complete(&self) -> Result<bool, DeviceError> {
        assert_unlocked("query");
        // SAFETY: the event is destroyed only when `self` is dropped.
        unsafe { self.device.query(self.raw) }
    }

    /// Makes later work of a stream of `device` start only after the last record.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the stream does not wait then.
    ///
    /// # Safety
    /// The stream is one of `device`, which is the event's or beside it, and usable during the call.
    pub(crate) unsafe fn delay(
        &self,
        device: &dyn Device,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        assert_unlocked("wait");
        // SAFETY: the event is destroyed only when `self` is dropped; the caller guarantees the stream.
        unsafe { device.wait(stream, self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // The device cleans up an event that cannot be destroyed.
        // SAFETY: nothing can name the event any more: each watch of it holds its owner.
        let _ = unsafe { self.device.destroy_event(self.raw) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// The owner of an event, which a [`Watch`] keeps alive.
pub(crate) trait OwnsEvent {
    /// Returns the event: the same one for as long as the owner lives.
    fn event(&self) -> &Event;
}

/// A watch on an event; cancelled when dropped. It keeps the event's owner, so that the event is neither destroyed
/// nor recorded again while it is watched.
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
        let Event { device, raw } = owner.event();
        // SAFETY: `owner` keeps the event until this watch is dropped, which cancels it first.
        let id = unsafe { device.watch(*raw, waker) };
        Self { id, owner }
    }
}

impl<O: OwnsEvent> Drop for Watch<O> {
    fn drop(&mut self) {
        self.owner.event().device.unwatch(self.id);
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

/// An alarm on the device's clock; cancelled when dropped.
#[derive(Debug)]
#[must_use = "dropping an alarm cancels it"]
pub(crate) struct Alarm {
    device: Arc<dyn Device>,
    id: AlarmId,
}

impl Alarm {
    /// Calls `waker` once, at the time `at` of the device's clock or soon after.
    pub(crate) fn new(device: &Arc<dyn Device>, at: Duration, waker: &Waker) -> Self {
        assert_unlocked("set_alarm");
        Self {
            id: device.set_alarm(at, waker),
            device: device.clone(),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.device.cancel_alarm(self.id);
    }
}
