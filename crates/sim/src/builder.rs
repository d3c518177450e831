//! The settings of a simulated device: its memory, its clock and its capabilities.
//!
//! This module does not know how the device carries them out.

use super::{SimDevice, host_of};
use weirpool_device::{HandleTypes, MemoryKind, MemoryKinds};

/// The granularity of sizes and addresses, in bytes: that of the H200.
pub(super) const GRANULARITY: u64 = 2 << 20;

/// The backing of mapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Backing {
    /// Bytes in host memory, taken when they are first written.
    Bytes,
    /// No bytes: mappings are checked, reads return zeros, and writes have no effect. For replays that are larger than
    /// the host.
    AddressesOnly,
}

/// The clock that moves the device's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Clock {
    /// Simulated time that moves by itself to the next thing due when nothing can proceed: inside
    /// [`SimDevice::block_on`] and [`SimDevice::run`] as soon as no task can proceed (deterministic); elsewhere on a
    /// helper thread, after a short quiet period of real time, and only while an event is watched or an alarm is set.
    /// There, time moves to an alarm (a timeout, a deadline) after 10 ms without device calls, or at the latest when as
    /// much real time has passed. A program that computes for longer than 10 ms at a stretch, and has deadlines, should
    /// use `block_on` or the [`Wall`](Self::Wall) clock.
    Virtual,
    /// Simulated time that only [`SimDevice::advance`] and similar methods move. `block_on` does not move it.
    Manual,
    /// Real time: an operation takes as long as its duration says.
    Wall,
    /// The clock of the tokio runtime inside which the device is built; with the feature `tokio`. Tests that
    /// [pause](https://docs.rs/tokio/latest/tokio/time/fn.pause.html) it or advance it move the device as well, and
    /// tokio's timeouts and the device's follow one clock. A task of the runtime moves the device while an event is
    /// watched or an alarm is set, in tokio's steps of 1 ms: work that completes within a step is seen at its end.
    ///
    /// The runtime must have its time driver enabled. Await on the runtime instead of calling
    /// [`block_on`](SimDevice::block_on), which would block it. Once the runtime has ended, the device goes on in real
    /// time.
    #[cfg(feature = "tokio")]
    Tokio,
}

/// The reaction to an unordered use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Checker {
    /// The call that made the violation panics: an allocation, an explicit deallocation or a submission. A violation
    /// that is found elsewhere (in a drop, which must not panic, or at the end of a wait for a flag) panics in the next
    /// such call, when time is moved, or in [`assert_ordered`](super::SimDevice::assert_ordered). If a runtime caught
    /// an earlier panic, `assert_ordered` and [`block_on`](super::SimDevice::block_on) panic again.
    Panic,
    /// Violations are kept for [`take_violations`](super::SimDevice::take_violations) and
    /// [`assert_ordered`](super::SimDevice::assert_ordered).
    Collect,
    /// Nothing is checked. This costs nothing.
    Off,
}

/// The settings of a device that is yet to be built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) memory: u64,
    pub(super) withheld: u64,
    pub(super) unreported: u64,
    pub(super) host_memory: u64,
    pub(super) memory_kinds: MemoryKinds,
    pub(super) backing: Backing,
    pub(super) clock: Clock,
    pub(super) concurrent_operations: usize,
    pub(super) virtual_memory: bool,
    pub(super) blocking_memory_calls: bool,
    pub(super) device_side_waits: bool,
    pub(super) memory_pools: bool,
    pub(super) seed: u64,
    pub(super) checker: Checker,
    pub(super) peer_access: bool,
    pub(super) uuid: [u8; 16],
}

/// Chooses the defaults; each line gives its reason.
impl Default for Settings {
    fn default() -> Self {
        Self {
            // Small enough that a test can exhaust it, large enough for real traces.
            memory: 8 << 30,
            // Tests of limits want round numbers.
            withheld: 0,
            unreported: 0,
            // A host usually has more memory than its device.
            host_memory: 64 << 30,
            memory_kinds: MemoryKinds::ALL,
            // Stores written bytes; memory that is never touched costs nothing.
            backing: Backing::Bytes,
            // Deterministic, and no test waits for real time.
            clock: Clock::Virtual,
            // The most resident kernels that CUDA documents.
            concurrent_operations: 128,
            virtual_memory: true,
            // Simulated calls return at once. If they are made in place, runs stay deterministic.
            blocking_memory_calls: false,
            device_side_waits: true,
            memory_pools: true,
            seed: 0,
            // An unordered use is a mistake in any program. Only a benchmark needs to avoid the cost.
            checker: Checker::Panic,
            // As on a host whose devices are linked.
            peer_access: true,
            // One and the same device in every process.
            uuid: *b"simulated GPU 0\0",
        }
    }
}

impl Settings {
    /// The handles by which pools of the driver can be shared.
    pub(super) fn handle_types(&self) -> HandleTypes {
        match self.memory_pools {
            true => HandleTypes::POSIX_FD,
            false => HandleTypes::NONE,
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
    /// Sets the size of physical memory, in bytes. Default: 8 GiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.settings.memory = bytes;
        self
    }

    /// Sets how much of the memory the device reports as free and never gives, in bytes, as a GPU does: an H200 refuses 2
    /// MiB when it reports 3.1 MiB. Default: 0.
    pub fn withheld_memory(mut self, bytes: u64) -> Self {
        self.settings.withheld = bytes;
        self
    }

    /// Sets how much of the memory the device can give and does not report as free, in bytes, as an integrated GPU whose
    /// memory the host's page cache fills. Default: 0.
    pub fn unreported_memory(mut self, bytes: u64) -> Self {
        self.settings.unreported = bytes;
        self
    }

    /// Sets how much memory the host has for [kinds that are taken from it](MemoryKind::is_of_host), in bytes. Default:
    /// 64 GiB.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.settings.host_memory = bytes;
        self
    }

    /// Removes the support for a kind of memory. Default: every kind is supported.
    pub fn without(mut self, kind: MemoryKind) -> Self {
        self.settings.memory_kinds = self.settings.memory_kinds.without(kind);
        self
    }

    /// Sets the backing of mapped addresses. Default: [`Backing::Bytes`].
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// Sets the clock that moves time. Default: [`Clock::Virtual`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Sets how many operations can run at once on all streams together; at least one. Default: 128.
    pub fn concurrent_operations(mut self, places: usize) -> Self {
        self.settings.concurrent_operations = places;
        self
    }

    /// Sets whether physical memory can be mapped. Without it, only plain memory exists. Default: yes.
    pub fn virtual_memory(mut self, yes: bool) -> Self {
        self.settings.virtual_memory = yes;
        self
    }

    /// Sets the value of [`Capabilities::memory_calls_block`](weirpool_device::Capabilities::memory_calls_block). The
    /// simulated calls never block. Default: no.
    pub fn blocking_memory_calls(mut self, yes: bool) -> Self {
        self.settings.blocking_memory_calls = yes;
        self
    }

    /// Sets whether a stream can wait for an event on the device. Default: yes.
    pub fn device_side_waits(mut self, yes: bool) -> Self {
        self.settings.device_side_waits = yes;
        self
    }

    /// Sets whether the driver has memory pools of its own. Default: yes.
    pub fn memory_pools(mut self, yes: bool) -> Self {
        self.settings.memory_pools = yes;
        self
    }

    /// Sets the seed that chooses, reproducibly, among streams that became ready at the same instant when there are
    /// fewer places than streams. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the reaction to an unordered use of memory. Default: [`Checker::Panic`].
    ///
    /// The checker learns of uses from operations that [declare](super::Operation::reads) them. An operation that
    /// declares nothing costs next to nothing.
    pub fn checker(mut self, checker: Checker) -> Self {
        self.settings.checker = checker;
        self
    }

    /// Sets whether the devices of a [host](Self::build_host) can be given access to each other's memory. Without it,
    /// copies between them are staged through the host. Default: yes.
    pub fn peer_access(mut self, yes: bool) -> Self {
        self.settings.peer_access = yes;
        self
    }

    /// Builds several devices of one host, all with these settings: the first has the number 0.
    ///
    /// They share the clock and the host's memory; streams of one wait for events of another, and the ordering checker
    /// knows the order across them. Each has memory and concurrent operations of its own. An operation that uses
    /// another device's memory without access is a violation, and an access of its body an illegal address. Counters
    /// and scripted faults are those of the host, and the devices break together, as those of a process do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    ///
    /// let [first, second] = SimDevice::builder().build_host();
    /// let pool = Pool::builder(first.clone()).build()?;
    /// let home = pool.create_stream()?;
    /// let block = pool.try_allocate(&home, 1 << 20)?;
    ///
    /// let work = second.create_stream();
    /// pool.peers().enable(&second)?;
    /// let stream = pool.register(&work)?; // a stream of the other device
    /// work.submit(Operation::new(Duration::from_micros(5)).reads(stream.record_use(&block)?.address(), 1 << 20));
    /// second.advance_to_end();
    /// second.assert_ordered();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics for no device, and as [`build`](Self::build) does.
    pub fn build_host<const DEVICES: usize>(self) -> [SimDevice; DEVICES] {
        let devices = u32::try_from(DEVICES).ok().filter(|devices| *devices > 0);
        let devices = devices.expect("a host needs devices");
        let devices = host_of(self.checked(), devices);
        match <[SimDevice; DEVICES]>::try_from(devices) {
            Ok(devices) => devices,
            Err(_) => unreachable!("a host has as many devices as it was asked for"),
        }
    }

    /// Sets the id by which processes know that they have the same device. The devices of a host differ in the last
    /// byte. Default: one id for all simulated devices of all processes.
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.settings.uuid = uuid;
        self
    }

    /// Builds the device.
    ///
    /// # Panics
    /// Panics if the number of concurrent operations is 0, or if the device has no memory of its own.
    pub fn build(self) -> SimDevice {
        let [device] = self.build_host();
        device
    }

    fn checked(self) -> Settings {
        let settings = self.settings;
        assert!(
            settings.concurrent_operations > 0,
            "a device needs at least one place for operations"
        );
        let has_memory = settings.memory > 0 && settings.memory_kinds.contains(MemoryKind::Device);
        assert!(has_memory, "a device needs memory");
        settings
    }
}
