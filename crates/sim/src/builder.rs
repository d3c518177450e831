//! How a simulated device is made: its memory, its clock, what it can do.
//!
//! Knows nothing of how any of it is carried out.

use super::SimDevice;
use weirpool_device::{MemoryKind, MemoryKinds};

/// The step of sizes and addresses, in bytes: the H200's.
pub(super) const GRANULARITY: u64 = 2 << 20;

/// What stands behind mapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Backing {
    /// Real bytes on the host, taken when they are first written.
    Bytes,
    /// Nothing: mappings are checked, reads give zeros, writes do nothing. For replays that are
    /// larger than the host.
    AddressesOnly,
}

/// What moves the device's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Clock {
    /// Simulated time that advances by itself to the next thing due when everything is parked:
    /// inside [`SimDevice::block_on`] and [`SimDevice::run`] as soon as no task can go on
    /// (deterministic), elsewhere on a helper thread, after a short quiet period of real time, and
    /// only while an event is watched or an alarm is set. An alarm (a timeout, a deadline) comes there
    /// once no device call was made for 10 ms, or in real time: a host that computes for longer at a
    /// stretch, and has deadlines, is better off in `block_on`, or on the [`Wall`](Self::Wall) clock.
    Virtual,
    /// Simulated time that only [`SimDevice::advance`] and its kin move. `block_on` does not.
    Manual,
    /// Real time: operations take as long as they say.
    Wall,
    /// The clock of the tokio runtime inside which the device is built; with the feature `tokio`. Tests that
    /// [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html) it or advance it move the device as well, and
    /// tokio's timeouts and the device's are of one clock. A task of the runtime moves the device while an event is watched
    /// or an alarm is set, in tokio's steps of 1 ms: what completes in between is seen at the end of the step.
    ///
    /// The runtime must have its time driver enabled. Await on the runtime instead of calling
    /// [`block_on`](SimDevice::block_on), which would block it.
    #[cfg(feature = "tokio")]
    Tokio,
}

/// What happens when the ordering checker finds a use of memory that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Checker {
    /// The call that made the violation panics: an allocation, an explicit deallocation, a submission. A violation
    /// that is found elsewhere (in a drop, which must not panic; or when a wait for a flag ends) panics in the next
    /// such call, when time is moved, or in [`assert_ordered`](super::SimDevice::assert_ordered). The last one also
    /// panics if a runtime caught an earlier panic, and so does [`block_on`](super::SimDevice::block_on).
    Panic,
    /// Violations are kept for [`violations`](super::SimDevice::violations) and
    /// [`assert_ordered`](super::SimDevice::assert_ordered).
    Collect,
    /// Nothing is checked, which costs nothing.
    Off,
}

/// The settings of a device that is yet to be built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) memory: u64,
    pub(super) host_memory: u64,
    pub(super) memory_kinds: MemoryKinds,
    pub(super) backing: Backing,
    pub(super) clock: Clock,
    pub(super) concurrent_operations: usize,
    pub(super) virtual_memory: bool,
    pub(super) blocking_memory_calls: bool,
    pub(super) device_side_waits: bool,
    pub(super) seed: u64,
    pub(super) checker: Checker,
}

/// The defaults, each with its reason.
impl Default for Settings {
    fn default() -> Self {
        Self {
            // Small enough that a test can exhaust it, large enough for real traces.
            memory: 8 << 30,
            // A host has more than its device.
            host_memory: 64 << 30,
            memory_kinds: MemoryKinds::ALL,
            // Checks what was written; untouched memory costs nothing.
            backing: Backing::Bytes,
            // Deterministic, and nobody waits for real time.
            clock: Clock::Virtual,
            // What CUDA documents as the most kernels resident at once.
            concurrent_operations: 128,
            virtual_memory: true,
            // Simulated calls return at once, and calls made in place stay deterministic.
            blocking_memory_calls: false,
            device_side_waits: true,
            seed: 0,
            // A use that nothing orders is a mistake wherever it is met; only who measures minds the cost.
            checker: Checker::Panic,
        }
    }
}

/// Builds a [`SimDevice`]; see [`SimDevice::builder`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a builder makes nothing until `build` is called"]
pub struct SimBuilder {
    settings: Settings,
}

impl SimBuilder {
    /// How much physical memory there is, in bytes. Default: 8 GiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.memory = bytes;
        self
    }

    /// How much memory its host has for [kinds that are taken from there](MemoryKind::is_of_host), in
    /// bytes. Default: 64 GiB.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.settings.host_memory = bytes;
        self
    }

    /// Does not support a kind of memory. Default: every kind is supported.
    pub fn without(mut self, kind: MemoryKind) -> Self {
        self.settings.memory_kinds = self.settings.memory_kinds.without(kind);
        self
    }

    /// What stands behind mapped addresses. Default: [`Backing::Bytes`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// What moves time. Default: [`Clock::Virtual`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// How many operations run at once, over all streams; at least one. Default: 128.
    pub fn concurrent_operations(mut self, places: usize) -> Self {
        self.settings.concurrent_operations = places;
        self
    }

    /// Whether physical memory can be mapped; without, only plain memory is. Default: yes.
    pub fn virtual_memory(mut self, yes: bool) -> Self {
        self.settings.virtual_memory = yes;
        self
    }

    /// What [`Capabilities::memory_calls_block`](weirpool_device::Capabilities::memory_calls_block)
    /// says. The simulated calls do not in fact block. Default: no.
    pub fn blocking_memory_calls(mut self, yes: bool) -> Self {
        self.settings.blocking_memory_calls = yes;
        self
    }

    /// Whether a stream can wait for an event on the device. Default: yes.
    pub fn device_side_waits(mut self, yes: bool) -> Self {
        self.settings.device_side_waits = yes;
        self
    }

    /// Picks, reproducibly, among streams that became ready at the same instant when there are
    /// fewer places than streams. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// What becomes of uses of memory that nothing orders. Default: [`Checker::Panic`].
    ///
    /// It is heard of where operations [declare](super::Operation::reads) what they use; an operation
    /// that declares nothing costs next to nothing.
    pub fn checker(mut self, checker: Checker) -> Self {
        self.settings.checker = checker;
        self
    }

    /// Makes the device.
    ///
    /// # Panics
    /// When no operation could ever run, or there is no memory of the device's own.
    pub fn build(self) -> SimDevice {
        let settings = self.settings;
        assert!(
            settings.concurrent_operations > 0,
            "a device needs at least one place for operations"
        );
        let has_memory = settings.memory > 0 && settings.memory_kinds.contains(MemoryKind::Device);
        assert!(has_memory, "a device needs memory");
        SimDevice::with(settings)
    }
}
