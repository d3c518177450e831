//! A simulated device: streams as in-order executors, over host memory, on a virtual clock.
//!
//! It runs whatever runs on a real device, in any CI: work takes time, streams have backlogs, waits
//! delay what follows, memory runs out, and a device breaks. On the virtual clock a run is
//! deterministic, and takes no real time.
//!
//! ```
//! use std::time::Duration;
//! use weirpool::device::{Device, MemoryKind};
//! use weirpool::device::sim::{Operation, SimDevice};
//!
//! let sim = SimDevice::new();
//! let address = sim.allocate(MemoryKind::Device, 2 << 20).unwrap();
//! let (first, second) = (sim.create_stream(), sim.create_stream());
//!
//! let write = Operation::new(Duration::from_micros(300)).named("write").writes(address, 4);
//! first.submit(write.run(move |memory| memory.write(address, b"weir")));
//! let event = sim.create_event().unwrap();
//! sim.record(event, first.raw()).unwrap();
//! sim.wait(second.raw(), event).unwrap();
//! second.submit(Operation::new(Duration::from_micros(20)).reads(address, 4));
//!
//! assert!(!sim.query(event).unwrap());
//! sim.advance_to_end();
//! assert!(sim.query(event).unwrap());
//! assert_eq!(sim.now(), Duration::from_micros(320));
//! assert_eq!(sim.counters().stall, Duration::from_micros(300));
//! ```
//!
//! # Time
//! A [`Clock`] moves it. [`SimDevice::advance`] and its kin move it by hand; inside
//! [`SimDevice::block_on`] and [`SimDevice::run`] it moves when no task can go on. Under any other
//! executor a helper thread moves it, and only while an event is watched or an alarm is set:
//! who just asks again and again whether an event is complete will not see it complete.
//!
//! # Cost
//! Device calls take no simulated time. What they would have cost on an H200 is added up in
//! [`Counters::device_time`], so that a figure measured here is not bought with calls that are free
//! only here.
//!
//! # Where to find what
//! | file | what |
//! |---|---|
//! | `builder` | settings and their defaults |
//! | `contract` | the calls of [`Device`] |
//! | `engine`, `state` | the lock, how time moves under it, what it guards |
//! | `schedule` | which item of which stream runs when; sans-IO |
//! | `memory` | addresses, handles, mappings, bytes |
//! | `executor`, `ticker`, `outer_clock`, `time` | who moves time: `block_on`, the helper thread, by hand |
//! | `call`, `cost`, `counters` | calls by name, their price, their sum |
//! | `operation`, `stream`, `flag` | what a user holds |
//! | `host`, `copy` | the host's own use of shared memory; copies and fills |
//! | `checker`, `observer` | which use of memory is not ordered; how it hears of a pool's blocks |
//! | `events`, `alarms`, `names` | small books |

mod alarms;
mod builder;
mod call;
mod checker;
mod contract;
mod copy;
mod cost;
mod counters;
mod engine;
mod event_calls;
mod events;
mod executor;
mod fault;
mod flag;
mod host;
mod label;
mod memory;
mod memory_calls;
mod names;
mod observer;
mod operation;
mod outer_clock;
mod schedule;
mod state;
mod stream;
mod ticker;
mod time;

use builder::Settings;
use engine::Engine;
use memory::Viewer;
use std::fmt;
use weirpool_device::plain::Arc;
use weirpool_device::{Device, DeviceAddress, DeviceError, DeviceErrorKind, Pooling};

pub use builder::{Backing, Checker, Clock, SimBuilder};
pub use call::Call;
pub use checker::{Allocation, Usage, Violation, ViolationKind};
pub use counters::Counters;
pub use fault::Fault;
pub use flag::Flag;
pub use label::StreamLabel;
pub use memory::Memory;
pub use memory_calls::Occupied;
pub use operation::{Access, AccessKind, Operation};
pub use stream::SimStream;
pub use time::Sleep;

/// A simulated device. Clones are the same device, which lives as long as any of them, or any of
/// its streams and flags.
#[derive(Clone)]
pub struct SimDevice {
    engine: Arc<Engine>,
}

impl SimDevice {
    /// A device with 8 GiB of real bytes, on the virtual clock.
    #[allow(
        clippy::new_without_default,
        reason = "each is a new device with an id of its own"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// The settings of a device, to be changed and built.
    pub fn builder() -> SimBuilder {
        SimBuilder::default()
    }

    fn with(settings: Settings) -> Self {
        let engine = Engine::new(settings);
        Self { engine }
    }

    // ---- what happened ---------------------------------------------------------------------

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.engine.peek(|state| state.counters())
    }

    fn description(&self) -> String {
        let Settings {
            memory,
            backing,
            clock,
            ..
        } = self.engine.settings;
        let (now, (in_use, _), streams) = self.engine.peek(|state| {
            let streams = state.schedule.open_streams();
            (state.schedule.now(), state.space.device.usage(), streams)
        });
        let id = self.engine.id;
        let (gib, mib) = (memory as f64 / (1u64 << 30) as f64, in_use >> 20);
        format!(
            "sim:{} \"simulated device\" ({gib:.1} GiB, {backing:?}, {clock:?} clock at {now:?}), supports {}; \
             in use: {mib} MiB, {streams} stream(s), {}",
            id.0,
            self.capabilities(),
            Pooling::of(id),
        )
    }

    // ---- memory as a test sees it ----------------------------------------------------------
    // Any kind, at any moment, out of all order: the ordering checker hears nothing of it. What the host
    // of a service does is in `host`.

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// When not all of it is mapped: an illegal address, which breaks the device.
    pub fn read(
        &self,
        address: impl Into<DeviceAddress>,
        into: &mut [u8],
    ) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        self.engine
            .access("read", |space| space.read(Viewer::Debugger, address, into))
    }

    /// Writes `from` to `address` and on.
    ///
    /// # Errors
    /// When not all of it is mapped: an illegal address, which breaks the device.
    pub fn write(&self, address: impl Into<DeviceAddress>, from: &[u8]) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        self.engine.access("write", |space| {
            space.write(Viewer::Debugger, address, from)
        })
    }

    /// Writes `value` to `bytes` bytes from `address` on.
    ///
    /// # Errors
    /// When not all of it is mapped: an illegal address, which breaks the device.
    pub fn fill(
        &self,
        address: impl Into<DeviceAddress>,
        bytes: u64,
        value: u8,
    ) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        self.engine.access("fill", |space| {
            space.fill(Viewer::Debugger, address, bytes, value)
        })
    }

    /// Whether all of the range is mapped, so that it can be accessed.
    pub fn is_mapped(&self, address: impl Into<DeviceAddress>, bytes: u64) -> bool {
        let address = address.into().to_bits();
        self.engine
            .peek(|state| state.space.is_mapped(address, bytes))
    }

    // ---- faults ----------------------------------------------------------------------------

    /// Makes the `nth` such `call` from now on (the next is the first) go wrong. Faults other than
    /// [`Fault::Fails`] are for [`Call::Record`], and without effect on others.
    ///
    /// ```
    /// use weirpool::{AllocError, Pool};
    /// use weirpool::device::DeviceErrorKind::OutOfMemory;
    /// use weirpool::device::sim::{Call, Fault, SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.script(Call::Create, 2, Fault::Fails(OutOfMemory)); // in the middle of growing
    /// let refused = pool.try_allocate(&stream, 64 << 20);
    /// assert!(matches!(refused, Err(AllocError::Exhausted(_))));
    /// assert!(pool.try_allocate(&stream, 64 << 20).is_ok()); // nothing was lost
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn script(&self, call: Call, nth: u64, fault: Fault) {
        self.engine.call(|state| state.script(call, nth, fault));
    }

    /// Makes the next `call` fail with `kind`, without effect: [`script`](Self::script) for the most
    /// common fault.
    pub fn fail_next(&self, call: Call, kind: DeviceErrorKind) {
        self.script(call, 1, Fault::Fails(kind));
    }

    /// Takes up to `bytes` of the device's free memory, as another process would, until the answer is
    /// dropped.
    pub fn occupy(&self, bytes: u64) -> Occupied {
        Occupied::new(self.engine.clone(), bytes)
    }

    /// Breaks the device for good: nothing submitted runs any more, every watch is called, and
    /// every call fails with [`DeviceErrorKind::Sticky`] and this reason (or an earlier one).
    /// Time, alarms and counters go on.
    pub fn break_device(&self, reason: &str) {
        self.engine.call(|state| state.break_device(reason.into()));
    }
}

impl From<SimDevice> for Arc<dyn Device> {
    fn from(device: SimDevice) -> Self {
        Arc::<SimDevice>::new(device)
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDevice({})", self.description())
    }
}
