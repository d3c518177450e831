//! Memory of a device that several pools share: a pool that is short has the others release some.
//!
//! The device may refuse memory within the pool's capacity, because others hold it. Other pools of this process that
//! keep free memory of the same device spill then: they release as much as is needed, unless all of them together have
//! too little. A pool in which requests wait spills only for a pool with an older request (see
//! [`registry`](crate::registry)). Other processes cannot be asked, nor can they tell when they let go.

use super::{Change, Engine, Group, HeapStore, Shared, reaping, supply};
use crate::device::MemoryKind;
use crate::heap::{Piece, Target};

/// The most that a device may report as free and never give. An H200 refuses 2 MiB when it reports 3.1 MiB.
const WITHHELD: u64 = 32 << 20;

/// Makes other pools release the memory that a refused request lacks, if they have that much. The device may refuse
/// memory that it reports as free, for example because its page tables need some: so they release at least one step,
/// and twice as much each further time. Says whether they released any.
pub(super) fn spill_for(engine: &Engine, bytes: u64, times: u32) -> bool {
    let geometry = engine.shared.settings.geometry;
    let step = geometry.chunk_bytes;
    // Free chunks of this pool are remapped, if they can be.
    let own = if geometry.virtual_memory {
        engine.store.totals().whole_free_chunks * step
    } else {
        0
    };
    let lacking = bytes.saturating_sub(own).max(1).next_multiple_of(step);
    let least = step.saturating_mul(1 << times.min(63));
    // A source of segments may keep memory that is given back to it. Then it is not asked for more.
    let before = (times > 0).then(|| engine.supply.left_on_device());
    let has_released = (engine.supply.others.spill)(engine, lacking, least) > 0;
    has_released && before.is_none_or(|before| engine.supply.left_on_device() > before)
}

/// Returns how many of the bytes the device could give, once other pools have released what they can. If the search
/// was refused, only memory counts of which the device tells.
pub(super) fn obtainable(engine: &Engine, bytes: u64, is_refused: bool) -> u64 {
    let supply = &engine.supply;
    if bytes == 0 {
        return 0;
    }
    let settings = &engine.shared.settings;
    // Another source of segments may count memory as free that is on its way. Managed memory may exceed the device's.
    let is_known = match is_refused {
        true => !settings.has_source,
        false => settings.kind != MemoryKind::Managed,
    };
    let left = is_known
        .then(|| supply.memory.segments().available())
        .flatten();
    let Some(left) = left else {
        return if is_refused { 0 } else { bytes };
    };
    if left >= bytes {
        return bytes;
    }
    let step = match settings.geometry.virtual_memory {
        true => settings.geometry.chunk_bytes,
        false => 1,
    };
    let given = left.saturating_add((supply.others.offers)(engine));
    bytes.min(given / step * step)
}

/// Returns whether the device refuses memory although it has [more](WITHHELD), and nothing of the pool is in use or on
/// its way: then no other pool or process stands in the way, and only time would pass. Another source of segments may refuse
/// for reasons that only it knows.
pub(super) fn refuses_for_no_reason(engine: &Engine, bytes: u64) -> bool {
    let totals = engine.store.totals();
    let in_use = totals.in_use.current + totals.claimed + totals.planned;
    let suffices = bytes.saturating_add(WITHHELD);
    let has_source = engine.shared.settings.has_source;
    bytes > 0 && in_use == 0 && !has_source && engine.supply.left_on_device() >= suffices
}

/// Returns how many bytes could be released at once for another pool; none after the device has failed. If `asks`,
/// flushes the caches and asks the streams first.
pub(crate) fn could_give(engine: &Engine, asks: bool) -> u64 {
    if engine.shared.fault().is_some() {
        return 0;
    }
    if asks {
        reclaim_for_others(engine);
    }
    engine.store.totals().releasable
}

/// Returns how many more bytes could be released for another pool once evictable memory is evicted and all work on
/// freed memory is complete.
pub(crate) fn could_evict(shared: &Shared, store: &HeapStore) -> u64 {
    let evictable = store.evictables.bytes_of(Group::Pool);
    if evictable == 0 || shared.fault().is_some() {
        return 0;
    }
    let totals = store.totals();
    let unused = totals.unused();
    (unused + evictable).saturating_sub(totals.releasable)
}

/// Evicts this many bytes for another pool. Returns how many.
pub(crate) fn evict_for_others(engine: &Engine, bytes: u64) -> u64 {
    let (evictables, piece) = (&engine.store.evictables, Piece::Releasable);
    let evicted = evictables.evict_for(&engine.store.heap, bytes, piece, Group::Pool);
    if evicted > 0 {
        reclaim_for_others(engine);
    }
    evicted
}

/// Makes all freed memory count. Requests of this pool hear of the progress that is found.
fn reclaim_for_others(engine: &Engine) {
    let progress = || engine.store.totals().progress;
    let before = progress();
    // A failure is noted; the rest may be enough.
    let _ = reaping::reclaim(engine);
    if progress() != before {
        engine.shared.publish(Change::Memory);
    }
}

/// Releases up to this many free bytes for another pool. Returns how many.
pub(crate) fn give(engine: &Engine, bytes: u64) -> u64 {
    let step = engine.shared.settings.geometry.chunk_bytes;
    let target = Target::Bytes(bytes.next_multiple_of(step));
    // A failure is noted; the rest may be enough.
    supply::release_and_publish(engine, target).unwrap_or(0)
}
