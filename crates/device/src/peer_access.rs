//! Several devices of one host: access to each other's memory, and copies.

use super::{Access, DeviceError, DeviceId, RawStream, Transfer};
use std::fmt;
use std::panic::Location;

/// The names of another device of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its [id](crate::Device::id).
    pub id: DeviceId,
    /// Its [number](crate::Device::ordinal) in the driver's list.
    pub ordinal: u32,
}

/// One end of a copy: bytes that begin at an address, in memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyEnd {
    /// The [id](crate::Device::id) of the device that the memory was taken from.
    pub device: DeviceId,
    /// The first address.
    pub address: u64,
}

/// A copy between two ranges of memory, of one device or of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBetween {
    /// The source.
    pub from: CopyEnd,
    /// The destination.
    pub to: CopyEnd,
    /// The number of bytes.
    pub bytes: u64,
    /// The device of the stream can access both ends. Otherwise the copy is staged through memory of the host.
    pub is_direct: bool,
    /// The caller's location in the source, for reports.
    pub location: &'static Location<'static>,
}

/// The calls of a device that is not alone on its host; see [`Device::peer_access`](crate::Device::peer_access).
///
/// Access is directional, and belongs to memory: *this* device's memory, and the peer that may use it. Which peers a
/// device can be given access to is in its [`Capabilities::peers`](crate::Capabilities). The access to a driver's pool
/// is set by [`DriverPools::set_pool_access`](crate::DriverPools::set_pool_access).
///
/// The preconditions are those of [`Device`](crate::Device).
///
/// # Safety
/// An implementation guarantees that work of a peer which was given access to a range can use it until the access is
/// taken back or the range is unmapped, and that a wait for an event of a device that is [beside](Self::is_beside) this
/// one has the effect that [`Device::wait`](crate::Device::wait) states.
pub unsafe trait PeerAccess: fmt::Debug + Send + Sync {
    /// Returns whether streams of this device can wait for events of the other one, and copies can be made between the
    /// two. It is true of the device itself. Cannot wait.
    fn is_beside(&self, other: DeviceId) -> bool;

    /// Sets what a peer may do with a chunk that is [mapped](crate::Device::map). Unmapping ends all access. Can wait.
    ///
    /// # Errors
    /// Nothing changes then. Returns [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the peer cannot reach the
    /// memory.
    ///
    /// # Safety
    /// No work that would lose its access is running or submitted. (The range may be unmapped by another thread
    /// meanwhile: then this fails, or affects only the memory that is mapped there.)
    unsafe fn set_mapped_access(
        &self,
        address: u64,
        bytes: u64,
        peer: Peer,
        access: Access,
    ) -> Result<(), DeviceError>;

    /// Lets a peer use all plain memory of this device, also memory [allocated](crate::Device::allocate) later, until
    /// [`forbid_plain`](Self::forbid_plain) was called as often. Can wait.
    ///
    /// # Errors
    /// Nothing changes then. Returns [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the peer cannot reach the
    /// memory.
    fn allow_plain(&self, peer: Peer) -> Result<(), DeviceError>;

    /// Takes one [`allow_plain`](Self::allow_plain) back. Can wait.
    ///
    /// # Errors
    /// The peer keeps its access then.
    ///
    /// # Safety
    /// No work that would lose its access is running or submitted.
    unsafe fn forbid_plain(&self, peer: Peer) -> Result<(), DeviceError>;

    /// Copies bytes in the order of `stream`. Never waits for work of a device.
    ///
    /// # Errors
    /// Returns an error if nothing was enqueued, or if no event could be recorded behind the copy. In the second case
    /// the copy still takes place. Returns [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is being
    /// captured, or an end is not [beside](Self::is_beside) this device.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call. Both ranges are mapped until the copy is complete,
    /// other uses of them are ordered before or after it, and access that it relies on stays.
    unsafe fn copy(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<Box<dyn Transfer>, DeviceError>;

    /// Captures a copy, which is as [`copy`](Self::copy) at each launch. A copy that is not direct can be captured if both
    /// ends are plain memory, of no pool.
    ///
    /// # Errors
    /// Returns an error if nothing was captured.
    ///
    /// # Safety
    /// Those of [`copy`](Self::copy), at each launch.
    unsafe fn capture_copy(&self, stream: RawStream, copy: &CopyBetween)
    -> Result<(), DeviceError>;
}
