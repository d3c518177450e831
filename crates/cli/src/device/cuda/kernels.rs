//! The kernels: compiled where they run, and launched.

use super::driver;
use anyhow::Context;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;
use weirpool::device::Argument;

const SOURCE: &str = include_str!("kernels.cu");

/// Threads of a block of them.
const THREADS: u32 = 256;
/// Enough blocks of threads for every GPU; a thread then handles several words.
const MOST_BLOCKS: u64 = 4096;

/// The kernels of `kernels.cu`.
#[derive(Clone)]
pub(super) struct Kernels {
    tell_time: CudaFunction,
    hold_stream: CudaFunction,
    use_block: CudaFunction,
    fill_block: CudaFunction,
    check_block: CudaFunction,
}

/// The time at which work ends, on the device's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    pub(super) until: u64,
    /// The longest time from its beginning to its end.
    pub(super) longest: u64,
}

/// The pattern of an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) id: u64,
    /// The distance between words that are written and checked, in words.
    pub(super) step: u64,
}

impl Kernels {
    /// Compiles the kernels.
    ///
    /// # Errors
    /// Returns an error if there is no NVRTC, or if NVRTC or the driver refuses the source.
    pub(super) fn compile(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        let module = driver::compile(context, SOURCE)?;
        let function = |name| {
            let function = module.load_function(name);
            function.with_context(|| format!("the kernel `{name}` cannot be loaded"))
        };
        Ok(Self {
            tell_time: function("tell_time")?,
            hold_stream: function("hold_stream")?,
            use_block: function("use_block")?,
            fill_block: function("fill_block")?,
            check_block: function("check_block")?,
        })
    }

    /// Writes the device's time into the word at `address`.
    pub(super) fn tell_time(&self, work: &CudaStream, address: u64) -> anyhow::Result<()> {
        let mut launch = work.launch_builder(&self.tell_time);
        launch.arg(&address);
        // SAFETY: the kernel writes the word at the address, which its caller owns.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }

    pub(super) fn hold_stream(&self, work: &CudaStream, hold: Hold) -> anyhow::Result<()> {
        let mut launch = work.launch_builder(&self.hold_stream);
        launch.arg(&hold.until).arg(&hold.longest);
        // SAFETY: the kernel touches no memory.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }

    pub(super) fn use_block(
        &self,
        work: &CudaStream,
        block: &Argument<'_>,
        hold: Hold,
        bytes: u64,
    ) -> anyhow::Result<()> {
        let mut launch = work.launch_builder(&self.use_block);
        launch.arg(block).arg(&bytes);
        launch.arg(&hold.until).arg(&hold.longest);
        // SAFETY: the kernel writes within the `bytes` from the block's address on, which are its own.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }

    pub(super) fn fill_block(
        &self,
        work: &CudaStream,
        block: &Argument<'_>,
        bytes: u64,
        pattern: Pattern,
    ) -> anyhow::Result<()> {
        let mut launch = work.launch_builder(&self.fill_block);
        launch.arg(block).arg(&bytes);
        launch.arg(&pattern.id).arg(&pattern.step);
        // SAFETY: the kernel writes within the `bytes` from the block's address on, which are its own;
        // blocks are aligned for words.
        unsafe { launch.launch(wide(bytes, pattern)) }?;
        Ok(())
    }

    /// Launches the check of a block. `damaged` is the address of one word of 32 bits for each allocation.
    pub(super) fn check_block(
        &self,
        work: &CudaStream,
        block: &Argument<'_>,
        bytes: u64,
        pattern: Pattern,
        damaged: u64,
    ) -> anyhow::Result<()> {
        let mut launch = work.launch_builder(&self.check_block);
        launch.arg(block).arg(&bytes);
        launch.arg(&pattern.id).arg(&pattern.step).arg(&damaged);
        // SAFETY: as for `fill_block`; the kernel also writes the allocation's word of `damaged`, which the caller
        // owns.
        unsafe { launch.launch(wide(bytes, pattern)) }?;
        Ok(())
    }
}

fn one_thread() -> LaunchConfig {
    LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (1, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Returns the shape with a thread for each word, up to a bound.
fn wide(bytes: u64, pattern: Pattern) -> LaunchConfig {
    let words = bytes.div_ceil(8 * pattern.step);
    let blocks = words.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS);
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_a_thread_up_to_a_bound() {
        let blocks = |bytes, step| wide(bytes, Pattern { id: 0, step }).grid_dim.0;
        assert_eq!(blocks(0, 1), 1);
        assert_eq!(blocks(8 * 256, 1), 1);
        assert_eq!(blocks(8 * 256 + 1, 1), 2);
        assert_eq!(blocks(4096 * 257, 512), 2);
        assert_eq!(u64::from(blocks(1 << 40, 1)), MOST_BLOCKS);
    }
}
