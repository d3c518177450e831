//! The announcer: the one place from which [observers](Observer) are told. Counters have counted by then.
//!
//! No lock is held when observers are told (*no-lock-across-calls*). Facts whose order the heap's lock decides are noted
//! under it, with their numbers, and told after it is released.

use crate::observer::{Event, Fact, Figures, Memory, Observer};
use crate::{BlockOrigin, ReservationOrigin};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use weirpool_device::{Device, DeviceAddress};
use weirpool_heap::id::ReservationId;
use weirpool_heap::{Outcome, Step, Totals};
use weirpool_sync::plain::{Arc, AtomicU64};
use weirpool_sync::{Ordering, assert_unlocked};

/// Tells the observers of one pool; see the [module](self).
pub struct Announcer {
    device: Arc<dyn Device>,
    observers: Vec<Arc<dyn Observer>>,
    /// The number of the last event.
    told: AtomicU64,
}

/// Facts to tell, with their numbers and their time.
pub struct Noted {
    first: u64,
    time: Duration,
    memory: Memory,
    facts: Vec<Fact<'static>>,
}

impl Announcer {
    /// Creates the announcer of a pool on the device.
    pub fn new(device: Arc<dyn Device>, observers: Vec<Arc<dyn Observer>>) -> Self {
        Self {
            device,
            observers,
            told: AtomicU64::new(0),
        }
    }

    /// Returns whether there are observers.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Returns the observers, in the order in which they are told.
    pub fn observers(&self) -> &[Arc<dyn Observer>] {
        &self.observers
    }

    /// Returns the number of the last event.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Tells a fact, which is made only if there are observers. Returns the number of the event; 0 without observers. No
    /// lock is held.
    #[inline]
    pub fn tell<'a>(&self, fact: impl FnOnce() -> Fact<'a>) -> u64 {
        match self.is_open() {
            true => self.tell_now(fact(), Figures::None),
            false => 0,
        }
    }

    /// Tells a fact with the state of the memory, which is read when an observer asks. No lock is held.
    #[cold]
    #[inline(never)]
    pub fn tell_with(&self, fact: Fact<'_>, memory: &dyn Fn() -> Memory) {
        self.tell_now(fact, Figures::Of(memory));
    }

    #[cold]
    #[inline(never)]
    fn tell_now(&self, fact: Fact<'_>, figures: Figures<'_>) -> u64 {
        let (number, time) = (self.number(1), self.device.now());
        self.tell_event(&Event {
            number,
            time,
            fact,
            figures,
        });
        number
    }

    /// Returns the time of facts that are noted soon, if there are observers. No lock is held.
    #[inline]
    pub fn time(&self) -> Option<Duration> {
        self.is_open().then(|| self.device.now())
    }

    /// Notes facts. The heap's lock may be held.
    pub fn note(&self, time: Duration, totals: Totals, facts: Vec<Fact<'static>>) -> Noted {
        Noted {
            first: self.number(facts.len() as u64),
            time,
            memory: memory_of(totals),
            facts,
        }
    }

    /// Tells facts that were noted. No lock is held.
    #[inline]
    pub fn tell_noted(&self, noted: Option<Noted>) {
        if let Some(noted) = noted {
            self.tell_all(noted);
        }
    }

    #[cold]
    fn tell_all(&self, noted: Noted) {
        for (number, fact) in (noted.first..).zip(noted.facts) {
            self.tell_event(&Event {
                number,
                time: noted.time,
                fact,
                figures: Figures::Taken(noted.memory),
            });
        }
    }

    /// Returns the first of so many numbers.
    fn number(&self, events: u64) -> u64 {
        self.told.fetch_add(events, Ordering::Relaxed) + 1
    }

    fn tell_event(&self, event: &Event<'_>) {
        assert_unlocked("an observer is told");
        for observer in &self.observers {
            self.call(|| observer.event(event));
        }
    }

    /// Calls an observer. The panic hook has reported a panic, and its payload may panic when it is dropped.
    fn call<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let called = catch_unwind(AssertUnwindSafe(call));
        called.map_err(std::mem::forget).ok()
    }

    /// Returns where a live block comes from, if an observer remembers. No lock is held.
    pub fn origin_of(&self, address: DeviceAddress) -> Option<BlockOrigin> {
        assert_unlocked("an observer is asked");
        let mut observers = self.observers.iter();
        observers.find_map(|observer| self.call(|| observer.origin_of(address))?)
    }

    /// Returns where a live reservation comes from, if an observer remembers. No lock is held.
    pub fn origin_of_reservation(&self, id: ReservationId) -> Option<ReservationOrigin> {
        assert_unlocked("an observer is asked");
        let mut observers = self.observers.iter();
        observers.find_map(|observer| self.call(|| observer.origin_of_reservation(id.0.get()))?)
    }
}

impl fmt::Debug for Announcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Announcer").field(&self.observers).finish()
    }
}

/// Returns the state of the memory from totals of the heap.
pub fn memory_of(totals: Totals) -> Memory {
    Memory {
        reserved: totals.reserved.current,
        pending: totals.pending.current,
        free: totals.free.current,
    }
}

/// Returns the facts of a mapping, as far as the device came. A chunk may have been lost on the way.
pub fn mapped(steps: &[Step], outcome: Outcome, chunk_bytes: u64) -> Vec<Fact<'static>> {
    let (done, rest) = steps.split_at(outcome.done);
    let runs = done.chunk_by(|step, next| follows(*step, *next, chunk_bytes));
    let runs = runs.map(|run| {
        let chunks = run.len() as u64;
        let bytes = chunks * chunk_bytes;
        let Step { from, to } = run[0];
        match from {
            Some(from) => Fact::Remapped {
                from: from.into(),
                to: to.into(),
                bytes,
                chunks,
            },
            None => Fact::Grown {
                address: to.into(),
                bytes,
                chunks,
            },
        }
    });
    let lost = rest.first().filter(|_| outcome.lost);
    let lost = lost.and_then(|step| step.from).map(|from| Fact::Released {
        address: from.into(),
        bytes: chunk_bytes,
    });
    runs.chain(lost).collect()
}

/// Returns the facts of a release. Neighbours become one.
pub fn released(spans: &[(u64, u64)]) -> Vec<Fact<'static>> {
    let runs = spans.chunk_by(|(at, bytes), (next, _)| at + bytes == *next);
    let runs = runs.map(|run| Fact::Released {
        address: run[0].0.into(),
        bytes: run.iter().map(|(_, bytes)| bytes).sum(),
    });
    runs.collect()
}

/// Returns whether two steps belong to one run: neighbours both before and after.
fn follows(step: Step, next: Step, chunk_bytes: u64) -> bool {
    let is_from_next = match (step.from, next.from) {
        (Some(from), Some(next)) => from + chunk_bytes == next,
        (None, None) => true,
        _ => false,
    };
    is_from_next && step.to + chunk_bytes == next.to
}
