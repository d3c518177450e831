//! The floor: the steps that a pool with a cache per stream cannot avoid, and nothing else.

use super::contender::Contender;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// For each stream a lane: a mutex, a list, and a count of the holders of its blocks.
///
/// Threads that share a stream share its lock.
pub(crate) struct Lanes;

#[derive(Default)]
pub(crate) struct Lane(Mutex<List>);

#[derive(Default)]
struct List {
    free: Vec<u64>,
    made: u64,
}

impl List {
    #[cold]
    fn make(&mut self) -> u64 {
        self.made += 1;
        self.made
    }
}

impl Contender for Lanes {
    type Stream = Arc<Lane>;
    type Block = (Arc<Lane>, u64);

    fn stream(&self) -> Arc<Lane> {
        Arc::default()
    }

    #[inline]
    fn allocate(&self, lane: &Arc<Lane>, _bytes: u64) -> Option<(Arc<Lane>, u64)> {
        let mut list = lane.0.lock().expect("not poisoned");
        let address = list.free.pop();
        let address = address.unwrap_or_else(|| list.make());
        drop(list);
        Some((lane.clone(), address))
    }

    #[inline]
    fn free(&self, (lane, address): (Arc<Lane>, u64), _stream: &Arc<Lane>) {
        lane.0.lock().expect("not poisoned").free.push(address);
    }
}

/// An atomic that no other thread writes, twice.
pub(crate) struct Atomics;

/// Alone on its cache line, and on the adjacent line that is fetched with it.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Atomic(AtomicU64);

impl Contender for Atomics {
    type Stream = Atomic;
    type Block = u64;

    fn stream(&self) -> Atomic {
        Atomic::default()
    }

    #[inline]
    fn allocate(&self, atomic: &Atomic, bytes: u64) -> Option<u64> {
        atomic.0.fetch_add(bytes, Ordering::AcqRel);
        Some(bytes)
    }

    #[inline]
    fn free(&self, bytes: u64, atomic: &Atomic) {
        atomic.0.fetch_sub(bytes, Ordering::AcqRel);
    }
}
