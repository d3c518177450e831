//! When pending memory is expected to be complete, and which of several pending blocks to wait for.
//!
//! The block that is expected first is chosen. Expected times are means, so points that are expected at about the same
//! time count as equal. Among those, the one sealed first is chosen. Choosing the one sealed last would chain each
//! stream behind the one before, while memory that other streams left earlier lies idle.

use std::time::Duration;

/// The known facts about the point at which a pending block is complete.
#[derive(Clone, Copy, Debug)]
pub struct Donor {
    /// When its event was recorded; `None` while its ticket is not sealed.
    pub sealed_at: Option<Duration>,
    /// When it was expected at that time, given the work that its stream had before it.
    pub expected_at: Option<Duration>,
    /// The number of events that were recorded before, on all streams; the highest number while there is no event.
    pub number: u64,
    /// How long events of the donor's stream take to complete.
    pub latency: Duration,
}

impl Donor {
    /// Returns when the point is overdue at the latest.
    pub fn overdue_at(self, now: Duration) -> Duration {
        let sealed_at = self.sealed_at.unwrap_or(now);
        sealed_at.saturating_add(self.latency.saturating_mul(OVERDUE))
    }
}

/// The known facts about the stream that would wait.
#[derive(Clone, Copy, Debug)]
pub struct Taker {
    /// The time, on the device's clock.
    pub now: Duration,
    /// When its submitted work is expected to be complete.
    pub tail: Duration,
}

impl Taker {
    /// Returns whether its submitted work is complete, as far as the pool knows.
    pub fn is_idle(self) -> bool {
        self.tail <= self.now
    }
}

/// Expected times are means: of two streams with the same backlog, each is later than the other half of the time. So a
/// point that is late by up to a fourth still counts as in time.
pub const TOLERANCE: u32 = 4;

/// A point is overdue after this many times its mean. Its stream may be stuck, perhaps behind the stream that would
/// wait, so no stream is made to wait for it.
const OVERDUE: u32 = 3;

/// When a point, or the last of several points, is expected to be passed. The default needs no wait: the point is
/// passed, the requester is ordered after it, or it is certain to be in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The point is overdue, or nothing is known about its stream.
    is_unsure: bool,
    at: Duration,
    /// A point that is expected by then counts as equal.
    until: Duration,
    /// The position of its event among all recorded events.
    number: u64,
}

impl Forecast {
    /// Returns when memory of a donor is expected, and how dear the wait is to the taker.
    pub fn of(donor: Donor, taker: Taker) -> Self {
        let sealed_at = donor.sealed_at.unwrap_or(taker.now);
        let expected_at = (donor.expected_at).unwrap_or(sealed_at.saturating_add(donor.latency));
        let takes = expected_at.saturating_sub(sealed_at);
        let at = expected_at.max(taker.now);
        Self {
            // A point of a stream whose pace is unknown is overdue at once.
            is_unsure: taker.now >= sealed_at.saturating_add(takes.saturating_mul(OVERDUE)),
            at,
            until: at.saturating_add(takes / TOLERANCE),
            number: donor.number,
        }
    }

    /// Returns the forecast for passing both points.
    pub fn and(self, other: Self) -> Self {
        Self {
            is_unsure: self.is_unsure || other.is_unsure,
            at: self.at.max(other.at),
            until: self.until.max(other.until),
            number: self.number.max(other.number),
        }
    }

    /// Returns whether there is nothing to wait for.
    pub(super) fn is_in_time(self) -> bool {
        self == Self::default()
    }

    /// Returns whether both wait for the same last event.
    pub(super) fn is_same_as(self, other: Self) -> bool {
        self.number == other.number
    }

    /// Becomes the other forecast if that is better, and returns whether it did. The forecast that stays is expected
    /// no later than any that it was compared with, within the tolerance of means.
    pub(super) fn yield_to(&mut self, other: Self) -> bool {
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

    /// Returns the number of the best forecast, compared in both orders.
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
    fn forecast_expected_first_is_chosen() {
        assert_eq!(chosen([forecast(90, 40, 1), forecast(99, 4, 2)]), 2);
        assert_eq!(chosen([forecast(80, 40, 1), forecast(99, 40, 2)]), 1);
        let last_of_both = forecast(80, 40, 1).and(forecast(99, 40, 3));
        assert_eq!(chosen([last_of_both, forecast(95, 30, 2)]), 2);
    }

    #[test]
    fn event_sealed_first_is_chosen_among_equals() {
        let equals = [
            forecast(100, 43, 1),
            forecast(100, 40, 2),
            forecast(100, 42, 3),
        ];
        assert_eq!(chosen(equals), 1);
        // Each equals the next one, and the first is worse than the last.
        let steps = [
            forecast(100, 56, 1),
            forecast(100, 48, 2),
            forecast(100, 40, 3),
        ];
        assert!(!each_way(steps).contains(&1));
    }

    #[test]
    fn point_is_overdue_after_three_times_its_mean() {
        let donor = Donor {
            sealed_at: Some(ms(50)),
            expected_at: None,
            number: 1,
            latency: ms(10),
        };
        assert_eq!(donor.overdue_at(NOW), ms(80));
        let unsealed = Donor {
            sealed_at: None,
            ..donor
        };
        assert_eq!(unsealed.overdue_at(NOW), ms(130));
        assert!(forecast(70, 10, 1).is_unsure && !forecast(71, 10, 1).is_unsure);
    }

    #[test]
    fn overdue_or_unknown_point_is_not_preferred() {
        let (stuck, fresh) = (forecast(50, 10, 1), forecast(100, 1000, 3));
        assert_eq!(chosen([stuck, fresh]), 3);
        let unknown = forecast(60, 0, 2);
        assert_eq!(chosen([unknown, fresh]), 3);
        assert_eq!(chosen([unknown, stuck]), 1);
        assert_eq!(chosen([stuck, Forecast::default()]), 0);
    }
}
