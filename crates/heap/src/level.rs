//! A figure with its high-water mark, and the high-water marks since several moments at once.
//!
//! Statistics scopes begin and end at any time, nested or overlapping, and each reports the highest figure
//! since its own beginning. The code that raises a figure still writes one number: `Level::high`, the highest
//! since the *latest* mark. [`Highs`] keeps the others: when a mark begins, the level's high is carried over to
//! the earlier marks and starts again from the current figure.

use crate::units::Bytes;
use smallvec::SmallVec;
use std::fmt;

/// A number of bytes, and the highest it has been since the pool was built or the high-water marks were reset.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Level {
    /// The current number of bytes.
    pub current: u64,
    /// The highest number of bytes.
    pub high: u64,
}

impl Level {
    /// Raises the figure.
    #[doc(hidden)]
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }

    /// Lowers the figure.
    #[doc(hidden)]
    #[inline]
    pub fn subtract(&mut self, bytes: u64) {
        debug_assert!(
            self.current >= bytes,
            "conservation: a figure is never below zero"
        );
        self.current -= bytes;
    }
}

/// `1.5 MiB (high 64.0 MiB)`
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (high {})", Bytes(self.current), Bytes(self.high))
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A moment since which high-water marks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The building of the pool, or the last reset of its high-water marks.
    pub const RESET: Self = Self(0);

    /// Returns the mark that follows.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The high-water marks of `N` levels since each mark, up to the beginning of the latest; see the
/// [module](self).
#[derive(Clone, Debug)]
pub struct Highs<const N: usize>(SmallVec<[(Mark, [u64; N]); 1]>);

impl<const N: usize> Default for Highs<N> {
    fn default() -> Self {
        Self(SmallVec::from_iter([(Mark::RESET, [0; N])]))
    }
}

impl<const N: usize> Highs<N> {
    /// Keeps the high-water marks since now as well.
    pub fn begin(&mut self, mark: Mark, levels: [&mut Level; N]) {
        let mut current = [0; N];
        for (at, level) in levels.into_iter().enumerate() {
            self.carry_over(at, level);
            current[at] = level.current;
        }
        self.0.push((mark, current));
    }

    /// Keeps no figure for a mark any more.
    pub fn end(&mut self, mark: Mark) {
        self.0.retain(|(known, _)| *known != mark);
    }

    /// Returns the high-water marks since `mark`, or `None` if it is not kept.
    pub fn since(&self, mark: Mark, levels: [Level; N]) -> Option<[u64; N]> {
        let (_, highs) = self.0.iter().find(|(known, _)| *known == mark)?;
        Some(std::array::from_fn(|at| highs[at].max(levels[at].high)))
    }

    /// Sets the high-water mark of level number `at` since [`Mark::RESET`] to the current figure.
    pub fn reset(&mut self, at: usize, level: &mut Level) {
        self.carry_over(at, level);
        let reset = self.0.iter_mut().find(|(mark, _)| *mark == Mark::RESET);
        reset
            .into_iter()
            .for_each(|(_, highs)| highs[at] = level.current);
    }

    fn carry_over(&mut self, at: usize, level: &mut Level) {
        for (_, highs) in &mut self.0 {
            highs[at] = highs[at].max(level.high);
        }
        level.high = level.current;
    }
}

/// How much of `free` is outside the largest piece: 0 when it is one piece, or there is none, to 1.
pub fn fragmentation(free: u64, largest: u64) -> f64 {
    if free == 0 {
        0.0
    } else {
        1.0 - largest.min(free) as f64 / free as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(current: u64) -> Level {
        Level {
            current,
            high: current,
        }
    }

    fn set(level: &mut Level, current: u64) {
        level.subtract(level.current);
        level.add(current);
    }

    #[test]
    fn mark_keeps_the_highest_since_its_own_beginning() {
        let (mut highs, mut level) = (Highs::<1>::default(), at(0));
        let [first, second] = [Mark(1), Mark(2)];
        set(&mut level, 7);
        set(&mut level, 3);
        highs.begin(first, [&mut level]);
        set(&mut level, 5);
        set(&mut level, 1);
        highs.begin(second, [&mut level]);
        set(&mut level, 2);
        let marks = [Mark::RESET, first, second];
        let since = |highs: &Highs<1>, mark, level| highs.since(mark, [level]).map(|[high]| high);
        assert_eq!(
            marks.map(|mark| since(&highs, mark, level).unwrap()),
            [7, 5, 2]
        );
        highs.end(first);
        assert_eq!(since(&highs, first, level), None);
        set(&mut level, 0);
        highs.reset(0, &mut level);
        assert_eq!(since(&highs, Mark::RESET, level), Some(0));
        assert_eq!(
            since(&highs, second, level),
            Some(2),
            "a reset leaves other marks alone"
        );
    }

    #[test]
    fn reset_of_one_level_leaves_the_other_alone() {
        let mut highs = Highs::<2>::default();
        let mut levels = [at(0), at(0)];
        for level in &mut levels {
            set(level, 9);
            set(level, 4);
        }
        highs.reset(1, &mut levels[1]);
        assert_eq!(highs.since(Mark::RESET, levels), Some([9, 4]));
    }

    #[test]
    fn level_is_printed_in_binary_units() {
        let level = Level {
            current: 3 << 19,
            high: 64 << 20,
        };
        assert_eq!(format!("{level:?}"), "1.5 MiB (high 64.0 MiB)");
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
        /// Compares with the plain list of all values, whichever marks begin and end in between.
        #[test]
        fn high_is_the_highest_of_the_values_since(steps in prop::collection::vec(step(), 0..60)) {
            let (mut highs, mut level) = (Highs::<1>::default(), at(0));
            let mut values = vec![0];
            let mut marks = vec![(Mark::RESET, 0)];
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Set(value) => {
                        set(&mut level, value);
                        values.push(value);
                    }
                    Step::Begin => {
                        let mark = Mark(number as u64 + 1);
                        highs.begin(mark, [&mut level]);
                        marks.push((mark, values.len() - 1));
                    }
                    Step::End(at) if marks.len() > 1 => {
                        let (mark, _) = marks.remove(1 + at % (marks.len() - 1));
                        highs.end(mark);
                    }
                    Step::End(_) => {}
                    Step::Reset => {
                        highs.reset(0, &mut level);
                        marks[0].1 = values.len() - 1;
                    }
                }
                for (mark, from) in &marks {
                    let highest = values[*from..].iter().max().copied();
                    prop_assert_eq!(highs.since(*mark, [level]), highest.map(|high| [high]));
                }
            }
        }
    }
}
