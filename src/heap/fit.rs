//! The best fit: the smallest block that does, and of those of one size the one that is complete, or expected to
//! be, first.

use super::index::BySize;
use super::{BlockId, Fences, Forecast, Grant, Heap, Placement, Request, State, View};
use crate::id::StreamId;

/// How many pending blocks of one stream are looked at for one request, smallest first.
pub(super) const PROBES: usize = 32;

/// What is there for a request.
#[derive(Debug)]
pub(crate) enum Fit {
    /// Nothing.
    None,
    /// A block that is much larger, which stays where it is: what others freed may fit better, once it is asked
    /// for.
    Loose,
    Good(Grant),
}

/// The best of those considered so far.
#[derive(Debug)]
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) id: BlockId,
    /// Asked for once there is another of its size.
    forecast: Option<Forecast>,
}

impl Best {
    /// Compares with another one; `forecast` says when each is expected to be complete.
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

impl Heap {
    /// [`take`](Self::take), but for a block that is larger by a handle or more while others have something pending: a
    /// large piece that is broken up is put together again handle by handle.
    pub(crate) fn take_good_fit(&mut self, request: Request, view: &View<'_>) -> Fit {
        if view.placement != Placement::Anywhere {
            return self.take(request, view).map_or(Fit::None, Fit::Good);
        }
        let Some(id) = self.best_fit(request, view) else {
            return Fit::None;
        };
        let rest = self.blocks[id].bytes - request.bytes;
        if rest >= self.geometry.chunk_bytes && self.is_pending_elsewhere(view.stream) {
            return Fit::Loose;
        }
        let grant = self.carve(id, request);
        self.note_borrower(grant.id, view.stream);
        Fit::Good(grant)
    }

    /// Whether anything waits for other streams alone.
    fn is_pending_elsewhere(&self, stream: StreamId) -> bool {
        self.totals.pending.current > self.pending.bytes_waiting_for(stream)
    }

    /// The best fit among what is free and what the asker may have. Where nothing is waited for, time is not
    /// looked at.
    pub(super) fn best_fit(&self, request: Request, view: &View<'_>) -> Option<BlockId> {
        let fits = |id: &BlockId| self.placement(*id, request).is_some();
        let forecast = view.waits.map(|_| |id| self.forecast(id, view));
        let mut best = None;
        let mut consider = |candidate: Option<(u64, BlockId)>| {
            if let Some(candidate) = candidate {
                Best::consider(&mut best, candidate, forecast);
            }
        };
        consider(self.free.best(request.bytes, usize::MAX, |id| fits(&id)));
        let does = |id| fits(&id) && self.may_have(id, view);
        if view.has_only_its_own() {
            // The others need not be looked through.
            let own = self.pending.donated_by(view.stream);
            consider(own.and_then(|own| own.by_size.best(request.bytes, PROBES, does)));
            return best.map(|best| best.id);
        }
        for (donor, donated) in self.pending.donors() {
            if view.considers(donor) {
                let best = donated.by_size.best(request.bytes, PROBES, does);
                consider(match forecast {
                    None => best,
                    Some(forecast) => best.map(|best| {
                        let is_in_time = forecast(best.1).is_in_time();
                        if is_in_time {
                            best
                        } else {
                            self.oldest_like(best, &donated.by_size, does)
                        }
                    }),
                });
            }
        }
        for id in self.pending.several() {
            if fits(&id) && self.may_have(id, view) {
                consider(Some((self.blocks[id].bytes, id)));
            }
        }
        best.map(|best| best.id)
    }

    /// Takes pending memory of just the size that is asked for, if the asker may have any.
    pub(crate) fn take_like(&mut self, request: Request, view: &View<'_>) -> Option<Grant> {
        let id = self.exact_fit(request, view)?;
        let grant = self.carve(id, request);
        self.note_borrower(grant.id, view.stream);
        Some(grant)
    }

    /// What such memory waits for.
    pub(crate) fn look_like(&self, request: Request, view: &View<'_>) -> Option<Fences> {
        match &self.blocks[self.exact_fit(request, view)?].state {
            State::Pending(fences) => Some(fences.clone()),
            _ => None,
        }
    }

    /// Of the pending blocks of just that size the one that is expected to be complete first.
    fn exact_fit(&self, request: Request, view: &View<'_>) -> Option<BlockId> {
        let bytes = request.bytes;
        let does =
            |id: &BlockId| self.placement(*id, request).is_some() && self.may_have(*id, view);
        let donated = self.pending.donors().flat_map(|(_, donated)| {
            let like = donated.by_size.at_least(bytes).take(PROBES);
            like.take_while(|(size, _)| *size == bytes)
                .map(|(_, id)| id)
        });
        let several = self.pending.several();
        let several = several.filter(|id| self.blocks[*id].bytes == bytes);
        let mut best = None;
        for id in donated.chain(several).filter(does) {
            let forecast = Some(|id| self.forecast(id, view));
            Best::consider(&mut best, (bytes, id), forecast);
        }
        best.map(|best| best.id)
    }

    /// Of what waits for one stream, the first of this size that it freed: a stream runs in order.
    fn oldest_like(
        &self,
        (size, first): (u64, BlockId),
        by_size: &BySize,
        does: impl Fn(BlockId) -> bool,
    ) -> (u64, BlockId) {
        let ticket = |id: BlockId| match &self.blocks[id].state {
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

    /// When a block that the asker may have is expected to be complete.
    fn forecast(&self, id: BlockId, view: &View<'_>) -> Forecast {
        let forecast = match &self.blocks[id].state {
            State::Pending(fences) => view.forecast(fences),
            _ => None,
        };
        forecast.unwrap_or_default()
    }
}
