//! Time by the device's clock. It needs no runtime's timer, so any executor works.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use weirpool::device::{AlarmId, Device};

/// The time since the service opened.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    device: Arc<dyn Device>,
    opened: Duration,
}

impl Timer {
    /// Creates the timer of a service that opens now.
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        let opened = device.now();
        Self { device, opened }
    }

    pub(crate) fn now(&self) -> Duration {
        self.device.now().saturating_sub(self.opened)
    }

    pub(crate) fn sleep_until(&self, at: Duration) -> Sleep {
        Sleep {
            device: self.device.clone(),
            at: self.opened + at,
            alarm: None,
        }
    }

    pub(crate) fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_until(self.now() + time)
    }
}

/// The future of [`Timer::sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Sleep {
    device: Arc<dyn Device>,
    at: Duration,
    alarm: Option<AlarmId>,
}

impl Sleep {
    fn replace_alarm(&mut self, alarm: Option<AlarmId>) {
        if let Some(old) = std::mem::replace(&mut self.alarm, alarm) {
            self.device.cancel_alarm(old);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_early = self.device.now() < self.at;
        let alarm = is_early.then(|| self.device.set_alarm(self.at, context.waker()));
        self.replace_alarm(alarm);
        if is_early {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.replace_alarm(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool::device::sim::SimDevice;

    #[test]
    fn sleep_ends_at_the_time_since_the_opening() {
        let sim = SimDevice::new();
        sim.block_on(sim.sleep(Duration::from_secs(5)));
        let timer = Timer::new(Arc::new(sim.clone()));
        assert_eq!(timer.now(), Duration::ZERO);
        sim.block_on(async {
            timer.sleep_until(Duration::from_millis(3)).await;
            assert_eq!(timer.now(), Duration::from_millis(3));
            timer.sleep(Duration::from_millis(2)).await;
            timer.sleep_until(Duration::from_millis(1)).await;
        });
        assert_eq!(timer.now(), Duration::from_millis(5));
    }
}
