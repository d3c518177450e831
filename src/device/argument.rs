//! A block's address, made for one use on one stream.

use super::DeviceAddress;
use std::marker::PhantomData;

/// The memory of a block, as an argument of work on the stream that it was made for; made by
/// [`Block::on`](crate::Block::on), and nothing else makes one.
///
/// On CUDA it is a kernel argument: `launch.arg(&argument)`. It borrows the block, so that the work is
/// submitted before the block can be freed.
#[derive(Clone, Copy, Debug)]
#[must_use = "it is made for work that is submitted with it"]
pub struct Argument<'a> {
    address: u64,
    bytes: u64,
    block: PhantomData<&'a ()>,
}

impl Argument<'_> {
    pub(crate) fn new(address: u64, bytes: u64) -> Self {
        Self {
            address,
            bytes,
            block: PhantomData,
        }
    }

    /// The device address of the first byte.
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::from_bits(self.address)
    }

    /// The bytes that may be used.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// What the device is given: the address, as it lies here.
    #[cfg(feature = "cuda")]
    pub(super) fn as_parameter(&self) -> &u64 {
        &self.address
    }
}
