//! Addresses and handles instead of blocks and streams: a pool for callers in other languages.

use crate::known_streams::KnownStreams;
use crate::mutex::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{DeviceError, DeviceStream};
use weirpool::{AllocError, Block, BlockInfo, BlockState, Pool, Stream, StreamError, Unordered};

/// A power of two; more threads rarely allocate at once.
const SHARDS: usize = 16;

/// A pool behind an interface of addresses, for C allocator hooks: such a hook is called with a size and a stream
/// handle, and later with an address and a stream handle.
///
/// A `RawPool` keeps the [blocks](Block) that it gives out, by their addresses. An address that it does not hold
/// (freed twice, or allocated elsewhere) is an error, and changes nothing. It cannot tell a stale address from one
/// that was freed and given out again since.
///
/// It registers each stream once: a stream that the pool keeps is found by its name, an external one (a stream with an
/// [`external_id`](weirpool::device::StreamProperties::external_id)) by the number that the driver never reuses.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_compat::{RawError, RawPool};
/// # use std::time::Duration;
/// let device = SimDevice::new();
/// let raw = RawPool::new(&Pool::builder(device.clone()).capacity(64 << 20).build()?);
/// let (work, other) = (device.create_stream(), device.create_stream());
/// let address = raw.allocate(&work, 1 << 20, Duration::from_secs(1))?; // waits for memory, up to 1 s
/// raw.free(address, &other)?; // reusable once both streams have passed this point
/// let refused = raw.free(address, &work).unwrap_err();
/// assert!(matches!(refused, RawError::NotGivenOut { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropped, it releases its streams and forgets the blocks that it gave out, because their addresses may still be in
/// use. That memory stays allocated, and its pool alive.
#[derive(Debug)]
pub struct RawPool {
    pool: Pool,
    streams: KnownStreams,
    given_out: [Mutex<FxHashMap<u64, Block>>; SHARDS],
}

impl RawPool {
    /// Makes an interface of addresses to a pool. Several interfaces to one pool do not know each other's addresses.
    pub fn new(pool: &Pool) -> Self {
        Self {
            pool: pool.clone(),
            streams: KnownStreams::default(),
            given_out: Default::default(),
        }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the stream as it is registered with the pool; registers it when it is first seen.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        self.known(work).map(|stream| Stream::clone(&stream))
    }

    /// Allocates `bytes` for use in the order of `work`, blocks this thread until there is memory, for at most
    /// `limit` if there is one, and returns the address. See [`Request::blocking`](weirpool::Request::blocking).
    ///
    /// For other terms (a tag, a deadline, an alignment), allocate from the [pool](Self::pool) on the
    /// [stream](Self::stream), and [`keep`](Self::keep) the block.
    ///
    /// # Errors
    /// Returns the errors of [`Request`](weirpool::Request), and [`AllocError::Stream`] if the stream cannot be
    /// registered.
    #[track_caller]
    pub fn allocate<W: DeviceStream>(
        &self,
        work: &W,
        bytes: u64,
        limit: impl Into<Option<Duration>>,
    ) -> Result<u64, AllocError> {
        let stream = self.known(work)?;
        let waiting = self.pool.allocate(&stream, bytes);
        let waiting = match limit.into() {
            Some(limit) => waiting.timeout(limit),
            None => waiting,
        };
        Ok(self.give_out(waiting.blocking()?))
    }

    /// Allocates `bytes` if there is memory now, as [`Pool::try_allocate`] does, and returns the address.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::try_allocate`], and [`AllocError::Stream`] if the stream cannot be registered.
    #[track_caller]
    pub fn try_allocate<W: DeviceStream>(&self, work: &W, bytes: u64) -> Result<u64, AllocError> {
        let stream = self.known(work)?;
        Ok(self.give_out(self.pool.try_allocate(&stream, bytes)?))
    }

    /// Frees the block at `address` in the order of `work`: its memory is reused once `work` has passed the work that
    /// was submitted to it so far.
    ///
    /// If the block's own stream is another one that the pool keeps, the order of that stream is kept as well. An
    /// external stream may be gone by now, and is not used: its work on the block must then come before the work
    /// submitted to `work` so far, as CUDA's `cudaFreeAsync` requires.
    ///
    /// # Errors
    /// Returns [`RawError::NotGivenOut`], or [`RawError::Stream`] if the stream cannot be registered. Nothing is freed
    /// then, and nothing lost.
    pub fn free<W: DeviceStream>(&self, address: u64, work: &W) -> Result<(), RawError> {
        let stream = self.known(work)?;
        let block = self.take(address)?;
        match block.freed_after(&stream) {
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

    /// Declares that work on a further stream uses the block at `address`: after a free, its memory is reused only
    /// after that work. Call it before the free. The name and the semantics are PyTorch's.
    ///
    /// Unlike [`Stream::record_use`](weirpool::Stream::record_use) of a block, it does not make the stream wait. The caller orders that work after the work
    /// submitted earlier to the block's own stream, as it must in order to find there what that work wrote.
    ///
    /// # Errors
    /// Returns [`RawError::NotGivenOut`], or [`RawError::Stream`] if the stream cannot be registered; the stream must
    /// not use the memory then.
    pub fn record_stream<W: DeviceStream>(&self, address: u64, work: &W) -> Result<(), RawError> {
        let stream = self.known(work)?;
        // In its place: other threads that record or free must find it there.
        let noted = {
            let given_out = self.shard(address).lock();
            given_out
                .get(&address)
                .map(|block| stream.record_use(Unordered::ByCaller(block)).map(drop))
        };
        match noted {
            Some(noted) => Ok(noted?),
            None => Err(self.not_given_out(address)),
        }
    }

    /// Keeps a block of the pool, and returns its address.
    ///
    /// # Errors
    /// Returns the block, if it belongs to another pool.
    pub fn keep(&self, block: Block) -> Result<u64, Block> {
        if block.stream().pool() == self.pool {
            Ok(self.give_out(block))
        } else {
            Err(block)
        }
    }

    /// Takes back the block at `address`; the caller owns it from then on.
    ///
    /// # Errors
    /// Returns [`RawError::NotGivenOut`] if the pool did not give out the address.
    pub fn take(&self, address: u64) -> Result<Block, RawError> {
        let block = self.shard(address).lock().remove(&address);
        block.ok_or_else(|| self.not_given_out(address))
    }

    fn known<W: DeviceStream>(&self, work: &W) -> Result<Arc<Stream>, StreamError> {
        self.streams.stream(&self.pool, work)
    }

    #[cold]
    fn not_given_out(&self, address: u64) -> RawError {
        RawError::NotGivenOut {
            address,
            found: self.pool.inspect().block_at(address).map(Box::new),
        }
    }

    /// Returns the number of addresses that are given out.
    pub fn given_out(&self) -> usize {
        let counts = self.given_out.iter().map(|shard| shard.lock().len());
        counts.sum()
    }

    fn give_out(&self, block: Block) -> u64 {
        let address = block.address().to_bits();
        let replaced = self.shard(address).lock().insert(address, block);
        debug_assert!(replaced.is_none(), "blocks are disjoint");
        address
    }

    fn shard(&self, address: u64) -> &Mutex<FxHashMap<u64, Block>> {
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

/// The reason why an address was not freed; nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The address is not given out: it was freed already, is not the first address of a block, or does not belong to
    /// the pool. Free each block once, by the address that was returned for it.
    #[error("{address:#x} is not given out: {}", in_words(*address, found.as_deref()))]
    NotGivenOut {
        /// The address to free.
        address: u64,
        /// The block of the pool that the address lies in, if there is one.
        found: Option<Box<BlockInfo>>,
    },
    /// The stream cannot be used with the pool.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// For a stream that could not be obtained at all.
impl From<DeviceError> for RawError {
    fn from(error: DeviceError) -> Self {
        Self::Stream(error.into())
    }
}

/// Describes the memory at the address.
fn in_words(address: u64, found: Option<&BlockInfo>) -> impl fmt::Display + use<> {
    let Some(block) = found else {
        return "the pool has no memory there; was it allocated elsewhere?".to_owned();
    };
    let (at, size) = (block.address, block.size);
    match block.state {
        BlockState::Used if at.to_bits() != address => {
            format!("it lies within the {size} bytes in use at {at:#x}; free that address")
        }
        BlockState::Used => {
            "the block there has another owner; free it through that one".to_owned()
        }
        state => format!("the {size} bytes at {at:#x} are {state}; was it freed already?"),
    }
}
