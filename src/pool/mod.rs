//! The pool: the handle that everything begins with.

mod allocate;
mod builder;
mod describe;
mod find;
mod geometry;
mod host_stream;
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod hot_path;
mod own_stream;

pub use allocate::Allocate;
pub use builder::PoolBuilder;
pub use find::{find_pool, pool_of, pools};

use own_stream::OwnStream;

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceStream};
use crate::engine::{Effort, Engine};
use crate::error::{AllocError, BuildError, StreamError};
use crate::ledger::Request;
use crate::observe::Statistics;
use crate::registry;
use crate::stream::Stream;
use crate::sync::{Arc, plain};
use crate::wait::{Denial, Presence, Reclaimer, Registration, Service, try_now};
use std::fmt;
use std::panic::Location;

/// A stream-ordered memory pool over one device.
///
/// A pool is a handle: cloning it is cheap, and all clones are the same pool. It lives for as long as
/// a handle, a [`Stream`], a [`Block`] or a waiting future does; then its memory goes back to the
/// device, as soon as no running work can touch it any more.
///
/// ```
/// use weirpool::{Pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).capacity(1 << 30).build()?;
/// let stream = pool.register(&device.create_stream())?;
/// let block = device.block_on(pool.allocate(&stream, 64 << 20))?;
/// assert!(block.size() >= 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    presence: plain::Arc<Presence>,
}

impl Pool {
    /// Begins a pool over `device`.
    pub fn builder(device: impl Device) -> PoolBuilder {
        PoolBuilder::new(plain::Arc::new(device))
    }

    /// Begins a pool over a device that is shared already.
    pub fn builder_shared(device: plain::Arc<dyn Device>) -> PoolBuilder {
        PoolBuilder::new(device)
    }

    fn new(engine: Engine, name: Option<String>) -> Result<Self, BuildError> {
        let service = Arc::new(Service::new(engine));
        let name = name.map(Into::into);
        let presence = plain::Arc::new(Presence { service, name });
        registry::enter(&presence)?;
        Service::start(&presence.service);
        Ok(Self { presence })
    }

    fn of_presence(presence: plain::Arc<Presence>) -> Self {
        Self { presence }
    }

    fn service(&self) -> &Arc<Service> {
        &self.presence.service
    }

    /// Makes one of the device's streams known to the pool, so that memory can be allocated and freed
    /// in its order. The pool keeps the stream usable for as long as it may record an event on it.
    ///
    /// A stream registered twice has two lanes and two orders, each of them safe.
    ///
    /// # Errors
    /// [`StreamError::ForeignDevice`] when the stream is of another device; the device's error when it
    /// cannot keep the stream's order.
    pub fn register(&self, stream: &impl DeviceStream) -> Result<Stream, StreamError> {
        let service = self.service().clone();
        let lane = service.engine.register(stream)?;
        Ok(Stream::new(Registration {
            referee: service.engine.referee.clone(),
            service,
            lane,
            presence: self.presence.clone(),
        }))
    }

    /// Makes a stream of the device and registers it. It is destroyed when the pool does not need it any
    /// more: after its last handle and block, and the completion of what was freed on it. For work to
    /// be submitted to it, the device gives it by its [name](Stream::raw):
    #[cfg_attr(
        feature = "cuda",
        doc = "[`CudaDevice::stream`](crate::device::cuda::CudaDevice::stream),"
    )]
    /// [`SimDevice::stream`](crate::device::sim::SimDevice::stream).
    ///
    /// # Errors
    /// When the device cannot make one.
    pub fn create_stream(&self) -> Result<Stream, StreamError> {
        let device = &self.service().engine.device;
        self.register(&OwnStream::new(device)?)
    }

    /// Allocates `bytes` for use in the order of `stream`, waiting for memory if there is none.
    ///
    /// The future's first poll tries everything that the [reuse ladder](crate::Rung) has. If that gives
    /// nothing it joins the queue: first come, first served, and nothing behind the head is granted
    /// first. Zero bytes are a valid request, for a block with an address of its own. See [`Allocate`]
    /// for alignment, timeout, errors and cancellation.
    #[track_caller]
    pub fn allocate<'a>(&'a self, stream: &'a Stream, bytes: u64) -> Allocate<'a> {
        Allocate::new(self, stream, bytes, Location::caller())
    }

    /// Allocates `bytes` for use in the order of `stream`, now or not at all.
    ///
    /// May call the device for memory, which takes some tens of microseconds there; where that blocks,
    /// prefer [`allocate`](Self::allocate) in async code.
    ///
    /// # Errors
    /// [`AllocError::Exhausted`] when there is not enough, after asking what has completed, taking
    /// back what lanes keep, and growing; and whenever anybody waits already. Otherwise as
    /// [`Allocate`].
    #[inline]
    #[track_caller]
    pub fn try_allocate(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        self.try_allocate_aligned(stream, bytes, 1)
    }

    /// The same with an alignment, in bytes: a power of two.
    ///
    /// # Errors
    /// As [`try_allocate`](Self::try_allocate), and [`AllocError::InvalidAlignment`].
    #[inline]
    #[track_caller]
    pub fn try_allocate_aligned(
        &self,
        stream: &Stream,
        bytes: u64,
        alignment: u64,
    ) -> Result<Block, AllocError> {
        let registration = stream.registration();
        let request = self.request(registration, bytes, alignment)?;
        match try_now(registration, request, Effort::Immediate) {
            Ok(lent) => {
                let place = Location::caller();
                Ok(Block::new(registration.clone(), lent, bytes, place))
            }
            Err(Denial::Failed(error)) => Err(error),
            Err(Denial::Short(_)) => Err(self.exhausted(request)),
        }
    }

    #[cold]
    fn exhausted(&self, request: Request) -> AllocError {
        AllocError::Exhausted(self.service().shortfall(request))
    }

    /// Checks a request at the door, and rounds it to the pool's step.
    #[inline]
    fn request(
        &self,
        registration: &Registration,
        bytes: u64,
        alignment: u64,
    ) -> Result<Request, AllocError> {
        if !plain::Arc::ptr_eq(&registration.presence, &self.presence) {
            return Err(AllocError::ForeignStream);
        }
        if let Some(referee) = registration.referee.as_deref() {
            // What was found earlier, where nobody could be told.
            referee.call_out();
        }
        let engine = &self.presence.service.engine;
        let capacity = engine.settings.geometry.capacity;
        if bytes > capacity {
            return Err(AllocError::TooLarge {
                requested: bytes,
                capacity,
            });
        }
        let largest = engine.capabilities.granularity;
        if !alignment.is_power_of_two() || alignment > largest {
            return Err(AllocError::InvalidAlignment { alignment, largest });
        }
        let step = engine.settings.alignment;
        Ok(Request {
            // A power of two; and the capacity is a multiple of it, so this does not go over.
            bytes: (bytes.max(1) + (step - 1)) & !(step - 1),
            alignment: alignment.max(step),
        })
    }

    /// The pool's figures, now. Neither seals nor harvests; see [`harvest`](Self::harvest).
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self.service())
    }

    /// Sets the high-water marks of the statistics to the present figures.
    pub fn reset_high_water_marks(&self) {
        self.service().engine.reset_highs();
    }

    /// Asks the device what has completed, frees what that proves free, and serves who waits. Says
    /// whether anything had.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub fn harvest(&self) -> Result<bool, DeviceError> {
        let has_news = self.service().engine.harvest()?;
        if has_news {
            Service::serve(self.service());
        }
        Ok(has_news)
    }

    /// Gives free memory back to the device until `bytes` are reserved, or no more is free. Takes back
    /// what lanes keep first. Returns the bytes released. Memory in use or pending stays.
    ///
    /// # Errors
    /// When the device cannot; what it released before counts.
    pub fn trim_to(&self, bytes: u64) -> Result<u64, DeviceError> {
        let engine = &self.service().engine;
        engine.drain_lanes();
        engine.seal_lanes()?;
        engine.harvest()?;
        engine.trim_to(bytes)
    }

    /// Ends the granting: who waits fails with [`AllocError::Closed`], and so does every later
    /// allocation. Live blocks stay valid, and are freed as ever.
    pub fn close(&self) {
        Service::close(self.service());
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.service().engine.is_closed()
    }

    /// A reclaimer to spawn on an executor of one's own; see [`Reclaimer`] for when that is of use.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer::lasting(self.service())
    }

    /// What the pool may hold from the device at most, in bytes.
    pub fn capacity(&self) -> u64 {
        self.service().engine.settings.geometry.capacity
    }

    /// The size of the physical handles, in bytes: the step in which the pool grows, remaps and trims.
    pub fn handle_bytes(&self) -> u64 {
        self.service().engine.settings.geometry.handle_bytes
    }

    /// The device's description line.
    pub fn describe_device(&self) -> String {
        self.service().engine.device.describe()
    }

    /// Checks the pool's invariants, which hold at every moment. Takes time in proportion to the
    /// number of blocks, under the ledger's lock: for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.service().engine.check()
    }

    /// Checks the invariants, and that every block was given back. Takes back what lanes keep.
    ///
    /// # Errors
    /// What does not hold, or was not given back.
    pub fn check_conserved(&self) -> Result<(), String> {
        self.service().engine.check_conserved()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("device", &self.describe_device())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
