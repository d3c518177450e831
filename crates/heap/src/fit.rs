//! The best fit: the smallest block that a request fits into. Among blocks of that size, the one that is complete first
//! or expected first is chosen.

use super::block::{BlockId, State};
use super::block_map::BlockMap;
use super::fence::Fences;
use super::forecast::Forecast;
use super::index::BySize;
use super::request::{Grant, Placement, Request, View};
use crate::id::Ticket;

/// The number of pending blocks of one stream that a search looks at, smallest first.
pub(super) const PROBES: usize = 32;

/// The result of a search.
#[derive(Debug)]
pub enum Fit {
    /// No block.
    None,
    /// A block that is much larger, which was not taken. Blocks that other streams freed may fit better, once the
    /// device is asked what is complete.
    Loose,
    /// A block that fits well, granted.
    Good(Grant),
}

/// The best of the blocks that were considered so far.
#[derive(Debug)]
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) id: BlockId,
    /// When it is expected to be complete.
    pub(super) forecast: Forecast,
}

impl Best {
    /// Replaces the best by the candidate if that is better.
    pub(super) fn consider(best: &mut Option<Self>, candidate: Self) {
        match best {
            Some(best) if candidate.size > best.size => {}
            Some(best) if candidate.size == best.size => {
                if best.forecast.yield_to(candidate.forecast) {
                    best.id = candidate.id;
                }
            }
            best => *best = Some(candidate),
        }
    }
}

/// A search for one request.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) map: &'a BlockMap,
    pub(super) request: Request,
    pub(super) view: &'a View<'a>,
}

impl Search<'_> {
    /// Returns the block to take: the best fit, or the block at the requested place.
    pub(super) fn block(&self) -> Option<BlockId> {
        match self.view.placement {
            Placement::Anywhere => self.best_fit(),
            Placement::Above(id, end) => self.above(id, end),
            Placement::WithRoom(_) => None,
        }
    }

    /// Returns whether taking the block would cut a chunk or more off it, while blocks of other streams are pending. A
    /// large block that is broken up must be put together again chunk by chunk.
    pub(super) fn is_loose(&self, id: BlockId) -> bool {
        if self.view.placement != Placement::Anywhere {
            return false;
        }
        let rest = self.map.blocks()[id].bytes - self.request.bytes;
        if rest < self.map.units().chunk_bytes {
            return false;
        }
        let own = self.map.index().pending.bytes_waiting_for(self.view.stream);
        self.map.totals().pending.current > own
    }

    /// Returns the block right above a used block, if the request fits into it and the requester may take it.
    fn above(&self, id: BlockId, end: u64) -> Option<BlockId> {
        let blocks = self.map.blocks();
        let used = blocks.get(id)?;
        let is_there = used.state.is_used() && used.end() == end;
        let above = used.next.filter(|_| is_there)?;
        let does = blocks[above].bytes >= self.request.bytes && self.forecast(above).is_some();
        does.then_some(above)
    }

    fn fits(&self, id: BlockId) -> bool {
        self.map.offset_of(id, self.request).is_some()
    }

    /// Returns when a block is expected to be complete; `None` if the requester may not take it.
    fn forecast(&self, id: BlockId) -> Option<Forecast> {
        match &self.map.blocks()[id].state {
            State::Free => Some(Forecast::default()),
            State::Pending(fences) => self.view.forecast(fences),
            _ => None,
        }
    }

    /// Returns the forecast of a block that the request fits into; `None` if the requester may not take it.
    fn forecast_of_fit(&self, id: BlockId) -> Option<Forecast> {
        self.fits(id).then(|| self.forecast(id))?
    }

    fn best_fit(&self) -> Option<BlockId> {
        let index = self.map.index();
        let bytes = self.request.bytes;
        let fits = |id| self.fits(id).then_some(());
        let free = index.free.best(bytes, usize::MAX, fits);
        let free = free.map(|(size, id, ())| (size, id));
        if !self.view.excludes_other_streams() {
            return self.best_fit_of_all(free);
        }
        let is_allowed = |id| self.forecast_of_fit(id).map(drop);
        let own = index.pending.donated_by(self.view.stream);
        let own = own.and_then(|own| own.by_size.best(bytes, PROBES, is_allowed));
        let own = own.map(|(size, id, ())| (size, id));
        // Among blocks of one size, a free one.
        let best = match (free, own) {
            (Some(free), Some(own)) if own.0 < free.0 => own,
            (free, own) => free.or(own)?,
        };
        Some(best.1)
    }

    /// Returns the best of a free block and the blocks that any stream freed.
    #[inline(never)]
    fn best_fit_of_all(&self, free: Option<(u64, BlockId)>) -> Option<BlockId> {
        let index = self.map.index();
        let bytes = self.request.bytes;
        let mut best = free.map(|(size, id)| Best {
            size,
            id,
            forecast: Forecast::default(),
        });
        for (donor, donated) in index.pending.donors() {
            if !self.view.considers(donor) {
                continue;
            }
            let first = donated
                .by_size
                .best(bytes, PROBES, |id| self.forecast_of_fit(id));
            let Some((size, id, forecast)) = first else {
                continue;
            };
            // Without waits every block that the requester may take is complete for it, and time does not matter.
            let (id, forecast) = if forecast.is_in_time() {
                (id, forecast)
            } else {
                self.first_of_size(&donated.by_size, size)
                    .unwrap_or((id, forecast))
            };
            Best::consider(&mut best, Best { size, id, forecast });
        }
        for id in index.pending.several() {
            if let Some(forecast) = self.forecast_of_fit(id) {
                let size = self.map.blocks()[id].bytes;
                Best::consider(&mut best, Best { size, id, forecast });
            }
        }
        best.map(|best| best.id)
    }

    /// Returns a pending block that the requester may take, also behind the first [`PROBES`]. Only blocks that wait for
    /// one stream are looked at: the best fit looks at all others.
    pub(super) fn any_pending(&self) -> Option<BlockId> {
        let donors = self.map.index().pending.donors();
        let mut considered = donors.filter(|(donor, _)| self.view.considers(*donor));
        considered.find_map(|(_, donated)| {
            let fits = |id| self.forecast_of_fit(id);
            let found = donated.by_size.best(self.request.bytes, usize::MAX, fits);
            found.map(|(_, id, _)| id)
        })
    }

    /// Returns the pending block of exactly the requested size that is expected to be complete first.
    pub(super) fn exact_fit(&self) -> Option<BlockId> {
        let size = self.request.bytes;
        let pending = &self.map.index().pending;
        let donors = pending.donors();
        let donated = donors.filter_map(|(_, donated)| self.first_of_size(&donated.by_size, size));
        let several = pending.several().filter_map(|id| {
            let is_exact = self.map.blocks()[id].bytes == size;
            let forecast = is_exact.then(|| self.forecast_of_fit(id))?;
            Some((id, forecast?))
        });
        let mut best = None;
        for (id, forecast) in donated.chain(several) {
            Best::consider(&mut best, Best { size, id, forecast });
        }
        best.map(|best| best.id)
    }

    /// Returns the block of this size that is complete first of those that one stream freed, with its forecast: a
    /// stream runs in order, so it is the one with the earliest ticket. If the requester may not take that one, because
    /// it is overdue or its stream was just asked, `None`: those behind it are no better.
    fn first_of_size(&self, by_size: &BySize, size: u64) -> Option<(BlockId, Forecast)> {
        let mut first: Option<(Option<Ticket>, BlockId)> = None;
        by_size.visit_size(size, PROBES, |id| {
            if self.fits(id) {
                let ticket = self.ticket(id);
                if first.is_none_or(|(earliest, _)| ticket < earliest) {
                    first = Some((ticket, id));
                }
            }
        });
        let (_, id) = first?;
        Some((id, self.forecast(id)?))
    }

    /// Returns the ticket that a block waits for, if it waits for one stream.
    fn ticket(&self, id: BlockId) -> Option<Ticket> {
        match &self.map.blocks()[id].state {
            State::Pending(fences) => fences.single().map(|fence| fence.ticket),
            _ => None,
        }
    }

    /// Returns the fences of the [exact fit](Self::exact_fit).
    pub(super) fn fences_of_exact_fit(&self) -> Option<Fences> {
        match &self.map.blocks()[self.exact_fit()?].state {
            State::Pending(fences) => Some(fences.clone()),
            _ => None,
        }
    }
}
