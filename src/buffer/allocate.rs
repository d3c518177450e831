//! Requests for buffers.

use super::Buffer;
use crate::block::Block;
use crate::engine::{Allocations, NoMemory, Parts};
use crate::error::AllocError;
use crate::handles::Caller;
use crate::id::ReservationId;
use crate::pool::allocate::{Borrowed, ForBlock};
use crate::pool::request::{Attempt, Begun, IsUsable, Kind, Miss, Wish};
use crate::pool::{Layout, Pool, Request};
use crate::queue::{Asker, Demand};
use crate::stream::Stream;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

/// The future of [`Pool::buffer`]: a [`Buffer`]. See [`Request`] for terms, errors and cancel safety.
pub type AllocateBuffer<'a, T> = Request<ForBuffer<'a, T>>;

/// A block of elements.
pub struct ForBuffer<'a, T> {
    block: ForBlock<Borrowed<'a>>,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl Pool {
    /// Allocates `len` elements, aligned for `T`, for use in the order of `stream`, and waits for memory if there is none.
    ///
    /// The elements are whatever the memory was before, so any bytes must be valid elements. See
    /// [`Buffer::allocate_zeroed`] for other types, and [`Request`] for the terms of waiting and errors.
    ///
    /// ```
    /// # use weirpool::{Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let logits = pool.buffer::<f32>(&stream, 1000).tag(Tag::new("logits")).zeroed().await?;
    /// assert_eq!(logits.read(&stream).await?, [0.0; 1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use weirpool::{Pool, Stream};
    /// # fn flags(pool: &Pool, stream: &Stream) -> Result<(), weirpool::AllocError> {
    /// let flags = pool.buffer::<bool>(stream, 100).try_now()?; // a byte of 7 is no `bool`
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn buffer<'a, T: AnyBitPattern>(
        &'a self,
        stream: &'a Stream,
        len: usize,
    ) -> AllocateBuffer<'a, T> {
        Request::new(ForBuffer::new(self, stream, len), Location::caller())
    }
}

impl<'a, T> ForBuffer<'a, T> {
    pub(super) fn new(pool: &'a Pool, stream: &'a Stream, len: usize) -> Self {
        let layout = Layout {
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            alignment: align_of::<T>() as u64,
        };
        Self {
            block: ForBlock::of_layout(Borrowed::new(pool, stream), layout),
            len,
            elements: PhantomData,
        }
    }

    fn over(&self, block: Block) -> Buffer<T> {
        Buffer::over(block, self.len)
    }
}

impl<T> Kind for ForBuffer<'_, T> {
    type Output = Buffer<T>;

    fn asker(&self) -> Asker<'_> {
        self.block.asker()
    }

    fn take_at_once(&self, wish: &Wish, miss: &mut Miss) -> Option<Buffer<T>> {
        let taken = self.block.take_at_once(wish, miss);
        taken.map(|block| self.over(block))
    }

    fn take_cached(&self, wish: &Wish, miss: &mut Miss) -> Option<Buffer<T>> {
        let taken = self.block.take_cached(wish, miss);
        taken.map(|block| self.over(block))
    }

    fn begin(&self, attempt: Attempt) -> Result<Begun<Buffer<T>>, AllocError> {
        Ok(match self.block.begin(attempt)? {
            Begun::Taken(block) => Begun::Taken(self.over(block)),
            Begun::Asks(ask) => Begun::Asks(ask),
        })
    }

    fn granted(
        &mut self,
        asked: (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<Buffer<T>, AllocError> {
        let block = self.block.granted(asked, allocations, caller)?;
        Ok(self.over(block))
    }

    fn scope(&self, demand: &Demand) -> Option<ReservationId> {
        self.block.scope(demand)
    }

    fn take_late(&self, demand: &Demand, caller: Caller) -> Result<Buffer<T>, NoMemory> {
        let block = self.block.take_late(demand, caller)?;
        Ok(self.over(block))
    }
}

impl<T> IsUsable for ForBuffer<'_, T> {}

impl<T> fmt::Debug for ForBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)
    }
}
