//! All waiting requests of a pool: the [queue](Queue) that decides about them, the waiters that it knows by their positions,
//! and the consequences of its answers.
//!
//! Each method locks the queue, asks it, and executes the answer: it charges tags, closes and opens the gate, counts how
//! requests waited, and returns the wakers that its caller calls with the lock released. The gate is closed while any
//! request is in the fair queue.

use super::scopes::Scopes;
use super::waiter::{Waiter, WaiterOrigin};
use super::{Demand, Rules};
use crate::engine::{Expected, Parts, gate};
use crate::error::AllocError;
use crate::heap::Placement;
use crate::id::ReservationId;
use crate::lane::{Gate, Lane};
use crate::measure::{Accounts, Tag, WaitOutcome, Waits};
use crate::queue::WaitingRequest;
use crate::sync::plain;
use crate::sync::{Arc, Foreign, Guard, Guards, Mutex, Ordering, Trash};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;
use weirpool_queue::{Admitted, Entry, Moved, Pieces, Position, Queue, Refused};

/// How many requests are looked at, from the head on, for one that was not notified yet.
const NOTIFIED: usize = 4;

/// A request that joins.
pub(super) struct Newcomer<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) demand: Demand,
    pub(super) parts: Parts,
    /// When it is due.
    pub(super) due: i128,
    pub(super) since: Duration,
    pub(super) patience: Expected,
    pub(super) waker: &'a Waker,
    /// The reservation in whose scope it was made.
    pub(super) scope: Option<ReservationId>,
    /// Where it was made.
    pub(super) location: &'static Location<'static>,
    /// How long it waits at most.
    pub(super) limit: Option<Duration>,
    /// Whether its bytes are charged to its tag: not if it has none, or the tag's limit does not allow it now. Whether it joins
    /// or not, they are not its caller's any more.
    pub(super) is_charged: bool,
}

/// A request that joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) waiter: Arc<Waiter>,
    /// A request that is throttled may be the first to see that the limit allows others.
    pub(super) moved: Moved,
    /// The requests in whose place it waits. The caller ends their waits, with the lock released.
    pub(super) displaced: Vec<Displaced>,
}

/// A request that lost its place to one of a tag below its share.
#[derive(Debug)]
pub(super) struct Displaced {
    pub(super) waiter: Arc<Waiter>,
    /// `None` if it was granted in the same moment, or is gone: it leaves the queue with that outcome. Otherwise the
    /// waker to call, if there is one.
    pub(super) waker: Option<Option<Waker>>,
}

/// A request that may not join.
#[derive(Debug)]
pub(super) struct JoinRefused {
    pub(super) why: Refused,
    /// Bytes that were charged to its tag meanwhile: the caller uncharges them.
    pub(super) charged: Option<(Tag, u64)>,
}

/// How a request leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// With its grant, which keeps the charge of its tag.
    Served,
    /// With memory of a reservation, which its tag is not charged for, and nothing of the queue.
    Drawn,
    Unserved,
}

/// The queue, and the waiters of its requests.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) queue: Queue,
    /// Each may be the last owner of its stream.
    waiters: BTreeMap<Position, Foreign<Arc<Waiter>>>,
}

impl Members {
    fn at(&self, position: Position) -> Option<Arc<Waiter>> {
        self.waiters.get(&position).map(|waiter| (**waiter).clone())
    }

    /// Returns all waiters, in the order of arrival.
    fn all(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.waiters.values().map(|waiter| &**waiter)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Waiters {
    members: Mutex<Members>,
    gate: Gate,
    /// The requests made in scopes of reservations, throttled ones included.
    pub(super) scopes: Scopes,
    /// How the pool's requests waited.
    waits: plain::Arc<Waits>,
    /// The accounts of the tags: their bytes, and how their requests waited.
    pub(crate) accounts: Accounts,
}

impl Waiters {
    pub(super) fn new(rules: &Rules, waits: plain::Arc<Waits>, gate: Gate) -> Self {
        Self {
            members: Mutex::new(
                Guards::Queue,
                Members {
                    queue: Queue::new(rules),
                    waiters: BTreeMap::new(),
                },
            ),
            scopes: Scopes::new(gate.clone()),
            gate,
            waits,
            accounts: Accounts::default(),
        }
    }

    /// Locks the queue, for a question or a setting that no request leaves or joins by. No foreign code may run meanwhile.
    pub(crate) fn lock(&self) -> Guard<'_, Members> {
        self.members.lock()
    }

    /// Adds a request: to the quota queue of its tag if that has reached its limit, and otherwise to the fair queue.
    ///
    /// # Errors
    /// Returns an error if it may not wait.
    pub(super) fn join(&self, newcomer: Newcomer<'_>) -> Result<Joined, JoinRefused> {
        // With no lock held: that calls foreign code.
        let waker = newcomer.waker.clone();
        let mut members = self.members.lock_with_trash();
        let (members, trash) = members.parts();
        let (demand, now) = (newcomer.demand, newcomer.since);
        let bytes = demand.request.bytes;
        let account = demand.tag.map(|tag| (tag, self.accounts.of(tag)));
        // Under the lock: a free of the tag that comes later sees that a request is throttled.
        let over = account.filter(|(_, account)| {
            !newcomer.is_charged && account.charge_or_throttle(bytes).is_err()
        });
        let over = over.map(|(tag, _)| tag);
        let asks = weirpool_queue::Newcomer {
            tag: demand.tag,
            bytes,
            stream: newcomer.lane.id,
            due: newcomer.due,
            limit: newcomer.limit,
            is_throttled: over.is_some(),
        };
        let admitted = members.queue.admit(&asks, now).map_err(|refused| {
            self.count_refusal(&newcomer, &refused);
            if let Some(tag) = over {
                self.end_throttling(&members.queue, tag);
            }
            // Uncharged by the caller, with the lock released: that may let others in.
            let charged = demand
                .tag
                .filter(|_| over.is_none())
                .map(|tag| (tag, bytes));
            JoinRefused {
                why: refused,
                charged,
            }
        });
        let Admitted { entry, displaced } = admitted?;
        let mut moved = Moved::default();
        let displaced = displaced.into_iter().filter_map(|(entry, full)| {
            let waiter = members.at(entry.sort_key.position)?;
            // A request that was granted in this moment keeps its grant. It leaves by itself, and makes room.
            let waker = waiter.fail(AllocError::QueueFull(full.into()));
            if waker.is_some() {
                moved.and(self.leave_from(members, &waiter, Leaving::Unserved, now, trash));
            }
            Some(Displaced { waiter, waker })
        });
        let displaced = displaced.collect();
        let origin = WaiterOrigin {
            entry,
            lane: newcomer.lane.clone(),
            demand,
            parts: newcomer.parts,
            patience: newcomer.patience,
            scope: newcomer.scope,
            location: newcomer.location,
            is_throttled: over.is_some(),
        };
        let waiter = Arc::new(Waiter::new(origin, waker));
        self.counted_for(&waiter).for_each(Waits::begin);
        if waiter.scope.is_some() {
            self.scopes.enter(&waiter);
        }
        let held = Foreign::new(waiter.clone());
        members.waiters.insert(entry.sort_key.position, held);
        if over.is_none() {
            self.promise(&entry);
            self.close(&members.queue);
        }
        moved.has_candidate |= members.queue.join(entry, over, now);
        if let Some(tag) = over {
            // It may be first, and small enough for the limit.
            moved.and(self.admit_from(members, tag, now));
        }
        Ok(Joined {
            waiter,
            moved,
            displaced,
        })
    }

    /// Closes the gate for a request that enters the fair queue. It is closed under the queue's lock, as it is opened.
    fn close(&self, queue: &Queue) {
        if queue.is_gate_open() {
            self.gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
    }

    /// Opens the gate if no request is left in the fair queue.
    fn open_if_empty(&self, queue: &Queue) {
        if queue.is_gate_open() {
            self.gate.fetch_and(!gate::WAITING, Ordering::SeqCst);
        }
    }

    /// Notes that a request is in the fair queue, with its bytes charged to its tag.
    fn promise(&self, entry: &Entry) {
        if let Some(tag) = entry.tag {
            self.accounts.of(tag).promise(entry.bytes);
        }
    }

    /// Removes a request. The second call for a request does nothing.
    pub(super) fn leave(&self, waiter: &Waiter, how: Leaving, now: Duration) -> Moved {
        let mut members = self.members.lock_with_trash();
        let (members, trash) = members.parts();
        self.leave_from(members, waiter, how, now, trash)
    }

    fn leave_from(
        &self,
        members: &mut Members,
        waiter: &Waiter,
        how: Leaving,
        now: Duration,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> Moved {
        let entry = &waiter.entry;
        let is_served = how == Leaving::Served;
        let waited = now.saturating_sub(entry.since);
        let Some(left) = members.queue.leave(entry, is_served, now) else {
            if how == Leaving::Drawn && !waiter.is_served() {
                // It has failed, and was polled late.
                let ended = waiter.unserved();
                (self.counted_for(waiter)).for_each(|waits| waits.serve_late(ended, waited));
            }
            return Moved::default();
        };
        trash.add(members.waiters.remove(&entry.sort_key.position));
        let mut moved = left.moved;
        match (entry.tag, left.was_throttled) {
            (Some(tag), true) => moved.and(self.admit_from(members, tag, now)),
            (tag, _) => {
                if let Some(tag) = tag {
                    self.accounts.of(tag).end_promise(entry.bytes);
                }
                self.open_if_empty(&members.queue);
            }
        }
        self.scopes.leave(waiter, trash);
        // Before the lock is released: a thread that hears that the request was served finds it counted.
        self.counted_for(waiter).for_each(|waits| match how {
            Leaving::Served | Leaving::Drawn => waits.end(WaitOutcome::Served, waited),
            Leaving::Unserved => waits.end(waiter.unserved(), Duration::ZERO),
        });
        moved
    }

    /// Sets a request aside whose waiter was woken and not polled, and opens the gate if no other one waits. Returns whether
    /// it did.
    pub(super) fn set_aside(&self, waiter: &Waiter) -> bool {
        let queue = &mut self.members.lock().queue;
        if !queue.has(&waiter.entry) || !waiter.set_aside() {
            return false;
        }
        queue.set_aside(&waiter.entry);
        self.open_if_empty(queue);
        true
    }

    /// Puts a request back to its position that was set aside, since its waiter is polled. Returns whether it did.
    pub(super) fn bring_back(&self, waiter: &Waiter, now: Duration) -> bool {
        let queue = &mut self.members.lock().queue;
        let was_open = queue.is_gate_open();
        if !queue.bring_back(&waiter.entry, now) {
            return false;
        }
        waiter.is_aside.store(false, Ordering::Release);
        if was_open {
            self.gate.fetch_or(gate::WAITING, Ordering::SeqCst);
        }
        true
    }

    /// Lets requests of a tag into the fair queue, as far as its limit allows now.
    pub(super) fn admit(&self, tag: Tag, now: Duration) -> Moved {
        self.admit_from(&mut self.members.lock(), tag, now)
    }

    fn admit_from(&self, members: &mut Members, tag: Tag, now: Duration) -> Moved {
        let account = self.accounts.of(tag);
        let mut moved = Moved::default();
        while let Some(entry) = members.queue.first_throttled(tag)
            && account.charge_throttled(entry.bytes).is_ok()
        {
            if let Some(waiter) = members.waiters.get(&entry.sort_key.position) {
                waiter.end_throttling();
            }
            self.promise(entry);
            self.close(&members.queue);
            moved.and(members.queue.enter_first(tag, now));
        }
        self.end_throttling(&members.queue, tag);
        moved
    }

    /// Notes that no request of a tag is throttled any more, if so.
    fn end_throttling(&self, queue: &Queue, tag: Tag) {
        if queue.first_throttled(tag).is_none() {
            self.accounts.of(tag).end_throttling();
        }
    }

    /// Sets the limit of a tag, and lets requests in that it allows.
    pub(super) fn set_limit(&self, tag: Tag, limit: Option<u64>, now: Duration) -> Moved {
        let mut members = self.members.lock();
        // Under the lock: a request throttled by the old limit is let in by the new one.
        self.accounts.of(tag).set_limit(limit);
        self.admit_from(&mut members, tag, now)
    }

    /// Returns the waiting requests of a tag that are larger than its limit. Takes time in proportion to their number.
    pub(super) fn over_limit(&self, tag: Tag) -> Vec<Arc<Waiter>> {
        let Some(limit) = self.accounts.of(tag).limit() else {
            return Vec::new();
        };
        let members = self.members.lock();
        let larger = members.queue.larger_than(tag, limit);
        larger.filter_map(|position| members.at(position)).collect()
    }

    /// Sets the weight of a tag.
    pub(crate) fn set_weight(&self, tag: Tag, weight: u32) {
        // The tag is listed from now on.
        let _ = self.accounts.of(tag);
        self.members.lock().queue.set_weight(tag, weight);
    }

    /// Returns the first throttled request of a tag.
    pub(super) fn first_throttled(&self, tag: Tag) -> Option<Arc<Waiter>> {
        let members = self.members.lock();
        let first = members.queue.first_throttled(tag)?;
        members.at(first.sort_key.position)
    }

    /// Returns the wakers of all throttled requests.
    pub(super) fn wakers_of_throttled(&self) -> Vec<Waker> {
        let members = self.members.lock();
        let throttled = members.all().filter(|waiter| waiter.is_throttled());
        throttled.filter_map(|waiter| waiter.notify()).collect()
    }

    /// Returns the waker of the first waiter in order that was not notified already, if there is one. One that was, and
    /// has not been polled since, is on its way, or does not answer. `None` if no request waits in the fair queue, or
    /// else `claim` returns false, which is called under the lock.
    pub(super) fn next_to_notify(&self, claim: impl FnOnce() -> bool) -> Option<Option<Waker>> {
        let members = self.members.lock();
        if members.queue.is_gate_open() || !claim() {
            return None;
        }
        let mut first = members.queue.in_order(NOTIFIED);
        Some(first.find_map(|position| members.waiters.get(&position)?.notify()))
    }

    /// Returns the requests to search for in a deadlock, apart from the head: all of them once in a generation, and after
    /// that the newcomers.
    pub(super) fn to_scan(&self, generation: u64, usual_alignment: u64) -> Vec<Arc<Waiter>> {
        let members = &mut *self.members.lock();
        let waiters = &members.waiters;
        let needs = |position| {
            let parts = &waiters[&position].parts;
            Pieces {
                all: parts.all.iter().map(|part| part.request).collect(),
                // A search for blocks says nothing of charges, nor one of them of the others.
                is_anywhere: parts.placement == Placement::Anywhere && parts.charge.is_none(),
            }
        };
        let to_scan = members.queue.to_scan(generation, usual_alignment, needs);
        let to_scan = to_scan.into_iter();
        to_scan
            .filter_map(|position| members.at(position))
            .collect()
    }

    /// Forgets the last search for every request: something moved.
    pub(super) fn forget_scan(&self) {
        self.members.lock().queue.forget_scan();
    }

    /// Returns when the oldest waiting request arrived, on the device's clock.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.members
            .lock()
            .all()
            .next()
            .map(|waiter| waiter.entry.since)
    }

    fn count_refusal(&self, newcomer: &Newcomer<'_>, refusal: &Refused) {
        let all = self.waits_of(newcomer.lane, &newcomer.demand);
        match refusal {
            Refused::Shed { .. } => all.for_each(Waits::count_shed),
            Refused::Full(_) => all.for_each(Waits::count_refused),
        }
    }

    /// Returns the counters in which a waiter's wait is counted.
    fn counted_for<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Waits> {
        self.waits_of(&waiter.lane, &waiter.demand)
    }

    fn waits_of<'a>(&'a self, lane: &'a Lane, demand: &Demand) -> impl Iterator<Item = &'a Waits> {
        let of_tag = demand.tag.map(|tag| &self.accounts.of(tag).waits);
        [&*self.waits, &lane.waits].into_iter().chain(of_tag)
    }

    /// Returns the first `most` waiting requests: those in the fair queue in their order, the others as they arrived.
    pub(super) fn first(&self, most: usize) -> Vec<Arc<Waiter>> {
        let members = self.members.lock();
        let queued = members.queue.in_order(most);
        let queued = queued.filter_map(|position| members.at(position));
        let others = members.all().filter(|it| !members.queue.has(&it.entry));
        queued.chain(others.cloned()).take(most).collect()
    }

    /// Describes the first `most` waiting requests, those over the limit of their tag last. The lock is held for a part of
    /// them at a time. A request that joins or leaves meanwhile may be missing or listed, and one that its limit lets in
    /// may be missing.
    pub(crate) fn waiting_requests(&self, most: usize, now: Duration) -> Vec<WaitingRequest> {
        /// Requests in a part.
        const PART: usize = 256;
        let mut list = Vec::new();
        let mut listed = self.members.lock().queue.begin_list(most, now);
        loop {
            let part = {
                let members = self.members.lock();
                let part = members.queue.list(&mut listed, PART.min(most - list.len()));
                let part = part.into_iter();
                let part = part.filter_map(|(position, it)| Some((members.at(position)?, it)));
                part.collect::<Vec<_>>()
            };
            if part.is_empty() {
                return list;
            }
            list.extend(part.into_iter().map(|(waiter, expected)| {
                let mut listed = waiter.listed(now);
                listed.expected_wait = expected;
                listed
            }));
        }
    }

    /// Has the owner of a request told when the request stalls. Returns whether this is the first time: then the queue
    /// is to be served.
    pub(super) fn watch(&self, waiter: &Waiter) -> bool {
        if waiter.stall.is_watched() {
            return false;
        }
        // Under the lock, under which a server reads the first requests: it sees this, or it has begun before this, and
        // is told to look again.
        let _members = self.members.lock();
        waiter.stall.watch()
    }

    /// Returns whether nothing can serve the request, which is the first, and its owner was not told. It is told now.
    pub(super) fn tell_of_stall(&self, waiter: &Waiter) -> bool {
        if !waiter.stall.has_begun() {
            return false;
        }
        let members = self.members.lock();
        // Before it is known whether the request is still the first: a stall that begins later wakes its owner.
        if !waiter.stall.take() {
            return false;
        }
        let is_first = members.queue.is_first(&waiter.entry);
        if is_first {
            // Under the lock, where a request enters the fair queue, and is told again.
            waiter.stall.mark_told();
        }
        is_first
    }

    /// Returns the request that is served next.
    pub(super) fn head(&self) -> Option<Arc<Waiter>> {
        let members = self.members.lock();
        members.at(members.queue.head()?)
    }

    /// Returns the head and the requests that may overtake it, in the order in which they are served if no further
    /// request arrives.
    pub(super) fn looked_at(&self) -> SmallVec<[Arc<Waiter>; 1]> {
        let members = self.members.lock();
        let looked_at = members.queue.looked_at();
        looked_at
            .filter_map(|position| members.at(position))
            .collect()
    }

    /// Returns whether no request waits in the fair queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.lock().queue.is_gate_open()
    }

    /// Returns the number of requests that wait, in the fair queue or in a quota queue.
    pub(crate) fn waiting(&self) -> usize {
        // Under the lock: no request joins or leaves meanwhile.
        let _members = self.members.lock();
        self.waits.waiting()
    }
}

impl Drop for Waiters {
    /// Only forgotten requests are left.
    fn drop(&mut self) {
        let mut trash = Trash::default();
        trash.add(std::mem::take(&mut self.members.get_mut().waiters).into_values());
    }
}
