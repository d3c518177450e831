//! Growth off the runtime's workers: where memory calls block, a thread serves the queue until no request needs such a
//! call. A few chunks of virtual memory are mapped in the first poll of a request instead, and a caller that blocks makes
//! all calls itself.
//!
//! A pool has one such thread at most. It is started when it is first needed, and kept for a while: growths follow each
//! other, and a new thread takes as long to start and to make its first calls as to map a chunk or two. While it waits
//! for the next growth, it does not keep the pool alive.
//!
//! Meanwhile the request that needed it may have been served by memory that came back. The thread still grows the
//! pool, for the next request. Otherwise a pool that is short for moments only would never grow, and its requests would
//! wait again and again.

use super::Service;
use super::demand::Wants;
use super::waiter::Waiter;
use crate::driver::supply;
use crate::sync::plain::{AtomicBool, Condvar, thread};
use crate::sync::{Arc, ForeignOption, Guards, Ordering, SharedFlag, plain};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long the thread looks for the next growth before it sleeps: a sleeping thread runs tens of microseconds late.
const LINGER: Duration = Duration::from_micros(200);

/// How long the thread sleeps before it ends.
const KEPT: Duration = Duration::from_millis(100);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Grower {
    /// The thread was called and has not begun to serve.
    is_coming: SharedFlag,
    /// The request that it was called for.
    needy: ForeignOption<Arc<Waiter>>,
    desk: plain::Arc<Desk>,
}

impl Grower {
    pub(super) fn new() -> Self {
        Self {
            is_coming: SharedFlag::new(false),
            needy: ForeignOption::new(Guards::Queue, None),
            desk: plain::Arc::default(),
        }
    }

    /// Calls the thread for a waiting request, unless it is on its way. Returns whether it comes.
    #[must_use = "without a thread, the calls must be made here"]
    pub(super) fn start_for(&self, waiter: Arc<Waiter>, service: &Arc<Service>) -> bool {
        self.needy.set(Some(waiter));
        if self.is_coming.swap(true, Ordering::AcqRel) {
            return true;
        }
        let comes = Desk::call(&self.desk, service.clone());
        if !comes {
            self.needy.set(None);
            self.is_coming.store(false, Ordering::Release);
        }
        comes
    }
}

impl Drop for Grower {
    /// The thread may be the one that runs this.
    fn drop(&mut self) {
        self.desk.close();
    }
}

/// Serves the queue, and grows for the request that was in need of it.
fn serve(service: &Arc<Service>) {
    // Before serving: the thread is called again for a need that arises from now on.
    service.grower.is_coming.store(false, Ordering::Release);
    let needy = service.grower.needy.take();
    let growths = service.driver.shared.growths();
    while !Service::try_serve_fully(service) {
        thread::yield_now();
    }
    let needy = needy.filter(|_| service.driver.shared.growths() == growths);
    if let Some(waiter) = needy {
        grow_after_all(service, &waiter);
    }
}

/// Grows for a request that was served by memory that came back.
fn grow_after_all(service: &Service, waiter: &Waiter) {
    if waiter.is_served() && matches!(waiter.wants, Wants::Block) {
        supply::grow_after_all(&service.driver, waiter.demand.request);
    }
}

/// Where the thread is called.
#[derive(Debug, Default)]
struct Desk {
    posted: plain::Mutex<Posted>,
    /// There is something for the thread to look at.
    has_news: AtomicBool,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Posted {
    /// The service that calls. The desk has one service, and is a part of it.
    call: Option<Arc<Service>>,
    has_thread: bool,
    is_closed: bool,
}

impl Desk {
    /// Calls the thread, and starts it if there is none. Returns whether there is one.
    fn call(this: &plain::Arc<Self>, service: Arc<Service>) -> bool {
        let (earlier, has_thread) = {
            let mut posted = this.posted.lock();
            let earlier = posted.call.replace(service);
            this.has_news.store(true, Ordering::Release);
            (earlier, std::mem::replace(&mut posted.has_thread, true))
        };
        drop(earlier);
        if has_thread {
            this.news.notify_one();
            return true;
        }
        let desk = this.clone();
        let thread = thread::Builder::new().name("weirpool-grower".into());
        let started = thread.spawn(move || desk.answer_calls());
        if started.is_err() {
            let call = {
                let mut posted = this.posted.lock();
                posted.has_thread = false;
                posted.call.take()
            };
            drop(call);
        }
        started.is_ok()
    }

    /// The thread.
    fn answer_calls(&self) {
        while let Some(service) = self.next_call() {
            // Here the call may end with the last reference to the service.
            let answer = AssertUnwindSafe(move || serve(&service));
            // A panic was reported. Later calls are answered all the same.
            let _ = catch_unwind(answer).map_err(std::mem::forget);
        }
    }

    /// Waits for a call; `None` once none has come for a while, or the service is gone.
    fn next_call(&self) -> Option<Arc<Service>> {
        let since = Instant::now();
        while !self.has_news.load(Ordering::Acquire) && since.elapsed() < LINGER {
            thread::yield_now();
        }
        let mut posted = self.posted.lock();
        loop {
            self.has_news.store(false, Ordering::Relaxed);
            if let Some(service) = posted.call.take() {
                return Some(service);
            }
            let left = KEPT.saturating_sub(since.elapsed());
            if posted.is_closed || left.is_zero() {
                posted.has_thread = false;
                return None;
            }
            let slept = self.news.wait_timeout(posted, left);
            posted = slept.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Ends the thread.
    fn close(&self) {
        self.posted.lock().is_closed = true;
        self.has_news.store(true, Ordering::Release);
        self.news.notify_one();
    }
}
