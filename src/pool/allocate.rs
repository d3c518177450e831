//! An allocation, awaited.

use super::{AllocateWithRoom, Call, Pool};
use crate::block::Block;
use crate::error::AllocError;
use crate::lane::Miss;
use crate::measure::Tag;
use crate::queue::{Acquisition, Caller, Demand, Registration, Terms, block_on, take_own};
use crate::stream::Stream;
use crate::sync::Arc;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
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
    registration: &'a Arc<Registration>,
    allocation: Acquisition<'a>,
    bytes: u64,
    alignment: u64,
    tag: Option<Tag>,
    terms: Terms,
    location: &'static Location<'static>,
}

impl<'a> Allocate<'a> {
    #[inline]
    pub(crate) fn new(
        pool: &'a Pool,
        stream: &'a Stream,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Self {
        let registration = stream.registration();
        Self {
            pool,
            registration,
            allocation: Acquisition::new((&**registration).into()),
            bytes,
            alignment: 1,
            tag: None,
            terms: Terms::default(),
            location,
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
        self.terms.timeout = Some(timeout);
        self
    }

    /// Waits no longer than `within`, as with a [timeout](Self::timeout), and is due then: requests wait in
    /// the order in which they are due, and one without a deadline is due a
    /// [fixed time](super::PoolBuilder::due_after) after it came, 1 s by default.
    ///
    /// So a request with a deadline passes those that are due later, and no request is passed by any that
    /// come after it is due, whatever their deadlines.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.terms.deadline = Some(within);
        self
    }

    /// Is due `steps` [priority steps](super::PoolBuilder::priority_step) earlier than it would be, of 1 s
    /// each by default; later if negative. Default: 0.
    ///
    /// A request is passed by those of `n` steps more that come up to `n` steps later, and by no others: however
    /// many come, nobody starves.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # use std::task::{Context, Waker};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(2 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// # let context = &mut Context::from_waker(Waker::noop());
    /// let block = pool.try_allocate(&stream, 2 << 20)?; // all there is
    /// let mut batch = Box::pin(pool.allocate(&stream, 2 << 20));
    /// let mut interactive = Box::pin(pool.allocate(&stream, 2 << 20).priority(1));
    /// # assert!(batch.as_mut().poll(context).is_pending()); // it came first
    /// # assert!(interactive.as_mut().poll(context).is_pending());
    /// drop(block);
    /// drop(device.block_on(interactive)?); // though the other came first
    /// drop(device.block_on(batch)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn priority(mut self, steps: i32) -> Self {
        self.terms.priority = steps;
        self
    }

    /// Keeps addresses for `bytes` more above the block, into which it can [grow](Block::grow): no memory, which
    /// comes as it grows. Where memory is virtual. The block is made of whole
    /// [handles](super::PoolBuilder::chunk_bytes), so choose them small for blocks that begin small.
    ///
    /// A pool has several times as many addresses as its capacity, and what room is kept of them is nobody else's
    /// until the block is freed.
    ///
    /// It comes from the pool, also in a reservation's [scope](super::Reservation::scope).
    pub fn room(self, bytes: u64) -> AllocateWithRoom<'a> {
        let whose = (self.pool, self.registration);
        AllocateWithRoom::new(
            whose,
            (self.bytes, bytes),
            (self.tag, self.terms),
            self.location,
        )
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
        self.pool.grant_now(self.call())
    }

    /// Blocks this thread until there is memory: for callers without an executor, on plain threads or behind a
    /// foreign interface. The thread waits in the same queue, on the same terms, and is woken by the same
    /// frees; while it is parked it drives the pool for all who wait, as a [reclaimer](crate::Reclaimer) does.
    ///
    /// Inside a task it blocks the worker that runs it, and all other tasks of that worker with it: those that
    /// would free what it waits for, too. `.await` there, or set a [timeout](Self::timeout). What moves the
    /// device's clock must not be this thread: a simulated device's own
    /// [executor](crate::device::sim::SimDevice::block_on), say, or who advances a
    /// [manual](crate::device::sim::Clock::Manual) clock.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
    /// # let (stream, other) = (pool.create_stream()?, pool.create_stream()?);
    /// let all = pool.try_allocate(&stream, 64 << 20)?;
    /// let thread = std::thread::spawn(move || drop(all));
    /// let block = pool.allocate(&other, 1 << 20).timeout(Duration::from_secs(9)).blocking()?;
    /// # thread.join().unwrap();
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As when it is [awaited](Self).
    ///
    /// # Panics
    /// On a device that checks orderings, with what it found.
    pub fn blocking(self) -> Result<Block, AllocError> {
        let service = &self.registration.service;
        block_on(service, self)
    }

    #[inline(always)]
    fn call(&self) -> Call<'_> {
        Call {
            registration: self.registration,
            bytes: self.bytes,
            alignment: self.alignment,
            tag: self.tag,
            location: self.location,
        }
    }
}

impl Allocate<'_> {
    fn poll_slowly(
        &mut self,
        miss: Miss,
        context: &mut Context<'_>,
    ) -> Poll<Result<Block, AllocError>> {
        let demand = self
            .pool
            .demand(self.registration, self.bytes, self.alignment, self.tag)?;
        let mut own = None;
        if self.allocation.is_new() {
            if let Some(drawn) = self.pool.draw(self.registration, &demand, self.location) {
                self.allocation.end();
                return Poll::Ready(drawn);
            }
            own = take_own(self.registration, &demand, miss);
        }
        let allocation = match own {
            Some(allocation) => {
                self.allocation.end();
                allocation
            }
            None => match self.allocation.poll(&demand, &self.terms, context) {
                Poll::Ready(allocation) => allocation?,
                Poll::Pending => return self.draw_late(&demand),
            },
        };
        let caller = Caller {
            location: self.location,
            waited: self.allocation.has_waited(),
        };
        Poll::Ready(Block::new(self.registration, allocation, &demand, caller))
    }

    /// Into a place of its own. Would it be returned, it would be written where the plain case's block goes, and that
    /// would go through memory as well.
    #[cold]
    #[inline(never)]
    fn poll_into(
        &mut self,
        polled: &mut Poll<Result<Block, AllocError>>,
        miss: Miss,
        context: &mut Context<'_>,
    ) {
        *polled = self.poll_slowly(miss, context);
    }

    /// It waits. What the reservation of its scope lacked may be there by now: of what the pressure hook freed, say.
    #[cold]
    fn draw_late(&mut self, demand: &Demand) -> Poll<Result<Block, AllocError>> {
        let drawn = self
            .pool
            .draw_late(self.registration, demand, self.location);
        match drawn {
            Some(drawn) => {
                self.allocation.abandon();
                Poll::Ready(drawn)
            }
            None => Poll::Pending,
        }
    }
}

impl Future for Allocate<'_> {
    type Output = Result<Block, AllocError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut miss = Miss::NotSearched;
        if this.allocation.is_new() {
            match this.pool.grant_at_once(this.call()) {
                Ok(block) => {
                    this.allocation.end();
                    return Poll::Ready(Ok(block));
                }
                Err(why) => miss = why,
            }
        }
        let mut polled = Poll::Pending;
        this.poll_into(&mut polled, miss, context);
        polled
    }
}
