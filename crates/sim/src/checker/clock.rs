//! Vector clocks: they tell which items of which streams come before a point.
//!
//! A *line* is the number of a stream, and its items are counted from its beginning. A clock is sparse. What the host
//! has seen complete is represented by one number, a version of the [host's knowledge](Known), and only items beyond it
//! are counted by line. Any of several signals may end a wait for a flag, so it is unknown until the end of the wait
//! what comes before it. Until then a clock has an open [`Hook`], and its answer may be [`Answer::Open`]. This module
//! does not know memory.

use super::known::{Known, Line, Moment};
use smallvec::SmallVec;
use std::cmp::Ordering;
use weirpool_device::plain::{Arc, OnceLock};

/// A wait for a flag. When it is over, this is set to the clock of the points before it.
pub(super) type Hook = OnceLock<Arc<Clock>>;

/// Whether something comes before a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    /// The answer becomes known at the end of a wait for a flag.
    Open,
}

/// Up to this many counts are inserted one by one; more are merged.
const FEW: usize = 4;

/// The items that come before a point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Everything that the host had seen complete at this version.
    host: u64,
    /// The number of items of other lines, by rising line.
    counts: SmallVec<[(Line, u64); 2]>,
    open: Vec<Arc<Hook>>,
}

impl Clock {
    /// Creates the clock of a point that comes after everything that the host knows.
    pub(super) fn of_host(known: &Known) -> Self {
        Self {
            host: known.version(),
            ..Self::default()
        }
    }

    /// Joins everything that the host knows, and drops the counts that this covers.
    pub(super) fn join_host(&mut self, known: &Known) {
        self.host = known.version();
        self.counts
            .retain(|&mut (line, count)| !known.covers(line, count));
    }

    /// Joins the first `count` items of a line.
    pub(super) fn raise(&mut self, line: Line, count: u64) {
        match self.counts.binary_search_by_key(&line, |(line, _)| *line) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.max(count),
            Err(at) => self.counts.insert(at, (line, count)),
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.host = self.host.max(other.host);
        self.join_counts(&other.counts);
        other.open.iter().for_each(|hook| self.attach(hook.clone()));
    }

    /// Joins another clock into one that comes after everything that the host knows. Counts that the host knows are
    /// left out.
    fn join_beyond(&mut self, other: &Self, known: &Known) {
        let is_beyond = |&(line, count): &(Line, u64)| !known.covers(line, count);
        let counts: SmallVec<[_; 2]> = other.counts().filter(is_beyond).collect();
        self.join_counts(&counts);
        other.open.iter().for_each(|hook| self.attach(hook.clone()));
    }

    fn join_counts(&mut self, counts: &[(Line, u64)]) {
        if counts.len() <= FEW {
            for &(line, count) in counts {
                self.raise(line, count);
            }
        } else {
            self.counts = merged(&self.counts, counts);
        }
    }

    /// Joins a wait that may not be over yet.
    pub(super) fn attach(&mut self, hook: Arc<Hook>) {
        match hook.get() {
            Some(clock) => self.join(clock),
            None if self.open.iter().any(|known| Arc::ptr_eq(known, &hook)) => {}
            None => self.open.push(hook),
        }
    }

    /// Joins the clocks of the waits that are over.
    pub(super) fn settle(&mut self) {
        let open = std::mem::take(&mut self.open);
        open.into_iter().for_each(|hook| self.attach(hook));
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the counts beyond the host's knowledge.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Line, u64)> {
        self.counts.iter().copied()
    }

    fn count(&self, line: Line) -> u64 {
        let at = self.counts.binary_search_by_key(&line, |(line, _)| *line);
        at.map_or(0, |at| self.counts[at].1)
    }

    /// Returns whether something certainly comes before the point.
    pub(super) fn covers(&self, moment: Moment, known: &Known) -> bool {
        self.has(moment, known) == Answer::Yes
    }

    fn has(&self, moment: Moment, known: &Known) -> Answer {
        if self.count(moment.line) > moment.index || known.had(moment, self.host) {
            return Answer::Yes;
        }
        let answers = self.open.iter().map(|hook| match hook.get() {
            Some(clock) => clock.has(moment, known),
            None => Answer::Open,
        });
        answers.fold(Answer::No, Answer::or)
    }
}

/// Merges two lists of counts: the larger count of each line.
fn merged(one: &[(Line, u64)], other: &[(Line, u64)]) -> SmallVec<[(Line, u64); 2]> {
    let mut counts = SmallVec::with_capacity(one.len().max(other.len()));
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(&&(line, count)), Some(&&(others, theirs))) = (one.peek(), other.peek()) {
        let order = line.cmp(&others);
        counts.push(match order {
            Ordering::Less => (line, count),
            Ordering::Equal => (line, count.max(theirs)),
            Ordering::Greater => (others, theirs),
        });
        if order.is_le() {
            one.next();
        }
        if order.is_ge() {
            other.next();
        }
    }
    counts.extend(one.chain(other).copied());
    counts
}

impl Answer {
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::Open, _) | (_, Self::Open) => Self::Open,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// A point between two items of a line, and the items that come before it.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(super) line: Line,
    /// The number of items of the line that come before it.
    pub(super) count: u64,
    pub(super) clock: Arc<Clock>,
}

impl Stamp {
    pub(super) fn has(&self, moment: Moment, known: &Known) -> Answer {
        if moment.line == self.line && moment.index < self.count {
            return Answer::Yes;
        }
        self.clock.has(moment, known)
    }

    /// Joins everything before the point into a clock that comes after everything that the host knows.
    pub(super) fn join_into(&self, clock: &mut Clock, known: &Known) {
        clock.join_beyond(&self.clock, known);
        if !known.covers(self.line, self.count) {
            clock.raise(self.line, self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(line: Line, index: u64) -> Moment {
        Moment { line, index }
    }

    #[test]
    fn join_takes_the_larger_of_each_count() {
        let known = Known::default();
        let (mut one, mut other) = (Clock::default(), Clock::default());
        one.raise(0, 3);
        one.raise(4, 1);
        other.raise(0, 1);
        other.raise(2, 5);
        one.join(&other);
        assert_eq!(one.counts.as_slice(), [(0, 3), (2, 5), (4, 1)]);
        assert_eq!(one.has(moment(0, 2), &known), Answer::Yes);
        assert_eq!(one.has(moment(0, 3), &known), Answer::No);
        assert_eq!(one.has(moment(2, 4), &known), Answer::Yes);
        assert_eq!(one.has(moment(1, 0), &known), Answer::No);
    }

    #[test]
    fn clock_forgets_counts_that_the_host_knows() {
        let (mut known, mut clock) = (Known::default(), Clock::default());
        clock.raise(0, 3);
        clock.raise(1, 2);
        known.advance();
        known.learn(0, 3);
        known.learn(1, 1);
        assert_eq!(clock.has(moment(1, 1), &known), Answer::Yes);
        clock.join_host(&known);
        assert_eq!(clock.counts.as_slice(), [(1, 2)]);
        assert_eq!(clock.has(moment(0, 2), &known), Answer::Yes);
        assert_eq!(clock.has(moment(1, 2), &known), Answer::No);
    }

    #[test]
    fn answer_behind_an_open_wait_is_known_when_the_wait_is_over() {
        let known = Known::default();
        let hook = Arc::new(Hook::new());
        let mut clock = Clock::default();
        clock.attach(hook.clone());
        assert_eq!(clock.has(moment(0, 0), &known), Answer::Open);
        let mut signal = Clock::default();
        signal.raise(0, 1);
        hook.set(Arc::new(signal)).unwrap();
        assert_eq!(clock.has(moment(0, 0), &known), Answer::Yes);
        assert_eq!(clock.has(moment(0, 1), &known), Answer::No);
        clock.settle();
        assert!(!clock.has_open());
        assert_eq!(clock.has(moment(0, 0), &known), Answer::Yes);
    }
}
