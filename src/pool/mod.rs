//! The pool: the handle that everything begins with.

mod admission;
mod allocate;
mod allocate_many;
mod builder;
mod close;
mod debug;
mod demand;
mod describe;
mod drawing;
mod figures;
mod fills;
mod find;
mod geometry;
mod grant;
mod grow;
mod held;
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

use grant::Call;
use own_stream::OwnStream;

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceStream};
use crate::driver::Driver;
use crate::error::{AllocError, BuildError, StreamError};
use crate::queue::{Demand, Hook, Presence, Reclaimer, Registration, Roll, Rules, Service};
use crate::registry;
use crate::stream::Stream;
use crate::sync::{Arc, plain};
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
        driver: Driver,
        name: Option<String>,
        rules: Rules,
        hook: Option<Hook>,
    ) -> Result<Self, BuildError> {
        let service = Arc::new(Service::new(driver, rules, hook));
        let name = name.map(Into::into);
        let presence = plain::Arc::new(Presence {
            service,
            name,
            roll: Roll::default(),
        });
        registry::enter(&presence)?;
        Service::start(&presence.service);
        Service::start_maintenance(&presence.service);
        Ok(Self { presence })
    }

    fn of_presence(presence: plain::Arc<Presence>) -> Self {
        Self { presence }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.presence.service
    }

    /// Makes one of the device's streams known to the pool, so that memory can be allocated and freed
    /// in its order. The pool keeps the stream usable for as long as it may record an event on it.
    ///
    /// A stream registered twice has two lanes and two orders, each of them safe. One that nobody can keep (it
    /// has an [`external_id`](DeviceStream::external_id)) is used only inside calls that are made with it, and
    /// every free on it records its event at once: see the [guide](crate::guide::interoperability).
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
        let device = &self.service().driver.device;
        self.register(&OwnStream::new(device)?)
    }

    /// Allocates `bytes` for use in the order of `stream`, waiting for memory if there is none.
    ///
    /// The future's first poll tries everything that the [reuse ladder](crate::Source) has. If that gives
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
    /// releasing or moving at that moment (a trim, a growth, the maintenance) counts as taken. Otherwise as
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
            location: Location::caller(),
        };
        self.grant_now(call)
    }

    /// Asks the device what has completed, frees what that proves free, and serves who waits. Says
    /// whether anything had.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub fn reap(&self) -> Result<bool, DeviceError> {
        let has_news = self.service().driver.reap()?;
        if has_news {
            Service::serve(self.service());
        }
        Ok(has_news)
    }

    /// A reclaimer to spawn on an executor of one's own; see [`Reclaimer`] for when that is of use.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer::lasting(self.service())
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
        self.service().driver.device.describe()
    }

    /// Checks the pool's invariants, which hold at every moment. Takes time in proportion to the
    /// number of blocks, under the heap's lock: for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.service().driver.check()
    }

    /// Checks the invariants, and that every block was given back. Takes back what lanes keep.
    ///
    /// # Errors
    /// What does not hold, or was not given back.
    pub fn check_conserved(&self) -> Result<(), String> {
        self.service().driver.check_conserved()
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
