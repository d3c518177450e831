//! How much is done for a figure.

use std::time::Duration;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Whether it runs at all: the figures mean nothing.
    Smoke,
    /// All figures in a minute or two.
    Modest,
    /// Those of one benchmark in about as much.
    Full,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) amount: Amount,
    /// Turns of each contender; the figure is their median.
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

    /// Rounds of what takes a second or more.
    pub(crate) fn few_rounds(&self) -> usize {
        self.rounds.div_ceil(2)
    }
}
