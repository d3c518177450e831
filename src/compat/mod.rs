//! The names and the ways of other libraries, for code that is ported to this crate or written against
//! several pools. Everything here is also available under this crate's own names.
//!
//! | item | library |
//! |---|---|
//! | [`Attribute`] | `cudaMemPoolGetAttribute`, `cuMemPoolGetAttribute`, `hipMemPoolGetAttribute` and their setters |
//! | [`find_pool`], [`pools`] | Umpire's `getAllocator(name)`, `getAllocatorNames` |
//! | [`pool_of`] | `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`, `HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`, Umpire's `getAllocator(pointer)` |
//! | [`RawPool`] | `cudaMallocAsync`, `cudaFreeAsync`, PyTorch's pluggable allocators: addresses instead of blocks |

mod attribute;
mod names;
mod raw;

pub use attribute::{Attribute, AttributeError};
pub use names::{find_pool, pool_of, pools};
pub use raw::{RawError, RawPool};
