//! A block of device memory, owned by its holder.
//!
//! | file | about |
//! |---|---|
//! | `mod` | the block as its user sees it |
//! | `life` | its beginning, its growth in place and its plain end, on the side of the pool; the tag to which it is charged |
//! | `ending` | its end in any other case |
//! | `part` | parts of it, as arguments of work, and as the ends of copies between device and host |
//! | `uses` | the streams on which it is used, and the order of its uses |
//! | `further` | the same as a state machine, which knows no device |
//! | `graphs` | the graphs that use it, which keep it, and their launches |
//! | `outside` | blocks of memory that others own |
//! | `host` | the host's own access to memory that it sees |
//! | `between` | copies from one block to another |

mod between;
mod ending;
mod further;
mod graphs;
mod host;
mod life;
mod outside;
mod part;
mod uses;

pub use ending::{DeallocateError, Deallocation};
pub(crate) use further::Access;
pub use host::HostGuard;
pub(crate) use part::Part;
pub(crate) use uses::Uses;

use crate::copy::{Download, Upload};
use crate::device::{DeviceAddress, DeviceError, DeviceErrorKind};
use crate::engine::{Allocation, Fill, Source};
use crate::error::{CopyError, StreamError};
use crate::foreign::{ForeignMemory, Residency};
use crate::handles::{GraphUses, Registration, Reserved};
use crate::id::{StreamId, Ticket};
use crate::measure::{Bytes, Tag};
use crate::queue::Passages;
use crate::stream::{Event, Stream};
use crate::sync::{Arc, Mutex, Ordering, Rare, plain};
use further::FurtherStreams;
use graphs::OfGraphs;
use life::BlockCharge;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;

/// Owned device memory, for use in the order of the stream that it was allocated on or [moved to](Self::move_to), and
/// of the streams that it was [used on](Stream::record_use) since.
///
/// Dropping a block frees it in the order of those streams: work submitted before the drop may still use the memory. A
/// drop never blocks and never panics. It records at most one event on each of those streams, as the [sealing
/// policy](crate::Sealing) asks for, and occasionally queries a few events to recycle them. If the pool
/// [fills](crate::FillAt::Free) freed memory, the drop also submits that fill.
#[must_use = "a block is freed when it is dropped"]
pub struct Block {
    /// A reference to the stream; present until the block has ended. See `lane::RefCache`.
    registration: Option<Arc<Registration>>,
    /// Present until the block has ended.
    allocation: Option<Allocation>,
    charge: BlockCharge,
    extra: Mutex<Rare<Extra>>,
}

/// What few blocks have.
#[derive(Default)]
pub(crate) struct Extra {
    /// Further streams that the block was used on.
    streams: FurtherStreams,
    /// The reservation that the memory returns to.
    reserved: Option<Arc<Reserved>>,
    /// The graphs that use the block.
    graphs: Option<Box<OfGraphs>>,
    /// Addresses above the block are kept for it.
    has_room: bool,
    /// The block is freed in the order of the further streams alone: it was moved to the first of them, or the stream of
    /// its allocation may be gone. This is that stream's point that the memory waits for besides, or zero if they come
    /// after it.
    left_at: Option<Ticket>,
    /// The owner of the memory, if it is not in the heap.
    outside: Option<Box<dyn ForeignMemory>>,
    /// Whether the memory is there, if that owner takes it away at times.
    residency: Option<Residency>,
    /// Where the block was deallocated, for that owner.
    deallocated_at: Option<&'static Location<'static>>,
}

impl Extra {
    /// Returns a graph that keeps the block, if there is one.
    fn keeper(&self) -> Option<plain::Arc<GraphUses>> {
        self.graphs.as_ref()?.keeper()
    }

    /// Returns the order of the capture that the block was allocated in, if it was allocated in one.
    fn capture(&self) -> Option<StreamId> {
        self.graphs.as_ref()?.capture
    }

    /// Returns whether the block is freed in the order of the stream of its allocation alone.
    fn is_of_one_stream(&self) -> bool {
        self.streams.is_empty() && self.left_at.is_none()
    }

    /// Returns whether the block is of a reservation, has nothing else, and is freed in the order of its own stream alone.
    fn is_only_reserved(&self) -> bool {
        self.reserved.is_some()
            && self.is_of_one_stream()
            && self.graphs.is_none()
            && !self.has_room
            && self.outside.is_none()
    }
}

/// The pool's part of the block.
impl Block {
    #[inline(always)]
    pub(crate) fn registration(&self) -> &Arc<Registration> {
        self.registration
            .as_ref()
            .expect("present until the block has ended")
    }

    #[inline]
    pub(crate) fn allocation(&self) -> &Allocation {
        self.allocation
            .as_ref()
            .expect("present until the block has ended")
    }

    /// Reads one of the things that few blocks have.
    fn extra<R>(&self, read: impl FnOnce(&Extra) -> Option<R>) -> Option<R> {
        read(self.extra.lock().as_ref()?)
    }

    /// Returns the device address of the first byte.
    ///
    /// For other libraries, and for logs. The pool does not know of work on another stream that is given this address:
    /// call [`Stream::record_use`] first.
    #[inline]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::from_bits(self.allocation().address)
    }

    /// Returns the number of usable bytes: the requested size, rounded up; or up to an eighth more, if the stream had
    /// freed a block of that size.
    #[inline]
    pub fn size(&self) -> u64 {
        self.allocation().bytes
    }

    /// Returns the number of bytes that were requested.
    #[inline]
    pub fn requested(&self) -> u64 {
        self.size() - u64::from(self.charge.rounding())
    }

    /// Returns the [tag](crate::Allocate::tag) that the block is charged to, if any.
    #[inline]
    pub fn tag(&self) -> Option<Tag> {
        let reserved = || self.extra(|extra| extra.reserved.as_ref()?.tag());
        self.charge.tag().or_else(reserved)
    }

    /// Returns where the memory came from.
    pub fn source(&self) -> Source {
        self.allocation().source
    }

    /// Returns the block's own stream: the one that it was allocated on, or [moved to](Self::move_to) last.
    pub fn stream(&self) -> Stream {
        Stream::from_registration(self.uses().stream())
    }
}

/// Uses on streams.
impl Block {
    /// Returns the uses of the block, by this crate.
    #[inline]
    pub(crate) fn uses(&self) -> Uses<'_> {
        Uses::of(self)
    }

    /// Makes the free of the block follow the order of `stream` as well, which does not use the block. If the block's
    /// own stream is external, that stream may be gone: then the free follows `stream` instead of it. Work on the own
    /// stream must then be ordered before the free on `stream`, as CUDA's `cudaFreeAsync` requires.
    ///
    /// # Errors
    /// Returns [`StreamError::ForeignPool`] if the stream belongs to another pool. Nothing changes then.
    pub fn freed_after(&self, stream: &Stream) -> Result<(), StreamError> {
        let on = self.own(stream)?;
        self.uses().expect_awaitable(on)?;
        self.uses().free_with(on);
        Ok(())
    }

    /// Opens the block to uses on `stream` that are not declared, such as those of another library, until its end. Orders
    /// the stream after all uses so far. Where the stream takes no wait on the device, because it is the host's or is
    /// being captured, the host waits.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`], and [`StreamError::BlocksRuntime`] if the host must not wait
    /// here. The stream must not use the block then.
    pub fn open_to(&self, stream: &Stream) -> Result<(), StreamError> {
        let on = self.own(stream)?;
        let uses = self.uses();
        let _resident = uses.hold_for(on)?;
        uses.order_for_good(on)
    }

    /// Returns the points after which all uses so far that may have written the block are complete: those that
    /// a reader [comes after](Stream::record_use). It is for code that passes the memory to a reader outside of the streams.
    ///
    /// # Errors
    /// Returns an error if the device cannot record an event behind these uses.
    pub fn writes(&self) -> Result<Passages, DeviceError> {
        let points = self.uses().points_before(Access::Read, None)?;
        points.iter().map(Event::passage).collect()
    }

    /// Moves the block to `stream`: orders the stream after every earlier use on every stream, as
    /// a [use that writes](Stream::record_use) does, and from now on the block is freed in the order of `stream` alone.
    ///
    /// This is how a stage of a pipeline hands memory on to the next one. A use on a further stream keeps the block in
    /// the order of both streams, which costs a further event when it is freed, and keeps its memory until the slower
    /// of the two has passed the free. With CUDA's own pools, `cudaFreeAsync` on another stream than the allocation's
    /// does the same, after a wait that is up to the caller.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weirpool::{Pool, device::{Device, sim::{Operation, SimDevice}}};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let works = [device.create_stream(), device.create_stream()];
    /// # let [producer, consumer] = [0, 1].map(|n| pool.register(&works[n]).unwrap());
    /// let mut block = pool.try_allocate(&producer, 1 << 20)?;
    /// let work = Operation::new(Duration::from_micros(50));
    /// works[0].submit(work.writes(block.address(), 1 << 20));
    /// block.move_to(&consumer)?;
    /// let work = Operation::new(Duration::from_micros(20));
    /// works[1].submit(work.reads(block.address(), 1 << 20)); // after the write
    /// drop(block); // available to `consumer` at once, and to the others when its work is complete
    /// # device.advance_to_end();
    /// # assert_eq!(device.now(), Duration::from_micros(70));
    /// # device.assert_ordered();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Later uses on any other stream, also on the one that the block was allocated on, must be noted again. The
    /// statistics of streams still count the block for that one, and [`grow`](Self::grow) takes memory in its order.
    /// An external stream must live until the block is freed, and a block cannot move on from it.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`], and [`Unsupported`](crate::device::DeviceErrorKind) for a block
    /// that was allocated in a [capture](crate::Pool::capture), or if `stream` is captured by the pool: launches of
    /// a graph repeat neither a move nor the free. After an error the block is where it was.
    pub fn move_to(&mut self, stream: &Stream) -> Result<(), StreamError> {
        let on = self.own(stream)?;
        self.uses().expect_awaitable(on)?;
        let is_of_capture = self.extra(Extra::capture).is_some();
        if is_of_capture || on.lane.cache.is_captured() {
            let reason = "a block of a capture cannot move, and no block can move to a stream that is captured; note \
                          its uses with `record_use`";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("move", kind, reason).into());
        }
        self.uses().order(on, Access::Write)?;
        let is_home = Arc::ptr_eq(self.registration(), on);
        let extra = self.extra.get_mut();
        if let Some(extra) = &mut **extra {
            extra.streams.clear();
            extra.left_at = None;
        }
        if !is_home {
            let extra = extra.get_or_insert_default();
            extra.streams.record(on, Access::Always);
            // The stream comes after all of it.
            extra.left_at = Some(Ticket::ZERO);
            let residency = extra.residency.clone();
            if let Some(residency) = residency {
                residency.remember(on);
            }
        }
        Ok(())
    }

    /// Returns the registration of a stream, which must belong to the block's pool.
    #[inline(always)]
    fn own<'a>(&self, stream: &'a Stream) -> Result<&'a Arc<Registration>, StreamError> {
        let is_own = stream.is_of_pool(self.registration()) && !self.is_out_of_reach(stream);
        is_own
            .then_some(&stream.registration)
            .ok_or_else(|| why_not(self, stream))
    }
}

/// Returns why the block cannot be used on a stream of another pool.
#[cold]
fn why_not(block: &Block, stream: &Stream) -> StreamError {
    let [home, other] = [block.registration(), &stream.registration];
    let neighbours = &home.service.engine.streams.neighbours;
    let device = other.stream_device().id();
    if block.is_out_of_reach(stream) || !neighbours.is_accessible_from(device) {
        return StreamError::ForeignDevice;
    }
    let [of_block, of_stream] = [home, other].map(|of| match &of.presence.name {
        Some(name) => format!("pool {name:?}"),
        None => format!(
            "an unnamed pool of {}",
            Bytes(of.capacity.load(Ordering::Relaxed))
        ),
    });
    let (stream, address) = (other.lane.label(), block.address());
    StreamError::ForeignPool(
        format!(" (stream {stream} is of {of_stream}, the block at {address:#x} of {of_block})")
            .into(),
    )
}

/// Copies, and access by the host.
impl Block {
    /// Copies `bytes` into the block, starting `offset` bytes from its beginning. The copy runs on `stream`, after
    /// every earlier use on every stream, as a [use that writes](Stream::record_use); later work on `stream` comes after it.
    /// The bytes are read before this returns. The future is ready when the copy is complete; on a stream that is being
    /// [captured](crate::Pool::capture) at once, and each launch of the graph copies the same bytes.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut block = pool.allocate(&stream, 1024).await?;
    /// let _uploaded = block.upload(&stream, 0, b"weir")?;
    /// assert_eq!(block.download(&stream, 1..4)?.await?, b"eir");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`], and an error if the bytes do not fit there, or if the device
    /// cannot copy. Nothing is copied then, unless the error is that the device could not record the event behind the
    /// copy.
    #[track_caller]
    pub fn upload(
        &mut self,
        stream: &Stream,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Upload, CopyError> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        Part::new(self, Access::Write, range)?.upload(stream, bytes, Location::caller())
    }

    /// Copies the bytes of `range`, counted from the block's beginning, to the host. The copy runs on `stream`, after
    /// every use that may have written the block, as a [use that reads](Stream::record_use). The future returns the bytes. See
    /// [`upload`](Self::upload) for an example.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`], and an error if the range is not within the block, or if the
    /// device cannot copy.
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<u64>) -> Result<Download, CopyError> {
        Part::new(self, Access::Read, range)?.download(stream)
    }

    /// Fills the block with zeros: [`fill`](Self::fill) with [`Fill::Zero`].
    ///
    /// # Errors
    /// Returns the errors of [`fill`](Self::fill).
    #[track_caller]
    pub fn zero(&mut self, stream: &Stream) -> Result<(), CopyError> {
        self.fill(stream, Fill::Zero)
    }

    /// Fills all [`size`](Self::size) bytes of the block with one byte. The fill is work of `stream`, which comes after
    /// every earlier use on every stream, as a [use that writes](Stream::record_use); later work on `stream` comes after it.
    /// No thread waits for it: await [`Stream::synchronize`] for its completion.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut block = pool.allocate(&stream, 512).await?;
    /// block.fill(&stream, 0x7f)?;
    /// assert_eq!(block.download(&stream, 0..512)?.await?, [0x7f; 512]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`], and an error if the device cannot fill: it cannot on a
    /// stream that other code than [`Pool::capture`](crate::Pool::capture) captures. Nothing is filled then.
    #[track_caller]
    pub fn fill(&mut self, stream: &Stream, fill: impl Into<Fill>) -> Result<(), CopyError> {
        Part::whole(self, Access::Write).fill(stream, fill.into())
    }

    /// Gives the host access to the block's bytes, where the host [sees](crate::device::MemoryKind::is_seen_by_host)
    /// the memory. The future is ready once all uses so far are complete, on every stream, launches of
    /// [graphs](crate::CapturedGraph) included. While the future or the guard exists, no other use can be made of the
    /// block, and no graph that uses it can be launched; work submitted later comes after the host's writes.
    ///
    /// ```
    /// # use weirpool::{Pool, Upstream, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).upstream(Upstream::Pinned).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let mut block = pool.allocate(&stream, 512).await?;
    /// block.host().await?[..4].copy_from_slice(b"weir");
    /// assert_eq!(block.download(&stream, 0..4)?.await?, b"weir");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StreamError::UnseenByHost`] if only the device sees the pool's memory: copy it with
    /// [`download`](Self::download) and [`upload`](Self::upload) instead. Otherwise returns an error if the device
    /// cannot record an event behind the uses so far, or if its work failed.
    ///
    /// # Cancel safety
    /// Dropping the future stops waiting and has no other effect.
    #[track_caller]
    pub fn host(&mut self) -> impl Future<Output = Result<HostGuard<'_, u8>, StreamError>> + Send {
        let bytes = self.size() as usize;
        HostGuard::of(self, bytes, Location::caller())
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &Bytes(self.size()))
            .field(
                "stream",
                &format_args!("{}", self.registration().lane.label()),
            )
            .field("source", &self.source())
            .finish_non_exhaustive()
    }
}
