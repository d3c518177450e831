//! The pool that is meant where none is named: of each device one, made when it is first asked for.
//!
//! [`current`] answers, from the innermost on:
//!
//! 1. what a [`Scope`] says, that this thread or this task is in;
//! 2. where [pooling](Current::set_pooling) is disabled for the device, a pool that keeps nothing;
//! 3. the pool that was [set](Current::set);
//! 4. the device's [default pool](default_pool).
//!
//! | file | about |
//! |---|---|
//! | `table` | what is set for each device of the process |
//! | `scope` | what is overridden, for a thread or a task |

mod scope;
mod table;

pub use scope::{Entered, Scope, Scoped};

use crate::block::Block;
use crate::device::{AsDevice, DeviceStream, Pooling};
use crate::error::{AllocError, BuildError, StreamError};
use crate::pool::Pool;
use crate::stream::Stream;
use crate::sync::plain::Arc;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use table::Seat;

/// The current pool of a device: of the [scope](Scope) that the thread or task is in, or the one that was
/// [set](Current::set), or the device's [default](default_pool).
///
/// Code that allocates need not be handed a pool then, nor streams that are registered:
///
/// ```
/// use weirpool::device::sim::SimDevice;
/// use weirpool::{Pool, Scope, current, default_pool};
///
/// let device = SimDevice::new();
/// let work = device.create_stream();
/// let decode = async || current(&device)?.allocate(&work, 1 << 20).await.map_err(anyhow::Error::from);
///
/// let scratch = Pool::builder(device.clone()).name("scratch").capacity(64 << 20).build()?;
/// device.block_on(async {
///     let block = decode().await?; // of the device's default pool
///     let other = Scope::pool(&scratch).run(decode()).await?; // the same code, of another pool
///     assert_eq!(weirpool::compat::pool_of(other.address()).unwrap().0, scratch);
///     assert_eq!(weirpool::compat::pool_of(block.address()).unwrap().0, default_pool(&device)?);
///     Ok::<(), anyhow::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the pool does not exist yet and cannot be built.
pub fn current(device: &impl AsDevice) -> Result<Current, BuildError> {
    let id = device.device_id();
    let seat = match scope::innermost(id) {
        Some(Choice::Seat(seat)) => seat,
        Some(Choice::Pooling(pooling)) => table::seat(device, pooling)?,
        None => table::seat(device, Pooling::of(id))?,
    };
    Ok(Current { seat })
}

/// What a scope says of its device.
#[derive(Clone, Debug)]
enum Choice {
    Seat(Arc<Seat>),
    Pooling(Pooling),
}

/// A device's current pool, as it was when it was asked for; see [`current`].
///
/// Its streams are the device's own: each is registered with the pool when it is first used here, and stays
/// registered for as long as anybody else holds it, and a little longer: until another one comes. That
/// costs a look-up under a lock at each allocation. Where threads are many and allocations small, register
/// the stream with the [pool](Self::pool) and use that.
#[derive(Clone)]
pub struct Current {
    seat: Arc<Seat>,
}

impl Current {
    /// Allocates `bytes` for use in the order of `work`, waiting for memory if there is none: as
    /// [`Pool::allocate`].
    ///
    /// # Errors
    /// Returns the errors of [`Request`](crate::Request), and [`AllocError::Stream`] if the stream cannot be registered
    /// with the pool.
    ///
    /// # Cancel safety
    /// Those of [`Request`](crate::Request).
    #[track_caller]
    pub fn allocate<W: DeviceStream>(
        &self,
        work: &W,
        bytes: u64,
    ) -> impl Future<Output = Result<Block, AllocError>> + Send + use<W> {
        // Here and not in the future: the place is the caller's, and the stream need not live longer.
        let (stream, place) = (self.stream(work), Location::caller());
        let seat = self.seat.clone();
        async move { seat.pool.allocate(&stream?, bytes).location(place).await }
    }

    /// Allocates `bytes` for use in the order of `work`, now or not at all: as [`Pool::try_allocate`].
    ///
    /// # Errors
    /// Returns the errors of [`Pool::try_allocate`], and [`AllocError::Stream`] if the stream cannot be registered with
    /// the pool.
    #[track_caller]
    pub fn try_allocate<W: DeviceStream>(&self, work: &W, bytes: u64) -> Result<Block, AllocError> {
        let stream = self.stream(work)?;
        self.seat.pool.try_allocate(&stream, bytes)
    }

    /// The stream, as it is registered with the pool for use here.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        self.seat.stream(work)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.seat.pool
    }

    /// Makes a pool the current one of its device, for the whole process: `cudaDeviceSetMemPool`. It is kept
    /// alive until another is set, or it is [reset](Self::reset).
    ///
    /// ```
    /// use weirpool::device::sim::SimDevice;
    /// use weirpool::{Current, Pool, current, default_pool};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).capacity(1 << 30).build()?;
    /// Current::set(&pool);
    /// assert_eq!(current(&device)?.pool(), &pool);
    /// Current::reset(&device);
    /// assert_eq!(current(&device)?.pool(), &default_pool(&device)?);
    /// # Ok::<(), weirpool::BuildError>(())
    /// ```
    pub fn set(pool: &Pool) {
        table::set(pool);
    }

    /// Makes the default pool the current one again.
    pub fn reset(device: &impl AsDevice) {
        table::reset(device.device_id());
    }

    /// Switches pooling for a device, for the whole process; answers what it was. It shows in the device's
    /// description. Warp's `set_mempool_enabled`.
    ///
    /// Disabled, [`current`] answers with a pool that [keeps nothing](crate::PoolBuilder::unpooled). It is
    /// made for the purpose, of plain memory of the device, and waits and orders as any. Pools that exist,
    /// and their blocks, are as they were.
    ///
    /// ```
    /// use weirpool::device::{Device, Pooling, sim::SimDevice};
    /// use weirpool::{Current, current};
    ///
    /// let device = SimDevice::new();
    /// let work = device.create_stream();
    /// Current::set_pooling(&device, Pooling::Disabled);
    /// assert!(device.describe().ends_with("pooling disabled"));
    /// let pool = current(&device)?;
    /// let block = pool.try_allocate(&work, 4096)?;
    /// assert_eq!(device.counters().physical_in_use, 2 << 20); // a step of the device, for this block
    /// drop(block);
    /// let _ = pool.pool().trim_to(0)?; // maintenance does this by itself
    /// assert_eq!(device.counters().physical_in_use, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_pooling(device: &impl AsDevice, pooling: Pooling) -> Pooling {
        pooling.set(device.device_id())
    }

    /// Whether pooling is enabled for a device, in the process as a whole. Warp's `is_mempool_enabled`.
    pub fn pooling(device: &impl AsDevice) -> Pooling {
        Pooling::of(device.device_id())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.seat.pool).finish()
    }
}

/// Returns the device's default pool: built with the defaults of [`PoolConfig`](crate::PoolConfig) when it is first
/// asked for, and the same from then on, as `cudaDeviceGetDefaultMemPool` does. It costs nothing unless it is
/// asked for, directly or as the [current](current) pool.
///
/// It belongs to the process, and lives as long, with the device, its address range, and the memory that it
/// holds; [`Pool::trim_to`] gives that back. At the end of the process it is not destroyed: the CUDA driver may be gone
/// by then, and frees everything anyway.
///
/// ```
/// use weirpool::{default_pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = default_pool(&device)?;
/// assert_eq!(pool, default_pool(&device)?);
/// assert_ne!(pool, default_pool(&SimDevice::new())?);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`PoolBuilder::build`](crate::PoolBuilder::build) when the pool is first requested.
pub fn default_pool(device: &impl AsDevice) -> Result<Pool, BuildError> {
    Ok(table::default_seat(device)?.pool.clone())
}
