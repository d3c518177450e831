//! The heap behind its lock, and the bounds on it.

use super::announcer::memory_of;
use super::shared::gate;
use super::{Allocation, Allocations, Announcer, Change, Lease, Shared};
use crate::heap::{self, Fences, Heap, Placement, Ranges, Totals};
use crate::id::ReservationId;
use crate::lane::{CachedBlock, Lane};
use crate::seam::Fact;
use crate::sync::{Busy, Count, Guards, Ordering, SharedFlag, SharedNumber, plain};
use crossbeam_utils::CachePadded;
use weirpool_measure::SoftCap;
use weirpool_recall::Evictables;

/// A copy of the heap's capacity for readers without its lock. Every allocation reads it, and a resize writes it.
pub(crate) type CapacityCopy = plain::Arc<CachePadded<SharedNumber>>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct HeapStore {
    /// Boxed, so that a pool under construction is small enough to be moved on a small stack.
    pub(super) heap: Busy<Box<Heap>>,
    pub(crate) capacity: CapacityCopy,
    /// A copy of the heap's reserved bytes, for readers without its lock.
    reserved: CachePadded<SharedNumber>,
    is_over: SharedFlag,
    /// The capacity was set below the bytes that were held.
    pub(super) is_shrunk: SharedFlag,
    pub(crate) soft_cap: SoftCap,
    pub(crate) lease: Lease,
    pub(crate) evictables: Evictables,
    pub(crate) announcer: plain::Arc<Announcer>,
    /// What the streams' caches keep is [spares](crate::lane::StreamCache::keep_spare), and no blocks.
    pub(super) keeps_spares: bool,
    /// Bytes of spares that were removed: their memory went back to its source before.
    pub(super) spares_removed: Count,
}

impl HeapStore {
    pub(super) fn new(Shared { settings, .. }: &Shared) -> Self {
        let announcer = &settings.announcer;
        let geometry = settings.geometry;
        let chunk_bytes = geometry.virtual_memory.then_some(geometry.chunk_bytes);
        let mut heap = Heap::new(geometry);
        if settings.lender.is_some() {
            heap.set_lease(0);
        }
        Self {
            heap: Busy::new(Guards::Heap, Box::new(heap)),
            capacity: CapacityCopy::new(CachePadded::new(SharedNumber::new(
                settings.geometry.capacity,
            ))),
            reserved: CachePadded::new(SharedNumber::new(0)),
            is_over: SharedFlag::new(false),
            is_shrunk: SharedFlag::new(false),
            soft_cap: SoftCap::default(),
            lease: Lease::new(settings.lender.clone()),
            evictables: Evictables::new(announcer.clone(), chunk_bytes),
            announcer: announcer.clone(),
            keeps_spares: settings.is_ordered,
            spares_removed: Count::default(),
        }
    }

    /// Returns the most bytes that may be held from the device.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Sets the capacity. Returns the bytes that are held, growth under way included.
    pub(super) fn set_capacity(&self, capacity: u64) -> u64 {
        let mut heap = self.heap.lock();
        heap.set_capacity(capacity);
        // Under the lock: if two threads resize, both figures are those of the later one.
        self.capacity.store(capacity, Ordering::Relaxed);
        self.record_reserved(&heap);
        let held = heap.totals().held();
        self.is_shrunk.store(held > capacity, Ordering::Relaxed);
        held
    }

    /// Bytes that are held from the device.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Notes the reserved bytes, under the heap's lock, after a growth, a release or a change of the bytes that may be held.
    pub(super) fn record_reserved(&self, heap: &Heap) {
        let totals = heap.totals();
        let reserved = totals.reserved.current;
        self.reserved.store(reserved, Ordering::Relaxed);
        let is_over = totals.held() > heap.lease();
        self.is_over.store(is_over, Ordering::Relaxed);
    }

    /// Returns whether more is held than may be, when that was last noted.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Tells observers when the reserved bytes exceed the soft cap. No lock is held.
    pub(super) fn tell_of_soft_cap(&self) {
        let reserved = self.reserved();
        if let Some(cap) = self.soft_cap.newly_exceeded(reserved) {
            self.announcer.tell(|| Fact::SoftCapExceeded {
                reserved,
                soft_cap: cap,
            });
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.heap.lock().totals()
    }

    /// Checks the invariants of the heap, in time proportional to its blocks.
    ///
    /// # Errors
    /// Returns the invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        heap::check::invariants(&self.heap.lock())
    }

    /// Tells a fact with the figures of the memory, if there are observers. No lock is held.
    #[inline]
    pub(crate) fn tell<'a>(&self, fact: impl FnOnce() -> Fact<'a>) {
        if self.announcer.is_open() {
            let memory = || memory_of(self.totals());
            self.announcer.tell_with(fact(), &memory);
        }
    }

    /// Sets the bytes that may be held after so many were granted; with `is_binding`, also those that may be in use.
    pub(crate) fn set_lease(&self, shared: &Shared, granted: u64, bytes: u64, is_binding: bool) {
        let mut heap = self.heap.lock();
        heap.set_lease(bytes);
        // Under the lock, where a search reads them together.
        self.lease.set(granted, bytes, is_binding);
        self.record_reserved(&heap);
        match is_binding {
            true => shared.gate.fetch_or(gate::RECALLED, Ordering::SeqCst),
            false => shared.gate.fetch_and(!gate::RECALLED, Ordering::SeqCst),
        };
    }

    /// Returns the bytes that must have been granted for a request that would exceed the bound on memory in use; `None`
    /// if it would not.
    pub(super) fn wanted_for_use(&self, shared: &Shared, bytes: u64) -> Option<u64> {
        if !shared.is_recalled() {
            return None;
        }
        let heap = self.heap.lock();
        let in_use = heap.totals().in_use.current.saturating_add(bytes);
        self.lease.wanted_for_use(in_use)
    }

    /// Returns the bytes that may be held now: the capacity, unless a source lends less.
    pub(crate) fn leased(&self) -> u64 {
        match self.lease.lender {
            None => self.capacity(),
            Some(_) => self.heap.lock().lease(),
        }
    }

    /// Brings the heap up to the known progress of a stream, and publishes what that frees: a request may have searched
    /// before, and found nothing to watch since. Between the timeline's news and this call, memory is complete and still
    /// counted as pending: callers that need it catch up first.
    pub(crate) fn catch_up(&self, shared: &Shared, lane: &Lane) {
        if self.complete_in_heap(lane) {
            shared.publish(Change::Memory);
        }
    }

    /// Brings the heap up to the known progress of a stream. Says whether there was any news, which is not published.
    pub(super) fn complete_in_heap(&self, lane: &Lane) -> bool {
        let completed = lane.timeline.completed();
        let has_news = self.heap.lock().complete(lane.id, completed);
        if has_news {
            self.tell(|| Fact::Reaped { streams: 1 });
        }
        has_news
    }

    /// Gives blocks that the lane's cache kept to the heap, which is locked. Returns whether there are any.
    pub(super) fn take_back(&self, heap: &mut Heap, lane: &Lane, kept: Vec<CachedBlock>) -> bool {
        if self.keeps_spares {
            for CachedBlock { id, bytes, .. } in &kept {
                heap.remove_segment(*id);
                self.spares_removed.add(*bytes);
            }
            self.record_reserved(heap);
            return !kept.is_empty();
        }
        for CachedBlock { id, ticket, .. } in &kept {
            heap.take_back(*id, Fences::one(lane.id, *ticket));
        }
        !kept.is_empty()
    }

    /// Joins a block and the one that was allocated directly above it.
    pub(crate) fn join_used(&self, lower: &Allocation, upper: &Allocation) {
        self.heap.lock().join_used(lower.id, upper.id);
    }

    /// Makes a reservation of complete memory.
    pub(crate) fn reservation(&self, allocations: Allocations) -> ReservationId {
        let mut heap = self.heap.lock();
        heap::reservation::create(
            &mut heap,
            allocations.into_iter().map(|allocation| allocation.id),
        )
    }

    /// Adds complete memory to a reservation.
    pub(crate) fn add_to_reservation(&self, reservation: ReservationId, allocations: Allocations) {
        let mut heap = self.heap.lock();
        let ids = allocations.into_iter().map(|allocation| allocation.id);
        heap::reservation::extend(&mut heap, reservation, ids);
    }

    /// Returns how many bytes of addresses there are with a placement.
    pub(crate) fn addresses(&self, placement: Placement) -> u64 {
        self.heap.lock().addresses(placement)
    }

    /// Bytes of a reservation that could be exchanged for others, without those in `held`.
    pub(crate) fn exchangeable(&self, reservation: ReservationId, held: &Ranges) -> u64 {
        heap::exchangeable(&self.heap.lock(), reservation, held)
    }

    /// Bytes of a reservation that are not allocated, and those of its largest block.
    pub(crate) fn left_in_reservation(&self, reservation: ReservationId) -> (u64, u64) {
        let state = heap::reservation::state(&self.heap.lock(), reservation);
        (state.left, state.largest)
    }

    /// Splits off another reservation of that size, if as many bytes are not allocated; with `only_whole`, in one
    /// piece.
    pub(crate) fn split_reservation(
        &self,
        reservation: ReservationId,
        bytes: u64,
        only_whole: bool,
    ) -> Option<ReservationId> {
        heap::reservation::split(&mut self.heap.lock(), reservation, bytes, only_whole)
    }
}
