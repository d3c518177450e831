//! A pause on the device's clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use weirpool::device::{AlarmId, Device};

/// Is ready when the device's clock reaches a time.
#[derive(Debug)]
pub(crate) struct Sleep {
    device: Arc<dyn Device>,
    until: Duration,
    alarm: Option<AlarmId>,
}

impl Sleep {
    pub(crate) fn after(device: &Arc<dyn Device>, pause: Duration) -> Self {
        Self {
            device: device.clone(),
            until: device.now().saturating_add(pause),
            alarm: None,
        }
    }

    fn cancel(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            self.device.cancel_alarm(alarm);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.device.now() >= self.until {
            return Poll::Ready(());
        }
        let alarm = self.device.set_alarm(self.until, context.waker());
        self.alarm = Some(alarm);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
