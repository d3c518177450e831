//! Memory set aside: what a reservation's handle and the blocks drawn from it hold in common.

use super::Presence;
use crate::device::DeviceError;
use crate::driver::{Allocation, Allocations, Change, Drawn, Driver};
use crate::error::AllocError;
use crate::id::{ReservationId, StreamId};
use crate::lane::{Event, Lane};
use crate::measure::{Account, Tag};
use crate::queue::{Demand, Service};
use crate::sync::{Arc, Guards, Mutex, plain};
use std::panic::Location;

/// The handle of a reservation, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedHandle(pub(crate) Arc<Reserved>);

impl Drop for ReservedHandle {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Reserved {
    presence: plain::Arc<Presence>,
    reservation: ReservationId,
    tag: Option<Tag>,
    /// The reservation that this one was taken from, and that its memory returns to.
    parent: Option<Arc<Self>>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// Set aside in all, in bytes.
    size: u64,
    /// Drawn of that, or about to be. A draw may come to more bytes, or to none.
    drawn: u64,
    /// The handle is gone.
    is_over: bool,
    /// The handle is gone, and nothing is drawn.
    is_spent: bool,
}

impl Book {
    /// Once the handle is gone, bytes that are not drawn are set aside no longer.
    fn settle(&mut self) -> Settled {
        if !self.is_over {
            return Settled::default();
        }
        let unused = self.size.saturating_sub(self.drawn);
        self.size -= unused;
        let is_spent = self.drawn == 0 && !self.is_spent;
        self.is_spent |= is_spent;
        Settled { unused, is_spent }
    }
}

/// What a reservation whose handle is gone does not need any more.
#[derive(Default)]
struct Settled {
    /// Bytes that are not drawn.
    unused: u64,
    /// Nothing is drawn, for the first time.
    is_spent: bool,
}

impl Reserved {
    /// Sets allocations aside that are complete, and were charged to the tag.
    pub(crate) fn new(
        presence: plain::Arc<Presence>,
        allocations: Allocations,
        tag: Option<Tag>,
        location: &'static Location<'static>,
    ) -> Self {
        let size = allocations.iter().map(|allocation| allocation.bytes).sum();
        let reservation = presence.service.driver.reservation(allocations);
        Self::over(presence, reservation, size, (tag, None), location)
    }

    fn over(
        presence: plain::Arc<Presence>,
        reservation: ReservationId,
        size: u64,
        (tag, parent): (Option<Tag>, Option<Arc<Self>>),
        location: &'static Location<'static>,
    ) -> Self {
        let service = &presence.service;
        if let Some(event_log) = &service.driver.event_log {
            event_log.note_reserved(reservation, location.into(), tag);
        }
        if let Some(tag) = tag {
            service.queue.accounts.of(tag).note_granted();
        }
        let book = Book {
            size,
            drawn: 0,
            is_over: false,
            is_spent: false,
        };
        Self {
            presence,
            reservation,
            tag,
            parent,
            book: Mutex::new(Guards::Registry, book),
        }
    }

    pub(crate) fn presence(&self) -> &plain::Arc<Presence> {
        &self.presence
    }

    fn service(&self) -> &Arc<Service> {
        &self.presence.service
    }

    pub(crate) fn tag(&self) -> Option<Tag> {
        self.tag
    }

    pub(crate) fn id(&self) -> ReservationId {
        self.reservation
    }

    /// Set aside in all, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.book.lock().size
    }

    /// Not drawn, in bytes; and in the largest piece.
    pub(crate) fn left(&self) -> (u64, u64) {
        self.service().driver.left_in_reservation(self.reservation)
    }

    /// Draws a part, for use in the order of the lane's stream, if enough is left.
    ///
    /// # Errors
    /// When the pool is closed, or the device fails.
    pub(crate) fn draw(&self, lane: &Arc<Lane>, demand: &Demand) -> Result<Drawn, AllocError> {
        if let Some(refusal) = self.service().refusal() {
            return Err(refusal);
        }
        // Before it is drawn: its owner may free it at once.
        let bytes = demand.request.bytes;
        self.book.lock().drawn += bytes;
        let drawn = self
            .service()
            .driver
            .draw(lane, self.reservation, demand.request);
        match &drawn {
            Ok(Drawn::Allocation(allocation)) => {
                let rounding = demand.rounding_of(allocation.bytes);
                lane.cache
                    .count(Event::FromAbove, allocation.bytes, rounding);
            }
            _ => self.undraw(bytes),
        }
        drawn.map_err(AllocError::from)
    }

    /// Draws a part as [`draw`](Self::draw) does, and leaves the rest of the memory where it is.
    ///
    /// # Errors
    /// When the pool is closed, or the device fails.
    pub(crate) fn draw_in_place(
        &self,
        lane: &Arc<Lane>,
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |driver, reservation| {
            match driver.draw_in_place(lane, reservation, demand.request)? {
                Drawn::Allocation(allocation) => Ok(Some(allocation)),
                Drawn::Short { .. } => Ok(None),
            }
        })
    }

    /// Draws exactly the demanded bytes from `start`, if they are all here, and not drawn.
    ///
    /// # Errors
    /// When the pool is closed, or the device fails.
    pub(crate) fn draw_at(
        &self,
        lane: &Arc<Lane>,
        start: u64,
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |driver, reservation| {
            driver.draw_at(lane, reservation, (start, demand.request))
        })
    }

    fn drawing(
        &self,
        lane: &Lane,
        demand: &Demand,
        draw: impl FnOnce(&Driver, ReservationId) -> Result<Option<Allocation>, DeviceError>,
    ) -> Result<Option<Allocation>, AllocError> {
        if let Some(refusal) = self.service().refusal() {
            return Err(refusal);
        }
        // Before it is drawn, as in `draw`.
        let bytes = demand.request.bytes;
        self.book.lock().drawn += bytes;
        let drawn = draw(&self.service().driver, self.reservation);
        match &drawn {
            Ok(Some(allocation)) => {
                let rounding = demand.rounding_of(allocation.bytes);
                lane.cache
                    .count(Event::FromAbove, allocation.bytes, rounding);
            }
            _ => self.undraw(bytes),
        }
        Ok(drawn?)
    }

    /// Notes that a drawn part was freed, and is back in the heap's books. Requests that wait in the reservation's
    /// scope may draw it.
    pub(crate) fn note_freed(&self, bytes: u64) {
        self.undraw(bytes);
        self.service()
            .publish(Change::Reservation(self.reservation));
    }

    fn undraw(&self, bytes: u64) {
        let settled = {
            let mut book = self.book.lock();
            book.drawn -= bytes;
            book.settle()
        };
        self.give_back(settled);
    }

    /// Gives back what the ended reservation does not need.
    fn give_back(&self, Settled { unused, is_spent }: Settled) {
        let Some(parent) = &self.parent else {
            return self.uncharge(unused);
        };
        let driver = &self.service().driver;
        if unused > 0 {
            driver.merge_reservation(self.reservation, parent.reservation);
        }
        if is_spent {
            self.disband();
        }
        if unused > 0 {
            parent.note_freed(unused);
        }
    }

    fn disband(&self) {
        let driver = &self.service().driver;
        if let Some(event_log) = &driver.event_log {
            event_log.note_disbanded(self.reservation);
        }
        driver.disband(self.reservation);
    }

    fn account(&self) -> Option<&Account> {
        let tag = self.tag?;
        Some(self.service().queue.accounts.of(tag))
    }

    fn uncharge(&self, bytes: u64) {
        if let Some(tag) = self.tag.filter(|_| bytes > 0) {
            self.service().uncharge(tag, bytes);
        }
    }

    /// Draws a part inside a capture of the lane's stream, in the capture's order, if there is memory for it in that
    /// order.
    ///
    /// # Errors
    /// When the pool is closed, or the device failed.
    pub(crate) fn draw_captured(
        &self,
        lane: &Lane,
        order: StreamId,
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |driver, reservation| {
            driver.draw_captured(lane, order, reservation, demand.request)
        })
    }

    /// Adds allocations that are complete, and were charged to the tag.
    pub(crate) fn add(&self, allocations: Allocations) {
        let bytes: u64 = allocations.iter().map(|allocation| allocation.bytes).sum();
        self.service()
            .driver
            .add_to_reservation(self.reservation, allocations);
        self.book.lock().size += bytes;
        if let Some(account) = self.account() {
            account.note_more();
        }
        self.service()
            .publish(Change::Reservation(self.reservation));
    }

    /// Makes a reservation of its own of that many bytes, if as many are left. It returns to where this one returns to.
    pub(crate) fn split(&self, bytes: u64, location: &'static Location<'static>) -> Option<Self> {
        let other = self
            .service()
            .driver
            .split_reservation(self.reservation, bytes, false)?;
        self.book.lock().size -= bytes;
        let (presence, charge) = (self.presence.clone(), (self.tag, self.parent.clone()));
        Some(Self::over(presence, other, bytes, charge, location))
    }

    /// Draws a reservation of that many bytes, if one piece of them is left. Its memory returns to this one.
    pub(crate) fn nest(
        this: &Arc<Self>,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Option<Self> {
        // Before it is drawn, as for a block.
        this.book.lock().drawn += bytes;
        let driver = &this.service().driver;
        let Some(other) = driver.split_reservation(this.reservation, bytes, true) else {
            this.undraw(bytes);
            return None;
        };
        let (presence, charge) = (this.presence.clone(), (this.tag, Some(this.clone())));
        Some(Self::over(presence, other, bytes, charge, location))
    }

    /// Ends the reservation. What is left of it is the pool's, and so will be the drawn parts once they are freed; or
    /// of the reservation that it was taken from.
    pub(crate) fn end(&self) {
        if self.parent.is_none() {
            self.disband();
        }
        self.book.lock().is_over = true;
        if let Some(account) = self.account() {
            account.note_freed();
        }
        let settled = self.book.lock().settle();
        self.give_back(settled);
    }
}
