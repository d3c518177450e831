//! Moving the device's time, and sleeping in it.

use super::SimDevice;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use weirpool_device::{AlarmId, Device};

/// Moving time by hand.
///
/// All of these methods panic inside the body of an operation and on a device that follows the wall clock or tokio's,
/// and resume the panic of a body if there is one.
impl SimDevice {
    /// Returns the time of the device's clock, since the device was built.
    pub fn now(&self) -> Duration {
        self.engine.now()
    }

    /// Does everything due within `by`, in order, and stops exactly there. Tasks are woken at the end, not on the way.
    ///
    /// # Panics
    /// Panics on the wall clock and tokio's, and inside the body of an operation. Resumes the panic of a body, and
    /// panics with violations that the ordering checker found.
    #[track_caller]
    pub fn advance(&self, by: Duration) {
        self.engine
            .move_to(|state| Some(state.schedule.now().saturating_add(by)));
    }

    /// Moves to the next thing due (the end of an operation, a delayed start, an alarm) and does everything due then.
    /// Returns false, and does not move, if nothing is due.
    ///
    /// # Panics
    /// Panics on the wall clock and tokio's, and inside the body of an operation. Resumes the panic of a body, and
    /// panics with violations that the ordering checker found.
    #[track_caller]
    pub fn advance_to_next(&self) -> bool {
        self.engine.move_to(|state| state.next_due())
    }

    /// Moves time until nothing is due.
    ///
    /// # Panics
    /// Panics on the wall clock and tokio's, and inside the body of an operation. Resumes the panic of a body, and
    /// panics with violations that the ordering checker found.
    #[track_caller]
    pub fn advance_to_end(&self) {
        while self.advance_to_next() {}
    }

    /// Returns a future that is ready when `time` has passed on the device's clock.
    ///
    /// # Cancel safety
    /// Dropping it cancels its alarm.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(time))
    }

    /// Returns a future that is ready at `at`, on the device's clock.
    ///
    /// # Cancel safety
    /// Dropping it cancels its alarm.
    pub fn sleep_until(&self, at: Duration) -> Sleep {
        Sleep {
            device: self.clone(),
            at,
            alarm: None,
        }
    }
}

/// The future of [`SimDevice::sleep`].
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    device: SimDevice,
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
        let left = self.device.now() < self.at;
        let alarm = left.then(|| self.device.set_alarm(self.at, context.waker()));
        self.replace_alarm(alarm);
        if left { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.replace_alarm(None);
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
