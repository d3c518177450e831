//! The best fit: the smallest block that a request fits into. Among blocks of that size, the one that is complete first
//! or expected first is chosen.

use super::block::{BlockId, State};
use super::block_map::BlockMap;
use super::fence::Fences;
use super::forecast::Forecast;
use super::index::BySize;
use super::request::{Grant, Placement, Request, View};

/// The number of pending blocks of one stream that a search looks at, smallest first.
pub(super) const PROBES: usize = 32;

/// The result of a search.
#[derive(Debug)]
pub(crate) enum Fit {
    /// No block.
    None,
    /// A block that is much larger, which was not taken. Blocks that other streams freed may fit better, once the
    /// device is asked what is complete.
    Loose,
    Good(Grant),
}

/// The best of the blocks that were considered so far.
#[derive(Debug)]
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) id: BlockId,
    /// Computed once a second block has the same size.
    forecast: Option<Forecast>,
}

impl Best {
    /// Replaces the best by the candidate if that is better. `forecast` returns when each is expected to be complete.
    pub(super) fn consider(
        best: &mut Option<Self>,
        (size, id): (u64, BlockId),
        forecast: Option<impl Fn(BlockId) -> Forecast>,
    ) {
        let candidate = Self {
            size,
            id,
            forecast: None,
        };
        match (best, forecast) {
            (Some(best), _) if size > best.size => {}
            (Some(best), None) if size == best.size => {}
            (Some(best), Some(forecast)) if size == best.size => {
                let own = best.forecast.get_or_insert_with(|| forecast(best.id));
                if own.yield_to(forecast(id)) {
                    best.id = id;
                }
            }
            (best, _) => *best = Some(candidate),
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
        let pending = self.map.totals().pending.current;
        let own = self.map.index().pending.bytes_waiting_for(self.view.stream);
        let rest = self.map.blocks()[id].bytes - self.request.bytes;
        rest >= self.map.units().chunk_bytes && pending > own
    }

    /// Returns the block right above a used block, if the request fits into it and the requester may take it.
    fn above(&self, id: BlockId, end: u64) -> Option<BlockId> {
        let blocks = self.map.blocks();
        let used = blocks.get(id)?;
        let is_there = used.state.is_used() && used.end() == end;
        let above = used.next.filter(|_| is_there)?;
        let does = blocks[above].bytes >= self.request.bytes && self.is_allowed(above);
        does.then_some(above)
    }

    fn fits(&self, id: BlockId) -> bool {
        self.map.offset_of(id, self.request).is_some()
    }

    fn is_allowed(&self, id: BlockId) -> bool {
        match &self.map.blocks()[id].state {
            State::Free => true,
            State::Pending(fences) => self.view.forecast(fences).is_some(),
            _ => false,
        }
    }

    fn best_fit(&self) -> Option<BlockId> {
        let index = self.map.index();
        let bytes = self.request.bytes;
        let free = index.free.best(bytes, usize::MAX, |id| self.fits(id));
        if !self.view.excludes_other_streams() {
            return self.best_fit_of_all(free);
        }
        let does = |id| self.fits(id) && self.is_allowed(id);
        let own = index.pending.donated_by(self.view.stream);
        let own = own.and_then(|own| own.by_size.best(bytes, PROBES, does));
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
        let does = |id| self.fits(id) && self.is_allowed(id);
        // Without waits every block that the requester may take is complete for it, and time does not matter.
        let forecast = self.view.waits.map(|_| |id| self.forecast(id));
        let mut best = None;
        let mut consider = |candidate: Option<(u64, BlockId)>| {
            if let Some(candidate) = candidate {
                Best::consider(&mut best, candidate, forecast);
            }
        };
        consider(free);
        for (donor, donated) in index.pending.donors() {
            if self.view.considers(donor) {
                let best = donated.by_size.best(bytes, PROBES, does);
                consider(match forecast {
                    Some(forecast) => best.map(|best| {
                        let is_in_time = forecast(best.1).is_in_time();
                        if is_in_time {
                            best
                        } else {
                            self.oldest_of_size(best, &donated.by_size, does)
                        }
                    }),
                    None => best,
                });
            }
        }
        for id in index.pending.several() {
            if does(id) {
                consider(Some((self.map.blocks()[id].bytes, id)));
            }
        }
        best.map(|best| best.id)
    }

    /// Returns the pending block of exactly the requested size that is expected to be complete first.
    pub(super) fn exact_fit(&self) -> Option<BlockId> {
        let bytes = self.request.bytes;
        let pending = &self.map.index().pending;
        // Most streams freed no such block, and an iterator over blocks by size takes long to make.
        let donors = pending.donors();
        let donors = donors.filter(|(_, donated)| donated.by_size.has(bytes));
        let donated = donors.flat_map(|(_, donated)| {
            let same_size = donated.by_size.at_least(bytes).take(PROBES);
            same_size
                .take_while(|(size, _)| *size == bytes)
                .map(|(_, id)| id)
        });
        let several = pending.several();
        let several = several.filter(|id| self.map.blocks()[*id].bytes == bytes);
        let mut best = None;
        for id in donated.chain(several) {
            if self.fits(id) && self.is_allowed(id) {
                let forecast = Some(|id| self.forecast(id));
                Best::consider(&mut best, (bytes, id), forecast);
            }
        }
        best.map(|best| best.id)
    }

    /// Returns the fences of the [exact fit](Self::exact_fit).
    pub(super) fn fences_of_exact_fit(&self) -> Option<Fences> {
        match &self.map.blocks()[self.exact_fit()?].state {
            State::Pending(fences) => Some(fences.clone()),
            _ => None,
        }
    }

    /// Returns the block of this size that waits for the earliest ticket: a stream runs in order.
    fn oldest_of_size(
        &self,
        (size, first): (u64, BlockId),
        by_size: &BySize,
        does: impl Fn(BlockId) -> bool,
    ) -> (u64, BlockId) {
        let ticket = |id: BlockId| match &self.map.blocks()[id].state {
            State::Pending(fences) => fences.single().map(|fence| fence.ticket),
            _ => None,
        };
        let mut oldest = first;
        let probes = by_size.at_least(size).take(PROBES);
        for (_, id) in probes.take_while(|(other, _)| *other == size) {
            if ticket(id) < ticket(oldest) && does(id) {
                oldest = id;
            }
        }
        (size, oldest)
    }

    /// Returns when a block that the requester may take is expected to be complete.
    fn forecast(&self, id: BlockId) -> Forecast {
        let forecast = match &self.map.blocks()[id].state {
            State::Pending(fences) => self.view.forecast(fences),
            _ => None,
        };
        forecast.unwrap_or_default()
    }
}
