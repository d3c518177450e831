//! Turns the times of other recorders into times that never go back.

use crate::trace::fault::Fault;

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 24 * 3600 * SECOND_US;
/// A thread reads the time before it writes its line: a line may be older than the one before it, by up to this.
const JITTER_US: u64 = SECOND_US;
/// Nine years without an event count as damage.
const LONGEST_PAUSE_US: u64 = 1 << 48;

/// A time of a recorder's clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Since midnight.
    OfDay(u64),
    /// Since any moment.
    Since(u64),
}

/// A clock that stands still where a recorder's goes back a little, and goes on past midnight.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Reading>,
    now_us: u64,
}

impl Clock {
    /// Returns the microseconds from the first reading to this one.
    pub(super) fn advance(&mut self, reading: Reading) -> Result<u64, Fault> {
        let passed = match (self.last, reading) {
            (None, _) => Some(0),
            (Some(Reading::OfDay(last)), Reading::OfDay(now)) => passed_in_days(last, now)?,
            (Some(Reading::Since(last)), Reading::Since(now)) => passed(last, now)?,
            (Some(_), _) => return Err(unlike_before()),
        };
        // After a reading that went back, time counts from the latest one that did not.
        if let Some(passed) = passed {
            self.now_us = self.now_us.saturating_add(passed);
            self.last = Some(reading);
        }
        Ok(self.now_us)
    }
}

/// Returns the time that passed; `None` if it went back a little.
fn passed(last_us: u64, time_us: u64) -> Result<Option<u64>, Fault> {
    match time_us.checked_sub(last_us) {
        Some(passed) if passed <= LONGEST_PAUSE_US => Ok(Some(passed)),
        Some(_) => Err(Fault::Field {
            field: "time",
            text: format!("{time_us} us"),
            expected: "one within nine years of the event before",
        }),
        None if last_us - time_us <= JITTER_US => Ok(None),
        None => Err(Fault::TimeWentBack { time_us, last_us }),
    }
}

/// Returns the time that passed between two times of day: half a day back or more is past midnight.
fn passed_in_days(last_us: u64, time_us: u64) -> Result<Option<u64>, Fault> {
    if time_us > last_us && DAY_US - (time_us - last_us) <= JITTER_US {
        return Ok(None); // written late, from before midnight
    }
    if time_us < last_us && last_us - time_us >= DAY_US / 2 {
        return Ok(Some(DAY_US - (last_us - time_us)));
    }
    passed(last_us, time_us)
}

fn unlike_before() -> Fault {
    Fault::Field {
        field: "time",
        text: "of another form".to_owned(),
        expected: "one form of time in all lines",
    }
}

/// Parses a time as `11:53:05.642000`, `11:53:05:642000`, `1634567890.123456` (seconds) or
/// `53642` (microseconds).
pub(super) fn reading(text: &str) -> Option<Reading> {
    if text.contains(':') {
        return of_day(text).map(Reading::OfDay);
    }
    let time_us = match text.split_once('.') {
        None => text.parse().ok()?,
        Some((seconds, part)) => seconds
            .parse::<u64>()
            .ok()?
            .checked_mul(SECOND_US)?
            .checked_add(microseconds(part)?)?,
    };
    Some(Reading::Since(time_us))
}

fn of_day(text: &str) -> Option<u64> {
    let parts: Vec<_> = text.split([':', '.']).collect();
    let [hours, minutes, seconds, part] = parts[..] else {
        return None;
    };
    let below = |text: &str, bound| text.parse().ok().filter(|value: &u64| *value < bound);
    let minutes = below(hours, 24)? * 60 + below(minutes, 60)?;
    // A leap second counts as part of the second before it.
    let seconds = minutes * 60 + below(seconds, 61)?.min(59);
    Some(seconds * SECOND_US + microseconds(part)?)
}

/// Parses the digits behind a second's point: fewer than six are filled up, and more are cut off.
fn microseconds(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<6}")[..6].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_time_is_read() {
        let noon = 12 * 3600 * SECOND_US;
        for (text, reading) in [
            ("12:00:00:000042", Reading::OfDay(noon + 42)),
            ("12:00:00.000042", Reading::OfDay(noon + 42)),
            ("12:00:00.5", Reading::OfDay(noon + 500_000)),
            ("00:00:60.000001", Reading::OfDay(59 * SECOND_US + 1)),
            ("53642", Reading::Since(53_642)),
            ("1634567890.123456", Reading::Since(1_634_567_890_123_456)),
            ("0.1234569", Reading::Since(123_456)),
        ] {
            assert_eq!(self::reading(text), Some(reading), "{text}");
        }
        for text in [
            "",
            "noon",
            "12:00",
            "12:00:00",
            "24:00:00.0",
            "12:60:00.0",
            "12:00:00.",
            "1.",
            "-1",
            "12:00:00.x",
            "1.5.5",
            "99999999999999999999",
            "99999999999999.0",
            "1:2:3:4:5",
        ] {
            assert_eq!(self::reading(text), None, "{text}");
        }
    }

    fn times(readings: &[Reading]) -> Result<Vec<u64>, Fault> {
        let mut clock = Clock::default();
        readings.iter().map(|at| clock.advance(*at)).collect()
    }

    #[test]
    fn day_ends_at_midnight_also_for_late_threads() {
        let of_day = Reading::OfDay;
        let readings = [
            of_day(DAY_US - 20),
            of_day(DAY_US - 10),
            of_day(5),
            of_day(DAY_US - 1),
            of_day(7),
        ];
        assert_eq!(times(&readings), Ok(vec![0, 10, 25, 25, 27]));
    }

    #[test]
    fn time_that_goes_back_a_little_stands_still_and_more_is_refused() {
        for form in [Reading::OfDay, Reading::Since] {
            let late = [form(SECOND_US), form(SECOND_US - 9), form(SECOND_US + 1)];
            assert_eq!(times(&late), Ok(vec![0, 0, 1]));
            let back = [form(3 * SECOND_US), form(SECOND_US)];
            assert!(matches!(times(&back), Err(Fault::TimeWentBack { .. })));
        }
    }

    #[test]
    fn pause_of_years_and_change_of_form_are_refused() {
        for readings in [
            [Reading::Since(0), Reading::Since(LONGEST_PAUSE_US + 1)],
            [Reading::Since(0), Reading::OfDay(1)],
        ] {
            assert!(matches!(times(&readings), Err(Fault::Field { .. })));
        }
    }
}
