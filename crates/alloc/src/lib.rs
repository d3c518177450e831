#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(feature = "cudarc")]
#[allow(
    unsafe_code,
    reason = "allocates by cudarc, and promises the order of its frees"
)]
mod cudarc;
mod on_stream;
mod stream_memory;

#[cfg(feature = "cudarc")]
pub use crate::cudarc::DriverBlock;
pub use on_stream::OnStream;
pub use stream_memory::{MemoryBlock, StreamMemory};
