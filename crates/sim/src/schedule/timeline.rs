//! Streams by the time at which they are due, and streams that are ready to run: two heaps with at most one entry per
//! stream each.
//!
//! This module does not know the meaning of an entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use weirpool_device::RawStream;

/// Streams by the time at which something happens to them. Those of one instant are in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    heap: BinaryHeap<Reverse<(Duration, u64, RawStream)>>,
    arrivals: u64,
}

impl Timeline {
    /// Adds a stream. At [`Duration::MAX`] nothing ever happens.
    pub(super) fn push(&mut self, at: Duration, stream: RawStream) {
        if at < Duration::MAX {
            self.arrivals += 1;
            self.heap.push(Reverse((at, self.arrivals, stream)));
        }
    }

    pub(super) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes and returns the first stream that is due by `now`.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<RawStream> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., stream))| stream)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
    }
}

/// Streams whose head waits for a place. The longest wait comes first; within an instant, the seed decides.
#[derive(Debug)]
pub(super) struct Places {
    free: usize,
    all: usize,
    ready: BinaryHeap<Reverse<(Duration, u64, RawStream)>>,
    draw: fastrand::Rng,
}

impl Places {
    pub(super) fn new(all: usize, seed: u64) -> Self {
        Self {
            free: all,
            all,
            ready: BinaryHeap::new(),
            draw: fastrand::Rng::with_seed(seed),
        }
    }

    pub(super) fn ask(&mut self, now: Duration, stream: RawStream) {
        let ticket = self.draw.u64(..);
        self.ready.push(Reverse((now, ticket, stream)));
    }

    /// Gives a free place to the next stream.
    pub(super) fn give(&mut self) -> Option<RawStream> {
        if self.free == 0 {
            return None;
        }
        let Reverse((.., stream)) = self.ready.pop()?;
        self.free -= 1;
        Some(stream)
    }

    pub(super) fn take_back(&mut self) {
        self.free += 1;
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.free = self.all;
    }
}
