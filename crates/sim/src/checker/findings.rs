//! What was found, and what cannot be said yet.
//!
//! Knows nothing of the rules.

use super::clock::{Answer, Moment, Stamp};
use super::known::Known;
use super::violation::Violation;
use smallvec::SmallVec;

/// A question that a wait for a flag leaves open.
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
    /// Found, and raised by a panic, which some task may have swallowed.
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

    /// How many violations were raised, and not taken since.
    pub(super) fn raised(&self) -> usize {
        self.raised.len()
    }

    /// Takes all violations, those that were raised first.
    pub(super) fn take_all(&mut self) -> Vec<Violation> {
        let mut all = std::mem::take(&mut self.raised);
        all.append(&mut self.found);
        all
    }

    /// Whether something is as it must be, or may be; if not, that is reported.
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

    /// The same for a moment that must come before one of the points.
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

    /// An operation that touches several cells wrongly is one mistake.
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

    /// A wait for a flag is over.
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
