//! Memory set aside: what a reservation's handle, and the blocks that were lent of it, hold in common.

use super::{Demand, Presence, Service};
use crate::engine::{Drawn, Loans, Refusal};
use crate::error::AllocError;
use crate::id::StreamId;
use crate::lane::Lane;
use crate::ledger::HoardId;
use crate::measure::{Account, Tag};
use crate::sync::{Arc, Guards, Mutex, plain};
use std::panic::Location;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Reserved {
    presence: plain::Arc<Presence>,
    hoard: HoardId,
    tag: Option<Tag>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// Set aside in all, in bytes.
    size: u64,
    /// Lent of that, or on its way to be: that may come to more, and to nothing.
    lent: u64,
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
        let unused = self.size.saturating_sub(self.lent);
        self.size -= unused;
        unused
    }

    /// Whose it was, if nothing of it lives any more.
    fn leave_home(&mut self) -> Option<StreamId> {
        self.home.take_if(|_| self.is_over && self.lent == 0)
    }
}

impl Reserved {
    /// Sets loans aside that are complete, and were claimed by the tag.
    pub(crate) fn new(
        presence: plain::Arc<Presence>,
        loans: Loans,
        tag: Option<Tag>,
        place: &'static Location<'static>,
    ) -> Self {
        let size = loans.iter().map(|lent| lent.bytes).sum();
        let hoard = presence.service.engine.hoard(loans);
        Self::over(presence, hoard, size, tag, place)
    }

    fn over(
        presence: plain::Arc<Presence>,
        hoard: HoardId,
        size: u64,
        tag: Option<Tag>,
        place: &'static Location<'static>,
    ) -> Self {
        let engine = &presence.service.engine;
        engine.write_reserved(hoard, place.into(), tag);
        let book = Book {
            size,
            lent: 0,
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
            hoard,
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
        self.service().engine.left_in_hoard(self.hoard)
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
        self.book.lock().lent += bytes;
        let drawn = self.service().engine.draw(lane, self.hoard, demand.request);
        match &drawn {
            Ok(Drawn::Lent(lent)) => {
                self.note_drawn(lane.id);
                lane.count_from_above(lent.bytes, demand.rounding_of(lent.bytes));
            }
            _ => self.note_freed(bytes),
        }
        drawn.map_err(|refusal| match refusal {
            Refusal::Device(error) => error.into(),
            other => unreachable!("a draw is not refused for {other:?}"),
        })
    }

    /// What was lent is freed, or was not lent after all. The books of the ledger see to the memory; this is
    /// what the tag has.
    pub(crate) fn note_freed(&self, bytes: u64) {
        let (unused, left) = {
            let mut book = self.book.lock();
            book.lent -= bytes;
            (book.release_unused(), book.leave_home())
        };
        if let Some(account) = self.account() {
            account.note_returned();
            account.move_reserved(left, None);
        }
        self.disclaim(unused);
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

    fn disclaim(&self, bytes: u64) {
        if let Some(tag) = self.tag.filter(|_| bytes > 0) {
            self.service().disclaim(tag, bytes);
        }
    }

    /// Adds loans that are complete, and were claimed by the tag.
    pub(crate) fn add(&self, loans: Loans) {
        let bytes: u64 = loans.iter().map(|lent| lent.bytes).sum();
        self.service().engine.add_to_hoard(self.hoard, loans);
        self.book.lock().size += bytes;
        if let Some(account) = self.account() {
            account.note_more(StreamId::SET_ASIDE);
        }
    }

    /// So many bytes as another reservation, if as many are left.
    pub(crate) fn split(&self, bytes: u64, place: &'static Location<'static>) -> Option<Self> {
        let other = self.service().engine.split_hoard(self.hoard, bytes)?;
        self.book.lock().size -= bytes;
        let presence = self.presence.clone();
        Some(Self::over(presence, other, bytes, self.tag, place))
    }

    /// The handle is gone: what is left is anybody's, and so will be what is lent.
    pub(crate) fn end(&self) {
        let engine = &self.service().engine;
        engine.write_disbanded(self.hoard);
        engine.disband(self.hoard);
        let (unused, left) = {
            let mut book = self.book.lock();
            book.is_over = true;
            (book.release_unused(), book.leave_home())
        };
        if let Some(account) = self.account() {
            account.note_freed(StreamId::SET_ASIDE);
            account.move_reserved(left, None);
        }
        self.disclaim(unused);
    }
}
