//! The current pool of a device: the pool for code that names none.
//!
//! [`current`] returns the first of these that exists:
//!
//! 1. the choice of the innermost [`Scope`] for the device that this thread or task is in;
//! 2. if [pooling](Current::set_pooling) is disabled for the device, a pool that keeps nothing;
//! 3. the pool that was [set](Current::set);
//! 4. the device's [default pool](default_pool), which is built when it is first requested.
//!
//! | file | contents |
//! |---|---|
//! | `table` | the settings for each device of the process |
//! | `scope` | the overrides for a thread or a task |

mod scope;
mod table;

pub use scope::{Entered, Scope, Scoped};

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use table::Seat;
use weirpool::device::{AsDevice, DeviceStream, Pooling};
use weirpool::{AllocError, Block, BuildError, Pool, Stream, StreamError};

/// Returns the current pool of a device: that of the [scope](Scope) that the thread or task is in, or the one that was
/// [set](Current::set), or the device's [default](default_pool).
///
/// Code that allocates through it needs neither a pool as an argument nor registered streams:
///
/// ```
/// use weirpool::device::sim::SimDevice;
/// use weirpool::Pool;
/// use weirpool_compat::{Scope, current, default_pool, pool_of};
///
/// let device = SimDevice::new();
/// let work = device.create_stream();
/// let decode = async || current(&device)?.allocate(&work, 1 << 20).await.map_err(anyhow::Error::from);
///
/// let scratch = Pool::builder(device.clone()).name("scratch").capacity(64 << 20).build()?;
/// device.block_on(async {
///     let block = decode().await?; // of the device's default pool
///     let other = Scope::pool(&scratch).run(decode()).await?; // the same code, of another pool
///     assert_eq!(pool_of(other.address()).unwrap().0, scratch);
///     assert_eq!(pool_of(block.address()).unwrap().0, default_pool(&device)?);
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

/// The choice that a scope makes for its device.
#[derive(Clone, Debug)]
enum Choice {
    Seat(Arc<Seat>),
    Pooling(Pooling),
}

/// A device's current pool at the time of the call to [`current`].
///
/// It accepts the device's own streams. Each is registered with the pool at its first use here, and stays registered
/// while it has another owner, and then until another stream is registered. This costs a lookup under a lock at each
/// allocation. If many threads make small allocations, register the stream with the [pool](Self::pool) and allocate
/// from that.
#[derive(Clone)]
pub struct Current {
    seat: Arc<Seat>,
}

impl Current {
    /// Allocates `bytes` for use in the order of `work`, and waits for memory if there is none, as [`Pool::allocate`]
    /// does.
    ///
    /// # Errors
    /// Returns the errors of [`Request`](weirpool::Request), and [`AllocError::Stream`] if the stream cannot be registered
    /// with the pool.
    ///
    /// # Cancel safety
    /// That of [`Request`](weirpool::Request).
    #[track_caller]
    pub fn allocate<W: DeviceStream>(
        &self,
        work: &W,
        bytes: u64,
    ) -> impl Future<Output = Result<Block, AllocError>> + Send + use<W> {
        // Not inside the future: the location is the caller's, and the stream need not live longer.
        let (stream, place) = (self.stream(work), Location::caller());
        let seat = self.seat.clone();
        async move { seat.pool.allocate(&stream?, bytes).location(place).await }
    }

    /// Allocates `bytes` for use in the order of `work` without waiting, as [`Pool::try_allocate`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::try_allocate`], and [`AllocError::Stream`] if the stream cannot be registered with
    /// the pool.
    #[track_caller]
    pub fn try_allocate<W: DeviceStream>(&self, work: &W, bytes: u64) -> Result<Block, AllocError> {
        let stream = self.stream(work)?;
        self.seat.pool.try_allocate(&stream, bytes)
    }

    /// Returns the stream as it is registered with the pool. Registers it at its first use here.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        self.seat.stream(work)
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.seat.pool
    }

    /// Makes a pool the current one of its device, for the whole process, as `cudaDeviceSetMemPool` does. The pool is
    /// kept alive until another one is set, or until it is [reset](Self::reset).
    ///
    /// ```
    /// use weirpool::device::sim::SimDevice;
    /// use weirpool::Pool;
    /// use weirpool_compat::{Current, current, default_pool};
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

    /// Enables or disables pooling for a device, for the whole process. Returns the earlier setting. The device's
    /// description includes the setting. Warp's `set_mempool_enabled`.
    ///
    /// If pooling is disabled, [`current`] returns a pool that [keeps nothing](weirpool::Upstream::Unpooled). It is
    /// built for this purpose, from plain memory of the device, and waits and orders as any other pool. Existing pools
    /// and their blocks do not change.
    ///
    /// ```
    /// use weirpool::device::{Device, Pooling, sim::SimDevice};
    /// use weirpool_compat::{Current, current};
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

    /// Enables or disables pooling for every device without a [setting](Self::set_pooling) of its own, those that are
    /// opened later included. Returns the earlier setting. Warp's `config.enable_mempools_at_init`; it need not be set
    /// before anything else.
    ///
    /// ```
    /// use weirpool::device::{Pooling, sim::SimDevice};
    /// use weirpool_compat::{Current, current};
    ///
    /// Current::set_default_pooling(Pooling::Disabled);
    /// let [one, other] = [SimDevice::new(), SimDevice::new()];
    /// Current::set_pooling(&other, Pooling::Enabled);
    /// assert!(!current(&one)?.pool().inspect().describe().is_pooled);
    /// assert!(current(&other)?.pool().inspect().describe().is_pooled);
    /// # Ok::<(), weirpool::BuildError>(())
    /// ```
    pub fn set_default_pooling(pooling: Pooling) -> Pooling {
        pooling.set_default()
    }

    /// Returns whether pooling is enabled for a device: in the innermost [scope](Scope) that this thread or task is in, or
    /// else in the process as a whole. In a scope of a pool, whether that keeps memory. Warp's `is_mempool_enabled`.
    pub fn pooling(device: &impl AsDevice) -> Pooling {
        let id = device.device_id();
        match scope::innermost(id) {
            Some(Choice::Pooling(pooling)) => pooling,
            Some(Choice::Seat(seat)) if seat.pool.inspect().describe().is_pooled => {
                Pooling::Enabled
            }
            Some(Choice::Seat(_)) => Pooling::Disabled,
            None => Pooling::of(id),
        }
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.seat.pool).finish()
    }
}

/// Returns the device's default pool. It is built with the defaults of [`PoolBuilder`](weirpool::PoolBuilder) at the first
/// call, and is the same from then on, as with `cudaDeviceGetDefaultMemPool`. It costs nothing until it is requested,
/// directly or as the [current] pool.
///
/// It belongs to the process and lives as long, together with the device, its address range and the memory that it
/// holds; [`Pool::trim_to`] releases that memory. It is not destroyed at the end of the process: the CUDA driver may no
/// longer exist then, and frees everything anyway.
///
/// ```
/// use weirpool::device::sim::SimDevice;
/// use weirpool_compat::default_pool;
///
/// let device = SimDevice::new();
/// let pool = default_pool(&device)?;
/// assert_eq!(pool, default_pool(&device)?);
/// assert_ne!(pool, default_pool(&SimDevice::new())?);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
///
/// # Errors
/// Returns the errors of [`PoolBuilder::build`](weirpool::PoolBuilder::build) when the pool is first requested.
pub fn default_pool(device: &impl AsDevice) -> Result<Pool, BuildError> {
    Ok(table::default_seat(device)?.pool.clone())
}
