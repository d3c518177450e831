//! The way back: a free, a use on a further stream, a grant that nobody took.

use super::{Allocation, Allocations, Change, Driver};
use crate::device::DeviceError;
use crate::fault::injected;
use crate::heap::policy::Order;
use crate::heap::{BlockId, Fence, Fences, Whose};
use crate::id::Ticket;
use crate::lane::{Closed, Event, Freed, Lane, Use};
use crate::sync::Arc;
use std::time::Duration;

impl Driver {
    /// Frees a block that was used on one stream alone. Returns the ticket that it waits for.
    #[inline]
    pub(crate) fn free(&self, lane: &Lane, block: Use) -> Ticket {
        let now = if lane.cache.may_keep_large(block.bytes) {
            self.large_caches_now()
        } else {
            None
        };
        let freed = lane.cache.free(block, now);
        let ticket = freed.ticket;
        if !freed.is_kept || freed.closed.is_some() {
            self.finish_free(lane, block.id, freed);
        }
        ticket
    }

    /// Now, if large blocks may stay with their streams: where memory is not to be given back unasked, nor rather
    /// waited for than taken.
    fn large_caches_now(&self) -> Option<Duration> {
        let may_stay = self.settings.order == Order::GrowFirst && self.keeps_all();
        may_stay.then(|| self.device.now())
    }

    fn finish_free(&self, lane: &Lane, id: BlockId, freed: Freed) {
        let mut whose = Whose::Anybodys;
        if !freed.is_kept {
            let fences = Fences::one(lane.id, freed.ticket);
            whose = self.heap.lock().free(id, fences);
        }
        self.record_closed(lane, freed.closed);
        self.note_free(whose);
    }

    /// A block was freed. What came back to a reservation is nothing to who waits: they are not woken for it.
    fn note_free(&self, whose: Whose) {
        if whose == Whose::Anybodys {
            self.publish(Change::Memory);
        }
        self.note_return();
    }

    /// Frees a block of `home` that was used on several streams: it is pending for each of them, and for the
    /// point where its memory's earlier life ends, if none of them comes after that. The order of each is kept.
    /// Returns the tickets that it waits for.
    pub(crate) fn free_many(
        &self,
        home: &Lane,
        lanes: &[Arc<Lane>],
        earlier: Option<Fence>,
        block: &Use,
    ) -> Fences {
        home.cache.count(Event::Free, block.bytes, block.rounding);
        let noted: Vec<_> = lanes
            .iter()
            .map(|lane| (lane, lane.cache.note_use(block.bytes)))
            .collect();
        let fences: Fences = noted
            .iter()
            .map(|(lane, freed)| lane.fence(freed.ticket))
            .chain(earlier)
            .collect();
        // First, so that who finds the memory pending can have its stream wait for it: of an external stream nobody else
        // records anything.
        for (lane, freed) in noted {
            self.record_closed(lane, freed.closed);
        }
        let whose = self.heap.lock().free(block.id, fences.clone());
        self.note_free(whose);
        fences
    }

    /// Records the event of a closed ticket, once in a while after asking how far the stream is, so that
    /// events come back and their number is bounded (I8).
    ///
    /// A record that fails leaves the ticket to a later one, or, sticky, ends the pool; a free has
    /// nobody to tell.
    fn record_closed(&self, lane: &Lane, closed: Option<Closed>) {
        let Some(closed) = closed else {
            return;
        };
        self.thin_out(lane);
        if lane.timeline.is_full() && !lane.is_external {
            return lane.cache.expect_seal(closed.ticket.next());
        }
        let recorded = self.noted(lane.record(closed, &*self.device, &self.events));
        // Unless somebody waits for it, or it goes back to the device, it may well take a little longer.
        match recorded {
            Ok(marker) if self.is_open() && self.keeps_all() => {
                lane.cache.spacing().note_sealed(marker.sealed_at)
            }
            _ => lane.cache.spacing().reset(),
        }
    }

    /// Takes back a loan whose memory was never used: only its earlier life has to end.
    pub(crate) fn give_back(&self, lane: &Lane, allocation: Allocation) {
        let fences = self.fences_of(lane, &allocation);
        self.heap.lock().give_back(allocation.id, fences);
        self.publish(Change::Memory);
        self.note_return();
    }

    /// Orders a further stream after the grant of a block: after everything that its memory's earlier
    /// life left, which so far only `home`'s own order kept it from.
    ///
    /// # Errors
    /// When the device cannot; the stream must not use the block then.
    pub(crate) fn order_after_grant(
        &self,
        home: &Lane,
        after: Ticket,
        further: &Lane,
    ) -> Result<(), DeviceError> {
        let is_ordered = home.timeline.completed() >= after
            || further.timeline.clock().covers(home.fence(after));
        if is_ordered || injected("used-on-without-waiting-for-the-grant") {
            return Ok(());
        }
        match self.marker_for(home, after)? {
            Some(marker) => self.order_behind(further, &marker)?,
            None => return Ok(()),
        }
        self.publish(Change::Order(further.id));
        Ok(())
    }

    /// A stream's last handle, and its last block, are gone: what it freed is sealed and everybody's.
    pub(crate) fn retire(&self, lane: &Lane) {
        {
            let mut heap = self.heap.lock();
            for cached in lane.cache.retire() {
                heap.give_back(cached.id, Fences::one(lane.id, cached.ticket));
            }
        }
        // A failure is noted; the memory stays pending then.
        let _ = self.seal_for_others(lane);
        self.reap_retired();
        self.publish(Change::Memory);
        self.note_return();
    }

    /// Makes one block of a block and of what was allocated directly above it.
    pub(crate) fn join_used(&self, lower: &Allocation, upper: &Allocation) {
        self.heap.lock().join_used(lower.id, upper.id);
    }

    /// Returns the fences that are left before memory that was never used is available to all.
    pub(super) fn fences_of(&self, lane: &Lane, allocation: &Allocation) -> Fences {
        if allocation.after == Ticket::ZERO {
            return Fences::default();
        }
        lane.cache.expect_seal(allocation.after);
        Fences::one(lane.id, allocation.after)
    }

    /// Takes back allocations that were never used.
    pub(crate) fn give_all_back(&self, lane: &Lane, allocations: Allocations) {
        for allocation in allocations {
            self.give_back(lane, allocation);
        }
    }

    /// Returns how many blocks came back so far, if none is on its way: pending, cached, or being moved.
    pub(crate) fn returns_if_quiet(&self) -> Option<u64> {
        let totals = self.totals();
        let is_quiet = totals.pending.current + totals.claimed + totals.planned == 0;
        let is_cached = || self.lanes().iter().any(|lane| lane.cache.is_keeping());
        (is_quiet && !is_cached()).then_some(totals.returns)
    }
}
