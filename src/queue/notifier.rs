//! The notifier: how the driver, and the device, reach those who drive the waiting.
//!
//! Everybody who could serve the queue is a *member*: reclaimers, and the waiters themselves. Device
//! watches hold the notifier's waker, not a member's, so that they stay good whoever comes and goes.
//!
//! Which member will be polled again nobody can know: a waiter may be held and not polled, or be
//! forgotten; a reclaimer may belong to a runtime that nobody runs now. So a ring never rests on one of
//! them: with a reclaimer it wakes that and the head of the queue, the waiter who is served next; without one it
//! wakes every waiter. Fewer would not do: a ring may be the last one for long, and if all whom it woke stay
//! away, nobody is left to notice but those who were not woken. Only a clock could tell, and an alarm for every free
//! costs more than the reclaimer that spares the others being woken.
//!
//! Rings are counted, and *answered* by whoever begins to serve after them: a reclaimer that is polled when all are
//! has nothing to do. Who leaves the queue while one is not
//! answered may be the one who was woken for it, and serves for the others. Otherwise its leaving wakes only those
//! who get something by it.

use crate::driver::{Change, Publish};
use crate::sync::{Guards, Mutex, Ordering, SharedNumber, assert_unlocked, plain};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::task::{Wake, Waker};

/// Who may be woken to serve; in the order in which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    /// A reclaimer, by number.
    Reclaimer(u64),
    /// The waiter at this place in the queue.
    Waiter(u64),
    /// One that is held outside the queue, and served by nobody: it is woken when the pool itself changes.
    Held(u64),
    /// One that waits until everything came back, by number: it serves, but for nobody in particular.
    Drain(u64),
}

#[derive(Debug, Default)]
struct Members {
    wakers: BTreeMap<Member, Waker>,
    next: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Notifier {
    members: Mutex<Members>,
    /// The place of the waiter who is served next; [`NOBODY`], if nobody waits.
    lead: SharedNumber,
    /// Rings so far.
    notifies: SharedNumber,
    /// So many of them had source when somebody last began to serve.
    answered: SharedNumber,
}

/// No place.
const NOBODY: u64 = u64::MAX;

impl Notifier {
    pub(crate) fn new() -> Self {
        Self {
            members: Mutex::new(Guards::Notifier, Members::default()),
            lead: SharedNumber::new(NOBODY),
            notifies: SharedNumber::new(0),
            answered: SharedNumber::new(0),
        }
    }

    /// Something came back, or got further: it may be time to serve.
    pub(crate) fn notify(&self) {
        // Before anybody is chosen: who resigns and was chosen finds it counted.
        self.notifies.fetch_add(1, Ordering::AcqRel);
        let lead = self.lead.load(Ordering::Acquire);
        let wakers = self.members.lock().to_wake(lead);
        assert_unlocked("wake");
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Who is served next has another place now. Said under the queue's lock, so that the latest word is right.
    pub(crate) fn set_lead(&self, position: Option<u64>) {
        let position = position.unwrap_or(NOBODY);
        if self.lead.load(Ordering::Relaxed) != position {
            self.lead.store(position, Ordering::Release);
        }
    }

    /// Somebody serves, and sees from here on what rang so far.
    pub(crate) fn answer(&self) {
        let notifies = self.notifies.load(Ordering::Acquire);
        if self.answered.load(Ordering::Relaxed) != notifies {
            self.answered.store(notifies, Ordering::Release);
        }
    }

    /// Who began to serve did not get to the end.
    pub(crate) fn take_back_answer(&self) {
        self.notifies.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it rang and nobody has served since.
    pub(crate) fn is_unanswered(&self) -> bool {
        let answered = self.answered.load(Ordering::Acquire);
        answered != self.notifies.load(Ordering::Acquire)
    }

    /// Something left the queue: whoever waits until nobody does looks.
    pub(crate) fn notify_drains(&self) {
        self.wake_from(Member::Drain(0));
    }

    /// The pool ended, or changed: those look for themselves whom nobody serves.
    pub(crate) fn notify_throttled(&self) {
        self.wake_from(Member::Held(0));
    }

    fn wake_from(&self, first: Member) {
        let wakers: Vec<_> = {
            let members = self.members.lock();
            let woken = members.wakers.range(first..);
            woken.map(|(_, waker)| waker.clone()).collect()
        };
        assert_unlocked("wake");
        wakers.into_iter().for_each(Waker::wake);
    }

    /// A name for a drain.
    pub(crate) fn name_drain(&self) -> Member {
        let mut members = self.members.lock();
        members.next += 1;
        Member::Drain(members.next)
    }

    /// A name for a reclaimer.
    pub(crate) fn name_reclaimer(&self) -> Member {
        let mut members = self.members.lock();
        members.next += 1;
        Member::Reclaimer(members.next)
    }

    /// Makes `member` one to wake, by its latest waker.
    pub(crate) fn enlist(&self, member: Member, waker: &Waker) {
        let old = {
            let mut members = self.members.lock();
            match members.wakers.get(&member) {
                Some(known) if known.will_wake(waker) => None,
                _ => members.wakers.insert(member, waker.clone()),
            }
        };
        // Dropped outside the lock: it may own a task, and that anything.
        drop(old);
    }

    /// Ends the membership. Returns the waker, if it was a member.
    pub(crate) fn resign(&self, member: Member) -> Option<Waker> {
        self.members.lock().wakers.remove(&member)
    }
}

impl Members {
    fn to_wake(&self, lead: u64) -> SmallVec<[Waker; 2]> {
        let (first_waiter, first_held) = (Member::Waiter(0), Member::Held(0));
        let reclaimers = self.wakers.range(..first_waiter);
        let mut waiters = self.wakers.range(first_waiter..first_held);
        let (mut head, mut all) = (None, None);
        if reclaimers.clone().next().is_some() {
            // One who leads and is no member has come just now, and serves by itself.
            let lead = self.wakers.get_key_value(&Member::Waiter(lead));
            head = lead.or_else(|| waiters.next());
        } else {
            all = Some(waiters);
        }
        let drains = self.wakers.range(Member::Drain(0)..);
        let woken = reclaimers.chain(head).chain(all.into_iter().flatten());
        let woken = woken.chain(drains);
        woken.map(|(_, waker)| waker.clone()).collect()
    }
}

impl Publish for Notifier {
    fn publish(&self, change: Change) {
        self.notify();
        if change == Change::Terms {
            self.notify_throttled();
        }
    }
}

impl Wake for Notifier {
    fn wake(self: plain::Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &plain::Arc<Self>) {
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plain::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: plain::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn woken(members: &[Member]) -> Vec<Member> {
        woken_by(&Notifier::new(), members)
    }

    fn woken_by(notifier: &Notifier, members: &[Member]) -> Vec<Member> {
        let counts: Vec<_> = members
            .iter()
            .map(|member| {
                let count = plain::Arc::new(Count::default());
                notifier.enlist(*member, &Waker::from(count.clone()));
                (*member, count)
            })
            .collect();
        notifier.notify();
        let is_woken = |count: &Count| count.0.load(Ordering::Relaxed) == 1;
        let woken = counts.iter().filter(|(_, count)| is_woken(count));
        woken.map(|(member, _)| *member).collect()
    }

    #[test]
    fn without_a_reclaimer_every_waiter_is_woken() {
        let waiters = [Member::Waiter(3), Member::Waiter(4), Member::Waiter(9)];
        assert_eq!(woken(&waiters), waiters);
    }

    #[test]
    fn who_is_held_is_not_woken_to_serve() {
        let waiter = Member::Waiter(3);
        assert_eq!(woken(&[waiter, Member::Held(2)]), [waiter]);
    }

    #[test]
    fn who_drains_is_woken_by_every_ring() {
        let drains = [Member::Drain(1), Member::Drain(2)];
        assert_eq!(woken(&drains), drains);
        let all = [Member::Reclaimer(7), Member::Waiter(3), drains[0]];
        assert_eq!(woken(&all), all);
    }

    #[test]
    fn with_a_reclaimer_the_head_of_the_queue_is_woken_too() {
        let head = [Member::Reclaimer(7), Member::Waiter(3)];
        assert_eq!(woken(&[head[0], head[1], Member::Waiter(4)]), head);
        assert_eq!(woken(&[head[0]]), [head[0]]);
        assert_eq!(woken(&[]), []);
    }

    #[test]
    fn the_head_is_who_is_served_next() {
        let reclaimer = Member::Reclaimer(7);
        let waiters = [3, 4, 9].map(Member::Waiter);
        let members = [reclaimer, waiters[0], waiters[1], waiters[2]];
        let notifier = Notifier::new();
        notifier.set_lead(Some(4));
        assert_eq!(woken_by(&notifier, &members), [reclaimer, waiters[1]]);
        notifier.set_lead(Some(5));
        assert_eq!(woken_by(&notifier, &members), [reclaimer, waiters[0]]);
        notifier.set_lead(None);
        assert_eq!(woken_by(&notifier, &members), [reclaimer, waiters[0]]);
        notifier.resign(reclaimer);
        notifier.set_lead(Some(9));
        assert_eq!(woken_by(&notifier, &waiters), waiters);
    }

    #[test]
    fn who_serves_answers_what_rang_before() {
        let notifier = Notifier::new();
        assert!(!notifier.is_unanswered());
        notifier.notify();
        assert!(notifier.is_unanswered());
        notifier.answer();
        assert!(!notifier.is_unanswered());
        notifier.notify();
        notifier.notify();
        notifier.answer();
        assert!(!notifier.is_unanswered());
        notifier.take_back_answer();
        assert!(notifier.is_unanswered());
    }
}
