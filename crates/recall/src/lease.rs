//! The part of the capacity that a [source](CapacitySource) lends to the pool.
//!
//! The heap knows the lease as a bound on held memory. A search that is short of it asks the source, whose answers are
//! applied by the pool.
//!
//! A recall that is *binding* bounds the memory in use as well, until enough memory has come back. Meanwhile a bit of
//! the gate is set: frees go to the heap, and are seen.

use crate::CapacitySource;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool_measure::Fact;
use weirpool_measure::announcer::Announcer;
use weirpool_sync::plain::{Arc, AtomicBool};
use weirpool_sync::{Ordering, SharedNumber, assert_unlocked};

/// A source that the pool has joined. A panic of the source is reported, and affects nothing else.
#[derive(Debug)]
pub struct Lender {
    /// The source.
    pub source: Arc<dyn CapacitySource>,
    /// The most bytes that the pool may ever hold.
    pub limit: u64,
    announcer: Arc<Announcer>,
    has_ended: AtomicBool,
}

impl Lender {
    /// Creates the lender that a source is, which lends at most `limit` bytes.
    pub fn new(source: Arc<dyn CapacitySource>, limit: u64, announcer: Arc<Announcer>) -> Self {
        Self {
            source,
            limit,
            announcer,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Calls the source. Returns `None` if it panicked.
    fn call<R>(&self, call: impl FnOnce(&dyn CapacitySource) -> R) -> Option<R> {
        assert_unlocked("a capacity source is called");
        let called = catch_unwind(AssertUnwindSafe(|| call(&*self.source)));
        if called.is_err() {
            self.announcer.tell(|| Fact::SourcePanicked);
        }
        // The payload's drop may panic, too.
        called.map_err(std::mem::forget).ok()
    }

    /// Tells the source that memory came back while it waits for it.
    pub fn tell_of_memory(&self) {
        self.call(|source| source.memory_returned());
    }

    /// Tells the source, once, that the device has all memory back.
    pub fn end(&self) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            self.call(|source| source.ended());
        }
    }

    /// Returns what keeps the source from working.
    pub fn trouble(&self) -> Option<String> {
        self.call(|source| source.trouble()).flatten()
    }
}

/// What the source lends now; see the [module](self).
#[derive(Debug)]
pub struct Lease {
    /// The source, if there is one.
    pub lender: Option<Arc<Lender>>,
    /// The pass over the queue that asks, the last one that asked, and the bytes that it asked for; 0 if no request
    /// waits. The thread that serves the queue writes them.
    turn: SharedNumber,
    asked_in: SharedNumber,
    asked: SharedNumber,
    /// The grants that the bounds include; all of them change under the heap's lock, and are read there. A need is
    /// counted from here, since the next grant may be applied before the source hears of the need.
    granted: SharedNumber,
    /// The most bytes in use that a search may lead to; `u64::MAX` for any number.
    most_in_use: SharedNumber,
}

impl Lease {
    /// Creates the lease of a pool, without bounds yet.
    pub fn new(lender: Option<Arc<Lender>>) -> Self {
        Self {
            lender,
            turn: SharedNumber::new(0),
            asked_in: SharedNumber::new(0),
            asked: SharedNumber::new(0),
            granted: SharedNumber::new(0),
            most_in_use: SharedNumber::new(u64::MAX),
        }
    }

    /// Begins a pass over the queue, whose needs replace those of earlier ones.
    #[inline]
    pub fn begin_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Sets the grants that the bounds include, and the bytes that may be held; with `is_binding`, they bound the memory
    /// in use as well. Called under the heap's lock.
    #[inline]
    pub fn set(&self, granted: u64, bytes: u64, is_binding: bool) {
        let most_in_use = if is_binding { bytes } else { u64::MAX };
        self.granted.store(granted, Ordering::Relaxed);
        self.most_in_use.store(most_in_use, Ordering::Relaxed);
    }

    /// Returns the bytes that must have been granted before this many may be in use; `None` if they may be now. Called
    /// under the heap's lock.
    #[inline]
    pub fn wanted_for_use(&self, in_use: u64) -> Option<u64> {
        let most = self.most_in_use.load(Ordering::Relaxed);
        self.wanted(in_use.saturating_sub(most))
    }

    /// Returns the bytes that must have been granted where a bound lacks that many; `None` if it lacks none. Called
    /// under the heap's lock.
    #[inline]
    pub fn wanted(&self, lacking: u64) -> Option<u64> {
        (lacking > 0).then(|| self.granted.load(Ordering::Relaxed).saturating_add(lacking))
    }

    /// Asks for a request that waits in the queue. The largest need of one pass over the queue counts,
    /// and replaces that of an earlier pass.
    pub fn ask(&self, wanted: u64) {
        let Some(lender) = &self.lender else {
            return;
        };
        let turn = self.turn.load(Ordering::Relaxed);
        let earlier = match self.asked_in.load(Ordering::Relaxed) == turn {
            true => self.asked.load(Ordering::Relaxed),
            false => 0,
        };
        let wanted = wanted.max(earlier);
        self.asked_in.store(turn, Ordering::Relaxed);
        self.asked.store(wanted, Ordering::Relaxed);
        lender.call(|source| source.need(wanted));
    }

    /// Asks for a caller that wants an answer now. Returns whether the bytes may be held.
    pub fn ask_and_wait(&self, wanted: u64) -> bool {
        let lender = self.lender.as_ref();
        lender.is_some_and(|lender| lender.call(|source| source.need_now(wanted)) == Some(true))
    }

    /// Notes that no request waits.
    #[inline]
    pub fn withdraw(&self) {
        if let Some(lender) = &self.lender
            && self.asked.load(Ordering::Relaxed) > 0
        {
            self.asked.store(0, Ordering::Relaxed);
            lender.call(|source| source.satisfied());
        }
    }

    /// Returns whether the source has been asked for more, and has not granted it.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > self.granted.load(Ordering::Relaxed)
    }
}
