//! A stream's pace: when work submitted to it is expected to be complete.
//!
//! The model is a queue with one server. Each point is expected one step after the point before it, or after the point
//! that the stream waits for. A step is the mean time between points so far, while any was incomplete.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time from one point to the next; zero until a point was seen complete.
    step: Duration,
    /// When all submitted work is expected to be complete.
    tail: Duration,
    /// When a point was last seen complete.
    seen_at: Duration,
}

impl Pace {
    /// Returns when a point that is sealed now is expected to be complete.
    pub(super) fn expect(&mut self, now: Duration) -> Duration {
        self.tail = self.tail.max(now).saturating_add(self.step);
        self.tail
    }

    /// How much earlier than expected a point is worth a query: it may well be complete.
    pub(super) fn margin(&self) -> Duration {
        self.step / 4
    }

    /// Notes that later work starts no earlier than `until`.
    pub(super) fn delay(&mut self, until: Duration) {
        self.tail = self.tail.max(until);
    }

    /// Notes that `count` points were seen complete, the last of which was `expected`.
    pub(super) fn record(
        &mut self,
        first_sealed: Duration,
        count: u32,
        expected: Duration,
        now: Duration,
    ) {
        let busy = now.saturating_sub(first_sealed.max(self.seen_at));
        let sample = busy / count.max(1);
        self.step = if self.step.is_zero() {
            sample
        } else {
            self.step - self.step / 8 + sample / 8
        };
        self.seen_at = now;
        // All later expectations were wrong by the same amount.
        let (late, early) = (now.saturating_sub(expected), expected.saturating_sub(now));
        self.tail = self.tail.saturating_add(late).saturating_sub(early);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn points_are_expected_one_step_after_another() {
        let mut pace = Pace::default();
        assert_eq!([pace.expect(ms(1)), pace.expect(ms(1))], [ms(1), ms(1)]);
        pace.record(ms(1), 2, ms(1), ms(5)); // 2 ms each
        assert_eq!([pace.expect(ms(5)), pace.expect(ms(6))], [ms(7), ms(9)]);
        pace.delay(ms(20));
        pace.delay(ms(10));
        assert_eq!(pace.expect(ms(6)), ms(22));
        assert_eq!(pace.expect(ms(30)), ms(32), "after the idle time");
    }

    #[test]
    fn late_point_delays_later_ones() {
        let mut pace = Pace::default();
        pace.record(ms(0), 1, ms(0), ms(8));
        let [first, second] = [pace.expect(ms(8)), pace.expect(ms(8))];
        assert_eq!([first, second], [ms(16), ms(24)]);
        pace.record(ms(8), 1, first, ms(16) + ms(8)); // twice the step
        assert_eq!(
            pace.expect(ms(24)),
            ms(24) + ms(8) + ms(9),
            "after the second"
        );
    }
}
