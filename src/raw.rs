//! Addresses and handles instead of blocks and streams: a pool for callers in other languages.

use crate::block::Block;
use crate::device::{DeviceError, DeviceStream};
use crate::driver::{BlockInfo, BlockState};
use crate::error::{AllocError, StreamError};
use crate::pool::{KnownStreams, Pool};
use crate::stream::Stream;
use crate::sync::plain::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// A power of two; threads that allocate at once are rarely more.
const SHARDS: usize = 16;

/// A pool behind an interface of addresses: an allocator hook of C's, say, which is given a size and a stream's
/// handle, and later an address and a handle again.
///
/// What it gives out it keeps as [blocks](Block), by their addresses: so an address that is none of those (freed
/// twice, or somebody else's) is an error here, and changes nothing. What no list can tell is an address that was
/// freed, and given out again since.
///
/// Streams are found again: of one that the pool keeps, by its name, and of an
#[cfg_attr(
    feature = "cuda",
    doc = "[external one](crate::device::cuda::CudaDevice::external_stream)"
)]
#[cfg_attr(not(feature = "cuda"), doc = "external one")]
/// by the number that the driver never gives to another.
///
/// ```
/// # use weirpool::{Pool, RawError, RawPool, device::sim::SimDevice};
/// # use std::time::Duration;
/// let device = SimDevice::new();
/// let raw = RawPool::new(&Pool::builder(device.clone()).capacity(64 << 20).build()?);
/// let (work, other) = (device.create_stream(), device.create_stream());
/// let address = raw.allocate(&work, 1 << 20, Duration::from_secs(1))?; // waits for memory, so long at most
/// raw.free(address, &other)?; // once both streams have passed this point
/// let refused = raw.free(address, &work).unwrap_err();
/// assert!(matches!(refused, RawError::NotGivenOut { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropped, it lets go of its streams, and forgets what it gave out: somebody may use the addresses still. That
/// memory stays allocated, and its pool alive.
#[derive(Debug)]
pub struct RawPool {
    pool: Pool,
    streams: KnownStreams,
    given_out: [Mutex<HashMap<u64, Block>>; SHARDS],
}

impl RawPool {
    /// Such an interface of a pool. Several of one pool do not know each other's addresses.
    pub fn new(pool: &Pool) -> Self {
        Self {
            pool: pool.clone(),
            streams: KnownStreams::default(),
            given_out: Default::default(),
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The stream, as it is registered with the pool: when it is first seen, and found again from then on.
    ///
    /// # Errors
    /// As [`Pool::register`].
    pub fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        self.streams.stream(&self.pool, work)
    }

    /// Allocates `bytes` for use in the order of `work`, and blocks this thread until there is memory, `limit` at
    /// most if there is one: as [`Allocate::blocking`](crate::Allocate::blocking) with a timeout. Gives out the
    /// address.
    ///
    /// For other terms (a tag, a deadline, an alignment), allocate of the [pool](Self::pool) for the
    /// [stream](Self::stream), and [`keep`](Self::keep) the block.
    ///
    /// # Errors
    /// As [`Allocate`](crate::Allocate), and [`AllocError::Stream`] when the stream cannot be registered. Nothing
    /// is given out.
    #[track_caller]
    pub fn allocate<W: DeviceStream>(
        &self,
        work: &W,
        bytes: u64,
        limit: impl Into<Option<Duration>>,
    ) -> Result<u64, AllocError> {
        let stream = self.stream(work)?;
        let waiting = self.pool.allocate(&stream, bytes);
        let waiting = match limit.into() {
            Some(limit) => waiting.timeout(limit),
            None => waiting,
        };
        Ok(self.give_out(waiting.blocking()?))
    }

    /// The same now or not at all: as [`Pool::try_allocate`].
    ///
    /// # Errors
    /// As [`Pool::try_allocate`], and [`AllocError::Stream`].
    #[track_caller]
    pub fn try_allocate<W: DeviceStream>(&self, work: &W, bytes: u64) -> Result<u64, AllocError> {
        let stream = self.stream(work)?;
        Ok(self.give_out(self.pool.try_allocate(&stream, bytes)?))
    }

    /// Frees what was given out at `address`, in the order of `work`: its memory is reused once that has passed
    /// what it was given so far.
    ///
    /// If the block was allocated on another stream, the order of that is kept as well where the pool keeps the
    /// stream. An external one may be gone by now, and is not used: then what was done with the block there must
    /// come before what `work` was given so far, as CUDA's `cudaFreeAsync` asks for.
    ///
    /// # Errors
    /// [`RawError::NotGivenOut`], or [`RawError::Stream`] when the stream cannot be registered. Nothing is freed
    /// then, and nothing lost.
    pub fn free<W: DeviceStream>(&self, address: u64, work: &W) -> Result<(), RawError> {
        let stream = self.stream(work)?;
        let block = self.take(address)?;
        match block.uses().free_with(&stream) {
            Ok(()) => {
                drop(block);
                Ok(())
            }
            Err(reason) => {
                self.give_out(block);
                Err(reason.into())
            }
        }
    }

    /// Says that work of a further stream uses what was given out at `address`: once that is freed, it is reused only
    /// after that work. Call it before the free.
    ///
    /// Other than [`Block::used_on`] it gives the stream nothing to wait for. Whoever submits that work has it come
    /// after what the block's own stream was given before, as it must in order to find there what that wrote.
    /// PyTorch's name for it, and PyTorch's way.
    ///
    /// # Errors
    /// [`RawError::NotGivenOut`], or [`RawError::Stream`] when the stream cannot be registered; then it must not use
    /// the memory.
    pub fn record_stream<W: DeviceStream>(&self, address: u64, work: &W) -> Result<(), RawError> {
        let stream = self.stream(work)?;
        // Where it is: others who record, or free, must find it there.
        let noted = {
            let given_out = self.shard(address).lock();
            given_out
                .get(&address)
                .map(|block| block.uses().note_ordered_by_user(&stream))
        };
        match noted {
            Some(noted) => Ok(noted?),
            None => Err(self.not_given_out(address)),
        }
    }

    /// Gives a block of the pool out: for its address.
    ///
    /// # Errors
    /// The block again, if it is another pool's.
    pub fn keep(&self, block: Block) -> Result<u64, Block> {
        if self.pool.has(&block) {
            Ok(self.give_out(block))
        } else {
            Err(block)
        }
    }

    /// Takes back what was given out at `address`: the block is the caller's again.
    ///
    /// # Errors
    /// [`RawError::NotGivenOut`].
    pub fn take(&self, address: u64) -> Result<Block, RawError> {
        let block = self.shard(address).lock().remove(&address);
        block.ok_or_else(|| self.not_given_out(address))
    }

    #[cold]
    fn not_given_out(&self, address: u64) -> RawError {
        RawError::NotGivenOut {
            address,
            found: self.pool.block_at(address).map(Box::new),
        }
    }

    /// How many addresses are given out.
    pub fn given_out(&self) -> usize {
        let counts = self.given_out.iter().map(|shard| shard.lock().len());
        counts.sum()
    }

    fn give_out(&self, block: Block) -> u64 {
        let address = block.address().to_bits();
        self.shard(address).lock().insert(address, block);
        address
    }

    fn shard(&self, address: u64) -> &Mutex<HashMap<u64, Block>> {
        // Blocks begin at multiples of 512, and large ones at multiples of much more.
        let mixed = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.given_out[(mixed >> 60) as usize % SHARDS]
    }
}

impl Drop for RawPool {
    fn drop(&mut self) {
        for shard in &self.given_out {
            let given_out = std::mem::take(&mut *shard.lock());
            given_out.into_values().for_each(std::mem::forget);
        }
    }
}

/// Why an address was not freed; nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The address is none of those that are given out: it was freed already, or is not where a block begins, or
    /// is not the pool's.
    #[error("{address:#x} is not given out: {}", in_words(*address, found.as_deref()))]
    NotGivenOut {
        /// What was to be freed.
        address: u64,
        /// The block of the pool that the address is in, if it is in one.
        found: Option<Box<BlockInfo>>,
    },
    /// The stream cannot be used with the pool.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Of a stream that could not be had at all.
impl From<DeviceError> for RawError {
    fn from(error: DeviceError) -> Self {
        Self::Stream(error.into())
    }
}

/// What is at the address.
fn in_words(address: u64, found: Option<&BlockInfo>) -> impl fmt::Display + use<> {
    let Some(block) = found else {
        return "the pool has no memory there; was it allocated elsewhere?".to_owned();
    };
    let (at, size) = (block.address, block.size);
    match block.state {
        BlockState::Used if at.to_bits() != address => {
            format!("it lies within the {size} bytes in use from {at:#x} on; free that")
        }
        BlockState::Used => "the block there is owned elsewhere".to_owned(),
        state => format!("the {size} bytes from {at:#x} on are {state}; was it freed already?"),
    }
}
