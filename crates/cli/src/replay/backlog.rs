//! The time that a stream runs behind the host: a seeded lag for each piece of its work.

use fastrand::Rng;
use std::time::Duration;

/// The lags of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    random: Rng,
    mean: Duration,
}

impl Backlog {
    /// Returns the lags of each stream, around `mean`; the same seed gives the same lags.
    pub(crate) fn of_streams(streams: usize, mean: Duration, seed: u64) -> Vec<Self> {
        let mut random = Rng::with_seed(seed);
        let mut backlog = || Self {
            random: random.fork(),
            mean,
        };
        (0..streams).map(|_| backlog()).collect()
    }

    /// Returns the next lag, from half the mean to one and a half of it; `None` if the mean is 0.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let factor = 0.5 + self.random.f64();
        (!self.mean.is_zero()).then(|| self.mean.mul_f64(factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN: Duration = Duration::from_millis(1);

    fn lags(seed: u64) -> Vec<Vec<Duration>> {
        let streams = Backlog::of_streams(2, MEAN, seed);
        let lags = |mut backlog: Backlog| (0..1000).filter_map(|_| backlog.next()).collect();
        streams.into_iter().map(lags).collect()
    }

    #[test]
    fn lags_lie_around_their_mean() {
        for lags in lags(1) {
            assert_eq!(lags.len(), 1000);
            assert!(
                lags.iter()
                    .all(|lag| *lag >= MEAN / 2 && *lag <= MEAN * 3 / 2)
            );
            let mean = lags.iter().sum::<Duration>() / 1000;
            assert!(mean > MEAN * 19 / 20 && mean < MEAN * 21 / 20, "{mean:?}");
        }
    }

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        assert_eq!(lags(1), lags(1));
        assert_ne!(lags(1), lags(2));
        assert_ne!(lags(1)[0], lags(1)[1]);
    }

    #[test]
    fn mean_of_zero_gives_no_lag() {
        let mut streams = Backlog::of_streams(1, Duration::ZERO, 1);
        assert_eq!(streams[0].next(), None);
    }
}
