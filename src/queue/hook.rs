//! The pressure hook: asked to free memory before a request waits on.
//!
//! The hook is asked for the head of the queue once that cannot be served, and for the first request at a tag's limit:
//! once for each request, and for one request at a time. The serving thread only offers the hook and wakes the request.
//! The request's own future makes, polls and drops the hook's future. So the hook needs no runtime, delays no other
//! request, and keeps nothing alive.

use super::Service;
use super::funnel::wake_all;
use super::waiter::Waiter;
use super::waiters::Waiters;
use crate::engine::Announcer;
use crate::error::Shortfall;
use crate::measure::Tag;
use crate::seam::Fact;
use crate::sync::{Arc, ForeignOption, Guards, Mutex, Ordering, SharedFlag, plain, thread_local};
use async_trait::async_trait;
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Frees memory of the pool when a request must wait: by moving data to the host, or by rejecting work. Blocks that can
/// be dropped at any time are better made [evictable](crate::Evictable). For
/// [`PoolBuilder::pressure_hook`](crate::PoolBuilder::pressure_hook).
///
/// # When it is asked
///
/// The pool asks when a request has reached the head of the queue and there is not enough memory for it, after polling
/// events, flushing caches, growing and evicting. It also asks for the first request that waits for the limit of its
/// [tag](crate::Tag). It asks once for each such request, and for one request at a time.
/// [`try_allocate`](crate::Pool::try_allocate) never asks. [Pending](Shortfall::pending) memory may be enough without
/// help.
///
/// The request keeps its queue position meanwhile. It takes memory that the hook frees, and memory that any other
/// caller frees. The hook's answer decides nothing.
///
/// # What it may do
///
/// It may take its time: its future is polled by the request's future, in the same task, and delays no other request.
/// When the request is granted, times out or is cancelled, the hook's future is dropped; spawn work that must go on. An
/// error or a panic is reported to a subscriber of `tracing`, and the request waits on.
///
/// It may allocate from the same pool, for example a staging buffer. Inside the hook's future such allocations pass the
/// queue, and never wait or ask: they fail with [`AllocError::Exhausted`](crate::AllocError::Exhausted) if there is not
/// enough memory.
///
/// It works for the pool, although in the task of the request. So it is outside the
/// [scopes](crate::Reservation::scope) of that request, and its allocations draw from no reservation of these. It may
/// have scopes of its own. A request that was made in a scope is also served by memory that the hook frees into the
/// reservation.
///
/// The pool drops the hook when it is [closed](crate::Pool::close). A hook that owns blocks, streams or handles of its
/// own pool keeps the pool alive until then; use weak references otherwise.
///
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
    /// Frees memory of the pool. `shortfall` describes the request and the state of the pool.
    ///
    /// # Errors
    /// Returns any error; it is only reported.
    ///
    /// # Cancel safety
    /// The future is dropped when the request ends, at any await point.
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>>;
}

#[async_trait]
impl<H: PressureHook + ?Sized> PressureHook for plain::Arc<H> {
    async fn relieve(&self, shortfall: Shortfall) -> Result<(), Box<dyn Error + Send + Sync>> {
        (**self).relieve(shortfall).await
    }
}

/// A hook as the pool keeps it.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) plain::Arc<dyn PressureHook>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PressureHook")
    }
}

/// The pool's hook, and whether it is working.
#[derive(Debug)]
pub(super) struct Hooked {
    /// Whether the pool was built with a hook.
    is_set: bool,
    hook: ForeignOption<Hook>,
    is_busy: SharedFlag,
    announcer: plain::Arc<Announcer>,
}

impl Hooked {
    pub(super) fn new(hook: Option<Hook>, announcer: plain::Arc<Announcer>) -> Self {
        Self {
            announcer,
            is_set: hook.is_some(),
            hook: ForeignOption::new(Guards::Queue, hook),
            is_busy: SharedFlag::new(false),
        }
    }

    /// Ends the hook: it is not asked any more.
    pub(super) fn end(&self) {
        self.hook.set(None);
    }

    /// Returns whether a request may be offered the hook. A hook that is working is offered anew when it ends.
    fn is_free(&self) -> bool {
        self.hook.read(|hook| hook.is_some()) && !self.is_busy.load(Ordering::SeqCst)
    }

    /// Offers the hook to a request that cannot be served, and wakes its future to ask.
    pub(super) fn offer_to(&self, waiter: &Waiter) {
        if self.is_free() && waiter.hook.offer() {
            wake_all(&self.announcer, waiter.notify());
        }
    }

    /// Offers the hook to the first request of each quota queue: another one is first, or the hook is free again.
    pub(super) fn offer_to_throttled(&self, queue: &Waiters) {
        if self.is_free() {
            let firsts = queue.firsts_throttled();
            firsts.iter().for_each(|first| self.offer_to(first));
        }
    }

    /// Offers the hook to a throttled request that is polled, if it is the first of its tag.
    pub(super) fn offer_if_first(&self, waiter: &Waiter, tag: Tag, queue: &Waiters) {
        let is_first = |first: Arc<Waiter>| first.sort_key == waiter.sort_key;
        if self.is_free() && queue.first_throttled(tag).is_some_and(is_first) {
            waiter.hook.offer();
        }
    }

    /// Starts the hook for a request that may ask, unless it works for another one.
    pub(super) fn ask(&self, service: &Arc<Service>, waiter: &Waiter) -> Option<Asking> {
        if !waiter.hook.may_ask() || self.is_busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        let Some(hook) = self.hook.read(|hook| hook.cloned()) else {
            self.is_busy.store(false, Ordering::SeqCst);
            return None;
        };
        waiter.hook.mark_asked();
        let shortfall = service.shortfall(&waiter.demand);
        let future: Answer = Box::pin(async move { hook.0.relieve(shortfall).await });
        Some(Asking {
            future: Mutex::new(Guards::Waiter, Some(future)),
            pool: service.name(),
        })
    }
}

impl Service {
    /// Returns whether this thread is inside the hook of this pool.
    pub(super) fn is_in_hook(&self) -> bool {
        if !self.hooked.is_set {
            return false;
        }
        // A thread that is ending is inside none.
        let is_inside = INSIDE.try_with(|inside| inside.borrow().contains(&self.name()));
        is_inside.unwrap_or_default()
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

fn tell_failed(announcer: &Announcer, error: &str) {
    announcer.tell(|| Fact::HookFailed { error });
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
    pub(super) fn poll(&mut self, announcer: &Announcer, context: &mut Context<'_>) -> bool {
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
            Ok(Poll::Ready(Err(error))) => tell_failed(announcer, &error.to_string()),
            Err(_) => tell_failed(announcer, "it panicked"),
        }
        true
    }

    /// Ends the work of the hook, which is interrupted if it has not answered. Then another request may ask.
    pub(super) fn end(mut self, service: &Arc<Service>) {
        let future = self.future.get_mut().take();
        let dropped = {
            let _inside = Inside::new(self.pool);
            // Inside the hook still, and before another request may ask.
            catch_unwind(AssertUnwindSafe(|| drop(future)))
        };
        if let Err(panic) = dropped {
            tell_failed(&service.engine.store.announcer, "it panicked");
            // The payload is the hook's, too, and its drop may panic.
            std::mem::forget(panic);
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
    /// The pools whose hooks this thread is inside of.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct Inside;

impl Inside {
    fn new(pool: usize) -> Self {
        // A thread that is ending may drop a hook that is working: it counts as inside none.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push(pool));
        Self
    }
}

/// Returns how many hooks this thread is inside of. A scope that was entered inside fewer hooks does not apply to them.
pub(crate) fn hooks_entered() -> usize {
    // A thread that is ending is inside none.
    INSIDE
        .try_with(|inside| inside.borrow().len())
        .unwrap_or_default()
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}
