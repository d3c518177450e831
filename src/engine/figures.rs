//! How the pool's figures are read from the heap and the lanes.
//!
//! Each lane counts for itself, so that the hot path writes no shared cache line; a reader adds up. It holds the
//! heap's lock meanwhile: no block enters or leaves a cache then except by an allocation or a free of its own stream,
//! which turns cached bytes into used ones or back. Each lane is read at one moment. So no block is counted twice,
//! and the bytes by state always add up to the reserved bytes.
//!
//! The lock order is heap, registry, lane.

use super::keeping::whole_heap;
use super::{Engine, HeapStore, Hits, Shared, Statistics, Streams, gate};
use crate::device::MemoryInfo;
use crate::error::Shortfall;
use crate::heap::{Figures, High, Request, inspect};
use crate::lane::{Flush, Lane, LaneFigures};
use crate::measure::{Level, Mark};
use crate::sync::Ordering;

/// Returns the figures of the heap and of all lanes, of one moment; see the [module](self).
fn figures(streams: &Streams, store: &HeapStore, since: Mark) -> (Figures, LaneFigures) {
    // Outlives the lock: it may be the last owner of a stream.
    let lanes;
    let heap = whole_heap(streams, store);
    let mut sum = {
        let registry = streams.lanes.lock();
        lanes = registry.lanes.clone();
        registry.retired.figures(since)
    };
    lanes.iter().for_each(|lane| sum.add(&lane.figures(since)));
    (Figures::of(&heap, since), sum)
}

/// Returns the pool's figures since it was built.
pub(crate) fn statistics(engine: &Engine) -> Statistics {
    statistics_since(engine, Mark::RESET)
}

/// Returns the pool's figures, with the high-water marks since `mark`.
pub(crate) fn statistics_since(engine: &Engine, mark: Mark) -> Statistics {
    let (figures, lanes) = figures(&engine.streams, &engine.store, mark);
    let (totals, counts) = (figures.totals, lanes.counts);
    let used = totals.used.current.saturating_sub(lanes.cached);
    let pending = totals.pending.current + lanes.cached - lanes.cached_complete;
    // What reservations hold is in no lane's counts.
    let bound = lanes.bound.saturating_add(totals.set_aside.high);
    let (evictions, evicted) = engine.store.evictables.evicted();
    // It may gain fields, so another crate than its own sets them one by one.
    let mut statistics = Statistics::default();
    statistics.capacity = engine.store.capacity();
    statistics.leased = engine.store.leased();
    statistics.reserved = totals.reserved;
    statistics.used = Level {
        current: used,
        high: totals.used.high.min(bound).max(used),
    };
    statistics.pending = Level {
        current: pending,
        high: totals.pending.high.max(pending),
    };
    statistics.in_use = totals.in_use;
    statistics.free = totals.free.current + lanes.cached_complete;
    statistics.moving = totals.claimed;
    statistics.set_aside = totals.set_aside.current;
    statistics.in_graphs = engine.shared.counters.in_graphs();
    statistics.charged = totals.outside;
    statistics.foreign = engine.shared.counters.foreign();
    statistics.suspended = engine.shared.counters.in_absence();
    statistics.evictable = engine.store.evictables.bytes();
    statistics.reservations = figures.reservations;
    statistics.largest_free = figures.largest_free;
    statistics.free_blocks = figures.free_blocks;
    statistics.cached_in_lanes = lanes.cached;
    statistics.lost_to_rounding = counts.rounding;
    statistics.allocations = counts.allocations();
    statistics.allocated = counts.granted;
    statistics.frees = counts.frees;
    statistics.freed = counts.freed;
    statistics.live_blocks = counts.live();
    statistics.chunks = figures.chunks;
    statistics.releasable_chunks = figures.releasable_chunks;
    statistics.releasable_blocks = figures.releasable_blocks;
    statistics.releasable_bytes = figures.releasable_bytes;
    statistics.hits = Hits::new(counts.by_source);
    statistics.waits = engine.shared.waits.statistics();
    statistics.pending_ages = engine.streams.events.ages();
    statistics.growths = engine.shared.growths();
    statistics.chunks_created = engine.shared.counters.chunks_created.get();
    statistics.remaps = engine.shared.counters.remaps.get();
    statistics.device_waits = engine.shared.counters.device_waits.get();
    statistics.released = engine.shared.counters.released.get() + engine.store.spares_removed.get();
    statistics.events_created = engine.streams.events.created();
    statistics.evictions = evictions;
    statistics.evicted = evicted;
    statistics
}

/// Returns the figures of a lane, and the bytes pending on its stream: freed there, or used there and freed, and
/// not known to be complete.
pub(crate) fn figures_of(streams: &Streams, store: &HeapStore, lane: &Lane) -> (LaneFigures, u64) {
    let heap = whole_heap(streams, store);
    let figures = lane.figures(Mark::RESET);
    let pending = inspect::pending_on(&heap, lane.id) + figures.cached - figures.cached_complete;
    (figures, pending)
}

/// Returns the number of blocks that are pending on a lane's stream, in constant time.
pub(crate) fn pending_blocks_on(store: &HeapStore, lane: &Lane) -> usize {
    let heap = store.heap.lock();
    inspect::pending_blocks_on(&heap, lane.id) + lane.pending_blocks()
}

/// Sets a high-water mark to the current figure.
pub(crate) fn reset_high(streams: &Streams, store: &HeapStore, high: High) {
    let mut heap = whole_heap(streams, store);
    heap.reset_high(high);
    if high == High::Used {
        heap.reset_high(High::SetAside);
        let mut registry = streams.lanes.lock();
        registry.retired.reset_high();
        registry.lanes.iter().for_each(|lane| {
            lane.cache
                .with_marks(|counters, shards| counters.reset_high(shards))
        });
    }
}

/// Keeps the high-water marks since now as well, until [`end`] is called.
pub(crate) fn begin(streams: &Streams, store: &HeapStore) -> Mark {
    let mut heap = whole_heap(streams, store);
    let mut registry = streams.lanes.lock();
    let mark = registry.retired.begin();
    heap.begin_mark(mark);
    registry.lanes.iter().for_each(|lane| {
        lane.cache
            .with_marks(|counters, shards| counters.begin(mark, shards))
    });
    mark
}

pub(crate) fn end(streams: &Streams, store: &HeapStore, mark: Mark) {
    let mut heap = store.heap.lock();
    let mut registry = streams.lanes.lock();
    registry.retired.end(mark);
    registry
        .lanes
        .iter()
        .for_each(|lane| lane.cache.with_marks(|counters, _| counters.end(mark)));
    heap.end_mark(mark);
}

/// Bypasses all caches until [`end_exact`] is called as often: high-water marks are exact meanwhile.
pub(crate) fn begin_exact(engine: &Engine) {
    let shared = &engine.shared;
    {
        let mut measurements = shared.measurements.lock();
        *measurements += 1;
        shared.gate.fetch_or(gate::MEASURED, Ordering::SeqCst);
    }
    engine.streams.flush(&engine.store, Flush::All);
}

pub(crate) fn end_exact(shared: &Shared) {
    let mut measurements = shared.measurements.lock();
    *measurements -= 1;
    if *measurements == 0 {
        shared.gate.fetch_and(!gate::MEASURED, Ordering::SeqCst);
    }
}

/// Returns the state of the memory, for an error.
pub(crate) fn shortfall(engine: &Engine, request: Request, waiting: usize) -> Shortfall {
    let (figures, lanes) = figures(&engine.streams, &engine.store, Mark::RESET);
    let totals = figures.totals;
    let mut shortfall = Shortfall::default();
    shortfall.requested = request.bytes;
    shortfall.free = totals.free.current;
    shortfall.largest_free = figures.largest_free;
    shortfall.pending = totals.pending.current + lanes.cached;
    shortfall.used = totals.used.current.saturating_sub(lanes.cached);
    shortfall.reserved = totals.reserved.current;
    shortfall.capacity = engine.store.capacity();
    shortfall.leased = engine.store.leased();
    shortfall.waiting = waiting;
    shortfall.device = refused_by_device(engine, request.bytes, shortfall.reserved);
    shortfall
}

/// Returns the device's own figures, if the device, and not the capacity, refused as many bytes when it was last
/// asked.
fn refused_by_device(engine: &Engine, bytes: u64, reserved: u64) -> Option<MemoryInfo> {
    let shared = &engine.shared;
    let is_allowed = reserved.saturating_add(bytes) <= engine.store.leased();
    let is_refused = is_allowed && engine.supply.is_refused();
    let info = is_refused.then(|| shared.device.memory_info(shared.settings.kind));
    info?.ok()
}
