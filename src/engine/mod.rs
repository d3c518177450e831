//! The engine: one allocation, and one free, through lanes, ledger and device.
//!
//! It owns the ledger, the registered lanes and what the device gave, and it is where the device is
//! called: never under a lock (I5). It knows nothing of futures or of who waits, save that the
//! *gate* is not open then, and that a *bell* is to be rung when something came back.
//!
//! | file | about |
//! |---|---|
//! | `ladder` | where memory comes from, rung by rung |
//! | `many` | several grants, all or none |
//! | `postponed` | waits on the device, once all of them are had |
//! | `hoard` | memory set aside for one holder |
//! | `unpooled` | the same where nothing is pooled |
//! | `pressure` | what is done when the device refuses memory |
//! | `release` | the way back: a free, a further use, a grant that nobody took |
//! | `fill` | filling what is granted or freed |
//! | `harvest` | what has completed, and what lanes keep |
//! | `lookup` | which block an address is in |
//! | `survey` | all blocks, and whence they are |
//! | `journal` | what happened lately, where that is kept |
//! | `upstream` | where memory comes from |
//! | `memory` | carrying out the ledger's plans on the device |
//! | `estate` | what outlives the pool: memory that running work may still touch |
//! | `bell` | how the engine is heard by whoever drives the waiting |
//! | `resize` | another capacity, at run time |
//! | `upkeep` | releasing and coalescing, now and then |
//! | `tally` | counts of the slow path |
//! | `figures` | what can be told |

pub(crate) mod bell;
mod estate;
mod figures;
mod fill;
mod harvest;
mod hoard;
mod journal;
mod ladder;
mod lookup;
mod many;
mod memory;
mod postponed;
mod pressure;
mod release;
mod resize;
mod survey;
mod tally;
mod unpooled;
mod upkeep;
mod upstream;

pub(crate) use figures::InLanes;
pub use fill::Fill;
pub(crate) use fill::Fills;
pub(crate) use harvest::Watches;
pub(crate) use hoard::Drawn;
pub use journal::{BlockOrigin, HistoryEntry, HistoryEvent, Occupancy, ReservationOrigin, Site};
pub(crate) use journal::{Extent, Pages};
pub use ladder::Rung;
pub(crate) use ladder::{Effort, Expected, Lent, Patience, Refusal};
pub use lookup::{BlockInfo, BlockState};
pub(crate) use many::{Loans, Part, Parts};
pub(crate) use pressure::MakeWay;
pub(crate) use survey::Survey;
pub use survey::{ReservationInfo, SegmentInfo};
pub(crate) use tally::Tally;
pub(crate) use upkeep::{Upkeep, UpkeepSettings};
pub(crate) use upstream::Source;
pub use upstream::Upstream;

use crate::device::{Capabilities, Device, DeviceError, DeviceStream, Host, MemoryKind, RawStream};
use crate::error::{BuildError, StreamError};
use crate::id::StreamId;
pub(crate) use crate::lane::Use;
use crate::lane::{Bounds, Events, Lane, Leased, Slots};
use crate::ledger::policy::{Order, Reuse, WaitLimit};
use crate::ledger::{Budget, Geometry, Ledger, Remapping, Totals};
use crate::sync::{
    Arc, Busy, Guards, Mutex, Ordering, SharedFlag, SharedNumber, SharedState, plain,
};
use crate::trace;
use bell::Bell;
use crossbeam_utils::CachePadded;
use figures::Gone;
use journal::Journal;
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
    /// Of every block, in bytes: at least the ledger's step.
    pub(crate) alignment: u64,
    pub(crate) initial: u64,
    pub(crate) lane: Bounds,
    pub(crate) order: Order,
    pub(crate) reuse: Reuse,
    pub(crate) wait_limit: WaitLimit,
    pub(crate) remapping: Remapping,
    pub(crate) upkeep: UpkeepSettings,
    pub(crate) fills: Fills,
    /// Entries of the journal at most; none is kept for 0.
    pub(crate) history: usize,
}

/// Of lanes that are no stream's: nothing is left there.
static NOBODYS: Slots<()> = Slots::new();

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) device: plain::Arc<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) gate: CachePadded<SharedState>,
    pub(crate) bell: plain::Arc<Bell>,
    pub(crate) tally: Tally,
    pub(crate) upkeep: Upkeep,
    pub(crate) pressure: Pressure,
    budget: Mutex<Budget>,
    /// The ledger's, for who only wants to look. Read by every allocation, written by a resize.
    capacity: CachePadded<SharedNumber>,
    /// The capacity was set to less than was held.
    is_shrunk: SharedFlag,
    ledger: Busy<Ledger>,
    /// In whose order memory is taken that is for no stream.
    pub(crate) nobody: Arc<Lane>,
    /// By id; replaced when a stream comes or goes, so that a reader's copy is one count.
    lanes: Busy<Registry>,
    events: Arc<Events>,
    memory: Memory,
    journal: Option<Journal>,
    fault: Mutex<Option<DeviceError>>,
}

#[derive(Debug)]
struct Registry {
    lanes: Arc<Vec<Arc<Lane>>>,
    gone: Gone,
    next: u32,
}

impl Engine {
    /// # Errors
    /// When the device cannot reserve addresses, or the initial memory.
    pub(crate) fn new(
        device: plain::Arc<dyn Device>,
        settings: Settings,
        make_way: MakeWay,
    ) -> Result<Self, BuildError> {
        let registry = Registry {
            lanes: Arc::new(Vec::new()),
            gone: Gone::default(),
            next: 1,
        };
        let capacity = settings.geometry.capacity;
        let engine = Self {
            capabilities: device.capabilities(),
            gate: CachePadded::new(SharedState::new(0)),
            bell: plain::Arc::new(Bell::new()),
            tally: Tally::new(),
            upkeep: Upkeep::new(settings.upkeep.clone()),
            pressure: Pressure::new(make_way),
            budget: Mutex::new(Guards::Budget, Budget::new(settings.remapping)),
            is_shrunk: SharedFlag::new(false),
            capacity: CachePadded::new(SharedNumber::new(capacity)),
            ledger: Busy::new(Guards::Ledger, Ledger::new(settings.geometry)),
            nobody: Arc::new(Lane::new(
                StreamId::SET_ASIDE,
                &Host(device.id()),
                Bounds {
                    bytes: 0,
                    largest: 0,
                    shelf: 0,
                    unsealed: 0,
                    may_widen: false,
                    is_crowded: false,
                },
                NOBODYS.lease().1,
            )),
            lanes: Busy::new(Guards::Registry, registry),
            events: Arc::new(Events::new(device.clone())),
            memory: Memory::new(device.clone(), &settings),
            journal: Journal::new(&device, settings.history),
            fault: Mutex::new(Guards::Registry, None),
            settings,
            device,
        };
        engine.reserve_addresses(capacity)?;
        engine.reserve_initial()?;
        Ok(engine)
    }

    /// Adds a stream, with an id of its own (I7), and the slot that its front is in.
    ///
    /// # Errors
    /// When it is of another device, or the device cannot keep its order.
    pub(crate) fn register(
        &self,
        stream: &dyn DeviceStream,
        slot: Leased,
    ) -> Result<Arc<Lane>, StreamError> {
        if stream.device_id() != self.device.id() {
            return Err(StreamError::ForeignDevice);
        }
        self.expect_seen_by(stream.raw())?;
        stream.admit()?;
        // Streams that went away are seen off by those that come: their number stays bounded.
        self.harvest_retired();
        let id = self.next_stream_id();
        let lane = Arc::new(Lane::new(id, stream, self.settings.lane, slot));
        // Known to the ledger before anybody can free on it; with what is complete from the start.
        self.ledger.lock().register(id, lane.timeline.completed());
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
            let mut ledger = self.ledger.lock();
            for lane in &done {
                ledger.complete(lane.id, lane.timeline.completed());
            }
        }
        let done: Vec<_> = {
            let mut registry = self.lanes.lock();
            let is_told = |lane: &Arc<Lane>| done.iter().any(|told| Arc::ptr_eq(told, lane));
            let lanes = registry.lanes.iter().cloned();
            let (done, left) = lanes.partition(|lane| is_told(lane) && lane.is_done());
            registry.lanes = Arc::new(left);
            done.iter()
                .for_each(|lane: &Arc<Lane>| registry.gone.bury(lane));
            done
        };
        let mut ledger = self.ledger.lock();
        done.iter().for_each(|lane| ledger.forget(lane.id));
        // The streams' owners are let go outside the lock: a driver may be called.
        drop(ledger);
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
        self.ledger.lock().totals()
    }

    /// The invariants of the ledger, O(blocks).
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.ledger.lock().check()
    }

    /// With every lane drained: whether nothing is lent any more.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn check_conserved(&self) -> Result<(), String> {
        self.drain_lanes();
        self.ledger.lock().check_conserved()
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
        self.bell.ring();
        self.bell.ring_held();
    }

    /// Passes a device result on, taking note of an error.
    pub(crate) fn noted<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }
}
