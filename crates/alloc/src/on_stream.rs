//! Memory of weirpool, on one of its streams.

use crate::StreamMemory;
use std::fmt;
use std::future::{Future, ready};
use weirpool::device::{DeviceStream, NativeStream};
use weirpool::{AllocError, Block, Pool, Reservation, Stream, StreamError, Terms};
use weirpool_compat::Current;

/// A [`Pool`] or a [`Reservation`], with a stream that is registered there. Make it once for a stream and keep it: it
/// allocates at the cost of the pool's own calls, without a lookup.
pub struct OnStream<M, W> {
    memory: M,
    stream: Stream,
    work: W,
    terms: Terms,
}

impl<M, W> OnStream<M, W> {
    fn new(memory: M, stream: Stream, work: W) -> Self {
        let terms = Terms::default();
        Self {
            memory,
            stream,
            work,
            terms,
        }
    }

    /// Returns the stream as it is registered with the pool.
    pub fn registered(&self) -> &Stream {
        &self.stream
    }
}

impl<W: DeviceStream> OnStream<Pool, W> {
    /// Registers a stream with a pool. The library's requests wait in the pool's queue, and draw from the reservation in
    /// whose [scope](Reservation::scope) they are made, as all requests do.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn of_pool(pool: &Pool, work: W) -> Result<Self, StreamError> {
        Ok(Self::new(pool.clone(), pool.register(&work)?, work))
    }

    /// Takes the pool of an input block, and the block's own stream if `work` is that one. Another stream is registered.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn of_block(block: &Block, work: W) -> Result<Self, StreamError>
    where
        W: NativeStream,
    {
        let (home, properties) = (block.stream(), work.properties()?);
        let pool = home.pool();
        // The pool keeps a stream with a native object, so that no other stream has its name.
        let is_home = home.native::<W>().is_ok()
            && (home.device().id(), home.raw()) == (properties.device, properties.raw);
        let stream = match is_home {
            true => home,
            false => pool.register(&work)?,
        };
        Ok(Self::new(pool, stream, work))
    }

    /// Takes a device's current pool: `OnStream::of_current(&current(&device)?, work)`. A pool that becomes the current
    /// one later is not seen. This is a lookup of the stream, cheap enough for each call of a library.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn of_current(current: &Current, work: W) -> Result<Self, StreamError> {
        Ok(Self::new(
            current.pool().clone(),
            current.stream(&work)?,
            work,
        ))
    }

    /// Sets the terms on which the library's requests wait: a tag, a timeout, a priority.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }
}

impl<'a, W: DeviceStream> OnStream<&'a Reservation, W> {
    /// Registers a stream with the pool of a reservation. Every block is a part of the reservation: nothing waits, and a
    /// request for more than is left fails. For requests that then wait for memory of the pool, use
    /// [`of_pool`](OnStream::of_pool) in the [scope](Reservation::scope) of the reservation.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub fn of_reservation(reservation: &'a Reservation, work: W) -> Result<Self, StreamError> {
        let stream = reservation.pool().register(&work)?;
        Ok(Self::new(reservation, stream, work))
    }
}

// SAFETY: each constructor registers `work` as `stream`, and the pool keeps the order of its blocks.
#[allow(unsafe_code, reason = "says whose order the blocks have")]
unsafe impl<W> StreamMemory for OnStream<Pool, W> {
    type Stream = W;
    type Block = Block;
    type Error = AllocError;

    fn stream(&self) -> &W {
        &self.work
    }

    #[track_caller]
    fn allocate(&self, bytes: u64) -> impl Future<Output = Result<Block, AllocError>> + Send {
        self.memory.allocate(&self.stream, bytes).terms(self.terms)
    }

    #[track_caller]
    fn try_allocate(&self, bytes: u64) -> Result<Block, AllocError> {
        let request = self.memory.allocate(&self.stream, bytes);
        request.terms(self.terms).try_now()
    }
}

// SAFETY: as above.
#[allow(unsafe_code, reason = "says whose order the blocks have")]
unsafe impl<W> StreamMemory for OnStream<&Reservation, W> {
    type Stream = W;
    type Block = Block;
    type Error = AllocError;

    fn stream(&self) -> &W {
        &self.work
    }

    #[track_caller]
    fn allocate(&self, bytes: u64) -> impl Future<Output = Result<Block, AllocError>> + Send {
        ready(self.try_allocate(bytes))
    }

    #[track_caller]
    fn try_allocate(&self, bytes: u64) -> Result<Block, AllocError> {
        self.memory.allocate(&self.stream, bytes)
    }
}

impl<M: fmt::Debug, W> fmt::Debug for OnStream<M, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStream")
            .field("memory", &self.memory)
            .field("stream", &self.stream.id())
            .finish_non_exhaustive()
    }
}
