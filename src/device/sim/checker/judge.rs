//! The rules: which use of memory must be ordered after, or before, which other.
//!
//! - A use lies in a live block, if it touches memory that a pool manages at all.
//! - A use comes after all that earlier blocks left in its bytes, and after conflicting uses in its own.
//! - When a block ends, each of its uses comes before the present point of one of the streams in whose
//!   order it ends, or is known to be complete.
//! - When one begins, all that was done to its bytes comes before the present point of its stream.
//! - When memory is unmapped, all that was done to it is known to be complete.
//!
//! A use is reported once, and then forgotten: one mistake is one report. Knows nothing of how reports
//! are raised.

use super::clock::{Answer, Moment, Stamp};
use super::ground::{Cell, Freed, Ground, Life, Touch, Work};
use super::order::Order;
use super::violation::{Allocation, Usage, Violation, ViolationKind};
use crate::device::RawStream;
use crate::device::sim::operation::{Access, AccessKind, Operation};
use crate::device::sim::schedule::{Item, News};
use crate::sync::plain::Arc;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::panic::Location;

/// A question that a wait for a flag leaves open.
#[derive(Debug)]
struct Deferred {
    question: Question,
    violation: Violation,
}

/// Whether one of several moments comes before the point beside it.
type Question = SmallVec<[(Stamp, Moment); 2]>;

fn ask(question: &Question) -> Answer {
    let answers = question.iter().map(|(point, moment)| point.has(*moment));
    answers.fold(Answer::No, Answer::or)
}

/// What was found so far.
#[derive(Debug, Default)]
struct Findings {
    found: Vec<Violation>,
    deferred: Vec<Deferred>,
}

impl Findings {
    /// Whether something is as it must be, or may be; if not, that is reported.
    fn ask(&mut self, question: Question, violation: impl FnOnce() -> Violation) -> Answer {
        let answer = ask(&question);
        match answer {
            Answer::Yes => {}
            Answer::No => self.report(violation()),
            Answer::Open => self.deferred.push(Deferred {
                question,
                violation: violation(),
            }),
        }
        answer
    }

    /// The same for a moment that must come before one of the points.
    fn ask_before(
        &mut self,
        points: &[Stamp],
        moment: Moment,
        violation: impl FnOnce() -> Violation,
    ) -> Answer {
        if points.iter().any(|point| point.has(moment) == Answer::Yes) {
            return Answer::Yes;
        }
        let question = points.iter().map(|point| (point.clone(), moment));
        self.ask(question.collect(), violation)
    }

    /// An operation that touches several cells wrongly is one mistake.
    fn report(&mut self, violation: Violation) {
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

    fn reconsider(&mut self) {
        for deferred in std::mem::take(&mut self.deferred) {
            match ask(&deferred.question) {
                Answer::Yes => {}
                Answer::No => self.report(deferred.violation),
                Answer::Open => self.deferred.push(deferred),
            }
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(in crate::device::sim) struct Judge {
    pub(in crate::device::sim) order: Order,
    ground: Ground,
    /// Live blocks by address.
    lives: HashMap<u64, Arc<Life>>,
    findings: Findings,
}

impl Judge {
    // ---- what was found --------------------------------------------------------------------

    pub(in crate::device::sim) fn take_first(&mut self) -> Option<Violation> {
        let found = &mut self.findings.found;
        (!found.is_empty()).then(|| found.remove(0))
    }

    pub(in crate::device::sim) fn take_all(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.findings.found)
    }

    // ---- what the device is given to do ------------------------------------------------------

    /// Every item passes here in the order of submission. What a record or a wait for an event means
    /// is told beside it, by the event's name.
    pub(in crate::device::sim) fn submitted(&mut self, stream: RawStream, item: &Item) {
        match item {
            Item::Operation(operation) if !operation.accesses().is_empty() => {
                self.used(stream, operation);
            }
            Item::Signal(..) => self.order.signal(stream),
            Item::WaitUntil(..) => self.order.wait_for_flag(stream),
            Item::Operation(_) | Item::Record | Item::Wait(_) => {}
        }
        self.order.pass(stream);
    }

    pub(in crate::device::sim) fn hear(&mut self, news: impl IntoIterator<Item = News>) {
        let mut is_over = false;
        for news in news {
            is_over |= self.order.hear(news);
        }
        if is_over {
            self.findings.reconsider();
        }
    }

    fn used(&mut self, stream: RawStream, operation: &Operation) {
        let now = self.order.now(stream);
        let work = Arc::new(Work {
            stream,
            name: operation.name.clone(),
            place: operation.place(),
            behind: now.clock.has_open().then(|| now.clone()),
        });
        for access in operation
            .accesses()
            .iter()
            .filter(|access| access.bytes > 0)
        {
            self.touch(&now, &work, access);
        }
    }

    fn touch(&mut self, now: &Stamp, work: &Arc<Work>, access: &Access) {
        let (start, end) = (access.address, access.address.saturating_add(access.bytes));
        if self.is_outside(start, end, work, access.kind) {
            return;
        }
        let Self {
            ground,
            findings,
            order,
            ..
        } = self;
        for (start, cell) in ground.all(start, end) {
            let touch = Touch {
                moment: Moment {
                    line: now.line,
                    index: now.count,
                },
                kind: access.kind,
                work: work.clone(),
                life: cell.owner.clone(),
            };
            let scene = Scene {
                start,
                end: cell.end,
                touch: &touch,
            };
            let mut earlier = std::mem::take(&mut cell.touches);
            earlier.retain(|earlier| scene.keeps(earlier, cell, now, order, findings));
            cell.touches = earlier;
            cell.last = Some(touch.clone());
            cell.touches.push(touch);
        }
        ground.mend(start, end);
    }

    /// Whether an access touches memory that a pool manages, and not all of it is in live blocks. It
    /// is reported then.
    fn is_outside(&mut self, start: u64, end: u64, work: &Work, kind: AccessKind) -> bool {
        let (mut is_managed, mut outside) = (false, None);
        for (start, cell) in self.ground.all(start, end) {
            is_managed |= !cell.is_wild();
            if !cell.is_live() && outside.is_none() {
                outside = Some(outside_violation(start, cell, Usage::new(work, kind)));
            }
        }
        let outside = outside.filter(|_| is_managed);
        let is_outside = outside.is_some();
        outside
            .into_iter()
            .for_each(|violation| self.findings.report(violation));
        is_outside
    }

    // ---- what a pool grants and frees ----------------------------------------------------------

    pub(super) fn granted(
        &mut self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        place: &'static Location<'static>,
    ) {
        let now = [self.order.now(stream)];
        let life = Arc::new(Life {
            address,
            bytes,
            stream,
            allocated: place,
            freed: Default::default(),
        });
        let Self {
            ground,
            findings,
            order,
            ..
        } = self;
        for (start, cell) in ground.all(address, address + bytes) {
            if cell.is_live() {
                findings.report(granted_twice(start, cell, &life));
            }
            let mut touches = std::mem::take(&mut cell.touches);
            touches.retain(|touch| {
                let violation = || granted_while_used(start, cell.end, touch, &life);
                !order.is_known(touch.moment)
                    && findings.ask_before(&now, touch.moment, violation) != Answer::No
            });
            *cell = Cell {
                end: cell.end,
                owner: Some(life.clone()),
                touches,
                last: None,
            };
        }
        ground.mend(address, address + bytes);
        self.lives.insert(address, life);
    }

    pub(super) fn freed(
        &mut self,
        address: u64,
        streams: &[RawStream],
        place: Option<&'static Location<'static>>,
    ) {
        let Some(life) = self.lives.remove(&address) else {
            return;
        };
        // The only one to set it: the life was among the live ones.
        let _ = life.freed.set(Freed {
            place,
            streams: streams.into(),
        });
        let points: SmallVec<[Stamp; 2]> = streams
            .iter()
            .map(|stream| self.order.now(*stream))
            .collect();
        let Self {
            ground,
            findings,
            order,
            ..
        } = self;
        for (start, cell) in ground.known(address, address + life.bytes) {
            let end = cell.end;
            cell.touches.retain(|touch| {
                if order.is_known(touch.moment) {
                    return false;
                }
                let is_own = touch
                    .life
                    .as_ref()
                    .is_some_and(|other| Arc::ptr_eq(other, &life));
                let violation = || freed_while_used(start, end, touch, &life);
                !is_own || findings.ask_before(&points, touch.moment, violation) != Answer::No
            });
        }
        ground.mend(address, address + life.bytes);
    }

    // ---- what is mapped --------------------------------------------------------------------------

    /// The range has no memory behind it from now on, or other memory.
    pub(in crate::device::sim) fn unmapped(&mut self, address: u64, bytes: u64) {
        let Self {
            ground,
            findings,
            order,
            ..
        } = self;
        for (start, cell) in ground.known(address, address.saturating_add(bytes)) {
            for touch in std::mem::take(&mut cell.touches) {
                if !order.is_known(touch.moment) {
                    findings.report(unmapped_while_used(start, cell.end, &touch));
                }
            }
        }
    }

    /// The range is nobody's any more, and may come to be anybody's.
    pub(in crate::device::sim) fn returned(&mut self, address: u64, bytes: u64) {
        self.unmapped(address, bytes);
        self.ground.forget(address, address.saturating_add(bytes));
    }
}

/// An access in one cell.
struct Scene<'a> {
    start: u64,
    end: u64,
    touch: &'a Touch,
}

impl Scene<'_> {
    /// Holds an earlier access against this one. It stays if a later access could be ordered after
    /// this one and not after it.
    fn keeps(
        &self,
        earlier: &Touch,
        cell: &Cell,
        now: &Stamp,
        order: &Order,
        findings: &mut Findings,
    ) -> bool {
        if order.is_known(earlier.moment) {
            return false;
        }
        let writes = self.touch.kind == AccessKind::Write;
        let stands_for_it = writes || earlier.kind == AccessKind::Read;
        if earlier.moment == self.touch.moment {
            return !stands_for_it;
        }
        if now.has(earlier.moment) == Answer::Yes {
            return !stands_for_it;
        }
        let is_of_life = cell.is_of(earlier.life.as_ref());
        if !is_of_life {
            let kind = ViolationKind::UsedBeforeGrant;
            let question = smallvec![(now.clone(), earlier.moment)];
            return findings.ask(question, || self.unordered(kind, earlier)) != Answer::No;
        }
        if !writes && earlier.kind == AccessKind::Read {
            return true;
        }
        let question = self.either_way(earlier, now);
        findings.ask(question, || self.unordered(ViolationKind::Race, earlier)) != Answer::No
    }

    /// Whether one of two accesses comes before the other. What was submitted first comes later if a
    /// signal that it waits for lies behind the other.
    fn either_way(&self, earlier: &Touch, now: &Stamp) -> Question {
        let forth = (now.clone(), earlier.moment);
        let back = earlier.work.behind.clone();
        let back = back.map(|point| (point, self.touch.moment));
        std::iter::once(forth).chain(back).collect()
    }

    fn unordered(&self, kind: ViolationKind, earlier: &Touch) -> Violation {
        let next = self.touch.life.as_ref();
        Violation {
            later: Some(Usage::new(&self.touch.work, self.touch.kind)),
            next: next
                .filter(|_| kind == ViolationKind::UsedBeforeGrant)
                .map(Allocation::new),
            ..after(kind, self.start, self.end, earlier)
        }
    }
}

// ---- reports ---------------------------------------------------------------------------------

/// Something is wrong with what comes after an access.
fn after(kind: ViolationKind, start: u64, end: u64, earlier: &Touch) -> Violation {
    Violation {
        kind,
        address: start,
        bytes: end - start,
        earlier: Some(Usage::new(&earlier.work, earlier.kind)),
        later: None,
        memory: earlier.life.as_ref().map(Allocation::new),
        next: None,
    }
}

fn granted_while_used(start: u64, end: u64, earlier: &Touch, next: &Arc<Life>) -> Violation {
    Violation {
        next: Some(Allocation::new(next)),
        ..after(ViolationKind::GrantedWhileUsed, start, end, earlier)
    }
}

fn freed_while_used(start: u64, end: u64, earlier: &Touch, life: &Arc<Life>) -> Violation {
    Violation {
        memory: Some(Allocation::new(life)),
        ..after(ViolationKind::FreedWhileUsed, start, end, earlier)
    }
}

fn unmapped_while_used(start: u64, end: u64, earlier: &Touch) -> Violation {
    after(ViolationKind::UnmappedWhileUsed, start, end, earlier)
}

fn granted_twice(start: u64, cell: &Cell, next: &Arc<Life>) -> Violation {
    Violation {
        kind: ViolationKind::GrantedTwice,
        address: start,
        bytes: cell.end - start,
        earlier: last_use(cell),
        later: None,
        memory: cell.owner.as_ref().map(Allocation::new),
        next: Some(Allocation::new(next)),
    }
}

fn outside_violation(start: u64, cell: &Cell, usage: Usage) -> Violation {
    let kind = match cell.is_wild() {
        true => ViolationKind::NotAllocated,
        false => ViolationKind::UseAfterFree,
    };
    Violation {
        kind,
        address: start,
        bytes: cell.end - start,
        earlier: last_use(cell),
        later: Some(usage),
        memory: cell.owner.as_ref().map(Allocation::new),
        next: None,
    }
}

fn last_use(cell: &Cell) -> Option<Usage> {
    let last = cell.last.as_ref()?;
    Some(Usage::new(&last.work, last.kind))
}
