//! What a program without the `cuda` feature says of a GPU.

use super::simulated::Simulated;
use anyhow::bail;

/// # Errors
/// Always, with how to build a program that can.
pub(crate) fn open() -> anyhow::Result<Simulated> {
    bail!("this program was built without CUDA; with it: cargo bench --features cuda ...")
}
