//! The pool: the handle that everything begins with.

mod admission;
mod allocate;
mod allocate_many;
mod builder;
mod debug;
mod describe;
mod drawing;
mod figures;
mod fills;
mod find;
mod geometry;
mod grant;
mod grow;
mod host_stream;
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod hot_path;
mod known_streams;
mod layout;
mod own_stream;
mod reservation;
mod reserve;
mod tenants;
mod terms;

pub use allocate::Allocate;
pub use allocate_many::AllocateMany;
pub use builder::PoolBuilder;
pub use drawing::Drawing;
pub use find::{find_pool, pool_of, pools};
pub use grow::AllocateWithRoom;
pub(crate) use known_streams::KnownStreams;
pub use layout::Layout;
pub use reservation::Reservation;
pub use reserve::Reserve;
#[cfg(feature = "tower")]
pub(crate) use terms::terms;

use grant::{Call, round_up};
use own_stream::OwnStream;

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceStream};
use crate::engine::Engine;
use crate::error::{AllocError, BuildError, StreamError};
use crate::ledger::policy::ReleaseThreshold;
use crate::ledger::{PoolFigures, Request};
use crate::measure::Tag;
use crate::observe::LeakReport;
use crate::registry;
use crate::stream::Stream;
use crate::sync::{Arc, plain};
use crate::wait::{Demand, Drain, Hook, Presence, Reclaimer, Registration, Roll, Rules, Service};
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

    fn new(
        engine: Engine,
        name: Option<String>,
        rules: Rules,
        hook: Option<Hook>,
    ) -> Result<Self, BuildError> {
        let service = Arc::new(Service::new(engine, rules, hook));
        let name = name.map(Into::into);
        let presence = plain::Arc::new(Presence {
            service,
            name,
            roll: Roll::default(),
        });
        registry::enter(&presence)?;
        Service::start(&presence.service);
        Service::start_upkeep(&presence.service);
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
    /// A stream registered twice has two lanes and two orders, each of them safe. One that nobody can keep (it
    /// has an [`external_id`](DeviceStream::external_id)) is used only inside calls that are made with it, and
    /// every free on it records its event at once: see the [guide](crate::guide::external).
    ///
    /// # Errors
    /// [`StreamError::ForeignDevice`] when the stream is of another device; the device's error when it
    /// cannot keep the stream's order.
    pub fn register(&self, stream: &impl DeviceStream) -> Result<Stream, StreamError> {
        let registration = Registration::enter(&self.presence, stream)?;
        Ok(Stream::from_registration(registration))
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
    #[inline]
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
    /// back what lanes keep, and growing; and whenever anybody waits already. What another thread is
    /// releasing or moving at that moment (a trim, a growth, the upkeep) counts as taken. Otherwise as
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
        let call = Call {
            registration: stream.registration(),
            bytes,
            alignment,
            tag: None,
            place: Location::caller(),
        };
        self.grant_now(call)
    }

    /// Checks a request at the door, and rounds it to the pool's step.
    #[inline]
    fn demand(
        &self,
        registration: &Registration,
        bytes: u64,
        alignment: u64,
        tag: Option<Tag>,
    ) -> Result<Demand, AllocError> {
        self.expect_of(registration)?;
        self.demand_of(bytes, alignment, tag)
    }

    #[inline]
    fn expect_of(&self, registration: &Registration) -> Result<(), AllocError> {
        if !plain::Arc::ptr_eq(&registration.presence, &self.presence) {
            return Err(AllocError::ForeignStream);
        }
        if let Some(onlookers) = registration.onlookers.as_deref() {
            onlookers.call_out();
        }
        Ok(())
    }

    #[inline]
    fn demand_of(
        &self,
        bytes: u64,
        alignment: u64,
        tag: Option<Tag>,
    ) -> Result<Demand, AllocError> {
        let engine = &self.presence.service.engine;
        let capacity = engine.capacity();
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
        let request = Request {
            bytes: round_up(bytes, step),
            alignment: alignment.max(step),
        };
        debug_assert!(step <= u64::from(u32::MAX), "a step of gigabytes");
        Ok(Demand {
            // Less than a step, or a whole one for a request of nothing.
            rounding: (request.bytes - bytes) as u32,
            request,
            tag,
        })
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
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let used = pool.try_allocate(&stream, 32 << 20)?;
    /// drop(pool.try_allocate(&stream, 64 << 20)?);
    /// assert_eq!(pool.trim_to(0)?, 64 << 20);
    /// assert_eq!(pool.statistics().reserved.current, used.size());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Makes all that is free one piece, with what lanes keep: by mapping it together, without copying, or
    /// where memory is plain, by releasing free segments and taking one as large. Memory in use or pending
    /// stays where it is. Returns the bytes of the largest free piece. Umpire's name for it.
    ///
    /// May take a while, and where memory is plain wait for the device. What is moved counts as taken for
    /// that time: a `try_allocate` elsewhere may fail.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(64 << 20).handle_bytes(2 << 20).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let blocks: Vec<_> = (0..8).map(|_| pool.try_allocate(&stream, 2 << 20)).collect::<Result<_, _>>()?;
    /// let kept: Vec<_> = blocks.into_iter().step_by(2).collect(); // every other one is freed
    /// assert_eq!(pool.coalesce()?, 4 * (2 << 20));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the device cannot; nothing is lost.
    pub fn coalesce(&self) -> Result<u64, DeviceError> {
        self.service().engine.coalesce()
    }

    /// Sets how much the pool may hold before it gives free memory back by itself.
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    #[doc(alias = "set_mempool_release_threshold")]
    ///
    /// # Errors
    /// When it is a fraction that is none, or the device cannot tell how much memory it has.
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<(), BuildError> {
        builder::check_threshold(threshold)?;
        let engine = &self.service().engine;
        let total = engine.device.memory_info(engine.settings.kind)?.total;
        engine.set_release_threshold(threshold.bytes(total));
        Ok(())
    }

    /// How much the pool may hold before it gives free memory back by itself, in bytes; `u64::MAX` where it
    /// keeps all.
    pub fn release_threshold(&self) -> u64 {
        self.service().engine.upkeep.threshold()
    }

    /// The pool's figures, as heuristics see them. Takes time in proportion to the number of blocks.
    #[doc(alias = "getActualSize")]
    #[doc(alias = "getCurrentSize")]
    #[doc(alias = "getReleasableBlocks")]
    #[doc(alias = "getReleasableSize")]
    #[doc(alias = "getLargestAvailableBlock")]
    #[doc(alias = "getBlocksInPool")]
    pub fn figures(&self) -> PoolFigures {
        self.service().engine.figures()
    }

    /// Ends the granting: who waits fails with [`AllocError::Closed`], and so does every later
    /// allocation. Live blocks stay valid, and are freed as ever: the report names those, and the reservations, that
    /// live at this moment (see [`leaks`](Self::leaks)). The first time, a subscriber of `tracing` is warned of them, if
    /// there are any.
    pub fn close(&self) -> LeakReport {
        let is_first = Service::close(self.service());
        let report = self.leaks();
        if is_first {
            report.tell();
        }
        report
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.service().engine.is_closed()
    }

    /// Waits until everything came back: nobody waits for memory, no block lives, no reservation does, and
    /// nothing is pending. All that the pool holds is free then, and no work of the device touches any of it.
    ///
    /// It ends nothing by itself: allocations are granted meanwhile, and it is ready at a moment at which all
    /// of them have come back. To end a service, [`close`](Self::close) the pool first:
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let work = device.create_stream();
    /// # let stream = pool.register(&work)?;
    /// let block = pool.try_allocate(&stream, 64 << 20)?;
    /// work.submit(Operation::new(Duration::from_micros(50)));
    /// drop(block); // pending behind that work
    ///
    /// pool.close(); // who waits fails; what lives stays valid
    /// device.block_on(pool.drain().timeout(Duration::from_secs(1)))?;
    /// assert_eq!(device.now(), Duration::from_micros(50));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// While somebody drains, no stream's lane keeps what is freed: each free takes the ledger's lock and
    /// records an event.
    pub fn drain(&self) -> Drain {
        Drain::new(self.presence.clone())
    }

    /// A reclaimer to spawn on an executor of one's own; see [`Reclaimer`] for when that is of use.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer::lasting(self.service())
    }

    /// What the pool may hold from the device at most, in bytes.
    pub fn capacity(&self) -> u64 {
        self.service().engine.capacity()
    }

    /// Sets what the pool may hold from the device at most, in bytes; rounded down to whole handles, and to
    /// what the device has. Returns what it is now.
    ///
    /// More of it serves who waits for memory at once. Less of it fails who waits for more than that; what
    /// is held above it is released if it is free, and the rest a while after it comes back (see
    /// [`upkeep_interval`](PoolBuilder::upkeep_interval)).
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).capacity(64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// assert_eq!(pool.resize(32 << 20)?, 32 << 20);
    /// let refused = pool.try_allocate(&stream, 48 << 20);
    /// assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::CapacityTooSmall`] for less than a handle; the device's error when it cannot reserve
    /// addresses, and nothing changed, or cannot release memory.
    pub fn resize(&self, bytes: u64) -> Result<u64, BuildError> {
        let engine = &self.service().engine;
        let total = engine.device.memory_info(engine.settings.kind)?.total;
        let handle = self.handle_bytes();
        let capacity = bytes.min(total) / handle * handle;
        if capacity == 0 {
            return Err(BuildError::CapacityTooSmall {
                capacity: bytes,
                granularity: handle,
            });
        }
        let resized = engine.resize(capacity);
        // Even if memory could not be released: who waits for more than the capacity is told.
        Service::serve(self.service());
        engine.bell.ring_held();
        resized?;
        Ok(capacity)
    }

    /// The size of the physical handles, in bytes: the step in which the pool grows, remaps and trims.
    pub fn handle_bytes(&self) -> u64 {
        self.service().engine.settings.geometry.handle_bytes
    }

    /// The device's description line: what it is, and what it supports. Part of
    /// [`describe`](Self::describe).
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// let pool = Pool::builder(SimDevice::new()).build()?;
    /// assert!(pool.describe_device().contains("virtual memory (step 2 MiB)"));
    /// # Ok::<(), weirpool::BuildError>(())
    /// ```
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

#[cold]
fn exhausted(registration: &Registration, demand: &Demand) -> AllocError {
    let Registration { service, lane, .. } = registration;
    AllocError::Exhausted(service.exhausted(lane, demand).into())
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
