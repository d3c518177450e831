//! The ground layer of the driver: the device, the heap behind its lock, and whether the pool is open.

use super::event_log::{Entry, EventLog, HistoryEvent, Pages};
use super::evictable::Evictables;
use super::soft_cap::SoftCap;
use super::{
    Change, Counters, DriverPool, DriverPoolUse, Effort, Fills, Lease, Lender, MaintenanceSettings,
    Publish, Upstream,
};
use crate::device::{Capabilities, Device, DeviceError, MemoryKind};
use crate::heap::{self, Geometry, Heap, Order, Remapping, Reuse, Totals, WaitLimit};
use crate::lane::{Bounds, Gate};
use crate::measure::Waits;
use crate::sync::{Busy, Guards, Mutex, Ordering, SharedNumber, SharedState, plain};
use crate::trace;
use crossbeam_utils::CachePadded;

/// Bits of the gate, which is open while none is set. Every allocation and free reads it. It is written when the first
/// request waits, when the last one leaves, and when the pool ends: its cache line stays shared among readers.
pub(crate) mod gate {
    /// A request waits: caches are bypassed, and `try_allocate` fails.
    pub(crate) const WAITING: u8 = 1;
    /// The pool has ended: it grants nothing.
    pub(crate) const ENDED: u8 = 2;
    /// The device has a sticky error.
    pub(crate) const BROKEN: u8 = 4;
    /// A drain waits until all memory is back: caches are bypassed, and requests are still granted.
    pub(crate) const DRAINING: u8 = 8;
    /// A broker takes back memory that is in use: caches are bypassed, and requests are granted within a bound.
    pub(crate) const RECALLED: u8 = 16;
    /// A request waits in the scope of a reservation, perhaps for the limit of its tag and not in the fair queue: caches
    /// are bypassed, and requests are still granted.
    pub(crate) const SCOPED: u8 = 32;
    /// High-water marks are to be exact: caches are bypassed, so that the heap sees each allocation and free.
    pub(crate) const MEASURED: u8 = 64;
}

/// The validated settings of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    /// Where memory comes from, as it was asked for.
    pub(crate) upstream: Upstream,
    pub(crate) kind: MemoryKind,
    /// The pool of the driver that plain segments come from.
    pub(crate) driver_pool: Option<(DriverPool, DriverPoolUse)>,
    /// The pool has caches, or a release threshold above 0.
    pub(crate) is_pooled: bool,
    /// The alignment of every block in bytes, at least the heap's granule.
    pub(crate) alignment: u64,
    pub(crate) initial: u64,
    pub(crate) lane: Bounds,
    pub(crate) order: Order,
    /// Which memory may be reused at first.
    pub(crate) reuse: Reuse,
    pub(crate) wait_limit: WaitLimit,
    pub(crate) remapping: Remapping,
    pub(crate) maintenance: MaintenanceSettings,
    pub(crate) fills: Fills,
    /// What leases the capacity, if anything does.
    pub(crate) lender: Option<plain::Arc<dyn Lender>>,
    /// The most entries of the event log; 0 for no log.
    pub(crate) history: usize,
}

impl Settings {
    /// Returns whether the memory is plain memory of the device, of no pool of the driver.
    pub(crate) fn is_plain_of_device(&self) -> bool {
        let is_plain = !self.geometry.virtual_memory && self.driver_pool.is_none();
        is_plain && self.kind == MemoryKind::Device
    }
}

/// The layer that all others stand on; see the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: plain::Arc<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) gate: Gate,
    /// How many [exact](gate::MEASURED) measurements run.
    pub(super) measurements: Mutex<usize>,
    pub(super) publisher: plain::Arc<dyn Publish>,
    pub(crate) counters: Counters,
    /// How the pool's requests waited: counted by the queue.
    pub(crate) waits: plain::Arc<Waits>,
    /// Boxed, so that a pool under construction is small enough to be moved on a small stack.
    pub(super) heap: Busy<Box<Heap>>,
    /// A copy of the heap's capacity for readers without its lock. Every allocation reads it, and a resize writes it.
    capacity: CachePadded<SharedNumber>,
    /// A copy of the heap's reserved bytes, for readers without its lock.
    reserved: CachePadded<SharedNumber>,
    pub(crate) soft_cap: SoftCap,
    pub(crate) lease: Lease,
    pub(crate) evictables: Evictables,
    /// Which memory may be reused, as bits. Every search reads it once or twice, and a user may change it.
    reuse: SharedState,
    /// The recent events, if the pool keeps a history.
    pub(crate) event_log: Option<EventLog>,
    fault: Mutex<Option<DeviceError>>,
}

impl Core {
    pub(super) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        publisher: plain::Arc<dyn Publish>,
        waits: plain::Arc<Waits>,
    ) -> Self {
        let capacity = settings.geometry.capacity;
        let mut heap = Heap::new(settings.geometry);
        if settings.lender.is_some() {
            heap.set_lease(0);
        }
        Self {
            capabilities: device.capabilities(),
            gate: Gate::new(CachePadded::new(SharedState::new(0))),
            measurements: Mutex::new(Guards::Registry, 0),
            publisher,
            counters: Counters::new(),
            waits,
            heap: Busy::new(Guards::Heap, Box::new(heap)),
            capacity: CachePadded::new(SharedNumber::new(capacity)),
            reserved: CachePadded::new(SharedNumber::new(0)),
            soft_cap: SoftCap::new(),
            lease: Lease::new(settings.lender.clone()),
            evictables: Evictables::new(),
            reuse: SharedState::new(settings.reuse.to_bits()),
            event_log: EventLog::new(&device, settings.history),
            fault: Mutex::new(Guards::Registry, None),
            settings,
            device,
        }
    }

    /// Returns whether a call of that effort may make memory calls.
    pub(super) fn may_call(&self, effort: Effort) -> bool {
        effort != Effort::Poll || !self.capabilities.memory_calls_block
    }

    /// Returns whether nothing waits for memory, and the pool grants.
    pub(crate) fn is_open(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & !gate::MEASURED == 0
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::MEASURED != 0
    }

    /// Returns whether a new request may be granted: no request waits, and the pool has not ended.
    pub(crate) fn is_granting(&self) -> bool {
        let allowed = gate::DRAINING | gate::RECALLED | gate::SCOPED | gate::MEASURED;
        self.gate.load(Ordering::Relaxed) & !allowed == 0
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::DRAINING != 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::ENDED != 0
    }

    /// Returns the most bytes that may be held from the device.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Rounds a size up to a multiple of the pool's step, which is a power of two, and to one step at least. The capacity is
    /// a multiple of the step: sizes up to the capacity do not overflow.
    #[inline(always)]
    pub(crate) fn round_up(&self, bytes: u64) -> u64 {
        let step = self.settings.alignment;
        (bytes.max(1) + (step - 1)) & !(step - 1)
    }

    /// Sets the capacity. Returns the bytes that are held, growth under way included.
    pub(super) fn set_capacity(&self, capacity: u64) -> u64 {
        let mut heap = self.heap.lock();
        heap.set_capacity(capacity);
        // Under the lock: if two threads resize, both figures are those of the later one.
        self.capacity.store(capacity, Ordering::Relaxed);
        heap.totals().held()
    }

    /// Returns which memory may be reused.
    pub(crate) fn reuse(&self) -> Reuse {
        Reuse::of_bits(self.reuse.load(Ordering::Relaxed))
    }

    /// Changes which memory may be reused, for searches that begin from now on. Returns the previous setting.
    pub(crate) fn change_reuse(&self, change: impl Fn(&mut Reuse)) -> Reuse {
        let mut bits = self.reuse.load(Ordering::Relaxed);
        loop {
            let before = Reuse::of_bits(bits);
            let mut after = before;
            change(&mut after);
            let order = Ordering::Relaxed;
            match self
                .reuse
                .compare_exchange(bits, after.to_bits(), order, order)
            {
                Ok(_) => return before,
                Err(present) => bits = present,
            }
        }
    }

    /// Bytes that are held from the device.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Notes the reserved bytes, under the heap's lock, after a growth or a release.
    pub(super) fn note_reserved(&self, heap: &Heap) {
        let reserved = heap.totals().reserved.current;
        self.reserved.store(reserved, Ordering::Relaxed);
    }

    /// Tells a subscriber when the reserved bytes exceed the soft cap. No lock is held.
    pub(super) fn tell_of_soft_cap(&self) {
        let reserved = self.reserved();
        if let Some(cap) = self.soft_cap.newly_exceeded(reserved) {
            trace::soft_cap_exceeded(reserved, cap);
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

    /// Returns the sticky error that ended the pool, if one did.
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        if !self.is_broken() {
            return None;
        }
        self.fault.lock().clone()
    }

    fn is_broken(&self) -> bool {
        self.gate.load(Ordering::Acquire) & gate::BROKEN != 0
    }

    /// # Errors
    /// Returns the sticky error that ended the pool, if one did.
    #[inline]
    pub(super) fn expect_sound(&self) -> Result<(), DeviceError> {
        if !self.is_broken() {
            return Ok(());
        }
        self.fault().map_or(Ok(()), Err)
    }

    /// Notes a device error. A sticky one ends the pool, and every waiter is told.
    pub(crate) fn note(&self, error: &DeviceError) {
        if !error.is_sticky() {
            return trace::device_error(error);
        }
        self.fault.lock().get_or_insert_with(|| error.clone());
        let before = self.gate.fetch_or(gate::BROKEN, Ordering::AcqRel);
        if before & gate::BROKEN == 0 {
            trace::device_broken(error);
        }
        self.publisher.publish(Change::Terms);
    }

    /// Passes a device result on, and notes its error.
    pub(crate) fn noted<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }

    /// Publishes a change, if anything can wait for it: a request or a drain. A throttled request keeps the gate open
    /// unless it is in the scope of a reservation.
    pub(crate) fn publish(&self, change: Change) {
        if !self.is_open() || matches!(change, Change::Reservation(_)) {
            self.publisher.publish(change);
        }
    }

    /// Makes an entry of the event log, if there is one. No lock is held.
    pub(super) fn entry(&self) -> Option<Entry<'_>> {
        self.event_log.as_ref().map(EventLog::begin)
    }

    /// Writes to the event log, if there is one. No lock is held.
    #[inline]
    pub(crate) fn write_entry(&self, write: impl FnOnce(Entry<'_>, Totals)) {
        if let Some(entry) = self.entry() {
            write(entry, self.totals());
        }
    }

    /// Writes an event, which is made only if there is an event log. No lock is held.
    #[inline]
    pub(crate) fn write_down(&self, event: impl FnOnce() -> HistoryEvent) {
        self.write_entry(|entry, totals| entry.write(totals, event()));
    }

    /// Returns the recent entries of the event log.
    pub(crate) fn pages(&self) -> Pages {
        let pages = self.event_log.as_ref().map(EventLog::pages);
        pages.unwrap_or_default()
    }
}
