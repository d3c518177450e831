//! Clocks outside the device that it can follow: real time, and tokio's clock.

use super::builder::Clock;
use std::time::{Duration, Instant};

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

/// The clock of a tokio runtime, which tests can pause and advance.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(super) struct TokioClock {
    pub(super) runtime: tokio::runtime::Handle,
    origin: tokio::time::Instant,
}

#[cfg(feature = "tokio")]
impl TokioClock {
    fn new() -> Self {
        let runtime = tokio::runtime::Handle::try_current();
        Self {
            runtime: runtime
                .expect("`Clock::Tokio` needs a tokio runtime: build the device inside one"),
            origin: tokio::time::Instant::now(),
        }
    }

    fn elapsed(&self) -> Duration {
        // Each runtime has its own clock, and the device may be called on any thread.
        let _entered = self.runtime.enter();
        self.origin.elapsed()
    }
}
