//! Memory set aside for one holder: see [`heap::reservation`](crate::heap::ReservationId).

use super::ladder::{Allocation, Climb, Effort, Refusal};
use super::many::Allocations;
use super::memory::For;
use super::{Change, Driver, Source};
use crate::heap::policy::WaitLimit;
use crate::heap::{Exchanged, Growth, Moves, Request, ReservationId};
use crate::lane::Lane;
use crate::sync::{Arc, yield_now};
use std::cell::Cell;

/// What came of drawing from a reservation.
#[derive(Debug)]
#[must_use = "what is lent and dropped is memory lost"]
pub(crate) enum Drawn {
    Allocation(Allocation),
    /// It has not enough, or not so that it does: so many bytes, and so many in its largest block.
    Short {
        left: u64,
        largest: u64,
    },
}

impl Driver {
    /// Sets loans aside that are complete.
    pub(crate) fn reservation(&self, allocations: Allocations) -> ReservationId {
        let mut heap = self.heap.lock();
        heap.reservation(allocations.into_iter().map(|allocation| allocation.id))
    }

    /// The same, with what is set aside already.
    pub(crate) fn add_to_reservation(&self, reservation: ReservationId, allocations: Allocations) {
        let mut heap = self.heap.lock();
        heap.add_to_reservation(
            reservation,
            allocations.into_iter().map(|allocation| allocation.id),
        );
    }

    /// Lends from a reservation, for use in the order of the lane's stream: behind a wait on the device, if nothing
    /// else does; for its pieces, if there is enough in pieces only.
    ///
    /// Whoever finds too little while another is exchanging pieces of the same reservation waits for that to be over, as for
    /// a lock: a part of them may come back.
    ///
    /// # Errors
    /// What the device says; the memory is in the reservation again.
    pub(crate) fn draw(
        &self,
        lane: &Arc<Lane>,
        reservation: ReservationId,
        request: Request,
    ) -> Result<Drawn, Refusal> {
        // What belongs to one holder is not a matter of policy.
        let after = lane.timeline.clock();
        let drawn = Climb::new(self, lane, request, Effort::Immediate, after)?
            .in_reservation(reservation)?;
        if let Drawn::Allocation(allocation) = &drawn {
            self.counters.count(allocation.source);
        }
        Ok(drawn)
    }

    /// Bytes of a reservation that are not lent, and of its largest block.
    pub(crate) fn left_in_reservation(&self, reservation: ReservationId) -> (u64, u64) {
        self.heap.lock().left_in_reservation(reservation)
    }

    /// Makes another reservation of so many bytes, if as many are not lent.
    pub(crate) fn split_reservation(
        &self,
        reservation: ReservationId,
        bytes: u64,
    ) -> Option<ReservationId> {
        self.heap.lock().split_reservation(reservation, bytes)
    }

    /// Ends a reservation. What is not lent of it is anybody's, as soon as it is complete.
    pub(crate) fn disband(&self, reservation: ReservationId) {
        self.heap.lock().disband(reservation);
        self.publish(Change::Memory);
        self.note_return();
    }
}

impl Climb<'_> {
    /// The best of a reservation; of what is complete by now, if nothing else does; or for what is complete of it, of what
    /// lanes keep in the end. Looked for again, if anything came back to the reservation meanwhile.
    fn in_reservation(&self, reservation: ReservationId) -> Result<Drawn, Refusal> {
        let mut has_flushed_all = false;
        loop {
            let (allocation, moves) = self.known_in_reservation(reservation)?;
            if let Some(allocation) = allocation {
                return Ok(Drawn::Allocation(allocation));
            }
            self.driver.seal_lanes()?;
            self.driver.reap()?;
            if let (Some(allocation), _) = self.known_in_reservation(reservation)? {
                return Ok(Drawn::Allocation(allocation));
            }
            let failed = Cell::new(0);
            if let Some(allocation) = self.exchanged(reservation, &failed)? {
                return Ok(Drawn::Allocation(allocation));
            }
            if !has_flushed_all && self.may_exchange(reservation) {
                // Also if there is nothing: another may have taken it back just now.
                self.driver.flush_lanes();
                has_flushed_all = true;
                continue;
            }
            // Its own exchanges that the device refused are no news.
            let so_far = moves.so_far + failed.get();
            if let Some(short) = self.short_since(reservation, so_far) {
                return Ok(short);
            }
        }
    }

    /// Whether there is enough of it, so that what lanes keep might do for its pieces.
    fn may_exchange(&self, reservation: ReservationId) -> bool {
        self.driver.left_in_reservation(reservation).0 >= self.request.bytes
    }

    /// There was too little when so much had come back; none, if there is more by now. While another's exchange may
    /// bring back enough, that is awaited.
    fn short_since(&self, reservation: ReservationId, so_far: u64) -> Option<Drawn> {
        loop {
            {
                let heap = self.driver.heap.lock();
                let (left, largest) = heap.left_in_reservation(reservation);
                let moves = heap.moves_in(reservation);
                if moves.so_far != so_far {
                    return None;
                }
                if moves.under_way == 0 || left + moves.under_way < self.request.bytes {
                    return Some(Drawn::Short { left, largest });
                }
            }
            yield_now();
        }
    }

    /// The best of a reservation, behind a wait on the device if need be; with what moved until it was looked at.
    fn known_in_reservation(
        &self,
        reservation: ReservationId,
    ) -> Result<(Option<Allocation>, Moves), Refusal> {
        let may_wait = self.driver.capabilities.device_side_waits && self.lane.takes_waits;
        let limit = may_wait.then_some(WaitLimit::Unlimited);
        let (taken, moves) = self.with_waits(limit, |view| {
            let mut heap = self.driver.heap.lock();
            let taken = heap.take_from_reservation(reservation, self.request, view);
            (taken, heap.moves_in(reservation))
        });
        let allocation = match taken {
            Some(grant) => self.lend_in_order(grant, Source::Free)?,
            None => None,
        };
        Ok((allocation, moves))
    }

    /// What the pool has in one piece, for the pieces of the reservation: remapped, or new, if need be. In whole handles,
    /// as far as its size is and they can be had. Counts the exchanges that came to nothing.
    fn exchanged(
        &self,
        reservation: ReservationId,
        failed: &Cell<u64>,
    ) -> Result<Option<Allocation>, Refusal> {
        let geometry = self.driver.settings.geometry;
        if geometry.virtual_memory && self.request.bytes >= geometry.chunk_bytes {
            let request = Request {
                alignment: geometry.chunk_bytes.max(self.request.alignment),
                ..self.request
            };
            if let Some(allocation) = self.exchanged_for(reservation, request, failed)? {
                return Ok(Some(allocation));
            }
        }
        self.exchanged_for(reservation, self.request, failed)
    }

    fn exchanged_for(
        &self,
        reservation: ReservationId,
        request: Request,
        failed: &Cell<u64>,
    ) -> Result<Option<Allocation>, Refusal> {
        let growth = self.growth();
        let allocation = self.exchanged_so(reservation, request, growth, failed)?;
        if allocation.is_none() && self.was_refused_new(growth) {
            return self.exchanged_so(reservation, request, Growth::Allowed, failed);
        }
        Ok(allocation)
    }

    fn exchanged_so(
        &self,
        reservation: ReservationId,
        request: Request,
        growth: Growth,
        failed: &Cell<u64>,
    ) -> Result<Option<Allocation>, Refusal> {
        let limit = self.may_wait().then_some(WaitLimit::Unlimited);
        let exchanged = self.with_waits(limit, |view| {
            let mut heap = self.driver.heap.lock();
            heap.exchange(reservation, request, view, growth)
        });
        let allocation = match exchanged {
            None => return Ok(None),
            Some(Exchanged::Granted(grant)) => self.lend_in_order(grant, Source::Free)?,
            Some(Exchanged::Planned(plan, exchange)) => {
                failed.set(failed.get() + 1);
                self.carry_out(plan, For::HeapReservation(self.lane.id, exchange))?
            }
        };
        // What the pool got for it may do for who waits, or be more than it is to keep.
        self.driver.publish(Change::Memory);
        self.driver.note_return();
        Ok(allocation)
    }
}
