//! Memory of a [pool](weirpool::Pool) beyond the pool, without a copy: blocks between processes, and tensors of other
//! libraries.
//!
//! | module | contents | feature, a default |
//! |---|---|---|
//! | [`dlpack`] | blocks as tensors of PyTorch, CuPy, JAX and others, and their tensors as blocks | `dlpack` |
//! | [`ipc`] | blocks that other processes map; Linux only | `ipc` |
//! | [`processes`] | a page on memory that several processes use | `ipc` |
//!
//! Memory of others becomes a block through the pool's seam for [foreign memory](weirpool::extend::ForeignMemory).
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

#[cfg(all(doctest, feature = "dlpack"))]
#[doc = include_str!("../README.md")]
struct Readme;
