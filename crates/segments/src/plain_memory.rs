//! Plain memory of the device, as a source of segments: what a pool takes where it is given no other source.

use crate::device::{
    Access, Device, DeviceError, DeviceErrorKind, MemoryKind, Peer, PeerAccess, RawStream,
};
use crate::segment_source::{SegmentProperties, SegmentSource};
use crate::sync::plain;

/// See the [module](self).
#[derive(Debug)]
pub struct PlainMemory {
    /// The device.
    pub device: plain::Arc<dyn Device>,
    /// The kind of its memory.
    pub kind: MemoryKind,
}

// SAFETY: the device guarantees it of its own memory.
unsafe impl SegmentSource for PlainMemory {
    fn properties(&self) -> SegmentProperties {
        SegmentProperties {
            owner: "the device",
            device: self.device.id(),
            kind: self.kind,
            granularity: self.device.capabilities().granularity,
            most: u64::MAX,
            is_ordered: false,
        }
    }

    unsafe fn take(&self, bytes: u64, _: u64, _: RawStream) -> Result<u64, DeviceError> {
        self.device.allocate(self.kind, bytes)
    }

    unsafe fn give(&self, address: u64, bytes: u64, _: RawStream) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee; it names the host, since this source is not ordered.
        unsafe { self.device.free(self.kind, address, bytes) }
    }

    fn available(&self) -> Option<u64> {
        Some(self.device.memory_info(self.kind).ok()?.free)
    }

    unsafe fn set_access(&self, peer: Peer, access: Access) -> Result<(), DeviceError> {
        let peers = peer_access(&*self.device)?;
        match access {
            // SAFETY: the caller's guarantee.
            Access::None => unsafe { peers.forbid_plain(peer) },
            _ => peers.allow_plain(peer),
        }
    }
}

/// # Errors
/// Returns an error if the device is alone.
pub(super) fn peer_access(device: &dyn Device) -> Result<&dyn PeerAccess, DeviceError> {
    device.peer_access().ok_or_else(|| {
        let reason = "the device is alone: copy through the host";
        DeviceError::new("set_access", DeviceErrorKind::Unsupported, reason)
    })
}
