//! A block's address, made for one use on one stream.

use super::DeviceAddress;
use crate::measure::Bytes;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// The memory of a block, as an argument of work on the stream that it was made for; made by
/// [`Stream::submit`](crate::Stream::submit) and [`Stream::record_use`](crate::Stream::record_use).
///
/// On CUDA it is a kernel argument: `launch.arg(&argument)`. It borrows the block, so that the work is
/// submitted before the block can be freed. An address alone is none:
///
#[cfg_attr(feature = "cuda", doc = "```compile_fail,E0277")]
#[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
/// # use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
/// # fn launch(block: weirpool::Block, work: &CudaStream, kernel: &CudaFunction) {
/// let address = block.address();
/// work.launch_builder(kernel).arg(&address); // does not compile
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Argument<'a> {
    address: u64,
    bytes: u64,
    block: PhantomData<&'a ()>,
}

impl<'a> Argument<'a> {
    pub(crate) fn new(address: u64, bytes: u64) -> Self {
        Self {
            address,
            bytes,
            block: PhantomData,
        }
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::from_bits(self.address)
    }

    /// Returns the number of bytes that may be used.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// Returns a part of this memory, in bytes from its beginning, for the same work. Returns `None` if it has fewer
    /// bytes.
    pub fn part(self, range: Range<u64>) -> Option<Self> {
        let is_within = range.start <= range.end && range.end <= self.bytes;
        is_within.then(|| Self {
            address: self.address + range.start,
            bytes: range.end - range.start,
            ..self
        })
    }
}

impl fmt::Debug for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Argument")
            .field("address", &self.address())
            .field("size", &Bytes(self.bytes))
            .finish()
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::Argument;
    use weirpool_cuda::native::{LaunchArgs, PushKernelArg};

    // SAFETY: the pushed argument is a `u64`, which is how the driver takes a device pointer, and it lives until the
    // launch.
    unsafe impl<'a, 'b: 'a> PushKernelArg<&'b Argument<'_>> for LaunchArgs<'a> {
        #[inline(always)]
        fn arg(&mut self, argument: &'b Argument<'_>) -> &mut Self {
            self.arg(&argument.address)
        }
    }
}
