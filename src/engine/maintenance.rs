//! The maintenance layer: releases memory that the pool does not need, and coalesces, off the hot path.
//!
//! It releases free memory above the threshold, and coalesces when the heuristic says so. It becomes *due* when memory
//! comes back, to the heap or to a cache: then a deadline of the timer is set, and its waker does the maintenance. Only
//! memory that was free throughout the time in between is released (hysteresis), so that a pool whose use goes up and
//! down does not give memory away to take it again. Cached blocks count once their stream has been idle for that long.
//!
//! No free goes unnoticed: the first free after a flush takes the slow path, which sets the deadline, and maintenance ends
//! only when all caches are flushed.
//!
//! The deadline is set again only for what time alone changes. Memory that is pending comes back when a stream gets
//! further: until then its events are watched and no deadline is set. While requests wait, the maintenance is put off, and
//! the last one that leaves the queue resumes it. So an idle pool, or one on a device that stands still, comes to rest.

use super::{
    Change, CoalesceHeuristic, Engine, Group, HeapStore, MaintenanceSettings, Shared, Streams,
    Trimmed, Watches, figures, ordering, reaping, supply,
};
use crate::device::DeviceError;
use crate::heap::{Clock, Figures, Growth, Piece, Placement, Request, Target, View};
use crate::id::StreamId;
use crate::lane::{Flush, Lane};
use crate::measure::Mark;
use crate::sync::{Arc, ForeignOption, Guards, Ordering, SharedFlag, SharedNumber, plain};
use crate::timer::{DelayedCall, Timer};
use std::task::Waker;
use std::time::Duration;

/// The time from when maintenance is due to when it is done: long against a batch of requests, after which memory is taken
/// again; short against a person's patience.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Maintenance {
    threshold: SharedNumber,
    heuristic: Option<CoalesceHeuristic>,
    /// A caller has synchronized since the last maintenance.
    is_synchronized: SharedFlag,
    /// The maintenance was due while requests waited.
    is_put_off: SharedFlag,
    /// Does the maintenance that is due.
    keeper: DelayedCall,
    /// Watches on the streams that pending memory waits for, and the waker that they call.
    watches: ForeignOption<Watches>,
    progress: ForeignOption<Waker>,
}

/// What the next maintenance depends on, the nearest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// Nothing: there is nothing to do.
    Nothing,
    /// The progress of a stream.
    Progress,
    /// Time.
    Time,
}

impl Maintenance {
    pub(super) fn new(settings: &MaintenanceSettings, timer: &plain::Arc<Timer>) -> Self {
        Self {
            threshold: SharedNumber::new(settings.threshold),
            heuristic: settings.heuristic.clone(),
            is_synchronized: SharedFlag::new(false),
            is_put_off: SharedFlag::new(false),
            keeper: DelayedCall::new(timer),
            watches: ForeignOption::new(Guards::Registry, None),
            progress: ForeignOption::new(Guards::Registry, None),
        }
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Starts the maintenance: `keeper` does it when it is due, and `progress` [notes](note_progress) that a stream
    /// has got further.
    pub(crate) fn start_maintenance(&self, keeper: Waker, progress: Waker) {
        self.progress.set(Some(progress));
        self.keeper.set_waker(Some(keeper));
    }

    /// Ends the maintenance.
    pub(crate) fn end_maintenance(&self) {
        self.keeper.set_waker(None);
        self.progress.set(None);
        self.watches.set(None);
    }

    /// Returns the reserved bytes above which free memory is released unless it is in use now and then.
    fn most_kept(&self, store: &HeapStore) -> u64 {
        self.threshold().min(store.soft_cap.bytes())
    }

    /// Returns the reserved bytes above which free memory is released.
    fn most_cached(&self, store: &HeapStore) -> u64 {
        let threshold = self.most_kept(store);
        match store.is_shrunk.load(Ordering::Relaxed) {
            true => threshold.min(beside_charges(store, store.capacity())),
            false => threshold,
        }
    }

    /// Returns whether no memory is ever released or moved unasked.
    pub(super) fn keeps_all(&self, store: &HeapStore) -> bool {
        let is_shrunk = store.is_shrunk.load(Ordering::Relaxed);
        self.heuristic.is_none() && !is_shrunk && self.most_kept(store) == u64::MAX
    }
}

/// Sets the bytes above which free memory is released.
pub(crate) fn set_release_threshold(engine: &Engine, bytes: u64) {
    engine.maintenance.threshold.store(bytes, Ordering::Relaxed);
    schedule_after_return(engine);
}

/// Sets the mark above which the pool warns and releases; `u64::MAX` for none.
pub(crate) fn set_soft_cap(engine: &Engine, bytes: u64) {
    engine.store.soft_cap.set(bytes);
    engine.store.tell_of_soft_cap();
    schedule_after_return(engine);
}

/// Sets the most bytes that may be held from the device, a multiple of the chunks. Free memory above it is
/// released now, and other memory by the maintenance once it comes back.
///
/// # Errors
/// Returns an error if the device cannot reserve addresses, and nothing changed; or if it cannot release memory.
pub(crate) fn resize(engine: &Engine, capacity: u64) -> Result<Trimmed, DeviceError> {
    supply::reserve_addresses(engine, capacity)?;
    if engine.store.set_capacity(capacity) <= capacity {
        return Ok(Trimmed::new(capacity, 0, &figures::statistics(engine)));
    }
    let released = reclaim_above(engine, capacity);
    schedule_after_return(engine);
    Ok(Trimmed::new(
        capacity,
        released?,
        &figures::statistics(engine),
    ))
}

/// Asks for the maintenance, after memory came back, if maintenance may have something to do.
pub(crate) fn schedule_after_return(engine: &Engine) {
    let maintenance = &engine.maintenance;
    if maintenance.heuristic.is_some()
        || engine.store.reserved() > maintenance.most_cached(&engine.store)
    {
        schedule(engine);
    }
}

/// Notes that a stream has got further, and that the next maintenance may find memory complete.
pub(crate) fn note_progress(engine: &Engine) {
    schedule_after_return(engine);
    if engine.supply.is_refused() && could_release_any(engine) != Next::Nothing {
        schedule(engine);
    }
}

/// Does the maintenance that was put off, if no request waits any more.
#[inline]
pub(crate) fn resume(engine: &Engine) {
    // In one order with the gate, which the caller may just have opened: see `keep_up`.
    if engine.maintenance.is_put_off.load(Ordering::SeqCst) {
        resume_if_none_waits(engine);
    }
}

#[cold]
fn resume_if_none_waits(engine: &Engine) {
    if !engine.shared.is_awaited() && engine.maintenance.is_put_off.swap(false, Ordering::SeqCst) {
        note_progress(engine);
    }
}

/// Does the maintenance now, after a caller has waited for a stream, if the pool holds more than it is to keep: it
/// releases all free memory above that, as CUDA's and HIP's pools do at a synchronization.
pub(crate) fn release_synchronized(engine: &Engine) {
    let Engine {
        store, maintenance, ..
    } = engine;
    let is_due = store.reserved() > maintenance.most_kept(store)
        && next_release(engine) != Next::Nothing
        || engine.supply.memory.segments().to_trim().is_some();
    if !is_due || maintenance.is_synchronized.swap(true, Ordering::AcqRel) {
        return;
    }
    match maintenance.keeper.waker() {
        Some(waker) => waker.wake(),
        None => maintenance.is_synchronized.store(false, Ordering::Release),
    }
}

/// Has the maintenance done after the interval, if it is not due. Where the device refused memory within the capacity,
/// because others hold it, it gives back what stays free until then: they may need it.
pub(super) fn schedule(engine: &Engine) {
    if engine.maintenance.keeper.is_due() {
        return;
    }
    engine.maintenance.keeper.ask(|| {
        engine.store.heap.lock().mark_free();
        INTERVAL
    });
}

/// Does the maintenance that is due, when the timer calls. While a request waits, which may need the free memory,
/// it releases only memory above the capacity, and the rest is put off.
///
/// # Errors
/// Returns an error if the device call fails; the steps before it keep their effect. Unless the error is sticky,
/// the rest is tried again later.
pub(crate) fn keep_up(engine: &Engine) -> Result<(), DeviceError> {
    let is_synchronized = engine
        .maintenance
        .is_synchronized
        .swap(false, Ordering::AcqRel);
    let free_low = engine.store.totals().free_low;
    engine.maintenance.keeper.mark_called();
    if engine.shared.fault().is_some() {
        // The device takes nothing back.
        return Ok(());
    }
    // Noted before the gate is read: the last request that leaves either finds the note, or has opened the gate.
    engine.maintenance.is_put_off.store(true, Ordering::SeqCst);
    if engine.shared.is_awaited() {
        return release_above(engine, engine.store.capacity()).map(drop);
    }
    engine.maintenance.is_put_off.store(false, Ordering::SeqCst);
    let done = keep_up_now(engine, free_low, is_synchronized);
    let next = match &done {
        Ok(following) => {
            let of_heuristic = engine.maintenance.heuristic.as_ref().map(|_| *following);
            let of_pressure = engine
                .supply
                .is_refused()
                .then(|| could_release_any(engine));
            let of_all = [of_heuristic, of_pressure, Some(next_release(engine))];
            of_all.into_iter().flatten().max().unwrap_or(Next::Nothing)
        }
        Err(error) if error.is_sticky() => Next::Nothing,
        Err(_) => Next::Time,
    };
    match next {
        Next::Time => schedule(engine),
        Next::Progress => watch_progress(engine),
        Next::Nothing => engine.maintenance.watches.set(None),
    }
    done.map(drop)
}

/// Has the streams watched that memory is pending for. While none of them gets further, there is nothing to do.
fn watch_progress(engine: &Engine) {
    let maintenance = &engine.maintenance;
    let Some(waker) = maintenance.progress.read(|progress| progress.cloned()) else {
        return;
    };
    let mut watches = maintenance.watches.take().unwrap_or_default();
    let has_unrecorded = reaping::watch_streams(engine, &mut watches, &waker);
    maintenance.watches.set(Some(watches));
    // Another thread may have found a stream further just before it was watched, and not told the heap yet.
    let before = engine.store.totals().progress;
    engine
        .streams
        .active_lanes()
        .iter()
        .for_each(|lane| engine.store.catch_up(&engine.shared, lane));
    if has_unrecorded || engine.store.totals().progress != before {
        schedule(engine);
    }
}

/// Returns what memory that was pending or cached when the heuristic decided waits for. If it comes back later, no
/// free reports it.
fn keep_up_now(engine: &Engine, free_low: u64, is_synchronized: bool) -> Result<Next, DeviceError> {
    if is_synchronized {
        reaping::reclaim(engine)?;
        let segments = engine.supply.memory.segments();
        let lender = &engine.store.lease.lender;
        let bound = lender
            .as_ref()
            .map(|_| beside_charges(&engine.store, engine.store.leased()));
        if let Some(keep) = segments.to_trim().into_iter().chain(bound).min() {
            engine.shared.noted(segments.trim_to(keep))?;
        }
    }
    engine.streams.flush(&engine.store, Flush::Idle);
    // Whatever the flags of reuse: memory is released once its work is complete.
    ordering::seal_lanes(engine)?;
    reaping::reap(engine)?;
    let following = coming_back(&engine.streams, &engine.store);
    if let Some(heuristic) = &engine.maintenance.heuristic
        && let Some(total) = heuristic.decide(&figures::statistics(engine))
    {
        reaping::reclaim(engine)?;
        make_one_piece(engine, total)?;
    }
    // All free memory above the capacity, and memory above the threshold that was free all the time.
    let released = release_above(engine, engine.store.capacity())?;
    let unneeded = match is_synchronized {
        true => u64::MAX,
        false => free_low.saturating_sub(released),
    };
    let kept = if engine.supply.is_refused() {
        0
    } else {
        engine.maintenance.most_kept(&engine.store)
    };
    supply::release_and_publish(
        engine,
        Target::DownTo {
            reserved: kept,
            most: unneeded,
        },
    )?;
    Ok(following)
}

/// Releases all free memory above that many reserved bytes. Returns the bytes released.
fn release_down_to(engine: &Engine, reserved: u64) -> Result<u64, DeviceError> {
    let most = u64::MAX;
    supply::release_and_publish(engine, Target::DownTo { reserved, most })
}

/// Returns when the next maintenance may release more memory above what the pool is to keep, though no free reports
/// anything until then.
fn next_release(engine: &Engine) -> Next {
    next_release_to(engine, engine.maintenance.most_cached(&engine.store))
}

/// Returns when the next maintenance may release anything at all.
fn could_release_any(engine: &Engine) -> Next {
    next_release_to(engine, 0)
}

fn next_release_to(engine: &Engine, reserved: u64) -> Next {
    let most = u64::MAX;
    let could_release = {
        let heap = engine.store.heap.lock();
        if heap.totals().reserved.current <= reserved {
            return Next::Nothing;
        }
        heap.could_release(Target::DownTo { reserved, most })
    };
    if could_release {
        Next::Time
    } else {
        coming_back(&engine.streams, &engine.store)
    }
}

/// Returns what brings further memory back.
fn coming_back(streams: &Streams, store: &HeapStore) -> Next {
    let may_keep = |lane: &Arc<Lane>| lane.cache.may_keep_unnoticed();
    if streams.active_lanes().iter().any(may_keep) {
        Next::Time
    } else if store.totals().pending.current == 0 {
        Next::Nothing
    } else {
        Next::Progress
    }
}

/// Makes one contiguous range of the free memory, so that the pool has `total` bytes in all, or as near to it as
/// memory in use and the capacity allow. Releases the excess, or takes the rest from the device. Returns the bytes
/// of the largest free range.
///
/// # Errors
/// Returns an error if the device call fails; the heap knows how far it came.
fn make_one_piece(engine: &Engine, total: u64) -> Result<u64, DeviceError> {
    let total = total.min(engine.store.capacity());
    let figures = || Figures::of(&engine.store.heap.lock(), Mark::RESET);
    let bytes = figures().piece_for(total, step(&engine.shared));
    let growth = match total > engine.store.totals().reserved.current {
        true => Growth::Allowed,
        false => Growth::Remap,
    };
    // First, so that nothing of the new range is released.
    supply::release_and_publish(engine, Target::Keep(total))?;
    if engine.shared.settings.geometry.virtual_memory {
        assemble(engine, bytes, growth)?;
    } else {
        let smallest = engine.shared.settings.geometry.chunk_bytes;
        let is_too_large = figures().releasable_bytes > bytes.max(smallest);
        if figures().largest_free < bytes || is_too_large {
            supply::release_and_publish(engine, Target::Keep(0))?;
            assemble(engine, bytes, Growth::Allowed)?;
        }
    }
    Ok(figures().largest_free)
}

/// Returns the step in which memory is taken, in bytes.
fn step(shared: &Shared) -> u64 {
    let geometry = shared.settings.geometry;
    if geometry.virtual_memory {
        geometry.chunk_bytes
    } else {
        geometry.granularity
    }
}

/// Puts a free range together.
fn assemble(engine: &Engine, bytes: u64, growth: Growth) -> Result<(), DeviceError> {
    if bytes == 0 {
        return Ok(());
    }
    let alignment = step(&engine.shared);
    let view = View {
        stream: StreamId::NONE,
        after: &Clock::default(),
        waits: None,
        placement: Placement::Anywhere,
    };
    let request = Request { bytes, alignment };
    let plan = engine.store.heap.lock().plan(request, &view, growth);
    let done = supply::carry_out_free(engine, plan);
    engine.shared.publish(Change::Memory);
    done
}

/// Coalesces all free memory, cached blocks included, into one range. Returns the bytes of the largest free range.
///
/// # Errors
/// Returns an error if the device call fails; the heap knows how far it came.
pub(crate) fn coalesce(engine: &Engine) -> Result<u64, DeviceError> {
    reaping::reclaim(engine)?;
    make_one_piece(engine, engine.store.totals().reserved.current)
}

/// Reserves memory, as far as the capacity goes, or releases free memory, until `bytes` are reserved.
///
/// # Errors
/// Returns an error if the device call fails; memory reserved or released before it stays so.
pub(crate) fn set_reserved(engine: &Engine, bytes: u64) -> Result<(), DeviceError> {
    let reserved = || engine.store.totals().reserved.current;
    drop(super::keeping::whole_heap(&engine.streams, &engine.store));
    let bytes = bytes.min(engine.store.capacity());
    if reserved() > bytes {
        let _ = trim(engine, bytes)?;
    }
    let more = bytes.saturating_sub(reserved());
    let plan = engine.store.heap.lock().plan_new(more);
    let done = supply::carry_out_free(engine, plan);
    engine.shared.publish(Change::Memory);
    done
}

/// Releases free memory, cached blocks included, until `keep` bytes are reserved. Where memory is plain, segments go
/// whole, so that fewer may stay.
///
/// # Errors
/// Returns an error if the device call fails; memory released before stays released.
pub(crate) fn trim(engine: &Engine, keep: u64) -> Result<Trimmed, DeviceError> {
    reaping::reclaim(engine)?;
    let released = match engine.shared.settings.geometry.virtual_memory {
        true => supply::release_and_publish(engine, Target::Keep(keep)),
        false => release_down_to(engine, keep),
    }?;
    let segments = engine.supply.memory.segments();
    engine.shared.noted(segments.trim_to(keep))?;
    Ok(Trimmed::new(keep, released, &figures::statistics(engine)))
}

/// Releases free memory until no more than that many bytes are held.
///
/// # Errors
/// Returns an error if the device call fails; memory released before stays released.
pub(crate) fn release_above(engine: &Engine, bytes: u64) -> Result<u64, DeviceError> {
    release_down_to(engine, beside_charges(&engine.store, bytes))
}

/// Returns how much of a bound is left beside what others hold.
#[cold]
#[inline(never)]
pub(crate) fn beside_charges(store: &HeapStore, bound: u64) -> u64 {
    bound.saturating_sub(store.totals().outside)
}

/// Releases free memory as [`release_above`] does, including cached memory whose work is
/// complete.
///
/// # Errors
/// Returns an error if the device call fails; memory released before stays released.
pub(crate) fn reclaim_above(engine: &Engine, bytes: u64) -> Result<u64, DeviceError> {
    reaping::reclaim(engine)?;
    release_above(engine, bytes)
}

/// Evicts memory, the least recently used first, and releases it as [`reclaim_above`] does.
/// Stops once no more than that many bytes are held, nothing is evictable, or the rest waits for work of the
/// device.
///
/// # Errors
/// Returns an error if the device call fails; memory released before stays released.
pub(crate) fn evict_above(engine: &Engine, bytes: u64) -> Result<(), DeviceError> {
    loop {
        let beyond = engine.supply.held(&engine.store).saturating_sub(bytes);
        let lacking = beyond.saturating_sub(engine.store.totals().pending.current);
        // Blocks that share their chunks with others release nothing: more of them may.
        if lacking == 0 {
            return Ok(());
        }
        let (evictables, piece) = (&engine.store.evictables, Piece::Releasable);
        if evictables.evict_for(&engine.store.heap, lacking, piece, Group::Pool) == 0 {
            return Ok(());
        }
        reclaim_above(engine, bytes)?;
    }
}
