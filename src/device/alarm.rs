//! Alarms on a device's clock.

use super::{AlarmId, Device};
use crate::sync::plain::Arc;
use std::task::Waker;
use std::time::Duration;

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
