//! The error of a program without the `cuda` feature when a GPU is requested.

use super::simulated::Simulated;
use anyhow::bail;

/// # Errors
/// Always returns an error, which says how to build a program that can use a GPU.
pub(crate) fn open() -> anyhow::Result<Simulated> {
    bail!("this program was built without CUDA; with it: cargo bench --features cuda ...")
}
