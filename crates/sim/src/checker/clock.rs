//! Vector clocks: which moments of which streams come before a point.
//!
//! A *line* is a stream's number here; its items are counted from its beginning on. What lies behind
//! a wait for a flag is not known before that wait is over, since any of several signals may end
//! it: a clock then has an open [`Hook`], and answers accordingly. Knows nothing of memory.

use weirpool_device::plain::{Arc, OnceLock};

/// A stream, by number.
pub(super) type Line = usize;

/// An item of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) line: Line,
    pub(super) index: u64,
}

/// A wait for a flag: filled, once it is over, with what it came after.
pub(super) type Hook = OnceLock<Arc<Clock>>;

/// Whether something comes before a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    /// It will be known when a wait for a flag is over.
    Open,
}

/// What a point comes after: of each line, how many items.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    counts: Vec<u64>,
    open: Vec<Arc<Hook>>,
}

impl Clock {
    fn count(&self, line: Line) -> u64 {
        self.counts.get(line).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, line: Line, count: u64) {
        if self.counts.len() <= line {
            self.counts.resize(line + 1, 0);
        }
        self.counts[line] = self.counts[line].max(count);
    }

    pub(super) fn join(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, others) in self.counts.iter_mut().zip(&other.counts) {
            *own = (*own).max(*others);
        }
        other.open.iter().for_each(|hook| self.attach(hook.clone()));
    }

    /// Comes after a wait that may not be over.
    pub(super) fn attach(&mut self, hook: Arc<Hook>) {
        match hook.get() {
            Some(clock) => self.join(clock),
            None if self.open.iter().any(|known| Arc::ptr_eq(known, &hook)) => {}
            None => self.open.push(hook),
        }
    }

    /// Takes up what the waits that are over came after.
    pub(super) fn settle(&mut self) {
        let open = std::mem::take(&mut self.open);
        open.into_iter().for_each(|hook| self.attach(hook));
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn covers(&self, line: Line, count: u64) -> bool {
        self.count(line) >= count
    }

    /// Whether it comes after all that the other, which has nothing open, comes after.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let mut counts = other.counts.iter().enumerate();
        counts.all(|(line, count)| self.covers(line, *count))
    }

    fn has(&self, moment: Moment) -> Answer {
        if self.covers(moment.line, moment.index + 1) {
            return Answer::Yes;
        }
        let answers = self.open.iter().map(|hook| match hook.get() {
            Some(clock) => clock.has(moment),
            None => Answer::Open,
        });
        answers.fold(Answer::No, Answer::or)
    }
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

/// A point between two items of a line, and what it comes after.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub(super) line: Line,
    /// How many items of the line come before it.
    pub(super) count: u64,
    pub(super) clock: Arc<Clock>,
}

impl Stamp {
    pub(super) fn has(&self, moment: Moment) -> Answer {
        if moment.line == self.line && moment.index < self.count {
            return Answer::Yes;
        }
        self.clock.has(moment)
    }

    /// All that the point comes after, as one clock.
    pub(super) fn join_into(&self, clock: &mut Clock) {
        clock.join(&self.clock);
        clock.raise(self.line, self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(line: Line, index: u64) -> Moment {
        Moment { line, index }
    }

    #[test]
    fn joining_is_the_larger_of_each() {
        let (mut one, mut other) = (Clock::default(), Clock::default());
        one.raise(0, 3);
        other.raise(0, 1);
        other.raise(2, 5);
        one.join(&other);
        assert_eq!(one.has(moment(0, 2)), Answer::Yes);
        assert_eq!(one.has(moment(0, 3)), Answer::No);
        assert_eq!(one.has(moment(2, 4)), Answer::Yes);
        assert_eq!(one.has(moment(1, 0)), Answer::No);
    }

    #[test]
    fn what_lies_behind_an_open_wait_is_known_when_it_is_over() {
        let hook = Arc::new(Hook::new());
        let mut clock = Clock::default();
        clock.attach(hook.clone());
        assert_eq!(clock.has(moment(0, 0)), Answer::Open);
        let mut signal = Clock::default();
        signal.raise(0, 1);
        hook.set(Arc::new(signal)).unwrap();
        assert_eq!(clock.has(moment(0, 0)), Answer::Yes);
        assert_eq!(clock.has(moment(0, 1)), Answer::No);
        clock.settle();
        assert!(!clock.has_open());
        assert_eq!(clock.has(moment(0, 0)), Answer::Yes);
    }
}
