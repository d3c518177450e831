//! Sizes with alignments.

/// The size and the alignment of a block that is to be, in bytes.
///
/// ```
/// use weirpool::Layout;
///
/// assert_eq!(Layout::from(4096), Layout::new(4096).alignment(1));
/// assert_eq!(Layout::from(std::alloc::Layout::new::<[u64; 8]>()), Layout::new(64).alignment(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Layout {
    /// The size.
    pub bytes: u64,
    /// A power of two, up to the device's step. Every block is aligned to 512 bytes anyway.
    pub alignment: u64,
}

impl Layout {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            alignment: 1,
        }
    }

    /// The same, aligned to so many bytes.
    pub const fn alignment(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }
}

impl From<u64> for Layout {
    fn from(bytes: u64) -> Self {
        Self::new(bytes)
    }
}

impl From<std::alloc::Layout> for Layout {
    fn from(layout: std::alloc::Layout) -> Self {
        Self::new(layout.size() as u64).alignment(layout.align() as u64)
    }
}
