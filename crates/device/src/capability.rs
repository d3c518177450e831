//! The capabilities of a device, and the amount of its memory: plain data.

use super::handle_types::HandleTypes;
use super::kind::MemoryKinds;
use super::peers::Peers;
use std::fmt;

/// The capabilities of a device. A pool reads them once, when it is built. The `Display` form is one line of text:
///
/// ```
/// use weirpool::device::{Device, MemoryKind, sim::SimDevice};
///
/// let device = SimDevice::builder().without(MemoryKind::Managed).memory_pools(false).build();
/// let capabilities = device.capabilities();
/// assert!(capabilities.virtual_memory);
/// assert!(!capabilities.memory_kinds.contains(MemoryKind::Managed));
/// assert_eq!(
///     capabilities.to_string(),
///     "virtual memory (step 2 MiB), device-side waits, device memory, pinned host memory, host memory, no memory pools",
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Capabilities {
    /// Address ranges and physical memory are separate: free memory can be mapped elsewhere.
    pub virtual_memory: bool,
    /// The step of sizes and addresses of memory calls, in bytes; a power of two.
    pub granularity: u64,
    /// Memory calls block their thread long enough to matter to an async runtime. The pool then makes them on a
    /// separate thread rather than inside a poll, but for the calls that map a few chunks of virtual memory.
    pub memory_calls_block: bool,
    /// A stream can wait for another stream's event on the device.
    pub device_side_waits: bool,
    /// The kinds of memory that can be [allocated](super::Device::allocate).
    pub memory_kinds: MemoryKinds,
    /// The driver has [memory pools](super::DriverPools) of its own.
    pub memory_pools: bool,
    /// The kinds of handles as which a memory pool of the driver can be shared with other processes.
    pub handle_types: HandleTypes,
    /// A single allocation can be shared with other processes: CUDA's `cuIpcGetMemHandle`.
    pub ipc: bool,
    /// The devices whose memory this one can be given access to.
    pub peers: Peers,
}

impl Capabilities {
    /// Describes a device with plain memory only, in steps of `granularity` bytes, whose memory calls block.
    pub const fn plain(granularity: u64) -> Self {
        Self {
            virtual_memory: false,
            granularity,
            memory_calls_block: true,
            device_side_waits: true,
            memory_kinds: MemoryKinds::DEVICE,
            memory_pools: false,
            handle_types: HandleTypes::NONE,
            ipc: false,
            peers: Peers::NONE,
        }
    }

    /// Sets whether there is virtual memory.
    #[must_use]
    pub const fn with_virtual_memory(mut self, yes: bool) -> Self {
        self.virtual_memory = yes;
        self
    }

    /// Sets whether memory calls block.
    #[must_use]
    pub const fn with_blocking_memory_calls(mut self, yes: bool) -> Self {
        self.memory_calls_block = yes;
        self
    }

    /// Sets whether a stream can wait for an event on the device.
    #[must_use]
    pub const fn with_device_side_waits(mut self, yes: bool) -> Self {
        self.device_side_waits = yes;
        self
    }

    /// Sets the kinds of memory.
    #[must_use]
    pub const fn with_memory_kinds(mut self, kinds: MemoryKinds) -> Self {
        self.memory_kinds = kinds;
        self
    }

    /// Sets whether the driver has memory pools, and as which handles they can be shared.
    #[must_use]
    pub const fn with_memory_pools(mut self, yes: bool, handle_types: HandleTypes) -> Self {
        self.memory_pools = yes;
        self.handle_types = handle_types;
        self
    }

    /// Sets whether a single allocation can be shared with other processes.
    #[must_use]
    pub const fn with_ipc(mut self, yes: bool) -> Self {
        self.ipc = yes;
        self
    }

    /// Sets the devices whose memory this one can be given access to.
    #[must_use]
    pub const fn with_peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.virtual_memory {
            write!(f, "no ")?;
        }
        write!(f, "virtual memory (step {} MiB), ", self.granularity >> 20)?;
        if !self.device_side_waits {
            write!(f, "no ")?;
        }
        write!(f, "device-side waits, {}, ", self.memory_kinds)?;
        if !self.memory_pools {
            write!(f, "no ")?;
        }
        write!(f, "memory pools")?;
        if !self.handle_types.is_empty() {
            write!(f, " (shared by {})", self.handle_types)?;
        }
        if self.ipc {
            write!(f, ", IPC")?;
        }
        if !self.peers.is_empty() {
            write!(f, ", {}", self.peers)?;
        }
        Ok(())
    }
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryInfo {
    /// Free bytes.
    pub free: u64,
    /// All bytes, free or in use.
    pub total: u64,
}
