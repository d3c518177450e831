//! Errors of regions and of spillable memory.

use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{DeviceError, MemoryKind};
use weirpool::{AllocError, BuildError, CopyError, Shortfall, StreamError};
use weirpool_heap::units::Bytes;

/// The reason why a region was not made, or a call on it failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The memory of the pool's device, or of its kind, cannot be taken away and brought back at the same addresses.
    #[error(
        "the region {name:?} needs virtual memory of the device, and the pool's memory is {kind}: addresses of plain memory \
         are lost when it is freed; build the pool over `Upstream::Virtual`, on a device that has it"
    )]
    Unsupported {
        /// The region.
        name: Arc<str>,
        /// The pool's kind of memory.
        kind: String,
    },
    /// The region is suspended: resume it first.
    #[error("the region {name:?} is suspended; await its `resume` or `enter` first")]
    Suspended {
        /// The region.
        name: Arc<str>,
    },
    /// The stream is of another pool than the region, or two regions that are to change together are.
    #[error("the region {name:?} is of another pool; use streams and regions of one pool")]
    OtherPool {
        /// The region.
        name: Arc<str>,
    },
    /// Regions that are to be resumed together are charged to different tags.
    #[error(
        "the regions {:?} and {:?} have different tags, and what is resumed together is one charge; resume them one after the \
         other",
        names[0],
        names[1]
    )]
    OtherTag {
        /// Two of the regions.
        names: [Arc<str>; 2],
    },
    /// The host has no memory for the copies. The region is resident, and nothing is lost.
    #[error(
        "the host has no memory for copies of {}; give the region a larger host tier, or keep less on it",
        Bytes(*bytes)
    )]
    HostFull {
        /// The bytes to be copied together.
        bytes: u64,
        /// What the host tier lacked, if it is a pool.
        shortfall: Option<Box<Shortfall>>,
    },
    /// The bytes are within the capacity of the pool, and the device did not have them in time: other processes, or other
    /// code of this one, hold them.
    #[error(
        "the device had no {} for {waited:?}, within the capacity of the pool: others hold its memory; wait longer, or lower \
         what they hold",
        Bytes(*bytes)
    )]
    DeviceFull {
        /// The bytes of the piece that was refused last.
        bytes: u64,
        /// How long it was asked for, on the device's clock.
        waited: Duration,
    },
    /// Another operation on the region did not end in time.
    #[error(
        "the region {name:?} is being suspended or resumed by another call, which did not end within {waited:?}; wait longer"
    )]
    Busy {
        /// The region.
        name: Arc<str>,
        /// How long it was waited for, on the device's clock.
        waited: Duration,
    },
    /// The operation ended with a panic, or its thread did. What the region says of its state is true.
    #[error("the operation on the region {name:?} ended early; its state says what was reached")]
    Abandoned {
        /// The region.
        name: Arc<str>,
    },
    /// A request for memory failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The host tier could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A stream could not be made.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The reason why a [`HostTier`](crate::HostTier) was not made, or memory was not [fetched](crate::Spillable::fetch).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// The pool of a host tier is not of pinned memory.
    #[error(
        "a host tier keeps contents in pinned memory, and the pool's memory is {kind:?}; build the pool with \
         `Upstream::Pinned`"
    )]
    NotPinned {
        /// The pool's kind of memory.
        kind: MemoryKind,
    },
    /// The request for memory failed. The contents stay on the host.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The copy back was not submitted. The contents stay on the host.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The stream was not made, or cannot use the memory.
    #[error(transparent)]
    Stream(#[from] StreamError),
}
