//! Memory set aside for one holder.

use super::allocate::ask_for_all;
use super::request::{Attempt, Kind, Refused, Request, Taken};
use super::scope::Drawing;
use super::{Layout, Pool};
use crate::block::Block;
use crate::driver::Drawn;
use crate::error::AllocError;
use crate::measure::Tag;
use crate::queue::{Ask, Asker, Caller, Grant, Presence, Reserved, Wants};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;
use std::future::Future;
use std::panic::Location;

/// The future of [`Pool::reserve`] and [`Pool::reserve_many`]: a [`Reservation`]. See [`Request`] for terms, errors
/// and cancel safety.
pub type Reserve<'a> = Request<ForReservation<'a>>;

/// The future of [`Reservation::grow`]. See [`Request`] for terms and errors. If it fails or is dropped early, the
/// reservation is unchanged.
pub type GrowReservation<'a> = Request<ForReservationGrowth<'a>>;

/// Memory that is set aside: what is allocated of it neither waits nor fails. Of [`Pool::reserve`] and
/// [`Pool::reserve_many`].
///
/// A request that needs several blocks, and takes them one after the other, holds some while it waits for more;
/// a few of them can wait for each other for ever. Reserved up front, all that a request will need has one place
/// in the queue, and no request that has begun ever waits.
///
/// # What can be relied on
///
/// The memory is there, complete on every stream, and nobody else can have it:
///
/// - of [`reserve_many`](Pool::reserve_many), each layout can be allocated, on any stream, whenever the block
///   that took its place before was freed, as long as nothing was [split](Self::split) off;
/// - of [`reserve`](Pool::reserve), any sizes that together, each rounded up to the pool's
///   [alignment](crate::PoolBuilder::alignment), are no more than was reserved, as long as nothing was freed in
///   between;
/// - after frees, whatever a gap, or gaps beside each other, are large enough for; and where memory is
///   [virtual](crate::device::Capabilities::virtual_memory), whatever is a multiple of the pool's
///   [handles](crate::PoolBuilder::chunk_bytes), as long as everything else allocated of it is: whole handles of
///   the reservation are mapped where they make one piece, once the work on them is complete;
/// - for anything else that would fit if what is left were one piece, the pieces are exchanged for as many bytes
///   in one of what the pool has free, or may take from the device. No more can be promised without moving
///   blocks that are in use: whatever the allocator, many small ones that stay can be in the way of a large one
///   (Robson, *Bounds for some functions concerning dynamic storage allocation*, 1974). Then it is
///   [`NotReserved`](AllocError::NotReserved). List the layouts where that must not be.
///
/// What is freed is there again. On the stream that freed it, at once; on another it comes behind a wait on the
/// device, as if the pool had [nothing else](crate::Reuse::internal_dependencies). Where a stream takes no
/// such wait (the host's, or one that is being captured; or freed by one that is), it is there once it is
/// complete.
///
/// An allocation still fails when the pool was closed, or the device has failed, or cannot
/// [fill](crate::PoolBuilder::fill_on_allocate) the block.
///
/// # Its end
///
/// Dropped, what is not allocated goes back to the pool at once. Blocks that live on are blocks like any other.
/// It can be given to another task, [split](Self::split), and [grown](Self::grow).
#[must_use = "what is reserved goes back to the pool when this is dropped"]
pub struct Reservation {
    reserved: Arc<Reserved>,
}

impl Reservation {
    /// Allocates a part, for use in the order of `stream`: `bytes`, or a [`Layout`].
    ///
    /// # Errors
    /// [`AllocError::NotReserved`] when what is left does not do: ask for less, free something, or
    /// [grow](Self::grow) the reservation. Otherwise as said [above](Self).
    #[track_caller]
    pub fn allocate(
        &self,
        stream: &Stream,
        layout: impl Into<Layout>,
    ) -> Result<Block, AllocError> {
        let (layout, location) = (layout.into(), Location::caller());
        let registration = stream.registration();
        let presence = self.reserved.presence();
        presence.expect_own(registration)?;
        let demand = layout.demand(&presence.service.driver, None)?;
        match self.reserved.draw(&registration.lane, &demand)? {
            Drawn::Allocation(allocation) => {
                let caller = Caller {
                    location,
                    waited: false,
                    fill: None,
                };
                Block::reserved(registration, allocation, &demand, caller, &self.reserved)
            }
            Drawn::Short { left, largest } => Err(AllocError::NotReserved {
                requested: demand.request.bytes,
                left,
                largest,
            }),
        }
    }

    /// What is set aside, allocated or not, in bytes.
    pub fn size(&self) -> u64 {
        self.reserved.size()
    }

    /// What is not allocated of it, in bytes.
    pub fn left(&self) -> u64 {
        self.reserved.left().0
    }

    /// For whom it was reserved.
    pub fn tag(&self) -> Option<Tag> {
        self.reserved.tag()
    }

    /// The pool.
    pub fn pool(&self) -> Pool {
        Pool::of_presence(self.reserved.presence().clone())
    }

    /// Adds `bytes` to the reservation, in a piece of their own. Waits for them in the queue like any request, charged
    /// to the reservation's tag.
    ///
    /// A task that holds a reservation and waits for more can be part of a deadlock with others that do the same.
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
    /// Those of [`Request`]; the reservation is unchanged then.
    ///
    /// # Cancel safety
    /// Dropped early, the reservation is unchanged.
    #[track_caller]
    pub fn grow(&mut self, bytes: u64) -> GrowReservation<'_> {
        let reservation = self;
        Request::new(
            ForReservationGrowth { reservation, bytes },
            Location::caller(),
        )
    }

    /// Makes so many of the bytes that are not allocated a reservation of their own; rounded up to the
    /// pool's [alignment](crate::PoolBuilder::alignment).
    ///
    /// # Errors
    /// [`AllocError::NotReserved`] when fewer are left; nothing is split then.
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
        let step = self.pool().service().driver.settings.alignment;
        let bytes = bytes.max(1).checked_next_multiple_of(step);
        let other = bytes.and_then(|bytes| self.reserved.split(bytes, location));
        let (left, largest) = self.reserved.left();
        match other {
            Some(other) => Ok(Self {
                reserved: Arc::new(other),
            }),
            None => Err(AllocError::NotReserved {
                requested: bytes.unwrap_or(u64::MAX),
                left,
                largest,
            }),
        }
    }

    /// Runs a future in which allocations from the pool draw from this reservation, however deep in the call:
    /// those that are awaited and those that are tried, of that task alone, on any executor. What does not fit
    /// into what is left comes from the pool as ever, and may wait; so does what is for another
    /// [tag](crate::Allocate::tag), and what is [allocated together](Pool::allocate_many). While it waits, what comes
    /// back to the reservation is looked at again whenever it is polled.
    ///
    /// A [pressure hook](crate::PressureHook) that is asked for such a request is in its task, and not in the scope.
    ///
    /// # Cancel safety
    /// Dropped early, the future is dropped in the scope.
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
        Drawing::new(self.reserved.clone(), future)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.end();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("size", &self.size())
            .field("left", &self.left())
            .field("tag", &self.tag())
            .finish_non_exhaustive()
    }
}

/// A reservation of pieces.
#[derive(Debug)]
pub struct ForReservation<'a> {
    pool: &'a Pool,
    layouts: Box<[Layout]>,
    /// Pieces of a chunk or more begin with a chunk.
    is_whole: bool,
}

impl<'a> ForReservation<'a> {
    pub(super) fn whole(pool: &'a Pool, bytes: u64) -> Self {
        Self {
            pool,
            layouts: [Layout::new(bytes)].into(),
            is_whole: true,
        }
    }

    pub(super) fn of_layouts(pool: &'a Pool, layouts: Box<[Layout]>) -> Self {
        Self {
            pool,
            layouts,
            is_whole: false,
        }
    }
}

impl Kind for ForReservation<'_> {
    type Output = Reservation;

    fn asker(&self) -> Asker<'_> {
        asker_of(&self.pool.presence)
    }

    fn take_now(&self, attempt: Attempt) -> Result<Taken<Reservation>, Refused<'_>> {
        let presence = &self.pool.presence;
        let ask = ask_for_reserved(presence, &self.layouts, self.is_whole, attempt.tag)?;
        attempt.take_parts(self.asker(), ask)
    }

    fn granted(&mut self, grant: Grant, caller: Caller) -> Result<Reservation, AllocError> {
        let Grant { ask, allocations } = grant;
        let presence = self.pool.presence.clone();
        let reserved = Reserved::new(presence, allocations, ask.demand.tag, caller.location);
        Ok(Reservation {
            reserved: Arc::new(reserved),
        })
    }
}

/// One more piece of a reservation.
#[derive(Debug)]
pub struct ForReservationGrowth<'a> {
    reservation: &'a mut Reservation,
    bytes: u64,
}

impl Kind for ForReservationGrowth<'_> {
    type Output = ();

    fn asker(&self) -> Asker<'_> {
        asker_of(self.reservation.reserved.presence())
    }

    /// On the account of the reservation.
    fn take_now(&self, attempt: Attempt) -> Result<Taken<()>, Refused<'_>> {
        let Self { reservation, bytes } = self;
        let layouts = [Layout::new(*bytes)];
        let presence = reservation.reserved.presence();
        let ask = ask_for_reserved(presence, &layouts, true, reservation.tag())?;
        attempt.take_parts(self.asker(), ask)
    }

    fn granted(&mut self, grant: Grant, _: Caller) -> Result<(), AllocError> {
        self.reservation.reserved.add(grant.allocations);
        Ok(())
    }
}

/// Memory that is set aside is in no stream's order.
fn asker_of(presence: &Presence) -> Asker<'_> {
    let service = &presence.service;
    Asker {
        service,
        lane: &service.driver.neutral,
    }
}

fn ask_for_reserved(
    presence: &Presence,
    layouts: &[Layout],
    is_whole: bool,
    tag: Option<Tag>,
) -> Result<Ask, AllocError> {
    let driver = &presence.service.driver;
    let settings = &driver.settings;
    if !settings.is_pooled {
        return Err(AllocError::NotReservable);
    }
    let mut ask = ask_for_all(driver, layouts, tag)?;
    if let Wants::Parts(parts) = &mut ask.wants {
        parts.is_for_all = true;
        if is_whole && settings.geometry.virtual_memory {
            parts.align_to_chunks(settings.geometry.chunk_bytes);
        }
    }
    Ok(ask)
}
