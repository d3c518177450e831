//! The request behind every future that waits for memory.
//!
//! A [`Request`] knows how to wait and on what terms. Its [`Kind`] knows what to ask for and what to make of the
//! memory: a block, several blocks, a reservation, the growth of one of these, or a charge for memory of others. The
//! first poll tries every source; a request that gets nothing joins the queue.

use crate::engine::{Allocations, Effort, Fill, NoMemory, Parts};
use crate::error::{AllocError, Shortfall};
use crate::handles::Caller;
use crate::id::ReservationId;
use crate::measure::Tag;
use crate::queue::{
    Ask, Asker, Demand, Denied, Made, Terms, Waiting, block_on_unless_in_task, error_of,
    is_far_from_tasks, may_block, try_now,
};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A request for memory, awaited.
///
/// [`Allocate`](crate::Allocate), [`AllocateOwned`](crate::AllocateOwned), [`AllocateMany`](crate::AllocateMany),
/// [`Reserve`](crate::Reserve), [`Grow`](crate::Grow), [`GrowReservation`](crate::GrowReservation) and
/// [`ChargeFor`](crate::extend::ChargeFor) are this type for different kinds of memory. It can be awaited, tried
/// ([`try_now`](Self::try_now)), or waited for on a thread ([`blocking`](Self::blocking)).
///
/// The first poll tries every [source](crate::Source) of memory. If none has enough, the request joins the queue,
/// in the order of its terms: first come, first served by default.
///
/// # Errors
///
/// At once, because waiting would not help:
/// - [`TooLarge`](AllocError::TooLarge): the request exceeds the pool's capacity. A
///   [`resize`](crate::Pool::resize) to less fails waiting requests in the same way.
/// - [`OverLimit`](AllocError::OverLimit): the request exceeds the limit of its tag.
/// - [`InvalidAlignment`](AllocError::InvalidAlignment), [`ForeignStream`](AllocError::ForeignStream).
/// - [`NoRoom`](AllocError::NoRoom): of a growth, or an allocation with [room](crate::Allocate::room), when the
///   addresses are taken.
/// - [`NotReservable`](AllocError::NotReservable): of a reservation, where nothing is pooled.
///
/// Instead of waiting:
/// - [`QueueFull`](AllocError::QueueFull): as many requests wait as the [queue
///   limit](crate::PoolBuilder::queue_limit) allows.
/// - [`Shed`](AllocError::Shed): the expected wait exceeds the timeout or deadline, where the pool [sheds
///   load](crate::PoolBuilder::load_shedding).
/// - [`Exhausted`](AllocError::Exhausted), [`LimitReached`](AllocError::LimitReached): of `try_now`.
///
/// Inside a [capture](crate::Pool::capture), where no request waits:
/// - [`NotReservedForCapture`](AllocError::NotReservedForCapture): the memory of the capture has too little left, and
///   the pool has no more now.
///
/// After waiting:
/// - [`TimedOut`](AllocError::TimedOut): the [timeout](Self::timeout) or [deadline](Self::deadline) is over.
/// - [`Deadlocked`](AllocError::Deadlocked), [`DeadlockedAtLimit`](AllocError::DeadlockedAtLimit): nothing can make
///   progress, where the pool [fails deadlocks](crate::PoolBuilder::fail_deadlocks_after).
///
/// At any time:
/// - [`Stopping`](AllocError::Stopping): the pool [admits no more requests](crate::Pool::stop_admitting).
/// - [`Closed`](AllocError::Closed): the pool was closed.
/// - [`Device`](AllocError::Device): the device failed.
///
/// A request never fails merely because memory is short at the moment: it waits.
///
/// # Cancel safety
///
/// Dropped before the grant, the request leaves the queue. Dropped after it, the granted memory goes to the next
/// waiter. In neither case is memory lost, freed early, or a wake-up missed. A forgotten request
/// (`mem::forget`) keeps its grant, or loses its turn once its task was woken and does not poll it for 100 ms; the pool ends
/// with its last handle.
/// An [owned](crate::AllocateOwned) request has a handle itself.
///
/// # Panics
///
/// Panics if it is polled after it was ready. On a device that checks orderings, panics with the violation found.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Request<K: Kind> {
    pub(super) kind: K,
    wish: Wish,
    /// It was never polled.
    is_new: bool,
    owner: Owner,
    waiting: Waiting,
    location: &'static Location<'static>,
}

/// How the owner of a request waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Polls,
    /// It is to be told of a stall as well.
    Watches,
    /// The caller is blocked until the request is ready.
    Blocks,
}

/// What a request asks for besides its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    pub(super) terms: Terms,
    /// The fill of the granted memory, instead of the pool's.
    pub(super) fill: Option<Fill>,
}

/// The kind of memory that a request asks for, and the output that it makes of it.
pub trait Kind: Unpin {
    /// The output of the future.
    type Output;

    /// Returns the stream and the pool of the request.
    fn asker(&self) -> Asker<'_>;

    /// Takes memory that the stream's cache has, for a tag, which is charged, or of a size that has no stack. `miss` is that
    /// of [`take_at_once`](Self::take_at_once), and of both afterwards.
    #[inline(always)]
    fn take_cached(&self, wish: &Wish, miss: &mut Miss) -> Option<Self::Output> {
        let _ = (wish, miss);
        None
    }

    /// Checks the request: says what it asks for, or takes memory that need not be searched for.
    ///
    /// # Errors
    /// Returns an error if the request can never be met.
    fn begin(&self, attempt: Attempt) -> Result<Begun<Self::Output>, AllocError>;

    /// Makes the output from granted memory.
    ///
    /// # Errors
    /// Returns an error if the device fails on the way; the memory is given back.
    fn granted(
        &mut self,
        asked: (&Demand, &Parts),
        allocations: Allocations,
        caller: Caller,
    ) -> Result<Self::Output, AllocError>;

    /// Handles the plain case: takes memory from the stream's cache, without any checks. If it returns `None`, nothing was
    /// checked, and `miss` says whether the cache was searched.
    #[inline(always)]
    fn take_at_once(&self, wish: &Wish, miss: &mut Miss) -> Option<Self::Output> {
        let _ = (wish, miss);
        None
    }

    /// Returns the reservation that the request may draw from, if it is made in the scope of one.
    fn scope(&self, demand: &Demand) -> Option<ReservationId> {
        let _ = demand;
        None
    }

    /// Draws from that reservation while the request waits for `demand`.
    ///
    /// # Errors
    /// Returns an error if the reservation has too little, or enough in pieces that are too small, or the device fails.
    fn take_late(&self, demand: &Demand, caller: Caller) -> Result<Self::Output, NoMemory> {
        let _ = (demand, caller);
        Err(NoMemory::short())
    }
}

/// Whether the stream's cache was searched in vain. Another thread may enter a scope or raise the capacity at any time, so
/// that one look finds the plain case and the next one does not: each look says for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// It is not the plain case.
    Unsearched,
    Searched,
}

/// What a request was made with.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub(super) tag: Option<Tag>,
    pub(super) caller: Caller,
    /// The stream's cache was searched.
    pub(super) is_searched: bool,
}

/// The beginning of a request.
pub enum Begun<T> {
    /// Memory that the stream's cache, the memory of a capture or a reservation had.
    Taken(T),
    /// The memory to search for.
    Asks(Ask),
}

/// The kinds of requests whose memory can be used at once, so that it can be filled.
pub trait IsUsable: Kind {}

impl<K: IsUsable> Request<K> {
    /// Fills the memory with zeros before its first use: [`filled`](Self::filled) with [`Fill::Zero`].
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.create_stream()?;
    /// # device.block_on(async {
    /// let counters = pool.allocate(&stream, 1024).zeroed().await?;
    /// assert_eq!(counters.download(&stream, 0..1024)?.await?, [0; 1024]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn zeroed(self) -> Self {
        self.filled(Fill::Zero)
    }

    /// Fills the memory with one byte before its first use: the [`Block::size`] bytes of each block, or the bytes that
    /// a growth adds. A pool that [fills](crate::FillAt::Allocation) allocated memory uses this byte instead
    /// of its own.
    ///
    /// The fill is work of the block's stream, submitted with the grant: no thread waits for it, and uses of the block
    /// come after it. A block that a [`Reservation`](crate::Reservation) allocates is filled with [`Block::fill`].
    ///
    /// # Errors
    /// When awaited or tried, returns the [errors of a request](Self#errors), and [`AllocError::Device`] if the device
    /// cannot fill the memory, which is freed then. It cannot on a stream that is being captured.
    ///
    /// [`Block::size`]: crate::Block::size
    /// [`Block::fill`]: crate::Block::fill
    pub fn filled(mut self, fill: impl Into<Fill>) -> Self {
        self.wish.fill = Some(fill.into());
        self
    }
}

impl<K: Kind> Request<K> {
    #[inline]
    pub(crate) fn new(kind: K, location: &'static Location<'static>) -> Self {
        Self {
            kind,
            wish: Wish::default(),
            is_new: true,
            owner: Owner::Polls,
            waiting: Waiting::NONE,
            location,
        }
    }

    /// Sets all terms of the request, and replaces those that were set before.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.wish.terms = terms;
        self
    }

    /// Sets the location in the source that reports give for the request, instead of that of the call: for layers that
    /// make requests for others.
    pub fn location(mut self, location: &'static Location<'static>) -> Self {
        self.location = location;
        self
    }

    /// Charges the memory, and the wait for it, to a tag for as long as the memory is held, within the tag's
    /// [limit](crate::TagAccount::set_limit). See
    /// [`TagAccount::statistics`](crate::TagAccount::statistics). A growth is charged to the tag of its block or
    /// reservation, whatever tag is given here.
    ///
    /// A tagged allocation adds to two counters on the tag's own cache line, and so does its free: threads
    /// that allocate for the same tag share that line, and others do not.
    pub fn tag(mut self, tag: Tag) -> Self {
        self.wish.terms.tag = Some(tag);
        self
    }

    /// Waits at most `timeout`, measured by the device's clock from the moment at which the request joins
    /// the queue. No runtime's timer is needed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.wish.terms.timeout = Some(timeout);
        self
    }

    /// Waits at most `within`, like a [timeout](Self::timeout), and is due at the end of it. Requests wait in
    /// the order in which they are due; a request without a deadline is due 1 s
    /// after it came.
    ///
    /// A request with a deadline therefore overtakes requests that are due later. No request is overtaken by
    /// requests that come after it is due, whatever their deadlines.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.wish.terms.deadline = Some(within);
        self
    }

    /// Makes the request due `steps` seconds earlier; later if negative. Default: 0.
    ///
    /// A request is overtaken by requests of `n` more steps that come up to `n` seconds later, and by no others.
    /// However many of them come, no request starves.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # use std::task::{Context, Waker};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).capacity(2 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// # let context = &mut Context::from_waker(Waker::noop());
    /// let block = pool.try_allocate(&stream, 2 << 20)?; // the whole capacity
    /// let mut batch = Box::pin(pool.allocate(&stream, 2 << 20));
    /// let mut interactive = Box::pin(pool.allocate(&stream, 2 << 20).priority(1));
    /// # assert!(batch.as_mut().poll(context).is_pending()); // it came first
    /// # assert!(interactive.as_mut().poll(context).is_pending());
    /// drop(block);
    /// drop(device.block_on(interactive)?); // although the batch came first
    /// drop(device.block_on(batch)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn priority(mut self, steps: i32) -> Self {
        self.wish.terms.priority = steps;
        self
    }

    /// Tries once, without waiting, as [`Pool::try_allocate`](crate::Pool::try_allocate) does.
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
    /// Returns [`AllocError::Exhausted`] or [`AllocError::LimitReached`] if there is not enough memory now; otherwise
    /// returns the [errors of a request](Self#errors). A request that was polled before counts as a waiter itself: this
    /// call returns `Exhausted`, and the request leaves the queue.
    #[inline]
    pub fn try_now(mut self) -> Result<K::Output, AllocError> {
        let mut miss = Miss::Unsearched;
        match self.kind.take_at_once(&self.wish, &mut miss) {
            Some(output) => Ok(output),
            None => self.try_slowly(miss),
        }
    }

    /// Blocks this thread until there is memory: for callers without an executor, on plain threads or behind a foreign
    /// function interface. The thread waits in the same queue, on the same terms, and is woken by the same frees.
    ///
    /// Inside a task it blocks the worker that runs the task, and with it all other tasks of that worker, among them
    /// those that would free memory:
    ///
    /// | called in | what to do |
    /// |---|---|
    /// | a task of a current-thread tokio runtime | `.await` the request. With the feature `tokio`, one that would have to wait fails with [`BlocksRuntime`](AllocError::BlocksRuntime) |
    /// | the same inside `tokio::task::unconstrained` | `.await` the request: the pool cannot see the task, and blocks |
    /// | a task of a multi-thread tokio runtime | call it inside `tokio::task::block_in_place`, which hands the worker's other tasks over |
    /// | `tokio::task::spawn_blocking`, or a separate thread | nothing |
    /// | a task of another executor | `.await` the request, or set a [timeout](Self::timeout) |
    ///
    /// If the pool has to grow, this thread makes the calls of the device.
    ///
    /// The device's clock must be advanced by another thread: a simulated device's own
    /// [executor](crate::device::sim::SimDevice::block_on) or a [manual](crate::device::sim::Clock::Manual) clock
    /// stands still while this thread blocks.
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
    /// Returns the [errors of a request](Self#errors), and [`BlocksRuntime`](AllocError::BlocksRuntime).
    ///
    /// # Panics
    /// On a device that checks orderings, panics with the violation found.
    pub fn blocking(mut self) -> Result<K::Output, AllocError> {
        self.owner = Owner::Blocks;
        block_on_unless_in_task(&mut self).unwrap_or_else(|| {
            let requested = self.waiting.requested();
            self.waiting.record_failed();
            Err(AllocError::BlocksRuntime { requested })
        })
    }

    /// Is ready when nothing can serve the request, although it is the first that waits: when it has reached the head of the
    /// queue and there is not enough memory for it, after polling events, flushing caches, growing and evicting; or when
    /// it is the first request at the limit of its [tag](Self::tag), and evicting memory of the tag does not help. This is
    /// for owners that can free memory themselves. [Pending](Shortfall::pending) memory may be enough without help.
    ///
    /// The result describes the request and the state of the pool. It is given once while the request waits at the limit
    /// of its tag, and once while it waits in the queue; all other calls return `Pending`.
    ///
    /// The owner goes on polling the request itself, before or after this call, in the same task: this call serves the
    /// queue, and does not take the memory. The stall decides nothing. The request keeps its queue position, and takes
    /// memory that any caller frees. Before the first poll of the request this call notes that the owner wants to be
    /// told, and after the last one it is always pending.
    ///
    /// A request has one waker: that of the latest poll, of either kind. It is called when the request stalls, and when
    /// it is granted or fails. A request that is never asked for a stall does nothing for it.
    ///
    /// See [the guide](crate::guide::stalled_requests) for a service that drops its own cache, and `weirpool-pressure` for
    /// hooks that are futures.
    ///
    /// # Cancel safety
    /// Nothing is lost if the caller stops polling for stalls: a stall that was not told is told by the next call, as
    /// long as the request is still the first.
    pub fn poll_stalled(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Shortfall> {
        let this = &mut *self;
        this.owner = Owner::Watches;
        let service = this.kind.asker().service;
        this.waiting.poll_stalled(service, context.waker())
    }

    /// `miss` is that of [`take_cached`](Kind::take_cached).
    fn attempt(&self, miss: Miss) -> Attempt {
        Attempt {
            tag: self.wish.terms.tag,
            caller: self.caller(false),
            is_searched: miss == Miss::Searched,
        }
    }

    fn caller(&self, waited: bool) -> Caller {
        Caller {
            waited,
            fill: self.wish.fill,
            ..Caller::at(self.location)
        }
    }

    #[cold]
    #[inline(never)]
    fn try_slowly(&mut self, mut miss: Miss) -> Result<K::Output, AllocError> {
        match self.kind.take_cached(&self.wish, &mut miss) {
            Some(output) => Ok(output),
            None => self.search_now(miss),
        }
    }

    /// Takes memory that the stream's cache has not.
    #[inline]
    pub(super) fn search_now(&mut self, miss: Miss) -> Result<K::Output, AllocError> {
        let attempt = self.attempt(miss);
        let ask = match self.kind.begin(attempt)? {
            Begun::Taken(output) => return Ok(output),
            Begun::Asks(ask) => ask,
        };
        let asker = self.kind.asker();
        let found = try_now(asker, &ask, Effort::Immediate);
        let allocations = found.map_err(|(why, _)| error_of(why, asker, &ask.demand))?;
        let asked = (&ask.demand, &ask.parts);
        self.kind.granted(asked, allocations, attempt.caller)
    }

    /// Writes the result to `polled`. If it were returned instead, it would be written to the place of the plain case's
    /// block, and that block would go through memory as well.
    #[cold]
    #[inline(never)]
    fn poll_into(
        &mut self,
        polled: &mut Poll<Result<K::Output, AllocError>>,
        context: &mut Context<'_>,
        miss: Miss,
    ) {
        *polled = match std::mem::take(&mut self.is_new) {
            true => self.poll_new(context, miss),
            false => self.poll_waiting(context),
        };
    }

    /// Takes memory from any source but the queue. A caller that blocks makes all calls, unless it runs a task that it
    /// must not block. In a runtime that may be so, the runtime is asked only if a poll's calls are not enough: a task
    /// that asks has to yield.
    fn take_first<'a>(
        asker: Asker<'a>,
        ask: &mut Ask,
        is_blocking: bool,
    ) -> Result<Allocations, Denied<'a>> {
        if is_blocking && is_far_from_tasks() {
            return try_now(asker, ask, Effort::Thread);
        }
        match try_now(asker, ask, Effort::Poll) {
            Err((why, charge)) if is_blocking && why.may_pass() && may_block() => {
                // Gives it back.
                drop(charge);
                ask.is_searched = true;
                try_now(asker, ask, Effort::Thread)
            }
            answer => answer,
        }
    }

    fn poll_new(
        &mut self,
        context: &mut Context<'_>,
        mut miss: Miss,
    ) -> Poll<Result<K::Output, AllocError>> {
        if let Some(output) = self.kind.take_cached(&self.wish, &mut miss) {
            return Poll::Ready(Ok(output));
        }
        let attempt = self.attempt(miss);
        let mut ask = match self.kind.begin(attempt)? {
            Begun::Taken(output) => return Poll::Ready(Ok(output)),
            Begun::Asks(ask) => ask,
        };
        let asker = self.kind.asker();
        let found = match Self::take_first(asker, &mut ask, self.owner == Owner::Blocks) {
            Ok(allocations) => Some(allocations),
            Err(denied) => {
                let made = Made {
                    scope: self.kind.scope(&ask.demand),
                    location: self.location,
                };
                let (terms, waker) = (&self.wish.terms, context.waker());
                self.waiting.join(asker, denied, &ask, terms, made, waker)?;
                if self.owner == Owner::Watches {
                    self.waiting.watch_for_stall(asker.service);
                }
                None
            }
        };
        let Some(allocations) = found else {
            return self.poll_waiting(context);
        };
        let asked = (&ask.demand, &ask.parts);
        Poll::Ready(self.kind.granted(asked, allocations, attempt.caller))
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Result<K::Output, AllocError>> {
        let caller = self.caller(true);
        // Before the queue is looked at: if the request fails there, its reservation may have memory for it.
        if let Some(drawn) = self.draw(caller) {
            return Poll::Ready(drawn);
        }
        let service = self.kind.asker().service;
        match self.waiting.poll(service, context.waker()) {
            Poll::Ready(Ok((waiter, allocations))) => {
                let asked = (&waiter.demand, &waiter.parts);
                Poll::Ready(self.kind.granted(asked, allocations, caller))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // Memory may have come back before the waker was stored.
            Poll::Pending => self.draw(caller).map_or(Poll::Pending, Poll::Ready),
        }
    }

    /// Draws from the reservation in whose scope the waiting request was made, if it can.
    fn draw(&mut self, caller: Caller) -> Option<Result<K::Output, AllocError>> {
        let kind = &self.kind;
        let draw = |demand: &Demand| kind.take_late(demand, caller);
        self.waiting.draw(kind.asker().service, draw)
    }
}

impl<K: Kind> Drop for Request<K> {
    #[inline]
    fn drop(&mut self) {
        if self.waiting.is_some() {
            let service = self.kind.asker().service;
            self.waiting.abandon(service);
        }
    }
}

impl<K: Kind> Future for Request<K> {
    type Output = Result<K::Output, AllocError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut miss = Miss::Unsearched;
        if this.is_new
            && let Some(output) = this.kind.take_at_once(&this.wish, &mut miss)
        {
            this.is_new = false;
            return Poll::Ready(Ok(output));
        }
        let mut polled = Poll::Pending;
        this.poll_into(&mut polled, context, miss);
        polled
    }
}
