//! The violations that were found, and the questions that are still open.
//!
//! This module does not know the rules.

use super::clock::{Answer, Stamp};
use super::known::{Known, Moment};
use super::violation::Violation;
use smallvec::SmallVec;

/// A question that depends on the end of a wait for a flag.
#[derive(Debug)]
struct Deferred {
    question: Question,
    violation: Violation,
}

/// Whether one of several moments comes before the point beside it.
pub(super) type Question = SmallVec<[(Stamp, Moment); 2]>;

fn ask(question: &Question, known: &Known) -> Answer {
    let answers = question
        .iter()
        .map(|(point, moment)| point.has(*moment, known));
    answers.fold(Answer::No, Answer::or)
}

/// The violations that were found, and the questions that are open.
#[derive(Debug, Default)]
pub(super) struct Findings {
    found: Vec<Violation>,
    /// Violations that were raised by a panic, which a task may have caught.
    raised: Vec<Violation>,
    deferred: Vec<Deferred>,
}

impl Findings {
    /// Returns the first violation that was not raised. It counts as raised from now on.
    pub(super) fn raise_first(&mut self) -> Option<Violation> {
        let first = (!self.found.is_empty()).then(|| self.found.remove(0))?;
        self.raised.push(first.clone());
        Some(first)
    }

    /// Returns how many violations were raised and not taken since.
    pub(super) fn raised(&self) -> usize {
        self.raised.len()
    }

    /// Takes all violations. Those that were raised come first.
    pub(super) fn take_all(&mut self) -> Vec<Violation> {
        let mut all = std::mem::take(&mut self.raised);
        all.append(&mut self.found);
        all
    }

    /// Returns whether the rule holds, or may hold depending on a flag. If it is violated, reports that.
    pub(super) fn may_be(
        &mut self,
        question: Question,
        known: &Known,
        violation: impl FnOnce() -> Violation,
    ) -> bool {
        let answer = ask(&question, known);
        match answer {
            Answer::Yes => {}
            Answer::No => self.report(violation()),
            Answer::Open => self.defer(question, violation()),
        }
        answer != Answer::No
    }

    fn defer(&mut self, question: Question, violation: Violation) {
        self.deferred.push(Deferred {
            question,
            violation,
        });
    }

    /// Returns whether a moment comes before one of the points, or may; see [`may_be`](Self::may_be).
    pub(super) fn may_be_before(
        &mut self,
        points: &[Stamp],
        moment: Moment,
        known: &Known,
        violation: impl FnOnce() -> Violation,
    ) -> bool {
        let is_before = |point: &Stamp| point.has(moment, known) == Answer::Yes;
        points.iter().any(is_before) || {
            let question = points.iter().map(|point| (point.clone(), moment));
            self.may_be(question.collect(), known, violation)
        }
    }

    /// Reports a violation. An operation that touches several cells wrongly is reported once.
    pub(super) fn report(&mut self, violation: Violation) {
        let same = |found: &Violation| {
            (found.kind, &found.earlier, &found.later)
                == (violation.kind, &violation.earlier, &violation.later)
                && found.memory == violation.memory
        };
        match self.found.last_mut().filter(|found| same(found)) {
            Some(last) if last.address + last.bytes == violation.address => {
                last.bytes += violation.bytes;
            }
            _ => self.found.push(violation),
        }
    }

    /// Answers the deferred questions again, after a wait for a flag ended.
    pub(super) fn reconsider(&mut self, known: &Known) {
        for deferred in std::mem::take(&mut self.deferred) {
            match ask(&deferred.question, known) {
                Answer::Yes => {}
                Answer::No => self.report(deferred.violation),
                Answer::Open => self.deferred.push(deferred),
            }
        }
    }
}
