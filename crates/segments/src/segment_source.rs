//! Where a pool's segments come from, if not from its device: the driver's own pools, a file of huge pages, a block of
//! another pool.

use crate::device::{Access, DeviceError, DeviceErrorKind, DeviceId, MemoryKind, Peer, RawStream};
use std::any::Any;
use std::fmt;

/// Gives memory to a pool in segments, and takes them back. Set with
/// [`PoolBuilder::segment_source`](https://docs.rs/weirpool/latest/weirpool/struct.PoolBuilder.html#method.segment_source). RMM calls this the upstream of a pool. The page
/// on [sources of segments](https://docs.rs/weirpool/latest/weirpool/guide/segment_sources/) has an example.
///
/// The pool makes blocks of the segments of a source, as of any plain memory. If the source is
/// [ordered](SegmentProperties::is_ordered), a block is a whole segment: each allocation takes one, and each free gives it
/// back, in the order of the block's stream. Such a pool has no caches and takes no reservations. If a stream takes no
/// work when a block is freed there (because it is being captured, for example), the segment is given back some time
/// after the work of the block is complete.
///
/// The pool calls a source while no lock of the pool is held. A source that is not ordered is called where calls of the
/// device that can wait are made. One that is ordered is called from anywhere, and by drops: it does not wait. No source
/// panics.
///
/// # Safety
/// The pool hands out addresses on the word of the source. An implementation guarantees that
///
/// - a segment that was taken and not given back is disjoint from all others, and nothing else uses it;
/// - its memory is of the device and the kind of the [properties](Self::properties), and accessible to all work of the
///   device that may use it by the rules of [`take`](Self::take);
/// - the properties are always the same.
///
/// The pool keeps the source until it has given all segments back. If it has to leak some, it never drops the source.
#[doc(alias = "Upstream")]
#[doc(alias = "device_memory_resource")]
pub unsafe trait SegmentSource: Any + fmt::Debug + Send + Sync {
    /// Returns what the segments are.
    fn properties(&self) -> SegmentProperties;

    /// Takes a segment of `bytes`, a multiple of the [granularity](SegmentProperties::granularity), at a multiple of
    /// `alignment`, a power of two up to the larger of the device's granularity and the source's. Returns its address.
    ///
    /// Work may use the segment that is submitted to `stream` after this call, or to any stream if `stream` is
    /// [`RawStream::HOST`]. A source that is not ordered is called with that one only.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`](DeviceErrorKind::OutOfMemory) if the source has no such segment now: the request waits, or
    /// fails. An ordered source returns [`Unsupported`](DeviceErrorKind::Unsupported) if it takes no call in the order of
    /// the stream now: it is called again with [`RawStream::HOST`].
    ///
    /// # Safety
    /// The stream is one of the device, and usable during the call.
    unsafe fn take(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError>;

    /// Takes a segment back. All its uses come before the present point of `stream`, or are complete if that is
    /// [`RawStream::HOST`].
    ///
    /// # Errors
    /// The pool keeps the segment then, and gives it back later. At its end it leaks what it cannot give back. An ordered
    /// source returns [`Unsupported`](DeviceErrorKind::Unsupported) if the stream is being captured: a capture may have
    /// begun meanwhile.
    ///
    /// # Safety
    /// [`take`](Self::take) returned the segment, of this size, and it was not given back. The stream is one of the
    /// device, and usable during the call.
    unsafe fn give(&self, address: u64, bytes: u64, stream: RawStream) -> Result<(), DeviceError>;

    /// Returns how many bytes could be taken now, as far as the source knows; `None` if it does not tell.
    fn available(&self) -> Option<u64> {
        None
    }

    /// Returns how many bytes the source is to keep, if it keeps free memory above that. The pool asks after a caller has
    /// waited for a stream, and then [trims](Self::trim_to) the source. The default is `None`.
    fn to_trim(&self) -> Option<u64> {
        None
    }

    /// Releases free memory until `keep` bytes are held, or no more is free; see [`Pool::trim_to`](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.trim_to).
    /// The default does nothing.
    ///
    /// # Errors
    /// Returns the device's error.
    fn trim_to(&self, _keep: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Sets what another device may do with all segments, those that are taken later included. Called for memory of the
    /// [device](MemoryKind::Device) only: other kinds are accessible to all devices. A pool that ends takes back what it
    /// gave: a source of several pools counts them, as [`AccessUsers`](weirpool_device::AccessUsers) does. The default is an error.
    ///
    /// # Errors
    /// Nothing changes then.
    ///
    /// # Safety
    /// No work that would lose its access is running or submitted.
    unsafe fn set_access(&self, _peer: Peer, _access: Access) -> Result<(), DeviceError> {
        let reason =
            "the source of the segments gives no access to other devices: copy through the host";
        Err(DeviceError::new(
            "set_access",
            DeviceErrorKind::Unsupported,
            reason,
        ))
    }
}

/// What the segments of a [`SegmentSource`] are; sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentProperties {
    /// The owner of the memory in the [description](https://docs.rs/weirpool/latest/weirpool/struct.PoolDescription.html) of the pool: "a pool of the driver".
    pub owner: &'static str,
    /// The device that the memory belongs to.
    pub device: DeviceId,
    /// The kind of the memory.
    pub kind: MemoryKind,
    /// The step of sizes, a power of two of at least 512. A pool over an ordered source has blocks in these steps.
    pub granularity: u64,
    /// The most bytes that can be taken at once, which bounds the capacity; `u64::MAX` if only the device bounds it.
    pub most: u64,
    /// Segments are taken and given back in the order of streams, at once and without waiting.
    pub is_ordered: bool,
}
