//! The device contract of `weirpool`: the calls that the pool makes of a backend.
//!
//! [`Device`] is the contract. It is small and object-safe, and no call of it is on the hot path: a stream that frees a
//! block and takes it again makes no device call. This crate does not know pools, caches or waiting. Two crates
//! implement the contract: `weirpool-sim` (streams as executors over host memory, on a virtual clock) and
//! `weirpool-cuda` (NVIDIA GPUs, through cudarc). `weirpool` re-exports all three.
#![deny(unsafe_code)]

mod access_users;
mod address;
mod as_device;
mod block_observer;
mod capability;
#[allow(unsafe_code, reason = "the contract")]
mod capture;
#[allow(unsafe_code, reason = "the contract")]
mod device;
#[allow(unsafe_code, reason = "the contract")]
mod driver_pools;
mod error;
mod explain;
mod handle_types;
mod host_view;
mod host_work;
mod kind;
mod lock_check;
mod names;
#[allow(unsafe_code, reason = "the contract")]
mod peer_access;
mod peers;
#[doc(hidden)]
pub mod plain;
mod pooling;
#[cfg(unix)]
#[allow(unsafe_code, reason = "the contract")]
mod sharing;
mod stream_properties;
mod transfer;

#[doc(hidden)]
pub use access_users::AccessUsers;
pub use address::DeviceAddress;
pub use as_device::AsDevice;
pub use block_observer::BlockObserver;
pub use capability::{Capabilities, MemoryInfo};
pub use capture::{Captures, Graph, Kept};
pub use device::Device;
pub use driver_pools::{Access, DriverPoolProperties, DriverPools, PoolAttribute};
pub use error::{DeviceError, DeviceErrorKind};
pub use explain::Explain;
pub use handle_types::{HandleType, HandleTypes};
#[doc(hidden)]
pub use host_view::HostView;
pub use host_work::{Hold, HostFunction, HostUse};
pub use kind::{MemoryKind, MemoryKinds};
pub use lock_check::{assert_unlocked, count_locked, count_unlocked};
pub use names::{
    AlarmId, CaptureId, CapturedWork, Chunk, DeviceId, RawEvent, RawPool, RawStream, WatchId,
};
pub use peer_access::{CopyBetween, CopyEnd, Peer, PeerAccess};
pub use peers::Peers;
pub use pooling::Pooling;
#[cfg(unix)]
pub use sharing::Sharing;
pub use stream_properties::StreamProperties;
pub use transfer::Transfer;
