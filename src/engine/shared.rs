//! The part of the engine that every other part may read: the device, the frozen settings, and whether the pool is open.

use super::{Announcer, Change, CoalesceHeuristic, Effort, Fills, Lender, Publish, Upstream};
use crate::device::{Capabilities, Device, DeviceError, MemoryKind, RawStream};
use crate::error::StreamError;
use crate::heap::{Geometry, Order, Remapping, Reuse, WaitLimit};
use crate::lane::{CacheBounds, Gate};
use crate::measure::Waits;
use crate::seam::{Fact, SegmentSource};
use crate::sync::{Guards, Mutex, Ordering, SharedState, plain};
use weirpool_measure::DeviceCounters;

/// Bits of the gate, which is open while none is set. Every allocation and free reads it. It is written when the first
/// request waits, when the last one leaves, when the pool ends, and for drains, recalls, scopes and measurements.
pub(crate) mod gate {
    /// A request waits in the fair queue: caches are bypassed, and `try_allocate` fails.
    pub(crate) const WAITING: u8 = 1;
    /// The pool has ended: it grants nothing.
    pub(crate) const ENDED: u8 = 2;
    /// The device has a sticky error.
    pub(crate) const BROKEN: u8 = 4;
    /// A drain waits until all memory is back: caches are bypassed, and requests are still granted.
    pub(crate) const DRAINING: u8 = 8;
    /// A source takes back memory that is in use: caches are bypassed, and requests are granted within a bound.
    pub(crate) const RECALLED: u8 = 16;
    /// A request waits in the scope of a reservation, perhaps for the limit of its tag and not in the fair queue: caches
    /// are bypassed, and requests are still granted.
    pub(crate) const SCOPED: u8 = 32;
    /// High-water marks are to be exact: caches are bypassed, so that the heap sees each allocation and free.
    pub(crate) const MEASURED: u8 = 64;
    /// The pool admits no more requests: it grants memory only to requests of holders. Set wherever `ENDED` is.
    pub(crate) const STOPPED: u8 = 128;
}

/// The settings of a pool's maintenance.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceSettings {
    /// Free memory is released while more bytes than this are reserved.
    pub(crate) threshold: u64,
    pub(crate) heuristic: Option<CoalesceHeuristic>,
}

/// The validated settings of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    /// Where memory comes from, as it was asked for.
    pub(crate) upstream: Upstream,
    pub(crate) kind: MemoryKind,
    /// Where plain segments come from: the device, or the source that was given.
    pub(crate) segments: plain::Arc<dyn SegmentSource>,
    /// Segments come from a source that was given.
    pub(crate) has_source: bool,
    /// Allocations and frees are passed on to the source, in the order of streams.
    pub(crate) is_ordered: bool,
    /// The pool has caches, or a release threshold above 0.
    pub(crate) is_pooled: bool,
    /// The alignment of every block in bytes, at least the heap's granule.
    pub(crate) alignment: u64,
    pub(crate) initial: u64,
    pub(crate) lane: CacheBounds,
    pub(crate) order: Order,
    /// Which memory may be reused at first.
    pub(crate) reuse: Reuse,
    pub(crate) wait_limit: WaitLimit,
    pub(crate) remapping: Remapping,
    pub(crate) maintenance: MaintenanceSettings,
    pub(crate) fills: Fills,
    /// The source of the capacity, if there is one.
    pub(crate) lender: Option<plain::Arc<Lender>>,
    /// Tells observers.
    pub(crate) announcer: plain::Arc<Announcer>,
}

impl Settings {
    /// Returns the most bytes that the sources of segments and of capacity may ever give.
    pub(crate) fn most(&self) -> u64 {
        let lender = self.lender.as_ref();
        let leased = lender.map_or(u64::MAX, |lender| lender.limit);
        self.segments.properties().most.min(leased)
    }

    /// Returns whether the memory is plain memory that the device allocated for the pool.
    pub(crate) fn is_plain_of_device(&self) -> bool {
        let is_plain = !self.geometry.virtual_memory && !self.has_source;
        is_plain && self.kind == MemoryKind::Device
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) device: plain::Arc<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) gate: Gate,
    /// How many [exact](gate::MEASURED) measurements run.
    pub(super) measurements: Mutex<usize>,
    publisher: plain::Arc<dyn Publish>,
    pub(crate) counters: DeviceCounters,
    /// How the pool's requests waited: counted by the queue.
    pub(crate) waits: plain::Arc<Waits>,
    /// Which memory may be reused, as bits. Every search reads it once or twice, and a user may change it.
    reuse: SharedState,
    fault: Mutex<Option<DeviceError>>,
}

impl Shared {
    pub(super) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        publisher: plain::Arc<dyn Publish>,
        waits: plain::Arc<Waits>,
        gate: Gate,
    ) -> Self {
        Self {
            capabilities: device.capabilities(),
            gate,
            measurements: Mutex::new(Guards::Registry, 0),
            publisher,
            counters: DeviceCounters::default(),
            waits,
            reuse: SharedState::new(settings.reuse.to_bits()),
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

    /// Returns whether a new request may be granted: no request waits, and the pool admits it.
    pub(crate) fn is_granting(&self, is_of_holder: bool) -> bool {
        let allowed = gate::DRAINING | gate::RECALLED | gate::SCOPED | gate::MEASURED;
        let allowed = allowed | if is_of_holder { gate::STOPPED } else { 0 };
        self.gate.load(Ordering::Relaxed) & !allowed == 0
    }

    /// Returns whether a request waits, in one order with the changes of the gate.
    pub(super) fn is_awaited(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & gate::WAITING != 0
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::DRAINING != 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::ENDED != 0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::STOPPED != 0
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
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, error: &DeviceError) {
        if !error.is_sticky() {
            self.settings
                .announcer
                .tell(|| Fact::DeviceFailed { error });
            return;
        }
        self.fault.lock().get_or_insert_with(|| error.clone());
        let before = self.gate.fetch_or(gate::BROKEN, Ordering::AcqRel);
        if before & gate::BROKEN == 0 {
            self.settings
                .announcer
                .tell(|| Fact::DeviceFailed { error });
        }
        self.publisher.publish(Change::Terms);
    }

    /// Passes a device result on, and notes its error.
    #[inline]
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

    /// Returns whether the memory in use is bounded.
    pub(crate) fn is_recalled(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::RECALLED != 0
    }

    /// # Errors
    /// Returns an error if the pool's memory is not accessible where the stream runs.
    pub(crate) fn expect_seen_by(&self, stream: RawStream) -> Result<(), StreamError> {
        let kind = self.settings.kind;
        match stream {
            RawStream::HOST if !kind.is_seen_by_host() => Err(StreamError::UnseenByHost),
            RawStream::HOST => Ok(()),
            _ if !kind.is_seen_by_device() => Err(StreamError::UnseenByDevice),
            _ => Ok(()),
        }
    }

    /// Notes the error of a stream's event, and passes it on if it is sticky.
    pub(super) fn unless_sticky<T>(
        &self,
        asked: Result<T, DeviceError>,
    ) -> Result<(), DeviceError> {
        match self.noted(asked) {
            Err(error) if error.is_sticky() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns how often memory was mapped or allocated from the device.
    pub(crate) fn growths(&self) -> u64 {
        self.counters.growths.load(Ordering::Relaxed)
    }

    /// Returns whether the memory of both pools comes from the same place.
    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        let is_of_host = |shared: &Self| shared.settings.kind.is_of_host();
        self.device.id() == other.device.id() && is_of_host(self) == is_of_host(other)
    }
}
