//! Memory set aside for one holder: see [`heap::reservation`](crate::heap::ReservationState).

use super::allocation::Allocation;
use super::recipient::{Found, Recipient};
use super::supply::For;
use super::{Change, Engine, NoMemory, Source, maintenance, ordering, reaping};
use crate::device::DeviceError;
use crate::heap::{
    self, Exchange, Exchanged, Grant, Growth, Heap, Ranges, Request, ReservationState, View,
    WaitLimit,
};
use crate::id::ReservationId;
use crate::lane::{Flush, Lane};
use crate::sync::{Arc, yield_now};

/// One search within a reservation.
pub(crate) struct Draw<'a> {
    to: Recipient<'a>,
    reservation: ReservationId,
    request: Request,
    /// What an exchange leaves where it is, as long as the function says so.
    held: Option<(&'a Ranges, &'a dyn Fn() -> bool)>,
    /// Exchanges that the device refused during this turn.
    exchanged_in_vain: u64,
}

impl<'a> Draw<'a> {
    /// Begins to allocate from a reservation, for use in the order of the lane's stream: behind a wait on the device if
    /// nothing else helps. The reuse policy does not matter to memory that belongs to one holder.
    ///
    /// # Errors
    /// Returns the sticky error that ended the pool, if one did.
    pub(crate) fn begin(
        engine: &'a Engine,
        lane: &'a Arc<Lane>,
        reservation: ReservationId,
        request: Request,
    ) -> Result<Self, DeviceError> {
        engine.shared.expect_sound()?;
        Ok(Self {
            to: Recipient::new(engine, lane, lane.timeline.clock()),
            reservation,
            request,
            held: None,
            exchanged_in_vain: 0,
        })
    }

    /// Takes the best block of the reservation; then the best after polling; then a block in exchange for complete
    /// pieces, in the end including those that caches hold. Starts again if anything came back to the reservation
    /// meanwhile.
    ///
    /// If it finds too little while another thread exchanges pieces of the same reservation, it waits for the end of
    /// that exchange, as for a lock: part of those pieces may come back.
    ///
    /// # Errors
    /// Returns an error if the reservation has too little, or the device fails; the memory is in the reservation again.
    pub(crate) fn run(mut self) -> Result<Allocation, NoMemory> {
        if let Some(found) = self.take_ordered()? {
            return Ok(found.allocation);
        }
        let mut has_flushed = false;
        loop {
            self.exchanged_in_vain = 0;
            let before = self.moves();
            if let Some(found) = self.look_twice(Self::take)? {
                return Ok(found.allocation);
            }
            if let Some(found) = self.exchange()? {
                return Ok(found.allocation);
            }
            if !has_flushed && self.left().0 >= self.request.bytes {
                // Also if the caches are empty: another thread may have flushed them just now.
                self.to
                    .engine
                    .streams
                    .flush(&self.to.engine.store, Flush::All);
                has_flushed = true;
                continue;
            }
            if let Some(short) = self.short_since(before + self.exchanged_in_vain) {
                return Err(short);
            }
        }
    }

    /// Takes the best block of the reservation, before or after polling. Its other blocks stay where they are: addresses
    /// of graphs are not exchanged. `None` if it has too little.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn run_in_place(mut self) -> Result<Option<Allocation>, DeviceError> {
        let found = match self.take_ordered()? {
            Some(found) => Some(found),
            None if self.left().0 < self.request.bytes => None,
            None => self.look_twice(Self::take)?,
        };
        Ok(found.map(|found| found.allocation))
    }

    /// Takes a block in exchange for complete pieces that are not in those ranges, in the end including pieces that caches
    /// hold. The ranges are current while the function says so. `None` if there is too little.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn run_in_exchange(
        mut self,
        held: (&'a Ranges, &'a dyn Fn() -> bool),
    ) -> Result<Option<Allocation>, DeviceError> {
        self.held = Some(held);
        if let Some(found) = self.exchange()? {
            return Ok(Some(found.allocation));
        }
        let engine = self.to.engine;
        engine.streams.flush(&engine.store, Flush::All);
        Ok(self.exchange()?.map(|found| found.allocation))
    }

    /// Takes exactly the range of the requested bytes from `start`, before or after polling. `None` if a part of it is not
    /// the reservation's, is allocated, or is pending and the stream cannot be made to wait for it.
    ///
    /// # Errors
    /// Returns the device's error; the memory is in the reservation again.
    pub(crate) fn run_at(mut self, start: u64) -> Result<Option<Allocation>, DeviceError> {
        let found = self.look_twice(|draw| draw.take_at(start))?;
        Ok(found.map(|found| found.allocation))
    }

    /// Looks for memory, and if there is none, once more after polling.
    fn look_twice(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Result<Option<Found>, DeviceError>,
    ) -> Result<Option<Found>, DeviceError> {
        if let Some(found) = look(self)? {
            return Ok(Some(found));
        }
        ordering::seal_lanes(self.to.engine)?;
        reaping::reap(self.to.engine)?;
        look(self)
    }

    fn left(&self) -> (u64, u64) {
        self.to.engine.store.left_in_reservation(self.reservation)
    }

    /// How often something came back to the reservation.
    fn moves(&self) -> u64 {
        let heap = self.to.engine.store.heap.lock();
        heap::reservation::state(&heap, self.reservation)
            .arrivals
            .so_far
    }

    /// The reservation has too little memory, unless something came back to it since `so_far` counted. While an
    /// exchange of another thread may bring back enough, waits for its end.
    fn short_since(&self, so_far: u64) -> Option<NoMemory> {
        loop {
            {
                let heap = self.to.engine.store.heap.lock();
                let ReservationState {
                    left,
                    largest,
                    arrivals,
                } = heap::reservation::state(&heap, self.reservation);
                if arrivals.so_far != so_far {
                    return None;
                }
                let may_come_back =
                    arrivals.under_way > 0 && left + arrivals.under_way >= self.request.bytes;
                if !may_come_back {
                    return Some(NoMemory::NotReserved { left, largest });
                }
            }
            yield_now();
        }
    }

    /// Takes a block of the reservation that the stream comes after as it is.
    fn take_ordered(&mut self) -> Result<Option<Found>, DeviceError> {
        let taken = {
            let mut heap = self.to.engine.store.heap.lock();
            heap::reservation::take_ordered(
                &mut heap,
                self.reservation,
                self.request,
                &self.to.view(),
            )
        };
        match taken {
            Some(grant) => self.to.accept(grant, Source::Free),
            None => Ok(None),
        }
    }

    /// Takes a range of the reservation, behind a wait on the device if necessary.
    fn take_at(&mut self, start: u64) -> Result<Option<Found>, DeviceError> {
        let range = (start, self.request.bytes);
        self.take_with(|heap, reservation, view| {
            heap::reservation::take_at(heap, reservation, range, view)
        })
    }

    /// Takes the best block of the reservation, behind a wait on the device if necessary.
    fn take(&mut self) -> Result<Option<Found>, DeviceError> {
        let request = self.request;
        self.take_with(|heap, reservation, view| {
            heap::reservation::take(heap, reservation, request, view)
        })
    }

    fn take_with(
        &mut self,
        take: impl FnOnce(&mut Heap, ReservationId, &View<'_>) -> Option<Grant>,
    ) -> Result<Option<Found>, DeviceError> {
        let limit = self.to.can_wait().then_some(WaitLimit::Unlimited);
        let taken = self.to.with_waits(limit, |view| {
            let mut heap = self.to.engine.store.heap.lock();
            take(&mut heap, self.reservation, view)
        });
        match taken {
            Some(grant) => self.to.accept(grant, Source::Free),
            None => Ok(None),
        }
    }

    /// Takes one block of the pool in exchange for pieces of the reservation, remapped or new if necessary. A large
    /// block is taken in whole chunks, if it can be. What the device refuses as new memory is moved instead.
    fn exchange(&mut self) -> Result<Option<Found>, DeviceError> {
        let geometry = self.to.engine.shared.settings.geometry;
        let is_large = geometry.virtual_memory && self.request.bytes >= geometry.chunk_bytes;
        let in_chunks = Request {
            alignment: geometry.chunk_bytes.max(self.request.alignment),
            ..self.request
        };
        let requests = [is_large.then_some(in_chunks), Some(self.request)];
        for request in requests.into_iter().flatten() {
            let growth = self.to.growth(self.request.bytes);
            let mut found = self.exchange_for(request, growth)?;
            if found.is_none() && self.to.was_refused_new(growth) {
                found = self.exchange_for(request, Growth::Allowed)?;
            }
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn exchange_for(
        &mut self,
        request: Request,
        growth: Growth,
    ) -> Result<Option<Found>, DeviceError> {
        let engine = self.to.engine;
        let was_refused = engine.supply.is_refused();
        let limit = self.to.may_wait().then_some(WaitLimit::Unlimited);
        let exchanged = self.to.with_waits(limit, |view| {
            let mut heap = engine.store.heap.lock();
            let none = Ranges::default();
            let held = match self.held {
                // Memory that is complete by now may have become a graph's.
                Some((_, is_current)) if !is_current() => return None,
                Some((held, _)) => held,
                None => &none,
            };
            Exchange::begin(&mut heap, self.reservation, request, view, growth, held)
        });
        let found = match exchanged {
            None => return Ok(None),
            Some(Exchanged::Granted(grant)) => self.to.accept(grant, Source::Free),
            Some(Exchanged::Planned(plan, exchange)) => {
                let whom = For::HeapReservation(self.to.lane.id, exchange);
                let found = self.to.carry_out(plan, whom);
                // An exchange that comes to nothing moves its pieces back.
                self.exchanged_in_vain += u64::from(matches!(found, Ok(None)));
                found
            }
        };
        // The pieces may serve waiters, or be more than the pool is to hold. After a refusal that was expected they are
        // where they were, and a request that exchanges when it hears of a change would wake itself for ever.
        if !matches!(found, Ok(None)) || !was_refused {
            engine.shared.publish(Change::Memory);
        }
        maintenance::schedule_after_return(engine);
        found
    }
}
