//! Watches and alarms as guards: dropped, they are taken back.

use super::{AlarmId, Device, RawEvent, WatchId};
use crate::sync::plain::Arc;
use std::task::Waker;
use std::time::Duration;

/// A watch on an event, taken back when dropped.
#[derive(Debug)]
#[must_use = "dropping a watch takes it back"]
pub(crate) struct Watch {
    device: Arc<dyn Device>,
    id: WatchId,
}

impl Watch {
    pub(crate) fn new(device: &Arc<dyn Device>, event: RawEvent, waker: &Waker) -> Self {
        crate::sync::assert_unlocked("watch");
        Self {
            id: device.watch(event, waker),
            device: device.clone(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.device.unwatch(self.id);
    }
}

/// An alarm on the device's clock, taken back when dropped.
#[derive(Debug)]
#[must_use = "dropping an alarm takes it back"]
pub(crate) struct Alarm {
    device: Arc<dyn Device>,
    id: AlarmId,
}

impl Alarm {
    pub(crate) fn new(device: &Arc<dyn Device>, at: Duration, waker: &Waker) -> Self {
        crate::sync::assert_unlocked("set_alarm");
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
