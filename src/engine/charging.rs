//! Bytes that count against the capacity although the heap does not have them: others hold them.

use super::{Change, Engine, Group, Mode, NoMemory, ordering, reaping, spill, supply};
use crate::device::DeviceError;
use crate::heap::{Heap, Piece, Target, inspect};
use crate::lane::Flush;

/// Charges the capacity for bytes outside of the heap. If it lacks the room, releases free memory, cached blocks included,
/// asks the source of the capacity for more, and evicts. Releases and evicts nothing if that would not be enough. Like any
/// search, it publishes none of its own steps: a request that waits for a charge would wake itself.
///
/// # Errors
/// Returns an error if there is not enough room now, or memory calls are needed that may not be made here.
pub(super) fn charge(engine: &Engine, bytes: u64, mode: Mode<'_>) -> Result<(), NoMemory> {
    engine.shared.expect_sound()?;
    let is_short = || {
        let heap = engine.store.heap.lock();
        heap.totals().releasable < lacking(&heap, bytes)
    };
    while !engine.store.heap.lock().charge_outside(bytes) {
        if is_short() {
            reclaim_unpublished(engine)?;
        }
        if is_short() && borrow(engine, bytes, mode) {
            continue;
        }
        if is_short() {
            evict(engine, bytes)?;
        }
        if is_short() {
            return Err(NoMemory::short());
        }
        let lacking = lacking(&engine.store.heap.lock(), bytes);
        if lacking == 0 {
            // There is room now: a spare was removed, or the source of the segments has the memory of evicted blocks.
            continue;
        }
        if !engine.shared.may_call(mode.effort) {
            return Err(NoMemory::NeedsThread);
        }
        let released = supply::release(engine, Target::Bytes(lacking)).into_result();
        engine.shared.noted(released)?;
    }
    Ok(())
}

/// Returns how much room the capacity lacks for this many bytes.
fn lacking(heap: &Heap, bytes: u64) -> u64 {
    bytes.saturating_sub(inspect::left_and_free(heap).0)
}

/// Ends a charge.
pub(crate) fn uncharge(engine: &Engine, bytes: u64) {
    engine.store.heap.lock().uncharge_outside(bytes);
    engine.shared.publish(Change::Memory);
}

/// Makes all freed memory count, and leaves it to the caller to look at the result.
fn reclaim_unpublished(engine: &Engine) -> Result<(), DeviceError> {
    engine.streams.flush(&engine.store, Flush::All);
    ordering::seal_lanes(engine)?;
    reaping::reap_by(engine, |lane| lane.timeline.reap(&*engine.shared.device)).map(drop)
}

/// Asks the source of the capacity for the bytes that the lease lacks, and that free memory cannot make room for. Returns
/// whether they may be held now.
fn borrow(engine: &Engine, bytes: u64, mode: Mode<'_>) -> bool {
    let lease = &engine.store.lease;
    let wanted = {
        let heap = engine.store.heap.lock();
        let totals = heap.totals();
        let held = (totals.held() - totals.releasable).saturating_add(bytes);
        let is_within = held <= engine.store.capacity();
        is_within.then(|| lease.wanted(held.saturating_sub(heap.lease())))
    };
    wanted
        .flatten()
        .is_some_and(|wanted| mode.borrow(lease, wanted))
}

/// Evicts memory until enough is free or about to be, unless all evictable memory would not be enough.
fn evict(engine: &Engine, bytes: u64) -> Result<(), DeviceError> {
    let Engine { shared, store, .. } = engine;
    loop {
        let (totals, lacking) = {
            let heap = store.heap.lock();
            (heap.totals(), lacking(&heap, bytes))
        };
        let coming = totals.releasable.saturating_add(totals.pending.current);
        let rest = lacking.saturating_sub(coming);
        let most = spill::could_evict(shared, store).saturating_add(totals.releasable);
        if rest == 0 || most < lacking {
            return Ok(());
        }
        let (evictables, piece) = (&store.evictables, Piece::Releasable);
        if evictables.evict_for(&store.heap, rest, piece, Group::Pool) == 0 {
            return Ok(());
        }
        // Blocks that share their chunks with others release nothing: more of them may.
        reclaim_unpublished(engine)?;
    }
}
