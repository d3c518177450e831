//! The highest that a figure has been, since several moments at once.
//!
//! Scopes of statistics begin and end at any time, nested or overlapping, and each wants the highest
//! since its own beginning. Whoever raises the figure writes one number all the same: the highest since
//! the latest beginning. It is carried over to the others when the next one begins.

use smallvec::SmallVec;

/// A moment since which the highest is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(crate) u64);

impl Mark {
    /// The beginning, or the last reset of the high-water marks.
    pub(crate) const RESET: Self = Self(0);
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Peaks {
    latest: u64,
    /// The highest from each mark's beginning to the latest one's.
    earlier: SmallVec<[(Mark, u64); 1]>,
}

impl Default for Peaks {
    fn default() -> Self {
        Self {
            latest: 0,
            earlier: SmallVec::from_elem((Mark::RESET, 0), 1),
        }
    }
}

impl Peaks {
    /// The figure is now `current`; a part of a sum may be below zero.
    #[inline]
    pub(crate) fn raise(&mut self, current: u64) {
        if current as i64 > self.latest as i64 {
            self.latest = current;
        }
    }

    /// Keeps the highest since now, where the figure is `current`, as well.
    pub(crate) fn begin(&mut self, mark: Mark, current: u64) {
        self.carry_over(current);
        self.earlier.push((mark, current));
    }

    pub(crate) fn end(&mut self, mark: Mark) {
        self.earlier.retain(|(known, _)| *known != mark);
    }

    /// The highest since `mark`, if it is kept.
    pub(crate) fn since(&self, mark: Mark) -> Option<u64> {
        let (_, high) = self.earlier.iter().find(|(known, _)| *known == mark)?;
        Some(self.latest.max(*high))
    }

    /// Begins anew for [`Mark::RESET`].
    pub(crate) fn reset(&mut self, current: u64) {
        self.end(Mark::RESET);
        self.begin(Mark::RESET, current);
    }

    fn carry_over(&mut self, current: u64) {
        for (_, high) in &mut self.earlier {
            *high = self.latest.max(*high);
        }
        self.latest = current;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_mark_has_its_own_highest() {
        let mut peaks = Peaks::default();
        peaks.raise(7);
        peaks.begin(Mark(1), 3);
        peaks.raise(5);
        peaks.begin(Mark(2), 1);
        peaks.raise(2);
        let marks = [Mark::RESET, Mark(1), Mark(2)];
        assert_eq!(marks.map(|mark| peaks.since(mark).unwrap()), [7, 5, 2]);
        peaks.end(Mark(1));
        assert_eq!(peaks.since(Mark(1)), None);
        peaks.reset(0);
        assert_eq!(peaks.since(Mark::RESET), Some(0));
        assert_eq!(peaks.since(Mark(2)), Some(2), "other marks keep theirs");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Begin,
        End(usize),
        Reset,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..100u64).prop_map(Step::Set),
            1 => Just(Step::Begin),
            1 => any::<usize>().prop_map(Step::End),
            1 => Just(Step::Reset),
        ]
    }

    proptest! {
        /// Against a plain list of all values, whatever begins and ends in between.
        #[test]
        fn the_highest_is_that_of_the_values_since(steps in prop::collection::vec(step(), 0..60)) {
            let mut peaks = Peaks::default();
            let mut values = vec![0];
            let mut marks = vec![(Mark::RESET, 0)];
            for (number, step) in steps.into_iter().enumerate() {
                let current = *values.last().unwrap();
                match step {
                    Step::Set(value) => {
                        peaks.raise(value);
                        values.push(value);
                    }
                    Step::Begin => {
                        let mark = Mark(number as u64 + 1);
                        peaks.begin(mark, current);
                        marks.push((mark, values.len() - 1));
                    }
                    Step::End(at) if marks.len() > 1 => {
                        let (mark, _) = marks.remove(1 + at % (marks.len() - 1));
                        peaks.end(mark);
                    }
                    Step::End(_) => {}
                    Step::Reset => {
                        peaks.reset(current);
                        marks[0].1 = values.len() - 1;
                    }
                }
                for (mark, from) in &marks {
                    let highest = values[*from..].iter().max().copied();
                    prop_assert_eq!(peaks.since(*mark), highest);
                }
            }
        }
    }
}
