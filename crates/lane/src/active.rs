//! The active streams: those that may cache blocks, or have freed memory that is not known to be complete.
//!
//! A search that misses flushes, seals and asks the active streams only, so that streams that do nothing cost it nothing.
//!
//! A stream enters under the lane's lock (or a shard's) before it caches a block or closes a ticket, and reads the gate
//! after that. A thread that closes the gate and then reads the set therefore finds the stream there, or the stream finds
//! the gate closed (fair-progress). A stream leaves under all of these locks, when there is nothing to find.

use crate::id::StreamId;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag};
use std::collections::BTreeSet;

/// The ids of the active streams of a pool; see the [module](self).
#[derive(Debug)]
pub struct ActiveStreams(Mutex<BTreeSet<StreamId>>);

impl ActiveStreams {
    /// Knows no stream yet.
    pub fn new() -> Self {
        Self(Mutex::new(Guards::Registry, BTreeSet::new()))
    }

    /// Returns the ids, in order.
    pub fn ids(&self) -> Vec<StreamId> {
        self.0.lock().iter().copied().collect()
    }
}

/// Whether a stream is active.
#[derive(Debug)]
pub(super) struct Activity {
    streams: Arc<ActiveStreams>,
    stream: StreamId,
    is_active: SharedFlag,
}

impl Activity {
    pub(super) fn new(streams: Arc<ActiveStreams>, stream: StreamId) -> Self {
        Self {
            streams,
            stream,
            is_active: SharedFlag::new(false),
        }
    }

    /// Makes the stream active. Called under the lane's lock or a shard's.
    #[inline]
    pub(super) fn begin(&self) {
        if !self.is_active.load(Ordering::Relaxed) {
            self.enter();
        }
    }

    #[cold]
    #[inline(never)]
    fn enter(&self) {
        let mut streams = self.streams.0.lock();
        streams.insert(self.stream);
        // Under the lock: another shard that reads it has entered.
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Makes the stream inactive. Called under the lane's lock and all shards'.
    pub(super) fn end(&self) {
        let mut streams = self.streams.0.lock();
        streams.remove(&self.stream);
        self.is_active.store(false, Ordering::Relaxed);
    }
}
