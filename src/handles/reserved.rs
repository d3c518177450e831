//! Memory set aside: what a reservation's handle and the blocks drawn from it hold in common.

use super::{CaptureClock, Presence, Registration};
use crate::engine::{
    Allocation, Allocations, Change, Draw, Engine, Group, Home, Kept, NoMemory, ReservationState,
    Use, keeping, order,
};
use crate::error::AllocError;
use crate::heap::{Ranges, Request};
use crate::id::{ReservationId, StreamId};
use crate::lane::{BlockEvent, Lane, StreamCache};
use crate::measure::{Account, Tag};
use crate::queue::{Demand, Service};
use crate::seam::Fact;
use crate::sync::{Arc, Mutex, Ordering, plain};
use std::any::Any;
use std::panic::Location;

/// The addresses that graphs and checkpoints may use; see [`GraphShare::held`](super::GraphShare::held).
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) ranges: Ranges,
    pub(super) as_of: u64,
    pub(super) holds: &'a plain::AtomicU64,
}

impl Held<'_> {
    /// Returns whether no graph came to hold more since.
    fn is_current(&self) -> bool {
        self.holds.load(Ordering::Acquire) == self.as_of
    }
}

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
    state: Arc<Mutex<ReservationState>>,
}

/// Once the handle is gone, bytes that are not drawn are set aside no longer.
fn settle(state: &mut ReservationState) -> Settled {
    if !state.is_over {
        return Settled::default();
    }
    let unused = state.size.saturating_sub(state.drawn);
    state.size -= unused;
    let is_spent = state.drawn == 0 && !state.is_spent;
    state.is_spent |= is_spent;
    Settled { unused, is_spent }
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
        let reservation = presence.service.engine.store.reservation(allocations);
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
        service.engine.store.announcer.tell(|| Fact::Reserved {
            reservation: reservation.0.get(),
            tag,
            site: location,
        });
        if let Some(tag) = tag {
            service.queue.accounts.of(tag).count_granted();
        }
        Self {
            presence,
            reservation,
            tag,
            parent,
            state: ReservationState::of_size(size),
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
        self.state.lock().size
    }

    /// Not drawn, in bytes; and in the largest piece.
    pub(crate) fn left(&self) -> (u64, u64) {
        self.return_kept();
        let store = &self.service().engine.store;
        store.left_in_reservation(self.reservation)
    }

    /// Returns where memory goes that is freed to this reservation: to itself, or, once it has ended, to the one that it
    /// was taken from or to the pool.
    pub(crate) fn home(&self) -> Home {
        let mut reserved = self;
        while reserved.state.lock().is_over {
            match &reserved.parent {
                Some(parent) => reserved = parent,
                None => return Home::Pool,
            }
        }
        Home::Reservation(reserved.reservation)
    }

    /// Evicts evictable memory of this reservation until `bytes` bytes are left, unless all of it would not be enough.
    /// Returns whether any was evicted.
    pub(crate) fn evict_for(&self, bytes: u64) -> bool {
        let evictables = &self.service().engine.store.evictables;
        let group = Group::Reservation(self.reservation);
        let evictable = evictables.bytes_of(group);
        if evictable == 0 {
            return false;
        }
        let lacking = bytes.saturating_sub(self.left().0);
        (1..=evictable).contains(&lacking) && evictables.evict(lacking, Some(group)) > 0
    }

    /// Draws a part, for use in the order of the lane's stream.
    ///
    /// # Errors
    /// Returns an error if too little is left, the pool is closed, or the device fails.
    pub(crate) fn draw(&self, lane: &Arc<Lane>, demand: &Demand) -> Result<Allocation, NoMemory> {
        let drawn = self.drawing(lane, demand, |engine, reservation| {
            Draw::begin(engine, lane, reservation, demand.request)?
                .run()
                .map(Some)
        });
        drawn.map(|drawn| drawn.expect("it is drawn, or refused"))
    }

    /// Draws a part as [`draw`](Self::draw) does, and leaves the rest of the memory where it is.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device fails.
    pub(crate) fn draw_in_place(
        &self,
        lane: &Arc<Lane>,
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |engine, reservation| {
            Ok(Draw::begin(engine, lane, reservation, demand.request)?.run_in_place()?)
        })
    }

    /// Draws exactly the demanded bytes from `start`, if they are all here, and not drawn.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device fails.
    pub(crate) fn draw_at(
        &self,
        lane: &Arc<Lane>,
        start: u64,
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |engine, reservation| {
            Ok(Draw::begin(engine, lane, reservation, demand.request)?.run_at(start)?)
        })
    }

    fn drawing<E: From<AllocError>>(
        &self,
        lane: &Lane,
        demand: &Demand,
        draw: impl FnOnce(&Engine, ReservationId) -> Result<Option<Allocation>, E>,
    ) -> Result<Option<Allocation>, E> {
        if let Some(refusal) = self.service().refusal() {
            return Err(refusal.into());
        }
        let bytes = demand.request.bytes;
        self.begin_draw(bytes);
        let drawn = draw(&self.service().engine, self.reservation);
        match &drawn {
            Ok(Some(allocation)) => {
                let rounding = demand.rounding_of(allocation.bytes);
                let event = BlockEvent::Granted(allocation.source);
                lane.cache.count(event, allocation.bytes, rounding);
            }
            _ => self.undraw(bytes),
        }
        drawn
    }

    /// Draws a part of that size that is kept for the stream, if there is one, with a reference to the registration.
    /// `rounding` is the part of its bytes that was not asked for.
    #[inline]
    pub(crate) fn take_kept(
        &self,
        registration: &Arc<Registration>,
        request: Request,
        rounding: u32,
    ) -> Option<(Kept, Arc<Registration>)> {
        if self.service().refusal().is_some() {
            return None;
        }
        let take = |block: &_| {
            registration
                .lane
                .cache
                .take_kept(registration, block, rounding)
        };
        (self.state.lock()).take_kept(&registration.lane, request, take)
    }

    /// Frees a part that was drawn for the owner's stream and used on it alone, in the plain case: it is kept for that
    /// stream, with the spare memory, and its reference is left with the stream. Returns whether it was the plain case.
    pub(crate) fn keep<T: Any + Send>(
        &self,
        owner: &mut Option<Arc<Registration>>,
        block: &Use,
        spare: &mut Option<Box<T>>,
    ) -> bool {
        let free = || {
            let stream = owner.as_ref()?.lane.id;
            let block = StreamCache::free_kept(owner, |owner| &owner.lane.cache, block)?;
            let spare: Box<dyn Any + Send> = spare.take()?;
            Some(Kept {
                stream,
                block,
                spare,
            })
        };
        let Engine {
            streams, shared, ..
        } = &self.service().engine;
        let is_kept = keeping::keep(streams, shared, self.reservation, &self.state, free);
        if is_kept {
            self.publish();
        }
        is_kept
    }

    /// Gives kept parts to the heap, before something else than a stream's next draw looks at the memory.
    fn return_kept(&self) {
        self.begin_draw(0);
    }

    /// Gives kept parts to the heap, and counts a part as drawn before it is: its owner may free it at once.
    fn begin_draw(&self, bytes: u64) {
        let Engine { streams, store, .. } = &self.service().engine;
        let mut state = self.state.lock_with_trash();
        let (state, trash) = state.parts();
        keeping::return_kept(streams, store, state, trash);
        state.drawn += bytes;
    }

    /// Notes that a drawn part was freed, and is back in the heap. Requests that wait in the reservation's
    /// scope may draw it.
    pub(crate) fn publish_freed(&self, bytes: u64) {
        self.undraw(bytes);
        self.publish();
    }

    fn publish(&self) {
        let change = Change::Reservation(self.reservation);
        self.service().publish(change);
    }

    fn undraw(&self, bytes: u64) {
        let settled = {
            let mut state = self.state.lock();
            state.drawn -= bytes;
            settle(&mut state)
        };
        self.give_back(settled);
    }

    /// Gives back what the ended reservation does not need.
    fn give_back(&self, Settled { unused, is_spent }: Settled) {
        let Some(parent) = &self.parent else {
            return self.uncharge(unused);
        };
        let engine = &self.service().engine;
        if unused > 0 {
            // One that is spent has left its place. It counts what a reservation in it grew by since.
            let mut heirs = std::iter::successors(Some(parent), |heir| heir.parent.as_ref());
            let heir = heirs.find(|heir| !heir.state.lock().is_spent);
            engine.merge_reservation(self.reservation, heir.unwrap_or(parent).reservation);
        }
        if is_spent {
            self.disband();
        }
        if unused > 0 {
            parent.publish_freed(unused);
        }
    }

    fn disband(&self) {
        let engine = &self.service().engine;
        let reservation = self.reservation.0.get();
        let announcer = &engine.store.announcer;
        announcer.tell(|| Fact::Disbanded { reservation });
        engine.disband(self.reservation);
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
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw_captured(
        &self,
        lane: &Arc<Lane>,
        by: (&CaptureClock, StreamId),
        demand: &Demand,
    ) -> Result<Option<Allocation>, AllocError> {
        let after = |asks: bool| {
            if asks {
                by.0.refresh(lane);
            }
            by.0.after(by.1)
        };
        let draw = |engine: &Engine, reservation| {
            let by = (by.1, &after as _);
            Ok(order::draw(engine, lane, by, reservation, demand.request)?)
        };
        self.drawing(lane, demand, draw)
    }

    /// Draws a part in exchange for others, which graphs do not hold.
    ///
    /// # Errors
    /// Returns an error if the pool is closed, or the device failed.
    pub(crate) fn draw_in_exchange(
        &self,
        lane: &Arc<Lane>,
        demand: &Demand,
        held: &Held<'_>,
    ) -> Result<Option<Allocation>, AllocError> {
        self.drawing(lane, demand, |engine, reservation| {
            let is_current = || held.is_current();
            let held = (&held.ranges, &is_current as &dyn Fn() -> bool);
            Ok(Draw::begin(engine, lane, reservation, demand.request)?.run_in_exchange(held)?)
        })
    }

    /// Adds allocations that are complete, and were charged to the tag.
    pub(crate) fn add(&self, allocations: Allocations) {
        let bytes: u64 = allocations.iter().map(|allocation| allocation.bytes).sum();
        let store = &self.service().engine.store;
        store.add_to_reservation(self.reservation, allocations);
        self.state.lock().size += bytes;
        // A reservation ends by giving all that it has to its parent, as drawn from there.
        let parents = std::iter::successors(self.parent.as_ref(), |parent| parent.parent.as_ref());
        for parent in parents {
            let mut state = parent.state.lock();
            state.size += bytes;
            state.drawn += bytes;
        }
        if let Some(account) = self.account() {
            account.count_growth();
        }
        self.publish();
    }

    /// Returns whether the memory of another reservation can become this one's: no tag is charged for either, no other
    /// reservation gets it back, and nothing of it is drawn.
    pub(crate) fn may_absorb(&self, other: &Self) -> bool {
        self.is_plain() && other.is_plain() && other.state.lock().drawn == 0
    }

    /// Returns whether no tag is charged for it, and its memory returns to the pool.
    pub(crate) fn is_plain(&self) -> bool {
        self.tag.is_none() && self.parent.is_none()
    }

    /// Takes over all memory of another reservation, which ends.
    pub(crate) fn absorb(&self, other: ReservedHandle) {
        other.0.return_kept();
        let bytes = std::mem::take(&mut other.0.state.lock().size);
        self.state.lock().size += bytes;
        let engine = &self.service().engine;
        engine.merge_reservation(other.0.reservation, self.reservation);
    }

    /// Makes a reservation of its own of that many bytes, if as many are left. It returns to where this one returns to.
    pub(crate) fn split(&self, bytes: u64, location: &'static Location<'static>) -> Option<Self> {
        self.return_kept();
        let store = &self.service().engine.store;
        let other = store.split_reservation(self.reservation, bytes, false)?;
        self.state.lock().size -= bytes;
        let (presence, charge) = (self.presence.clone(), (self.tag, self.parent.clone()));
        Some(Self::over(presence, other, bytes, charge, location))
    }

    /// Draws a reservation of that many bytes, if one piece of them is left. Its memory returns to this one.
    pub(crate) fn nest(
        this: &Arc<Self>,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Option<Self> {
        this.begin_draw(bytes);
        let store = &this.service().engine.store;
        let Some(other) = store.split_reservation(this.reservation, bytes, true) else {
            this.undraw(bytes);
            return None;
        };
        let (presence, charge) = (this.presence.clone(), (this.tag, Some(this.clone())));
        Some(Self::over(presence, other, bytes, charge, location))
    }

    /// Ends the reservation. Its remaining memory goes to the pool, or to the reservation that it was taken from. Drawn
    /// parts follow once they are freed.
    pub(crate) fn end(&self) {
        let Engine { streams, store, .. } = &self.service().engine;
        keeping::end_keeping(streams, store, self.reservation, &self.state);
        if self.parent.is_none() {
            self.disband();
        }
        if let Some(account) = self.account() {
            account.count_freed();
        }
        let settled = settle(&mut self.state.lock());
        self.give_back(settled);
        self.change_home();
    }

    /// Lets other requests have the evictable memory of the reservation, which has ended.
    fn change_home(&self) {
        let (service, own) = (self.service(), Home::Reservation(self.reservation));
        let evictables = &service.engine.store.evictables;
        if evictables.bytes_of(Group::Reservation(self.reservation)) == 0 {
            return;
        }
        match evictables.follow(own, || self.home()) {
            Home::Reservation(parent) => service.publish(Change::Reservation(parent)),
            Home::Pool | Home::Outside => {
                service.publish(Change::Memory);
                if let Some(tag) = self.tag {
                    service.relieve(tag);
                }
            }
        }
    }
}
