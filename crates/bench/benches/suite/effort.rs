//! How much work is done for a figure.

use std::time::Duration;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// A check that the workload runs. The figures mean nothing.
    Smoke,
    /// All figures within a minute or two.
    Modest,
    /// The figures of one benchmark within about the same time.
    Full,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) amount: Amount,
    /// The number of turns of each contender. The figure is their median.
    pub(crate) rounds: usize,
}

impl Effort {
    pub(crate) fn new(amount: Amount, rounds: Option<usize>) -> Self {
        let usual = match amount {
            Amount::Smoke => 1,
            Amount::Modest => 5,
            Amount::Full => 9,
        };
        Self {
            amount,
            rounds: rounds.unwrap_or(usual),
        }
    }

    /// Returns how long a round takes if its length is free.
    pub(crate) fn span(&self) -> Duration {
        Duration::from_micros(match self.amount {
            Amount::Smoke => 50,
            Amount::Modest => 10_000,
            Amount::Full => 30_000,
        })
    }

    /// Returns how many of `count` repetitions are made; only a few in a trial.
    pub(crate) fn of(&self, count: usize) -> usize {
        match self.amount {
            Amount::Smoke => (count / 100).max(1),
            Amount::Modest | Amount::Full => count,
        }
    }

    /// Returns the number of rounds for a measurement that takes a second or more.
    pub(crate) fn few_rounds(&self) -> usize {
        self.rounds.div_ceil(2)
    }
}
