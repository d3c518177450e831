//! How much of the time may go into queries where the pool could take new memory instead.
//!
//! A query takes as long as several allocations, and while kernels are short, most are answered with "not yet". Where a
//! block of exactly the size is on its way and a new one would do meanwhile, a search leaves out streams that were asked
//! within 64 us, once the budget is used up. At the pace of a program that launches kernels between its allocations it
//! never is. A host that does little else takes a few blocks more, once, and finds memory complete from then on.

use crate::sync::plain::{AtomicU64, Ordering};
use std::time::Duration;

/// The time between two queries in the long run. On a busy H200 a query takes 2 us: an eighth of that time.
const INTERVAL: u64 = 16_000;

/// The number of queries that can be saved up, and that a pool begins with.
const BURST: u64 = 32;

/// The budget of queries: a token bucket in one number, as in the generic cell rate algorithm.
///
/// It only decides whether to ask: models need not see the number.
#[derive(Debug, Default)]
pub(crate) struct QueryBudget {
    /// When the queries that were taken are earned back, on the device's clock, in nanoseconds.
    earned_at: AtomicU64,
}

impl QueryBudget {
    /// Takes a query from the budget. Returns whether there was one. If two threads take one at the same moment,
    /// only one may be counted.
    pub(crate) fn take(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let earned_at = self.earned_at.load(Ordering::Relaxed).max(now);
        if earned_at - now > (BURST - 1) * INTERVAL {
            return false;
        }
        let earned_at = earned_at.saturating_add(INTERVAL);
        self.earned_at.store(earned_at, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &QueryBudget, now: Duration) -> usize {
        (0..1000).take_while(|_| budget.take(now)).count()
    }

    #[test]
    fn budget_begins_with_a_burst_and_saves_no_more() {
        let budget = QueryBudget::default();
        for now in [0, 3600, 7200].map(Duration::from_secs) {
            assert_eq!(taken(&budget, now), 32);
        }
        // The last moment of the clock: there is no time in which a query could be earned.
        assert!(taken(&budget, Duration::MAX) >= 32);
    }

    #[test]
    fn query_is_earned_in_16_us() {
        let budget = QueryBudget::default();
        taken(&budget, Duration::ZERO);
        for (at, earned) in [(15, 0), (16, 1), (31, 0), (32, 1), (160, 8)] {
            assert_eq!(taken(&budget, Duration::from_micros(at)), earned, "{at} us");
        }
        assert_eq!(
            taken(&budget, Duration::ZERO),
            0,
            "the clock of another thread may be late"
        );
    }
}
