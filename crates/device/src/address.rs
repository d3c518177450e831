//! Addresses of device memory, which are no numbers.

use std::fmt;
use std::ops::Add;

/// An address of device memory: for people, for comparing, and for other libraries. The host cannot follow it.
///
/// It is no number, so that it is not given to a kernel by accident: work that uses a block is told of with
/// [`Block::on`](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.on), which makes an argument of it.
///
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
    /// The address of that number.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The number of the address, for a log or another library.
    ///
    /// Work that is given it is not known to the pool: say [`Block::used_on`](https://docs.rs/weirpool/latest/weirpool/struct.Block.html#method.used_on) before it
    /// is submitted, and keep the block until it is.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The address so many bytes further on; `None` behind the last one.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The bytes from `base` to here; `None` when this one comes before it.
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// Whether it is a multiple of `alignment` bytes.
    ///
    /// # Panics
    /// When the alignment is 0.
    pub const fn is_aligned_to(self, alignment: u64) -> bool {
        self.0 % alignment == 0
    }
}

/// For who has a number: of a log, or of a device called by hand. There is no way back but
/// [`to_bits`](DeviceAddress::to_bits).
impl From<u64> for DeviceAddress {
    fn from(bits: u64) -> Self {
        Self(bits)
    }
}

/// # Panics
/// Behind the last address, as numbers do.
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
