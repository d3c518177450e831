//! The pool: the handle that everything begins with.
//!
//! | file | about |
//! |---|---|
//! | `mod` | construction, streams, and the requests that a pool takes |
//! | `inspect` | readers: its figures, its memory, its waiters, and checks of them |
//! | `manage` | its capacity and memory, its tags, its end |
//! | `maintain` | what operators do, and few programs need |
//! | `builder` | the settings of a pool |
//! | `tuning` | settings that a pool hardly ever needs, and every default |
//! | `settings` | checks the settings, and makes the choices that they leave open |
//! | `request` | how a request waits, whatever it asks for |
//! | `allocate` | requests for blocks |
//! | `plain_case` | a block of the stream's own cache, without any terms |
//! | `layout` | the size and alignment of a block |
//! | `captured` | requests for blocks on a stream that is being captured |
//! | `charge` | bytes of the capacity, for memory that others allocate |
//! | `grow` | the request of a block to grow |
//! | `reservation` | reservations, and the requests for them |
//! | `entered_scope` | tasks that draw from a reservation |
//! | `tags` | limits and weights of tags |
//! | `own_stream` | streams that the pool makes |
//! | `peers` | access of other devices |
//! | `weak` | a handle that does not keep its pool alive |
#![allow(
    private_interfaces,
    reason = "the traits of requests are sealed: users cannot name them, nor what their methods take"
)]

pub(crate) mod allocate;
mod builder;
pub(crate) mod captured;
mod charge;
mod entered_scope;
mod grow;
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod hot_path_tests;
mod inspect;
mod layout;
mod maintain;
mod manage;
mod own_stream;
mod peers;
mod plain_case;
pub(crate) mod request;
mod reservation;
mod settings;
mod tags;
mod tuning;
mod weak;

pub use allocate::{Allocate, AllocateMany, AllocateOwned};
pub use builder::{Capacity, FillAt, PoolBuilder};
pub use charge::ChargeFor;
pub use entered_scope::{Drawing, EnterGuard};
pub use grow::Grow;
pub use inspect::Inspect;
pub use layout::Layout;
pub use maintain::Maintain;
pub use peers::{AccessGuard, Peers};
use request::Miss;
pub use request::Request;
pub use reservation::{GrowReservation, Reservation, Reserve};
pub use tags::TagAccount;
pub use tuning::Tuning;
pub use weak::WeakPool;
pub use weirpool_measure::{Health, PoolDescription};

use allocate::{Borrowed, ForBlock, ForBlocks, Owned};
use own_stream::OwnStream;
use reservation::ForReservation;

use crate::block::Block;
use crate::device::{AsDevice, DeviceStream, Host};
use crate::error::{AllocError, BuildError, StreamError};
use crate::handles::{Presence, Registration};
use crate::heap::Placement;
use crate::queue::{self, Service};
use crate::registry;
use crate::stream::Stream;
use crate::sync::{Arc, plain};
use std::fmt;
use std::panic::Location;

impl Stream {
    /// Returns the pool that the stream is registered with.
    pub fn pool(&self) -> Pool {
        Pool::of_presence(self.registration.presence.clone())
    }
}

impl Block {
    /// Returns the pool that the block is of.
    pub fn pool(&self) -> Pool {
        Pool::of_presence(self.registration().presence.clone())
    }
}

/// A stream-ordered memory pool over one device.
///
/// A pool is a handle: cloning it is cheap, and all clones are the same pool. It lives as long as any handle,
/// [`Stream`], [`Block`] or waiting future of it. Then its memory goes back to the device, once no running
/// work can touch it any more.
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
    /// Begins a pool over `device`, to be configured. A device that is shared already is taken as it is.
    pub fn builder(device: impl AsDevice) -> PoolBuilder {
        PoolBuilder::new(device.to_shared())
    }

    fn new(service: Service, name: Option<String>) -> Result<Self, BuildError> {
        let presence = Presence::new(Arc::new(service), name.map(Into::into));
        let presence = plain::Arc::new(presence);
        registry::enter(&presence)?;
        let explainer = plain::Arc::downgrade(&presence);
        presence
            .service
            .engine
            .shared
            .device
            .explain_with(explainer);
        queue::start(&presence.service);
        Ok(Self { presence })
    }

    /// Returns every living pool of the process, in the order in which they were built. A pool is held only while the
    /// iterator is at it.
    pub fn all() -> impl Iterator<Item = Self> {
        registry::all().map(Self::of_presence)
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

    /// Registers one of the device's streams, or one of another device with [access](Peers::enable), with the
    /// pool, so that memory can be allocated and freed in its order. The pool keeps the stream usable as long as it may
    /// record an event on it.
    ///
    /// A stream that is registered twice has two lanes and two orders, each of them safe. A stream that the pool cannot
    /// keep (it has an [`external_id`](crate::device::StreamProperties::external_id)) is used only inside calls that are made with it, and
    /// every free on it records its event immediately: see the [guide](crate::guide::interoperability).
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignDevice`] if the stream is of another device that has no
    /// [access](Peers::enable), and the device's error if it cannot keep the stream's order.
    pub fn register(&self, stream: &impl DeviceStream) -> Result<Stream, StreamError> {
        let registration = Registration::enter(&self.presence, stream)?;
        Ok(Stream::from_registration(registration))
    }

    /// Makes a stream of the device and registers it. The stream is destroyed once the pool does not need it any more:
    /// after its last handle and block, and the completion of the memory freed on it. To submit work to it, use
    /// [`Stream::submit`]; other code obtains the device's stream by its [name](Stream::raw) from
    #[cfg_attr(
        feature = "cuda",
        doc = "[`CudaDevice::stream`](crate::device::cuda::CudaDevice::stream) or"
    )]
    /// [`SimDevice::stream`](https://docs.rs/weirpool-sim/latest/weirpool_sim/struct.SimDevice.html#method.stream).
    ///
    /// # Errors
    /// Returns the device's error if it cannot make one.
    pub fn create_stream(&self) -> Result<Stream, StreamError> {
        let device = &self.service().engine.shared.device;
        self.register(&OwnStream::new(device)?)
    }

    /// Registers the host as a stream of this pool, whose memory the host must see. The work of this stream is what the
    /// host does between two calls; it is in the order of the calls, and complete when the next call is made:
    ///
    /// - The host can read and write a block that was allocated on this stream immediately; no work is left in it. A
    ///   block of another stream needs that stream to be awaited first, and then
    ///   [`Stream::record_use`].
    /// - Memory that is freed on this stream is complete at once: it is never pending, and no event is recorded.
    /// - The stream cannot be made to wait on the device. Await the device's work:
    ///   [`Stream::wait`] and `record_use` fail while the event is not complete.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weirpool::device::sim::{Operation, SimDevice};
    /// use weirpool::{Pool, Upstream};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).upstream(Upstream::Managed).build()?;
    /// let (host, work) = (pool.host_stream()?, device.create_stream());
    /// let stream = pool.register(&work)?;
    /// device.block_on(async {
    ///     let mut block = pool.allocate(&host, 1 << 20).await?;
    ///     device.host().write(block.address(), b"weir")?; // the host's work: no copy
    ///     stream.record_use(&mut block)?; // comes after it
    ///     work.submit(Operation::new(Duration::from_micros(9)).writes(block.address(), 4));
    ///     stream.synchronize().await?; // the host cannot be made to wait: it awaits
    ///     device.host().read(block.address(), &mut [0; 4])?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// As with [`register`](Self::register), each call makes a stream of its own. All of them are the host, which is
    /// ordered by itself. (Umpire's host resource is one stream of execution in the same way.)
    ///
    /// # Errors
    /// Returns [`StreamError::UnseenByHost`] if the pool's memory is the device's alone.
    pub fn host_stream(&self) -> Result<Stream, StreamError> {
        self.register(&Host(self.service().engine.shared.device.id()))
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
    /// As the last resort, makes the stream wait on the device for pending memory of another stream, however long that
    /// takes: [`WhenShort`](crate::WhenShort) bounds only earlier steps of the search. Later work of the stream is
    /// delayed, and the host is not. Without `internal_dependencies` in the pool's [`Reuse`](crate::Reuse), the call
    /// fails instead; [`allocate`](Self::allocate) waits in the queue instead.
    ///
    /// # Errors
    /// Returns [`AllocError::Exhausted`] if there is not enough memory, after polling completed events, flushing
    /// caches, and growing; and whenever other requests already wait. Memory that another thread is releasing or
    /// remapping at the moment (a trim, a growth, the maintenance) counts as taken. Otherwise returns the errors of
    /// [`Request`].
    // A function would return the block through memory: it writes single words and its caller reads pairs, which stalls.
    #[inline(always)]
    #[track_caller]
    pub fn try_allocate(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        let location = Location::caller();
        let mut miss = Miss::Unsearched;
        match plain_case::take_at_once(self, &stream.registration, bytes, 1, &mut miss) {
            Some(block) => Ok(block),
            None => self.try_allocate_slowly(stream, bytes, location, miss),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_allocate_slowly(
        &self,
        stream: &Stream,
        bytes: u64,
        location: &'static Location<'static>,
        mut miss: Miss,
    ) -> Result<Block, AllocError> {
        match plain_case::take_cached(self, &stream.registration, bytes, 1, &mut miss) {
            Some(block) => Ok(block),
            None => {
                let kind = ForBlock::new(Borrowed::new(self, stream), bytes);
                Request::new(kind, location).search_now(miss)
            }
        }
    }

    /// Allocates a block for each layout, all or none, from one position in the queue.
    ///
    /// A task that takes its blocks one after the other may hold some while it waits for more, and two such tasks may
    /// wait for each other for ever. A task that asks for all of it at once cannot; nor can one that
    /// [reserves](Self::reserve) it, where it is not known beforehand what will be needed when.
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
    /// free. Where memory is virtual, a piece of a [chunk](crate::PoolBuilder::chunk_bytes) or more begins with a
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

    /// Sets memory aside as [`reserve`](Self::reserve) does, at any address or above a block.
    #[track_caller]
    pub(crate) fn reserve_at(&self, bytes: u64, placement: Placement) -> Reserve<'_> {
        let kind = ForReservation::at(self, bytes, placement);
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
        let description = self.inspect().describe();
        f.debug_tuple("Pool")
            .field(&format_args!("{description}"))
            .finish()
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::device::sim::SimDevice;
    use crate::engine::Upstream;

    #[test]
    fn finished_host_streams_are_removed_as_others_come() {
        let builder = Pool::builder(SimDevice::new()).upstream(Upstream::Host);
        let pool = builder.build().unwrap();
        for _ in 0..20 {
            let host = pool.host_stream().unwrap();
            drop(pool.try_allocate(&host, 4096).unwrap());
            assert_eq!(pool.service().engine.streams.lanes().iter().count(), 1);
        }
    }
}
