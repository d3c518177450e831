//! Blocks that grow where they are.

use super::request::{Attempt, Begun, IsUsable, Kind, Request};
use crate::block::Block;
use crate::engine::{Allocations, Parts};
use crate::error::AllocError;
use crate::handles::{Caller, Registration};
use crate::measure::Tag;
use crate::queue::{Ask, Asker, Demand};
use std::panic::Location;

/// The future of [`Block::grow`]. See [`Request`] for terms and errors. If it fails or is dropped early, the block is
/// unchanged.
pub type Grow<'a> = Request<ForGrowth<'a>>;

/// More bytes right above a block.
#[derive(Debug)]
pub struct ForGrowth<'a> {
    block: &'a mut Block,
    bytes: u64,
}

impl Block {
    /// Makes the block larger by at least `bytes`, where it is: its address and contents stay. Waits for memory like
    /// an allocation, charged to the block's tag. Use it for data that grows step by step, as the caches of text
    /// generation do (the idea is vAttention's: Prabhu et al., 2024).
    ///
    /// Growth is limited by addresses. A block that was allocated with [room](crate::Allocate::room) grows in steps
    /// of the pool's [chunks](crate::PoolBuilder::chunk_bytes) up to the size of its room. Any other block grows
    /// while the memory right above it happens to be free. A block of a reservation does not grow.
    ///
    /// The added bytes are for use in the order of the same streams as the block. A task that holds a block and
    /// waits to have it grow can be part of a deadlock with others that do the same:
    /// [reserve](crate::Pool::reserve) where that matters.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).chunk_bytes(2 << 20).build()?;
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
    /// Returns [`AllocError::NoRoom`] if the addresses above the block are taken, also if that happens while the
    /// request waits; otherwise returns the errors of [`Request`]. The block is unchanged then.
    ///
    /// # Cancel safety
    /// Dropped early, the block is unchanged. If the memory had just been granted, it goes to others, and with it the
    /// rest of the block's room.
    #[track_caller]
    pub fn grow(&mut self, bytes: u64) -> Grow<'_> {
        Request::new(ForGrowth { block: self, bytes }, Location::caller())
    }
}

impl IsUsable for ForGrowth<'_> {}

impl Kind for ForGrowth<'_> {
    type Output = ();

    fn asker(&self) -> Asker<'_> {
        (&**self.block.registration()).into()
    }

    fn begin(&self, _: Attempt) -> Result<Begun<()>, AllocError> {
        self.ask().map(Begun::Asks)
    }

    fn granted(
        &mut self,
        (demand, _): (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<(), AllocError> {
        self.block.extend(allocations, demand, caller)
    }
}

impl ForGrowth<'_> {
    /// Builds the request for the added bytes, charged to the block's tag.
    fn ask(&self) -> Result<Ask, AllocError> {
        let block = &*self.block;
        let registration = block.registration();
        let settings = &registration.service.engine.shared.settings;
        let place = block.place_to_grow().filter(|_| settings.is_pooled);
        let (placement, has_room) = place.ok_or(AllocError::NoRoom { room: 0 })?;
        let step = match has_room {
            true => chunk_of(registration)?,
            false => settings.alignment,
        };
        let mut demand = rounded(registration, self.bytes, step, block.tag())?;
        demand.is_of_holder = true;
        Ok(Ask::one(demand, placement))
    }
}

/// Rounds a request up to whole steps.
///
/// # Errors
/// Returns an error if the rounded size exceeds the pool's capacity.
pub(super) fn rounded(
    registration: &Registration,
    bytes: u64,
    step: u64,
    tag: Option<Tag>,
) -> Result<Demand, AllocError> {
    let capacity = registration.service.engine.store.capacity();
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

/// Returns the size of the pool's chunks, in bytes.
///
/// # Errors
/// Returns an error if there are none.
pub(super) fn chunk_of(registration: &Registration) -> Result<u64, AllocError> {
    let settings = &registration.service.engine.shared.settings;
    if settings.is_pooled && settings.geometry.virtual_memory {
        Ok(settings.geometry.chunk_bytes)
    } else {
        Err(AllocError::NoRoom { room: 0 })
    }
}
