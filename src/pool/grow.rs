//! Blocks that grow where they are.

use super::Pool;
use super::terms::terms;
use crate::block::Block;
use crate::driver::{Allocations, Effort, Parts};
use crate::error::AllocError;
use crate::heap::Placement;
use crate::measure::Tag;
use crate::queue::{
    Acquisition, Asker, Caller, Demand, Denial, Registration, Terms, block_on, try_all_now,
};
use crate::sync::Arc;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The future of [`Allocate::room`](super::Allocate::room): a [`Block`] with room to [grow](Block::grow) into.
///
/// # Errors
/// As [`Allocate`](super::Allocate), and [`AllocError::NoRoom`] at once when there are not as many addresses in one
/// piece, or memory cannot be mapped where it is wanted.
///
/// # Cancel safety
/// As [`Allocate`](super::Allocate).
///
/// # Panics
/// As [`Allocate`](super::Allocate).
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct AllocateWithRoom<'a> {
    pool: &'a Pool,
    registration: &'a Arc<Registration>,
    allocation: Acquisition<'a>,
    /// What was asked for, in bytes; and how much more it may become.
    bytes: u64,
    room: u64,
    tag: Option<Tag>,
    terms: Terms,
    location: &'static Location<'static>,
    wanted: Option<(Demand, Parts)>,
}

impl<'a> AllocateWithRoom<'a> {
    pub(super) fn new(
        (pool, registration): (&'a Pool, &'a Arc<Registration>),
        (bytes, room): (u64, u64),
        (tag, terms): (Option<Tag>, Terms),
        location: &'static Location<'static>,
    ) -> Self {
        Self {
            pool,
            registration,
            allocation: Acquisition::new((&**registration).into()),
            bytes,
            room,
            tag,
            terms,
            location,
            wanted: None,
        }
    }

    terms!();

    /// The same now or not at all, as [`Pool::try_allocate`].
    ///
    /// # Errors
    /// As [`Pool::try_allocate`], and when it is [awaited](Self).
    pub fn try_now(self) -> Result<Block, AllocError> {
        let (demand, parts) = self.wanted()?;
        let allocations = grant_now((&**self.registration).into(), &demand, &parts)?;
        self.block(allocations, &demand, false)
    }

    /// Blocks this thread until there is memory: as [`Allocate::blocking`](super::Allocate::blocking).
    ///
    /// # Errors
    /// As when it is [awaited](Self).
    pub fn blocking(self) -> Result<Block, AllocError> {
        let service = &self.registration.service;
        block_on(service, self)
    }

    fn wanted(&self) -> Result<(Demand, Parts), AllocError> {
        self.pool.expect_of(self.registration)?;
        let handle = chunk_of(self.registration)?;
        let room = self.room.checked_next_multiple_of(handle);
        let room = room.ok_or(AllocError::NoRoom { room: 0 })?;
        let demand = rounded(self.registration, self.bytes, handle, self.tag)?;
        Ok((
            demand,
            Parts::one(demand.as_part(), Placement::WithRoom(room)),
        ))
    }

    fn block(
        &self,
        allocations: Allocations,
        demand: &Demand,
        waited: bool,
    ) -> Result<Block, AllocError> {
        let location = self.location;
        let caller = Caller { location, waited };
        let allocation = allocations.into_iter().next().expect("one was asked for");
        let mut block = Block::new(self.registration, allocation, demand, caller)?;
        block.give_room();
        Ok(block)
    }
}

impl Future for AllocateWithRoom<'_> {
    type Output = Result<Block, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.wanted.is_none() {
            this.wanted = Some(this.wanted()?);
        }
        let (demand, parts) = this.wanted.clone().expect("made above");
        let polled = this
            .allocation
            .poll_all(&demand, &parts, &this.terms, context);
        let allocations = ready!(polled)?;
        Poll::Ready(this.block(allocations, &demand, this.allocation.has_waited()))
    }
}

impl Block {
    /// Makes the block larger by at least `bytes`, where it is: what is in it stays, and so does its address. Waits
    /// for memory like an allocation, on the block's account. For what grows as it goes, as the caches of
    /// generation do; the idea is vAttention's (Prabhu et al., 2024).
    ///
    /// Addresses are what limits it. A block that was allocated with [room](crate::Allocate::room) grows in steps
    /// of the pool's [handles](crate::PoolBuilder::chunk_bytes), as far as its room goes, whatever others do. Any
    /// other block grows if what lies above it happens to be nobody's.
    ///
    /// The bytes that come with it are for use in the order of the same streams as the block. Who holds a block and
    /// waits to have it grow can be in a deadlock with others who do the same: [reserve](crate::Pool::reserve) where
    /// that matters. A block of a reservation does not grow.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).handle_bytes(2 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let mut cache = pool.allocate(&stream, 2 << 20).room(1 << 30).await?;
    /// let address = cache.address();
    /// cache.grow(6 << 20).await?;
    /// assert_eq!((cache.address(), cache.size()), (address, 8 << 20));
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::NoRoom`] when the addresses above the block are others', also if that comes about while it
    /// waits; else as [`Allocate`](crate::Allocate). The block is as it was.
    ///
    /// # Cancel safety
    /// Dropped early, the block is as it was. If the memory had been granted in that moment it goes to others, and
    /// with it what was left of the block's room.
    #[track_caller]
    pub fn grow(&mut self, bytes: u64) -> impl Future<Output = Result<(), AllocError>> + '_ {
        let location = Location::caller();
        async move {
            let (demand, parts) = self.extension(bytes)?;
            let registration = self.registration().clone();
            let mut allocation = Acquisition::new((&*registration).into());
            let terms = Terms::default();
            let granted = std::future::poll_fn(|context| {
                allocation.poll_all(&demand, &parts, &terms, context)
            });
            let allocations = granted.await?;
            let waited = allocation.has_waited();
            self.extend(allocations, &demand, Caller { location, waited })
        }
    }

    /// The same now or not at all.
    ///
    /// # Errors
    /// As [`grow`](Self::grow), and [`AllocError::Exhausted`] when there is not enough memory now.
    #[track_caller]
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), AllocError> {
        let (demand, parts) = self.extension(bytes)?;
        let registration = self.registration().clone();
        let allocations = grant_now((&*registration).into(), &demand, &parts)?;
        let (location, waited) = (Location::caller(), false);
        self.extend(allocations, &demand, Caller { location, waited })
    }

    fn extension(&self, bytes: u64) -> Result<(Demand, Parts), AllocError> {
        let registration = self.registration();
        let settings = &registration.service.driver.settings;
        let step = match self.has_room() {
            true => chunk_of(registration)?,
            false => settings.alignment,
        };
        if self.is_reserved() || !settings.is_pooled {
            return Err(AllocError::NoRoom { room: 0 });
        }
        let demand = rounded(registration, bytes, step, self.tag())?;
        Ok((demand, Parts::one(demand.as_part(), self.placement_above())))
    }
}

/// What is asked for, in whole steps.
fn rounded(
    registration: &Registration,
    bytes: u64,
    step: u64,
    tag: Option<Tag>,
) -> Result<Demand, AllocError> {
    let capacity = registration.service.driver.capacity();
    let whole = bytes.max(1).checked_next_multiple_of(step);
    let whole = whole.filter(|whole| *whole <= capacity);
    let Some(whole) = whole else {
        return Err(AllocError::TooLarge {
            requested: bytes,
            capacity,
        });
    };
    Ok(Demand::in_steps(whole, step, whole - bytes, tag))
}

/// The size of the pool's handles, in bytes.
///
/// # Errors
/// Where there are none.
fn chunk_of(registration: &Registration) -> Result<u64, AllocError> {
    let settings = &registration.service.driver.settings;
    if settings.is_pooled && settings.geometry.virtual_memory {
        Ok(settings.geometry.chunk_bytes)
    } else {
        Err(AllocError::NoRoom { room: 0 })
    }
}

fn grant_now(asker: Asker<'_>, demand: &Demand, parts: &Parts) -> Result<Allocations, AllocError> {
    let Asker { service, lane } = asker;
    try_all_now(asker, *demand, parts, Effort::Immediate).map_err(|denial| match denial {
        Denial::Failed(error) => error,
        Denial::Short(..) => AllocError::Exhausted(service.exhausted(lane, demand).into()),
        Denial::OverLimit(tag) => service.limit_reached(tag, demand.request.bytes),
    })
}
