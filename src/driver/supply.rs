//! The supply layer: carries out the heap's plans on the device, and gives memory back to it.
//!
//! The device may refuse memory within the pool's capacity, because others hold it. Other pools of this process that
//! keep free memory of the same device spill then: they release as much as is needed, unless all of them together have
//! too little. A pool in which requests wait spills only for a pool with an older request (see
//! [`registry`](crate::registry)). Other processes cannot be asked, nor can they tell when they let go. While a request
//! waits and the device refuses, the device is asked again from time to time: at each search for how much it has left,
//! and for the memory itself if it has enough, or after [`ASKED_AGAIN_AFTER`] in case it has more than it reports.
//! (Asking for more than it has takes all of it for a moment.)

#![allow(unsafe_code, reason = "device calls on the lane's stream")]

use super::memory::Memory;
use super::streams::Streams;
use super::{Change, Group, HistoryEvent};
use crate::device::{DeviceError, DeviceErrorKind, MemoryKind, RawStream};
use crate::fault::injected;
use crate::heap::{
    Budget, Exchange, Fences, Grant, Growth, Heap, Mapping, NewSegment, Order, Outcome, Piece,
    Plan, Release, Request, Target,
};
use crate::id::StreamId;
use crate::lane::Lane;
use crate::measure::Bytes;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedFlag, SharedNumber};
use crate::trace;
use std::ops::Deref;
use std::time::Duration;

/// The most that a device may report as free and never give. An H200 refuses 2 MiB when it reports 3.1 MiB.
const WITHHELD: u64 = 32 << 20;

/// How other pools over the same memory are asked to release some of theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherPools {
    /// Returns how many bytes they could release.
    pub(crate) offers: fn(&Supply) -> u64,
    /// Makes them release what the device lacks of the first number of bytes, and at least the second. Returns how many
    /// they released.
    pub(crate) spill: fn(&Supply, u64, u64) -> u64,
    /// Makes them evict memory, if they could release this many more bytes then. Returns how many they evicted.
    pub(crate) evict: fn(&Supply, u64) -> u64,
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
    streams: Streams,
    pub(super) memory: Memory,
    /// How much free memory may be remapped.
    budget: Mutex<Budget>,
    /// The device refused when it was last asked for memory.
    is_refused: SharedFlag,
    /// When it refused, on its clock, in nanoseconds.
    refused_at: SharedNumber,
    others: OtherPools,
}

impl Deref for Supply {
    type Target = Streams;

    #[inline(always)]
    fn deref(&self) -> &Streams {
        &self.streams
    }
}

impl Supply {
    /// # Errors
    /// Returns an error if the device cannot reserve addresses, or the initial memory.
    pub(super) fn new(streams: Streams, others: OtherPools) -> Result<Self, DeviceError> {
        let settings = &streams.settings;
        let supply = Self {
            memory: Memory::new(streams.device.clone(), settings),
            budget: Mutex::new(Guards::Budget, Budget::new(settings.remapping)),
            is_refused: SharedFlag::new(false),
            refused_at: SharedNumber::new(0),
            others,
            streams,
        };
        supply.reserve_addresses(supply.capacity())?;
        let initial = supply.heap.lock().plan_new(supply.settings.initial);
        supply.carry_out_free(initial)?;
        Ok(supply)
    }

    /// Returns the driver's pool that the memory is from, if it is from one.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn driver_pool(&self) -> Option<&super::DriverPool> {
        self.memory.segments().driver_pool()
    }

    /// Reserves a range of addresses for this capacity, where memory is virtual and no reserved range is large enough.
    ///
    /// # Errors
    /// Returns an error if the device has no free range as large as the capacity.
    pub(super) fn reserve_addresses(&self, capacity: u64) -> Result<(), DeviceError> {
        if self.settings.geometry.virtual_memory
            && let Some(range) = self.memory.reserve_addresses(capacity)?
        {
            let bytes = range.end - range.start;
            self.heap.lock().add_range(range.start, bytes);
        }
        Ok(())
    }

    /// Grows by the rest of one step of growth, after a request was served by growing. A failure here does not matter.
    fn grow_ahead(&self, grown: u64) {
        let mut ahead = self.heap.lock().ahead(grown);
        while ahead > 0 {
            let Some(plan) = self.heap.lock().plan_ahead(ahead, grown) else {
                return;
            };
            ahead = ahead.saturating_sub(plan.new_bytes());
            if self.carry_out_free(Some(plan)).is_err() {
                return;
            }
        }
    }

    /// Grows for a request that was served by other memory before a thread came to grow for it. Where growing comes
    /// first, the pool grows however fast memory comes back: else a pool that is short for moments would never grow.
    /// A failure is not reported.
    pub(crate) fn grow_after_all(&self, request: Request) {
        if self.settings.order == Order::GrowFirst && !self.is_closed() {
            let plan = self.heap.lock().plan_one_more(request);
            let _ = self.carry_out_free(plan);
            self.publish(Change::Memory);
        }
    }

    /// Returns how a request may grow, as far as the budget for remapping goes.
    pub(super) fn growth(&self) -> Growth {
        if !self.settings.geometry.virtual_memory {
            return Growth::Allowed;
        }
        let now = self.device.now();
        self.budget.lock().growth(now)
    }

    /// Carries a plan out; the new range is free.
    ///
    /// # Errors
    /// Returns an error if the device stopped half way; the memory that it gave is free.
    pub(super) fn carry_out_free(&self, plan: Option<Plan>) -> Result<(), DeviceError> {
        match plan {
            Some(Plan::Map(mapping)) => self.map(mapping, For::NoStream).map(drop),
            Some(Plan::Memory(segment)) => self.allocate(segment, For::NoStream).map(drop),
            None => Ok(()),
        }
    }

    /// Carries a plan out, and commits the outcome.
    ///
    /// # Errors
    /// Returns an error if the device stopped half way; the heap knows how far it came.
    pub(super) fn carry_out(&self, plan: Plan, whom: For) -> Result<Option<Grant>, DeviceError> {
        match plan {
            Plan::Map(mapping) => {
                let grown = mapping.new_bytes();
                let grant = self.map(mapping, whom)?;
                if grown > 0 {
                    self.grow_ahead(grown);
                }
                Ok(grant)
            }
            Plan::Memory(segment) => {
                let grant = self.allocate(segment, whom)?;
                self.grow_ahead(segment.bytes);
                Ok(grant)
            }
        }
    }

    /// Takes a segment of plain memory.
    fn allocate(&self, segment: NewSegment, whom: For) -> Result<Option<Grant>, DeviceError> {
        let bytes = segment.bytes;
        let (address, fences) = self.take_segment(segment, &whom);
        let entry = self.entry();
        let grant = self.commit(whom, |heap| {
            let given = address.as_ref().ok().copied();
            let grant = segment.commit(heap, given, fences);
            if let (Some(entry), Some(address)) = (entry, given) {
                let address = address.into();
                entry.write(heap.totals(), HistoryEvent::Grown { address, bytes });
            }
            grant
        });
        self.noted(address)?;
        self.note_refused(false);
        self.counters.growths.fetch_add(1, Ordering::Relaxed);
        trace::grown(bytes, 1);
        self.tell_of_soft_cap();
        Ok(grant)
    }

    /// Takes a segment from the device: in the order of the stream that it is for, where the stream allows it now, or
    /// for any use. Returns its address, and the point that further streams must come after.
    fn take_segment(&self, segment: NewSegment, whom: &For) -> (Result<u64, DeviceError>, Fences) {
        let (bytes, alignment) = (segment.bytes, segment.alignment());
        if let For::Stream { lane, is_ordered } = whom
            && *is_ordered
            && !lane.is_foreign()
            && let Ok(_submission) = lane.cache.submit("allocate_from")
        {
            // SAFETY: the lane keeps the stream's owner; an external stream is named only in calls made with it.
            let address = unsafe { self.memory.allocate(bytes, alignment, lane.raw) };
            match address {
                Err(error) if error.kind() == DeviceErrorKind::Unsupported => {}
                _ => return (address, Fences::one(lane.id, self.present_point(lane))),
            }
        }
        // SAFETY: the host is always usable.
        let address = unsafe { self.memory.allocate(bytes, alignment, RawStream::HOST) };
        (address, Fences::default())
    }

    /// Commits a plan under the heap's lock.
    fn commit(&self, whom: For, commit: impl FnOnce(&mut Heap) -> Option<Grant>) -> Option<Grant> {
        let mut heap = self.heap.lock();
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
        self.note_reserved(&heap);
        let (stream, grant) = granted?;
        heap.note_user(grant.id, stream);
        Some(grant)
    }

    /// Maps chunks into a range.
    fn map(&self, mapping: Mapping, whom: For) -> Result<Option<Grant>, DeviceError> {
        let is_wish = matches!(whom, For::NoStream);
        let nothing = Outcome {
            done: 0,
            lost: false,
        };
        let foreseen = self.foresee_refusal(&mapping);
        let is_foreseen = foreseen.is_some();
        let (outcome, error) = match foreseen {
            Some(error) => (nothing, Some(error)),
            None => self.memory.carry_out(&mapping),
        };
        let done = &mapping.steps[..outcome.done];
        let moved = done.iter().filter(|step| step.from.is_some()).count() as u64;
        let created = done.len() as u64 - moved;
        self.count_chunks(moved, created, is_wish);
        let bytes = |chunks| chunks * self.settings.geometry.chunk_bytes;
        let entry = self.entry();
        let grant = self.commit(whom, |heap| {
            let steps = entry.map(|_| mapping.steps.clone());
            let grant = mapping.commit(heap, outcome);
            if let (Some(entry), Some(steps)) = (entry, steps) {
                entry.write_mapped(heap.totals(), &steps, outcome, bytes(1));
            }
            grant
        });
        if created > 0 {
            trace::grown(bytes(created), created);
            self.tell_of_soft_cap();
        }
        if moved > 0 {
            trace::remapped(bytes(moved), moved);
        }
        let Some(error) = error else {
            if created > 0 {
                self.note_refused(false);
            }
            return Ok(grant);
        };
        if !is_foreseen && error.kind() == DeviceErrorKind::OutOfMemory {
            let now = u64::try_from(self.device.now().as_nanos()).unwrap_or(u64::MAX);
            self.refused_at.store(now, Ordering::Relaxed);
        }
        if created > 0 && !is_wish && error.kind() == DeviceErrorKind::OutOfMemory {
            // The request cannot use the chunks that it was given before the refusal, and others may need them. No
            // waiter is notified: it would wake itself at each search.
            let released = self.release(Target::Bytes(bytes(created)));
            let _ = released.error.map(|error| self.note(&error));
        }
        self.noted(Err(error))
    }

    /// Counts mapped chunks, and charges the budget for those that were moved for a request.
    fn count_chunks(&self, moved: u64, created: u64, is_wish: bool) {
        if moved + created > 0 {
            self.counters.growths.fetch_add(1, Ordering::Relaxed);
            self.counters.remaps.add(moved);
            self.counters.chunks_created.add(created);
            let charged = if is_wish { 0 } else { moved };
            self.budget.lock().note(charged, created);
        }
    }

    /// Returns the refusal of a device that refused less than [`ASKED_AGAIN_AFTER`] ago, and has less memory left than the
    /// mapping takes. If it were asked, it would give all that it has, and get it back, at every search of a waiter. But
    /// it may have more than it reports: an integrated GPU gives memory that the host's page cache fills.
    fn foresee_refusal(&self, mapping: &Mapping) -> Option<DeviceError> {
        let bytes = mapping.new_bytes();
        if bytes == 0 || !self.is_refused() {
            return None;
        }
        let refused_at = Duration::from_nanos(self.refused_at.load(Ordering::Relaxed));
        let since = self.device.now().saturating_sub(refused_at);
        if since >= ASKED_AGAIN_AFTER && !injected("device-not-asked-again") {
            return None;
        }
        let left = self.device.memory_info(self.settings.kind).ok()?.free;
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
    pub(super) fn release_and_publish(&self, target: Target) -> Result<u64, DeviceError> {
        let released = self.release(target);
        // Only if memory was claimed meanwhile, which a search may have missed.
        if released.bytes > 0 || released.was_claimed {
            self.publish(Change::Memory);
        }
        self.noted(released.into_result())
    }

    /// Releases free memory without notifying waiters: they call this in every search, and would wake themselves.
    pub(super) fn release(&self, target: Target) -> Released {
        let release = self.heap.lock().plan_release(target);
        let was_claimed = !release.spans.is_empty();
        let (done, error) = self.release_spans(&release);
        let gone = release.spans[..done].to_vec();
        let entry = self.entry();
        let bytes = {
            let mut heap = self.heap.lock();
            let bytes = heap.commit_release(release, done);
            self.note_reserved(&heap);
            if let Some(entry) = entry {
                entry.write_released(heap.totals(), &gone);
            }
            bytes
        };
        self.counters.released.add(bytes);
        if bytes > 0 {
            trace::trimmed(bytes);
            self.tell_of_soft_cap();
        }
        Released {
            bytes,
            was_claimed,
            error,
        }
    }

    /// Returns how many of the spans are gone, and why not all.
    fn release_spans(&self, release: &Release) -> (usize, Option<DeviceError>) {
        for (done, (address, bytes)) in release.spans.iter().enumerate() {
            if let Err((is_gone, error)) = self.memory.release(*address, *bytes) {
                return (done + usize::from(is_gone), Some(error));
            }
        }
        (release.spans.len(), None)
    }

    /// Returns whether the device refused when it was last asked for memory.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    pub(super) fn note_refused(&self, is_refused: bool) {
        if self.is_refused() != is_refused {
            self.is_refused.store(is_refused, Ordering::Relaxed);
        }
    }

    /// Makes other pools release the memory that a refused request lacks, if they have that much. The device may refuse
    /// memory that it reports as free, for example because its page tables need some: so they release at least one step,
    /// and twice as much each further time. Says whether they released any.
    pub(super) fn spill_for(&self, bytes: u64, times: u32) -> bool {
        let geometry = self.settings.geometry;
        let step = geometry.chunk_bytes;
        // Free chunks of this pool are remapped, if they can be.
        let own = if geometry.virtual_memory {
            self.totals().whole_free_chunks * step
        } else {
            0
        };
        let lacking = bytes.saturating_sub(own).max(1).next_multiple_of(step);
        let least = step.saturating_mul(1 << times.min(63));
        // A pool of the driver may keep memory that is freed to it. Then it is not asked for more.
        let before = (times > 0).then(|| self.left_on_device());
        let has_released = (self.others.spill)(self, lacking, least) > 0;
        has_released && before.is_none_or(|before| self.left_on_device() > before)
    }

    /// Makes other pools evict memory for a request that lacks this many bytes. Says whether any did.
    pub(super) fn evict_elsewhere(&self, bytes: u64) -> bool {
        (self.others.evict)(self, bytes) > 0
    }

    /// Returns how many of the bytes the device could give, once other pools have released what they can. If the search
    /// was refused, only memory counts of which the device tells.
    pub(super) fn obtainable(&self, bytes: u64, is_refused: bool) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let settings = &self.settings;
        // A pool of the driver may count memory as free that is on its way. Managed memory may exceed the device's.
        let is_known = match is_refused {
            true => settings.driver_pool.is_none(),
            false => settings.kind != MemoryKind::Managed,
        };
        let left = is_known.then(|| self.memory.segments().left()).flatten();
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
        let given = left.saturating_add((self.others.offers)(self));
        bytes.min(given / step * step)
    }

    /// Returns how many bytes the device itself could give; 0 if it does not tell.
    pub(crate) fn left_on_device(&self) -> u64 {
        self.memory.segments().left().unwrap_or(0)
    }

    /// Returns whether the device refused, and has less than this many bytes by now.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        self.is_refused() && self.left_on_device() < bytes
    }

    /// Returns whether the device refuses memory although it has [more](WITHHELD), and nothing of the pool is in use or on
    /// its way: then no other pool or process stands in the way, and only time would pass. A pool of the driver may refuse
    /// because of work that only the driver knows.
    pub(super) fn refuses_for_no_reason(&self, bytes: u64) -> bool {
        let totals = self.totals();
        let in_use = totals.in_use.current + totals.claimed + totals.planned;
        let is_driver_pool = self.settings.driver_pool.is_some();
        let suffices = bytes.saturating_add(WITHHELD);
        bytes > 0 && in_use == 0 && !is_driver_pool && self.left_on_device() >= suffices
    }

    /// Returns how many bytes could be released at once for another pool; none after the device has failed. If `asks`,
    /// flushes the caches and asks the streams first.
    pub(crate) fn could_give(&self, asks: bool) -> u64 {
        if self.fault().is_some() {
            return 0;
        }
        if asks {
            self.reclaim_for_others();
        }
        self.totals().releasable
    }

    /// Returns how many more bytes could be released for another pool once evictable memory is evicted and all work on
    /// freed memory is complete.
    pub(crate) fn could_evict(&self) -> u64 {
        let evictable = self.evictables.bytes_of(Group::Pool);
        if evictable == 0 || self.fault().is_some() {
            return 0;
        }
        let totals = self.totals();
        let unused = totals.free.current + totals.pending.current;
        (unused + evictable).saturating_sub(totals.releasable)
    }

    /// Evicts this many bytes for another pool. Returns how many.
    pub(crate) fn evict_for_others(&self, bytes: u64) -> u64 {
        let (evictables, piece) = (&self.evictables, Piece::Releasable);
        let evicted = evictables.evict_for(&self.heap, bytes, piece, Group::Pool);
        if evicted > 0 {
            self.reclaim_for_others();
        }
        evicted
    }

    /// Makes all freed memory count. Requests of this pool hear of the progress that is found.
    fn reclaim_for_others(&self) {
        let progress = || self.totals().progress;
        let before = progress();
        // A failure is noted; the rest may be enough.
        let _ = self.reclaim();
        if progress() != before {
            self.publish(Change::Memory);
        }
    }

    /// Releases up to this many free bytes for another pool. Returns how many.
    pub(crate) fn give(&self, bytes: u64) -> u64 {
        let step = self.settings.geometry.chunk_bytes;
        let target = Target::Bytes(bytes.next_multiple_of(step));
        // A failure is noted; the rest may be enough.
        self.release_and_publish(target).unwrap_or(0)
    }
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
