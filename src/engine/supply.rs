//! Memory from the device: carries out the heap's plans, and gives memory back.
//!
//! While a request waits and the device refuses, the device is asked again from time to time: at each search for how
//! much it has left, and for the memory itself if it has enough, or after [`ASKED_AGAIN_AFTER`] in case it has more than
//! it reports. (Asking for more than it has takes all of it for a moment.) How other pools of the device are asked stands
//! in [`spill`](super::spill).

#![allow(unsafe_code, reason = "device calls on the lane's stream")]

use super::{Change, Engine, HeapStore, Shared, announcer, ordering};
use crate::device::{DeviceError, DeviceErrorKind, RawStream};
use crate::heap::{
    Budget, Exchange, Fences, Grant, GrowBy, Growth, Heap, Mapping, NewSegment, Order, Outcome,
    Plan, Release, Request, Target,
};
use crate::id::StreamId;
use crate::lane::Lane;
use crate::measure::Bytes;
use crate::seam::Fact;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag, SharedNumber, assert_unlocked};
use std::time::Duration;
use weirpool_segments::DeviceMemory;

/// How other pools over the same memory are asked to release some of theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherPools {
    /// Returns how many bytes they could release.
    pub(crate) offers: fn(&Engine) -> u64,
    /// Makes them release what the device lacks of the first number of bytes, and at least the second. Returns how many
    /// they released.
    pub(crate) spill: fn(&Engine, u64, u64) -> u64,
    /// Makes them evict memory, if they could release this many more bytes then. Returns how many they evicted.
    pub(crate) evict: fn(&Engine, u64) -> u64,
}

/// The request, or the purpose, for which a plan is carried out.
#[derive(Debug)]
pub(super) enum For {
    /// The new range is free.
    NoStream,
    /// A stream. With `is_ordered`, new memory may be for use in its order alone.
    Stream { lane: Arc<Lane>, is_ordered: bool },
    /// A stream, from a reservation.
    HeapReservation(StreamId, Exchange),
}

/// The outcome of a release.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) bytes: u64,
    /// Memory was claimed for it meanwhile, so that searches could not take it.
    was_claimed: bool,
    /// Why the device released no more.
    error: Option<DeviceError>,
}

/// A device that refused, and reports less than is needed, is asked again only after this time. Being asked costs a call
/// for each chunk that it gives before it refuses.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Supply {
    pub(super) memory: DeviceMemory,
    /// How much free memory may be remapped.
    budget: Mutex<Budget>,
    /// The device refused when it was last asked for memory.
    is_refused: SharedFlag,
    /// When it refused, on its clock, in nanoseconds.
    refused_at: SharedNumber,
    /// The source is ordered, and a block may be only a part of its segment.
    has_parts: SharedFlag,
    pub(super) others: OtherPools,
}

impl Supply {
    pub(super) fn new(
        Shared {
            device, settings, ..
        }: &Shared,
        others: OtherPools,
    ) -> Self {
        Self {
            memory: DeviceMemory::new(
                device.clone(),
                settings.segments.clone(),
                settings.kind,
                settings.geometry.virtual_memory,
                settings.geometry.chunk_bytes,
                settings.geometry.granularity,
            ),
            budget: Mutex::new(Guards::Budget, Budget::new(settings.remapping)),
            is_refused: SharedFlag::new(false),
            refused_at: SharedNumber::new(0),
            has_parts: SharedFlag::new(false),
            others,
        }
    }

    /// Returns the bytes that are held, or may be: chunks that the device failed to take back are among them.
    pub(crate) fn held(&self, store: &HeapStore) -> u64 {
        store.totals().held() + self.memory.unmapped_bytes()
    }

    /// Has a source of segments that was given release what it keeps above this many bytes. A failure is noted.
    pub(crate) fn trim_source(&self, shared: &Shared, keep: u64) {
        if shared.settings.has_source {
            assert_unlocked("a source of segments is trimmed");
            let _ = shared.noted(self.memory.segments().trim_to(keep));
        }
    }

    /// Returns how a request may grow, as far as the budget for remapping goes.
    pub(super) fn growth(&self, shared: &Shared) -> Growth {
        if !shared.settings.geometry.virtual_memory {
            return Growth::Allowed;
        }
        let now = shared.device.now();
        self.budget.lock().growth(now)
    }

    /// Returns whether the device refused when it was last asked for memory.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    pub(super) fn record_refused(&self, is_refused: bool) {
        if self.is_refused() != is_refused {
            self.is_refused.store(is_refused, Ordering::Relaxed);
        }
    }

    /// Notes that the heap granted a block of a pool over an ordered source, before the block has a user.
    pub(super) fn mark_parts(&self) {
        self.has_parts.store(true, Ordering::Relaxed);
    }

    /// Returns whether a block of a pool over an ordered source may be only a part of its segment: the heap granted one.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Relaxed)
    }

    /// Returns how many bytes the device itself could give; 0 if it does not tell.
    pub(crate) fn left_on_device(&self) -> u64 {
        self.memory.segments().available().unwrap_or(0)
    }

    /// Returns whether the device refused, and has less than this many bytes by now.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        self.is_refused() && self.left_on_device() < bytes
    }
}

/// Reserves a range of addresses for this capacity, where memory is virtual and no reserved range is large enough.
///
/// # Errors
/// Returns an error if the device has no free range as large as the capacity.
pub(super) fn reserve_addresses(engine: &Engine, capacity: u64) -> Result<(), DeviceError> {
    if engine.shared.settings.geometry.virtual_memory
        && let Some(range) = engine.supply.memory.reserve_addresses(capacity)?
    {
        let bytes = range.end - range.start;
        engine.store.heap.lock().add_range(range.start, bytes);
    }
    Ok(())
}

/// Grows by the rest of one step of growth, after a request was served by growing. A failure here does not matter.
fn grow_ahead(engine: &Engine, grown: u64) {
    if engine.shared.settings.geometry.growth == GrowBy::Chunks {
        return;
    }
    let mut ahead = engine.store.heap.lock().ahead(grown);
    while ahead > 0 {
        let Some(plan) = engine.store.heap.lock().plan_ahead(ahead, grown) else {
            return;
        };
        ahead = ahead.saturating_sub(plan.new_bytes());
        if carry_out_free(engine, Some(plan)).is_err() {
            return;
        }
    }
}

/// Grows for a request that was served by other memory before a thread came to grow for it. Where growing comes
/// first, the pool grows however fast memory comes back: else a pool that is short for moments would never grow.
/// A failure is not reported.
pub(crate) fn grow_after_all(engine: &Engine, request: Request) {
    if engine.shared.settings.order == Order::GrowFirst && !engine.shared.is_closed() {
        let plan = engine.store.heap.lock().plan_one_more(request);
        let _ = carry_out_free(engine, plan);
        engine.shared.publish(Change::Memory);
    }
}

/// Carries a plan out; the new range is free.
///
/// # Errors
/// Returns an error if the device stopped half way; the memory that it gave is free.
pub(super) fn carry_out_free(engine: &Engine, plan: Option<Plan>) -> Result<(), DeviceError> {
    match plan {
        Some(Plan::Map(mapping)) => map(engine, mapping, For::NoStream).map(drop),
        Some(Plan::Memory(segment)) => allocate(engine, segment, For::NoStream).map(drop),
        None => Ok(()),
    }
}

/// Carries a plan out, and commits the outcome.
///
/// # Errors
/// Returns an error if the device stopped half way; the heap knows how far it came.
pub(super) fn carry_out(
    engine: &Engine,
    plan: Plan,
    whom: For,
) -> Result<Option<Grant>, DeviceError> {
    match plan {
        Plan::Map(mapping) => {
            let grown = mapping.new_bytes();
            let grant = map(engine, mapping, whom)?;
            if grown > 0 {
                grow_ahead(engine, grown);
            }
            Ok(grant)
        }
        Plan::Memory(segment) => {
            let grant = allocate(engine, segment, whom)?;
            grow_ahead(engine, segment.bytes);
            Ok(grant)
        }
    }
}

/// Takes a segment of plain memory.
fn allocate(engine: &Engine, segment: NewSegment, whom: For) -> Result<Option<Grant>, DeviceError> {
    let Engine { shared, store, .. } = engine;
    let bytes = segment.bytes;
    let (address, fences) = take_segment(engine, segment, &whom);
    let (time, mut noted) = (store.announcer.time(), None);
    let grant = commit(store, whom, |heap| {
        let given = address.as_ref().ok().copied();
        let grant = segment.commit(heap, given, fences);
        if let (Some(time), Some(address)) = (time, given) {
            let fact = Fact::Grown {
                address: address.into(),
                bytes,
                chunks: 1,
            };
            noted = Some(store.announcer.note(time, heap.totals(), vec![fact]));
        }
        grant
    });
    store.announcer.tell_noted(noted);
    shared.noted(address)?;
    engine.supply.record_refused(false);
    shared.counters.growths.fetch_add(1, Ordering::Relaxed);
    store.tell_of_soft_cap();
    Ok(grant)
}

/// Takes a segment from the device: in the order of the stream that it is for, where the stream allows it now, or
/// for any use. Returns its address, and the point that further streams must come after.
fn take_segment(
    engine: &Engine,
    segment: NewSegment,
    whom: &For,
) -> (Result<u64, DeviceError>, Fences) {
    let supply = &engine.supply;
    let (bytes, alignment) = (segment.bytes, segment.alignment());
    if let For::Stream { lane, is_ordered } = whom
        && *is_ordered
        && !lane.is_foreign()
        && let Ok(_submission) = lane.cache.calls.begin("allocate_from")
    {
        // SAFETY: the lane keeps the stream's owner; an external stream is named only in calls made with it.
        let address = unsafe { supply.memory.allocate(bytes, alignment, lane.raw) };
        match address {
            Err(error) if error.kind() == DeviceErrorKind::Unsupported => {}
            _ => {
                return (
                    address,
                    Fences::one(lane.id, ordering::present_point(engine, lane)),
                );
            }
        }
    }
    // SAFETY: the host is always usable.
    let address = unsafe { supply.memory.allocate(bytes, alignment, RawStream::HOST) };
    (address, Fences::default())
}

/// Commits a plan under the heap's lock.
fn commit(
    store: &HeapStore,
    whom: For,
    commit: impl FnOnce(&mut Heap) -> Option<Grant>,
) -> Option<Grant> {
    let mut heap = store.heap.lock();
    let granted = match whom {
        For::NoStream => {
            heap.commit_as_free(commit);
            None
        }
        For::Stream { lane, .. } => commit(&mut heap).map(|grant| (lane.id, grant)),
        For::HeapReservation(stream, exchange) => {
            let grant = exchange.commit(&mut heap, commit);
            grant.map(|grant| (stream, grant))
        }
    };
    store.record_reserved(&heap);
    let (stream, grant) = granted?;
    heap.set_user(grant.id, stream);
    Some(grant)
}

/// Maps chunks into a range.
fn map(engine: &Engine, mapping: Mapping, whom: For) -> Result<Option<Grant>, DeviceError> {
    let is_wish = matches!(whom, For::NoStream);
    let nothing = Outcome {
        done: 0,
        lost: false,
    };
    let foreseen = foresee_refusal(&engine.shared, &engine.supply, &mapping);
    let is_foreseen = foreseen.is_some();
    let (outcome, error) = match foreseen {
        Some(error) => (nothing, Some(error)),
        None => engine.supply.memory.carry_out(&mapping),
    };
    let done = &mapping.steps[..outcome.done];
    let moved = done.iter().filter(|step| step.from.is_some()).count() as u64;
    let created = done.len() as u64 - moved;
    count_chunks(&engine.shared, &engine.supply, moved, created, is_wish);
    let bytes = |chunks| chunks * engine.shared.settings.geometry.chunk_bytes;
    let announcer = &engine.store.announcer;
    let (time, mut noted) = (announcer.time(), None);
    let grant = commit(&engine.store, whom, |heap| {
        let facts = time.map(|time| (time, announcer::mapped(&mapping.steps, outcome, bytes(1))));
        let grant = mapping.commit(heap, outcome);
        noted = facts.map(|(time, facts)| announcer.note(time, heap.totals(), facts));
        grant
    });
    announcer.tell_noted(noted);
    if created > 0 {
        engine.store.tell_of_soft_cap();
    }
    let Some(error) = error else {
        if created > 0 {
            engine.supply.record_refused(false);
        }
        return Ok(grant);
    };
    if !is_foreseen && error.kind() == DeviceErrorKind::OutOfMemory {
        let now = u64::try_from(engine.shared.device.now().as_nanos()).unwrap_or(u64::MAX);
        engine.supply.refused_at.store(now, Ordering::Relaxed);
    }
    if created > 0 && !is_wish && error.kind() == DeviceErrorKind::OutOfMemory {
        // The request cannot use the chunks that it was given before the refusal, and others may need them. No
        // waiter is notified: it would wake itself at each search.
        let released = release(engine, Target::Bytes(bytes(created)));
        let _ = released.error.map(|error| engine.shared.note(&error));
    }
    engine.shared.noted(Err(error))
}

/// Counts mapped chunks, and charges the budget for those that were moved for a request.
fn count_chunks(shared: &Shared, supply: &Supply, moved: u64, created: u64, is_wish: bool) {
    if moved + created > 0 {
        shared.counters.growths.fetch_add(1, Ordering::Relaxed);
        shared.counters.remaps.add(moved);
        shared.counters.chunks_created.add(created);
        let charged = if is_wish { 0 } else { moved };
        supply.budget.lock().note(charged, created);
    }
}

/// Returns the refusal of a device that refused less than [`ASKED_AGAIN_AFTER`] ago, and has less memory left than the
/// mapping takes. If it were asked, it would give all that it has, and get it back, at every search of a waiter. But
/// it may have more than it reports: an integrated GPU gives memory that the host's page cache fills.
fn foresee_refusal(shared: &Shared, supply: &Supply, mapping: &Mapping) -> Option<DeviceError> {
    let bytes = mapping.new_bytes();
    if bytes == 0 || !supply.is_refused() {
        return None;
    }
    let refused_at = Duration::from_nanos(supply.refused_at.load(Ordering::Relaxed));
    let since = shared.device.now().saturating_sub(refused_at);
    if since >= ASKED_AGAIN_AFTER {
        return None;
    }
    let left = shared.device.memory_info(shared.settings.kind).ok()?.free;
    let reason = format!(
        "the device has {} left of {}, and refused before",
        Bytes(left),
        Bytes(bytes)
    );
    let error = DeviceError::new("create", DeviceErrorKind::OutOfMemory, reason);
    (left < bytes).then_some(error)
}

/// Releases free memory, and has waiters look for what that makes possible. Returns the bytes released.
///
/// # Errors
/// Returns an error if the device call fails; memory released before stays released.
pub(super) fn release_and_publish(engine: &Engine, target: Target) -> Result<u64, DeviceError> {
    let released = release(engine, target);
    // Only if memory was claimed meanwhile, which a search may have missed.
    if released.bytes > 0 || released.was_claimed {
        engine.shared.publish(Change::Memory);
    }
    engine.shared.noted(released.into_result())
}

/// Releases free memory without notifying waiters: they call this in every search, and would wake themselves.
pub(super) fn release(engine: &Engine, target: Target) -> Released {
    let release = engine.store.heap.lock().plan_release(target);
    let was_claimed = !release.spans.is_empty();
    let (done, error) = release_spans(&engine.supply, &release);
    let gone = release.spans[..done].to_vec();
    let announcer = &engine.store.announcer;
    let time = announcer.time();
    let (bytes, noted) = {
        let mut heap = engine.store.heap.lock();
        let bytes = heap.commit_release(release, done);
        engine.store.record_reserved(&heap);
        let note = |time| announcer.note(time, heap.totals(), announcer::released(&gone));
        (bytes, time.map(note))
    };
    engine.shared.counters.released.add(bytes);
    announcer.tell_noted(noted);
    if bytes > 0 {
        engine.store.tell_of_soft_cap();
    }
    Released {
        bytes,
        was_claimed,
        error,
    }
}

/// Returns how many of the spans are gone, and why not all.
fn release_spans(supply: &Supply, release: &Release) -> (usize, Option<DeviceError>) {
    for (done, (address, bytes)) in release.spans.iter().enumerate() {
        if let Err((is_gone, error)) = supply.memory.release(*address, *bytes) {
            return (done + usize::from(is_gone), Some(error));
        }
    }
    (release.spans.len(), None)
}

impl Released {
    /// # Errors
    /// Why the device released no more.
    pub(super) fn into_result(self) -> Result<u64, DeviceError> {
        match self.error {
            None => Ok(self.bytes),
            Some(error) => Err(error),
        }
    }
}
