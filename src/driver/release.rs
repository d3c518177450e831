//! The way back: frees, and allocations that were never used.

use super::{Allocation, Allocations, Change, Driver};
use crate::heap::{Fence, Fences, Order, ReturnedTo};
use crate::id::Ticket;
use crate::lane::{Closed, Event, Freed, Lane, Use};
use crate::sync::Arc;
use smallvec::SmallVec;
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
        if freed.is_kept {
            self.record_closed(lane, freed.closed);
            self.note_return();
        } else {
            self.finish_free(lane, &block, freed);
        }
        ticket
    }

    /// Returns the time, if large blocks may stay with their streams: unless memory is released unasked, or waiting
    /// for memory comes before taking more.
    fn large_caches_now(&self) -> Option<Duration> {
        let may_stay = self.settings.order == Order::GrowFirst && self.keeps_all();
        may_stay.then(|| self.device.now())
    }

    fn finish_free(&self, lane: &Lane, block: &Use, freed: Freed) {
        let id = block.id;
        let fences = Fences::one(lane.id, freed.ticket);
        if self.settings.passes_through() && self.pass_on(std::iter::once(lane), &fences, block) {
            return self.record_closed(lane, freed.closed);
        }
        // Another thread can find the block before its event is recorded: it is pending then, and no stream can be made
        // to wait for it. The publication comes after the record, so that a request that found it so looks again.
        let returned_to = self.heap.lock().free(id, fences);
        self.record_closed(lane, freed.closed);
        self.note_free(returned_to);
    }

    /// Reports a free. Memory that came back to a reservation serves no waiter of the queue.
    pub(super) fn note_free(&self, returned_to: ReturnedTo) {
        if returned_to == ReturnedTo::AnyStream {
            self.publish(Change::Memory);
        }
        self.note_return();
    }

    /// Frees a block of `home` that was used on several streams. Returns the tickets that the block waits for.
    pub(crate) fn free_many(
        &self,
        home: &Lane,
        lanes: &[Arc<Lane>],
        earlier: Option<Fence>,
        block: &Use,
    ) -> Fences {
        home.cache.count(Event::Free, block.bytes, block.rounding);
        self.free_uncounted(lanes, earlier, block)
    }

    /// Ends the uses of memory on streams. Returns the tickets that the memory waits for: those of the streams, and
    /// `earlier`.
    pub(crate) fn end_uses(
        &self,
        lanes: &[Arc<Lane>],
        earlier: Option<Fence>,
        bytes: u64,
    ) -> Fences {
        let noted: SmallVec<[_; 2]> = lanes
            .iter()
            .map(|lane| (lane, lane.cache.note_use(bytes)))
            .collect();
        let fences: Fences = noted
            .iter()
            .map(|(lane, freed)| lane.fence(freed.ticket))
            .chain(earlier)
            .collect();
        // First, so that a stream that finds the memory pending can be made to wait for it: on an external stream no
        // other call records anything.
        for (lane, freed) in noted {
            self.record_closed(lane, freed.closed);
        }
        fences
    }

    /// Frees memory that was used on several streams, and counts nothing: it is pending for each of them, and for
    /// `earlier`, the point behind which every earlier use of the memory lies, if none of them comes after that. The
    /// order of each stream is kept. Returns the tickets that the memory waits for.
    pub(crate) fn free_uncounted(
        &self,
        lanes: &[Arc<Lane>],
        earlier: Option<Fence>,
        block: &Use,
    ) -> Fences {
        let fences = self.end_uses(lanes, earlier, block.bytes);
        if !self.pass_on(lanes.iter().map(|lane| &**lane), &fences, block) {
            let returned_to = self.heap.lock().free(block.id, fences.clone());
            self.note_free(returned_to);
        }
        fences
    }

    /// Records the event of a closed ticket. From time to time it first asks how far the stream is, so that events come
    /// back and their number stays bounded (invariant `bounded-events`).
    ///
    /// A record that fails leaves the ticket to a later one or, if the error is sticky, ends the pool: a free has no
    /// caller to tell.
    pub(super) fn record_closed(&self, lane: &Lane, closed: Option<Closed>) {
        let Some(closed) = closed else {
            return;
        };
        self.thin_out(lane);
        if lane.timeline.is_full() && !lane.is_external {
            lane.cache.expect_seal(closed.ticket.next());
            return lane.timeline.note_unrecorded(closed.ticket);
        }
        let recorded = self.noted(lane.record(closed, &*self.device, &self.events));
        // Unless a request waits for the memory, or it goes back to the device, the next event may come a little later.
        match recorded {
            Ok(marker) if self.is_open() && self.keeps_all() => {
                lane.cache.spacing.note_sealed(marker.sealed_at);
            }
            _ => lane.cache.spacing.reset(),
        }
    }

    /// Takes back an allocation whose memory was never used: only the earlier uses have to end.
    pub(crate) fn give_back(&self, lane: &Lane, allocation: Allocation) {
        let Allocation {
            id, address, bytes, ..
        } = allocation;
        if self.pass_back(lane, id, address, bytes) {
            return;
        }
        let fences = self.fences_after(lane, allocation.after);
        self.heap.lock().give_back(allocation.id, fences);
        self.publish(Change::Memory);
        self.note_return();
    }

    /// Takes back allocations that were never used.
    pub(crate) fn give_all_back(&self, lane: &Lane, allocations: Allocations) {
        for allocation in allocations {
            self.give_back(lane, allocation);
        }
    }

    /// Ends a stream whose last handle and last block are gone: its freed blocks are sealed, and available to all.
    pub(crate) fn retire(&self, lane: &Lane) {
        self.retire_lane(lane);
        self.settle_access();
        self.publish(Change::Memory);
        self.note_return();
    }
}
