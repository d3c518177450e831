//! Samples of a run, evenly over its time, and not too many.
//!
//! A run may last much longer than its trace. When there are too many samples, every other one is dropped, and new ones
//! are taken half as often.

use std::time::Duration;

/// The most samples of levels.
pub(crate) const MOST: usize = 2000;

/// The levels at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) pending: u64,
    /// Requested and not yet freed.
    pub(crate) requested: u64,
}

/// Samples, at least a step apart; the step grows as needed.
#[derive(Debug)]
pub(crate) struct Samples<T> {
    most: usize,
    step: Duration,
    next: Duration,
    taken: Vec<T>,
}

impl<T> Samples<T> {
    /// Returns no samples, for a run of the expected length; it keeps this many at `most`.
    pub(crate) fn over(expected: Duration, most: usize) -> Self {
        Self {
            most,
            step: (expected / most as u32).max(Duration::from_nanos(1)),
            next: Duration::ZERO,
            taken: Vec::with_capacity(most),
        }
    }

    /// Returns whether the next sample is due at `now`.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// Adds a sample that was taken at `at`.
    pub(crate) fn push(&mut self, at: Duration, sample: T) {
        if self.taken.len() == self.most {
            self.thin_out();
        }
        self.next = at + self.step;
        self.taken.push(sample);
    }

    fn thin_out(&mut self) {
        let mut keep = false;
        self.taken.retain(|_| {
            keep = !keep;
            keep
        });
        self.step *= 2;
    }

    /// Returns the samples, in order.
    pub(crate) fn into_vec(self) -> Vec<T> {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_their_distance_and_number() {
        let second = Duration::from_secs(1);
        for most in [MOST, 299] {
            let mut samples = Samples::over(second, most);
            // A run ten times as long as expected, looked at every 100 us.
            for tick in 0..100_000 {
                let now = Duration::from_micros(100) * tick;
                if samples.is_due(now) {
                    samples.push(now, now);
                }
            }
            let taken = samples.into_vec();
            assert!((most / 3..=most).contains(&taken.len()), "{}", taken.len());
            assert!(
                taken
                    .windows(2)
                    .all(|two| two[1] - two[0] >= second / most as u32)
            );
            assert!(*taken.last().unwrap() > second * 9);
        }
    }
}
