//! The pauses of a refused request between its tries: exponential back-off with jitter.

use fastrand::Rng;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(64);

/// The pauses of one request. The longest pause doubles each time, up to a bound. Each pause is random, from half of
/// that length up, so that requests that were refused together do not retry together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    random: Rng,
    next: Duration,
    left: u32,
}

impl Backoff {
    /// Creates the pauses between this many tries; the first try comes before any pause.
    pub(crate) fn new(tries: u32, seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            next: FIRST,
            left: tries.saturating_sub(1),
        }
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let pause = self.next.mul_f64(0.5 + self.random.f64() / 2.0);
        self.next = (self.next * 2).min(LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let pauses: Vec<_> = Backoff::new(10, 1).collect();
        assert_eq!(pauses.len(), 9);
        let bounds = [1, 2, 4, 8, 16, 32, 64, 64, 64].map(Duration::from_millis);
        for (pause, bound) in pauses.iter().zip(bounds) {
            assert!(
                *pause >= bound / 2 && *pause <= bound,
                "{pause:?} {bound:?}"
            );
        }
    }

    #[test]
    fn pauses_depend_on_the_seed() {
        assert!(Backoff::new(9, 1).ne(Backoff::new(9, 2)));
        assert!(Backoff::new(9, 1).eq(Backoff::new(9, 1)));
        assert_eq!(Backoff::new(1, 1).next(), None);
    }
}
