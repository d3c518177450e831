//! Arrivals: requests of random length, as a Poisson process. Equal seeds give equal requests.

use crate::model;
use crate::options::Options;
use fastrand::Rng;
use std::time::Duration;

/// The time of the first step, in average steps: it reads the whole prompt.
const PREFILL: f64 = 2.0;

/// One request, before it is served.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// The request's number in the order of arrival.
    pub(crate) id: usize,
    /// The time of arrival since the service opened.
    pub(crate) arrives: Duration,
    /// The device time of each step.
    pub(crate) steps: Vec<Duration>,
}

impl Request {
    /// Returns the peak of the request's memory, which it takes up front.
    pub(crate) fn bytes(&self) -> u64 {
        model::peak(self.steps.len())
    }

    /// Returns the device time of all steps.
    pub(crate) fn work(&self) -> Duration {
        self.steps.iter().sum()
    }
}

/// Returns the average number of requests that arrive per second.
pub(crate) fn rate(options: &Options) -> f64 {
    let (least, most) = (*model::STEPS.start(), *model::STEPS.end());
    let steps = (least + most) as f64 / 2.0 - 1.0 + PREFILL;
    let work = steps * options.load.step.as_secs_f64();
    options.load.offered * options.limits.places as f64 / work
}

/// Returns all requests of a run, in the order of arrival.
pub(crate) fn requests(options: &Options) -> Vec<Request> {
    let mut random = Rng::with_seed(options.load.seed);
    let (rate, step) = (rate(options), options.load.step);
    let mut now = 0.0;
    let arrive = |id| {
        now += gap(&mut random) / rate;
        Request {
            id,
            arrives: Duration::from_secs_f64(now),
            steps: steps(&mut random, step),
        }
    };
    (0..options.requests as usize).map(arrive).collect()
}

/// Draws the time to the next arrival at a rate of one: exponentially distributed.
fn gap(random: &mut Rng) -> f64 {
    // The argument is above zero, so the logarithm is finite.
    -(1.0 - random.f64()).ln()
}

fn steps(random: &mut Rng, mean: Duration) -> Vec<Duration> {
    let count = random.usize(model::STEPS);
    let mut steps: Vec<_> = (0..count)
        .map(|_| mean.mul_f64(0.5 + random.f64()))
        .collect();
    steps[0] = mean.mul_f64(PREFILL);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(seed: u64) -> Options {
        let seed = format!("--seed={seed}");
        Options::parse_from(["inference", "--requests=20000", &seed])
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        values.sum::<f64>() / count
    }

    #[test]
    fn equal_seeds_give_equal_requests() {
        assert_eq!(requests(&options(1)), requests(&options(1)));
        assert_ne!(requests(&options(1)), requests(&options(2)));
    }

    #[test]
    fn gaps_are_exponential_at_the_rate() {
        let options = options(1);
        let requests = requests(&options);
        let gaps: Vec<_> = requests
            .windows(2)
            .map(|two| (two[1].arrives - two[0].arrives).as_secs_f64() * rate(&options))
            .collect();
        let average = mean(gaps.iter().copied());
        let variance = mean(gaps.iter().map(|gap| (gap - average).powi(2)));
        assert!((average - 1.0).abs() < 0.03, "{average}");
        assert!((variance - 1.0).abs() < 0.08, "{variance}");
        // In an exponential distribution, a share of 1/e is longer than the mean.
        let longer = gaps.iter().filter(|gap| **gap > 1.0).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.02, "{longer}");
    }

    #[test]
    fn arrivals_in_equal_times_are_poisson() {
        let options = options(3);
        let requests = requests(&options);
        // Windows have 10 arrivals on average.
        let window = 10.0 / rate(&options);
        let mut counts = vec![0.0; 1900];
        for request in &requests {
            let index = (request.arrives.as_secs_f64() / window) as usize;
            if let Some(count) = counts.get_mut(index) {
                *count += 1.0;
            }
        }
        let average = mean(counts.iter().copied());
        let variance = mean(counts.iter().map(|count| (count - average).powi(2)));
        assert!((average - 10.0).abs() < 0.5, "{average}");
        assert!((variance / average - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn requests_have_the_work_that_the_rate_assumes() {
        let options = options(1);
        let requests = requests(&options);
        let work = mean(requests.iter().map(|request| request.work().as_secs_f64()));
        let offered = rate(&options) * work / options.limits.places as f64;
        assert!(
            (offered / options.load.offered - 1.0).abs() < 0.02,
            "{offered}"
        );
        let lengths = requests.iter().map(|request| request.steps.len());
        assert_eq!((lengths.clone().min(), lengths.max()), (Some(8), Some(24)));
    }
}
