//! The pool: the handle that everything begins with.
#![allow(
    private_interfaces,
    reason = "the traits of requests are sealed: users cannot name them, nor what their methods take"
)]

mod admission;
mod allocate;
mod builder;
mod close;
mod debug;
mod describe;
mod figures;
mod fills;
mod geometry;
mod grow;
mod held;
mod host_stream;
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod hot_path;
mod known_streams;
mod layout;
mod own_stream;
mod request;
mod reservation;
mod scope;
mod tenants;

pub use allocate::{Allocate, AllocateMany, AllocateOwned};
pub use builder::PoolBuilder;
pub use grow::Grow;
pub(crate) use known_streams::KnownStreams;
pub use layout::Layout;
pub use request::Request;
pub use reservation::{GrowReservation, Reservation, Reserve};
pub use scope::Drawing;

use allocate::{Borrowed, ForBlock, ForBlocks, Owned};
use own_stream::OwnStream;
use reservation::ForReservation;

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceStream};
use crate::error::{AllocError, BuildError, StreamError};
use crate::lane::Miss;
use crate::queue::{Presence, Reclaimer, Registration, Roll, Service};
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

    fn new(service: Service, name: Option<String>) -> Result<Self, BuildError> {
        let service = Arc::new(service);
        let name = name.map(Into::into);
        let presence = plain::Arc::new(Presence {
            service,
            name,
            roll: Roll::default(),
        });
        registry::enter(&presence)?;
        Service::start_maintenance(&presence.service);
        Ok(Self { presence })
    }

    pub(crate) fn of_presence(presence: plain::Arc<Presence>) -> Self {
        Self { presence }
    }

    pub(crate) fn presence(&self) -> &plain::Arc<Presence> {
        &self.presence
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

    /// Allocates `bytes` bytes for use in the order of `stream`, and waits for memory if there is none.
    ///
    /// The future's first poll tries every [source](crate::Source) of memory. If none has enough, it joins the
    /// queue: first come, first served, and no request behind the head is granted before it. Zero bytes are a
    /// valid request, for a block with an address of its own. See [`Request`] for the terms of waiting, errors and
    /// cancel safety, and [`Allocate`] for alignment and room to grow into.
    #[inline]
    #[track_caller]
    pub fn allocate<'a>(&'a self, stream: &'a Stream, bytes: u64) -> Allocate<'a> {
        let kind = ForBlock::new(Borrowed::new(self, stream), bytes);
        Request::new(kind, Location::caller())
    }

    /// Allocates `bytes` bytes like [`allocate`](Self::allocate), by a future that borrows nothing: it holds clones of
    /// the pool and of the stream, can be stored, and moved to another task.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let staging: weirpool::AllocateOwned = pool.allocate_owned(&stream, 1 << 20);
    /// let task = std::thread::spawn(move || staging.blocking());
    /// let block = task.join().unwrap()?;
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn allocate_owned(&self, stream: &Stream, bytes: u64) -> AllocateOwned {
        let (pool, stream) = (self.clone(), stream.clone());
        let kind = ForBlock::new(Owned { pool, stream }, bytes);
        Request::new(kind, Location::caller())
    }

    /// Allocates `bytes` bytes for use in the order of `stream`, if there is memory now.
    ///
    /// May call the device for memory, which takes some tens of microseconds; where that blocks, prefer
    /// [`allocate`](Self::allocate) in async code.
    ///
    /// # Errors
    /// [`AllocError::Exhausted`] when there is not enough memory, after polling completed events, flushing
    /// caches, and growing; and whenever other requests wait already. Memory that another thread is releasing
    /// or remapping at the moment (a trim, a growth, the maintenance) counts as taken. Otherwise those of
    /// [`Request`].
    #[inline]
    #[track_caller]
    pub fn try_allocate(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        let location = Location::caller();
        match allocate::take_from_lane(self, stream.registration(), Layout::new(bytes)) {
            Ok(block) => Ok(block),
            Err(miss) => self.try_allocate_slowly(stream, bytes, location, miss),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_allocate_slowly(
        &self,
        stream: &Stream,
        bytes: u64,
        location: &'static Location<'static>,
        miss: Miss,
    ) -> Result<Block, AllocError> {
        let kind = ForBlock::new(Borrowed::new(self, stream), bytes);
        Request::new(kind, location).try_slowly(miss)
    }

    /// Allocates a block for each layout, all or none, from one position in the queue.
    ///
    /// A task that takes what it needs one block after the other may hold some blocks while it waits for more, and
    /// two such tasks may wait for each other for ever. A task that asks for all of it at once cannot; nor can one
    /// that [reserves](Self::reserve) it, where it is not known beforehand what will be needed when.
    ///
    /// ```
    /// # use weirpool::{Layout, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let layouts = [Layout::new(64 << 20), Layout::new(4096).alignment(4096)];
    /// let [cache, table] = pool.allocate_many(&stream, layouts).await?.try_into().unwrap();
    /// assert_eq!((cache.size(), table.address().is_aligned_to(4096)), (64 << 20, true));
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn allocate_many<'a, L: Into<Layout>>(
        &'a self,
        stream: &'a Stream,
        layouts: impl IntoIterator<Item = L>,
    ) -> AllocateMany<'a> {
        let kind = ForBlocks {
            handles: Borrowed::new(self, stream),
            layouts: layouts.into_iter().map(Into::into).collect(),
        };
        Request::new(kind, Location::caller())
    }

    /// Sets `bytes` bytes aside, in one piece that is complete on every stream, and waits for them if they are not
    /// free. Where memory is virtual, a piece of a [chunk](crate::PoolConfig::chunk_bytes) or more begins with a
    /// chunk. See [`Reservation`] for its guarantees, and [`Request`] for the terms of waiting and errors.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let (stream, other) = (pool.create_stream()?, pool.create_stream()?);
    /// # device.block_on(async {
    /// let reservation = pool.reserve(96 << 20).await?; // all that the request will need
    /// let prompt = reservation.allocate(&stream, 64 << 20)?; // does not wait, and does not fail
    /// let cache = reservation.allocate(&other, 32 << 20)?;
    /// drop(prompt);
    /// let again = reservation.allocate(&stream, 16 << 20)?; // freed memory is available again
    /// # drop((cache, again));
    /// # Ok::<(), weirpool::AllocError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Reserve<'_> {
        let kind = ForReservation::whole(self, bytes);
        Request::new(kind, Location::caller())
    }

    /// Sets a piece of memory aside for each layout, so that each of them can be allocated at any time, whatever else
    /// was allocated and freed.
    ///
    /// ```
    /// # use weirpool::{Layout, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// let layouts = [Layout::new(1 << 20), Layout::new(6000).alignment(4096)];
    /// let reservation = pool.reserve_many(layouts).try_now()?;
    /// let table = reservation.allocate(&stream, layouts[1])?;
    /// # drop(table);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn reserve_many<L: Into<Layout>>(
        &self,
        layouts: impl IntoIterator<Item = L>,
    ) -> Reserve<'_> {
        let layouts = layouts.into_iter().map(Into::into).collect();
        let kind = ForReservation::of_layouts(self, layouts);
        Request::new(kind, Location::caller())
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
}

/// Two handles of one pool are equal.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        plain::Arc::ptr_eq(&self.presence, &other.presence)
    }
}

impl Eq for Pool {}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("device", &self.describe_device())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
