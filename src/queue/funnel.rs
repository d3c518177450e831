//! The funnel: everything that makes memory reachable is published here, and wakes the requests that can profit.
//!
//! | change | published by | can profit |
//! |---|---|---|
//! | [`Memory`](Change::Memory) | a free; a completed event; progress of a stream that any thread notices; a seal; a marker that was being recorded; memory that becomes [evictable](crate::Evictable); memory put back or released to the device by a user's call, by maintenance, or by another pool of the device; a time at which a search may end differently | the requests that memory is [searched for](super::pass): the head and those that may overtake it; drains |
//! | [`Order`](Change::Order) | `stream.wait(&event)`, a use on a further stream | the same, if a waiting request is for that stream; requests in scopes of reservations |
//! | [`Reservation`](Change::Reservation) | a return of memory to a reservation, or its growth | the requests made in its scope |
//! | [`Terms`](Change::Terms) | a failed device; a closed pool and another capacity apply theirs by a call of their own | all of them, and throttled requests |
//!
//! A raised limit, and bytes freed by a tag, let its throttled requests into the fair queue
//! ([`Service::uncharge`](super::Service::uncharge)).
//!
//! # Which thread serves
//!
//! A search may call the device, so a free does not search itself. It *notifies* the queue's servers: the first waiter
//! in order, and a [reclaimer](super::Reclaimer), if there is one. Either of them serves the whole queue when it is
//! polled. Until then further changes are only noted: one notification covers them.
//!
//! No waiter can be relied on to be polled: its executor may be dead. Therefore
//! - a waiter that was notified and has not been polled since is passed over: the next notification goes to the next one,
//!   among the first four;
//! - a waiter or reclaimer that goes away with the notification serves, or passes it on;
//! - a deadline of the timer is set with the first notification. If that is still unanswered then, the *stand-in*
//!   serves, in the timer's own call.
//!
//! # State
//!
//! One word holds the generation (the number of changes so far) and three bits:
//!
//! ```text
//!   NEWS      something changed since the last search began
//!   NOTIFIED  a server was notified of it
//!   SERVING   a thread searches
//! ```
//!
//! Publishing sets NEWS. If NOTIFIED or SERVING was set before, that is all: a server is on its way, or the searching
//! thread will see NEWS when it is done. Otherwise, if a request waits for memory, publishing sets NOTIFIED and notifies a
//! server. It looks for the request and sets NOTIFIED under the queue's lock, and the last request that leaves serves. So
//! NOTIFIED does not stay set with no server to answer: a request that comes from a quota queue later, and does not search
//! by itself, would not be noticed.
//!
//! A thread that begins to serve clears NEWS and NOTIFIED and sets SERVING in one step, before it looks at memory; it can
//! only stop in a step that finds NEWS clear. So no change is missed, whatever the order. A poll that finds NEWS clear
//! searches nothing.
//!
//! # Why it ends
//!
//! Take the measure *(requests that wait, blocks that can be evicted, NEWS)*, ordered lexicographically, where NEWS is
//! 1 or 0.
//! - A search publishes none of its own steps (see [`publish`](crate::engine::Publish)) but one: where it thins out events it
//!   may hear that a stream has got further, which is a change from outside. It does not raise the measure. Either a request takes the memory that it finds, and leaves the queue, or the memory stays where it was.
//!   If it finds that a stream has got further, which is a change from outside, the requests before it are searched for
//!   again.
//! - Serving either removes a request from the queue, or ends with NEWS cleared. Each lowers the measure.
//! - A waiter is woken when it was granted or failed, which lowered the measure, or when NEWS went from 0 to 1.
//! - A search may evict a block. That publishes a free, and lowers the measure: only users make blocks evictable.
//!
//! So only changes from outside raise the measure: calls of users, progress of the device, and the clock. Between two
//! of them there are at most as many passes over the queue as there are requests in it, and then the pool is quiet.
//! Requests cannot wake each other in circles.

use super::waiters::Waiters;
use crate::engine::Announcer;
use crate::engine::{Change, Publish};
use crate::seam::Fact;
use crate::sync::plain;
use crate::sync::{Foreign, Guards, Mutex, Ordering, SharedNumber};
use crate::timer::{DelayedCall, Timer};
use std::collections::BTreeMap;
use std::task::{Wake, Waker};
use std::time::Duration;

const NEWS: u64 = 1;
const NOTIFIED: u64 = 2;
const SERVING: u64 = 4;
/// A drain waits.
const DRAINING: u64 = 8;
/// One generation.
const GENERATION: u64 = 16;

/// How long a notification may be unanswered before the stand-in serves, on the device's clock. Long against the turn
/// of a task, short against a request's patience.
const PATIENCE: Duration = Duration::from_millis(2);

/// A server of the queue that is not a waiter, or a drain, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    Reclaimer(u64),
    Drain(u64),
}

#[derive(Debug, Default)]
struct Members {
    /// The waker of each; `None` if it was woken and has not been polled since.
    enlisted: BTreeMap<Member, Option<Foreign<Waker>>>,
    next: u64,
}

impl Drop for Members {
    /// Only forgotten ones are left.
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.enlisted).into_values();
        left.flatten().for_each(Foreign::release);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Funnel {
    queue: plain::Arc<Waiters>,
    announcer: plain::Arc<Announcer>,
    state: SharedNumber,
    members: Mutex<Members>,
    /// Serves when no server answers. Not taken back when a notification is answered: under load the next one needs it.
    pub(super) stand_in: DelayedCall,
}

impl Funnel {
    pub(super) fn new(
        queue: plain::Arc<Waiters>,
        timer: &plain::Arc<Timer>,
        announcer: plain::Arc<Announcer>,
    ) -> Self {
        Self {
            queue,
            announcer,
            state: SharedNumber::new(0),
            members: Mutex::new(Guards::Notifier, Members::default()),
            stand_in: DelayedCall::new(timer),
        }
    }

    /// Publishes a change after which every search may end differently. Notifies a server, unless one is on its way.
    pub(super) fn notify(&self) {
        self.signal(GENERATION);
    }

    /// Publishes that a request became a candidate. Notifies a server, unless one is on its way.
    pub(super) fn notify_candidate(&self) {
        self.signal(0);
    }

    fn signal(&self, generations: u64) {
        let before = self.update(|state| Some((state + generations) | NEWS));
        let before = before.unwrap_or_else(|state| state);
        if before & DRAINING != 0 {
            self.wake_drains();
        }
        if before & (NOTIFIED | SERVING) == 0 {
            self.notify_server(NOTIFIED | SERVING);
        }
    }

    /// Notes a change after which every search may end differently. The caller serves.
    pub(super) fn mark_change(&self) {
        let _ = self.update(|state| Some((state + GENERATION) | NEWS));
    }

    /// Notes that a request became a candidate: memory was not searched for it yet. The caller serves.
    pub(super) fn mark_candidate(&self) {
        let _ = self.update(|state| (state & NEWS == 0).then_some(state | NEWS));
    }

    fn update(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.state.fetch_update(Ordering::AcqRel, next)
    }

    /// Notifies a server if a request waits for memory, there is news, and no bit of `unless` is set.
    fn notify_server(&self, unless: u64) {
        let is_due = |state: u64| state & (NEWS | unless) == NEWS;
        let claim = || self.update(|state| is_due(state).then_some(state | NOTIFIED));
        let Some(waiter) = self.queue.next_to_notify(|| claim().is_ok()) else {
            return;
        };
        // First: whatever becomes of the wakers, the notification is answered.
        self.stand_in.ask(|| PATIENCE);
        let reclaimer = {
            let mut members = self.members.lock();
            let mut reclaimers = members.enlisted.range_mut(..Member::Drain(0));
            reclaimers.find_map(|(_, reclaimer)| reclaimer.take())
        };
        let reclaimer = reclaimer.map(Foreign::into_inner);
        wake_all(&self.announcer, reclaimer.into_iter().chain(waiter));
    }

    /// Notifies another server in place of one that goes away, or was polled and did not serve.
    pub(super) fn pass_on(&self) {
        self.notify_server(SERVING);
    }

    /// Returns whether a thread searches now.
    pub(super) fn is_serving(&self) -> bool {
        self.state.load(Ordering::Acquire) & SERVING != 0
    }

    /// Begins to serve, if something changed since the last search and no thread serves. Returns the generation.
    pub(super) fn begin(&self) -> Option<u64> {
        let begun = self.update(|state| {
            (state & (NEWS | SERVING) == NEWS).then_some(state & !(NEWS | NOTIFIED) | SERVING)
        });
        begun.ok().map(generation)
    }

    /// Begins to serve, whether or not something changed, if no thread serves. Returns the generation.
    pub(super) fn begin_anyway(&self) -> Option<u64> {
        let begun = self
            .update(|state| (state & SERVING == 0).then_some(state & !(NEWS | NOTIFIED) | SERVING));
        begun.ok().map(generation)
    }

    /// Ends serving, unless something changed meanwhile. Returns the generation to go on with then.
    pub(super) fn end(&self) -> Option<u64> {
        let ended = self.update(|state| {
            Some(match state & NEWS {
                0 => state & !SERVING,
                _ => state & !(NEWS | NOTIFIED),
            })
        });
        let before = ended.unwrap_or_else(|state| state);
        (before & NEWS != 0).then(|| generation(before))
    }

    /// Ends serving when the serving thread unwinds. Another server is notified of the rest.
    pub(super) fn give_up(&self) {
        let _ = self.update(|state| Some(state & !(SERVING | NOTIFIED) | NEWS));
        self.pass_on();
    }

    /// Returns a number for a new reclaimer.
    pub(super) fn name_reclaimer(&self) -> Member {
        let mut members = self.members.lock();
        members.next += 1;
        Member::Reclaimer(members.next)
    }

    /// Returns a number for a new drain.
    pub(super) fn name_drain(&self) -> Member {
        let mut members = self.members.lock();
        members.next += 1;
        Member::Drain(members.next)
    }

    /// Notes that a member was polled: from now on it is woken by that waker.
    pub(super) fn enlist(&self, member: Member, waker: &Waker) {
        // Cloned before the lock is taken: that calls foreign code.
        let waker = Foreign::new(waker.clone());
        let mut members = self.members.lock_with_trash();
        if matches!(member, Member::Drain(_)) {
            let _ = self.update(|state| (state & DRAINING == 0).then_some(state | DRAINING));
        }
        let (members, trash) = members.parts();
        let old = members.enlisted.insert(member, Some(waker));
        trash.add(old.flatten());
    }

    /// Ends a membership. Returns `None` if the member was not enlisted; otherwise its waker, unless that was called and
    /// the member has not been polled since.
    pub(super) fn resign(&self, member: Member) -> Option<Option<Waker>> {
        let mut members = self.members.lock();
        let left = members.enlisted.remove(&member)?;
        if members.enlisted.range(Member::Drain(0)..).next().is_none() {
            let _ = self.update(|state| (state & DRAINING != 0).then_some(state & !DRAINING));
        }
        Some(left.map(Foreign::into_inner))
    }

    /// Wakes the drains: a request left the queue, or memory came back.
    pub(super) fn wake_drains(&self) {
        self.wake_members(Member::Drain(0), Member::Drain(u64::MAX));
    }

    /// Tells drains, and requests in scopes of reservations, that a search found a stream further. Requests in the fair
    /// queue are searched for again by the same server.
    pub(super) fn tell_of_progress(&self) {
        if self.state.load(Ordering::Acquire) & DRAINING != 0 {
            self.wake_drains();
        }
        self.tell_scopes();
    }

    /// Wakes the requests in scopes that memory of the pool may help.
    #[inline]
    fn tell_scopes(&self) {
        if !self.queue.scopes.is_empty() {
            wake_all(&self.announcer, self.queue.scopes.wakers_for_pieces());
        }
    }

    /// Wakes the reclaimers: the last handle of the pool is gone.
    pub(super) fn wake_reclaimers(&self) {
        self.wake_members(Member::Reclaimer(0), Member::Reclaimer(u64::MAX));
    }

    fn wake_members(&self, first: Member, last: Member) {
        let wakers: Vec<_> = {
            let mut members = self.members.lock();
            let woken = members.enlisted.range_mut(first..=last);
            let woken = woken.filter_map(|(_, member)| member.take());
            woken.map(Foreign::into_inner).collect()
        };
        wake_all(&self.announcer, wakers);
    }
}

/// Wakes tasks. A panic of a waker is reported, and affects nothing else.
pub(super) fn wake_all(announcer: &Announcer, wakers: impl IntoIterator<Item = Waker>) {
    for _ in 0..plain::wake_all(wakers) {
        announcer.tell(|| Fact::WakerPanicked);
    }
}

fn generation(state: u64) -> u64 {
    state / GENERATION
}

impl Publish for Funnel {
    fn publish(&self, change: Change) {
        match change {
            Change::Memory | Change::Order(_) => {
                let is_awaited = match change {
                    Change::Order(stream) => self.queue.lock().queue.waits_for(stream),
                    _ => true,
                };
                if is_awaited {
                    self.notify();
                }
                self.tell_scopes();
            }
            Change::Reservation(_) if self.queue.scopes.is_empty() => {}
            Change::Reservation(reservation) => {
                let in_scope = self.queue.scopes.wakers_of(reservation);
                wake_all(&self.announcer, in_scope);
            }
            Change::Terms => {
                self.notify();
                let throttled = self.queue.wakers_of_throttled();
                wake_all(&self.announcer, throttled);
            }
        }
    }
}

/// For watches of the device and the timer: an event completed, or a time came.
impl Wake for Funnel {
    fn wake(self: plain::Arc<Self>) {
        self.publish(Change::Memory);
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.publish(Change::Memory);
    }
}
