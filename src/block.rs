//! A block of device memory, owned.

mod further;

use crate::copy::{Download, Upload};
use crate::device::{Argument, DeviceError};
use crate::engine::{Lent, Rung, Use};
use crate::error::{AllocError, CopyError, StreamError};
use crate::id::Ticket;
use crate::measure::Tag;
use crate::stream::Stream;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;
use crate::wait::{Caller, Demand, Ending, Granted, Onlookers, Passages, Registration, Reserved};
use further::Further;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Device memory, owned: for use in the order of the stream that it was allocated on, and of those it
/// was [used on](Self::used_on) since.
///
/// Dropped, it is freed in the order of those streams: work submitted before the drop may still use
/// it. A drop never blocks and never panics. It makes at most the one event record for each of those
/// streams that the [sealing policy](crate::Sealing) asks for, and once in a while a few queries to have
/// events back. Where the pool [fills](crate::PoolBuilder::fill_on_free) what is freed, it makes the calls for
/// that as well.
#[must_use = "a block is freed when it is dropped"]
pub struct Block {
    registration: Arc<Registration>,
    lent: Option<Lent>,
    /// What was not asked for of its bytes.
    rounding: u32,
    /// Whose account it is on.
    tag: Option<Tag>,
    /// Further streams that it was used on.
    further: Mutex<Further>,
}

impl Block {
    /// # Errors
    /// When it was to be filled, and could not be; it is freed then.
    #[inline]
    pub(crate) fn new(
        registration: &Arc<Registration>,
        mut lent: Lent,
        demand: &Demand,
        caller: Caller,
    ) -> Result<Self, AllocError> {
        // Before the block is made: a call while it lives would cost every allocation some nanoseconds.
        if let Some(tag) = demand.tag {
            registration.note_granted(tag, lent.bytes - demand.request.bytes);
        }
        if let Some(onlookers) = registration.onlookers.as_deref() {
            // Of a copy, so that where nobody looks on it stays in registers.
            lent.after = begin(registration, onlookers, &lent.seen(), demand, caller)?;
        }
        trace::granted(demand.asked(&registration.lane), &lent.rung, lent.address);
        let rounding = demand.rounding_of(lent.bytes);
        Ok(Self {
            registration: registration.clone(),
            lent: Some(lent),
            rounding,
            tag: demand.tag,
            further: Mutex::new(Guards::Block, None),
        })
    }

    /// A block of a reservation.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn reserved(
        registration: &Arc<Registration>,
        lent: Lent,
        demand: &Demand,
        caller: Caller,
        reserved: &Arc<Reserved>,
    ) -> Result<Self, AllocError> {
        let bytes = lent.bytes;
        let block = Self::new(registration, lent, demand, caller);
        let block = block.inspect_err(|_| reserved.note_freed(bytes))?;
        block.further.lock().get_or_insert_default().reserved = Some(reserved.clone());
        Ok(block)
    }

    #[inline]
    fn lent(&self) -> &Lent {
        self.lent.as_ref().expect("taken only when the block ends")
    }

    /// The device address of the first byte.
    ///
    /// A number, for other libraries and for people. Work on another stream than the block's own that is
    /// given it is not known to the pool: call [`used_on`](Self::used_on) first, or give it
    /// [`on`](Self::on) instead, which does.
    #[inline]
    pub fn address(&self) -> u64 {
        self.lent().address
    }

    /// The bytes that may be used: what was requested, rounded up.
    #[inline]
    pub fn size(&self) -> u64 {
        self.lent().bytes
    }

    /// The bytes that were requested.
    #[inline]
    pub fn requested(&self) -> u64 {
        self.size() - u64::from(self.rounding)
    }

    /// To whose account it goes, if it was allocated with a [tag](crate::Allocate::tag).
    #[inline]
    pub fn tag(&self) -> Option<Tag> {
        self.tag.or_else(|| {
            let extra = self.further.lock();
            extra.as_ref()?.reserved.as_ref()?.tag()
        })
    }

    /// Where the memory came from.
    pub fn rung(&self) -> Rung {
        self.lent().rung
    }

    /// The stream that it was allocated on.
    pub fn stream(&self) -> Stream {
        Stream::from_registration(self.registration.clone())
    }

    /// The block as an argument of work on `stream`, which is noted as [`used_on`](Self::used_on) does:
    /// on CUDA, of a kernel. The argument borrows the block until the work is submitted.
    ///
    #[cfg_attr(feature = "cuda", doc = "```no_run")]
    #[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn scale(block: weirpool::Block, stream: weirpool::Stream, work: &CudaStream, kernel: &CudaFunction)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let (argument, count) = (block.on(&stream)?, block.size() / 4);
    /// let mut launch = work.launch_builder(kernel);
    /// launch.arg(&argument).arg(&count);
    /// // SAFETY: the kernel touches `count` floats from the address on, and nothing else.
    /// unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on).
    pub fn on(&self, stream: &Stream) -> Result<Argument<'_>, StreamError> {
        self.part_on(stream, 0..self.size())
    }

    /// A part of the block as an argument; the part lies within it.
    pub(crate) fn part_on(
        &self,
        stream: &Stream,
        part: Range<u64>,
    ) -> Result<Argument<'_>, StreamError> {
        self.used_on(stream)?;
        let bytes = part.end - part.start;
        Ok(Argument::new(self.address() + part.start, bytes))
    }

    /// Copies `bytes` into the block, `offset` bytes from its beginning, in the order of `stream`. The
    /// bytes are taken before this returns; the future says when the copy is complete.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// # device.block_on(async {
    /// let block = pool.allocate(&stream, 1024).await?;
    /// let _uploaded = block.upload(&stream, 0, b"weir")?; // what is submitted now comes after it
    /// assert_eq!(block.download(&stream, 1..4)?.await?, b"eir");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the bytes do not fit there, as [`used_on`](Self::used_on), or when the device cannot copy.
    /// Nothing is copied then, save where the device could not record the event behind the copy.
    #[track_caller]
    pub fn upload(&self, stream: &Stream, offset: u64, bytes: &[u8]) -> Result<Upload, CopyError> {
        let count = bytes.len() as u64;
        let address = self.place_of(offset, offset.saturating_add(count))?;
        self.used_on(stream)?;
        let Registration { service, lane, .. } = &**stream.registration();
        let place = Location::caller();
        let transfer = service
            .engine
            .device
            .upload(lane.raw, address, bytes, place);
        let transfer = service.engine.noted(transfer)?;
        Ok(Upload::new(stream.registration().clone(), transfer))
    }

    /// Copies the bytes of `range`, counted from the block's beginning, to the host, in the order of
    /// `stream`. The future is ready with them. See [`upload`](Self::upload) for an example.
    ///
    /// # Errors
    /// When the range is not within the block, as [`used_on`](Self::used_on), or when the device cannot
    /// copy.
    #[track_caller]
    pub fn download(&self, stream: &Stream, range: Range<u64>) -> Result<Download, CopyError> {
        let address = self.place_of(range.start, range.end)?;
        self.used_on(stream)?;
        let Registration { service, lane, .. } = &**stream.registration();
        let (count, place) = (range.end - range.start, Location::caller());
        let transfer = service
            .engine
            .device
            .download(lane.raw, address, count, place);
        let transfer = service.engine.noted(transfer)?;
        Ok(Download::new(stream.registration().clone(), transfer))
    }

    /// The address of a range within the block.
    fn place_of(&self, start: u64, end: u64) -> Result<u64, CopyError> {
        if start > end || end > self.size() {
            return Err(CopyError::OutOfBounds {
                start,
                end,
                size: self.size(),
            });
        }
        Ok(self.address() + start)
    }

    /// Frees the block in the order of the streams that it was used on, as dropping it does, and gives
    /// a future for the moment at which no device work can touch it any more.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let deallocation = self.free_awaited(Location::caller());
        // Only now: the block is freed even if this panics.
        if let Some(onlookers) = self.registration.onlookers.as_deref() {
            onlookers.call_out();
        }
        deallocation
    }

    /// Frees the block in the order of `stream`, and of all that it was used on: its own stream's
    /// order is kept as well.
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on); the block is in the error, still allocated.
    #[track_caller]
    pub fn deallocate_on(self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        match self.used_on(stream) {
            Ok(()) => Ok(self.deallocate()),
            Err(reason) => Err(DeallocateError {
                block: self,
                reason,
            }),
        }
    }

    /// The onlookers hear of it before anybody else can be given the memory.
    #[inline]
    fn end(&mut self, place: Option<&'static Location<'static>>) -> Option<Use> {
        if self.registration.onlookers.is_some() {
            self.renounce(place);
        }
        // Field by field, which stays in registers.
        let Lent {
            id, address, bytes, ..
        } = self.lent.take()?;
        Some(Use {
            id,
            address,
            bytes,
            rounding: self.rounding,
        })
    }

    #[cold]
    #[inline(never)]
    fn renounce(&mut self, place: Option<&'static Location<'static>>) {
        let lanes = self.lanes();
        if let (Some(onlookers), Some(lent)) = (&self.registration.onlookers, &self.lent) {
            let mut waits_for = &lanes[..];
            let block = lent.as_used(self.rounding);
            let registration = &self.registration;
            let left_at = self.left_at();
            let is_first_after_all =
                registration.fill_ending(onlookers, &lanes, left_at, block, place);
            if is_first_after_all && left_at.is_none() {
                // Its own stream comes after the others by now: it is freed in the order of that alone.
                waits_for = &lanes[..1];
                let further = self.further.get_mut();
                match further {
                    Some(extra) if extra.reserved.is_some() => extra.streams.clear(),
                    _ => drop(further.take()),
                }
            }
            let ending = Ending {
                lent,
                lanes: &lanes,
                waits_for,
                place,
            };
            onlookers.ending(&self.registration.service.engine, ending);
        }
    }

    /// Takes the block off its tag's account, once it is freed.
    #[inline]
    fn note_freed(&mut self, bytes: u64, address: u64) {
        if let Some(tag) = self.tag {
            self.registration.note_freed(tag, bytes);
        }
        if let Some(extra) = self.further.get_mut() {
            extra.note_freed(bytes);
        }
        trace::freed(self.registration.lane.id, bytes, address);
    }

    fn free_awaited(&mut self, place: &'static Location<'static>) -> Deallocation {
        let block = self
            .end(Some(place))
            .expect("taken only when the block ends");
        let (lanes, earlier) = (self.lanes(), self.earlier());
        let service = &self.registration.service;
        let is_its_streams_alone = self.further.get_mut().is_none();
        let fences = if is_its_streams_alone {
            let lane = &self.registration.lane;
            let ticket: Ticket = service.engine.free(lane, &block);
            std::iter::once(lane.fence(ticket)).collect()
        } else {
            service
                .engine
                .free_many(&self.registration.lane, &lanes, earlier, &block)
        };
        let passages = Passages::new(service, &lanes, &fences);
        self.note_freed(block.bytes, block.address);
        Deallocation(passages)
    }
}

/// A block is granted after that point of its stream, and somebody looks on. Returns the point that a further
/// stream must come after.
///
/// # Errors
/// As [`Block::new`].
#[cold]
#[inline(never)]
fn begin(
    registration: &Registration,
    onlookers: &Onlookers,
    lent: &Lent,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, DeviceError> {
    let (engine, lane) = (&registration.service.engine, &registration.lane);
    let granted = Granted {
        lent,
        demand,
        lane,
        caller,
    };
    onlookers.granted(engine, granted);
    let block = lent.as_used(demand.rounding_of(lent.bytes));
    let filled = registration.fill_granted(onlookers, lent.after, block, caller.place);
    if filled.is_err() {
        let lanes = std::slice::from_ref(lane);
        let ending = Ending {
            lent,
            lanes,
            waits_for: lanes,
            place: None,
        };
        onlookers.ending(engine, ending);
        // Past the lane: it may be a reservation's.
        engine.free_many(lane, lanes, None, &block);
        if let Some(tag) = demand.tag {
            registration.note_freed(tag, block.bytes);
        }
    }
    filled
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let Some(block) = self.end(None) else {
            return;
        };
        let is_its_streams_alone = self.further.get_mut().is_none();
        let engine = &self.registration.service.engine;
        if is_its_streams_alone {
            engine.free(&self.registration.lane, &block);
        } else {
            self.free_further(&block);
        }
        self.note_freed(block.bytes, block.address);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size", &self.size())
            .field("stream", &self.registration.lane.id)
            .field("rung", &self.rung())
            .finish_non_exhaustive()
    }
}

/// A deallocation on its way: ready once no device work can touch the memory any more, whoever has it
/// by then. It may be dropped: the deallocation takes place all the same.
///
/// # Errors
/// When the device cannot say, or record, whether its streams have passed. If the error is sticky, the
/// memory is leaked rather than reused; if not, it is reused once a later event proves it.
///
/// # Cancel safety
/// Dropping it stops the waiting and nothing else.
#[derive(Debug)]
pub struct Deallocation(Passages);

impl Future for Deallocation {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

/// A deallocation that was refused; nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("the block was not freed: {reason}")]
pub struct DeallocateError {
    /// The block, still allocated.
    pub block: Block,
    /// Why.
    #[source]
    pub reason: StreamError,
}
