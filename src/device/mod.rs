//! The device: the contract between the pool and a backend, and the backends.
//!
//! [`Device`] is the contract. It is small, object-safe, and never called on the hot path (a block
//! that a stream freed and takes again costs no device call). The contract and the backends are crates of
//! their own, which know nothing of pools; they are re-exported here.
//!
//! | backend | module | description |
//! |---|---|---|
//! | simulated | `sim` (with the feature of that name, a default) | streams as executors over host memory, on a virtual clock |
//! | CUDA | `cuda` (with the feature of that name) | NVIDIA GPUs, through cudarc |

mod argument;
mod list;
mod native;
mod stream;

#[doc(inline)]
pub use weirpool_device::{
    Access, AlarmId, AsDevice, BlockObserver, Capabilities, CaptureId, CapturedWork, Captures,
    Chunk, CopyBetween, CopyEnd, Device, DeviceAddress, DeviceError, DeviceErrorKind, DeviceId,
    DriverPoolProperties, DriverPools, Explain, Graph, HandleType, HandleTypes, Hold, HostFunction,
    HostUse, Kept, MemoryInfo, MemoryKind, MemoryKinds, Peer, PeerAccess, Peers, PoolAttribute,
    Pooling, RawEvent, RawPool, RawStream, StreamProperties, Transfer, WatchId,
};

#[cfg(unix)]
#[doc(inline)]
pub use weirpool_device::Sharing;

#[cfg(feature = "cuda")]
#[cfg_attr(docsrs, doc(cfg(feature = "cuda")))]
#[doc(inline)]
pub use weirpool_cuda as cuda;
#[cfg(feature = "sim")]
#[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
#[doc(inline)]
pub use weirpool_sim as sim;

pub use argument::Argument;
pub use list::list;
pub use native::NativeStream;
pub use stream::DeviceStream;
pub(crate) use stream::Host;
pub(crate) use weirpool_device::HostView;
