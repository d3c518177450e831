//! Memory set aside: what a reservation's handle, and the blocks that were lent of it, hold in common.

use super::{Demand, Presence, Service};
use crate::driver::{Allocations, Drawn};
use crate::error::AllocError;
use crate::id::{ReservationId, StreamId};
use crate::lane::{Event, Lane};
use crate::measure::{Account, Tag};
use crate::sync::{Arc, Guards, Mutex, plain};
use std::panic::Location;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Reserved {
    presence: plain::Arc<Presence>,
    reservation: ReservationId,
    tag: Option<Tag>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// Set aside in all, in bytes.
    size: u64,
    /// Lent of that, or on its way to be: that may come to more, and to nothing.
    allocation: u64,
    /// The handle is gone.
    is_over: bool,
    /// The stream that it is taken to be of: that which drew from it last. None once nothing of it lives.
    home: Option<StreamId>,
}

impl Book {
    /// Once the handle is gone, what is not lent is set aside no longer. Returns so many bytes.
    fn release_unused(&mut self) -> u64 {
        if !self.is_over {
            return 0;
        }
        let unused = self.size.saturating_sub(self.allocation);
        self.size -= unused;
        unused
    }

    /// Whose it was, if nothing of it lives any more.
    fn leave_home(&mut self) -> Option<StreamId> {
        self.home.take_if(|_| self.is_over && self.allocation == 0)
    }
}

impl Reserved {
    /// Sets loans aside that are complete, and were claimed by the tag.
    pub(crate) fn new(
        presence: plain::Arc<Presence>,
        allocations: Allocations,
        tag: Option<Tag>,
        location: &'static Location<'static>,
    ) -> Self {
        let size = allocations.iter().map(|allocation| allocation.bytes).sum();
        let reservation = presence.service.driver.reservation(allocations);
        Self::over(presence, reservation, size, tag, location)
    }

    fn over(
        presence: plain::Arc<Presence>,
        reservation: ReservationId,
        size: u64,
        tag: Option<Tag>,
        location: &'static Location<'static>,
    ) -> Self {
        let driver = &presence.service.driver;
        driver.write_reserved(reservation, location.into(), tag);
        let book = Book {
            size,
            allocation: 0,
            is_over: false,
            home: Some(StreamId::SET_ASIDE),
        };
        if let Some(tag) = tag {
            let account = presence.service.queue.accounts.of(tag);
            account.note_granted(StreamId::SET_ASIDE);
            account.move_reserved(None, book.home);
        }
        Self {
            presence,
            reservation,
            tag,
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

    /// Set aside in all, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.book.lock().size
    }

    /// Not lent, in bytes; and in the largest piece.
    pub(crate) fn left(&self) -> (u64, u64) {
        self.service().driver.left_in_reservation(self.reservation)
    }

    /// Lends a part, for use in the order of the lane's stream, if what is left does.
    ///
    /// # Errors
    /// When the pool is closed, or the device fails.
    pub(crate) fn draw(&self, lane: &Arc<Lane>, demand: &Demand) -> Result<Drawn, AllocError> {
        if let Some(refusal) = self.service().refusal() {
            return Err(refusal);
        }
        // Before it is lent: it may be freed at once, by whoever has it.
        let bytes = demand.request.bytes;
        self.book.lock().allocation += bytes;
        let drawn = self
            .service()
            .driver
            .draw(lane, self.reservation, demand.request);
        match &drawn {
            Ok(Drawn::Allocation(allocation)) => {
                self.note_drawn(lane.id);
                let rounding = demand.rounding_of(allocation.bytes);
                lane.cache
                    .count(Event::FromAbove, allocation.bytes, rounding);
            }
            _ => self.note_freed(bytes),
        }
        drawn.map_err(AllocError::from)
    }

    /// What was lent is freed, or was not lent after all. The books of the heap see to the memory; this is
    /// what the tag has.
    pub(crate) fn note_freed(&self, bytes: u64) {
        let (unused, left) = {
            let mut book = self.book.lock();
            book.allocation -= bytes;
            (book.release_unused(), book.leave_home())
        };
        if let Some(account) = self.account() {
            account.note_returned();
            account.move_reserved(left, None);
        }
        self.uncharge(unused);
    }

    /// It is taken to be of the stream that draws from it.
    fn note_drawn(&self, stream: StreamId) {
        let Some(account) = self.account() else {
            return;
        };
        let before = self.book.lock().home.replace(stream);
        account.note_drawn(stream);
        account.move_reserved(before, Some(stream));
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

    /// Adds loans that are complete, and were claimed by the tag.
    pub(crate) fn add(&self, allocations: Allocations) {
        let bytes: u64 = allocations.iter().map(|allocation| allocation.bytes).sum();
        self.service()
            .driver
            .add_to_reservation(self.reservation, allocations);
        self.book.lock().size += bytes;
        if let Some(account) = self.account() {
            account.note_more(StreamId::SET_ASIDE);
        }
    }

    /// So many bytes as another reservation, if as many are left.
    pub(crate) fn split(&self, bytes: u64, location: &'static Location<'static>) -> Option<Self> {
        let other = self
            .service()
            .driver
            .split_reservation(self.reservation, bytes)?;
        self.book.lock().size -= bytes;
        let presence = self.presence.clone();
        Some(Self::over(presence, other, bytes, self.tag, location))
    }

    /// The handle is gone: what is left is anybody's, and so will be what is lent.
    pub(crate) fn end(&self) {
        let driver = &self.service().driver;
        driver.write_disbanded(self.reservation);
        driver.disband(self.reservation);
        let (unused, left) = {
            let mut book = self.book.lock();
            book.is_over = true;
            (book.release_unused(), book.leave_home())
        };
        if let Some(account) = self.account() {
            account.note_freed(StreamId::SET_ASIDE);
            account.move_reserved(left, None);
        }
        self.uncharge(unused);
    }
}
