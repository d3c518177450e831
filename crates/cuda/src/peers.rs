//! Other devices of the host: access to this one's memory, and copies between devices.
//!
//! CUDA has three kinds of access: to mapped memory (`cuMemSetAccess`), to all plain memory of a context
//! (`cuCtxEnablePeerAccess`), and to a memory pool of the driver (`cuMemPoolSetAccess`, see `pools`). A copy with
//! access is `cuMemcpyAsync`, which finds both devices by the addresses; one without is `cuMemcpyPeerAsync`, which the
//! driver stages through the host in stream order. (A captured copy cannot be staged.)

use super::CudaDevice;
use super::contract::unsupported;
use super::driver::{Visit, check};
use super::host::copy_in_order;
use super::mapping::{MemoryLocation, access_with};
use super::stream::{context_of, device_id, handle};
use cudarc::driver::sys::{self, CUresult};
use weirpool_device::{
    Access, AccessUsers, CopyBetween, Device, DeviceError, DeviceId, Peer, PeerAccess, RawEvent,
    RawStream, Transfer,
};

const SET: &str = "set_access";
const COPY: &str = "copy";

/// The peers that may use the plain memory of a context, by the ids of both. The driver has one access for all devices
/// that are opened over one context.
static PLAIN_USERS: AccessUsers<(DeviceId, DeviceId)> = AccessUsers::new();

/// A copy that was submitted, and the event behind it.
struct Submitted {
    device: CudaDevice,
    event: RawEvent,
}

impl Transfer for Submitted {
    fn event(&self) -> RawEvent {
        self.event
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError> {
        // SAFETY: the event lives as long as `self`.
        let is_complete = unsafe { self.device.query(self.event) }?;
        Ok(is_complete.then(Vec::new))
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // SAFETY: no other code knows the event any more.
        let _ = unsafe { self.device.destroy_event(self.event) };
    }
}

impl CudaDevice {
    /// Enqueues a copy.
    ///
    /// # Safety
    /// As [`PeerAccess::copy`].
    unsafe fn enqueue(&self, stream: RawStream, copy: &CopyBetween) -> Result<(), DeviceError> {
        let CopyBetween {
            from, to, bytes, ..
        } = *copy;
        let (size, stream) = (bytes as usize, handle(stream));
        let is_of_host = |address| self.inner.plain.is_of_host(address, bytes);
        let enqueued = if is_of_host(from.address) && is_of_host(to.address) {
            let (target, source) = (to.address as *mut u8, from.address as *const u8);
            // SAFETY: the caller guarantees both ranges until the copy is complete.
            unsafe { copy_in_order(target, source, size, stream) }
        } else if copy.is_direct || from.device == to.device {
            // SAFETY: the caller guarantees both ranges until the copy is complete, and the stream.
            unsafe { sys::cuMemcpyAsync(to.address, from.address, size, stream) }
        } else {
            let (target, source) = (context_of(to.device), context_of(from.device));
            // SAFETY: as above; the contexts live as long as their devices, whose memory the caller guarantees.
            unsafe {
                sys::cuMemcpyPeerAsync(to.address, target, from.address, source, size, stream)
            }
        };
        check(COPY, enqueued)
    }

    fn check_ends(&self, copy: &CopyBetween) -> Result<(), DeviceError> {
        if [copy.from.device, copy.to.device]
            .iter()
            .all(|device| self.is_beside(*device))
        {
            return Ok(());
        }
        let reason = "the memory is of no CUDA device of this process; copy through the host";
        Err(unsupported(COPY, reason))
    }
}

// SAFETY: the driver keeps the access of a mapping until it ends, and that of a context until it is disabled. Its
// streams wait for events of all devices of the process.
unsafe impl PeerAccess for CudaDevice {
    fn is_beside(&self, other: DeviceId) -> bool {
        device_id(&self.inner.context) == other || context_of(other) as u64 != other.0
    }

    unsafe fn set_mapped_access(
        &self,
        address: u64,
        bytes: u64,
        peer: Peer,
        access: Access,
    ) -> Result<(), DeviceError> {
        let _visit = self.memory_call(SET)?;
        let rights = access_with(MemoryLocation::Device(peer.ordinal as i32), access);
        // SAFETY: the driver checks that the range is mapped; the call reads one description.
        check(SET, unsafe {
            sys::cuMemSetAccess(address, bytes as usize, rights.as_ptr(), 1)
        })
    }

    fn allow_plain(&self, peer: Peer) -> Result<(), DeviceError> {
        PLAIN_USERS.allow((device_id(&self.inner.context), peer.id), || {
            let _visit = Visit::of(SET, context_of(peer.id))?;
            // SAFETY: both contexts live: this device's, and that of a peer that the caller holds.
            match unsafe { sys::cuCtxEnablePeerAccess(self.inner.context.cu_ctx(), 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
                CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => Err(unsupported(
                    SET,
                    "the device cannot reach the memory of this one; copy instead",
                )),
                answer => check(SET, answer).map(|()| false),
            }
        })
    }

    unsafe fn forbid_plain(&self, peer: Peer) -> Result<(), DeviceError> {
        PLAIN_USERS.forbid(&(device_id(&self.inner.context), peer.id), || {
            let _visit = Visit::of(SET, context_of(peer.id))?;
            // SAFETY: both contexts live; no work that relies on the access is left, as the caller guarantees.
            match unsafe { sys::cuCtxDisablePeerAccess(self.inner.context.cu_ctx()) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => Ok(()),
                answer => check(SET, answer),
            }
        })
    }

    unsafe fn copy(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.check_ends(copy)?;
        let _visit = self.visit(COPY)?;
        // A captured copy would run at each launch of the graph, when the memory may belong to other blocks.
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { Self::refuse_captured(COPY, stream) }?;
        let submitted = Submitted {
            event: Device::create_event(self)?,
            device: self.clone(),
        };
        // SAFETY: the caller's guarantee.
        unsafe { self.enqueue(stream, copy) }?;
        // SAFETY: the event was just made; the caller guarantees that the stream is usable.
        unsafe { self.record(submitted.event, stream) }?;
        Ok(Box::new(submitted))
    }

    unsafe fn capture_copy(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<(), DeviceError> {
        self.check_ends(copy)?;
        let _visit = self.visit(COPY)?;
        // The driver captures no `cuMemcpyPeerAsync`, and a copy of plain memory by its address also without access.
        let by_address = CopyBetween {
            is_direct: true,
            ..*copy
        };
        // SAFETY: the caller's guarantee.
        unsafe { self.enqueue(stream, &by_address) }
    }
}
