//! The names and the ways of other libraries, for code that is ported to weirpool or written against several pools.
//! Attributes, and pools by name or address, are also reached under weirpool's own names.
//!
//! | item | library |
//! |---|---|
//! | [`Attribute`] | `cudaMemPoolGetAttribute`, `cuMemPoolGetAttribute`, `hipMemPoolGetAttribute` and their setters |
//! | [`find_pool`] | Umpire's `getAllocator(name)` |
//! | [`pool_of`] | `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`, `HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`, Umpire's `getAllocator(pointer)` |
//! | [`RawPool`] | `cudaMallocAsync`, `cudaFreeAsync`, PyTorch's pluggable allocators: addresses instead of blocks |
//! | [`current`](fn@current), [`Current`], [`Scope`], [`default_pool`] | `cudaDeviceGetMemPool`, `cudaDeviceSetMemPool`, `cudaDeviceGetDefaultMemPool`, Warp's `ScopedMempool` |
//!
//! [`origins`] has the examples of CUDA's, HIP's, Warp's and Umpire's pages, and their counterparts.

#![forbid(unsafe_code)]

mod attribute;
mod current;
mod known_streams;
mod mutex;
mod names;
#[doc = include_str!("../docs/origins.md")]
pub mod origins {}
mod raw;

pub use attribute::{Attribute, AttributeError};
pub use current::{Current, Entered, Scope, Scoped, current, default_pool};
pub use names::{find_pool, pool_of};
pub use raw::{RawError, RawPool};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
