//! Waiting on a thread, for callers without an executor: the thread polls, and is parked in between.
//!
//! A thread that is parked here is sure to be polled again, which no task is: so it drives for all who wait,
//! as a reclaimer does.

use super::Service;
use super::notifier::Member;
use crate::driver::Change;
use crate::sync::{Arc, plain};
use plain::{AtomicBool, Ordering, thread};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future of the pool's to its end, on this thread. It knows no executor, and so may be called inside
/// of any: that one's thread is blocked.
pub(crate) fn block_on<F: Future + Unpin>(service: &Arc<Service>, mut future: F) -> F::Output {
    let mut poll = |waker| Pin::new(&mut future).poll(&mut Context::from_waker(waker));
    // Most are ready at once, and need nobody who is woken. Whoever is not looks again below.
    if let Poll::Ready(output) = poll(Waker::noop()) {
        return output;
    }
    let parker = plain::Arc::new(Parker::new());
    let waker = Waker::from(parker.clone());
    let _driver = Driver::new(service, &waker);
    loop {
        Service::serve(service);
        if let Poll::Ready(output) = poll(&waker) {
            return output;
        }
        parker.park();
    }
}

/// A thread that drives, until this is dropped.
struct Driver<'a> {
    service: &'a Service,
    member: Member,
}

impl<'a> Driver<'a> {
    fn new(service: &'a Service, waker: &Waker) -> Self {
        let member = service.notifier.name_reclaimer();
        service.notifier.enlist(member, waker);
        Self { service, member }
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        let notifier = &self.service.notifier;
        drop(notifier.resign(self.member));
        // A ring that came after the last look goes to the others.
        if notifier.is_unanswered() {
            self.service.publish(Change::Memory);
        }
    }
}

/// A thread, and whether it was woken.
struct Parker {
    thread: thread::Thread,
    is_woken: AtomicBool,
}

impl Parker {
    fn new() -> Self {
        Self {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        }
    }

    /// Returns once it was woken. Whoever else unparks the thread does not end it.
    fn park(&self) {
        while !self.is_woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

impl Wake for Parker {
    fn wake(self: plain::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
