//! Shadow memory: the accesses to each byte and the block that owns it, as disjoint cells by address.
//!
//! A cell keeps the accesses that a later one must still be ordered after, and drops those that a later access implies.
//! This module does not know the order: the caller says which accesses stay.

use super::clock::Stamp;
use super::known::Moment;
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
        // No other call sets it: a life ends once.
        let _ = self.freed.set(Freed { place, streams });
    }
}

/// The end of a block.
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
    /// Where it was submitted, in the `submit` of a pool's stream.
    pub(super) submitted: Option<&'static Location<'static>>,
    /// The point at which it was submitted, if that is behind a wait for a flag.
    pub(super) behind: Option<Stamp>,
}

/// One access of an operation, to all the bytes of a cell.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) moment: Moment,
    pub(super) kind: AccessKind,
    pub(super) work: Arc<Work>,
    /// The block in which it was made; `None` in memory that no pool granted.
    pub(super) life: Option<Arc<Life>>,
}

impl Touch {
    /// Returns the next item's access to a cell.
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
    /// The current owner of the bytes, or the last one.
    pub(super) owner: Option<Arc<Life>>,
    pub(super) touches: SmallVec<[Touch; 2]>,
    /// The last access of all, for reports.
    pub(super) last: Option<Touch>,
    /// A live block has the bytes, and there is no memory behind them.
    pub(super) is_absent: bool,
}

impl Cell {
    fn blank(end: u64) -> Self {
        Self {
            end,
            owner: None,
            touches: SmallVec::new(),
            last: None,
            is_absent: false,
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
        self.is_absent == other.is_absent
            && is_same(self.owner.as_ref(), other.owner.as_ref())
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
pub(super) struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

impl Shadow {
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

    /// Returns the cells within a range, split at its bounds. Bytes without history have no cell.
    pub(super) fn known(&mut self, start: u64, end: u64) -> impl Iterator<Item = (u64, &mut Cell)> {
        self.cut(start);
        self.cut(end);
        self.cells
            .range_mut(start..end)
            .map(|(start, cell)| (*start, cell))
    }

    /// Returns the cells of a range as [`known`](Self::known) does, and creates cells for bytes without history.
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

    /// Joins neighbouring cells of a range whose histories are equal.
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

    /// Returns the start of the first cell from `from` on, or `end` if there is none before it.
    fn next_start(&self, from: u64, end: u64) -> u64 {
        let next = (from < end).then(|| self.cells.range(from..end).next());
        next.flatten().map_or(u64::MAX, |(start, _)| *start)
    }

    /// Removes the history of a range.
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

    fn spans(shadow: &Shadow) -> Vec<(u64, u64)> {
        shadow
            .cells
            .iter()
            .map(|(start, cell)| (*start, cell.end))
            .collect()
    }

    #[test]
    fn cells_are_split_and_joined_again() {
        let mut shadow = Shadow::default();
        assert_eq!(shadow.all(10, 30).count(), 1);
        assert_eq!(shadow.all(0, 20).count(), 2);
        assert_eq!(spans(&shadow), [(0, 10), (10, 20), (20, 30)]);
        assert_eq!(shadow.known(25, 90).count(), 1);
        shadow.mend(0, 30);
        assert_eq!(spans(&shadow), [(0, 30)]);
        shadow.forget(5, 6);
        assert_eq!(spans(&shadow), [(0, 5), (6, 30)]);
        assert_eq!(shadow.all(0, 30).count(), 3);
    }
}
