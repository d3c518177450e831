//! How many bytes are freed between two events of a stream.
//!
//! Recording an event takes as long as several allocations. Where frees follow each other so closely that there would
//! be an event every few microseconds, more bytes may be freed before the next one. The bound returns to its minimum
//! once events are far apart, or once another stream wants the freed memory.

use crate::sync::plain::{AtomicU64, Ordering};
use std::time::Duration;

/// Events that follow within this time are close.
const CLOSE: Duration = Duration::from_micros(8);

/// Events that follow later than this are apart. In between, the bound stays as it is.
const APART: Duration = Duration::from_micros(64);

/// The bound widens by at most this factor.
const WIDEST: u64 = 8;

/// See the [module](self).
///
/// It decides when to seal, which may happen at any time: an outdated value costs at most a few events, and models need
/// not see the atomics.
#[derive(Debug)]
pub struct Spacing {
    /// Unsealed bytes above which a free seals.
    bound: AtomicU64,
    /// When a free sealed last, by the device's clock, in nanoseconds.
    sealed_at: AtomicU64,
    minimum: u64,
    maximum: u64,
}

impl Spacing {
    /// A free seals above `bound` unsealed bytes; above more, if the bound may widen.
    pub(super) fn new(bound: u64, may_widen: bool) -> Self {
        let factor = if may_widen { WIDEST } else { 1 };
        Self {
            bound: AtomicU64::new(bound),
            sealed_at: AtomicU64::new(0),
            minimum: bound,
            maximum: bound.saturating_mul(factor),
        }
    }

    #[inline(always)]
    pub(super) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Returns whether events are close to each other.
    pub(super) fn is_close(&self) -> bool {
        self.bound() > self.minimum
    }

    /// Notes that a free sealed.
    pub fn record_sealed(&self, at: Duration) {
        if self.maximum == self.minimum {
            return;
        }
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let before = self.sealed_at.swap(at, Ordering::Relaxed);
        let since = Duration::from_nanos(at.saturating_sub(before));
        if since < CLOSE {
            let wider = self.bound().saturating_mul(2).min(self.maximum);
            self.bound.store(wider, Ordering::Relaxed);
        } else if since > APART {
            self.reset();
        }
    }

    /// Returns the bound to its minimum: another stream wants the freed memory soon.
    pub fn reset(&self) {
        if self.is_close() {
            self.bound.store(self.minimum, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 4;

    /// Seals at these times, in microseconds, and returns the bound.
    fn after(spacing: &Spacing, sealed: impl IntoIterator<Item = u64>) -> u64 {
        for at in sealed {
            spacing.record_sealed(Duration::from_micros(at));
        }
        spacing.bound()
    }

    fn widening() -> Spacing {
        let spacing = Spacing::new(LEAST, true);
        after(&spacing, [1_000]);
        spacing
    }

    #[test]
    fn bound_doubles_while_events_are_close_up_to_eight_times() {
        let spacing = widening();
        assert!(!spacing.is_close());
        let bounds = [1_007, 1_014, 1_021, 1_028, 1_035].map(|at| after(&spacing, [at]));
        assert_eq!(bounds, [8, 16, 32, 32, 32]);
        assert!(spacing.is_close());
    }

    #[test]
    fn bound_is_unchanged_between_close_and_apart() {
        let spacing = widening();
        assert_eq!(after(&spacing, [1_008, 1_072, 1_136]), LEAST);
        assert_eq!(after(&spacing, [1_137, 1_145, 1_209]), 2 * LEAST);
    }

    #[test]
    fn bound_returns_to_its_minimum_once_events_are_apart_or_it_is_reset() {
        let spacing = widening();
        assert_eq!(after(&spacing, [1_001, 1_002, 1_067]), LEAST);
        assert_eq!(after(&spacing, [1_068, 1_069]), 4 * LEAST);
        spacing.reset();
        assert_eq!((spacing.bound(), spacing.is_close()), (LEAST, false));
        assert_eq!(after(&spacing, [1_070]), 2 * LEAST, "and widens again");
    }

    #[test]
    fn time_that_runs_backwards_counts_as_close() {
        let spacing = widening();
        assert_eq!(after(&spacing, [900]), 2 * LEAST);
    }

    #[test]
    fn exact_bound_never_widens() {
        for bound in [0, LEAST, u64::MAX] {
            let spacing = Spacing::new(bound, false);
            assert_eq!(after(&spacing, [1, 2, 3]), bound);
            assert!(!spacing.is_close());
        }
        for bound in [0, u64::MAX] {
            let spacing = Spacing::new(bound, true);
            assert_eq!(after(&spacing, [1, 2, 3]), bound, "cannot widen");
        }
    }
}
