//! The part of the capacity that a broker leases to the pool.
//!
//! The heap knows the lease as a bound on held memory. A search that is short of it asks the [`Lender`], and the lender
//! has the [queue](crate::queue) apply each answer.
//!
//! A recall that is *binding* bounds the memory in use as well, until enough memory has come back. Meanwhile a bit of
//! the gate is set: frees go to the heap, and are seen.

#![cfg_attr(
    not(any(all(feature = "broker", target_os = "linux"), weirpool_loom)),
    allow(dead_code, reason = "no lender exists without the feature")
)]

use crate::measure::debug_in_units;
use crate::sync::plain::Arc;
use crate::sync::{Ordering, SharedNumber};
use std::fmt;
use std::time::Duration;

/// Leases capacity to a pool. No call waits for the broker, but for [`ask_and_wait`](Self::ask_and_wait).
pub(crate) trait Lender: fmt::Debug + Send + Sync {
    /// States that `wanted` bytes must have been [granted](LeaseBounds::granted). Replaces the need of another turn; of
    /// several calls in one turn, the largest counts.
    fn ask(&self, turn: u64, wanted: u64);

    /// States that `wanted` bytes must have been [granted](LeaseBounds::granted), and waits briefly. Returns whether the
    /// pool has been told of them.
    fn ask_and_wait(&self, wanted: u64) -> bool;

    /// Withdraws the need.
    fn withdraw(&self);

    /// Returns whether a need waits for its grant.
    fn is_asking(&self) -> bool;

    /// Makes the queue apply the lease again: memory came back while the broker waits for it.
    fn look_again(&self);

    /// Ends the lease: the device has all memory back.
    fn end(&self);

    /// Returns how the lease stands.
    fn figures(&self) -> BrokerLease;
}

/// The lease of a pool whose capacity a [broker](crate::guide::services#several-processes) leases; sizes are in bytes.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BrokerLease {
    /// The bytes that the pool may hold, including those that the broker has asked for and the pool has not given back.
    pub leased: u64,
    /// The bytes that are never taken back.
    pub guaranteed: u64,
    /// The maximum number of bytes that the pool may hold.
    pub limit: u64,
    /// The bytes that the broker has asked for and the pool has not given back.
    pub recalled: u64,
    /// Whether the pool has asked the broker for more bytes, and waits for the grant.
    pub is_waiting: bool,
    /// Whether the broker is connected. Without it the pool goes on within its lease, and requests beyond it wait.
    pub is_connected: bool,
    /// Why a restarted broker does not take the pool back, if it said so.
    pub refused: Option<String>,
    /// The total time that the pool has spent giving memory back, unmapping included.
    pub returning: Duration,
    /// The total time that the pool has spent serving the queue with granted bytes, mapping included.
    pub granting: Duration,
}

debug_in_units!(struct BrokerLease { leased as bytes, guaranteed as bytes, limit as bytes, recalled as bytes, is_waiting, is_connected, refused, returning, granting });

/// What a lender lets the pool hold, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseBounds {
    /// Granted so far, whether returned since or not.
    pub(crate) granted: u64,
    /// May be held first, for the requests that wait.
    pub(crate) first: u64,
    /// May be held then.
    pub(crate) bound: u64,
    /// The broker waits for memory that is in use.
    pub(crate) is_binding: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) lender: Option<Arc<dyn Lender>>,
    /// The pass over the queue that asks.
    turn: SharedNumber,
    /// The grants that the bounds include; all of them change under the heap's lock, and are read there. A need is
    /// counted from here, since the next grant may be applied before the lender hears of the need.
    granted: SharedNumber,
    /// The most bytes in use that a search may lead to; `u64::MAX` for any number.
    most_in_use: SharedNumber,
}

impl Lease {
    pub(super) fn new(lender: Option<Arc<dyn Lender>>) -> Self {
        Self {
            lender,
            turn: SharedNumber::new(0),
            granted: SharedNumber::new(0),
            most_in_use: SharedNumber::new(u64::MAX),
        }
    }

    /// Begins a pass over the queue, whose needs replace those of earlier ones.
    pub(crate) fn begin_turn(&self, turn: u64) {
        if self.lender.is_some() {
            self.turn.store(turn, Ordering::Relaxed);
        }
    }

    /// Sets the grants that the bounds include, and the bytes that may be held; with `is_binding`, they bound the memory
    /// in use as well. Called under the heap's lock.
    pub(super) fn set(&self, granted: u64, bytes: u64, is_binding: bool) {
        let most_in_use = if is_binding { bytes } else { u64::MAX };
        self.granted.store(granted, Ordering::Relaxed);
        self.most_in_use.store(most_in_use, Ordering::Relaxed);
    }

    /// Returns the bytes that must have been granted before this many may be in use; `None` if they may be now. Called
    /// under the heap's lock.
    pub(super) fn wanted_for_use(&self, in_use: u64) -> Option<u64> {
        let most = self.most_in_use.load(Ordering::Relaxed);
        self.wanted(in_use.saturating_sub(most))
    }

    /// Returns the bytes that must have been granted where a bound lacks that many; `None` if it lacks none. Called
    /// under the heap's lock.
    pub(super) fn wanted(&self, lacking: u64) -> Option<u64> {
        (lacking > 0).then(|| self.granted.load(Ordering::Relaxed).saturating_add(lacking))
    }

    /// Asks for a request that waits in the queue.
    pub(super) fn ask(&self, wanted: u64) {
        if let Some(lender) = &self.lender {
            lender.ask(self.turn.load(Ordering::Relaxed), wanted);
        }
    }

    /// Asks for a caller that wants an answer now.
    pub(super) fn ask_and_wait(&self, wanted: u64) -> bool {
        let lender = self.lender.as_ref();
        lender.is_some_and(|lender| lender.ask_and_wait(wanted))
    }

    /// Notes that no request waits.
    pub(crate) fn withdraw(&self) {
        if let Some(lender) = &self.lender {
            lender.withdraw();
        }
    }

    /// Returns whether the broker has been asked for more, and has not granted it.
    pub(crate) fn is_asking(&self) -> bool {
        self.lender
            .as_ref()
            .is_some_and(|lender| lender.is_asking())
    }
}
