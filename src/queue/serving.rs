//! Serving: one thread at a time serves the queue, and makes [passes](super::pass) until nothing has changed meanwhile.
//!
//! Where memory calls block, a [background](crate::background) thread makes them for a request that needs them: it serves
//! until no request needs such a call. A few chunks of virtual memory are mapped in the first poll of a request instead,
//! and a caller that blocks makes all calls itself.
//!
//! Meanwhile the request that needed it may have been served by memory that came back. The thread still grows the
//! pool, for the next request. Otherwise a pool that is short for moments only would never grow, and its requests would
//! wait again and again.

use super::Service;
use super::funnel::{Funnel, wake_all};
use super::pass::{Ended, Pass};
use super::waiter::Waiter;
use super::waiters::Leaving;
use crate::engine::{Effort, gate, maintenance, reaping, supply};
use crate::measure::Tag;
use crate::seam::Fact;
use crate::sync::{Arc, Ordering, plain::thread};
use std::task::Waker;
use std::time::Duration;

/// Serves the queue if anything was published since the last search, without memory calls where they block. If
/// another thread serves, that thread looks again.
pub(crate) fn serve(service: &Arc<Service>) {
    if let Some(generation) = service.funnel.begin() {
        serve_from(service, generation, Effort::Poll);
    }
}

/// Serves the queue because of a change that is the caller's own.
pub(crate) fn serve_change(service: &Arc<Service>) {
    service.funnel.mark_change();
    serve(service);
}

/// Serves the queue because a request joined, or another one moved up.
pub(super) fn serve_candidate(service: &Arc<Service>) {
    service.funnel.mark_candidate();
    serve(service);
}

/// Serves the queue with memory calls, for a thread of its own. Returns whether it did: no other thread may serve
/// at the time, since that one may not make the calls.
pub(super) fn try_serve_fully(service: &Arc<Service>) -> bool {
    let generation = service.funnel.begin_anyway();
    if let Some(generation) = generation {
        serve_from(service, generation, Effort::Thread);
    }
    generation.is_some()
}

fn serve_from(service: &Arc<Service>, generation: u64, effort: Effort) {
    let give_up = GiveUpOnPanic(&service.funnel);
    let mut next = Some(generation);
    while let Some(generation) = next {
        let progress = || service.engine.store.totals().progress;
        let before = progress();
        let look_again_at = pass(service, effort, generation);
        if progress() != before {
            service.funnel.tell_of_progress();
        }
        let has_unrecorded = watch(service);
        // The record is tried again in the next pass.
        let retry_at = has_unrecorded.then(|| service.now().saturating_add(maintenance::INTERVAL));
        let next_look = look_again_at.into_iter().chain(retry_at).min();
        service
            .next_look
            .set(next_look.map(|at| (at, Waker::from(service.funnel.clone()))));
        next = service.funnel.end();
    }
    // Another thread may serve by now: there is nothing to give up, even if this thread unwinds.
    std::mem::forget(give_up);
}

/// Makes a pass over the queue, with memory calls as far as they may be made here. Returns when to look again, whatever
/// happens until then.
fn pass(service: &Arc<Service>, mut effort: Effort, generation: u64) -> Option<Duration> {
    loop {
        let Ended { needy, next_look } = Pass::new(service, effort, generation).run();
        if needy.is_none_or(|waiter| start_growth(service, waiter)) {
            return next_look;
        }
        // No thread can be started: a call that blocks is better than a request that waits for ever.
        effort = Effort::Thread;
    }
}

/// Has a thread serve for a waiting request. Returns whether one does.
#[must_use = "without a thread, the calls must be made here"]
fn start_growth(service: &Arc<Service>, waiter: Arc<Waiter>) -> bool {
    service.needy.set(Some(waiter));
    let serving = service.clone();
    let job = move || serving.growth.run(|| serve_and_grow(&serving));
    let is_called = service.background.call(&service.growth, job).is_ok();
    if !is_called {
        service.needy.set(None);
        service.growth.cancel();
    }
    is_called
}

/// Serves the queue, and grows for the request that was in need of it.
fn serve_and_grow(service: &Arc<Service>) {
    let needy = service.needy.take();
    let growths = service.engine.shared.growths();
    while !try_serve_fully(service) {
        thread::yield_now();
    }
    let needy = needy.filter(|_| service.engine.shared.growths() == growths);
    if let Some(waiter) = needy {
        grow_after_all(service, &waiter);
    }
}

/// Grows for a request that was served by memory that came back.
fn grow_after_all(service: &Service, waiter: &Waiter) {
    if let Some(part) = waiter.parts.plain()
        && waiter.is_served()
    {
        supply::grow_after_all(&service.engine, part.request);
    }
}

/// Watches streams while a request waits or a drain does. Otherwise nothing is watched. A reclaimer that was
/// spawned for the requests ends with them. Returns whether a [record](crate::engine::reaping::watch_streams) is to
/// be tried again.
fn watch(service: &Service) -> bool {
    let is_awaited = !service.queue.is_empty();
    if !is_awaited {
        service.dismiss_reclaimer();
    }
    // Out of the lock: a watch may call at once.
    let mut watches = service.watches.take().unwrap_or_default();
    if !is_awaited {
        service.engine.store.lease.withdraw();
    }
    let is_idle = !is_awaited && service.queue.scopes.is_empty();
    if is_idle && !service.engine.shared.is_draining() && !service.engine.shared.is_recalled() {
        drop(watches);
        return false;
    }
    let waker = Waker::from(service.funnel.clone());
    let has_unrecorded = reaping::watch_streams(&service.engine, &mut watches, &waker);
    service.watches.set(Some(watches));
    has_unrecorded
}

/// Fails the requests that can never be served under the present terms, wherever they wait.
fn fail_hopeless(service: &Service) {
    for waiter in service.queue.first(usize::MAX) {
        if let Some(refusal) = service.refusal_of(&waiter.demand) {
            service.fail(&waiter, refusal);
        }
    }
}

/// Removes a request whose future ends. Serves requests that move up, because their own executors may be dead; also
/// if the request was notified and did not serve. After the last request nothing is watched any more. Unless the request
/// takes a grant, its tag gets its bytes back.
pub(super) fn depart(service: &Arc<Service>, waiter: &Waiter, how: Leaving) {
    let has_candidate = service.leave(waiter, how);
    if how != Leaving::Served {
        service.uncharge_unserved(waiter);
    }
    if has_candidate || service.queue.is_empty() {
        service.funnel.mark_candidate();
    }
    serve(service);
    if service.engine.shared.is_draining() {
        service.funnel.wake_drains();
    }
}

/// Serves the queue under changed terms of the pool, fails requests that they exclude, and has throttled requests
/// look at theirs.
pub(crate) fn apply_terms(service: &Arc<Service>) {
    fail_hopeless(service);
    serve_change(service);
    let throttled = service.queue.wakers_of_throttled();
    wake_all(&service.engine.store.announcer, throttled);
}

/// Sets the limit of a tag, and lets requests in that it allows. Others may be over it now.
pub(crate) fn set_tag_limit(service: &Arc<Service>, tag: Tag, limit: Option<u64>) {
    let moved = service.queue.set_limit(tag, limit, service.now());
    service.notify_of_moved(moved);
    for waiter in service.queue.over_limit(tag) {
        if let Some(refusal) = service.refusal_of(&waiter.demand) {
            service.fail(&waiter, refusal);
        }
    }
    service.relieve(tag);
    serve_change(service);
    // The others look once they are first.
    let first = service.queue.first_throttled(tag);
    wake_all(
        &service.engine.store.announcer,
        first.and_then(|first| first.notify()),
    );
}

/// Closes the gate for good: `how` is [`STOPPED`](gate::STOPPED), or with [`ENDED`](gate::ENDED). Waiting requests that this
/// excludes fail. Returns whether this is the first time.
pub(crate) fn stop(service: &Arc<Service>, how: u8) -> bool {
    let engine = &service.engine;
    let before = engine.shared.gate.fetch_or(how, Ordering::SeqCst);
    let is_first = before & how != how;
    if is_first {
        engine.store.announcer.tell(|| match how & gate::ENDED {
            0 => Fact::Stopping,
            _ => Fact::Closed,
        });
    }
    apply_terms(service);
    is_first
}

/// If serving panics, other threads serve again.
struct GiveUpOnPanic<'a>(&'a Funnel);

impl Drop for GiveUpOnPanic<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
