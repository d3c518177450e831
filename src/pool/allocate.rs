//! An allocation, awaited.

use super::Pool;
use crate::block::Block;
use crate::error::AllocError;
use crate::stream::Stream;
use crate::wait::Allocation;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The future of [`Pool::allocate`]: a [`Block`], once there is memory for it.
///
/// It borrows its handles, so that a grant from the stream's lane writes no shared count; clone them
/// into an `async move` block where it must outlive them.
///
/// # Errors
///
/// - [`AllocError::TooLarge`] at once, when the request can never fit;
/// - [`AllocError::InvalidAlignment`], [`AllocError::ForeignStream`] at once;
/// - [`AllocError::TimedOut`] when a [timeout](Self::timeout) was set and is over;
/// - [`AllocError::Closed`] when the pool is or was closed;
/// - [`AllocError::Device`] when the device failed.
///
/// It never fails because memory is short for a moment: it waits.
///
/// # Cancel safety
///
/// Dropped before the grant, it leaves the queue. Dropped after it, the grant goes to the next. In
/// neither case is memory lost, freed early, or a wake-up missed. A future that is forgotten
/// (`mem::forget`) keeps its place or its grant, and nothing else.
///
/// # Panics
///
/// When polled after it was ready. On a device that checks orderings, with what it found.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Allocate<'a> {
    pool: &'a Pool,
    allocation: Allocation<'a>,
    bytes: u64,
    alignment: u64,
    timeout: Option<Duration>,
    place: &'static Location<'static>,
}

impl<'a> Allocate<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        stream: &'a Stream,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Self {
        Self {
            pool,
            allocation: Allocation::new(stream.registration()),
            bytes,
            alignment: 1,
            timeout: None,
            place,
        }
    }

    /// Aligns the block's address to `alignment` bytes: a power of two, up to the device's step. Every
    /// block is aligned to 512 bytes anyway.
    pub fn alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// Waits no longer than `timeout`, measured by the device's clock from the moment at which it joins
    /// the queue. No runtime's timer is needed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl Future for Allocate<'_> {
    type Output = Result<Block, AllocError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let registration = this.allocation.registration();
        let request = this
            .pool
            .request(registration, this.bytes, this.alignment)?;
        let lent = ready!(this.allocation.poll(request, this.timeout, context))?;
        let block = Block::new(registration.clone(), lent, this.bytes, this.place);
        Poll::Ready(Ok(block))
    }
}
