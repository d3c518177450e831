//! Memory of a [pool](weirpool::Pool) with several owners, without a copy: in a process, between processes, and as tensors
//! of other libraries.
//!
//! | module | contents | feature, a default |
//! |---|---|---|
//! | [`Share`] | blocks and buffers with several owners, and parts of them | |
//! | [`dlpack`] | blocks as tensors of PyTorch, CuPy, JAX and others, and their tensors as blocks | `dlpack` |
//! | [`ipc`] | blocks that other processes map; Linux only | `ipc` |
//! | [`processes`] | a page on memory that several processes use | `ipc` |
//!
//! Memory of others becomes a block through the pool's seam for [foreign memory](weirpool::extend::ForeignMemory).
//!
//! With the feature `cuda`, shared memory can be read by cudarc's copies and libraries.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "dlpack")]
#[cfg_attr(docsrs, doc(cfg(feature = "dlpack")))]
pub mod dlpack;
#[cfg(all(feature = "ipc", target_os = "linux"))]
#[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
pub mod ipc;
#[cfg(all(feature = "ipc", target_os = "linux"))]
#[doc = include_str!("../docs/processes.md")]
pub mod processes {}

mod shared;

pub use shared::{Share, SharedBlock, SharedBuffer};

#[cfg(all(doctest, feature = "dlpack"))]
#[doc = include_str!("../README.md")]
struct Readme;
