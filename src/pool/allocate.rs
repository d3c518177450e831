//! An allocation, awaited.

use super::Pool;
use crate::block::Block;
use crate::error::AllocError;
use crate::measure::Tag;
use crate::stream::Stream;
use crate::wait::{Allocation, Asker, Demand};
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
    tag: Option<Tag>,
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
            tag: None,
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

    /// Has the block counted for `tag` as long as it lives, and the wait for it: see
    /// [`Pool::statistics_of_tag`](super::Pool::statistics_of_tag).
    ///
    /// A tagged allocation adds to two numbers of the tag's own cache line, and so does its free:
    /// threads that allocate for the same tag share that line, and nobody else does.
    pub fn tag(mut self, tag: Tag) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Waits no longer than `timeout`, measured by the device's clock from the moment at which it joins
    /// the queue. No runtime's timer is needed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl Allocate<'_> {
    /// The same now or not at all, as [`Pool::try_allocate`](super::Pool::try_allocate), with the
    /// alignment and the tag that were set.
    ///
    /// ```
    /// # use weirpool::{Pool, Tag, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let tag = Tag::new("workspace");
    /// let block = pool.allocate(&stream, 4096).alignment(4096).tag(tag).try_now()?;
    /// assert_eq!(block.tag(), Some(tag));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::try_allocate`](super::Pool::try_allocate), and [`AllocError::InvalidAlignment`].
    /// One that was polled before waits itself: it is told that there is not enough, and leaves the queue.
    #[inline]
    pub fn try_now(self) -> Result<Block, AllocError> {
        let registration = self.allocation.registration();
        let demand = self.demand()?;
        self.pool.grant_now(registration, demand, self.place)
    }

    /// Checks what is asked for at the door.
    #[inline]
    fn demand(&self) -> Result<Demand, AllocError> {
        let registration = self.allocation.registration();
        self.pool
            .demand(registration, self.bytes, self.alignment, self.tag)
    }
}

impl Future for Allocate<'_> {
    type Output = Result<Block, AllocError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let demand = this.demand()?;
        let lent = ready!(this.allocation.poll(&demand, this.timeout, context))?;
        let registration = this.allocation.registration().clone();
        let asker = Asker {
            place: this.place,
            waited: this.allocation.has_waited(),
        };
        Poll::Ready(Ok(Block::new(registration, lent, &demand, asker)))
    }
}
