//! The check of one access against the earlier ones to the same bytes.

use super::clock::{Answer, Stamp};
use super::findings::{Findings, Question};
use super::order::Order;
use super::report;
use super::shadow::{Cell, Touch};
use super::violation::ViolationKind;
use crate::operation::AccessKind;
use smallvec::smallvec;

/// An access in one cell, and the state that is needed to check it.
pub(super) struct Scene<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) touch: Touch,
    pub(super) now: &'a Stamp,
    pub(super) order: &'a Order,
    pub(super) findings: &'a mut Findings,
}

impl Scene<'_> {
    /// Checks the access against the earlier ones of the cell, and adds it to them.
    pub(super) fn play(mut self, cell: &mut Cell) {
        let mut earlier = std::mem::take(&mut cell.touches);
        earlier.retain(|earlier| !self.order.is_known(earlier.moment) && self.keeps(earlier, cell));
        cell.touches = earlier;
        cell.last = Some(self.touch.clone());
        cell.touches.push(self.touch);
    }

    /// Returns whether an earlier access stays in the cell. It stays if a later access could be ordered after this one
    /// but not after it. One that was reported does not stay.
    fn keeps(&mut self, earlier: &Touch, cell: &Cell) -> bool {
        let is_same = earlier.moment == self.touch.moment;
        if is_same || self.now.has(earlier.moment, self.order.known()) == Answer::Yes {
            return !self.stands_for(earlier);
        }
        if !cell.is_of(earlier.life.as_ref()) {
            let question = smallvec![(self.now.clone(), earlier.moment)];
            return self.may_be(ViolationKind::UsedBeforeGrant, question, earlier);
        }
        let is_harmless = [&self.touch, earlier]
            .iter()
            .all(|touch| touch.kind == AccessKind::Read);
        is_harmless || self.may_be(ViolationKind::Race, self.either_way(earlier), earlier)
    }

    /// Returns whether any access that conflicts with the earlier one, and is ordered after this one, is also in order
    /// with the earlier one.
    fn stands_for(&self, earlier: &Touch) -> bool {
        self.touch.kind == AccessKind::Write || earlier.kind == AccessKind::Read
    }

    fn may_be(&mut self, kind: ViolationKind, question: Question, earlier: &Touch) -> bool {
        let (start, end, touch) = (self.start, self.end, &self.touch);
        let report = || report::unordered(kind, start, end, earlier, touch);
        self.findings.may_be(question, self.order.known(), report)
    }

    /// Asks whether one of two accesses comes before the other. The one that was submitted first can come later: the
    /// signal that it waits for may lie behind the other.
    fn either_way(&self, earlier: &Touch) -> Question {
        let forth = (self.now.clone(), earlier.moment);
        let back = earlier.work.behind.clone();
        let back = back.map(|point| (point, self.touch.moment));
        std::iter::once(forth).chain(back).collect()
    }
}
