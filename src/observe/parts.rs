//! Reads the figures of a stream, of a tag, and of all blocks. The types may gain fields, so another crate than their own
//! sets them one by one.

use crate::engine::{Engine, HeapWalk, figures};
use crate::handles::Presence;
use crate::lane::Lane;
use crate::measure::{Account, Snapshot, StreamStatistics, Tag, TagStatistics};
use crate::queue::Service;
use std::num::NonZeroU32;

pub(crate) fn of_stream(engine: &Engine, lane: &Lane) -> StreamStatistics {
    let (figures, pending) = figures::figures_of(&engine.streams, &engine.store, lane);
    let mut read = StreamStatistics::of(lane.id);
    read.name = lane.name().map(str::to_owned);
    read.used = figures.used();
    read.pending = pending;
    read.cached_in_lane = figures.cached;
    read.lost_to_rounding = figures.counts.rounding;
    read.allocations = figures.counts.allocations();
    read.lane_hits = figures.counts.hits();
    read.frees = figures.counts.frees;
    read.waits = lane.waits.statistics();
    read.latency = lane.timeline.latency();
    (read.host_tasks, read.abandoned_host_tasks) = lane.host_tasks.counts();
    read
}

/// Returns zeros for a tag that the pool has not seen.
pub(crate) fn of_tag(service: &Service, tag: Tag) -> TagStatistics {
    match service.queue.accounts.get(tag) {
        Some(account) => of_account(service, tag, account),
        None => with_terms(service, TagStatistics::of(tag)),
    }
}

fn with_terms(service: &Service, mut read: TagStatistics) -> TagStatistics {
    let queue = &service.queue.lock().queue;
    read.weight = queue.weight(read.tag).map_or(0, NonZeroU32::get);
    read.queue_limit = queue.limit_of(read.tag);
    read
}

pub(crate) fn of_all_tags(service: &Service) -> Vec<TagStatistics> {
    let accounts = service.queue.accounts.iter();
    let read = accounts.map(|(tag, account)| of_account(service, tag, account));
    read.collect()
}

fn of_account(service: &Service, tag: Tag, account: &Account) -> TagStatistics {
    let mut read = TagStatistics::of(tag);
    // Before the allocations: the allocation of every free that is counted is counted, too.
    read.frees = account.frees();
    read.used = account.used();
    read.limit = account.limit();
    read.allocations = account.allocations();
    read.waits = account.waits.statistics();
    with_terms(service, read)
}

pub(crate) fn of_all_blocks(presence: &Presence) -> Snapshot {
    let engine = &presence.service.engine;
    let HeapWalk {
        segments,
        reservations,
        events,
    } = engine.heap_walk();
    let geometry = &engine.shared.settings.geometry;
    // After the walk: not earlier than any event of it.
    let time = engine.shared.device.now();
    let mut read = Snapshot::of(time, engine.store.capacity(), segments, reservations);
    read.name = presence.name.as_deref().map(str::to_owned);
    read.chunk_bytes = geometry.chunk_bytes;
    read.virtual_memory = geometry.virtual_memory;
    read.streams = engine.streams.names();
    read.events = events;
    read
}
