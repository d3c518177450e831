//! Addresses of device memory.

use std::fmt;
use std::ops::Add;

/// An address of device memory: for logs, comparisons and other libraries. The host cannot dereference it.
///
/// It is not a number, so that no kernel takes one by accident. A kernel takes a block as the argument that
/// [`Block::on`](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.on) makes, which
/// tells the pool of the use.
/// ```
/// use weirpool::device::DeviceAddress;
///
/// let address = DeviceAddress::from_bits(0x7f00_0000_0200);
/// assert!(address.is_aligned_to(512) && !address.is_aligned_to(1024));
/// assert_eq!((address + 24).offset_from(address), Some(24));
/// assert_eq!(address.to_string(), "0x7f0000000200");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// Makes an address from its number.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the number of the address, for a log or another library.
    ///
    /// The pool does not know of work that uses the number. Before you submit such work, call
    /// [`Stream::record_use`](https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.record_use);
    /// keep the block until the work is submitted.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the address that is `bytes` bytes higher, or `None` if it would exceed the address space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Returns the bytes from `base` to this address, or `None` if this address is lower.
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// Returns whether the address is a multiple of `alignment` bytes.
    ///
    /// # Panics
    /// Panics if the alignment is 0.
    pub const fn is_aligned_to(self, alignment: u64) -> bool {
        self.0.is_multiple_of(alignment)
    }
}

/// Converts a number from a log, or from a call of a device. [`to_bits`](DeviceAddress::to_bits) converts it back.
impl From<u64> for DeviceAddress {
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

/// Returns the number of the address, with the limits of [`to_bits`](DeviceAddress::to_bits).
impl From<DeviceAddress> for u64 {
    fn from(address: DeviceAddress) -> Self {
        address.to_bits()
    }
}

/// # Panics
/// Panics if the result exceeds the address space, as an overflow of integers.
impl Add<u64> for DeviceAddress {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// `0x7f0000000200`
impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::LowerHex for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
