//! Clocks outside the device that it can follow: real time, and tokio's clock.

use super::builder::Clock;
use std::time::{Duration, Instant};
#[cfg(feature = "tokio")]
use weirpool_device::plain::OnceLock;

/// A clock outside the device. It counts from the creation of the device.
#[derive(Debug)]
pub(super) enum OuterClock {
    Wall(Instant),
    #[cfg(feature = "tokio")]
    Tokio(TokioClock),
}

impl OuterClock {
    /// Returns the clock that a device follows, if it follows one.
    ///
    /// # Panics
    /// Panics for tokio's clock outside a tokio runtime.
    pub(super) fn of(clock: Clock) -> Option<Self> {
        match clock {
            Clock::Wall => Some(Self::Wall(Instant::now())),
            #[cfg(feature = "tokio")]
            Clock::Tokio => Some(Self::Tokio(TokioClock::new())),
            Clock::Virtual | Clock::Manual => None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Wall(origin) => origin.elapsed(),
            #[cfg(feature = "tokio")]
            Self::Tokio(clock) => clock.elapsed(),
        }
    }
}

/// The clock of a tokio runtime, which tests can pause and advance. Once the runtime has ended, its clock goes on in real
/// time: a paused one would stand still for ever.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(super) struct TokioClock {
    pub(super) runtime: tokio::runtime::Handle,
    origin: tokio::time::Instant,
    /// The time of the clock when the end of the runtime was noticed, and when that was.
    end: OnceLock<(Duration, Instant)>,
}

#[cfg(feature = "tokio")]
impl TokioClock {
    fn new() -> Self {
        let runtime = tokio::runtime::Handle::try_current();
        Self {
            runtime: runtime
                .expect("`Clock::Tokio` needs a tokio runtime: build the device inside one"),
            origin: tokio::time::Instant::now(),
            end: OnceLock::new(),
        }
    }

    /// Notes that the runtime has ended.
    pub(super) fn mark_ended(&self) {
        let now = self.elapsed();
        let _ = self.end.set((now, Instant::now()));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    fn elapsed(&self) -> Duration {
        if let Some((then, since)) = self.end.get() {
            return then.saturating_add(since.elapsed());
        }
        // Each runtime has its own clock, and the device may be called on any thread.
        let _entered = self.runtime.enter();
        self.origin.elapsed()
    }
}
