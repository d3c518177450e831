//! A block of device memory, owned.

use crate::device::{DeviceError, RawStream, Referee};
use crate::engine::{Lent, Rung, Use};
use crate::error::StreamError;
use crate::id::Ticket;
use crate::lane::Lane;
use crate::stream::Stream;
use crate::sync::Arc;
use crate::wait::{Passages, Registration};
use smallvec::SmallVec;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Device memory, owned: for use in the order of the stream that it was allocated on, and of those it
/// was [used on](Self::used_on) since.
///
/// Dropped, it is freed in the order of those streams: work submitted before the drop may still use
/// it. A drop never blocks and never panics. It makes at most the one event record for each of those
/// streams that the [sealing policy](crate::Sealing) asks for, and once in a while a few queries to have
/// events back.
#[must_use = "a block is freed when it is dropped"]
pub struct Block {
    registration: Arc<Registration>,
    lent: Option<Lent>,
    requested: u64,
    /// Further streams that it was used on.
    further: SmallVec<[Arc<Registration>; 0]>,
}

impl Block {
    #[inline]
    pub(crate) fn new(
        registration: Arc<Registration>,
        lent: Lent,
        requested: u64,
        place: &'static Location<'static>,
    ) -> Self {
        // Before the block is made: a call while it lives would cost every allocation some nanoseconds.
        if let Some(referee) = registration.referee.as_deref() {
            referee.granted(lent.address, lent.bytes, registration.lane.raw, place);
        }
        Self {
            registration,
            lent: Some(lent),
            requested,
            further: SmallVec::new(),
        }
    }

    #[inline]
    fn referee(&self) -> Option<&dyn Referee> {
        self.registration.referee.as_deref()
    }

    #[inline]
    fn lent(&self) -> &Lent {
        self.lent.as_ref().expect("taken only when the block ends")
    }

    /// The device address of the first byte.
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
        self.requested
    }

    /// Where the memory came from.
    pub fn rung(&self) -> Rung {
        self.lent().rung
    }

    /// The stream that it was allocated on.
    pub fn stream(&self) -> Stream {
        Stream::from_registration(self.registration.clone())
    }

    /// Says that work of a further stream will use the block: call it before that work is submitted.
    ///
    /// The stream is ordered after the grant (by a wait on the device, if need be), and the memory is
    /// not reused before its work has passed the free. It does not order the stream after what the
    /// block's own stream writes: for that, [wait](Stream::wait) for an event of it.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`] when the stream is of another pool, or the device's error; the
    /// stream must not use the block then.
    pub fn used_on(&mut self, stream: &Stream) -> Result<(), StreamError> {
        if !stream.is_of_pool(&self.registration) {
            return Err(StreamError::ForeignPool);
        }
        let further = stream.registration();
        let is_known = |known: &Arc<Registration>| Arc::ptr_eq(known, further);
        if is_known(&self.registration) || self.further.iter().any(is_known) {
            return Ok(());
        }
        let engine = &self.registration.service.engine;
        engine.order_after_grant(&self.registration.lane, self.lent().after, &further.lane)?;
        self.further.push(further.clone());
        Ok(())
    }

    /// Frees the block in the order of the streams that it was used on, as dropping it does, and gives
    /// a future for the moment at which no device work can touch it any more.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let deallocation = self.free_awaited(Location::caller());
        // Only now: the block is freed even if this panics.
        if let Some(referee) = self.referee() {
            referee.call_out();
        }
        deallocation
    }

    /// Frees the block in the order of `stream`, and of all that it was used on: its own stream's
    /// order is kept as well.
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on); the block is in the error, still allocated.
    #[track_caller]
    pub fn deallocate_on(mut self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        match self.used_on(stream) {
            Ok(()) => Ok(self.deallocate()),
            Err(reason) => Err(DeallocateError {
                block: self,
                reason,
            }),
        }
    }

    /// The referee hears of it before anybody else can be given the memory.
    #[inline]
    fn end(&mut self, place: Option<&'static Location<'static>>) -> Option<Use> {
        let Lent {
            id, address, bytes, ..
        } = self.lent.take()?;
        if self.registration.referee.is_some() {
            self.renounce(address, place);
        }
        Some(Use { id, address, bytes })
    }

    #[cold]
    #[inline(never)]
    fn renounce(&self, address: u64, place: Option<&'static Location<'static>>) {
        let streams: SmallVec<[RawStream; 2]> = self.lanes().iter().map(|lane| lane.raw).collect();
        if let Some(referee) = self.referee() {
            referee.freed(address, &streams, place);
        }
    }

    fn lanes(&self) -> SmallVec<[&Arc<Lane>; 2]> {
        let further = self.further.iter().map(|further| &further.lane);
        std::iter::once(&self.registration.lane)
            .chain(further)
            .collect()
    }

    fn free_awaited(&mut self, place: &'static Location<'static>) -> Deallocation {
        let block = self
            .end(Some(place))
            .expect("taken only when the block ends");
        let service = &self.registration.service;
        let lanes = self.lanes();
        let fences = if self.further.is_empty() {
            let lane = &self.registration.lane;
            let ticket: Ticket = service.engine.free(lane, block);
            std::iter::once(lane.fence(ticket)).collect()
        } else {
            service.engine.free_many(&lanes, block)
        };
        Deallocation(Passages::new(service, &lanes, &fences))
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let Some(block) = self.end(None) else {
            return;
        };
        let engine = &self.registration.service.engine;
        if self.further.is_empty() {
            engine.free(&self.registration.lane, block);
        } else {
            engine.free_many(&self.lanes(), block);
        }
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
