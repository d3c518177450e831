//! The capacity that something outside of the pool lends to it, and takes back: a broker, an orchestrator, a limit of the
//! operating system.

use std::any::Any;
use std::error::Error;
use std::fmt;
use weirpool_heap::debug_in_units;

/// Bounds the memory that a pool holds, and changes the bound while the pool runs. Set with
/// [`PoolBuilder::capacity_source`](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.capacity_source).
///
/// `build` calls [`join`](Self::join) and then [`start`](Self::start), which hands out the [`BoundedPool`]. The pool
/// holds nothing before the source applies the first [`Bounds`] to it. The source may apply others at any time, on any
/// thread: to raise the bound is to grant memory, and to lower it is to recall memory.
///
/// The pool calls the other methods while no lock of it is held. They may call the pool, but those that a waiting
/// request leads to keep other requests waiting until they return. If one of these panics, the pool goes on within its
/// bounds; a panic of `join` or `start` is one of `build`.
///
/// One source is for one pool: it refuses to be joined twice. The pool drops it when it ends.
pub trait CapacitySource: Any + fmt::Debug + Send + Sync {
    /// Joins, before the pool exists. Returns the most bytes that the pool may ever hold, which lowers its capacity, to whole
    /// chunks; `None` if the pool is to run without the source, which then hears no more of it.
    ///
    /// # Errors
    /// Returns the reason why there is no capacity for the pool: `build` fails with it.
    fn join(&self, pool: &Joining<'_>) -> Result<Option<u64>, Box<dyn Error + Send + Sync>>;

    /// Begins to apply bounds to the pool, in this call or later.
    ///
    /// # Errors
    /// Returns the reason why the source cannot work: `build` fails with it.
    fn start(&self, pool: BoundedPool) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Requests wait until this many bytes have been [granted](Bounds::granted). Replaces earlier needs. Must not wait.
    fn need(&self, _bytes: u64) {}

    /// A request that does not wait in the queue needs that this many bytes have been [granted](Bounds::granted). May wait
    /// briefly. Returns whether bounds that grant them were applied.
    fn need_now(&self, _bytes: u64) -> bool {
        false
    }

    /// No request waits for the source any more. Must not wait.
    fn satisfied(&self) {}

    /// Memory was freed while a [binding](Bounds::is_binding) bound is exceeded: to apply it again may release more.
    /// Must not wait, nor apply bounds in this call.
    fn memory_returned(&self) {}

    /// The pool has ended, and its memory is back with the device. Called once, on any thread; also if `build` failed
    /// after [`join`](Self::join) returned the bytes of a lease.
    fn ended(&self) {}

    /// Returns what keeps the source from working, in a few words for [`Health`](weirpool_measure::Health).
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// A pool that is about to be built, for [`CapacitySource::join`]; sizes are in bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Joining<'a> {
    /// The pool's name, if it has one.
    pub name: Option<&'a str>,
    /// The most that the pool may hold by its settings.
    pub capacity: u64,
    /// The step in which the pool takes and returns memory.
    pub chunk_bytes: u64,
}

impl<'a> Joining<'a> {
    /// Describes a pool.
    #[doc(hidden)]
    pub fn new(name: Option<&'a str>, capacity: u64, chunk_bytes: u64) -> Self {
        Self {
            name,
            capacity,
            chunk_bytes,
        }
    }
}

/// What a pool may hold, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Granted since the pool was built, whether returned since or not. The pool counts its needs from the value that it
    /// was told last; a source that does not count leaves it 0, and then a need is the bytes that are lacking.
    pub granted: u64,
    /// May be held first, for the requests that wait, if it is more than `bound`.
    pub first: u64,
    /// May be held then.
    pub bound: u64,
    /// Whether the bound is one on memory in use as well: evictable memory above it is evicted, and requests above it
    /// wait. Otherwise only free memory above it is released.
    pub is_binding: bool,
}

debug_in_units!(struct Bounds { granted as bytes, first as bytes, bound as bytes, is_binding });

/// What a pool holds after bounds were applied, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Holding {
    /// From the device, or about to be. If this exceeds the bound, it does not grow.
    pub held: u64,
    /// In use.
    pub used: u64,
    /// Number of requests that wait.
    pub waiting: usize,
    /// Number of blocks granted so far.
    pub blocks: u64,
}

debug_in_units!(struct Holding { held as bytes, used as bytes, waiting, blocks });

/// Applies bounds to a pool. It does not keep the pool alive.
pub trait ApplyBounds: fmt::Debug + Send + Sync {
    /// Does what [`BoundedPool::apply`] says.
    fn apply(&mut self, bounds: Bounds) -> Option<Holding>;
}

/// A pool, for its [`CapacitySource`]. It does not keep the pool alive.
#[derive(Debug)]
pub struct BoundedPool(Box<dyn ApplyBounds>);

impl BoundedPool {
    /// Makes the pool that a source is given.
    #[doc(hidden)]
    pub fn new(pool: impl ApplyBounds + 'static) -> Self {
        Self(Box::new(pool))
    }

    /// Lets up to [`first`](Bounds::first) bytes be held, and serves the requests that wait, if that is more than
    /// [`bound`](Bounds::bound): memory that was granted for them, and then recalled.
    ///
    /// Then bounds the held memory, releases free memory above the bound to the device, and serves the queue. Returns the
    /// figures afterwards; `None` after the last handle of the pool is gone.
    pub fn apply(&mut self, bounds: Bounds) -> Option<Holding> {
        self.0.apply(bounds)
    }
}
