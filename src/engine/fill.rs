//! The byte that memory is filled with, and when a pool fills its memory.

/// The byte that memory is filled with: see [`PoolBuilder::fill`](crate::PoolBuilder::fill), and the
/// [page on debugging](crate::guide::observability) for when each is of use.
///
/// ```
/// use weirpool::Fill;
///
/// let poison = [Fill::Poison.byte(); 4];
/// assert!(f32::from_ne_bytes(poison).is_nan());
/// assert_eq!(i32::from_ne_bytes(poison), -1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Fill {
    /// Zeros.
    Zero,
    /// `0xff`: not a number in every floating-point type, down to those of 8 bits, and so in every result that is
    /// computed from it; -1 as an integer, which is no valid index; and no valid address. (PyTorch fills uninitialised
    /// memory with NaN and the largest integers for the same reason.)
    Poison,
    /// A byte of the user's choice: to tell memory that was never written from memory that was freed, as jemalloc does
    /// with `0xa5` and `0x5a`.
    Byte(u8),
}

impl Fill {
    /// Returns the byte that is written.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::Poison => 0xff,
            Self::Byte(byte) => byte,
        }
    }
}

impl From<u8> for Fill {
    fn from(byte: u8) -> Self {
        Self::Byte(byte)
    }
}

/// When a pool fills its memory, and with which byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fills {
    pub(crate) on_allocate: Option<Fill>,
    pub(crate) on_free: Option<Fill>,
}
