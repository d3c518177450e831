//! The driver: one allocation, and one free, through lanes, heap and device.
//!
//! It owns the heap, the registered lanes and what the device gave, and it is where the device is
//! called: never under a lock (I5). It knows nothing of futures or of who waits, save that the
//! *gate* is not open then, and that what makes memory reachable is to be *published*.
//!
//! | file | about |
//! |---|---|
//! | `mode` | how memory is asked for, and why a search ended without it |
//! | `search` | executes the search policy |
//! | `recipient` | the stream that memory is for |
//! | `parts` | several blocks, all or none |
//! | `allocation`, `source` | a block on its way to its user, and where it came from |
//! | `reservation` | memory set aside for one holder |
//! | `unpooled` | the same where nothing is pooled |
//! | `pressure` | what is done when the device refuses memory |
//! | `release` | the way back: a free, a further use, a grant that nobody took |
//! | `fill` | filling what is granted or freed |
//! | `reap` | what has completed, and what lanes keep |
//! | `lookup` | which block an address is in |
//! | `heap_walk` | all blocks, and whence they are |
//! | `event_log` | what happened lately, where that is kept |
//! | `upstream` | where memory comes from |
//! | `memory` | carrying out the heap's plans on the device |
//! | `deferred_release` | what outlives the pool: memory that running work may still touch |
//! | `publish` | how the driver reports what makes memory reachable |
//! | `resize` | another capacity, at run time |
//! | `maintenance` | releasing and coalescing, now and then |
//! | `counters` | counts of the slow path |
//! | `figures` | what can be told |

mod allocation;
mod counters;
mod deferred_release;
mod event_log;
mod figures;
mod fill;
mod heap_walk;
mod lookup;
mod maintenance;
mod memory;
mod mode;
mod parts;
mod pressure;
mod publish;
mod reap;
mod recipient;
mod release;
mod reservation;
mod resize;
mod search;
mod source;
mod unpooled;
mod upstream;

pub(crate) use allocation::Allocation;
pub(crate) use counters::Counters;
pub use event_log::{BlockOrigin, HistoryEntry, HistoryEvent, Occupancy, ReservationOrigin, Site};
pub(crate) use event_log::{Extent, Pages};
pub(crate) use figures::InLanes;
pub use fill::Fill;
pub(crate) use fill::Fills;
pub(crate) use heap_walk::HeapWalk;
pub use heap_walk::{ReservationInfo, SegmentInfo};
pub use lookup::{BlockInfo, BlockState};
pub(crate) use maintenance::{Maintenance, MaintenanceSettings};
pub(crate) use mode::{Effort, Expected, Mode, Refusal};
pub(crate) use parts::{Allocations, Part, Parts};
pub(crate) use pressure::Spill;
pub(crate) use publish::{Change, Publish};
pub(crate) use reap::Watches;
pub(crate) use reservation::Drawn;
pub use source::Source;
pub(crate) use upstream::MemorySource;
pub use upstream::Upstream;

use crate::device::{Capabilities, Device, DeviceError, DeviceStream, Host, MemoryKind, RawStream};
use crate::error::{BuildError, StreamError};
use crate::fault::injected;
use crate::heap::policy::{Order, Reuse, WaitLimit};
use crate::heap::{Budget, Geometry, Heap, Remapping, Totals};
use crate::id::StreamId;
pub(crate) use crate::lane::Use;
use crate::lane::{Bounds, Events, Gate, Lane};
use crate::sync::{
    Arc, Busy, Guards, Mutex, Ordering, SharedFlag, SharedNumber, SharedState, plain,
};
use crate::trace;
use crossbeam_utils::CachePadded;
use event_log::EventLog;
use figures::Gone;
use memory::Memory;
use pressure::Pressure;

/// Bits of the gate; it is open when none is set. Read by every allocation and free, written when
/// the first waiter comes, the last goes, or the pool ends: a line that stays shared among readers.
pub(crate) mod gate {
    /// Somebody waits: lanes are bypassed and `try_allocate` fails.
    pub(crate) const WAITING: u8 = 1;
    /// No more grants.
    pub(crate) const CLOSED: u8 = 2;
    /// The device is broken for good.
    pub(crate) const BROKEN: u8 = 4;
    /// Somebody waits until everything came back: lanes are bypassed, and nothing else.
    pub(crate) const DRAINING: u8 = 8;
}

/// What a pool was built with; validated.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    /// What was asked for, and what it is to who sees it.
    pub(crate) upstream: Upstream,
    pub(crate) kind: MemoryKind,
    /// Whether what was freed is kept.
    pub(crate) is_pooled: bool,
    /// Of every block, in bytes: at least the heap's step.
    pub(crate) alignment: u64,
    pub(crate) initial: u64,
    pub(crate) lane: Bounds,
    pub(crate) order: Order,
    pub(crate) reuse: Reuse,
    pub(crate) wait_limit: WaitLimit,
    pub(crate) remapping: Remapping,
    pub(crate) maintenance: MaintenanceSettings,
    pub(crate) fills: Fills,
    /// Entries of the event log at most; none is kept for 0.
    pub(crate) history: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) device: plain::Arc<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) gate: Gate,
    publisher: plain::Arc<dyn Publish>,
    pub(crate) counters: Counters,
    pub(crate) maintenance: Maintenance,
    pub(crate) pressure: Pressure,
    budget: Mutex<Budget>,
    /// The heap's, for who only wants to look. Read by every allocation, written by a resize.
    capacity: CachePadded<SharedNumber>,
    /// The capacity was set to less than was held.
    is_shrunk: SharedFlag,
    heap: Busy<Heap>,
    /// In whose order memory is taken that is for no stream.
    pub(crate) nobody: Arc<Lane>,
    /// By id; replaced when a stream comes or goes, so that a reader's copy is one count.
    lanes: Busy<Registry>,
    events: Arc<Events>,
    memory: Memory,
    event_log: Option<EventLog>,
    fault: Mutex<Option<DeviceError>>,
}

#[derive(Debug)]
struct Registry {
    lanes: Arc<Vec<Arc<Lane>>>,
    gone: Gone,
    next: u64,
}

impl Driver {
    /// # Errors
    /// When the device cannot reserve addresses, or the initial memory.
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        spill: Spill,
        publisher: plain::Arc<dyn Publish>,
    ) -> Result<Self, BuildError> {
        let registry = Registry {
            lanes: Arc::new(Vec::new()),
            gone: Gone::default(),
            next: 1,
        };
        let capacity = settings.geometry.capacity;
        let gate = Gate::new(CachePadded::new(SharedState::new(0)));
        let driver = Self {
            capabilities: device.capabilities(),
            publisher,
            counters: Counters::new(),
            maintenance: Maintenance::new(settings.maintenance.clone()),
            pressure: Pressure::new(spill),
            budget: Mutex::new(Guards::Budget, Budget::new(settings.remapping)),
            is_shrunk: SharedFlag::new(false),
            capacity: CachePadded::new(SharedNumber::new(capacity)),
            heap: Busy::new(Guards::Heap, Heap::new(settings.geometry)),
            nobody: Arc::new(Lane::new(
                StreamId::SET_ASIDE,
                &Host(device.id()),
                Bounds {
                    bytes: 0,
                    largest: 0,
                    large_cache: 0,
                    unsealed: 0,
                    may_widen: false,
                    is_sharded: false,
                },
                gate.clone(),
            )),
            gate,
            lanes: Busy::new(Guards::Registry, registry),
            events: Arc::new(Events::new(device.clone())),
            memory: Memory::new(device.clone(), &settings),
            event_log: EventLog::new(&device, settings.history),
            fault: Mutex::new(Guards::Registry, None),
            settings,
            device,
        };
        driver.reserve_addresses(capacity)?;
        driver.reserve_initial()?;
        Ok(driver)
    }

    /// Adds a stream, with an id of its own (I7).
    ///
    /// # Errors
    /// When it is of another device, or the device cannot keep its order.
    pub(crate) fn register(&self, stream: &dyn DeviceStream) -> Result<Arc<Lane>, StreamError> {
        if stream.device_id() != self.device.id() {
            return Err(StreamError::ForeignDevice);
        }
        self.expect_seen_by(stream.raw())?;
        stream.admit()?;
        // Streams that went away are seen off by those that come: their number stays bounded.
        self.reap_retired();
        let id = self.next_stream_id();
        let lane = Arc::new(Lane::new(id, stream, self.settings.lane, self.gate.clone()));
        // Known to the heap before anybody can free on it; with what is complete from the start.
        self.heap.lock().register(id, lane.timeline.completed());
        let mut registry = self.lanes.lock();
        let mut lanes = registry.lanes.as_ref().clone();
        let at = lanes.partition_point(|other| other.id < id);
        registry.gone.greet(&lane);
        lanes.insert(at, lane.clone());
        registry.lanes = Arc::new(lanes);
        drop(registry);
        trace::stream_registered(id);
        Ok(lane)
    }

    /// # Errors
    /// When who runs the stream does not see the pool's memory.
    pub(crate) fn expect_seen_by(&self, stream: RawStream) -> Result<(), StreamError> {
        let kind = self.settings.kind;
        match stream {
            RawStream::HOST if !kind.is_seen_by_host() => Err(StreamError::UnseenByHost),
            RawStream::HOST => Ok(()),
            _ if !kind.is_seen_by_device() => Err(StreamError::UnseenByDevice),
            _ => Ok(()),
        }
    }

    fn next_stream_id(&self) -> StreamId {
        let mut registry = self.lanes.lock();
        let id = StreamId(registry.next);
        registry.next += 1;
        id
    }

    /// Continues the ids of streams from here, as after this many registrations.
    #[cfg(test)]
    pub(crate) fn skip_stream_ids(&self, next: u64) {
        self.lanes.lock().next = next;
    }

    /// The registered lanes, as of now.
    pub(crate) fn lanes(&self) -> Arc<Vec<Arc<Lane>>> {
        self.lanes.lock().lanes.clone()
    }

    /// Drops lanes whose stream is gone and whose work is complete.
    fn drop_done_lanes(&self) {
        let lanes = self.lanes();
        let done = lanes.iter().filter(|lane| lane.is_done());
        let done: Vec<_> = done.cloned().collect();
        if done.is_empty() {
            return;
        }
        // First, so that nothing is pending for a stream that nobody finds any more.
        {
            let mut heap = self.heap.lock();
            for lane in &done {
                heap.complete(lane.id, lane.timeline.completed());
            }
        }
        let done: Vec<_> = {
            let mut registry = self.lanes.lock();
            let is_told = |lane: &Arc<Lane>| done.iter().any(|told| Arc::ptr_eq(told, lane));
            let lanes = registry.lanes.iter().cloned();
            let (done, left) = lanes.partition(|lane| is_told(lane) && lane.is_done());
            registry.lanes = Arc::new(left);
            if !injected("figures-lost-with-their-stream") {
                done.iter()
                    .for_each(|lane: &Arc<Lane>| registry.gone.bury(lane));
            }
            done
        };
        if injected("figures-lost-with-their-stream") {
            done.iter()
                .for_each(|lane: &Arc<Lane>| self.lanes.lock().gone.bury(lane));
        }
        let mut heap = self.heap.lock();
        done.iter().for_each(|lane| heap.forget(lane.id));
        // The streams' owners are let go outside the lock: a driver may be called.
        drop(heap);
        done.iter().for_each(|lane| trace::stream_gone(lane.id));
    }

    /// Whether memory calls may be made by who goes so far.
    fn may_call(&self, effort: Effort) -> bool {
        effort != Effort::Poll || !self.capabilities.memory_calls_block
    }

    pub(crate) fn is_open(&self) -> bool {
        self.gate.load(Ordering::Relaxed) == 0
    }

    /// Whether who comes now may be granted something: nobody waits, and the pool has not ended.
    pub(crate) fn is_granting(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & !gate::DRAINING == 0
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::DRAINING != 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & gate::CLOSED != 0
    }

    /// What may be held from the device at most, in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    pub(crate) fn totals(&self) -> Totals {
        self.heap.lock().totals()
    }

    /// The invariants of the heap, O(blocks).
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.heap.lock().check()
    }

    /// With every lane drained: whether nothing is lent any more.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn check_conserved(&self) -> Result<(), String> {
        self.flush_lanes();
        self.heap.lock().check_conserved()
    }

    /// The sticky error that ended the pool, if one did.
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        if self.gate.load(Ordering::Acquire) & gate::BROKEN == 0 {
            return None;
        }
        self.fault.lock().clone()
    }

    /// Takes note of an error; a sticky one ends the pool, and whoever drives must hear of it.
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

    /// Passes a device result on, taking note of an error.
    pub(crate) fn noted<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }
}
