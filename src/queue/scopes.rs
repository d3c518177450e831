//! The requests that were made in the scopes of reservations.

use super::waiter::Waiter;
use crate::engine::gate;
use crate::id::ReservationId;
use crate::lane::Gate;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Foreign, Guards, Mutex, Ordering, Trash};
use std::collections::BTreeMap;
use std::task::Waker;
use weirpool_queue::Position;

/// A reservation, and the position of a request in its scope.
type ScopeKey = (ReservationId, Position);

/// See the [module](self). Most pools have none, which is known without the lock.
#[derive(Debug)]
pub(super) struct Scopes {
    count: AtomicU64,
    waiters: Mutex<BTreeMap<ScopeKey, Foreign<Arc<Waiter>>>>,
    gate: Gate,
}

impl Scopes {
    pub(super) fn new(gate: Gate) -> Self {
        Self {
            count: AtomicU64::new(0),
            waiters: Mutex::new(Guards::Queue, BTreeMap::new()),
            gate,
        }
    }

    /// Adds a request, if it was made in a scope. The gate is closed under the lock, as it is opened.
    pub(super) fn enter(&self, waiter: &Arc<Waiter>) {
        if let Some(key) = key(waiter) {
            let mut waiters = self.waiters.lock();
            waiters.insert(key, Foreign::new(waiter.clone()));
            self.count.fetch_add(1, Ordering::Relaxed);
            if waiters.len() == 1 {
                self.gate.fetch_or(gate::SCOPED, Ordering::SeqCst);
            }
        }
    }

    /// Removes a request that leaves the queue, whose lock is held.
    pub(super) fn leave(&self, waiter: &Waiter, trash: &mut Trash<Arc<Waiter>>) {
        let Some(key) = key(waiter) else {
            return;
        };
        let mut waiters = self.waiters.lock();
        let left = waiters.remove(&key);
        if left.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            if waiters.is_empty() {
                self.gate.fetch_and(!gate::SCOPED, Ordering::SeqCst);
            }
        }
        trash.add(left);
    }

    /// Returns whether no request in a scope waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the wakers of the requests made in the scope of a reservation.
    pub(super) fn wakers_of(&self, reservation: ReservationId) -> Vec<Waker> {
        let waiters = self.waiters.lock();
        let range = (reservation, Position::MIN)..=(reservation, Position::MAX);
        let in_scope = waiters.range(range).map(|(_, waiter)| waiter);
        in_scope.filter_map(|waiter| waiter.notify()).collect()
    }

    /// Returns the wakers of the requests whose reservations have enough, in pieces that memory of the pool could be
    /// exchanged for.
    pub(super) fn wakers_for_pieces(&self) -> Vec<Waker> {
        let waiters = self.waiters.lock();
        let expecting = waiters.values().filter(|waiter| waiter.expects_pieces());
        expecting.filter_map(|waiter| waiter.notify()).collect()
    }
}

impl Drop for Scopes {
    /// Only forgotten requests are left.
    fn drop(&mut self) {
        let left = std::mem::take(self.waiters.get_mut());
        left.into_values().for_each(Foreign::release);
    }
}

fn key(waiter: &Waiter) -> Option<ScopeKey> {
    Some((waiter.scope?, waiter.entry.sort_key.position))
}
