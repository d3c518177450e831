//! What was done to which bytes, and whose they are: disjoint cells by address.
//!
//! A cell remembers the accesses that a later one must still be ordered after; what a later access
//! stands for is forgotten. Knows nothing of order: who asks says which accesses stay.

use super::clock::{Moment, Stamp};
use crate::label::StreamLabel;
use crate::operation::AccessKind;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::Location;
use weirpool_device::plain::{Arc, OnceLock};

/// A block, from its grant on.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: StreamLabel,
    pub(super) allocated: &'static Location<'static>,
    pub(super) freed: OnceLock<Freed>,
}

impl Life {
    pub(super) fn new(
        address: u64,
        bytes: u64,
        stream: StreamLabel,
        allocated: &'static Location<'static>,
    ) -> Self {
        Self {
            address,
            bytes,
            stream,
            allocated,
            freed: OnceLock::new(),
        }
    }

    pub(super) fn end(
        &self,
        place: Option<&'static Location<'static>>,
        streams: SmallVec<[StreamLabel; 1]>,
    ) {
        // The only one to set it: a life ends once.
        let _ = self.freed.set(Freed { place, streams });
    }
}

/// How a block ended.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) place: Option<&'static Location<'static>>,
    pub(super) streams: SmallVec<[StreamLabel; 1]>,
}

/// An operation, as a report names it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) stream: StreamLabel,
    pub(super) name: Option<Cow<'static, str>>,
    pub(super) place: &'static Location<'static>,
    /// The point that it was submitted at, if that lies behind a wait for a flag.
    pub(super) behind: Option<Stamp>,
}

/// One access of an operation, to all the bytes of a cell.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) moment: Moment,
    pub(super) kind: AccessKind,
    pub(super) work: Arc<Work>,
    /// The block that it was made in; none in memory that no pool granted.
    pub(super) life: Option<Arc<Life>>,
}

impl Touch {
    /// The next item's access to a cell.
    pub(super) fn new(now: &Stamp, work: &Arc<Work>, kind: AccessKind, cell: &Cell) -> Self {
        let (line, index) = (now.line, now.count);
        Self {
            moment: Moment { line, index },
            kind,
            work: work.clone(),
            life: cell.owner.clone(),
        }
    }

    pub(super) fn is_of(&self, life: &Arc<Life>) -> bool {
        is_same(self.life.as_ref(), Some(life))
    }
}

/// Bytes with one history.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) end: u64,
    /// The block that has the bytes, or had them last.
    pub(super) owner: Option<Arc<Life>>,
    pub(super) touches: SmallVec<[Touch; 2]>,
    /// The last access of all, for people.
    pub(super) last: Option<Touch>,
}

impl Cell {
    fn blank(end: u64) -> Self {
        Self {
            end,
            owner: None,
            touches: SmallVec::new(),
            last: None,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|life| life.freed.get().is_none())
    }

    pub(super) fn is_of(&self, life: Option<&Arc<Life>>) -> bool {
        is_same(self.owner.as_ref(), life)
    }

    fn continues(&self, other: &Self) -> bool {
        is_same(self.owner.as_ref(), other.owner.as_ref())
            && self.last.as_ref().map(moment_of) == other.last.as_ref().map(moment_of)
            && self
                .touches
                .iter()
                .map(moment_of)
                .eq(other.touches.iter().map(moment_of))
    }
}

fn moment_of(touch: &Touch) -> (Moment, AccessKind) {
    (touch.moment, touch.kind)
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ground {
    cells: BTreeMap<u64, Cell>,
}

impl Ground {
    /// Makes `at` a boundary between cells.
    fn cut(&mut self, at: u64) {
        let Some((&start, cell)) = self.cells.range_mut(..at).next_back() else {
            return;
        };
        if start < at && at < cell.end {
            let right = cell.clone();
            cell.end = at;
            self.cells.insert(at, right);
        }
    }

    /// The cells of a range, which end with it; bytes of which nothing is known have none.
    pub(super) fn known(&mut self, start: u64, end: u64) -> impl Iterator<Item = (u64, &mut Cell)> {
        self.cut(start);
        self.cut(end);
        self.cells
            .range_mut(start..end)
            .map(|(start, cell)| (*start, cell))
    }

    /// The same with a cell for all bytes.
    pub(super) fn all(&mut self, start: u64, end: u64) -> impl Iterator<Item = (u64, &mut Cell)> {
        self.cut(start);
        self.cut(end);
        for (from, to) in self.gaps(start, end) {
            self.cells.insert(from, Cell::blank(to));
        }
        self.cells
            .range_mut(start..end)
            .map(|(start, cell)| (*start, cell))
    }

    fn gaps(&self, start: u64, end: u64) -> SmallVec<[(u64, u64); 2]> {
        let mut gaps = SmallVec::new();
        let mut at = start;
        for (&next, cell) in self.cells.range(start..end) {
            if at < next {
                gaps.push((at, next));
            }
            at = cell.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// Joins cells of a range that have come to have the same history.
    pub(super) fn mend(&mut self, start: u64, end: u64) {
        let mut at = start;
        while let Some(cell) = self.cells.get(&at) {
            let next = cell.end;
            let Some(following) = self.cells.get(&next).filter(|_| next < end) else {
                at = self.next_start(next, end);
                continue;
            };
            if !following.continues(cell) {
                at = next;
                continue;
            }
            let end = following.end;
            self.cells.remove(&next);
            self.cells.get_mut(&at).expect("looked at above").end = end;
        }
    }

    /// Where the next cell begins behind a gap, or `end`.
    fn next_start(&self, from: u64, end: u64) -> u64 {
        let next = (from < end).then(|| self.cells.range(from..end).next());
        next.flatten().map_or(u64::MAX, |(start, _)| *start)
    }

    /// Forgets that a range was ever granted or touched.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        let starts: Vec<_> = self.known(start, end).map(|(start, _)| start).collect();
        starts
            .into_iter()
            .for_each(|start| drop(self.cells.remove(&start)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ground: &Ground) -> Vec<(u64, u64)> {
        ground
            .cells
            .iter()
            .map(|(start, cell)| (*start, cell.end))
            .collect()
    }

    #[test]
    fn cells_split_where_they_must_and_mend_where_they_can() {
        let mut ground = Ground::default();
        assert_eq!(ground.all(10, 30).count(), 1);
        assert_eq!(ground.all(0, 20).count(), 2);
        assert_eq!(spans(&ground), [(0, 10), (10, 20), (20, 30)]);
        assert_eq!(ground.known(25, 90).count(), 1);
        ground.mend(0, 30);
        assert_eq!(spans(&ground), [(0, 30)]);
        ground.forget(5, 6);
        assert_eq!(spans(&ground), [(0, 5), (6, 30)]);
        assert_eq!(ground.all(0, 30).count(), 3);
    }
}
