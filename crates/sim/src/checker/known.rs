//! What the host has seen complete, and since when.
//!
//! The host learns in numbered steps: a number is a *version*. A clock represents its common part with the host's
//! knowledge by one version, instead of a count per stream. This module does not know memory.

use smallvec::SmallVec;

/// The number of a stream.
pub(super) type Line = usize;

/// An item of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) line: Line,
    pub(super) index: u64,
}

/// What the host knew of a stream, from a version on.
#[derive(Clone, Copy, Debug)]
struct Step {
    version: u64,
    count: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Known {
    version: u64,
    /// By line, in rising order. Only the last step is kept, unless a wait for a flag is open.
    lines: Vec<SmallVec<[Step; 1]>>,
    open_waits: usize,
}

impl Known {
    /// Returns the number of the host's last step.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Begins a step: what the host learns from now on is later than all clocks so far.
    pub(super) fn advance(&mut self) {
        self.version += 1;
    }

    /// Notes that the host has seen `count` items of a line complete.
    pub(super) fn learn(&mut self, line: Line, count: u64) {
        if self.covers(line, count) {
            return;
        }
        if self.lines.len() <= line {
            self.lines.resize_with(line + 1, SmallVec::new);
        }
        // Earlier steps matter only to a question that was open when the host took them.
        let steps = &mut self.lines[line];
        if self.open_waits == 0 {
            steps.clear();
        }
        let version = self.version;
        steps.push(Step { version, count });
    }

    /// Opens a wait for a flag. From now on a question may stay open until the wait is over.
    pub(super) fn open_wait(&mut self) {
        self.open_waits += 1;
    }

    /// Closes a wait for a flag.
    pub(super) fn close_wait(&mut self) {
        self.open_waits -= 1;
    }

    /// Returns whether the host has seen that many items complete.
    pub(super) fn covers(&self, line: Line, count: u64) -> bool {
        let last = self.lines.get(line).and_then(|steps| steps.last());
        last.map_or(0, |step| step.count) >= count
    }

    /// Returns whether the host had seen a moment complete at a version.
    pub(super) fn had(&self, moment: Moment, version: u64) -> bool {
        let steps = self.lines.get(moment.line).into_iter().flatten();
        let first = steps.into_iter().find(|step| step.count > moment.index);
        first.is_some_and(|step| step.version <= version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_kept_while_a_wait_is_open() {
        let moment = Moment { line: 3, index: 4 };
        let mut known = Known::default();
        known.open_wait();
        for count in [2, 5, 9] {
            known.advance();
            known.learn(3, count);
        }
        assert!(!known.had(moment, 1) && known.had(moment, 2) && known.had(moment, 3));
        assert!(known.covers(3, 9) && !known.covers(3, 10) && !known.covers(0, 1));
        known.close_wait();
        known.advance();
        known.learn(3, 11);
        assert_eq!(known.lines[3].len(), 1);
        assert!(known.had(moment, 4));
    }
}
