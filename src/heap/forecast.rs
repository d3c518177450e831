//! Which of several pending blocks to wait for: the one that is expected to be complete first.
//!
//! What is expected is a mean, so points that are expected at about the same time are as good as each other. Of
//! those the one sealed first is waited for: would it be the last, each stream would be chained behind the one
//! before, while memory that others left earlier lay idle.

use super::policy::{Donor, OVERDUE, TOLERANCE, Taker};
use std::time::Duration;

/// When a point, or the last of several, is expected to be passed. The default is one that is not to be waited for:
/// it is passed, or the asker comes after it anyway, or it is certain to be in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forecast {
    /// It is overdue, or nothing is known of its stream.
    is_unsure: bool,
    at: Duration,
    /// What is expected by then is as good.
    until: Duration,
    /// In which order events were recorded.
    number: u64,
}

impl Forecast {
    pub(crate) fn of(donor: Donor, taker: Taker) -> Self {
        let sealed_at = donor.sealed_at.unwrap_or(taker.now);
        let expected_at = donor.expected_at.unwrap_or(sealed_at + donor.latency);
        let takes = expected_at.saturating_sub(sealed_at);
        let at = expected_at.max(taker.now);
        Self {
            // With no pace known yet, it is overdue at once.
            is_unsure: taker.now >= sealed_at + takes * OVERDUE,
            at,
            until: at + takes / TOLERANCE,
            number: donor.number,
        }
    }

    /// Of two points that are both to be passed.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            is_unsure: self.is_unsure || other.is_unsure,
            at: self.at.max(other.at),
            until: self.until.max(other.until),
            number: self.number.max(other.number),
        }
    }

    pub(super) fn is_in_time(self) -> bool {
        self == Self::default()
    }

    /// Whether the same event is the last.
    pub(crate) fn is_same_as(self, other: Self) -> bool {
        self.number == other.number
    }

    /// Becomes the other, if that is worth more: then it is true. What stays is not expected later than any that it
    /// was compared with, but for what means may err.
    pub(crate) fn yield_to(&mut self, other: Self) -> bool {
        let is_older = other.number < self.number;
        if self.is_unsure || other.is_unsure {
            let yields = self.is_unsure && (is_older || !other.is_unsure);
            if yields {
                *self = other;
            }
            return yields;
        }
        let until = self.until.min(other.until);
        let yields = if is_older {
            other.at <= until
        } else {
            self.at > until
        };
        if yields {
            *self = other;
        }
        self.until = until;
        yields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const NOW: Duration = ms(100);

    fn forecast(sealed_at: u64, latency: u64, number: u64) -> Forecast {
        let donor = Donor {
            sealed_at: Some(ms(sealed_at)),
            expected_at: Some(ms(sealed_at + latency)),
            number,
            latency: ms(latency),
        };
        let (now, tail) = (NOW, NOW);
        Forecast::of(donor, Taker { now, tail })
    }

    /// The number of the one that is waited for, looked at in either order.
    fn each_way<const N: usize>(mut forecasts: [Forecast; N]) -> [u64; 2] {
        [0, 1].map(|_| {
            forecasts.reverse();
            let (first, others) = forecasts.split_first().expect("one");
            let mut best = *first;
            for other in others {
                best.yield_to(*other);
            }
            best.number
        })
    }

    fn chosen<const N: usize>(forecasts: [Forecast; N]) -> u64 {
        let [one, other] = each_way(forecasts);
        assert_eq!(one, other);
        one
    }

    #[test]
    fn the_first_to_be_expected_is_waited_for() {
        assert_eq!(chosen([forecast(90, 40, 1), forecast(99, 4, 2)]), 2);
        assert_eq!(chosen([forecast(80, 40, 1), forecast(99, 40, 2)]), 1);
        let last_of_both = forecast(80, 40, 1).and(forecast(99, 40, 3));
        assert_eq!(chosen([last_of_both, forecast(95, 30, 2)]), 2);
    }

    #[test]
    fn of_equals_the_first_to_be_sealed_is() {
        let equals = [
            forecast(100, 43, 1),
            forecast(100, 40, 2),
            forecast(100, 42, 3),
        ];
        assert_eq!(chosen(equals), 1);
        // Each is as good as the next one, and the first is not as good as the last.
        let steps = [
            forecast(100, 56, 1),
            forecast(100, 48, 2),
            forecast(100, 40, 3),
        ];
        assert!(!each_way(steps).contains(&1));
    }

    #[test]
    fn what_is_overdue_or_unknown_is_not_preferred() {
        let (stuck, fresh) = (forecast(50, 10, 1), forecast(100, 1000, 3));
        assert_eq!(chosen([stuck, fresh]), 3);
        let unknown = forecast(60, 0, 2);
        assert_eq!(chosen([unknown, fresh]), 3);
        assert_eq!(chosen([unknown, stuck]), 1);
        assert_eq!(chosen([stuck, Forecast::default()]), 0);
    }
}
