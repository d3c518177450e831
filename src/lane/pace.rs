//! How fast a stream gets on: when what is given to it is expected to be through.
//!
//! The stream is followed as a queue with one server. Each point is expected a step after the one before, or after
//! what the stream was made to wait for; a step is what points took so far, on the mean, while any was on its way.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// From one point to the next; zero while none was seen complete.
    step: Duration,
    /// When all that the stream was given is expected to be through.
    tail: Duration,
    /// When a point was seen complete last.
    seen_at: Duration,
}

impl Pace {
    /// When a point is expected that is sealed now.
    pub(super) fn expect(&mut self, now: Duration) -> Duration {
        self.tail = self.tail.max(now) + self.step;
        self.tail
    }

    /// A point may be passed so much sooner than it is expected. Who asks so early finds out.
    pub(super) fn margin(&self) -> Duration {
        self.step / 4
    }

    pub(super) fn delay(&mut self, until: Duration) {
        self.tail = self.tail.max(until);
    }

    /// So many points were seen complete, the last of which was expected then.
    pub(super) fn note(
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
        // What it was wrong by, all after it is wrong by.
        self.tail = (self.tail + now).saturating_sub(expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn points_come_one_after_the_other() {
        let mut pace = Pace::default();
        assert_eq!([pace.expect(ms(1)), pace.expect(ms(1))], [ms(1), ms(1)]);
        pace.note(ms(1), 2, ms(1), ms(5)); // 2 ms each
        assert_eq!([pace.expect(ms(5)), pace.expect(ms(6))], [ms(7), ms(9)]);
        pace.delay(ms(20));
        pace.delay(ms(10));
        assert_eq!(pace.expect(ms(6)), ms(22));
        assert_eq!(pace.expect(ms(30)), ms(32), "it was idle");
    }

    #[test]
    fn what_is_late_delays_the_rest() {
        let mut pace = Pace::default();
        pace.note(ms(0), 1, ms(0), ms(8));
        let [first, second] = [pace.expect(ms(8)), pace.expect(ms(8))];
        assert_eq!([first, second], [ms(16), ms(24)]);
        pace.note(ms(8), 1, first, ms(16) + ms(8)); // in twice the time
        assert_eq!(
            pace.expect(ms(24)),
            ms(24) + ms(8) + ms(9),
            "behind the second"
        );
    }
}
