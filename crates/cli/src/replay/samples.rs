//! Levels of the pool over time, few enough to draw.
//!
//! A run may last much longer than its trace. When there are too many samples, every other one is dropped, and new ones
//! are taken half as often.

use std::time::Duration;

/// The most samples that are kept.
const MOST: usize = 2000;

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
pub(crate) struct Samples {
    step: Duration,
    next: Duration,
    taken: Vec<Sample>,
}

impl Samples {
    /// Returns no samples, for a run of the expected length.
    pub(crate) fn over(expected: Duration) -> Self {
        Self {
            step: (expected / MOST as u32).max(Duration::from_nanos(1)),
            next: Duration::ZERO,
            taken: Vec::with_capacity(MOST),
        }
    }

    /// Returns whether the next sample is due at `now`.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        if self.taken.len() == MOST {
            self.thin_out();
        }
        self.next = sample.at + self.step;
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
    pub(crate) fn into_vec(self) -> Vec<Sample> {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_at(at: Duration) -> Sample {
        Sample {
            at,
            reserved: 4,
            used: 2,
            pending: 1,
            requested: 2,
        }
    }

    #[test]
    fn samples_keep_their_distance_and_number() {
        let second = Duration::from_secs(1);
        let mut samples = Samples::over(second);
        // A run ten times as long as expected, looked at every 100 us.
        for tick in 0..100_000 {
            let now = Duration::from_micros(100) * tick;
            if samples.is_due(now) {
                samples.push(sample_at(now));
            }
        }
        let taken = samples.into_vec();
        assert!((MOST / 3..=MOST).contains(&taken.len()), "{}", taken.len());
        assert!(
            taken
                .windows(2)
                .all(|two| two[1].at - two[0].at >= second / MOST as u32)
        );
        assert!(taken.last().unwrap().at > second * 9);
    }
}
