//! Requests for a charge: bytes of the capacity, for memory that others allocate.

use super::Pool;
use super::layout::expect_capacity_for;
use super::request::{Attempt, Begun, Kind, Request};
use super::reservation::asker_of;
use crate::engine::{Allocations, Parts};
use crate::error::AllocError;
use crate::foreign::{Charge, Residency};
use crate::handles::Caller;
use crate::queue::{Ask, Asker, Demand};
use crate::stream::Stream;
use std::panic::Location;

/// The future of [`Pool::charge_for`]: a [`Charge`]. See [`Request`] for terms, errors and cancel safety.
pub type ChargeFor<'a> = Request<ForCharge<'a>>;

/// The kind of a request for a charge.
#[derive(Debug)]
pub struct ForCharge<'a> {
    pool: &'a Pool,
    bytes: u64,
}

impl Kind for ForCharge<'_> {
    type Output = Charge;

    fn asker(&self) -> Asker<'_> {
        asker_of(&self.pool.presence)
    }

    fn begin(&self, attempt: Attempt) -> Result<Begun<Charge>, AllocError> {
        expect_capacity_for(self.bytes, &self.pool.service().engine)?;
        Ok(Begun::Asks(Ask {
            demand: Demand::in_steps(self.bytes, 1, 0, attempt.tag),
            parts: Parts::charge(self.bytes),
            is_searched: false,
        }))
    }

    fn granted(
        &mut self,
        (demand, _): (&Demand, &Parts),
        _: Allocations,
        _: Caller,
    ) -> Result<Charge, AllocError> {
        let Demand { request, tag, .. } = *demand;
        Ok(Charge::new(&self.pool.presence, request.bytes, tag))
    }
}

impl Pool {
    /// Charges the capacity for bytes that the caller is about to take outside of the pool, and waits until there is room for
    /// them: this admits a framework that allocates for itself. It waits in the queue as an allocation does, on the same
    /// terms. The pool releases free memory to the device, and evicts, if the capacity lacks room.
    ///
    /// ```
    /// # use weirpool::{Pool, Tag, device::sim::SimDevice};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let engine = Tag::new("engine");
    /// let admitted = pool.charge_for(48 << 20).tag(engine).deadline(Duration::from_secs(2)).await?;
    /// // The engine allocates up to 48 MiB for itself; meanwhile the pool has 16 MiB for others.
    /// drop(admitted); // once the engine has freed it
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn charge_for(&self, bytes: u64) -> ChargeFor<'_> {
        Request::new(ForCharge { pool: self, bytes }, Location::caller())
    }

    /// Charges the capacity for bytes that the caller holds, or is about to take, outside of the pool: memory of the
    /// same device that others allocate, such as a framework's own allocator. It is [`charge_for`](Self::charge_for) without
    /// waiting.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// let pool = Pool::builder(SimDevice::new()).capacity(64 << 20).build()?;
    /// let stream = pool.create_stream()?;
    /// let charge = pool.charge(48 << 20)?; // memory of a library that allocates for itself
    /// assert!(matches!(pool.try_allocate(&stream, 32 << 20), Err(AllocError::Exhausted(_))));
    /// drop(charge); // the library has freed it
    /// let block = pool.try_allocate(&stream, 32 << 20)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`AllocError::TooLarge`] if it exceeds the capacity, [`AllocError::Exhausted`] if blocks hold what it lacks or
    /// requests wait, [`AllocError::Stopping`], [`AllocError::Closed`], and [`AllocError::Device`].
    #[track_caller]
    pub fn charge(&self, bytes: u64) -> Result<Charge, AllocError> {
        self.charge_for(bytes).try_now()
    }

    /// Makes known memory of others that is not always there: for the blocks of it that are [adopted](crate::Stream::adopt).
    pub fn residency(&self, name: &str) -> Residency {
        Residency::new(&self.presence, name)
    }
}

impl Residency {
    /// Sets the stream on which the owner copies the contents away and back: each block ends in its order as well. Call it
    /// once, before there are blocks.
    pub fn copied_on(&self, stream: &Stream) {
        self.set_copies(&stream.registration);
    }
}
