//! How far apart the events of a stream's frees are.
//!
//! An event takes as long as several allocations. Where frees come so close that there would be one every few
//! microseconds, more may be freed before the next; and as much as before once they do not, or once somebody else wants
//! what was freed.

use crate::sync::plain::{AtomicU64, Ordering};
use std::time::Duration;

/// Events that follow within this are close.
const CLOSE: Duration = Duration::from_micros(8);

/// What follows later than this is not close any more. In between it stays as it is.
const APART: Duration = Duration::from_micros(64);

/// So many times as much may be freed without an event, at most.
const MOST: u64 = 8;

/// See the [module](self).
///
/// It says when to do what may be done at any time, and is wrong at worst by some events: models need not see it.
#[derive(Debug)]
pub(super) struct Spacing {
    /// Unsealed bytes above which a free seals.
    bound: AtomicU64,
    /// When a free sealed last, on the device's clock, in nanoseconds.
    sealed_at: AtomicU64,
    least: u64,
    most: u64,
}

impl Spacing {
    /// A free seals above so many unsealed bytes, or above more where it may be.
    pub(super) fn new(bound: u64, may_widen: bool) -> Self {
        let most = bound.saturating_mul(if may_widen { MOST } else { 1 });
        Self {
            bound: AtomicU64::new(bound),
            sealed_at: AtomicU64::new(0),
            least: bound,
            most,
        }
    }

    #[inline(always)]
    pub(super) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Whether frees come close to each other.
    pub(super) fn is_close(&self) -> bool {
        self.bound() > self.least
    }

    /// A free has sealed.
    pub(super) fn note_sealed(&self, at: Duration) {
        if self.most == self.least {
            return;
        }
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let before = self.sealed_at.swap(at, Ordering::Relaxed);
        let since = Duration::from_nanos(at.saturating_sub(before));
        if since < CLOSE {
            let wider = self.bound().saturating_mul(2).min(self.most);
            self.bound.store(wider, Ordering::Relaxed);
        } else if since > APART {
            self.reset();
        }
    }

    /// Somebody else wants what was freed.
    pub(super) fn reset(&self) {
        if self.is_close() {
            self.bound.store(self.least, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 4;

    /// The bound after seals at such times, in microseconds.
    fn after(spacing: &Spacing, sealed: impl IntoIterator<Item = u64>) -> u64 {
        for at in sealed {
            spacing.note_sealed(Duration::from_micros(at));
        }
        spacing.bound()
    }

    fn widening() -> Spacing {
        let spacing = Spacing::new(LEAST, true);
        after(&spacing, [1_000]);
        spacing
    }

    #[test]
    fn it_widens_while_seals_are_close() {
        let spacing = widening();
        assert!(!spacing.is_close());
        let bounds = [1_007, 1_014, 1_021, 1_028, 1_035].map(|at| after(&spacing, [at]));
        assert_eq!(bounds, [8, 16, 32, 32, 32], "eight times as much at most");
        assert!(spacing.is_close());
    }

    #[test]
    fn it_stays_as_it_is_in_between() {
        let spacing = widening();
        assert_eq!(after(&spacing, [1_008, 1_072, 1_136]), LEAST);
        assert_eq!(after(&spacing, [1_137, 1_145, 1_209]), 2 * LEAST);
    }

    #[test]
    fn it_is_as_before_once_seals_are_apart_or_somebody_wants_them() {
        let spacing = widening();
        assert_eq!(after(&spacing, [1_001, 1_002, 1_067]), LEAST);
        assert_eq!(after(&spacing, [1_068, 1_069]), 4 * LEAST);
        spacing.reset();
        assert_eq!((spacing.bound(), spacing.is_close()), (LEAST, false));
        assert_eq!(after(&spacing, [1_070]), 2 * LEAST, "and widens again");
    }

    #[test]
    fn a_clock_that_is_seen_late_is_close() {
        let spacing = widening();
        assert_eq!(after(&spacing, [900]), 2 * LEAST);
    }

    #[test]
    fn what_is_exact_stays_so() {
        for bound in [0, LEAST, u64::MAX] {
            let spacing = Spacing::new(bound, false);
            assert_eq!(after(&spacing, [1, 2, 3]), bound);
            assert!(!spacing.is_close());
        }
        for bound in [0, u64::MAX] {
            let spacing = Spacing::new(bound, true);
            assert_eq!(
                after(&spacing, [1, 2, 3]),
                bound,
                "there is nothing to widen"
            );
        }
    }
}
