//! How far the streams have come: asks them, takes the news to the heap, and forgets the streams that are gone.

use super::streams::Watches;
use super::{Change, Engine, HeapStore, Shared, ordering};
use crate::device::DeviceError;
use crate::heap::{self, Order};
use crate::id::Ticket;
use crate::lane::{Flush, Lane, Watch};
use crate::seam::Fact;
use crate::sync::Arc;
use smallvec::SmallVec;
use std::task::Waker;

/// How many streams whose last handle is gone are asked when another stream comes or goes.
const ASKED: usize = 4;

/// Ends a stream whose last handle and last block are gone: its freed blocks are sealed, and available to all.
pub(super) fn retire_lane(engine: &Engine, lane: &Lane) {
    {
        let mut heap = engine.store.heap.lock();
        engine.store.take_back(&mut heap, lane, lane.cache.retire());
    }
    let leaving = engine.streams.lanes.lock().retire(lane.id);
    // A failure is noted; the memory stays pending then.
    let _ = ordering::seal_for_others(engine, lane);
    reap_retired(engine, leaving);
}

/// Asks a stream whose last handle is gone, and a few others by turns. Forgets those whose work is complete. Each
/// stream that comes or goes asks for several, so those that are done do not pile up.
pub(super) fn reap_retired(engine: &Engine, leaving: Option<Arc<Lane>>) {
    let shared = &engine.shared;
    let mut asked = engine.streams.lanes.lock().next_leaving(ASKED);
    asked.extend(leaving);
    for lane in &asked {
        // A failure is noted; the lane stays.
        let _ = shared.unless_sticky(lane.timeline.reap(&*shared.device));
        engine.store.catch_up(shared, lane);
    }
    forget_all_done(engine, asked);
}

/// Forgets those of the lanes whose streams are gone and whose work is complete.
fn forget_all_done(engine: &Engine, mut lanes: Vec<Arc<Lane>>) {
    lanes.retain(|lane| lane.is_done());
    if !lanes.is_empty() {
        forget_done(engine, &lanes);
    }
}

/// Forgets lanes whose streams are gone and whose work is complete.
#[cold]
#[inline(never)]
fn forget_done(engine: &Engine, done: &[Arc<Lane>]) {
    // First, so that nothing is pending for a stream that no search finds any more.
    done.iter()
        .for_each(|lane| engine.store.catch_up(&engine.shared, lane));
    let done = {
        let mut registry = engine.streams.lanes.lock();
        let done = registry.remove_done(done);
        done.iter().for_each(|lane| registry.retired.absorb(lane));
        done
    };
    {
        let mut heap = engine.store.heap.lock();
        done.iter().for_each(|lane| heap.forget(lane.id));
    }
    done.iter()
        .for_each(|lane| lane.cache.rest(lane.timeline.completed()));
    // The lanes are dropped outside the locks: that lets go of the streams' owners, and may call a driver.
    done.iter().for_each(|lane| {
        let (stream, name) = (lane.id, lane.name());
        engine
            .store
            .announcer
            .tell(|| Fact::StreamGone { stream, name });
    });
}

/// Asks every stream how far it has come, and frees what that proves free. Says whether there was any news.
///
/// # Errors
/// Returns a sticky error. Another error of one stream's event proves nothing (invariant `errors-are-errors`): the
/// memory it covers stays pending, the other streams go on, and a caller that awaits that very point is told.
pub(crate) fn reap(engine: &Engine) -> Result<bool, DeviceError> {
    let has_news = reap_by(engine, |lane| lane.timeline.reap(&*engine.shared.device))?;
    if has_news {
        engine.shared.publish(Change::Memory);
    }
    Ok(has_news)
}

/// Asks every stream in a way of the caller's, which may leave streams out. For a search, which takes what it finds:
/// nothing is published.
///
/// # Errors
/// Returns the errors of [`reap`].
pub(super) fn reap_by(
    engine: &Engine,
    mut ask: impl FnMut(&Lane) -> Result<Option<Ticket>, DeviceError>,
) -> Result<bool, DeviceError> {
    let lanes = engine.streams.active_lanes();
    for lane in lanes.iter() {
        engine.shared.unless_sticky(ask(lane))?;
    }
    let mut known = SmallVec::<[Ticket; 16]>::new();
    let (mut streams, mut done) = (0, Vec::new());
    {
        let mut heap = engine.store.heap.lock();
        for lane in lanes.iter() {
            let completed = lane.timeline.completed();
            known.push(completed);
            if heap.complete(lane.id, completed) {
                streams += 1;
                done.extend(lane.is_done().then(|| lane.clone()));
            }
        }
    }
    if !lanes.are_few() {
        let told = lanes.iter().zip(known);
        told.for_each(|(lane, completed)| lane.cache.rest(completed));
    }
    if streams > 0 {
        engine.store.tell(|| Fact::Reaped { streams });
    }
    if !done.is_empty() {
        forget_done(engine, &done);
    }
    Ok(streams > 0)
}

/// Asks one stream whether it has passed a point that is due, and frees what that proves free.
///
/// # Errors
/// Returns the errors of [`reap`].
pub(super) fn reap_due(
    shared: &Shared,
    store: &HeapStore,
    lane: &Lane,
    ticket: Ticket,
) -> Result<bool, DeviceError> {
    let answer = shared.noted(lane.timeline.reap_due(ticket, &*shared.device));
    store.complete_in_heap(lane);
    match answer {
        Err(error) if error.is_sticky() => Err(error),
        answer => Ok(answer.unwrap_or(false)),
    }
}

/// Returns whether a stream has passed a point, as far as the device says now. Waiters are served with memory
/// that this frees.
///
/// # Errors
/// Returns the device's error.
pub(crate) fn has_passed(
    engine: &Engine,
    lane: &Lane,
    ticket: Ticket,
) -> Result<bool, DeviceError> {
    let is_known = || lane.timeline.completed() >= ticket;
    if !is_known() {
        if let Some(fault) = engine.shared.fault() {
            return Err(fault);
        }
        engine
            .shared
            .noted(lane.timeline.reap_up_to(ticket, &*engine.shared.device))?;
    }
    // Whichever thread reaped it: a caller that is told that memory is free finds it free.
    engine.store.catch_up(&engine.shared, lane);
    Ok(is_known())
}

/// Makes all freed memory count: flushes the caches, seals every stream, and asks how far it has come.
///
/// # Errors
/// Returns a sticky error.
pub(super) fn reclaim(engine: &Engine) -> Result<(), DeviceError> {
    engine.streams.flush(&engine.store, Flush::All);
    ordering::seal_lanes(engine)?;
    reap(engine).map(drop)
}

/// Makes all freed memory count, even if some stream errs.
///
/// # Errors
/// Returns the first error of any stream, sticky or not; the others went on.
pub(crate) fn settle(engine: &Engine) -> Result<(), DeviceError> {
    engine.streams.flush(&engine.store, Flush::All);
    let mut settled = Ok(());
    for lane in engine.streams.active_lanes().iter() {
        let sealed = ordering::seal_for_others(engine, lane);
        let reaped = engine
            .shared
            .noted(lane.timeline.reap(&*engine.shared.device));
        engine.store.catch_up(&engine.shared, lane);
        settled = settled.and(sealed).and(reaped.map(drop));
    }
    let leaving = engine.streams.lanes.lock().leaving();
    forget_all_done(engine, leaving);
    settled
}

/// Has `waker` called when any stream gets further than it is known to be, if that can free memory. Returns whether
/// memory is pending that no event covers, although it was sealed: a record has failed, and is to be tried again.
pub(crate) fn watch_streams(engine: &Engine, watches: &mut Watches, waker: &Waker) -> bool {
    let mut kept = Watches::new();
    let mut has_unrecorded = false;
    for lane in lanes_to_watch(engine) {
        let (to_watch, owes_record) = lane.to_watch(waker);
        has_unrecorded |= owes_record;
        for marker in to_watch {
            let point = (lane.id, marker.ticket);
            let watch = watches.remove(&point);
            let watch = watch.unwrap_or_else(|| Watch::new(marker, waker));
            kept.insert(point, watch);
        }
    }
    *watches = kept;
    has_unrecorded
}

/// Returns the lanes that memory is pending for. Where waiting comes first, all active lanes: the mere progress of
/// a stream may end what holds a waiter back.
fn lanes_to_watch(engine: &Engine) -> Vec<Arc<Lane>> {
    let lanes = engine.streams.active_lanes();
    if engine.shared.settings.order == Order::WaitFirst {
        return lanes.iter().cloned().collect();
    }
    let heap = engine.store.heap.lock();
    let waiting = lanes
        .iter()
        .filter(|lane| heap::inspect::pending_on(&heap, lane.id) > 0);
    waiting.cloned().collect()
}
