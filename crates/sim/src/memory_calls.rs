//! Device calls on memory.
//!
//! Each call is counted, its cost added, and a scripted fault may fail it; then it checks its arguments and changes
//! the address space. No call takes simulated time, and none waits: not even [`SimDevice::free`], which on CUDA
//! waits for all work of the device.

use super::SimDevice;
use super::call::Call;
use super::checker::Judge;
use super::engine::Engine;
use super::event_calls::unsupported;
use super::memory::{Refusal, Space};
use weirpool_device::{Chunk, DeviceError, DeviceErrorKind, MemoryKind};

/// The memory calls of [`Device`](weirpool_device::Device).
///
/// The contract makes those unsafe that name chunks and ranges, because a driver may be unable to detect an invalid
/// name. The simulated device detects it, so that these are safe.
impl SimDevice {
    /// Releases a whole reserved range.
    ///
    /// # Errors
    /// Returns the errors of [`Device::unreserve`](weirpool_device::Device::unreserve), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a range that is not reserved.
    pub fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.engine
            .judge_before(|judge| judge.returned(address, bytes));
        self.engine.memory_call(
            Call::Unreserve,
            |_| bytes,
            |space| space.unreserve(address, bytes),
        )
    }

    /// Returns a chunk to the device.
    ///
    /// # Errors
    /// Returns the errors of [`Device::destroy`](weirpool_device::Device::destroy), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a chunk that the device does not know.
    pub fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        let size = |space: &Space| space.size_of(chunk.0);
        self.engine
            .memory_call(Call::Destroy, size, |space| space.destroy(chunk.0))
    }

    /// Maps a whole chunk at an address.
    ///
    /// # Errors
    /// Returns the errors of [`Device::map`](weirpool_device::Device::map), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a chunk or range that the device does not know.
    pub fn map(&self, address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError> {
        self.engine.memory_call(
            Call::Map,
            |_| bytes,
            |space| space.map(address, chunk.0, bytes),
        )?;
        self.engine
            .judge_before(|judge| judge.mapped(address, bytes));
        Ok(())
    }

    /// Unmaps a chunk.
    ///
    /// # Errors
    /// Returns the errors of [`Device::unmap`](weirpool_device::Device::unmap), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a range that is not mapped.
    pub fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.engine
            .judge_before(|judge| judge.unmapped(address, bytes));
        let unmapped =
            self.engine
                .memory_call(Call::Unmap, |_| bytes, |space| space.unmap(address, bytes));
        unmapped.inspect_err(|_| {
            self.engine
                .judge_before(|judge| judge.mapped(address, bytes))
        })
    }

    /// Releases plain memory.
    ///
    /// # Errors
    /// Returns the errors of [`Device::free`](weirpool_device::Device::free), and
    /// [`InvalidArgument`](DeviceErrorKind::InvalidArgument) for a range that is not plain memory of the kind.
    pub fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.engine
            .judge_before(|judge| judge.returned(address, bytes));
        self.engine.plain_call(Call::Free, kind, bytes, |space| {
            space.free(kind, address, bytes)
        })
    }
}

impl Engine {
    /// Makes a call on addresses and physical memory.
    pub(super) fn memory_call<R>(
        &self,
        call: Call,
        bytes: impl FnOnce(&Space) -> u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        let supported = !call.needs_virtual_memory() || self.settings.virtual_memory;
        self.call(|state| {
            state.enter(call, bytes(&state.space))?;
            if !supported {
                return Err(unsupported(
                    call,
                    "this device has no virtual memory; allocate plain memory",
                ));
            }
            change(&mut state.space)
                .map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))
        })
    }

    /// Makes a memory call for plain memory of a kind.
    pub(super) fn plain_call<R>(
        &self,
        call: Call,
        kind: MemoryKind,
        bytes: u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        self.call(|state| {
            state.counters.charge_for_locking(kind, bytes);
            state.enter(call, bytes)?;
            self.check_kind(call, kind)?;
            change(&mut state.space)
                .map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))
        })
    }

    pub(super) fn check_kind(&self, call: Call, kind: MemoryKind) -> Result<(), DeviceError> {
        if self.settings.memory_kinds.contains(kind) {
            return Ok(());
        }
        let reason = format!("this device has no {kind}; choose another kind");
        Err(DeviceError::new(
            call.name(),
            DeviceErrorKind::Unsupported,
            reason,
        ))
    }

    /// Informs the checker before the call that releases memory. After the call the addresses may have another owner.
    fn judge_before(&self, judge: impl FnOnce(&mut Judge)) {
        if let Some(present) = self.locked().judge() {
            judge(present);
        }
    }
}
