//! The pressure hook: whom the pool asks to free something before a request goes on waiting.
//!
//! It is asked for the head of the queue, once it is found that it cannot be served: once for each request,
//! and for one at a time. Whoever serves only says so, and wakes the head; the hook's future is made and polled
//! by the request's own future, beside its waiting, and is dropped with it. So it needs no runtime, holds up
//! nobody, and keeps nothing alive.

use super::Service;
use super::funnel::wake;
use super::waiter::Waiter;
use super::waiters::Queue;
use crate::error::Shortfall;
use crate::measure::Tag;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag, plain};
use crate::trace;
use async_trait::async_trait;
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Somebody who can free memory of the pool, and is asked to when a request must wait: by spilling to the host,
/// by evicting what is cached, by turning work away. For
/// [`PoolBuilder::pressure_hook`](crate::PoolBuilder::pressure_hook).
///
/// # When it is asked
///
/// When a request has reached the head of the queue and there is not enough for it: after reaping what has
/// completed, taking back what lanes keep, and growing. Once for each such request, and for one at a time. A
/// request of a [tag](crate::Tag) over its limit is asked for once the tag lets it in;
/// [`try_allocate`](crate::Pool::try_allocate) never asks. What is [pending](Shortfall::pending) may do
/// without more.
///
/// The request keeps its place meanwhile, and waits as ever: what the hook frees is seen at once, and so is
/// what anybody else frees. Nothing rests on the answer.
///
/// # What it may do
///
/// Anything, in its own time: its future is polled by the request's, in its task, and holds up no other. Once
/// the request was served, timed out or was cancelled, the future is dropped: what must go on is to be spawned.
/// An error, or a panic, is told to a subscriber of `tracing`, and the request waits on.
///
/// It may allocate from the same pool, say a staging buffer: within its future such allocations go ahead of
/// the queue, and never wait, nor ask: they fail with [`AllocError::Exhausted`](crate::AllocError::Exhausted) where there is not enough.
///
/// It works for the pool, though in the task of whoever is short: the [scopes](crate::Reservation::scope) that the
/// request was made in are not the hook's, and nothing that it allocates is taken from what was set aside there. It
/// may have scopes of its own. A request that was made in a scope is served by what the hook frees of the
/// reservation, too.
///
/// What it holds lives as long as the pool is open: a hook with blocks, streams or handles of its own pool
/// keeps that alive until it is [closed](crate::Pool::close). Hold them weakly otherwise.
///
/// ```
/// use async_trait::async_trait;
/// use std::sync::{Arc, Mutex};
/// use weirpool::{Block, Pool, PressureHook, Shortfall, device::sim::SimDevice};
///
/// #[derive(Clone, Default)]
/// struct Cache(Arc<Mutex<Vec<Block>>>);
///
/// #[async_trait]
/// impl PressureHook for Cache {
///     async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///         let mut missing = shortfall.requested.saturating_sub(shortfall.free + shortfall.pending);
///         while missing > 0 {
///             let Some(evicted) = self.0.lock().unwrap().pop() else {
///                 return Err("the cache is empty".into());
///             };
///             missing = missing.saturating_sub(evicted.size());
///         }
///         Ok(())
///     }
/// }
///
/// # let device = SimDevice::new();
/// let cache = Cache::default();
/// let pool = Pool::builder(device.clone())
///     .capacity(64 << 20)
///     .pressure_hook(cache.clone())
///     .build()?;
/// let stream = pool.create_stream()?;
/// let cached = pool.try_allocate(&stream, 48 << 20)?;
/// cache.0.lock().unwrap().push(cached);
/// let block = device.block_on(pool.allocate(&stream, 32 << 20))?; // evicts it
/// # drop(block);
/// pool.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait PressureHook: Send + Sync {
    /// Frees what it can, of the pool's memory. Which request needs it, and how memory stands, is in the
    /// shortfall.
    ///
    /// # Errors
    /// Whatever kept it from that: it is told, and that is all.
    ///
    /// # Cancel safety
    /// It is dropped when the request is over: it must be safe to.
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>>;
}

#[async_trait]
impl<H: PressureHook + ?Sized> PressureHook for plain::Arc<H> {
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>> {
        (**self).relieve(shortfall).await
    }
}

/// A hook, as it is kept.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) plain::Arc<dyn PressureHook>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PressureHook")
    }
}

/// The pool's hook, and whether it is at work.
#[derive(Debug)]
pub(super) struct Hooked {
    hook: Mutex<Option<Hook>>,
    is_busy: SharedFlag,
}

impl Hooked {
    pub(super) fn new(hook: Option<Hook>) -> Self {
        Self {
            hook: Mutex::new(Guards::Queue, hook),
            is_busy: SharedFlag::new(false),
        }
    }

    /// The hook is not asked any more.
    pub(super) fn end(&self) {
        let hook = self.hook.lock().take();
        // Outside the lock: it may own anything, blocks included.
        drop(hook);
    }

    /// Whether a request may be offered the hook. When it is at work, the end of that work offers it anew.
    fn is_free(&self) -> bool {
        self.hook.lock().is_some() && !self.is_busy.load(Ordering::SeqCst)
    }

    /// The head of the queue cannot be served: its future is to ask.
    pub(super) fn offer_to(&self, waiter: &Waiter) {
        if self.is_free() && waiter.hook.offer() {
            waiter.waker().into_iter().for_each(wake);
        }
    }

    /// The first requests of quota queues are others, or the hook is free: their futures are to ask.
    pub(super) fn offer_to_throttled(&self, queue: &Queue) {
        if self.is_free() {
            let firsts = queue.firsts_throttled();
            firsts.iter().for_each(|first| self.offer_to(first));
        }
    }

    /// A throttled request looks: if it is the first of its tag, it is to ask.
    pub(super) fn offer_if_first(&self, waiter: &Waiter, tag: Tag, queue: &Queue) {
        let is_first = |first: Arc<Waiter>| first.sort_key == waiter.sort_key;
        if self.is_free() && queue.first_throttled(tag).is_some_and(is_first) {
            waiter.hook.offer();
        }
    }

    /// Starts the hook for a request that may ask, unless it is at work for another one.
    pub(super) fn ask(&self, service: &Arc<Service>, waiter: &Waiter) -> Option<Asking> {
        if !waiter.hook.may_ask() || self.is_busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        let Some(hook) = self.hook.lock().clone() else {
            self.is_busy.store(false, Ordering::SeqCst);
            return None;
        };
        waiter.hook.note_asked();
        let shortfall = service.shortfall(&waiter.demand);
        let future: Answer = Box::pin(async move { hook.0.relieve(shortfall).await });
        Some(Asking {
            future: Mutex::new(Guards::Waiter, Some(future)),
            pool: service.name(),
        })
    }
}

impl Service {
    /// Whether this thread is within the hook of this pool.
    pub(super) fn is_in_hook(&self) -> bool {
        // A thread that is ending is in none.
        let is_inside = INSIDE.try_with(|inside| inside.borrow().contains(&self.name()));
        is_inside.unwrap_or_default()
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

/// The hook at work, for one request. It does not keep the pool alive.
#[must_use = "no other request may ask until this is ended"]
pub(super) struct Asking {
    /// `None` once it has answered. It is only used through a unique reference; the lock makes this type `Sync`.
    future: Mutex<Option<Answer>>,
    /// The name of the pool.
    pool: usize,
}

impl Asking {
    /// Returns whether the hook has answered.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(future) = self.future.get_mut() else {
            return true;
        };
        let polled = {
            let _inside = Inside::new(self.pool);
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)))
        };
        match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(Ok(()))) => {}
            Ok(Poll::Ready(Err(error))) => trace::hook_failed(&error),
            Err(_) => trace::hook_failed(&"it panicked"),
        }
        true
    }

    /// Ends the work of the hook, which is interrupted if it has not answered. Then another request may ask.
    pub(super) fn end(mut self, service: &Arc<Service>) {
        {
            let _inside = Inside::new(self.pool);
            // Still inside the hook: before another request may ask.
            drop(self.future.get_mut().take());
        }
        service.hooked.is_busy.store(false, Ordering::SeqCst);
        // Other requests may need the hook.
        service.hooked.offer_to_throttled(&service.queue);
        Service::serve_candidate(service);
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

thread_local! {
    /// The pools within whose hooks this thread is.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct Inside;

impl Inside {
    fn new(pool: usize) -> Self {
        // A thread that is ending may drop a hook at work: it counts as in none.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push(pool));
        Self
    }
}

/// Within how many hooks this thread is: a scope that was entered within fewer is not theirs.
pub(crate) fn hooks_entered() -> usize {
    // A thread that is ending is in none.
    INSIDE
        .try_with(|inside| inside.borrow().len())
        .unwrap_or_default()
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}
