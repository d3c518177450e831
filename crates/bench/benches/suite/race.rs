//! Contenders that run in turns.

use super::row::{Allocator, Spread};

/// One turn of a contender.
type Turn<'a, T> = Box<dyn FnMut() -> T + 'a>;

/// Contenders that take turns, round by round, so that a disturbance of the machine affects all of them.
pub(crate) struct Race<'a, T> {
    entrants: Vec<(Allocator, Turn<'a, T>)>,
}

impl<'a, T> Race<'a, T> {
    pub(crate) fn new() -> Self {
        Self {
            entrants: Vec::new(),
        }
    }

    pub(crate) fn enter(&mut self, who: Allocator, turn: impl FnMut() -> T + 'a) {
        self.entrants.push((who, Box::new(turn)));
    }

    /// Runs this many rounds after a round that does not count. The first contender changes from round to round.
    pub(crate) fn run(mut self, rounds: usize) -> Results<T> {
        self.round(0);
        self.run_cold(rounds)
    }

    /// Runs this many rounds. All of them count.
    pub(crate) fn run_cold(mut self, rounds: usize) -> Results<T> {
        let names = self.entrants.iter().map(|(who, _)| *who);
        let mut results: Vec<_> = names.map(|who| (who, Vec::new())).collect();
        for first in 0..rounds {
            for (index, result) in self.round(first) {
                results[index].1.push(result);
            }
        }
        Results(results)
    }

    fn round(&mut self, first: usize) -> Vec<(usize, T)> {
        let count = self.entrants.len();
        let order = (0..count).map(|turn| (first + turn) % count);
        order
            .map(|index| (index, self.entrants[index].1()))
            .collect()
    }
}

/// The results of each contender's turns.
pub(crate) struct Results<T>(Vec<(Allocator, Vec<T>)>);

impl<T> Results<T> {
    /// Returns a figure of the turns, for each contender.
    pub(crate) fn figures(&self, figure: impl Fn(&T) -> f64) -> Vec<(Allocator, Spread)> {
        let spread = |turns: &Vec<T>| Spread::of(turns.iter().map(&figure).collect());
        let results = self.0.iter();
        results.map(|(who, turns)| (*who, spread(turns))).collect()
    }
}
