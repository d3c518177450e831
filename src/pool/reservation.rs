//! Reservations: memory that is set aside for one holder.

use super::allocate::{Layouts, ask_for_all};
use super::entered_scope::{self, Drawing, EnterGuard};
use super::request::{Attempt, Begun, Kind, Request};
use super::{Layout, Pool};
use crate::block::Block;
use crate::engine::{Allocations, NoMemory, Parts};
use crate::error::AllocError;
use crate::handles::{Caller, Presence, Reserved, ReservedHandle};
use crate::heap::Placement;
use crate::id::ReservationId;
use crate::measure::{Bytes, Tag};
use crate::queue::{Ask, Asker, Demand, error_of};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;
use std::future::Future;
use std::panic::Location;

/// The future of [`Pool::reserve`] and [`Pool::reserve_many`]. Its output is a [`Reservation`]. See [`Request`] for
/// terms, errors and cancel safety.
pub type Reserve<'a> = Request<ForReservation<'a>>;

/// The future of [`Reservation::grow`]. See [`Request`] for terms and errors. If it fails or is dropped early, the
/// reservation is unchanged.
pub type GrowReservation<'a> = Request<ForReservationGrowth<'a>>;

/// Memory that is set aside by [`Pool::reserve`] or [`Pool::reserve_many`]. Allocations from it neither wait nor fail.
///
/// A request that allocates several blocks one after the other holds some while it waits for more, and a few such
/// requests can deadlock. If all memory that a request needs is reserved first, it has one queue position, and no
/// request that has begun ever waits.
///
/// # Guarantees
///
/// The memory is complete on every stream, and no other request can take it:
///
/// - from [`reserve_many`](Pool::reserve_many), each layout can be allocated, on any stream, whenever the previous block
///   of that layout was freed, as long as nothing was [split](Self::split) off;
/// - from [`reserve`](Pool::reserve), any sizes that together, each rounded up to the pool's
///   [alignment](crate::Tuning::alignment), do not exceed the reservation, as long as nothing was freed in
///   between;
/// - after frees, any size that a gap, or adjacent gaps, can hold. Where memory is
///   [virtual](crate::device::Capabilities::virtual_memory), also any multiple of the pool's
///   [chunk size](crate::PoolBuilder::chunk_bytes), if all other sizes allocated from the reservation are such multiples:
///   whole chunks of the reservation are mapped into one range once the work on them is complete;
/// - any other size that would fit if the remaining memory were contiguous: the pieces are exchanged for a contiguous
///   range of memory that the pool has free or can take from the device. This can fail with
///   [`NotReserved`](AllocError::NotReserved). No allocator can promise more without moving blocks that are in use: many
///   small blocks can be in the way of a large one (Robson, *Bounds for some functions concerning dynamic storage
///   allocation*, 1974). List the layouts where a failure is not acceptable.
///
/// Freed memory returns to the reservation. The freeing stream can reuse it immediately. Another stream gets it behind a
/// wait on the device, whatever [`Reuse::internal_dependencies`](crate::Reuse::internal_dependencies) is. Where no such
/// wait can be inserted, because a stream is the host's or is being captured, the memory is available once it is
/// complete.
///
/// An allocation still fails if the pool is closed, if the device has failed, or if the device cannot
/// [fill](crate::FillAt::Allocation) the block.
///
/// # Lifetime
///
/// Dropping the reservation returns its unallocated memory to the pool at once. Its live blocks become ordinary blocks.
/// A reservation can be sent to another task, [split](Self::split), and [grown](Self::grow).
#[must_use = "dropping a reservation returns its memory to the pool"]
pub struct Reservation {
    handle: ReservedHandle,
}

impl Reservation {
    fn new(reserved: Reserved) -> Self {
        Self {
            handle: ReservedHandle(Arc::new(reserved)),
        }
    }

    fn reserved(&self) -> &Arc<Reserved> {
        &self.handle.0
    }

    /// Returns what keeps the memory set aside.
    pub(crate) fn into_handle(self) -> ReservedHandle {
        self.handle
    }

    /// Ends the reservation. Returns what keeps the memory set aside that is not allocated, if there is any. Futures in
    /// the scope of the reservation hold it too, and do not draw from the rest.
    pub(crate) fn into_rest(self, location: &'static Location<'static>) -> Option<ReservedHandle> {
        loop {
            let left = self.left();
            if left == 0 {
                return None;
            }
            // A future in the scope may draw a part at the same time.
            if let Some(rest) = self.reserved().split(left, location) {
                return Some(ReservedHandle(Arc::new(rest)));
            }
        }
    }

    /// Allocates a part of the reservation, for use in the order of `stream`: `bytes`, or a [`Layout`].
    ///
    /// # Errors
    /// Returns [`AllocError::NotReserved`] if the remaining memory does not suffice: ask for less, free a block, or
    /// [grow](Self::grow) the reservation. Returns [`AllocError::StreamCaptured`] while the stream is
    /// [captured](Pool::capture). The other errors are those [above](Self).
    #[track_caller]
    pub fn allocate(
        &self,
        stream: &Stream,
        layout: impl Into<Layout>,
    ) -> Result<Block, AllocError> {
        let (layout, location) = (layout.into(), Location::caller());
        let registration = &stream.registration;
        let presence = self.reserved().presence();
        presence.expect_own(registration, location)?;
        let demand = layout.demand(&presence.service.engine, None)?;
        if registration.lane.cache.is_captured() {
            return Err(AllocError::StreamCaptured);
        }
        let caller = Caller::at(location);
        if let Some(block) = Block::kept(registration, &demand, caller, self.reserved()) {
            return block;
        }
        let drawn = self.reserved().draw(&registration.lane, &demand);
        let allocation = drawn.map_err(|why| error_of(why, (&**registration).into(), &demand))?;
        let reserved = self.reserved();
        Block::reserved(registration, allocation, &demand, caller, reserved, false)
    }

    /// Returns the size of the reservation in bytes, allocated or not.
    pub fn size(&self) -> u64 {
        self.reserved().size()
    }

    /// Returns how many bytes of the reservation are not allocated.
    pub fn left(&self) -> u64 {
        self.reserved().left().0
    }

    /// Returns the tag that the reservation is charged to.
    pub fn tag(&self) -> Option<Tag> {
        self.reserved().tag()
    }

    /// Returns the pool.
    pub fn pool(&self) -> Pool {
        Pool::of_presence(self.reserved().presence().clone())
    }

    /// Adds `bytes` to the reservation, as one more contiguous piece. Waits in the queue like any request, and charges the
    /// reservation's tag.
    ///
    /// Tasks that hold reservations and wait for more can deadlock.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # device.block_on(async {
    /// let mut reservation = pool.reserve(16 << 20).await?;
    /// reservation.grow(8 << 20).await?;
    /// assert_eq!(reservation.size(), 24 << 20);
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Request`]. The reservation is unchanged then.
    ///
    /// # Cancel safety
    /// If the future is dropped early, the reservation is unchanged.
    #[track_caller]
    pub fn grow(&mut self, bytes: u64) -> GrowReservation<'_> {
        let reservation = self;
        Request::new(
            ForReservationGrowth { reservation, bytes },
            Location::caller(),
        )
    }

    /// Moves `bytes` that are not allocated into a reservation of their own. `bytes` is rounded up to the pool's
    /// [alignment](crate::Tuning::alignment).
    ///
    /// # Errors
    /// Returns [`AllocError::NotReserved`] if fewer bytes are left. Nothing is split then.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// let mut whole = pool.reserve(16 << 20).try_now()?;
    /// let part = whole.split(4 << 20)?; // for another task, say
    /// assert_eq!((whole.size(), part.size()), (12 << 20, 4 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn split(&mut self, bytes: u64) -> Result<Self, AllocError> {
        let location = Location::caller();
        let step = self.pool().service().engine.shared.settings.alignment;
        let bytes = bytes.max(1).checked_next_multiple_of(step);
        let other = bytes.and_then(|bytes| self.reserved().split(bytes, location));
        let (left, largest) = self.reserved().left();
        match other {
            Some(other) => Ok(Self::new(other)),
            None => Err(AllocError::NotReserved {
                requested: bytes.unwrap_or(u64::MAX),
                left,
                largest,
            }),
        }
    }

    /// Runs a future in which allocations from the pool draw from this reservation, at any depth of the call. This applies
    /// to awaited and immediate allocations of that future alone, on any executor.
    ///
    /// A nested [`reserve`](Pool::reserve) draws from this reservation as well, if one piece of that size is left, which
    /// need not begin with a chunk. Its memory returns to this reservation when it ends.
    ///
    /// An allocation comes from the pool as usual, and may wait, if it exceeds the remaining memory, has another
    /// [tag](crate::Allocate::tag), or is
    /// [allocated](Pool::allocate_many) or [reserved](Pool::reserve_many) together with others. While it waits, each poll
    /// looks again for memory that came back to the reservation.
    ///
    /// # Cancel safety
    /// If this future is dropped early, the inner future is dropped in the scope.
    ///
    /// ```
    /// # use weirpool::{AllocError, Block, Pool, Stream, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// async fn decode(pool: &Pool, stream: &Stream) -> Result<Block, AllocError> {
    ///     pool.allocate(stream, 4 << 20).await // knows nothing of reservations
    /// }
    /// # device.block_on(async {
    /// let reservation = pool.reserve(16 << 20).await?;
    /// let block = reservation.scope(decode(&pool, &stream)).await?;
    /// assert_eq!(reservation.left(), 12 << 20);
    /// # drop(block);
    /// # Ok::<(), AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> Drawing<F> {
        Drawing::new(self.reserved().clone(), future)
    }

    /// Enters the scope of the reservation on this thread, until the returned guard is dropped: for code that is not a
    /// future, and for implementations of `poll`. Allocations draw from the reservation as in [`scope`](Self::scope).
    ///
    /// Do not hold the guard across an `.await`: while the task waits, other futures that the thread polls would be in
    /// the scope as well. (If tasks can move between threads, this does not compile.)
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let reservation = pool.reserve(16 << 20).try_now()?;
    /// let block = {
    ///     let _entered = reservation.enter();
    ///     pool.try_allocate(&stream, 4 << 20)?
    /// };
    /// assert_eq!(reservation.left(), 12 << 20);
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter(&self) -> EnterGuard {
        EnterGuard::new(self.reserved())
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("size", &Bytes(self.size()))
            .field("left", &Bytes(self.left()))
            .field("tag", &self.tag())
            .finish_non_exhaustive()
    }
}

/// The kind of a request for a reservation in several pieces.
#[derive(Debug)]
pub struct ForReservation<'a> {
    pool: &'a Pool,
    layouts: Layouts,
    /// Whether pieces of at least a chunk begin at a chunk boundary.
    is_whole: bool,
    /// Where the only piece is to lie.
    placement: Placement,
    /// It extends memory that is held.
    is_of_holder: bool,
}

impl<'a> ForReservation<'a> {
    pub(super) fn whole(pool: &'a Pool, bytes: u64) -> Self {
        Self {
            pool,
            layouts: Layouts::from([Layout::new(bytes)]),
            is_whole: true,
            placement: Placement::Anywhere,
            is_of_holder: false,
        }
    }

    /// A reservation of one piece, which lies at any address or above a block, and extends memory of graphs.
    pub(super) fn at(pool: &'a Pool, bytes: u64, placement: Placement) -> Self {
        Self {
            is_whole: placement == Placement::Anywhere,
            placement,
            is_of_holder: true,
            ..Self::whole(pool, bytes)
        }
    }

    pub(super) fn of_layouts(pool: &'a Pool, layouts: Layouts) -> Self {
        Self {
            pool,
            layouts,
            is_whole: false,
            placement: Placement::Anywhere,
            is_of_holder: false,
        }
    }
}

impl ForReservation<'_> {
    /// Takes a part of the reservation in whose scope this is, if that has one piece of that size.
    fn nested(&self, demand: &Demand, caller: Caller) -> Option<Reservation> {
        let nested = || entered_scope::reserve(self.pool, demand, caller);
        Some(Reservation::new(self.is_whole.then(nested)??))
    }
}

impl Kind for ForReservation<'_> {
    type Output = Reservation;

    fn asker(&self) -> Asker<'_> {
        asker_of(&self.pool.presence)
    }

    fn begin(&self, attempt: Attempt) -> Result<Begun<Reservation>, AllocError> {
        let presence = &self.pool.presence;
        let mut ask = ask_for_reserved(presence, &self.layouts, self.is_whole, attempt.tag)?;
        ask.parts.placement = self.placement;
        ask.demand.is_of_holder = self.is_of_holder || self.scope(&ask.demand).is_some();
        match self.nested(&ask.demand, attempt.caller) {
            Some(reservation) => Ok(Begun::Taken(reservation)),
            None => Ok(Begun::Asks(ask)),
        }
    }

    fn scope(&self, demand: &Demand) -> Option<ReservationId> {
        let id = || entered_scope::reservation(self.pool, demand);
        self.is_whole.then(id)?
    }

    #[cold]
    fn take_late(&self, demand: &Demand, caller: Caller) -> Result<Reservation, NoMemory> {
        self.nested(demand, caller).ok_or_else(NoMemory::short)
    }

    fn granted(
        &mut self,
        (demand, _): (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<Reservation, AllocError> {
        let presence = self.pool.presence.clone();
        let reserved = Reserved::new(presence, allocations, demand.tag, caller.location);
        Ok(Reservation::new(reserved))
    }
}

/// The kind of a request for one more piece of a reservation.
#[derive(Debug)]
pub struct ForReservationGrowth<'a> {
    reservation: &'a mut Reservation,
    bytes: u64,
}

impl Kind for ForReservationGrowth<'_> {
    type Output = ();

    fn asker(&self) -> Asker<'_> {
        asker_of(self.reservation.reserved().presence())
    }

    /// Takes the piece, charged to the account of the reservation.
    fn begin(&self, _: Attempt) -> Result<Begun<()>, AllocError> {
        let Self { reservation, bytes } = self;
        let layouts = [Layout::new(*bytes)];
        let presence = reservation.reserved().presence();
        let mut ask = ask_for_reserved(presence, &layouts, true, reservation.tag())?;
        ask.demand.is_of_holder = true;
        Ok(Begun::Asks(ask))
    }

    fn granted(
        &mut self,
        _: (&Demand, &Parts),
        allocations: Allocations,
        _: Caller,
    ) -> Result<(), AllocError> {
        self.reservation.reserved().add(allocations);
        Ok(())
    }
}

/// Returns the origin of a request that is in no stream's order.
pub(super) fn asker_of(presence: &Presence) -> Asker<'_> {
    let service = &presence.service;
    Asker {
        service,
        lane: &service.engine.streams.neutral,
    }
}

fn ask_for_reserved(
    presence: &Presence,
    layouts: &[Layout],
    is_whole: bool,
    tag: Option<Tag>,
) -> Result<Ask, AllocError> {
    let engine = &presence.service.engine;
    let settings = &engine.shared.settings;
    if !settings.is_pooled {
        return Err(AllocError::NotReservable);
    }
    let mut ask = ask_for_all(engine, layouts, tag)?;
    ask.parts.is_for_all = true;
    if is_whole && settings.geometry.virtual_memory {
        ask.parts.align_to_chunks(settings.geometry.chunk_bytes);
    }
    Ok(ask)
}
