//! A simulated device: streams as in-order executors, over host memory, on a virtual clock.
//!
//! Anything that runs on a real device runs on it, on any CI machine: work takes time, streams have backlogs, waits
//! delay the work behind them, memory runs out, and a device can break. On the virtual clock a run is deterministic
//! and takes no real time.
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
//! A [`Clock`] moves it. [`SimDevice::advance`] and similar methods move it by hand. Inside [`SimDevice::block_on`]
//! and [`SimDevice::run`] it moves when no task can proceed. Under any other executor a helper thread moves it, and
//! only while an event is watched or an alarm is set. Code that polls an event in a loop instead never sees it
//! complete.
//!
//! # Cost
//! Device calls take no simulated time. Their cost on an H200 is added up in [`Counters::device_time`], so that a
//! measured improvement cannot come from calls that are free only here.
//!
//! # Features
//! - `tokio`: the clock of a tokio runtime, `Clock::Tokio`.
//! - `serde`: settings and counters are `Serialize` and `Deserialize`.
//!
//! # Source files
//! | file | contents |
//! |---|---|
//! | `builder` | the settings and their defaults |
//! | `contract` | the implementation of [`Device`] |
//! | `engine`, `state` | the lock, the movement of time under it, and the state that it guards |
//! | `schedule` | when each item of each stream runs; sans-IO |
//! | `memory` | addresses, physical memory, mappings and bytes |
//! | `executor`, `ticker`, `outer_clock`, `time` | what moves time: `block_on`, the helper thread, an outer clock, the user |
//! | `call`, `cost`, `counters` | the names of the calls, their costs, and the sums |
//! | `operation`, `stream`, `flag`, `graph` | the types that a user holds |
//! | `recording` | captures in progress |
//! | `faults`, `fault` | the faults that a test injects, and those to come |
//! | `host`, `copy` | the host's own access to shared memory; copies and fills |
//! | `host_work` | functions of the host in the order of a stream, and holds |
//! | `checker`, `observer` | the ordering checker, and how it learns of a pool's blocks |
//! | `peers` | access to the memory of other devices of the host, and copies between devices |
//! | `driver_pools`, `driver_pool_calls` | the memory pools of the driver, as `cudaMallocAsync` uses them |
//! | `events`, `alarms`, `names` | small tables |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod alarms;
mod builder;
mod call;
mod checker;
mod contract;
mod copy;
mod cost;
mod counters;
mod driver_pool_calls;
mod driver_pools;
mod engine;
mod event_calls;
mod events;
mod executor;
mod fault;
mod faults;
mod flag;
mod graph;
mod host;
mod host_work;
mod label;
mod memory;
mod memory_calls;
mod names;
mod observer;
mod operation;
mod outer_clock;
mod peers;
mod recording;
mod schedule;
#[cfg(target_os = "linux")]
mod sharing;
mod state;
mod stream;
mod ticker;
mod time;

use engine::Engine;
use memory::Viewer;
use std::fmt;
use weirpool_device::plain::Arc;
use weirpool_device::{Device, DeviceAddress, DeviceError};

pub use builder::{Backing, Checker, Clock, SimBuilder};
pub use call::Call;
pub use checker::{Allocation, Strangers, Usage, Violation, ViolationKind};
pub use counters::Counters;
pub use fault::Fault;
pub use faults::{Faults, Occupied};
pub use flag::Flag;
pub use graph::SimGraph;
pub use host::Host;
pub use label::StreamLabel;
pub use memory::Memory;
pub use operation::{Access, AccessKind, Operation};
pub use stream::SimStream;
pub use time::Sleep;

/// A simulated device. Clones are the same device. It lives as long as any of them, or any of its streams and flags,
/// and as long as any other device of its [host](SimBuilder::build_host).
#[derive(Clone)]
pub struct SimDevice {
    /// What the devices of one host share.
    engine: Arc<Engine>,
    /// The number of the device on its host.
    number: u32,
}

impl SimDevice {
    /// Creates a device with 8 GiB of real bytes on the virtual clock.
    #[allow(
        clippy::new_without_default,
        reason = "each is a new device with an id of its own"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> SimBuilder {
        SimBuilder::default()
    }

    /// Returns all living devices of the process, in the order of their creation.
    ///
    /// ```
    /// use weirpool::device::{Device, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// assert!(SimDevice::all().iter().any(|known| known.id() == device.id()));
    /// ```
    pub fn all() -> Vec<Self> {
        let engines = Engine::all().into_iter();
        engines.flat_map(devices_of).collect()
    }

    // ---- what happened ---------------------------------------------------------------------

    /// Returns the counters as they are now.
    pub fn counters(&self) -> Counters {
        self.engine.peek(|state| state.counters())
    }

    // ---- memory, for tests -----------------------------------------------------------------
    // These methods reach memory of any kind at any time, in no order with the streams. The ordering checker does not
    // see them. A service's own accesses from the host are in `host`.

    /// Fills `into` with the bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error if part of the range is not mapped. This is an illegal address, which breaks the device.
    pub fn read(
        &self,
        address: impl Into<DeviceAddress>,
        into: &mut [u8],
    ) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        self.engine
            .access("read", |space| space.read(Viewer::Debugger, address, into))
    }

    /// Writes `from` to the bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error if part of the range is not mapped. This is an illegal address, which breaks the device.
    pub fn write(&self, address: impl Into<DeviceAddress>, from: &[u8]) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        self.engine.access("write", |space| {
            space.write(Viewer::Debugger, address, from)
        })
    }

    /// Writes `value` to `bytes` bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error if part of the range is not mapped. This is an illegal address, which breaks the device.
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

    /// Returns whether all of the range is mapped, so that it can be accessed.
    pub fn is_mapped(&self, address: impl Into<DeviceAddress>, bytes: u64) -> bool {
        let address = address.into().to_bits();
        self.engine
            .peek(|state| state.space.is_mapped(address, bytes))
    }
}

impl From<SimDevice> for Arc<dyn Device> {
    fn from(device: SimDevice) -> Self {
        Arc::<SimDevice>::new(device)
    }
}

/// Creates the devices of a host.
fn host_of(settings: builder::Settings, devices: u32) -> Vec<SimDevice> {
    devices_of(Engine::new(settings, devices))
}

/// Returns the devices of one host.
fn devices_of(engine: Arc<Engine>) -> Vec<SimDevice> {
    let numbers = 0..engine.devices();
    let device = |number| SimDevice {
        engine: engine.clone(),
        number,
    };
    numbers.map(device).collect()
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDevice({})", Device::describe(self))
    }
}
